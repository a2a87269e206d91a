"""Many trials of one experiment on Ray Tune: as many at once as fit, each resumable, none repeated.

The run folder is the truth: a trial that has its result there is finished, whatever Tune remembers. Resuming a sweep
is therefore the same as starting it: what the folder holds is known, and the rest is run, each trial from its last checkpoint.

Ray Tune is imported by the functions that use it: it takes three seconds, and trials in this process do without it.
"""

from ray_atr.sweep.optuna_search import OptunaSearch
from ray_atr.sweep.recording import ConsoleProgress, FirstEpoch, SweepListener
from ray_atr.sweep.run_trials import SweepResult, sweep
from ray_atr.sweep.schedulers import SCHEDULERS
from ray_atr.sweep.search import FixedPoints, Goal, GridSearch, RandomSearch, SpaceSearch, SweepPlan

SEARCHES: dict[str, type[SpaceSearch]] = {search.name: search for search in (GridSearch, RandomSearch, OptunaSearch)}
"""The searches of a space by the name that --search takes."""

__all__ = [
    "SCHEDULERS",
    "SEARCHES",
    "ConsoleProgress",
    "FirstEpoch",
    "FixedPoints",
    "Goal",
    "GridSearch",
    "OptunaSearch",
    "RandomSearch",
    "SpaceSearch",
    "SweepListener",
    "SweepPlan",
    "SweepResult",
    "sweep",
]
