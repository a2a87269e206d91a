"""The options of commands that run experiments: one, a search, and the papers' comparisons, sweeps that differ in their
grid. Nothing heavy is imported here: help reads this alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from ray_atr.cli.parse import option
from ray_atr.recipes import RECIPES
from ray_atr.settings import refuse, require_known
from ray_atr.space import Point, combinations

NOISE_HELP = "noise ratios, each in [0, 1)"


@dataclass(frozen=True)
class ExperimentOptions:
    """Which experiment, and where its run folder is."""

    recipe: str | None = option(
        None,
        "experiment to start from: " + ", ".join(RECIPES),
        "NAME",
        "quickstart; with a --data.source of your own from_scratch",
    )
    config: str | None = option(
        None,
        "settings on top of the recipe: a YAML or JSON file, such as a run folder's experiment.json",
        "FILE",
        "none",
    )
    out: str | None = option(None, "run folder to make, or a URL such as s3://...", "FOLDER", "runs/<command>-<time>")
    resume: str | None = option(None, "continue this run folder; what is finished is kept", "FOLDER", "a new run")


@dataclass(frozen=True)
class SweepOptions(ExperimentOptions):
    """The options that every sweep has besides what it varies."""

    seeds: tuple[int, ...] = option((0,), "seeds, averaged in the report", "INT ...")
    concurrency: int | None = option(None, "trials at a time", "INT", "as many as fit")
    hours: float | None = option(
        None, "stop after this many hours; --resume continues what is unfinished", "HOURS", "no limit"
    )
    retry_failed: bool = option(False, "with --resume: run failed trials again")
    same_code: bool = option(False, "with --resume: refuse to continue if the code has changed")


@dataclass(frozen=True)
class SpaceOptions(SweepOptions):
    """Search any space of settings."""

    space: tuple[str, ...] = option(
        (),
        "PATH=grid(VALUE,...), choice(VALUE,...), uniform(LOW,HIGH), loguniform(LOW,HIGH), "
        "quniform(LOW,HIGH,STEP) or randint(LOW,HIGH), ends included; a grid is run at every value",
        "PATH=DIMENSION ...",
        "nothing varies",
    )
    search: str | None = option(None, "grid, random, optuna (TPE), or one that you registered", "NAME", "grid")
    trials: int | None = option(
        None,
        "points to run in all, each once per seed; with --resume, a larger number adds points",
        "INT",
        "every point of a grid",
    )
    maximize: tuple[str, ...] = option((), "validation metrics to raise", "METRIC ...", "evaluation.select_by")
    minimize: tuple[str, ...] = option((), "metrics to lower, e.g. seconds/train", "METRIC ...", "none")
    scheduler: str | None = option(None, "none or asha", "NAME", "none")
    search_seed: int | None = option(None, "seed of what the search draws", "INT", "0")
    warm_start: str | None = option(
        None, "run folder of an earlier sweep, from whose finished points optuna learns", "FOLDER", "none"
    )


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
    def own(self) -> dict[str, Any]:
        """The options that other sweeps do not have."""
        shared = {one.name for one in fields(SweepOptions)}
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in shared}

    @property
    def varies_anything(self) -> bool:
        """Whether an option of the comparison's own, or the seeds, is another than its default."""
        deciding = {**self.own, "seeds": self.seeds}
        return any(deciding[one.name] != one.default for one in fields(self) if one.name in deciding)


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
        masses = [float(mass) if mass != "auto" else mass for mass in self.masses]
        pair = {"objective.pair.transport_mass": masses, "objective.pair.epsilon": self.epsilons}
        return list(combinations({"objective": ["m_ltm_pot"], **pair, "data.noise.ratio": self.noise}))


KNOWLEDGE = "objective.knowledge"
NOTHING: Point = {KNOWLEDGE: "none"}


def ask(**settings: Any) -> Point:
    """ASK with some of its settings changed."""
    return {KNOWLEDGE: "ask", **{f"{KNOWLEDGE}.{name}": value for name, value in settings.items()}}


TABLES: dict[str, list[Point]] = {
    # One row without knowledge, one with all of ASK, one without each part.
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
    # The paper's Figure 5 has the baseline and a base that is never refreshed besides the periods.
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
        for name, chosen, known in (("--table", self.table, TABLES), ("--figure", self.figure, FIGURES)):
            if chosen is not None:
                require_known(name, chosen, known)
                return known[chosen]
        # All but the table and the figure are settings of ASK.
        given = {name: values for name, values in self.own.items() if values}
        return [NOTHING, *(ask(**point) for point in combinations(given))]


OF_PAPERS: tuple[type[ComparisonSweep], ...] = (NoiseSweep, ObjectivesSweep, TransportSweep, KnowledgeSweep)
COMMAND_OF = {
    **{one.name: f"ray-atr sweep {sweep.name}" for sweep in reversed(OF_PAPERS) for one in fields(sweep)},
    **{one.name: "ray-atr sweep --space PATH=DIMENSION ..." for one in fields(SpaceOptions)},
}
"""Option -> a command that has it."""
