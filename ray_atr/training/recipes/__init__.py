"""Experiments by name: each recipe derives from another one and changes what is different.

The names say data, towers and objective. Recipes of papers name published checkpoints (a hub id, or a file to be put under
`checkpoints/`) and prepared data sets under `data/`; every value can be overridden by its path.
"""

from __future__ import annotations

from ray_atr.common.settings import wing
from ray_atr.training.recipe import Recipe, recipes_in
from ray_atr.training.recipes import small

RECIPES: dict[str, Recipe] = {**recipes_in(small), **wing("papers.recipes").RECIPES}
