"""The comparisons that `ray-atr sweep` knows by name, and which command has which option."""

from __future__ import annotations

from dataclasses import fields

from ray_atr.cli.experiment_options import ComparisonSweep, SpaceOptions
from ray_atr.common.settings import wing

COMPARISONS: dict[str, type[ComparisonSweep]] = wing("papers.sweeps").COMPARISONS
"""A comparison is a grid of its own and a report; those of the papers are registered by their wing."""

COMMAND_OF = {
    **{one.name: f"ray-atr sweep {sweep.name}" for sweep in reversed(COMPARISONS.values()) for one in fields(sweep)},
    **{one.name: "ray-atr sweep --space PATH=DIMENSION ..." for one in fields(SpaceOptions)},
}
"""Option -> a command that has it."""
