"""The name of an objective: that of its preset, or the names of its parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ray_atr.common.override import flatten
from ray_atr.objectives import PAIRS, PRESETS


def joint_name(choices: Iterable[str]) -> str:
    """The names of a scheme, a pair loss and a knowledge as one: `kcl+pot`."""
    return "+".join((choice in PAIRS and PAIRS[choice].short_name) or choice for choice in choices)


def objective_label(settings: Mapping[str, Any], overrides: Mapping[str, Any] = MappingProxyType({})) -> str:
    """The name of a trial's objective, from its settings and its overrides: the nearest preset with the same parts, or else the
    names of its parts: `kcl+pot`.
    """
    parts = {part: settings.get(f"objective.{part}") for part in ("scheme", "pair", "knowledge")}
    chosen = str(overrides.get("objective"))
    same = {
        name: flatten(preset)
        for name, preset in PRESETS.items()
        if all(getattr(preset, part).name == choice for part, choice in parts.items())
    }
    if not same:
        pair, metric = str(parts["pair"]), settings.get("objective.pair.metric")
        if metric not in (None, getattr(PAIRS.get(pair), "metric", None)):
            # Like the presets `m_ltm` and `m_ltm_euclidean`.
            parts["pair"] = f"{joint_name([pair])}_{metric}"
        return joint_name(str(choice) for choice in parts.values() if choice not in (None, "none")) or chosen

    def distance(name: str) -> tuple[int, bool]:
        """Number of settings that differ from the preset's; of equal ones, the preset that was named comes first."""
        differing = [path for path, value in same[name].items() if settings.get(f"objective.{path}", value) != value]
        return len(differing), name != chosen

    return min(same, key=distance)
