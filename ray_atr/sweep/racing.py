"""The race of a sweep's points, read from the run folder and written to it: `race.py` decides, this looks and records.

A point is raced against those of the same data and of the same values of a space's grids, each over the seeds of the sweep, by
the validation metric that chooses the best epoch. Evidence is in `trial.json` of every trial of a dropped point, so that a
resumed sweep drops the same points, and none of them is given a seed that is added later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from ray_atr.common.progress import Say
from ray_atr.common.settings import counted
from ray_atr.common.space import Space, point_key
from ray_atr.sweep.race import FEWEST_CLIPS, Evidence, Scores, run_race
from ray_atr.sweep.recording import SweepListener
from ray_atr.sweep.schedulers import rivals_key
from ray_atr.sweep.search import SweepPlan
from ray_atr.sweep.trial_queue import ENDED, TrialQueue, status_of
from ray_atr.training.run_folder import DROPPED, FAILED, STOPPED, RunFolder, TrialFolder, trial_name

SEEDS_OF_RACE = "race_seeds"


@dataclass(frozen=True)
class Entrant:
    """A point of a race with its trials by seed."""

    name: str
    trials: dict[int, TrialFolder]

    def scores(self) -> dict[int, NDArray[np.float64]]:
        """Of each finished seed, what each clip adds to the metric at the best epoch, [U]."""
        found = {seed: scores_of(trial) for seed, trial in self.trials.items() if trial.is_finished}
        return {seed: scores for seed, scores in found.items() if scores is not None}

    def evidence(self) -> Evidence | None:
        """Why it was dropped, as its trials have it."""
        for trial in self.trials.values():
            if (kept := trial.describe().get(DROPPED)) is not None:
                return Evidence.read(kept, f"{trial.folder / 'trial.json'}: {DROPPED}")
        return None


def scores_of(trial: TrialFolder) -> NDArray[np.float64] | None:
    """What each validation clip adds to the metric of a finished trial at its best epoch, [U]; None if that was not kept."""
    best = trial.result()["best_epoch"]
    return next((row.unit_scores for row in trial.epochs() if row.epoch == best), None)


def cells_of(run: RunFolder, trials: Iterable[TrialFolder], space: Space | None) -> list[list[Entrant]]:
    """The points that are raced against each other, by their trials; a trial that names no seed has the run's."""
    cells: dict[str, dict[str, Entrant]] = {}
    base = int(run.settings.get("seed", 0))
    for trial in trials:
        overrides = trial.describe()["overrides"]
        point = {path: value for path, value in overrides.items() if path != "seed"}
        cell, key = cells.setdefault(rivals_key(point, space), {}), point_key(point)
        if key not in cell:
            is_taken = any(one.name == trial_name(point) for one in cell.values())
            cell[key] = Entrant(key if is_taken else trial_name(point), {})
        cell[key].trials[int(overrides.get("seed", base))] = trial
    return [list(cell.values()) for cell in cells.values()]


class Racing(SweepListener):
    """Looks at the points of a sweep whenever a trial finishes, and drops those that cannot be the best."""

    def __init__(
        self, run: RunFolder, plan: SweepPlan, queue: TrialQueue, say: Say, listeners: Sequence[SweepListener] = ()
    ) -> None:
        self.run, self.queue, self.say, self.listeners = run, queue, say, listeners
        # Points that a comparison is read against are in no race.
        raced = [trial for trial in queue.trials if not plan.is_reference(trial.describe()["overrides"])]
        self.cells = cells_of(run, raced, plan.space)
        self.seeds = list(run.info.get(SEEDS_OF_RACE, ()))
        new = dict.fromkeys(seed for cell in self.cells for one in cell for seed in one.trials)
        # Those of the first start first: a look compares the same seeds however many are added.
        self.seeds += [seed for seed in new if seed not in self.seeds]
        run.update_info(**{SEEDS_OF_RACE: self.seeds})
        queue.order_by(self.place_of)
        self._has_said_few = False
        self.dropped: set[str] = set()
        """Trials of the points that were dropped, by their ids."""

    def place_of(self, trial: TrialFolder) -> int:
        """Every point gets its first seed before any gets its second; what is not raced comes when its seed comes."""
        seed = trial.describe()["overrides"].get("seed")
        return self.seeds.index(seed) if seed in self.seeds else len(self.seeds)

    def is_dropped(self, trial_id: str) -> bool:
        """Whether the trial's point was dropped."""
        return trial_id in self.dropped

    def trial_finished(self, trial: TrialFolder) -> None:
        self.look()

    def trial_failed(self, trial: TrialFolder, error: str) -> None:
        # The others no longer wait for it.
        self.look()

    def look(self) -> None:
        """Drop what the finished trials allow to drop, and what was dropped before."""
        for cell in self.cells:
            before = {one.name: evidence for one in cell if (evidence := one.evidence()) is not None}
            scores = {one.name: one.scores() for one in cell}
            self._say_if_few(scores.values())
            failed = [one.name for one in cell if any(status_of(trial) == FAILED for trial in one.trials.values())]
            found = run_race(scores, self.seeds, before=before, out=failed)
            for one in cell:
                if one.name in found:
                    self._drop(one, found[one.name], is_new=one.name not in before)

    def _say_if_few(self, scores: Iterable[Scores]) -> None:
        sizes = [len(of_seed) for of_point in scores for of_seed in of_point.values()]
        if sizes and min(sizes) < FEWEST_CLIPS and not self._has_said_few:
            self._has_said_few = True
            self.say(f"race: no point is dropped by {min(sizes)} validation clips; it takes {FEWEST_CLIPS} or more")

    def _drop(self, one: Entrant, evidence: Evidence, *, is_new: bool) -> None:
        # Before a trial is ended the others have the evidence: after a kill between the two it is found.
        for trial in one.trials.values():
            if DROPPED not in trial.describe():
                trial.update(**{DROPPED: asdict(evidence)})
        if is_new:
            self.say(f"race: {one.name} is dropped: {in_words(evidence)}")
        self.dropped |= {trial.trial_id for trial in one.trials.values()}
        for trial in self.queue.take_waiting(self.dropped):
            if status_of(trial) not in ENDED:
                trial.update(status=STOPPED)
                for listener in self.listeners:
                    listener.trial_stopped(trial)


def in_words(evidence: Evidence) -> str:
    """Evidence as a line says it."""
    return (
        f"{evidence.rival} is ahead by {100 * evidence.ahead:.1f} points on validation after "
        f"{counted(evidence.seeds, 'seed')}, by {100 * evidence.at_least:.1f} at least"
    )
