"""One evaluation as JSON for programs, Markdown for a log, and one HTML page that needs no other file."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from ray_atr.common.storage import Location, write_text
from ray_atr.common.table import Table, markdown_text
from ray_atr.evaluation.report.evaluation_tables import comparison_tables, metric_tables
from ray_atr.evaluation.report.html import data_url, render_template
from ray_atr.metrics.bootstrap import Difference, Interval, Spread, warning_of_seeds
from ray_atr.metrics.measures import ABOUT
from ray_atr.metrics.metric import Metric


@dataclass(frozen=True)
class RetrievedClip:
    """One clip found for a query: its encoded file (WAV, FLAC, OGG, MP3) or None, its score, and whether it is relevant."""

    clip_id: str
    audio: bytes | None
    score: float
    is_relevant: bool
    caption: str = ""
    language: str = ""
    """Of the caption; the query's if not given."""


@dataclass(frozen=True)
class Query:
    """One query, its language (ISO 639-3) and its results, best first; `rank`, from 1, is that of the first relevant clip."""

    text: str
    language: str
    found: Sequence[RetrievedClip]
    rank: float | None = None
    score: str = "cosine"
    """What the results' scores are."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """The content of an evaluation's page.

    facts        what was evaluated on what: checkpoint, data set, split, clips, seed; shown on top.
    metrics      `evaluate_languages`, `classification_metrics`: keys `group/language/metric`.
    intervals    `bootstrap_runs`; spreads: `across_seeds`, shown instead of the single value.
    comparison   `compare_runs`, second minus first; `compared` names the two.
    pictures     title -> Figure, HTML only. queries: what some queries find, with players, HTML only.
    printed      the papers' own numbers beside these (`printed_beside`).
    trained      the languages that the model was trained on; None: all, or not known.
    trained_before  the languages that the baseline was trained on; None: all, or not known.
    titles       the titles of tasks that have others here than in `TITLES`.
    notes        what a reader must know to understand the numbers; `warnings`: what a reader must know first.
    """

    title: str
    facts: Mapping[str, Any]
    metrics: Mapping[Metric, float]
    intervals: Mapping[Metric, Interval] = field(default_factory=dict)
    spreads: Mapping[Metric, Spread] = field(default_factory=dict)
    comparison: Mapping[Metric, Difference] = field(default_factory=dict)
    compared: tuple[str, str] = ("first", "second")
    pictures: Mapping[str, Figure] = field(default_factory=dict)
    queries: Sequence[Query] = ()
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    titles: Mapping[str, str] = field(default_factory=dict)
    trained: Collection[str] | None = None
    trained_before: Collection[str] | None = None
    printed: Sequence[Table] = ()

    @property
    def tables(self) -> list[Table]:
        return [*metric_tables(self.metrics, self.intervals, self.spreads, self.titles, self.trained), *self.printed]

    @property
    def comparisons(self) -> list[Table]:
        return comparison_tables(self.comparison, *self.compared, self.titles, (self.trained_before, self.trained))

    @property
    def brackets(self) -> str:
        """What the intervals are; empty without any."""
        kind = "intervals over clips and seeds" if self.spreads else "bootstrap intervals over clips"
        return next((f"{100 * interval.level:g}% {kind}" for interval in self.intervals.values()), "")

    @property
    def reading(self) -> list[str]:
        """Notes on the numbers, and on the intervals."""
        brackets = [f"Brackets: {self.brackets}."] if self.brackets else []
        shown = {Metric.parse(metric).name for metric in self.metrics}
        words = "; ".join(about for name, about in ABOUT.items() if name in shown)
        return [*brackets, *self.reading_without_brackets, *([f"{words[0].upper()}{words[1:]}."] if words else [])]

    @property
    def reading_without_brackets(self) -> list[str]:
        """Notes on the numbers for tables without intervals."""
        notes = list(self.notes)
        if self.spreads:
            runs = next(iter(self.spreads.values())).runs
            notes.append(f"Mean ± standard deviation over {runs} runs that differ in their seed.")
        if self.comparison:
            notes.append(
                "Each difference has an interval of its own: of many metrics, some leave out zero by chance. For single runs an "
                "interval covers only the choice of test clips; for several runs it also covers the training seed."
            )
            # Of one run the sentence above says it.
            if self.spreads and (warning := warning_of_seeds(next(iter(self.spreads.values())).runs)):
                notes.append(warning)
        return notes


def write_page(page: Page, folder: Location) -> None:
    """Write evaluation.json, .md and .html into a folder that exists."""
    for kind, text in (("json", as_json(page)), ("md", as_markdown(page)), ("html", as_html(page))):
        write_text(folder / f"evaluation.{kind}", text)


def as_json(page: Page) -> str:
    """Facts, metrics, intervals, spreads and comparison; a number that does not exist (NaN) is null."""
    content = {
        "title": page.title,
        "facts": dict(page.facts),
        "metrics": dict(page.metrics),
        "intervals": {key: dataclasses.asdict(value) for key, value in page.intervals.items()},
        "spreads": {key: dataclasses.asdict(value) for key, value in page.spreads.items()},
        "comparison": {
            key: dataclasses.asdict(value) | {"is_distinguishable": value.is_distinguishable}
            for key, value in page.comparison.items()
        },
        "compared": list(page.compared) if page.comparison else [],
        "notes": page.reading,
        "warnings": list(page.warnings),
    }
    return json.dumps(_without_nan(content), ensure_ascii=False, indent=2, default=str, allow_nan=False) + "\n"


def as_markdown(page: Page) -> str:
    """Tables in GitHub's Markdown."""
    lines = [f"# {markdown_text(page.title)}", ""]
    lines += [markdown_text(f"- {name}: {value}") for name, value in page.facts.items()]
    lines += ["", *(f"> **{markdown_text(warning)}**\n" for warning in page.warnings)]
    lines += [f"> {markdown_text(note)}\n" for note in page.reading]
    lines += [table.to_markdown(2) for table in page.tables]
    if page.comparison:
        lines += [markdown_text(f"# {page.compared[1]} against {page.compared[0]}"), ""]
        lines += [table.to_markdown(2) for table in page.comparisons]
    return "\n".join(lines).rstrip() + "\n"


def as_html(page: Page) -> str:
    """One self-contained page: tables, pictures and players, with no script and no request to anywhere."""
    pictures = {}
    for title, figure in page.pictures.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=144)
        pictures[title] = data_url(buffer.getvalue())
    return render_template("evaluation.html.j2", page=page, pictures=pictures, data_url=data_url)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
