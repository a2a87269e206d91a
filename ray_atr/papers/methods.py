"""The methods that the reality check compares, by name: a pair loss and a correspondence each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PAIR, CORRESPONDENCE = "objective.pair", "objective.correspondence"


def method(pair: str, correspondence: str = "none", **settings: Any) -> dict[str, Any]:
    """A method's overrides; `settings` are the pair loss's."""
    return {PAIR: pair, CORRESPONDENCE: correspondence, **{f"{PAIR}.{name}": value for name, value in settings.items()}}


OVER_CONTRASTIVE = (
    "oracle",
    "small_loss",
    "leave_one_out",
    "self_refining",
    "consensus",
    "neighbours",
    "transport",
    "rematch",
)
METHODS: dict[str, dict[str, Any]] = {
    "contrastive": method("contrastive"),
    **{name: method("contrastive", name) for name in OVER_CONTRASTIVE},
    "complementary": method("complementary"),
    "complementary+self_refining": method("complementary", "self_refining"),
    "m_ltm_euclidean": method("learning_to_match", metric="euclidean"),
    "m_ltm_euclidean+small_loss": method("learning_to_match", "small_loss", metric="euclidean"),
    "m_ltm_pot_followed": method(
        "partial_learning_to_match", metric="euclidean", target="followed", transport_mass="auto"
    ),
}
"""Name -> overrides. `contrastive` keeps every pair and is the floor, `oracle` leaves wrong pairs out and is the ceiling."""
FLOOR, CEILING = "contrastive", "oracle"
"""The methods with which the others are compared."""
ON_ANY_DATA = tuple(name for name, fixed in METHODS.items() if fixed[CORRESPONDENCE] != "consensus")
"""The methods that do not need several captions or languages of a clip."""


def method_of(overrides: Mapping[str, Any]) -> str | None:
    """The method of a trial by its overrides; None if it is none of these."""
    fitting = [
        name for name, fixed in METHODS.items() if all(overrides.get(path) == value for path, value in fixed.items())
    ]
    return max(fitting, key=lambda name: len(METHODS[name]), default=None)
