"""Learning to match: the plan of the batch should be the true matching (Luong et al. 2024, Eq. 3, 6, 9).

loss = KL(pi_hat || pi),  pi = argmin <pi, c> - epsilon H(pi) with marginals 1/N,  pi_hat = I/N

The cost is a distance divided by its maximum over the batch, c_ij = sqrt((u_i - v_j)^T M (u_i - v_j)). [N, N, D] is
never formed: c^2 = |u|^2 + |v|^2 - 2 <u, v>, in the space that the metric's factor maps to.

With sample weights y, both marginals are y / sum y, pi_hat = diag(y) / sum y, and the loss is multiplied by the mean of
y: a pair that has a weight of 0 has no mass to place. With soft targets t, pi_hat_ij = a_i t_ij for the marginals a.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ray_atr.common.derivatives import first_only
from ray_atr.common.ranks import Ranks
from ray_atr.common.settings import refuse, setting
from ray_atr.objectives.pairs.learned import METRICS, Learned, LearnedSettings
from ray_atr.objectives.pairs.mahalanobis import Mahalanobis, WeighedRows, shape_of, squared_distances
from ray_atr.objectives.pairs.pair_loss import Comparison, PairLoss, Terms
from ray_atr.objectives.pairs.tiled_matching import Costs, Matching, TrueMatching, tile_rows
from ray_atr.objectives.transport import log_plan, log_plan_across_ranks, matching_loss
from ray_atr.objectives.transport.across_ranks import solve_by_tiles
from ray_atr.objectives.transport.problem import SolvedPlan, marginal_of
from ray_atr.objectives.transport.solve import SolveOptions

FLOATS_HELD = 4.4
"""Most numbers that a worker holds for each entry of its rows of a shared plan (`benchmarks/bench_plan_rows.py`)."""


@dataclass(frozen=True, kw_only=True)
class LearningToMatch(PairLoss):
    """KL from the true matching to the balanced entropic plan.

    When: to repeat m-LTM, or to learn a metric with the towers. On ESC-50's clean pairs it costs recall (docs/results.md).
    Related: `PartialLearningToMatch` transports a part of the mass, `Contrastive` costs no transport problem.

    >>> import torch
    >>> from ray_atr.objectives.pairs import Comparison, LearningToMatch
    >>> u, v = torch.eye(4), torch.eye(4)  # four true pairs [N, D], each unlike the others
    >>> loss = LearningToMatch(metric="euclidean")
    >>> bool(loss(Comparison(u, v)).loss < loss(Comparison(u, v.roll(1, dims=0))).loss)
    True
    """

    name: ClassVar[str] = "learning_to_match"
    short_name: ClassVar[str] = "ltm"
    shared_from: ClassVar[int] = 4096
    epsilon: float = setting(0.05, "entropic regularisation, for costs in [0, 1]", above=0)
    metric: str = setting(
        "mahalanobis",
        "distance: mahalanobis (full M, as the paper says), diagonal (what the paper's released code computes) or factored "
        "(M = L L^T, no projection needed), which are learned; euclidean, which is not",
        choices=METRICS,
    )
    metric_rank: int | None = setting(None, "columns of the factor L; none: the embedding width", at_least=1)
    project_every: int = setting(
        1, "optimiser steps between projections of a full or diagonal M to the PSD cone", at_least=1
    )
    detach_maximum: bool = setting(False, "treat the maximum that the cost is divided by as a constant in the gradient")
    max_iterations: int = setting(2000, "cap on the solver's iterations", at_least=1)

    def learns(self) -> LearnedSettings:
        return LearnedSettings(metric=self.metric, metric_rank=self.metric_rank, project_every=self.project_every)

    def score(self, comparison: Comparison, learned: Learned) -> Terms:
        full, comparison = comparison, comparison.weighted_part()
        if comparison.size == 0:
            return Terms(0 * full.cross_similarity().sum(), {})
        match = self.match
        if self.is_shared(comparison):
            fits = Ranks.fits(comparison.size, FLOATS_HELD * comparison.u.element_size())
            match = self.match_own_rows if fits else self.match_tiles
        loss, scalars = match(comparison, learned)
        if comparison.sample_weight is not None:
            loss = loss * (comparison.sample_weight.sum() / full.size)
        return Terms(loss, scalars)

    def is_shared(self, comparison: Comparison) -> bool:
        """Whether workers share the plan's rows: from `shared_from` pairs on, unless `Ranks.share` states another number.

        Not if the comparison holds a matrix [N, N] anyway. A single worker computes in the same way, so that the result does
        not depend on the number of workers.
        """
        N, has_matrix = comparison.size, comparison.similarity is not None or comparison.gain is not None
        return 0 < Ranks.share_from(self.shared_from) <= N and Ranks.sharing().size <= N and not has_matrix

    def match(self, comparison: Comparison, learned: Learned) -> tuple[Tensor, dict[str, Tensor]]:
        """(KL of true matching and plan, scalars). A pair's term is weighted by the mean of its two direction weights."""
        cost = normalised_cost(comparison, self.metric, learned.metric, detach_maximum=self.detach_maximum)
        mass, about_mass = self.mass(cost.detach(), comparison)
        marginal = comparison.marginal()
        options = SolveOptions(rows=marginal, columns=marginal, max_iterations=self.max_iterations)
        if comparison.is_weighted or self.follows_plan:
            log_matrix, plan = log_plan(cost, self.epsilon, mass=mass, **options)
            target = comparison.true_matching(plan.matrix.sum(dim=1) if self.follows_plan else marginal)
            loss = (comparison.pair_weights() * divergences(target, log_matrix)).sum()
        else:
            is_plain = not comparison.has_positives and comparison.targets is None
            aimed = None if is_plain else comparison.true_matching(marginal)
            loss, plan = matching_loss(cost, self.epsilon, mass=mass, target=aimed, **options)
        return loss, {**plan_scalars(plan, own_mass(plan.log_matrix), mass), **about_mass}

    def match_own_rows(self, comparison: Comparison, learned: Learned) -> tuple[Tensor, dict[str, Tensor]]:
        """As `match`, by workers that each hold some rows of costs and plan. Each returns the loss of all.

        Every worker has all embeddings; values and gradients are summed over workers.
        """
        N, ranks = comparison.size, Ranks.sharing()
        own, rows = own_rows(comparison, ranks), ranks.own(N)
        metric = None if learned.metric is None else ranks.replicated(learned.metric)
        cost = normalised_cost(own, self.metric, metric, detach_maximum=self.detach_maximum, ranks=ranks)
        mass, about_mass = self.mass(cost.detach(), comparison)
        marginal = comparison.marginal()
        log_rows, plan = log_plan_across_ranks(
            cost, self.epsilon, N, ranks, mass=mass, rows=marginal, columns=marginal, max_iterations=self.max_iterations
        )
        aimed = ranks.joined(plan.matrix.sum(dim=1), N) if self.follows_plan else marginal
        own_pairs = log_rows[:, rows]
        if not comparison.has_positives and comparison.targets is None and not comparison.is_weighted:
            # Only the diagonal of the target is not 0: no [n, N] is made for it.
            a = (cost.new_full((N,), 1 / N) if aimed is None else aimed.to(cost))[rows]
            part = divergences(a, own_pairs.diagonal())
        else:
            part = own.pair_weights() * divergences(comparison.true_matching(aimed, rows), log_rows)
        scalars = plan_scalars(plan, ranks.sum(own_mass(own_pairs)), mass)
        return ranks.total(part.sum()), {**scalars, **about_mass}

    def match_tiles(self, comparison: Comparison, learned: Learned) -> tuple[Tensor, dict[str, Tensor]]:
        """As `match_own_rows`, with rows that would not fit: they are computed again, a tile at a time, for each use."""
        N, ranks = comparison.size, Ranks.sharing()
        own, rows = own_rows(comparison, ranks), ranks.own(N)
        weighed = weighed_rows(own, self.metric, None if learned.metric is None else ranks.replicated(learned.metric))
        detached = WeighedRows(*(part.detach() for part in weighed))
        costs = Costs(detached, rows, ranks, _floor(own.u), tile_rows(N, own.u))
        mass, about_mass = self.mass(own.u.detach(), comparison)
        marginal = comparison.marginal()
        a = marginal_of(marginal, N, detached.left)
        plan = solve_by_tiles(
            costs, costs.tiles, costs.least, own.u.new_ones(()), self.epsilon, a, a, ranks,
            mass=mass, max_iterations=self.max_iterations,
        )  # fmt: skip
        aimed = ranks.joined(plan.row_sums(), N) if self.follows_plan else marginal
        target = TrueMatching(comparison, aimed, rows, costs)
        marginals = (a[rows], a) if mass == 1 else None
        by_rows, by_columns = Matching.apply(*weighed, costs, target, plan, marginals, self.detach_maximum)
        row_weight, column_weight = own.row_weight, own.column_weight
        part = 0.5 * (by_rows if row_weight is None else row_weight * by_rows).sum()
        part = part + 0.5 * (by_columns if column_weight is None else column_weight * by_columns).sum()
        log_pairs = costs.of_pairs / -self.epsilon + plan.row_potential + plan.column_potential[rows]
        return ranks.total(part), {**plan_scalars(plan, ranks.sum(log_pairs.exp().sum()), mass), **about_mass}

    @property
    def follows_plan(self) -> bool:
        """Whether the target has the plan's own row mass."""
        return False

    def mass(self, cost: Tensor, comparison: Comparison) -> tuple[float, dict[str, Tensor]]:
        """(the share of the mass to transport, scalars about it to log); here all of it."""
        return 1.0, {}


def own_rows(comparison: Comparison, ranks: Ranks) -> Comparison:
    """The comparison of this worker's own u [n, D] with all v [N, D]."""
    own = ranks.own(comparison.size)
    row_weight, column_weight = comparison.row_weight, comparison.column_weight
    return dataclasses.replace(
        comparison,
        u=ranks.replicated(comparison.u)[own],
        v=ranks.replicated(comparison.v),
        row_weight=None if row_weight is None else ranks.replicated(row_weight)[own],
        column_weight=None if column_weight is None else ranks.replicated(column_weight),
    )


def divergences(target: Tensor, log_matrix: Tensor) -> Tensor:
    """The terms of KL(target || plan) of all pairs: KL is their sum."""
    return torch.xlogy(target, target) - target * log_matrix


def own_mass(log_matrix: Tensor) -> Tensor:
    """The mass on the true pairs, from log pi [N, N], or from the square [n, n] of a worker's own rows and their columns."""
    return log_matrix.detach().diagonal().exp().sum()


def plan_scalars(plan: SolvedPlan, on_pairs: Tensor, mass: float) -> dict[str, Tensor]:
    """Scalars to log: residual, iterations, mass, and the mass on the true pairs (`on_pairs`)."""
    return {
        "transport_residual": on_pairs.new_tensor(plan.residual),
        "transport_iterations": on_pairs.new_tensor(float(plan.iterations)),
        "transport_is_capped": on_pairs.new_tensor(0.0 if plan.is_converged else 1.0),
        "transport_mass": on_pairs.new_tensor(mass),
        "mass_on_true_pairs": on_pairs,
    }


def normalised_cost(
    comparison: Comparison,
    kind: str,
    metric: Tensor | None,
    *,
    detach_maximum: bool = False,
    ranks: Ranks | None = None,
) -> Tensor:
    """Distances [N, N] divided by their maximum, in [0, 1]; with `ranks`, one process's rows by the maximum of all."""
    return _NormalisedRoot.apply(squared_distance(comparison, kind, metric), detach_maximum, ranks or Ranks())


@torch.no_grad()
def detached_cost(comparison: Comparison) -> Tensor:
    """Euclidean `normalised_cost` [N, N] without gradient, for an estimate. Losses of similarities reuse its product u v^T."""
    cost, _ = _normalised_root(2 - 2 * comparison.cross_similarity(keep=True), Ranks())
    return cost


def squared_distance(comparison: Comparison, kind: str, metric: Tensor | None) -> Tensor:
    """Squared distances [N, N], in which rounding may leave values slightly below 0; the metric is as `Learned` has it.

    A gain scales the cross term, c^2 = |u|^2 + |v|^2 - 2 G <u, v>. A precomputed similarity takes the place of <u, v> under
    the Euclidean metric, and is refused by the others.
    """
    if kind != "euclidean" and comparison.similarity is not None:
        raise refuse("objective.pair.metric", kind, "euclidean if a precomputed similarity replaces embeddings")
    if kind == "euclidean":
        if comparison.similarity is None and comparison.gain is None:
            # Scaling [N, D] and adding in place saves a second [N, N], here and in the backward pass.
            return (comparison.u @ (-2 * comparison.v).T).add_(2)
        return 2 - 2 * comparison.cross_similarity()
    return squared_distances(weighed_rows(comparison, kind, metric), comparison.gain)


def weighed_rows(comparison: Comparison, kind: str, metric: Tensor | None) -> WeighedRows:
    """The two sides under the metric, as `Learned` has it; unit norms for the Euclidean one."""
    u, v = comparison.u, comparison.v
    if kind == "euclidean":
        return WeighedRows(u, v, u.new_ones(len(u)), v.new_ones(len(v)))
    D = u.shape[1]
    if metric is None:
        raise refuse("metric", None, f"{shape_of(kind, D)} (or choose objective.pair.metric=euclidean)")
    learned = Mahalanobis(kind, metric)
    learned.check_width(D, "metric")
    return learned.weigh(u, v)


def _floor(squared: Tensor) -> float:
    """The rounding error of squared distances."""
    return 4 * torch.finfo(squared.dtype).eps


def _normalised_root(squared: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """(sqrt(squared) / its maximum over all ranks' rows, the maximum)."""
    cost = squared.clamp(min=_floor(squared)).sqrt_()
    maximum = ranks.maximum(cost.max())
    return cost.div_(maximum), maximum


class _NormalisedRoot(torch.autograd.Function):
    """sqrt(squared) / max(sqrt(squared)), which saves one matrix for the gradient, where autograd's own graph would save three.

    The square root's slope at 0 is infinite: below the rounding error of the squared distance the gradient is 0.
    """

    @staticmethod
    def forward(ctx: Any, squared: Tensor, detach_maximum: bool, ranks: Ranks) -> Tensor:
        cost, maximum = _normalised_root(squared, ranks)
        ctx.save_for_backward(cost, maximum)
        ctx.detach_maximum, ctx.least, ctx.ranks = detach_maximum, _floor(squared) ** 0.5, ranks
        return cost

    @staticmethod
    @first_only
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None]:
        cost, maximum = ctx.saved_tensors
        gradient = outer.clone(memory_format=torch.contiguous_format)
        if not ctx.detach_maximum:
            # The maximum's share, spread evenly over ties as torch does.
            largest = (cost.flatten() == 1).nonzero().squeeze(1)
            ties = ctx.ranks.sum(cost.new_tensor(float(len(largest))))
            gradient.view(-1)[largest] -= ctx.ranks.sum(torch.dot(outer.flatten(), cost.flatten())) / ties
        gradient.div_(cost).div_(2 * maximum.square())
        return gradient.masked_fill_(cost <= ctx.least / maximum, 0.0), None, None
