"""What ATRI measures about a language scheme (Yin et al. 2025, section 3): how far a batch is from all languages at once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ray_atr.objectives.embeddings import Embeddings
from ray_atr.objectives.schemes import Scheme


def data_distribution_error(scheme: Scheme, mask: Tensor, draw: Tensor | None) -> float:
    """sum |p - p'| over the batch's (audio, text) entries, in [0, 2] (ATRI Eq. 6).

    p spreads one unit of mass evenly over the entries [B, K] that the scheme encodes, p' over all that exist. 0 for
    one_to_k; 2 (K - 1)/K for english and random.
    """
    mine = scheme.needed(mask, draw).double()
    everything = mask.double()
    return float((mine / mine.sum() - everything / everything.sum()).abs().sum())


def alignment_direction_error(embeddings: Embeddings, scheme: Scheme, draw: Tensor | None) -> Tensor:
    """Mean angle, in degrees, between where the scheme pulls each clip's audio and the mean of all its language embeddings.

    The scheme pulls towards the mean of the texts that it encodes. 0 for one_to_k.
    """
    available = embeddings.available()
    everything = _mean_direction(embeddings.text, available)
    pulled = _mean_direction(embeddings.text, scheme.needed(available, draw))
    has_both = (everything.norm(dim=1) > 0) & (pulled.norm(dim=1) > 0)
    # atan2 of the half-angle's chord: exact near 0, where arccos of a rounded cosine is not.
    chord, sum_length = (everything - pulled).norm(dim=1), (everything + pulled).norm(dim=1)
    return torch.rad2deg(2 * torch.atan2(chord, sum_length))[has_both].mean()


def weight_distance(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """Euclidean distance of two runs' weights (state dicts): ATRI Eq. 6's left side, against the one_to_k run of the same seed.

    Raises ValueError where the two do not hold the same tensors.
    """
    if first.keys() != second.keys():
        different = sorted(first.keys() ^ second.keys())
        raise ValueError(f"weights: got state dicts that differ in {', '.join(different[:5])}; allowed equal names")
    floating = [name for name in first if first[name].is_floating_point()]
    squares = [(first[name].double() - second[name].double()).square().sum() for name in floating]
    return float(torch.stack(squares).sum().sqrt())


def _mean_direction(text: Tensor, mask: Tensor) -> Tensor:
    mean = (text * mask[:, :, None]).sum(dim=1)
    return torch.nn.functional.normalize(mean, dim=1)
