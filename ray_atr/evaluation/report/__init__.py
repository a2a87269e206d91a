"""Reports of run folders: tables, figures and one self-contained HTML page."""

from ray_atr.evaluation.report.read import read_runs
from ray_atr.evaluation.report.write import write_report

__all__ = ["read_runs", "write_report"]
