"""Compare a knowledge base's settings (ASK): neighbours x injection x prototypes x refresh x modulation x seed.

    uv run python pipelines/sweep_knowledge.py                       # neighbours x injection ratio, beside no knowledge
    uv run python pipelines/sweep_knowledge.py --table ablation      # ASK without each of its parts (Fu et al. 2025, Table 2)
    uv run python pipelines/sweep_knowledge.py --figure neighbours   # one setting alone (its sensitivity figures, 5 and 7)
    uv run python pipelines/sweep_knowledge.py --figure refresh --objective kcl
    uv run python pipelines/sweep_knowledge.py --objective.knowledge ask --objective.knowledge.refresh write_through

Scheme and pair loss are those of the experiment; --objective NAME or --objective.scheme NAME change them. Settings are given
as --dotted.path VALUE; --help-settings lists them. The paper's own points of the table and figures could not be read: those
here are each part off once, and each setting around its default.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from ray_atr.cli import parse, run_script
from ray_atr.recipes import RECIPES
from ray_atr.settings import nearest, refuse
from ray_atr.sweep_script import SweepOptions

KNOWLEDGE = "objective.knowledge"
Point = dict[str, Any]


def ask(**settings: Any) -> Point:
    """ASK with some of its settings changed."""
    return {KNOWLEDGE: "ask", **{f"{KNOWLEDGE}.{name}": value for name, value in settings.items()}}


NOTHING: Point = {KNOWLEDGE: "none"}

TABLES: dict[str, list[Point]] = {
    # One row without knowledge, one with all of ASK, one without each part.
    "ablation": [
        NOTHING,
        ask(),
        ask(fine=False),
        ask(coarse=False),
        ask(injection=False),
        ask(transport=False),
        ask(reliability=False),
        ask(refresh_every_epochs=0),
    ],
    # The paper's Appendix E.
    "baselines": [NOTHING, {KNOWLEDGE: "moco"}, {KNOWLEDGE: "nnclr"}, {KNOWLEDGE: "ance"}, ask()],
}

FIGURES: dict[str, list[Point]] = {
    "neighbours": [ask(neighbours=count) for count in (1, 2, 5, 10, 20)],
    "injection": [ask(injection_ratio=ratio) for ratio in (0.0, 0.1, 0.2, 0.4, 0.6, 0.8)],
    "prototypes": [ask(prototypes=count) for count in (16, 64, 256, 512)],
    "modulation": [ask(lambda_fine=weight, lambda_coarse=weight) for weight in (0.0, 0.1, 0.2, 0.3, 0.4)],
    "refresh": [ask(refresh_every_epochs=epochs) for epochs in (1, 2, 5, 10)],
    "lag": [ask(refresh_lag=steps) for steps in (0, 4, 8, 16)],
}


@dataclass(frozen=True)
class Options(SweepOptions):
    """Compare a knowledge base's settings."""

    table: Annotated[str | None, tyro.conf.arg(help="a table of ASK's paper: " + ", ".join(TABLES))] = None
    figure: Annotated[str | None, tyro.conf.arg(help="one setting over its range: " + ", ".join(FIGURES))] = None
    neighbours: Annotated[tuple[int, ...], tyro.conf.arg(help="entries that a query retrieves (K)")] = (1, 5, 20)
    injection_ratio: Annotated[tuple[float, ...], tyro.conf.arg(help="lambda, each in [0, 1]")] = (0.2, 0.5)
    prototypes: Annotated[tuple[int, ...], tyro.conf.arg(help="clusters of the coarse base")] = ()
    refresh_every_epochs: Annotated[tuple[int, ...], tyro.conf.arg(help="refresh periods; 0: never")] = ()
    refresh_lag: Annotated[tuple[int, ...], tyro.conf.arg(help="steps from publishing to searching; 0: wait")] = ()
    lambda_fine: Annotated[tuple[float, ...], tyro.conf.arg(help="modulation by single clips")] = ()
    lambda_coarse: Annotated[tuple[float, ...], tyro.conf.arg(help="modulation by prototypes")] = ()

    def points(self) -> list[Point]:
        """What is compared, the seeds left out. ValueError for an unknown table or figure."""
        if self.table is not None and self.figure is not None:
            raise refuse("--figure", self.figure, "only without --table")
        if self.table is not None:
            return _chosen("--table", self.table, TABLES)
        if self.figure is not None:
            return _chosen("--figure", self.figure, FIGURES)
        return [NOTHING, *grid({name: getattr(self, name) for name in GRID})]


GRID = (
    "neighbours",
    "injection_ratio",
    "prototypes",
    "refresh_every_epochs",
    "refresh_lag",
    "lambda_fine",
    "lambda_coarse",
)


def grid(values: dict[str, Sequence[Any]]) -> list[Point]:
    """Every combination of the settings that have values."""
    names = [name for name, chosen in values.items() if chosen]
    return [
        ask(**dict(zip(names, combination, strict=True)))
        for combination in itertools.product(*(values[name] for name in names))
    ]


def _chosen(option: str, name: str, known: dict[str, list[Point]]) -> list[Point]:
    if name not in known:
        raise refuse(option, name, "one of " + ", ".join(known), nearest(name, known))
    return known[name]


def main() -> None:
    options, settings = parse(Options, tree=RECIPES["quickstart"]())
    points = [{**point, "seed": seed} for point in options.points() for seed in options.seeds]
    options.run("sweep_knowledge", settings, points)


if __name__ == "__main__":
    run_script(main)
