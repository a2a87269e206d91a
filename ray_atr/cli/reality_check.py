"""Who is a true pair: the reality check of correspondence, each method tuned with the same budget first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from ray_atr.cli.comparisons import NOISE_HELP, ComparisonSweep
from ray_atr.cli.parse import option
from ray_atr.recipes.methods import CORRESPONDENCE, METHODS, ON_ANY_DATA, PAIR
from ray_atr.settings import refuse, require_known
from ray_atr.space import Point, combinations
from ray_atr.storage import is_there, locate, read_json

TEMPERATURE = "objective.pair.temperature"
OWN: dict[str, dict[str, str]] = {
    "contrastive": {TEMPERATURE: "loguniform(0.03,0.2)"},
    "complementary": {TEMPERATURE: "loguniform(0.02,0.1)"},
    "triplet": {"objective.pair.margin": "loguniform(0.05,0.4)"},
    "learning_to_match": {"objective.pair.epsilon": "loguniform(0.02,0.3)"},
    "partial_learning_to_match": {"objective.pair.epsilon": "loguniform(0.02,0.3)"},
}
"""What is tuned of a pair loss, besides the rate."""


@dataclass(frozen=True)
class CorrespondenceSweep(ComparisonSweep):
    """Compare methods for wrong pairs: method x kind of noise x noise ratio x seed."""

    name: ClassVar[str] = "correspondence"

    methods: tuple[str, ...] = option(ON_ANY_DATA, "methods: " + ", ".join(METHODS), metavar="NAME ...")
    noise: tuple[float, ...] = option((0.0, 0.4, 0.6), NOISE_HELP, metavar="RATIO ...")
    kinds: tuple[str, ...] = option(("pair",), "kinds of noise", metavar="NAME ...")
    tune: int = option(0, "trials by which each method is tuned first, on validation, at a ratio that is not reported")
    tune_noise: float = option(0.5, "the noise ratio at which methods are tuned", metavar="RATIO")
    tuned: str | None = option(None, "settings by method, as an earlier --tune left them", metavar="FILE", unset="none")

    def known_methods(self) -> dict[str, Point]:
        """What is compared, by name. ValueError for an unknown one."""
        for method in self.methods:
            require_known("--methods", method, METHODS)
        return {method: METHODS[method] for method in self.methods}

    def points(self) -> list[Point]:
        chosen: Mapping[str, Point] = {} if self.tuned is None else read_json(locate(self.tuned))
        points = []
        for method, settings in self.known_methods().items():
            # No kind differs without noise, and without noise there is no truth to know.
            ratios = [float(ratio) for ratio in self.noise if ratio > 0 or method != "oracle"]
            for point in combinations({"data.noise.kind": self.kinds, "data.noise.ratio": ratios}):
                if point["data.noise.ratio"] > 0 or point["data.noise.kind"] == self.kinds[0]:
                    points.append({**settings, **chosen.get(method, {}), **point})
        return points

    def before(self, settings: Mapping[str, str]) -> CorrespondenceSweep:
        """The comparison with every method tuned, with --resume as they were tuned then; as it is without --tune."""
        if not self.tune or self.tuned is not None:
            return self
        if self.tune_noise in self.noise:
            raise refuse("--tune-noise", self.tune_noise, "a ratio that is not reported (--noise)")
        from ray_atr.cli.tuning import TUNED_FILE, tune_methods, tuning_folder

        if self.resume is not None:
            kept = tuning_folder(self.resume) / TUNED_FILE
            if not is_there(kept):
                raise refuse("--tune", self.tune, f"with --resume only if {kept} is there; give --tuned FILE instead")
            return replace(self, tuned=str(kept))
        methods = self.known_methods()
        spaces = {method: space_of(method) for method in methods}
        file = tune_methods(self, settings, methods, spaces, num_trials=self.tune, noise=self.tune_noise)
        return replace(self, tuned=str(file))


def space_of(method: str) -> dict[str, str]:
    """What is tuned of a method: the rate, the pair loss's own setting, and the length of the warm-up if it has one."""
    from ray_atr.objectives.correspondence import CORRESPONDENCES

    fixed: Mapping[str, Any] = METHODS[method]
    settings = {field.name for field in fields(CORRESPONDENCES[fixed[CORRESPONDENCE]])}
    return {
        "train.learning_rate": "loguniform(0.0002,0.005)",
        **OWN[fixed[PAIR]],
        **({f"{CORRESPONDENCE}.warmup_epochs": "randint(1,4)"} if "warmup_epochs" in settings else {}),
    }
