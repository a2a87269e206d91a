"""One self-contained HTML page: tables, figures as data, what failed, how to run the best again."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ray_atr.common.override import as_typed
from ray_atr.common.runtime import code_name, train_words
from ray_atr.common.table import MISSING, Table, minutes, percent
from ray_atr.evaluation.report.aggregate import (
    NUM_SEEDS,
    aggregate,
    differing,
    point_name,
    row_dicts,
    under_same_conditions,
)
from ray_atr.evaluation.report.html import data_url, render_template
from ray_atr.evaluation.report.read import DATA_SOURCE, NOISE, OBJECTIVE, SEED, Runs, shortened_hashes
from ray_atr.evaluation.report.style import DPI
from ray_atr.evaluation.report.tables import learnt_nothing
from ray_atr.training.run_folder import metric_chosen_by, short_names

PLURALS = {OBJECTIVE: "objectives", NOISE: "noise ratios", SEED: "seeds"}


@dataclass(frozen=True)
class Picture:
    """A picture on disk and its description for people who cannot see it."""

    path: Path
    title: str
    is_of_results: bool = True
    """Whether it shows what the trials reached, and may stand first, above the tables."""

    @property
    def data_url(self) -> str:
        return data_url(self.path.read_bytes())

    @property
    def width(self) -> int:
        """Width in CSS pixels at which its text is as large as the page's."""
        # A PNG's width is in bytes 16 to 19, big-endian.
        return round(int.from_bytes(self.path.read_bytes()[16:20], "big") / DPI * 98)


@dataclass(frozen=True)
class Best:
    """The point with the highest validation metric, averaged over seeds, at one noise ratio (None: there is only one)."""

    noise_ratio: float | None
    name: str
    metric: str
    mean: float
    deviation: float
    num_seeds: int
    command: str
    """The command that runs its best seed again."""

    @property
    def score(self) -> str:
        """Mean and deviation in percent."""
        return percent(self.mean, self.deviation)

    @property
    def command_parts(self) -> list[str]:
        """The command, split before each option, where a page can break lines."""
        first, *options = self.command.split(" --")
        return [first, *("--" + option for option in options)]


def sweep_page(runs: Runs, tables: Sequence[Table], layouts: Sequence[Table], figures: Sequence[Picture]) -> str:
    """The page's HTML."""
    leading = [figure for figure in figures[:1] if figure.is_of_results]
    return render_template(
        "sweep.html.j2",
        title=_title(runs),
        summary=_summary(runs),
        facts=_facts(runs),
        tables=tables,
        layouts=layouts,
        leading=leading,
        figures=figures[len(leading) :],
        best=best_points(runs),
        learnt_nothing=learnt_nothing(runs),
        problems=runs.problems,
        unfinished=[_unfinished(row) for row in row_dicts(runs.unfinished)],
        settings=[
            (path, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
            for path, value in runs.shared.items()
        ],
        commands=[str(info.get("command", "")) for info in runs.infos],
        written=time.strftime("%Y-%m-%d %H:%M"),
        synthetic=_synthetic(runs),
    )


def _synthetic(runs: Runs) -> str:
    """The first words of the warning that data are synthetic; empty if no trial's are."""
    # A sweep may vary the source.
    of_base = [experiment.get(DATA_SOURCE) for experiment in runs.experiments]
    sources: set[Any] = set(runs.trials.get(DATA_SOURCE, of_base))
    if "soundscapes" not in sources:
        return ""
    return "Trained" if len(sources) == 1 else "Some trials were trained"


def _title(runs: Runs) -> str:
    """The names of the sweeps; the folders' names if several are equal."""
    called = [info["name"] for info in runs.infos]
    return ", ".join(called if len(set(called)) == len(called) else runs.names)


def _summary(runs: Runs) -> str:
    counts = runs.trials["status"].value_counts()
    words = [f"{counts.get('finished', 0)} of {len(runs.trials)} trials finished"]
    words += [
        f"{counts[status]} {status}" for status in ("failed", "stopped", "running", "pending") if counts.get(status)
    ]
    values = {path: runs.trials[path].nunique(dropna=False) for path in (*runs.varied, SEED)}
    sizes = {path: size for path, size in values.items() if size > 1}
    if sizes:
        # A product only if every combination was run.
        joint = " × " if math.prod(sizes.values()) == len(runs.trials) else ", "
        named = {path: PLURALS.get(path, f"values of {name}") for path, name in short_names(sizes).items()}
        words.append(joint.join(f"{size} {named[path]}" for path, size in sizes.items()))
    return "; ".join(words)


def _facts(runs: Runs) -> list[tuple[str, str]]:
    def of_each(texts: Iterable[str]) -> str:
        """A text about each run, once if several have the same."""
        return "; ".join(dict.fromkeys(filter(None, texts)))

    codes = [dict(info.get("code") or {}) for info in runs.infos]
    seconds = float(runs.trials["train_seconds"].fillna(0).sum())
    return [
        ("Data", of_each(map(_data_of, runs.infos, runs.experiments))),
        ("Trained languages", ", ".join(runs.trained) or MISSING),
        ("Not trained on" if runs.is_unseen else "Trained on by some", ", ".join(runs.others)),
        ("Noise ratio", "" if NOISE in runs.varied else f"{runs.trials[NOISE].iloc[0]:g}"),
        ("Measured on", " and ".join(runs.measured_on) or "nothing yet"),
        ("Training time", f"{minutes(seconds)} over all trials"),
        ("Code", of_each(map(code_name, codes))),
        ("Versions", of_each(map(_versions_of, codes))),
        ("Run folder", ", ".join(map(str, runs.folders))),
    ]


def _data_of(info: Mapping[str, Any], experiment: Mapping[str, Any]) -> str:
    """The data sets of a run, with the manifests' hashes if it kept them."""
    data = info.get("data") or {}
    name = str(data.get("name") or experiment.get("data.source"))
    hashes = shortened_hashes(str(data.get("hash", "")))
    return f"{name} (manifest {hashes})" if hashes else name


def _versions_of(code: Mapping[str, str]) -> str:
    return ", ".join(
        f"{package} {version}"
        for package, version in code.items()
        if package not in ("git_commit", "code_digest") and version != "absent"
    )


def _unfinished(row: Mapping[Any, Any]) -> dict[str, str]:
    so_far = row.get("text_to_audio/trained/recall_at_1")
    return {
        **{name: str(row[name]) for name in ("name", "status", "epochs", "trial_id")},
        "so_far": percent(so_far if isinstance(so_far, float) else None),
        "error": row["error"] if isinstance(row["error"], str) else "",
    }


def best_points(runs: Runs) -> list[Best]:
    """The best point on each data set at each noise ratio: they are conditions of the comparison, not choices to optimise."""
    metric = metric_chosen_by(runs.experiments[0])
    column = f"val/{metric}"
    if column not in runs.finished or runs.finished[column].dropna().empty:
        return []
    points = aggregate(runs).dropna(subset=[column])
    varied = [path for path in differing(points, runs.varied) if path != NOISE]
    best = []
    for point in (group.loc[group[column].idxmax()] for group in under_same_conditions(points, runs)):
        trials = runs.finished
        for path in runs.varied:
            trials = trials[trials[path].isna() if pd.isna(point[path]) else trials[path] == point[path]]
        trial = trials.loc[trials[column].idxmax()]
        best.append(
            Best(
                noise_ratio=float(point[NOISE]) if NOISE in runs.varied else None,
                name=point_name(point, varied),
                metric=metric,
                mean=float(point[column]),
                deviation=float(point[f"{column} (sd)"]),
                num_seeds=int(point[NUM_SEEDS]),
                command=rerun_command(runs, str(trial["run"]), str(trial["trial_id"])),
            )
        )
    return best


def rerun_command(runs: Runs, run: str, trial_id: str) -> str:
    """The shell command that trains one trial again, with its run's settings and the trial's overrides."""
    folder, seed = runs.folders[runs.names.index(run)], runs.experiments[runs.names.index(run)].get(SEED, 0)
    settings = {**runs.overrides[trial_id], SEED: runs.overrides[trial_id].get(SEED, seed)}
    words = [*train_words(), "--config", str(folder / "experiment.json")]
    for path in sorted(settings, key=lambda path: (path.count("."), path == SEED)):
        value = as_typed(settings[path])
        words += [f"--{path}", "none" if value is None else str(value)]
    return shlex.join(words)
