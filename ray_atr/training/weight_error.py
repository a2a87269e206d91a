"""How far a run's weights are from another's at the same step, and how far ATRI's bound lets them be (Yin et al. 2025, Eq. 6-8).

w are the weights of the other run, trained on the data distribution p of all languages (kcl); w' those of this one, trained on
p'_e. The paper proves the bound for gradient descent; it is measured here under any optimiser, to be held against what happens.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ray_atr.encoding.texts import TextBatcher
from ray_atr.models.retriever import Retriever
from ray_atr.objectives import Objective
from ray_atr.objectives.scheme_diagnostics import log10_weight_error_bound, weight_distance
from ray_atr.training.batch import Batch
from ray_atr.training.share import embed_batch

PAIRS = 4
"""Pairs (a, t) of all languages, and pairs that the scheme trains, whose gradients are measured: a backward pass or two each."""


def weight_errors(
    retriever: Retriever,
    other: Mapping[str, Tensor],
    texts: TextBatcher,
    objective: Objective,
    batch: Batch,
    *,
    temperature: float,
    learning_rate: float,
    steps: int,
    earlier: float,
    distribution_error: float,
) -> dict[str, float]:
    """||w - w'|| after an epoch of `steps` steps, and the logarithm (base 10) of its bound.

    `earlier` is ||w - w'|| an epoch ago; `learning_rate` (eta) the run's peak; `distribution_error` the sum of
    |p - p'_e| on this batch. The constants of Eq. 7 and 8 are those of some of the batch's pairs, so that the bound is an
    estimate: g_max is the largest gradient of log p at w, of a pair in any language; lambda how far the gradients at w and w'
    of a pair that the scheme trains differ, for each unit between w and w' (others have p'_e = 0 in Eq. 8). Without
    randomness, and without changing the retriever.
    """
    mine = {name: value.detach().cpu() for name, value in retriever.state_dict().items()}
    distance = weight_distance(mine, other)
    found = {"weight_distance": distance}
    theirs = copy.deepcopy(retriever)
    theirs.load_state_dict(dict(other))
    needed = objective.scheme.needed(batch.mask, batch.draw)
    here, there = (_LogProbabilities(one, texts.of(one), batch, needed, temperature) for one in (retriever, theirs))
    largest = max(float(there.gradient(pair).norm()) for pair in there.present)
    weighted, weights = 0.0, 0.0
    for pair in here.trained:
        g, g_other = here.gradient(pair), there.gradient(pair)
        largest = max(largest, float(g_other.norm()))
        weighted += here.probability(pair) * float((g - g_other).norm()) / max(distance, 1e-12)
        weights += here.probability(pair)
    growth = 1 + learning_rate * weighted / max(weights, 1e-12)
    bound = log10_weight_error_bound(earlier, growth, steps, learning_rate * distribution_error * largest)
    found["weight_error_growth"] = growth
    return found if math.isinf(bound) else {**found, "weight_distance_bound_log10": bound}


class _LogProbabilities:
    """log p of a batch's pairs (Eq. 1), with a graph, and its gradients.

    A pair is its place among clips x languages, flattened. `present`: some of all; `trained`: some that the scheme trains.
    """

    def __init__(
        self,
        retriever: Retriever,
        texts: TextBatcher,
        batch: Batch,
        needed: Tensor,
        temperature: float,
    ) -> None:
        self.parameters = [parameter for parameter in retriever.parameters() if parameter.requires_grad]
        device = retriever.device
        with retriever.evaluating(), torch.enable_grad():
            audio = embed_batch(retriever, batch).float()
            text = texts.embed_grid(batch.captions.texts, batch.captions.mask, batch.languages).float()
            logits = torch.einsum("bd,bkd->bk", audio, text) / temperature
            there = batch.mask.to(device)
            self.log_p = logits.masked_fill(~there, -torch.inf).flatten().log_softmax(dim=0)
        self.trained_p = logits.detach().masked_fill(~needed.to(device), -torch.inf).flatten().softmax(dim=0)
        self.present, self.trained = _some(batch.mask), _some(needed)

    def probability(self, pair: int) -> float:
        """p'_e of the pair (Eq. 4)."""
        return float(self.trained_p[pair])

    def gradient(self, pair: int) -> Tensor:
        """The gradient of log p by all weights that are trained, as one vector (CPU)."""
        parts = torch.autograd.grad(self.log_p[pair], self.parameters, retain_graph=True, allow_unused=True)
        return torch.cat(
            [
                (torch.zeros_like(weight) if part is None else part).flatten().cpu()
                for part, weight in zip(parts, self.parameters, strict=True)
            ]
        )


def _some(mask: Tensor) -> list[int]:
    """The places of a few true entries of a mask, evenly spread."""
    places = mask.flatten().nonzero()[:, 0]
    return places[torch.linspace(0, len(places) - 1, min(PAIRS, len(places))).long()].tolist()
