"""Experiments by name: each recipe derives from another one and changes what is different.

The names say data, towers and objective. Recipes of papers name published checkpoints (a hub id, or a file to be put under
`checkpoints/`) and prepared data sets under `data/`; every value can be overridden by its path.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray_atr.experiment import Experiment


@dataclass(frozen=True)
class Recipe:
    """A function of this package that returns an experiment; its module is imported when it is first needed."""

    module: str
    name: str

    def __call__(self) -> Experiment:
        return self.function()

    @property
    def function(self) -> Callable[[], Experiment]:
        found: Callable[[], Experiment] = getattr(importlib.import_module(f"{__name__}.{self.module}"), self.name)
        return found


NAMES: dict[str, tuple[str, ...]] = {
    "small": ("quickstart", "from_scratch", "vectors"),
    "atri": (
        "audiocaps_ced_sonar_ml_clap",
        "audiocaps_ced_sonar_cacl",
        "audiocaps_ced_sonar_kcl",
        "clotho_ced_sonar_ml_clap",
        "clotho_ced_sonar_cacl",
        "clotho_ced_sonar_kcl",
        "audiocaps_ced_labse_ml_clap",
        "audiocaps_ced_labse_cacl",
        "audiocaps_ced_labse_kcl",
    ),
    "m_ltm": (
        "audiocaps_resnet38_bert_triplet",
        "audiocaps_resnet38_bert_contrastive",
        "audiocaps_resnet38_bert_m_ltm",
        "audiocaps_resnet38_bert_m_ltm_pot",
        "clotho_resnet38_bert_triplet",
        "clotho_resnet38_bert_contrastive",
        "clotho_resnet38_bert_m_ltm",
        "audiocaps_htsat_bert_triplet",
        "audiocaps_htsat_bert_contrastive",
        "audiocaps_htsat_bert_m_ltm",
    ),
    "ask": (
        "audiocaps_resnet38_bert_ask",
        "clotho_resnet38_bert_ask",
        "audiocaps_ced_sonar_ask",
        "clotho_ced_sonar_ask",
    ),
}
"""Module -> its recipes."""

RECIPES: dict[str, Recipe] = {name: Recipe(module, name) for module, names in NAMES.items() for name in names}
