"""Each judge written again as plain loops over numbers, on batches of one, two and more, with ties, zeros and missing languages.

The references keep their own state over epochs and share nothing with the package but what a run draws at random: the order of
anchors. Mixtures are expectation-maximisation by loops; plans are those of SciPy's solver.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import optimize, special, stats
from torch import Tensor
from torch.nn import functional

from ray_atr.objectives.correspondence import CORRESPONDENCES, TrainingPairs, both_ways
from ray_atr.objectives.correspondence.both_ways import FIRST_WEIGHT, LEAST_RIGHT, SHRINKAGE, BothWays
from ray_atr.objectives.correspondence.left_out import TAUS
from ray_atr.objectives.correspondence.noise_rate import (
    found_share,
    is_something_found,
    likeliest_wrong_share,
    p_values,
    wrong_share,
)
from ray_atr.objectives.correspondence.ridge import STRENGTHS
from ray_atr.objectives.correspondence.scored import low_component
from ray_atr.objectives.pairs import Comparison

Vector = list[float]
Floats = NDArray[np.float64]
Place = tuple[int, int, int]
"""Row, slot, language."""
EPOCHS, D = 3, 3


def dot(one: Vector, other: Vector) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def quantile(values: Vector, share: float) -> float:
    """Between the two values next to it, in proportion."""
    ordered, place = sorted(values), share * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def log_density(kind: str, values: Vector, weights: Vector) -> Floats:
    """Of the component of mean and variance of the weighted values, at each of them; .0005 is added to the variance."""
    total = max(sum(weights), 1e-8)
    mean = sum(w * x for w, x in zip(weights, values, strict=True)) / total
    square = sum(w * x * x for w, x in zip(weights, values, strict=True)) / total
    variance = max(square - mean**2, 0.0) + 5e-4
    if kind == "gmm":
        return np.asarray(stats.norm.logpdf(values, mean, math.sqrt(variance)))
    common = max(mean * (1 - mean) / variance - 1, 1e-2)
    return np.asarray(stats.beta.logpdf(values, max(mean * common, 1e-8), max((1 - mean) * common, 1e-8)))


def low_of_two(values: Vector, kind: str = "gmm", share: float | None = None) -> Vector:
    """How likely each value is of the low component: from a split at the median, at most 50 steps, then never rising."""
    if len(values) < 8:
        return [1.0] * len(values)
    first, last = (min(values), max(values)) if kind == "bmm" else (quantile(values, 0.01), quantile(values, 0.99))
    if last <= first:
        return [1.0] * len(values)
    edge = 1e-4 if kind == "bmm" else 0.0
    scaled = [min(max(min(max((x - first) / (last - first), 0.0), 1.0), edge), 1 - edge) for x in values]
    middle = sorted(scaled)[(len(scaled) - 1) // 2]
    low = [1.0 if x <= middle else 0.0 for x in scaled]
    for _ in range(50):
        high = [1 - w for w in low]
        of_low, of_high = max(sum(low), 1e-8), max(sum(high), 1e-8)
        if share is not None:
            of_low = min(max(share, 0.01), 0.99)
            of_high = 1 - of_low
        log_odds = log_density(kind, scaled, low) - log_density(kind, scaled, high) + math.log(of_low / of_high)
        before, low = low, special.expit(log_odds).tolist()
        if max(abs(a - b) for a, b in zip(low, before, strict=True)) < 1e-4:
            break
    mean = sum(w * x for w, x in zip(low, scaled, strict=True)) / max(sum(low), 1e-8)
    best = max((w for w, x in zip(low, scaled, strict=True) if x <= mean), default=1.0)
    raised = [best if x <= mean else w for w, x in zip(low, scaled, strict=True)]
    # A tie has what the first of its equals in order has; all of them have the same before.
    return [min(w for w, y in zip(raised, scaled, strict=True) if y <= x) for x in scaled]


MIXED: dict[str, Any] = {
    "two groups": lambda random: np.concatenate([random.normal(1, 0.3, 25), random.normal(3, 0.5, 15)]),
    "one group": lambda random: random.normal(0, 1, 30),
    "ties": lambda random: random.integers(0, 4, 40).astype(float),
    "two values": lambda random: np.repeat([0.0, 5.0], [30, 2]),
    "one far away": lambda random: np.append(random.normal(0, 1, 30), 1e6),
    "eight": lambda random: random.exponential(size=8),
    "seven": lambda random: random.exponential(size=7),
    "equal": lambda random: np.full(20, 2.5),
    "zeros": lambda random: np.append(np.zeros(25), random.exponential(size=9)),
}


@pytest.mark.parametrize("kind", ["gmm", "bmm"])
@pytest.mark.parametrize("given", [None, 0.0, 0.7])
@pytest.mark.parametrize("name", list(MIXED))
def test_a_mixture_is_expectation_maximisation_in_loops(name: str, kind: str, given: float | None) -> None:
    values = MIXED[name](np.random.default_rng(0))
    found = low_component(torch.from_numpy(values), kind, given)
    np.testing.assert_allclose(found.numpy(), low_of_two(values.tolist(), kind, given), atol=1e-6)


def partial_plan(cost: Floats, mass: float, epsilon: float) -> Floats:
    """The entropic plan of so much mass, by the dual problem, to which SciPy's solver knows no more than values and slopes.

    POT's partial plans move by thousandths for thousands of sweeps where costs are as far apart as here.
    """
    n = len(cost)

    def plan(dual: Floats) -> Floats:
        return np.asarray(np.exp((dual[:n, None] + dual[n : 2 * n] + dual[-1] - cost) / epsilon))

    def negative(dual: Floats) -> tuple[float, Floats]:
        moved = plan(dual)
        value = epsilon * moved.sum() - dual[:-1].sum() / n - dual[-1] * mass
        slope = [*(moved.sum(axis=1) - 1 / n), *(moved.sum(axis=0) - 1 / n), moved.sum() - mass]
        return float(value / epsilon), np.array(slope) / epsilon

    first = np.append(np.zeros(2 * n), epsilon * math.log(mass / np.exp(-cost / epsilon).sum()))
    bounds = [(None, 0.0)] * (2 * n) + [(None, None)]
    options = {"maxiter": 20_000, "ftol": 0, "gtol": 1e-9, "maxcor": 30}
    return plan(optimize.minimize(negative, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x)


class Reference:
    """A judge in loops: `judge` gives the weights, targets and reverse targets of a comparison's pairs, None for none."""

    def __init__(self, clips: int, slots: int, languages: int, settings: dict[str, Any]) -> None:
        self.shape, self.settings, self.epoch = (clips, slots, languages), settings, 0
        self.believed: dict[Place, float] = {}
        self.scores: dict[Place, float] = {}

    def begin(self, epoch: int) -> None:
        self.epoch = epoch
        if epoch >= self.settings.get("warmup_epochs", 2):
            self.believed = self.mixture(self.scores)

    def mixture(self, scores: dict[Place, float]) -> dict[Place, float]:
        """By language; what has no score there has the mean, and 1 where nothing has one."""
        believed = {}
        for language in range(self.shape[2]):
            known = [place for place in scores if place[2] == language]
            likely = low_of_two([-scores[place] for place in known])
            mean = sum(likely) / len(likely) if known else 1.0
            for row in range(self.shape[0]):
                for slot in range(self.shape[1]):
                    believed[row, slot, language] = mean
            believed.update(zip(known, likely, strict=True))
        return believed

    def weights(self, places: list[Place]) -> Vector:
        return [self.believed.get(place, 1.0) for place in places]

    def judge(self, places: list[Place], u: list[Vector], v: list[Vector], same: list[list[bool]]) -> Any:
        raise NotImplementedError


def losses(u: list[Vector], v: list[Vector], same: list[list[bool]], tau: float) -> list[tuple[float, float] | None]:
    """-log of each pair's own share among it and its negatives, in both directions; None without any negative."""
    found: list[tuple[float, float] | None] = []
    for i in range(len(u)):
        others = [j for j in range(len(u)) if not same[i][j]]
        own = math.exp(dot(u[i], v[i]) / tau)
        by_clip = own + sum(math.exp(dot(u[i], v[j]) / tau) for j in others)
        by_text = own + sum(math.exp(dot(u[j], v[i]) / tau) for j in others)
        found.append((-math.log(own / by_clip), -math.log(own / by_text)) if others else None)
    return found


def costs(u: list[Vector], v: list[Vector]) -> Floats:
    """Distances on the unit sphere over the largest; a vector of zeros is as far from everything as a right angle."""
    cost = np.array([[math.sqrt(max(2 - 2 * dot(one, other), 0.0)) for other in v] for one in u])
    return np.asarray(cost / max(cost.max(), 1e-12))


class SmallLosses(Reference):
    def judge(self, places: list[Place], u: list[Vector], v: list[Vector], same: list[list[bool]]) -> Any:
        for place, both in zip(places, losses(u, v, same, self.settings["temperature"]), strict=True):
            if both is not None:
                self.scores[place] = -(both[0] + both[1]) / 2
        return self.weights(places), None, None


class Rematched(SmallLosses):
    def judge(self, places: list[Place], u: list[Vector], v: list[Vector], same: list[list[bool]]) -> Any:
        weights = super().judge(places, u, v, same)[0]
        wrong = [i for i, weight in enumerate(weights) if weight < 0.5]
        if len(wrong) < 2:
            return weights, None, None
        targets = np.eye(len(u))
        cost = costs(u, v)[np.ix_(wrong, wrong)]
        own = np.array([[same[i][j] for j in wrong] for i in wrong])
        plan = np.where(own, 0.0, partial_plan(np.where(own, 2.0, cost), 0.1, 0.07))
        for place, i in enumerate(wrong):
            mass = plan[place].sum()
            targets[i] = 0.0
            for other, j in enumerate(wrong):
                targets[i, j] = plan[place, other] / mass if mass > 0 else 0.0
            weights[i] = min(1.0, len(wrong) * mass)
        return weights, targets.tolist(), None


class Refining(Reference):
    def begin(self, epoch: int) -> None:
        self.epoch = epoch

    def judge(self, places: list[Place], u: list[Vector], v: list[Vector], same: list[list[bool]]) -> Any:
        warmup, weights = self.settings["warmup_epochs"], []
        for place, both in zip(places, losses(u, v, same, self.settings["temperature"]), strict=True):
            before = self.believed.get(place)
            weight = 1.0
            if both is None:
                weight = 1.0 if self.epoch < warmup or before is None else before
            elif self.epoch >= warmup - 1:
                p = (math.exp(-both[0]) + math.exp(-both[1])) / 2
                if self.epoch == warmup - 1:
                    self.believed[place] = p
                else:
                    mean = p if before is None else 0.8 * before + 0.2 * p
                    weight = self.believed[place] = 0.0 if mean < 0.1 else mean
            weights.append(weight)
        return weights, None, None


class Agreeing(Reference):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.text: dict[Place, Vector] = {}
        self.own: dict[Place, float] = {}

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        if epoch >= self.settings["warmup_epochs"]:
            of_own = self.mixture(self.own)
            self.believed = {place: weight * of_own[place] for place, weight in self.believed.items()}

    def judge(self, places: list[Place], u: list[Vector], v: list[Vector], same: list[list[bool]]) -> Any:
        self.text.update(zip(places, v, strict=True))
        for place, clip, text in zip(places, u, v, strict=True):
            everything = [one for other, one in self.text.items() if other[0] == place[0]]
            total = [sum(column) for column in zip(*everything, strict=True)]
            others = [a - b for a, b in zip(total, text, strict=True)]
            self.scores[place] = dot(clip, total) / (math.hypot(*total) or 1.0)
            self.own.pop(place, None)
            if math.hypot(*others) > 1e-6:
                self.own[place] = dot(text, others) / math.hypot(*others)
        return self.weights(places), None, None


class Neighbouring(Reference):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.latest: dict[int, tuple[Vector, Vector]] = {}
        self.order: list[int] = []
        self.fixed: list[int] | None = None
        self.scored: list[Place] = []

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        self.scored = list(self.scores)
        self.fixed = self.chosen() if len(self.latest) == self.shape[0] else None

    def chosen(self) -> list[int]:
        found = []
        for row in self.order:
            each = [self.believed.get(place, 1.0) for place in self.scored if place[0] == row]
            if row in self.latest and (not each or sum(each) / len(each) >= 0.5):
                found.append(row)
        return found[: self.settings["anchors"]]

    def judge(self, places: list[Place], u: list[Vector], v: list[Vector], same: list[list[bool]]) -> Any:
        rows = self.chosen() if self.fixed is None else self.fixed
        anchors = {row: self.latest[row] for row in rows}
        for place, clip, text in zip(places, u, v, strict=True):
            among = [one for row, one in anchors.items() if row != place[0]]
            if len(rows) >= 2:
                q, r = (
                    [math.exp(dot(query, one[side]) / self.settings["temperature"]) for one in among]
                    for side, query in enumerate((clip, text))
                )
                overlap = sum(math.sqrt(a / sum(q) * b / sum(r)) for a, b in zip(q, r, strict=True))
                self.scores[place] = overlap
        for place, clip, text in zip(places, u, v, strict=True):
            self.latest[place[0]] = clip, text
        return self.weights(places), None, None


class Planned(Reference):
    def judge(self, places: list[Place], u: list[Vector], v: list[Vector], same: list[list[bool]]) -> Any:
        plan = partial_plan(costs(u, v), 0.6, 0.05)
        n = len(u)
        return [min(1.0, n * (plan[i].sum() + plan[:, i].sum()) / 2) for i in range(n)], None, None


JUDGES: dict[str, tuple[type[Reference], dict[str, Any]]] = {
    "small_loss": (SmallLosses, {"warmup_epochs": 1, "temperature": 0.3}),
    "rematch": (Rematched, {"warmup_epochs": 1, "temperature": 0.3}),
    "self_refining": (Refining, {"warmup_epochs": 2, "temperature": 0.2}),
    "consensus": (Agreeing, {"warmup_epochs": 1}),
    "neighbours": (Neighbouring, {"warmup_epochs": 1, "anchors": 5, "temperature": 0.4}),
    "transport": (Planned, {"transport_mass": 0.6}),
}


class Drawn:
    """Clips with captions in some of the languages, partly equal, zero or wrong, and how they move from epoch to epoch."""

    def __init__(self, seed: int, batch: int) -> None:
        self.random = np.random.default_rng(seed)
        self.shape = N, J, K = 22, 1 + seed % 2, 1 + seed % 3 if seed % 2 else 2
        self.batch = batch
        meaning = self.random.normal(size=(N, D))
        self.audio = meaning + 0.3 * self.random.normal(size=(N, D))
        self.text = meaning[:, None, None] + 0.3 * self.random.normal(size=(N, J, K, D))
        self.text[: N // 3] = self.random.normal(size=(N // 3, J, K, D))
        self.has = self.random.random((N, K)) < 0.8
        self.has[:, 0] |= ~self.has.any(axis=1)
        # Equal vectors tie; clips of one group say the same.
        self.audio[5] = self.audio[6]
        self.text[9:12] = self.text[8]
        self.group = torch.arange(N)
        self.group[9:12] = 8
        self.audio[2] = 0.0
        self.text[3] = 0.0

    def epoch(self) -> Iterator[tuple[Tensor, Tensor, int, Comparison]]:
        """(rows, slots, language, comparison) of each comparison; some clips are in no batch."""
        N, J, K = self.shape
        self.audio += 0.1 * self.random.normal(size=self.audio.shape) * (self.audio != 0)
        order = torch.from_numpy(self.random.permutation(N))[: N - 3]
        for rows in order.split(self.batch):
            slots = torch.from_numpy(self.random.integers(0, J, len(rows)))
            for k in range(K):
                own = torch.from_numpy(self.has[rows.numpy(), k]).nonzero().squeeze(1)
                if len(own):
                    u, v = (
                        functional.normalize(torch.from_numpy(one), dim=1)
                        for one in (self.audio[rows[own].numpy()], self.text[rows[own].numpy(), slots[own].numpy(), k])
                    )
                    yield (
                        rows,
                        slots,
                        k,
                        Comparison(
                            u=u,
                            v=v,
                            rows=None if len(own) == len(rows) else own,
                            groups=self.group[rows[own]][:, None],
                            v_language=torch.full((len(own),), k),
                        ),
                    )


@pytest.mark.parametrize(("seed", "batch"), [(0, 1), (1, 2), (0, 11), (1, 11)])
@pytest.mark.parametrize("name", list(JUDGES))
def test_a_judge_is_what_its_loops_say(name: str, seed: int, batch: int) -> None:
    kind, settings = JUDGES[name]
    drawn = Drawn(seed, batch)
    N, J, K = drawn.shape
    estimator = CORRESPONDENCES[name](**settings).estimator(
        TrainingPairs(clip_ids=[f"clip {row}" for row in range(N)], slots=J, languages=K)
    )
    reference: Any = kind(N, J, K, settings)
    reference.order = getattr(estimator, "order", torch.arange(N)).tolist()
    seen: list[float] = []
    # A plan is of its batch alone.
    for epoch in range(1 if name == "transport" else EPOCHS):
        estimator.begin_epoch(epoch)
        reference.begin(epoch)
        for rows, slots, k, case in drawn.epoch():
            found = estimator.for_batch(rows, slots)(case)
            own = case.row_numbers
            places = [(int(rows[i]), int(slots[i]), k) for i in own]
            weights, targets, _ = reference.judge(
                places, case.u.tolist(), case.v.tolist(), case.positive_mask().tolist()
            )
            assert found.sample_weight is not None
            assert found.sample_weight.tolist() == pytest.approx(weights, abs=2e-4), (epoch, k)
            if targets is None:
                assert found.targets is None
            else:
                np.testing.assert_allclose(found.targets, targets, atol=2e-4)
            seen += weights
            # Rounding in float32 does not decide from one epoch to the next.
    if batch > 2 or name != "transport":
        assert len({round(weight, 3) for weight in seen}) > (3 if batch > 1 else 0)


def ridge(rows: Floats, targets: Floats) -> tuple[Floats, Callable[[Floats], Floats]]:
    """What is predicted for each row by a regression of its own on the others, and for further rows by one on all; each less the
    mean of what it was fitted to. The strength is the one with the least squared error of the first.
    """
    every = list(range(len(rows)))

    def predicted(further: Floats, of: list[int], strength: float) -> Floats:
        x, t = rows[of] - rows[of].mean(axis=0), targets[of] - targets[of].mean(axis=0)
        weights = np.linalg.solve(x.T @ x + strength * np.eye(x.shape[1]), x.T @ t)
        return np.asarray((further - rows[of].mean(axis=0)) @ weights)

    def without_each(strength: float) -> Floats:
        return np.array([predicted(rows[i], [n for n in every if n != i], strength) for i in every])

    def error(strength: float) -> float:
        means = [np.delete(targets, i, axis=0).mean(axis=0) for i in every]
        return float(((targets - means - without_each(strength)) ** 2).sum())

    scale = np.trace(np.cov(rows.T, ddof=0)) * len(rows) / rows.shape[1]
    strength = min((s * scale for s in STRENGTHS), key=error)
    return without_each(strength), lambda further: predicted(further, every, strength)


def likeliest_tau(own: Floats, every: Floats, prior: Floats, share: float) -> tuple[float, Floats]:
    """The tau under which captions with fits `own` [m] among `every` [m, bank] are the likeliest; how likely each is right."""
    best, found = -math.inf, (0.0, own)
    for tau in TAUS:
        ratio = [
            math.exp(o / tau) / sum(p * math.exp(e / tau) for p, e in zip(prior, row, strict=True))
            for o, row in zip(own, every, strict=True)
        ]
        total = sum(math.log(share * r + 1 - share) for r in ratio)
        if total > best:
            best, found = total, (float(tau), np.array([share * r / (share * r + 1 - share) for r in ratio]))
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_the_audits_judge_is_two_regressions_in_loops(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random, share, sounds = np.random.default_rng(seed), 0.7, 6
    monkeypatch.setattr(both_ways, "wrong_share", lambda p_value: SimpleNamespace(share=1 - share))
    sound = np.arange(36) % sounds
    audio = random.normal(size=(sounds, 4))[sound] + 0.4 * random.normal(size=(36, 4))
    audio /= np.linalg.norm(audio, axis=1, keepdims=True)
    # The first clips have two captions; a third of all is another sound's.
    clip = np.append(np.arange(36), np.arange(8))
    said = np.where(random.random(len(clip)) < 0.3, random.integers(0, sounds, len(clip)), sound[clip])
    text = random.normal(size=(sounds, 3))[said]
    held_out = np.array([3, 11, 20, 29])
    clips, captions = BothWays(audio, text, clip, said.astype(str)).vectors(held_out)

    words = text - text.mean(axis=0)
    words /= np.linalg.norm(words, axis=1, keepdims=True)
    first = [int(np.flatnonzero(said == one)[0]) for one in range(sounds)]
    seen = np.flatnonzero(~np.isin(clip, held_out))
    bank = [one for one in range(sounds) if (said[seen] == one).any()]
    prior = np.array([(said[seen] == one).mean() for one in bank])
    rival, others = [first[one] for one in bank], np.unique(clip[seen])
    row = np.searchsorted(others, clip[seen])
    left_out, predict = ridge(audio[others], np.array([words[seen[row == i]].mean(axis=0) for i in range(len(others))]))
    centre = left_out.mean(axis=0)
    fits = left_out @ words.T
    deviation = fits.std(axis=0)
    s = (fits - fits.mean(axis=0)) / deviation
    tau, right = likeliest_tau(s[row, seen], s[row][:, rival], prior, share)
    fit = FIRST_WEIGHT * ((predict(audio[held_out]) - centre) @ words.T) / deviation / tau
    believed = right > 0.5
    for _ in range(2):
        of = seen[believed] if believed.sum() >= LEAST_RIGHT else seen
        near, expect = ridge(words[of], audio[clip[of]])
        middle, expected = audio[clip[of]].mean(axis=0), expect(words)
        errors = audio[clip[of]] - middle - near
        covariance = errors.T @ errors / len(of)
        covariance += SHRINKAGE * np.trace(covariance) / len(covariance) * np.eye(len(covariance))

        def density(sound: Floats, about: Floats, middle: Floats = middle, covariance: Floats = covariance) -> float:
            """Beside that around the mean of all."""
            normal = stats.multivariate_normal
            return float(normal.logpdf(sound, middle + about, covariance) - normal.logpdf(sound, middle, covariance))

        own = expected.copy()
        own[of] = near
        every = np.array([[density(audio[clip[m]], expected[c]) for c in rival] for m in seen])
        scale = every.std()
        tau, again = likeliest_tau(
            np.array([density(audio[clip[m]], own[m]) for m in seen]) / scale, every / scale, prior, share
        )
        both = fit + np.array([[density(audio[h], about) for about in expected] for h in held_out]) / scale / tau
        believed = right + again > 1
    wanted = [
        [value - math.log(sum(p * math.exp(values[c]) for p, c in zip(prior, rival, strict=True))) for value in values]
        for values in both
    ]
    np.testing.assert_allclose(clips @ captions.T, wanted, atol=1e-8)


@pytest.mark.parametrize("seed", range(4))
def test_what_p_values_say_is_counted_in_loops(seed: int) -> None:
    random = np.random.default_rng(seed)
    scores, null = random.integers(0, 9, 60) + 2.0 * (seed > 1), random.integers(0, 9, 40).astype(float)
    p_value = p_values(scores, null)
    assert p_value.tolist() == pytest.approx([(1 + sum(n >= s for n in null)) / 41 for s in scores])
    clip = random.integers(0, 25, 60) if seed % 2 else np.arange(60)
    large = [p > 0.5 for p in p_value]
    counts = [sum(big for big, c in zip(large, clip, strict=True) if c == one) for one in range(60)]
    total, found = sum(counts), wrong_share(p_value, clip)
    together = sum(n * n for n in counts) / total if total else 60 / len(set(clip.tolist()))
    assert (found.share, found.together) == pytest.approx((min(1.0, 2 * total / 60), together))
    # The upper end is the mean from which the count is 1.645 of that mean's own deviations away.
    most = optimize.brentq(lambda mean: mean - total - 1.645 * math.sqrt(together * mean), total + 1e-9, 1e4)
    assert found.most == pytest.approx(min(1.0, 2 * most / 60))
    assert found.least == pytest.approx(min(1.0, max(0.0, 2 * (total - 1.645 * math.sqrt(together * total)) / 60)))
    known = p_value.copy()
    known[:5] = np.nan
    told = {int(c): [p for p, other in zip(known, clip, strict=True) if other == c and p == p] for c in clip}
    means = [sum(each) / len(each) for each in told.values() if each]
    deviation = np.std(means) * math.sqrt(2 / len(means))
    assert is_something_found(known, clip) == (stats.norm.cdf(np.mean(means), 0.5, deviation) <= 1e-3)
    low = sum(p <= 0.05 for p in p_value) / 60
    for wrong in (0.0, 0.3, 1.0):
        assert found_share(p_value, wrong) == pytest.approx(
            min(1.0, max(0.0, (low - 0.05 * wrong) / max(1 - wrong, 0.1)))
        )


@pytest.mark.parametrize("seed", range(3))
def test_the_likeliest_share_is_that_of_a_grid_in_loops(seed: int) -> None:
    random = np.random.default_rng(seed)
    z = np.append(random.normal(size=40), random.normal(1 + seed, size=110))
    p_value = stats.norm.sf(z)
    ends = [0.0, 0.05, 0.2, 0.5, 1.0]
    counts = [sum(a < p <= b for p in p_value) for a, b in pairwise(ends)]
    best = (-math.inf, 0.0)
    for mean in np.linspace(1, 4.5, 36):
        moved = [stats.norm.sf(stats.norm.isf(end), mean) for end in ends]
        right = [b - a for a, b in pairwise(moved)]
        for wrong in range(0, 1001, 20):
            each = [wrong / 1000 * (b - a) for a, b in pairwise(ends)]
            density = [w + (1 - wrong / 1000) * r for w, r in zip(each, right, strict=True)]
            best = max(best, (sum(n * math.log(d) for n, d in zip(counts, density, strict=True)), wrong / 1000))
    assert likeliest_wrong_share(p_value) == pytest.approx(best[1], abs=0.02)
