"""One process at a time writes a run folder or an import; another is told who does."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import UserDict
from collections.abc import ItemsView
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ray_atr.common import lock
from ray_atr.common.lock import HOLDER_FILE
from ray_atr.common.storage import Location, file_exists, hold, locate
from ray_atr.training.experiment import Experiment
from ray_atr.training.run_folder import RunFolder

HOLD = """
import sys, time
from pathlib import Path
from ray_atr.common.storage import hold
with hold(Path(sys.argv[1]), "x"):
    print("held", flush=True)
    time.sleep(60)
"""


HOLD_AND_RENEW_OFTEN = f"import ray_atr.common.lock; ray_atr.common.lock.RENEW_SECONDS = 0.02{HOLD}"


@pytest.fixture
def holder(tmp_path: Path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


@pytest.mark.timeout(60)
def test_a_second_writer_is_told_who_holds_the_folder_and_a_dead_one_is_taken_over(
    tmp_path: Path, holder: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=rf"this run is being written by process {holder.pid} of .* since 20\d\d-"):
        hold(tmp_path, "this run").__enter__()
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert (tmp_path / HOLDER_FILE).is_file(), "a killed holder leaves its note"
    with hold(tmp_path, "this run"):
        assert json.loads((tmp_path / HOLDER_FILE).read_text())["pid"] == os.getpid()
        with pytest.raises(ValueError, match=f"by process {os.getpid()}"):
            hold(tmp_path, "this run").__enter__()
    assert not list(tmp_path.iterdir()), "nothing is left of a writer that ended"
    assert not capsys.readouterr().err, "a dead process of this machine holds nothing: no one waits for it"


def test_of_many_at_once_one_is_inside_though_each_removes_the_lock(tmp_path: Path) -> None:
    inside, most, entered = [0], [0], [0]

    def write() -> None:
        until = time.monotonic() + 120
        while entered[0] < 8 and time.monotonic() < until:
            with contextlib.suppress(ValueError), hold(tmp_path, "this run"):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.0005)
                inside[0] -= 1
                entered[0] += 1

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 1
    assert entered[0] >= 8


@pytest.fixture(params=["folder", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Location:
    monkeypatch.setattr(lock, "POLL_SECONDS", 0.02)
    return locate(tmp_path if request.param == "folder" else f"memory://{uuid.uuid4().hex}")


def note_of_elsewhere(place: Location, seconds_ago: float) -> None:
    then = time.time() - seconds_ago
    note = {"id": "a", "host": "elsewhere", "pid": 1, "user": "ada", "since": then, "renewed": then}
    (place / HOLDER_FILE).write_text(json.dumps(note))


@pytest.mark.slow
def test_a_holder_on_another_machine_counts_as_dead_when_it_has_not_said_otherwise(
    place: Location, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after the loss of the node of a job, which its queue starts again on another one before the note has expired."""
    for seconds_ago, says in ((200, ""), (179.5, "by process 1 of ada on elsewhere, since 20")):
        note_of_elsewhere(place, seconds_ago)
        with hold(place, "this run"):
            assert file_exists(place / HOLDER_FILE)
        assert not file_exists(place / HOLDER_FILE)
        assert says in capsys.readouterr().err
    note_of_elsewhere(place, 10)
    ending = threading.Timer(0.1, (place / HOLDER_FILE).unlink)
    ending.start()
    with hold(place, "this run"):
        ending.join()


def test_a_holder_on_another_machine_that_renews_its_note_is_left_alone(place: Location) -> None:
    note_of_elsewhere(place, 10)
    renewal = threading.Timer(0.1, note_of_elsewhere, (place, 0))
    renewal.start()
    with pytest.raises(
        ValueError, match=r"by process 1 of ada on elsewhere, .* run the same command again when it has"
    ):
        hold(place, "this run").__enter__()
    renewal.join()


def test_a_holder_that_was_taken_for_dead_ends_and_leaves_the_note_of_the_other(tmp_path: Path) -> None:
    """As one whose machine slept, or that could not reach the store, while another waited for its note to expire."""
    command = [sys.executable, "-c", HOLD_AND_RENEW_OFTEN, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as suspended:
        assert suspended.stdout is not None
        assert suspended.stdout.readline() == "held\n"
        suspended.send_signal(signal.SIGSTOP)
        note_of_elsewhere(tmp_path, 0)
        suspended.send_signal(signal.SIGCONT)
        assert suspended.wait(30) == lock.EXIT_LOST
        assert suspended.stderr is not None
        assert "x is being written by process 1 of ada on elsewhere" in suspended.stderr.read()
    assert json.loads((tmp_path / HOLDER_FILE).read_text())["host"] == "elsewhere"


def test_a_holder_that_was_taken_for_dead_and_ends_by_itself_leaves_the_note_of_the_other(place: Location) -> None:
    with hold(place, "this run"):
        note_of_elsewhere(place, 0)
    assert file_exists(place / HOLDER_FILE)


@pytest.mark.slow
@pytest.mark.parametrize("is_set_back", [False, True])
def test_a_clock_that_is_ahead_or_set_back_makes_nobody_wait_for_hours(
    place: Location, is_set_back: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The holder died, and wrote the note by a clock an hour ahead, or this machine's is set back while it waits."""
    monkeypatch.setattr(lock, "DEAD_AFTER_SECONDS", 0.3)
    note_of_elsewhere(place, 0 if is_set_back else -3600)
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        assert len(naps) < 100, "it waits for ever"
        time.sleep(0.02)

    def now() -> float:
        return time.time() - 3600 * (is_set_back and bool(naps))

    monkeypatch.setattr(lock, "time", SimpleNamespace(**{**vars(time), "time": now, "sleep": sleep}))
    with hold(place, "this run"):
        assert "this command goes on in 0 s" in capsys.readouterr().err


def test_of_two_that_start_at_once_in_a_store_one_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    place = locate(f"memory://{uuid.uuid4().hex}")
    with hold(place, "this run"), monkeypatch.context() as patch:
        real, first = lock._holder, iter([True])
        # The other one's note appears after this one has looked.
        patch.setattr(lock, "_holder", lambda folder: None if next(first, False) else real(folder))
        with pytest.raises(ValueError, match=f"being written by process {os.getpid()}"):
            hold(place, "this run").__enter__()


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """In the folder that `holder` holds."""
    return RunFolder.create(tmp_path, Experiment(), {"name": "test"})


def test_of_two_that_make_one_run_folder_at_once_the_second_is_refused(tmp_path: Path) -> None:
    """As two jobs of an array, which start in one second, and so with one name."""
    refused: list[str] = []

    class AfterAnother(UserDict[str, Any]):
        """Read while its run folder is written, when another one begins."""

        def items(self) -> ItemsView[str, Any]:
            with pytest.raises(ValueError, match=f"this run is being written by process {os.getpid()}") as error:
                RunFolder.create(tmp_path, Experiment(seed=2), {"name": "second"})
            refused.append(str(error.value))
            return super().items()

    run = RunFolder.create(tmp_path, Experiment(seed=1), AfterAnother(name="first"))
    assert (run.experiment.seed, run.info["name"], len(refused)) == (1, "first", 1)
    with pytest.raises(ValueError, match="a run folder already; continue it with --resume"):
        RunFolder.create(tmp_path, Experiment(seed=2), {"name": "second"})


def test_a_run_folder_has_one_writer(run: RunFolder, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(ValueError, match=f"{run.path}: this run is being written by process {holder.pid}"):
        run.locked().__enter__()
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with run.locked():
        # Another process would find this.
        assert json.loads((run.path / HOLDER_FILE).read_text())["pid"] == os.getpid()
        with pytest.raises(ValueError, match=f"{run.path}: this run is being written by process {os.getpid()}"):
            RunFolder.open(run.path).locked().__enter__()


@pytest.mark.parametrize(
    "others", [["notes.txt", "trials/a file", "trials/mine/result.json", "trials/mine/trial.json"], []]
)
def test_a_run_that_cannot_start_takes_only_its_own_files_with_it(tmp_path: Path, others: list[str]) -> None:
    """A cluster that did not answer cost every file in the folder of --out."""
    folder = tmp_path / "out"
    for name in others:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("of the user", encoding="utf-8")
    run = RunFolder.create(folder, Experiment(), {"name": "train"})
    run.add_trial({"seed": 1})
    with run.locked():
        run.remove()
    assert [str(file.relative_to(folder)) for file in sorted(folder.rglob("*")) if file.is_file()] == others
    assert folder.exists() == bool(others)


def test_a_run_that_cannot_start_may_be_in_a_folder_that_cannot_be_removed(tmp_path: Path) -> None:
    """Here its name is too long to be moved aside. The error took the place of why the run cannot start."""
    run = RunFolder.create(tmp_path / ("a" * 250), Experiment(), {"name": "train"})
    with run.locked():
        run.remove()
    assert not list(run.path.iterdir())
