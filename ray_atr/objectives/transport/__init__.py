"""Entropic optimal transport, balanced and partial: `solve(cost, epsilon, mass=...) -> TransportPlan`, and exact gradients.

Usage:

    plan = solve(cost, epsilon=0.05, mass=0.8)       # plan.matrix, plan.residual, plan.iterations, plan.is_converged
    loss, plan = matching_loss(cost, epsilon=0.05)   # KL(I/N || plan), differentiable in the cost
    ranks = Ranks.here()                             # a cost whose rows are on several processes (common.ranks)
    log_rows, plan = log_plan_across_ranks(own_rows, 0.05, N, ranks)
"""

from ray_atr.objectives.transport.across_ranks import log_plan_across_ranks as log_plan_across_ranks
from ray_atr.objectives.transport.problem import Problem as Problem
from ray_atr.objectives.transport.problem import TransportPlan as TransportPlan
from ray_atr.objectives.transport.solve import exact_plan as exact_plan
from ray_atr.objectives.transport.solve import log_plan as log_plan
from ray_atr.objectives.transport.solve import matching_loss as matching_loss
from ray_atr.objectives.transport.solve import solve as solve
