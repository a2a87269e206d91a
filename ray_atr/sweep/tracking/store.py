"""MLflow's store: the server in MLFLOW_TRACKING_URI, else one SQLite file next to the run folders."""

from __future__ import annotations

import logging
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from ray_atr.common.redaction import redact
from ray_atr.common.runtime import home, is_a_clone
from ray_atr.common.storage import Location, atomic_file, is_local, locate

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

ADDRESS = "MLFLOW_TRACKING_URI"
"""Environment variable that names a server."""
DATABASE = "mlflow.db"
ARTIFACTS = "mlartifacts"
PORT = 5000
TRAINING = {"mlflow.experimentKind": "custom_model_development"}

# By default MLflow reports its use to its makers, prints two lines for each run that ends, and a bar for each file.
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
# A sweep must not wait for a server that cannot be reached: by default MLflow's client tries for many minutes.
BRIEF = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}
# An explicit upload or download should wait a minute for a busy server.
PATIENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "60"}

SWEEP_TAG = "ray_atr.sweep"
TRIAL_TAG = "ray_atr.trial"
COMMAND_TAG = "command"
OVERRIDES_TAG = "ray_atr.overrides"
FORMAT_TAG = "ray_atr.format"
EPOCHS_TAG = "ray_atr.epochs_sent"
"""Tag with the last epoch whose metrics are in MLflow; sent together with them."""
ERROR_TAG = "error"
STOPPED_TAG = "stopped_early"
"""Tag of a trial that a scheduler stopped: MLflow has the same status for it as for a killed one."""


@dataclass(frozen=True)
class Store:
    """A tracking store: its URI, and the location of its artifacts (None: the server's)."""

    uri: str
    artifacts: Path | None

    def __str__(self) -> str:
        """The URI without user and password."""
        return redact(self.uri)

    @property
    def is_server(self) -> bool:
        return self.uri.startswith(("http://", "https://", "databricks"))

    def connect(self, *, is_patient: bool = False) -> MlflowClient:
        """A client; makes and migrates the SQLite file first, one process at a time. ConnectionError if it cannot be opened.

        The number of retries and the time limits that the environment sets are kept; else they are low unless `is_patient`.
        """
        for name, value in {**QUIET, **(PATIENT if is_patient else BRIEF)}.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        if self.is_server or self.artifacts is None:
            return MlflowClient(tracking_uri=self.uri)
        # MLflow logs every table that it creates, and a traceback of each error, which the tracker reports in one line.
        for name, level in (("mlflow.store.db.utils", logging.CRITICAL), ("alembic", logging.WARNING)):
            logging.getLogger(name).setLevel(level)
        self.artifacts.parent.mkdir(parents=True, exist_ok=True)
        file = self.artifacts.parent / DATABASE
        # Two processes that first use the file at once break its migration, and a kill leaves some of its tables: MLflow would
        # never open it again.
        with FileLock(file.with_name(f".{DATABASE}.lock")):
            if self.uri == _uri(file) and not file.exists():
                with atomic_file(file) as aside:
                    _open(_uri(aside.name))
            return _open(self.uri)

    def experiment_id(self, client: MlflowClient, name: str) -> str:
        """The id of the MLflow experiment of this name, made if there is none."""
        from mlflow.exceptions import MlflowException

        existing = client.get_experiment_by_name(name)
        if existing is not None:
            if existing.lifecycle_stage != "active":
                client.restore_experiment(existing.experiment_id)
            if not TRAINING.items() <= existing.tags.items():
                # An experiment of another program or an older version lacks the tags: its page would open in the other mode.
                for key, value in TRAINING.items():
                    client.set_experiment_tag(existing.experiment_id, key, value)
            return str(existing.experiment_id)
        location = self.artifacts.as_uri() if self.artifacts is not None else None
        try:
            # Without the tag MLflow's page opens in its mode for language-model applications, not for training runs.
            return client.create_experiment(name, artifact_location=location, tags=TRAINING)
        except MlflowException:
            # Another sweep may have created it meanwhile.
            existing = client.get_experiment_by_name(name)
            if existing is None:
                raise
            return str(existing.experiment_id)


def all_runs(client: MlflowClient, experiment_id: str, wanted: str = "") -> list[Run]:
    """All runs of an MLflow experiment, which MLflow returns a thousand at a time; `wanted` filters them."""
    page = client.search_runs([experiment_id], wanted, max_results=1000)
    runs = list(page)
    while page.token:
        page = client.search_runs([experiment_id], wanted, max_results=1000, page_token=page.token)
        runs += page
    return runs


def brief(error: Exception) -> str:
    """MLflow's error text without secrets and SQL, on one line of at most 200 characters."""
    return cut(" ".join(redact(str(error).partition("\n[SQL: ")[0]).split()), 200)


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _uri(file: str | Path) -> str:
    """The address of a database. SQLAlchemy 2.1 decodes it: with `%20` or `?` it would be another folder."""
    from sqlalchemy.engine import URL, make_url

    plain = f"sqlite:///{file}"
    if make_url(plain).database == str(file):
        return plain
    # MLflow also makes an empty folder by the encoded name.
    return URL.create("sqlite", database=str(file)).render_as_string()


def _open(uri: str) -> MlflowClient:
    """A client of a database, made and migrated if need be. ConnectionError if that fails, which MLflow leaves to SQLAlchemy."""
    from alembic.util import CommandError
    from mlflow import MlflowClient
    from sqlalchemy.exc import OperationalError, SQLAlchemyError

    try:
        client = MlflowClient(tracking_uri=uri)
        client.search_experiments(max_results=1)
    except (SQLAlchemyError, CommandError) as error:
        reason = str(error).partition("\n")[0]
        # An OperationalError has a cause outside of the database, such as a full disk, unless a table is missing.
        is_damaged = not isinstance(error, OperationalError) or "no such" in reason
        remedy = "; move it away, and a new one is made" if is_damaged else ""
        remedy = "; another process uses it" if "database is locked" in reason else remedy
        raise ConnectionError(f"the database cannot be opened ({reason}){remedy}") from None
    return client


def store_of(run_folder: str | Location) -> Store:
    """The store that a run folder's results go to. A database cannot be in an object store: it is in `home()/runs` then."""
    uri = os.environ.get(ADDRESS)
    if uri:
        return Store(uri=uri, artifacts=None)
    place = locate(run_folder)
    folder = place.parent if is_local(place) else home() / "runs"
    return Store(uri=_uri(folder / DATABASE), artifacts=folder / ARTIFACTS)


def mlflow_command(run_folder: str | Location) -> str:
    """The one command that opens the comparison of runs in a browser, on the loopback address."""
    store = store_of(run_folder)
    if store.is_server:
        return f"python -m webbrowser {store}"
    mlflow = "uv run mlflow" if is_a_clone() else "mlflow"
    return f"{mlflow} ui --backend-store-uri {shlex.quote(str(store))} --host 127.0.0.1 --port {PORT}"


def loading_lines(store: Store, model_uri: str) -> str:
    """Lines of Python that load a model in a new interpreter. Secrets in the store's address stay in the environment."""
    opens = f"import mlflow\nmlflow.set_tracking_uri({store.uri!r})"
    if str(store) != store.uri:
        opens = "import mlflow  # with MLFLOW_TRACKING_URI as it is here"
    return f"{opens}\nmodel = mlflow.pyfunc.load_model({model_uri!r})"
