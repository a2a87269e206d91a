"""Compare training objectives under noisy correspondence: objective x noise ratio x seed.

    uv run python pipelines/sweep_noise.py
    uv run python pipelines/sweep_noise.py --resume runs/sweep_noise-...
    uv run python pipelines/sweep_noise.py --data.source DIR --seeds 0 1 --train.epochs 20

Settings of the experiment are given as --dotted.path VALUE; --help-settings lists them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from ray_atr.cli import parse, run_script
from ray_atr.recipes import RECIPES
from ray_atr.sweep_script import SweepOptions


@dataclass(frozen=True)
class Options(SweepOptions):
    """Compare training objectives under noisy correspondence."""

    objectives: Annotated[tuple[str, ...], tyro.conf.arg(help="objectives to compare, by preset name")] = (
        "triplet",
        "contrastive",
        "m_ltm",
        "m_ltm_pot",
    )
    noise: Annotated[tuple[float, ...], tyro.conf.arg(help="noise ratios, each in [0, 1)")] = (0.0, 0.2, 0.4, 0.6)


def main() -> None:
    options, settings = parse(Options, tree=RECIPES["quickstart"]())
    points = [
        {"objective": objective, "data.noise.ratio": float(ratio), "seed": seed}
        for objective in options.objectives
        for ratio in options.noise
        for seed in options.seeds
    ]
    options.run("sweep_noise", settings, points)


if __name__ == "__main__":
    run_script(main)
