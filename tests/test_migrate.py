"""What earlier versions wrote is read in today's words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ray_atr.experiment import Experiment, load_experiment
from ray_atr.migrate import VALUES, migrated, migrated_run
from ray_atr.models.retriever import ModelSettings
from ray_atr.override import override
from ray_atr.tracking.fetch import _settings as fetched_settings


@pytest.mark.parametrize(("former", "name"), [("random", "ml_clap"), ("co_anchor", "cacl"), ("one_to_k", "kcl")])
def test_an_experiment_with_a_former_scheme_is_read(tmp_path: Path, former: str, name: str) -> None:
    (tmp_path / "experiment.json").write_text(json.dumps({"objective.scheme": former, "model.interaction": "local"}))
    experiment = load_experiment(tmp_path / "experiment.json")
    assert (experiment.objective.scheme.name, experiment.model.interaction) == (name, "late")


def test_a_retriever_saved_before_is_read() -> None:
    assert override(ModelSettings(), {"interaction": "local"}).interaction == "late"


def test_other_values_of_the_same_name_are_left() -> None:
    values = {"objective.pair": "random", "objective.scheme": "english", "seed": 3}
    assert migrated(values) == values


def test_settings_fetched_from_mlflow_are_read_as_those_of_a_folder() -> None:
    """Before there was a choice, all ranked by cosine."""
    stored = {"evaluation.select_by": "text_to_audio/mean/recall_at_1", "objective.pair": "learning_to_match"}
    assert fetched_settings(stored)["evaluation.ranking"] == "cosine"
    assert fetched_settings({**stored, "evaluation.ranking": "plan"})["evaluation.ranking"] == "plan"


def test_the_commit_that_a_run_once_called_git_is_found() -> None:
    assert migrated_run({"code": {"git": "0abc", "torch": "2.9"}}, {})["code"] == {"git_commit": "0abc", "torch": "2.9"}
    for code in ({"git_commit": "0abc"}, {}, None, "git"):
        assert migrated_run({"code": code}, {})["code"] == code


def test_every_former_value_stands_for_one_that_is_allowed() -> None:
    for path, names in VALUES.items():
        tree = ModelSettings() if "." not in path else Experiment()
        for name in names.values():
            override(tree, {path: name})


def test_a_model_of_before_windows_hears_one_of_a_long_clip() -> None:
    stored = {"model.interaction": "global", "model.learn_temperature": False, "model.initial_temperature": 0.07}
    assert override(Experiment(), stored).model.windows == "cut"
    assert override(Experiment(), {**stored, "model.windows": "max"}).model.windows == "max"
    assert override(Experiment(), {"model.interaction": "global"}).model.windows == Experiment().model.windows
    assert override(ModelSettings(), {name.removeprefix("model."): stored[name] for name in stored}).windows == "cut"
