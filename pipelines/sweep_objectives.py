"""Compare language schemes and pair losses: scheme x pair loss x noise ratio x seed.

    uv run python pipelines/sweep_objectives.py
    uv run python pipelines/sweep_objectives.py --schemes english one_to_k --pairs contrastive partial_learning_to_match

Settings of the experiment are given as --dotted.path VALUE; --help-settings lists them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from ray_atr.cli import parse, run_script
from ray_atr.objectives import PAIRS, SCHEMES
from ray_atr.recipes import RECIPES
from ray_atr.sweep_script import SweepOptions


@dataclass(frozen=True)
class Options(SweepOptions):
    """Compare language schemes and pair losses."""

    schemes: Annotated[tuple[str, ...], tyro.conf.arg(help="of " + ", ".join(SCHEMES))] = (
        "english",
        "random",
        "co_anchor",
        "one_to_k",
    )
    pairs: Annotated[tuple[str, ...], tyro.conf.arg(help="of " + ", ".join(PAIRS))] = (
        "contrastive",
        "learning_to_match",
        "partial_learning_to_match",
    )
    noise: Annotated[tuple[float, ...], tyro.conf.arg(help="noise ratios, each in [0, 1)")] = (0.0,)


def main() -> None:
    options, settings = parse(Options, tree=RECIPES["quickstart"]())
    points = [
        {"objective.scheme": scheme, "objective.pair": pair, "data.noise.ratio": float(ratio), "seed": seed}
        for scheme in options.schemes
        for pair in options.pairs
        for ratio in options.noise
        for seed in options.seeds
    ]
    options.run("sweep_objectives", settings, points)


if __name__ == "__main__":
    run_script(main)
