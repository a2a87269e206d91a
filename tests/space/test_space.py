"""The language of spaces: what it reads, what it refuses, what its points hold."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from ray_atr.common.override import override
from ray_atr.sweep.space import Choice, Grid, LogUniform, QUniform, RandInt, Space, Uniform, parse_dimension
from ray_atr.training.experiment import Experiment

PARTIAL = override(Experiment(), {"objective": "m_ltm_pot"})


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("grid(0,0.2,0.4)", Grid((0, 0.2, 0.4))),
        ("choice(m_ltm, 'eng,fra', \"a b\")", Choice(("m_ltm", "eng,fra", "a b"))),
        ("choice(true,none,-1,1e-3)", Choice((True, "none", -1, 0.001))),
        ("uniform(0.3,1)", Uniform(0.3, 1.0)),
        (" loguniform( 1e-4 , 1e-2 ) ", LogUniform(1e-4, 1e-2)),
        ("quniform(0,1,0.25)", QUniform(0.0, 1.0, 0.25)),
        ("randint(1,20)", RandInt(1, 20)),
        ("randint(1000,12345678)", RandInt(1000, 12_345_678)),
        ("uniform(0.12345678,1)", Uniform(0.12345678, 1.0)),
        ("quniform(0,1,0.00390625)", QUniform(0.0, 1.0, 2.0**-8)),
        ("choice('1','true',' a',\"it's\")", Choice(("1", "true", " a", "it's"))),
    ],
)
def test_a_dimension_is_read_and_written_as_it_is_typed(text: str, dimension: object) -> None:
    assert parse_dimension("path", text) == dimension
    assert parse_dimension("path", str(dimension)) == dimension


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("data.noise.ratio=grid()", "allowed grid(VALUE,...) with at least one value"),
        ("data.noise.ratio=grid( )", "at least one value"),
        ("data.noise.ratio=grid(0,)", "no comma after the last value"),
        ("data.noise.ratio=grid(0,,0.2)", "values with commas between them"),
        ("data.noise.ratio=grid(0,0.0)", "0.0 occurs twice"),
        ("data.noise.ratio=unifrom(0,0.5)", "did you mean uniform?"),
        ("data.noise.ratio=0.5", "allowed grid(VALUE,...)"),
        ("data.noise.ratio=uniform(0.2,0.1)", "LOW < HIGH"),
        ("data.noise.ratio=uniform(0.2)", "uniform(LOW,HIGH) with numbers"),
        ("data.noise.ratio=uniform(0,nan)", "uniform(LOW,HIGH) with numbers"),
        ("data.noise.ratio=__import__('os').system('true')", "allowed grid(VALUE,...)"),
        ("data.noise.ratio", "PATH=grid(VALUE,...)"),
        ("train.learning_rate=loguniform(0,1)", "LOW > 0"),
        ("train.epochs=randint(1.5,3)", "whole numbers"),
        ("train.weight_decay=quniform(0,1,2)", "STEP between 0 and HIGH - LOW"),
        ("data.noise.ration=uniform(0,0.5)", "did you mean ratio?"),
        ("data.noise.ratio=uniform(0,1)", "data.noise.ratio: got 1.0; allowed [0, 1) (in uniform(0,1))"),
        ("train.epochs=randint(0,5)", "train.epochs: got 0; allowed [1, inf)"),
        ("train.epochs=uniform(1,5)", "write randint(LOW,HIGH)"),
        ("train.optimizer=choice(adam,adamv)", "train.optimizer: got 'adamv'"),
        ("objective=choice(contrastiv,m_ltm)", "did you mean contrastive?"),
        ("objective=uniform(0,1)", "grid(...) or choice(...) of names"),
        ("objective.pair.margin=uniform(0,1)", "objective.pair.margin: no such setting"),
        ("seed=grid(0,1)", "give them with --seeds"),
    ],
)
def test_a_mistake_names_the_path_and_what_is_allowed(entry: str, words: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the words are compared below, without escaping them
        Space.parse([entry], PARTIAL)
    assert words in str(error.value)


def test_ends_of_a_range_are_in_it_whatever_their_digits() -> None:
    """A number of six digits may lie beyond an end of more, and 0.3 / 0.1 is less than 3."""
    narrow = Uniform(0.12345649, 0.12345651)
    assert {narrow.fit(number) for number in (0.0, 1.0)} == {narrow.low, narrow.high}
    assert narrow.low <= narrow.draw(random.Random(0)) <= narrow.high
    steps = QUniform(0.0, 0.3, 0.1)
    assert {steps.draw(random.Random(seed)) for seed in range(40)} == {0.0, 0.1, 0.2, 0.3}


def test_a_path_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"train\.epochs: given twice"):
        Space.parse(["train.epochs=grid(1)", "train.epochs=grid(2)"], PARTIAL)


def test_values_are_those_that_the_tree_holds() -> None:
    space = Space.parse(["data.noise.ratio=grid(0,0.4)", "data.languages=choice('eng,fra',eng)"], PARTIAL)
    assert space.describe() == {"data.noise.ratio": "grid(0.0,0.4)", "data.languages": "choice('eng,fra',eng)"}
    assert {type(point["data.noise.ratio"]) for point in space.grid()} == {float}
    assert [point["data.languages"] for point in space.grid()] == ["eng,fra", "eng"] * 2


def test_a_grid_has_every_combination_once() -> None:
    space = Space.parse(["data.noise.ratio=grid(0,0.2,0.4)", "train.epochs=choice(2,3)"], PARTIAL)
    expected = [{"data.noise.ratio": noise, "train.epochs": epochs} for noise in (0.0, 0.2, 0.4) for epochs in (2, 3)]
    assert list(space.grid()) == expected
    with pytest.raises(ValueError, match="a range needs another search than --search grid"):
        list(Space.parse(["train.learning_rate=loguniform(1e-4,1e-2)"], PARTIAL).grid())


CONDITIONAL = (
    "objective=choice(contrastive,m_ltm,m_ltm_pot)",
    "objective.pair.epsilon=choice(0.05,0.1)",
    "objective.pair.transport_mass=uniform(0.3,1)",
)


def test_a_setting_is_left_out_of_the_points_that_do_not_have_it_and_that_is_said() -> None:
    space = Space.parse(CONDITIONAL, Experiment())
    paths = {"contrastive": set(), "m_ltm": {"epsilon"}, "m_ltm_pot": {"epsilon", "transport_mass"}}
    for number in range(60):
        point = space.draw(random.Random(number))
        assert {path.rsplit(".", 1)[-1] for path in point if path != "objective"} == paths[point["objective"]]
        override(Experiment(), point)
    assert space.conditions == [
        "objective.pair.epsilon is left out if objective=contrastive: no such setting there",
        "objective.pair.transport_mass is left out if objective=contrastive or objective=m_ltm: no such setting there",
    ]


def test_a_pruned_grid_repeats_no_point() -> None:
    space = Space.parse(CONDITIONAL[:2], Experiment())
    assert list(space.grid()) == [
        {"objective": "contrastive"},
        {"objective": "m_ltm", "objective.pair.epsilon": 0.05},
        {"objective": "m_ltm", "objective.pair.epsilon": 0.1},
        {"objective": "m_ltm_pot", "objective.pair.epsilon": 0.05},
        {"objective": "m_ltm_pot", "objective.pair.epsilon": 0.1},
    ]


def test_a_setting_that_no_choice_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"objective\.pair\.margin: no such setting"):
        Space.parse(["objective=choice(contrastive,m_ltm)", "objective.pair.margin=uniform(0.1,1)"], Experiment())


def test_scheme_pair_and_knowledge_are_chosen_one_by_one() -> None:
    entries = ["objective.scheme=grid(english,kcl)", "objective.pair=grid(contrastive,partial_learning_to_match)"]
    space = Space.parse([*entries, "objective.pair.transport_mass=grid(0.6,0.8)"], Experiment())
    assert len(list(space.grid())) == 2 * (1 + 2)


def test_draws_lie_in_their_ranges_and_follow_their_law() -> None:
    space = Space.parse(
        [
            "train.learning_rate=loguniform(1e-4,1e-2)",
            "train.weight_decay=quniform(0,0.1,0.025)",
            "train.epochs=randint(1,3)",
            "objective.pair.transport_mass=uniform(0.3,1)",
        ],
        PARTIAL,
    )
    points = [space.draw(random.Random(number)) for number in range(2000)]
    assert all(space.holds(point) for point in points)
    # Half of the draws of a log-uniform number lie below the geometric mean, of a uniform one below the arithmetic mean.
    below = sum(point["train.learning_rate"] < math.sqrt(1e-4 * 1e-2) for point in points)
    assert 900 < below < 1100
    assert 900 < sum(point["objective.pair.transport_mass"] < 0.65 for point in points) < 1100
    assert set(Counter(point["train.weight_decay"] for point in points)) == {0.0, 0.025, 0.05, 0.075, 0.1}
    assert set(Counter(point["train.epochs"] for point in points)) == {1, 2, 3}


def test_a_point_outside_is_known_as_such() -> None:
    space = Space.parse(["data.noise.ratio=uniform(0,0.5)", "train.optimizer=choice(adam,adamw)"], PARTIAL)
    inside = {"data.noise.ratio": 0.5, "train.optimizer": "adam"}
    assert space.holds(inside)
    assert not space.holds({**inside, "data.noise.ratio": 0.51})
    assert not space.holds({**inside, "train.optimizer": "sgd"})
    assert not space.holds({"data.noise.ratio": 0.5})
    assert not space.holds({**inside, "train.epochs": 3})


@pytest.mark.parametrize("dimension", ["randint(0,4)", "quniform(0,4,1)"])
def test_a_number_between_two_steps_is_outside(dimension: str) -> None:
    """An earlier sweep may have varied the setting by a range."""
    space = Space.parse([f"train.weight_decay={dimension}"], PARTIAL)
    assert space.holds({"train.weight_decay": 2.0})
    assert not space.holds({"train.weight_decay": 2.5})


def test_the_cells_of_a_search_are_the_points_of_its_grids() -> None:
    entries = ["objective=grid(contrastive,m_ltm)", "data.noise.ratio=grid(0,0.4)", "train.weight_decay=uniform(0,0.1)"]
    space = Space.parse([*entries, "train.optimizer=choice(adam,adamw)"], Experiment())
    assert len(space.grid_points()) == 4
    assert all(set(cell) == {"objective", "data.noise.ratio"} for cell in space.grid_points())
    point = space.draw(random.Random(0), space.grid_points()[3])
    assert (point["objective"], point["data.noise.ratio"]) == ("m_ltm", 0.4)
