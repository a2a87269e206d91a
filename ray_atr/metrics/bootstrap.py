"""Intervals and paired differences: a bootstrap over clips, and the spread across seeds.

Clips are drawn with replacement, each with all its captions in all languages: captions of one clip are not independent. A query
that is a class text, with many relevant clips, is drawn by itself.

One run has the percentile interval of its draws. For several runs with different seeds, `over_clips_and_seeds` is the interval
over clips and seeds, in every table. No draw changes a share of exactly 0 or 1: its interval is the exact one for the clips.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special
from scipy.optimize import brentq

from ray_atr.common.settings import counted, refuse
from ray_atr.metrics.measures import measure
from ray_atr.metrics.metric import Metric, languages_of_means
from ray_atr.metrics.samples import Samples, check_same_queries, in_shared_tasks, resampled

DRAWS = 1000
LEVEL = 0.95
WEIGHTS_AT_ONCE = 2**22
LEAST_TAIL = 1e-12
FEW_SEEDS = 3
"""Least number of seeds from which an interval over seeds has its stated coverage."""


@dataclass(frozen=True)
class Interval:
    """A value and its interval at `level`: over clips, and with several runs also over seeds."""

    value: float
    low: float
    high: float
    level: float


@dataclass(frozen=True)
class Difference:
    """Second minus first, on the same clips, with its interval at `level`; `p_value` is two-sided."""

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
class Bounds:
    """The ends of an interval, and the two-sided p-value of 0."""

    low: float
    high: float
    p_value: float


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (n - 1) of a metric over runs that differ only in their seed."""

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
    """The interval of every metric: over clips for one run, over clips and seeds for the mean of several runs.

    runs      the queries' scores of each run (`retrieval_samples`).
    trained   languages of the means called `trained`; None: all.
    draws     bootstrap draws of the clips. level: of the interval, in (0, 1). seed: of the draws.

    When: a result on a test split is reported.
    Related: `compare_runs` compares two models, which overlapping intervals do not; `across_seeds`.

    >>> import numpy as np
    >>> from ray_atr.metrics import bootstrap_runs, retrieval_samples, retrieve_languages
    >>> scores = retrieve_languages(np.eye(9), {"eng": np.eye(9)[[1, 0, *range(2, 9)]]}, np.arange(9))
    >>> found = bootstrap_runs([retrieval_samples(scores)])
    >>> one = next(value for name, value in found.items() if str(name) == "text_to_audio/eng/recall_at_1")
    >>> round(one.value, 3), one.low < one.value < one.high
    (0.778, True)
    """
    _check(runs, draws, level)
    value, drawn = _of_runs(runs, trained, draws, seed)
    result = {}
    for name, of_runs in value.items():
        bounds = over_clips_and_seeds(of_runs, drawn[name], level)
        low, high = bounds.low, bounds.high
        if measure(name.name).is_share:
            # Over seeds an interval is symmetric, and would go beyond all that a share can be.
            low, high = max(low, 0.0), min(high, 1.0)
            if low == high and low in (0.0, 1.0):
                # If all is right, or all wrong, no draw differs: the exact end for these clips (Clopper and Pearson 1934).
                likely = ((1 - level) / 2) ** (1 / _num_clips(runs[0], name, trained))
                low, high = (likely, 1.0) if low else (0.0, 1 - likely)
        result[name] = Interval(float(of_runs.mean()), low, high, level)
    return result


def compare_runs(
    first: Sequence[Samples],
    second: Sequence[Samples],
    *,
    trained: Collection[str] | None = None,
    draws: int = DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> dict[Metric, Difference]:
    """Second minus first in every metric of the tasks that both have: means over their runs, with the same draws of the clips.

    The other arguments are those of `bootstrap_runs`. ValueError if the queries or languages differ.

    When: two models, or two methods over some seeds, were evaluated on the same queries.
    Related: `bootstrap_runs` for the interval of each by itself.

    >>> import numpy as np
    >>> from ray_atr.metrics import compare_runs, retrieval_samples, retrieve_languages
    >>> worse, better = (
    ...     retrieval_samples(retrieve_languages(np.eye(9), {"eng": np.eye(9)[order]}, np.arange(9)))
    ...     for order in ([1, 0, *range(2, 9)], range(9))
    ... )
    >>> found = {str(name): value for name, value in compare_runs([worse], [better]).items()}
    >>> round(found["text_to_audio/eng/recall_at_1"].value, 3)
    0.222
    """
    if not (first and second):
        raise refuse("second" if first else "first", "none", "one or more runs' samples")
    runs = in_shared_tasks([*first, *second])
    _check(runs, draws, level)
    first, second = runs[: len(first)], runs[len(first) :]
    a, drawn_a = _of_runs(first, trained, draws, seed)
    b, drawn_b = _of_runs(second, trained, draws, seed)
    result = {}
    for name in a:
        before, after = float(a[name].mean()), float(b[name].mean())
        if len(first) == len(second):
            bounds = over_clips_and_seeds(b[name] - a[name], drawn_b[name] - drawn_a[name], level)
        else:
            bounds = over_clips_and_seeds(b[name], drawn_b[name], level, a[name], drawn_a[name])
        result[name] = Difference(before, after, after - before, bounds.low, bounds.high, level, bounds.p_value)
    return result


def over_clips_and_seeds(
    values: np.ndarray,
    drawn: np.ndarray,
    level: float = LEVEL,
    less: np.ndarray | None = None,
    drawn_less: np.ndarray | None = None,
) -> Bounds:
    """The interval of the mean of values [S] of S seeds on the same clips.

    drawn       [S, draws]: the values under each draw of the clips.
    less        [T], drawn_less [T, draws]: other runs on the same clips with other seeds, whose mean is subtracted. If one of the
                two sides is a single run, its variance over seeds is taken from the other side. Values that are paired by seed
                must be subtracted before.

    Two-way random effects, clips by seeds: the variance of the mean is that over clips, from the draws of the mean, which
    include the interaction, plus that over seeds, s^2 / S, minus the interaction, which is in it too. Each part has its own
    quantile: the normal one over hundreds of clips, and Student's with S - 1 degrees of freedom over seeds, as Cochran (1964)
    does for two unequal variances: half of the width is sqrt(z^2 V_clips + t^2 V_seeds). A bootstrap that draws both at
    once counts the interaction twice (Owen 2007, "The pigeonhole bootstrap"). Two seeds are too few to estimate their
    deviation: where it is large, the interval is too narrow.
    With one seed: the percentiles of the draws, which do not include seeds.
    """
    sides = [(values, drawn)] if less is None or drawn_less is None else [(values, drawn), (less, drawn_less)]
    difference = _signed_mean([side for side, _ in sides])
    of_draws = _signed_mean([side for _, side in sides])
    if len(values) < 2 and (less is None or len(less) < 2):
        # A draw without any query of a language, in which few clips have a caption, has no value.
        low, high = np.nanquantile(of_draws, ((1 - level) / 2, 1 - (1 - level) / 2))
        measured = of_draws[~np.isnan(of_draws)]
        share = min(np.mean(measured <= 0), np.mean(measured >= 0))
        return Bounds(float(low), float(high), min(1.0, max(1 / len(of_draws), 2 * float(share))))
    of_clips = float(np.nanvar(of_draws))
    between = []
    for side, side_drawn in sides:
        if (seeds := len(side)) > 1:
            within, mean = float(np.nanvar(side_drawn, axis=1).mean()), float(np.nanvar(side_drawn.mean(axis=0)))
            # A side with one run gets the variance over seeds of the other side.
            single = seeds * sum(len(other) == 1 for other, _ in sides)
            between.append(((1 + single) * max(0.0, variance_over_seeds(side, within, mean)), seeds - 1))
    if of_clips + sum(part for part, _ in between) == 0:
        return Bounds(float(difference), float(difference), 1.0 if difference == 0 else 1 / max(len(of_draws), 1))

    def half(tail: float) -> float:
        """Half of the width of the interval with `tail` on each side."""
        # `special` instead of SciPy's distributions, whose checks take nearly all of the time.
        squares = special.ndtri(tail) ** 2 * of_clips
        squares += sum(special.stdtrit(freedom, tail) ** 2 * part for part, freedom in between)
        return float(squares) ** 0.5

    # A difference beyond every quantile has no tail.
    tail = LEAST_TAIL
    # SciPy before 1.17 rounds the median to some 1e-17, which a difference of 0 is below.
    if abs(difference) <= half(0.5):
        tail = 0.5
    elif half(LEAST_TAIL) > abs(difference):
        tail = float(brentq(lambda candidate: half(candidate) - abs(difference), LEAST_TAIL, 0.5))
    p_value = 2 * tail
    width = half((1 - level) / 2)
    return Bounds(float(difference) - width, float(difference) + width, p_value)


def variance_over_seeds(values: np.ndarray, of_values: float, of_mean: float) -> float:
    """The part of the variance of the mean of values [S], S > 1, that is due to seeds; may be below 0 if seeds hardly differ.

    of_values   the variance over clips of one seed's value, averaged over seeds.
    of_mean     the variance over clips of the seeds' mean. `of_values` minus it is the interaction of seeds and clips, which is
                subtracted because the variance of the values includes it.
    """
    seeds = len(values)
    return float(values.var(ddof=1)) / seeds - max(0.0, of_values - of_mean) / (seeds - 1)


def warning_of_seeds(seeds: int) -> str:
    """A warning about intervals over few seeds; empty from `FEW_SEEDS` on."""
    if seeds >= FEW_SEEDS:
        return ""
    if seeds == 1:
        return "Careful: an interval of 1 seed is over the clips alone and does not include how seeds differ."
    return (
        f"Careful: {counted(seeds, 'seed')} are too few to estimate how seeds differ; their intervals are too narrow: use "
        f"{FEW_SEEDS} seeds or more."
    )


def _signed_mean(sides: Sequence[np.ndarray]) -> np.ndarray:
    """The mean over the seeds of the first, minus that of the second if there is one."""
    means = [side.mean(axis=0) for side in sides]
    return np.asarray(means[0] if len(means) == 1 else means[0] - means[1])


def across_seeds(runs: Sequence[Mapping[Metric, float]]) -> dict[Metric, Spread]:
    """Mean and deviation of every metric that all the runs have; the deviation of one run is NaN, not 0.

    When: the spread of a method over its seeds is wanted, whatever the clips.
    Related: `bootstrap_runs` has the interval of the mean, over clips and seeds.

    >>> from ray_atr.metrics import across_seeds
    >>> next(iter(across_seeds([{"accuracy": 0.25}, {"accuracy": 0.75}]).values())).mean
    0.5
    """
    if not runs:
        raise refuse("runs", "none", "one or more runs' metrics")
    shared = [name for name in runs[0] if all(name in run for run in runs)]
    values = {name: np.array([run[name] for run in runs]) for name in shared}
    return {
        name: Spread(float(v.mean()), float(v.std(ddof=1)) if len(v) > 1 else float("nan"), len(v))
        for name, v in values.items()
    }


Drawn = dict[Metric, np.ndarray]


def _of_runs(runs: Sequence[Samples], trained: Collection[str] | None, draws: int, seed: int) -> tuple[Drawn, Drawn]:
    """Each metric of each run, [runs], and the same under each draw of the clips, [runs, draws]."""
    groups = _unit_groups(runs[0])
    whole = [resampled(samples, np.ones((1, _num_units(groups))), trained) for samples in runs]
    parts = [[resampled(samples, weight, trained) for samples in runs] for weight in _weights(groups, draws, seed)]
    values = {name: np.array([run[name][0] for run in whole]) for name in whole[0]}
    drawn = {name: np.hstack([[run[name] for run in part] for part in parts]) for name in whole[0]}
    return values, drawn


def _unit_groups(samples: Samples) -> list[np.ndarray]:
    """The units of each kind (clips, classes). Different kinds share no number."""
    groups: list[np.ndarray] = []
    for sample in samples.values():
        units = np.unique(sample.unit)
        same = [group for group in groups if len(np.intersect1d(group, units))]
        others = [group for group in groups if not len(np.intersect1d(group, units))]
        groups = [*others, np.unique(np.concatenate([units, *same]))]
    return groups


def _num_clips(samples: Samples, name: Metric, trained: Collection[str] | None) -> int:
    """The clips, or classes, whose queries a metric is the mean of."""
    of_languages = {
        group.language: sample.unit
        for group, sample in samples.items()
        if group.task == name.task and name.name in sample.means
    }
    means = languages_of_means(of_languages, of_languages if trained is None else trained)
    units = [of_languages[language] for language in means.get(name.language, [name.language])]
    return len(np.unique(np.concatenate(units)))


def _num_units(groups: Sequence[np.ndarray]) -> int:
    return max(int(group.max()) for group in groups) + 1


def _weights(groups: Sequence[np.ndarray], draws: int, seed: int) -> Iterator[np.ndarray]:
    """How often each unit is drawn, [some draws, units]: of n units of a kind, n are drawn with replacement."""
    # One generator for each kind, so that the draws do not depend on how many are made at once.
    generators = [np.random.default_rng([seed, kind]) for kind in range(len(groups))]
    num_units = _num_units(groups)
    at_once = max(1, WEIGHTS_AT_ONCE // num_units)
    for start in range(0, draws, at_once):
        weight = np.zeros((min(at_once, draws - start), num_units))
        for units, generator in zip(groups, generators, strict=True):
            weight[:, units] = generator.multinomial(len(units), np.full(len(units), 1 / len(units)), size=len(weight))
        yield weight


def _check(runs: Sequence[Samples], draws: int, level: float) -> None:
    if draws < 1:
        raise refuse("draws", draws, "[1, inf)")
    if not 0 < level < 1:
        raise refuse("level", level, "(0, 1)")
    if not runs:
        raise refuse("runs", "none", "one or more runs' samples")
    for other in runs[1:]:
        check_same_queries(runs[0], other)
