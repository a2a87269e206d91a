"""The recipes of the three papers, one of theirs that other tools load, and the methods that the reality check compares."""

from __future__ import annotations

from ray_atr.papers.recipes import ask, atri, clap, m_ltm
from ray_atr.training.recipes.recipe import Recipe, recipes_in

RECIPES: dict[str, Recipe] = recipes_in(atri, m_ltm, ask, clap)
