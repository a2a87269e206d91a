"""The estimated cost of a sweep, from some steps of its kinds of trials: time of CPUs or GPUs, disk and memory."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.filesize import decimal

from ray_atr.common.override import flatten, override
from ray_atr.common.settings import counted
from ray_atr.common.storage import Location, is_local
from ray_atr.sweep.run_trials import prepare_all
from ray_atr.sweep.search import SweepPlan, first_points
from ray_atr.sweep.space import Point
from ray_atr.training.experiment import AUTO, Experiment
from ray_atr.training.inputs import Echo
from ray_atr.training.objective_label import objective_label
from ray_atr.training.run_folder import trial_name
from ray_atr.training.step import NonFiniteError
from ray_atr.training.trial_cost import Spent, TrialCost, measure_trial

MOST_KINDS = 12
"""Most kinds of trials that are measured; the others get the cost of the most similar measured kind."""
MOST_DRAWN = 24
"""Most points that are drawn from a search; further ones get their mean cost."""
SAME_COST = (
    "seed",
    "data.noise.",
    "evaluation.every_epochs",
    "evaluation.select_by",
    "scaling.",
    "tracking.",
    "train.clip_norm",
    "train.epochs",
    "train.learning_rate",
    "train.metric_rate_scale",
    "train.momentum",
    "train.patience",
    "train.schedule",
    "train.step_",
    "train.warmup_fraction",
    "train.weight_decay",
)
"""Prefixes of settings that do not change the cost of a step, a validation and a checkpoint."""


@dataclass(frozen=True)
class Estimate:
    """The cost of a sweep's trials."""

    num_trials: int | None
    """None: the sweep has a time limit and no number of trials."""
    trials: list[Spent]
    """The cost of each listed or drawn point."""
    disk: list[int]
    costs: list[TrialCost]
    num_kinds: int
    failed: list[str]
    is_on_gpu: bool

    @property
    def spent(self) -> Spent:
        """The cost of all trials; the mean of one if their number is open."""
        return sum(self.trials, Spent()).times((self.num_trials or 1) / len(self.trials))

    def lines(self, experiment: Experiment) -> list[str]:
        """The estimate as it is printed."""
        scaling, number = experiment.scaling, self.num_trials
        how_many = "each trial" if number is None else counted(number, "trial")
        seconds = [spent.wall if self.is_on_gpu else spent.cpu for spent in self.trials]
        total = self.spent.wall if self.is_on_gpu else self.spent.cpu
        unit = "GPU" if self.is_on_gpu else "CPU"
        share = scaling.gpus_per_worker if self.is_on_gpu else 1.0
        each = "" if number == 1 else f"; a trial {span(seconds)}"
        steps = min(cost.steps_measured for cost in self.costs)
        kinds = f"{len(self.costs)} of {counted(self.num_kinds, 'kind')}" if self.num_kinds > 1 else "one kind"
        lines = [
            f"estimate for {how_many} ({kinds} of trial measured, by {counted(steps, 'step')} or more):",
            f"  {unit} time  {duration(share * total)}{each}",
            f"  disk      {decimal(round(statistics.fmean(self.disk) * (number or 1)))} in the run folder",
            f"  memory    {decimal(max(cost.memory for cost in self.costs))} for each trial at a time"
            + (f", {decimal(max(cost.gpu_memory for cost in self.costs))} of its GPU" if self.is_on_gpu else ""),
            "  Counted: training, validation and test, every epoch of every trial. Not counted: the start of Python, Ray and "
            "MLflow, the report, and the epochs that patience, asha or a race save.",
        ]
        if scaling.gpus_per_worker and not self.is_on_gpu:
            lines.append("  Measured on a CPU, because this machine has no GPU: the GPUs of the run need less time.")
        if scaling.workers == AUTO and not scaling.gpus_per_worker and torch.cuda.is_available():
            lines.append(
                "  Measured on the CPU; the run trains on the GPU. --scaling.gpus_per_worker 1 measures there."
            )
        if scaling.has_workers:
            lines.append("  Measured in one process: what workers send to each other is not counted.")
        return lines + [f"  would fail: {words}" for words in self.failed]


def estimate(base: Experiment, plan: SweepPlan, home: Path, run_folder: Location, *, echo: Echo = print) -> Estimate:
    """Prepare the data of a plan, then measure its kinds of trials. Only the prepared data stay on disk.

    `run_folder` is where the sweep would write, and need not exist.
    ValueError if every kind that was measured fails.
    """
    points, number = _points(plan)
    seeds: list[Point] = [{"seed": seed} for seed in plan.seeds] or [{}]
    overrides = [{**plan.overrides(base, point), **seed} for point in points for seed in seeds]
    experiments = [override(base, overridden) for overridden in overrides] or [base]
    if base.scaling.gpus_per_worker == 0:
        torch.set_num_threads(max(1, int(base.scaling.cpus_per_worker)))
    prepare_all(experiments, home, echo, use_ray=False)
    kinds: dict[str, list[int]] = {}
    for place, experiment in enumerate(experiments):
        kinds.setdefault(kind_of(experiment), []).append(place)
    costs: dict[str, TrialCost] = {}
    failed: list[str] = []
    most = min(len(kinds), MOST_KINDS)
    # Evenly spread, including the first.
    for key in (list(kinds)[number * len(kinds) // most] for number in range(most)):
        place = kinds[key][0]
        name = trial_name(overrides[place]) if overrides[place] else objective_label(flatten(base))
        echo(f"measuring {name}")
        folder = Path(tempfile.mkdtemp(prefix="ray_atr-estimate-"))
        try:
            costs[key] = measure_trial(experiments[place], home, folder)
        except (ValueError, NonFiniteError) as error:
            failed.append(f"{name}: {error}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if not costs:
        raise ValueError(failed[0])
    is_linked = is_local(run_folder) and _device(run_folder) == _device(home)
    of_trials = [(_cost_of(experiment, costs), experiment) for experiment in experiments]
    return Estimate(
        num_trials=number,
        trials=[cost.total(experiment) for cost, experiment in of_trials],
        disk=[cost.disk_of(experiment) - (cost.linked if is_linked else 0) for cost, experiment in of_trials],
        costs=list(costs.values()),
        num_kinds=len(kinds),
        failed=failed,
        is_on_gpu=base.scaling.gpus_per_worker > 0 and torch.cuda.is_available(),
    )


def kind_of(experiment: Experiment) -> str:
    """A key that is equal for trials whose parts have equal cost."""
    settings = {path: value for path, value in flatten(experiment).items() if not path.startswith(SAME_COST)}
    return json.dumps(settings, sort_keys=True, default=str)


def _points(plan: SweepPlan) -> tuple[list[Point], int | None]:
    """(the points of a plan, or the first that its search draws; the number of trials, None if it is open)."""
    search, seeds = plan.search, max(len(plan.seeds), 1)
    is_listed = search.is_finite and not search.is_adaptive
    most = plan.num_points if is_listed else min(plan.num_points or MOST_DRAWN, MOST_DRAWN)
    points = first_points(search, most)
    # A search may have fewer points than were asked for.
    number = len(points) if most is None or len(points) < most else plan.num_points
    return points, None if number is None else number * seeds


def _cost_of(experiment: Experiment, costs: Mapping[str, TrialCost]) -> TrialCost:
    """The cost of a trial's kind, or of the measured kind that differs in the fewest settings."""
    key = kind_of(experiment)
    if key in costs:
        return costs[key]
    mine = json.loads(key)

    def distance(other: str) -> tuple[bool, int]:
        theirs = json.loads(other)
        differing = [path for path in mine.keys() | theirs.keys() if mine.get(path) != theirs.get(path)]
        return any(path.startswith("objective") for path in differing), len(differing)

    return costs[min(costs, key=distance)]


def _device(folder: Path) -> int:
    """The number of the file system on which a folder is, or would be."""
    return next(path for path in (folder, *folder.parents) if path.exists()).stat().st_dev


def span(seconds: Sequence[float]) -> str:
    """`1.2 to 3.4 minutes`; a single duration if they are similar."""
    least, most = duration(min(seconds)), duration(max(seconds))
    return least if least == most else f"{least} to {most}"


def duration(seconds: float) -> str:
    """Readable seconds: `42 s`, `3.1 minutes`, `2.4 hours`."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} minutes" if seconds < 5400 else f"{seconds / 3600:,.1f} hours"
