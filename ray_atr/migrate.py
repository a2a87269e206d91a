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
FORMAT = 3
"""Written into run folders. A preset's name meant something else in those of format 1, which hold none; a pair loss's in 2."""

PRESETS = {"m_ltm": "m_ltm_factored", "m_ltm_pot": "m_ltm_pot_factored"}
"""Former preset -> the one that is what it was."""
OBJECTIVE, PAIR, METRIC = "objective", "objective.pair", "objective.pair.metric"
PAIRS_OF_PRESETS = {"m_ltm_pot": "partial_learning_to_match", "m_ltm": "learning_to_match"}
"""How a preset's name begins -> the pair loss that was Euclidean when it was chosen by its own name."""


def migrated_trial(content: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """A `trial.json` whose overrides of the run's settings `base` mean what they did when it was written."""
    overrides = migrated(content["overrides"])
    if "format" not in content and OBJECTIVE in overrides:
        overrides[OBJECTIVE] = PRESETS.get(overrides[OBJECTIVE], overrides[OBJECTIVE])
    if content.get("format") in (None, 2):
        begins = str(overrides.get(OBJECTIVE, ""))
        former = next((pair for name, pair in PAIRS_OF_PRESETS.items() if begins.startswith(name)), None)
        former = former if OBJECTIVE in overrides else base.get(PAIR)
        # The same pair loss chosen again keeps its settings.
        if overrides.get(PAIR) in PAIRS_OF_PRESETS.values() and overrides[PAIR] != former:
            overrides.setdefault(METRIC, "euclidean")
    return {**content, "overrides": overrides}


def migrated_run(content: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """A `sweep.json` of a run with the settings `base`, whose space and fixed settings mean what they did when it was written."""
    content, space, fixed = dict(content), content.get("space"), content.get("fixed") or {}
    if isinstance(code := content.get("code"), Mapping) and "git" in code:
        content["code"] = {("git_commit" if name == "git" else name): value for name, value in code.items()}
    if not isinstance(space, Mapping) or not isinstance(fixed, Mapping):
        return content
    if "format" not in content and OBJECTIVE in space:
        choices = space[OBJECTIVE]
        if isinstance(choices, str):
            found: Any = re.sub(r"\w+", lambda word: PRESETS.get(word[0], word[0]), choices)
        else:
            found = [PRESETS.get(one, one) for one in choices]
        content["space"] = {**space, OBJECTIVE: found}
    chosen = set(re.findall(r"\w+", f"{space.get(PAIR)} {fixed.get(PAIR)}"))
    is_euclidean = chosen & set(PAIRS_OF_PRESETS.values()) and base.get(PAIR) not in PAIRS_OF_PRESETS.values()
    if content.get("format") in (None, 2) and is_euclidean and METRIC not in {**space, **fixed}:
        content["fixed"] = {**fixed, METRIC: "euclidean"}
    return content


CAME_LATER: tuple[tuple[tuple[str, ...], str, Any], ...] = (
    (("model.interaction", "model.learn_temperature", "model.initial_temperature"), "model.windows", "cut"),
    (("interaction", "learn_temperature", "initial_temperature"), "windows", "cut"),
)
"""Settings that came later, with what was done before: for settings that were stored whole, which their siblings tell."""


def migrated(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `{dotted path: value}` with former values replaced by today's; everything else is as it was."""
    later = {path: value for siblings, path, value in CAME_LATER if all(name in values for name in siblings)}
    for siblings, path, _ in CAME_LATER:
        # Attention over windows was once not learned: training heard one window.
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
    """A saved retriever's settings (`retriever.json`); a metric alone was once learned besides the towers. Before
    rankings were kept with it, its vectors were unit rows, ranked by cosine: they stay so.
    """
    content = {"ranking": {"ranking": "cosine"}, **content}
    if metric := content.pop("metric", None):
        names = {"metric": "kind", "metric_rank": "rank", "project_every": "project_every"}
        content["learned"] = {name: metric[former] for name, former in names.items()}
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
