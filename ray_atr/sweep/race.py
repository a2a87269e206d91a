"""Racing: drops points of a sweep that cannot be the best, by paired scores over clips and seeds.

A look is taken whenever all points in the race have finished one more seed, so decisions do not depend on the order in which
trials end. A point is dropped if another one is better and the joint interval of all pairs excludes 0:

- The mean difference of two points over n seeds and U clips has the variance of `metrics.over_clips_and_seeds`: that over clips
  of the mean over seeds, and that over seeds without the interaction, which the first holds already (two-way random effects).
- Seeds: one seed gives no variance over seeds, so `ASSUMED_DEVIATION` is used as a bound, with the normal quantile.
  From the second on the variance over seeds is pooled over the pairs, and that assumption counts as `ASSUMED_SEEDS` seeds
  besides (a scaled inverse chi-square prior, as Smyth 2004 moderates variances). A pair whose own seeds deviate more has its
  own variance.
- Points: the quantiles are of the studentized range (Tukey 1953; Hsu 1996), so that in all pairs at once no true
  difference is missed: one quantile for the clips' part and one for the seeds', combined as by Cochran (1964).
- Looks: look n spends `level` / 2^n. The sum over any number of looks is at most `level`, so seeds can be added later. (Group
  sequential plans, O'Brien and Fleming 1979, need to know the last look, and spend next to nothing at the first, at which
  there is the most to save. An e-process over some three seeds has no power: it allows for looks that are never taken.)

So the probability that any point that is the best is ever dropped is at most `level`, if seeds deviate by no more than is
assumed at the first look. If they deviate more, that look drops too much: simulations are in tests/sweep/test_race.py and
benchmarks/bench_race.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ray_atr.metrics.bootstrap import variance_over_seeds
from ray_atr.training.run_folder import RaceEvidence

LEVEL = 0.05
"""The probability that a point which is the best is dropped, over all looks and points of a cell."""
ASSUMED_DEVIATION = 0.05
"""Largest standard deviation over seeds of the difference of two points, on the same clips without end, before seeds show it.
Of methods for wrong pairs on vectors it was .00 to .013, and up to .055 for single points."""
ASSUMED_SEEDS = 4
"""Degrees of freedom of that assumption."""
FEWEST_CLIPS = 30
"""Least number of clips; with fewer, the mean over clips is not taken as normal, and nothing is dropped."""

Scores = Mapping[int, NDArray[np.float64]]
"""The scores of the U validation clips in the metric, by finished seed of a point, [U]."""


def run_race(
    points: Mapping[str, Scores],
    seeds: Sequence[int],
    *,
    before: Mapping[str, RaceEvidence] | None = None,
    out: Collection[str] = (),
) -> dict[str, RaceEvidence]:
    """The points that are dropped by what has finished, with the evidence; the seeds are in the order of the sweep. Points are
    compared on the same clips: U is the same for all.

    `before` are those that were dropped already. They stay so, and take part in the looks up to theirs, so that all looks are as
    they were. A look does not wait for seeds of points that are `out`, which have a failed trial: they leave the race undropped.
    """
    before = before or {}
    racing = list(points)
    dropped: dict[str, RaceEvidence] = {}
    for number in range(1, len(seeds) + 1):
        looked_at = seeds[:number]
        lacking = [name for name in racing if not all(seed in points[name] for seed in looked_at)]
        racing = [name for name in racing if name not in lacking or name not in out]
        if len(racing) < 2 or any(name in racing for name in lacking):
            break
        scores = {name: np.stack([points[name][seed] for seed in looked_at]) for name in racing}
        beaten = look(scores, len(points), LEVEL / 2**number)
        beaten |= {name: evidence for name, evidence in before.items() if evidence.seeds == number}
        dropped |= beaten
        racing = [name for name in racing if name not in beaten]
    return {**before, **dropped}


def look(scores: Mapping[str, NDArray[np.float64]], entrants: int, level: float) -> dict[str, RaceEvidence]:
    """The points that cannot be the best, by scores [n, U] of n seeds on the same U clips, each with its strongest evidence.

    `entrants` are the points that the race began with; `level` is the probability that any pair is misjudged.
    """
    names = list(scores)
    num_seeds, num_clips = next(iter(scores.values())).shape
    if num_clips < FEWEST_CLIPS or len(names) < 2:
        return {}
    pairs = list(itertools.combinations(names, 2))
    differences = {(first, second): _difference(scores[first] - scores[second]) for first, second in pairs}
    freedom_of_data = (len(names) - 1) * (num_seeds - 1)
    freedom = ASSUMED_SEEDS + freedom_of_data
    pooled = max(0.0, float(np.mean([of_seeds for _, _, of_seeds in differences.values()])))
    of_pairs = (ASSUMED_SEEDS * ASSUMED_DEVIATION**2 + freedom_of_data * pooled) / freedom
    z = _quantile(level, entrants, np.inf)
    t = z if num_seeds == 1 else _quantile(level, entrants, freedom)
    dropped: dict[str, RaceEvidence] = {}
    for (first, second), (mean, of_clips, of_seeds) in differences.items():
        half = float(np.sqrt(z**2 * of_clips + t**2 * max(of_pairs, of_seeds) / num_seeds))
        better, worse = (first, second) if mean > 0 else (second, first)
        evidence = RaceEvidence(better, num_seeds, abs(mean), abs(mean) - half, level)
        if evidence.at_least > 0 and (worse not in dropped or evidence.at_least > dropped[worse].at_least):
            dropped[worse] = evidence
    return {name: dropped[name] for name in names if name in dropped}


def _difference(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """(mean, variance of the mean over clips, variance of one seed's mean over endless clips) of differences [n, U]."""
    num_seeds, num_clips = values.shape
    over_seeds = values.mean(axis=0)
    of_clips = float(over_seeds.var(ddof=1)) / num_clips
    if num_seeds == 1:
        return float(over_seeds.mean()), of_clips, 0.0
    within = float(values.var(axis=1, ddof=1).mean()) / num_clips
    of_seeds = num_seeds * variance_over_seeds(values.mean(axis=1), within, of_clips)
    return float(over_seeds.mean()), of_clips, of_seeds


@lru_cache(maxsize=1024)
def _quantile(tail: float, points: int, freedom: float) -> float:
    """The quantile of the studentized range over the square root of 2: for two points, Student's two-sided one."""
    return float(stats.studentized_range.isf(tail, points, min(freedom, 1e6))) / 2**0.5
