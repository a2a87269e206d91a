"""A base in parts is the base as a whole, bit for bit: what is built, what is kept, what is searched, what is trained."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faiss
import numpy as np
import pytest
import torch

from ray_atr.common.override import override
from ray_atr.objectives.knowledge.knowledge import SearchSpec, SnapshotSettings
from ray_atr.sweep.placement import processes_of
from ray_atr.training import base_encoding
from ray_atr.training.base_encoding import SourceEncoder
from ray_atr.training.checkpoint import load_checkpoint
from ray_atr.training.checks import check_base_shards
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.knowledge_base import faiss_library, parts, prototypes
from ray_atr.training.knowledge_base.building import build
from ray_atr.training.knowledge_base.parts import UNIT, BasePart, part_of_worker
from ray_atr.training.knowledge_base.prototypes import centroids_of, kmeans_sample, pool
from ray_atr.training.knowledge_base.refresher import READY, BackgroundRefresher, LocalShards
from ray_atr.training.knowledge_base.searcher import Positions, Searcher
from ray_atr.training.knowledge_base.shard import BaseShard
from ray_atr.training.knowledge_base.sharded import best_first
from ray_atr.training.knowledge_base.snapshot import (
    Entries,
    PartEntries,
    Snapshot,
    load_version,
    part_of,
    remove_version,
    save_version,
    versions_in,
)
from ray_atr.training.loop import train_trial
from ray_atr.training.ray_train import base_shards
from ray_atr.training.refresh_cost import epochs_per_refresh
from tests.support.processes import run_processes
from tests.support.tiny import any_towers_will_do, make_data, prepared_for, tiny

N, D, L = 2 * UNIT + 500, 8, 2
"""Three units: in two parts one is twice the other, in four the first is empty."""


def entries(seed: int = 0) -> Entries:
    """Clips of which some are there twice, in different parts, and texts of which some are absent."""
    random = np.random.default_rng(seed)
    audio, text = random.normal(size=(N, D)), random.normal(size=(L, N, D))
    audio[-40:], text[:, -40:] = audio[:40], text[:, :40]
    mask = random.random((L, N)) > 0.2
    mask[0] = True
    return Entries(audio, text, [f"clip{n}" for n in range(N)], mask, np.arange(N) // 3)


def shards_of(
    folder: Path, settings: SnapshotSettings, count: int, kind: type[BaseShard] = BaseShard
) -> BackgroundRefresher:
    own = [kind(Turned(), settings, folder, BasePart(number, count)) for number in range(count)]
    return BackgroundRefresher(LocalShards(own), settings, folder, pause=0.0)


class Turned:
    """Encodes `entries` of a seed."""

    def encode_part(self, weights: int, part: BasePart) -> PartEntries:
        return PartEntries.from_entries(entries(weights), part)


def assert_equal(found: Snapshot, expected: Snapshot) -> None:
    for name in (field.name for field in fields(Snapshot)):
        one, other = getattr(found, name), getattr(expected, name)
        if isinstance(one, np.ndarray):
            assert one.dtype == other.dtype, name
            np.testing.assert_array_equal(one, other, err_msg=name)


def test_parts_hold_each_entry_once_and_begin_where_products_do() -> None:
    for count, of in ((1, 3), (1024, 2), (5000, 4), (1_000_000, 128), (70_000, 96)):
        slices = [BasePart(number, of).rows(count) for number in range(of)]
        assert [entry for rows in slices for entry in range(count)[rows]] == list(range(count))
        assert all(rows.start % UNIT == 0 or rows.start == count for rows in slices)
    sizes = [rows.stop - rows.start for rows in (BasePart(number, 4).rows(1_000_000) for number in range(4))]
    assert max(sizes) - min(sizes) <= UNIT
    # FAISS multiplies with so many entries at a time, and blocks of a source are encoded as they are in the whole.
    assert faiss.cvar.distance_compute_blas_database_bs == UNIT
    assert UNIT % base_encoding.BLOCK == 0


def test_every_part_has_workers_next_to_each_other_and_every_entry_falls_to_one_of_them() -> None:
    for size in range(1, 10):
        for of in range(1, size + 1):
            teams = [list(BasePart(number, of).workers(size)) for number in range(of)]
            assert [rank for team in teams for rank in team] == list(range(size))
            assert all(part_of_worker(rank, size, of).number == n for n, team in enumerate(teams) for rank in team)
            own = [part_of_worker(rank, size, of).worker_rows(N, rank, size) for rank in range(size)]
            assert [entry for rows in own for entry in range(N)[rows]] == list(range(N))


@pytest.mark.parametrize("k", [1, 3, 7, 12])
def test_results_of_parts_are_merged_by_score_then_by_position(k: int) -> None:
    random = np.random.default_rng(k)
    # Few values, so that most are equal to others.
    scores = random.integers(0, 4, (5, 12)).astype(np.float32)
    scores[0, 3:] = -np.inf
    positions = np.stack([random.permutation(40)[:12] for _ in range(5)])
    found, where = best_first(torch.from_numpy(scores), torch.from_numpy(positions), k)
    for row in range(5):
        expected = sorted(zip(-scores[row], positions[row], strict=True))[:k]
        assert list(zip((-found[row]).tolist(), where[row].tolist(), strict=True)) == expected


def test_k_means_sees_the_sample_that_faiss_draws_of_all_entries() -> None:
    settings = SnapshotSettings(prototypes=3, seed=4)
    rows = np.random.default_rng(0).normal(size=(2000, D)).astype(np.float32)
    places = kmeans_sample(np.ones(2000, dtype=bool), settings)
    assert len(places) == 3 * 256
    kmeans = faiss.Kmeans(D, 3, niter=10, seed=5, min_points_per_centroid=1, max_points_per_centroid=256)
    kmeans.train(rows)
    np.testing.assert_array_equal(centroids_of(rows[places], settings, None), kmeans.centroids)


@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_a_pool_is_a_loop_over_the_members(pooling: str) -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(500, D)).astype(np.float32)
    numbers = random.integers(-1, 5, 500).astype(np.int32)
    numbers[numbers == 3] = -1
    found = pool(rows, numbers, 5, pooling)
    for cluster in range(5):
        members = [rows[n] for n in range(500) if numbers[n] == cluster]
        assert found.counts[cluster] == len(members)
        if members and pooling == "max":
            np.testing.assert_array_equal(found.values[cluster], np.max(members, axis=0))
        elif members:
            expected = sum(member.astype(np.float64) for member in members)
            np.testing.assert_allclose(found.values[cluster] / prototypes.FIXED, expected, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize(
    "settings",
    [
        SnapshotSettings(prototypes=5),
        SnapshotSettings(prototypes=5, pooling="mean", storage="float16"),
        SnapshotSettings(prototypes=5, separate_text_clusters=True, index="flat"),
        SnapshotSettings(prototypes=0),
    ],
    ids=["max", "mean", "separate", "none"],
)
def test_versions_that_are_built_in_parts_are_those_of_one_base(
    tmp_path: Path, settings: SnapshotSettings, count: int
) -> None:
    base = shards_of(tmp_path, settings, count)
    expected: Snapshot | None = None
    for version in (1, 2):
        base.publish(version, version, step=10 * version)
        outcome = base.wait(version, 60)
        assert outcome.state == READY, outcome.error
        # The second one starts from the first one's centroids.
        expected = build(entries(version), settings, version=version, step=10 * version, previous=expected)
        whole = load_version(tmp_path, version)
        assert (whole.version, whole.step) == (version, 10 * version)
        assert_equal(whole, expected)
        held = [base.shards.each("get", version)[number] for number in range(count)]
        assert sum(len(part.audio) for part in held) == N
        assert all(len(part) == N for part in held)
    base.close()


def with_equal_captions(noise: float) -> Entries:
    """Entries of which the last 40 have the captions of the first 40, rounded otherwise."""
    own = entries()
    assert own.text_mask is not None
    own.text_mask[:, -40:] = own.text_mask[:, :40]
    own.text[:, -40:] += noise * np.random.default_rng(1).normal(size=(L, 40, D))
    return own


class Rounded:
    """Encodes them in parts, in another batch than the first ones."""

    def encode_part(self, weights: int, part: BasePart) -> PartEntries:
        first = np.tile(np.arange(N), (L, 1))
        first[:, -40:] = np.arange(40)
        return PartEntries.from_entries(with_equal_captions(1e-6), part)._replace(first=first[:, part.rows(N)])


@pytest.mark.parametrize("count", [1, 2, 4])
def test_equal_captions_get_the_row_of_the_first_one_which_another_part_has(tmp_path: Path, count: int) -> None:
    settings = SnapshotSettings(prototypes=5)
    own = [BaseShard(Rounded(), settings, tmp_path, BasePart(number, count)) for number in range(count)]
    base = BackgroundRefresher(LocalShards(own), settings, tmp_path)
    base.publish(0, 1, 0)
    assert base.wait(1, 60).state == READY
    assert_equal(load_version(tmp_path, 1), build(with_equal_captions(0), settings))


def test_entries_that_need_no_encoding_are_divided_too(tmp_path: Path) -> None:
    settings = SnapshotSettings(prototypes=4)
    base = shards_of(tmp_path, settings, 3)
    base.publish(entries(7), 1, 0)
    assert base.wait(1, 60).state == READY
    assert_equal(load_version(tmp_path, 1), build(entries(7), settings))


def test_a_version_is_there_with_its_last_part_and_can_be_had_in_any_number_of_parts(tmp_path: Path) -> None:
    settings = SnapshotSettings(prototypes=4)
    expected = build(entries(), settings, version=3)
    first = shards_of(tmp_path / "4", settings, 4)
    first.publish(0, 3, 0)
    assert first.wait(3, 60).state == READY
    for count in (1, 2, 3, 4):
        folder = tmp_path / f"to {count}"
        for number in range(count):
            assert versions_in(folder) == []
            save_version(load_version(tmp_path / "4", 3, BasePart(number, count)), folder)
        assert versions_in(folder) == [3]
        assert_equal(load_version(folder, 3), expected)
    remove_version(tmp_path / "4", 3)
    assert list((tmp_path / "4").iterdir()) == []


def test_a_base_over_the_same_folder_has_what_was_built_and_forgets_what_is_later(tmp_path: Path) -> None:
    settings = SnapshotSettings(prototypes=0)
    base = shards_of(tmp_path, settings, 2)
    for version in range(1, 6):
        base.publish(version, version, 0)
        base.wait(version, 60)
    # The last three are kept.
    assert versions_in(tmp_path) == base.versions() == [3, 4, 5]
    again = shards_of(tmp_path, settings, 2)
    assert again.versions() == [3, 4, 5]
    again.rewind(3)
    assert versions_in(tmp_path) == again.versions() == [3]


class DyingShard(BaseShard):
    """The second one that pools has lost what it had begun, once."""

    pooled = itertools.count(1)

    def build(self, version: int, step: str, *arguments: Any) -> Any:
        if step == "pool" and next(self.pooled) == 2:
            self._begun = {}
        return super().build(version, step, *arguments)


def test_what_a_shard_had_begun_is_lost_with_it_and_built_again(tmp_path: Path) -> None:
    settings = SnapshotSettings(prototypes=4)
    base = shards_of(tmp_path, settings, 2, DyingShard)
    base.publish(0, 1, 0)
    outcome = base.wait(1, 60)
    assert (outcome.state, outcome.failures) == (READY, 1)
    assert_equal(load_version(tmp_path, 1), build(entries(0), settings))


SEARCHES = {
    "ask": (SearchSpec(5, "auto", 16), "float32", (2, 3, 4)),
    "ask, float16": (SearchSpec(5, "auto", 16), "float16", (2, 4)),
    "ance": (SearchSpec(30, "auto", 16, coarse=False, excluded="positives", across=True), "float32", (2, 4)),
    "more than a part has": (SearchSpec(UNIT + 7, "auto", 16, excluded="nothing"), "float32", (4,)),
    "flat": (SearchSpec(3, "flat", 16), "float32", (4,)),
}
"""What is searched, in which numbers, and in how many parts."""
SHARES = (6, 0, 4, 3)
"""Clips of each worker: one has none, and FAISS multiplies for three otherwise than for more."""


def queries(rank: int, whole: Snapshot) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[str], torch.Tensor]:
    """Some of them are entries of the base, and so find equal ones."""
    random = np.random.default_rng(rank)
    rows = random.integers(0, 80, SHARES[rank])
    audio, text = torch.from_numpy(whole.audio[rows]), torch.from_numpy(whole.text[:, rows]).transpose(0, 1)
    # A text that is absent is a zero row, to which all entries are equally near.
    mask = torch.from_numpy((random.random((len(rows), L)) > 0.3) & whole.text_mask[:, rows].T)
    return audio, text, mask, [f"clip{row}" for row in rows], torch.from_numpy(rows // 3)


def searching(rank: int, size: int, folder: Path) -> dict[str, bool]:
    """Whether a worker finds in parts, and looks up, what it finds in the whole base."""
    equal: dict[str, bool] = {}
    of_storage = {
        storage: build(entries(), SnapshotSettings(prototypes=6, storage=storage)) for storage in ("float32", "float16")
    }
    own = queries(rank, of_storage["float32"])
    for name, (spec, storage, counts) in SEARCHES.items():
        snapshot = of_storage[storage]
        expected = Searcher(snapshot, spec).search(*own)
        for count in counts:
            searcher = Searcher(part_of([snapshot], part_of_worker(rank, size, count)), spec)
            found = searcher.search(*own)
            # What is looked up is the same on all workers, as after a gather.
            everyone = WorkerGroup(rank, size).gather_objects(expected)
            together = Positions(*(torch.cat(each) for each in zip(*everyone, strict=True)))
            looked, reference = searcher.look_up(together), Searcher(snapshot, spec).look_up(together)
            checks = [torch.equal(one, other) for one, other in zip(found, expected, strict=True)]
            for grain in ("fine", "coarse"):
                one, other = getattr(looked, grain), getattr(reference, grain)
                for side in ("by_audio", "by_text"):
                    for values in ("audio", "text", "valid"):
                        if one is None or other is None:
                            checks.append(one is other)
                        else:
                            a, b = (getattr(getattr(each, side), values) for each in (one, other))
                            checks.append(torch.equal(a, b))
            places = np.array([3, N - 1, 3, UNIT])
            audio, text = searcher.entries.audio[places], searcher.entries.text[0][places]
            checks.append(np.array_equal(audio, snapshot.audio[places].astype(np.float32)))
            checks.append(np.array_equal(text, snapshot.text[0][places].astype(np.float32)))
            equal[f"{name}, {count} parts"] = all(checks)
    return equal


@pytest.mark.slow
def test_four_workers_find_in_two_to_four_parts_what_each_finds_in_the_whole(tmp_path: Path) -> None:
    for found in run_processes(searching, 4, tmp_path):
        assert len(found) == sum(len(counts) for _, _, counts in SEARCHES.values())
        assert not [name for name, is_equal in found.items() if not is_equal]


TRAINED: dict[str, dict[str, Any]] = {
    "ance": {
        "objective": "ance",
        "objective__knowledge__pool": 8,
        "objective__knowledge__negatives": 3,
        "objective__correspondence": "leave_one_out",
        "train__epochs": 2,
    },
    "write_through": {
        "objective": "ask",
        "train__epochs": 2,
        "objective__knowledge__prototypes": 4,
        "objective__knowledge__neighbours": 2,
        "objective__knowledge__refresh": "write_through",
        "objective__correspondence": "self_refining",
        "objective__correspondence__warmup_epochs": 1,
    },
    "neighbours": {
        "objective": "ask",
        "objective__knowledge__prototypes": 4,
        "objective__knowledge__text_entries": "each",
        "objective__correspondence": "neighbours",
        "objective__correspondence__anchors": 6,
        "objective__correspondence__warmup_epochs": 1,
    },
}


class InParts(BackgroundRefresher):
    """The first worker builds all parts; each one reads its own from the same folder."""

    def __init__(self, encode: SourceEncoder, settings: SnapshotSettings, folder: Path, part: BasePart) -> None:
        shards = [BaseShard(encode, settings, folder, BasePart(number, part.of)) for number in range(part.of)]
        super().__init__(LocalShards(shards), settings, folder)
        self.part = part

    def get(self, version: int) -> Snapshot:
        return load_version(self.folder, version, self.part)


@contextmanager
def small_parts(unit: int) -> Iterator[None]:
    """Parts of a base of 24 clips. FAISS computes each distance by itself: its products would be of other shapes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "UNIT", unit)
        patch.setattr(prototypes, "UNIT", unit)
        patch.setattr(faiss_library, "BLAS_FROM", 10**6)
        yield


class StoppedError(Exception):
    """Stands for what ends a training before its time."""


def until(steps: int) -> Any:
    """Asks for a checkpoint after so many steps, and one step later the training ends."""
    done = iter(range(1, 10**6))

    def is_preempted(group: WorkerGroup) -> bool:
        if (step := next(done)) > steps:
            raise StoppedError
        return step == steps

    return is_preempted


Case = tuple[str, str, list[tuple[int, int]]]
"""The name of a run, what is trained, and its phases: each has the base in so many parts, and ends after so many steps."""
CASES: list[Case] = [(f"{name} whole", name, [(1, 999)]) for name in TRAINED]
CASES += [(f"{name} parts", name, [(2, 999)]) for name in ("ance", "write_through")]
# A version is under way when it stops.
CASES.append(("neighbours resumed", "neighbours", [(2, 4), (1, 999)]))


def train(
    rank: int, size: int, folder: Path, home: Path
) -> dict[str, tuple[dict[str, torch.Tensor], list[dict[str, Any]]]]:
    """The weights and epochs that the runs of `CASES` end with, told by the first worker."""
    ended = {}
    for case, name, phases in CASES:
        experiment = tiny(home / "tones", **TRAINED[name])
        prepared = prepared_for(experiment, home)
        for count, steps in phases:

            def make_refresher(knowledge: Any, encode: Any, own: Path, group: WorkerGroup, count: int = count) -> Any:
                encode.block = 8
                refresher = InParts(encode, knowledge.snapshot_settings(0), own, part_of_worker(rank, size, count))
                # Built now: in the base's thread it would move the generator that training draws from at the same time.
                _ = encode.retriever
                group.barrier()
                return refresher

            rows: list[Any] = []
            arguments = experiment, prepared, folder / case, rows.append, WorkerGroup(rank, size)
            with small_parts(8), suppress(StoppedError), any_towers_will_do():
                train_trial(*arguments, use_ray_data=False, make_refresher=make_refresher, is_preempted=until(steps))
        if rank == 0:
            ended[case] = load_checkpoint(folder / case / "last")["model"], [dict(row) for row in rows[:-1]]
    return ended


@pytest.mark.slow
def test_two_workers_train_with_parts_as_with_the_whole_base_also_if_resumed_without_parts(tmp_path: Path) -> None:
    make_data(tmp_path / "tones")
    prepared_for(tiny(tmp_path / "tones"), tmp_path)
    found = run_processes(train, 2, tmp_path / "runs", tmp_path)[0]
    for case, name, _ in CASES:
        (weights, reports), (expected, rows) = found[case], found[f"{name} whole"]
        assert all(torch.equal(value, expected[key]) for key, value in weights.items()), case
        for row, other in zip(reports, rows, strict=True):
            for metric in ("train/loss", "knowledge/out_of_batch_influence", "knowledge/entries"):
                assert row[metric] == other[metric], (case, metric)
            for metric in ("knowledge/drift_audio", "knowledge/drift_text"):
                assert row[metric] == pytest.approx(other[metric], rel=1e-9, abs=1e-12)
    assert len(found["neighbours resumed"][1]) == 2


def refused(**changes: Any) -> str:
    with pytest.raises(ValueError, match=r"scaling\.base_shards") as caught:
        check_base_shards(asked_for(**changes))
    return str(caught.value)


def asked_for(**changes: Any) -> Experiment:
    flat = {name.replace("__", "."): value for name, value in changes.items()}
    return override(Experiment(), {"scaling.base_shards": 4, "scaling.workers": 4, **flat})


def test_a_base_that_cannot_be_held_in_parts_is_refused_with_the_reason() -> None:
    check_base_shards(asked_for(objective="ask"))
    check_base_shards(asked_for(objective="ask", scaling__workers="auto"))
    check_base_shards(asked_for())
    for index in ("ivf", "hnsw"):
        assert f"index={index}, whose lists or graph" in refused(objective="ask", objective__knowledge__index=index)
    assert "searches by ivf" in refused(objective="ask", objective__knowledge__exact_up_to=10)
    assert "scaling.encoders=2" in refused(objective="ask", scaling__encoders=2)
    assert "at most scaling.workers (2)" in refused(objective="ask", scaling__workers=2)
    assert "at most scaling.workers (0)" in refused(objective="ask", scaling__workers=0)
    for name in ("moco", "nnclr"):
        assert f"objective.knowledge={name}: every worker has the whole queue" in refused(objective=name)


@pytest.mark.parametrize(
    ("changes", "entries", "expected"),
    [
        ({}, 2_000_000, 2),
        ({"objective__knowledge__index": "exact"}, 2_000_000, 2),
        ({"objective__knowledge__index": "ivf"}, 2_000_000, 1),
        ({}, 1000, 1),
        ({"scaling__encoders": 2}, 2_000_000, 1),
        ({"scaling__gpus_per_worker": 1.0, "scaling__gpus_per_encoder": 0.5}, 2_000_000, 1),
        ({"scaling__gpus_per_worker": 0.6, "scaling__gpus_per_encoder": 0.4}, 2_000_000, 2),
        ({"scaling__base_shards": 3}, 1000, 3),
        ({"scaling__base_shards": 9}, 1000, 4),
        ({"scaling__base_shards": 1}, 2_000_000, 1),
    ],
)
def test_auto_is_one_part_a_node_of_a_large_base_that_can_be_divided(
    changes: dict[str, Any], entries: int, expected: int
) -> None:
    settings = {"objective": "ask", "scaling__base_shards": "auto", "objective__knowledge__exact_up_to": 3_000_000}
    nodes = ["one", "one", "other", "other"]
    group: Any = SimpleNamespace(
        size=4, is_first=True, gather_objects=lambda value: nodes, of_first=lambda value: value
    )
    found = base_shards(asked_for(**settings | changes), SimpleNamespace(size=(entries, 1)), group)
    assert found == expected


def test_each_part_takes_an_encoder() -> None:
    gpus = {"scaling__gpus_per_worker": 0.5, "scaling__gpus_per_encoder": 0.25}
    assert sum(one.resources["GPU"] for one in processes_of(asked_for(objective="ask", **gpus))) == 4 * 0.5 + 4 * 0.25
    assert epochs_per_refresh(asked_for(objective="ask"), 1000, 1000) == pytest.approx(1 / 3)
