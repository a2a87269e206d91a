"""Many trials of one experiment on Ray Tune: as many at once as fit, each resumable, none repeated.

The run folder is authoritative: a trial with a result in it is finished, whatever Tune's state is. Resuming a sweep is
therefore the same as starting it: trials without a result are run, each from its last checkpoint.

Ray Tune is imported by the functions that use it: it takes three seconds, and trials in this process do without it.
"""

from ray_atr.common.settings import by_name
from ray_atr.sweep.optuna_search import OptunaSearch as OptunaSearch
from ray_atr.sweep.recording import ConsoleProgress as ConsoleProgress
from ray_atr.sweep.recording import FirstEpoch as FirstEpoch
from ray_atr.sweep.run_trials import SweepResult as SweepResult
from ray_atr.sweep.run_trials import sweep as sweep
from ray_atr.sweep.schedulers import SCHEDULERS as SCHEDULERS
from ray_atr.sweep.search import FixedPoints as FixedPoints
from ray_atr.sweep.search import Goal as Goal
from ray_atr.sweep.search import GridSearch as GridSearch
from ray_atr.sweep.search import RandomSearch as RandomSearch
from ray_atr.sweep.search import SpaceSearch as SpaceSearch
from ray_atr.sweep.search import SweepPlan as SweepPlan
from ray_atr.training.listener import SweepListener as SweepListener

SEARCHES: dict[str, type[SpaceSearch]] = by_name((GridSearch, RandomSearch, OptunaSearch))
"""The searches by their name in --search."""
