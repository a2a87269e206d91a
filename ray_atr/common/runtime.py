"""The environment of this process: starting or joining Ray, the folders of data and runs, the version of the code.

Functions that need Ray import it themselves: Ray reads its switches (`prepare_environment`) on import, and training in this
process does not need it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import logging
import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ray_atr.common.locations import require_writable
from ray_atr.common.settings import local_path, refuse, shortened

NAMESPACE = "ray_atr"
# A worker reserves fewer CPUs than it computes on: if workers held every logical CPU, Ray Data's readers and the actors of a
# small machine would never start.
WORKER_CPU_SHARE = 0.75
DECIDING_PACKAGES = [
    "ray_atr",
    "ray",
    "torch",
    "transformers",
    "faiss-cpu",
    "faiss-gpu",
    "numpy",
    "pyarrow",
    "mlflow",
    "optuna",
]
LOOPBACK = "127.0.0.1"
CONNECT_SECONDS = 10
ROOM_SECONDS = 600
"""How long work waits for its first process, while resources become free or a cluster grows."""
ANSWER_SECONDS = 60
"""How long each node of a cluster has to say which files it has; its process starts meanwhile."""
STARTS = 3  # tries to start a Ray, which gives its node 30 s to appear
ALONE = "--ray never uses this node alone"


def is_inside_a_cluster() -> bool:
    """Whether this process was started by `ray job submit` or RAY_ADDRESS names a cluster."""
    return is_submitted_job() or bool(os.environ.get("RAY_ADDRESS"))


def is_submitted_job() -> bool:
    """Whether this process is the entry point of a `ray job submit` (Ray then hands it its job configuration)."""
    return bool(os.environ.get("RAY_JOB_ID") or os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR"))


def is_in_a_copy_of_a_job() -> bool:
    """Whether the working directory is Ray's copy of what a job was submitted with, which Ray deletes."""
    return is_submitted_job() and "working_dir_files" in Path.cwd().parts


def prepare_environment() -> None:
    """Set the switches of Ray that this package needs, in the environment and, if Ray is imported already, in Ray
    itself. A switch that is set in the environment stays.
    """
    # Else `uv run script.py` makes Ray package the working directory and build a fresh virtual environment for every
    # worker of a local run. On a cluster the image or the lock file decides.
    switches = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "RAY_ENABLE_UV_RUN_RUNTIME_ENV"}
    if not is_inside_a_cluster():
        # Ray listens at the host's outer address, even for a cluster of one machine. With this switch, meant for firewall
        # prompts on other systems, a local Ray stays on the loopback address.
        switches["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "ENABLE_RAY_CLUSTER"
        # Else a local Ray starts a worker per CPU for its first driver, and waits for all of them: if one dies before it
        # has registered, `ray.init` never returns, and holds the interpreter's lock, so that Ctrl-C has no effect.
        os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    # The controller of a training run polls its workers at this interval; the default of 2 s is visible in short trials.
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
    constants = sys.modules.get("ray._private.ray_constants")
    for variable, constant in switches.items():
        if variable not in os.environ:
            os.environ[variable] = "0"
            if constants is not None:
                setattr(constants, constant, False)


def start_ray(num_cpus: int | None = None) -> None:
    """Join the cluster this process belongs to, or start a Ray of its own on the loopback address. Without a
    cluster's address it never joins one that happens to run on the machine. Does nothing if Ray is already
    initialised. ConnectionError if the cluster does not answer.
    """
    prepare_environment()
    import ray

    if ray.is_initialized():
        return
    options: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
    with own_handlers():
        if is_inside_a_cluster():
            require_answer(os.environ.get("RAY_ADDRESS", ""))
            ray.init(**options)
        else:
            _give_token()
            _require_loopback()
            if shlex.quote(sys.executable) != sys.executable:
                # Ray starts the processes of trials by a shell, and does not quote the path: with a space in the name of the
                # folder of the environment none of them would ever start.
                options["runtime_env"] = {"py_executable": shlex.quote(sys.executable)}
            if num_cpus is None:
                from ray._private.utils import get_num_cpus

                # Ray rounds a container's share of the CPUs down: with half a CPU it would run nothing.
                num_cpus = max(1, int(get_num_cpus(override_docker_cpu_warning=True)))
            _start_local(address="local", num_cpus=num_cpus, include_dashboard=False, **options)
    quiet_ray_data()


class RayStartError(ConnectionError):
    """Ray did not start on this machine, or the cluster of RAY_ADDRESS does not answer: nothing has run."""


def _give_token() -> None:
    """Give a Ray that is about to start a token of its own, if it can neither find one nor write one to the user's home: many
    containers run as a user without a home.
    """
    if "RAY_AUTH_TOKEN_PATH" in os.environ:
        return
    try:
        file = Path.home() / ".ray" / "auth_token"
        if not os.access(file, os.R_OK):
            require_writable(file.parent)
    except (OSError, RuntimeError):
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def _require_loopback() -> None:
    """RayStartError if this machine cannot reach itself, as in a network namespace of its own: Ray would try for many minutes."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            socket.create_connection(server.getsockname(), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or error
        advice = "bring it up (ip link set lo up), or use --ray never, which needs no network"
        raise RayStartError(f"{LOOPBACK}: Ray cannot use the loopback network ({reason}); {advice}") from None


def _start_local(*, tries: int = STARTS, **options: Any) -> None:
    """Start a Ray, with further tries if the machine is too busy. RayStartError, in one line, if all of them fail."""
    import ray

    started, reason = time.monotonic(), ""
    for _ in range(tries):
        try:
            ray.init(**options)
            return
        except Exception as error:  # noqa: BLE001 Ray raises a plain Exception when its node does not appear
            ray.shutdown()
            if "AF_UNIX path length" in str(error):
                where = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
                advice = "set RAY_TMPDIR to a folder with a shorter path, such as /tmp"
                raise RayStartError(f"{where}: too long a path for the sockets of Ray; {advice}") from None
            reason = shortened(str(error), 120)
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    raise RayStartError(
        f"Ray did not start on this machine in {time.monotonic() - started:.0f} s, tried {tries} times ({reason}; load "
        f"{load:.0f} on {cpus} CPUs); run the same command again when the machine is less busy"
    )


@contextlib.contextmanager
def own_handlers() -> Iterator[None]:
    """Restores the handlers of SIGTERM and SIGINT at the end: Ray replaces the first, and Tune does not restore the second. If
    Ray's own handler turns a SIGTERM into an exit meanwhile, it is raised as an interrupt, as everywhere else.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except SystemExit as stop:
        if stop.code != signal.SIGTERM:
            raise
        TERMINATED.set()
        raise KeyboardInterrupt from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


TERMINATED = threading.Event()  # whether a SIGTERM or SIGHUP came since `terminate_like_interrupt`


def terminate_like_interrupt() -> None:
    """Make SIGTERM, and SIGHUP of a closed terminal, raise KeyboardInterrupt, like Ctrl-C; `TERMINATED` distinguishes them."""

    def interrupt(number: int, frame: Any) -> None:
        TERMINATED.set()
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # A shell ignores SIGINT for background jobs of a script.
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)
        # `nohup` has it ignored.
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            signal.signal(signal.SIGHUP, interrupt)


STARTS_AGAIN = "the same command starts again: what it makes appears once it is complete"
"""The advice of commands that keep nothing of unfinished work."""


@contextlib.contextmanager
def advising(advice: str) -> Iterator[None]:
    """Gives this advice to a KeyboardInterrupt of the block, also to one that comes while an earlier one is handled, and adds it
    as a note to an error of a disk or the network. A RayStartError gets none: nothing has run, and its message says what to do.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(advice) from None
    except OSError as error:
        if not isinstance(error, RayStartError):
            error.add_note(advice)
        raise


def advice_of(interrupt: BaseException | None) -> str:
    """The advice of an interrupt, or of an earlier one during whose handling it came; empty if none has any."""
    while interrupt is not None:
        if isinstance(interrupt, KeyboardInterrupt) and str(interrupt):
            return str(interrupt)
        interrupt = interrupt.__context__
    return ""


def require_answer(address: str) -> None:
    """RayStartError if nothing listens at `host:port` or `ray://host:port`; Ray itself would try for minutes."""
    if address.startswith(("http://", "https://")):
        raise RayStartError(
            f"RAY_ADDRESS: {address} is where `ray job submit` sends jobs; submit this command, or unset it"
        )
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        # An IPv6 address stands in brackets.
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or error
        raise RayStartError(f"RAY_ADDRESS: no Ray answers at {address} ({reason}); start one, or unset it") from None


def quiet_ray_data() -> None:
    """Turn Ray Data's own progress bars, remarks and time-out off, in this process."""
    from ray.data import DataContext

    for handler in logging.getLogger("ray.data").handlers:
        # Remarks stay in the session's log file. An error is raised too.
        if handler.get_name() == "console":
            handler.setLevel(logging.CRITICAL)
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # It treats every silence as a hang, also a long job or a reader that waits during a validation. Callers first wait for
    # resources (`await_room`), for a bounded time.
    context.execution_no_progress_timeout_s = -1
    context.raise_original_map_exception = True


@contextlib.contextmanager
def task_errors() -> Iterator[None]:
    """Raises an error of Ray Data's tasks as the error that the task raised, which then ends a command as it does without Ray."""
    import ray

    try:
        yield
    except ray.exceptions.RayTaskError as error:
        cause, attempts = error.cause, "Failed to apply UDF transform after "
        # Ray adds lines about its attempts, of which there was one, and about its own settings.
        texts = [arg.partition(f"\n{attempts}")[0] if isinstance(arg, str) else arg for arg in cause.args]
        texts = [text for text in texts if not str(text).startswith(attempts)]
        where = other_node_of(str(error))
        if isinstance(cause, OSError) and cause.strerror:
            if str(cause.filename).startswith(attempts):
                # Ray appended its lines to two arguments, and OSError takes a third one for the file.
                named = re.findall(r"^\w*Error: \[Errno \d+\] .*: '(.+)'$", str(error), re.MULTILINE)
                cause.filename = named[-1] if named else None
            cause.strerror += where
        elif texts and isinstance(texts[-1], str):
            texts[-1] += where
        cause.args = tuple(texts)
        raise cause from error


def other_node_of(text: str) -> str:
    """` (on the node ADDRESS)` if the text of an error of Ray is about a process on another node; else empty.

    A file that is missing there may well be here. Ray's errors tell their node in words alone.
    """
    import ray

    told = re.search(r"\bip=([\w.:]+)", text)
    return f" (on the node {told[1]})" if told is not None and told[1] != ray.util.get_node_ip_address() else ""


def this_node() -> str:
    """Ray's name of this process's node; empty if Ray is not imported or not running."""
    ray = sys.modules.get("ray")
    return ray.get_runtime_context().get_node_id() if ray is not None and ray.is_initialized() else ""


def require_on_all_nodes(name: str, folder: Path, file: Path, *, remedy: str = ALONE) -> None:
    """ValueError, with the name and a remedy, if another node of the cluster lacks this file of a folder that its processes use.

    Nodes without CPUs run none. A node that goes away, or does not answer within a minute, is not counted. Does nothing
    without Ray.
    """
    if not (here := this_node()):
        return
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked: dict[Any, str] = {}
    for node in ray.nodes():
        if node["Alive"] and node["NodeID"] != here and node["Resources"].get("CPU"):
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            exists = ray.remote(os.path.exists).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
            asked[exists.remote(str(file))] = node["NodeManagerHostname"]
    lacking = []
    for answer in ray.wait([*asked], num_returns=len(asked), timeout=ANSWER_SECONDS)[0] if asked else []:
        with contextlib.suppress(ray.exceptions.RayError):
            if not ray.get(answer):
                lacking.append(asked[answer])
    if lacking:
        nodes = ", ".join(sorted(lacking))
        raise refuse(
            name, str(folder), f"a folder that every node mounts, or a URL; it is missing on {nodes}; {remedy}"
        )


def here_if_there_is_room(num_cpus: float, num_gpus: float = 0.0) -> Any:
    """The scheduling strategy of an actor that should run on this node, or on another one if the workers leave no room here.

    Without one, Ray would place the actor in the placement group of the worker that starts it, where there is no room, and wait
    for ever. An actor without resources always has room, and Ray would place it on a random node unless the node is fixed.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    may_leave = num_cpus > 0 or num_gpus > 0
    return NodeAffinitySchedulingStrategy(this_node(), soft=may_leave, _spill_on_unavailable=may_leave)


def labels_of_this_node() -> dict[str, str]:
    """Labels of this process's node that no other node has."""
    return {"ray.io/node-id": this_node()}


def await_room(
    cpus: float, gpus: float = 0.0, *, what: str, labels: Mapping[str, str] | None = None, seconds: float | None = None
) -> None:
    """Wait until the resources of one process are free on a node with the labels. TimeoutError if they are not
    within that time (default: `ROOM_SECONDS`).
    """
    import ray

    seconds = ROOM_SECONDS if seconds is None else seconds
    # Spread, as Ray Data's tasks are: else it would wait for room in the current placement group.
    takes: dict[str, Any] = {"num_cpus": cpus, "num_gpus": gpus, "label_selector": dict(labels or {})}
    room = ray.remote(scheduling_strategy="SPREAD", **takes)(lambda: None).remote()
    try:
        ray.get(room, timeout=seconds)
    except ray.exceptions.GetTimeoutError:
        ray.cancel(room, force=True)
        late = f"{cpus:g} CPUs and {gpus:g} GPUs did not become free within {seconds:g} s"
        raise TimeoutError(f"{what}: {late}; allowed: at most what the training workers leave free") from None


def home() -> Path:
    """The folder of `data/` and `runs/`: RAY_ATR_HOME, else the current folder. A submitted job runs in a
    copy of the working directory that Ray deletes, so there it is `~/ray_atr`. ValueError for a URL, and for a submitted job of a
    user without a home, who has the current folder as one.
    """
    if configured := os.environ.get("RAY_ATR_HOME"):
        if (folder := local_path(configured)) is None:
            raise refuse("RAY_ATR_HOME", configured, "a folder of this machine; --out and --data.source may be URLs")
        return folder.resolve()
    if is_in_a_copy_of_a_job() and Path.home() == Path.cwd():
        allowed = "a folder that stays: this user has no home, and Ray deletes the working directory of a submitted job"
        raise refuse("RAY_ATR_HOME", "nothing", allowed)
    return Path.home() / "ray_atr" if is_submitted_job() else Path.cwd()


PACKAGE = Path(__file__).resolve().parents[1]


def is_a_clone() -> bool:
    """Whether the package runs from a clone of its repository, where commands begin with `uv run`."""
    project = PACKAGE.parent / "pyproject.toml"
    return project.is_file() and 'name = "ray_atr"' in project.read_text(encoding="utf-8").splitlines()


def train_words() -> list[str]:
    """The words that call `train` in this installation: its script in a clone, else `ray-atr`."""
    return ["uv", "run", "python", "pipelines/train.py"] if is_a_clone() else ["ray-atr", "train"]


def code_name(code: Mapping[str, str]) -> str:
    """A `code_version` as shown on a page: the commit if there is one, and the digest of the files."""
    commit, digest = code.get("git_commit", "unknown"), code.get("code_digest", "")
    named = commit[:12] + ("-dirty" if commit.endswith("-dirty") and len(commit) > 12 else "")
    return named if not digest else f"files {digest}" if commit == "unknown" else f"{named}, files {digest}"


def code_version() -> dict[str, str]:
    """The digest of the package's own files, the git commit (with `-dirty` where files changed), and the versions of the
    packages that decide a result.
    """
    return _versions() | {"code_digest": code_digest(), "git_commit": git_commit()}


@cache
def _versions() -> dict[str, str]:
    versions = {"python": sys.version.split()[0]}
    for package in DECIDING_PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "absent"
    return versions


@cache
def code_digest() -> str:
    """A digest of the Python files of the package: equal for equal code in a clone, an installed wheel or a job's copy."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py"), key=lambda path: path.relative_to(PACKAGE).as_posix()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(PACKAGE).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


@cache
def git_commit() -> str:
    """The commit of the repository that tracks the package; `unknown` if there is none."""
    options: dict[str, Any] = {"cwd": PACKAGE, "capture_output": True, "text": True, "timeout": 10, "check": True}
    # --exclude: the full commit instead of a tag.
    describe = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        subprocess.run(["git", "ls-files", "--error-unmatch", "__init__.py"], **options)
        return str(subprocess.run(describe, **options).stdout.strip())
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def differences_of_code(info: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """Differences between the code that resumes a sweep and the code that started it, in words. If the digests of the files
    are equal, the commit is ignored: a job's copy of a clone has none, and another commit may have the same files.
    """
    recorded = info.get("code") or {}
    names = [name for name in now if name in recorded and (name != "git_commit" or "code_digest" not in recorded)]
    return [f"{name} was {recorded[name]}, is {now[name]}" for name in names if recorded[name] != now[name]]
