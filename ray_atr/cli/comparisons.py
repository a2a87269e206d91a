"""The papers' comparisons: sweeps that differ only in their grid."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar

from ray_atr.cli.experiment_options import SweepOptions
from ray_atr.cli.parse import option
from ray_atr.settings import nearest, refuse

Point = dict[str, Any]
NOISE_HELP = "noise ratios, each in [0, 1)"


@dataclass(frozen=True)
class ComparisonSweep(SweepOptions, ABC):
    """A sweep over a grid of its own."""

    name: ClassVar[str]

    @abstractmethod
    def points(self) -> list[Point]:
        """What is compared, the seeds left out. ValueError for an unknown table or figure."""

    def before(self, settings: Mapping[str, str]) -> ComparisonSweep:
        """What is done before the points are made, given the command line's settings; the comparison that it leads to."""
        return self

    def require_values(self) -> None:
        """ValueError for an option that is given without a value: nothing would be compared."""
        for one in fields(self):
            if isinstance(one.default, tuple) and one.default and not getattr(self, one.name):
                raise refuse(f"--{one.name.replace('_', '-')}", "nothing", "one value or more")

    @property
    def varies_anything(self) -> bool:
        """Whether an option of the comparison's own, or the seeds, is another than its default."""
        shared = {one.name for one in fields(SweepOptions)} - {"seeds"}
        return any(getattr(self, one.name) != one.default for one in fields(self) if one.name not in shared)


def grid(values: Mapping[str, Sequence[Any]]) -> list[Point]:
    """Every combination of the values of the paths, the last changing fastest."""
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


@dataclass(frozen=True)
class NoiseSweep(ComparisonSweep):
    """Compare training objectives under noisy correspondence: objective x noise ratio x seed."""

    name: ClassVar[str] = "noise"

    objectives: Annotated[tuple[str, ...], option("objectives to compare, by preset name", metavar="NAME ...")] = (
        "triplet",
        "contrastive",
        "m_ltm",
        "m_ltm_pot",
    )
    noise: Annotated[tuple[float, ...], option(NOISE_HELP, metavar="RATIO ...")] = (0.0, 0.2, 0.4, 0.6)
    seeds: Annotated[tuple[int, ...], option("seeds, averaged in the report", metavar="INT ...")] = (0, 1, 2)

    def points(self) -> list[Point]:
        return grid({"objective": self.objectives, "data.noise.ratio": [float(ratio) for ratio in self.noise]})


@dataclass(frozen=True)
class ObjectivesSweep(ComparisonSweep):
    """Compare language schemes and pair losses: scheme x pair loss x noise ratio x seed."""

    name: ClassVar[str] = "objectives"

    schemes: Annotated[tuple[str, ...], option("language schemes", metavar="NAME ...")] = (
        "english",
        "ml_clap",
        "cacl",
        "kcl",
    )
    pairs: Annotated[
        tuple[str, ...],
        option("pair losses: those of a preset (m_ltm), or by their own names with their defaults", metavar="NAME ..."),
    ] = ("contrastive", "m_ltm", "m_ltm_pot")
    noise: Annotated[tuple[float, ...], option(NOISE_HELP, metavar="RATIO ...")] = (0.0,)

    def points(self) -> list[Point]:
        from ray_atr.objectives import PAIRS, PRESETS

        unknown = next((name for name in self.pairs if name not in {*PAIRS, *PRESETS}), None)
        if unknown is not None:
            known = list(dict.fromkeys((*PAIRS, *PRESETS)))
            raise refuse("--pairs", unknown, "one of " + ", ".join(known), nearest(unknown, known))
        choice = {name: "objective.pair" if name in PAIRS else "objective" for name in self.pairs}
        return [
            {"objective.scheme": scheme, choice[pair]: pair, "data.noise.ratio": float(ratio)}
            for scheme in self.schemes
            for pair in self.pairs
            for ratio in self.noise
        ]


@dataclass(frozen=True)
class TransportSweep(ComparisonSweep):
    """Compare partial transport's settings: transport mass x epsilon x noise ratio x seed (m-LTM with partial transport)."""

    name: ClassVar[str] = "transport"

    masses: Annotated[tuple[str, ...], option("transport masses, each in (0, 1], or auto", metavar="MASS ...")] = (
        "0.6",
        "0.8",
        "0.95",
        "1.0",
        "auto",
    )
    epsilons: Annotated[tuple[float, ...], option("entropic regularisations, each > 0", metavar="EPSILON ...")] = (
        0.05,
    )
    noise: Annotated[tuple[float, ...], option(NOISE_HELP, metavar="RATIO ...")] = (0.2, 0.4, 0.6)

    def points(self) -> list[Point]:
        return grid(
            {
                "objective": ["m_ltm_pot"],
                "objective.pair.transport_mass": [float(mass) if mass != "auto" else mass for mass in self.masses],
                "objective.pair.epsilon": self.epsilons,
                "data.noise.ratio": [float(ratio) for ratio in self.noise],
            }
        )


KNOWLEDGE = "objective.knowledge"
NOTHING: Point = {KNOWLEDGE: "none"}


def ask(**settings: Any) -> Point:
    """ASK with some of its settings changed."""
    return {KNOWLEDGE: "ask", **{f"{KNOWLEDGE}.{name}": value for name, value in settings.items()}}


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
    # The paper's Figure 5 has the baseline and a base that is never refreshed besides the periods.
    "refresh": [NOTHING, *(ask(refresh_every_epochs=epochs) for epochs in (0, 1, 2, 5, 10))],
    "lag": [ask(refresh_lag=steps) for steps in (0, 4, 8, 16)],
}

SWITCHED = (
    "neighbours",
    "injection_ratio",
    "prototypes",
    "refresh_every_epochs",
    "refresh_lag",
    "lambda_fine",
    "lambda_coarse",
)


@dataclass(frozen=True)
class KnowledgeSweep(ComparisonSweep):
    """Compare a knowledge base's settings: a table or figure of ASK's paper, or a grid against training without one."""

    name: ClassVar[str] = "knowledge"

    table: Annotated[
        str | None, option("a table of ASK's paper: " + ", ".join(TABLES), metavar="NAME", unset="none")
    ] = None
    figure: Annotated[
        str | None, option("one setting over its range: " + ", ".join(FIGURES), metavar="NAME", unset="none")
    ] = None
    neighbours: Annotated[tuple[int, ...], option("entries that a query retrieves (K)", metavar="INT ...")] = (1, 5, 20)
    injection_ratio: Annotated[tuple[float, ...], option("lambda, each in [0, 1]", metavar="RATIO ...")] = (0.2, 0.5)
    prototypes: Annotated[tuple[int, ...], option("clusters of the coarse base", metavar="INT ...")] = ()
    refresh_every_epochs: Annotated[tuple[int, ...], option("refresh periods; 0: never", metavar="INT ...")] = ()
    refresh_lag: Annotated[
        tuple[int, ...], option("steps from publishing to searching; 0: wait", metavar="INT ...")
    ] = ()
    lambda_fine: Annotated[tuple[float, ...], option("modulation by single clips", metavar="WEIGHT ...")] = ()
    lambda_coarse: Annotated[tuple[float, ...], option("modulation by prototypes", metavar="WEIGHT ...")] = ()

    def points(self) -> list[Point]:
        if self.table is not None and self.figure is not None:
            raise refuse("--figure", self.figure, "only without --table")
        if self.table is not None:
            return _chosen("--table", self.table, TABLES)
        if self.figure is not None:
            return _chosen("--figure", self.figure, FIGURES)
        given = {name: getattr(self, name) for name in SWITCHED if getattr(self, name)}
        return [NOTHING, *(ask(**point) for point in grid(given))]


def _chosen(name: str, choice: str, known: Mapping[str, list[Point]]) -> list[Point]:
    if choice not in known:
        raise refuse(name, choice, "one of " + ", ".join(known), nearest(choice, known))
    return known[choice]
