"""What a race of a sweep's points spares, and whether it keeps the best: finished run folders raced again, and simulated ones.

    python benchmarks/bench_race.py                                     # simulated sweeps alone
    python benchmarks/bench_race.py runs/sweep_correspondence-... ...   # these finished run folders too
    python benchmarks/bench_race.py --tunings runs/...-tuning ...       # tunings of methods too, ended early by ASHA

A replay draws from one cell of a run folder (points on the same data) some of its points, some of its seeds in an order, and as
many validation clips as there are, with replacement; the race gets one seed after the other. The winner of all draws'
trials is the point with the highest mean over the seeds. Nothing is trained.

A replay of tunings draws an order of each method's trials and ends them as ASHA does when they run one after the other; no
command does so (docs/results.md says why). A method's score is its best trial's on validation, as the mean over the folders.

In a simulated sweep the best points are known. A clip is found if its difficulty, how the point finds it, the seed's shift and
luck sum to more than the point's threshold. Seeds deviate more or less than a race assumes before they have shown it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rows import compared
from scipy import stats

from ray_atr.cli.comparisons import COMPARISONS
from ray_atr.sweep.race import ASSUMED_DEVIATION, LEVEL, Scores, run_race
from ray_atr.sweep.racing import Entrant, rival_groups
from ray_atr.sweep.schedulers import ASHA, make_scheduler, stops
from ray_atr.sweep.search import FixedPoints, Goal, SweepPlan
from ray_atr.training.run_folder import RunFolder, TrialFolder

FEWEST_POINTS = 4
GOAL = 0.5
PREFIX = "sweep_"
OF_CLIP, OF_POINT, LUCK = 1.0, 0.5, 0.6
"""Standard deviations of a clip's difficulty, of how a point finds the clip in every seed, and of one seed's luck with it."""


@dataclass
class Outcomes:
    """Of several races: the shares of the epochs that were used, and whether each kept the winner."""

    used: list[float] = field(default_factory=list)
    kept: list[bool] = field(default_factory=list)

    def add(self, points: Mapping[str, Scores], seeds: int, whole: int, best: Sequence[str]) -> None:
        """Race the points; `whole` others are run with all seeds besides."""
        dropped = run_race(points, range(seeds))
        trials = sum(dropped[name].seeds if name in dropped else seeds for name in points) + whole * seeds
        self.used.append(trials / (seeds * (len(points) + whole)))
        self.kept.append(not any(name in dropped for name in best))


def replays(cell: Sequence[Entrant], seeds: int, whole: int, number: int, *, all_points: bool) -> Outcomes:
    """Races of the cell's points, or of some of them, by draws of its seeds and clips."""
    found, generator = Outcomes(), np.random.default_rng(0)
    scores = {one.name: one.scores for one in cell}
    known = sorted(set.intersection(*(set(of_seeds) for of_seeds in scores.values())))
    for _ in range(number):
        count = len(scores) if all_points else int(generator.integers(FEWEST_POINTS, len(scores) + 1))
        names = generator.choice(list(scores), count, replace=False).tolist()
        order = generator.choice(known, seeds, replace=False).tolist()
        clips = len(scores[names[0]][order[0]])
        drawn = generator.integers(0, clips, clips)
        points = {name: {place: scores[name][seed][drawn] for place, seed in enumerate(order)} for name in names}
        means = {name: float(np.mean([one.mean() for one in of_seeds.values()])) for name, of_seeds in points.items()}
        found.add(points, seeds, whole, [max(means, key=means.__getitem__)])
    return found


def of_run(folder: str, number: int) -> None:
    """Print what replays of a run folder's cells give."""
    run = RunFolder.open(folder)
    comparison = COMPARISONS.get(str(run.info["name"]).removeprefix(PREFIX))
    references = [] if comparison is None else comparison().references()
    for cell in rival_groups(run, run.trials(), None):
        of_point = {one.name: next(iter(one.trials.values())).describe()["overrides"] for one in cell}
        raced = [
            one
            for one in cell
            if not any(
                all(of_point[one.name].get(path) == value for path, value in held.items()) for held in references
            )
        ]
        finished = min(len(one.scores) for one in cell)
        for seeds in [number for number in (3, 6) if number <= finished]:
            for what, points, whole in (("all", cell, 0), ("methods", raced, len(cell) - len(raced))):
                for all_points in (True, False):
                    found = replays(points, seeds, whole, number, all_points=all_points)
                    some = "of these" if all_points else f"some, {FEWEST_POINTS} or more"
                    label = f"{run.path.name}, {what} ({len(points)} {some}{f', {whole} whole' if whole else ''}), {seeds} seeds"
                    print(
                        f"{label}: {np.mean(found.used):.2f} of the epochs "
                        f"({np.quantile(found.used, 0.05):.2f} to {np.quantile(found.used, 0.95):.2f}), "
                        f"the winner kept in {sum(found.kept)} of {number}"
                    )
                    if all_points:
                        compared(f"epochs, {label}", float(np.mean(found.used)), 1.0, "all", unit="", at_most=GOAL)
                    lost = number - sum(found.kept)
                    compared(f"lost winners, {label}", lost, 0.05 * number, "5%", unit="", at_most=1.0)


def choice_by_asha(run: RunFolder, goal: Goal, trials: Sequence[TrialFolder]) -> tuple[float, int]:
    """(the score of the best trial among those that ASHA lets finish in this order, the epochs of all trials)."""
    scheduler = make_scheduler(
        SweepPlan(FixedPoints([], (goal,)), scheduler=ASHA), run.experiment.train.epochs, run, []
    )
    scores, epochs = [], 0
    for trial in trials:
        rows = trial.epochs()
        ended = next((place for place, row in enumerate(rows, 1) if stops(scheduler, trial.trial_id, row)), None)
        epochs += ended or len(rows)
        if ended is None:
            scores.append(goal.score(trial))
    return max(scores), epochs


def of_tunings(folders: Sequence[str], number: int) -> None:
    """Print what ASHA spares in tunings of methods, and what its choices lose on validation."""
    runs: dict[str, list[RunFolder]] = {}
    for folder in folders:
        for file in sorted(Path(folder).glob("*/sweep.json")):
            runs.setdefault(file.parent.name, []).append(RunFolder.open(file.parent))
    generator = np.random.default_rng(0)
    best, found, all_epochs, epochs = {}, {}, 0, np.zeros(number)
    for method, of_method in runs.items():
        scores = np.empty((len(of_method), number))
        whole = []
        for place, run in enumerate(of_method):
            goal = Goal(run.experiment.evaluation.select_by)
            trials = list(run.trials())
            whole.append(max(map(goal.score, trials)))
            all_epochs += sum(len(trial.epochs()) for trial in trials)
            for replay in range(number):
                order = [trials[one] for one in generator.permutation(len(trials))]
                scores[place, replay], used = choice_by_asha(run, goal, order)
                epochs[replay] += used
        best[method], found[method] = float(np.mean(whole)), scores.mean(axis=0)
        print(f"{method}: {best[method]:.3f} on validation, {found[method].mean():.3f} by ASHA ({len(whole)} tunings)")
    names = [method for method in best if method != "oracle"]
    winner = max(names, key=best.__getitem__)
    kept = sum(max(names, key=lambda name: found[name][replay]) == winner for replay in range(number))
    shares = epochs / all_epochs
    print(
        f"tunings: {shares.mean():.2f} of the epochs ({np.quantile(shares, 0.05):.2f} to {np.quantile(shares, 0.95):.2f}); "
        f"{winner} is the best but the oracle, also by ASHA in {kept} of {number}"
    )


def simulated(
    gaps: Sequence[float], seeds: int, clips: int, deviation: float, generator: np.random.Generator
) -> dict[str, Scores]:
    """Hits of each point and seed; `gaps` is how much lower than .5 a point's expected R@1 is, `deviation` the standard
    deviation over seeds of the difference of two points on endless clips.
    """
    spread = math.sqrt(OF_CLIP**2 + OF_POINT**2 + LUCK**2)
    draw, points = generator.standard_normal, len(gaps)
    shift = deviation / math.sqrt(2) / stats.norm.pdf(0) * spread
    latent = OF_CLIP * draw(clips) + OF_POINT * draw((points, 1, clips)) + shift * draw((points, seeds, 1))
    hits: NDArray[np.bool_] = (
        latent + LUCK * draw((points, seeds, clips)) > spread * stats.norm.ppf(0.5 + np.array(gaps))[:, None, None]
    )
    return {str(number): dict(enumerate(of_point.astype(np.float64))) for number, of_point in enumerate(hits)}


def simulation(number: int) -> None:
    """Print how often races of simulated sweeps drop a best point, and what they spare."""
    worst = 0.0
    for points, seeds, clips in ((8, 3, 149), (8, 6, 400), (3, 4, 149)):
        for deviation in (ASSUMED_DEVIATION * times for times in (0.2, 0.4, 0.6, 1.0, 1.6)):
            cases = {
                "all equal": [0.0] * points,
                "two best, others .15 behind": [0.0, 0.0, *[0.15] * (points - 2)],
                "a ladder to .3 behind": list(np.linspace(0, 0.3, points)),
            }
            for case, gaps in cases.items():
                generator, found = np.random.default_rng(1), Outcomes()
                best = [str(place) for place, gap in enumerate(gaps) if gap == 0]
                for _ in range(number):
                    found.add(simulated(gaps, seeds, clips, deviation, generator), seeds, 0, best)
                wrong = number - sum(found.kept)
                high = stats.beta.ppf(0.975, wrong + 1, max(number - wrong, 1e-9))
                print(
                    f"{points} points, {seeds} seeds, {clips} clips, seeds deviate by {deviation:.3f}, {case}: a best point "
                    f"is dropped in {wrong / number:.3f} (up to {high:.3f}), {np.mean(found.used):.2f} of the epochs"
                )
                if deviation <= ASSUMED_DEVIATION:
                    worst = max(worst, wrong / number)
    compared(
        "races that drop a best point, simulated, seeds as assumed or less, at worst",
        worst,
        LEVEL,
        "stated",
        unit="",
        at_most=1.0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", help="finished run folders to race again")
    parser.add_argument("--tunings", nargs="*", default=[], help="folders of finished tunings, OUT-tuning")
    parser.add_argument("--replays", type=int, default=100, help="of each cell, number of seeds and choice of points")
    parser.add_argument("--races", type=int, default=400, help="simulated sweeps of each kind; 0: none")
    options = parser.parse_args()
    for folder in options.runs:
        of_run(folder, options.replays)
    if options.tunings:
        of_tunings(options.tunings, options.replays)
    if options.races:
        simulation(options.races)


if __name__ == "__main__":
    main()
