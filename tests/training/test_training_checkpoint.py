"""A checkpoint is whole or absent, and nothing in it is unpickled into code."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from ray_atr.common.formats import FORMATS
from ray_atr.common.override import override
from ray_atr.training.batch import TrainingData
from ray_atr.training.checkpoint import (
    STATE_FILE,
    TrainState,
    deciding_settings,
    load_checkpoint,
    random_state,
    require_shared,
    restore_random_state,
    resume,
    save_checkpoint,
)
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.run_folder import LAST
from tests.support.threads import run_threads


def test_random_generators_go_on_where_they_were(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, {"random": random_state()})
    expected = (random.random(), np.random.rand(), torch.rand(3))
    restore_random_state(load_checkpoint(tmp_path)["random"])
    assert (random.random(), np.random.rand()) == expected[:2]
    assert torch.equal(torch.rand(3), expected[2])


def test_an_interrupted_save_keeps_the_older_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, {"step": 1})
    with pytest.raises(TypeError):
        save_checkpoint(tmp_path, {"step": (lambda: 2).__code__})
    assert load_checkpoint(tmp_path) == {"step": 1}
    assert [path.name for path in tmp_path.iterdir()] == [STATE_FILE]


def test_half_a_file_is_refused_by_name(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, {"weights": torch.rand(1000)})
    content = (tmp_path / STATE_FILE).read_bytes()
    (tmp_path / STATE_FILE).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=f"{STATE_FILE}: not a complete checkpoint"):
        load_checkpoint(tmp_path)


def test_an_absent_one_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no checkpoint here"):
        load_checkpoint(tmp_path / "nowhere")


def test_a_pickle_that_would_run_code_does_not(tmp_path: Path) -> None:
    marker = tmp_path / "attacked"

    class Harm:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return (Path.touch, (marker,))

    (tmp_path / STATE_FILE).write_bytes(pickle.dumps(Harm()))
    with pytest.raises(ValueError, match="not a complete checkpoint"):
        load_checkpoint(tmp_path)
    assert not marker.exists()


def data_of(experiment: Experiment, group: WorkerGroup, **digests: str) -> TrainingData:
    """What a run that resumes needs of its data, with the digests of what its settings name."""
    return cast(TrainingData, SimpleNamespace(experiment=experiment, group=group, input_digests=digests))


def resumes(rank: int, size: int, folder: Path) -> None:
    """With a run folder on each node's own disk, of which the first worker's alone has the checkpoint."""
    own = folder / str(rank)
    if rank == 0:
        save_checkpoint(own / LAST, {"step": 1})
    with pytest.raises(FileNotFoundError, match=r"not on every worker's node.*state\.pt"):
        resume(cast(TrainState, None), data_of(Experiment(), WorkerGroup(rank, size)), own)


def looks(rank: int, size: int, folder: Path) -> None:
    require_shared(folder / "of all", WorkerGroup(rank, size))
    with pytest.raises(FileNotFoundError, match="not on every worker's node: the run folder must be a URL, or"):
        require_shared(folder / str(rank), WorkerGroup(rank, size))


def test_a_run_folder_that_one_worker_alone_has_is_refused_before_the_training(tmp_path: Path) -> None:
    """It ended after the last epoch, where every worker reads the best retriever."""
    run_threads(looks, 2, tmp_path)
    assert not list(tmp_path.rglob(".*"))


def test_a_checkpoint_that_one_worker_alone_has_is_not_resumed(tmp_path: Path) -> None:
    run_threads(resumes, 2, tmp_path)


def test_a_file_that_was_replaced_since_the_checkpoint_is_refused(tmp_path: Path) -> None:
    experiment = override(Experiment(), {"data.noise.index": "wrong.npy"})
    data = data_of(experiment, WorkerGroup(), **{"data.noise.index": "2"})
    content = {"format": FORMATS["checkpoint"], "experiment": deciding_settings(experiment)}
    for inputs in ({}, {"inputs": {"data.noise.index": "2"}}):
        save_checkpoint(tmp_path / LAST, {**content, **inputs})
        state = Mock()
        resume(state, data, tmp_path)
        assert state.load_state_dict.call_count == 1
    save_checkpoint(tmp_path / LAST, {**content, "inputs": {"data.noise.index": "1"}})
    words = r"data\.noise\.index: got '.*wrong\.npy, which was replaced since'; allowed what .*last was trained with"
    with pytest.raises(ValueError, match=words):
        resume(Mock(), data, tmp_path)


@pytest.mark.parametrize(
    ("precision", "was", "warned"),
    [("auto", "bfloat16", True), ("auto", "float32", False), ("auto", None, False), ("bfloat16", "bfloat16", False)],
)
def test_a_run_that_goes_on_in_another_precision_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, precision: str, was: str | None, warned: bool
) -> None:
    """On a device of another kind."""
    experiment = override(Experiment(), {"train.precision": precision})
    content = {"format": FORMATS["checkpoint"], "experiment": deciding_settings(experiment)}
    save_checkpoint(tmp_path / LAST, content if was is None else {**content, "precision": was})
    resume(Mock(), data_of(experiment, WorkerGroup()), tmp_path)
    assert ("trained in bfloat16; train.precision=auto is float32 on this device" in caplog.text) == warned
