"""Descriptions of a plan for the run folder, its checks, and its best points."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from ray_atr.common.override import override
from ray_atr.data.noise import Noise
from ray_atr.metrics.measures import pareto_front
from ray_atr.objectives.correspondence import LeaveOneOut
from ray_atr.sweep.fixed import check_fixed, lines_of_fixed
from ray_atr.sweep.schedulers import NONE, compared
from ray_atr.sweep.search import Goal, Observation, SpaceSearch, SweepPlan, first_points
from ray_atr.sweep.space import Point
from ray_atr.sweep.trial_queue import recorded_trials
from ray_atr.training.checks import check_experiment, split_sizes
from ray_atr.training.experiment import Experiment
from ray_atr.training.languages import with_languages
from ray_atr.training.run_folder import FINISHED, RunFolder, trial_name

MOST_BEST = 10  # points of a Pareto front that a terminal shows


def describe_plan(plan: SweepPlan) -> dict[str, Any]:
    """A plan in sweep.json: `varied`, `space`, `seeds`, the `points` of a list, and goals, budget and method of a search. It is
    enough to resume the plan before any trial has a folder.
    """
    shared = {"fixed": dict(plan.fixed), "scheduler": plan.scheduler, "spend_spared": plan.spends_spared}
    if not isinstance(plan.search, SpaceSearch):
        varied = values_by_path(plan.search.points)
        values = {path: sorted(set(of_path), key=str) for path, of_path in varied.items()}
        points = [dict(point) for point in plan.search.points]
        return {"varied": list(varied), "space": values, "seeds": values.get("seed", []), "points": points, **shared}
    space = plan.search.space
    return {
        "varied": [*space.dimensions, "seed"],
        "space": space.describe(),
        "seeds": list(plan.seeds),
        "trials": plan.num_points,
        "maximize": [goal.metric for goal in plan.goals if goal.is_maximised],
        "minimize": [goal.metric for goal in plan.goals if not goal.is_maximised],
        "search": plan.search.name,
        "search_seed": plan.search.seed,
        "earlier": [{"point": entry.point, "scores": list(entry.scores)} for entry in plan.search.earlier],
        **shared,
    }


def values_by_path(points: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The values of each path in the points that have it."""
    paths = dict.fromkeys(path for point in points for path in point)
    return {path: [point[path] for point in points if path in point] for path in paths}


def check_plan(plan: SweepPlan, experiment: Experiment, explicit: Collection[str] = ()) -> None:
    """ValueError if a point of the plan, or an end of a dimension of its space, cannot run with the experiment's data; for a seed
    that is not allowed; or if no point has one of the `explicit` fixed settings. Points that an adaptive search will propose are
    not known yet.
    """
    for seed in plan.seeds:
        override(experiment, {"seed": seed})
    points, search = points_to_check(plan), plan.search
    check_fixed(experiment, points, plan.fixed, explicit)
    if isinstance(search, SpaceSearch) and not search.is_adaptive and (plan.num_points or search.is_finite):
        # Values that are right one by one may not be together, nor those between two right ends.
        points += first_points(search, plan.num_points)
    for point in points:
        check_experiment(plan.experiment(experiment, point))


def points_to_check(plan: SweepPlan) -> list[Point]:
    """The points of a list; of a space, points in which each setting in turn takes each of its `test_values`."""
    search = plan.search
    if not isinstance(search, SpaceSearch):
        return [dict(point) for point in search.points]
    space = search.space
    first = {path: dimension.test_values[0] for path, dimension in space.dimensions.items()}
    varied = ({**first, path: value} for path, dimension in space.dimensions.items() for value in dimension.test_values)
    return [space.build(values.__getitem__) for values in varied]


def conditions_of(plan: SweepPlan, experiment: Experiment) -> list[str]:
    """Lines about settings that some points lack, about noise in one language, about languages that no point trains on, about a
    scheduler with nothing to rank, about settings that no point uses, and about a GPU that is not used.
    """
    of_space = plan.space.conditions if plan.space is not None else []
    points = points_to_check(plan)
    lines = [*of_space, *lines_of_fixed(experiment, points, plan.fixed)]
    planned = [plan.experiment(experiment, point) for point in points]
    lines += dict.fromkeys(filter(None, map(noise_line, planned)))
    if all(untrained := [untrained_line(trial_experiment) for trial_experiment in planned]):
        lines += dict.fromkeys(untrained)
    if plan.scheduler != NONE and plan.space is not None and not compared(plan.space):
        lines.append(f"--scheduler {plan.scheduler} ends no trial: trials on different data are not ranked")
    lines += dict.fromkeys(filter(None, map(roles_line, planned)))
    if all(idle := [idle_line(trial_experiment) for trial_experiment in planned]):
        lines += dict.fromkeys(idle)
    if torch.cuda.is_available() and not any(one.scaling.workers or one.scaling.gpus_per_worker for one in planned):
        lines.append("trained on the CPU, though this machine has a GPU: --scaling.gpus_per_worker 1 trains on the GPU")
    return lines


def roles_line(experiment: Experiment) -> str:
    """A line about a split that is used for two of training, choosing the epoch and testing, or about a test split that the data
    set lacks; else empty.
    """
    data = experiment.data
    if data.test_split != "none" and data.test_split not in (splits := split_sizes(experiment)):
        return f"data.test_split={data.test_split}: no test numbers, since {data.source} has {', '.join(splits)}"
    if data.validation_split == data.train_split:
        return f"data.validation_split={data.validation_split} is trained on: it says little about which epoch is best"
    if data.test_split in (data.train_split, data.validation_split):
        how = "are trained on" if data.test_split == data.train_split else "choose the epoch"
        return f"data.test_split={data.test_split}: the test clips {how}, so the test numbers are too good"
    return ""


def idle_line(experiment: Experiment) -> str:
    """A line about a kind of noise without any noise, or a share of wrong pairs that nothing reads; else empty."""
    data, objective = experiment.data, experiment.objective
    if data.noise != Noise() and not data.noise.is_injected:
        return "data.noise: no caption is made wrong, since data.noise.ratio is 0"
    is_read = objective.needs_clean_share or isinstance(objective.correspondence, LeaveOneOut)
    if data.wrong_share != "auto" and not is_read:
        names = f"objective.correspondence={objective.correspondence.name} and objective.pair={objective.pair.name}"
        return f"data.wrong_share is not read: {names}, as they are set, need no share of wrong pairs"
    return ""


def noise_line(experiment: Experiment) -> str:
    """A line about the share of wrong training pairs, if a wrong clip is wrong in one of several languages; else empty."""
    experiment = with_languages(experiment)
    noise, num_languages = experiment.data.noise, len(experiment.data.languages)
    if noise.kind != "language" or noise.ratio == 0 or num_languages < 2:
        return ""
    trained = ", ".join(experiment.trained_languages)
    return (
        f"data.noise.kind=language: a wrong clip is wrong in one of its {num_languages} languages, so only about "
        f"1/{num_languages} of data.noise.ratio of the pairs that are trained on ({trained}) is wrong"
    )


def untrained_line(experiment: Experiment) -> str:
    """A line about languages of the data set that are validated but not trained on; else empty."""
    experiment = with_languages(experiment)
    data, trained = experiment.data, experiment.trained_languages
    if data.source == "soundscapes" or not (untrained := [code for code in data.languages if code not in trained]):
        return ""
    return (
        f"captions in {', '.join(untrained)} are validated alone: objective.scheme={experiment.objective.scheme.name} trains on "
        f"{', '.join(trained)}; --objective.scheme ml_clap trains on all"
    )


def best_lines(run: RunFolder, plan: SweepPlan) -> Iterator[str]:
    """Lines about the best finished point of a search, or about the Pareto front of several goals."""
    if not isinstance(plan.search, SpaceSearch) or not plan.goals:
        return
    observed = [trials.observation(plan.goals) for trials in recorded_trials(run, without_seed=True)]
    best = unbeaten([entry for entry in observed if entry.status == FINISHED], plan.goals)
    seeds = f" (means of {len(plan.seeds)} seeds)" if len(plan.seeds) > 1 else ""
    for entry in best[:MOST_BEST]:
        scores = ", ".join(f"{goal.metric} {score:.4g}" for goal, score in zip(plan.goals, entry.scores, strict=True))
        yield f"best:        {trial_name(entry.point)}: {scores} on validation{seeds}"
    if len(best) > MOST_BEST:
        yield f"             and {len(best) - MOST_BEST} more on the Pareto front"


def unbeaten(observations: Sequence[Observation], goals: Sequence[Goal]) -> list[Observation]:
    """The points on the Pareto front of the goals, the best of the first goal first."""
    signs = [1 if goal.is_maximised else -1 for goal in goals]
    gains = [tuple(sign * score for sign, score in zip(signs, entry.scores, strict=True)) for entry in observations]
    return [observations[index] for index in pareto_front(gains)]
