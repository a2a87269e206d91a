"""What an epoch's end says of a run besides its losses: how far its scheme is from all languages, and its metric.

Each costs less than a training step.
"""

from __future__ import annotations

import torch

from ray_atr.encoding.texts import TextBatcher
from ray_atr.models.retriever import Retriever
from ray_atr.objectives import Embeddings, Objective, metric_scalars
from ray_atr.objectives.scheme_diagnostics import alignment_direction_error, data_distribution_error
from ray_atr.training.batch import Batch
from ray_atr.training.group import WorkerGroup
from ray_atr.training.share import embed_batch

PAPERS_TEMPERATURE = 0.07


@torch.no_grad()
def scheme_errors(
    retriever: Retriever,
    texts: TextBatcher,
    objective: Objective,
    batch: Batch,
    group: WorkerGroup,
) -> dict[str, float]:
    """How far the scheme is from all languages at once on a global batch (Yin et al. 2025, section 3).

    The direction error in degrees, and the data distribution error. All of the batch's texts are embedded, also those that
    the scheme does not need. All workers take part and get the same.
    """
    with retriever.evaluating():
        audio = embed_batch(retriever, batch).float()
        text = texts.embed_grid(batch.captions.texts, batch.captions.mask, batch.languages).float()
    draw, mask = batch.everyone.draw, batch.everyone.mask
    embeddings = Embeddings(audio=group.gather(audio), text=group.gather(text), mask=mask)
    error = data_distribution_error(embeddings, objective.scheme, draw, temperature_of(retriever, objective))
    return {
        "alignment_direction_error": float(alignment_direction_error(embeddings, objective.scheme, draw)),
        "data_distribution_error": float(error),
    }


def temperature_of(retriever: Retriever, objective: Objective) -> float:
    """The learned temperature, or the pair loss's; losses without one of their own are judged at the papers'."""
    learned = retriever.learned.values().temperature
    return float(getattr(objective.pair, "temperature", PAPERS_TEMPERATURE) if learned is None else learned)


def metric_state(retriever: Retriever) -> dict[str, float]:
    """The learned transport metric's smallest eigenvalue and rank; nothing if none is learnt."""
    learned = retriever.learned
    if learned.metric is None:
        return {}
    scalars = metric_scalars(learned.metric.detach(), learned.settings.metric)
    return {name: float(value) for name, value in scalars.items()}
