"""Versions, their order, their failures and resumption, without Ray."""

from __future__ import annotations

import errno
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import faiss
import numpy as np
import pytest
import ray
import torch

from ray_atr.objectives.knowledge.knowledge import SnapshotSettings
from ray_atr.training.knowledge_base.actor import ActorRefresher
from ray_atr.training.knowledge_base.building import build
from ray_atr.training.knowledge_base.faiss_library import BLAS_FROM, faiss_for_search
from ray_atr.training.knowledge_base.refresher import READY, InProcessRefresher, Outcome, SnapshotClient
from ray_atr.training.knowledge_base.searcher import fused_top_k
from ray_atr.training.knowledge_base.snapshot import Entries, save_version, versions_in
from tests.support.encoders import SPEC, D, Turn, clips, weights
from tests.support.spies import spied

SETTINGS = SnapshotSettings(prototypes=5)


def base_of(folder, encode=None):
    return InProcessRefresher(encode or Turn(), SETTINGS, folder, pause=0.0)


def test_a_client_switches_exactly_lag_steps_after_publishing(tmp_path):
    client = SnapshotClient(base_of(tmp_path), SPEC, 3)
    client.refresh(0, weights(0), lag=0)
    seen = []
    for step in range(12):
        if step in (2, 7):
            client.refresh(step, weights(step))
        client.before_step(step)
        seen.append(client.version)
    assert seen == [1] * 5 + [2] * 5 + [3] * 2
    stats = client.stats(11)
    assert stats["staleness_steps"] == 11 - 7
    assert stats["version"] == 3


def test_a_resumed_run_keeps_every_version_until_it_publishes_one(tmp_path):
    """Those that are waited for: the one that is searched until then may be older than the last three."""
    for version in range(1, 6):
        save_version(build(Turn()(weights(version)), SETTINGS, version=version), tmp_path)
    remote = {"lead": lambda *_: Outcome(READY), "versions": lambda: [1, 2, 3, 4, 5]}
    refresher = ActorRefresher("run")
    refresher.actors = [SimpleNamespace(**{name: SimpleNamespace(remote=call) for name, call in remote.items()})]
    with mock.patch.object(ray, "get", lambda result: result):
        refresher.restore(tmp_path)
        refresher.wait(2, 0.0)
    assert versions_in(tmp_path) == [1, 2, 3, 4, 5]


def test_publishing_returns_at_once_and_the_wait_is_the_stall(tmp_path):
    gate = tmp_path / "go"
    base = base_of(tmp_path / "base", Turn(gate=str(gate)))
    client = SnapshotClient(base, SPEC, 1)
    client.refresh(0, weights(0))
    client.before_step(0)
    # Nothing is built before the gate opens.
    assert not gate.exists()
    assert client.version == 0
    waits, wait = [], base.wait

    def opening(version, timeout):
        if timeout:
            waits.append(version)
            threading.Timer(0.3, gate.touch).start()
        return wait(version, timeout)

    base.wait = opening
    client.before_step(1)
    assert client.version == 1
    assert waits == [1]
    assert client.timing.stall >= 0.3
    client.refresh(1, weights(1))
    client.wait_until_built()
    del waits[:]
    client.before_step(2)
    assert client.version == 2
    assert not waits


def test_weights_that_cannot_be_sent_end_the_wait_for_their_version(tmp_path, monkeypatch):
    def full(*_):
        raise MemoryError("no room in the object store")

    client = SnapshotClient(base_of(tmp_path), SPEC, 0)
    monkeypatch.setattr(client.refresher, "publish", full)
    client.refresh(0, weights(4))
    with pytest.raises(MemoryError, match="no room"):
        client.before_step(0)


def test_a_search_changes_nothing_that_a_base_built_beside_it_computes_by(monkeypatch):
    """FAISS rounds by a threshold of the whole process, which is the caller's own again afterwards."""
    seen: list[int] = []
    spied(monkeypatch, faiss, "knn", lambda *_, **__: seen.append(faiss.cvar.distance_compute_blas_threshold))
    before = faiss.cvar.distance_compute_blas_threshold
    with faiss_for_search():
        fused_top_k(torch.ones(2, D), torch.ones(5, D), 3)
        seen.append(faiss.cvar.distance_compute_blas_threshold)
    assert seen == [BLAS_FROM, BLAS_FROM]
    assert faiss.cvar.distance_compute_blas_threshold == before != BLAS_FROM


def test_two_builds_of_faiss_in_one_environment_are_named(tmp_path, monkeypatch):
    """As after `uv sync --all-extras`: the module of one build lies over the library of the other."""
    (tmp_path / "faiss.py").write_text("import math\nmath.delete_GpuResourcesVector\n")
    monkeypatch.delitem(sys.modules, "faiss")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ValueError, match=r"two builds in one environment .*delete_GpuResourcesVector.*remove faiss-cpu and"
    ):
        fused_top_k(torch.ones(2, 4), torch.ones(5, 4), 3)


def test_a_refresh_computes_on_no_more_threads_than_training(tmp_path):
    """A new thread would take every core else."""
    seen = []

    class Watched(Turn):
        def __call__(self, weights):
            seen.append((torch.get_num_threads(), faiss.omp_get_max_threads()))
            return super().__call__(weights)

    before = torch.get_num_threads()
    torch.set_num_threads(1 if before > 1 else 2)
    try:
        base = base_of(tmp_path, Watched())
        base.publish(weights(0), 1, 0)
        assert base.wait(1, 60).state == "ready"
        assert seen == [(torch.get_num_threads(),) * 2]
    finally:
        torch.set_num_threads(before)


class Breaking(Turn):
    """Cannot write or encode at some of its calls."""

    def __init__(self, *calls):
        super().__init__()
        self.breaks, self.calls = calls, 0

    def __call__(self, weights):
        self.calls += 1
        if self.calls in self.breaks:
            raise OSError(errno.EIO, "Input/output error", "v000002")
        return super().__call__(weights)


def test_a_refresh_that_fails_is_built_again_and_counted(tmp_path, caplog):
    whole, broken = (
        SnapshotClient(base_of(tmp_path / name, Breaking(*calls)), SPEC, 2)
        for name, calls in (("whole", ()), ("broken", (2, 3)))
    )
    for client in (whole, broken):
        client.refresh(0, weights(0), lag=0)
        client.before_step(0)
        client.refresh(1, weights(1))
        client.wait_until_built()
        client.before_step(3)
    assert (whole.version, broken.version) == (2, 2)
    assert np.array_equal(whole.searcher.snapshot.audio, broken.searcher.snapshot.audio)
    assert [client.stats(3)["failed_refreshes"] for client in (whole, broken)] == [0, 2]
    assert "version 2 failed (OSError: [Errno 5] Input/output error: 'v000002'); it is built again" in caplog.text


def test_a_refresh_that_fails_at_every_attempt_ends_the_run(tmp_path):
    """It went on with the former version, to other weights than those of a run whose disk was well."""
    client = SnapshotClient(base_of(tmp_path, Breaking(2, 3, 4)), SPEC, 2)
    client.refresh(0, weights(0), lag=0)
    client.before_step(0)
    client.refresh(1, weights(1))
    for waiting in (client.wait_until_built, lambda: client.before_step(3)):
        with pytest.raises(RuntimeError, match=r"version 2 of step 1 failed 3 times .*error.*resumed from its last"):
            waiting()


def test_without_any_snapshot_a_failure_ends_the_run(tmp_path):
    client = SnapshotClient(base_of(tmp_path), SPEC, 2)
    client.refresh(0, "the encoder broke", lag=0)
    with pytest.raises(RuntimeError, match="the encoder broke"):
        client.before_step(0)
    with pytest.raises(RuntimeError, match="first version"), SnapshotClient(base_of(tmp_path), SPEC, 2).searching():
        pass


def test_a_snapshot_is_what_the_published_weights_encode(tmp_path):
    base = base_of(tmp_path)
    base.publish(weights(4), 1, 10)
    base.wait(1, 30)
    rows = clips()[0] @ weights(4)
    assert np.allclose(base.get(1).audio, rows / np.linalg.norm(rows, axis=1, keepdims=True), atol=1e-6)
    assert base.get(1).step == 10


def test_entries_are_taken_as_they_are(tmp_path):
    rows, ids = clips()
    base = base_of(tmp_path, Turn(seconds=100))
    base.publish(Entries(rows, -rows, ids), 1, 0)
    assert base.wait(1, 30).state == "ready"
    assert np.allclose(base.get(1).text[0], -base.get(1).audio)


def test_old_versions_go(tmp_path):
    base = base_of(tmp_path)
    for version in range(1, 6):
        base.publish(weights(version), version, version)
    base.wait(5, 30)
    assert base.versions() == [3, 4, 5]
    with pytest.raises(ValueError, match="no snapshot"):
        base.get(1)


def test_a_base_made_anew_has_what_was_ready_and_forgets_what_a_resumed_run_does_not_know(tmp_path):
    base = base_of(tmp_path)
    for version in (1, 2, 3):
        base.publish(weights(version), version, version)
    base.wait(3, 30)
    again = base_of(tmp_path)
    assert again.wait(2, 0).state == "ready"
    assert np.array_equal(again.get(2).audio, base.get(2).audio)
    again.rewind(2)
    assert again.wait(3, 0).state == "unknown"
    assert again.versions() == [1, 2]


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize(("lag", "refreshes"), [(3, (2, 7)), (7, tuple(range(1, 9)))])
def test_a_resumed_run_switches_to_the_same_snapshots_as_one_never_stopped(tmp_path, lag, refreshes):
    """With a lag of many refreshes too: more versions wait to be searched than are kept in any case."""

    def run(folder, stop=None):
        """Versions' contents step by step; stopped and resumed at `stop`, after a checkpoint."""
        client = SnapshotClient(base_of(folder), SPEC, lag)
        client.refresh(0, weights(0), lag=0)
        seen = []
        for step in range(12):
            if step == stop:
                client.wait_until_built()
                state = client.state_dict()
                # What happens after the checkpoint is lost with the process.
                client.refresh(step, weights(99), lag=0)
                client.before_step(step)
                client = SnapshotClient(base_of(folder), SPEC, lag)
                client.load_state_dict(state)
            if step in refreshes:
                client.refresh(step, weights(step))
            client.before_step(step)
            seen.append((client.version, client.searcher.snapshot.audio[0].tolist()))
        return seen

    expected = run(tmp_path / "whole")
    for stop in (1, 3, 5, 6, 8):
        assert run(tmp_path / f"stopped{stop}", stop) == expected


def test_the_same_publishing_twice_gives_the_same_snapshots(tmp_path):
    pair = []
    for name in ("a", "b"):
        base = base_of(tmp_path / name)
        for version in (1, 2):
            base.publish(weights(version), version, version)
        base.wait(2, 30)
        pair.append(base.get(2))
    for name in ("audio", "coarse_audio", "coarse_text", "cluster"):
        assert np.array_equal(getattr(pair[0], name), getattr(pair[1], name))


def test_a_version_lost_with_a_crash_is_published_again(tmp_path):
    gate = tmp_path / "go"
    stuck = base_of(tmp_path / "base", Turn(gate=str(gate)))
    client = SnapshotClient(stuck, SPEC, 1, poll_seconds=0.1, republish_seconds=0.1)
    client.refresh(0, weights(0))
    client.refresher = base_of(tmp_path / "base")
    client.before_step(1)
    assert client.version == 1
    gate.touch()
    # Its thread sees the gate before the folder is emptied: it would keep the process from ending.
    stuck.wait(1, 30)


def test_a_version_lost_with_its_folder_before_it_was_used_is_published_again(tmp_path):
    client = SnapshotClient(base_of(tmp_path / "base"), SPEC, 3, republish_seconds=0.1)
    client.refresh(0, weights(0))
    client.wait_until_built()
    client.refresher = base_of(tmp_path / "elsewhere")
    client.before_step(3)
    assert client.version == 1


@pytest.mark.timeout(20)
def test_a_version_whose_process_always_dies_ends_the_run_instead_of_being_built_for_ever(tmp_path: Path) -> None:
    """As where the base does not fit into memory: Ray starts its actor again each time, with nothing in it."""
    published: list[int] = []

    class Dying(InProcessRefresher):
        def publish(self, payload: Any, version: int, step: int, needed: int | None = None) -> None:
            published.append(version)

    client = SnapshotClient(
        Dying(Turn(), SnapshotSettings(), tmp_path / "base"), SPEC, 0, poll_seconds=0.01, republish_seconds=0.01
    )
    client.refresh(0, weights(0))
    with pytest.raises(RuntimeError, match="version 1 of step 0 was lost 3 times: the process that builds it dies"):
        client.before_step(0)
    assert published == [1, 1, 1]


@pytest.mark.timeout(20)
def test_a_resumed_run_whose_base_is_gone_ends_instead_of_waiting_for_it(tmp_path):
    client = SnapshotClient(base_of(tmp_path / "base"), SPEC, 3)
    client.refresh(0, weights(0))
    client.wait_until_built()
    resumed = SnapshotClient(base_of(tmp_path / "elsewhere"), SPEC, 3)
    resumed.load_state_dict(client.state_dict())
    with pytest.raises(RuntimeError, match="version 1 of step 0 is gone"):
        resumed.before_step(3)


def test_searches_are_timed(tmp_path):
    client = SnapshotClient(base_of(tmp_path), SPEC, 2)
    client.refresh(0, weights(0), lag=0)
    client.before_step(0)
    audio = torch.randn(4, D)
    with client.searching() as searcher:
        found = searcher.look_up(searcher.search(audio, audio[:, None], None, ["clip0"] * 4))
    assert found.fine.by_audio.audio.shape == (4, 1, 3, D)
    assert client.stats(0)["search_seconds"] > 0
    assert client.stats(0)["search_seconds"] == 0
