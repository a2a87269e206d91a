"""What ATRI measures about a language scheme (Yin et al. 2025, section 3): how far a batch is from all languages at once."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ray_atr.objectives.embeddings import Embeddings
from ray_atr.objectives.schemes import Scheme


@torch.no_grad()
def data_distribution_error(
    embeddings: Embeddings, scheme: Scheme, draw: Tensor | None, temperature: Tensor | float = 0.07
) -> Tensor:
    """sum |p - p'_e| over the batch's pairs (a_i, t_ik), in [0, 2] (Yin et al. 2025, Eq. 1, 2, 4 and 6).

    p is the softmax of s(a_i, t_ik)/temperature over all pairs of the batch (Eq. 1; Eq. 2 with one language), p'_e that over
    the pairs alone that the scheme trains (Eq. 4), 0 for the others. 0 if it trains all of them, as kcl does.
    """
    available = embeddings.available()
    logits = torch.einsum("bd,bkd->bk", embeddings.audio.double(), embeddings.text.double()) / temperature

    def distribution(pairs: Tensor) -> Tensor:
        return logits.masked_fill(~pairs, -torch.inf).flatten().softmax(dim=0)

    return (distribution(available) - distribution(scheme.needed(available, draw))).abs().sum()


def alignment_direction_error(embeddings: Embeddings, scheme: Scheme, draw: Tensor | None) -> Tensor:
    """Mean angle, in degrees, between where the scheme pulls each clip's audio and the mean of all its language embeddings.

    The scheme pulls towards the mean of the texts that it encodes. 0 for kcl.
    """
    available = embeddings.available()
    everything = _mean_direction(embeddings.text, available)
    pulled = _mean_direction(embeddings.text, scheme.needed(available, draw))
    has_both = (everything.norm(dim=1) > 0) & (pulled.norm(dim=1) > 0)
    # atan2 of the half-angle's chord: exact near 0, where arccos of a rounded cosine is not.
    chord, sum_length = (everything - pulled).norm(dim=1), (everything + pulled).norm(dim=1)
    return torch.rad2deg(2 * torch.atan2(chord, sum_length))[has_both].mean()


def weight_distance(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """Euclidean distance of two runs' weights (state dicts): ATRI Eq. 6's left side, against the kcl run of the same seed.

    Raises ValueError if the two do not hold the same tensors.
    """
    if first.keys() != second.keys():
        different = sorted(first.keys() ^ second.keys())
        raise ValueError(f"weights: got state dicts that differ in {', '.join(different[:5])}; allowed equal names")
    floating = [name for name in first if first[name].is_floating_point()]
    squares = [(first[name].double() - second[name].double()).square().sum() for name in floating]
    return float(torch.stack(squares).sum().sqrt())


def log10_weight_error_bound(earlier: float, growth: float, steps: int, push: float) -> float:
    """log10 of a^T ||w - w'||_(e-1)T + push * sum over j < T of a^j (Yin et al. 2025, Eq. 6 as its proof has it).

    earlier = ||w - w'|| an epoch of T = `steps` ago, growth = a (Eq. 8), push = eta * sum |p - p'_e| * g_max (Eq. 7), taken
    as constant over the epoch. As a logarithm, for a^T may exceed any number; -inf if both terms are 0.
    """
    log_a = math.log(growth)
    # The sum is (a^T - 1) / (a - 1), or T for a = 1.
    log_sum = (
        steps * log_a + math.log1p(-math.exp(-steps * log_a)) - math.log(growth - 1) if growth > 1 else math.log(steps)
    )
    inherited = math.log(earlier) + steps * log_a if earlier > 0 else -math.inf
    added = math.log(push) + log_sum if push > 0 else -math.inf
    return float(np.logaddexp(inherited, added)) / math.log(10)


def _mean_direction(text: Tensor, mask: Tensor) -> Tensor:
    mean = (text * mask[:, :, None]).sum(dim=1)
    return torch.nn.functional.normalize(mean, dim=1)
