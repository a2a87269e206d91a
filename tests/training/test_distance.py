"""What a run logs each epoch beside its losses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from ray_atr.data.shards import write_clips
from ray_atr.objectives.schemes import weight_distance
from ray_atr.training import epoch_end
from ray_atr.training.checkpoint import load_checkpoint
from ray_atr.training.checks import check_experiment
from ray_atr.training.epoch_end import _LogProbabilities
from ray_atr.training.inputs import prepare
from ray_atr.training.loop import train_trial
from ray_atr.training.run_folder import LAST, RunFolder
from tests.support.spies import spied
from tests.support.tiny import tiny, tone_clip


@pytest.fixture(scope="module")
def data(home: Path) -> Path:
    return home / "tones"


def epochs_of(data: Path, folder: Path, **settings: Any) -> list[dict[str, Any]]:
    """Each epoch's metrics of a run of two epochs."""
    experiment = tiny(data, train__epochs=2, **settings)
    reports: list[dict[str, Any]] = []
    prepared = prepare(experiment, data.parent, use_ray=False, echo=lambda message: None)
    train_trial(experiment, prepared, folder, reports.append, use_ray_data=False)
    return [report for report in reports if "is_final" not in report]


def test_schemes_say_how_far_they_are_from_all_languages(data: Path, tmp_path: Path) -> None:
    english = epochs_of(data, tmp_path / "english", objective="contrastive")
    every = epochs_of(data, tmp_path / "every", objective="kcl", train__language_chunk=1)
    errors = [epoch["train/data_distribution_error"] for epoch in english]
    assert all(0.05 < error <= 2 for error in errors)
    # It is the model's, so training changes it.
    assert errors[0] != errors[1]
    assert [epoch["train/data_distribution_error"] for epoch in every] == pytest.approx([0.0, 0.0])
    assert all(epoch["train/alignment_direction_error"] > 1 for epoch in english)
    assert all(epoch["train/alignment_direction_error"] < 0.1 for epoch in every)


def test_automatic_mass_is_logged_beside_the_truth_and_the_solver_and_metric_beside_it(
    data: Path, tmp_path: Path
) -> None:
    epochs = epochs_of(
        data, tmp_path, objective="m_ltm_pot", objective__pair__transport_mass="auto", data__noise__ratio=0.4
    )
    for epoch in epochs:
        assert 0 <= epoch["train/estimated_clean_share"] <= epoch["train/transport_mass"] <= 1
        assert epoch["train/clean_share"] < 1
        assert epoch["train/transport_iterations"] > 0
        assert epoch["train/transport_is_capped"] == 0
        assert epoch["train/transport_residual"] < 1e-4
        assert epoch["train/metric_smallest_eigenvalue"] > 0
        assert epoch["train/metric_rank"] == 16


@pytest.mark.slow
def test_distance_from_another_runs_weights(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs_of(data, tmp_path / "first", objective="kcl", train__keep_trajectory=True)
    again = epochs_of(data, tmp_path / "again", objective="kcl", train__distance_to=str(tmp_path / "first"))
    # The same seed and settings have the same weights after each epoch.
    assert [epoch["train/weight_distance"] for epoch in again] == [0, 0]
    asked: list[int] = []
    spied(monkeypatch, _LogProbabilities, "gradient", lambda _, self, pair: asked.append(pair))
    other = epochs_of(data, tmp_path / "other", objective="contrastive", train__distance_to=str(tmp_path / "first"))
    # The largest gradient is of pairs in any language (Eq. 7), though only English is trained.
    assert {pair % 2 for pair in asked} == {0, 1}
    first, second = (load_checkpoint(tmp_path / run / LAST)["model"] for run in ("first", "other"))
    square = sum(float((first[name].double() - second[name].double()).square().sum()) for name in first)
    assert other[1]["train/weight_distance"] == pytest.approx(square**0.5)


@pytest.mark.slow
def test_recomputed_activations_change_no_distance_and_no_bound(data: Path, tmp_path: Path) -> None:
    """They are recomputed in the backward pass, where a tower that drops out would not be what it was in the forward pass."""
    drops = {"model.audio": "resnet38", "model.audio.width_divisor": 16, "model.audio.dropout": 0.3}
    epochs_of(data, tmp_path / "first", objective="kcl", train__keep_trajectory=True, **drops)
    saved, recomputed = (
        epochs_of(
            data, tmp_path / str(recomputes), train__distance_to=str(tmp_path / "first"), **drops,
            model__audio__adapt__activation_checkpointing=recomputes,
        )
        for recomputes in (False, True)
    )  # fmt: skip
    for one, other in zip(saved, recomputed, strict=True):
        assert other["train/weight_error_growth"] == pytest.approx(one["train/weight_error_growth"], rel=1e-4)


@pytest.mark.slow
def test_the_distance_is_of_the_same_step_and_stands_beside_its_bound(data: Path, tmp_path: Path) -> None:
    epochs_of(data, tmp_path / "first", objective="kcl", train__keep_trajectory=True)
    kept = sorted((tmp_path / "first" / "trajectory").iterdir())
    other = epochs_of(
        data, tmp_path / "other", objective="ml_clap", train__distance_to=str(tmp_path / "first"),
        train__keep_trajectory=True,
    )  # fmt: skip
    mine = sorted((tmp_path / "other" / "trajectory").iterdir())
    assert [path.name for path in mine] == [path.name for path in kept]
    for epoch, first, second in zip(other, kept, mine, strict=True):
        assert epoch["train/weight_distance"] == pytest.approx(weight_distance(load_file(first), load_file(second)))
        assert epoch["train/weight_error_growth"] > 1
        assert math.isfinite(epoch["train/weight_distance_bound_log10"])
    # Comparing changes no weight.
    epochs_of(data, tmp_path / "plain", objective="ml_clap")
    last = load_file(mine[-1])
    weights = load_checkpoint(tmp_path / "plain" / LAST)["model"]
    assert all(weights[name].equal(value) for name, value in last.items())


def test_an_epoch_may_end_with_a_batch_without_captions(tmp_path: Path) -> None:
    """Its clips have captions in languages that the run does not read."""
    captions = {"eng": ["a tone"], "fra": ["un son"]}
    clips = [tone_clip("train", index, captions if index < 2 else {"deu": ["ein Ton"]}) for index in range(16)]
    clips += [tone_clip("val", index, captions) for index in range(4)]
    write_clips(tmp_path / "tones", clips, name="tones", licence="none")
    settings: dict[str, Any] = {"objective": "kcl", "train__batch_size": 2}
    epochs_of(tmp_path / "tones", tmp_path / "first", train__keep_trajectory=True, **settings)
    again = epochs_of(tmp_path / "tones", tmp_path / "again", train__distance_to=str(tmp_path / "first"), **settings)
    assert [epoch["train/weight_distance"] for epoch in again] == [0, 0]
    assert not all("train/weight_error_growth" in epoch for epoch in again)


def test_a_run_of_one_trial_stands_for_its_trial(data: Path, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", tiny(data), {"name": "train"})
    with pytest.raises(
        ValueError, match=r"train\.distance_to: got .*run'; allowed a run with a trial; this one has none"
    ):
        check_experiment(tiny(data, train__distance_to=str(run.path)))
    epochs_of(data, run.add_trial({"seed": 0}).folder, objective="kcl", train__keep_trajectory=True)
    again = epochs_of(data, tmp_path / "again", objective="kcl", train__distance_to=str(run.path))
    assert [epoch["train/weight_distance"] for epoch in again] == [0, 0]
    run.add_trial({"seed": 1})
    with pytest.raises(ValueError, match=r"train\.distance_to: got .*run'; allowed one of its 2 trials: trials/"):
        check_experiment(tiny(data, train__distance_to=str(run.path)))


def test_measuring_changes_nothing_of_the_training(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"objective": "ml_clap", "model__text__dropout": 0.3}
    epochs_of(data, tmp_path / "measured", **settings)
    monkeypatch.setattr(epoch_end, "scheme_errors", lambda *arguments: {})
    epochs_of(data, tmp_path / "not", **settings)
    measured, plain = (load_checkpoint(tmp_path / run / LAST)["model"] for run in ("measured", "not"))
    assert all(measured[name].equal(plain[name]) for name in plain)


def test_a_run_to_compare_with_must_be_there_and_of_the_same_model(data: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"train\.distance_to: got .*; allowed the folder of a trial .*keep_trajectory"
    ):
        check_experiment(tiny(data, train__distance_to=str(tmp_path / "nowhere")))
    epochs_of(data, tmp_path / "first", objective="kcl", train__keep_trajectory=True)
    with pytest.raises(
        ValueError, match=r"train\.distance_to: .* a run of the same model; it differs in learned\.metric"
    ):
        epochs_of(data, tmp_path / "metric", objective="m_ltm", train__distance_to=str(tmp_path / "first"))
