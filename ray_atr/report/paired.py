"""Whether one objective of a sweep is better than another by more than chance: paired differences with intervals."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np

from ray_atr.metrics.bootstrap import LEVEL, Difference, compare_runs
from ray_atr.metrics.metric import MEAN, TRAINED, Metric
from ray_atr.metrics.samples import Sample, from_arrays
from ray_atr.report.aggregate import in_reading_order
from ray_atr.report.read import NOISE, OBJECTIVE, SEED, TEST, Runs
from ray_atr.report.tables import ARROWS, of_whom
from ray_atr.run_folder import TEST_SCORES
from ray_atr.storage import Location, is_there, read_bytes
from ray_atr.table import Cell, Table, written

BASELINE = "contrastive"
"""What the others are compared with, if it is there; else the first objective."""


def paired_table(runs: Runs) -> Table | None:
    """R@1 minus the baseline's on the same queries, a block a noise ratio.

    None unless trials differ in objective and noise alone. Points with a trial that kept no scores (of an earlier version) are
    left out.
    """
    if set(runs.varied) - {OBJECTIVE, NOISE} or runs.measured_on != [TEST]:
        return None
    points = _points(runs)
    names = list(dict.fromkeys(objective for objective, _ in points))
    baseline = BASELINE if BASELINE in names or not names else names[0]
    blocks = [
        [
            _row(name, noise, compare_runs(points[baseline, noise], points[name, noise]))
            for name in names
            if name != baseline and (name, noise) in points
        ]
        for noise in sorted({noise for objective, noise in points if objective == baseline})
    ]
    if not any(blocks):
        return None
    return Table(
        title=f"R@1 minus that of {baseline}, {of_whom(TRAINED, runs)}",
        note=(
            f"Percentage points, test split, mean over the seeds; in brackets the {LEVEL:.0%} interval of the paired "
            "bootstrap over clips. Marked: the interval leaves 0 out."
        ),
        columns=["noise", "objective", *ARROWS.values()],
        blocks=[block for block in blocks if block],
    )


def _points(runs: Runs) -> dict[tuple[str, float], list[dict[str, Sample]]]:
    """(objective, noise) -> the scores of its seeds, in reading order; only points all of whose trials kept them."""
    finished = in_reading_order(runs.finished.drop_duplicates(subset=[*runs.varied, SEED]), [OBJECTIVE, NOISE, SEED])
    folders = dict(zip(runs.names, runs.folders, strict=True))
    found: dict[tuple[str, float], list[dict[str, Sample]]] = {}
    for row in finished.to_dict("records"):
        kept = read_scores(folders[row["run"]] / "trials" / str(row["trial_id"]) / TEST_SCORES)
        scores = {key: sample for key, sample in kept.items() if key.rpartition("/")[2] in runs.trained}
        found.setdefault((str(row[OBJECTIVE]), float(row[NOISE])), []).append(scores)
    return {point: scores for point, scores in found.items() if all(scores)}


def read_scores(path: Location) -> dict[str, Sample]:
    """The scores that a trial kept of its test split; none if it kept none."""
    if not is_there(path):
        return {}
    with np.load(io.BytesIO(read_bytes(path)), allow_pickle=False) as arrays:
        return from_arrays(dict(arrays))


def _row(name: str, noise: float, found: Mapping[Metric, Difference]) -> list[Cell]:
    of_directions = [found[Metric(direction, MEAN, "recall_at_1")] for direction in ARROWS]
    texts = [f"{100 * one.value:+.1f} ({100 * one.low:+.1f}, {100 * one.high:+.1f})" for one in of_directions]
    marked = [one.is_distinguishable for one in of_directions]
    labels = [Cell(written(noise), is_number=False), Cell(name, is_number=False)]
    return [*labels, *(Cell(text, is_best) for text, is_best in zip(texts, marked, strict=True))]
