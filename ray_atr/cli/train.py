"""`ray-atr train`: one experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ray_atr.cli.experiment_options import ExperimentOptions
from ray_atr.cli.parse import heartbeat, parse_with_settings
from ray_atr.cli.sweep import COMMAND_OF


@dataclass(frozen=True)
class TrainOptions(ExperimentOptions):
    """Train one experiment."""


OPTIONS = TrainOptions


def run(arguments: Sequence[str], program: str) -> None:
    options, settings = parse_with_settings(TrainOptions, arguments, program, COMMAND_OF)
    options.require_data(settings)
    with heartbeat("starting", write=options.write) as echo:
        from ray_atr.cli.running import run_plan
        from ray_atr.sweep import FixedPoints, SweepPlan

        plan = SweepPlan(FixedPoints([{}]))
        run_plan("train", options, settings, lambda *_: plan, {}, echo=echo)
