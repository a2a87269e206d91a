"""Early stopping of trials: Ray Tune's ASHA over a run folder's trials, or a race (racing.py).

Trials are ranked against their rivals alone: those that differ in nothing but what is compared.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Container, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from ray_atr.common.settings import refuse, require_known
from ray_atr.metrics.metric import Metric
from ray_atr.metrics.unit_scores import is_mean_over_queries
from ray_atr.sweep.search import FixedPoints, Goal, SweepPlan
from ray_atr.sweep.space import Grid, Space, point_key
from ray_atr.training.experiment import Experiment
from ray_atr.training.run_folder import RunFolder, TrialFolder

SCHEDULERS = NONE, ASHA, RACE = "none", "asha", "race"
REDUCTION_FACTOR = 3  # about one trial in this many continues from each rung
DATA = ("data.", "evaluation.")
"""Prefixes of settings that define the task: trials with different ones are never ranked against each other."""


def check_scheduler(plan: SweepPlan, experiment: Experiment) -> None:
    """ValueError for a scheduler that this plan does not support."""
    require_known("--scheduler", plan.scheduler, SCHEDULERS)
    if plan.scheduler == NONE:
        return
    if plan.scheduler == RACE:
        _check_race(plan, experiment)
        return
    if len(plan.goals) != 1:
        goals = "several goals" if plan.goals else "no goal"
        raise refuse("--scheduler", plan.scheduler, f"none with {goals}: trials are stopped by one metric")
    if experiment.evaluation.every_epochs != 1:
        every = experiment.evaluation.every_epochs
        raise refuse("evaluation.every_epochs", every, f"1 with --scheduler {plan.scheduler}")


def _check_race(plan: SweepPlan, experiment: Experiment) -> None:
    chosen_by = Metric.parse(experiment.evaluation.select_by, "evaluation.select_by")
    if plan.goals and plan.goals != (Goal(chosen_by),):
        raise refuse(
            "--maximize/--minimize", plan.goals[0].metric, f"{chosen_by} (evaluation.select_by) with --scheduler race"
        )
    if not is_mean_over_queries(chosen_by):
        allowed = "a mean over queries with --scheduler race: recall_at_K or map_at_10, in either direction"
        raise refuse("evaluation.select_by", chosen_by, allowed)
    if plan.search.is_adaptive or (plan.num_points is None and not plan.search.is_finite):
        raise refuse("--scheduler", RACE, "none or asha with a search whose points are not known from the start")
    if len(seeds := seeds_of(plan)) < 2:
        raise refuse("--seeds", " ".join(map(str, seeds)) or None, "two seeds or more with --scheduler race")


def seeds_of(plan: SweepPlan) -> list[int]:
    """The seeds of a plan, or those in the points of its list."""
    points = plan.search.points if isinstance(plan.search, FixedPoints) else ()
    return list(plan.seeds or dict.fromkeys(int(point["seed"]) for point in points if "seed" in point))


def compared(space: Space) -> list[str]:
    """The paths whose values a scheduler compares: choices and ranges; in a space of grids alone, the grids."""
    paths = [path for path in space.dimensions if not path.startswith(DATA)]
    return [path for path in paths if type(space.dimensions[path]) is not Grid] or paths


def rivals_key(overrides: Mapping[str, Any], space: Space | None) -> str:
    """A key that is equal for trials that are ranked against each other: equal seed, data and values of grids."""
    fixed: Collection[str] = set() if space is None else space.dimensions.keys() - compared(space)
    return point_key(
        {path: value for path, value in overrides.items() if path == "seed" or path.startswith(DATA) or path in fixed}
    )


def make_scheduler(
    plan: SweepPlan,
    epochs: int,
    run: RunFolder,
    recorded: Sequence[TrialFolder],
    dropped: Container[str] = (),
) -> Any:
    """Tune's scheduler of the plan, with what the recorded trials have reported already; None for none. It ranks trials
    only among those of the same seed, data and grid values (`rivals_key`). It stops no trial after its last epoch (`epochs`, if
    the sweep does not vary `train.epochs`), and none at an epoch after which an earlier session went on. In a race it stops
    the trials whose ids are in `dropped`, which may grow.
    """
    if plan.scheduler == NONE:
        return None
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

    def is_at_its_end(trial_id: str, result: Mapping[str, Any]) -> bool:
        last = int(run.trial(trial_id).describe()["overrides"].get("train.epochs", epochs))
        return bool(result.get("is_final")) or result.get("epoch", 0) >= last

    if plan.scheduler == RACE:

        class StopsDropped(FIFOScheduler):
            """Starts trials in their order, and stops those whose point was dropped."""

            def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
                trial_id = trial.config["trial_id"]
                is_stopped = trial_id in dropped and not is_at_its_end(trial_id, result)
                return str(self.STOP if is_stopped else self.CONTINUE)

        return StopsDropped()
    goal = plan.goals[0]

    class RankedAmongRivals(FIFOScheduler):
        """Starts trials in their order; the ASHA of each group of rivals decides which continue."""

        def __init__(self) -> None:
            super().__init__()
            self.of_rivals: dict[str, Any] = {}
            self.decided: dict[tuple[str, int], str] = {}
            """Decisions by trial and epoch: a resumed trial reports its earlier epochs again, but they are not ranked again,
            among trials that have come since."""

        def ranking(self, trial: Any) -> Any:
            key = rivals_key(run.trial(trial.config["trial_id"]).describe()["overrides"], plan.space)
            if key not in self.of_rivals:
                self.of_rivals[key] = ASHAScheduler(
                    time_attr="epoch",
                    metric=goal.metric,
                    mode="max" if goal.is_maximised else "min",
                    # At its end a trial is not ranked.
                    max_t=sys.maxsize,
                    reduction_factor=REDUCTION_FACTOR,
                    grace_period=1,
                )
            return self.of_rivals[key]

        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            trial_id, epoch = trial.config["trial_id"], result.get("epoch", 0)
            if is_at_its_end(trial_id, result):
                return str(self.CONTINUE)
            if (trial_id, epoch) not in self.decided:
                # By an id that is the same in every session; Tune's is not.
                ranked, ranking = SimpleNamespace(trial_id=trial_id), self.ranking(trial)
                ranking.on_trial_add(tune_controller, ranked)
                decision = ranking.on_trial_result(tune_controller, ranked, result)
                self.decided |= {(trial_id, epoch - 1): str(self.CONTINUE), (trial_id, epoch): str(decision)}
            return self.decided[trial_id, epoch]

    scheduler = RankedAmongRivals()
    # The ranks of earlier sessions again, in their order; one may have ended before a trial was stopped.
    reports = [(row, trial.trial_id) for trial in recorded for row in trial.epochs() if goal.metric in row]
    for row, trial_id in sorted(reports, key=lambda report: report[0].get("time", 0.0)):
        stops(scheduler, trial_id, row)
    return scheduler


def stops(scheduler: Any, trial_id: str, row: Mapping[str, Any]) -> bool:
    """Whether a scheduler of `make_scheduler` stops the trial after the epoch of this row. For trials that Tune does not run."""
    return bool(scheduler.on_trial_result(None, SimpleNamespace(config={"trial_id": trial_id}), row) == scheduler.STOP)
