"""Which trials a scheduler ranks against each other: those that differ in nothing but what is compared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ray_atr.run_folder import RunFolder
from ray_atr.space import Grid, Space, point_key

DATA = "data."
"""Beginning of the settings that make the task harder or easier: their trials are never ranked against each other."""


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

        def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
            self.scheduler_of(trial).on_trial_add(tune_controller, trial)

        def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
            self.scheduler_of(trial).on_trial_error(tune_controller, trial)

        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            return str(self.scheduler_of(trial).on_trial_result(tune_controller, trial, result))

        def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
            self.scheduler_of(trial).on_trial_complete(tune_controller, trial, result)

        def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
            self.scheduler_of(trial).on_trial_remove(tune_controller, trial)

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
