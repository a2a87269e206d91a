"""The reality check whose tuning is part of its intervals: the clips that a seed validates on, and the seeds of its table."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ray_atr.papers.reality_check import MethodTrials
from ray_atr.training.experiment import Experiment
from ray_atr.training.run_folder import RunFolder
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


def test_a_table_has_every_method_that_some_seed_has(draws: ModuleType) -> None:
    def trials(seed: int) -> MethodTrials:
        return MethodTrials(np.full((1, 2), float(seed)), np.arange(2), (seed,), last=0.0, seconds=1.0)

    few, more = ("contrastive", "pair", 0.4), ("oracle", "pair", 0.4)
    found = draws.together([{few: trials(0)}, {few: trials(1), more: trials(1)}])
    assert {key: one.seeds for key, one in found.items()} == {few: (0, 1), more: (1,)}


def test_a_run_that_has_no_trials_yet_is_not_finished(
    tmp_path: Path, draws: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(vectors: Path, clips: object, seed: int, folder: Path, given: object) -> None:
        RunFolder.create(folder / "run", Experiment(), {"name": "sweep_correspondence"})

    monkeypatch.setattr(draws, "read_set", lambda folder: None)
    monkeypatch.setattr(draws, "run_seed", begin)
    with pytest.raises(SystemExit, match=r"no seed is finished\n.*seed-3.run: not finished"):
        draws.main(["--vectors", str(tmp_path), "--out", str(tmp_path), "--seeds", "3"])
