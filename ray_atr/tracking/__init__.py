"""Results to MLflow: a parent run for the sweep, a child run for each trial, from the controller only.

MLflow takes seconds to import, and a run may do without it, so the functions that talk to a store import it.
"""

from ray_atr.tracking.fetch import fetch_experiment
from ray_atr.tracking.store import Store, loading_lines, mlflow_command, store_of
from ray_atr.tracking.tracker import Tracker, upload

__all__ = ["Store", "Tracker", "fetch_experiment", "loading_lines", "mlflow_command", "store_of", "upload"]
