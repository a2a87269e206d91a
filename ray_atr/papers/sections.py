"""The papers' sections of a report: their tables, and the reality check's table and figures."""

from __future__ import annotations

from pathlib import Path

from ray_atr.evaluation.report.read import Runs
from ray_atr.evaluation.report.write import Added
from ray_atr.papers.layouts import paper_layouts
from ray_atr.papers.reality_check import write_reality_check

REALITY_CHECK = "sweep_correspondence"
"""Name of the runs whose reports have the reality check."""


def layouts(runs: Runs, folder: Path, figures: bool) -> Added:
    """The tables of the papers that the runs can fill."""
    return Added(layouts=paper_layouts(runs))


def reality_check(runs: Runs, folder: Path, figures: bool) -> Added:
    """The methods for wrong pairs, compared with using all pairs and with leaving wrong ones out."""
    if runs.infos[0]["name"] != REALITY_CHECK or runs.finished.empty:
        return Added()
    return write_reality_check(runs.folders, folder, figures=figures)


SECTIONS = (reality_check, layouts)
