"""One Ray for the whole test session, and where the optional shared data lies."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_atr.common.runtime import RayStartError, start_ray
from tests.support.fork_server import start_server
from tests.support.mlflow_tables import copy_tables, remove_tables
from tests.support.own_ray import SWITCHES
from tests.support.ray_forks import forked_workers
from tests.support.shared_folder import SHARED

if "PYTEST_XDIST_WORKER" in os.environ:
    # Read when torch is imported. Test processes that each compute on every core wait for each other: half as slow again.
    os.environ["OMP_NUM_THREADS"] = "1"

    def leave_at_once(process: int) -> None:
        """After all else that ends with the process, and not in its forks. Python would free all that was imported, piece by
        piece, for seconds, and pytest-xdist waits for it, ten seconds at most.
        """
        if os.getpid() == process:
            os._exit(0)

    atexit.register(leave_at_once, os.getpid())

# Compiled modules are kept: each test process, and each process that a test starts, would compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A test that asks a server which is away has no reason to ask again.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")

# POT imports every library of arrays that it finds, and tests give it NumPy's and torch's alone.
os.environ.setdefault("POT_BACKEND_DISABLE_JAX", "1")

# Tests write files that are synced to the disk, again and again; in memory that takes no time.
MEMORY, ROOM = Path("/dev/shm"), 4 * 2**30
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

for variable, value in SWITCHES.items():
    os.environ.setdefault(variable, value)

# While tests are collected nearly nothing becomes garbage, and looking for it again and again takes a quarter of the time.
gc.disable()


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A local Ray with two CPUs, started once; tests that use it carry the `ray` mark."""
    import ray

    global _ray_error
    with forked_workers():
        try:
            start_ray(num_cpus=2)
        except RayStartError as error:
            _ray_error = str(error)
            raise
        yield
        ray.shutdown()


_ray_error: str | None = None


copy_tables()


def pytest_runtest_setup(item: pytest.Item) -> None:
    # A Ray that does not start is one error, not one for every test that needs it.
    if _ray_error is not None and "ray_session" in getattr(item, "fixturenames", ()):
        pytest.skip(f"the session's Ray did not start: {_ray_error}")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what runs make, with the data set of tones in `tones`."""
    from tests.support.tiny import make_data

    folder = tmp_path_factory.mktemp("home")
    make_data(folder / "tones")
    return folder


@pytest.fixture
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`home`, where commands keep what they make unless they are told of another place."""
    monkeypatch.setenv("RAY_ATR_HOME", str(home))
    return home


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, for one test: an empty folder that nobody else has; and no server of MLflow is named."""
    monkeypatch.setenv("RAY_ATR_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path / "home"


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """pytest's folder, emptied after a test that passed, as it may lie in memory. No other test gets its name: this process may
    remember what it has read there.
    """
    failed = request.session.testsfailed
    yield tmp_path
    if request.session.testsfailed == failed:
        for path in tmp_path.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the repository; skips where there is none."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the real data at {folder} (set RAY_ATR_SHARED)")
    return folder


def pytest_configure(config: pytest.Config) -> None:
    # The run between two changes: what takes long waits for the run of everything. A file that is named runs as it is.
    if config.option.markexpr == "not ray" and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.option.markexpr = "not ray and not slow"


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    # One file or one test runs in pytest's own process: a second one costs its imports.
    if len(config.args) == 1 and ".py" in config.args[0] and config.option.numprocesses:
        config.option.numprocesses = 0


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    # Encoded audio differs from process to process (Ogg's serial number), and both must collect tests of the same names.
    return argname if isinstance(val, bytes) else None


def pytest_collection_finish(session: pytest.Session) -> None:
    # What is imported and collected stays: each full collection of garbage would look at all of it again, and each fork of a
    # crash point would copy what it touches.
    gc.freeze()
    # Rarely: what tests leave behind is small beside what they import.
    gc.set_threshold(100_000, 20, 100)
    gc.enable()
    if not session.config.option.collectonly and any(uses(item, *FORKING, "run_program") for item in session.items):
        start_server()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        # pytest collects garbage five times, for what could not be raised in a destructor.
        gc.freeze()


def pytest_unconfigure() -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        remove_tables()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Fast tests first, so that a broken formula shows before Ray has even started. Of several test processes one begins with
    # the tests on the session's Ray, which take it nearly as long as all others take, and the next with those that start a Ray of
    # their own. Then come those that fork their own process at every crash point: each fork copies the tables of its memory,
    # which grows with what other tests import. Those of processes that talk to each other, most of a minute in one piece, come
    # next, or at the end one process would run them while the other has nothing left; and so with the files that take longest of
    # those whose names are last. A file stays whole: what its tests share is made once.
    is_one_of_several = "PYTEST_XDIST_WORKER" in os.environ
    items.sort(
        key=lambda item: (
            ("ray" in item.keywords) != is_one_of_several,
            "ray" in item.keywords and uses(item, *OWN_RAY),
            is_one_of_several and not uses(item, "every_crash"),
            is_one_of_several and not uses(item, *FORKING),
            is_one_of_several and not item.nodeid.startswith(LONG),
        )
    )
    for item in items:
        # Of the test processes one alone has the session's Ray, and the fixtures of a module are made by one.
        # So are the forks that `run_processes` starts from one process that has imported torch.
        if "ray" in item.keywords:
            group = "own ray" if uses(item, *OWN_RAY) else "ray"
        else:
            group = "forks" if uses(item, *FORKING) else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))


LONG = ("tests/training/test_pretend_device.py", "tests/transport/test_transport_solve.py")


FORKING = ("run_processes", "differences")
"""Helpers of tests that start processes which talk to each other."""


OWN_RAY = ("own_ray", "end_processes_of")
"""Helpers of tests that start a Ray of their own, beside which the session's can run."""


def uses(item: pytest.Item, *helpers: str) -> bool:
    """Whether the file of a test imports one of these helpers."""
    return any(hasattr(getattr(item, "module", None), helper) for helper in helpers)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """torch computes with two threads, for what threads write at the same time."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
