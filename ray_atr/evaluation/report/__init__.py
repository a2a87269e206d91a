"""Reports of run folders: tables, figures and one self-contained HTML page."""

from ray_atr.evaluation.report.read import read_runs
from ray_atr.evaluation.report.write import summary_table, write_report

__all__ = ["read_runs", "summary_table", "write_report"]
