"""Whether a difference is more than noise: bootstrap over clips, paired comparison, spread across seeds.

What is drawn again is the clip, with all its captions in all its languages: captions of one clip are not independent.
A query that is a class text, of which many clips are relevant, is drawn as itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ray_atr.metrics.metric import Metric
from ray_atr.metrics.samples import Samples, check_same_queries, in_shared_tasks, resampled
from ray_atr.settings import refuse

DRAWS = 1000
LEVEL = 0.95
WEIGHTS_AT_ONCE = 2**22


@dataclass(frozen=True)
class Interval:
    """A value and its bootstrap percentile interval at `level`."""

    value: float
    low: float
    high: float
    level: float


@dataclass(frozen=True)
class Difference:
    """Second minus first, on the same clips, with the interval of the paired bootstrap at `level`.

    `p_value` is twice the smaller share of draws on one side of zero.
    """

    first: float
    second: float
    value: float
    low: float
    high: float
    level: float
    p_value: float

    @property
    def is_distinguishable(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (n - 1) of a metric over runs that differ in their seed alone."""

    mean: float
    deviation: float
    runs: int


def bootstrap_runs(
    runs: Sequence[Samples],
    *,
    trained: Collection[str] | None = None,
    draws: int = DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> dict[Metric, Interval]:
    """Intervals over clips of every metric, of one model or of the mean over several that differ in their seed."""
    _check(runs, "runs", draws, level)
    value, drawn = _mean_over_runs(runs, trained, draws, seed)
    return {name: Interval(float(value[name][0]), *_ends(drawn[name], level), level) for name in value}


def compare_runs(
    first: Sequence[Samples],
    second: Sequence[Samples],
    *,
    trained: Collection[str] | None = None,
    draws: int = DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> dict[Metric, Difference]:
    """Second minus first in every metric of the tasks that both have, each the mean over its runs, drawn together.

    Raises ValueError if they were not asked the same queries in the same languages.
    """
    if not (first and second):
        raise refuse("second" if first else "first", "none", "one or more runs' samples")
    runs = in_shared_tasks([*first, *second])
    _check(runs, "second", draws, level)
    first, second = runs[: len(first)], runs[len(first) :]
    a, drawn_a = _mean_over_runs(first, trained, draws, seed)
    b, drawn_b = _mean_over_runs(second, trained, draws, seed)
    result = {}
    for name in a:
        drawn = drawn_b[name] - drawn_a[name]
        p_value = min(1.0, max(1 / draws, 2 * float(min(np.mean(drawn <= 0), np.mean(drawn >= 0)))))
        before, after = float(a[name][0]), float(b[name][0])
        result[name] = Difference(before, after, after - before, *_ends(drawn, level), level, p_value)
    return result


def across_seeds(runs: Sequence[Mapping[Metric, float]]) -> dict[Metric, Spread]:
    """Mean and deviation of every metric that all the runs have; the deviation of one run is NaN, not 0."""
    if not runs:
        raise refuse("runs", "none", "one or more runs' metrics")
    shared = [name for name in runs[0] if all(name in run for run in runs)]
    values = {name: np.array([run[name] for run in runs]) for name in shared}
    return {
        name: Spread(float(v.mean()), float(v.std(ddof=1)) if len(v) > 1 else float("nan"), len(v))
        for name, v in values.items()
    }


Drawn = dict[Metric, np.ndarray]


def _mean_over_runs(
    runs: Sequence[Samples], trained: Collection[str] | None, draws: int, seed: int
) -> tuple[Drawn, Drawn]:
    """Each metric as it is, [1], and under each draw, [draws], averaged over the runs."""
    groups = _unit_groups(runs[0])

    def mean(weight: np.ndarray) -> Drawn:
        of_runs = [resampled(samples, weight, trained) for samples in runs]
        return {name: np.mean([run[name] for run in of_runs], axis=0) for name in of_runs[0]}

    whole, parts = mean(np.ones((1, _num_units(groups)))), [mean(weight) for weight in _weights(groups, draws, seed)]
    return whole, {name: np.concatenate([part[name] for part in parts]) for name in whole}


def _unit_groups(samples: Samples) -> list[np.ndarray]:
    """The units, apart where they are of different kinds (clips, classes): kinds have no number in common."""
    groups: list[np.ndarray] = []
    for sample in samples.values():
        units = np.unique(sample.unit)
        same = [group for group in groups if len(np.intersect1d(group, units))]
        apart = [group for group in groups if not len(np.intersect1d(group, units))]
        groups = [*apart, np.unique(np.concatenate([units, *same]))]
    return groups


def _num_units(groups: Sequence[np.ndarray]) -> int:
    return max(int(group.max()) for group in groups) + 1


def _weights(groups: Sequence[np.ndarray], draws: int, seed: int) -> Iterator[np.ndarray]:
    """How often each unit is drawn when as many of its kind as there are are drawn with replacement, [some draws, units]."""
    # A generator a kind, so that the draws do not depend on how many are made at once.
    generators = [np.random.default_rng([seed, kind]) for kind in range(len(groups))]
    num_units = _num_units(groups)
    at_once = max(1, WEIGHTS_AT_ONCE // num_units)
    for start in range(0, draws, at_once):
        weight = np.zeros((min(at_once, draws - start), num_units))
        for units, generator in zip(groups, generators, strict=True):
            weight[:, units] = generator.multinomial(len(units), np.full(len(units), 1 / len(units)), size=len(weight))
        yield weight


def _ends(drawn: np.ndarray, level: float) -> tuple[float, float]:
    """Percentile interval; a draw that holds no query of a language (a language with few captions) has no value."""
    tail = (1 - level) / 2
    low, high = np.nanquantile(drawn, (tail, 1 - tail))
    return float(low), float(high)


def _check(runs: Sequence[Samples], path: str, draws: int, level: float) -> None:
    if draws < 1:
        raise refuse("draws", draws, "[1, inf)")
    if not 0 < level < 1:
        raise refuse("level", level, "(0, 1)")
    if not runs:
        raise refuse(path, "none", "one or more runs' samples")
    for other in runs[1:]:
        check_same_queries(runs[0], other)
