"""Knowledge injection: an embedding moves towards what it retrieved (Fu et al. 2025, Eq. 9).

a~_i = (1 - lambda) a_i + lambda mean over N_a(i) of a_j,  renormalised unless told otherwise
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def inject(embeddings: Tensor, neighbours: Tensor, valid: Tensor, ratio: float, renormalise: bool = True) -> Tensor:
    """Enhanced embeddings [N, D] of embeddings [N, D] and neighbours [N, Kn, D], of which `valid` [N, Kn] count.

    Unit norm, unless not renormalised: as Eq. 9 is printed, and as the constant derivative after Eq. 10 implies. The
    neighbours' mean direction at ratio 1; a row without neighbours stays as it is.
    """
    mixed = (1 - ratio) * embeddings + ratio * mean_neighbour(neighbours, valid)
    if renormalise:
        mixed = functional.normalize(mixed, dim=-1)
    return torch.where(valid.any(dim=1)[:, None], mixed, embeddings)


def mean_neighbour(neighbours: Tensor, valid: Tensor) -> Tensor:
    """Mean [N, D] of the valid neighbours [N, Kn, D], not normalised; zero if there are none."""
    counted = valid.to(neighbours.dtype)[:, :, None]
    return (neighbours * counted).sum(dim=1) / counted.sum(dim=1).clamp(min=1)


def kept_share(embeddings: Tensor, neighbours: Tensor, valid: Tensor, ratio: float, renormalise: bool = True) -> Tensor:
    """The factor [N] that the embedding itself has in its enhanced form: (1 - lambda), over the norm if renormalised."""
    mixed = (1 - ratio) * embeddings + ratio * mean_neighbour(neighbours, valid)
    norm = mixed.norm(dim=1).clamp(min=1e-12) if renormalise else torch.ones_like(mixed[:, 0])
    share = (1 - ratio) / norm
    return torch.where(valid.any(dim=1), share, torch.ones_like(share))
