"""One worker ends twice with the same bits, two with its weights and losses; `tests/faults/agreement_table.py` tries every part.

In float64: rounding in float32 can decide which of two almost equal prototypes a clip belongs to.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.agreement import differences


@pytest.mark.slow
def test_workers_agree(tmp_path: Path) -> None:
    parts = (
        ("objective.pair", "learning_to_match"),
        ("objective.knowledge", "ask"),
        ("objective.correspondence", "small_loss"),
    )
    ours = (("objective.scheme", "kcl"), ("objective.correspondence", "leave_one_out"), ("model.interaction", "late"))
    found = differences([parts, ours], tmp_path, sizes=(1, 2), epochs=2, dtype="float64")
    for again, two in found.values():
        assert again == (0, 0), "one worker ended with other bits the second time"
        assert max(two) < 1e-9
