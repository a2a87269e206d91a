"""Train one experiment.

    uv run python pipelines/train.py --objective m_ltm_pot --objective.pair.transport_mass 0.8 --data.noise.ratio 0.4
    uv run python pipelines/train.py --objective.scheme one_to_k --objective.pair partial_learning_to_match --scaling.workers 2
    uv run python pipelines/train.py --resume runs/train-...

Settings of the experiment are given as --dotted.path VALUE; --help-settings lists them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from ray_atr.cli import parse, run_script
from ray_atr.recipes import RECIPES
from ray_atr.sweep import FixedPoints, Plan
from ray_atr.sweep_script import choose_recipe, run_sweep_script


@dataclass(frozen=True)
class Options:
    """Train one experiment."""

    recipe: Annotated[str, tyro.conf.arg(help="experiment to start from: " + ", ".join(RECIPES))] = "quickstart"
    out: Annotated[str | None, tyro.conf.arg(help="run folder to make, or a URL (default: runs/train-<time>)")] = None
    resume: Annotated[str | None, tyro.conf.arg(help="go on with this run folder, from its last checkpoint")] = None


def main() -> None:
    options, settings = parse(Options, tree=RECIPES["quickstart"]())
    recipe = choose_recipe(options.recipe)
    plan = Plan(FixedPoints([{}]))
    run_sweep_script(
        "train", recipe, settings, lambda *_: plan, out=options.out, resume=options.resume, retry_failed=True
    )


if __name__ == "__main__":
    run_script(main)
