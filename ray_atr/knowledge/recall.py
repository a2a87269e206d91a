"""A worker's memory beyond its batch, the same four calls whatever the knowledge: what a training loop talks to.

    recall.begin_epoch(epoch, step, weights)         # may publish; `weights` is a function, called where they are needed
    recall.before_step(step)                         # may switch to a newer snapshot
    retrieved = recall.retrieve(batch, gather)       # for `objective(..., retrieved=retrieved)`
    recall.after_step(embeddings, clip_ids)          # global batch, detached

`gather` stacks the workers' [b, ...] tensors to [B, ...]. Every worker makes the same calls in the same order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ray_atr.knowledge.base import Entries, base_settings
from ray_atr.knowledge.memory import Momentum, Queue
from ray_atr.knowledge.refreshing import Encode, Host, KnowledgeBase, SnapshotClient
from ray_atr.knowledge.search import Positions, draw_from_pool
from ray_atr.objectives import Embeddings
from ray_atr.objectives.knowledge.ance import Ance
from ray_atr.objectives.knowledge.base import Knowledge
from ray_atr.objectives.knowledge.based import Based
from ray_atr.objectives.knowledge.moco import Moco
from ray_atr.objectives.knowledge.nnclr import Nnclr

logger = logging.getLogger(__name__)

Gather = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class LocalBatch:
    """This worker's share: audio [b, D], text [b, K, D] and mask [b, K] as embedded for the loss, the clips' ids, and
    `embed_with`, which embeds the same share with another retriever: module -> (audio [b, D], text [b, K, D])."""

    audio: Tensor
    text: Tensor
    mask: Tensor
    clip_ids: Sequence[str]
    step: int
    embed_with: Callable[[nn.Module], tuple[Tensor, Tensor]]


class Recall:
    """What a worker remembers beyond its batch: here nothing; what remembers derives from it."""

    latest: Any = None
    """What the last `retrieve` returned."""

    def begin_epoch(self, epoch: int, step: int, weights: Callable[[], Any]) -> None:
        """An epoch begins before global step `step`."""

    def before_step(self, step: int) -> None:
        """A step is about to be computed."""

    def retrieve(self, batch: LocalBatch, gather: Gather) -> Any:
        """What goes with the global batch; None where nothing is retrieved."""
        return None

    def after_step(self, embeddings: Embeddings, clip_ids: Sequence[str]) -> None:
        """The optimiser has stepped on this global batch."""

    def stats(self, step: int) -> dict[str, float]:
        """What to log."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values for a checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""

    def close(self) -> None:
        """The run has ended: what it kept elsewhere may go."""


class BaseRecall(Recall):
    """A refreshed knowledge base (ASK, ANCE)."""

    def __init__(self, client: SnapshotClient, knowledge: Based, seed: int, ids: Sequence[str]) -> None:
        self.client, self.knowledge, self.seed = client, knowledge, seed
        self.found: Positions | None = None
        """What the last global batch retrieved."""
        self.written = WriteThrough(ids) if knowledge.refresh == "write_through" else None

    def begin_epoch(self, epoch: int, step: int, weights: Callable[[], Any]) -> None:
        """Publish where a refresh is due. The first snapshot is encoded, and waited for, whatever the settings."""
        if self.client.next_version == 1:
            self.client.refresh(step, weights() if self.client.is_publisher else None, lag=0)
            return
        every = self.knowledge.refresh_every_epochs
        if every and epoch % every == 0:
            payload = None
            if self.client.is_publisher:
                payload = weights() if self.written is None else self.written.entries()
            self.client.refresh(step, payload)

    def before_step(self, step: int) -> None:
        """Switch to what is due."""
        self.client.before_step(step)

    def retrieve(self, batch: LocalBatch, gather: Gather) -> Any:
        """Each worker searches for its share; the positions are gathered and looked up by all."""
        found = self.client.search(batch.audio, batch.text, batch.mask, batch.clip_ids)
        if isinstance(self.knowledge, Ance):
            found = draw_from_pool(found, batch.clip_ids, self.knowledge.negatives, self.seed, batch.step)
        self.found = Positions(*(gather(part) for part in found))
        self.latest = self.client.look_up(self.found)
        return self.latest

    def after_step(self, embeddings: Embeddings, clip_ids: Sequence[str]) -> None:
        """Keep what the step embedded, for a write-through refresh."""
        if self.written is not None and self.client.is_publisher:
            self.written.write(embeddings, clip_ids)

    def stats(self, step: int) -> dict[str, float]:
        """The client's."""
        return self.client.stats(step)

    def state_dict(self) -> dict[str, Any]:
        """The versions; waits until what was published is on disk."""
        self.client.settle()
        state = self.client.state_dict()
        return state if self.written is None else {**state, "written": self.written.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Search the snapshot that the stopped run searched."""
        self.client.load_state_dict(state)
        if self.written is not None and "written" in state:
            self.written.load_state_dict(state["written"])

    def close(self) -> None:
        """End the base; its folder stays."""
        if self.client.is_publisher:
            self.client.host.close()


class SupportRecall(Recall):
    """A support set of earlier embeddings (NNCLR)."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def retrieve(self, batch: LocalBatch, gather: Gather) -> Any:
        """The nearest earlier embeddings."""
        self.latest = self.queue.nearest(gather(batch.audio.detach()), gather(batch.text.detach()))
        return self.latest

    def after_step(self, embeddings: Embeddings, clip_ids: Sequence[str]) -> None:
        """The batch joins the support set."""
        self.queue.push(embeddings.audio, embeddings.text, embeddings.mask)

    def state_dict(self) -> dict[str, Any]:
        """The queue."""
        return self.queue.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The queue."""
        self.queue.load_state_dict(state)


class MomentumRecall(Recall):
    """Momentum encoders and their queue of keys (MoCo)."""

    def __init__(self, retriever: nn.Module, queue: Queue, momentum: float) -> None:
        self.retriever, self.queue = retriever, queue
        self.follower = Momentum(retriever, momentum)
        self._keys: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def retrieve(self, batch: LocalBatch, gather: Gather) -> Any:
        """The momentum encoders' keys of the batch, and the queue."""
        audio, text = batch.embed_with(self.follower.module)
        self._keys = gather(audio.detach().float()), gather(text.detach().float())
        self.latest = self.queue.keys(*self._keys)
        return self.latest

    def after_step(self, embeddings: Embeddings, clip_ids: Sequence[str]) -> None:
        """The batch's keys join the queue, and the momentum encoders follow."""
        if self._keys is not None:
            self.queue.push(*self._keys, embeddings.mask)
            self._keys = None
        self.follower.update(self.retriever)

    def state_dict(self) -> dict[str, Any]:
        """The queue and the momentum weights."""
        return {"queue": self.queue.state_dict(), "momentum": self.follower.module.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The queue and the momentum weights."""
        self.queue.load_state_dict(state["queue"])
        self.follower.module.load_state_dict(state["momentum"])


class WriteThrough:
    """The latest embeddings that training steps computed of each clip: a base that costs no encoding.

    They were made in training mode and are up to an epoch old. A clip enters once its English text was embedded.
    """

    def __init__(self, ids: Sequence[str]) -> None:
        self.ids = np.asarray(ids, dtype=np.str_)
        self._row = {name: row for row, name in enumerate(self.ids.tolist())}
        self.audio: Tensor | None = None
        self.text: Tensor | None = None
        self.there = torch.zeros(len(self.ids), dtype=torch.bool)

    @torch.no_grad()
    def write(self, embeddings: Embeddings, clip_ids: Sequence[str]) -> None:
        """Keep a global batch's embeddings, [B, D] and the English of [B, K, D]."""
        if self.audio is None or self.text is None:
            self.audio = torch.zeros(len(self.ids), embeddings.audio.shape[1])
            self.text = torch.zeros_like(self.audio)
        has_english = embeddings.available()[:, 0].cpu()
        rows = torch.tensor([self._row[name] for name in clip_ids])[has_english]
        self.audio[rows] = embeddings.audio.detach().float().cpu()[has_english]
        self.text[rows] = embeddings.text[:, 0].detach().float().cpu()[has_english]
        self.there[rows] = True

    def entries(self) -> Entries:
        """What has been written so far."""
        if self.audio is None or self.text is None or not bool(self.there.any()):
            raise ValueError("objective.knowledge.refresh: got write_through before any step with English texts")
        there = self.there.numpy()
        return Entries(self.audio.numpy()[there], self.text.numpy()[there], self.ids[there])

    def state_dict(self) -> dict[str, Any]:
        """Tensors for a checkpoint; empty before the first step."""
        if self.audio is None:
            return {}
        return {"audio": self.audio, "text": self.text, "there": self.there}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        if state:
            self.audio, self.text, self.there = state["audio"].cpu(), state["text"].cpu(), state["there"].cpu()


def make_recall(
    knowledge: Knowledge,
    *,
    host: Host | None = None,
    retriever: nn.Module,
    width: int,
    languages: int,
    ids: Sequence[str],
    is_first: bool,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Recall:
    """The memory that an objective's knowledge needs. `host` is its knowledge base: `local_host` or an actor's `ActorHost`."""
    if isinstance(knowledge, Based):
        if host is None:
            raise ValueError(f"objective.knowledge: {knowledge.name} needs a knowledge base; give make_recall a host")
        client = SnapshotClient(host, knowledge, is_publisher=is_first, device=device)
        return BaseRecall(client, knowledge, seed, ids)
    if isinstance(knowledge, Nnclr):
        return SupportRecall(Queue(knowledge.support_size, width, languages, device))
    if isinstance(knowledge, Moco):
        return MomentumRecall(retriever, Queue(knowledge.queue_size, width, languages, device), knowledge.momentum)
    return Recall()


def local_host(knowledge: Based, encode: Encode, folder: Path, seed: int = 0) -> KnowledgeBase:
    """A knowledge base in this process, for a run of one worker."""
    return KnowledgeBase(encode, base_settings(knowledge, seed), folder)


def needs_base(knowledge: Knowledge) -> bool:
    """Whether a run with this knowledge needs a host."""
    return isinstance(knowledge, Based)
