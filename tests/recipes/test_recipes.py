"""Every recipe trains: a whole step, validation and test with tiny towers whose checkpoints are in the published layouts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from models import tiny_checkpoints
from tiny import make_data

from ray_atr.experiment import Experiment
from ray_atr.models.audio import Ced, ResNet38
from ray_atr.models.retriever import Retriever
from ray_atr.objectives import PRESETS
from ray_atr.override import flatten, override
from ray_atr.recipes import RECIPES
from ray_atr.run_folder import BEST
from ray_atr.sweep_script import choose_recipe
from ray_atr.training.loop import train
from ray_atr.training.prepare import check_inputs, prepare

OF_PAPERS = [name for name in RECIPES if name != "quickstart"]

# What makes a recipe small: the recipe's own audio and text tower decide which of these apply.
SMALL: dict[str, dict[str, Any]] = {
    "ced": {"model.audio.size": "tiny", "model.audio.num_blocks": 1},
    "resnet38": {"model.audio.width_divisor": 16},
    "htsat": {"model.audio.clip_seconds": 2.0},
    "sonar": {},
    "labse": {},
    "bert": {},
    "small_cnn": {"model.audio.channels": 4},
    "small_transformer": {"model.text.vocab_size": 300},
    "ask": {"objective.knowledge.prototypes": 4, "objective.knowledge.neighbours": 2},
}
FILES = {"ced": "ced.pt", "resnet38": "resnet38.pth"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tones captioned in two languages, and a small checkpoint of each encoder."""
    folder = tmp_path_factory.mktemp("home")
    make_data(folder / "tones", num_train=8, num_val=4, num_test=4)
    torch.save({"model": Ced(**settings("ced")).build().state_dict()}, folder / "ced.pt")
    torch.save({"model": ResNet38(**settings("resnet38")).build().state_dict()}, folder / "resnet38.pth")
    tiny_checkpoints.clap(folder / "htsat")
    tiny_checkpoints.sonar(folder / "sonar")
    tiny_checkpoints.bert(folder / "bert", with_heads=True)
    tiny_checkpoints.bert(folder / "labse")
    return folder


def settings(tower: str) -> dict[str, Any]:
    return {path.rsplit(".", 1)[-1]: value for path, value in SMALL[tower].items()}


def small(recipe: Callable[[], Experiment], home: Path) -> Experiment:
    """The recipe on the tones with its own towers, made tiny."""
    experiment = recipe()
    audio, text, knowledge = (
        experiment.model.audio.name,
        experiment.model.text.name,
        experiment.objective.knowledge.name,
    )
    checkpoints = {"model.audio.checkpoint": home / FILES.get(audio, audio), "model.text.checkpoint": home / text}
    return override(
        experiment,
        {
            "data.source": str(home / "tones"),
            "data.languages": "eng,fra" if len(experiment.data.languages) > 1 else "eng",
            **{path: str(file) for path, file in checkpoints.items() if path in flatten(experiment)},
            "model.embedding_width": 16,
            "train.batch_size": 8,
            "train.epochs": 1,
            "scaling.gpus_per_worker": 0.0,
            "tracking.mlflow": False,
            **SMALL[audio],
            **SMALL[text],
            **SMALL.get(knowledge, {}),
        },
    )


@pytest.mark.parametrize("name", list(RECIPES))
def test_a_recipe_trains_a_step_with_tiny_towers(name: str, home: Path, tmp_path: Path) -> None:
    experiment = small(RECIPES[name], home)
    check_inputs(experiment)
    prepared = prepare(experiment, home, use_ray=False, say=lambda message: None)
    reports: list[dict[str, Any]] = []
    train(experiment, prepared, tmp_path, reports.append, use_ray_data=False)
    assert reports[0]["step"] == 1
    assert reports[0]["train/gradient_norm"] > 0
    assert 0 <= reports[-1]["test/text_to_audio/mean/recall_at_1"] <= 1
    assert experiment.evaluation.select_by in reports[0]
    assert Retriever.from_pretrained(tmp_path / BEST).settings == experiment.model


@pytest.mark.parametrize("name", OF_PAPERS)
def test_a_recipe_is_what_its_name_says(name: str) -> None:
    experiment = RECIPES[name]()
    data, audio, text, objective = name.split("_", 3)
    assert Path(experiment.data.source).name == data
    assert (experiment.model.audio.name, experiment.model.text.name) == (audio, text)
    preset, found = PRESETS[objective], experiment.objective
    assert (found.scheme, found.knowledge) == (preset.scheme, preset.knowledge)
    assert type(found.pair) is type(preset.pair)
    assert (experiment.model.embedding_width, experiment.model.projection) == (1024, "mlp")
    assert getattr(found.pair, "temperature", 0.07) == 0.07
    assert len(experiment.data.languages) == (8 if audio == "ced" else 1)


def test_recipes_of_the_papers_differ_in_the_objective_alone() -> None:
    for family in ("audiocaps_ced_sonar", "clotho_ced_sonar", "audiocaps_ced_labse", "audiocaps_resnet38_bert"):
        flats = [flatten(recipe()) for name, recipe in RECIPES.items() if name.startswith(family)]
        shared = [{k: v for k, v in flat.items() if not k.startswith("objective")} for flat in flats]
        assert len(flats) >= 3
        assert all(one == shared[0] for one in shared)


def test_transport_recipes_follow_the_paper_where_its_code_differs() -> None:
    for name in ("m_ltm", "m_ltm_pot"):
        pair = RECIPES[f"audiocaps_resnet38_bert_{name}"]().objective.pair
        assert (pair.metric, pair.epsilon) == ("mahalanobis", 0.05)


def test_a_checkpoint_that_is_missing_is_refused_before_anything_starts(home: Path) -> None:
    experiment = small(RECIPES["audiocaps_resnet38_bert_contrastive"], home)
    published = RECIPES["audiocaps_resnet38_bert_contrastive"]().model.audio.checkpoint
    with pytest.raises(ValueError, match=r"model\.audio\.checkpoint: got 'checkpoints/ResNet38_mAP=0\.434\.pth'"):
        check_inputs(override(experiment, {"model.audio.checkpoint": published}))
    with pytest.raises(ValueError, match=r"model\.text\.checkpoint: got '/nowhere/bert'"):
        check_inputs(override(experiment, {"model.text.checkpoint": "/nowhere/bert"}))


def test_a_wrong_recipe_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean audiocaps_ced_sonar_kcl"):
        choose_recipe("audiocaps_ced_sonar_kc")


def test_the_train_script_starts_from_a_recipe_and_lists_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "pipelines"))
    try:
        import train as script
    finally:
        sys.path.pop(0)
    started: list[Experiment] = []
    monkeypatch.setattr(script, "run_sweep_script", lambda name, recipe, *rest, **options: started.append(recipe))
    monkeypatch.setattr(sys, "argv", ["train.py", "--recipe", "clotho_ced_sonar_kcl"])
    script.main()
    assert started == [RECIPES["clotho_ced_sonar_kcl"]()]
    monkeypatch.setattr(sys, "argv", ["train.py", "--help"])
    with pytest.raises(SystemExit):
        script.main()
    shown = "".join(capsys.readouterr().out.split())
    assert all(name in shown.replace("│", "") for name in RECIPES)
