"""Experiments by name: each recipe derives from another one and changes what is different.

The names say data, towers and objective. Recipes of papers name published checkpoints (a hub id, or a file to be put under
`checkpoints/`) and prepared data sets under `data/`; every value can be overridden by its path.
"""

from __future__ import annotations

from ray_atr.recipes import ask, atri, clap, m_ltm, small
from ray_atr.recipes.recipe import Recipe

RECIPES: dict[str, Recipe] = {
    name: recipe
    for module in (small, atri, m_ltm, ask, clap)
    for name, recipe in vars(module).items()
    if isinstance(recipe, Recipe) and name.islower()  # what some derive from is written in capitals
}
