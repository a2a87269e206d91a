"""ASK against plain loops over the formulas as they are stated, and the rows that its paper prints."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from ray_atr.models.late_interaction import late_interaction
from ray_atr.objectives import PAIRS, Embeddings, LearnedParameters, Objective
from ray_atr.objectives.knowledge import Ask
from ray_atr.objectives.knowledge.ask import (
    agreement,
    consistency,
    inject,
    multiplier,
    own_share,
    potential,
    realign,
    reliability,
)
from ray_atr.objectives.knowledge.knowledge import Granularity, Neighbours, Retrieved
from ray_atr.objectives.pairs import Contrastive, LearningToMatch, Triplet
from ray_atr.objectives.pairs.learned import NOTHING_LEARNED
from ray_atr.objectives.pairs.pair_loss import Comparison
from ray_atr.objectives.schemes import Cacl, English, Kcl, MlClap

B, K, D, NEAR = 6, 3, 8, 4
NOTHING = {"injection": False, "transport": False, "reliability": False}


def unit(*shape, seed=0, dtype=torch.float64):
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype), dim=-1)


def granularity(seed, dtype):
    def neighbours(seed, queries):
        audio, text = (unit(B, queries, NEAR, D, seed=one, dtype=dtype) for one in (seed, seed + 1))
        return Neighbours(audio, text, torch.ones(B, queries, NEAR, dtype=torch.bool))

    return Granularity(neighbours(seed, 1), neighbours(seed + 2, K))


def retrieved(dtype=torch.float64):
    return Retrieved(granularity(100, dtype), granularity(200, dtype))


def embeddings(requires_grad=False, dtype=torch.float64, **options):
    audio, text = unit(B, D, seed=1, dtype=dtype), unit(B, K, D, seed=2, dtype=dtype)
    return Embeddings(audio=audio.requires_grad_(requires_grad), text=text.requires_grad_(requires_grad), **options)


def ask_by_loops(audio, text, found, settings, tau=0.07):
    """The whole of ASK for English contrastive, one number at a time."""
    near = {
        "fine": (found.fine.by_audio, found.fine.by_text),
        "coarse": (found.coarse.by_audio, found.coarse.by_text),
    }
    N = len(audio)
    losses, R = {}, {}
    for name, (by_audio, by_text) in near.items():
        a_near = [[(by_audio.audio[i, 0, j], by_audio.text[i, 0, j]) for j in range(NEAR)] for i in range(N)]
        t_near = [[(by_text.audio[i, 0, j], by_text.text[i, 0, j]) for j in range(NEAR)] for i in range(N)]
        phi_text, phi_audio = [], []
        for i in range(N):
            c = [sum(float(a_j @ a_m) for a_m, _ in a_near[i]) / NEAR for a_j, _ in t_near[i]]
            w = [math.exp(x) / sum(math.exp(y) for y in c) for x in c]
            phi_text.append(sum(w[j] * math.exp(float(text[i] @ t_near[i][j][0])) for j in range(NEAR)))
            c = [sum(float(t_j @ t_m) for _, t_m in t_near[i]) / NEAR for _, t_j in a_near[i]]
            w = [math.exp(x) / sum(math.exp(y) for y in c) for x in c]
            phi_audio.append(sum(w[j] * math.exp(float(audio[i] @ a_near[i][j][1])) for j in range(NEAR)))
        R[name] = ([-math.log(x) for x in phi_audio], [-math.log(x) for x in phi_text])
        lam = settings.injection_ratio
        a = [(1 - lam) * audio[i] + lam * sum(x for x, _ in a_near[i]) / NEAR for i in range(N)]
        t = [(1 - lam) * text[i] + lam * sum(x for _, x in t_near[i]) / NEAR for i in range(N)]
        if settings.renormalise:
            a, t = [x / x.norm() for x in a], [x / x.norm() for x in t]
        S = np.array([[float(a[i] @ t[j]) for j in range(N)] for i in range(N)])
        Q = np.exp(S / settings.transport_epsilon)
        for _ in range(settings.transport_iterations):
            Q = Q / Q.sum(axis=1, keepdims=True) / N
            Q = Q / Q.sum(axis=0, keepdims=True) / N
        S = ((1 - settings.beta) + settings.beta * N * Q) * S
        row = [-math.log(math.exp(S[i, i] / tau) / sum(math.exp(S[i, j] / tau) for j in range(N))) for i in range(N)]
        col = [-math.log(math.exp(S[i, i] / tau) / sum(math.exp(S[j, i] / tau) for j in range(N))) for i in range(N)]
        losses[name] = (row, col)
    total = 0.0
    for side in range(2):
        for i in range(N):
            weight = 1 + settings.lambda_fine * R["fine"][side][i] + settings.lambda_coarse * R["coarse"][side][i]
            total += 0.5 * (losses["fine"][side][i] + losses["coarse"][side][i]) * weight / N
    return total


@pytest.mark.parametrize("renormalise", [True, False])
def test_ask_is_what_its_formulas_say(renormalise):
    settings = Ask(injection_ratio=0.3, beta=0.4, lambda_fine=0.25, lambda_coarse=0.15, renormalise=renormalise)
    objective = Objective(scheme=English(), pair=Contrastive(), knowledge=settings)
    batch, found = embeddings(), retrieved()
    terms = objective(batch, retrieved=found)
    # The realignment's plan is in single precision.
    assert float(terms.loss) == pytest.approx(ask_by_loops(batch.audio, batch.text[:, 0], found, settings), rel=2e-5)


@pytest.mark.parametrize("pair", [Contrastive(), Triplet(), LearningToMatch(metric="euclidean")])
@pytest.mark.parametrize("scheme", [English(), MlClap(), Cacl(), Kcl()])
def test_with_every_part_off_it_is_the_plain_loss_bit_for_bit(scheme, pair):
    batch = embeddings(dtype=torch.float32)
    draw = torch.tensor([1, 2, 1, 1, 2, 2])
    plain = Objective(scheme=scheme, pair=pair)(batch, draw=draw)
    off = Ask(**{**NOTHING, "injection": True}, injection_ratio=0.0, coarse=False)
    found = retrieved(dtype=torch.float32)
    assert torch.equal(
        Objective(scheme=scheme, pair=pair, knowledge=off)(batch, draw=draw, retrieved=found).loss, plain.loss
    )
    both = replace(off, coarse=True)
    doubled = Objective(scheme=scheme, pair=pair, knowledge=both)(batch, draw=draw, retrieved=found)
    assert float(doubled.loss) == pytest.approx(2 * float(plain.loss), rel=1e-6)


@pytest.mark.parametrize("scheme", [English(), MlClap(), Cacl(), Kcl()])
@pytest.mark.parametrize("pair", list(PAIRS))
def test_every_scheme_and_pair_loss_takes_it_with_missing_languages(scheme, pair):
    mask = torch.ones(B, K, dtype=torch.bool)
    mask[0, 1] = mask[3, 0] = False
    audio, text = unit(B, D, seed=1).requires_grad_(), unit(B, K, D, seed=2).requires_grad_()
    batch = Embeddings(audio=audio, text=text, mask=mask)
    draw = torch.tensor([2, 2, 1, 1, 2, 2])
    objective = Objective(scheme=scheme, pair=PAIRS[pair](), knowledge=Ask())
    learned = LearnedParameters(objective.pair.learns(), D).double().values()
    terms = objective(batch, learned=learned, draw=draw, retrieved=retrieved())
    terms.loss.backward()
    assert torch.isfinite(terms.loss)
    assert torch.isfinite(audio.grad).all()
    assert torch.isfinite(text.grad).all()
    assert (text.grad[0, 1] == 0).all()
    if scheme.name != "english":
        assert float(audio.grad.abs().sum()) > 0


def test_injection_at_one_is_the_neighbours_mean():
    rows, near = unit(B, D), unit(B, NEAR, D, seed=5)
    valid = torch.ones(B, NEAR, dtype=torch.bool)
    valid[0, 2:] = False
    valid[1] = False
    whole = inject(rows, near, valid, 1.0)
    for i in range(B):
        mean = sum(near[i, j] for j in range(NEAR) if valid[i, j]) if i != 1 else rows[i]
        assert torch.allclose(whole[i], mean / mean.norm())
    some = inject(rows, near, valid, 0.3)
    mixed = 0.7 * rows[2] + 0.3 * near[2].mean(dim=0)
    assert torch.allclose(some[2], mixed / mixed.norm())
    assert torch.allclose(own_share(rows, near, valid, 0.3)[2], 0.7 / mixed.norm())


def test_without_renormalising_the_derivative_by_a_neighbour_is_the_papers_constant():
    near = unit(B, NEAR, D, seed=5).requires_grad_()
    enhanced = inject(unit(B, D, seed=4), near, torch.ones(B, NEAR, dtype=torch.bool), 0.3, renormalise=False)
    enhanced.sum().backward()
    assert torch.allclose(near.grad, torch.full_like(near, 0.3 / NEAR))
    assert not torch.allclose(enhanced.norm(dim=1), torch.ones(B, dtype=torch.float64))


def test_the_embeddings_own_gradient_through_injection_shrinks_with_the_ratio():
    near, valid = unit(B, NEAR, D, seed=5), torch.ones(B, NEAR, dtype=torch.bool)
    rows = unit(B, D).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: inject(x, near, valid, 0.4), (rows,))
    inject(rows, near, valid, 1.0).sum().backward()
    assert float(rows.grad.abs().max()) == 0


@pytest.mark.parametrize(
    ("phi", "printed_reliability", "printed_multiplier"),
    [(1.60, -0.47, 0.91), (1.05, -0.05, 0.99), (1.55, -0.44, 0.91), (1.08, -0.08, 0.98)],
)
def test_the_four_rows_of_appendix_g(phi, printed_reliability, printed_multiplier):
    R = reliability(torch.tensor([phi]))
    assert round(float(R), 2) == printed_reliability
    assert round(float(multiplier(R, None, 0.2, 0.2)), 2) == printed_multiplier


def test_the_potential_is_bounded_and_the_multiplier_positive():
    same = unit(B, D)
    for sign, bound in ((1.0, math.e), (-1.0, 1 / math.e)):
        components = (sign * same)[:, None].expand(B, NEAR, D)
        valid = torch.ones(B, NEAR, dtype=torch.bool)
        phi = potential(same, components, consistency(components, components, valid), valid)
        assert torch.allclose(phi, torch.full_like(phi, bound))
    worst = reliability(torch.tensor([math.e]))
    assert float(multiplier(worst, worst, 0.49, 0.5)) > 0
    with pytest.raises(ValueError, match="lambda_coarse"):
        Ask(lambda_fine=0.6, lambda_coarse=0.4)


def test_a_query_without_neighbours_is_left_alone():
    valid = torch.zeros(B, NEAR, dtype=torch.bool)
    near = unit(B, NEAR, D)
    phi = potential(unit(B, D), near, consistency(near, near, valid), valid)
    assert torch.equal(phi, torch.ones_like(phi))
    grown = unit(B, D).requires_grad_()
    potential(grown, near, consistency(near, near, valid), valid).sum().backward()
    assert torch.isfinite(grown.grad).all()


def test_invalid_neighbours_count_for_nothing():
    found = retrieved()
    garbage = found.fine.by_text.audio.clone()
    garbage[:, :, -1] = 1e6
    valid = found.fine.by_text.valid.clone()
    valid[:, :, -1] = False

    def loss(audio):
        by_text = Neighbours(audio, found.fine.by_text.text, valid)
        changed = Retrieved(Granularity(found.fine.by_audio, by_text), found.coarse)
        return float(Objective(knowledge=Ask())(embeddings(), retrieved=changed).loss)

    assert loss(garbage) == pytest.approx(loss(found.fine.by_text.audio), rel=1e-12)


def test_the_batch_mean_is_one_multiplier_for_all():
    R = torch.tensor([-0.4, 0.2, 0.1])
    assert torch.allclose(multiplier(R, None, 0.2, 0.2, "batch"), torch.full((3,), 1 + 0.2 * float(R.mean())))


def test_realignment_favours_what_the_plan_does():
    comparison = Comparison(u=unit(B, D), v=unit(B, D, seed=3))
    S = comparison.cross_similarity()
    agreed, plan = agreement(S, 1.0, 5)
    assert torch.allclose(plan.matrix.sum(dim=0), torch.full((B,), 1 / B), atol=1e-5)
    assert torch.allclose(realign(comparison, agreed, 0.3).cross_similarity(), (0.7 + 0.3 * agreed) * S)
    assert torch.allclose(realign(comparison, agreed, 0.3, "additive").cross_similarity(), 0.7 * S + 0.3 * agreed)
    assert torch.allclose(realign(comparison, agreed, 0.5, "product").cross_similarity(), agreed.sqrt() * S)


@pytest.mark.parametrize("scope", ["sample", "batch"])
def test_a_pair_of_weight_0_has_no_part_in_realignment_and_modulation(scope):
    kept = torch.tensor([0, 1, 3, 5])
    weight = torch.zeros(B, dtype=torch.float64).index_fill(0, kept, 0.7)
    S = unit(B, D, seed=1) @ unit(B, D, seed=2).T
    agreed, _ = agreement(S, 0.2, 50, weight)
    alone, _ = agreement(S[kept][:, kept], 0.2, 50)
    assert torch.allclose(agreed[kept][:, kept], alone, atol=1e-5)
    assert torch.allclose(agreed[kept].sum(dim=1), torch.ones(len(kept)), atol=1e-5)
    assert agreed.sum() == pytest.approx(len(kept), abs=1e-4)
    R = torch.linspace(-0.4, 0.3, B, dtype=torch.float64)
    assert torch.allclose(
        multiplier(R, R, 0.2, 0.2, scope, weight)[kept], multiplier(R[kept], R[kept], 0.2, 0.2, scope)
    )
    # Of nothing but such pairs there is a plan all the same, which no loss reads.
    assert torch.isfinite(agreement(S, 0.2, 50, 0 * weight)[0]).all()
    comparison = Comparison(u=unit(B, D, seed=1), v=unit(B, D, seed=2), sample_weight=(weight > 0).double())
    settings, found = Ask(modulation_scope=scope), retrieved()
    losses = []
    for rows in (torch.arange(B), kept):
        part = replace(comparison, rows=rows, v_language=torch.zeros(B, dtype=torch.int64)[rows])
        part = replace(part, u=part.u[rows], v=part.v[rows], sample_weight=part.sample_weight[rows])
        losses.append(float(settings.score(part, Contrastive(), found, NOTHING_LEARNED).loss) * len(rows))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_plan_converges_to_that_of_another_library():
    ot = pytest.importorskip("ot")
    S = unit(B, D) @ unit(B, D, seed=3).T
    agreed, _ = agreement(S, 0.3, 500)
    uniform = np.full(B, 1 / B)
    assert np.allclose(agreed / B, ot.sinkhorn(uniform, uniform, -S.numpy(), 0.3, stopThr=1e-12), atol=1e-5)


def test_realignment_is_finite_at_sharp_scales():
    S = torch.eye(64) * 2 - 1
    agreed, _ = agreement(S, 0.01, 5)
    assert torch.isfinite(agreed).all()


def test_the_multiplier_passes_a_gradient_only_where_it_is_not_detached():
    found = retrieved()
    grads = []
    for detach in (True, False):
        audio = unit(B, D, seed=1).requires_grad_()
        knowledge = Ask(**{**NOTHING, "reliability": True}, detach_reliability=detach)
        terms = Objective(knowledge=knowledge)(Embeddings(audio=audio, text=unit(B, K, D, seed=2)), retrieved=found)
        terms.loss.backward()
        grads.append(audio.grad)
    assert not torch.allclose(grads[0], grads[1])


@pytest.mark.parametrize("detach", [True, False])
def test_the_gradient_is_that_of_finite_differences(detach):
    found = retrieved()
    knowledge = Ask(detach_reliability=detach, transport=False, injection_ratio=0.3)
    if detach:
        knowledge = replace(knowledge, reliability=False)
    objective = Objective(scheme=Kcl(), knowledge=knowledge)

    def loss(audio, text):
        return objective(Embeddings(audio=audio, text=text), retrieved=found).loss

    inputs = unit(B, D).requires_grad_(), unit(B, K, D, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(loss, inputs, fast_mode=True)


def test_a_similarity_equal_to_the_inner_products_changes_nothing():
    found, batch = retrieved(), embeddings()
    objective = Objective(scheme=English(), knowledge=Ask())
    given = Embeddings(
        audio=batch.audio, text=batch.text, similarity=torch.einsum("nd,mkd->knm", batch.audio, batch.text)
    )
    assert float(objective(given, retrieved=found).loss) == pytest.approx(
        float(objective(batch, retrieved=found).loss), rel=1e-9
    )


def test_a_missing_coarse_base_is_refused_where_it_is_asked_for():
    with pytest.raises(ValueError, match="prototypes"):
        Ask(prototypes=0)


@pytest.mark.parametrize("changed", [{"source": "elsewhere"}, {"text_entries": "each"}, {"captions": "others.jsonl"}])
def test_a_base_that_is_written_by_training_holds_what_is_trained(changed):
    with pytest.raises(ValueError, match=r"^refresh: got 'write_through'; allowed re_encode, if "):
        Ask(refresh="write_through", **changed)
    Ask(**changed)


def test_late_interaction_by_loops():
    audio, text = unit(4, 5, D), unit(3, 6, D, seed=9)
    audio_mask, text_mask = torch.ones(4, 5, dtype=torch.bool), torch.ones(3, 6, dtype=torch.bool)
    audio_mask[0, 3:] = False
    text_mask[1, 2:] = False
    noisy = audio.clone()
    noisy[0, 3:] = torch.nan
    found = late_interaction(noisy, audio_mask, text, text_mask, chunk=2)
    for n in range(4):
        for m in range(3):
            frames, words = audio[n][audio_mask[n]], text[m][text_mask[m]]
            by_words = sum(max(float(f @ w) for f in frames) for w in words) / len(words)
            by_frames = sum(max(float(f @ w) for w in words) for f in frames) / len(frames)
            assert float(found[n, m]) == pytest.approx((by_words + by_frames) / 2)
    parameter = audio.clone().requires_grad_()
    late_interaction(parameter, audio_mask, text, text_mask).sum().backward()
    assert (parameter.grad[0, 3:] == 0).all()
    assert float(parameter.grad[0, :3].abs().sum()) > 0


OTHER_VALUES = {
    "neighbours": 3,
    "prototypes": 8,
    "pooling": "mean",
    "separate_text_clusters": True,
    "fine": False,
    "coarse": False,
    "injection": False,
    "injection_ratio": 0.7,
    "renormalise": False,
    "transport": False,
    "beta": 0.6,
    "transport_epsilon": 0.1,
    "transport_iterations": 1,
    "transport_form": "additive",
    "reliability": False,
    "lambda_fine": 0.5,
    "lambda_coarse": 0.5,
    "modulation_scope": "batch",
    "detach_reliability": False,
    "exclude_own": False,
    "storage": "float16",
    "index": "hnsw",
    "exact_up_to": 7,
    "probes": 3,
    "refresh_every_epochs": 3,
    "refresh_lag": 1,
}
"""Of each setting a value that is not its default."""
OF_THE_SOURCE = {"source", "captions", "text_entries", "refresh"}
"""Settings of what is encoded, which have tests of their own."""


@pytest.mark.parametrize(("setting", "value"), OTHER_VALUES.items())
def test_each_setting_changes_the_search_the_snapshot_or_the_loss(setting, value):
    def found(**changes):
        settings = Ask(**changes)
        given = embeddings(requires_grad=True)
        loss = Objective(knowledge=settings)(given, retrieved=retrieved()).loss
        gradients = torch.autograd.grad(loss, [given.audio, given.text])
        rounded = [value.detach().round(decimals=5).tolist() for value in (loss, *gradients)]
        return settings.search_spec, settings.snapshot_settings(0), settings.lag_steps(8), *rounded

    assert found(**{setting: value}) != found()


def test_no_setting_is_not_tried():
    assert {field.name for field in fields(Ask)} == OTHER_VALUES.keys() | OF_THE_SOURCE
