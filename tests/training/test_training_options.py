"""Each option of a tower's training, set by its dotted path, does what it says in a real training step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from ray_atr.common.override import override
from ray_atr.models.ced import Attention as CedAttention
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.sweep import SEARCHES, Goal, SweepPlan
from ray_atr.sweep.schedulers import check_scheduler
from ray_atr.sweep.space import Space
from ray_atr.training.checkpoint import load_checkpoint
from ray_atr.training.checks import check_experiment
from ray_atr.training.experiment import Experiment
from ray_atr.training.inputs import prepare
from ray_atr.training.loop import train_trial
from ray_atr.training.run_folder import LAST
from tests.support.modules import before_each
from tests.support.tiny import make_data, prepared_for, tiny

Weights = Mapping[str, torch.Tensor]
RATE = 0.003
"""The learning rate of `tiny`: what Adam's first step moves a weight by, whatever its gradient."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    make_data(folder / "tones", num_train=8, num_val=4, num_test=0)
    return folder


def one_step(home: Path, folder: Path, **changes: Any) -> tuple[Weights, Weights, dict[str, Any]]:
    """The trained weights before and after an epoch of a single step, and what was reported of it."""
    experiment: Experiment = tiny(
        home / "tones",
        objective="kcl",
        train__epochs=1,
        train__weight_decay=0.0,
        train__clip_norm=0.0,
        train__warmup_fraction=0.0,
        model__audio="ced",
        model__audio__size="tiny",
        model__audio__num_blocks=2,
        model__text__num_layers=2,
    )
    experiment = override(experiment, {path.replace("__", "."): value for path, value in changes.items()})
    prepared = prepare(experiment, home, use_ray=False, echo=lambda message: None)
    before = build_retriever(experiment.model, tokenizer=prepared.load_tokenizer(), seed=experiment.seed).state_dict()
    reports: list[dict[str, Any]] = []
    train_trial(experiment, prepared, folder, reports.append, use_ray_data=False)
    after = load_checkpoint(folder / LAST)["model"]
    return {name: before[name] for name in after}, after, reports[0]


def moved(before: Weights, after: Weights, beginning: str) -> float:
    """How far the weights whose names begin so moved at most."""
    found = [(after[name] - before[name]).abs().max().item() for name in after if name.startswith(beginning)]
    assert found, beginning
    return max(found)


def test_without_options_every_part_moves_by_the_rate(home: Path, tmp_path: Path) -> None:
    before, after, _ = one_step(home, tmp_path)
    for part in ("audio_tower.patch_embed", "audio_tower.blocks.1", "text_tower.embedding", "audio_projection"):
        assert moved(before, after, part) == pytest.approx(RATE, rel=0.01), part


def test_freezing_up_to_a_layer_holds_what_is_below(home: Path, tmp_path: Path) -> None:
    before, after, _ = one_step(home, tmp_path, model__audio__adapt__frozen_layers=2)
    for part in ("audio_tower.patch_embed", "audio_tower.time_pos_embed", "audio_tower.blocks.0"):
        assert moved(before, after, part) == 0, part
    assert moved(before, after, "audio_tower.blocks.1") > 0


def test_each_tower_has_its_rate_and_depth_its_share(home: Path, tmp_path: Path) -> None:
    changes = {"model__text__adapt__learning_rate_scale": 0.1, "model__audio__adapt__layer_decay": 0.5}
    before, after, _ = one_step(home, tmp_path, **changes)
    assert moved(before, after, "text_tower") == pytest.approx(0.1 * RATE, rel=0.01)
    assert moved(before, after, "audio_tower.norm") == pytest.approx(RATE, rel=0.01)
    assert moved(before, after, "audio_tower.blocks.1") == pytest.approx(0.5 * RATE, rel=0.01)
    assert moved(before, after, "audio_tower.blocks.0") == pytest.approx(0.25 * RATE, rel=0.01)
    assert moved(before, after, "audio_tower.patch_embed") == pytest.approx(0.125 * RATE, rel=0.01)


def test_low_rank_updates_are_all_that_moves(home: Path, tmp_path: Path) -> None:
    before, after, _ = one_step(home, tmp_path, model__audio__adapt__lora_rank=2)
    changed = {name for name in after if name.startswith("audio_tower.") and not torch.equal(after[name], before[name])}
    assert changed
    assert all("lora_B" in name for name in changed)


def test_recomputing_activations_takes_another_forward_and_changes_nothing(home: Path, tmp_path: Path) -> None:
    calls = 0

    def look(attention: CedAttention, inputs: tuple[Any, ...]) -> None:
        """One in each of the two blocks."""
        nonlocal calls
        calls += torch.is_grad_enabled()

    with before_each(CedAttention, look):
        _, expected, _ = one_step(home, tmp_path / "kept")
        kept, calls = calls, 0
        _, found, _ = one_step(home, tmp_path / "recomputed", model__audio__adapt__activation_checkpointing=True)
    assert (kept, calls) == (2, 4)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-6, rtol=0, msg=name)


@pytest.mark.slow
def test_compiling_is_asked_for_by_its_path(home: Path, tmp_path: Path) -> None:
    """Layers are compiled in their first step, and those of a retriever that is read back never."""

    def compiled(retriever: Retriever) -> list[list[bool]]:
        towers: list[Any] = [retriever.audio_tower, retriever.text_tower]
        return [[layer._compiled_call_impl is not None for layer in tower.blocks] for tower in towers]

    audio = {"model__audio": "ced", "model__audio__size": "tiny", "model__audio__num_blocks": 2}
    experiment = tiny(home / "tones", **audio, model__text__num_layers=1, model__text__adapt__compile=True)
    retriever = prepared_for(experiment, home).first_retriever(experiment)
    assert compiled(retriever) == [[False, False], [True]]
    retriever.save_pretrained(tmp_path)
    assert compiled(Retriever.from_pretrained(tmp_path)) == [[False, False], [False]]


def test_bfloat16_rounds_in_the_towers_and_keeps_weights_in_float32(home: Path, tmp_path: Path) -> None:
    _, plain, report = one_step(home, tmp_path / "float32", train__precision="float32")
    _, rounded, report_there = one_step(home, tmp_path / "bfloat16", train__precision="bfloat16")
    assert report_there["train/loss"] != report["train/loss"]
    assert report_there["train/loss"] == pytest.approx(report["train/loss"], rel=0.02)
    assert {value.dtype for value in rounded.values()} == {value.dtype for value in plain.values()}


# A rate that moves nothing leaves the weights, and with them what a validation sees.
STILL = {"train__learning_rate": 1e-12}


@pytest.fixture(scope="module")
def plain(home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return one_step(home, tmp_path_factory.mktemp("plain"), **STILL)[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"model__audio__dropout": 0.3},
        {"model__text__dropout": 0.3},
        {"model__augment__time_bands": 2, "model__augment__time_share": 0.5},
        {"model__augment__frequency_bands": 2},
    ],
)
def test_dropout_and_bands_act_in_training_alone(
    home: Path, tmp_path: Path, change: dict[str, Any], plain: dict[str, Any]
) -> None:
    _, _, disturbed = one_step(home, tmp_path, **STILL, **change)
    assert disturbed["train/loss"] != pytest.approx(plain["train/loss"], rel=1e-4)
    metric = "embedding/eng/modality_gap"
    assert disturbed[metric] == pytest.approx(plain[metric], rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"model.interaction": "late", "evaluation.ranking": "plan"},
            "evaluation.ranking: got 'plan'; allowed learned, cosine with model.interaction=late",
        ),
        (
            {"model.interaction": "late", "train.embedding_chunk": 2},
            "train.embedding_chunk: got 2; allowed 0 with model.interaction=late",
        ),
        (
            {"data.order": "shards", "data.order_parts": 1, "model.audio.clip_seconds": 0.2},
            "data.order: got 'shards'; allowed exact, or model.windows=cut",
        ),
        (
            {"scaling.workers": 0, "scaling.validate_beside": True},
            "scaling.validate_beside: got 'true'; allowed false with scaling.workers=0",
        ),
        ({"model.augment.fill": "zero_after_norm"}, "model.augment.fill: got 'zero_after_norm'; allowed clip_mean"),
        ({"objective": "ance", "objective.knowledge.text_entries": "each"}, "text_entries: .*allowed english for ance"),
        (
            {"model.interaction": "late", "objective": "m_ltm"},
            "objective.pair.metric: got 'mahalanobis'; allowed euclidean with model.interaction=late",
        ),
        (
            {"objective": "m_ltm", "objective.knowledge": "ask", "objective.knowledge.transport_form": "additive"},
            "knowledge.transport_form: got 'additive'; allowed weighted, product with objective.pair.metric=mahalanobis",
        ),
        (
            {"data.noise.index": "noise.npy", "data.noise.parts": "sea"},
            r"data.noise.parts: got \('sea',\); allowed \(\) with data.noise.index",
        ),
        (
            {"objective.correspondence": "teacher"},
            r"objective.correspondence.teachers: got \(\); allowed one saved retriever",
        ),
        *(
            (
                {"model.audio": "resnet38", "model.audio.trains_batch_norms": True, f"model.audio.adapt.{name}": value},
                f"adapt.{name}: got {value}; allowed .* with trains_batch_norms",
            )
            for name, value in (("is_frozen", True), ("frozen_layers", 2), ("lora_rank", 3))
        ),
        *(
            (
                {"model.audio.adapt.is_frozen": True, f"model.audio.adapt.{name}": 1},
                rf"model\.audio\.adapt\.{name}: got 1; allowed 0 if is_frozen is true",
            )
            for name in ("lora_rank", "frozen_layers")
        ),
        (
            {"model.text.adapt.frozen_layers": 12},
            "model.text.adapt.frozen_layers: got 12; allowed at most . of SmallTransformerTower's . levels",
        ),
        (
            {"model.audio_projection": "none", "model.embedding_width": 9},
            "model.embedding_width: got 9; allowed .*, the audio tower's width",
        ),
        ({"model.text.num_heads": 5}, "num_heads: got 5; allowed a divisor of the width, 16"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(home: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_experiment(override(tiny(home / "tones"), settings))


def test_settings_that_go_together_are_not_refused(home: Path) -> None:
    for settings in (
        {"model.interaction": "late", "objective": "m_ltm", "objective.pair.metric": "euclidean"},
        {
            "objective": "m_ltm_euclidean",
            "objective.knowledge": "ask",
            "objective.knowledge.transport_form": "additive",
        },
        {"model.audio": "resnet38", "model.audio.trains_batch_norms": True},
        {"scaling.workers": 1, "scaling.validate_beside": True},
    ):
        check_experiment(override(tiny(home / "tones"), settings))


@pytest.mark.parametrize("every", [1, 2])
def test_trials_are_ended_early_where_each_epoch_is_validated(home: Path, every: int) -> None:
    experiment = tiny(home / "tones", evaluation__every_epochs=every)
    goals = (Goal(experiment.evaluation.select_by),)
    plan = SweepPlan(SEARCHES["grid"](Space.parse([], experiment), goals, 0, ()), seeds=(0,), scheduler="asha")
    if every == 1:
        check_scheduler(plan, experiment)
        return
    with pytest.raises(ValueError, match=r"evaluation\.every_epochs: got 2; allowed 1 with --scheduler asha"):
        check_scheduler(plan, experiment)
