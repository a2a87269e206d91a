"""The same budget for every method: some trials by Optuna each, on the validation split, before anything is compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray_atr.cli.comparisons import ComparisonSweep
from ray_atr.cli.running import start_of
from ray_atr.override import override
from ray_atr.run_folder import RunFolder
from ray_atr.runtime import advising, code_version, home
from ray_atr.settings import refuse
from ray_atr.space import Space
from ray_atr.storage import Location, is_there, locate, write_json
from ray_atr.sweep import SEARCHES, Goal, SweepPlan, sweep
from ray_atr.sweep.describe import describe_plan
from ray_atr.training.languages import with_languages

TUNED_FILE = "tuned.json"
TUNING_SEED = 1_000_003
"""No seed that is reported."""


def tune_methods(
    options: ComparisonSweep,
    settings: Mapping[str, str],
    methods: Mapping[str, dict[str, Any]],
    spaces: Mapping[str, dict[str, str]],
    *,
    num_trials: int,
    noise: float,
) -> Location:
    """Tune each method by `num_trials` trials at one noise ratio, and return the file of what was best, by method.

    One run folder a method, below `OUT-tuning`; what is there already is continued. ValueError if no trial of a method finished.
    """
    if options.out is None:
        raise refuse("--out", None, "a folder, with --tune: the tuning is kept beside it")
    folder = tuning_folder(options.out)
    base = override(start_of(options, settings), settings)
    found = {}
    for method, fixed in methods.items():
        experiment = with_languages(override(base, {**fixed, "data.noise.ratio": noise}))
        goals = (Goal(experiment.evaluation.select_by),)
        space = Space.parse([f"{path}={text}" for path, text in spaces[method].items()], experiment)
        plan = SweepPlan(
            SEARCHES["optuna"](space, goals, 0, ()), seeds=(TUNING_SEED,), num_points=num_trials, goals=goals
        )
        place = folder / method
        info = {"name": "tuning", **describe_plan(plan), "code": code_version(), "command": ""}
        is_begun = is_there(place / "sweep.json")
        run = RunFolder.open(place) if is_begun else RunFolder.create(place, experiment, info)
        with advising(f"run the same command again to continue ({folder} holds the tuning so far)"), run.held():
            result = sweep(run, plan, home(), concurrency=options.concurrency)
            if result.unfinished and result.common_failure is None:
                raise KeyboardInterrupt
        found[method] = best_point(run, goals[0], method)
        print(f"tuned {method}: " + ", ".join(f"{path}={value:.4g}" for path, value in found[method].items()))
    write_json(folder / TUNED_FILE, found)
    return folder / TUNED_FILE


def tuning_folder(run_folder: str) -> Location:
    """Where the tuning of a sweep is kept, beside its run folder."""
    return locate(f"{run_folder.rstrip('/')}-tuning")


def best_point(run: RunFolder, goal: Goal, method: str) -> dict[str, Any]:
    """The point of the best finished trial. ValueError if none has finished."""
    finished = [trial for trial in run.trials() if trial.is_finished]
    if not finished:
        raise ValueError(f"{run.path}: no trial of {method} has finished")
    best = max(finished, key=goal.score)
    return {path: value for path, value in best.describe()["overrides"].items() if path != "seed"}
