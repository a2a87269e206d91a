"""One worker ends twice with the same bits; two and four end with the weights of one, for every part of an objective.

With RAY_ATR_ALL_POINTS=1 every scheme, loss, knowledge and correspondence is trained for 51 steps by 1, 1, 2 and 4 workers; else
a few of them for 6 steps by 1, 1 and 2.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from crash_points import ALL_POINTS
from processes import join, leave, run_processes
from tiny import make_data, prepared_for, tiny

from ray_atr.knowledge.memory import in_process_refresher
from ray_atr.knowledge.refresher import InProcessRefresher
from ray_atr.objectives import KNOWLEDGE, PAIRS
from ray_atr.objectives.correspondence import CORRESPONDENCES
from ray_atr.objectives.knowledge.base import KnowledgeBaseObjective
from ray_atr.objectives.schemes import SCHEMES
from ray_atr.training.checkpoint import load_checkpoint
from ray_atr.training.group import WorkerGroup
from ray_atr.training.loop import train

AXES: dict[str, Any] = {
    "objective.scheme": SCHEMES, "objective.pair": PAIRS, "objective.knowledge": KNOWLEDGE,
    "objective.correspondence": CORRESPONDENCES,
}  # fmt: skip
ALL = [(path, name) for path, names in AXES.items() for name in names]
A_FEW = [
    ("objective.scheme", "kcl"), ("objective.pair", "learning_to_match"), ("objective.knowledge", "ask"),
    ("objective.correspondence", "small_loss"),
]  # fmt: skip
POINTS, EPOCHS, SIZES = (ALL, 17, (1, 2, 4)) if ALL_POINTS else (A_FEW, 2, (1, 2))


def trained(home: Path, folder: Path, path: str, name: str, group: WorkerGroup) -> torch.Tensor:
    """All weights, as one vector, after three steps an epoch."""
    changes: dict[str, Any] = {path.replace(".", "__"): name}
    if path == "objective.knowledge" and name not in ("none", "moco", "nnclr"):
        changes["objective__knowledge__prototypes"] = 4
    experiment = tiny(
        home / "tones", train__epochs=EPOCHS,
        data__noise__ratio=0.2, **changes,
    )  # fmt: skip
    train(
        experiment, prepared_for(experiment, home), folder, lambda row: None, group, use_ray_data=False, make_host=host
    )
    weights = load_checkpoint(folder / "last")["model"]
    return torch.cat([value.flatten().double() for _, value in sorted(weights.items()) if value.is_floating_point()])


def host(knowledge: KnowledgeBaseObjective, encode: Any, folder: Path, group: WorkerGroup) -> InProcessRefresher:
    """The first worker builds the versions of a base; the others find them in the same folder."""
    return in_process_refresher(knowledge, encode, folder)


def digest(weights: torch.Tensor) -> str:
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.timeout(3600 if ALL_POINTS else 300)
def test_workers_agree(tmp_path: Path) -> None:
    make_data(tmp_path / "tones")
    prepared_for(tiny(tmp_path / "tones"), tmp_path)
    runs = {size: run_processes(__file__, size, tmp_path / f"of-{size}", str(tmp_path)) for size in SIZES}
    again = run_processes(__file__, 1, tmp_path / "again", str(tmp_path))
    largest: dict[tuple[str, str], float] = {}
    for point in POINTS:
        one = runs[1][0][point]
        assert digest(one) == digest(again[0][point]), f"{point}: one worker ended with other bits the second time"
        for size in SIZES[1:]:
            difference = float((runs[size][0][point] - one).norm() / one.norm())
            largest[point] = max(largest.get(point, 0.0), difference)
    print(*(f"{path} {name}: {value:.1e}" for (path, name), value in sorted(largest.items())), sep="\n")
    assert max(largest.values()) < 1e-5, {point: value for point, value in largest.items() if value >= 1e-5}


if __name__ == "__main__":
    rank, size, folder, home = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    join(rank, size, folder)
    found = {
        (path, name): trained(home, folder / f"{path}-{name}", path, name, WorkerGroup(rank=rank, size=size))
        for path, name in POINTS
    }
    leave(rank, size, folder, found)
