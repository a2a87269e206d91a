"""One evaluation as JSON for programs, Markdown for a log, and one HTML page that needs no other file."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from ray_atr.evaluation.bootstrap import Difference, Interval, Spread
from ray_atr.evaluation.tables import Table, comparison_tables, metric_tables


@dataclass(frozen=True, kw_only=True)
class Page:
    """What an evaluation found.

    facts        what was evaluated on what: checkpoint, data set, split, clips, seed; shown on top.
    metrics      `evaluate_languages`, `zero_shot_languages`: keys `group/language/metric`.
    intervals    `bootstrap_languages`; spreads: `across_seeds`, shown instead of the single value.
    comparison   `compare_languages`, second minus first; `compared` names the two.
    pictures     title -> Figure, HTML only. fragments: title -> trusted HTML (`players_html`), HTML only.
    notes        what a reader must know to read the numbers rightly.
    """

    title: str
    facts: Mapping[str, Any]
    metrics: Mapping[str, float]
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    comparison: Mapping[str, Difference] = field(default_factory=dict)
    compared: tuple[str, str] = ("first", "second")
    pictures: Mapping[str, Figure] = field(default_factory=dict)
    fragments: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def tables(self) -> list[Table]:
        return metric_tables(self.metrics, self.intervals, self.spreads)

    @property
    def comparisons(self) -> list[Table]:
        return comparison_tables(self.comparison, *self.compared)

    @property
    def reading(self) -> list[str]:
        """How to read the numbers: the notes given, and what the intervals are."""
        notes = list(self.notes)
        if self.intervals:
            level = next(iter(self.intervals.values())).level
            notes.append(f"Brackets: {level:.0%} bootstrap intervals over clips.")
        if self.spreads:
            runs = next(iter(self.spreads.values())).runs
            notes.append(f"Mean ± standard deviation over {runs} runs that differ in their seed.")
        if self.comparison:
            notes.append(
                "Differences: paired bootstrap over clips, each interval by itself; among many metrics one or the other "
                "leaves out zero by chance. It measures the choice of test clips, not that of the training seed."
            )
        return notes


def write_page(page: Page, folder: str | Path, name: str = "evaluation") -> dict[str, Path]:
    """Writes `name`.json, .md and .html into the folder (made if absent); returns {"json": path, ...}."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    result = {}
    for kind, text in (("json", as_json(page)), ("md", as_markdown(page)), ("html", as_html(page))):
        result[kind] = folder / f"{name}.{kind}"
        result[kind].write_text(text, encoding="utf-8")
    return result


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
    }
    return json.dumps(_without_nan(content), ensure_ascii=False, indent=2, default=str, allow_nan=False) + "\n"


def as_markdown(page: Page) -> str:
    """Tables in GitHub's Markdown."""
    lines = [f"# {page.title}", ""]
    lines += [f"- {name}: {value}" for name, value in page.facts.items()]
    lines += ["", *(f"> {note}\n" for note in page.reading)]
    for table in page.tables:
        lines += _markdown(table)
    if page.comparison:
        lines += [f"# {page.compared[1]} against {page.compared[0]}", ""]
        for table in page.comparisons:
            lines += _markdown(table)
    return "\n".join(lines).rstrip() + "\n"


def as_html(page: Page) -> str:
    """One self-contained page: tables, pictures and players, with no script and no request to anywhere."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ray_atr.evaluation"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("page.html.jinja").render(
        page=page,
        pictures={title: _png(figure) for title, figure in page.pictures.items()},
        fragments={title: Markup(fragment) for title, fragment in page.fragments.items()},
    )


def _markdown(table: Table) -> list[str]:
    lines = [f"## {table.title}", ""]
    if table.note:
        lines += [table.note, ""]
    lines.append("| " + " | ".join(["", *table.columns]) + " |")
    lines.append("| --- |" + " ---: |" * len(table.columns))
    lines += ["| " + " | ".join(_cell(cell) for cell in (label, *cells)) + " |" for label, cells in table.rows]
    return [*lines, ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _png(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=144)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
