"""The reality check of correspondence, with each method tuned first by the same budget: some trials by Optuna, on the
validation split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from ray_atr.cli.experiment_options import NOISE_HELP, ComparisonSweep
from ray_atr.cli.parse import option
from ray_atr.common.override import combinations
from ray_atr.common.settings import counted, refuse, require_known
from ray_atr.common.storage import Location, file_exists, locate, read_json, write_json
from ray_atr.papers.methods import CEILING, CORRESPONDENCE, FLOOR, METHODS, ON_ANY_DATA, PAIR

if TYPE_CHECKING:
    from ray_atr.sweep import Goal
    from ray_atr.sweep.space import Point
    from ray_atr.training.run_folder import RunFolder

TUNED_FILE = "tuned.json"
TUNING_SEED = 1_000_003  # no seed that is reported
TEMPERATURE, EPSILON = "objective.pair.temperature", "objective.pair.epsilon"
OWN: dict[str, dict[str, str]] = {
    "contrastive": {TEMPERATURE: "loguniform(0.03,0.2)"},
    "complementary": {TEMPERATURE: "loguniform(0.02,0.1)"},
    "triplet": {"objective.pair.margin": "loguniform(0.05,0.4)"},
    "learning_to_match": {EPSILON: "loguniform(0.02,0.3)"},
    "partial_learning_to_match": {EPSILON: "loguniform(0.02,0.3)"},
}
"""Pair loss -> the setting that is tuned, besides the rate."""


@dataclass(frozen=True)
class CorrespondenceSweep(ComparisonSweep):
    """Compare methods for wrong pairs: method x kind of noise x noise ratio x seed."""

    name: ClassVar[str] = "correspondence"

    methods: tuple[str, ...] = option(ON_ANY_DATA, "methods: " + ", ".join(METHODS), "NAME ...")
    noise: tuple[float, ...] = option((0.0, 0.4, 0.6), NOISE_HELP, "RATIO ...")
    kinds: tuple[str, ...] = option(("pair",), "kinds of noise", "NAME ...")
    tune: int = option(0, "trials by which each method is tuned first, on validation, at a ratio that is not reported")
    tune_noise: float = option(0.5, "the noise ratio at which methods are tuned", "RATIO")
    tuned: str | None = option(None, "settings by method, as an earlier --tune left them", "FILE", "none")

    def known_methods(self) -> dict[str, Point]:
        """The methods to compare, by name. ValueError for an unknown one."""
        for method in self.methods:
            require_known("--methods", method, METHODS)
        return {method: METHODS[method] for method in self.methods}

    def points(self) -> list[Point]:
        chosen = {} if self.tuned is None else read_tuned(self.tuned)
        points = []
        for method, settings in self.known_methods().items():
            # Without noise all kinds are equal, and the oracle has nothing to leave out.
            ratios = [float(ratio) for ratio in self.noise if ratio > 0 or method != "oracle"]
            for point in combinations({"data.noise.kind": self.kinds, "data.noise.ratio": ratios}):
                if point["data.noise.ratio"] > 0 or point["data.noise.kind"] == self.kinds[0]:
                    points.append({**settings, **chosen.get(method, {}), **point})
        return points

    def references(self) -> list[Point]:
        return [dict(METHODS[method]) for method in (FLOOR, CEILING)]

    def before(self, settings: Mapping[str, str]) -> CorrespondenceSweep:
        """The comparison with every method tuned (with --resume, by the earlier tuning). Without --tune only the
        path of --tuned becomes absolute.
        """
        if self.tune < 0:
            raise refuse("--tune", self.tune, "0 or more trials")
        if self.tune and self.tuned is not None:
            raise refuse("--tune", self.tune, "no --tune with --tuned: the methods are tuned already")
        if self.tuned is not None:
            # A resumed sweep may be in another working directory.
            return replace(self, tuned=str(locate(self.tuned)))
        if not self.tune:
            return self
        if self.tune_noise in self.noise:
            raise refuse("--tune-noise", self.tune_noise, "a ratio that is not reported (--noise)")
        if self.estimate:
            return self
        if self.resume is None:
            return replace(self, tuned=str(tune_methods(self, settings)))
        earlier = tuning_folder(self.resume) / TUNED_FILE
        if not file_exists(earlier):
            raise refuse("--tune", self.tune, f"with --resume only if {earlier} exists; give --tuned FILE instead")
        return replace(self, tuned=str(earlier))

    def continuing(self, earlier: Mapping[str, Any]) -> CorrespondenceSweep:
        """With the earlier one's options. Prints the methods that are not tuned beside tuned ones."""
        continued = super().continuing(earlier)
        tuned = continued.methods if continued.tuned is None else read_tuned(continued.tuned)
        if others := [method for method in continued.methods if method not in tuned]:
            print(f"not tuned in {continued.tuned}: {', '.join(others)}")
        return continued

    def trials_before(self) -> list[Point]:
        seeds = range(TUNING_SEED, TUNING_SEED + self.tune * (self.tuned is None))
        methods = self.known_methods().values()
        return [{**method, "data.noise.ratio": self.tune_noise, "seed": seed} for method in methods for seed in seeds]


def read_tuned(file: str) -> Mapping[str, Point]:
    """The settings by method that an earlier --tune left in a file. ValueError for anything else."""
    content = read_json(locate(file)) if file_exists(locate(file)) else None
    if not isinstance(content, dict) or not all(isinstance(values, dict) for values in content.values()):
        raise refuse("--tuned", file, f"the {TUNED_FILE} of an earlier --tune: settings by method")
    for method in content:
        require_known(f"--tuned: {file}", method, METHODS)
    return content


def space_of(method: str) -> dict[str, str]:
    """The search space of a method: the rate, a setting of the pair loss, and the length of the warm-up if it has one."""
    from ray_atr.objectives import CORRESPONDENCES

    fixed: Mapping[str, Any] = METHODS[method]
    settings = {field.name for field in fields(CORRESPONDENCES[fixed[CORRESPONDENCE]])}
    warm_up = {f"{CORRESPONDENCE}.warmup_epochs": "randint(1,4)"} if "warmup_epochs" in settings else {}
    return {"train.learning_rate": "loguniform(0.0002,0.005)", **OWN[fixed[PAIR]], **warm_up}


def tune_methods(options: CorrespondenceSweep, settings: Mapping[str, str]) -> Location:
    """Tune each method with --tune trials, and return the file of the best settings by method. Each method has a run
    folder below `OUT-tuning`; an existing one is continued. ValueError if no trial of a method finished or the existing one has
    other settings, and, before anything is tuned, for what the comparison itself refuses.
    """
    from ray_atr.cli.live import shown_progress
    from ray_atr.cli.running import (
        NEVER,
        check_options,
        plan_points,
        planned,
        ray_of,
        require_same,
        start_of,
        values_of,
    )
    from ray_atr.common.override import override
    from ray_atr.common.runtime import advising, code_version, home
    from ray_atr.sweep import SEARCHES, Goal, SweepPlan, sweep
    from ray_atr.sweep.describe import describe_plan
    from ray_atr.sweep.space import Space
    from ray_atr.training.languages import with_languages
    from ray_atr.training.run_folder import RunFolder

    methods = options.known_methods()
    if options.out is None:
        raise refuse("--out", None, "a folder, with --tune: the tuning is written beside it")
    if file_exists(locate(options.out) / "sweep.json"):
        raise refuse("--out", options.out, "a new folder with --tune; --resume continues this one")
    check_options(options)
    planned(options, settings, lambda *_: plan_points(options, None), values_of(options))
    folder = tuning_folder(options.out)
    base = override(start_of(options, settings), settings)
    best = {}
    for number, (method, fixed) in enumerate(methods.items(), start=1):
        experiment = with_languages(override(base, {**fixed, "data.noise.ratio": options.tune_noise}))
        goals = (Goal(experiment.evaluation.select_by),)
        space = Space.parse([f"{path}={text}" for path, text in space_of(method).items()], experiment)
        search = SEARCHES["optuna"](space, goals, 0, ())
        plan = SweepPlan(search, seeds=(TUNING_SEED,), num_points=options.tune)
        place = folder / method
        info = {"name": "tuning", **describe_plan(plan), "code": code_version(), "command": ""}
        is_begun = file_exists(place / "sweep.json")
        run = RunFolder.open(place) if is_begun else RunFolder.create(place, experiment, info)
        require_same(run, run.experiment, experiment)
        with advising(f"run the same command again to continue ({folder} holds the tuning so far)"), run.locked():
            print(f"tuning {method}, method {number} of {len(methods)}: {counted(options.tune, 'trial')}")
            with shown_progress(experiment.train.epochs, options.write, is_quiet=options.quiet) as progress:
                result = sweep(
                    run,
                    plan,
                    home(),
                    listeners=[progress],
                    concurrency=options.concurrency,
                    use_ray=ray_of(options, None) != NEVER,
                    echo=options.write,
                )
            if result.num_left and result.common_failure is None:
                raise KeyboardInterrupt
        best[method] = best_point(run, goals[0], method)
        print(f"tuned {method}: " + ", ".join(f"{path}={value:.4g}" for path, value in best[method].items()))
    write_json(folder / TUNED_FILE, best)
    return folder / TUNED_FILE


def tuning_folder(run_folder: str) -> Location:
    """The folder of a sweep's tuning, beside its run folder."""
    return locate(f"{run_folder.rstrip('/')}-tuning")


def best_point(run: RunFolder, goal: Goal, method: str) -> dict[str, Any]:
    """The point of the best finished trial. ValueError, with the errors of the others, if none has finished."""
    finished = [trial for trial in run.trials() if trial.is_finished]
    if not finished:
        errors = dict.fromkeys(str(trial.describe()["error"]) for trial in run.trials())
        raise ValueError(f"{run.path}: no trial of {method} has finished ({'; '.join(errors)})")
    best = max(finished, key=goal.score)
    return {path: value for path, value in best.describe()["overrides"].items() if path != "seed"}
