"""What came out best, and what a sweep was run on."""

from __future__ import annotations

import dataclasses
import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from ray_atr.common.override import override
from ray_atr.common.runtime import differences_of_code
from ray_atr.sweep import Goal
from ray_atr.sweep.describe import idle_line, noise_line, roles_line, unbeaten
from ray_atr.sweep.run_trials import record_data
from ray_atr.sweep.search import Observation
from ray_atr.training.experiment import Experiment
from ray_atr.training.inputs import Prepared
from ray_atr.training.run_folder import FINISHED, RunFolder, hashes_of, sets_of

RECALL, SECONDS = Goal("recall"), Goal("seconds/train", is_maximised=False)


def test_noise_in_one_language_is_said_to_be_less_in_what_is_trained_on() -> None:
    noisy = {"data.noise.ratio": 0.4, "data.noise.kind": "language", "data.languages": ["eng", "fra", "deu", "spa"]}
    experiment = override(Experiment(), {**noisy, "objective.scheme": "english"})
    assert "one of its 4 languages, so only about 1/4 of data.noise.ratio" in noise_line(experiment)
    assert "trained on (eng) is wrong" in noise_line(experiment)
    for path, value in {"data.noise.ratio": 0, "data.noise.kind": "pair", "data.languages": ["eng"]}.items():
        assert not noise_line(override(experiment, {path: value}))


def test_settings_that_nothing_uses_are_told() -> None:
    def line(**settings: Any) -> str:
        return idle_line(override(Experiment(), {path.replace("__", "."): value for path, value in settings.items()}))

    assert not line()
    near = {"data__noise__kind": "near"}
    assert line(**near) == "data.noise: no caption is made wrong, since data.noise.ratio is 0"
    assert not line(**near, data__noise__ratio=0.2)
    assert line(data__wrong_share=0.3).startswith("data.wrong_share is not read: objective.correspondence=none")
    assert line(data__wrong_share=0.3, objective__correspondence="small_loss")
    assert not line(data__wrong_share=0.3, objective__correspondence="leave_one_out")
    assert not line(data__wrong_share=0.3, objective="m_ltm_pot", objective__pair__transport_mass="auto")


def test_a_split_that_has_two_roles_is_told() -> None:
    def line(**splits: str) -> str:
        return roles_line(override(Experiment(), {f"data.{name}_split": split for name, split in splits.items()}))

    assert not line()
    assert "data.validation_split=train is trained on" in line(validation="train")
    assert (
        line(test="train") == "data.test_split=train: the test clips are trained on, so the test numbers are too good"
    )
    assert line(test="tset") == "data.test_split=tset: no test numbers, since soundscapes has train, val, test"
    assert not line(test="none")
    assert line(test="val") == "data.test_split=val: the test clips choose the epoch, so the test numbers are too good"


def test_what_no_point_beats_in_every_goal() -> None:
    numbers = random.Random(0)
    known = [
        Observation({"seed": number}, FINISHED, (round(numbers.random(), 1), round(numbers.random(), 1)))
        for number in range(40)
    ]
    front = unbeaten(known, (RECALL, SECONDS))
    for one, other in itertools.product(known, known):
        (recall, seconds), (others_recall, others_seconds) = one.scores, other.scores
        if others_recall >= recall and others_seconds <= seconds and other.scores != one.scores:
            assert one not in front
    for beaten_id in set(map(id, known)) - set(map(id, front)):
        beaten = next(point for point in known if id(point) == beaten_id)
        assert any(
            best.scores[0] >= beaten.scores[0] and best.scores[1] <= beaten.scores[1] and best.scores != beaten.scores
            for best in front
        )


def test_with_one_goal_the_best_comes_alone() -> None:
    known = [Observation({"seed": number}, FINISHED, (score,)) for number, score in enumerate((0.3, 0.9, 0.5))]
    assert [one.scores for one in unbeaten(known, (RECALL,))] == [(0.9,)]
    assert [one.scores for one in unbeaten(known, (Goal("loss", is_maximised=False),))] == [(0.3,)]


def test_data_and_code_of_a_sweep() -> None:
    assert hashes_of({}) == {}
    assert hashes_of({"data": {"name": "a, b", "hash": "1, 2"}}) == {"a": "1", "b": "2"}
    assert sets_of({}) == sets_of({"data": {"name": "a", "hash": "1"}}) == []
    assert sets_of({"data": {"name": "a, b", "hash": "1, 2", "set": "audiocaps, clotho"}}) == ["audiocaps", "clotho"]
    assert differences_of_code({}, {"ray": "2"}) == []
    assert differences_of_code({"code": {"ray": "1", "torch": "2"}}, {"ray": "2", "torch": "2"}) == ["ray was 1, is 2"]


def test_other_data_under_the_same_name_is_refused(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", Experiment(), {"name": "sweep"})

    def prepared(digest: str, name: str = "tones") -> Prepared:
        return Prepared(data=f"s3://bucket/{name}", data_hash=digest, features=tmp_path, tokenizer=None, home=tmp_path)

    record_data(run, [dataclasses.replace(prepared("abc"), data_name="audiocaps")])
    assert sets_of(run.info) == ["audiocaps"]
    record_data(run, [prepared("abc"), prepared("def", name="rain")])
    assert run.info["data"] == {"name": "tones, rain", "hash": "abc, def", "set": "audiocaps"}
    named = prepared("fed", name="clips, v2")
    record_data(run, [named])
    record_data(run, [named])
    assert hashes_of(run.info)["clips  v2"] == "fed"
    # A set that was moved is no further one.
    record_data(run, [prepared("abc", name="elsewhere")])
    assert hashes_of(run.info).keys() == {"tones", "rain", "clips  v2"}
    with pytest.raises(ValueError, match="run on other data: tones has the hash abc there and 123 now"):
        record_data(run, [prepared("123")])


def test_two_data_sets_in_folders_of_one_name_are_both_recorded(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", Experiment(), {"name": "sweep"})
    first, second = (
        Prepared(data=f"s3://{bucket}/tones", data_hash=digest, features=tmp_path, tokenizer=None, home=tmp_path)
        for bucket, digest in (("a", "abc"), ("b", "def"))
    )
    record_data(run, [first, second])
    assert hashes_of(run.info) == {"tones": "abc", "s3://b/tones": "def"}
    # A resumed sweep prepares the sets of the trials that are left.
    record_data(run, [second])
    record_data(run, [first])
    assert hashes_of(run.info) == {"tones": "abc", "s3://b/tones": "def"}
    with pytest.raises(ValueError, match="run on other data: tones has the hash abc there and 123 now"):
        record_data(run, [dataclasses.replace(second, data_hash="123")])
