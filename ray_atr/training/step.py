"""One training step: embed this worker's share, gather, compute the objective on the global batch, back-propagate.

Two settings bound its memory, and neither changes the gradient. With `embedding_chunk`, at most that many clips or texts are
embedded at a time, and again when the gradient comes back to them. With `language_chunk`, if the loss is a sum
over languages given the audio, the texts of at most that many languages are embedded and back-propagated at a time, into a
detached copy of the audio embeddings; the audio tower follows once, at the end.

They are exact because an embedding depends on its own clip or text alone: batch norms keep their statistics while
training (`AudioTower.train`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ray_atr.models.retriever import Retriever
from ray_atr.models.sharding import is_sharded
from ray_atr.objectives import Embeddings, Objective, Terms
from ray_atr.objectives.correspondence import Estimator
from ray_atr.objectives.pairs.pair_loss import weighted_sum
from ray_atr.objectives.pairs.ring import PendingGradients
from ray_atr.training.batch import Batch
from ray_atr.training.checks import check_chunks
from ray_atr.training.clock import Clock
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.group import GradientMean, WorkerGroup
from ray_atr.training.knowledge_base.memory import Memory
from ray_atr.training.share import LateShare, Share


class NonFiniteError(RuntimeError):
    """A loss or gradient that is not finite, found before the optimiser step: training must stop."""


class StepResult(NamedTuple):
    """Scalars of a step to log, and the global batch's embeddings; None if no worker gathered them."""

    scalars: dict[str, float]
    embeddings: Embeddings | None


def training_step(
    retriever: Retriever,
    texts: TextBatcher,
    objective: Objective,
    batch: Batch,
    group: WorkerGroup,
    *,
    memory: Memory | None = None,
    estimator: Estimator | None = None,
    autocast: bool = False,
    language_chunk: int = 0,
    embedding_chunk: int = 0,
    clock: Clock | None = None,
) -> StepResult:
    """Leave the gradients of one global batch in `retriever`, as one process that holds all of it would.

    `memory` retrieves from outside the batch; `estimator` weighs the pairs. At most `language_chunk` languages, and
    `embedding_chunk` clips or texts, are embedded at a time; 0: all. A batch without texts that the scheme compares has a loss
    of 0 and no gradient. Raises NonFiniteError, with the clips, if the loss is not finite, and ValueError as `check_chunks` does.
    """
    check_chunks(objective, language_chunk)
    clock, scheme, global_batch = clock or Clock(), objective.scheme, batch.global_batch
    kind = LateShare if retriever.settings.is_late else Share
    needed_here, needed = scheme.needed(batch.mask, batch.draw), scheme.needed(global_batch.mask, global_batch.draw)
    weigh_pairs = None if estimator is None else estimator.for_batch(global_batch.rows, global_batch.slots)
    if not bool(needed.any()):
        # No gradients in place of zeros: with zeros, an optimiser would let weights decay that no loss uses.
        return StepResult({"loss": 0.0}, None)
    ring, pending = None, PendingGradients()
    if goes_around(retriever, objective, len(needed), group):
        ring = replace(group.ring(len(needed)), pending=pending)
    with clock("forward"):
        share = kind(retriever, texts, batch, needed_here, chunk=embedding_chunk, autocast=autocast)
        audio_here = share.audio()
    with clock("gather"):
        audio = group.keep(audio_here.float()) if ring else group.gather(audio_here.float())
    parts = scheme.language_shares(needed, global_batch.draw, language_chunk)
    # With several parts, each adds its gradient to a detached copy, and the audio tower is back-propagated once.
    anchor = audio if len(parts) == 1 else audio.detach().requires_grad_()
    of_chunks: list[tuple[Terms, Embeddings | None]] = []
    groups = global_batch.positive_groups
    constant = {"draw": global_batch.draw, "weigh_pairs": weigh_pairs}
    # The backward pass of sharded towers averages their gradients itself.
    order = in_order(retriever, texts_last=ring is None)
    replicated = [p for p in order if not is_sharded(p)] if group.size > 1 else []
    with GradientMean(replicated, group.size) as mean:
        for number, (languages, weight) in enumerate(parts, start=1):
            columns = torch.isin(torch.arange(needed.shape[1]), torch.tensor(languages))
            with clock("forward"):
                text_here = share.text(columns)
                if not text_here.requires_grad:
                    # A share without texts: in the backward pass its worker exchanges with the others all the same.
                    text_here.requires_grad_()
                retrieved = None
                if memory is not None:
                    retrieved = memory.retrieve(share.worker_batch(audio_here, text_here), group.gather)
            mask, embeddings = needed & columns.to(needed.device), None
            arguments: dict[str, Any] = {"learned": retriever.learned.values(), **constant}
            with clock("gather"):
                if ring is None:
                    text, similarity = group.gather(text_here.float()), share.similarity(group)
                else:
                    text = pending.detached(group.keep(text_here.float()))
            with clock("loss"):
                with group.share_losses():
                    if ring is None:
                        embeddings = Embeddings(anchor, text, mask, similarity=similarity, groups=groups)
                        terms = objective(embeddings, retrieved=retrieved, **arguments)
                    else:
                        terms = objective.score_own(anchor, text, mask, ring, groups=groups, **arguments)
                check_finite("loss", terms.loss, batch.clip_ids, group, terms.scalars)
            # Not with sharded towers: the order of their exchanges and of these would differ between workers.
            if number == len(parts) and retriever.calls is None:
                mean.begin_last()
            with clock("backward"):
                (weight * terms.loss).backward()
                if number == len(parts) and anchor is not audio and audio.requires_grad:
                    audio.backward(anchor.grad)
                if ring is not None:
                    # Only now: the texts' gradients travelled while the audio tower was back-propagated.
                    pending.backward()
            of_chunks.append((Terms(terms.loss.detach(), terms.scalars), embeddings))
        with clock("backward"):
            mean.finish()
    terms = weighted_sum([terms for terms, _ in of_chunks], [weight for _, weight in parts])
    scalars = {"loss": terms.loss.item(), **{name: float(value) for name, value in terms.scalars.items()}}
    gathered = [embeddings for _, embeddings in of_chunks if embeddings is not None]
    return StepResult(scalars, _together(gathered, needed) if gathered else None)


def goes_around(retriever: Retriever, objective: Objective, B: int, group: WorkerGroup) -> bool:
    """Whether workers pass the texts' embeddings around a ring, so that none gathers those of all B clips.

    A single worker computes in the same way, so that the result does not depend on the number of workers.
    """
    if objective.gathers or retriever.settings.is_late:
        return False
    usual, chosen = objective.pair.shared_from, group.share_losses_from
    return 0 < (usual if chosen is None else chosen) <= B and group.size <= B


def in_order(retriever: Retriever, *, texts_last: bool) -> list[nn.Parameter]:
    """The parameters in the reverse order of the backward pass: those of the text tower last, or first."""
    of_text = {id(p) for part in (retriever.text_tower, retriever.text_projection) for p in part.parameters()}
    return sorted(retriever.parameters(), key=lambda parameter: (id(parameter) in of_text) is texts_last)


def _together(parts: Sequence[Embeddings], needed: Tensor) -> Embeddings:
    """The embeddings of all parts, whose masks are disjoint; texts outside of a mask are 0."""
    if len(parts) == 1:
        return parts[0]
    text = torch.stack([part.text.detach() for part in parts]).sum(dim=0)
    return Embeddings(audio=parts[0].audio.detach(), text=text, mask=needed, groups=parts[0].groups)


def check_finite(
    what: str, value: Tensor, clip_ids: Sequence[str], group: WorkerGroup, scalars: Mapping[str, Tensor] | None = None
) -> None:
    """Raise NonFiniteError on every worker if the value is not finite on one of them."""
    if not group.any(not bool(torch.isfinite(value).all())):
        return
    named = ", ".join(f"{name}={float(scalar):g}" for name, scalar in (scalars or {}).items())
    clips = ", ".join(clip_ids[:8]) + (", ..." if len(clip_ids) > 8 else "")
    raise NonFiniteError(
        f"{what} is not finite ({value.item():g}) on rank {group.rank}; terms: {named}; clips: {clips}"
    )
