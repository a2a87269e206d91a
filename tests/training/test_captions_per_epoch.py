"""With `data.captions_per_epoch each` an epoch holds every pair of clip and caption once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_atr.data.shards import write_clips
from ray_atr.objectives import same_group
from ray_atr.training.batch import Batch, TrainingData
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.loop import train_trial
from tests.support.tiny import prepared_for, tiny, tone_clip

EACH = {"data__captions_per_epoch": "each", "data__languages": "eng"}
NUM_PAIRS = 3 * 6 + 2 * 2


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight training clips, six with three captions and two with two."""
    folder = tmp_path_factory.mktemp("home")
    clips = []
    for split, count in (("train", 8), ("val", 4), ("test", 4)):
        for index in range(count):
            captions = [f"tone {index} said in way {way}" for way in range(3 if index < 6 else 2)]
            clips.append(tone_clip(split, index, {"eng": captions}))
    write_clips(folder / "tones", clips, name="tones", licence="none")
    return folder


class Worker(WorkerGroup):
    """One of several workers, alone: gathers nothing."""

    def gather(self, tensor: Any) -> Any:
        return tensor


def batches(experiment: Experiment, home: Path, group: WorkerGroup, first_step: int = 0) -> list[list[Batch]]:
    data = TrainingData(experiment, prepared_for(experiment, home), group)
    return [list(of_epoch) for _, of_epoch in data.epochs(0, first_step, use_ray=False)]


def pairs(of_epoch: list[Batch]) -> list[str]:
    return [texts[0] for batch in of_epoch for texts in batch.captions.texts]


def test_every_pair_is_a_sample_once_an_epoch(home: Path) -> None:
    experiment = tiny(home / "tones", train__batch_size=2, train__epochs=2, **EACH)
    first, second = (pairs(of_epoch) for of_epoch in batches(experiment, home, WorkerGroup()))
    assert len(first) == NUM_PAIRS
    assert set(Counter(first).values()) == {1}
    assert sorted(first) == sorted(second)
    assert first != second


def test_the_default_is_one_caption_a_clip(home: Path) -> None:
    experiment = tiny(home / "tones", train__batch_size=2, train__epochs=1, data__languages="eng")
    (found,) = batches(experiment, home, WorkerGroup())
    assert sorted(clip_id for batch in found for clip_id in batch.clip_ids) == [
        f"train-{index:03d}" for index in range(8)
    ]


def test_workers_share_the_same_batches_and_a_resumed_run_has_the_rest(home: Path) -> None:
    experiment = tiny(home / "tones", train__batch_size=4, train__epochs=1, **EACH)
    (alone,) = batches(experiment, home, WorkerGroup())
    shares = [batches(experiment, home, Worker(rank=rank, size=2))[0] for rank in range(2)]
    together = [pairs([one]) + pairs([other]) for one, other in zip(*shares, strict=True)]
    assert together == [pairs([batch]) for batch in alone]
    (rest,) = batches(experiment, home, WorkerGroup(), first_step=3)
    assert [pairs([batch]) for batch in rest] == [pairs([batch]) for batch in alone[3:]]


@pytest.mark.parametrize("positives", ["identity", "captions"])
def test_two_captions_of_a_clip_are_never_negatives(home: Path, positives: str) -> None:
    """No two captions of this set are the same text."""
    experiment = tiny(home / "tones", train__batch_size=8, train__epochs=1, data__positives=positives, **EACH)
    (found,) = batches(experiment, home, WorkerGroup())
    repeated = 0
    for batch in found:
        same = np.array(batch.clip_ids)[:, None] == np.array(batch.clip_ids)
        groups = batch.global_batch.positive_groups
        # A batch in which each sample is alone has none.
        assert (groups is None) == (same.sum() == len(same))
        if groups is not None:
            np.testing.assert_array_equal(same_group(groups).numpy(), same)
            repeated += 1
    assert repeated > 0, "some batch has two captions of one clip"


def test_it_trains(home: Path, tmp_path: Path) -> None:
    experiment = tiny(home / "tones", train__batch_size=8, train__epochs=1, **EACH)
    reports: list[dict[str, Any]] = []
    train_trial(experiment, prepared_for(experiment, home), tmp_path, reports.append, use_ray_data=False)
    assert reports[0]["step"] == NUM_PAIRS // 8
    assert np.isfinite(reports[0]["train/loss"])
