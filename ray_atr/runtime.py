"""Where this process runs: starting or joining Ray, and the folders that data and runs live in."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

# Set before Ray is imported: else `uv run script.py` makes Ray package the working directory and build a fresh
# virtual environment for every worker of a local run. On a cluster the image or the lock file decides.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
# The controller of a training run polls its workers at this interval; the default of 2 s is visible in short trials.
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")

NAMESPACE = "ray_atr"
CONNECT_SECONDS = 10


def is_inside_a_cluster() -> bool:
    """Whether this process was started by `ray job submit` or told of a cluster by RAY_ADDRESS."""
    return is_submitted_job() or bool(os.environ.get("RAY_ADDRESS"))


def is_submitted_job() -> bool:
    """Whether this process is the entry point of a `ray job submit` (Ray then hands it its job configuration)."""
    return bool(os.environ.get("RAY_JOB_ID") or os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR"))


if not is_inside_a_cluster():
    # Ray takes the host's outer address and listens there, even for a cluster of one machine. With this switch, meant for
    # firewall prompts on other systems, a local Ray stays on the loopback address. Read when Ray is imported.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


def start_ray(num_cpus: int | None = None) -> None:
    """Join the cluster this process belongs to, or start a Ray of its own on the loopback address.

    A process that is not told of a cluster never joins one that happens to run on the machine. Does nothing where Ray
    is already initialised. ConnectionError where the cluster does not answer.
    """
    import ray

    if ray.is_initialized():
        return
    options: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
    if is_inside_a_cluster():
        require_answer(os.environ.get("RAY_ADDRESS", ""))
        ray.init(**options)
    else:
        ray.init(
            address="local",
            num_cpus=num_cpus,
            include_dashboard=False,
            **options,
        )
    quiet_ray_data()


def require_answer(address: str) -> None:
    """ConnectionError where nothing listens at a `host:port` or `ray://host:port`. Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or error
        raise ConnectionError(f"RAY_ADDRESS: no Ray answers at {address} ({reason}); start one, or unset it") from None


def quiet_ray_data() -> None:
    """Turn Ray Data's own progress bars and remarks off and its starvation time-out down, in this process."""
    from ray.data import DataContext

    for handler in logging.getLogger("ray.data").handlers:
        # Its remarks stay in the session's log file; only errors reach the console.
        if handler.get_name() == "console":
            handler.setLevel(logging.ERROR)

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # Half an hour by default: a data set that waits for a CPU which never comes free should be an error long before.
    context.execution_no_progress_timeout_s = 120  # type: ignore[attr-defined]


def home() -> Path:
    """The folder under which `data/` and `runs/` live: RAY_ATR_HOME, else the current folder.

    A submitted job runs in a copy of the working directory that Ray deletes, so there it is `~/ray_atr`.
    """
    configured = os.environ.get("RAY_ATR_HOME")
    if configured:
        return Path(configured).expanduser().resolve()
    return Path.home() / "ray_atr" if is_submitted_job() else Path.cwd()


def code_version() -> dict[str, str]:
    """The git commit (with `-dirty` where files changed) and the versions of the packages that decide a result."""
    versions = {"python": sys.version.split()[0]}
    for package in (
        "ray_atr",
        "ray",
        "torch",
        "torchaudio",
        "transformers",
        "faiss-cpu",
        "numpy",
        "pyarrow",
        "mlflow",
        "optuna",
    ):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "absent"
    versions["git_commit"] = _git_commit()
    return versions


def _git_commit() -> str:
    folder = Path(__file__).parent
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True, timeout=10
        )
        changes = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return commit.stdout.strip() + ("-dirty" if changes.stdout.strip() else "")
