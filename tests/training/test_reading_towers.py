"""What a run gives to a correspondence that reads towers or recordings, and that it trains by what comes of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from ray_atr.common.storage import read_json, write_json
from ray_atr.data import caption_sample
from ray_atr.data.shards import write_clips
from ray_atr.models.retriever import Retriever
from ray_atr.models.weights import SETTINGS_FILE
from ray_atr.objectives.correspondence import noise_rate
from ray_atr.objectives.correspondence.clean_share import CleanShares
from ray_atr.objectives.correspondence.leave_one_out import LeaveOneOutEstimator
from ray_atr.training import correspondence
from ray_atr.training.batch import TrainingData
from ray_atr.training.correspondence import _readings, check_correspondence, what_is_read
from ray_atr.training.group import WorkerGroup
from ray_atr.training.loop import begin_epoch, train_trial
from ray_atr.training.run_folder import RunFolder
from ray_atr.training.setup import first_state
from ray_atr.workshop.importing.import_options import Join
from ray_atr.workshop.importing.join import join_data_sets
from tests.support.spies import spied
from tests.support.tiny import NOTES, any_towers_will_do, make_data, prepared_for, tiny, tone_clip


@pytest.fixture(autouse=True)
def _any_towers_will_do() -> Iterator[None]:
    with any_towers_will_do():
        yield


def experiment(home: Path, **changes: Any) -> Any:
    return tiny(
        home / "tones",
        **{"objective": "kcl", "objective__correspondence": "leave_one_out", "data__noise__ratio": 0.5, **changes},
    )


def test_towers_are_asked_for_every_pair_of_the_trained_languages(home: Path, tmp_path: Path) -> None:
    chosen = experiment(home)
    data = TrainingData(chosen, prepared_for(chosen, home), WorkerGroup())
    state = first_state(data, tmp_path)
    (outputs,) = _readings("towers", state.retriever, data.captions, ("eng", "fra"))
    rows, slots, languages = outputs.pair_index
    pairs = set(zip(rows.tolist(), slots.tolist(), languages.tolist(), strict=True))
    assert pairs == {(row, 0, k) for row in range(24) for k in range(2)}
    batch = data.captions.batch(np.arange(24), 0)
    texts = [batch.texts[i][k] for i, k in zip(rows, languages, strict=True)]
    for a in range(len(texts)):
        for b in range(len(texts)):
            assert (outputs.key[a] == outputs.key[b]) == (texts[a] == texts[b])
    tower, retriever = state.retriever.text_tower.eval(), state.retriever
    for a in (0, 7, 40):
        language = ("eng", "fra")[languages[a]]
        ids = torch.tensor(tower.tokenise([texts[a]], [language]))
        with torch.no_grad():
            own = torch.nn.functional.normalize(tower(ids, torch.ones_like(ids, dtype=torch.bool)).pooled, dim=1)[0]
        torch.testing.assert_close(torch.from_numpy(outputs.text[a]), own, atol=1e-5, rtol=1e-5)
    assert outputs.audio.shape == (24, retriever.audio_tower.width)
    (only,) = _readings("towers", state.retriever, data.captions, ("fra",))
    assert set(only.pair_index[2].tolist()) == {1}


def test_recordings_and_words_tell_wrong_pairs_before_any_tower_does(tmp_path: Path) -> None:
    make_data(tmp_path / "tones", num_train=80, languages=1)
    chosen = experiment(tmp_path, data__languages="eng", objective="contrastive")
    data = TrainingData(chosen, prepared_for(chosen, tmp_path), WorkerGroup())
    state = first_state(data, tmp_path)
    assert isinstance(state.estimator, LeaveOneOutEstimator)
    towers, recordings = _readings("auto", state.retriever, data.captions, ("eng",))
    rows, slots, languages = recordings.pair_index
    np.testing.assert_allclose(recordings.audio.mean(axis=0), 0, atol=1e-4)
    assert recordings.audio.std(axis=0).max() == pytest.approx(1, abs=1e-4)
    # A wrong caption may be of a clip of the same note: but for the number in it, it is right.
    texts = [row[0] for row in data.captions.batch(rows, 0).texts]
    is_right = np.array([text.startswith(f"{NOTES[row % 4]} tone") for row, text in zip(rows, texts, strict=True)])
    assert 30 < is_right.sum() < 60
    areas = []
    for read in (towers, recordings):
        state.estimator.take(state.estimator.estimate_from(read))
        areas.append(roc_auc_score(is_right, state.estimator.left_out[rows, slots, languages]))
    assert areas[1] > max(0.95, areas[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(correspondence, "_tower_clips", lambda *of: pytest.fail("towers are not read"))
        (again,) = _readings("recordings", state.retriever, data.captions, ("eng",))
    np.testing.assert_array_equal(again.text, recordings.text)


def test_the_share_of_true_pairs_is_read_from_what_the_regression_reads(home: Path, tmp_path: Path) -> None:
    chosen = experiment(home, objective__correspondence="small_loss", objective__correspondence__prior="estimate")
    data = TrainingData(chosen, prepared_for(chosen, home), WorkerGroup())
    state = first_state(data, tmp_path)
    towers, recordings = _readings("auto", state.retriever, data.captions, ("eng", "fra"))
    given: list[Any] = []
    shares: Any = SimpleNamespace(estimate=lambda readings, seed: given.append(readings))
    only = experiment(home, objective__correspondence__reads="recordings")
    for asked, expected in ((chosen, [towers, recordings]), (only, [recordings])):
        reads = what_is_read(asked, data.captions)
        correspondence.estimate_clean_shares(shares, state.retriever, data.captions, asked, reads)
        for found, wanted in zip(given.pop(), expected, strict=True):
            assert found.audio.shape == wanted.audio.shape
            np.testing.assert_allclose(found.audio, wanted.audio, atol=1e-5)


def test_where_vectors_stand_for_recordings_there_are_the_towers_alone(home: Path, tmp_path: Path) -> None:
    frozen = experiment(home, model__audio__adapt__is_frozen=True)
    data = TrainingData(frozen, prepared_for(frozen, home), WorkerGroup())
    assert len(_readings("auto", first_state(data, tmp_path).retriever, data.captions, ("eng",))) == 1
    words = "correspondence.reads: got 'recordings'; allowed auto or towers: no log-mel frames"
    for change in ({"model__audio__adapt__is_frozen": True}, {"model__audio": "vectors", "model__audio__width": 8}):
        with pytest.raises(ValueError, match=words):
            check_correspondence(experiment(home, objective__correspondence__reads="recordings", **change))
    check_correspondence(experiment(home, objective__correspondence__reads="recordings"))


@pytest.mark.slow
def test_a_run_trains_by_it_and_goes_on_as_if_it_had_not_stopped(home: Path, tmp_path: Path) -> None:
    taken: list[int] = []
    whole = experiment(home, train__epochs=3)
    prepared = prepared_for(whole, home)

    def losses(folder: Path, **more: Any) -> list[float]:
        rows: list[Any] = []
        train_trial(whole, prepared, folder, rows.append, use_ray_data=False, **more)
        return [row["train/loss"] for row in rows if "train/loss" in row]

    take = LeaveOneOutEstimator.take

    def counted(self: LeaveOneOutEstimator, found: Any) -> None:
        taken.append(1)
        take(self, found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LeaveOneOutEstimator, "take", counted)
        expected = losses(tmp_path / "whole")
    assert len(taken) == 1
    assert len(expected) == 3
    stopped: list[int] = []

    def preempted(group: WorkerGroup) -> bool:
        stopped.append(1)
        if len(stopped) == 5:
            raise KeyboardInterrupt
        return len(stopped) == 4

    with pytest.raises(KeyboardInterrupt):
        losses(tmp_path / "stopped", is_preempted=preempted)
    assert losses(tmp_path / "stopped") == expected


@pytest.mark.slow
def test_towers_that_have_trained_on_the_pairs_are_not_read_though_nothing_was_found(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They know the wrong pairs too, and no p-value tells that from knowledge: of 99% wrong ones a fifth seemed to be found."""
    monkeypatch.setattr(noise_rate, "CHANCE", -1.0)
    read: list[str] = []
    spied(monkeypatch, LeaveOneOutEstimator, "take", lambda *_: read.append("pairs"))
    spied(monkeypatch, CleanShares, "estimate", lambda *_: read.append("share"))
    pair = {"objective__pair": "partial_learning_to_match", "objective__pair__metric": "euclidean"}
    chosen = experiment(home, train__epochs=3, **pair, objective__pair__transport_mass="auto")
    rows: list[Any] = []
    train_trial(chosen, prepared_for(chosen, home), tmp_path, rows.append, use_ray_data=False)
    assert len([row for row in rows if "train/loss" in row]) == 3
    assert read == ["share", "pairs"]


def test_one_worker_reads_and_the_others_take_what_it_found(home: Path, tmp_path: Path) -> None:
    """Whatever another one would have computed: it may round otherwise."""
    chosen = experiment(home)
    data = TrainingData(chosen, prepared_for(chosen, home), WorkerGroup())
    first, second = (first_state(data, tmp_path / name) for name in ("first", "second"))
    sent: list[Any] = []

    class Group:
        def __init__(self, rank: int) -> None:
            self.is_first = rank == 0

        def of_first(self, own: Any) -> Any:
            sent.append(own)
            return sent[0]

    for rank, state in enumerate((first, second)):
        group: Any = Group(rank)
        assert isinstance(state.estimator, LeaveOneOutEstimator)
        correspondence.read_pairs(state.estimator, state.retriever, data.captions, ("eng", "fra"), group, "auto")
    assert sent[1] == {}
    for name, table in first.estimator.tables.items():
        torch.testing.assert_close(second.estimator.tables[name], table, rtol=0, atol=0, equal_nan=True)
    assert not bool(second.estimator.left_out.isnan().any())  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def trained(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A retriever that was trained on the tones, and copied out of its run."""
    folder, chosen = (
        tmp_path_factory.mktemp("trained"),
        tiny(home / "tones", train__epochs=1, evaluation__every_epochs=1),
    )
    train_trial(chosen, prepared_for(chosen, home), folder / "trial", lambda row: None, use_ray_data=False)
    shutil.copytree(folder / "trial" / "best", folder / "copy")
    return folder / "copy"


def reads_of(home: Path, data: Path, start: Path | None, **changes: Any) -> str:
    """Of a run on `data` that starts from a retriever."""
    chosen = experiment(
        home, data__source=str(data), train__start_from=None if start is None else str(start), **changes
    )
    given = TrainingData(chosen, prepared_for(experiment(home, data__source=str(data), **changes), home), WorkerGroup())
    return what_is_read(chosen, given.captions)


@pytest.mark.slow
def test_weights_that_have_trained_on_the_clips_are_not_asked_which_captions_are_wrong(
    home: Path, trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clips = [tone_clip("train", 100 + n, {"eng": [f"other {n}"], "fra": [f"autre {n}"]}) for n in range(200)]
    clips += [tone_clip("val", 1, {"eng": ["x"], "fra": ["x"]}, seconds=0.7)]
    write_clips(tmp_path / "others", clips, name="others", licence="none")
    few = clips[:8] + clips[-1:]
    write_clips(tmp_path / "few", few, name="few", licence="none")
    # Its captions are those that the retriever saw; as in a data set that was cleaned or divided into other shards.
    some = [
        tone_clip("train", n, {"eng": [f"{NOTES[n % 4]} tone, number {n}"], "fra": ["une autre"]}) for n in range(4, 14)
    ]
    write_clips(tmp_path / "some", [*some, clips[-1]], name="some", licence="none")
    for name in ("few", "others"):
        sets = (str(home / "tones"), str(tmp_path / name))
        join_data_sets(Join(sets=sets, ray="never", recordings="bytes"), tmp_path / f"with {name}")

    tones = home / "tones"
    frozen = {"model__audio__adapt__is_frozen": True, "model__text__adapt__is_frozen": True}
    assert reads_of(home, tones, None) == reads_of(home, tmp_path / "others", trained) == "auto"
    assert caplog.text == ""
    for place, which in (
        (tones, "these clips"),
        (tmp_path / "some", "these clips"),
        # Eight of the tones' training clips are left out, whose recordings are in its other splits too.
        (tmp_path / "with few", "some 67% of these clips"),
    ):
        caplog.clear()
        assert reads_of(home, place, trained) == "recordings"
        assert (
            f"was trained on {which} and takes their captions for right, so wrong ones are recognised by" in caplog.text
        )
    assert reads_of(home, tmp_path / "with others", trained) == "recordings"
    with pytest.MonkeyPatch.context() as patch:
        caplog.clear()
        patch.setattr(caption_sample, "FEW", 0.2)
        assert reads_of(home, tmp_path / "with others", trained) == "auto"
        assert caplog.text == ""
    # Frozen towers are those of the retriever, which has trained them.
    for changes in ({"model__audio__adapt__is_frozen": True}, {"objective__correspondence__reads": "towers"}, frozen):
        caplog.clear()
        assert reads_of(home, tones, trained, **changes) in ("auto", "towers")
        assert "so few of the wrong ones among them will be found" in caplog.text


def test_towers_that_were_frozen_in_both_trainings_are_asked(
    home: Path, trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frozen = {"model__audio__adapt__is_frozen": True, "model__text__adapt__is_frozen": True}
    shutil.copytree(trained, tmp_path / "saved")
    settings = tmp_path / "saved" / SETTINGS_FILE
    for audio, text in ((True, False), (True, True)):
        content = read_json(settings)
        content["model"] |= {"audio.adapt.is_frozen": audio, "text.adapt.is_frozen": text}
        write_json(settings, content)
        caplog.clear()
        assert reads_of(home, home / "tones", tmp_path / "saved", **frozen) == "auto"
        assert ("takes their captions for right" in caplog.text) == (not text)


@pytest.mark.parametrize("change", ["none", "start is gone", "of another version"])
def test_frozen_towers_of_a_frozen_run_are_those_that_its_run_started_from(
    home: Path, trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    frozen = {"model__audio__adapt__is_frozen": True, "model__text__adapt__is_frozen": True}
    first = Path(shutil.copytree(trained, tmp_path / "first"))
    for name, start in (("alone", None), ("chain", str(first))):
        caplog.clear()
        of_run = experiment(home, train__start_from=start, **frozen)
        best = Path(str(RunFolder.create(tmp_path / name, of_run, {"name": "train"}).add_trial({}).folder)) / "best"
        shutil.copytree(trained, best)
        content = read_json(best / SETTINGS_FILE)
        content["model"] |= {"audio.adapt.is_frozen": True, "text.adapt.is_frozen": True}
        write_json(best / SETTINGS_FILE, content)
        run = RunFolder.open(tmp_path / name)
        if change == "of another version":
            write_json(run.path / "experiment.json", {**run.settings, "train.removed": 1})
        elif change == "start is gone":
            shutil.rmtree(first, ignore_errors=True)
        assert reads_of(home, home / "tones", best, **frozen) == "auto"
        assert ("takes their captions for right" in caplog.text) == (start is not None)


def test_what_weights_were_trained_on_before_is_not_forgotten(home: Path, trained: Path, tmp_path: Path) -> None:
    clips = [tone_clip("train", 100 + n, {"eng": [f"other {n}"], "fra": [f"autre {n}"]}) for n in range(16)]
    write_clips(tmp_path / "others", [*clips, tone_clip("val", 1, {"eng": ["x"]})], name="others", licence="none")
    chosen = tiny(tmp_path / "others", train__start_from=str(trained), train__epochs=1, evaluation__every_epochs=1)
    train_trial(chosen, prepared_for(chosen, home), tmp_path / "trial", lambda row: None, use_ray_data=False)
    best = tmp_path / "trial" / "best"
    assert reads_of(home, home / "tones", best) == reads_of(home, tmp_path / "others", best) == "recordings"
    Retriever.from_pretrained(best).save_pretrained(tmp_path / "again")
    assert reads_of(home, home / "tones", tmp_path / "again") == "recordings"


def test_what_is_read_is_decided_by_the_data_of_the_run(
    home: Path, trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Towers that were trained on its captions."""
    chosen = experiment(home, train__start_from=str(trained))
    data = TrainingData(chosen, prepared_for(chosen, home), WorkerGroup())
    state = first_state(data, tmp_path)
    state.retriever.audio_tower.register_forward_pre_hook(lambda *_: pytest.fail("towers are not read"))
    begin_epoch(state, data, 0)
    assert "takes their captions for right" in caplog.text
