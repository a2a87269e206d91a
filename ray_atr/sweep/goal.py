"""What a search looks for, and the points that no other beats in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ray_atr.metrics.epoch_report import GROUPS
from ray_atr.metrics.metric import MEAN, UNSEEN
from ray_atr.run_folder import TrialFolder
from ray_atr.settings import refuse


@dataclass(frozen=True)
class Goal:
    """A metric, and which way is better: `text_to_audio/eng/recall_at_1` up, `seconds/train` down."""

    metric: str
    is_maximised: bool = True

    def score(self, trial: TrialFolder) -> float:
        """What a trial has reached: at its best validation epoch if it has finished, else in its last recorded epoch.

        Validation decides, never the test split. Raises ValueError if the trial did not measure the metric.
        """
        rows = trial.epochs()
        if trial.is_finished:
            best = trial.result()["val"]
            if self.metric in best:
                return float(best[self.metric])
        for row in reversed(rows):
            if self.metric in row:
                return float(row[self.metric])
        validated = {metric for row in rows for metric in row.validation if metric.language not in (MEAN, UNSEEN)}
        others = {f"{group}/{name}" for row in rows for group in GROUPS for name in row.group(group)}
        measured = [*sorted(validated), *sorted(others)]
        raise refuse("--maximize/--minimize", self.metric, "what a validation measures: " + ", ".join(measured[:40]))


def pareto_front(gains: Sequence[Sequence[float]]) -> list[int]:
    """Indices of the points that no other is at least as good as in every gain and better in one, best first gain first.

    Points that are equal in every gain are all kept. Optuna's `best_trials` does this for a study's own trials only.
    """

    def is_beaten(mine: Sequence[float]) -> bool:
        return any(other != mine and all(a >= b for a, b in zip(other, mine, strict=True)) for other in rows)

    rows = [tuple(gain) for gain in gains]
    kept = [index for index, row in enumerate(rows) if not is_beaten(row)]
    return sorted(kept, key=lambda index: rows[index], reverse=True)
