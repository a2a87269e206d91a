"""What a sweep runs, beside its experiment."""

from __future__ import annotations

from dataclasses import dataclass

from ray_atr.run_folder import TrialFolder, read_json
from ray_atr.settings import refuse
from ray_atr.sweep.search import Search


@dataclass(frozen=True)
class Goal:
    """A metric, and which way is better: `text_to_audio/eng/recall_at_1` up, `seconds/train` down."""

    metric: str
    is_maximised: bool = True

    def score(self, trial: TrialFolder) -> float:
        """What a trial has reached: at its best validation epoch if it has finished, else in its last recorded epoch.

        Validation decides, never the test split. Raises ValueError where the trial did not measure the metric.
        """
        rows = trial.epochs()
        if trial.is_finished:
            best = read_json(trial.folder / "result.json")["val"]
            if self.metric in best:
                return float(best[self.metric])
        for row in reversed(rows):
            if self.metric in row:
                return float(row[self.metric])
        measured = sorted({name for row in rows for name in row if "/" in name and "/mean/" not in name})
        raise refuse("--maximize/--minimize", self.metric, "what a validation measures: " + ", ".join(measured[:40]))


@dataclass(frozen=True)
class Plan:
    """The points to run, how often each, for how long, and what is looked for."""

    search: Search
    seeds: tuple[int, ...] = ()
    """Each point is run once a seed; without any, once, with the seed that it names or the experiment's."""
    num_points: int | None = None
    """How many points to run in all, those in the run folder included; None: as many as the search has."""
    hours: float | None = None
    """After that time nothing starts any more, and what runs is stopped where a resumed sweep takes it up."""
    goals: tuple[Goal, ...] = ()
    """What a search maximises or minimises, and a scheduler (by the first) compares."""
    scheduler: str = "none"
    """One of schedulers.SCHEDULERS; population-based training changes the settings of the search's space."""
