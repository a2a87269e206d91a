"""Ray Tune's ASHA over a run folder's trials: who is stopped early.

Trials are ranked against their rivals alone: those that differ in nothing but what is compared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from ray_atr.common.settings import refuse, require_known
from ray_atr.common.space import Grid, Space, point_key
from ray_atr.sweep.search import SweepPlan
from ray_atr.training.experiment import Experiment
from ray_atr.training.run_folder import RunFolder, TrialFolder

SCHEDULERS = ("none", "asha")
REDUCTION_FACTOR = 3  # about one trial in this many continues from each rung
DATA = "data."
"""Beginning of the settings that make the task harder or easier: their trials are never ranked against each other."""


def check_scheduler(plan: SweepPlan, experiment: Experiment) -> None:
    """ValueError for a scheduler that this plan cannot have, before anything is started."""
    require_known("--scheduler", plan.scheduler, SCHEDULERS)
    if plan.scheduler == "none":
        return
    if len(plan.goals) != 1:
        raise refuse("--scheduler", plan.scheduler, "none with several goals: trials are stopped by one metric")
    if experiment.evaluation.every_epochs != 1:
        every = experiment.evaluation.every_epochs
        raise refuse("evaluation.every_epochs", every, f"1 with --scheduler {plan.scheduler}")


def compared(space: Space) -> list[str]:
    """The paths whose values a scheduler compares: what is chosen or drawn; in a space of grids alone, what is listed."""
    paths = [path for path in space.dimensions if not path.startswith(DATA)]
    return [path for path in paths if type(space.dimensions[path]) is not Grid] or paths


def rivals_key(overrides: Mapping[str, Any], space: Space | None) -> str:
    """The same text for trials that are ranked against each other: one seed, one data, one value of each grid."""
    apart: Collection[str] = set() if space is None else space.dimensions.keys() - compared(space)
    return point_key(
        {path: value for path, value in overrides.items() if path == "seed" or path.startswith(DATA) or path in apart}
    )


def make_scheduler(plan: SweepPlan, epochs: int, run: RunFolder, recorded: Sequence[TrialFolder]) -> Any:
    """Tune's scheduler of the plan, told what the recorded trials have reported already; None for none. It ranks trials
    only among those of the same seed, data and grid values (`rivals_key`). It stops no trial after its last epoch.
    """
    if plan.scheduler == "none":
        return None
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

    goal = plan.goals[0]

    class RankedAmongRivals(FIFOScheduler):
        """Starts trials in their order, and asks the ASHA of a trial's rivals whether it continues."""

        def __init__(self) -> None:
            super().__init__()
            self.of_rivals: dict[str, Any] = {}

        def ranking(self, trial: Any) -> Any:
            key = rivals_key(run.trial(trial.config["trial_id"]).describe()["overrides"], plan.space)
            if key not in self.of_rivals:
                self.of_rivals[key] = ASHAScheduler(
                    time_attr="epoch",
                    metric=goal.metric,
                    mode="max" if goal.is_maximised else "min",
                    max_t=epochs + 1,
                    reduction_factor=REDUCTION_FACTOR,
                    grace_period=1,
                )
            return self.of_rivals[key]

        def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
            self.ranking(trial).on_trial_add(tune_controller, trial)

        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            if result.get("is_final") or result.get("epoch", 0) >= epochs:
                return str(self.CONTINUE)
            return str(self.ranking(trial).on_trial_result(tune_controller, trial, result))

    scheduler = RankedAmongRivals()
    for recorded_trial in recorded:
        # The rungs of successive halving are filled with what earlier sessions of the sweep reported.
        trial_id = recorded_trial.trial_id
        stand_in = SimpleNamespace(trial_id=trial_id, config={"trial_id": trial_id})
        if rows := [row for row in recorded_trial.epochs() if goal.metric in row]:
            scheduler.on_trial_add(None, stand_in)
            for row in rows:
                scheduler.on_trial_result(None, stand_in, row)
    return scheduler
