"""The benchmark of the estimated share of true pairs: what is not estimated is no estimate that is off."""

from __future__ import annotations

import sys

import pytest

from tests.support.scripts import load_script


def test_a_share_that_a_run_does_not_know_is_not_taken_for_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load_script("benchmarks/clean_share.py")
    found = iter([[("eng", 1.0, 0.2, 0.0)], [("eng", 0.12, 0.2, 0.3)]])
    monkeypatch.setattr(script, "estimated", lambda experiment, home: next(found))
    monkeypatch.setattr(sys, "argv", ["clean_share.py", "--noise", "0.8", "--seeds", "0", "1"])
    script.main()
    shown = capsys.readouterr().out
    assert "eng 0.8, seed 0: unknown of 0.200, 0.00 found" in shown
    assert "| eng | unknown of 0.200, 0.120 of 0.200 |" in shown
    assert "1 of 1 more than 0.05 off: eng 0.8 (-0.080)\n1 unknown" in shown
