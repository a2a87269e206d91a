"""Knowledge in a real run: what is logged each epoch, what switches it off, and what happens when a refresh is late or fails."""

from __future__ import annotations

import errno
import itertools
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from ray_atr.data.captions import TrainingCaptions
from ray_atr.data.features import open_features
from ray_atr.data.shards import write_clips
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.objectives.knowledge.knowledge import KnowledgeBaseObjective, SnapshotSettings
from ray_atr.training.base_encoding import MakeRefresher, SourceEncoder
from ray_atr.training.batch import TrainingData
from ray_atr.training.checkpoint import load_checkpoint
from ray_atr.training.drift import prototype_collapse
from ray_atr.training.epoch_end import DriftProbe
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import Prepared
from ray_atr.training.knowledge_base.building import build
from ray_atr.training.knowledge_base.memory import MomentumMemory, SnapshotMemory, make_memory
from ray_atr.training.knowledge_base.parts import BasePart
from ray_atr.training.knowledge_base.refresher import InProcessRefresher, Refresher
from ray_atr.training.knowledge_base.snapshot import Entries, PartEntries
from ray_atr.training.loop import train_trial
from ray_atr.training.setup import first_state
from tests.support.spies import spied
from tests.support.tiny import make_data, prepared_for, short_resnets, tiny, tone_clip

KNOWLEDGE = "objective.knowledge"
SMALL = {f"{KNOWLEDGE}.prototypes": 4, f"{KNOWLEDGE}.neighbours": 2}
ASK = {KNOWLEDGE: "ask", **SMALL}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tones without a test split: what it says at the end of a run is not looked at here."""
    folder = tmp_path_factory.mktemp("home")
    make_data(folder / "tones", num_test=0)
    return folder


def run(
    home: Path, folder: Path, make_refresher: MakeRefresher | None = None, **changes: Any
) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """The epochs' reports of a run, without the final one, and the weights that it ends with."""
    experiment = tiny(home / "tones", **changes)
    prepared, reports = prepared_for(experiment, home), list[dict[str, Any]]()
    train_trial(experiment, prepared, folder, reports.append, use_ray_data=False, make_refresher=make_refresher)
    return reports[:-1], load_checkpoint(folder / "last")["model"]


@dataclass
class Disturbed:
    """Encodes a base after `disturb`."""

    encoder: SourceEncoder
    disturb: Callable[[], object]

    def encode_part(self, weights: Any, part: BasePart) -> PartEntries:
        self.disturb()
        return self.encoder.encode_part(weights, part)


def disturbed_by(disturb: Callable[[], object]) -> MakeRefresher:
    """A base in the run's process, which tries again at once."""

    def make(knowledge: KnowledgeBaseObjective, encoder: SourceEncoder, folder: Path, group: WorkerGroup) -> Refresher:
        _ = encoder.retriever
        return InProcessRefresher(Disturbed(encoder, disturb), knowledge.snapshot_settings(0), folder, pause=0.0)

    return make


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_every_epoch_says_whether_knowledge_matters_is_fresh_and_is_of_use(home: Path, tmp_path: Path) -> None:
    started = time.perf_counter()
    epochs, _ = run(home, tmp_path, **ASK)
    elapsed = time.perf_counter() - started
    for number, epoch in enumerate(epochs, start=1):
        assert epoch["knowledge/version"] == number
        assert epoch["knowledge/staleness_steps"] == 3
        assert epoch["knowledge/out_of_batch_influence"] > 0
        assert epoch["knowledge/drift_audio"] > 0
        assert epoch["knowledge/drift_text"] > 0
        assert 0 < epoch["knowledge/prototype_cosine_audio"] <= 1
        assert 0 <= epoch["knowledge/neighbour_label_share"] <= 1
        assert 1 / np.e <= epoch["train/potential_fine_rows"] <= np.e
        assert 0.6 <= epoch["train/multiplier_rows"] <= 1.4
        for seconds in ("stall", "search", "refresh"):
            assert 0 < epoch[f"knowledge/{seconds}_seconds"] < elapsed
        assert 0 < epoch["seconds/step"] < epoch["seconds/train"] < elapsed


@pytest.mark.slow
@pytest.mark.parametrize("knowledge", ["moco", "nnclr", "ance"])
def test_the_baselines_train_and_say_how_much_they_matter(home: Path, tmp_path: Path, knowledge: str) -> None:
    epochs, _ = run(home, tmp_path, objective=knowledge, train__epochs=2)
    assert epochs[-1]["knowledge/out_of_batch_influence"] > 0
    assert np.isfinite(epochs[-1]["train/loss"])


@pytest.mark.slow
def test_with_every_part_off_a_whole_run_is_the_plain_one_bit_for_bit(home: Path, tmp_path: Path) -> None:
    off = {f"{KNOWLEDGE}.{name}": False for name in ("coarse", "transport", "reliability")}
    _, plain = run(home, tmp_path / "plain")
    _, without = run(home, tmp_path / "off", **ASK, **off, **{f"{KNOWLEDGE}.injection_ratio": 0.0})
    _, asked = run(home, tmp_path / "ask", **ASK)
    assert equal(plain, without)
    assert not equal(plain, asked)


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 2])
def test_the_same_seeds_give_the_same_run_twice_however_long_a_refresh_takes(
    home: Path, tmp_path: Path, lag: int
) -> None:
    # Batch norms that train: their statistics change in the forward pass that follows a refresh, before any weight does.
    batch_norms = {"model.audio": "resnet38", "model.audio.width_divisor": 16, "model.audio.trains_batch_norms": True}
    late = {**ASK, f"{KNOWLEDGE}.refresh_lag": lag, **(batch_norms if lag else {})}
    with short_resnets():
        _, quick = run(home, tmp_path / "quick", **late)

    with short_resnets():
        _, slow = run(home, tmp_path / "slow", disturbed_by(partial(time.sleep, 0.1)), **late)
    assert equal(quick, slow)


def test_momentum_encoders_keep_the_statistics_of_batch_norms_and_drop_nothing_out_of_frozen_towers(
    home: Path, tmp_path: Path
) -> None:
    towers = {"model.audio": "resnet38", "model.audio.width_divisor": 16, "model.text.adapt.is_frozen": True}
    experiment = tiny(home / "tones", objective="moco", **towers)
    data = TrainingData(experiment, prepared_for(experiment, home), WorkerGroup(shares=(8,)))
    state = first_state(data, tmp_path)
    state.retriever.train()
    memory = state.memory
    assert isinstance(memory, MomentumMemory)
    modes = [[module.training for module in model.modules()] for model in (state.retriever, memory.follower.module)]
    assert modes[0] == modes[1]
    assert not all(modes[0])


def test_frozen_weights_are_not_sent_and_the_base_encodes_with_them_all_the_same(home: Path, tmp_path: Path) -> None:
    first = tiny(home / "tones", seed=5)
    prepared_for(first, home).first_retriever(first).save_pretrained(tmp_path / "start")
    frozen = {"model.text.adapt.frozen_layers": 1, "train.start_from": str(tmp_path / "start")}
    experiment = tiny(home / "tones", **ASK, **frozen)
    prepared = prepared_for(experiment, home)
    retriever = prepared.first_retriever(experiment)
    sent = retriever.trained_state()
    assert {name for name in retriever.state_dict() if name not in sent} == {"text_tower.embedding.weight"}
    found, expected = (
        SourceEncoder(experiment, prepared).encode_part(weights) for weights in (sent, retriever.state_dict())
    )
    assert np.array_equal(found.audio, expected.audio)
    assert np.array_equal(found.text, expected.text)


@pytest.mark.slow
def test_a_refresh_that_fails_once_changes_nothing_and_one_that_goes_on_failing_stops_with_a_checkpoint(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builders: set[threading.Thread] = set()
    spied(monkeypatch, Prepared, "first_retriever", lambda *_: builders.add(threading.current_thread()))
    expected, weights = run(home, tmp_path / "whole", **ASK)
    # The base's thread draws no weights: it would take them from the generator that training uses meanwhile.
    assert builders == {threading.main_thread()}

    def broken_at(*calls: int) -> MakeRefresher:
        numbers = itertools.count(1)

        def disturb() -> None:
            if next(numbers) in calls:
                raise OSError(errno.EIO, "Input/output error", "vectors")

        return disturbed_by(disturb)

    epochs, found = run(home, tmp_path / "once", broken_at(2), **ASK)
    assert [epoch["knowledge/failed_refreshes"] for epoch in epochs] == [0, 1]
    assert [epoch["knowledge/version"] for epoch in epochs] == [epoch["knowledge/version"] for epoch in expected]
    assert equal(found, weights)
    with pytest.raises(RuntimeError, match=r"knowledge base: version 2 .* failed 3 times .*Input/output error"):
        run(home, tmp_path / "always", broken_at(*range(2, 99)), **ASK)
    assert (tmp_path / "always" / "last").is_dir()
    assert equal(run(home, tmp_path / "always", **ASK)[1], weights)


def drift_of(probe: DriftProbe, recall: SnapshotMemory, retriever: Retriever) -> float:
    found = probe.measure(recall, retriever, [], WorkerGroup())
    return found["drift_audio"] + found["drift_text"]


def base_of(experiment: Experiment) -> KnowledgeBaseObjective:
    knowledge = experiment.objective.knowledge
    assert isinstance(knowledge, KnowledgeBaseObjective)
    return knowledge


def test_drift_is_zero_after_a_synchronous_refresh_rises_and_falls_again(home: Path, tmp_path: Path) -> None:
    experiment = tiny(home / "tones", **ASK, **{f"{KNOWLEDGE}.refresh_lag": 0})
    prepared, knowledge = prepared_for(experiment, home), base_of(experiment)
    encoder = SourceEncoder(experiment, prepared)
    retriever = build_retriever(experiment.model, tokenizer=prepared.load_tokenizer(), seed=0)
    base = InProcessRefresher(encoder, knowledge.snapshot_settings(0), tmp_path)
    recall = make_memory(
        knowledge, refresher=base, retriever=retriever, width=16, languages=2, ids=encoder.source.features.clip_ids,
        is_first=True, steps_per_epoch=3,
    )  # fmt: skip
    assert isinstance(recall, SnapshotMemory)
    probe = DriftProbe(encoder.source, seed=0, num_clips=10)
    assert len(set(probe.rows.tolist())) == 10

    def refresh(epoch: int) -> None:
        recall.begin_epoch(epoch, 3 * epoch, retriever.state_dict)
        recall.before_step(3 * epoch)

    def train_a_little() -> None:
        with torch.no_grad():
            for parameter in retriever.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))

    retriever.train()
    refresh(0)
    assert drift_of(probe, recall, retriever) == pytest.approx(0, abs=1e-6)
    assert retriever.training
    train_a_little()
    drifted = drift_of(probe, recall, retriever)
    assert drifted > 1e-3
    train_a_little()
    assert drift_of(probe, recall, retriever) > drifted
    refresh(1)
    assert drift_of(probe, recall, retriever) == pytest.approx(0, abs=1e-6)


def test_drift_is_of_the_clips_that_the_base_holds_and_of_the_texts_that_these_have(tmp_path: Path) -> None:
    clips = [
        tone_clip(split, index, {"eng": [f"tone {index}"], "fra": [f"son {index}"]} if index % 3 else {"fra": ["son"]})
        for split, count in (("train", 20), ("val", 4), ("test", 4))
        for index in range(count)
    ]
    write_clips(tmp_path / "tones", clips, name="tones", licence="none")
    experiment = tiny(tmp_path / "tones", **ASK, **{"objective.scheme": "kcl"})
    prepared = prepared_for(experiment, tmp_path)
    source = SourceEncoder(experiment, prepared).source
    stale, now = (build_retriever(experiment.model, tokenizer=prepared.load_tokenizer(), seed=seed) for seed in (0, 1))
    held = np.array([row for row in range(20) if row % 4])[::-1]
    old = source.encode(stale, held)
    snapshot = build(old, SnapshotSettings(prototypes=4, separate_text_clusters=True))
    probe, memory = DriftProbe(source, seed=0, num_clips=12), SimpleNamespace(snapshot=snapshot, positions=None)
    found = probe.measure(cast(SnapshotMemory, memory), now, [], WorkerGroup())
    new, asked = source.encode(now, held), set(probe.rows.tolist())
    assert asked - set(held.tolist()), "some queries are not in the base"
    for name, current, earlier, there in (
        ("drift_audio", new.audio, old.audio, held),
        ("drift_text", new.text[0], old.text[0], [row for row in held if row % 3]),
    ):
        places = [held.tolist().index(row) for row in there]
        divergences = []
        for query in (place for place in places if held[place] in asked):
            ideal, actual = (
                torch.tensor([[float(current[query] @ key[place]) / 0.07 for place in places]]).log_softmax(dim=1)
                for key in (current, earlier)
            )
            divergences.append(float((ideal.exp() * (ideal - actual)).sum()))
        assert found[name] == pytest.approx(np.mean(divergences), rel=1e-4)
    # Nor are prototypes that no text is in rows of zeros to the texts.
    assert found["prototype_cosine_text"] == pytest.approx(
        prototype_collapse(torch.from_numpy(snapshot.coarse_text[0][snapshot.coarse_mask[0]])), abs=1e-6
    )


def test_a_source_is_encoded_as_its_clips_are_with_the_captions_they_wear(home: Path, tmp_path: Path) -> None:
    experiment = tiny(home / "tones", **ASK, data__noise__ratio=0.5, **{f"{KNOWLEDGE}.text_entries": "each"})
    prepared = prepared_for(experiment, home)
    retriever = build_retriever(experiment.model, tokenizer=prepared.load_tokenizer(), seed=0).eval()
    entries = SourceEncoder(experiment, prepared).encode_part(retriever.state_dict())
    features = open_features(prepared.features, "train")
    assigned = TrainingCaptions(features, ("eng", "fra"), experiment.data.noise, 0).batch(np.arange(len(features)), 0)
    for row in range(0, len(features), 7):
        array, frames = features.features(np.array([row]))
        with torch.no_grad():
            audio = retriever.embed_audio(torch.from_numpy(array).float(), torch.from_numpy(frames))[0]
        assert np.allclose(entries.audio[row], audio, atol=1e-5)
        for k, language in enumerate(("eng", "fra")):
            text = retriever.encode_text([assigned.texts[row][k]], language)[0]
            assert np.allclose(entries.text[k, row], text, atol=1e-5)


def test_a_caption_file_and_another_data_set_may_be_the_source(home: Path, tmp_path: Path) -> None:
    make_data(tmp_path / "elsewhere", num_train=12)
    new = tmp_path / "captions.jsonl"
    new.write_text(json.dumps({"clip_id": "train-003", "caption": "something else entirely"}) + "\n")
    experiment = tiny(
        home / "tones", **ASK,
        **{f"{KNOWLEDGE}.source": str(tmp_path / "elsewhere"), f"{KNOWLEDGE}.captions": str(new)},
    )  # fmt: skip
    source = SourceEncoder(experiment, prepared_for(experiment, home)).source
    assert len(source.features) == 12
    assert source.captions[0][3] == "something else entirely"
    assert source.captions[0][2].endswith("number 2")
    epochs, _ = run(
        home, tmp_path / "run", **ASK, train__epochs=1, **{f"{KNOWLEDGE}.source": str(tmp_path / "elsewhere")}
    )
    assert epochs[0]["knowledge/entries"] == 12


def test_duplicates_in_the_base_and_one_smaller_than_the_neighbours_train(home: Path, tmp_path: Path) -> None:
    rows = np.ones((3, 4), np.float32)
    snapshot = build(Entries(rows, rows, ["a", "a", "b"]), base_of(tiny(home / "tones", **ASK)).snapshot_settings(0))
    assert len(snapshot) == 3
    make_data(tmp_path / "few", num_train=3, num_val=2, num_test=2)
    few = {**ASK, f"{KNOWLEDGE}.source": str(tmp_path / "few"), f"{KNOWLEDGE}.neighbours": 10}
    epochs, _ = run(home, tmp_path / "run", **few, train__epochs=1)
    assert np.isfinite(epochs[0]["train/loss"])


def test_a_base_on_a_node_without_the_features_makes_them(tmp_path: Path) -> None:
    make_data(tmp_path / "tones")
    experiment = tiny(tmp_path / "tones", objective__knowledge="ask", objective__knowledge__prototypes=4)
    prepared = prepared_for(experiment, tmp_path / "home")
    weights = prepared.first_retriever(experiment).state_dict()
    expected = SourceEncoder(experiment, prepared).encode_part(weights)
    (tmp_path / "home").rename(tmp_path / "another node")
    open_features.cache_clear()
    found = SourceEncoder(experiment, prepared).encode_part(weights)
    np.testing.assert_array_equal(found.audio, expected.audio)
    np.testing.assert_array_equal(found.text, expected.text)
