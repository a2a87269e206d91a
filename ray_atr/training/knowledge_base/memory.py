"""A worker's memory beyond its batch: the same calls in the training loop, whatever the knowledge.

    memory.begin_epoch(epoch, step, weights)         # may publish; `weights` is a function, called by all if needed
    memory.before_step(step)                         # may switch to a newer snapshot
    retrieved = memory.retrieve(batch, gather)       # for `objective(..., retrieved=retrieved)`
    memory.after_batch(embeddings, clip_ids, is_clean)  # the global batch; `is_clean`: a function
    memory.after_step()                              # the optimiser has stepped, on one batch or several

`gather` stacks the workers' [b, ...] tensors to [B, ...]. Every worker makes the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ray_atr.common.positives import group_number
from ray_atr.objectives.knowledge.ance import Ance
from ray_atr.objectives.knowledge.knowledge import Knowledge, KnowledgeBaseObjective
from ray_atr.objectives.knowledge.moco import Moco
from ray_atr.objectives.knowledge.nnclr import Nnclr
from ray_atr.objectives.pairs.embeddings import Embeddings
from ray_atr.training.knowledge_base.queue import NO_CLIP, Identity, Queue
from ray_atr.training.knowledge_base.refresher import Refresher, SnapshotClient
from ray_atr.training.knowledge_base.searcher import Positions, draw_from_pool
from ray_atr.training.knowledge_base.snapshot import Entries, Snapshot, in_utf8

Gather = Callable[[Tensor], Tensor]
CleanPairs = Callable[[], Tensor | None]
"""Clips of a global batch whose caption in the first language is assumed to be right, bool [B]; None: all."""


@dataclass(frozen=True, eq=False)
class WorkerBatch:
    """This worker's share: audio [b, D], text [b, K, D] and mask [b, K] as embedded for the loss, the clips' ids and groups
    of positives (int64 [b]), and `embed_with`, which embeds the same share with another retriever:
    module -> (audio [b, D], text [b, K, D]).
    """

    audio: Tensor
    text: Tensor
    mask: Tensor
    clip_ids: Sequence[str]
    groups: Tensor
    step: int
    embed_with: Callable[[nn.Module], tuple[Tensor, Tensor]]

    def identity(self, gather: Gather) -> Identity:
        """The identity of the global batch's clips."""
        clips = torch.tensor([group_number(f"clip {clip_id}") for clip_id in self.clip_ids], device=self.groups.device)
        return Identity(gather(clips), gather(self.groups))


class Memory:
    """What a worker remembers beyond its batch: nothing. The base class of other memories."""

    latest: Any = None
    """What the last `retrieve` returned."""
    in_batch: Tensor | None = None
    """Which entries of the queue were of the batch's own clips in the last `retrieve`, bool [N]; None: unknown."""

    def is_in_batch(self, clip_ids: Sequence[str]) -> Tensor | None:
        """Which entries that the last `retrieve` searched are of the last global batch's clips, bool [N]."""
        return self.in_batch

    def begin_epoch(self, epoch: int, step: int, weights: Callable[[], Any]) -> None:
        """An epoch begins before global step `step`."""

    def before_step(self, step: int) -> None:
        """A step is about to be computed."""

    def retrieve(self, batch: WorkerBatch, gather: Gather) -> Any:
        """The neighbours or keys for the global batch; None if nothing is retrieved."""
        return None

    def after_batch(self, embeddings: Embeddings, clip_ids: Sequence[str], is_clean: CleanPairs = lambda: None) -> None:
        """Called when the gradient of this global batch has been computed."""

    def after_step(self) -> None:
        """The optimiser has stepped, on the gradients of `train.batches_per_step` global batches."""

    def stats(self, step: int) -> dict[str, float]:
        """What to log."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values for a checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""

    def close(self) -> None:
        """Free what is held outside of this process, at the end of the run."""


class SnapshotMemory(Memory):
    """A refreshed knowledge base (ASK, ANCE)."""

    def __init__(
        self, client: SnapshotClient, knowledge: KnowledgeBaseObjective, seed: int, ids: Sequence[str], width: int
    ) -> None:
        self.client, self.knowledge, self.seed = client, knowledge, seed
        # Of the last global batch's clips, and what it retrieved.
        self.groups: Tensor | None = None
        self.positions: Positions | None = None
        self.written = WriteThrough(ids, width) if knowledge.refresh == "write_through" else None

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot in use; None before the first."""
        return None if self.client.searcher is None else self.client.searcher.snapshot

    @property
    def entries(self) -> Any:
        """The entries in use, as `Searcher.entries`; None before the first snapshot."""
        return None if self.client.searcher is None else self.client.searcher.entries

    def begin_epoch(self, epoch: int, step: int, weights: Callable[[], Any]) -> None:
        """Publish if a refresh is due. The first snapshot is always encoded, and waited for."""
        if self.client.next_version == 1:
            self.client.refresh(step, weights(), lag=0)
            return
        every, payload = self.knowledge.refresh_every_epochs, None
        if every and epoch % every == 0:
            if self.written is None:
                payload = weights()
            elif self.client.is_publisher:
                payload = self.written.entries()
            self.client.refresh(step, payload)

    def before_step(self, step: int) -> None:
        self.client.before_step(step)

    def retrieve(self, batch: WorkerBatch, gather: Gather) -> Any:
        """Each worker searches for its share; the positions are gathered and looked up by all."""
        self.groups = gather(batch.groups)
        with self.client.searching() as searcher:
            positions = searcher.search(batch.audio, batch.text, batch.mask, batch.clip_ids, batch.groups)
        if isinstance(self.knowledge, Ance):
            positions = draw_from_pool(positions, batch.clip_ids, self.knowledge.negatives, self.seed, batch.step)
        self.positions = Positions(*(gather(part) for part in positions))
        with self.client.searching() as searcher:
            self.latest = searcher.look_up(self.positions)
        return self.latest

    def after_batch(self, embeddings: Embeddings, clip_ids: Sequence[str], is_clean: CleanPairs = lambda: None) -> None:
        """Store the step's embeddings, for a write-through refresh."""
        if self.written is not None and self.groups is not None and self.client.is_publisher:
            self.written.write(embeddings, clip_ids, self.groups)

    def is_in_batch(self, clip_ids: Sequence[str]) -> Tensor | None:
        assert self.snapshot is not None, "asked for after a step"
        return torch.from_numpy(np.isin(self.snapshot.ids, in_utf8(clip_ids)))

    def stats(self, step: int) -> dict[str, float]:
        return self.client.stats(step)

    def state_dict(self) -> dict[str, Any]:
        """The versions; waits until all that are published are on disk."""
        self.client.wait_until_built()
        state = self.client.state_dict()
        return state if self.written is None else {**state, "written": self.written.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Search the snapshot that the stopped run searched."""
        self.client.load_state_dict(state)
        if self.written is not None:
            self.written.load_state_dict(state["written"])

    def close(self) -> None:
        """End the base; its folder stays."""
        if self.client.is_publisher:
            self.client.refresher.close()


class SupportMemory(Memory):
    """A support set of earlier embeddings (NNCLR)."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._identity: Identity | None = None

    def retrieve(self, batch: WorkerBatch, gather: Gather) -> Any:
        self._identity = batch.identity(gather)
        self.in_batch = self.queue.is_of(self._identity)
        self.latest = self.queue.nearest(self._identity, gather(batch.audio.detach()), gather(batch.text.detach()))
        return self.latest

    def after_batch(self, embeddings: Embeddings, clip_ids: Sequence[str], is_clean: CleanPairs = lambda: None) -> None:
        if self._identity is not None:
            self.queue.push(self._identity, embeddings.audio, embeddings.text, embeddings.mask, is_clean())
            self._identity = None

    def state_dict(self) -> dict[str, Any]:
        return self.queue.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.queue.load_state_dict(state)


class MomentumMemory(Memory):
    """Momentum encoders and their queue of keys (MoCo)."""

    def __init__(self, retriever: nn.Module, queue: Queue, momentum: float) -> None:
        self.retriever, self.queue = retriever, queue
        # A retriever's own training mode, in which batch norms keep their statistics and frozen towers drop nothing out.
        retriever.train()
        self.follower = AveragedModel(retriever, multi_avg_fn=get_ema_multi_avg_fn(momentum)).requires_grad_(False)
        # At 0 the first update would copy the weights; it should move them by 1 - momentum, like every other.
        self.follower.n_averaged.fill_(1)
        self._keys: tuple[Identity, Tensor, Tensor] | None = None

    @torch.no_grad()
    def retrieve(self, batch: WorkerBatch, gather: Gather) -> Any:
        """The momentum encoders' keys of the batch, and the queue."""
        audio, text = batch.embed_with(self.follower.module)
        self._keys = batch.identity(gather), gather(audio.detach().float()), gather(text.detach().float())
        self.in_batch = self.queue.is_of(self._keys[0])
        self.latest = self.queue.keys(*self._keys)
        return self.latest

    def after_batch(self, embeddings: Embeddings, clip_ids: Sequence[str], is_clean: CleanPairs = lambda: None) -> None:
        """The batch's keys join the queue."""
        if self._keys is not None:
            self.queue.push(*self._keys, embeddings.mask)
            self._keys = None

    def after_step(self) -> None:
        """Update the momentum encoders."""
        self.follower.update_parameters(self.retriever)

    def state_dict(self) -> dict[str, Any]:
        return {"queue": self.queue.state_dict(), "momentum": self.follower.module.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.queue.load_state_dict(state["queue"])
        self.follower.module.load_state_dict(state["momentum"])


class WriteThrough:
    """The latest embeddings of each clip from training steps: a base that needs no encoding.

    They were computed in training mode and are up to an epoch old. A clip is in it once its English text was embedded.
    """

    def __init__(self, ids: Sequence[str], width: int) -> None:
        self.ids = np.asarray(ids, dtype=np.str_)
        self._row = {name: row for row, name in enumerate(self.ids.tolist())}
        self.audio, self.text = torch.zeros(len(ids), width), torch.zeros(len(ids), width)
        self.present = torch.zeros(len(ids), dtype=torch.bool)
        self.groups = torch.full((len(ids),), NO_CLIP)

    @torch.no_grad()
    def write(self, embeddings: Embeddings, clip_ids: Sequence[str], groups: Tensor) -> None:
        """Store a global batch's audio [B, D], the English of its text [B, K, D], and its groups [B]."""
        has_english = embeddings.available()[:, 0].cpu()
        rows = np.array([self._row[name] for name in clip_ids])[has_english.numpy()]
        # Of a clip that a batch has twice, NumPy writes the last row; torch's threads would write parts of both.
        self.audio.numpy()[rows] = embeddings.audio.detach().float().cpu()[has_english].numpy()
        self.text.numpy()[rows] = embeddings.text[:, 0].detach().float().cpu()[has_english].numpy()
        self.groups.numpy()[rows] = groups.cpu()[has_english].numpy()
        self.present[rows] = True

    def entries(self) -> Entries:
        """What has been written so far."""
        present = self.present.numpy()
        if not present.any():
            raise ValueError("objective.knowledge.refresh: got write_through before any step with English texts")
        audio, text, groups = (rows.numpy()[present] for rows in (self.audio, self.text, self.groups))
        return Entries(audio, text, self.ids[present], groups=groups)

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors for a checkpoint."""
        # "there" is its name in the checkpoint's format.
        return {"audio": self.audio, "text": self.text, "there": self.present, "groups": self.groups}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a checkpoint."""
        self.audio, self.text, self.groups = (state[name].cpu() for name in ("audio", "text", "groups"))
        self.present = state["there"].cpu()


def make_memory(
    knowledge: Knowledge,
    *,
    refresher: Refresher | None = None,
    retriever: nn.Module,
    width: int,
    languages: int,
    ids: Sequence[str],
    is_first: bool,
    steps_per_epoch: int,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Memory:
    """The memory that an objective's knowledge needs. `refresher` refreshes its base, in this process or in an actor."""
    if isinstance(knowledge, Nnclr):
        return SupportMemory(Queue(knowledge.support_size, width, languages, device))
    if isinstance(knowledge, Moco):
        return MomentumMemory(retriever, Queue(knowledge.queue_size, width, languages, device), knowledge.momentum)
    if not isinstance(knowledge, KnowledgeBaseObjective):
        return Memory()
    if refresher is None:
        raise ValueError(f"objective.knowledge: {knowledge.name} needs a knowledge base; give make_memory a refresher")
    assert knowledge.search_spec is not None, "a knowledge with a base has a search_spec"
    lag = knowledge.lag_steps(steps_per_epoch)
    client = SnapshotClient(refresher, knowledge.search_spec, lag, is_publisher=is_first, device=device)
    return SnapshotMemory(client, knowledge, seed, ids, width)
