"""The papers' sections of a report: their tables, and the reality check's table and figures."""

from __future__ import annotations

from pathlib import Path

from ray_atr.evaluation.report.read import Runs
from ray_atr.evaluation.report.write import Added
from ray_atr.papers.layouts import paper_layouts
from ray_atr.papers.reality_check import reality_check


def layouts(runs: Runs, folder: Path, figures: bool) -> Added:
    """The tables of the papers that the runs can fill."""
    return Added(layouts=paper_layouts(runs))


SECTIONS = (reality_check, layouts)
