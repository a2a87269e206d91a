"""What a recipe is: another recipe, and what is different."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray_atr.training.experiment import Experiment


@dataclass(frozen=True)
class Recipe:
    """An experiment by its differences from `base`, or from the defaults. Calling it makes the experiment."""

    about: str
    """What it is, in one line."""
    changes: Mapping[str, Any]
    """Value by the path of its setting."""
    base: Recipe | None = None

    def __call__(self) -> Experiment:
        # Names of recipes are read for help, which does not wait for the towers' libraries.
        from ray_atr.common.override import override
        from ray_atr.training.experiment import Experiment

        return override(Experiment() if self.base is None else self.base(), self.changes)


def recipes_in(*modules: ModuleType) -> dict[str, Recipe]:
    """The recipes that modules define, by name; those that others derive from are written in capitals and left out."""
    return {
        name: recipe
        for module in modules
        for name, recipe in vars(module).items()
        if isinstance(recipe, Recipe) and name.islower()
    }
