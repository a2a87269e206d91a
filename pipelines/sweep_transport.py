"""Compare partial transport's settings: transport mass x epsilon x noise ratio x seed (m-LTM with partial transport).

    uv run python pipelines/sweep_transport.py
    uv run python pipelines/sweep_transport.py --masses 0.5 0.7 0.9 1.0 --epsilons 0.05 --noise 0.4 --seeds 0 1
    uv run python pipelines/sweep_transport.py --masses 1.0 --epsilons 0.01 0.03 0.05 0.1 0.5 --noise 0.0

The first is the table of masses under noise, `auto` among them; the last the curve over epsilon alone.

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
    """Compare partial transport's settings."""

    masses: Annotated[tuple[str, ...], tyro.conf.arg(help="transport masses, each in (0, 1], or auto")] = (
        "0.6",
        "0.8",
        "0.95",
        "1.0",
        "auto",
    )
    epsilons: Annotated[tuple[float, ...], tyro.conf.arg(help="entropic regularisations, each > 0")] = (0.05,)
    noise: Annotated[tuple[float, ...], tyro.conf.arg(help="noise ratios, each in [0, 1)")] = (0.2, 0.4, 0.6)


def main() -> None:
    options, settings = parse(Options, tree=RECIPES["quickstart"]())
    points = [
        {
            "objective": "m_ltm_pot",
            "objective.pair.transport_mass": mass,
            "objective.pair.epsilon": epsilon,
            "data.noise.ratio": float(ratio),
            "seed": seed,
        }
        for mass in (float(mass) if mass != "auto" else mass for mass in options.masses)
        for epsilon in options.epsilons
        for ratio in options.noise
        for seed in options.seeds
    ]
    options.run("sweep_transport", settings, points)


if __name__ == "__main__":
    run_script(main)
