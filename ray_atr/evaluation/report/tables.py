"""Tables of a sweep: recall by point with the trained languages first, ASK's ablation, differences between objectives."""

from __future__ import annotations

import io
import itertools
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ray_atr.common.storage import DamagedFileError, Location, file_exists, read_bytes
from ray_atr.common.table import DISTINGUISHED, MISSING, Cell, Table, number, percent, written
from ray_atr.evaluation.report.aggregate import (
    NUM_SEEDS,
    aggregate,
    differing,
    in_reading_order,
    point_names,
    row_dicts,
    under_same_conditions,
)
from ray_atr.evaluation.report.read import (
    DATA_SOURCE,
    NOISE,
    OBJECTIVE,
    SEED,
    TEST,
    TEST_SPLIT,
    TRAINED_LANGUAGES,
    VALIDATION,
    Runs,
)
from ray_atr.metrics.bootstrap import LEVEL, Difference, compare_runs, warning_of_seeds
from ray_atr.metrics.measures import MEASURES, is_recall_at_chance
from ray_atr.metrics.metric import MEAN, TRAINED, UNSEEN, Metric, QueryGroup
from ray_atr.metrics.samples import Sample, check_same_queries, from_arrays, in_shared_tasks
from ray_atr.training.run_folder import TEST_SCORES, RaceEvidence, short_names

ARROWS = {"text_to_audio": "text→audio", "audio_to_text": "audio→text"}
"""The directions' names in tables."""
SEEN = "in training?"
AT_CHANCE = "°"
KNOWLEDGE = "objective.knowledge."
SWITCHES = tuple(KNOWLEDGE + part for part in ("fine", "coarse", "injection", "transport", "reliability"))
PERIOD, REFRESH = KNOWLEDGE + "refresh_every_epochs", KNOWLEDGE + "refresh"
TICK = "✓"
BASELINE = "contrastive"
"""The baseline of paired comparisons, if it is among the objectives; else the first objective."""


@dataclass(frozen=True)
class Column:
    """One column of numbers: its metric, heading and format, and whether higher is better (None: neither)."""

    metric: str
    title: str
    group: str = ""
    is_percent: bool = True
    is_higher_better: bool | None = True


def recall_columns(
    language: str, measures: Sequence[str] = ("recall_at_1", "recall_at_10", "map_at_10")
) -> list[Column]:
    """These measures in both directions, of one language or of the mean over all."""
    return [
        Column(f"{direction}/{language}/{name}", of.heading.removesuffix(" %"), arrow, of.is_share, of.is_higher_better)
        for direction, arrow in ARROWS.items()
        for name, of in ((name, MEASURES[name]) for name in measures)
    ]


def recall_table(runs: Runs, language: str) -> Table:
    """R@1, R@10, mAP10 in both directions, a row a point of the sweep, a block a data set and noise ratio; of an ablation by
    ASK's parts.
    """
    if is_ablation(runs):
        return ablation_table(runs, recall_columns(language), f"Recall by ASK's parts, {of_whom(language, runs)}")
    *others, last = short_names(differing(runs.finished, runs.varied) or [OBJECTIVE]).values()
    paths = f"{', '.join(others)} and {last}" if others else last
    return point_table(runs, f"Recall by {paths}, {of_whom(language, runs)}", recall_columns(language))


def language_groups(runs: Runs) -> list[str]:
    """The groups of languages that a report shows, the trained ones first; of a group that no trial measured as a whole, each of
    its languages.
    """
    groups: list[str] = []
    for group, languages in ((TRAINED, runs.trained), (UNSEEN, runs.others)):
        column = Metric(next(iter(ARROWS)), group, "recall_at_1")
        is_divided = column in runs.finished and runs.finished[column].isna().all()
        groups += languages if is_divided else [group] * bool(languages)
    return groups or [MEAN]


def of_whom(language: str, runs: Runs) -> str:
    """A language, or a mean over trained or other languages, in a title."""
    if language not in (TRAINED, UNSEEN):
        return {"eng": "English", MEAN: "mean of languages"}.get(language, language)
    languages, before, after = runs.trained, "trained ", ""
    if language == UNSEEN:
        languages, before = runs.others, ""
        after = " not trained on" if runs.is_unseen else " that not all trials were trained on"
    if len(languages) == 1:
        return of_whom(languages[0], runs) + (after or " (trained)")
    return f"mean of {len(languages)} {before}languages{after}"


def point_table(runs: Runs, title: str, columns: Sequence[Column], *, points: pd.DataFrame | None = None) -> Table:
    """A row a point of the sweep: what it varies, the columns that were measured, the number of seeds."""
    points = aggregate(runs) if points is None else points
    columns = [column for column in columns if column.metric in points]
    # Without columns that are equal in all rows.
    lead = differing(points, sorted(runs.varied, key=lambda path: path != NOISE)) or [OBJECTIVE]
    if not runs.is_unseen and any(Metric.parse(column.metric).language == UNSEEN for column in columns):
        # The number of languages that this point was trained on, among those that not all trials were trained on.
        others = set(runs.others)
        words = {number: f"{number} of {len(others)}" for number in range(len(others))} | {
            0: "none",
            len(others): "all",
        }
        points = points.assign(**{SEEN: [words[len(others & set(seen))] for seen in points[TRAINED_LANGUAGES]]})
        lead.append(SEEN)
    blocks = [_block(frame, lead, columns) for frame in under_same_conditions(points, runs)]
    rest = " and ".join(dict.fromkeys(column.title for column in columns if not column.is_percent))
    percent_of = "Percent" + f" except {rest}" * bool(rest)
    unit = f"{percent_of}, " if any(column.is_percent for column in columns) else ""
    when = {TEST: "test split at the epoch chosen on validation", VALIDATION: "validation split after the last epoch"}
    on = " and ".join(when.get(split, split) for split in runs.measured_on) or "nothing yet"
    says_chance = any(cell.text.endswith(AT_CHANCE) for block in blocks for row in block for cell in row)
    notes = {
        f"{unit}{on}": True,
        "mean ± standard deviation over seeds": points[NUM_SEEDS].max() > 1,
        "best of each block marked": any(cell.is_best for block in blocks for row in block for cell in row),
        f"{AT_CHANCE} not distinguishable from chance": says_chance,
    }
    grouped = itertools.groupby(column.group for column in columns)
    return Table(
        title=title,
        note="; ".join(note for note, applies in notes.items() if applies) + ".",
        groups=[*(("", 1) for _ in lead), *((group, len(list(same))) for group, same in grouped), ("", 1)],
        columns=[*short_names(lead).values(), *(column.title for column in columns), "seeds"],
        blocks=blocks,
    )


def _block(frame: pd.DataFrame, lead: Sequence[str], columns: Sequence[Column]) -> list[list[Cell]]:
    best: dict[str, float] = {}
    for column in columns:
        if column.is_higher_better is not None and len(frame) > 1:
            values = frame[column.metric]
            best[column.metric] = float(values.max() if column.is_higher_better else values.min())

    def cell(row: Mapping[Any, Any], column: Column) -> Cell:
        mean = row[column.metric]
        text = (percent if column.is_percent else number)(mean, row.get(f"{column.metric} (sd)"))
        at_chance = is_at_chance(row, column.metric)
        return Cell(text + AT_CHANCE * at_chance, is_best=mean == best.get(column.metric) and not at_chance)

    return [
        [
            *(Cell(written(row[path]), is_number=False) for path in lead),
            *(cell(row, column) for column in columns),
            Cell(str(row[NUM_SEEDS])),
        ]
        for row in row_dicts(frame)
    ]


def is_at_chance(row: Mapping[Any, Any], metric: str) -> bool:
    """Whether a metric is a point's R@1 and `is_chance`, over the queries of all its seeds."""
    named = Metric.parse(metric)
    return named.name == "recall_at_1" and is_recall_at_chance(row, named.task, named.language, row[NUM_SEEDS])


def learnt_nothing(runs: Runs) -> list[str]:
    """The names of points whose R@1 is at chance in both directions in the languages that they were trained on."""
    if runs.finished.empty:
        return []
    points = aggregate(runs)
    columns = [name for direction in ARROWS if (name := Metric(direction, TRAINED, "recall_at_1")) in points]
    rows = zip(point_names(points, runs), row_dicts(points), strict=True)
    return [name for name, row in rows if columns and all(is_at_chance(row, column) for column in columns)]


def is_ablation(runs: Runs) -> bool:
    """Whether the runs switch a part of ASK on and off."""
    return any(path in runs.varied for path in SWITCHES)


def ablation_table(runs: Runs, columns: Sequence[Column], title: str) -> Table:
    """ASK without each of its parts: a tick for each part that is on (layout of Fu et al. 2025, Table 2).

    ASK's own defaults count where neither sweep nor experiment sets a part.
    """
    points = aggregate(runs)
    parts = pd.DataFrame([ticks(partial(_is_on, runs, row)) for row in row_dicts(points)])
    others = [path for path in runs.varied if path not in (OBJECTIVE, *SWITCHES, PERIOD)]
    # No knowledge, then complete ASK, then its ablations.
    num_on = (parts == TICK).sum(axis=1)
    order = sorted(points.index, key=lambda row: (num_on[row] > 0, -num_on[row]))
    shown = points.assign(**parts).loc[order]
    return point_table(replace(runs, varied=[OBJECTIVE, *parts, *others]), title, columns, points=shown)


def ticks(is_on: Callable[[str], bool]) -> dict[str, str]:
    """Each of ASK's parts -> a tick if it is on, by the path that switches it."""
    return {REFRESH if path == PERIOD else path: TICK if is_on(path) else MISSING for path in (*SWITCHES, PERIOD)}


def _is_on(runs: Runs, row: Mapping[Any, Any], path: str) -> bool:
    if "ask" not in str(row[OBJECTIVE]).split("+"):
        return False
    value = row.get(path)
    return bool(runs.experiments[0].get(path, True) if value is None or pd.isna(value) else value)


def paired_table(runs: Runs) -> Table | None:
    """R@1 minus the baseline's on the same queries, a block a noise ratio, over the seeds that both have.

    None unless there is one point with the baseline's objective. Points with a trial that kept no scores, those without a
    seed of the baseline's, and those of other queries, are left out.
    """
    if runs.measured_on != [TEST]:
        return None
    varied = [OBJECTIVE, *(path for path in runs.varied if path not in (OBJECTIVE, NOISE))]
    points = _points(runs, varied)
    names = list(dict.fromkeys(name for name, _ in points))
    objectives = [objective for objective, *_ in names]
    baseline = BASELINE if BASELINE in objectives or not names else objectives[0]
    if objectives.count(baseline) != 1:
        return None
    reference = names[objectives.index(baseline)]
    has_noise = NOISE in runs.varied
    num_seeds: set[int] = set()
    others: list[str] = []

    def in_words(name: tuple[str, ...], noise: float) -> str:
        return " ".join(part for part in name if part != MISSING) + f" at noise {written(noise)}" * has_noise

    def compared(name: tuple[str, ...], noise: float) -> list[Cell] | None:
        """A row of the table; None where no seed is both points'."""
        before, after = points[reference, noise], points.get((name, noise), {})
        seeds = sorted(before.keys() & after.keys())
        if not seeds:
            return None
        if not all(_has_same_queries(before[seed], after[seed]) for seed in seeds):
            others.append(in_words(name, noise))
            return None
        num_seeds.add(len(seeds))
        difference = compare_runs([before[seed].samples for seed in seeds], [after[seed].samples for seed in seeds])
        return _row([written(noise)] * has_noise + list(name), difference)

    blocks = [
        [row for name in names if name != reference and (row := compared(name, noise)) is not None]
        for noise in sorted({noise for name, noise in points if name == reference})
    ]
    if not any(blocks):
        return None
    every = {seed for seeds in points.values() for seed in seeds}
    missing = [
        f"{in_words(name, noise)}: {', '.join(map(str, lacking))}"
        for (name, noise), seeds in points.items()
        if (lacking := sorted(every - seeds.keys()))
    ]
    note = (
        f"Percentage points, test split, mean over the seeds; in brackets the {LEVEL:.0%} interval over clips and seeds. "
        f"{DISTINGUISHED}: the interval leaves 0 out. {warning_of_seeds(min(num_seeds))}"
    ).strip()
    if missing:
        note += f" A row is over the seeds that both points have. Seeds without a result: {'; '.join(missing)}."
    if others:
        note += f" Measured on other queries, and not compared: {'; '.join(others)}."
    return Table(
        title=f"R@1 minus that of {baseline}, {of_whom(TRAINED, runs)}",
        note=note,
        columns=[*short_names([NOISE] * has_noise + varied).values(), *ARROWS.values()],
        blocks=[block for block in blocks if block],
    )


class _Scores(NamedTuple):
    """A trial's test scores in the languages that all trials were trained on, and what they were measured on."""

    samples: dict[QueryGroup, Sample]
    data: tuple[Any, ...]


def _has_same_queries(first: _Scores, second: _Scores) -> bool:
    """Whether two trials were measured on the same queries of the same data. Queries are numbers, which other data have too."""
    try:
        check_same_queries(*in_shared_tasks([first.samples, second.samples]))
    except ValueError:
        return False
    return first.data == second.data


def _points(runs: Runs, varied: Sequence[str]) -> dict[tuple[tuple[str, ...], float], dict[int, _Scores]]:
    """The scores of each point by seed, by its values of `varied` and its noise, in reading order; only of points whose finished
    trials all have scores.
    """
    finished = in_reading_order(runs.finished.drop_duplicates(subset=[*runs.varied, SEED]), [*varied, NOISE, SEED])
    of_points: dict[tuple[tuple[str, ...], float], dict[int, _Scores]] = {}
    for row in row_dicts(finished):
        run, overrides = runs.names.index(row["run"]), runs.overrides[row["trial_id"]]
        stored = read_scores(runs.folders[run] / "trials" / str(row["trial_id"]) / TEST_SCORES)
        samples = {group: sample for group, sample in stored.items() if group.language in runs.trained}
        split = overrides.get(TEST_SPLIT, runs.experiments[run].get(TEST_SPLIT))
        # A folder that was moved is the same data: only a trial's own source is another.
        data = ((runs.infos[run].get("data") or {}).get("hash"), overrides.get(DATA_SOURCE), split)
        point = of_points.setdefault((tuple(written(row[path]) for path in varied), float(row[NOISE])), {})
        point[row[SEED]] = _Scores(samples, data)
    return {point: of_seeds for point, of_seeds in of_points.items() if all(seed.samples for seed in of_seeds.values())}


def read_scores(path: Location) -> dict[QueryGroup, Sample]:
    """A trial's stored scores of its test split; empty if there are none. DamagedFileError if the file is damaged."""
    if not file_exists(path):
        return {}
    content = read_bytes(path)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return from_arrays(dict(arrays))
    # TypeError for a single array, which is no archive of arrays.
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error):
        raise DamagedFileError(path) from None


def _row(names: Sequence[str], of_metric: Mapping[Metric, Difference]) -> list[Cell]:
    of_directions = [of_metric[Metric(direction, MEAN, "recall_at_1")] for direction in ARROWS]
    # z: no -0.0
    texts = [
        f"{100 * difference.value:+z.1f} ({100 * difference.low:+z.1f}, {100 * difference.high:+z.1f})"
        + f" {DISTINGUISHED}" * difference.is_distinguishable
        for difference in of_directions
    ]
    return [*(Cell(name, is_number=False) for name in names), *map(Cell, texts)]


def race_table(dropped: Mapping[str, RaceEvidence]) -> Table | None:
    """The points that a race dropped, with the evidence, a row each; None if there are none."""
    if not dropped:
        return None
    rows = [
        [
            Cell(name, is_number=False),
            Cell(evidence.rival, is_number=False),
            Cell(str(evidence.seeds)),
            Cell(f"{100 * evidence.ahead:.1f}"),
            Cell(f"{100 * evidence.at_least:.1f}"),
            Cell(f"{evidence.level:.2g}"),
        ]
        for name, evidence in dropped.items()
    ]
    note = (
        "These points got no further seeds, because another point is better on validation, by paired evidence over clips and "
        "seeds. What they would have reached with all seeds was not measured; their numbers are over the seeds that had ended. "
        "Ahead: the rival's lead in percentage points; at least: its lower bound. The bounds hold for all pairs of the race at "
        "once, except with the probability in the last column. If several points remain, the race does not say which of them is "
        "the best."
    )
    heads = ("dropped", "rival", "after seeds", "ahead", "at least", "but with probability")
    return Table("Dropped by the race", note, heads, [rows])
