"""The public door: presets, unknown names, what embeddings may be, and that every point of the grid works."""

from __future__ import annotations

import itertools

import pytest
import torch

from ray_atr import objectives
from ray_atr.common.override import flatten, override
from ray_atr.common.ranks import Ranks
from ray_atr.objectives import PAIRS, PRESETS, SCHEMES, Embeddings, Learned, LearnedParameters, Objective, preset
from ray_atr.objectives.pairs.ring import Ring
from ray_atr.objectives.presets import PRESET_TABLE
from tests.support.whole_product import IS_WHOLE

B, K, D = 6, 3, 5


def batch(**changes: object) -> Embeddings:
    generator = torch.Generator().manual_seed(0)
    tensors = {"audio": torch.randn(B, D, generator=generator), "text": torch.randn(B, K, D, generator=generator)}
    return Embeddings(**{**tensors, **changes})


def test_the_readmes_lines() -> None:
    audio, text, metric = torch.randn(B, D, requires_grad=True), torch.randn(B, K, D), torch.ones(D)
    objective = objectives.preset("m_ltm_pot", transport_mass=0.8, epsilon=0.05, metric="diagonal")
    terms = objective(objectives.Embeddings(audio=audio, text=text), learned=objectives.Learned(metric=metric))
    terms.loss.backward()
    assert terms.loss.ndim == 0
    assert torch.isfinite(audio.grad).all()
    assert not any(scalar.requires_grad for scalar in terms.scalars.values())
    assert terms.scalars["transport_mass"].item() == pytest.approx(0.8)


def test_rows_are_normalised() -> None:
    loss = preset("contrastive")(batch()).loss
    e = batch()
    torch.testing.assert_close(preset("contrastive")(batch(audio=7 * e.audio, text=0.1 * e.text)).loss, loss)


@pytest.mark.parametrize(("scheme", "pair"), list(itertools.product(SCHEMES, PAIRS)))
def test_every_point_of_the_grid_has_a_finite_loss_and_gradient(scheme: str, pair: str) -> None:
    objective = override(Objective(), {"scheme": scheme, "pair": pair})
    mask = torch.ones(B, K, dtype=torch.bool)
    mask[1, 2] = False
    audio = torch.randn(B, D, generator=torch.Generator().manual_seed(1)).requires_grad_()
    draw = objective.scheme.draw(0, 0, [str(i) for i in range(B)], mask)
    learned = LearnedParameters(objective.pair.learns(), D).values()
    terms = objective(batch(audio=audio, mask=mask), draw=draw, learned=learned)
    terms.loss.backward()
    assert torch.isfinite(terms.loss)
    assert audio.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pair", list(PAIRS))
def test_embeddings_in_half_precision_are_compared_in_float32(pair: str, dtype: torch.dtype) -> None:
    """As in a loop of one's own, with towers in half precision or under autocast."""
    objective, rounded = Objective(scheme=SCHEMES["kcl"](), pair=PAIRS[pair]()), batch()
    audio, text = rounded.audio.to(dtype), rounded.text.to(dtype)
    parameters = LearnedParameters(objective.pair.learns(), D).to(dtype)
    learned = parameters.values()
    expected = objective(Embeddings(audio.float(), text.float()), learned=learned.to(torch.float32)).loss
    halves = audio.requires_grad_()
    found = objective(Embeddings(halves, text), learned=learned)
    assert found.loss.dtype == torch.float32
    torch.testing.assert_close(found.loss, expected, rtol=0, atol=0)
    found.loss.backward()
    assert halves.grad.dtype == dtype
    assert 0 < float(halves.grad.norm()) < 1e4
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(objective(Embeddings(halves, text), learned=learned).loss, expected, rtol=0, atol=0)


@pytest.mark.parametrize("pair", [name for name, loss in PAIRS.items() if loss.goes_around])
def test_a_workers_own_pairs_are_compared_in_float32_within_autocast(pair: str) -> None:
    objective, given, ring = Objective(pair=PAIRS[pair]()), batch(), Ring(Ranks(), (slice(0, B),))
    audio, text, mask = given.audio.float(), given.text.float(), given.available()
    expected = objective.score_own(audio, text, mask, ring).loss
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(objective.score_own(audio, text, mask, ring).loss, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", list(PRESETS))
def test_presets_survive_flattening(name: str) -> None:
    assert override(Objective(), flatten(PRESETS[name])) == PRESETS[name]


def test_no_two_presets_have_one_colour() -> None:
    colours = [one.colour for one in PRESET_TABLE]
    assert len(set(colours)) == len(colours)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean m_ltm"):
        preset("m_lmt")
    with pytest.raises(ValueError, match=r"got 'transport_mas'; .*did you mean transport_mass"):
        preset("m_ltm_pot", transport_mas=0.8)
    with pytest.raises(ValueError, match="got 'temperature'; allowed one of"):
        preset("m_ltm", temperature=0.1)


def test_learned_temperature_takes_the_settings_place_and_gets_a_gradient() -> None:
    temperature = torch.tensor(0.2, requires_grad=True)
    loss = preset("contrastive")(batch(), learned=Learned(temperature=temperature)).loss
    loss.backward()
    torch.testing.assert_close(loss, preset("contrastive", temperature=0.2)(batch()).loss)
    assert temperature.grad is not None
    assert temperature.grad.abs() > 0


@pytest.mark.parametrize("which", ["audio", "text"])
def test_embeddings_that_are_not_finite_are_refused_by_name(which: str) -> None:
    tensor = getattr(batch(), which).clone()
    tensor[2, ..., 1] = torch.nan
    with pytest.raises(ValueError, match=f"embeddings.{which}"):
        batch(**{which: tensor})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"audio": torch.zeros(B)}, "embeddings.audio"),
        ({"text": torch.zeros(B, D)}, "embeddings.text"),
        ({"text": torch.zeros(B + 1, K, D)}, "embeddings.text"),
        ({"mask": torch.ones(B, K)}, "embeddings.mask"),
        ({"mask": torch.ones(B, K + 1, dtype=torch.bool)}, "embeddings.mask"),
        ({"positives": torch.ones(B, K, dtype=torch.bool)}, "embeddings.positives"),
        ({"similarity": torch.ones(B, B)}, "embeddings.similarity"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_by_name(changes: dict[str, torch.Tensor], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        batch(**changes)


@pytest.mark.slow
def test_objectives_and_their_gradients_run_under_torch_compile() -> None:
    # A plan takes most of the time: each week. A balanced plan is a partial one of full mass, of the same solver.
    chosen = [preset("contrastive"), *([preset("m_ltm_pot", metric="euclidean")] if IS_WHOLE else [])]
    e = batch()

    def values(audio: torch.Tensor) -> list[torch.Tensor]:
        # A module's arithmetic before the losses, to be compiled with them; the solver's loop is a break in the graph.
        embeddings = Embeddings(audio=torch.tanh(2 * audio), text=e.text)
        return [objective(embeddings).loss for objective in chosen]

    found = []
    # Tracing is what can go wrong here; each week the backward pass is traced too.
    for run in (values, torch.compile(values, backend="aot_eager" if IS_WHOLE else "eager")):
        audio = e.audio.clone().requires_grad_()
        losses = run(audio)
        found.append([(loss.detach(), *torch.autograd.grad(loss, audio, retain_graph=True)) for loss in losses])
    torch.testing.assert_close(found[1], found[0])


def test_a_knowledge_variant_that_needs_neighbours_refuses_to_go_without() -> None:
    needy = [variant for variant in objectives.KNOWLEDGE.values() if variant.needs_retrieval]
    for variant in needy:
        with pytest.raises(ValueError, match="retrieved: got None"):
            Objective(knowledge=variant())(batch())
