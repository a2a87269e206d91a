"""Clips that a seed validates on, in the reality check whose tuning is part of its intervals."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.support.scripts import load_script

HELD_OUT = 3


@pytest.fixture
def draws() -> ModuleType:
    return load_script("benchmarks/tuned_draws.py")


def clips(pair_set: Any, *, labels: int = 3, recordings: int = 6, takes: int = 2, tests: int = 4) -> Any:
    """Clips of recordings with some takes each, in two languages; `tests` further clips a label test."""
    tables: list[list[dict[str, str]]] = []
    for label in range(labels):
        names = [f"1-{label}{recording}-{take}-0" for recording in range(recordings) for take in range(takes)]
        for name in [*names, *(f"4-{label}{test}-A-0" for test in range(tests))]:
            split = "test" if name.startswith("4") else "train"
            row = {"audio_row": str(len(tables)), "text_row": str(label), "caption": f"a {label}", "split": split}
            tables.append([{**row, "clip_id": name, "label": str(label), "language": one} for one in ("eng", "fra")])
    none = np.empty((0, 2), np.float32)
    return pair_set(none, none, np.zeros((len(tables), 2), np.int64), tables, ("eng", "fra"))


def test_a_seed_validates_on_whole_recordings_of_every_class_and_never_on_what_tests(
    tmp_path: Path, draws: ModuleType
) -> None:
    found = clips(draws.PairSet)
    chosen = draws.validating(found, 0)
    takes = Counter(name.split("-")[1] for name in chosen)
    assert set(takes.values()) == {2}, "a recording is on one side"
    assert Counter(name[2] for name in chosen) == dict.fromkeys("012", HELD_OUT // 2 * 2)
    assert chosen == draws.validating(found, 0)
    assert chosen != draws.validating(found, 1)
    draws.write_draw(found, 0, tmp_path / "pairs.csv")
    with (tmp_path / "pairs.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows[0].keys() == found.tables[0][0].keys()
    split = {row["clip_id"]: row["split"] for row in rows}
    assert {name for name, one in split.items() if one == "val"} == chosen
    assert {name for name, one in split.items() if one == "test"} == {name for name in split if name.startswith("4")}
    assert len(rows) == sum(map(len, found.tables))
