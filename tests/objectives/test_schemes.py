"""Language schemes: which texts, which pairs, which draws, against loops from ATRI's formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from ray_atr.objectives import SCHEMES, Embeddings, Objective, Scheme, preset
from ray_atr.objectives.pairs import Comparison, Contrastive
from ray_atr.objectives.schemes import Cacl, English, Kcl, MlClap, RandomMixture

B, K, D = 7, 4, 5
IDS = [f"clip{i}" for i in range(B)]


def embeddings(mask: Tensor | None = None, num_languages: int = K) -> Embeddings:
    generator = torch.Generator().manual_seed(0)
    audio = torch.randn(B, D, generator=generator, dtype=torch.float64)
    text = audio[:, None] + torch.randn(B, num_languages, D, generator=generator, dtype=torch.float64)
    return Embeddings(audio=audio, text=text, mask=mask)


def symmetric(u: Tensor, v: Tensor) -> float:
    logits, labels = u @ v.T / 0.07, torch.arange(len(u))
    return float(functional.cross_entropy(logits, labels) + functional.cross_entropy(logits.T, labels)) / 2


def full() -> Tensor:
    return torch.ones(B, K, dtype=torch.bool)


def test_english_compares_audio_with_language_0() -> None:
    e = embeddings()
    assert Objective()(e).loss.item() == pytest.approx(symmetric(e.audio, e.text[:, 0]))


def test_random_compares_each_clip_in_its_drawn_language() -> None:
    e, draw = embeddings(), torch.tensor([0, 3, 1, 2, 2, 0, 1])
    drawn = torch.stack([e.text[i, draw[i]] for i in range(B)])
    assert preset("ml_clap")(e, draw=draw).loss.item() == pytest.approx(symmetric(e.audio, drawn))


def test_cacl_is_the_mean_of_three() -> None:
    e, draw = embeddings(), torch.tensor([1, 3, 1, 2, 2, 3, 1])
    drawn, english = torch.stack([e.text[i, draw[i]] for i in range(B)]), e.text[:, 0]
    expected = (symmetric(e.audio, english) + symmetric(e.audio, drawn) + symmetric(english, drawn)) / 3
    assert preset("cacl")(e, draw=draw).loss.item() == pytest.approx(expected)


def test_cacl_without_another_language_is_the_comparison_that_is_left() -> None:
    e = embeddings(mask=full() & (torch.arange(K) == 0))
    found = preset("cacl")(e, draw=torch.full((B,), -1)).loss.item()
    assert found == pytest.approx(symmetric(e.audio, e.text[:, 0]))


def test_kcl_is_the_mean_over_languages() -> None:
    e = embeddings()
    expected = sum(symmetric(e.audio, e.text[:, k]) for k in range(K)) / K
    assert preset("kcl")(e).loss.item() == pytest.approx(expected)


def test_kcl_of_one_language_is_contrastive() -> None:
    e = embeddings(num_languages=1)
    torch.testing.assert_close(preset("kcl")(e).loss, preset("contrastive")(e).loss)


def test_order_of_languages_does_not_matter_to_kcl() -> None:
    e = embeddings()
    other = Embeddings(audio=e.audio, text=e.text[:, [2, 0, 3, 1]])
    torch.testing.assert_close(preset("kcl")(other).loss, preset("kcl")(e).loss)


def test_missing_languages_take_no_part() -> None:
    mask = full()
    mask[[1, 4], 0] = False
    mask[[0, 1, 2], 2] = False
    mask[:, 3] = False
    e = embeddings(mask)
    sizes = [int(mask[:, k].sum()) for k in range(K)]
    per_language = [symmetric(e.audio[mask[:, k]], e.text[mask[:, k], k]) if sizes[k] else 0.0 for k in range(K)]
    expected = sum(size * loss for size, loss in zip(sizes, per_language, strict=True)) / sum(sizes)
    assert preset("kcl")(e).loss.item() == pytest.approx(expected)
    assert preset("contrastive")(e).loss.item() == pytest.approx(per_language[0])


def test_a_clip_without_a_text_takes_no_part_in_what_is_drawn() -> None:
    """Clip 5 has none at all, clip 2 no English: `ml_clap` leaves out the first, the texts' part of `cacl` both."""
    mask = full()
    mask[5], mask[2, 0] = False, False
    e, draw = embeddings(mask), torch.tensor([1, 3, 1, 2, 2, -1, 1])
    rows = torch.tensor([0, 1, 2, 3, 4, 6])
    drawn = e.text[rows, draw[rows]]
    assert preset("ml_clap")(e, draw=draw).loss.item() == pytest.approx(symmetric(e.audio[rows], drawn))
    both = rows[rows != 2]
    parts = [
        symmetric(e.audio[both], e.text[both, 0]),
        symmetric(e.audio[rows], drawn),
        symmetric(e.text[both, 0], e.text[both, draw[both]]),
    ]
    assert preset("cacl")(e, draw=draw).loss.item() == pytest.approx(sum(parts) / 3)


def test_a_language_is_drawn_evenly_among_those_that_the_clip_has() -> None:
    ids = [f"clip{i}" for i in range(400)]
    for has in ([], [2], [0, 3], [0, 1, 2, 3]):
        mask = torch.zeros(400, K, dtype=torch.bool)
        mask[:, has] = True
        drawn = MlClap().draw(0, 0, ids, mask)
        counts = torch.bincount(drawn + 1, minlength=K + 1).tolist()
        assert [k - 1 for k, count in enumerate(counts) if count] == (has or [-1])
        assert min(counts[k + 1] for k in has or [-1]) > 0.8 * 400 / max(1, len(has))


def test_languages_of_a_mixture_are_drawn_apart() -> None:
    ids = [f"clip{i}" for i in range(400)]
    drawn = RandomMixture().draw(0, 0, ids, torch.ones(400, 3, dtype=torch.bool))
    both, second, third = (((drawn & bits) == bits).double().mean().item() for bits in (0b110, 0b010, 0b100))
    assert both == pytest.approx(second * third, abs=0.08)


def test_what_is_masked_out_may_hold_anything_and_gets_no_gradient() -> None:
    mask = full()
    mask[2, 1] = False
    generator = torch.Generator().manual_seed(0)
    audio, text = torch.randn(B, D, generator=generator), torch.randn(B, K, D, generator=generator)
    text[2, 1] = torch.nan
    text.requires_grad_()
    loss = preset("kcl")(Embeddings(audio=audio, text=text, mask=mask)).loss
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(text.grad[mask]).all()
    assert not text.grad[2, 1].any()


@pytest.mark.parametrize("name", list(SCHEMES))
def test_texts_that_are_not_needed_do_not_matter(name: str) -> None:
    scheme = SCHEMES[name]()
    mask = full()
    mask[3, 1:] = False
    draw = scheme.draw(0, 0, IDS, mask)
    needed = scheme.needed(mask, draw)
    assert not (needed & ~mask).any()
    objective = Objective(scheme=scheme)
    e = embeddings(needed)
    scrambled = torch.where(needed[:, :, None], e.text, torch.rand_like(e.text))
    torch.testing.assert_close(
        objective(Embeddings(audio=e.audio, text=scrambled, mask=needed), draw=draw).loss,
        objective(embeddings(mask), draw=draw).loss,
    )


@pytest.mark.parametrize("name", [name for name, scheme in SCHEMES.items() if scheme.draw is not Scheme.draw])
def test_draws_depend_on_seed_epoch_and_clip_alone(name: str) -> None:
    scheme, ids = SCHEMES[name](), [f"clip{i}" for i in range(200)]
    mask = torch.ones(200, 6, dtype=torch.bool)
    whole = scheme.draw(3, 5, ids, mask)
    first, second = scheme.draw(3, 5, ids[:77], mask[:77]), scheme.draw(3, 5, ids[77:], mask[77:])
    assert first is not None
    assert second is not None
    assert torch.equal(whole, torch.cat([first, second]))
    assert not torch.equal(whole, scheme.draw(3, 6, ids, mask))
    assert not torch.equal(whole, scheme.draw(4, 5, ids, mask))


def test_draws_are_uniform_over_the_languages_a_clip_has() -> None:
    ids = [f"clip{i}" for i in range(6000)]
    mask = torch.tensor([True, True, False, True]).expand(6000, 4)
    counts = MlClap().draw(0, 0, ids, mask).bincount(minlength=4)
    assert counts[2] == 0
    assert (counts[[0, 1, 3]].double() / 2000 - 1).abs().max() < 0.1
    others = Cacl().draw(0, 0, ids, mask).bincount(minlength=4)
    assert others[0] == 0
    assert (others[[1, 3]].double() / 3000 - 1).abs().max() < 0.1
    mixed = RandomMixture(probability=0.25).needed(mask, RandomMixture(probability=0.25).draw(0, 0, ids, mask))
    assert mixed[:, 0].all()
    assert not mixed[:, 2].any()
    assert mixed[:, 1].double().mean().item() == pytest.approx(0.25, abs=0.03)


def test_random_mixture_draws_as_many_languages_as_a_draw_has_bits() -> None:
    """Beyond, they would share a bit: all of them or none for a clip."""
    ids, mask = [str(row) for row in range(500)], torch.ones(500, 64, dtype=torch.bool)
    needed = RandomMixture().needed(mask, RandomMixture().draw(0, 0, ids, mask))
    assert bool(needed[:, 0].all())
    assert float(torch.corrcoef(needed[:, 1:].double().T).fill_diagonal_(0).abs().max()) < 0.25
    with pytest.raises(ValueError, match="random_mixture with 65 languages'; allowed at most 64 languages"):
        RandomMixture().draw(0, 0, ids, torch.ones(500, 65, dtype=torch.bool))


def test_random_mixture_weighs_languages_by_their_pairs() -> None:
    e, draw = embeddings(), torch.tensor([0b0001, 0b0011, 0b1011, 0b0011, 0b0001, 0b1011, 0b1001])
    takes = [[bool(bits >> k & 1) for bits in draw.tolist()] for k in range(K)]
    total = weight = 0.0
    for k in range(K):
        rows = torch.tensor(takes[k])
        if rows.any():
            total += int(rows.sum()) * symmetric(e.audio[rows], e.text[rows, k])
            weight += int(rows.sum())
    loss = Objective(scheme=RandomMixture())(e, draw=draw).loss
    assert loss.item() == pytest.approx(total / weight)


@pytest.mark.parametrize("scheme", [Kcl(), RandomMixture()], ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("chunk", [1, 2, 3, 0])
def test_language_by_language_gives_the_gradient_of_all_at_once(chunk: int, scheme: Scheme) -> None:
    mask = full()
    mask[[0, 2, 5], 1] = False
    generator = torch.Generator().manual_seed(0)
    audio = torch.randn(B, D, generator=generator, dtype=torch.float64, requires_grad=True)
    text = torch.randn(B, K, D, generator=generator, dtype=torch.float64, requires_grad=True)
    objective, draw = Objective(scheme=scheme), scheme.draw(0, 0, IDS, mask)
    terms = objective(Embeddings(audio=audio, text=text, mask=mask), draw=draw)
    expected = torch.autograd.grad(terms.loss, (audio, text))
    value, by_language = 0.0, {}
    for languages, share in scheme.language_shares(mask, draw, chunk):
        of_part = mask & torch.isin(torch.arange(K), torch.tensor(languages))
        part = objective(Embeddings(audio=audio, text=text, mask=of_part), draw=draw)
        (share * part.loss).backward()
        value += share * part.loss.item()
        by_language.update({name: scalar for name, scalar in part.scalars.items() if name.startswith("loss_audio_")})
        assert chunk == 0 or len(languages) <= chunk
    assert value == pytest.approx(terms.loss.item())
    assert by_language.items() <= terms.scalars.items()
    torch.testing.assert_close((audio.grad, text.grad), expected)


@pytest.mark.parametrize("name", [name for name, scheme in SCHEMES.items() if not scheme.splits_by_language])
def test_schemes_that_compare_languages_in_one_matrix_are_one_part(name: str) -> None:
    scheme = SCHEMES[name]()
    assert scheme.language_shares(full(), scheme.draw(0, 0, IDS, full()), 1) == [(list(range(K)), 1.0)]


def test_a_given_similarity_is_taken_for_the_right_language_and_rows() -> None:
    mask = full()
    mask[3, 2] = False
    e = embeddings(mask)
    similarity = torch.einsum("id,jkd->kij", e.audio, e.text)
    given = Embeddings(audio=torch.rand_like(e.audio), text=torch.rand_like(e.text), mask=mask, similarity=similarity)
    draw = torch.tensor([0, 3, 1, 2, 2, 0, 1])
    for name in ("kcl", "contrastive", "ml_clap"):
        torch.testing.assert_close(preset(name)(given, draw=draw).loss, preset(name)(e, draw=draw).loss)


def test_comparisons_say_which_rows_and_languages_they_hold() -> None:
    mask = full()
    mask[3, 2] = False
    parts = Kcl().pairs(embeddings(mask), None)
    assert [part.comparison.v_language.unique().tolist() for part in parts] == [[0], [1], [2], [3]]
    assert parts[0].comparison.rows is None
    assert parts[2].comparison.rows.tolist() == [0, 1, 2, 4, 5, 6]
    assert sum(part.weight for part in parts) == pytest.approx(1)


def test_positives_follow_the_rows() -> None:
    mask = full()
    mask[0, 0] = False
    e = embeddings(mask)
    groups = torch.tensor([0, 0, 1, 1, 2, 3, 4])
    positives = groups[:, None] == groups[None]
    loss = English().pairs(Embeddings(audio=e.audio, text=e.text, mask=mask, positives=positives), None)[0]
    rows = torch.arange(1, B)
    expected = Contrastive()(Comparison(e.audio[rows], e.text[rows, 0], positives=positives[1:, 1:])).loss
    torch.testing.assert_close(Contrastive()(loss.comparison).loss, expected)
    numbered = Embeddings(audio=e.audio, text=e.text, mask=mask, groups=groups[:, None])
    torch.testing.assert_close(Contrastive()(English().pairs(numbered, None)[0].comparison).loss, expected)


def test_a_missing_draw_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="draw: got None; allowed a LongTensor"):
        preset("ml_clap")(embeddings())


def test_a_batch_without_any_text_is_refused() -> None:
    with pytest.raises(ValueError, match=r"embeddings\.mask: got"):
        preset("contrastive")(embeddings(torch.zeros(B, K, dtype=torch.bool)))
