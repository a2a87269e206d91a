"""The reports of training after an epoch and at its end.

They are dicts of text and numbers, for Ray, JSON and checkpoints. Only this module splits their names into parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_atr.metrics.metric import DIRECTIONS, Metric
from ray_atr.metrics.unit_scores import unpacked_scores
from ray_atr.metrics.zero_shot import CLASSIFICATION

GROUPS = ("train", "seconds", "memory", "knowledge")
"""Prefixes of numbers that are no evaluation: the loss and its parts, times, device memory, the knowledge base."""
TASKS = (*DIRECTIONS, CLASSIFICATION, "embedding")
"""Prefixes of an evaluation's metrics."""
TEST = "test/"
UNIT_SCORES = "unit_scores"
TIMED_PARTS = ("data", "forward", "gather", "loss", "backward", "optimiser", "validation", "checkpoint")
"""The parts in `seconds/...`: waiting for a batch, the towers, gathering, the loss, the backward pass, and what follows."""


def is_measured(name: str) -> bool:
    """Whether a name is that of an evaluation's metric, and not of one of `GROUPS`."""
    return name.partition("/")[0] not in GROUPS


class EpochReport(dict[str, Any]):
    """One epoch: `epoch`, `step`, `best_epoch`, `time`, numbers by group (`train/loss`), and the validation's metrics."""

    @classmethod
    def from_groups(cls, *, epoch: int, step: int, **groups: Mapping[str, float]) -> EpochReport:
        """The report with these numbers; `groups` are keyed as `GROUPS`, and their names lack the group."""
        report = cls(epoch=epoch, step=step)
        for group, values in groups.items():
            report = report.with_group(group, values)
        return report

    def with_group(self, group: str, values: Mapping[str, float]) -> EpochReport:
        """The report with the numbers of one of `GROUPS`; their names lack the group."""
        assert group in GROUPS, f"a group besides {GROUPS}"
        return EpochReport(self, **{f"{group}/{name}": value for name, value in values.items()})

    def validated(self, metrics: Mapping[Metric, float], best_epoch: int, scores: str = "") -> EpochReport:
        """The report with the validation's metrics, the best epoch so far, and the packed scores of each clip in the metric that
        chooses it (`metrics.unit_scores`), if there are any.
        """
        units = {UNIT_SCORES: scores} if scores else {}
        return EpochReport(
            self, best_epoch=best_epoch, **units, **{str(name): value for name, value in metrics.items()}
        )

    @property
    def unit_scores(self) -> NDArray[np.float64] | None:
        """The score of each validation clip in the metric that chooses the best epoch, [U]; None if not stored."""
        packed = self.get(UNIT_SCORES)
        return None if packed is None else unpacked_scores(str(packed))

    @property
    def epoch(self) -> int:
        """Its number, 1 for the first."""
        return int(self["epoch"])

    @property
    def validation(self) -> dict[Metric, float]:
        """The validation's metrics; empty after an epoch without a validation."""
        return {Metric.parse(name): value for name, value in self.items() if name.startswith(TASKS)}

    def group(self, name: str) -> dict[str, float]:
        """The numbers of one of `GROUPS`, by names without the group."""
        return {key.removeprefix(f"{name}/"): value for key, value in self.items() if key.startswith(f"{name}/")}

    @property
    def numbers(self) -> dict[str, float]:
        """All numbers but the counters; the validation's metrics have the prefix `validation/`."""
        measured = self.validation
        return {
            f"validation/{name}" if name in measured else name: value
            for name, value in self.items()
            if "/" in name and isinstance(value, int | float) and not isinstance(value, bool)
        }


class FinalReport(dict[str, Any]):
    """The end of a training: `epoch`, `best_epoch`, the clean share, and the test split's metrics at the best epoch."""

    @classmethod
    def from_groups(
        cls,
        *,
        epoch: int,
        best_epoch: int,
        clean_share: float,
        test: Mapping[Metric, float],
        out_of_patience: bool = False,
    ) -> FinalReport:
        """The report of these numbers."""
        numbers = {"train/clean_share": clean_share, **{TEST + name: value for name, value in test.items()}}
        return cls(is_final=True, epoch=epoch, best_epoch=best_epoch, out_of_patience=out_of_patience, **numbers)

    @property
    def out_of_patience(self) -> bool:
        """Whether `train.patience` ended it before its last epoch."""
        return bool(self.get("out_of_patience"))

    @property
    def clean_share(self) -> float | None:
        """The share of true pairs among the training pairs."""
        return self.get("train/clean_share")

    @property
    def test(self) -> dict[Metric, float]:
        """The metrics of the test split; empty without one."""
        return {Metric.parse(key.removeprefix(TEST)): value for key, value in self.items() if key.startswith(TEST)}
