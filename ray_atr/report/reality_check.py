"""The table and picture of a reality check: how far each method comes from the floor to the ceiling, and at what cost.

Test scores of the epoch that clean validation chose, and validation of the last epoch: memorising shows in the second. Intervals
are of the paired bootstrap over clips and seeds together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ray_atr.data.features import open_features
from ray_atr.encoding.texts import TextBatcher
from ray_atr.experiment import Experiment
from ray_atr.metrics import align_captions
from ray_atr.metrics.languages import retrieve_languages
from ray_atr.metrics.metric import DIRECTIONS, MEAN, TRAINED, UNSEEN, Metric
from ray_atr.models.retriever import Retriever
from ray_atr.override import override
from ray_atr.recipes.methods import CORRESPONDENCE, METHODS, method_of
from ray_atr.report.evaluation_tables import in_words
from ray_atr.report.style import DPI, RC
from ray_atr.run_folder import BEST, RunFolder, TrialFolder
from ray_atr.runtime import home
from ray_atr.storage import Location
from ray_atr.table import Cell, Table
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import prepare
from ray_atr.training.validation import embed_captions, embed_clips

FLOOR, CEILING = "contrastive", "oracle"
DRAWS = 2000
DETECTOR = {
    "detector_auc": "area under the ROC curve",
    "detector_calibration_error": "calibration error",
    "clean_pairs_lost": "clean pairs lost at 5% wrong",
}
"""What is measured of a detector where the truth is known, and its name in a figure."""
NAMES = ("noise", "kind", "method")
FROM_FLOOR, INTERVAL = "against the floor", ("low", "high")
COLUMNS = (
    *NAMES, "seeds", "test", "last epoch (validation)", FROM_FLOOR, *INTERVAL, "share of the way", *DETECTOR, "seconds"
)  # fmt: skip
"""Of the table, those that have a value in any row."""


@dataclass(frozen=True)
class MethodTrials:
    """The finished trials of one method under one noise: hits [seeds, queries], the seeds, and what the trials recorded."""

    hits: NDArray[np.float64]
    seeds: tuple[int, ...]
    last: float
    belief: Mapping[str, float]
    seconds: float
    curves: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """Of the detector's numbers their mean over seeds after each epoch, [epochs]."""

    def of(self, seed: int) -> NDArray[np.float64]:
        """The hits [queries] of one seed."""
        return np.asarray(self.hits[self.seeds.index(seed)])

    @property
    def test(self) -> float:
        """Mean over seeds and queries."""
        return float(self.hits.mean())


def difference(first: MethodTrials, second: MethodTrials, seed: int = 0) -> tuple[float, float, float]:
    """(second - first, low, high) at 95%, over the seeds that both have: queries and seeds are drawn once for both.

    A seed decides the noise, the first weights and the order of the clips, so that two methods differ in themselves alone.
    """
    shared = [one for one in first.seeds if one in second.seeds]
    if not shared:
        raise ValueError(f"no seed of {first.seeds} is among {second.seeds}")
    generator = np.random.default_rng(seed)
    gain = np.stack([second.of(one) - first.of(one) for one in shared])
    drawn = np.empty(DRAWS)
    for draw in range(DRAWS):
        queries = generator.integers(0, gain.shape[1], gain.shape[1])
        drawn[draw] = gain[generator.integers(0, len(gain), len(gain))][:, queries].mean()
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(gain.mean()), float(low), float(high)


def hits_of(trial: TrialFolder, experiment: Experiment) -> NDArray[np.float64]:
    """Whether each test query of the selected metric's task finds its own first, [Q], by the best epoch's retriever.

    Of a metric that is a mean over languages it is the mean over those, a query counting where it is asked.
    """
    task, language = experiment.evaluation.select_by.split("/")[:2]
    trained, spoken = experiment.trained_languages, experiment.data.languages
    groups = {TRAINED: trained, UNSEEN: tuple(one for one in spoken if one not in trained), MEAN: spoken}
    languages = groups.get(language, (language,))
    prepared = prepare(experiment, home(), use_ray=False, say=lambda message: None)
    features = open_features(prepared.features, experiment.data.test_split)
    retriever = prepared.reading(Retriever.from_pretrained(Path(str(trial.folder)) / BEST))
    texts_of = {one: features.captions_in(one) for one in languages}
    captions = align_captions(texts_of, 0, labels=features.labels, relevance=experiment.evaluation.relevance)
    audio, texts = embed_clips(retriever, features, 256, WorkerGroup()), TextBatcher(retriever)
    text = {one: embed_captions(texts, captions, one, audio.shape[1], WorkerGroup()) for one in languages}
    found = retrieve_languages(audio, text, captions.relevance, present=captions.present)
    hits = np.full((len(languages), len(captions) if task == DIRECTIONS[0] else len(audio)), np.nan)
    for row, one in zip(hits, languages, strict=True):
        retrieved = getattr(found[one], task)
        row[retrieved.query] = retrieved.recall[1]
    return np.nanmean(hits[:, ~np.isnan(hits).all(axis=0)], axis=0)


def read_cells(run: RunFolder) -> dict[tuple[str, str, float], MethodTrials]:
    """The cells by (method, kind of noise, ratio); trials that are no method's, or not finished, are left out."""
    base = run.experiment
    grouped: dict[tuple[str, str, float], list[tuple[NDArray[np.float64], TrialFolder]]] = {}
    for trial in run.trials():
        overrides = trial.describe()["overrides"]
        name = method_of(overrides)
        if name is None or not trial.is_finished:
            continue
        key = (name, str(overrides["data.noise.kind"]), float(overrides["data.noise.ratio"]))
        grouped.setdefault(key, []).append((hits_of(trial, override(base, overrides)), trial))
    metric = base.evaluation.select_by
    return {key: _cell(found, metric) for key, found in grouped.items()}


def _cell(found: Sequence[tuple[NDArray[np.float64], TrialFolder]], metric: str) -> MethodTrials:
    results = [trial.result() for _, trial in found]
    epochs = [trial.epochs() for _, trial in found]
    # A run that was begun again with more epochs is as long as the shortest.
    length = min(map(len, epochs))
    curves = {
        name: np.mean([[row.get(f"train/{name}", np.nan) for row in rows[:length]] for rows in epochs], axis=0)
        for name in DETECTOR
        if any(f"train/{name}" in row for row in epochs[0])
    }
    return MethodTrials(
        hits=np.stack([hits for hits, _ in found]),
        seeds=tuple(int(trial.describe()["overrides"]["seed"]) for _, trial in found),
        last=float(np.mean([result["last"][metric] for result in results])),
        belief={name: float(curve[-1]) for name, curve in curves.items()},
        curves=curves,
        seconds=float(np.mean([result["train_seconds"] for result in results])),
    )


def table(cells: Mapping[tuple[str, str, float], MethodTrials]) -> pd.DataFrame:
    """One row a method and noise: scores, the share of the way from the floor to the ceiling, the detector, the time."""
    rows: list[dict[str, Any]] = []
    order = {name: place for place, name in enumerate(METHODS)}
    for (name, kind, ratio), cell in sorted(cells.items(), key=lambda one: (one[0][1:], order[one[0][0]])):
        floor, ceiling = cells.get((FLOOR, kind, ratio)), cells.get((CEILING, kind, ratio))
        row: dict[str, Any] = {"noise": ratio, "kind": kind, "method": name, "seeds": len(cell.hits)}
        row |= {"test": cell.test, "last epoch (validation)": cell.last}
        if floor is not None and name != FLOOR:
            value, low, high = difference(floor, cell)
            row |= dict(zip((FROM_FLOOR, *INTERVAL), (value, low, high), strict=True))
            if ceiling is not None and name != CEILING:
                row["share of the way"] = value / (ceiling.test - floor.test)
        if METHODS[name][CORRESPONDENCE] != "none":
            row |= cell.belief
        rows.append({**row, "seconds": cell.seconds})
    found = pd.DataFrame(rows)
    return found[[name for name in COLUMNS if name in found]]


def draw(cells: Mapping[tuple[str, str, float], MethodTrials], path: Path, measured: str) -> None:
    """One panel a noise ratio, one bar a method, floor and ceiling as lines; `measured`: what the bars are, in words."""
    noises = sorted({(kind, ratio) for _, kind, ratio in cells})
    compared = {name for name, _, _ in cells} - {FLOOR, CEILING}
    names = [name for name in reversed(METHODS) if name in compared]
    with rc_context(RC):
        figure = Figure(figsize=(4.2 * len(noises), 4.4))
        panels = figure.subplots(1, len(noises), sharey=True, sharex=True, squeeze=False)
        for axes, (kind, ratio) in zip(panels[0], noises, strict=True):
            _panel(axes, {name: cell for (name, *of), cell in cells.items() if of == [kind, ratio]}, names)
            axes.set_title(title_of(kind, ratio))
            axes.set_xlabel(measured)
        _save(figure, panels[0], path, legend_columns=2)


def _panel(axes: Any, cells: Mapping[str, MethodTrials], names: Sequence[str]) -> None:
    for place, name in enumerate(names):
        if name not in cells:
            continue
        cell = cells[name]
        deviation = float(cell.hits.mean(axis=1).std(ddof=1)) if len(cell.hits) > 1 else 0.0
        axes.barh(place, cell.test, xerr=deviation, color="#56B4E9", ecolor="#1b1b1b", height=0.7)
    axes.set_yticks(range(len(names)), names)
    for name, colour, label in ((FLOOR, "#D55E00", "all pairs kept"), (CEILING, "#009E73", "wrong pairs left out")):
        if name in cells:
            axes.axvline(cells[name].test, color=colour, linestyle="--", linewidth=1.4, label=label)
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")


def draw_detector(cells: Mapping[tuple[str, str, float], MethodTrials], path: Path) -> Path | None:
    """How well each method tells true pairs from wrong ones after each epoch: a row a number, a column a noise."""
    judging = {
        key: cell
        for key, cell in cells.items()
        if cell.curves and key[0] != CEILING and len(cell.curves) == len(DETECTOR)
    }
    judging = {key: cell for key, cell in judging.items() if float(np.nanstd(cell.curves["detector_auc"])) > 0}
    noises = sorted({(kind, ratio) for _, kind, ratio in judging})
    if not noises:
        return None
    with rc_context(RC):
        figure = Figure(figsize=(4.2 * len(noises), 2.8 * len(DETECTOR)))
        panels = figure.subplots(len(DETECTOR), len(noises), sharex=True, sharey="row", squeeze=False)
        for row, (name, label) in zip(panels, DETECTOR.items(), strict=True):
            row[0].set_ylabel(label)
            for axes, noise in zip(row, noises, strict=True):
                for (method, *of), cell in judging.items():
                    if tuple(of) == noise:
                        epochs = np.arange(1, len(cell.curves[name]) + 1)
                        axes.plot(epochs, cell.curves[name], label=method, color=f"C{list(METHODS).index(method) % 10}")
        for axes, (kind, ratio) in zip(panels[0], noises, strict=True):
            axes.set_title(title_of(kind, ratio))
        for axes in panels[-1]:
            axes.set_xlabel("epoch")
        _save(figure, panels[0], path, legend_columns=4)
    return path


def _save(figure: Figure, panels: Sequence[Any], path: Path, *, legend_columns: int) -> None:
    """Save a figure with one legend below, of what these panels name."""
    handles = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=legend_columns, frameon=False)
    figure.savefig(path, dpi=DPI)


def title_of(kind: str, ratio: float) -> str:
    """A noise in words."""
    return f"{ratio:.0%} of the pairs wrong" + ("" if kind == "pair" else f" ({kind})")


def page_table(found: pd.DataFrame, measured: str) -> Table:
    """The table as the page shows it, a block a noise; `measured`: what the scores are, in words."""
    columns = [name for name in found.columns if name not in INTERVAL]
    blocks = []
    for _, rows in found.groupby(["kind", "noise"], sort=False):
        best = rows.loc[~rows["method"].isin([CEILING]), "test"].max()
        blocks.append([_row(row, columns, best) for row in rows.to_dict("records")])
    note = (
        f"{measured}, on the test split at the epoch that clean validation chose. The floor keeps every pair, the ceiling "
        "leaves the wrong ones out; in brackets 95% of the paired bootstrap over queries and seeds. The detector's numbers are "
        "the last epoch's."
    )
    return Table("Reality check", note, [name.replace("_", " ") for name in columns], blocks)


def _row(row: Mapping[Any, Any], columns: Sequence[str], best: float) -> list[Cell]:
    cells = []
    for name in columns:
        value = row[name]
        text = "" if pd.isna(value) else f"{value:.3f}" if isinstance(value, float) else str(value)
        is_best = name == "test" and value == best and row["method"] != CEILING
        interval = [row[end] for end in INTERVAL] if name == FROM_FLOOR and text else []
        detail = f"({', '.join(f'{end:+.3f}' for end in interval)})" if interval else ""
        cells.append(Cell(text, is_best=is_best, is_number=name not in NAMES, detail=detail))
    return cells


@dataclass(frozen=True)
class RealityCheck:
    """What a reality check found: the table as a frame and as the page shows it, and its figures with their titles."""

    found: pd.DataFrame
    table: Table
    figures: tuple[tuple[Path, str], ...]


def write_reality_check(run_folder: Location | str, folder: Path) -> RealityCheck:
    """Write reality_check.csv, .md and .png, and detector.png if one judges, of a run folder into a folder.

    ValueError if no trial of a method has finished.
    """
    run = RunFolder.open(run_folder)
    cells = read_cells(run)
    if not cells:
        raise ValueError(f"{run_folder}: no finished trial of a method")
    folder.mkdir(parents=True, exist_ok=True)
    chosen_by = Metric.parse(run.experiment.evaluation.select_by)
    measured = in_words(Metric(chosen_by.task, chosen_by.language, "recall_at_1"))
    found = table(cells)
    found.to_csv(folder / "reality_check.csv", index=False)
    shown = page_table(found, measured)
    (folder / "reality_check.md").write_text(shown.to_markdown())
    draw(cells, folder / "reality_check.png", measured)
    figures = [(folder / "reality_check.png", "Methods between keeping every pair and leaving the wrong ones out")]
    detector = draw_detector(cells, folder / "detector.png")
    if detector is not None:
        figures.append((detector, "How well each method tells true pairs from wrong ones, over epochs"))
    return RealityCheck(found, shown, tuple(figures))
