"""Run folders -> tables, figures and one self-contained HTML page."""

from ray_atr.report.read import Runs, read_runs
from ray_atr.report.write import ReportPaths, summary_table, write_report

__all__ = ["ReportPaths", "Runs", "read_runs", "summary_table", "write_report"]
