"""Killed at any file operation, what is kept on disk is what it was or what it was to be, and the same work ends whole."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ray_atr.data.audio import FrontEnd
from ray_atr.data.feature_cache import ensure_features
from ray_atr.data.features import open_features
from ray_atr.data.shards import read_manifest
from ray_atr.models.weights import WEIGHTS_FILE
from ray_atr.objectives.knowledge.knowledge import SnapshotSettings
from ray_atr.sweep import sweep
from ray_atr.training.checkpoint import STATE_FILE, load_checkpoint, save_checkpoint
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.knowledge_base.parts import BasePart
from ray_atr.training.knowledge_base.refresher import (
    BackgroundRefresher,
    InProcessRefresher,
    LocalShards,
    SnapshotClient,
)
from ray_atr.training.knowledge_base.shard import BaseShard
from ray_atr.training.knowledge_base.snapshot import Snapshot, load_version
from ray_atr.training.run_folder import BEST, FINISHED, LAST, RUNNING, RunFolder
from ray_atr.training.shards import ShardWriter
from tests.support.crash_points import KILL, TEAR, every_crash, failed_at, file_operations, in_fork
from tests.support.encoders import SPEC, Turn, weights
from tests.support.tiny import MEASURED, make_data, tiny, write_tones

VARIES = re.compile(r".*seconds|time$|trial_id$|memory/|knowledge/failed_refreshes$")
"""Metrics that two equal trainings need not share."""


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if path.name != ".lock"]


def test_a_checkpoint_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    def prepare(folder: Path) -> Callable[[], object]:
        save_checkpoint(folder, {"step": 1, "weights": torch.zeros(1000)})
        return lambda: save_checkpoint(folder, {"step": 2, "weights": torch.ones(1000)})

    for folder, where in every_crash(prepare, tmp_path):
        state = load_checkpoint(folder)
        assert state["weights"].eq(state["step"] - 1).all(), where
        save_checkpoint(folder, {"step": 3})
        assert load_checkpoint(folder) == {"step": 3}, where
        assert not leftovers(folder), where


@pytest.mark.slow
def test_a_checkpoint_in_shards_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    def save(folder: Path, number: int) -> None:
        writer = ShardWriter(folder, WorkerGroup())
        if (folder / LAST / STATE_FILE).is_file():
            writer.slot = load_checkpoint(folder / LAST)["shards"]

        def finish(slot: str) -> None:
            save_checkpoint(folder / LAST, {"step": number, "shards": slot})

        writer.save({"model/weights": torch.full((1000,), float(number))}, finish)
        writer.wait()

    def state(folder: Path) -> tuple[int, float]:
        saved, found = load_checkpoint(folder / LAST), {"model/weights": torch.zeros(1000)}
        reader = ShardWriter(folder, WorkerGroup())
        assert reader.listed(saved["shards"])["model/weights"][0] == (1000,)
        reader.load(saved["shards"], found)
        assert found["model/weights"].unique().numel() == 1
        return saved["step"], float(found["model/weights"][0])

    def prepare(folder: Path) -> Callable[[], object]:
        for number in (1, 2):
            save(folder, number)
        return lambda: save(folder, 3)

    for folder, where in every_crash(prepare, tmp_path):
        assert state(folder) in ((2, 2.0), (3, 3.0)), where
        save(folder, 4)
        save(folder, 5)
        assert state(folder) == (5, 5.0), where
        assert len(list((folder / LAST).iterdir())) == 2, where
        assert not leftovers(folder), where


def test_what_a_resume_needs_is_on_the_disk_before_it_counts(tmp_path: Path, synced: list[Path]) -> None:
    """Synced: a checkpoint, a record and a base's version under the names that they are written by, then their folder."""
    works: dict[str, Callable[[Path], object]] = {
        "checkpoint": lambda folder: save_checkpoint(folder, {"step": 1}),
        "run": lambda folder: RunFolder.create(folder, Experiment(), {"name": "test"}),
    }
    for name, work in works.items():
        del synced[:]
        work(tmp_path / name)
        assert synced[0].parent == tmp_path / name
        assert synced[0].name.startswith(".")
        assert synced[1] == tmp_path / name
    del synced[:]
    base = InProcessRefresher(Turn(), SnapshotSettings(prototypes=5), tmp_path / "base")
    base.publish(weights(1), 1, 1)
    assert base.wait(1, 30).state == "ready"
    assert {path.name for path in synced} >= {"audio.npy", "manifest.json", "digests.json", "base"}


@pytest.mark.parametrize("work", ["start", "epoch", "finish"])
def test_a_trial_is_resumed_and_its_end_is_known(tmp_path: Path, work: str) -> None:
    row = {"text_to_audio/eng/recall_at_1": 0.5}

    def prepare(folder: Path) -> Callable[[], object]:
        run = RunFolder.create(folder / "run", Experiment(), {"name": "test"}) if work != "start" else None

        def act() -> None:
            trial = (run or RunFolder.create(folder / "run", Experiment(), {"name": "test"})).add_trial({"seed": 1})
            if work == "finish":
                trial.finish({"best_epoch": 1})
            elif work == "epoch":
                trial.add_epoch({"epoch": 2, **row})

        if run is not None:
            trial = run.add_trial({"seed": 1})
            trial.update(status=RUNNING)
            trial.add_epoch({"epoch": 1, **row})
        return act

    for folder, where in every_crash(prepare, tmp_path):
        try:
            run = RunFolder.open(folder / "run")
        except ValueError:
            run = RunFolder.create(folder / "run", Experiment(), {"name": "test"})
        trial = run.add_trial({"seed": 1})
        if trial.is_finished:
            assert trial.describe()["status"] == FINISHED, where
        if work == "epoch":
            trial.add_epoch({"epoch": 2, **row})
            assert [one["epoch"] for one in trial.epochs()] == [1, 2], where
        trial.finish({"best_epoch": 1})
        assert trial.describe()["status"] == FINISHED, where
        assert not leftovers(trial.folder), where


@pytest.mark.slow
def test_a_sweep_killed_at_any_point_and_resumed_ends_as_one_that_nobody_killed(tmp_path: Path) -> None:
    """One trial has a knowledge base, the other estimates clean pairs; checkpoints are also written within an epoch."""
    data, home = make_data(tmp_path / "tones"), tmp_path / "home"
    changes = {"train__checkpoint_every_steps": 2, "data__noise__ratio": 0.4}
    experiment = tiny(data, **MEASURED, **changes, scaling__workers=0, scaling__ray_data=False)
    points: list[dict[str, Any]] = [
        {"objective": "ask", "objective.knowledge.prototypes": 4, "objective.knowledge.refresh_every_epochs": 1},
        {"objective.correspondence": "small_loss", "objective.correspondence.warmup_epochs": 1},
    ]

    def train(run: RunFolder) -> None:
        with run.locked():
            sweep(run, points, home, use_ray=False, echo=lambda message: None)

    def prepare(folder: Path) -> Callable[[], object]:
        run = RunFolder.create(folder / "run", experiment, {"name": "test"})
        return lambda: train(run)

    def content(folder: Path) -> list[Any]:
        found: list[Any] = []
        for trial in RunFolder.open(folder / "run").trials():
            rows = [*map(dict, trial.epochs()), *(trial.result()[part] for part in ("val", "last", "test"))]
            measured = [{name: row[name] for name in row if not VARIES.match(name)} for row in rows]
            found += [trial.describe()["status"], *measured, (trial.folder / BEST / WEIGHTS_FILE).read_bytes()]
        return found

    def all_resumed() -> None:
        prepare(tmp_path / "whole")()
        expected = content(tmp_path / "whole")
        assert expected.count(FINISHED) == 2
        for folder, where in every_crash(prepare, tmp_path / "crashes", (KILL, TEAR), most=4):
            print(where)  # shown if it fails
            run = RunFolder.open(folder / "run")
            assert run.problems() == []
            train(run)
            assert content(folder) == expected
            assert not leftovers(folder)

    assert in_fork(all_resumed) == 0


class TwoParts(BackgroundRefresher):
    """A base in two parts, of which a client sees the whole."""

    def __init__(self, folder: Path) -> None:
        settings = SnapshotSettings(prototypes=5)
        shards = LocalShards([BaseShard(Turn(), settings, folder, BasePart(number, 2)) for number in range(2)])
        super().__init__(shards, settings, folder, pause=0.0)

    def get(self, version: int) -> Snapshot:
        return load_version(self.folder, version)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
def test_a_base_builds_again_whatever_version_a_kill_took(tmp_path: Path, parts: int) -> None:
    """Pruning (of 1) and rewinding (of 3) included: a checkpoint with version 2 leads to the same version 3."""
    state = {"version": 2, "next_version": 3, "pending": []}

    def base_of(folder: Path) -> InProcessRefresher | TwoParts:
        if parts == 2:
            return TwoParts(folder)
        # A version that a full disk stops is tried again, here at once.
        return InProcessRefresher(Turn(), SnapshotSettings(prototypes=5), folder, pause=0.0)

    def publish(base: InProcessRefresher | TwoParts, *versions: int) -> None:
        for version in versions:
            base.publish(weights(version), version, version)
            assert base.wait(version, 30).state == "ready"

    before = tmp_path / "before"
    assert in_fork(lambda: publish(base_of(before), 1, 2, 3)) == 0

    def prepare(folder: Path) -> Callable[[], object]:
        shutil.copytree(before, folder, dirs_exist_ok=True)

        def act() -> None:
            base = base_of(folder)
            SnapshotClient(base, SPEC, 2).load_state_dict(state)
            publish(base, 3, 4)

        return act

    expected = Turn()(weights(3)).audio
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)

    def resumed(folder: Path) -> None:
        client = SnapshotClient(base_of(folder), SPEC, 2)
        client.load_state_dict(state)
        client.refresh(3, weights(3), lag=0)
        client.before_step(3)
        assert client.version == 3
        assert np.allclose(client.searcher.snapshot.audio, expected, atol=1e-6)
        assert not leftovers(folder)

    def all_resumed() -> None:
        for folder, where in every_crash(prepare, tmp_path / "crashes", most=4):
            print(where)  # shown if it fails
            resumed(folder)

    assert in_fork(all_resumed) == 0


@pytest.mark.slow
@pytest.mark.parametrize("in_store", [False, True])
def test_a_feature_cache_ends_whole(tmp_path: Path, in_store: bool) -> None:
    data = make_data(tmp_path / "tones", num_train=2, num_val=1, num_test=0)
    front_end = FrontEnd(num_mels=8, clip_seconds=0.1)

    def make(folder: Path) -> Path:
        store = str(folder / "store") if in_store else ""
        return ensure_features(data, front_end, folder / "here", use_ray=False, store=store)

    def content(folder: Path) -> list[bytes]:
        found = make(folder)
        return [open_features(found, split).features(np.arange(1))[0].tobytes() for split in ("train", "val")]

    expected = content(tmp_path / "expected")
    for folder, where in every_crash(lambda folder: lambda: make(folder), tmp_path / "crashes", most=10):
        assert content(folder) == expected, where
        assert not leftovers(folder), where


def test_a_written_data_set_is_whole_or_not_there(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        write_tones(folder / "tones", num_train=2, num_val=1, num_test=1)

    for folder, where in every_crash(lambda folder: lambda: make(folder), tmp_path / "crashes"):
        if not (folder / "tones").exists():
            make(folder)
        assert read_manifest(folder / "tones").num_rows == 4, where


def test_the_runner_kills_where_it_says(tmp_path: Path) -> None:
    def work(folder: Path) -> None:
        (folder / "a").write_text("1")
        (folder / "a").rename(folder / "b")
        (folder / "b").unlink()

    def prepare(folder: Path) -> Callable[[], object]:
        return lambda: work(folder)

    (tmp_path / "once").mkdir()
    operations = file_operations(lambda: work(tmp_path / "once"), tmp_path / "once")
    assert operations == ["open a", "os.rename a b", "os.remove b"]
    found = [
        sorted(path.name for path in folder.iterdir())
        for folder, _ in every_crash(prepare, tmp_path / "all", ("kill",))
    ]
    assert found == [[], ["a"], ["b"]]
    (tmp_path / "full").mkdir()
    assert failed_at(lambda: work(tmp_path / "full"), tmp_path / "full", 2, 28) == 1
    assert json.dumps(sorted(path.name for path in (tmp_path / "full").iterdir())) == '["a"]'
