"""Table and figures of a reality check: how far each method comes from the floor to the ceiling, and at what cost.

It has test scores at the epoch that clean validation chose, and validation scores of the last epoch, which show memorisation.
Intervals are over clips and seeds, as in every table. All is read from the trials' files; nothing is encoded again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ray_atr.common.override import as_typed, override
from ray_atr.common.settings import counted
from ray_atr.common.table import Cell, Table
from ray_atr.evaluation.report.aggregate import row_dicts
from ray_atr.evaluation.report.evaluation_tables import in_words
from ray_atr.evaluation.report.read import Runs
from ray_atr.evaluation.report.style import DPI, RC
from ray_atr.evaluation.report.sweep_page import Picture
from ray_atr.evaluation.report.tables import read_scores
from ray_atr.evaluation.report.write import Added
from ray_atr.metrics.bootstrap import over_clips_and_seeds, warning_of_seeds
from ray_atr.metrics.metric import Metric, QueryGroup, languages_of_means
from ray_atr.papers.methods import CEILING, CORRESPONDENCE, FLOOR, METHODS, PAIR, method_of
from ray_atr.training.experiment import NOT_DECIDING, Experiment
from ray_atr.training.run_folder import TEST_SCORES, RunFolder, TrialFolder, hashes_of
from ray_atr.training.validation import MEASURE

SWEEP = "sweep_correspondence"
"""Name of the runs whose reports have the reality check."""
DRAWS, SEED_OF_DRAWS = 2000, 0
LARGEST_SHARE, HALVINGS = 20.0, 12
DETECTOR = {
    "detector_auc": ("detector: area", "area under the ROC curve"),
    "detector_calibration_error": ("calibration error", "calibration error"),
    "clean_pairs_lost": ("clean pairs lost", "clean pairs lost at 5% wrong"),
}
"""Measures of a detector where the wrong pairs are known: the headings of their columns, and their names in a figure."""
NAMES = ("noise", "kind", "method")
SHARED, FROM_FLOOR, SHARE = "shared seeds", "against the floor", "share of the way"
LAST_EPOCH = "last epoch (validation)"
IN_PERCENT = ("test", LAST_EPOCH, FROM_FLOOR)
NAMED = 3
"""Number of differing settings that are named for a run that is left out."""
COLUMNS = (
    *NAMES, "seeds", SHARED, "test", LAST_EPOCH, FROM_FLOOR, "low", "high", SHARE, "share low", "share high", *DETECTOR,
    "seconds"
)  # fmt: skip
"""Columns of the table; those without any value are dropped."""


class Hits(NamedTuple):
    """For each test query the share of its languages in which its own clip ranks first, [Q]; and its clip, [Q]."""

    values: NDArray[np.float64]
    clip: NDArray[np.int64]


@dataclass(frozen=True)
class MethodTrials:
    """A method's finished trials under one noise: hits [seeds, queries], the queries' clips, the seeds, and what was recorded."""

    hits: NDArray[np.float64]
    clip: NDArray[np.int64]
    seeds: tuple[int, ...]
    last: float
    seconds: float
    curves: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """Name of a detector's measure -> its mean over seeds after each epoch, [epochs]."""

    @property
    def test(self) -> float:
        """Mean over seeds and queries."""
        return float(self.hits.mean())


TrialsOfMethods = Mapping[tuple[str, str, float], MethodTrials]
"""(method, kind of noise, ratio) -> its trials."""


def difference(first: MethodTrials, second: MethodTrials) -> tuple[float, float, float]:
    """(second - first, low, high) at 95%, over the clips and the seeds that both have, one or more.

    A seed determines the noise, the first weights and the order of the clips, so that only the methods differ. A
    clip is drawn with all its queries.
    """
    shared = shared_seeds(first, second)
    gained = of_seeds(second, shared) - of_seeds(first, shared)
    bounds = over_clips_and_seeds(gained.mean(axis=1), drawn_clips(gained, first.clip))
    return float(gained.mean()), bounds.low, bounds.high


def share_of_the_way(first: MethodTrials, second: MethodTrials, ceiling: MethodTrials) -> tuple[float, float, float]:
    """(share, low, high) at 95%: how far the second comes to the ceiling, over the seeds that all have (one or more).

    The interval is Fieller's: the shares r for which 0 is in the interval of (second - first) - r (ceiling - first). It is
    infinite if over these seeds the ceiling is not clearly above the first.
    """
    shared = shared_seeds(first, second, ceiling)
    floor = of_seeds(first, shared)
    gained, ceiling_gain = of_seeds(second, shared) - floor, of_seeds(ceiling, shared) - floor
    share = float(gained.mean() / ceiling_gain.mean()) if ceiling_gain.mean() else np.nan
    drawn, drawn_ceiling = drawn_clips(gained, first.clip), drawn_clips(ceiling_gain, first.clip)
    if not over_clips_and_seeds(ceiling_gain.mean(axis=1), drawn_ceiling).low > 0:
        return share, -np.inf, np.inf

    def leaves_out(r: float) -> bool:
        bounds = over_clips_and_seeds((gained - r * ceiling_gain).mean(axis=1), drawn - r * drawn_ceiling)
        return bounds.low > 0 or bounds.high < 0

    def end(step: float) -> float:
        inside, outside = share, share + step
        while not leaves_out(outside):
            inside, outside = outside, share + 2 * (outside - share)
            if abs(outside) > LARGEST_SHARE:
                return float(np.sign(step) * np.inf)
        for _ in range(HALVINGS):
            middle = (inside + outside) / 2
            inside, outside = (inside, middle) if leaves_out(middle) else (middle, outside)
        return inside

    return share, end(-0.1), end(0.1)


def shared_seeds(*trials: MethodTrials) -> list[int]:
    """The seeds that all have."""
    return [seed for seed in trials[0].seeds if all(seed in other.seeds for other in trials[1:])]


def of_seeds(trials: MethodTrials, seeds: Sequence[int]) -> NDArray[np.float64]:
    """The hits of these seeds, [seeds, queries]."""
    return np.stack([trials.hits[trials.seeds.index(seed)] for seed in seeds])


def drawn_clips(values: NDArray[np.float64], clip: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mean of values [seeds, queries] in each draw of the clips, [seeds, draws]."""
    clip = np.unique(clip, return_inverse=True)[1]
    queries = np.bincount(clip)
    sums = np.stack([np.bincount(clip, of_seed) for of_seed in values])
    generator = np.random.default_rng(SEED_OF_DRAWS)
    weight = generator.multinomial(len(queries), np.full(len(queries), 1 / len(queries)), size=DRAWS).astype(float)
    return np.asarray(sums @ weight.T / (weight @ queries))


def hits_of(trial: TrialFolder, experiment: Experiment) -> Hits | None:
    """The hits of the selected metric's task and languages; None if they were not saved.

    For a metric that is a mean over languages, a query's value is the mean over the languages that have it.
    """
    chosen_by = Metric.parse(experiment.evaluation.select_by)
    members = languages_of_means(experiment.data.languages, experiment.trained_languages)
    scores = read_scores(trial.folder / TEST_SCORES)
    languages = members.get(chosen_by.language, [chosen_by.language])
    wanted = [QueryGroup(chosen_by.task, language) for language in languages]
    if not wanted or not scores.keys() >= set(wanted):
        return None
    samples = [scores[group] for group in wanted]
    query, number_of = np.unique(np.concatenate([sample.query for sample in samples]), return_inverse=True)
    clip = np.empty_like(query)
    clip[number_of] = np.concatenate([sample.unit for sample in samples])
    hits = np.concatenate([sample.means[MEASURE] for sample in samples])
    return Hits(np.bincount(number_of, hits) / np.bincount(number_of), clip)


class ReadTrials(NamedTuple):
    """The trials of runs by method and noise, and a line for each run or kind of trial that was left out, with the reason."""

    methods: dict[tuple[str, str, float], MethodTrials]
    left_out: list[str]


def read_trials(*runs: RunFolder) -> ReadTrials:
    """The trials of runs by method and noise. Trials of no method, unfinished or without scores, and runs that cannot be
    compared, are left out and listed.

    Runs with other settings than the first cannot be compared with it. If several runs have the same method, noise and seed,
    the first run's trial is used.
    """
    base = runs[0].experiment
    grouped: dict[tuple[str, str, float], dict[int, tuple[Hits, TrialFolder]]] = {}
    left_out: list[str] = []
    for run in runs:
        if differing := _differing(run, runs[0]):
            left_out.append(f"{run.path}: {differing}")
            continue
        reasons: Counter[str] = Counter()
        for trial in run.trials():
            overrides = trial.describe()["overrides"]
            name = method_of(overrides)
            if name is None:
                chosen = [str(overrides[path]) for path in (PAIR, CORRESPONDENCE) if path in overrides]
                reasons[f"of no method that is compared ({', '.join(chosen) or 'none is named'})"] += 1
            elif not trial.is_finished:
                reasons["not finished"] += 1
            elif (hits := hits_of(trial, override(base, overrides))) is None:
                reasons["without the scores that the table is made of"] += 1
            else:
                key = (name, str(overrides["data.noise.kind"]), float(overrides["data.noise.ratio"]))
                grouped.setdefault(key, {}).setdefault(int(overrides["seed"]), (hits, trial))
        left_out += [f"{run.path}: {counted(number, 'trial')} {reason}" for reason, number in reasons.items()]
    select_by = base.evaluation.select_by
    return ReadTrials(
        {key: _method_trials(list(trials.values()), select_by) for key, trials in grouped.items()}, left_out
    )


def _differing(run: RunFolder, first: RunFolder) -> str:
    """The reason why a run cannot be compared with the first one; empty if it can."""
    if (name := run.info["name"]) != first.info["name"]:
        return f"a run of {name}, not of {first.info['name']}"
    hashes, expected_hashes = (set(hashes_of(compared.info).values()) for compared in (run, first))
    if hashes and expected_hashes and hashes.isdisjoint(expected_hashes):
        return "on another version of the data set"
    settings, expected = run.settings, first.settings
    paths = [
        path
        for path in dict.fromkeys((*expected, *settings))
        if settings.get(path) != expected.get(path) and not path.startswith(NOT_DECIDING)
    ]
    named = [f"{path} {as_typed(settings.get(path))}, not {as_typed(expected.get(path))}" for path in paths[:NAMED]]
    more = [f"{len(paths) - NAMED} more"] if len(paths) > NAMED else []
    return "; ".join((*named, *more))


def _method_trials(trials: Sequence[tuple[Hits, TrialFolder]], metric: str) -> MethodTrials:
    results = [trial.result() for _, trial in trials]
    epochs = [trial.epochs() for _, trial in trials]
    # Curves of equal length: a run may have been repeated with more epochs.
    length = min(map(len, epochs))
    return MethodTrials(
        hits=np.stack([hits.values for hits, _ in trials]),
        clip=trials[0][0].clip,
        seeds=tuple(int(trial.describe()["overrides"]["seed"]) for _, trial in trials),
        last=float(np.mean([result["last"][metric] for result in results])),
        seconds=float(np.mean([result["train_seconds"] for result in results])),
        curves={
            name: np.mean([[row.get(f"train/{name}", np.nan) for row in rows[:length]] for rows in epochs], axis=0)
            for name in DETECTOR
            if any(f"train/{name}" in row for row in epochs[0])
        },
    )


def table(methods: TrialsOfMethods) -> pd.DataFrame:
    """One row per method and noise: scores, the share of the way from the floor to the ceiling, the detector, the time."""
    rows: list[dict[str, Any]] = []
    order = list(METHODS)
    for (name, kind, ratio), trials in sorted(methods.items(), key=lambda item: (item[0][1:], order.index(item[0][0]))):
        floor, ceiling = methods.get((FLOOR, kind, ratio)), methods.get((CEILING, kind, ratio))
        row: dict[str, Any] = {"noise": ratio, "kind": kind, "method": name, "seeds": len(trials.hits)}
        row |= {"test": trials.test, LAST_EPOCH: trials.last, "seconds": trials.seconds}
        if floor is not None and name != FLOOR:
            row[SHARED] = len(shared_seeds(floor, trials))
        if floor is not None and row.get(SHARED):
            value, row["low"], row["high"] = difference(floor, trials)
            row[FROM_FLOOR] = value
            if ceiling is not None and name != CEILING and shared_seeds(floor, trials, ceiling):
                row[SHARE], row["share low"], row["share high"] = share_of_the_way(floor, trials, ceiling)
        if METHODS[name][CORRESPONDENCE] != "none":
            row |= {detected: float(curve[-1]) for detected, curve in trials.curves.items()}
        rows.append(row)
    frame = pd.DataFrame(rows)
    if SHARED in frame and (frame[SHARED].fillna(frame["seeds"]) == frame["seeds"]).all():
        del frame[SHARED]
    return frame[[name for name in COLUMNS if name in frame]]


def draw(methods: TrialsOfMethods, path: Path, measured: str) -> None:
    """One panel per noise ratio, one bar per method, floor and ceiling as lines; `measured` names the metric of the bars."""
    noises = sorted({(kind, ratio) for _, kind, ratio in methods})
    compared = {name for name, _, _ in methods} - {FLOOR, CEILING}
    names = [name for name in reversed(METHODS) if name in compared]
    with rc_context(RC):
        figure = Figure(figsize=(4.2 * len(noises), 4.4), layout="constrained")
        (panels,) = figure.subplots(1, len(noises), sharey=True, sharex=True, squeeze=False)
        for axes, (kind, ratio) in zip(panels, noises, strict=True):
            for place, name in enumerate(names):
                if (trials := methods.get((name, kind, ratio))) is not None:
                    deviation = float(trials.hits.mean(axis=1).std(ddof=1)) if len(trials.hits) > 1 else 0.0
                    axes.barh(place, trials.test, xerr=deviation, color="#56B4E9", ecolor="#1b1b1b", height=0.7)
            axes.set_yticks(range(len(names)), names)
            ends = ((FLOOR, "#D55E00", "all pairs kept"), (CEILING, "#009E73", "wrong pairs left out"))
            for name, colour, label in ends:
                if (trials := methods.get((name, kind, ratio))) is not None:
                    axes.axvline(trials.test, color=colour, linestyle="--", linewidth=1.4, label=label)
            axes.grid(visible=True, axis="x")
            axes.grid(visible=False, axis="y")
            axes.set(title=title_of(kind, ratio), xlabel=measured)
        _save(figure, panels, path, legend_columns=2)


def draw_detector(methods: TrialsOfMethods, path: Path) -> Path | None:
    """How well each method separates clean from wrong pairs after each epoch: one row per measure, one column per noise."""
    detecting = {
        key: trials.curves
        for key, trials in methods.items()
        if key[0] != CEILING and METHODS[key[0]][CORRESPONDENCE] != "none" and len(trials.curves) == len(DETECTOR)
    }
    noises = sorted({(kind, ratio) for _, kind, ratio in detecting})
    if not noises:
        return None
    with rc_context(RC):
        figure = Figure(figsize=(4.2 * len(noises), 2.8 * len(DETECTOR)), layout="constrained")
        panels = figure.subplots(len(DETECTOR), len(noises), sharex=True, sharey="row", squeeze=False)
        for row, (name, (_, label)) in zip(panels, DETECTOR.items(), strict=True):
            row[0].set_ylabel(label)
            for axes, noise in zip(row, noises, strict=True):
                curves = {method: values[name] for (method, *rest), values in detecting.items() if tuple(rest) == noise}
                for method, curve in curves.items():
                    # There are ten colours; lines that repeat one are dashed.
                    repeats, colour = divmod(list(METHODS).index(method), 10)
                    look = {"color": f"C{colour}", "linestyle": "--" if repeats else "-", "marker": "."}
                    axes.plot(np.arange(1, len(curve) + 1), curve, label=method, **look)
        for top, bottom, noise in zip(panels[0], panels[-1], noises, strict=True):
            top.set_title(title_of(*noise))
            bottom.set_xlabel("epoch")
        _save(figure, panels[0], path, legend_columns=2 * len(noises))
    return path


def _save(figure: Figure, panels: Sequence[Any], path: Path, *, legend_columns: int) -> None:
    """Save a figure with one legend below, of the labels in these panels."""
    handles = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=legend_columns, frameon=False)
    # A wide legend widens the picture instead of being cut off.
    figure.savefig(path, dpi=DPI, bbox_inches="tight")


def title_of(kind: str, ratio: float) -> str:
    """A noise in words. Of the kind `language`, the ratio is of clips, each with wrong captions in one language."""
    what = "clips" if kind == "language" else "pairs"
    return f"{100 * ratio:g}% of the {what} wrong" + ("" if kind == "pair" else f" ({kind})")


def page_table(frame: pd.DataFrame, measured: str, queries: int, left_out: Sequence[str] = ()) -> Table:
    """The table of the page, one block per noise, scores in percent as in the other tables. `measured` names the metric,
    `queries` is the number of queries in a mean, `left_out` has the lines on runs and trials that are not in the table.
    """
    # As in the titles of figures, the kind is named only if it is not wrong pairs.
    hidden = ("low", "high", "share low", "share high", *(["kind"] if set(frame["kind"]) == {"pair"} else []))
    columns = [name for name in frame.columns if name not in hidden]
    blocks = []
    for _, rows in frame.groupby(["kind", "noise"], sort=False):
        best = rows.loc[~rows["method"].isin([CEILING]), "test"].max()
        blocks.append([_row(row, columns, best) for row in row_dicts(rows)])
    note = (
        f"{measured}, in percent of {counted(queries, 'query', 'queries')} ({100 / queries:.1f} points each), on the test split "
        "at the epoch that clean validation chose. The floor keeps every pair, the ceiling leaves the wrong ones out; in "
        "brackets the interval at 95% over clips and seeds. Share of the way: 0 is the floor, 1 the ceiling; above 1 a method "
        "is better than leaving the wrong pairs out."
    )
    if SHARE in frame and np.isinf(frame[["share low", "share high"]]).to_numpy().any():
        note += " An interval without an end (∞): the ceiling does not differ clearly enough from the floor."
    if any(name in frame for name in DETECTOR):
        note += (
            " The detector's numbers are the last epoch's: the area under its ROC curve, its calibration error, and the share of "
            "the clean pairs that it would leave out to keep pairs of which 5% are wrong."
        )
    if SHARED in frame:
        note += " Where a method and the floor do not have the same seeds, they are compared over those that both have."
    compared = frame[SHARED][frame[SHARED] > 0] if SHARED in frame else frame["seeds"]
    if len(compared) and (warning := warning_of_seeds(int(compared.min()))):
        note += f" {warning}"
    if left_out:
        note += f" Left out: {'. '.join(left_out)}."
    return Table("Reality check", note, [DETECTOR.get(name, (name, ""))[0] for name in columns], blocks)


def _row(row: Mapping[Any, Any], columns: Sequence[str], best: float) -> list[Cell]:
    # Noise as in the settings, seconds and percent with one decimal, others with three.
    forms = {"noise": "g", SHARED: ".0f", "seconds": ".1f", **dict.fromkeys(IN_PERCENT, "z.1f")}
    cells = []
    for name in columns:
        value = row[name]
        scale = 100 if name in IN_PERCENT else 1
        text = format(scale * value, forms.get(name, ".3f")) if isinstance(value, float) else str(value)
        text = "" if pd.isna(value) else text
        is_best = bool(name == "test" and value == best and row["method"] != CEILING)
        ends = {FROM_FLOOR: ("low", "high"), SHARE: ("share low", "share high")}.get(name, ())
        form = "+z.1f" if scale == 100 else "+z.3f"
        interval = ", ".join(format(scale * row[column], form).replace("inf", "∞") for column in ends)
        detail = f"({interval})" if ends and text else ""
        cells.append(Cell(text, is_best=is_best, is_number=name not in NAMES, detail=detail))
    return cells


def reality_check(runs: Runs, folder: Path, figures: bool) -> Added:
    """The section of runs called SWEEP: writes reality_check.csv and .md into a folder that exists; if wanted,
    reality_check.png, and detector.png if a method detects.

    Run folders are read together, such as one for each noise; those with other settings than the first are left out, and
    the table's note names them. No table if no finished trial of a method kept its scores.
    """
    if runs.infos[0]["name"] != SWEEP or runs.finished.empty:
        return Added()
    run_folders = [RunFolder.open(run_folder) for run_folder in runs.folders]
    methods, left_out = read_trials(*run_folders)
    if not methods:
        # For example, the data set has no test split. The rest of the report does not need the scores.
        return Added(left_out=left_out)
    chosen_by = Metric.parse(run_folders[0].experiment.evaluation.select_by)
    measured = in_words(Metric(chosen_by.task, chosen_by.language, "recall_at_1"))
    frame = table(methods)
    frame.to_csv(folder / "reality_check.csv", index=False)
    shown = page_table(frame, measured, next(iter(methods.values())).hits.shape[1], left_out)
    (folder / "reality_check.md").write_text(shown.to_markdown(), encoding="utf-8")
    pictures = []
    if figures:
        draw(methods, bars := folder / "reality_check.png", measured)
        pictures.append(Picture(bars, "Methods between keeping every pair and leaving the wrong ones out"))
        if (detector := draw_detector(methods, folder / "detector.png")) is not None:
            pictures.append(Picture(detector, "How well each method tells true pairs from wrong ones, over epochs"))
    return Added(tables=[shown], pictures=pictures, left_out=left_out)
