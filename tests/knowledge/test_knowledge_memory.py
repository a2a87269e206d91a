"""The memory as a training loop talks to it, for every knowledge variant."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from ray_atr.objectives import Embeddings, Objective
from ray_atr.objectives.knowledge import Ance, Ask, Moco, Nnclr, NoKnowledge
from ray_atr.objectives.knowledge.knowledge import KnowledgeBaseObjective, SnapshotSettings
from ray_atr.objectives.schemes import Kcl
from ray_atr.training.knowledge_base.memory import MomentumMemory, WorkerBatch, WriteThrough, make_memory
from ray_atr.training.knowledge_base.queue import Queue
from ray_atr.training.knowledge_base.refresher import InProcessRefresher
from ray_atr.training.knowledge_base.snapshot import Entries
from tests.support.encoders import Turn, clips, weights

B, K, D = 6, 2, 8
IDS = clips()[1]


class Toy(nn.Module):
    """A retriever of one matrix a modality."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.audio = nn.Parameter(torch.randn(D, D, generator=generator))
        self.text = nn.Parameter(torch.randn(D, D, generator=generator))


def inputs(step):
    generator = torch.Generator().manual_seed(step)
    rows = torch.randperm(len(IDS), generator=generator)[:B].tolist()
    return [IDS[row] for row in rows], torch.randn(B, D, generator=generator), torch.randn(B, K, D, generator=generator)


def embed(toy, waveforms, words):
    return normalize(waveforms @ toy.audio, dim=-1), normalize(words @ toy.text, dim=-1)


def run(knowledge, folder, steps=9, stop=None):
    """Losses of a short training, two epochs of four steps and one more; stopped and resumed before step `stop`."""
    objective = Objective(scheme=Kcl(), knowledge=knowledge)

    def begin():
        toy = Toy()
        refresher = (
            InProcessRefresher(Turn(), SnapshotSettings(prototypes=4), folder)
            if isinstance(knowledge, KnowledgeBaseObjective)
            else None
        )
        recall = make_memory(
            knowledge,
            refresher=refresher,
            retriever=toy,
            width=D,
            languages=K,
            ids=IDS,
            is_first=True,
            steps_per_epoch=4,
        )
        return toy, torch.optim.SGD(toy.parameters(), 0.1), recall

    toy, optimizer, recall = begin()
    losses = []
    for step in range(steps):
        if step == stop:
            state = [toy.state_dict(), optimizer.state_dict(), recall.state_dict()]
            toy, optimizer, recall = begin()
            for one, saved in zip((toy, optimizer, recall), state, strict=True):
                one.load_state_dict(saved)
        if step % 4 == 0:
            recall.begin_epoch(step // 4, step, lambda step=step: weights(step))
        recall.before_step(step)
        ids, waveforms, words = inputs(step)
        audio, text = embed(toy, waveforms, words)
        batch = Embeddings(audio=audio, text=text)
        groups = torch.tensor([IDS.index(name) for name in ids])
        local = WorkerBatch(
            batch.audio,
            batch.text,
            batch.available(),
            ids,
            groups,
            step,
            partial(embed, waveforms=waveforms, words=words),
        )
        retrieved = recall.retrieve(local, lambda tensor: tensor)
        if objective.knowledge.needs_retrieval:
            assert retrieved is not None
        loss = objective(batch, retrieved=retrieved).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recall.after_batch(batch, ids)
        recall.after_step()
        losses.append(loss.item())
    return losses, recall


VARIANTS = {
    "none": NoKnowledge(),
    "ask": Ask(prototypes=4, refresh_lag=0),
    "ask_in_background": Ask(prototypes=4),
    "ask_late": Ask(prototypes=4, refresh_lag=3),
    "write_through": Ask(prototypes=4, refresh="write_through", refresh_lag=1),
    "moco": Moco(queue_size=10, momentum=0.9),
    "nnclr": Nnclr(support_size=10),
    "ance": Ance(pool=8, negatives=3),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The losses of a run with a variant, by its name."""
    return cache(lambda name: run(VARIANTS[name], tmp_path_factory.mktemp(name))[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(VARIANTS))
def test_a_resumed_run_is_the_run_that_never_stopped(name, tmp_path, whole):
    stopped, _ = run(VARIANTS[name], tmp_path, stop=5)
    assert stopped == whole(name)


@pytest.mark.slow
def test_knowledge_changes_the_loss(whole):
    assert len({tuple(whole(name)) for name in VARIANTS}) == len(VARIANTS)


def test_the_refreshes_follow_the_settings(tmp_path):
    _, recall = run(Ask(prototypes=4, refresh_every_epochs=2, refresh_lag=0), tmp_path / "two")
    stats = recall.stats(8)
    assert (stats["version"], stats["staleness_steps"]) == (2, 0)
    _, recall = run(Ask(prototypes=4, refresh_every_epochs=0), tmp_path / "never")
    assert recall.stats(8)["staleness_steps"] == 8


def test_a_refresh_takes_half_a_period_in_the_background_unless_told_otherwise(tmp_path):
    assert Ask().lag_steps(steps_per_epoch=10) == 5
    assert Ask(refresh_every_epochs=3).lag_steps(steps_per_epoch=10) == 15
    assert Ask(refresh_lag=0).lag_steps(steps_per_epoch=10) == 0
    # Epochs of four steps: what was published at step 4 is searched from step 6 on.
    for steps, version in ((6, 1), (7, 2)):
        _, memory = run(Ask(prototypes=4), tmp_path / str(steps), steps=steps)
        assert memory.snapshot.version == version


@pytest.mark.parametrize("kind", [partial(Moco, momentum=0.5), Nnclr])
def test_a_queue_has_as_many_places_as_are_set(kind, tmp_path):
    name = "queue_size" if isinstance(kind, partial) else "support_size"
    _, memory = run(kind(**{name: 10}), tmp_path, steps=1)
    assert len(memory.queue.audio) == 10
    _, memory = run(kind(), tmp_path, steps=1)
    assert len(memory.queue.audio) == 4096


def test_the_momentum_and_the_number_of_negatives_are_those_that_are_set(tmp_path):
    # The first step has no keys to learn from.
    _, memory = run(Moco(queue_size=10, momentum=0.25), tmp_path / "moco", steps=2)
    before, after, follower = Toy().audio, memory.retriever.audio, memory.follower.module.audio
    assert (after - before).abs().max() > 1e-3
    torch.testing.assert_close(follower, 0.25 * before + 0.75 * after)
    _, memory = run(Ance(pool=8, negatives=3), tmp_path / "ance", steps=1)
    assert memory.latest.fine.by_audio.text.shape[2] == 3


def test_momentum_weights_are_the_running_mean_of_the_followed_ones():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    memory = MomentumMemory(model, Queue(4, 3, 1), 0.9)
    expected = model[0].weight.detach().clone()
    for step in range(3):
        with torch.no_grad():
            model[0].weight.add_(step + 1.0)
            model[1].running_mean.add_(1.0)
        memory.after_step()
        expected = 0.9 * expected + 0.1 * model[0].weight.detach()
    follower = memory.follower.module
    assert torch.allclose(follower[0].weight, expected)
    assert torch.equal(follower[1].running_mean, model[1].running_mean)
    assert not follower[0].weight.requires_grad


def test_write_through_builds_the_base_from_what_was_trained_on(tmp_path):
    _, recall = run(VARIANTS["write_through"], tmp_path)
    recall.before_step(9)
    snapshot = recall.client.searcher.snapshot
    assert snapshot.version == 3
    trained_on = {name for step in range(8) for name in inputs(step)[0]}
    assert set(snapshot.names) == trained_on
    assert isinstance(recall.written.entries(), Entries)
    with pytest.raises(ValueError, match="write_through"):
        type(recall.written)(IDS, D).entries()


def test_a_clip_without_english_text_enters_no_written_base():
    """Its text would be a vector of zeros, and as near to every query as any other."""
    generator = torch.Generator().manual_seed(0)
    audio, text = torch.randn(3, D, generator=generator), torch.randn(3, K, D, generator=generator)
    mask = torch.ones(3, K, dtype=torch.bool)
    mask[1, 0] = False
    written = WriteThrough(IDS, D)
    written.write(Embeddings(audio=audio, text=text, mask=mask), IDS[:3], torch.arange(3))
    entries = written.entries()
    assert list(entries.ids) == [IDS[0], IDS[2]]
    assert np.allclose(entries.audio, normalize(audio[[0, 2]], dim=-1).numpy())
    assert np.allclose(entries.text, normalize(text[[0, 2], 0], dim=-1).numpy())
    # A step that has its English text lets it in.
    written.write(Embeddings(audio=audio, text=text), IDS[:3], torch.arange(3))
    assert list(written.entries().ids) == IDS[:3]


def test_of_a_clip_that_a_batch_has_twice_the_last_embedding_is_written(two_threads: None) -> None:
    """Torch's threads write parts of both: rows of no norm and of no run."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(0, len(IDS), (512,), generator=generator).tolist()
    written = WriteThrough(IDS, 512)
    for _ in range(20):
        rows = torch.randn(512, 512, generator=generator)
        written.write(Embeddings(rows, rows[:, None]), [IDS[row] for row in chosen], torch.arange(512))
        last = {IDS[row]: place for place, row in enumerate(chosen)}
        entries = written.entries()
        places = [last[name] for name in entries.ids]
        for side in (entries.audio, entries.text):
            assert np.allclose(side, normalize(rows[places], dim=-1).numpy(), atol=1e-6)
        assert entries.groups is not None
        assert entries.groups.tolist() == places


def test_a_base_needs_a_host():
    with pytest.raises(ValueError, match="ask"):
        make_memory(Ask(), retriever=Toy(), width=D, languages=K, ids=IDS, is_first=True, steps_per_epoch=4)
