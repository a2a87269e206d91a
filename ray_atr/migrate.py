"""What earlier versions wrote, in today's words: run folders, retrievers, checkpoints and command lines are still read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

VALUES: dict[str, dict[str, str]] = {
    "objective.scheme": {"random": "ml_clap", "co_anchor": "cacl", "one_to_k": "kcl"},
    "model.interaction": {"local": "late"},
    "interaction": {"local": "late"},  # a saved retriever's settings have no prefix
}
"""Former values of a setting -> today's, by its path."""


FORMAT = 2
"""Written into run folders. Those without it are of a time when a preset's name meant something else."""

PRESETS = {"m_ltm": "m_ltm_factored", "m_ltm_pot": "m_ltm_pot_factored"}
"""Former preset -> the one that is what it was."""


def migrated_trial(content: Mapping[str, Any]) -> dict[str, Any]:
    """A `trial.json` whose overrides mean what they did when it was written."""
    overrides = dict(content["overrides"])
    if "format" not in content and "objective" in overrides:
        overrides["objective"] = PRESETS.get(overrides["objective"], overrides["objective"])
    return {**content, "overrides": migrated(overrides)}


def migrated_run(content: Mapping[str, Any]) -> dict[str, Any]:
    """A `sweep.json` whose space means what it did when it was written."""
    space = content.get("space")
    if "format" in content or not isinstance(space, Mapping) or "objective" not in space:
        return dict(content)
    choices = space["objective"]
    if isinstance(choices, str):
        found: Any = re.sub(r"\w+", lambda word: PRESETS.get(word[0], word[0]), choices)
    else:
        found = [PRESETS.get(one, one) for one in choices]
    return {**content, "space": {**space, "objective": found}}


CAME_LATER: tuple[tuple[tuple[str, ...], str, Any], ...] = (
    (("model.interaction", "model.learn_temperature", "model.initial_temperature"), "model.windows", "cut"),
    (("interaction", "learn_temperature", "initial_temperature"), "windows", "cut"),
)
"""Settings that came later, with what was done before: for settings that were stored whole, which their siblings tell."""


def migrated(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `{dotted path: value}` with former values replaced by today's; everything else is as it was."""
    later = {path: value for siblings, path, value in CAME_LATER if all(name in values for name in siblings)}
    for siblings, path, _ in CAME_LATER:
        # Attention over windows was once not learnt: training heard one window.
        if values.get(path) == "attention" and all(name in values for name in siblings):
            later[f"{path}_in_training"] = 1
    return later | {
        path: VALUES[path].get(value, value) if path in VALUES and isinstance(value, str) else value
        for path, value in values.items()
    }


def migrated_experiment(values: Mapping[str, Any]) -> dict[str, Any]:
    """A stored experiment, whole: settings that it does not have yet get the value under which it trains as it did then."""
    values = migrated(values)
    if "evaluation.select_by" in values:
        # Before there was a choice, all ranked by cosine.
        values.setdefault("evaluation.ranking", "cosine")
    if values.get("objective.pair") == "sigmoid":
        values.setdefault("objective.pair.learn_scale", False)
    return values


def migrated_retriever(content: Mapping[str, Any]) -> dict[str, Any]:
    """A saved retriever's settings (`retriever.json`); a metric alone was once learned besides the towers.

    Before rankings were kept with it, its vectors were unit rows, ranked by cosine: they stay so.
    """
    content = {"ranking": {"ranking": "cosine"}, **content}
    if "metric" in content:
        metric = content.pop("metric")
        content["learned"] = {
            "metric": metric["kind"],
            "metric_rank": metric["rank"],
            "project_every": metric["project_every"],
        }
    return content


def migrated_weights(weights: Mapping[str, Any]) -> dict[str, Any]:
    """A retriever's weights by name; what is learned besides the towers was once not in a part of its own, `learned`."""
    moved = {name: f"learned.{name}" for name in ("log_temperature", "metric", "num_steps")}
    return {moved.get(name, name): value for name, value in weights.items()}


def migrated_checkpoint(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a training run (`last/state.pt`)."""
    if "model" not in state:
        return dict(state)
    state = dict(state)
    memory = dict(state.pop("recall", {}) or state.get("memory", {}))
    if "momentum" in memory:
        memory["momentum"] = migrated_weights(memory["momentum"])
    return {**state, "model": migrated_weights(state["model"]), "memory": memory}
