"""The points of a sweep over a knowledge base's settings."""

from __future__ import annotations

from typing import Any

import pytest

from ray_atr.cli.comparisons import FIGURES, TABLES, KnowledgeSweep, ask
from ray_atr.common.override import override
from ray_atr.training.recipes import RECIPES

BASE = RECIPES["quickstart"]()


def test_every_point_of_every_table_and_figure_is_a_valid_experiment() -> None:
    for points in (*TABLES.values(), *FIGURES.values()):
        experiments = [override(BASE, point) for point in points]
        assert len({repr(experiment.objective) for experiment in experiments}) == len(points)


def test_the_ablation_switches_one_part_off_at_a_time() -> None:
    whole = override(BASE, ask()).objective.knowledge
    names: list[Any] = [
        override(BASE, point).objective.knowledge for point in KnowledgeSweep(table="ablation").points()
    ]
    assert names[0].name == "none"
    assert names[1] == whole
    switched = [
        {name for name, value in vars(knowledge).items() if value != vars(whole)[name]} for knowledge in names[2:]
    ]
    parts = ["fine", "coarse", "injection", "transport", "reliability", "refresh_every_epochs"]
    assert switched == [{part} for part in parts]
    assert names[-1].refresh_every_epochs == 0


def test_the_figure_of_the_refresh_period_has_the_baseline_and_a_base_that_is_never_refreshed() -> None:
    points = KnowledgeSweep(figure="refresh").points()
    found: list[Any] = [override(BASE, point).objective.knowledge for point in points]
    baseline, *periods = found
    assert baseline.name == "none"
    assert [knowledge.refresh_every_epochs for knowledge in periods] == [0, 1, 2, 5, 10]


@pytest.mark.parametrize("named", [{"table": "ablation"}, {"figure": "lag"}])
def test_a_table_or_figure_takes_no_values_of_a_grid(named: dict[str, str]) -> None:
    """They were dropped without a word."""
    assert len(KnowledgeSweep(**named).points()) > 2
    for given in ({"neighbours": (3,)}, {"prototypes": (8,)}, {"lambda_coarse": (0.1,)}):
        setting = next(iter(given)).replace("_", "-")
        with pytest.raises(ValueError, match=f"--{setting}: got .*allowed nothing with --{next(iter(named))}"):
            KnowledgeSweep(**named, **given).points()


def test_the_grid_is_every_combination_over_any_scheme_and_pair_loss() -> None:
    points = KnowledgeSweep(neighbours=(1, 5), injection_ratio=(0.1,), refresh_lag=(0, 4, 8)).points()
    assert len(points) == 1 + 2 * 3
    tree = override(BASE, {"objective.scheme": "kcl", "objective.pair": "partial_learning_to_match"})
    objective = override(tree, points[-1]).objective
    assert (objective.scheme.name, objective.pair.name) == ("kcl", "partial_learning_to_match")
    knowledge: Any = objective.knowledge
    assert (knowledge.neighbours, knowledge.injection_ratio, knowledge.refresh_lag) == (5, 0.1, 8)
