"""One override for the command line, the sweep and the tests: conversions, variants, and errors that name the remedy."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from ray_atr.common.override import describe, flatten, override, with_absolute_paths
from ray_atr.common.settings import Settings, setting
from ray_atr.training.experiment import Experiment, ScalingSettings, TrainSettings


@dataclass(frozen=True, kw_only=True)
class Hinge(Settings):
    name: ClassVar[str] = "hinge"
    margin: float = setting(0.2, "margin of the hinge", above=0)


@dataclass(frozen=True, kw_only=True)
class Transport(Settings):
    name: ClassVar[str] = "transport"
    transport_mass: float = setting(1.0, "share of mass moved", above=0, at_most=1)
    mining: str | None = setting(None, "which negatives", choices=("all", "hardest"))


PAIRS = {"hinge": Hinge, "transport": Transport}


@dataclass(frozen=True, kw_only=True)
class Objective(Settings):
    pair: Settings = setting(default_factory=Hinge, help="pair loss", variants=PAIRS)


PRESETS = {"plain": Objective(), "moved": Objective(pair=Transport(transport_mass=0.9))}


@dataclass(frozen=True, kw_only=True)
class Tree(Settings):
    objective: Objective = setting(default_factory=Objective, help="objective", variants=PRESETS)
    languages: tuple[str, ...] = setting(("eng",), "languages")
    seed: int = setting(0, "seed", at_least=0)
    is_quick: bool = setting(False, "whether")


def test_strings_become_the_fields_types() -> None:
    tree = override(Tree(), {"seed": "3", "is_quick": "true", "languages": "eng, fra", "objective.pair.margin": "0.5"})
    assert tree == Tree(seed=3, is_quick=True, languages=("eng", "fra"), objective=Objective(pair=Hinge(margin=0.5)))


def test_a_variant_is_chosen_by_name_whatever_the_order_of_the_paths() -> None:
    values = {"objective.pair.transport_mass": 0.8, "objective.pair": "transport"}
    assert override(Tree(), values).objective.pair == Transport(transport_mass=0.8)
    assert override(Tree(), dict(reversed(values.items()))).objective.pair == Transport(transport_mass=0.8)
    # The variant that is chosen already keeps its settings.
    assert override(override(Tree(), values), {"objective.pair": "transport"}).objective.pair == Transport(
        transport_mass=0.8
    )


def test_a_preset_is_chosen_by_name_and_then_changed() -> None:
    tree = override(Tree(), {"objective": "moved", "objective.pair.mining": "all"})
    assert tree.objective.pair == Transport(transport_mass=0.9, mining="all")
    assert override(tree, {"objective.pair.mining": "None"}).objective.pair == Transport(transport_mass=0.9)


def test_flatten_is_undone_by_override() -> None:
    tree = override(Tree(), {"objective": "moved", "seed": 7, "languages": "eng,jpn"})
    assert override(Tree(), flatten(tree)) == tree
    assert flatten(tree)["objective.pair"] == "transport"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("objective.pair.transport_mass", 0.8, ["objective.pair.transport_mass", "hinge", "margin"]),
        ("objective.pair.margn", 0.8, ["objective.pair.margn", "did you mean margin?"]),
        ("margin", 0.8, ["did you mean objective.pair.margin?"]),
        ("seed", True, ["seed: got True; allowed int [0, inf)"]),
        ("objective.pair.margin", True, ["objective.pair.margin: got True; allowed float"]),
        ("objective.pair.margin", -1, ["objective.pair.margin: got -1", "(0, inf)"]),
        ("objective.pair", "transprt", ["objective.pair: got 'transprt'", "did you mean transport?"]),
        ("objective.pair", "moved", ["objective.pair: got 'moved'", "transport (objective takes moved)"]),
        ("objective", "movd", ["objective: got 'movd'", "did you mean moved?"]),
        ("seed", "three", ["seed: got 'three'", "int"]),
        ("seed", "1.5", ["seed: got '1.5'", "int"]),
        ("seed.more", 1, ["seed is a single value"]),
        ("objective.pair.margin", float("nan"), ["margin"]),
        ("objective.pair.margin", "1e400", ["objective.pair.margin: got inf; allowed (0, inf)"]),
    ],
)
def test_a_mistake_names_path_value_and_remedy(path: str, value: object, words: list[str]) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 the words are checked below
        override(Tree(), {path: value})
    for word in words:
        assert word in str(error.value)


def test_no_setting_of_the_experiment_is_infinite() -> None:
    numbers = [entry.path for entry in describe(Experiment()) if "float" in entry.type]
    for path, value in itertools.product(numbers, ("inf", "-inf", "nan")):
        with pytest.raises(ValueError, match=rf"{path}: got -?{value.strip('-')}; allowed \S+"):
            override(Experiment(), {path: value})


@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        (TrainSettings, {"learning_rate": "fast"}, "learning_rate: got 'fast'; allowed (0, inf) or auto"),
        (TrainSettings, {"epochs": "3"}, "epochs: got '3'; allowed int [1, inf)"),
        (ScalingSettings, {"ray_data": "Literal"}, "ray_data: got 'Literal'; allowed bool or auto"),
        (Tree, {"is_quick": "yes"}, "is_quick: got 'yes'; allowed bool"),
        (Tree, {"objective": "moved"}, "objective: got 'moved'; allowed Objective one of plain, moved"),
    ],
)
def test_a_word_is_no_number_from_python(kind: type[Settings], values: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        kind(**values)
    assert ScalingSettings(share_losses_from="auto", ray_data="auto", workers="2:4").workers == "2:4"


def test_what_is_allowed_beside_numbers_is_said() -> None:
    allowed = {entry.path: entry.allowed for entry in describe(Experiment())}
    assert allowed["data.wrong_share"] == "[0, 1), auto or a path"
    assert allowed["scaling.workers"] == "[0, inf), auto or FEWEST:MOST"
    assert allowed["scaling.loss_memory"] == "[0, inf) or auto"
    assert allowed["model.windows_in_training"] == "[1, 10000] or none"
    assert allowed["data.noise.ratio"] == "[0, 1)"


def test_every_setting_of_the_experiment_has_help() -> None:
    without = [entry.path for entry in describe(Experiment()) if not entry.help]
    assert not without


@dataclass(frozen=True, kw_only=True)
class Places(Settings):
    source: str = setting("soundscapes", "where clips are", path="always", words=("soundscapes",))
    captions: str | None = setting(None, "a file", path="always")
    checkpoint: str = setting("owner/model", "a folder or hub id", path="if there")
    split: str = setting("train", "no path")


@pytest.mark.parametrize(
    ("setting_", "typed", "held"),
    [
        ("source", "data/esc50", "HERE/data/esc50"),
        ("source", "../esc50", "ABOVE/esc50"),
        ("source", "~/esc50", "HOME/esc50"),
        ("source", "/data/esc50", "/data/esc50"),
        ("source", "file://data/esc50", "HERE/data/esc50"),
        ("source", "s3://bucket/esc50", "s3://bucket/esc50"),
        ("source", "soundscapes", "soundscapes"),
        ("source", "./soundscapes", "HERE/soundscapes"),
        ("captions", "none", None),
        ("captions", "captions.parquet", "HERE/captions.parquet"),
        ("checkpoint", "owner/model", "owner/model"),
        ("checkpoint", "owner/there", "HERE/owner/there"),
        ("checkpoint", "./owner/absent", "HERE/owner/absent"),
        ("checkpoint", "", ""),
        ("split", "owner/there", "owner/there"),
    ],
)
def test_a_relative_path_is_absolute_from_where_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting_: str, typed: str, held: str | None
) -> None:
    here = tmp_path / "here"
    (here / "owner" / "there").mkdir(parents=True)
    # A folder that has the name of a word does not change what the word means.
    (here / "soundscapes").mkdir()
    monkeypatch.chdir(here)
    read = override(Places(), {setting_: typed})
    expected = held
    for name, place in (("HERE", here), ("ABOVE", tmp_path), ("HOME", Path.home())):
        expected = expected.replace(name, str(place)) if expected is not None else None
    assert getattr(read, setting_) == expected
    assert with_absolute_paths(Places(), {setting_: typed}) == {setting_: typed if held is None else expected}
    monkeypatch.chdir(tmp_path)
    assert override(Places(), flatten(read)) == read


def test_only_paths_of_a_point_are_replaced() -> None:
    point = {"objective": "moved", "objective.pair.transport_mass": "0.5"}
    assert with_absolute_paths(Tree(), point) == point


@pytest.mark.parametrize("path", ["train.epochs", "seed", "objective.knowledge.refresh_every_epochs"])
def test_an_integer_that_nothing_can_be_computed_with_is_refused(path: str) -> None:
    changes = {"objective.knowledge": "ask"} if "knowledge" in path else {}
    with pytest.raises(ValueError, match=rf"{path}: got '?9+.*allowed integers of 64 bits"):
        override(Experiment(), {**changes, path: int("9" * 400)})
