"""The command of the best configuration trains what the best trial was, setting for setting."""

from __future__ import annotations

import shlex

import pytest

from ray_atr.cli.parse import read_config, settings_from
from ray_atr.common.override import flatten, override
from ray_atr.evaluation.report import read_runs
from ray_atr.evaluation.report.sweep_page import best_points
from ray_atr.training.recipes import RECIPES
from ray_atr.training.run_folder import RunFolder


@pytest.mark.parametrize(
    ("changed", "overrides"),
    [
        ({"train.epochs": 3}, {"objective": "m_ltm_pot", "objective.pair.transport_mass": 0.7, "seed": 2}),
        ({"data.languages": "eng,fra"}, {"objective.scheme": "kcl", "objective.pair": "learning_to_match"}),
        ({"objective": "ask"}, {"objective.knowledge.neighbours": 3, "data.noise.ratio": 0.4}),
        ({"objective": "kcl", "seed": 5}, {"train.learning_rate": 3.4567891e-4}),
        ({"data.source": "s3://bucket/data/esc50"}, {}),
    ],
)
def test_the_command_says_every_setting_of_the_trial(tmp_path, changed, overrides):
    base = override(RECIPES["quickstart"](), changed)
    run = RunFolder.create(tmp_path / "run", base, {"name": "test", "varied": list(overrides)})
    trial = run.add_trial(overrides)
    trial.add_epoch({"epoch": 1, base.evaluation.select_by: 0.5})
    trial.finish({"best_epoch": 1})
    (best,) = best_points(read_runs([run.path]))
    words = shlex.split(best.command)
    assert words[:5] == ["uv", "run", "python", "pipelines/train.py", "--config"]
    again = override(override(RECIPES["from_scratch"](), read_config(words[5])), settings_from(words[6:]))
    different = {
        path
        for path, value in flatten(override(base, overrides)).items()
        if flatten(again).get(path) != value and not path.startswith(("tracking.", "scaling."))
    }
    assert different == set()
