"""Entropic optimal transport, balanced and partial: `solve(cost, epsilon, mass=...) -> Plan`, and exact gradients.

plan = solve(cost, epsilon=0.05, mass=0.8)       # plan.matrix, plan.residual, plan.iterations, plan.is_converged
plans = solve_batch(costs, epsilon=0.05)        # costs [P, N, M]: many small problems at once
loss, plan = matching_loss(cost, epsilon=0.05)   # KL(I/N || plan), differentiable in the cost
"""

from ray_atr.transport.batched import solve_batch
from ray_atr.transport.gradient import log_plan, matching_loss
from ray_atr.transport.plan import Plan
from ray_atr.transport.problem import Problem
from ray_atr.transport.solve import solve

__all__ = ["Plan", "Problem", "log_plan", "matching_loss", "solve", "solve_batch"]
