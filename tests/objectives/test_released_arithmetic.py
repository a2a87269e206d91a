"""What the cited methods' released code computes, as plain loops on random inputs, against ours.

Each loop says in its own words what one function of the release does; the docstring names the repository and the file. Where
ours differs on purpose, the test holds the difference: `docs/noise.md` lists them. CRCL is in `test_correspondence.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.mixture import GaussianMixture
from torch import Tensor
from torch.nn import functional

from ray_atr.objectives.correspondence import CORRESPONDENCES, Correspondence, TeacherEmbeddings, TrainingPairs
from ray_atr.objectives.correspondence.scored import low_component
from ray_atr.objectives.pairs import Comparison, Complementary, Contrastive, LearningToMatch, Sigmoid, Triplet
from tests.support.pot_plans import pot_plan

N, D = 9, 6


def drawn(seed: int) -> tuple[Tensor, Tensor]:
    """Clips and texts that fit each other in part, [n, D] each, unit norm, float64; of seeds 3 and 4 n is 2 and 1, else N.

    Two pairs of seed 5 are equal.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = {3: 2, 4: 1}.get(seed, N)
    u, v = (torch.randn(rows, D, generator=generator, dtype=torch.float64) for _ in range(2))
    if seed == 5:
        u[1], v[1] = u[0], v[0]
    return functional.normalize(u, dim=1), functional.normalize(u + v, dim=1)


def both_ways(scores: list[list[float]]) -> list[list[list[float]]]:
    """The matrix and its transpose."""
    return [scores, [list(column) for column in zip(*scores, strict=True)]]


def scores_of(seed: int) -> tuple[Comparison, list[list[float]]]:
    """A text of seed 6 is as far from one clip as from another."""
    u, v = drawn(seed)
    if seed == 6:
        v[2] = 0
    return Comparison(u=u, v=v), (u @ v.T).tolist()


def softmax(row: list[float], tau: float) -> list[float]:
    exps = [math.exp(one / tau) for one in row]
    return [one / sum(exps) for one in exps]


SEEDS, SIZES = (pytest.mark.parametrize("seed", range(count)) for count in (3, 7))


@SIZES
def test_contrastive_is_that_of_m_ltm(seed: int) -> None:
    """v-manhlt3/m-LTM-Audio-Text-Retrieval, tools/loss.py, NTXent: half of each direction's mean -log softmax of the own."""
    case, scores = scores_of(seed)
    expected = sum(-math.log(softmax(row, 0.07)[i]) for way in both_ways(scores) for i, row in enumerate(way))
    assert float(Contrastive(temperature=0.07)(case).loss) == pytest.approx(expected / (2 * case.size), rel=1e-12)


def hardest(row: list[float], i: int) -> float:
    return max((max(0.2 + s - row[i], 0.0) for j, s in enumerate(row) if j != i), default=0.0)


def every(row: list[float], i: int) -> float:
    return sum(max(0.2 + s - row[i], 0.0) for j, s in enumerate(row) if j != i)


def weighted(row: list[float], i: int) -> float:
    """A row without a negative above the own score less the margin is left out, and so is an own score of 1."""
    near = [s for j, s in enumerate(row) if j != i and s + 0.2 > row[i]]
    if not near or row[i] >= 1 - 1e-5:
        return 0.0
    pull = max(0.2 * row[i] ** 2 - 0.7 * row[i] + 0.5, 0.0)
    return pull + max(0.9 * max(near) ** 2 - 0.4 * max(near) + 0.03, 0.0)


@SIZES
@pytest.mark.parametrize(("mining", "of_row"), [("hardest", hardest), ("all", every), ("weighted", weighted)])
def test_triplet_is_half_of_m_ltms(seed: int, mining: str, of_row: Callable[[list[float], int], float]) -> None:
    """tools/loss.py, TripletLoss, BiDirectionalRankingLoss and WeightTriplet: the sum of both directions over n; ours, half."""
    case, scores = scores_of(seed)
    released = sum(of_row(row, i) for way in both_ways(scores) for i, row in enumerate(way)) / case.size
    assert float(Triplet(margin=0.2, mining=mining)(case).loss) == pytest.approx(released / 2, rel=1e-9)


@SIZES
def test_sigmoid_is_that_of_big_vision(seed: int) -> None:
    """google-research/big_vision, trainers/proj/image_text/siglip.py: t and b on all pairs, sum over a row, mean over rows."""
    case, scores = scores_of(seed)
    total = 0.0
    for i, row in enumerate(scores):
        for j, score in enumerate(row):
            sign = 1 if i == j else -1
            total += math.log1p(math.exp(-sign * (10.0 * score - 10.0)))
    assert float(Sigmoid(temperature=0.1, bias=-10.0)(case).loss) == pytest.approx(total / case.size, rel=1e-9)


@SIZES
@pytest.mark.parametrize(("form", "q"), [("log", 0.5), ("tan", 0.5), ("gce", 0.5), ("abs", 1.0)])
def test_complementary_is_half_of_rcls(seed: int, form: str, q: float) -> None:
    """penghu-cs/RCL, RCL-SGRAF/model.py, CCL with all negatives: the sum of both directions' means; ours, half. Its form abs is
    ours gce with q = 1.
    """
    case, scores = scores_of(seed)
    cost = {
        "log": lambda p: -math.log(1 - p + 1e-10),
        "tan": math.tan,
        "gce": lambda p: (1 - (1 - p + 1e-10) ** 0.5) / 0.5,
        "abs": lambda p: p,
    }[form]
    released = 0.0
    for way in both_ways(scores):
        for i, row in enumerate(way):
            released += sum(cost(p) for j, p in enumerate(softmax(row, 0.1)) if j != i) / case.size
    ours = Complementary(temperature=0.1, form="gce" if form == "abs" else form, q=q)(case)
    assert float(ours.loss) == pytest.approx(released / 2, rel=1e-6)


@SEEDS
def test_learning_to_match_is_m_ltms_cross_entropy_less_a_constant(seed: int) -> None:
    """tools/loss.py, MahalalobisL2: -sum of log pi_ii / n under a distance divided by its largest; ours, less log n."""
    u, v = drawn(seed)
    distances = [[math.sqrt(sum((a - b) ** 2 for a, b in zip(one, other, strict=True))) for other in v] for one in u]
    largest = max(max(row) for row in distances)
    plan = pot_plan(torch.tensor([[d / largest for d in row] for row in distances], dtype=torch.float64), 0.05)
    released = -sum(math.log(float(plan[i, i])) for i in range(N)) / N
    ours = float(LearningToMatch(epsilon=0.05, metric="euclidean")(Comparison(u=u, v=v)).loss)
    assert ours == pytest.approx(released - math.log(N), abs=1e-7)


@SEEDS
def test_the_split_of_small_losses_decides_as_dividemixs(seed: int) -> None:
    """LiJunnan1992/DivideMix, Train_CIFAR.py, and NCR's co_train.py, eval_train: two normal components of losses scaled to
    [0, 1] by their extremes, ten steps; ours are scaled by percentiles, take more steps and never rise.
    """
    generator = np.random.default_rng(seed)
    losses = np.concatenate([generator.gamma(2.0, 0.4, 1800), generator.normal(4.5, 0.9, 1200)])
    scaled = ((losses - losses.min()) / (losses.max() - losses.min()))[:, None]
    mixture = GaussianMixture(n_components=2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0).fit(scaled)
    released = mixture.predict_proba(scaled)[:, mixture.means_.argmin()]
    ours = low_component(torch.from_numpy(losses)).numpy()
    assert ((released > 0.5) == (ours > 0.5)).mean() > 0.98
    assert np.abs(released - ours).mean() < 0.03


def beta_split(scaled: np.ndarray, steps: int) -> np.ndarray:
    """Posterior of the low one of two beta distributions: Beta(1, 2) and Beta(2, 1) first, then steps of moments. They are fitted
    to values kept away from 0 and 1, and then asked for the values as they are.
    """
    alphas, betas, shares = [1.0, 2.0], [2.0, 1.0], [0.5, 0.5]
    values = scaled.clip(1e-4, 1 - 1e-4)

    def likely(values: np.ndarray) -> np.ndarray:
        return np.stack([shares[k] * stats.beta.pdf(values, alphas[k], betas[k]) for k in range(2)])

    for _ in range(steps):
        posterior = np.maximum(likely(values), 1e-12)
        posterior /= posterior.sum(axis=0)
        for k in range(2):
            mean = float((posterior[k] * values).sum() / posterior[k].sum())
            variance = float((posterior[k] * (values - mean) ** 2).sum() / posterior[k].sum())
            alphas[k] = mean * (mean * (1 - mean) / variance - 1)
            betas[k] = alphas[k] * (1 - mean) / mean
        shares = (posterior.sum(axis=1) / posterior.sum()).tolist()
    return np.asarray(likely(scaled)[0] / (likely(scaled).sum(axis=0) + 1e-12))


@SEEDS
def test_the_split_by_beta_distributions_decides_as_bicros(seed: int) -> None:
    """xu5zhao/BiCro, co_train.py, and PaulAlbert31/LabelNoiseCorrection, utils.py, BetaMixture1D: ten steps from two fixed
    distributions; ours starts from a split at the median. L2RM fits by likelihood instead.
    """
    generator = np.random.default_rng(seed)
    losses = np.concatenate([generator.beta(2, 12, 3000), generator.beta(9, 3, 1000)])
    scaled = (losses - losses.min()) / (losses.max() - losses.min())
    ours = low_component(torch.from_numpy(losses), "bmm").numpy()
    released = beta_split(scaled, 10)
    assert ((released > 0.5) == (ours > 0.5)).mean() > 0.97
    # With as many steps both end at the same two distributions.
    assert np.abs(beta_split(scaled, 50) - ours).mean() < 0.03
    # The pair of the smallest loss of all is wrong there: a beta distribution has no density at 0.
    assert released[losses.argmin()] < 0.01
    assert ours[losses.argmin()] > 0.99


def judge(name: str, **settings: object) -> Correspondence:
    return CORRESPONDENCES[name](**settings)


def l2rm_plan(cost: np.ndarray, mass: float, epsilon: float) -> np.ndarray:
    """Balanced scaling of the cost with one more row and column, which take what is not transported; own pairs have none."""
    n = len(cost)
    wide = np.full((n + 1, n + 1), 100 * cost.max())
    wide[:n, :n] = cost
    wide[n, n] = 201 * cost.max()
    side = np.append(np.full(n, 1 / n), 1 - mass)
    log_kernel = -wide / epsilon
    log_kernel[range(n), range(n)] = -1e6
    rows, columns = np.zeros(n + 1), np.zeros(n + 1)
    for _ in range(3000):
        rows = np.log(side) - np.logaddexp.reduce(log_kernel + columns, axis=1)
        columns = np.log(side) - np.logaddexp.reduce(log_kernel + rows[:, None], axis=0)
    return np.asarray(np.exp(log_kernel + rows[:, None] + columns)[:n, :n])


@SEEDS
def test_rematch_is_near_l2rms_plan_on_the_same_cost(seed: int) -> None:
    """hhc1997/L2RM, models.py, partial_ot: mass .1, epsilon .07; the entropy of what is left over counts there, not here."""
    u, v = drawn(seed)
    estimator = judge("rematch").estimator(TrainingPairs(clip_ids=[str(row) for row in range(N)]))
    estimator.tables["clean_probabilities"].fill_(0.0)
    rows = torch.arange(N)
    found = estimator.for_batch(rows, 0 * rows)(Comparison(u=u, v=v, v_language=0 * rows))
    assert found.targets is not None
    assert found.sample_weight is not None
    cost = torch.cdist(u, v)
    plan = l2rm_plan((cost / cost.max()).numpy(), 0.1, 0.07)
    expected = plan / plan.sum(axis=1, keepdims=True)
    ours = found.targets.numpy()
    assert 0.5 * np.abs(ours - expected).sum(axis=1).max() < 0.12
    # By columns the release takes the same plan's columns; so does the loss here, through belief and targets.
    columns = found.column_targets()
    assert columns is not None
    ours_by_text = found.sample_weight[:, None] * found.targets
    torch.testing.assert_close(columns, (ours_by_text / ours_by_text.sum(dim=0)).T)


def bicro_labels(u: Tensor, v: Tensor, anchors: list[int]) -> list[float]:
    """Each side's most similar anchor; the ratio of the two sides' similarities to it, at most 1; the mean of both sides."""
    labels = []
    for a, t in zip(u, v, strict=True):
        audio, text = [float(a @ u[n]) for n in anchors], [float(t @ v[n]) for n in anchors]
        ratios = []
        for one, other in ((audio, text), (text, audio)):
            best = max(range(len(anchors)), key=lambda n: one[n])
            ratio = one[best] / other[best]
            ratios.append(ratio if ratio < 1 else other[best] / one[best])
        labels.append(sum(ratios) / 2)
    return labels


def test_neighbours_orders_pairs_better_than_bicros_ratio_of_one_anchor() -> None:
    """xu5zhao/BiCro, model.py, predict: the ratio is no overlap, so values differ; what is compared is the order."""
    generator = torch.Generator().manual_seed(0)
    meaning = torch.randn(120, 16, generator=generator)
    noise = torch.randn(2, 120, 16, generator=generator)
    wrong = torch.arange(40, 80)
    owner = torch.arange(120).index_copy(0, wrong, wrong.roll(1))
    u = functional.normalize(meaning + 0.5 * noise[0], dim=1)
    v = functional.normalize(meaning[owner] + 0.5 * noise[1], dim=1)
    estimator = judge("neighbours", warmup_epochs=9).estimator(TrainingPairs(clip_ids=[str(row) for row in range(120)]))
    rows = torch.arange(120)
    # The wrong pairs are not among the anchors of either.
    estimator.tables["clean_probabilities"][wrong] = 0.0
    for _ in range(2):
        estimator.for_batch(rows, 0 * rows)(Comparison(u=u, v=v, v_language=0 * rows))
    ours = estimator.tables["scores"].flatten()
    theirs = torch.tensor(bicro_labels(u, v, list(range(40))))
    judged = torch.arange(40, 120)
    is_true = judged >= 80

    def area(score: Tensor) -> float:
        true, false = score[judged][is_true], score[judged][~is_true]
        return float((true[:, None] > false).float().mean())

    assert area(theirs) > 0.55
    assert area(ours) > area(theirs)


@SIZES
@pytest.mark.parametrize("share", [1.0, 0.6])
def test_teacher_is_the_distillation_of_salsa(seed: int, share: float) -> None:
    """OptimusPrimus/salsa, experiments/ex_dcase24.py, training_step: the mean of the teachers' cosines; half of each
    direction's cross-entropy with its own softmax, over the captions of a clip and over the clips of a caption. Beside it the
    loss of the pairs; its weight there, which is squared by a line that stands twice, is 1 less the share here.
    """
    u, v = drawn(seed)
    n = len(u)
    teacher_embeddings = [tuple(side.roll(one, 0) for side in drawn(seed)) for one in (0, 1)]
    estimator = judge("teacher", teachers=("a", "b"), temperature=0.07, share=share).estimator(
        TrainingPairs(
            clip_ids=[str(row) for row in range(n)],
            teacher_embeddings=[
                TeacherEmbeddings(audio, text.flip(1)[:, None, None]) for audio, text in teacher_embeddings
            ],
        )
    )
    rows = torch.arange(n)
    judged = estimator.for_batch(rows, 0 * rows)(Comparison(u=u, v=v, v_language=0 * rows))
    student = (u @ v.T).tolist()
    taught = [[sum(float(a[i] @ t[j].flip(0)) for a, t in teacher_embeddings) / 2 for j in range(n)] for i in range(n)]
    expected = 0.0
    for scores, targets in zip(both_ways(student), both_ways(taught), strict=True):
        for i, (row, target) in enumerate(zip(scores, targets, strict=True)):
            logs = [math.log(p) for p in softmax(row, 0.07)]
            distilled = sum(t * log for t, log in zip(softmax(target, 0.07), logs, strict=True))
            expected -= (share * distilled + (1 - share) * logs[i]) / (2 * n)
    assert float(Contrastive(temperature=0.07)(judged).loss) == pytest.approx(expected, rel=1e-9, abs=1e-12)
