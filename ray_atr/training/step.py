"""One training step: embed this worker's share, gather, compute the objective on the global batch, back-propagate.

Two settings bound its memory, and neither changes the gradient. `embedding_chunk`: so many clips or texts are embedded at a
time, and again when the gradient comes back to them (`chunks.py`). `language_chunk`: where the loss is a sum over languages
given the audio, the texts of so many languages are embedded and back-propagated at a time, into a detached copy of the
audio embeddings; the audio tower follows once, at the end.

They are exact because an embedding depends on its own clip or text alone: batch norms keep their statistics while
training (`AudioTower.train`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ray_atr.data.captions import CaptionBatch
from ray_atr.knowledge.recall import LocalBatch, Recall
from ray_atr.models.retriever import Retriever
from ray_atr.objectives import Embeddings, Objective, Terms
from ray_atr.objectives.diagnostics import data_distribution_error
from ray_atr.objectives.terms import weighted_sum
from ray_atr.training.chunks import check_chunks, embed_in_chunks
from ray_atr.training.group import WorkerGroup
from ray_atr.training.local import TokenShare
from ray_atr.training.texts import TextBatcher


class NonFiniteError(RuntimeError):
    """A loss or gradient that is not finite, found before the optimiser step: training must not go on."""


@dataclass(frozen=True)
class StepInput:
    """This worker's share of a global batch: b clips, their captions, and the language drawn for each (or None)."""

    clip_ids: list[str]
    features: Tensor
    frames: Tensor
    captions: CaptionBatch
    draw: Tensor | None

    @property
    def mask(self) -> Tensor:
        """Which languages each clip has, bool [b, K]."""
        return torch.from_numpy(self.captions.mask)


class StepResult(NamedTuple):
    """What a step leaves: scalars to log, and the global batch's embeddings."""

    scalars: dict[str, float]
    embeddings: Embeddings


def training_step(
    retriever: Retriever,
    texts: TextBatcher,
    objective: Objective,
    batch: StepInput,
    languages: tuple[str, ...],
    group: WorkerGroup,
    *,
    recall: Recall | None = None,
    step: int = 0,
    autocast: bool = False,
    language_chunk: int = 0,
    embedding_chunk: int = 0,
) -> StepResult:
    """Back-propagate one global batch into `retriever`'s gradients, averaged over workers.

    `recall` is the worker's memory beyond the batch, asked for what it retrieves at the global step `step`. At most
    `language_chunk` languages, and `embedding_chunk` clips or texts, are embedded at a time; 0: all.

    Leaves the gradients of the global batch, as one process that holds all of it would. Raises NonFiniteError where
    the loss is not finite, naming the clips, and ValueError where `check_chunks` does.
    """
    check_chunks(objective, language_chunk)
    share = _Share(batch, objective.scheme.needed(batch.mask, batch.draw), languages, group.device, embedding_chunk)
    there = group.gather(batch.mask.to(group.device))
    draw = None if batch.draw is None else group.gather(batch.draw.to(group.device))
    groups = group.gather(torch.from_numpy(batch.captions.groups).to(group.device))
    needed = objective.scheme.needed(there, draw)

    def score(
        audio: Tensor, text: Tensor, mask: Tensor, retrieved: Any = None, similarity: Tensor | None = None
    ) -> tuple[Terms, Embeddings]:
        embeddings = Embeddings(
            audio=audio, text=text, mask=mask, positives=groups[:, None] == groups[None, :], similarity=similarity
        )
        terms = objective(
            embeddings, metric=retriever.metric, temperature=retriever.temperature, draw=draw, retrieved=retrieved
        )
        check_finite("loss", terms.loss, batch, group, terms.scalars)
        return terms, embeddings

    def embed_text(columns: Tensor | None = None) -> Tensor:
        with torch.autocast(group.device.type, torch.bfloat16, enabled=autocast):
            return share.embed_text(texts, columns)

    tokens: TokenShare | None = None
    with torch.autocast(group.device.type, torch.bfloat16, enabled=autocast):
        if retriever.settings.interaction == "local":
            tokens = share.embed_tokens(retriever, texts)
        audio = share.embed_audio(retriever) if tokens is None else tokens.audio.pooled
    if language_chunk:
        parts = objective.scheme.language_shares(needed, draw, language_chunk)
        terms, embeddings = _by_language(parts, group.gather(audio.float()), needed, embed_text, score, group)
    else:
        text = embed_text() if tokens is None else tokens.text.pooled
        similarity = None if tokens is None else tokens.similarity(group)
        retrieved = None
        if recall is not None:
            local = LocalBatch(
                audio=audio,
                text=text,
                mask=share.needed.to(group.device),
                clip_ids=batch.clip_ids,
                step=step,
                embed_with=lambda module: share.embed_with(module, texts),
            )
            retrieved = recall.retrieve(local, group.gather)
        terms, embeddings = score(
            group.gather(audio.float()), group.gather(text.float()), needed, retrieved, similarity
        )
        terms.loss.backward()  # type: ignore[no-untyped-call]
    group.average_gradients(retriever.parameters())
    scalars = {"loss": terms.loss.item(), **{name: float(value) for name, value in terms.scalars.items()}}
    scalars["data_distribution_error"] = data_distribution_error(objective.scheme, there, draw)
    return StepResult(scalars, embeddings)


def _by_language(
    parts: list[tuple[list[int], float]],
    audio: Tensor,
    needed: Tensor,
    embed_text: Callable[[Tensor], Tensor],
    score: Callable[[Tensor, Tensor, Tensor], tuple[Terms, Embeddings]],
    group: WorkerGroup,
) -> tuple[Terms, Embeddings]:
    """(the summed terms, detached, and all embeddings), back-propagated part by part; audio [B, D] is gathered, with graph."""
    leaf = audio.detach().requires_grad_()
    text = audio.new_zeros(*needed.shape, audio.shape[1])
    found = []
    for languages, weight in parts:
        columns = torch.zeros(needed.shape[1], dtype=torch.bool)
        columns[languages] = True
        of_part = group.gather(embed_text(columns).float())
        terms, embeddings = score(leaf, of_part, needed & columns.to(needed.device))
        (weight * terms.loss).backward()  # type: ignore[no-untyped-call]
        found.append(Terms(terms.loss.detach(), terms.scalars))
        # The parts' masks are disjoint, and what a mask leaves out is 0.
        text += embeddings.text.detach()
    if audio.requires_grad:
        audio.backward(leaf.grad)  # type: ignore[no-untyped-call]
    everything = Embeddings(audio=leaf.detach(), text=text, mask=needed, positives=embeddings.positives)
    return weighted_sum(found, [weight for _, weight in parts]), everything


@dataclass(frozen=True)
class _Share:
    """One worker's share of a batch, to be embedded `chunk` clips or texts at a time; needed [b, K] says which texts."""

    batch: StepInput
    needed: Tensor
    languages: tuple[str, ...]
    device: torch.device
    chunk: int

    def embed_audio(self, retriever: Retriever) -> Tensor:
        """[b, D]."""
        inputs = (self.batch.features.to(self.device), self.batch.frames.to(self.device))
        return embed_in_chunks(retriever.embed_audio, inputs, self.chunk)

    def embed_text(self, texts: TextBatcher, columns: Tensor | None = None) -> Tensor:
        """[b, K, D], zeros where no text is needed; of the languages with True in columns [K] only, where it is given."""
        needed = self.needed if columns is None else self.needed & columns
        return texts.embed_grid(self.batch.captions.texts, needed.numpy(), self.languages, chunk=self.chunk)

    def embed_tokens(self, retriever: Retriever, texts: TextBatcher) -> TokenShare:
        """The share's frames and tokens, for local interaction."""
        clips = self.batch.features.to(self.device), self.batch.frames.to(self.device)
        return TokenShare.embed(retriever, texts, clips, self.batch.captions.texts, self.needed.numpy(), self.languages)

    @torch.no_grad()
    def embed_with(self, module: nn.Module, texts: TextBatcher) -> tuple[Tensor, Tensor]:
        """The share embedded by another retriever, without gradient."""
        assert isinstance(module, Retriever), "a copy of the retriever"
        return self.embed_audio(module), self.embed_text(texts.of(module))


def check_finite(
    what: str, value: Tensor, batch: StepInput, group: WorkerGroup, scalars: Mapping[str, Tensor] | None = None
) -> None:
    """Raise NonFiniteError on every worker where the value is not finite on one of them."""
    if not group.any(not bool(torch.isfinite(value).all())):
        return
    named = ", ".join(f"{name}={float(scalar):g}" for name, scalar in (scalars or {}).items())
    clips = ", ".join(batch.clip_ids[:8]) + (", ..." if len(batch.clip_ids) > 8 else "")
    raise NonFiniteError(
        f"{what} is not finite ({float(value):g}) on rank {group.rank}; terms: {named}; clips: {clips}"
    )


def as_draw(draw: Tensor | np.ndarray | None) -> Tensor | None:
    """A scheme's draw as a tensor."""
    return torch.from_numpy(draw) if isinstance(draw, np.ndarray) else draw
