"""The recipes of the three papers, one of theirs that other tools load, and the methods that the reality check compares.

A file of recipes has what each is `about`, the `base` that it derives from, and what it `changes`, by the paths of the settings.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from ray_atr.training.recipe import Recipe


def _read(*papers: str) -> dict[str, Recipe]:
    recipes: dict[str, Recipe] = {}
    for paper in papers:
        text = (Path(__file__).parent / f"{paper}.yaml").read_text(encoding="utf-8")
        for name, entry in yaml.safe_load(text).items():
            base = recipes[entry["base"]] if "base" in entry else None
            recipes[name] = Recipe(entry["about"], entry["changes"], base)
    return recipes


RECIPES = _read("atri", "m_ltm", "ask", "clap")
