"""A pair that is not believed is at most a negative: in every pair loss, under every correspondence, on several workers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import pytest
import torch
from test_two_workers import identity
from torch import Tensor

from ray_atr.objectives import PAIRS, Embeddings, Objective
from ray_atr.objectives.correspondence import CORRESPONDENCES, Estimator, TrainingPairs
from ray_atr.objectives.correspondence.leave_one_out import LeaveOneOutEstimator
from ray_atr.objectives.pairs import (
    Comparison,
    ContrastiveEntropic,
    LearningToMatch,
    PairLoss,
    PartialLearningToMatch,
    Triplet,
)
from ray_atr.objectives.schemes import Cacl
from ray_atr.training.group import WorkerGroup
from tests.support.threads import run_threads
from tests.support.whole_product import IS_WHOLE

N, LANGUAGES = 8, 2
WRONG = torch.tensor([2, 5])
TWINS = torch.tensor([0, 0, 1, 1, 1, 2, 3, 4])
"""Clips of one number have the same caption: the wrong clip 2 has that of 3 and 4, which are believed."""

LOSSES: dict[str, PairLoss] = {name: loss() for name, loss in PAIRS.items()} | {
    "triplet": Triplet(mining="all", margin=0.6),
    # The largest cost of a batch, by which all are divided, has a gradient of its own, whoever's it is.
    "learning_to_match": LearningToMatch(metric="euclidean", detach_maximum=True),
    "partial_learning_to_match": PartialLearningToMatch(metric="euclidean", detach_maximum=True),
    # The entropic term alone spreads every row over all of it.
    "contrastive_entropic": ContrastiveEntropic(epsilon=1e-9),
}
RELABELLED = TWINS.index_put((WRONG,), torch.tensor([0, 3]))
"""What a regression would predict: the wrong clip 2 sounds as 0 and 1 do, and 5 as 6 does."""
PREDICTING = "leave_one_out that predicts"
JUDGING = [*(name for name in CORRESPONDENCES if name not in ("none", "teacher")), PREDICTING]
"""The others believe every pair. Of `leave_one_out`, small loss that takes its place comes first."""
SETTINGS = {"transport": {"transport_mass": 0.6, "epsilon": 0.02}}
"""What makes a method disbelieve the wrong ones that keeps nothing of a pair from batch to batch."""
CASES = list(itertools.product(LOSSES, JUDGING, (None, "captions"), (0, 1)))
OF_TWO = [case for case in CASES if case[3] == 0][:: 1 if IS_WHOLE else 3]
"""On two workers: each loss with some judges, and each judge with some losses."""


def judging(name: str) -> Estimator:
    """An estimator that believes all pairs but the wrong ones, in every language."""
    truth = torch.ones(N, 1, LANGUAGES, dtype=torch.bool)
    truth[WRONG] = False
    pairs = TrainingPairs([str(i) for i in range(N)], 1, LANGUAGES, truth=truth)
    estimator = CORRESPONDENCES[name.split()[0]](**SETTINGS.get(name, {})).estimator(pairs)
    if name == PREDICTING:
        assert isinstance(estimator, LeaveOneOutEstimator)
        estimator.take(predictions(truth))
    estimator.begin_epoch(0)
    estimator.epoch = 5
    if "clean_probabilities" in estimator.tables:
        estimator.tables["clean_probabilities"].copy_(truth.double())
    return estimator


def predictions(truth: Tensor) -> dict[str, Tensor]:
    """A regression's result that knows which pairs are wrong and what the clips sound like, in every language."""

    def tabled(values: Tensor) -> Tensor:
        return values[:, None, None].expand(N, 1, LANGUAGES, *values.shape[1:])

    names = torch.eye(int(TWINS.max()) + 1)
    certain = 50.0
    return {
        "left_out": truth.float(), "log_prior": tabled(torch.zeros(N)), "caption": tabled(TWINS),
        "log_total": tabled(torch.full((N,), certain)),
        "predicted": tabled(names[RELABELLED]), "wanted": tabled(certain * names[TWINS]),
    }  # fmt: skip


def pulls(case: tuple[str, str, str | None, int], gather: Callable[[Tensor], Tensor], own: slice) -> Tensor:
    """The loss's gradients [n, 2 N] by the similarities of the own clips to every text and of the own texts to every clip.

    The other side is the identity matrix, so that a side's values are its similarities.
    """
    loss, correspondence, caption, language = case
    rows, found = torch.arange(N), list[Tensor]()
    # A wrong pair fits badly and every other one well, so that those that judge by one batch agree.
    similarity = torch.rand(N, N, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.2
    similarity += 0.25 * (TWINS[:, None] == TWINS)
    similarity[WRONG] = similarity[WRONG].flip(1) - 0.4
    similarity[WRONG, WRONG] = -0.8
    for sides in (lambda one, eye: (one, eye), lambda one, eye: (eye, one)):
        leaf = (similarity if not found else similarity.T)[own].clone().requires_grad_()
        u, v = sides(gather(leaf), torch.eye(N, dtype=torch.float64))
        comparison = Comparison(u=u, v=v, v_language=torch.full((N,), language))
        if caption is not None:
            comparison = Comparison(u=u, v=v, v_language=comparison.v_language, positives=TWINS[:, None] == TWINS)
        judged = judging(correspondence).for_batch(rows, 0 * rows)(comparison)
        assert judged.sample_weight is not None
        if correspondence == "transport":
            # One batch's plan leaves a little to everybody.
            judged = dataclasses.replace(
                judged, sample_weight=judged.sample_weight.masked_fill(judged.sample_weight < 0.2, 0.0)
            )
        LOSSES[loss](judged).loss.backward()
        assert leaf.grad is not None
        found.append(leaf.grad)
    return torch.cat(found, dim=1)


def check(case: tuple[str, str, str | None, int], gradients: Tensor) -> None:
    """The promise, on the gradients of all pairs [N, 2 N]."""
    of_clips, of_texts = gradients.split(N, dim=1)
    same = torch.eye(N, dtype=torch.bool) if case[2] is None else TWINS[:, None] == TWINS
    largest = float(gradients.abs().max())
    if case[0] == "complementary" and case[1] in ("rematch", PREDICTING):
        # The own caption of a clip with another partner is a negative, and this loss pulls on a negative while others are nearer.
        same = torch.eye(N, dtype=torch.bool)
    own = torch.eye(N, dtype=torch.bool)
    # With another partner the clip is in the batch, and its text is that of its twins' clips.
    of_own_text = own if case[1] == PREDICTING else same
    # A plan gives each text its mass, which the partners that are predicted do not: what is left over moves the others.
    is_plan = case[0] in ("learning_to_match", "partial_learning_to_match")
    allowed = 1e-6 if case[1] != PREDICTING else 0.003 if is_plan else 1e-5
    for wrong in WRONG:
        for gradient, not_pulled in ((of_clips, same), (of_texts, of_own_text)):
            assert float(gradient[wrong, not_pulled[wrong]].min()) >= -allowed * largest
        if case[1] == PREDICTING:
            partners = RELABELLED[wrong] == TWINS
            assert float(of_clips[wrong, partners].min()) < -0.001 * largest, "pulled to what it sounds as"
    # A clip with a twin of another weight, or with a relabelled one, may have enough of its text.
    believed = of_clips.diagonal()[[3] if case[1] == PREDICTING else [0, 3, 6]]
    assert float(believed.max()) < 0


def name_of(case: tuple[str, str, str | None, int]) -> str:
    return " ".join(map(str, case))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_disbelieved_pair_is_at_most_a_negative(case: tuple[str, str, str | None, int]) -> None:
    check(case, pulls(case, identity, slice(None)))


def test_a_weight_that_is_nearly_0_is_0() -> None:
    estimator = judging("small_loss")
    estimator.tables["clean_probabilities"][:3] = torch.tensor([1e-38, 1e-20, 1e-3], dtype=torch.float64)[:, None, None]
    rows = torch.arange(N)
    eye = torch.eye(N, dtype=torch.float64)
    judged = estimator.for_batch(rows, 0 * rows)(Comparison(u=eye, v=eye, v_language=torch.zeros(N, dtype=torch.long)))
    assert judged.sample_weight is not None
    assert judged.sample_weight[:2].tolist() == [0, 0]
    assert judged.sample_weight[:3].tolist() == pytest.approx([0, 0, 1e-3], abs=1e-9)
    assert 0 < float(estimator.epoch_probabilities[0, 0, 0]) < float(estimator.epoch_probabilities[1, 0, 0]), (
        "the detector's ranks"
    )


def work(rank: int, size: int) -> list[Tensor]:
    own = slice(rank * N // size, (rank + 1) * N // size)
    return [pulls(case, WorkerGroup(rank, size).gather, own) / size for case in OF_TWO]


def test_a_disbelieved_pair_is_at_most_a_negative_on_two_workers() -> None:
    by_worker = run_threads(work, 2)
    for case, *parts in zip(OF_TWO, *by_worker, strict=True):
        whole = torch.cat(parts)
        check(case, whole)
        torch.testing.assert_close(whole, pulls(case, identity, slice(None)), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("caption", [None, "captions"])
@pytest.mark.parametrize("loss", LOSSES)
def test_belief_0_is_as_good_as_not_in_the_batch(loss: str, caption: str | None) -> None:
    u, v = (torch.randn(N, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in (1, 2))
    u, v = (torch.nn.functional.normalize(side, dim=1) for side in (u, v))
    sample_weight = torch.tensor([1.0, 0.7, 0.0, 1.0, 0.4, 0.0, 0.9, 1.0], dtype=torch.float64)
    kept = sample_weight.nonzero().squeeze(1)
    same = None if caption is None else TWINS[:, None] == TWINS
    part = None if same is None else same[kept][:, kept]
    found = LOSSES[loss](Comparison(u=u, v=v, positives=same, sample_weight=sample_weight)).loss
    alone = LOSSES[loss](Comparison(u=u[kept], v=v[kept], positives=part, sample_weight=sample_weight[kept])).loss
    torch.testing.assert_close(found, alone * len(kept) / N, rtol=1e-6, atol=1e-9)


def test_a_wrong_translation_is_not_pulled_to_the_right_captions_of_its_clip() -> None:
    """CACL compares English with another language too. If all captions are another clip's, they belong together."""
    truth = torch.ones(N, 1, LANGUAGES, dtype=torch.bool)
    truth[2, 0, 1], truth[5] = False, False
    pairs = TrainingPairs([str(i) for i in range(N)], 1, LANGUAGES, truth=truth)
    generator = torch.Generator().manual_seed(0)
    text = torch.randn(N, LANGUAGES, 6, generator=generator, dtype=torch.float64).requires_grad_()
    embeddings = Embeddings(torch.randn(N, 6, generator=generator, dtype=torch.float64), text)
    objective = Objective(scheme=Cacl(), correspondence=CORRESPONDENCES["oracle"]())
    rows, draw = torch.arange(N), torch.ones(N, dtype=torch.int64)
    weigh_pairs = objective.correspondence.estimator(pairs).for_batch(rows, 0 * rows)
    objective(embeddings, draw=draw, weigh_pairs=weigh_pairs).loss.backward()
    assert text.grad is not None
    pulled = text.grad.abs().sum(dim=2) > 1e-12
    assert pulled.tolist() == [[True, row != 2] for row in range(N)]
