"""Experiments by name: each recipe derives from another one and changes what is different.

The names say data, towers and objective. The small ones take seconds without a GPU. Recipes of papers name published
checkpoints (a hub id, or a file to be put under `checkpoints/`) and prepared data sets under `data/`. Every value can be
overridden by its path.

A YAML file of recipes gives each one's description (`about`), the recipe that it derives from (`base`), and its `changes`, by
the paths of the settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from ray_atr.training.experiment import Experiment

FOLDER = Path(__file__).with_name("recipes")


@dataclass(frozen=True)
class Recipe:
    """An experiment by its differences from `base`, or from the defaults. Calling it makes the experiment."""

    about: str
    """What it is, in one line."""
    changes: Mapping[str, Any]
    """Value by the path of its setting."""
    base: Recipe | None = None

    @property
    def values(self) -> Mapping[str, Any]:
        """What differs from the defaults: its own changes and those of what it derives from."""
        return {**({} if self.base is None else self.base.values), **self.changes}

    def __call__(self) -> Experiment:
        # Imported here because `--help` only needs the names, and not the towers' libraries.
        from ray_atr.common.override import override
        from ray_atr.training.experiment import Experiment

        return override(Experiment() if self.base is None else self.base(), self.changes)


def _read(*files: str) -> dict[str, Recipe]:
    entries: dict[str, Any] = {}
    for file in files:
        entries |= yaml.safe_load((FOLDER / f"{file}.yaml").read_text(encoding="utf-8"))

    def recipe(name: str) -> Recipe:
        entry = entries[name]
        return Recipe(entry["about"], entry["changes"], recipe(entry["base"]) if "base" in entry else None)

    return {name: recipe(name) for name in entries}


# Small ones, those of the three papers, and CLAP's, which other tools load.
RECIPES = _read("small", "atri", "m_ltm", "ask", "clap")
