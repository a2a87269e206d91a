"""What the reality check of correspondence compares: a pair loss and a correspondence each, by name."""

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
"""`contrastive` keeps every pair and is the floor, `oracle` leaves the wrong ones out and is the ceiling."""
FLOOR, CEILING = "contrastive", "oracle"
"""Every pair is kept, and the wrong ones are left out: what the methods are read against."""
ON_ANY_DATA = tuple(name for name, fixed in METHODS.items() if fixed[CORRESPONDENCE] != "consensus")
"""The methods that do not need several captions or languages of a clip."""


def method_of(overrides: Mapping[str, Any]) -> str | None:
    """The method of a trial by its overrides; None if it is none of these."""
    fitting = [
        name for name, fixed in METHODS.items() if all(overrides.get(path) == value for path, value in fixed.items())
    ]
    return max(fitting, key=lambda name: len(METHODS[name])) if fitting else None
