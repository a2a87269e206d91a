"""Ray Tune's schedulers over a run folder's trials: who is stopped early, and who continues from another's weights.
They rank trials against their rivals alone: those that differ in nothing but what is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial, partialmethod
from types import SimpleNamespace
from typing import Any

from ray_atr.experiment import Experiment
from ray_atr.override import describe
from ray_atr.run_folder import RunFolder, TrialFolder
from ray_atr.settings import refuse, require_known
from ray_atr.space import Dimension, Grid, LogUniform, Space, point_key
from ray_atr.storage import Location, is_local
from ray_atr.sweep.inheritance import perturbed_settings
from ray_atr.sweep.search import SweepPlan

SCHEDULERS = ("none", "asha", "hyperband", "pbt")
PAUSING = ("hyperband", "pbt")  # schedulers that hold trials part-way and let others continue
REDUCTION_FACTOR = 3  # ASHA and HyperBand let about one trial in this many continue from each rung
PERTURBATIONS = 5  # times that population-based training compares its trials in the course of their epochs
DATA = "data."
"""Beginning of the settings that make the task harder or easier: their trials are never ranked against each other."""


def check_scheduler(plan: SweepPlan, experiment: Experiment, run_path: Location) -> None:
    """ValueError for a scheduler that this plan cannot have, before anything is started."""
    require_known("--scheduler", plan.scheduler, SCHEDULERS)
    if plan.scheduler == "none":
        return
    if len(plan.goals) != 1:
        raise refuse("--scheduler", plan.scheduler, "none with several goals: trials are stopped by one metric")
    beside = f"with --scheduler {plan.scheduler}"
    every, scaling = experiment.evaluation.every_epochs, experiment.scaling
    if every != 1:
        raise refuse("evaluation.every_epochs", every, f"1 {beside}")
    if plan.scheduler not in PAUSING:
        return
    if scaling.has_workers:
        alone = "trials that pause train in their own process (asha takes any number)"
        raise refuse("scaling.workers", scaling.workers, f"0 {beside}: {alone}")
    if plan.search.is_adaptive:
        raise refuse("--search", plan.search.name, f"grid or random {beside}: its trials start together")
    if not is_local(run_path):
        raise refuse("--out", str(run_path), f"a file system {beside}: weights are copied")


def check_perturbed(space: Space) -> None:
    """ValueError for a space with a setting that population-based training cannot change in a running trial."""
    # No part of a trial's weights, data or schedule.
    settings = (entry for tree in space.trees for entry in describe(tree))
    changeable = list(dict.fromkeys(entry.path for entry in settings if entry.is_changeable))
    for path, dimension in space.dimensions.items():
        if path not in changeable:
            allowed = f"--scheduler pbt only for what can change in a running trial: {', '.join(changeable)}"
            raise refuse(path, str(dimension), allowed)
        if path == "train.weight_decay" and not min(dimension.test_values) > 0:
            raise refuse(path, str(dimension), "values above 0 with --scheduler pbt, which changes it by a factor")


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


def ranked_apart(make: Callable[[], Any], run: RunFolder, space: Space | None) -> Any:
    """Tune's scheduler that ranks each group of rivals by a scheduler of its own, which `make` makes."""
    from ray.tune.schedulers import TrialScheduler

    class RankedApart(TrialScheduler):
        """Passes each of Tune's events on to the scheduler of the trial's group."""

        # HyperBand allows none, the others do not need them.
        _supports_buffered_results = False

        def __init__(self) -> None:
            super().__init__()
            self.by_group: dict[str, Any] = {}
            self._group_of: dict[str, str] = {}

        def scheduler_of(self, trial: Any) -> Any:
            group = self._group(trial)
            if group not in self.by_group:
                self.by_group[group] = make()
            return self.by_group[group]

        def _group(self, trial: Any) -> str:
            trial_id = trial.config["trial_id"]
            if trial_id not in self._group_of:
                self._group_of[trial_id] = rivals_key(run.trial(trial_id).describe()["overrides"], space)
            return self._group_of[trial_id]

        def _pass_on(self, event: str, tune_controller: Any, trial: Any, *result: Any) -> Any:
            return getattr(self.scheduler_of(trial), event)(tune_controller, trial, *result)

        on_trial_add = partialmethod(_pass_on, "on_trial_add")
        on_trial_error = partialmethod(_pass_on, "on_trial_error")
        on_trial_result = partialmethod(_pass_on, "on_trial_result")
        on_trial_complete = partialmethod(_pass_on, "on_trial_complete")
        on_trial_remove = partialmethod(_pass_on, "on_trial_remove")

        def choose_trial_to_run(self, tune_controller: Any) -> Any:
            for group, scheduler in self.by_group.items():
                of_group = _OfGroup(tune_controller, lambda trial, group=group: self._group(trial) == group)  # type: ignore[misc]
                if (trial := scheduler.choose_trial_to_run(of_group)) is not None:
                    return trial
            return None

        def debug_string(self) -> str:
            return "; ".join(scheduler.debug_string() for scheduler in self.by_group.values())

    return RankedApart()


class _OfGroup:
    """Tune's controller with the trials of one group: population-based training looks for what it knows of each trial."""

    def __init__(self, controller: Any, is_member: Callable[[Any], bool]) -> None:
        self._controller, self._is_member = controller, is_member

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)

    def get_trials(self) -> list[Any]:
        return [trial for trial in self._controller.get_trials() if self._is_member(trial)]


def make_scheduler(plan: SweepPlan, epochs: int, run: RunFolder, recorded: Sequence[TrialFolder]) -> Any:
    """Tune's scheduler of the plan, told what the recorded trials have reported already; None for none. It ranks trials
    only among those of the same seed, data and grid values (`rivals_key`).
    """
    if plan.scheduler == "none":
        return None
    if plan.scheduler == "pbt" and plan.space is None:
        raise refuse("--scheduler", plan.scheduler, "only with --space, whose settings it changes")
    scheduler = ranked_apart(partial(_one_scheduler, plan, epochs, run), run, plan.space)
    for trial in recorded if plan.scheduler == "asha" else ():
        # The rungs of successive halving are filled with what earlier sessions of the sweep reported.
        stand_in = SimpleNamespace(trial_id=trial.trial_id, config={"trial_id": trial.trial_id})
        if rows := [row for row in trial.epochs() if plan.goals[0].metric in row]:
            scheduler.on_trial_add(None, stand_in)
            for row in rows:
                scheduler.on_trial_result(None, stand_in, row)
    return scheduler


def _one_scheduler(plan: SweepPlan, epochs: int, run: RunFolder) -> Any:
    """The plan's scheduler of trials that are all ranked against each other."""
    goal = plan.goals[0]
    common = {"time_attr": "epoch", "metric": goal.metric, "mode": "max" if goal.is_maximised else "min"}
    if plan.scheduler == "pbt":
        assert plan.space is not None, "checked when the scheduler was made"
        return _population(common, epochs, plan.space, run)
    from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler

    kind, own = (ASHAScheduler, {"grace_period": 1}) if plan.scheduler == "asha" else (HyperBandScheduler, {})
    return _keep_last_epoch(kind, epochs)(**common, max_t=epochs + 1, reduction_factor=REDUCTION_FACTOR, **own)


def _population(common: dict[str, Any], epochs: int, space: Space, run: RunFolder) -> Any:
    from ray.tune.schedulers import PopulationBasedTraining

    # A grid's values are kept apart, not changed from one to the other.
    changed = {path: space.dimensions[path] for path in compared(space)}

    class Population(_keep_last_epoch(PopulationBasedTraining, epochs)):  # type: ignore[misc]
        def on_trial_add(self, controller: Any, trial: Any) -> None:
            folder = run.trial(trial.config["trial_id"])
            now = {**folder.describe()["overrides"], **perturbed_settings(folder)}
            trial.set_config({**trial.config, **{path: now[path] for path in changed}})
            super().on_trial_add(controller, trial)

        def _get_new_config(self, trial: Any, trial_to_clone: Any) -> Any:
            config, operations = super()._get_new_config(trial, trial_to_clone)
            # The settings and weights of the other, but the trial's own folder.
            return {**config, "trial_id": trial.config["trial_id"]}, operations

    def explore(config: dict[str, Any]) -> dict[str, Any]:
        # Tune multiplies by 1.2 or 0.8 whatever the range: back into it.
        ranges = {path: one for path, one in changed.items() if path in config and not isinstance(one, Grid)}
        return {**config, **{path: one.fit(config[path]) for path, one in ranges.items()}}

    return Population(
        **common,
        perturbation_interval=max(1, math.ceil(epochs / PERTURBATIONS)),
        hyperparam_mutations={path: _mutation(one) for path, one in changed.items()},
        custom_explore_fn=explore,
        require_attrs=False,
        log_config=False,
    )


def _keep_last_epoch(scheduler: type, epochs: int) -> Any:
    """The scheduler, which neither stops a trial after its last epoch nor ranks its final result."""

    class KeepingLastEpoch(scheduler):
        def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> Any:
            if result.get("is_final") or result.get("epoch", 0) >= epochs:
                return self.CONTINUE
            return super().on_trial_result(controller, trial, result)

    return KeepingLastEpoch


def _mutation(dimension: Dimension) -> Any:
    from ray import tune

    if isinstance(dimension, Grid):
        return list(dimension.values)
    if isinstance(dimension, LogUniform):
        return tune.loguniform(dimension.low, dimension.high)
    return tune.uniform(dimension.low, dimension.high)
