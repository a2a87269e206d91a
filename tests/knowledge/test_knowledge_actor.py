"""The base as an actor: shared snapshots, two workers in step, a killed actor."""

from __future__ import annotations

import time

import numpy as np
import pytest
import ray
from ray import cloudpickle
from ray.exceptions import RayActorError

from ray_atr.objectives.knowledge.knowledge import SnapshotSettings
from ray_atr.training.knowledge_base.building import build
from ray_atr.training.knowledge_base.parts import UNIT, WHOLE, BasePart
from ray_atr.training.knowledge_base.refresher import SnapshotClient
from ray_atr.training.knowledge_base.snapshot import part_of, versions_in
from tests.support import encoders
from tests.support.encoders import SPEC, Turn, weights

pytestmark = pytest.mark.ray
SETTINGS = SnapshotSettings(prototypes=5)


@pytest.fixture
def start(ray_session, tmp_path):
    from ray_atr.training.knowledge_base.actor import start_knowledge_base

    # Ray's workers cannot import what lies beside a test.
    cloudpickle.register_pickle_by_value(encoders)
    started = []

    def begin(name, encode=None):
        started.append(start_knowledge_base(f"{tmp_path.name}-{name}", encode or Turn(), SETTINGS, tmp_path / name))
        return started[-1]

    yield begin
    for refresher in started:
        refresher.close()


def test_publishing_returns_at_once_and_a_failure_ends_the_run(start):
    refresher = start("a", Turn(seconds=0.5))
    client = SnapshotClient(refresher, SPEC, 1, poll_seconds=0.5)
    refresher.wait(1, 0)
    started = time.perf_counter()
    client.refresh(5, weights(0))
    assert time.perf_counter() - started < 0.3
    client.before_step(6)
    assert client.searcher.snapshot.step == 5
    client.refresh(6, "the encoder broke")
    with pytest.raises(RuntimeError, match=r"version 2 of step 6 failed 3 times \(RuntimeError: the encoder broke"):
        client.before_step(7)


def test_snapshots_are_mapped_and_read_only(start):
    refresher = start("a")
    client = SnapshotClient(refresher, SPEC, 2)
    client.refresh(0, weights(0), lag=0)
    client.before_step(0)
    first, second = refresher.get(1), refresher.get(1)
    assert not first.audio.flags.writeable
    assert first.audio.__array_interface__["data"] == second.audio.__array_interface__["data"]

    @ray.remote(num_cpus=0.1)
    def elsewhere(refresher):
        snapshot = refresher.get(1)
        return snapshot.audio.sum(), snapshot.audio.flags.writeable

    total, is_writeable = ray.get(elsewhere.remote(refresher))
    assert total == first.audio.sum()
    assert not is_writeable


def test_two_workers_are_on_the_same_version_at_every_step(start):
    refresher = start("a", Turn(seconds=0.1))

    @ray.remote(num_cpus=0.1)
    def work(refresher, is_publisher, delay):
        client = SnapshotClient(refresher, SPEC, 2, is_publisher=is_publisher, poll_seconds=0.2)
        client.refresh(0, weights(0) if is_publisher else None, lag=0)
        seen = []
        for step in range(10):
            if step in (2, 5):
                client.refresh(step, weights(step) if is_publisher else None)
            client.before_step(step)
            time.sleep(delay)
            seen.append((client.version, float(client.searcher.snapshot.audio[0, 0])))
        return seen

    one, other = ray.get([work.remote(refresher, True, 0.0), work.remote(refresher, False, 0.05)])
    assert one == other
    assert [version for version, _ in one] == [1, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_an_actor_killed_in_mid_refresh_comes_back_and_builds_it(start, tmp_path):
    gate = tmp_path / "go"
    refresher = start("a", Turn(gate=str(gate)))
    client = SnapshotClient(refresher, SPEC, 1, poll_seconds=0.2)
    gate.touch()
    client.refresh(0, weights(0), lag=0)
    client.before_step(0)
    held = client.searcher.snapshot
    before = held.audio.copy()
    gate.unlink()
    client.refresh(1, weights(1))
    refresher.wait(2, 0)
    ray.kill(refresher.actors[0], no_restart=False)
    assert np.array_equal(held.audio, before)
    gate.touch()
    client.before_step(2)
    assert client.version == 2
    assert np.array_equal(refresher.get(1).audio, before)


def test_the_same_run_twice_gives_the_same_snapshots(start):
    found = []
    for name in ("a", "b"):
        refresher = start(name)
        client = SnapshotClient(refresher, SPEC, 2)
        client.refresh(0, weights(0), lag=0)
        for step in range(6):
            if step == 2:
                client.refresh(step, weights(step))
            client.before_step(step)
        found.append(client.searcher.snapshot)
    assert found[0].version == found[1].version == 2
    assert np.array_equal(found[0].audio, found[1].audio)
    assert np.array_equal(found[0].coarse_text, found[1].coarse_text)


def test_a_restarted_run_ends_the_base_it_finds_and_goes_on_from_its_folder(start):
    refresher = start("a")
    client = SnapshotClient(refresher, SPEC, 0)
    client.refresh(0, weights(0))
    client.before_step(0)
    before = client.searcher.snapshot.audio.copy()
    client.refresher = start("a")
    with pytest.raises(RayActorError):
        refresher.wait(1, 0)
    assert np.array_equal(client.refresher.get(1).audio, before)
    client.refresh(1, weights(1))
    client.before_step(1)
    assert client.version == 2


def test_versions_built_on_another_disk_are_in_the_checkpoint_and_given_to_the_next_base(start, tmp_path):
    refresher, here = start("a"), tmp_path / "here"
    refresher.restore(here)
    client = SnapshotClient(refresher, SPEC, 1)
    for number in range(5):
        client.refresh(number, weights(number), lag=0)
        client.before_step(number)
    assert versions_in(here) == [3, 4, 5]
    refresher.rewind(4)
    assert versions_in(here) == [3, 4]
    expected = refresher.get(4)
    other = start("b")
    assert ray.get(other.actors[0].versions.remote()) == []
    other.restore(here)
    assert ray.get(other.actors[0].versions.remote()) == [3, 4]
    np.testing.assert_array_equal(other.get(4).audio, expected.audio)


def await_ready(base, version):
    deadline = time.monotonic() + 240
    while (outcome := base.wait(version, 1.0)).state != "ready":
        assert outcome.state != "failed", outcome.error
        assert time.monotonic() < deadline, outcome.state
    return outcome


def test_a_base_in_parts_outlives_its_shards_and_is_given_to_a_base_of_another_number_of_parts(
    start, tmp_path, request
):
    from ray_atr.training.knowledge_base import actor

    gate, run = tmp_path / "go", f"{tmp_path.name}-parts"
    encode = Turn(gate=str(gate), count=3 * UNIT)
    # Each shard has a disk of its own, as on nodes; the first one's is that of the checkpoints.
    disks = [tmp_path / f"disk{number}" for number in range(2)]
    base, other = (
        actor.start_knowledge_base(run, encode, SETTINGS, disk, part=BasePart(number, 2))
        for number, disk in enumerate(disks)
    )
    base.restore(disks[0])
    request.addfinalizer(base.close)

    def whole(version):
        return part_of([base.get(version), other.get(version)], WHOLE)

    def assert_as_one_base(snapshot, expected):
        for name in ("ids", "audio", "text", "coarse_audio", "coarse_text", "cluster", "centroids"):
            np.testing.assert_array_equal(getattr(snapshot, name), getattr(expected, name), err_msg=name)

    gate.touch()
    one = Turn(count=3 * UNIT)
    first = build(one(weights(1)), SETTINGS)
    base.publish(weights(1), 1, 0)
    await_ready(base, 1)
    assert_as_one_base(whole(1), first)
    assert not other.get(1).audio.flags.writeable
    assert [len(part.get(1).audio) for part in (base, other)] == [UNIT, 2 * UNIT]
    # A shard dies in the middle of the next version.
    gate.unlink()
    base.publish(weights(2), 2, 5)
    time.sleep(1.0)
    ray.kill(base.actors[1], no_restart=False)
    gate.touch()
    await_ready(base, 2)
    second = build(one(weights(2)), SETTINGS, previous=first)
    assert_as_one_base(whole(2), second)
    # What it had written before is there again, and each part has gone to its own disk and that of the checkpoints alone.
    assert_as_one_base(whole(1), first)
    names = [sorted(path.name for path in disk.iterdir()) for disk in disks]
    assert names[1] == [f"v{version:06d}-1-of-2" for version in (1, 2)]
    assert names[0] == sorted(f"v{version:06d}-{number}-of-2" for version in (1, 2) for number in (0, 1))
    # Entries that the training wrote go to the shards in parts.
    base.publish(one(weights(3)), 3, 9)
    await_ready(base, 3)
    assert_as_one_base(whole(3), build(one(weights(3)), SETTINGS, previous=second))
    base.rewind(2)
    assert versions_in(disks[0]) == [1, 2]
    # A resumed run holds the base as a whole, on the disk that the checkpoints were made from.
    again = actor.start_knowledge_base(f"{run}-again", one, SETTINGS, disks[0])
    request.addfinalizer(again.close)
    assert_as_one_base(again.get(2), second)
    again.publish(weights(4), 3, 7)
    await_ready(again, 3)
    assert_as_one_base(again.get(3), build(one(weights(4)), SETTINGS, previous=second))
