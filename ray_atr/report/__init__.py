"""Run folders -> tables, figures and one self-contained HTML page."""

from ray_atr.report.read import Runs, read_runs
from ray_atr.report.script import report_script
from ray_atr.report.write import ReportPaths, summary_table, write_report

__all__ = ["ReportPaths", "Runs", "read_runs", "report_script", "summary_table", "write_report"]
