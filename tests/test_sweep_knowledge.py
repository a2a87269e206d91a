"""The points of a sweep over a knowledge base's settings, and the mistakes it refuses before anything is written."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ray_atr.cli import run_script
from ray_atr.override import override
from ray_atr.recipes import RECIPES

BASE = RECIPES["quickstart"]()
ASK = ("--objective.knowledge", "ask")
SCRIPT = Path(__file__).resolve().parents[1] / "pipelines" / "sweep_knowledge.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    specification = importlib.util.spec_from_file_location("sweep_knowledge", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["sweep_knowledge"] = module
    specification.loader.exec_module(module)
    return module


def test_every_point_of_every_table_and_figure_is_a_valid_experiment(script: ModuleType) -> None:
    for points in (*script.TABLES.values(), *script.FIGURES.values()):
        experiments = [override(BASE, point) for point in points]
        assert len({repr(experiment.objective) for experiment in experiments}) == len(points)


def test_the_ablation_switches_one_part_off_at_a_time(script: ModuleType) -> None:
    whole = override(BASE, script.ask()).objective.knowledge
    names = [override(BASE, point).objective.knowledge for point in script.Options(table="ablation").points()]
    assert names[0].name == "none"
    assert names[1] == whole
    switched = [
        {name for name, value in vars(knowledge).items() if value != vars(whole)[name]} for knowledge in names[2:]
    ]
    parts = ["fine", "coarse", "injection", "transport", "reliability", "refresh_every_epochs"]
    assert switched == [{part} for part in parts]
    assert names[-1].refresh_every_epochs == 0


def test_the_grid_is_every_combination_over_any_scheme_and_pair_loss(script: ModuleType) -> None:
    points = script.Options(neighbours=(1, 5), injection_ratio=(0.1,), refresh_lag=(0, 4, 8)).points()
    assert len(points) == 1 + 2 * 3
    tree = override(BASE, {"objective.scheme": "one_to_k", "objective.pair": "partial_learning_to_match"})
    objective = override(tree, points[-1]).objective
    assert (objective.scheme.name, objective.pair.name) == ("one_to_k", "partial_learning_to_match")
    knowledge = objective.knowledge
    assert (knowledge.neighbours, knowledge.injection_ratio, knowledge.refresh_lag) == (5, 0.1, 8)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--table", "ablaton"], "--table: got 'ablaton'; allowed one of ablation, baselines (did you mean ablation?)"),
        (["--figure", "neighbors"], "did you mean neighbours?"),
        (["--table", "ablation", "--figure", "lag"], "--figure: got 'lag'; allowed only without --table"),
        (["--neighbours", "0"], "objective.knowledge.neighbours: got 0; allowed [1, inf)"),
        (["--injection_ratio", "1.5"], "objective.knowledge.injection_ratio: got 1.5; allowed [0, 1]"),
        (["--lambda_fine", "0.9"], "lambda_fine + lambda_coarse: got 1.1; allowed below 1"),
        ([*ASK, "--objective.knowledge.source", "nowhere", "--table", "ablation"], "nowhere: no data set"),
        ([*ASK, "--objective.knowledge.captions", "nowhere"], "objective.knowledge.captions: nowhere: no such file"),
    ],
)
def test_a_mistake_gets_one_line_and_writes_nothing(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.setenv("RAY_ATR_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["sweep_knowledge.py", *arguments])
    with pytest.raises(SystemExit) as exit_:
        run_script(script.main)
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
