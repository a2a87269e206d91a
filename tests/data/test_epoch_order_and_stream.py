"""The order of an epoch is a plan: the same for any number of workers, and streamed in order from any step on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ray_atr.data.stream
from ray_atr.common.digests import DamagedCacheError
from ray_atr.data.audio import FrontEnd
from ray_atr.data.feature_cache import ensure_features
from ray_atr.data.features import FeatureSet, open_features
from ray_atr.data.shards import write_clips
from ray_atr.data.stream import EpochOrder, FeatureBatch, check_batch_size, evaluation_plan, stream, training_plan
from tests.support.tiny import make_data, tone_clip

IDS = [f"clip {number}" for number in range(23)]


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> FeatureSet:
    folder = tmp_path_factory.mktemp("home")
    data = make_data(folder / "tones", num_train=13, num_val=2, num_test=2)
    return open_features(ensure_features(data, FrontEnd(num_mels=16), folder, use_ray=False), "train")


def test_a_step_has_the_same_clips_for_any_number_of_workers() -> None:
    alone = training_plan(IDS, seed=3, epoch=1, batch_size=6)
    assert [len(rows) for rows in alone.rows] == [6, 6, 6]
    assert len(set(np.concatenate(alone.rows).tolist())) == 18
    for workers in (2, 3, 6):
        shares = [
            training_plan(IDS, seed=3, epoch=1, batch_size=6, rank=rank, num_workers=workers) for rank in range(workers)
        ]
        for step, rows in enumerate(alone.rows):
            np.testing.assert_array_equal(np.concatenate([share.rows[step] for share in shares]), rows)


def test_another_epoch_or_seed_is_another_order_and_the_ids_order_does_not_matter() -> None:
    def order(ids: list[str], seed: int = 0, epoch: int = 0) -> list[str]:
        rows = np.concatenate(training_plan(ids, seed=seed, epoch=epoch, batch_size=23).rows)
        return [ids[row] for row in rows]

    assert order(IDS) == order(IDS[::-1])
    assert len({tuple(order(IDS, seed, epoch)) for seed in range(2) for epoch in range(3)}) == 6


def test_an_evaluation_drops_and_repeats_nothing() -> None:
    plans = [evaluation_plan(23, batch_size=4, rank=rank, num_workers=3) for rank in range(3)]
    assert np.concatenate([rows for plan in plans for rows in plan.rows]).tolist() == list(range(23))
    assert evaluation_plan(0, batch_size=4).rows == []


@pytest.mark.parametrize(("batch_size", "workers", "words"), [(24, 1, "at most 23"), (6, 4, "multiple of scaling")])
def test_a_batch_that_cannot_be_filled_or_divided_is_refused(batch_size: int, workers: int, words: str) -> None:
    with pytest.raises(ValueError, match=f"train.batch_size: got {batch_size}; allowed .*{words}"):
        check_batch_size(23, batch_size, workers)
    with pytest.raises(ValueError, match=r"data.train_split: got '1 clip'; allowed 2 clips or more"):
        check_batch_size(1, batch_size, workers)


def places(batches: list[FeatureBatch]) -> list[tuple[int, int, list[int]]]:
    return [(batch.epoch, batch.step, batch.rows.tolist()) for batch in batches]


def test_a_resumed_stream_goes_on_where_the_other_stopped(features: FeatureSet) -> None:
    plans = [training_plan(features.clip_ids, seed=0, epoch=epoch, batch_size=4) for epoch in range(2)]
    whole = list(stream(features, plans, use_ray=False))
    assert [(batch.epoch, batch.step) for batch in whole] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert places(list(stream(features, plans, first_step=2, use_ray=False))) == places(whole)[2:]


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_a_damaged_file_that_a_task_finds_is_made_again_at_the_next_start(tmp_path: Path) -> None:
    clips = [tone_clip("train", index, {"eng": ["a tone"]}) for index in range(4)]
    write_clips(tmp_path / "data", clips, name="tones", licence="none", clips_per_shard=2)
    folder = ensure_features(tmp_path / "data", FrontEnd(num_mels=16), tmp_path, use_ray=False)
    file = folder / "train-00001.arrow"
    file.write_bytes(file.read_bytes()[:-1])
    order = EpochOrder(0, [np.array([0, 1]), np.array([2, 3])])
    with pytest.raises(DamagedCacheError, match=r"train-00001.arrow: damaged.*the next start makes it again$"):
        list(stream(open_features(folder, "train"), [order], use_ray=True))


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_ray_data_streams_the_same_batches_in_the_same_order(features: FeatureSet) -> None:
    plans = [training_plan(features.clip_ids, seed=0, epoch=epoch, batch_size=2) for epoch in range(3)]
    here = list(stream(features, plans, first_step=1, use_ray=False))
    there = list(stream(features, plans, first_step=1, use_ray=True))
    assert places(there) == places(here)
    for mine, theirs in zip(here, there, strict=True):
        assert mine.features.equal(theirs.features)
        assert mine.frames.equal(theirs.frames)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_without_room_for_readers_on_its_node_the_trainer_reads_for_itself(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The features are on this node's disk, so no other node can read them."""
    monkeypatch.setattr(ray_atr.data.stream, "labels_of_this_node", lambda: {"disk": "another"})
    monkeypatch.setattr(ray_atr.data.stream, "READER_SECONDS", 1)
    plans = [training_plan(features.clip_ids, seed=0, epoch=0, batch_size=2)]
    assert places(list(stream(features, plans, use_ray=True))) == places(list(stream(features, plans, use_ray=False)))
    assert "the trainer reads the features itself" in caplog.text
