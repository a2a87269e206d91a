"""Which points a race drops, by simulated sweeps whose best point is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from ray_atr.metrics.bootstrap import over_clips_and_seeds
from ray_atr.sweep.race import ASSUMED_DEVIATION, ASSUMED_SEEDS, LEVEL, Scores, look, run_race

CLIPS = 400
Sweep = dict[str, Scores]


def simulated(gaps: list[float], seeds: int, deviation: float, generator: np.random.Generator) -> Sweep:
    """Hits of each point and seed: a clip's difficulty, how a point finds it, luck, and a seed's own shift; `gaps` is how
    much lower than .5 a point's expected R@1 is, and `deviation` that of the difference of two points over seeds.
    """
    points, spread = len(gaps), math.sqrt(1 + 0.5**2 + 0.6**2)
    density = stats.norm.pdf(0) / spread
    clip = generator.standard_normal(CLIPS) + 0.5 * generator.standard_normal((points, 1, CLIPS))
    shift = deviation / math.sqrt(2) / density * generator.standard_normal((points, seeds, 1))
    luck = 0.6 * generator.standard_normal((points, seeds, CLIPS))
    latent = spread * stats.norm.isf(0.5 + np.array(gaps))[:, None, None] + clip + shift + luck
    return {
        f"point {number}": dict(enumerate(of_point)) for number, of_point in enumerate((latent > 0).astype(np.float64))
    }


@pytest.mark.slow
@pytest.mark.parametrize("gaps", [[0.0] * 6, [0.0, 0.0, 0.02, 0.05, 0.1, 0.2]])
def test_a_best_point_is_dropped_in_one_race_of_twenty_at_most(gaps: list[float]) -> None:
    """With seeds that deviate by 5 points, more than most methods' do."""
    generator, races = np.random.default_rng(0), 100
    best = {f"point {number}" for number, gap in enumerate(gaps) if gap == 0}
    dropped = [run_race(simulated(gaps, 4, 0.05, generator), range(4)) for _ in range(races)]
    wrong = sum(bool(best & found.keys()) for found in dropped)
    assert wrong <= stats.binom.ppf(0.95, races, 0.05)


def test_points_that_are_far_behind_are_dropped_after_the_first_seed() -> None:
    found = run_race(simulated([0.0, 0.02, 0.35, 0.4], 3, 0.01, np.random.default_rng(1)), range(3))
    assert found.keys() == {"point 2", "point 3"}
    assert {evidence.seeds for evidence in found.values()} == {1}
    assert all(0 < evidence.at_least < evidence.ahead < 0.5 for evidence in found.values())
    assert found["point 3"].rival in ("point 0", "point 1")
    # The first look spends half of what all may.
    assert found["point 3"].level == 0.025


def test_two_points_over_many_seeds_have_the_interval_of_every_table() -> None:
    """Student's quantile for the seeds, the normal one for the clips, the variances of `over_clips_and_seeds`."""
    generator = np.random.default_rng(2)
    seeds, level = 12, 0.05
    (first, second) = simulated([0.0, 0.1], seeds, 0.1, generator).values()
    values = np.stack(list(first.values())) - np.stack(list(second.values()))
    weights = generator.multinomial(CLIPS, np.full(CLIPS, 1 / CLIPS), size=4000)
    expected = over_clips_and_seeds(values.mean(axis=1), values @ weights.T / CLIPS, 1 - level)
    found = look({"a": np.stack(list(first.values())), "b": np.stack(list(second.values()))}, 2, level)["b"]
    assert found.ahead == pytest.approx(values.mean())
    # What is assumed of seeds counts as four of fifteen.
    assert found.at_least == pytest.approx(expected.low, abs=0.25 * (values.mean() - expected.low))
    of_clips = values.mean(axis=0).var(ddof=1) / CLIPS
    shared = (values.var(axis=1, ddof=1).mean() / CLIPS - of_clips) * seeds / (seeds - 1)
    own = values.mean(axis=1).var(ddof=1) - shared
    freedom = ASSUMED_SEEDS + seeds - 1
    moderated = (ASSUMED_SEEDS * ASSUMED_DEVIATION**2 + (seeds - 1) * own) / freedom
    t, z = stats.t.isf(level / 2, freedom), stats.norm.isf(level / 2)
    half = math.sqrt(z**2 * of_clips + t**2 * max(moderated, own) / seeds)
    assert found.at_least == pytest.approx(values.mean() - half, abs=1e-4)


def test_the_interval_is_of_all_points_at_once_and_assumes_a_deviation_of_five_points_worth_four_seeds() -> None:
    """Two seeds that agree by chance, of two points of six: the assumption is what is left of the seeds' part."""
    generator, level = np.random.default_rng(4), 0.0125
    better = generator.random(CLIPS) < 0.9
    scores = {"a": np.tile(better * 1.0, (2, 1)), "b": np.tile(better * (generator.random(CLIPS) < 0.2), (2, 1))}
    found = look(scores, 6, level)["b"]
    gained = (scores["a"] - scores["b"])[0]
    z, t = (stats.studentized_range.isf(level, 6, freedom) / math.sqrt(2) for freedom in (1e6, 5))
    half = math.sqrt(z**2 * gained.var(ddof=1) / CLIPS + t**2 * (4 * 0.05**2 / 5) / 2)
    assert found.at_least == pytest.approx(gained.mean() - half, rel=1e-6)


def test_seeds_are_taken_to_differ_as_they_do_on_average_over_all_pairs() -> None:
    """Of three points one differs much more over its two seeds: the interval of the other two has the mean of the three pairs."""
    better = np.random.default_rng(5).random(CLIPS) < 0.9
    base = {"a": better * 1.0, "b": better * (np.arange(CLIPS) % 4 == 0), "c": better * (np.arange(CLIPS) % 2 == 0)}
    shift = {"a": 0.0, "b": 0.0, "c": 0.1}
    scores = {name: np.stack([one + shift[name], one - shift[name]]) for name, one in base.items()}
    found = look(scores, 3, 0.0125)["b"]
    gained = base["a"] - base["b"]
    pooled = 2 * (2 * 0.1**2) / 3
    freedom = ASSUMED_SEEDS + 2
    of_pairs = (ASSUMED_SEEDS * ASSUMED_DEVIATION**2 + 2 * pooled) / freedom
    z, t = (stats.studentized_range.isf(0.0125, 3, one) / math.sqrt(2) for one in (1e6, freedom))
    half = math.sqrt(z**2 * gained.var(ddof=1) / CLIPS + t**2 * of_pairs / 2)
    assert found.rival == "a"
    assert found.at_least == pytest.approx(gained.mean() - half, rel=1e-3)


def test_a_look_waits_for_the_seed_of_every_point_that_is_left() -> None:
    sweep = simulated([0.0, 0.4, 0.4], 3, 0.01, np.random.default_rng(3))
    late: Sweep = {**sweep, "point 2": {}}
    assert not run_race(late, range(3))
    # A point with a failed trial is waited for no more, and is not dropped.
    assert run_race(late, range(3), out=["point 2"]).keys() == {"point 1"}


def test_what_finishes_later_changes_no_look_that_was_taken() -> None:
    """Two points are dropped after one seed and one after three: later looks are alike whether or not the drops are told."""
    sweep = simulated([0.0, 0.05, 0.15, 0.3], 5, 0.02, np.random.default_rng(1))
    whole = run_race(sweep, range(5))
    assert len({evidence.seeds for evidence in whole.values()}) > 1, "a race with drops at several looks"
    for number in range(1, 6):
        known = {
            name: {seed: of_seed for seed, of_seed in scores.items() if seed < number} for name, scores in sweep.items()
        }
        so_far = run_race(known, range(5))
        assert so_far == {name: one for name, one in whole.items() if one.seeds <= number}
        # Dropped points get no further seed.
        left = {
            name: {seed: one for seed, one in scores.items() if name not in so_far or seed < so_far[name].seeds}
            for name, scores in sweep.items()
        }
        assert run_race(left, range(5), before=so_far) == whole


def test_every_look_is_at_the_level_of_all_points_that_began() -> None:
    """Else a race would grow surer of what is left by what it dropped."""
    sweep = simulated([0.0, 0.05, 0.12, 0.15, 0.3, 0.3], 4, 0.02, np.random.default_rng(0))
    dropped = run_race(sweep, range(4))
    later = {name: one for name, one in dropped.items() if one.seeds > 1}
    assert later
    for name, one in later.items():
        gone = {other for other, found in dropped.items() if found.seeds < one.seeds}
        scores = {
            other: np.stack([of_seed[seed] for seed in range(one.seeds)])
            for other, of_seed in sweep.items()
            if other not in gone
        }
        assert look(scores, len(sweep), LEVEL / 2**one.seeds)[name] == one
        assert look(scores, len(scores), LEVEL / 2**one.seeds)[name].at_least > one.at_least


def test_a_handful_of_clips_drops_nothing() -> None:
    few: Sweep = {name: {0: np.full(20, value), 1: np.full(20, value)} for name, value in (("a", 0.0), ("b", 1.0))}
    assert not run_race(few, range(2))
