"""Results to MLflow: a parent run for the sweep, a child run for each trial, from the controller only.

MLflow takes seconds to import, and a run may do without it, so the functions that talk to a store import it.
"""

from ray_atr.sweep.tracking.fetch import fetch_experiment as fetch_experiment
from ray_atr.sweep.tracking.store import Store as Store
from ray_atr.sweep.tracking.store import loading_lines as loading_lines
from ray_atr.sweep.tracking.store import mlflow_command as mlflow_command
from ray_atr.sweep.tracking.store import store_of as store_of
from ray_atr.sweep.tracking.tracker import Tracker as Tracker
from ray_atr.sweep.tracking.tracker import upload as upload
