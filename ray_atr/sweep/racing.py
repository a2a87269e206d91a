"""The race of a sweep's points in its run folder: `race.py` decides, and this module reads scores and records decisions.

A point is raced against those of the same data and of the same values of a space's grids, each over the seeds of the sweep, by
the validation metric that chooses the best epoch. Evidence is in `trial.json` of every trial of a dropped point, so that a
resumed sweep drops the same points, and none of them is given a seed that is added later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from ray_atr.common.progress import Echo
from ray_atr.common.settings import counted
from ray_atr.sweep.race import FEWEST_CLIPS, run_race
from ray_atr.sweep.schedulers import rivals_key
from ray_atr.sweep.search import SweepPlan
from ray_atr.sweep.space import Space, point_key
from ray_atr.sweep.trial_queue import TrialQueue
from ray_atr.training.listener import SweepListener
from ray_atr.training.run_folder import DROPPED, FAILED, RaceEvidence, RunFolder, TrialFolder, trial_name

SEEDS_OF_RACE, SEEDS_GRANTED = "race_seeds", "granted_seeds"
"""Keys in sweep.json: the seeds in their order, and those that were added for spared trials."""


@dataclass
class Entrant:
    """A point of a race: its trials by seed, their scores, and the evidence against it."""

    name: str
    trials: dict[int, TrialFolder] = field(default_factory=dict)
    scores: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    """The clips' scores in the metric at the best epoch, [U], by finished seed."""
    evidence: RaceEvidence | None = None
    """The evidence by which it was dropped; None if it was not."""
    has_failed: bool = False

    def add(self, seed: int, trial: TrialFolder) -> None:
        """Add a trial, with its scores and evidence in the run folder. ValueError for damaged evidence."""
        self.trials[seed] = trial
        described = trial.describe()
        if DROPPED in described:
            self.evidence = RaceEvidence.read(described[DROPPED], f"{trial.folder / 'trial.json'}: {DROPPED}")
        self.has_failed |= described["status"] == FAILED
        self.read_scores(seed)

    def read_scores(self, seed: int) -> None:
        """Read the scores of a seed, if its trial has finished and stored them."""
        trial = self.trials[seed]
        if trial.is_finished and (scores := scores_of(trial)) is not None:
            self.scores[seed] = scores


def scores_of(trial: TrialFolder) -> NDArray[np.float64] | None:
    """The validation clips' scores in the metric of a finished trial at its best epoch, [U]; None if not stored."""
    best = trial.result()["best_epoch"]
    return next((row.unit_scores for row in trial.epochs() if row.epoch == best), None)


def rival_groups(run: RunFolder, trials: Iterable[TrialFolder], space: Space | None) -> list[list[Entrant]]:
    """The groups of points that race against each other; a trial without a seed of its own has the run's."""
    groups: dict[str, dict[str, Entrant]] = {}
    base = int(run.settings.get("seed", 0))
    for trial in trials:
        overrides = trial.describe()["overrides"]
        point = {path: value for path, value in overrides.items() if path != "seed"}
        group, key = groups.setdefault(rivals_key(point, space), {}), point_key(point)
        if key not in group:
            is_taken = any(entrant.name == trial_name(point) for entrant in group.values())
            group[key] = Entrant(key if is_taken else trial_name(point))
        group[key].add(int(overrides.get("seed", base)), trial)
    return [list(group.values()) for group in groups.values()]


class Racing(SweepListener):
    """Compares the points of a sweep whenever a trial finishes, and drops those that cannot be the best."""

    def __init__(
        self, run: RunFolder, plan: SweepPlan, queue: TrialQueue, echo: Echo, listeners: Sequence[SweepListener] = ()
    ) -> None:
        self.run, self.queue, self.echo, self.listeners = run, queue, echo, listeners
        # Reference points are in no race.
        raced = [trial for trial in queue.trials if not plan.is_reference(trial.describe()["overrides"])]
        self.groups = rival_groups(run, raced, plan.space)
        self.entrants = {
            trial.trial_id: (group, entrant, seed)
            for group in self.groups
            for entrant in group
            for seed, trial in entrant.trials.items()
        }
        self.seeds = list(run.info.get(SEEDS_OF_RACE, ()))
        new = dict.fromkeys(seed for group in self.groups for entrant in group for seed in entrant.trials)
        # The seeds of the first start come first, so that looks compare the same seeds when others are added.
        self.seeds += [seed for seed in new if seed not in self.seeds]
        run.update_info(**{SEEDS_OF_RACE: self.seeds})
        queue.order_by(self.turn_of)
        self._has_said_few = False
        self.dropped: set[str] = set()
        """Ids of the trials of dropped points. Tune's scheduler reads this set, so it is changed in place."""

    def turn_of(self, trial: TrialFolder) -> int:
        """The order of a trial: every point runs its first seed before any runs its second."""
        seed = trial.describe()["overrides"].get("seed")
        return self.seeds.index(seed) if seed in self.seeds else len(self.seeds)

    def trial_finished(self, trial: TrialFolder) -> None:
        if trial.trial_id in self.entrants:
            group, entrant, seed = self.entrants[trial.trial_id]
            entrant.read_scores(seed)
            self._look_at(group)

    def trial_failed(self, trial: TrialFolder, error: str) -> None:
        if trial.trial_id in self.entrants:
            # The other points no longer wait for its seed.
            group, entrant, _ = self.entrants[trial.trial_id]
            entrant.has_failed = True
            self._look_at(group)

    def look(self) -> None:
        """Drop the points that finished trials show not to be the best, and those that were dropped before."""
        for group in self.groups:
            self._look_at(group)

    def further_seeds(self) -> tuple[list[int], str]:
        """(further seeds of all points that are left, as many as the spared trials pay for; a line about them). No seeds if the
        spared trials do not pay for one more seed of all these points, or if no race has two points left.
        """
        granted = self.run.info.get(SEEDS_GRANTED, ())
        overrides = {trial.trial_id: trial.describe()["overrides"] for trial in self.queue.trials}
        num_planned = sum(changes.get("seed") not in granted for changes in overrides.values())
        spent = sum(trial.trial_id not in self.dropped or bool(trial.epochs()) for trial in self.queue.trials)
        remaining = [changes for trial_id, changes in overrides.items() if trial_id not in self.dropped]
        points_left = {
            point_key({path: value for path, value in changes.items() if path != "seed"}) for changes in remaining
        }
        is_open = any(sum(entrant.evidence is None for entrant in group) > 1 for group in self.groups)
        count = (num_planned - spent) // len(points_left) if points_left and is_open else 0
        message = (
            f"race: {counted(num_planned - spent, 'trial was', 'trials were')} spared, enough for "
            f"{counted(count, 'further seed')} of the {counted(len(points_left), 'point')} left"
        )
        return list(range(max(self.seeds) + 1, max(self.seeds) + 1 + count)), message

    def _look_at(self, group: Sequence[Entrant]) -> None:
        self._say_if_few(group)
        beaten = run_race(
            {entrant.name: entrant.scores for entrant in group},
            self.seeds,
            before={entrant.name: entrant.evidence for entrant in group if entrant.evidence is not None},
            out=[entrant.name for entrant in group if entrant.has_failed],
        )
        for entrant in group:
            if entrant.name in beaten:
                self._drop(entrant, beaten[entrant.name])

    def _say_if_few(self, group: Sequence[Entrant]) -> None:
        sizes = [len(of_seed) for entrant in group for of_seed in entrant.scores.values()]
        if sizes and min(sizes) < FEWEST_CLIPS and not self._has_said_few:
            self._has_said_few = True
            self.echo(f"race: no point is dropped by {min(sizes)} validation clips; it takes {FEWEST_CLIPS} or more")

    def _drop(self, entrant: Entrant, evidence: RaceEvidence) -> None:
        trials = {trial.trial_id: trial for trial in entrant.trials.values()}
        if self.dropped >= trials.keys():
            return
        # The evidence is written before any trial is ended, so that a kill in between does not lose it.
        for trial in trials.values():
            if DROPPED not in trial.describe():
                trial.update(**{DROPPED: asdict(evidence)})
        if entrant.evidence is None:
            self.echo(f"race: {entrant.name} is dropped: {in_words(evidence)}")
        entrant.evidence = evidence
        self.dropped.update(trials)
        for trial in self.queue.take_waiting(self.dropped):
            trial.stop()
            for listener in self.listeners:
                listener.trial_stopped(trial)


def in_words(evidence: RaceEvidence) -> str:
    """The evidence in words."""
    return (
        f"{evidence.rival} is ahead by {100 * evidence.ahead:.1f} points on validation after "
        f"{counted(evidence.seeds, 'seed')}, by {100 * evidence.at_least:.1f} at least"
    )
