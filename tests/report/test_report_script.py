"""What `pipelines/report.py` does, and one clear line for each mistake."""

from __future__ import annotations

import re

import pytest

from ray_atr.cli.report import ReportCommand, report_script
from ray_atr.common.storage import StorageError
from tests.support.denied import deny
from tests.support.fake_runs import write_run
from tests.support.stores import watched_store


@pytest.mark.slow
def test_prints_tables_and_where_the_report_is(tmp_path, capsys):
    first = write_run(tmp_path / "first", {"objective": ["m_ltm", "triplet"]})
    second = write_run(tmp_path / "second", {"objective": ["kcl"]})
    report_script(ReportCommand((str(first), str(second)), out=str(tmp_path / "both")))
    printed = capsys.readouterr().out
    assert f"report: {tmp_path / 'both' / 'report.html'}" in printed
    # One table of both, so that their rows are told apart here too.
    table = printed.partition("Percent")[0]
    assert all(f" {objective} " in table for objective in ("m_ltm", "triplet", "kcl"))
    text = (tmp_path / "both" / "report.html").read_text()
    for objective in ("m_ltm", "triplet", "kcl"):
        assert objective in text
    # On a phone a table that is wider than the page scrolls by itself.
    assert text.count("<table>") == len(re.findall(r'<div class="scroll">\s*<table>', text)) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "runs: got none"),
        ({"experiment": "x", "upload": True}, "--experiment: reads from MLflow"),
        ({"runs": ("x",), "register": "mine/x"}, "--register: got 'mine/x'; allowed a name without / and :"),
        ({"experiment": "x"}, "MLflow at http://127.0.0.1:9"),
    ],
)
def test_mistakes_are_one_line(options, message, monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("RAY_ATR_HOME", str(tmp_path))
    with pytest.raises(ValueError, match=message):
        report_script(ReportCommand(**options))
    assert not list(tmp_path.iterdir())


def test_a_store_that_is_away_is_no_mistake():
    def away(request: str, path: str) -> None:
        raise TimeoutError(110, "Connection timed out")

    with watched_store(away) as place, pytest.raises(StorageError, match="Connection timed out"):
        report_script(ReportCommand((str(place),)))


def test_a_folder_that_is_no_run_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="not a run folder"):
        report_script(ReportCommand((str(tmp_path / "none"),), out=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def test_where_a_report_can_go_is_told_if_the_run_is_somebody_elses(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", {"objective": ["m_ltm"]})
    deny(monkeypatch, run)
    with pytest.raises(ValueError, match=f"^{run}: cannot be written; --out writes the report elsewhere$"):
        report_script(ReportCommand((str(run),), figures=False))
    report_script(ReportCommand((str(run),), out=str(tmp_path / "out"), figures=False))
    with pytest.raises(ValueError, match="not a run folder"):
        report_script(ReportCommand((str(run / "none"),), figures=False))


def test_a_folder_with_other_files_is_refused_and_one_with_a_report_gets_a_new_one(tmp_path):
    run, out = write_run(tmp_path / "run", {"objective": ["m_ltm"]}), tmp_path / "out"
    out.mkdir()
    (out / "table.csv").write_text("mine")
    options = ReportCommand((str(run),), out=str(out), figures=False)
    with pytest.raises(
        ValueError, match=r"--out: got '.*out'; allowed a new or empty folder, or one with an earlier report"
    ):
        report_script(options)
    assert (out / "table.csv").read_text() == "mine"
    (out / "table.csv").unlink()
    for _ in range(2):
        report_script(options)
    assert (out / "table.csv").read_text() != "mine"
