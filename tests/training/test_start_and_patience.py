"""Where a run starts from, and when it has seen enough."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from ray_atr.common.progress import silent
from ray_atr.models.retriever import Retriever
from ray_atr.sweep.run_trials import prepare_all
from ray_atr.training.checkpoint import Progress, load_checkpoint
from ray_atr.training.checks import check_experiment
from ray_atr.training.experiment import Experiment
from ray_atr.training.loop import train_trial
from ray_atr.training.run_folder import BEST, LAST
from tests.support.tiny import MEASURED, make_data, prepared_for, tiny
from tests.support.tiny_checkpoints import clap, roberta_words
from tests.support.validations import measure_by

STILL = {"train__learning_rate": 1e-12, "train__weight_decay": 0.0}
"""A rate that moves nothing."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    make_data(folder / "tones", num_train=16, num_val=4, num_test=4)
    make_data(folder / "others", num_train=8, num_val=4, num_test=4, languages=1)
    run(tiny(folder / "tones", train__epochs=1), folder, folder / "first")
    return folder


def run(experiment: Experiment, home: Path, folder: Path) -> list[dict[str, Any]]:
    reports: list[dict[str, Any]] = []
    train_trial(experiment, prepared_for(experiment, home), folder, reports.append, use_ray_data=False)
    return reports


@pytest.mark.parametrize(("objective", "place"), [("contrastive", BEST), ("m_ltm", "")])
def test_training_starts_from_the_saved_weights(home: Path, tmp_path: Path, objective: str, place: str) -> None:
    start = home / "first" / BEST
    changes = {"objective": objective, "data__languages": "eng", "train__epochs": 1}
    # A trial stands for its best retriever.
    changes["train__start_from"] = str(home / "first" / place)
    # Other captions, which would make another tokeniser.
    experiment = tiny(home / "others", **changes, **STILL)
    run(experiment, home, tmp_path)
    trained, saved = load_checkpoint(tmp_path / LAST)["model"], load_file(start / "model.safetensors")
    for name, value in saved.items():
        if not name.startswith("learned."):
            torch.testing.assert_close(trained[name], value, atol=1e-9, rtol=0, msg=name)
    used = prepared_for(experiment, home).load_tokenizer()
    assert used is not None
    assert used.get_vocab() == Tokenizer.from_file(str(start / "text" / "tokenizer.json")).get_vocab()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__embedding_width": 8}, r"train\.start_from: got .*a retriever with the same towers"),
        ({"model__text__num_layers": 2}, r"it differs in text_tower\.blocks\.1"),
    ],
)
def test_a_retriever_with_other_towers_is_refused_before_anything_is_prepared(
    home: Path, changes: dict[str, Any], message: str
) -> None:
    start = str(home / "first" / BEST)
    with pytest.raises(ValueError, match=message):
        check_experiment(tiny(home / "tones", train__start_from=start, **changes))
    check_experiment(tiny(home / "tones", train__start_from=start, objective="m_ltm"))


def test_trials_that_start_from_different_retrievers_are_prepared_before_the_first_begins(home: Path) -> None:
    starts = [{}, {"train__start_from": str(home / "first" / BEST)}]
    prepared = prepare_all(
        [tiny(home / "others", data__languages="eng", **start) for start in starts], home, silent, use_ray=False
    )
    own, saved = (inputs.tokenizer for inputs in prepared)
    assert own != saved


def test_seeds_are_prepared_one_by_one_if_they_draw_a_frozen_tower(home: Path) -> None:
    frozen, start = {"model__text__adapt__is_frozen": True}, {"train__start_from": str(home / "first" / BEST)}
    for changes, number in (({}, 1), (frozen, 2), (frozen | start, 1)):
        experiments = [tiny(home / "tones", **changes, seed=seed) for seed in (0, 1)]
        assert len(prepare_all(experiments, home, silent, use_ray=False)) == number


def test_a_retriever_in_a_store_with_other_towers_is_refused_by_the_heads_of_its_files(home: Path) -> None:
    store = fsspec.filesystem("memory")
    store.put(str(home / "first" / BEST), "/start-in-a-store", recursive=True)
    try:
        start: dict[str, Any] = {"train__start_from": "memory://start-in-a-store"}
        with pytest.raises(ValueError, match=r"train\.start_from: got 'memory:.*a retriever with the same towers"):
            check_experiment(tiny(home / "tones", model__embedding_width=8, **start))
        check_experiment(tiny(home / "tones", **start))
    finally:
        store.rm("/start-in-a-store", recursive=True)


IN, OUT = {"lora_targets": "attention_in"}, {"lora_targets": "attention_out"}


@pytest.mark.parametrize(
    ("saved", "chosen"),
    [
        ({}, {"lora_rank": 2, **IN}),
        ({"lora_rank": 2, **IN}, {}),
        ({"lora_rank": 2, **IN}, {"lora_rank": 2, **IN}),
        ({"lora_rank": 2, **IN}, {"lora_rank": 3, **IN}),
        ({"lora_rank": 2, **IN}, {"lora_rank": 2, "lora_alpha": 32, **IN}),
        ({"lora_rank": 2, **IN}, {"lora_rank": 2, **OUT}),
    ],
)
def test_low_rank_updates_go_on_or_become_weights_and_the_retriever_stays_the_same(
    home: Path, tmp_path: Path, saved: dict[str, Any], chosen: dict[str, Any]
) -> None:
    def first_retriever(adapt: dict[str, Any], start: Path | None = None) -> Retriever:
        changes = {f"model__text__adapt__{name}": value for name, value in adapt.items()}
        experiment = tiny(home / "tones", train__start_from=None if start is None else str(start), **changes)
        check_experiment(experiment)
        return prepared_for(experiment, home).first_retriever(experiment).eval()

    before, texts = first_retriever(saved), ["a low tone", "un bruit"]
    with torch.no_grad():
        for weights in before.parameters():
            weights.add_(0.1 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(3)))
    before.save_pretrained(tmp_path)
    after = first_retriever(chosen, tmp_path)
    torch.testing.assert_close(after.encode_text(texts), before.encode_text(texts), atol=1e-5, rtol=0)
    updates = {name: value for name, value in after.state_dict().items() if "lora_B" in name}
    assert bool(updates) == bool(chosen)
    assert all(value.any() for value in updates.values()) == (saved == chosen or not chosen)


def test_a_published_retriever_with_other_towers_is_refused_before_anything_is_prepared(
    home: Path, tmp_path: Path
) -> None:
    folder = clap(tmp_path / "clap")
    with pytest.raises(ValueError, match=r"train\.start_from: model\.text\.checkpoint: .*a folder with its tokeniser"):
        check_experiment(tiny(home / "tones", train__start_from=str(folder)))
    roberta_words(folder)
    with pytest.raises(ValueError, match=r"train\.start_from: .*a retriever with the same towers"):
        check_experiment(tiny(home / "tones", train__start_from=str(folder)))


def test_a_retriever_that_cannot_be_outlined_is_refused_by_the_training(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray_atr.training.checks.check_start", lambda *_: None)
    changes: dict[str, Any] = {"train__start_from": str(home / "first" / BEST), "train__epochs": 1}
    experiment = tiny(home / "tones", model__embedding_width=8, **changes)
    with pytest.raises(ValueError, match=r"train\.start_from: got .*a retriever with the same towers"):
        run(experiment, home, tmp_path)


def test_a_retriever_whose_tokeniser_is_gone_is_refused(home: Path, tmp_path: Path) -> None:
    start = Path(shutil.copytree(home / "first" / BEST, tmp_path / "start"))
    (start / "text" / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"train\.start_from: got .*it has no tokeniser of small_transformer"):
        prepared_for(tiny(home / "tones", train__start_from=str(start)), home)


def test_a_folder_without_a_retriever_is_refused_before_anything_starts(home: Path) -> None:
    with pytest.raises(ValueError, match=r"train\.start_from: got .*retriever\.json"):
        check_experiment(tiny(home / "tones", train__start_from=str(home / "tones")))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__wrong_share": "/nowhere"}, r"data\.wrong_share: got '/nowhere'"),
        (
            {"objective__correspondence": "consensus", "data__languages": "eng"},
            "consensus.*several captions in the trained languages",
        ),
        (
            {
                "objective__correspondence": "consensus",
                "data__languages": "eng,fra",
                "objective__scheme": "english",
            },
            "consensus.*several captions in the trained languages",
        ),
    ],
)
def test_what_correspondences_lack_is_refused_before_anything_starts(
    home: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_experiment(tiny(home / "tones", **changes))
    has_all = {"data__wrong_share": "0.3", "data__languages": "eng,fra", "objective__scheme": "kcl"}
    check_experiment(tiny(home / "tones", **changes | has_all))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "patience", "epochs"),
    [
        ([0.1, 0.5, 0.3, 0.4, 0.9, 0.9], 2, 4),
        ([0.1, 0.5, 0.3, 0.6, 0.5, 0.4], 2, 6),
        ([0.3, 0.2, 0.4, 0.4, 0.4, 0.4], 1, 2),
        ([0.3, 0.2, 0.1, 0.1, 0.1, 0.1], 0, 6),
    ],
)
def test_a_run_ends_when_nothing_gets_better(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[float], patience: int, epochs: int
) -> None:
    experiment = tiny(home / "tones", train__epochs=6, train__patience=patience, **MEASURED)
    calls: list[str] = []

    def validate(*arguments: Any, **options: Any) -> dict[str, float]:
        calls.append("")
        return {experiment.evaluation.select_by: values[min(len(calls), 6) - 1]}

    measure_by(monkeypatch, validate)
    reports = run(experiment, home, tmp_path)
    assert [report["epoch"] for report in reports] == [*range(1, epochs + 1), epochs]
    assert reports[-1]["best_epoch"] == 1 + values.index(max(values[:epochs]))
    assert reports[-1]["out_of_patience"] == (epochs < 6)
    # Taken up again, it knows that it has ended.
    before = len(calls)
    assert [report["epoch"] for report in run(experiment, home, tmp_path)] == [*range(1, epochs + 1), epochs]
    assert len(calls) == before + 1, "the test alone"


def test_patience_waits_for_the_next_validation(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a validation in every third epoch, those between bring no better one and are not held against the run."""
    experiment = tiny(home / "tones", train__epochs=12, train__patience=2, evaluation__every_epochs=3)
    # The last is the test's.
    values = iter([0.1, 0.5, 0.4, 0.5, 0.5])
    measure_by(monkeypatch, lambda *_, **__: {experiment.evaluation.select_by: next(values)})
    reports = run(experiment, home, tmp_path)
    assert [report["epoch"] for report in reports] == [*range(1, 10), 9]
    assert (reports[-1]["best_epoch"], reports[-1]["out_of_patience"]) == (6, True)


def test_of_equal_validations_the_first_is_the_best() -> None:
    progress = Progress()
    assert [progress.is_best(value, epoch) for epoch, value in enumerate((0.5, 0.5, 0.4, 0.6), start=1)] == [
        True,
        False,
        False,
        True,
    ]
    assert (progress.best_epoch, progress.best_value) == (4, 0.6)
