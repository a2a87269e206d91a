"""What differs between trials, so that only those that are equal in everything but the seed are averaged."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ray_atr.experiment import NOT_DECIDING
from ray_atr.run_folder import CHOICES

SEED = "seed"
Settings = Mapping[str, Any]


def varied_paths(trials: Sequence[Settings], labels: Sequence[str], named: Sequence[str]) -> list[str]:
    """Paths by which the trials' settings differ, apart from the seed and the objective's label; together they tell all apart.

    `named` are the paths that sweeps vary, which come first and are kept whenever they differ. Of the others a path is left
    out if those before it tell the same trials apart: the settings of a tower by the tower's name, those of an objective by
    its label.
    """
    paths = [
        path for path in dict.fromkeys((*named, *sorted({path for trial in trials for path in trial}))) if _counts(path)
    ]
    differing = [path for path in paths if len({_key(trial.get(path)) for trial in trials}) > 1]
    chosen: list[str] = []
    for of_objective in (False, True):
        groups: list[tuple[Hashable, ...]] = [(label,) if of_objective else () for label in labels]
        for path in [*chosen, *(path for path in differing if path.startswith("objective.") == of_objective)]:
            keys = [_key(trial.get(path)) for trial in trials]
            finer = [(*group, key) for group, key in zip(groups, keys, strict=True)]
            if path in chosen or path in named or len(set(finer)) > len(set(groups)):
                chosen.append(path)
                groups = finer
    return list(dict.fromkeys(chosen))


def _counts(path: str) -> bool:
    return path not in (SEED, *CHOICES) and not path.startswith(NOT_DECIDING)


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
