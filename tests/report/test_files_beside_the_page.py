"""Text of a run that looks like markup or a formula is neither in the files beside a report's page."""

from __future__ import annotations

import csv
from pathlib import Path

from ray_atr.common.table import Cell, Table
from ray_atr.evaluation.report import write_report
from ray_atr.training.run_folder import RunFolder
from tests.support.fake_runs import write_run

HOSTILE = '<script>alert("1")</script>'


def test_no_tag_and_no_formula(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {"objective": ["contrastive"], "data.noise.ratio": [0.0, 0.4]}, failed=[1])
    whole, failed = sorted(RunFolder.open(folder).trials(), key=lambda trial: not trial.is_finished)
    failed.update(error=f"=cmd|' /C calc'!A0 {HOSTILE}")
    whole.update(name=HOSTILE)
    report = write_report(folder, figures=False).page.parent
    for file in (path for path in report.iterdir() if path.suffix != ".png"):
        assert "<script" not in file.read_text(), file
    with (report / "trials.csv").open(newline="") as table:
        head, *rows = csv.reader(table)
    cells = [cell for row in rows for cell in row]
    assert sorted(row[head.index("best_epoch")] for row in rows) == ["", str(whole.result()["best_epoch"])]
    assert any("&lt;script>" in cell for cell in cells)
    assert not any(cell.startswith(("=", "@")) for cell in cells)


def test_a_tables_title_note_heads_and_cells_hold_no_tag() -> None:
    table = Table(HOSTILE, HOSTILE, [HOSTILE], [[[Cell(HOSTILE, detail=HOSTILE)]]])
    assert "<" not in table.to_markdown()
    assert table.to_markdown().count("&lt;script>") == 5
