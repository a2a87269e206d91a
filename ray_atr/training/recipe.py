"""What a recipe is: another recipe, and what is different."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
