"""`ray-atr sweep`: searches any space of settings; `ray-atr sweep noise` and similar run a paper's comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Annotated, Any, Union

import tyro

from ray_atr.cli.comparisons import COMPARISONS
from ray_atr.cli.experiment_options import ComparisonSweep, SpaceOptions
from ray_atr.cli.parse import heartbeat, parse_with_settings
from ray_atr.common.settings import nearest, refuse

COMMAND_OF = {
    **{
        field.name: f"ray-atr sweep {sweep.name}" for sweep in reversed(COMPARISONS.values()) for field in fields(sweep)
    },
    **{field.name: "ray-atr sweep --space PATH=DIMENSION ..." for field in fields(SpaceOptions)},
}
"""Option -> a command that has it."""

SPACE = "space"
"""Name of a sweep of any space in shell completion; the word is optional."""

OPTIONS: Any = Union[
    (
        Annotated[SpaceOptions, tyro.conf.subcommand(SPACE)],
        *(Annotated[sweep, tyro.conf.subcommand(name)] for name, sweep in COMPARISONS.items()),
    )
]
"""Commands for shell completion."""


class SearchOptions(SpaceOptions):
    __doc__ = "Search any space of settings, or compare as in a paper:\n\n" + "\n".join(
        f"- ray-atr sweep {name}: {comparison.__doc__}" for name, comparison in COMPARISONS.items()
    )


def run(arguments: Sequence[str], program: str) -> None:
    if arguments and arguments[0] in COMPARISONS:
        compare(COMPARISONS[arguments[0]], arguments[1:], f"{program} {arguments[0]}")
        return
    if arguments and arguments[0] == SPACE:
        arguments = arguments[1:]
    elif arguments and not arguments[0].startswith("-"):
        names = [SPACE, *COMPARISONS]
        allowed = f"one of {', '.join(names)}, or an option such as --space PATH=DIMENSION"
        raise refuse(program, arguments[0], allowed, nearest(arguments[0], names))
    options, settings = parse_with_settings(SearchOptions, arguments, program, COMMAND_OF)
    options.require_data(settings)
    with heartbeat("starting", write=options.write) as echo:
        from ray_atr.cli.running import plan_search, run_plan, varied_by

        varied = varied_by(options)
        run_plan("sweep", options, settings, partial(plan_search, options), varied, echo=echo)


def compare(comparison: type[ComparisonSweep], arguments: Sequence[str], program: str) -> None:
    """Run a comparison's points; `--resume` alone continues with those of the run folder."""
    options, settings = parse_with_settings(comparison, arguments, program, COMMAND_OF)
    options.require_data(settings)
    with heartbeat("starting", write=options.write) as echo:
        from ray_atr.cli.running import plan_points, run_plan, values_of

        options = options.before(settings)
        varied = values_of(options)
        name = f"sweep_{options.name}"
        run_plan(name, options, settings, lambda _, resumed: plan_points(options, resumed), varied, echo=echo)
