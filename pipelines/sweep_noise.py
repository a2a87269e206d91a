"""Compare training objectives under noisy correspondence: objective x noise ratio x seed.

    uv run python pipelines/sweep_noise.py
    uv run python pipelines/sweep_noise.py --resume runs/sweep_noise-...
    uv run python pipelines/sweep_noise.py --data.source DIR --seeds 0 1 --train.epochs 20

Settings of the experiment are given as --dotted.path VALUE; --help-settings lists them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ray_atr.cli import parse, run_script
from ray_atr.recipes import RECIPES
from ray_atr.sweep_script import choose_recipe, run_sweep_script


@dataclass(frozen=True)
class Options:
    """Compare training objectives under noisy correspondence."""

    recipe: Annotated[str, tyro.conf.arg(help="experiment to start from: " + ", ".join(RECIPES))] = "quickstart"
    objectives: Annotated[tuple[str, ...], tyro.conf.arg(help="objectives to compare, by preset name")] = (
        "triplet",
        "contrastive",
        "m_ltm",
        "m_ltm_pot",
    )
    noise: Annotated[tuple[float, ...], tyro.conf.arg(help="noise ratios, each in [0, 1)")] = (0.0, 0.2, 0.4, 0.6)
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(help="seeds, averaged in the report")] = (0,)
    concurrency: Annotated[int | None, tyro.conf.arg(help="trials at a time (default: as many as fit)")] = None
    out: Annotated[Path | None, tyro.conf.arg(help="run folder to make (default: runs/sweep_noise-<time>)")] = None
    resume: Annotated[Path | None, tyro.conf.arg(help="go on with this run folder; finished trials are kept")] = None
    retry_failed: Annotated[bool, tyro.conf.arg(help="with --resume: run failed trials again")] = False


def main() -> None:
    options, settings = parse(Options, tree=RECIPES["quickstart"]())
    points = [
        {"objective": objective, "data.noise.ratio": float(ratio), "seed": seed}
        for objective in options.objectives
        for ratio in options.noise
        for seed in options.seeds
    ]
    run_sweep_script(
        "sweep_noise",
        choose_recipe(options.recipe),
        settings,
        points,
        out=options.out,
        resume=options.resume,
        concurrency=options.concurrency,
        retry_failed=options.retry_failed,
    )


if __name__ == "__main__":
    run_script(main)
