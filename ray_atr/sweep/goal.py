"""What a search looks for."""

from __future__ import annotations

from dataclasses import dataclass

from ray_atr.metrics.epoch_report import GROUPS
from ray_atr.metrics.metric import MEAN, UNSEEN
from ray_atr.run_folder import TrialFolder, read_json
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
            best = read_json(trial.folder / "result.json")["val"]
            if self.metric in best:
                return float(best[self.metric])
        for row in reversed(rows):
            if self.metric in row:
                return float(row[self.metric])
        validated = {metric for row in rows for metric in row.validation if metric.language not in (MEAN, UNSEEN)}
        others = {f"{group}/{name}" for row in rows for group in GROUPS for name in row.group(group)}
        measured = [*sorted(validated), *sorted(others)]
        raise refuse("--maximize/--minimize", self.metric, "what a validation measures: " + ", ".join(measured[:40]))
