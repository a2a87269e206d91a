"""What the papers add to a report: their tables' layouts, and of the reality check its table and pictures."""

from __future__ import annotations

from pathlib import Path

from ray_atr.evaluation.report.read import Runs
from ray_atr.evaluation.report.write import Added
from ray_atr.papers.layouts import paper_layouts
from ray_atr.papers.reality_check import write_reality_check

REALITY_CHECK = "sweep_correspondence"
"""The name of the runs whose report has the reality check."""


def layouts(runs: Runs, folder: Path, figures: bool) -> Added:
    """The tables of the papers that the runs fill."""
    return Added(layouts=paper_layouts(runs))


def reality_check(runs: Runs, folder: Path, figures: bool) -> Added:
    """The methods for wrong pairs against keeping all pairs and leaving the wrong ones out."""
    if runs.infos[0]["name"] != REALITY_CHECK or runs.finished.empty:
        return Added()
    return write_reality_check(runs.folders, folder, figures=figures)


SECTIONS = (reality_check, layouts)
