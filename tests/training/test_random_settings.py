"""Random settings together: a stopped run ends with the same bits when it is resumed, and two workers with one's weights.

The other tests try each setting by itself, and each pair of the parts of an objective. With RAY_ATR_WHOLE_PRODUCT=1 a hundred
experiments on recordings and as many on vectors are tried here, else one of each.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from ray_atr.training.group import WorkerGroup
from ray_atr.workshop.importing.import_options import VectorImport
from ray_atr.workshop.importing.vector_import import import_vectors
from tests.support.agreement import Trained, apart, computing_in_float64, train
from tests.support.processes import run_processes
from tests.support.random_settings import drops_out, random_experiments, random_experiments_on_vectors, write_uneven
from tests.support.stopped import killed_after
from tests.support.tiny import tiny
from tests.support.vectors import on_vectors, vector_files
from tests.support.whole_product import IS_WHOLE

SEEDS, EACH = (range(20), 5) if IS_WHOLE else ((3,), 1)
APART, ROUNDED = 1e-7, 1e-4
AMPLIFY_ROUNDING = {"consensus", "ance"}
"""A mixture that begins at the median of its scores, where ties are broken by rounding; and a search in float32."""
STOPPED_AT = 3
"""After so many steps a run is stopped: an epoch has two to four."""


class Found(NamedTuple):
    """What a training ended with, and the same training if it was stopped and resumed."""

    trained: Trained
    resumed: Trained | None


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_random_settings_resume_with_the_same_bits_and_agree_on_two_workers(tmp_path: Path, seed: int) -> None:
    write_uneven(tmp_path / "uneven", seed)
    experiments = list(itertools.islice(random_experiments(tmp_path, seed), EACH))
    same = [changes for changes in experiments if not drops_out(changes)]
    one = run_processes(work, 1, tmp_path / "1", tmp_path, experiments)[0]
    for changes, alone in zip(experiments, one, strict=True):
        for found, expected in zip(alone.resumed, alone.trained, strict=True):
            assert torch.equal(found, expected), str(changes)
    two = run_processes(work, 2, tmp_path / "2", tmp_path, same)[0] if same else []
    for changes, together in zip(same, two, strict=True):
        alone = one[experiments.index(changes)]
        limit = ROUNDED if AMPLIFY_ROUNDING & set(map(str, changes.values())) else APART
        assert max(apart(together.trained, alone.trained)) < limit, str(changes)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_random_settings_on_vectors_resume_with_the_same_bits(tmp_path: Path, seed: int) -> None:
    import_vectors(VectorImport(**vector_files(tmp_path / "files")), tmp_path / "vectors")
    for number, changes in enumerate(itertools.islice(random_experiments_on_vectors(tmp_path, seed), EACH)):
        experiment, whole, stopped = on_vectors(tmp_path / "vectors", **changes), f"{number}", f"{number}-stopped"
        trained = train(experiment, tmp_path, tmp_path / whole, WorkerGroup())
        with killed_after(STOPPED_AT):
            train(experiment, tmp_path, tmp_path / stopped, WorkerGroup())
        resumed = train(experiment, tmp_path, tmp_path / stopped, WorkerGroup())
        assert torch.equal(resumed.weights, trained.weights), str(changes)
        assert torch.equal(resumed.losses, trained.losses), str(changes)


def work(rank: int, size: int, own: Path, home: Path, experiments: list[Mapping[str, Any]]) -> list[Found]:
    """One of the workers. A single one trains each experiment twice: the second time it is stopped and resumed."""
    found = []
    with computing_in_float64():
        for number, changes in enumerate(experiments):
            experiment = tiny(home / "uneven", **changes)
            group = WorkerGroup(rank=rank, size=size)
            trained = train(experiment, home, own / f"{number}", group)
            resumed = None
            if size == 1:
                with killed_after(STOPPED_AT):
                    train(experiment, home, own / f"{number}-stopped", group)
                resumed = train(experiment, home, own / f"{number}-stopped", group)
            found.append(Found(trained, resumed))
    return found
