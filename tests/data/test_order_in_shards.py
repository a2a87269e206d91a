"""An epoch in the order of the shards: each row group is read and decoded once, by one worker; nothing is kept on a disk."""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ray_atr.data.row_groups
from ray_atr.data.audio import FrontEnd
from ray_atr.data.feature_cache import ensure_features
from ray_atr.data.features import FeatureSet, open_features
from ray_atr.data.row_groups import features_at
from ray_atr.data.shards import ROW_GROUP_CLIPS, write_clips
from ray_atr.data.stream import FeatureBatch, plan_in_shards, steps_in_shards, stream
from ray_atr.training.checks import check_experiment
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.loop import train_trial
from tests.support.processes import run_processes
from tests.support.spies import spied
from tests.support.tiny import any_towers_will_do, prepared_for, tiny, tone, tone_clip

CLIPS, CLIPS_PER_SHARD = 50, 4
FRONT_END = FrontEnd(num_mels=16)
IDS = [f"clip {number}" for number in range(200)]
GROUPS = np.repeat(np.arange(29), 7)[:200]
ORDER: dict[str, Any] = {"seed": 2, "batch_size": 16, "parts": 8, "mixed": 2}
IN_SHARDS: dict[str, Any] = {"data__order": "shards", "data__order_parts": 4, "data__order_groups": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tones of different lengths, four a shard."""
    folder = tmp_path_factory.mktemp("home") / "tones"
    clips = [
        tone_clip(split, n, {"eng": [f"tone {n}"], "fra": [f"son {n}", f"bruit {n}"]}, seconds=0.3 + 0.1 * (n % 3))
        for split, count in (("train", CLIPS), ("val", 8), ("test", 8))
        for n in range(count)
    ]
    write_clips(folder, clips, name="tones", licence="none", clips_per_shard=CLIPS_PER_SHARD)
    return folder


@pytest.fixture(scope="module")
def streamed(data: Path) -> FeatureSet:
    """The training clips, whose features are kept nowhere."""
    return open_features(ensure_features(data, FRONT_END, data.parent, use_ray=False, streamed="train"), "train")


def plan(epoch: int, rank: int = 0, num_workers: int = 1) -> list[np.ndarray]:
    return plan_in_shards(IDS, GROUPS, epoch=epoch, rank=rank, num_workers=num_workers, **ORDER).rows


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_batches_are_the_same_for_any_number_of_workers_and_no_two_read_a_row_group(workers: int) -> None:
    for epoch in range(3):
        alone, shares = plan(epoch), [plan(epoch, rank, workers) for rank in range(workers)]
        for step, rows in enumerate(alone):
            np.testing.assert_array_equal(np.concatenate([share[step] for share in shares]), rows)
        readers = Counter(group for share in shares for group in set(GROUPS[np.concatenate(share)].tolist()))
        assert set(readers.values()) == {1}


def test_an_epoch_has_each_clip_at_most_once_and_all_take_their_turn() -> None:
    seen: set[int] = set()
    steps = steps_in_shards(GROUPS, ORDER["batch_size"], ORDER["parts"])
    for epoch in range(12):
        rows = np.concatenate(plan(epoch))
        assert len(plan(epoch)) == steps
        assert len(set(rows.tolist())) == len(rows) == steps * 16
        # What is left over: less than the largest row group and a step's samples for each part.
        assert len(rows) > len(IDS) - 8 * (7 + 2)
        seen |= set(rows.tolist())
    assert seen == set(range(len(IDS)))


def test_samples_are_mixed_within_their_row_groups_and_no_further() -> None:
    rows, changes = np.stack(plan(0)).reshape(-1, 8, 2), 0
    for part in range(8):
        groups = GROUPS[rows[:, part].ravel()]
        pairs = [set(groups[start : start + 14].tolist()) for start in range(0, len(groups), 14)]
        # The last group is smaller, so that what comes after it begins earlier.
        assert all(len(pair) <= 2 or 28 in pair for pair in pairs)
        changes += int((groups[1:12] != groups[:11]).sum())
    # Two groups at once and not one after the other, which would change once within twelve.
    assert changes > 3 * 8
    assert not np.array_equal(np.stack(plan(0)), np.stack(plan(1)))


def epochs(features: FeatureSet, number: int, rank: int = 0, workers: int = 1) -> Any:
    settings = {"seed": 0, "batch_size": 8, "parts": 4, "mixed": 2, "rank": rank, "num_workers": workers}
    return [plan_in_shards(features.clip_ids, features.groups, epoch=epoch, **settings) for epoch in range(number)]


def contents(batches: list[FeatureBatch]) -> list[tuple[int, int, list[int]]]:
    return [(batch.epoch, batch.step, batch.rows.tolist()) for batch in batches]


def test_streamed_features_are_those_of_a_cache(data: Path, streamed: FeatureSet) -> None:
    kept = open_features(ensure_features(data, FRONT_END, data.parent, use_ray=False), "train")
    assert streamed.clip_ids == kept.clip_ids
    batches = list(stream(streamed, epochs(streamed, 2), use_ray=False))
    assert len(batches) == 8
    for batch in batches:
        features, frames = kept.features(batch.rows)
        np.testing.assert_array_equal(batch.features.numpy(), features.astype(np.float32))
        np.testing.assert_array_equal(batch.frames.numpy(), frames)
    rows = np.array([37, 2, 3, 49, 2])
    for mine, theirs in zip(streamed.features(rows), kept.features(rows), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    # The other splits are kept: they are read in every epoch, and small.
    assert not open_features(streamed.folder, "val").source
    assert not list(streamed.folder.glob("train-*.arrow"))


def test_a_data_set_that_was_made_again_at_its_place_is_read_again(tmp_path: Path) -> None:
    read = []
    for pitch in (0, 1):
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        clip = dataclasses.replace(tone_clip("train", 0, {"eng": ["a tone"]}), audio=tone(pitch, 0))
        (shard,) = write_clips(tmp_path / "data", [clip], name="tones", licence="none").shards
        read += features_at(str(tmp_path / "data"), FrontEnd(), [(shard.file, 0, 0)])
    assert not np.array_equal(*read)


@pytest.mark.parametrize("workers", [1, 2])
def test_no_clip_is_read_twice_in_an_epoch(streamed: FeatureSet, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    read: Counter[tuple[str, int]] = Counter()
    spied(monkeypatch, ray_atr.data.row_groups, "read_group", lambda _, folder, *group: read.update([group]))
    for rank in range(workers):
        ray_atr.data.row_groups._cached_group.cache_clear()
        list(stream(streamed, epochs(streamed, 1, rank, workers), use_ray=False))
    assert set(read.values()) == {1}
    assert len(read) >= 8
    # A resumed epoch reads what is left of it.
    read.clear()
    ray_atr.data.row_groups._cached_group.cache_clear()
    whole = list(stream(streamed, epochs(streamed, 1), use_ray=False))
    read.clear()
    ray_atr.data.row_groups._cached_group.cache_clear()
    rest = list(stream(streamed, epochs(streamed, 1), first_step=2, use_ray=False))
    assert contents(rest) == contents(whole)[2:]
    assert 0 < len(read) <= 8 < len(streamed.shard_files)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_ray_data_decodes_the_same_batches(streamed: FeatureSet) -> None:
    here = list(stream(streamed, epochs(streamed, 2), first_step=1, use_ray=False))
    there = list(stream(streamed, epochs(streamed, 2), first_step=1, use_ray=True))
    assert contents(there) == contents(here)
    for mine, theirs in zip(here, there, strict=True):
        assert mine.features.equal(theirs.features)
        assert mine.frames.equal(theirs.frames)


@any_towers_will_do()
def losses(rank: int, size: int, folder: Path, experiment: Experiment) -> list[float]:
    rows: list[Any] = []
    prepared = prepared_for(experiment, folder / str(rank))
    train_trial(
        experiment, prepared, folder / "run", rows.append, WorkerGroup(rank=rank, size=size), use_ray_data=False
    )
    return [row["train/loss"] for row in rows if "train/loss" in row]


@pytest.mark.slow
def test_two_and_three_workers_train_as_one(data: Path, tmp_path: Path) -> None:
    changes = {**IN_SHARDS, "data__order_parts": 6, "train__batch_size": 12}
    experiment = tiny(data, **changes, data__captions_per_epoch="each", train__epochs=2)
    alone = losses(0, 1, tmp_path / "alone", experiment)
    assert len(alone) == 2
    for workers in (2, 3):
        for found in run_processes(losses, workers, tmp_path / str(workers), experiment):
            assert found == pytest.approx(alone, rel=1e-5), workers


@pytest.mark.slow
@pytest.mark.parametrize(
    "objective",
    [
        {"objective": "ask", "objective__knowledge__prototypes": 4},
        {"objective__correspondence": "small_loss", "objective__correspondence__warmup_epochs": 1},
        {"objective": "m_ltm_pot", "objective__pair__transport_mass": "auto"},
        {"objective__correspondence": "leave_one_out"},
    ],
    ids=["base", "judge", "estimated share", "towers"],
)
def test_what_goes_through_the_whole_set_reads_the_shards_too(
    data: Path, tmp_path: Path, objective: dict[str, Any]
) -> None:
    assert len(losses(0, 1, tmp_path, tiny(data, **IN_SHARDS, **objective, train__epochs=2))) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data__order_parts": 3}, r"data.order_parts: got 3; allowed a number that divides train.batch_size = 8"),
        ({"scaling__workers": 8}, r"data.order_parts: got 4; allowed a multiple of scaling.workers = 8"),
        ({"scaling__workers": "1:4"}, "data.order: got 'shards'; allowed exact with a range"),
        (
            {"scaling__feature_store": "memory://features"},
            "data.order: got 'shards'; allowed exact with scaling.feature",
        ),
        ({"model__audio__adapt__is_frozen": True}, "data.order: got 'shards'; allowed exact where a clip is a vector"),
    ],
)
def test_what_does_not_go_together_is_refused(data: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_experiment(tiny(data, **{**IN_SHARDS, **changes}))


def test_a_set_with_too_few_row_groups_is_refused_before_anything_is_prepared(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="50 samples in 13 row groups of up to 4 may leave a part without its 4"):
        check_experiment(tiny(data, **{**IN_SHARDS, "train__batch_size": 48, "data__order_parts": 12}))
    # Where the number of shards is enough, their files are not opened.
    folder = Path(shutil.copytree(data, tmp_path / "tones"))
    for shard in folder.glob("train-*"):
        shard.write_bytes(b"")
    check_experiment(tiny(folder, **IN_SHARDS))


def test_row_groups_suffice_where_the_shards_alone_are_too_few(tmp_path: Path) -> None:
    tones = [tone_clip(split, 0, {"eng": ["a tone"]}) for split in ("train", "val", "test")]
    clips = [
        dataclasses.replace(tone, clip_id=f"{tone.split} {n}") for tone in tones for n in range(8 * ROW_GROUP_CLIPS)
    ]
    write_clips(tmp_path / "one", clips, name="tones", licence="none", clips_per_shard=len(clips))
    check_experiment(tiny(tmp_path / "one", **IN_SHARDS, data__languages="eng"))


def test_an_epochs_size_is_said(data: Path, tmp_path: Path) -> None:
    from ray_atr.training.inputs import prepare

    said: list[str] = []
    prepare(tiny(data, **IN_SHARDS), tmp_path, use_ray=False, echo=said.append)
    assert any("an epoch is 4 steps, 32 of 50 clips" in line for line in said)
