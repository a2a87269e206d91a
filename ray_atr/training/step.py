"""One training step: embed this worker's share, gather, compute the objective on the global batch, back-propagate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ray_atr.data.captions import CaptionBatch
from ray_atr.knowledge.recall import LocalBatch, Recall
from ray_atr.models.retriever import Retriever
from ray_atr.objectives import Embeddings, Objective
from ray_atr.training.group import WorkerGroup
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
) -> StepResult:
    """Back-propagate one global batch into `retriever`'s gradients, averaged over workers.

    `recall` is the worker's memory beyond the batch, asked for what it retrieves at the global step `step`.

    Leaves the gradients of the global batch, as one process that holds all of it would. Raises NonFiniteError where
    the loss is not finite, naming the clips.
    """
    mask = torch.from_numpy(batch.captions.mask)
    needed = objective.scheme.needed(mask, batch.draw)
    with torch.autocast(group.device.type, torch.bfloat16, enabled=autocast):
        audio = retriever.embed_audio(batch.features.to(group.device), batch.frames.to(group.device))
        text = texts.embed_grid(batch.captions.texts, needed.numpy(), languages)
    retrieved = None
    if recall is not None:
        local = LocalBatch(
            audio=audio,
            text=text,
            mask=needed.to(group.device),
            clip_ids=batch.clip_ids,
            step=step,
            embed_with=lambda module: _embed_with(module, texts, batch, needed, languages, group),
        )
        retrieved = recall.retrieve(local, group.gather)
    groups = group.gather(torch.from_numpy(batch.captions.groups).to(group.device))
    embeddings = Embeddings(
        audio=group.gather(audio.float()),
        text=group.gather(text.float()),
        mask=group.gather(needed.to(group.device)),
        positives=groups[:, None] == groups[None, :],
    )
    draw = None if batch.draw is None else group.gather(batch.draw.to(group.device))
    terms = objective(
        embeddings, metric=retriever.metric, temperature=retriever.temperature, draw=draw, retrieved=retrieved
    )
    check_finite("loss", terms.loss, batch, group, terms.scalars)
    terms.loss.backward()  # type: ignore[no-untyped-call]
    group.average_gradients(retriever.parameters())
    scalars = {"loss": terms.loss.item(), **{name: float(value) for name, value in terms.scalars.items()}}
    return StepResult(scalars, embeddings)


def _embed_with(
    module: nn.Module,
    texts: TextBatcher,
    batch: StepInput,
    needed: Tensor,
    languages: tuple[str, ...],
    group: WorkerGroup,
) -> tuple[Tensor, Tensor]:
    """This worker's share embedded by another retriever, without gradient."""
    assert isinstance(module, Retriever), "a copy of the retriever"
    with torch.no_grad():
        audio = module.embed_audio(batch.features.to(group.device), batch.frames.to(group.device))
        text = texts.of(module).embed_grid(batch.captions.texts, needed.numpy(), languages)
    return audio, text


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
