"""A run with a correspondence: what it logs, that it resumes bit for bit, and what it refuses before anything starts."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch

from ray_atr.common.override import override
from ray_atr.common.storage import locate, write_bytes
from ray_atr.data.captions import TrainingCaptions
from ray_atr.data.features import open_features
from ray_atr.data.noise import INDEX_FILE
from ray_atr.data.schema import to_clips
from ray_atr.data.shards import read_manifest, read_shard, write_clips
from ray_atr.models.retriever import Retriever
from ray_atr.models.text import TOKENIZER_FILE
from ray_atr.objectives.correspondence import CORRESPONDENCES
from ray_atr.training.checkpoint import load_checkpoint
from ray_atr.training.correspondence import embed_with_teachers
from ray_atr.training.experiment import Experiment
from ray_atr.training.knowledge_base.queue import Queue
from ray_atr.training.loop import train_trial
from ray_atr.training.run_folder import BEST, LAST
from tests.support.spies import spied
from tests.support.tiny import any_towers_will_do, make_data, prepared_for, require_weighed, tiny

NOISE = {"data__noise__ratio": 0.4, "train__epochs": 3, "evaluation__every_epochs": 3}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "tones", num_train=16, num_val=4, num_test=0)


@pytest.fixture(scope="module")
def teacher(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    run(tiny(data, train__epochs=1), folder)
    return folder


def run(experiment: Experiment, folder: Path, after: int = 0, left: Path | None = None) -> list[dict[str, Any]]:
    """What the run reported; `left` becomes its folder as a kill `after` so many epochs would leave it."""
    reported: list[dict[str, Any]] = []

    def report(metrics: dict[str, Any]) -> None:
        reported.append(metrics)
        if left is not None and len(reported) == after:
            shutil.copytree(folder, left)

    home = folder.parent / "home"
    with any_towers_will_do():
        train_trial(experiment, prepared_for(experiment, home), folder, report, use_ray_data=False)
    return reported


def settings_of(name: str, teacher: Path | str) -> dict[str, Any]:
    # A clip has one caption in each language.
    scheme = "kcl" if name == "consensus" else "english"
    chosen = {"objective__correspondence": name, "objective__scheme": scheme, **NOISE}
    return {**chosen, "objective__correspondence__teachers": str(teacher)} if name == "teacher" else chosen


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CORRESPONDENCES))
def test_a_run_logs_its_detector_and_resumes_bit_for_bit(name: str, data: Path, teacher: Path, tmp_path: Path) -> None:
    experiment = tiny(data, **settings_of(name, teacher))
    whole = run(experiment, tmp_path / "whole", after=2, left=tmp_path / "stopped")
    assert load_checkpoint(tmp_path / "stopped" / LAST)["progress"]["epoch"] == 2
    resumed = run(experiment, tmp_path / "stopped")
    for epoch, again in zip(whole[:3], resumed[:3], strict=True):
        timeless = {key for key in epoch if not key.startswith(("seconds", "memory"))}
        assert {key: epoch[key] for key in timeless} == {key: again[key] for key in timeless}
        assert 0 <= epoch["train/clean_probability"] <= 1
        assert 0 <= epoch["train/detector_auc"] <= 1
        assert 0 <= epoch["train/clean_pairs_lost"] <= 1
    weights = [Retriever.from_pretrained(tmp_path / one / "best").state_dict() for one in ("whole", "stopped")]
    assert all(np.array_equal(weights[0][key], weights[1][key]) for key in weights[0])
    if name != "none":
        require_weighed(tmp_path / "whole")
    if name == "oracle":
        assert whole[2]["train/detector_auc"] == 1
        assert whole[2]["train/clean_probability"] == pytest.approx(whole[2]["train/clean_share"], abs=0.1)


def test_the_correspondence_changes_the_training(data: Path, tmp_path: Path) -> None:
    losses = [
        run(tiny(data, **NOISE, objective__correspondence=name), tmp_path / name)[2]["train/loss"]
        for name in ("none", "oracle", "self_refining")
    ]
    assert len(set(losses)) == 3


def test_neighbours_reads_the_base_that_ask_has(data: Path, tmp_path: Path) -> None:
    ask = {"objective": "ask", "objective__knowledge__prototypes": 4, "objective__knowledge__neighbours": 2}
    experiment = tiny(data, **ask, **NOISE, objective__correspondence="neighbours")
    reported = run(experiment, tmp_path / "run")
    assert 0 <= reported[2]["train/detector_auc"] <= 1


def test_nnclr_forgets_the_captions_of_wrong_pairs(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[torch.Tensor] = []
    spied(monkeypatch, Queue, "push", lambda _, *given: pushed.append(given[-1]))
    chosen = {**settings_of("oracle", ""), "train__epochs": 1, "objective__knowledge": "nnclr"}
    reported = run(tiny(data, **chosen), tmp_path / "run")
    assert torch.cat(pushed).float().mean() == pytest.approx(reported[0]["train/clean_probability"])
    assert 0 < torch.cat(pushed).float().mean() < 1


def test_a_run_leaves_its_noise_as_a_file_that_gives_the_same_run(data: Path, tmp_path: Path) -> None:
    first = run(tiny(data, **NOISE), tmp_path / "first")
    index = tmp_path / "index.npy"
    shutil.copyfile(tmp_path / "first" / INDEX_FILE, index)
    again = run(tiny(data, train__epochs=3, data__noise__index=str(index)), tmp_path / "again")
    assert again[2]["train/loss"] == first[2]["train/loss"]
    assert again[2]["train/clean_share"] == first[2]["train/clean_share"] < 1
    assert (tmp_path / "again" / INDEX_FILE).read_bytes() == index.read_bytes()
    run(tiny(data, train__epochs=1), tmp_path / "clean")
    assert not (tmp_path / "clean" / INDEX_FILE).exists()


def test_a_noise_index_that_is_replaced_ends_a_resumed_run(data: Path, tmp_path: Path) -> None:
    index = tmp_path / "index.npy"
    np.save(index, np.arange(16).reshape(16, 1))
    experiment = tiny(data, train__epochs=1, data__noise__index=str(index))
    run(experiment, tmp_path / "run")
    # Taken up again with the same file.
    run(experiment, tmp_path / "run")
    before = index.read_bytes()
    np.save(index, np.roll(np.arange(16), 1).reshape(16, 1))
    with pytest.raises(
        ValueError, match=r"data\.noise\.index: got '.*index\.npy, which was replaced since'; allowed what"
    ):
        run(experiment, tmp_path / "run")
    # What the run has trained with is still in its folder.
    assert (tmp_path / "run" / INDEX_FILE).read_bytes() == before


def test_what_else_a_run_reads_is_known_again(data: Path, teacher: Path, tmp_path: Path) -> None:
    """A teacher, the captions and the source of a base, and of the retriever that it starts from a frozen tower."""
    start, judge, others = (tmp_path / name for name in ("start", "judge", "others"))
    for copy in (start, judge):
        shutil.copytree(teacher / BEST, copy)
    shutil.copytree(data, others)
    captions = tmp_path / "captions.jsonl"
    captions.write_text('{"clip_id": "x", "caption": "y"}\n', encoding="utf-8")
    base = {
        "objective": "ask",
        "objective__knowledge__source": str(others),
        "objective__knowledge__captions": str(captions),
    }
    given: dict[str, dict[str, Any]] = {
        "objective.correspondence.teachers": settings_of("teacher", judge),
        "objective.knowledge.captions": base,
        "objective.knowledge.source": base,
        "train.start_from": {"train__start_from": str(start), "model__audio__adapt__is_frozen": True},
    }

    def digests(changes: dict[str, Any]) -> dict[str, str]:
        experiment = tiny(data, **changes)
        return prepared_for(experiment, tmp_path / "home").digests(experiment)

    trained = tiny(data, train__start_from=str(start))
    prepared = prepared_for(trained, tmp_path / "home")
    tokens = prepared.digests(trained)
    before = {path: digests(changes)[path] for path, changes in given.items()}
    assert before == {path: digests(changes)[path] for path, changes in given.items()}
    retriever = Retriever.from_pretrained(start)
    with torch.no_grad():
        for weights in retriever.parameters():
            weights.add_(0.1)
    for copy in (start, judge):
        retriever.save_pretrained(copy)
    captions.write_text('{"clip_id": "x", "caption": "z"}\n', encoding="utf-8")
    shutil.rmtree(others)
    make_data(others, num_train=8)
    for path, changes in given.items():
        assert digests(changes)[path] != before[path]
    # Weights that go on in the checkpoint may be replaced, as by a better epoch, but not what the tokens mean.
    assert prepared.digests(trained) == tokens
    (start / "text" / TOKENIZER_FILE).write_text("{}", encoding="utf-8")
    assert prepared.digests(trained) != tokens


@pytest.mark.parametrize("path", ["data.noise.index", "objective.knowledge.captions"])
def test_what_a_run_reads_from_a_store_is_known_again(data: Path, tmp_path: Path, path: str) -> None:
    place = locate(f"memory://{uuid.uuid4().hex}/file")
    experiment = tiny(data, objective="ask")
    prepared, digests = prepared_for(experiment, tmp_path / "home"), []
    for content in (b"before", b"before", b"after"):
        write_bytes(place, content)
        digests.append(prepared.digests(override(experiment, {path: str(place)}))[path])
    assert digests[0] == digests[1] != digests[2]


def test_a_teacher_may_be_a_trial_or_in_a_store(data: Path, teacher: Path, tmp_path: Path) -> None:
    name = uuid.uuid4().hex
    fsspec.filesystem("memory").put(str(teacher / BEST), f"/{name}", recursive=True)
    losses = [
        run(tiny(data, **settings_of("teacher", place) | {"train__epochs": 1}), tmp_path / f"run{number}")[0][
            "train/loss"
        ]
        for number, place in enumerate((teacher, teacher / BEST, f"memory://{name}"))
    ]
    assert losses[0] == losses[1] == losses[2]


def test_a_teacher_s_vectors_stand_beside_the_clips_they_are_of(data: Path, teacher: Path, tmp_path: Path) -> None:
    """Also where the run has the clips in another order than the teacher's features."""
    experiment, manifest = tiny(data), read_manifest(data)
    shards = [shard for split in manifest.splits for shard in manifest.shards_of(split)]
    clips = [clip for shard in shards for batch in read_shard(manifest, shard) for clip in to_clips(batch)]
    write_clips(tmp_path / "turned", clips[::-1], name="tones", licence="none")
    sides = []
    for own in (data, tmp_path / "turned"):
        features = open_features(prepared_for(tiny(own), tmp_path).features, "train")
        captions = TrainingCaptions(features, experiment.data.languages, experiment.data.noise, 0)
        (found,) = embed_with_teachers((str(teacher / BEST),), captions, str(data), tmp_path, torch.device("cpu"))
        sides.append((features.clip_ids, found))
    (ids, there), (turned, found) = sides
    assert turned == ids[::-1]
    for ours, theirs in zip(found, there, strict=True):
        torch.testing.assert_close(ours, theirs.flip(0))
        assert not torch.allclose(theirs, theirs.flip(0))


def test_a_teacher_of_windows_is_refused_where_one_window_of_a_clip_is_read(
    data: Path, teacher: Path, tmp_path: Path
) -> None:
    short = {"model__audio__clip_seconds": 0.25}
    run(tiny(data, train__epochs=1, **short), tmp_path / "teacher")
    order = {"data__order": "shards", "data__order_parts": 1, "model__windows": "cut"}
    experiment = tiny(data, **order, **short)
    features = open_features(prepared_for(experiment, tmp_path).features, "train")
    captions = TrainingCaptions(features, experiment.data.languages, experiment.data.noise, 0)

    def embedded_by(folder: Path) -> int:
        teachers = (str(folder / BEST),)
        return len(embed_with_teachers(teachers, captions, str(data), tmp_path, torch.device("cpu"))[0].audio)

    assert embedded_by(teacher) == len(features)
    with pytest.raises(ValueError, match=r"data.order: got 'shards'; allowed exact with the teacher .*, which encodes"):
        embedded_by(tmp_path / "teacher")


def test_what_a_correspondence_needs_is_asked_for_before_anything_starts(data: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"objective.correspondence: got 'oracle'; allowed on data whose noise is known"
    ):
        prepared_for(tiny(data, objective__correspondence="oracle"), tmp_path)
    absent = {"objective__correspondence": "teacher", "objective__correspondence__teachers": str(tmp_path / "nowhere")}
    experiment = tiny(data, **absent)
    with pytest.raises(
        ValueError, match=r"correspondence.teachers: got .*nowhere'; allowed an existing folder: a saved"
    ):
        prepared_for(experiment, tmp_path)
    assert not list(tmp_path.iterdir())
