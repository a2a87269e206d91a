"""ASK: adaptive self-improving knowledge (Fu et al. 2025, arXiv 2512.19703), over any language scheme and pair loss.

At each granularity, single clips (fine) and prototypes (coarse): both sides are enhanced with what they retrieved
(injection), their similarities realigned by a transport plan (realignment), and the pair loss scores them; the two
losses are added (Eq. 16). A sample's loss counts less, the more reliable its neighbours are (modulation, Eq. 18).

The paper's formulas were not readable to us: they are reconstructed from its text and the printed rows of its Table 6. The
defaults are ours and should be swept; the recipes in `recipes.ask` follow the paper's readable sentences.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from ray_atr.common.settings import inherited, refuse, setting
from ray_atr.objectives.knowledge.knowledge import (
    KnowledgeBaseObjective,
    Retrieved,
    SearchSpec,
    Sides,
    SnapshotSettings,
)
from ray_atr.objectives.pairs.learned import Learned
from ray_atr.objectives.pairs.pair_loss import LEAST_SAMPLE_WEIGHT, Comparison, PairLoss, Terms, weighted_sum
from ray_atr.objectives.transport import TransportPlan, solve

FORMS = ("weighted", "additive", "product")


@dataclass(frozen=True, kw_only=True)
class Ask(KnowledgeBaseObjective):
    """Injection, realignment and modulation with neighbours from a refreshed base; each has its switch.

    When: batches are small, and related clips are rarely in one; a refresh encodes the whole set.
    Related: `Nnclr` remembers recent batches alone, `Ance` mines negatives.

    >>> from ray_atr.objectives import preset
    >>> preset("ask", neighbours=3).knowledge.neighbours
    3
    """

    name: ClassVar[str] = "ask"
    neighbours: int = setting(5, "entries that each query retrieves (K)", at_least=1)
    prototypes: int = inherited(SnapshotSettings, "prototypes")
    pooling: str = inherited(SnapshotSettings, "pooling")
    separate_text_clusters: bool = inherited(SnapshotSettings, "separate_text_clusters")
    fine: bool = setting(True, "use single clips")
    coarse: bool = setting(True, "use prototypes")
    injection: bool = setting(True, "enhance embeddings with their neighbours")
    injection_ratio: float = setting(0.2, "share of the neighbours in an enhanced embedding", at_least=0, at_most=1)
    renormalise: bool = setting(
        True, "normalise enhanced embeddings; the paper's derivative after Eq. 10 implies that it does not"
    )
    transport: bool = setting(True, "realign similarities with the batch's transport plan")
    beta: float = setting(0.2, "share of the plan in a realigned similarity", at_least=0, at_most=1)
    transport_epsilon: float = setting(
        1.0, "entropic regularisation of the realignment, on cosine similarities", above=0
    )
    transport_iterations: int = setting(5, "iterations of the realignment's solver", at_least=1)
    transport_form: str = setting("weighted", "how the plan enters the similarity", choices=FORMS)
    reliability: bool = setting(True, "weight a sample's loss: the less, the more reliable its neighbours are")
    lambda_fine: float = setting(0.2, "weight of the single clips' reliability", at_least=0)
    lambda_coarse: float = setting(0.2, "weight of the prototypes' reliability", at_least=0)
    modulation_scope: str = setting(
        "sample", "multiplier of each sample, or its batch mean", choices=("sample", "batch")
    )
    detach_reliability: bool = setting(True, "no gradient through the multiplier")

    def __post_init__(self) -> None:
        super().__post_init__()
        total = self.lambda_fine + self.lambda_coarse
        if total >= 1:
            allowed = "below 1, else a sample's multiplier may be negative"
            raise refuse("objective.knowledge: lambda_fine + lambda_coarse", total, allowed)
        if self.coarse and self.prototypes == 0:
            raise refuse("prototypes", 0, "1 or more (or set coarse=false)")

    @property
    def search_spec(self) -> SearchSpec:
        return SearchSpec(
            self.neighbours,
            self.index,
            self.probes,
            fine=self.fine,
            coarse=self.coarse,
            excluded="own" if self.exclude_own else "nothing",
        )

    def snapshot_settings(self, seed: int) -> SnapshotSettings:
        changed = {name: getattr(self, name) for name in ("prototypes", "pooling", "separate_text_clusters")}
        return dataclasses.replace(super().snapshot_settings(seed), **changed)

    def check_pair(self, pair: PairLoss) -> None:
        """ValueError if the plan is added to similarities, and the loss compares vectors by a metric instead."""
        metric = getattr(pair, "metric", "euclidean")
        if self.transport and self.beta > 0 and self.transport_form == "additive" and metric != "euclidean":
            allowed = f"weighted, product with objective.pair.metric={metric}"
            raise refuse("objective.knowledge.transport_form", self.transport_form, allowed)

    def score(self, comparison: Comparison, pair: PairLoss, retrieved: Retrieved, learned: Learned) -> Terms:
        """The fine and the coarse loss of one comparison, added."""
        sides = {
            name: Sides.from_comparison(comparison, granularity)
            for name, granularity in (("fine", retrieved.fine), ("coarse", retrieved.coarse))
            if getattr(self, name) and granularity is not None
        }
        if not sides:
            return pair(comparison, learned)
        comparison, scalars = self.modulate(comparison, sides)
        terms = []
        for name, neighbours in sides.items():
            enhanced = self.enhance(comparison, neighbours)
            if self.transport and self.beta > 0:
                agreed, plan = agreement(
                    enhanced.cross_similarity(),
                    self.transport_epsilon,
                    self.transport_iterations,
                    enhanced.sample_weight,
                )
                enhanced = realign(enhanced, agreed, self.beta, self.transport_form)
                scalars[f"realignment_{name}_residual"] = agreed.new_tensor(plan.residual)
                scalars[f"realignment_{name}_own"] = agreed.diagonal().mean()
            terms.append(pair(enhanced, learned))
            scalars[f"loss_{name}"] = terms[-1].loss.detach()
        loss, pair_scalars = weighted_sum(terms, [1.0] * len(terms))
        return Terms(loss, {**pair_scalars, **scalars})

    def enhance(self, comparison: Comparison, sides: Sides) -> Comparison:
        """Both sides enhanced (Eq. 9).

        A precomputed similarity s (late interaction) has no embedding to enhance. With the enhanced u~ = x u + n, v~ = y v + m
        it becomes <u~, v~> with s in the place of <u, v>, that is <u~, v~> + x y (s - <u, v>). This is ours.
        """
        if not self.injection or self.injection_ratio == 0:
            return comparison
        u, v = comparison.u, comparison.v
        of_u = u, sides.u.own, sides.u.valid, self.injection_ratio, self.renormalise
        of_v = v, sides.v.own, sides.v.valid, self.injection_ratio, self.renormalise
        new_u, new_v = inject(*of_u), inject(*of_v)
        similarity = comparison.similarity
        if similarity is not None:
            shares = torch.outer(own_share(*of_u), own_share(*of_v))
            similarity = new_u @ new_v.T + shares * (similarity - u @ v.T)
        return dataclasses.replace(comparison, u=new_u, v=new_v, similarity=similarity)

    def modulate(self, comparison: Comparison, sides: dict[str, Sides]) -> tuple[Comparison, dict[str, Tensor]]:
        """The comparison with each sample's multiplier as its weight in both directions (Eq. 17-18), and what to log."""
        if not self.reliability:
            return comparison, {}
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.detach_reliability):
            phi = {name: potentials(comparison, neighbours) for name, neighbours in sides.items()}
            scalars: dict[str, Tensor] = {}
            weights: list[Tensor] = []
            for side, label in enumerate(("rows", "columns")):
                fine, coarse = (reliability(phi[name][side]) if name in phi else None for name in ("fine", "coarse"))
                lambdas = self.lambda_fine, self.lambda_coarse
                weight = multiplier(fine, coarse, *lambdas, self.modulation_scope, comparison.sample_weight)
                weights.append(weight)
                scalars.update({f"potential_{name}_{label}": phi[name][side].detach().mean() for name in phi})
                scalars[f"multiplier_{label}"] = weight.detach().mean()
        return dataclasses.replace(comparison, row_weight=weights[0], column_weight=weights[1]), scalars


def inject(embeddings: Tensor, neighbours: Tensor, valid: Tensor, ratio: float, renormalise: bool = True) -> Tensor:
    """a~_i = (1 - ratio) a_i + ratio * mean over N_a(i) of a_j, [N, D], of unit norm if `renormalise` is set (Eq. 9).

    embeddings [N, D]; neighbours [N, Kn, D], of which `valid` [N, Kn] count. Eq. 9 as printed, and the derivative
    after it, do not renormalise. A row without neighbours stays as it is.
    """
    mixed = (1 - ratio) * embeddings + ratio * mean_neighbour(neighbours, valid)
    if renormalise:
        mixed = functional.normalize(mixed, dim=-1)
    return torch.where(valid.any(dim=1)[:, None], mixed, embeddings)


def mean_neighbour(neighbours: Tensor, valid: Tensor) -> Tensor:
    """Mean [N, D] of the valid neighbours [N, Kn, D]; zero if there are none."""
    counted = valid.to(neighbours.dtype)[:, :, None]
    return (neighbours * counted).sum(dim=1) / counted.sum(dim=1).clamp(min=1)


def own_share(embeddings: Tensor, neighbours: Tensor, valid: Tensor, ratio: float, renormalise: bool = True) -> Tensor:
    """The factor [N] of the embedding in its enhanced form: 1 - ratio, divided by the norm if renormalised."""
    mixed = (1 - ratio) * embeddings + ratio * mean_neighbour(neighbours, valid)
    share = (1 - ratio) / (mixed.norm(dim=1).clamp(min=1e-12) if renormalise else torch.ones_like(mixed[:, 0]))
    return torch.where(valid.any(dim=1), share, torch.ones_like(share))


@torch.no_grad()
def agreement(
    similarity: Tensor, epsilon: float, iterations: int, sample_weight: Tensor | None = None
) -> tuple[Tensor, TransportPlan]:
    """(B Q [B, B], whose rows and columns sum to 1, and the plan Q) of a similarity [B, B]; no gradient (Fu et al. 2025, App. C).

    Q = argmax <Q, S> + epsilon H(Q) with uniform marginals. The factor B is ours. With sample weights [B] the marginals a are
    these, brought to sum to 1, and B Q is Q_ij / sqrt(a_i a_j): a pair of weight 0 has no part in the plan, and 0 here.
    """
    similarity = similarity.detach().float()
    if sample_weight is None:
        plan = solve(similarity.max() - similarity, epsilon, max_iterations=iterations)
        return plan.matrix * len(similarity), plan
    weight = sample_weight.to(similarity)
    weighted = (weight > LEAST_SAMPLE_WEIGHT).nonzero().squeeze(1)
    if not len(weighted):
        weighted, weight = torch.arange(len(weight), device=weight.device), torch.ones_like(weight)
    part, a = similarity[weighted][:, weighted], weight[weighted] / weight[weighted].sum()
    plan = solve(part.max() - part, epsilon, rows=a, columns=a, max_iterations=iterations)
    agreed = torch.zeros_like(similarity)
    agreed[weighted[:, None], weighted] = plan.matrix.to(similarity) / torch.outer(a, a).sqrt()
    return agreed, plan


def realign(comparison: Comparison, agreed: Tensor, beta: float, form: str = "weighted") -> Comparison:
    """The comparison with S' in the place of S, elementwise: similarities that the plan agrees with grow (Eq. 15).

    weighted  S' = ((1 - beta) + beta B Q) * S        additive  S' = (1 - beta) S + beta B Q
    product   S' = (B Q)^beta * S
    """
    if form == "additive":
        similarity = (1 - beta) * comparison.cross_similarity() + beta * agreed
        return dataclasses.replace(comparison, similarity=similarity, gain=None)
    gain = agreed.pow(beta) if form == "product" else (1 - beta) + beta * agreed
    return dataclasses.replace(comparison, gain=gain if comparison.gain is None else comparison.gain * gain)


def potentials(comparison: Comparison, sides: Sides) -> tuple[Tensor, Tensor]:
    """phi [N] of the rows' queries u and of the columns' queries v: how far their retrieved entries agree (Eq. 11-13).

    For a text query i with neighbours N_t(i), whose audio components are a_j, and the audio query's neighbours N_a(i):

        c_j   = mean over m in N_a(i) of <a_j, a_m>      whether both modalities retrieve alike
        w     = softmax over j of c_j
        phi_i = sum over j of w_j exp(<t_i, a_j>)        the potential, in [1/e, e]

    For an audio query the roles are exchanged. Which component enters where is our reading.
    """
    u, v = sides.u, sides.v
    phi_u = potential(comparison.u, u.partner, consistency(u.partner, v.own, v.valid), u.valid)
    return phi_u, potential(comparison.v, v.partner, consistency(v.partner, u.own, u.valid), v.valid)


def consistency(of_own: Tensor, of_partner: Tensor, partner_valid: Tensor) -> Tensor:
    """c [N, Kn] of own neighbours' partner components [N, Kn, D] with those of the partner's query, [N, Km, D]."""
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
    """R = -log phi, in [-1, 1] (Eq. 17): below 0 if the neighbours agree with the query, which eases its loss."""
    return -phi.log()


def multiplier(
    fine: Tensor | None,
    coarse: Tensor | None,
    weight_fine: float,
    weight_coarse: float,
    scope: str = "sample",
    sample_weight: Tensor | None = None,
) -> Tensor:
    """1 + lambda_f R_f + lambda_c R_c, [N] (Eq. 18); at least one R is given.

    With `scope` batch, every sample has the batch mean, in which a pair counts by its sample weight [N].
    """
    parts = [weight * R for R, weight in ((fine, weight_fine), (coarse, weight_coarse)) if R is not None]
    total = 1 + torch.stack(parts).sum(dim=0)
    if scope != "batch":
        return total
    weight = torch.ones_like(total) if sample_weight is None else sample_weight.to(total)
    mean = (total * weight).sum() / weight.sum().clamp(min=torch.finfo(total.dtype).tiny)
    return mean.expand_as(total)
