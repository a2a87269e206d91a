"""The papers' comparisons: sweeps with different grids. Imports no heavy library, since the help needs only this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ray_atr.cli.experiment_options import NOISE_HELP, ComparisonSweep
from ray_atr.cli.parse import option
from ray_atr.cli.tuned_methods import CorrespondenceSweep
from ray_atr.common.override import combinations
from ray_atr.common.settings import refuse, require_known

if TYPE_CHECKING:
    from ray_atr.sweep.space import Point


@dataclass(frozen=True)
class NoiseSweep(ComparisonSweep):
    """Compare training objectives under noisy correspondence: objective x noise ratio x seed."""

    name: ClassVar[str] = "noise"

    objectives: tuple[str, ...] = option(
        ("triplet", "contrastive", "m_ltm", "m_ltm_pot"), "objectives to compare, by preset name", "NAME ..."
    )
    noise: tuple[float, ...] = option((0.0, 0.2, 0.4, 0.6), NOISE_HELP, "RATIO ...")
    seeds: tuple[int, ...] = option((0, 1, 2), "seeds, averaged in the report", "INT ...")

    def points(self) -> list[Point]:
        return list(combinations({"objective": self.objectives, "data.noise.ratio": self.noise}))


@dataclass(frozen=True)
class ObjectivesSweep(ComparisonSweep):
    """Compare language schemes and pair losses: scheme x pair loss x noise ratio x seed."""

    name: ClassVar[str] = "objectives"

    schemes: tuple[str, ...] = option(("english", "ml_clap", "cacl", "kcl"), "language schemes", "NAME ...")
    pairs: tuple[str, ...] = option(
        ("contrastive", "m_ltm", "m_ltm_pot"),
        "pair losses: by a preset's name (m_ltm), or by their own names with their defaults",
        "NAME ...",
    )
    noise: tuple[float, ...] = option((0.0,), NOISE_HELP, "RATIO ...")

    def points(self) -> list[Point]:
        from ray_atr.objectives import PAIRS, PRESETS

        for name in self.pairs:
            require_known("--pairs", name, list(dict.fromkeys((*PAIRS, *PRESETS))))
        choice = {name: "objective.pair" if name in PAIRS else "objective" for name in self.pairs}
        return [
            {"objective.scheme": scheme, choice[pair]: pair, "data.noise.ratio": ratio}
            for scheme in self.schemes
            for pair in self.pairs
            for ratio in self.noise
        ]


@dataclass(frozen=True)
class TransportSweep(ComparisonSweep):
    """Compare partial transport's settings: transport mass x epsilon x noise ratio x seed (m-LTM with partial transport)."""

    name: ClassVar[str] = "transport"

    masses: tuple[str, ...] = option(
        ("0.6", "0.8", "0.95", "1.0", "auto"), "transport masses, each in (0, 1], or auto", "MASS ..."
    )
    epsilons: tuple[float, ...] = option((0.05,), "entropic regularisations, each > 0", "EPSILON ...")
    noise: tuple[float, ...] = option((0.2, 0.4, 0.6), NOISE_HELP, "RATIO ...")

    def points(self) -> list[Point]:
        masses: list[float | str] = []
        for mass in self.masses:
            try:
                masses.append(float(mass))
            except ValueError:
                # `auto`, or a word that the check of the setting refuses.
                masses.append(mass)
        pair = {"objective.pair.transport_mass": masses, "objective.pair.epsilon": self.epsilons}
        return list(combinations({"objective": ["m_ltm_pot"], **pair, "data.noise.ratio": self.noise}))


KNOWLEDGE = "objective.knowledge"
NOTHING: Point = {KNOWLEDGE: "none"}


def ask(**settings: Any) -> Point:
    """ASK with some of its settings changed."""
    return {KNOWLEDGE: "ask", **{f"{KNOWLEDGE}.{name}": value for name, value in settings.items()}}


TABLES: dict[str, list[Point]] = {
    # Without knowledge, with all of ASK, and without each of its parts.
    "ablation": [
        *(NOTHING, ask()),
        *(ask(**{part: False}) for part in ("fine", "coarse", "injection", "transport", "reliability")),
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
    # The paper's Figure 5: the baseline, a base that is never refreshed, and the periods.
    "refresh": [NOTHING, *(ask(refresh_every_epochs=epochs) for epochs in (0, 1, 2, 5, 10))],
    "lag": [ask(refresh_lag=steps) for steps in (0, 4, 8, 16)],
}


@dataclass(frozen=True)
class KnowledgeSweep(ComparisonSweep):
    """Compare a knowledge base's settings: a table or figure of ASK's paper, or a grid against training without one."""

    name: ClassVar[str] = "knowledge"

    table: str | None = option(None, "a table of ASK's paper: " + ", ".join(TABLES), "NAME", "none")
    figure: str | None = option(None, "one setting over its range: " + ", ".join(FIGURES), "NAME", "none")
    neighbours: tuple[int, ...] = option((1, 5, 20), "entries that a query retrieves (K)", "INT ...")
    injection_ratio: tuple[float, ...] = option((0.2, 0.5), "lambda, each in [0, 1]", "RATIO ...")
    prototypes: tuple[int, ...] = option((), "clusters of the coarse base", "INT ...", "not varied")
    refresh_every_epochs: tuple[int, ...] = option((), "refresh periods; 0: never", "INT ...", "not varied")
    refresh_lag: tuple[int, ...] = option((), "steps from publishing to searching; 0: wait", "INT ...", "not varied")
    lambda_fine: tuple[float, ...] = option((), "modulation by single clips", "WEIGHT ...", "not varied")
    lambda_coarse: tuple[float, ...] = option((), "modulation by prototypes", "WEIGHT ...", "not varied")

    def points(self) -> list[Point]:
        if self.table is not None and self.figure is not None:
            raise refuse("--figure", self.figure, "only without --table")
        for name, chosen, named in (("--table", self.table, TABLES), ("--figure", self.figure, FIGURES)):
            if chosen is not None:
                require_known(name, chosen, named)
                for setting, values in self.given_options.items():
                    if setting not in ("table", "figure"):
                        typed = f"--{setting.replace('_', '-')}"
                        raise refuse(typed, values, f"nothing with {name}, which has its own values")
                return named[chosen]
        # All options except the table and the figure are settings of ASK.
        values_by_name = {name: values for name, values in self.own_options.items() if values}
        return [NOTHING, *(ask(**point) for point in combinations(values_by_name))]

    def continuing(self, earlier: Mapping[str, Any]) -> KnowledgeSweep:
        """With the earlier one's grid, if this one has a grid too."""
        if self.table is not None or self.figure is not None:
            return self
        return super().continuing({**earlier, "table": None, "figure": None})


COMPARISONS: dict[str, type[ComparisonSweep]] = {
    sweep.name: sweep for sweep in (NoiseSweep, ObjectivesSweep, TransportSweep, KnowledgeSweep, CorrespondenceSweep)
}
"""Name on the command line -> comparison."""
