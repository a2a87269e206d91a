"""How far what a sample retrieved can be relied on (Fu et al. 2025, Eq. 11-13 and 17).

For a text query i with neighbours N_t(i), whose audio components are a_j, and the audio query's neighbours N_a(i):

    c_j   = mean over m in N_a(i) of <a_j, a_m>      do both modalities retrieve alike?
    w     = softmax over j of c_j
    phi_i = sum over j of w_j exp(<t_i, a_j>)        the potential, in [1/e, e]
    R_i   = -log phi_i                               in [-1, 1]

For an audio query the roles are exchanged. The formulas are rebuilt from the paper's words and the four printed rows of its
Table 6; which component enters where is our reading.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ray_atr.objectives.knowledge.injection import mean_neighbour


def consistency(of_own: Tensor, of_partner: Tensor, partner_valid: Tensor) -> Tensor:
    """c [N, Kn]: mean inner product of each own neighbour's partner component with those that the partner's query found.

    of_own [N, Kn, D] and of_partner [N, Km, D] are components of one modality: the one the query is not.
    """
    return torch.einsum("njd,nd->nj", of_own, mean_neighbour(of_partner, partner_valid))


def potential(embeddings: Tensor, components: Tensor, consistencies: Tensor, valid: Tensor) -> Tensor:
    """phi [N] of query embeddings [N, D] and the partner components [N, Kn, D] of their neighbours; 1 if there are none."""
    none = ~valid.any(dim=1, keepdim=True)
    scores = consistencies.masked_fill(~valid & ~none, -torch.inf)
    weights = scores.softmax(dim=1)
    similarity = torch.einsum("nd,njd->nj", embeddings, components).masked_fill(~valid, 0.0)
    phi = (weights * similarity.exp()).sum(dim=1)
    return torch.where(none[:, 0], torch.ones_like(phi), phi)


def reliability(phi: Tensor) -> Tensor:
    """R = -log phi (Eq. 17): below 0 if the neighbours agree with the query, which eases the sample's loss."""
    return -phi.log()


def multiplier(
    fine: Tensor | None, coarse: Tensor | None, weight_fine: float, weight_coarse: float, scope: str = "sample"
) -> Tensor | None:
    """1 + lambda_f R_f + lambda_c R_c (Eq. 18), [N]; None if there is neither. `scope` batch: its mean for every sample.

    Positive for lambda_f + lambda_c < 1, as R is in [-1, 1].
    """
    parts = [weight * R for R, weight in ((fine, weight_fine), (coarse, weight_coarse)) if R is not None]
    if not parts:
        return None
    total = 1 + torch.stack(parts).sum(dim=0)
    return total.mean().expand_as(total) if scope == "batch" else total
