"""A plan in words: for the run folder, for its check, and what came out best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ray_atr.experiment import Experiment
from ray_atr.override import override
from ray_atr.run_folder import FINISHED, RunFolder, trial_name
from ray_atr.space import Point, Space
from ray_atr.sweep.agenda import Entry, recorded_points
from ray_atr.sweep.plan import Goal, Plan
from ray_atr.sweep.search import FixedPoints, Known
from ray_atr.training.prepare import check_inputs

MOST_BEST = 10
"""Points of a Pareto front that a terminal shows."""


def describe_plan(plan: Plan) -> dict[str, Any]:
    """What sweep.json holds of a plan: `varied`, `space`, `seeds`, and of a search its goals, budget and method."""
    if isinstance(plan.search, FixedPoints):
        points = plan.search.points
        varied = list(dict.fromkeys(path for point in points for path in point))
        values = {path: sorted({point[path] for point in points if path in point}, key=str) for path in varied}
        return {"varied": varied, "space": values, "seeds": values.get("seed", [])}
    space = _space(plan)
    return {
        "varied": [*space.dimensions, "seed"],
        "space": space.describe(),
        "seeds": list(plan.seeds),
        "trials": plan.num_points,
        "maximize": [goal.metric for goal in plan.goals if goal.is_maximised],
        "minimize": [goal.metric for goal in plan.goals if not goal.is_maximised],
        "search": plan.search.name,
        "search_seed": getattr(plan.search, "seed", 0),
        "scheduler": plan.scheduler,
        "earlier": [{"point": one.point, "scores": list(one.scores)} for one in getattr(plan.search, "earlier", ())],
    }


def check_plan(plan: Plan, experiment: Experiment) -> None:
    """ValueError where a point of the plan, or an end of a dimension of its space, cannot run with the experiment's data."""
    if isinstance(plan.search, FixedPoints):
        for point in plan.search.points:
            check_inputs(override(experiment, point))
        return
    for point in _corners(_space(plan)):
        check_inputs(override(experiment, point))


def conditions_of(plan: Plan) -> list[str]:
    """What is left out of which points, in words."""
    return [] if isinstance(plan.search, FixedPoints) else _space(plan).conditions


def best_lines(run: RunFolder, plan: Plan) -> Iterator[str]:
    """The best finished point of a search by its goals, or those that no other beats in every goal."""
    if isinstance(plan.search, FixedPoints) or not plan.goals:
        return
    known = [
        Entry(point, [run.add_trial({**point, "seed": seed}) for seed in plan.seeds]).known(plan.goals)
        for point in recorded_points(run, without_seed=True)
    ]
    finished = [one for one in known if one.status == FINISHED]
    best = unbeaten(finished, plan.goals)
    seeds = f" (means of {len(plan.seeds)} seeds)" if len(plan.seeds) > 1 else ""
    for one in best[:MOST_BEST]:
        scores = ", ".join(f"{goal.metric} {score:.4g}" for goal, score in zip(plan.goals, one.scores, strict=True))
        yield f"best:        {trial_name(one.point)}: {scores} on validation{seeds}"
    if len(best) > MOST_BEST:
        yield f"             and {len(best) - MOST_BEST} more that none beats in every goal"


def unbeaten(known: Sequence[Known], goals: Sequence[Goal]) -> list[Known]:
    """The points that no other is at least as good as in every goal and better in one; the best of the first goal first."""
    signs = [1 if goal.is_maximised else -1 for goal in goals]

    def gains(one: Known) -> tuple[float, ...]:
        return tuple(sign * score for sign, score in zip(signs, one.scores, strict=True))

    def is_beaten(one: Known) -> bool:
        mine = gains(one)
        return any(
            gains(other) != mine and all(a >= b for a, b in zip(gains(other), mine, strict=True)) for other in known
        )

    return sorted((one for one in known if not is_beaten(one)), key=gains, reverse=True)


def _space(plan: Plan) -> Space:
    space: Space = plan.search.space  # type: ignore[attr-defined]
    return space


def _corners(space: Space) -> Iterator[Point]:
    """Points in which one setting after the other takes each of its telling values."""
    for path, dimension in space.dimensions.items():
        for probe in dimension.probes:
            yield space.build(
                lambda other, path=path, probe=probe: probe if other == path else space.dimensions[other].probes[0]  # type: ignore[misc]
            )
