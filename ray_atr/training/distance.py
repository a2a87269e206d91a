"""How far a run is from another: its scheme from all languages at once, and its weights from another run's at the same step.

Yin et al. 2025: section 3, and Eq. 6-8. w are the weights of the other run, trained on the data distribution p of all
languages (kcl); w' those of this one, trained on p'_e. The paper proves the bound for gradient descent; it is measured here
under any optimiser, to be held against what happens.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ray_atr.encoding.texts import TextBatcher
from ray_atr.models.retriever import Retriever
from ray_atr.objectives import Embeddings, Objective
from ray_atr.objectives.schemes import (
    alignment_direction_error,
    data_distribution_error,
    log10_weight_error_bound,
    weight_distance,
)
from ray_atr.training.batch import Batch, TrainingData
from ray_atr.training.checkpoint import TrainState
from ray_atr.training.group import WorkerGroup
from ray_atr.training.share import embed_batch

PAPERS_TEMPERATURE = 0.07
PAIRS = 4
"""Pairs (a, t) of all languages, and pairs that the scheme trains, whose gradients are measured: a backward pass or two each."""


@torch.no_grad()
def scheme_errors(
    retriever: Retriever, texts: TextBatcher, objective: Objective, batch: Batch, group: WorkerGroup
) -> dict[str, float]:
    """How far the scheme is from all languages at once on a global batch: in degrees, and in the distribution of the data.

    All of the batch's texts are embedded, also those that the scheme does not need. All workers take part and get the same.
    """
    audio, text = _embedded(retriever, texts, batch)
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


def weight_errors(
    data: TrainingData,
    state: TrainState,
    other: Mapping[str, Tensor],
    texts: TextBatcher,
    batch: Batch,
    distribution_error: float,
) -> dict[str, float]:
    """||w - w'|| after an epoch, and the logarithm (base 10) of its bound.

    `distribution_error` is the sum of |p - p'_e| on this batch; the learning rate (eta) is the run's peak. The constants of
    Eq. 7 and 8 are those of some of the batch's pairs, so that the bound is an estimate: g_max is the largest gradient of
    log p at w, of a pair in any language; lambda how far the gradients at w and w' of a pair that the scheme trains differ,
    for each unit between w and w' (others have p'_e = 0 in Eq. 8). Without randomness, and without changing the retriever.
    """
    retriever, objective, progress = state.retriever, data.experiment.objective, state.progress
    learning_rate = max(float(group["initial_lr"]) for group in state.optimizer.param_groups)
    epoch_ago = progress.unvalidated or (progress.history[-1] if progress.history else {})
    mine = {name: value.detach().cpu() for name, value in retriever.state_dict().items()}
    distance = weight_distance(mine, other)
    theirs = copy.deepcopy(retriever)
    theirs.load_state_dict(dict(other))
    needed, temperature = objective.scheme.needed(batch.mask, batch.draw), temperature_of(retriever, objective)
    here, there = (_LogProbabilities(one, texts.of(one), batch, needed, temperature) for one in (retriever, theirs))
    largest = max(float(there.gradient(pair).norm()) for pair in there.present)
    weighted, weights = 0.0, 0.0
    for pair in here.trained:
        g, g_other = here.gradient(pair), there.gradient(pair)
        largest = max(largest, float(g_other.norm()))
        weighted += here.probability(pair) * float((g - g_other).norm()) / max(distance, 1e-12)
        weights += here.probability(pair)
    growth = 1 + learning_rate * weighted / max(weights, 1e-12)
    earlier, apart = epoch_ago.get("train/weight_distance", 0.0), learning_rate * distribution_error * largest
    bound = log10_weight_error_bound(earlier, growth, data.steps_per_epoch, apart)
    found = {"weight_distance": distance, "weight_error_growth": growth}
    return found if math.isinf(bound) else {**found, "weight_distance_bound_log10": bound}


class _LogProbabilities:
    """log p of a batch's pairs (Eq. 1), with a graph, and its gradients.

    A pair is its place among clips x languages, flattened. `present`: some of all; `trained`: some that the scheme trains.
    """

    def __init__(
        self, retriever: Retriever, texts: TextBatcher, batch: Batch, needed: Tensor, temperature: float
    ) -> None:
        self.parameters = [parameter for parameter in retriever.parameters() if parameter.requires_grad]
        with torch.enable_grad():
            logits = torch.einsum("bd,bkd->bk", *_embedded(retriever, texts, batch)) / temperature
            absent = ~batch.mask.to(logits.device)
            self.log_p = logits.masked_fill(absent, -torch.inf).flatten().log_softmax(dim=0)
        self.trained_p = logits.detach().masked_fill(~needed.to(logits.device), -torch.inf).flatten().softmax(dim=0)
        self.present, self.trained = _some(batch.mask), _some(needed)

    def probability(self, pair: int) -> float:
        """p'_e of the pair (Eq. 4)."""
        return float(self.trained_p[pair])

    def gradient(self, pair: int) -> Tensor:
        """The gradient of log p by all weights that are trained, as one vector (CPU)."""
        parts = torch.autograd.grad(self.log_p[pair], self.parameters, retain_graph=True, allow_unused=True)
        pairs = zip(parts, self.parameters, strict=True)
        return torch.cat([(torch.zeros_like(own) if part is None else part).flatten().cpu() for part, own in pairs])


def _embedded(retriever: Retriever, texts: TextBatcher, batch: Batch) -> tuple[Tensor, Tensor]:
    """All of a share's clips [b, D] and texts [b, K, D], in evaluation mode."""
    with retriever.evaluating():
        audio = embed_batch(retriever, batch).float()
        return audio, texts.embed_grid(batch.captions.texts, batch.captions.mask, batch.languages).float()


def _some(mask: Tensor) -> list[int]:
    """The places of a few true entries of a mask, evenly spread."""
    places = mask.flatten().nonzero()[:, 0]
    return places[torch.linspace(0, len(places) - 1, min(PAIRS, len(places))).long()].tolist()
