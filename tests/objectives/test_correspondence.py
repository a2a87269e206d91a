"""Each method's formula as loops or by another library, and what all of them have in common."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.calibration import calibration_curve
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture
from test_two_workers import retrieved_for
from torch import Tensor
from torch.nn import functional

from ray_atr.common.override import flatten, override
from ray_atr.objectives import KNOWLEDGE, PAIRS, SCHEMES, Embeddings, LearnedParameters, Objective
from ray_atr.objectives.correspondence import (
    CORRESPONDENCES,
    Correspondence,
    Estimator,
    TeacherEmbeddings,
    TrainingPairs,
)
from ray_atr.objectives.correspondence.clean_share import PairVectors
from ray_atr.objectives.correspondence.correspondence import PairEstimate, PairIndex
from ray_atr.objectives.correspondence.detection import clean_pairs_lost, detection, probability_ranks
from ray_atr.objectives.correspondence.leave_one_out import LeaveOneOutEstimator
from ray_atr.objectives.correspondence.scored import low_component
from ray_atr.objectives.pairs import Comparison, Contrastive
from ray_atr.training.knowledge_base.snapshot import in_utf8
from tests.support.pot_plans import pot_plan
from tests.support.tiny import any_towers_will_do
from tests.support.whole_product import IS_WHOLE

N, J, K, D, NARROW = 96, 2, 3, 16, 6
BATCH = 16
TAU = 0.07


class World:
    """N clips with J captions in K languages, embedded as a half-trained model would; a third of the clips is mispaired,
    and one caption in ten mistranslated.
    """

    def __init__(self, seed: int = 0, width: int = D) -> None:
        generator = torch.Generator().manual_seed(seed)

        def unit(*shape: int) -> Tensor:
            return functional.normalize(torch.randn(*shape, generator=generator), dim=-1)

        meaning = unit(N, width)
        self.audio = functional.normalize(meaning + 0.5 * unit(N, width), dim=-1)
        self.owner = torch.arange(N)
        wrong = torch.arange(0, N, 3)
        self.owner[wrong] = wrong.roll(1)
        self.text = functional.normalize(meaning[self.owner][:, None, None] + 0.4 * unit(N, J, K, width), dim=-1)
        mistranslated = torch.rand(N, J, K, generator=generator) < 0.1
        self.text = torch.where(mistranslated[..., None], unit(N, J, K, width), self.text)
        self.is_mispaired = torch.zeros(N, dtype=torch.bool).index_fill(0, wrong, True)
        self.truth = ~self.is_mispaired[:, None, None] & ~mistranslated
        self.ids = [f"clip {row:03d}" for row in range(N)]
        self.generator = generator
        self.estimated: dict[str, Tensor] = {}

    def pairs(self, order: Tensor | None = None, **changes: Any) -> TrainingPairs:
        order = torch.arange(N) if order is None else order
        given = {
            "clip_ids": [self.ids[row] for row in order],
            "slots": J,
            "languages": K,
            "truth": self.truth[order],
            "teacher_embeddings": [TeacherEmbeddings(self.audio[order], self.text[order])],
        }
        return TrainingPairs(**{**given, **changes})

    def estimator(self, name: str, order: Tensor | None = None) -> Estimator:
        """Of a run that knows how many pairs are wrong, and whose regression is relied on: what others use in their place is not
        what the method is for.
        """
        share = 1 - float(self.truth.float().mean())
        made = method(name).estimator(self.pairs(order, needs_clean_share=True, wrong_shares=[share] * K))
        if isinstance(made, LeaveOneOutEstimator) and order is None:
            made.take(self.left_out(made))
        return made

    def left_out(self, estimator: LeaveOneOutEstimator) -> dict[str, Tensor]:
        if not self.estimated:
            index = tuple(axis.numpy() for axis in torch.ones(N, J, K).nonzero(as_tuple=True))
            text = self.text.flatten(0, 2).numpy()
            with any_towers_will_do():
                self.estimated = estimator.estimate_from(
                    PairVectors(self.audio.numpy(), text, index, np.arange(len(text)))
                )
        return self.estimated

    def batches(self, epoch: int) -> list[tuple[Tensor, Tensor]]:
        """(rows, slots) of an epoch's steps."""
        drawn = torch.randperm(N, generator=torch.Generator().manual_seed(epoch))
        return [(rows, (rows + epoch) % J) for rows in drawn.split(BATCH)]

    def comparison(self, rows: Tensor, slots: Tensor, language: int = 0) -> Comparison:
        return Comparison(
            u=self.audio[rows], v=self.text[rows, slots, language], v_language=torch.full((len(rows),), language)
        )

    def train(self, estimator: Estimator, epochs: int, first: int = 0) -> list[Comparison]:
        """What the estimator made of the comparisons of some epochs' batches, in every language."""
        judged = []
        for epoch in range(first, first + epochs):
            estimator.begin_epoch(epoch)
            for rows, slots in self.batches(epoch):
                weigh_pairs = estimator.for_batch(rows, slots)
                judged += [weigh_pairs(self.comparison(rows, slots, language)) for language in range(K)]
        return judged


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def narrow_world() -> World:
    return World(width=NARROW)


@pytest.fixture(scope="module")
def trained(narrow_world: World) -> Callable[[str], Estimator]:
    """The estimator of a method that has seen three epochs, made once, to be copied."""

    @functools.cache
    def of(name: str) -> Estimator:
        estimator = narrow_world.estimator(name)
        narrow_world.train(estimator, 3)
        return estimator

    return of


def method(name: str, **settings: Any) -> Correspondence:
    return CORRESPONDENCES[name](**settings)


@pytest.mark.parametrize("name", [name for name in CORRESPONDENCES if name != "none"])
def test_each_method_tells_wrong_pairs_from_true_ones(name: str, world: World) -> None:
    share = 1 - float(world.truth.float().mean())
    estimator = method(name).estimator(world.pairs(needs_clean_share=True, wrong_shares=[share] * K))
    world.train(estimator, 8)
    found = estimator.end_epoch()
    # Transport looks at one batch alone.
    least = {"oracle": 1.0, "transport": 0.6, "self_refining": 0.9}.get(name, 0.85)
    assert found["detector_auc"] >= least
    assert 0 < found["clean_probability"] < 1


def test_consensus_tells_a_mistranslation_from_a_mispaired_clip(world: World) -> None:
    estimator = method("consensus").estimator(world.pairs())
    world.train(estimator, 8)
    clean_probabilities, own = estimator.tables["clean_probabilities"], estimator.tables["own"]
    fine = ~world.is_mispaired
    assert float(clean_probabilities[fine][world.truth[fine]].mean()) > 0.7
    assert float(clean_probabilities[fine][~world.truth[fine]].mean()) < 0.2
    assert float(clean_probabilities[~fine].mean()) < 0.2
    # The captions of a mispaired clip agree with each other.
    assert float(own[~fine].nanmedian()) > 0.6


@pytest.mark.parametrize("name", list(CORRESPONDENCES))
def test_an_estimator_goes_on_bit_for_bit_and_finds_its_clips_in_another_order(name: str, world: World) -> None:
    whole, stopped = (world.estimator(name) for _ in range(2))
    world.train(whole, 4)
    world.train(stopped, 3)
    # In the middle of an epoch: its first batches are seen, and the epoch is not begun again.
    rest = world.batches(3)
    stopped.begin_epoch(3)
    for rows, slots in rest[:2]:
        for language in range(K):
            stopped.for_batch(rows, slots)(world.comparison(rows, slots, language))
    order = torch.randperm(N, generator=torch.Generator().manual_seed(9))
    resumed = world.estimator(name, order)
    place = order.argsort()
    # What was seen before a checkpoint is loaded is no part of it.
    resumed.for_batch(place[rest[0][0]], rest[0][1])(world.comparison(*rest[0]))
    resumed.load_state_dict(stopped.state_dict())
    for rows, slots in rest[2:]:
        for language in range(K):
            resumed.for_batch(place[rows], slots)(world.comparison(rows, slots, language))
    assert resumed.end_epoch() == whole.end_epoch()
    for key, table in whole.tables.items():
        torch.testing.assert_close(resumed.tables[key][place], table, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", list(CORRESPONDENCES))
def test_a_checkpoint_changes_nothing_of_pairs_that_come_again_in_the_epoch(name: str, world: World) -> None:
    """As where a part of the data has a weight above 1."""
    saved, unsaved = (world.estimator(name) for _ in range(2))
    (rows, slots), estimates = world.batches(3)[0], []
    for estimator in (saved, unsaved):
        world.train(estimator, 3)
        estimator.begin_epoch(3)
        for moved in (0.0, 0.3):
            comparison = world.comparison(rows, slots)
            comparison = dataclasses.replace(comparison, v=functional.normalize(comparison.v + moved, dim=-1))
            estimates.append(estimator.for_batch(rows, slots)(comparison).sample_weight)
            if estimator is saved:
                estimator.state_dict()
    for one, other in zip(estimates[:2], estimates[2:], strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_checkpoint_of_other_clips_is_refused(world: World) -> None:
    state = method("small_loss").estimator(world.pairs()).state_dict()
    others = TrainingPairs(clip_ids=["a stranger", *world.ids[1:]], slots=J, languages=K)
    with pytest.raises(ValueError, match=r"lacks 1 clip \(first: a stranger\)"):
        method("small_loss").estimator(others).load_state_dict(state)


def test_a_state_is_plain_enough_to_be_loaded_without_unpickling(world: World, tmp_path: Any) -> None:
    estimator = method("neighbours").estimator(world.pairs())
    world.train(estimator, 1)
    torch.save(estimator.state_dict(), tmp_path / "state.pt")
    again = method("neighbours").estimator(world.pairs())
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    torch.testing.assert_close(again.tables["audio"], estimator.tables["audio"])


def test_comparisons_of_texts_that_were_compared_with_no_audio_are_left_alone(world: World) -> None:
    rows = torch.arange(8)
    case = dataclasses.replace(world.comparison(rows, 0 * rows), u_language=torch.zeros(8, dtype=torch.int64))
    assert method("oracle").estimator(world.pairs()).for_batch(rows, 0 * rows)(case) is case


def test_texts_of_which_one_was_compared_with_no_audio_are_left_alone(world: World) -> None:
    """A weight of one side alone would be no number."""
    rows = torch.arange(8)
    weigh_pairs = method("oracle").estimator(world.pairs()).for_batch(rows, 0 * rows)
    weigh_pairs(world.comparison(rows, 0 * rows, 0))
    case = dataclasses.replace(world.comparison(rows, 0 * rows, 1), u_language=torch.zeros(8, dtype=torch.int64))
    assert weigh_pairs(case) is case


def test_a_pair_as_likely_true_as_not_is_clean_and_an_epoch_forgets_the_scores_of_the_last(world: World) -> None:
    estimator, rows = method("oracle").estimator(world.pairs()), torch.arange(3)
    estimator.begin_epoch(0)
    estimator.epoch_probabilities[:3, 0, 0] = torch.tensor([0.5, 0.49, torch.nan])
    estimator.ranking_scores.fill_(1)
    assert estimator.is_clean(rows, 0 * rows).tolist() == [True, False, True]
    estimator.begin_epoch(1)
    assert estimator.ranking_scores.isnan().all()
    assert estimator.is_clean(rows, 0 * rows).all()


def test_a_positive_is_as_good_as_the_own_partner_to_the_clean_probability() -> None:
    targets = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.6, 0.3], [0.0, 0.1, 0.9]])
    comparison = Comparison(torch.eye(3), torch.eye(3), groups=torch.tensor([1, 1, 2]))
    found = PairEstimate(torch.tensor([0.5, 1.0, 1.0]), targets).clean_probability(comparison)
    torch.testing.assert_close(found, torch.tensor([0.35, 0.7, 0.9]))


def test_a_pair_that_was_not_met_has_the_mean_of_its_language(world: World) -> None:
    estimator = method("small_loss").estimator(world.pairs())
    world.train(estimator, 1)
    scores, missing = estimator.tables["scores"], torch.arange(0, N, 5)
    scores[missing, 0, 1] = torch.nan
    estimator.begin_epoch(2)
    clean = estimator.tables["clean_probabilities"]
    for language in range(K):
        known = ~scores[:, :, language].isnan()
        mean = clean[:, :, language][known].mean()
        assert 0.1 < float(mean) < 0.95
        torch.testing.assert_close(clean[:, :, language][~known], mean.expand(int((~known).sum())))


def test_transport_moves_no_less_than_the_smallest_mass(world: World) -> None:
    rows = torch.arange(12)
    weights = []
    for wrong in (0.95, 0.7, 0.4):
        estimator = method("transport", smallest_mass=0.3).estimator(
            world.pairs(needs_clean_share=True, wrong_shares=[wrong] * K)
        )
        estimator.begin_epoch(0)
        found = estimator.for_batch(rows, 0 * rows)(world.comparison(rows, 0 * rows))
        assert found.sample_weight is not None
        weights.append(float(found.sample_weight.mean()))
    assert weights[0] == pytest.approx(weights[1]) == pytest.approx(0.3, abs=0.02)
    assert weights[2] > weights[1] + 0.1


def test_columns_of_soft_targets_count_each_clip_by_its_weight() -> None:
    targets = torch.tensor([[0.6, 0.4], [0.3, 0.7]])
    weight = torch.tensor([1.0, 0.25])
    found = Comparison(torch.eye(2), torch.eye(2), targets=targets, sample_weight=weight).column_targets()
    expected = [[0.6 / 0.675, 0.075 / 0.675], [0.4 / 0.575, 0.175 / 0.575]]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_what_needs_more_than_there_is_is_refused_by_name(world: World) -> None:
    with pytest.raises(
        ValueError, match=r"objective.correspondence: got 'oracle'; allowed on data whose noise is known"
    ):
        method("oracle").estimator(world.pairs(truth=None))
    with pytest.raises(ValueError, match=r"objective.correspondence: got 'consensus'; allowed on clips with several"):
        method("consensus").estimator(TrainingPairs(clip_ids=["a", "b"]))
    with pytest.raises(ValueError, match=r"objective.correspondence.teachers: got \(\); allowed one saved retriever"):
        method("teacher").estimator(world.pairs(teacher_embeddings=None))


BESIDE = (
    *((scheme, "contrastive", "none") for scheme in SCHEMES),
    *(("kcl", pair, "none") for pair in PAIRS),
    *(("english", "contrastive", knowledge) for knowledge in KNOWLEDGE),
)
# Half of the product, as of a chessboard.
TRAINED_BESIDE = [
    (name, *parts)
    for place, name in enumerate(CORRESPONDENCES)
    for other, parts in enumerate(BESIDE)
    if IS_WHOLE or (place + other) % 2 == 0
]


@pytest.mark.parametrize(("name", "scheme", "pair", "knowledge"), TRAINED_BESIDE)
def test_every_scheme_pair_loss_and_knowledge_trains_beside_it(
    name: str, scheme: str, pair: str, knowledge: str, narrow_world: World, trained: Callable[[str], Estimator]
) -> None:
    parts = {"scheme": scheme, "pair": pair, "knowledge": knowledge, "correspondence": name}
    # By the usual margin every triplet of the pairs that count may be apart already.
    objective = override(Objective(), {**parts, **({"pair.margin": 0.8} if pair == "triplet" else {})})
    assert override(Objective(), flatten(objective)) == objective
    rows = torch.arange(8)
    mask = torch.ones(8, K, dtype=torch.bool)
    mask[2, 1] = False
    audio = narrow_world.audio[rows].clone().requires_grad_()
    embeddings = Embeddings(audio=audio, text=narrow_world.text[rows, 0], mask=mask)
    draw = objective.scheme.draw(0, 0, [narrow_world.ids[row] for row in rows], mask)
    retrieved = None
    if objective.knowledge.needs_retrieval:
        retrieved = _as_float(retrieved_for(objective))
    estimator = copy.deepcopy(trained(name))
    estimator.begin_epoch(3)
    weigh_pairs = estimator.for_batch(rows, 0 * rows)
    learned = LearnedParameters(objective.pair.learns(), NARROW).values()
    terms = objective(embeddings, learned=learned, draw=draw, retrieved=retrieved, weigh_pairs=weigh_pairs)
    terms.loss.backward()
    assert torch.isfinite(terms.loss)
    assert torch.isfinite(audio.grad).all()
    assert audio.grad.abs().sum() > 0
    assert bool((estimator.epoch_probabilities < 1 - 1e-6).any()) == (name != "none")


@pytest.mark.parametrize("name", ["small_loss", "self_refining", "transport", "rematch"])
def test_a_judge_and_the_loss_compute_one_similarity_and_its_gradient_is_the_losss_own(world: World, name: str) -> None:
    rows = torch.arange(16)
    estimator = world.estimator(name)
    world.train(estimator, 3)
    estimator.begin_epoch(3)
    u, v = (side.clone().requires_grad_() for side in (world.audio[rows], world.text[rows, 0, 0]))
    judged = estimator.for_batch(rows, 0 * rows)(dataclasses.replace(world.comparison(rows, 0 * rows), u=u, v=v))
    assert set(judged.cached_products) == {"product"}
    losses = [Contrastive()(one).loss for one in (dataclasses.replace(judged, cached_products={}), judged)]
    assert not judged.cached_products, "the loss has taken it"
    gradients = [torch.autograd.grad(loss, (u, v)) for loss in losses]
    torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=0)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)


def test_a_product_that_is_kept_is_of_its_own_sides_only(world: World) -> None:
    rows = torch.arange(8)
    comparison = world.comparison(rows, 0 * rows)
    for changes in ({"u": comparison.u.roll(1, 0)}, {"v": comparison.v.roll(1, 0)}):
        comparison.cross_similarity(keep=True)
        changed = dataclasses.replace(comparison, **changes)
        torch.testing.assert_close(changed.cross_similarity(), changed.u @ changed.v.T)


def _as_float(value: Any) -> Any:
    """Retrieved neighbours in the embeddings' number type."""
    if isinstance(value, Tensor):
        return value.float() if value.is_floating_point() else value
    if dataclasses.is_dataclass(value):
        parts = {one.name: _as_float(getattr(value, one.name)) for one in dataclasses.fields(value)}
        return dataclasses.replace(value, **parts)  # type: ignore[type-var]
    return value


# The formulas.


def losses_by_loop(case: Comparison, temperature: float) -> tuple[list[float], list[float]]:
    """-log probability of each own partner among its row, and among its column."""
    similarity = (case.u @ case.v.T).double()
    found: tuple[list[float], list[float]] = ([], [])
    for matrix, losses in ((similarity, found[0]), (similarity.T, found[1])):
        for i in range(len(matrix)):
            total = sum(math.exp(float(s) / temperature) for s in matrix[i])
            losses.append(-math.log(math.exp(float(matrix[i, i]) / temperature) / total))
    return found


def test_small_loss_is_a_mixture_over_the_last_losses(world: World) -> None:
    settings = {"warmup_epochs": 2, "temperature": TAU}
    estimator = method("small_loss", **settings).estimator(world.pairs(languages=1, slots=1, truth=None))
    losses = {}
    for epoch in range(2):
        estimator.begin_epoch(epoch)
        for rows, _ in world.batches(epoch):
            case = world.comparison(rows, 0 * rows)
            assert torch.equal(estimator.for_batch(rows, 0 * rows)(case).sample_weight, torch.ones(len(rows)))
            row_losses, column_losses = losses_by_loop(case, TAU)
            for row, *both in zip(rows.tolist(), row_losses, column_losses, strict=True):
                losses[row] = sum(both) / 2
    estimator.begin_epoch(2)
    expected = low_component(torch.tensor([losses[row] for row in range(N)]))
    torch.testing.assert_close(
        estimator.tables["clean_probabilities"][:, 0, 0].double(), expected, rtol=1e-3, atol=1e-4
    )


def test_self_refining_is_the_released_arithmetic_of_crcl(world: World) -> None:
    """model/CRCL.py, `train_self`, with `mc`, `confident` and `schedule == 0`: one label a pair, over epochs."""
    warmup, alpha, tau = 3, 0.8, 0.05
    estimator = method("self_refining", warmup_epochs=warmup).estimator(world.pairs())
    rows = torch.arange(8)
    move_gt = [1.0] * 8
    for epoch in range(16):
        # The model moves from epoch to epoch, and so do the probabilities.
        case = dataclasses.replace(world.comparison(rows, 0 * rows), u=world.audio[(rows + epoch // 6) % N])
        exps = [[math.exp(float(s) / tau) for s in row] for row in case.u.double() @ case.v.double().T]
        p1 = [exps[i][i] / (sum(exps[i]) + 1e-10) for i in range(8)]
        p2 = [exps[i][i] / (sum(exps[k][i] for k in range(8)) + 1e-10) for i in range(8)]
        p = [(a + b) / 2 for a, b in zip(p1, p2, strict=True)]
        y = list(move_gt) if epoch < warmup else [alpha * a + (1 - alpha) * b for a, b in zip(move_gt, p, strict=True)]
        y = [0.0 if one < 0.1 else one for one in y]
        move_gt = p if epoch == warmup - 1 else y
        estimator.begin_epoch(epoch)
        used = estimator.for_batch(rows, 0 * rows)(case).sample_weight
        assert used.tolist() == pytest.approx(y, abs=1e-5)
    assert min(used.tolist()) == 0
    assert len([one for one in used.tolist() if 0 < one < 1]) > 0


def test_self_refining_takes_a_caption_that_it_meets_late_by_its_own_probability(world: World) -> None:
    estimator = method("self_refining", warmup_epochs=1).estimator(world.pairs())
    rows = torch.arange(8)
    estimator.begin_epoch(4)
    case = world.comparison(rows, 0 * rows)
    p = [(math.exp(-a) + math.exp(-b)) / 2 for a, b in zip(*losses_by_loop(case, 0.05), strict=True)]
    used = estimator.for_batch(rows, 0 * rows)(case).sample_weight
    assert used.tolist() == pytest.approx([one if one >= 0.1 else 0.0 for one in p], abs=1e-5)


@pytest.mark.parametrize("name", ["small_loss", "rematch", "self_refining"])
@pytest.mark.parametrize("same", [False, True])
def test_a_pair_without_negatives_is_not_taken_for_the_best(name: str, same: bool, world: World) -> None:
    """As a clip that is alone in its batch with a caption in its language, or a batch whose captions all say the same."""
    table = "clean_probabilities" if name == "self_refining" else "scores"
    estimator = method(name, warmup_epochs=1).estimator(world.pairs())
    rows, without = torch.arange(32), torch.tensor([0, 1] if same else [0])
    alone = dataclasses.replace(
        world.comparison(without, 0 * without), positives=torch.ones(2, 2, dtype=torch.bool) if same else None
    )
    estimator.begin_epoch(0)
    estimator.for_batch(without, 0 * without)(alone)
    assert bool(estimator.tables[table][without, 0, 0].isnan().all())
    estimator.for_batch(rows, 0 * rows)(world.comparison(rows, 0 * rows))
    known = estimator.tables[table][rows, 0, 0].clone()
    assert not bool(known.isnan().any())
    estimator.begin_epoch(1)
    weight = estimator.for_batch(without, 0 * without)(alone).sample_weight
    torch.testing.assert_close(estimator.tables[table][rows, 0, 0], known, rtol=0, atol=0)
    assert bool(weight.isfinite().all())
    if name == "self_refining":
        torch.testing.assert_close(weight, known[without], rtol=0, atol=0)
        # One that was never met with a negative counts in full.
        late = torch.tensor([40])
        assert estimator.for_batch(late, 0 * late)(world.comparison(late, 0 * late)).sample_weight.tolist() == [1]


@pytest.mark.parametrize("name", ["small_loss", "self_refining"])
def test_clips_with_the_same_caption_do_not_speak_for_each_other(name: str, world: World) -> None:
    rows = torch.arange(8)
    same = torch.eye(8, dtype=torch.bool)
    same[1, 2] = same[2, 1] = True
    judged = []
    for moved in (0.0, 1.0):
        u = world.audio[rows].clone()
        u[2] = functional.normalize(u[2] + moved * world.text[1, 0, 0], dim=0)
        case = dataclasses.replace(world.comparison(rows, 0 * rows), u=u, positives=same)
        estimator = method(name, warmup_epochs=1).estimator(world.pairs())
        estimator.begin_epoch(0)
        estimator.for_batch(rows, 0 * rows)(case)
        judged.append(estimator.tables["scores" if name == "small_loss" else "clean_probabilities"][1, 0, 0])
    torch.testing.assert_close(judged[0], judged[1], rtol=0, atol=1e-6)


def test_transport_is_the_row_and_column_mass_of_pots_partial_plan(world: World) -> None:
    rows = torch.arange(12)
    case = dataclasses.replace(
        world.comparison(rows, 0 * rows), u=world.audio[rows].double(), v=world.text[rows, 0, 0].double()
    )
    believed = (
        method("transport", transport_mass=0.7).estimator(world.pairs()).for_batch(rows, 0 * rows)(case).sample_weight
    )
    cost = torch.cdist(case.u, case.v)
    plan = pot_plan(cost / cost.max(), 0.05, mass=0.7)
    np.testing.assert_allclose(believed, 6 * (plan.sum(0) + plan.sum(1)), atol=1e-5)


def test_rematch_is_pots_partial_plan_among_the_wrong_pairs_without_their_own(world: World) -> None:
    estimator = method("rematch").estimator(world.pairs())
    rows = torch.arange(10)
    wrong = [1, 4, 6, 9]
    estimator.tables["clean_probabilities"].fill_(0.9)
    estimator.tables["clean_probabilities"][wrong] = 0.2
    u, v = world.audio[rows].double(), world.text[rows, 0, 0].double()
    found = estimator.for_batch(rows, 0 * rows)(dataclasses.replace(world.comparison(rows, 0 * rows), u=u, v=v))
    cost = torch.cdist(u, v)
    cost = (cost / cost.max())[wrong][:, wrong]
    cost[range(4), range(4)] = 2.0
    plan = pot_plan(cost, 0.07, mass=0.1)
    targets = np.eye(10)
    sample_weight = np.full(10, 0.9)
    for place, i in enumerate(wrong):
        sample_weight[i] = min(1.0, 4 * plan[place].sum())
        for other, j in enumerate(wrong):
            targets[i, j] = plan[place, other] / plan[place].sum()
    np.testing.assert_allclose(found.targets.numpy(), targets, atol=1e-6)
    np.testing.assert_allclose(found.sample_weight.numpy(), sample_weight, atol=1e-6)


def test_neighbours_is_the_overlap_of_two_neighbourhoods_of_a_snapshot(world: World) -> None:
    entries = [3, 5, 7, 8, 20, 21]
    snapshot = SimpleNamespace(
        ids=in_utf8([world.ids[row] for row in entries]),
        audio=world.audio[entries].numpy(),
        text=world.text[entries, 0, 0][None].numpy(),
        text_mask=np.ones((1, len(entries)), dtype=bool),
    )
    settings = method("neighbours", temperature=0.2, anchors=6)
    estimator = settings.estimator(world.pairs(snapshot=lambda: snapshot))
    estimator.begin_epoch(0)
    rows = torch.tensor([0, 5, 40])
    estimator.for_batch(rows, 0 * rows)(world.comparison(rows, 0 * rows))
    for row in rows.tolist():
        sides = []
        for query, anchors in ((world.audio[row], snapshot.audio), (world.text[row, 0, 0], snapshot.text[0])):
            weights = [
                math.exp(float(query.numpy() @ a) / 0.2) for a, e in zip(anchors, entries, strict=True) if e != row
            ]
            sides.append([weight / sum(weights) for weight in weights])
        expected = sum(math.sqrt(q * r) for q, r in zip(*sides, strict=True))
        assert float(estimator.tables["scores"][row, 0, 0]) == pytest.approx(expected, abs=1e-5)


def test_neighbours_looks_at_a_new_snapshot_and_never_at_entries_it_does_not_believe(world: World) -> None:
    has_text = np.arange(N)[None] % 3 > 0
    snapshots = [
        SimpleNamespace(
            ids=in_utf8(world.ids), audio=audio.numpy(), text=world.text[:, 0, 0][None].numpy(), text_mask=has_text
        )
        for audio in (world.audio, world.audio.roll(1, 1))
    ]
    current = [snapshots[0]]
    estimator = method("neighbours").estimator(world.pairs(snapshot=lambda: current[0]))
    estimator.begin_epoch(0)
    first = estimator.stored(current[0])  # type: ignore[attr-defined]
    assert estimator.stored(current[0]) is first  # type: ignore[attr-defined]
    current[0] = snapshots[1]
    assert estimator.stored(current[0]) is not first  # type: ignore[attr-defined]
    estimator.tables["scores"].fill_(0.5)
    estimator.begin_epoch(1)
    estimator.tables["clean_probabilities"][::2] = 0.1
    rows = estimator.stored(current[0]).rows.tolist()  # type: ignore[attr-defined]
    assert all(row % 2 == 1 for row in rows)
    # Nor at entries without a text.
    assert all(row % 3 > 0 for row in rows)


def test_languages_that_are_not_trained_make_no_clip_an_anchor(world: World) -> None:
    """Their pairs have no score, and a clean probability of 1."""
    estimator = method("neighbours", warmup_epochs=1).estimator(world.pairs(languages=8))
    estimator.tables["scores"][:, 0, 0] = torch.arange(N) % 2 + 0.1 * torch.rand(N, generator=world.generator)
    estimator.begin_epoch(1)
    trusted = estimator.trusted()  # type: ignore[attr-defined]
    assert torch.equal(trusted, torch.arange(N) % 2 == 1)


def test_consensus_compares_a_caption_with_the_mean_of_the_others(world: World) -> None:
    estimator = method("consensus").estimator(world.pairs())
    estimator.begin_epoch(0)
    rows = torch.arange(5)
    for slot, language in itertools.product(range(J), range(K)):
        estimator.for_batch(rows, 0 * rows + slot)(world.comparison(rows, 0 * rows + slot, language))
    for row in range(5):
        # The last caption has met all others.
        captions = world.text[row].reshape(J * K, D)
        others = captions[:-1].mean(0)
        own = float(captions[-1] @ others / others.norm())
        of_clip = float(world.audio[row] @ captions.mean(0) / captions.mean(0).norm())
        assert float(estimator.tables["own"][row, -1, -1]) == pytest.approx(own, abs=1e-5)
        assert float(estimator.tables["scores"][row, -1, -1]) == pytest.approx(of_clip, abs=1e-5)
    assert float(estimator.tables["own"][0, 0, 0]) != float(estimator.tables["own"][0, 0, 0])


def test_teacher_is_the_softmax_of_the_mean_similarity(world: World) -> None:
    other = World(seed=5)
    teacher_embeddings = [TeacherEmbeddings(one.audio, one.text) for one in (world, other)]
    settings = method("teacher", teachers=("a", "b"), temperature=0.1, share=0.75)
    rows, slots = torch.tensor([4, 2, 9]), torch.tensor([1, 0, 1])
    found = settings.estimator(world.pairs(teacher_embeddings=teacher_embeddings)).for_batch(rows, slots)(
        world.comparison(rows, slots, 2)
    )
    for i in range(3):
        means = [
            sum(float(one.audio[rows[i]] @ one.text[rows[j], slots[j], 2]) for one in (world, other)) / 2
            for j in range(3)
        ]
        weights = [math.exp(mean / 0.1) for mean in means]
        expected = [0.75 * weight / sum(weights) + 0.25 * (i == j) for j, weight in enumerate(weights)]
        assert found.targets[i].tolist() == pytest.approx(expected, abs=1e-5)
    assert found.sample_weight is None


# Mixtures and detection.


def two_groups(seed: int = 0, share: float = 0.6) -> tuple[Tensor, Tensor]:
    generator = np.random.default_rng(seed)
    is_low = generator.random(4000) < share
    drawn = np.where(is_low, generator.normal(1.0, 0.3, 4000), generator.normal(4.0, 0.8, 4000))
    return torch.from_numpy(drawn), torch.from_numpy(is_low)


def test_two_normal_components_are_those_of_scikit_learn() -> None:
    values, _ = two_groups()
    found = low_component(values)
    ends = np.quantile(values, [0.01, 0.99])
    scaled = ((values.numpy() - ends[0]) / (ends[1] - ends[0])).clip(0, 1)[:, None]
    reference = GaussianMixture(2, random_state=0, tol=1e-6, max_iter=500, reg_covar=5e-4).fit(scaled)
    low = reference.predict_proba(scaled)[:, reference.means_.argmin()]
    between = (values > 0.5) & (values < 5)
    np.testing.assert_allclose(found[between].numpy(), low[between.numpy()], atol=0.01)


def test_two_beta_components_are_a_fixed_point_by_scipys_densities() -> None:
    generator = np.random.default_rng(0)
    values = np.concatenate([generator.beta(2, 12, 3000), generator.beta(9, 3, 1000)])
    found = low_component(torch.from_numpy(values), "bmm").numpy()
    scaled = np.clip((values - values.min()) / np.ptp(values), 1e-4, 1 - 1e-4)
    densities = []
    for weight in (found, 1 - found):
        mean = np.average(scaled, weights=weight)
        variance = np.average((scaled - mean) ** 2, weights=weight)
        common = mean * (1 - mean) / variance - 1
        densities.append(weight.mean() * stats.beta.pdf(scaled, mean * common, (1 - mean) * common))
    expected = densities[0] / sum(densities)
    inside = (scaled > 0.02) & (scaled < 0.9)
    np.testing.assert_allclose(found[inside], expected[inside], atol=0.05)


@pytest.mark.parametrize("kind", ["gmm", "bmm"])
def test_a_mixture_finds_the_low_group_never_rises_and_depends_on_the_numbers_alone(kind: str) -> None:
    values, is_low = two_groups()
    found = low_component(values, kind)
    assert roc_auc_score(is_low, found) > 0.98
    assert float(found[is_low].mean()) > 0.9
    assert float(found[~is_low].mean()) < 0.1
    assert bool((found[values.argsort()].diff() <= 0).all())
    torch.testing.assert_close(low_component(7 * values + 3, kind), found, rtol=1e-4, atol=1e-4)
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(low_component(values[order], kind), found[order], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["gmm", "bmm"])
def test_few_or_equal_values_are_all_believed(kind: str) -> None:
    assert low_component(torch.tensor([1.0, 9.0]), kind).tolist() == [1.0, 1.0]
    assert bool((low_component(torch.full((50,), 2.0), kind) == 1).all())


def test_detection_is_what_scikit_learn_and_loops_say() -> None:
    generator = np.random.default_rng(1)
    is_true = generator.random(3000) < 0.7
    sample_weight = np.clip(np.where(is_true, 0.7, 0.3) + 0.25 * generator.standard_normal(3000), 0, 1).round(2)
    found = detection(torch.from_numpy(sample_weight), torch.from_numpy(is_true))
    assert found["detector_auc"] == pytest.approx(roc_auc_score(is_true, sample_weight), abs=1e-12)
    shares, means = calibration_curve(is_true, np.minimum(sample_weight, 0.999), n_bins=10)
    sizes = np.bincount(np.minimum((sample_weight * 10).astype(int), 9), minlength=10)
    expected = sum(size * abs(mean - share) for size, mean, share in zip(sizes, means, shares, strict=True)) / 3000
    assert found["detector_calibration_error"] == pytest.approx(expected, abs=2e-3)
    best = 1.0
    for threshold in np.unique(sample_weight):
        kept = sample_weight >= threshold
        if (~is_true[kept]).mean() <= 0.05:
            best = min(best, 1 - is_true[kept].sum() / is_true.sum())
    assert found["clean_pairs_lost"] == pytest.approx(best, abs=1e-12)


def test_detection_of_certain_and_of_equal_beliefs() -> None:
    is_true = torch.tensor([True] * 30 + [False] * 10)
    assert detection(is_true.float(), is_true) == {
        "detector_calibration_error": 0.0,
        "detector_auc": 1.0,
        "clean_pairs_lost": 0.0,
    }
    even = detection(torch.full((40,), 0.75), is_true)
    assert even["detector_auc"] == 0.5
    assert even["detector_calibration_error"] == pytest.approx(0)
    # All or nothing: a quarter of all is wrong, more than may be kept.
    assert clean_pairs_lost(torch.full((40,), 0.75).double(), is_true) == 1.0
    assert "detector_auc" not in detection(torch.ones(4), torch.ones(4, dtype=torch.bool))


def test_rounding_tells_no_pairs_apart() -> None:
    """As where a plan transports everything: all weights are 1 up to rounding."""
    generator = torch.Generator().manual_seed(0)
    is_true = torch.rand(40, generator=generator) < 0.5
    rounded = 1 - 1e-7 * torch.rand(40, generator=generator, dtype=torch.float64) - 1e-7 * ~is_true
    assert detection(rounded, is_true)["detector_auc"] == 0.5
    score = torch.where(is_true, 2.0, 1.0)
    assert detection(rounded, is_true, score)["detector_auc"] == 1
    assert detection(rounded - 1e-5 * ~is_true, is_true)["detector_auc"] == 1


def test_pairs_that_are_believed_alike_stand_in_the_order_of_their_score() -> None:
    generator = np.random.default_rng(2)
    is_true = torch.from_numpy(generator.random(400) < 0.6)
    score = torch.where(is_true, 1.0, 0.0) + 0.3 * torch.from_numpy(generator.standard_normal(400))
    sample_weight = (score > 0.3).double()
    by_probability, by_both = detection(sample_weight, is_true), detection(sample_weight, is_true, score)
    assert by_probability["clean_pairs_lost"] == 1
    assert by_both["clean_pairs_lost"] < 0.3
    assert by_both["detector_auc"] == pytest.approx(roc_auc_score(is_true, score), abs=1e-12)
    # Belief comes first, and a pair without a score is last among its equals.
    ranks = probability_ranks(torch.tensor([0.2, 0.9, 0.9, 0.9]), torch.tensor([9.0, 1.0, torch.nan, 1.0]))
    assert ranks.unique(return_inverse=True)[1].tolist() == [0, 2, 1, 2]


def test_small_losses_of_real_heads_leave_clean_pairs(world: World) -> None:
    estimator = method("small_loss").estimator(world.pairs())
    world.train(estimator, 6)
    assert estimator.end_epoch()["clean_pairs_lost"] < 0.8
    seen = ~estimator.epoch_probabilities.isnan()
    assert bool(seen.any())
    assert not bool(estimator.ranking_scores[seen].isnan().any())


@pytest.mark.parametrize("narrow_high", [False, True])
def test_the_smallest_values_are_believed_most_under_any_widths(narrow_high: bool) -> None:
    generator = np.random.default_rng(3)
    widths = (0.25, 0.02) if narrow_high else (0.02, 0.25)
    drawn = np.concatenate([generator.normal(0.3, widths[0], 600), generator.normal(0.6, widths[1], 400)])
    values = torch.from_numpy(drawn)
    found = low_component(values)[values.argsort()]
    assert bool((found.diff() <= 0).all())
    # A wide high component does not pull the belief of the smallest values down, nor that of all behind them.
    assert float(found[0]) > 0.9


def test_places_read_a_table() -> None:
    table = torch.arange(24).reshape(2, 3, 4)
    places = PairIndex(torch.tensor([1, 0]), torch.tensor([2, 0]), torch.tensor([3, 1]))
    assert table[places].tolist() == [23, 1]


def test_the_type_of_new_tensors_changes_nothing() -> None:
    rows = torch.arange(2)
    estimator = CORRESPONDENCES["oracle"]().estimator(
        TrainingPairs(["a", "b"], truth=torch.tensor([[[True]], [[False]]]))
    )
    estimator.begin_epoch(0)
    comparison = Comparison(u=torch.eye(2), v=torch.eye(2), v_language=0 * rows)
    torch.set_default_dtype(torch.float64)
    try:
        weighed = estimator.for_batch(rows, 0 * rows)(comparison)
    finally:
        torch.set_default_dtype(torch.float32)
    assert weighed.sample_weight is not None
    assert weighed.sample_weight.tolist() == [1, 0]


OTHER_VALUES: dict[str, dict[str, Any]] = {
    "small_loss": {"mixture": "bmm", "warmup_epochs": 1, "prior": "estimate", "temperature": 0.3},
    "leave_one_out": {"mixture": "bmm", "warmup_epochs": 1, "prior": "estimate", "temperature": 0.3},
    "self_refining": {"momentum": 0.4, "least": 0.5, "warmup_epochs": 1, "temperature": 0.3},
    "consensus": {"mixture": "bmm", "warmup_epochs": 1},
    "neighbours": {"anchors": 10, "temperature": 0.5, "mixture": "bmm", "warmup_epochs": 1},
    "transport": {"epsilon": 0.3, "transport_mass": 0.4, "smallest_mass": 0.95},
    "rematch": {
        "mixture": "bmm",
        "warmup_epochs": 1,
        "prior": "estimate",
        "temperature": 0.3,
        "threshold": 0.95,
        "transport_mass": 0.8,
        "epsilon": 0.4,
    },
    "teacher": {"temperature": 0.3, "share": 0.5},
}
"""Of each setting of a method, a value that is not its default."""
BY_WHAT_IS_READ = {("leave_one_out", "relabels"), ("leave_one_out", "reads"), ("teacher", "teachers")}
"""Settings of what is read before the first epoch, which have tests of their own."""


@pytest.mark.parametrize("name", list(OTHER_VALUES))
def test_each_setting_changes_what_is_made_of_the_pairs(name: str, world: World) -> None:
    def weighed(**settings: Any) -> list[Tensor]:
        chosen = method(name, **settings)
        pairs = world.pairs(needs_clean_share=chosen.needs_clean_share, wrong_shares=[0.5] * K)
        # A caption is met in every second epoch, and judged after the warm-up.
        compared = world.train(chosen.estimator(pairs), 4 if hasattr(chosen, "warmup_epochs") else 1)
        return [part for one in compared for part in (one.sample_weight, one.targets) if part is not None]

    plain = weighed()
    for setting, value in OTHER_VALUES[name].items():
        changed = weighed(**{setting: value})
        assert any(not torch.allclose(*both, atol=1e-3) for both in zip(plain, changed, strict=True)), setting


def test_no_method_has_a_setting_that_is_not_tried() -> None:
    fields = {(name, entry.name) for name, kind in CORRESPONDENCES.items() for entry in dataclasses.fields(kind)}
    assert fields - BY_WHAT_IS_READ == {(name, setting) for name, values in OTHER_VALUES.items() for setting in values}


def test_of_a_pair_that_a_batch_has_twice_the_last_value_is_written(two_threads: None) -> None:
    """Torch's threads write parts of both rows."""
    generator = torch.Generator().manual_seed(0)
    rows, slots, languages = (torch.randint(0, most, (512,), generator=generator) for most in (4, J, K))
    estimator = Estimator(TrainingPairs([str(row) for row in range(4)], J, K), CORRESPONDENCES["none"]())
    table = estimator.table("wide", 0.0, 512)
    for _ in range(20):
        values = torch.randn(512, 512, generator=generator)
        expected = table.clone()
        for place, index in enumerate(zip(rows.tolist(), slots.tolist(), languages.tolist(), strict=True)):
            expected[index] = values[place]
        Estimator.write(table, PairIndex(rows, slots, languages), values)
        assert torch.equal(table, expected)
