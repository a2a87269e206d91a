"""SIGTERM and SIGHUP are Ctrl-C with another exit code; a Ray that does not start is one line; a checkpoint costs no memory."""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from ray_atr.cli import main, running
from ray_atr.cli.parse import run_script
from ray_atr.cli.train import TrainOptions
from ray_atr.cli.tuned_methods import CorrespondenceSweep
from ray_atr.common import runtime
from ray_atr.sweep import FixedPoints, SweepPlan, SweepResult
from ray_atr.training.checkpoint import _seal, load_checkpoint
from tests.support.commands import replace_work
from tests.support.fork_server import run_program
from tests.support.own_ray import end_processes_of, environment_without_ray, wait_until

SCRIPT = """
import contextlib, signal, sys, time
from ray_atr.cli.parse import run_script
from ray_atr.common.runtime import advising, own_handlers

@contextlib.contextmanager
def said_at_the_end(word):
    try:
        yield
    finally:
        print(word, flush=True)
        time.sleep(60 * (word in sys.argv))

def main():
    with own_handlers():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)  # as Ray and Tune do
    with said_at_the_end("leaving"), advising("resume it with --resume RUN"), said_at_the_end("winding up"):
        print("on", flush=True)
        time.sleep(60)

run_script(main)
"""


def listen_to(*numbers: signal.Signals) -> None:
    """Take these signals, in the background of a script or under `nohup` too, where they are ignored from the start."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "again_at"),
    [
        (signal.SIGTERM, 143, ""),
        (signal.SIGHUP, 143, ""),
        (signal.SIGINT, 130, "winding up"),
        (signal.SIGINT, 130, "leaving"),
    ],
)
def test_a_stop_is_one_line_with_what_to_do_also_if_it_comes_twice(
    number: signal.Signals, code: int, again_at: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, again_at],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: listen_to(number),
    )
    assert process.stdout is not None
    for word in process.stdout:
        if word.strip() in ("on", again_at):
            process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == code
    assert error.strip() == "interrupted: resume it with --resume RUN"


ABORTS = """
import os, time
print("on", flush=True)
try:
    time.sleep(60)
except BaseException:
    os._exit(134)
"""
"""A torch that ends the process, as its C++ code does, if an exception reaches it while it is imported."""


def stopped(script: str, word: str, number: signal.Signals) -> tuple[int, str]:
    """The exit code and the errors of a script that gets a signal when it has printed this word first."""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: listen_to(number, signal.SIGINT),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == f"{word}\n"
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    return process.returncode, error


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_while_torch_is_imported_is_one_line(number: signal.Signals, code: int, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(ABORTS)
    script = "import sys; from ray_atr.cli.parse import run_script\nassert 'torch' not in sys.modules\n"
    script += f"sys.path.insert(0, {str(tmp_path)!r})\nrun_script(lambda: __import__('torch'))"
    assert stopped(script, "on", number) == (code, "\ninterrupted\n")


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_stop_that_python_ignores_comes_again(number: str, code: int) -> None:
    """An exception in the callback of a weak reference is told and forgotten: the command went on."""
    ended = run_program(IGNORES, number)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", "\ninterrupted\n")


STARTS_RAY = """
import signal, sys
from ray_atr.cli.parse import run_script
from ray_atr.common.runtime import advising, own_handlers

def main():
    with advising("resume it"), own_handlers():
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))  # as ray.init does
        signal.raise_signal(signal.SIGTERM)
    print("went on")

run_script(main)
"""


def test_a_sigterm_while_ray_starts_is_one_line_too() -> None:
    ended = run_program(STARTS_RAY)
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "", "\ninterrupted: resume it\n")


WHILE_FORKING = """
import logging, os, signal, sys, threading, time
from ray_atr.cli.parse import run_script
from ray_atr.common.runtime import own_handlers

def stop(frame, event, _):
    if frame.f_code is logging._releaseLock.__code__:
        sys.setprofile(None)
        signal.raise_signal(signal.Signals[sys.argv[1]])

def main():
    with own_handlers():
        if sys.argv[2] == "Ray's":
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))
        sys.setprofile(stop)
        if not os.fork():
            os._exit(0)
        other = threading.Thread(target=logging.getLogger("other").isEnabledFor, args=(10,))
        other.start()
        try:
            time.sleep(10)
        finally:
            other.join(10)
            print("the lock is held" if other.is_alive() else "the lock is free")
    print("went on")

signal.signal(signal.SIGINT, signal.default_int_handler)
run_script(main)
"""


@pytest.mark.skipif(not hasattr(logging, "_releaseLock"), reason="this Python releases the lock in C, without a signal")
@pytest.mark.parametrize(("number", "whose", "code"), [("SIGINT", "ours", 130), ("SIGTERM", "Ray's", 143)])
def test_a_stop_at_the_end_of_a_fork_comes_again_and_holds_no_lock(number: str, whose: str, code: int) -> None:
    """Python ignored it, and logging's lock stayed held: a thread of Ray Data waited for it, and so the command, for ever."""
    ended = run_program(WHILE_FORKING, number, whose)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "the lock is free\n", "\ninterrupted\n")


IGNORES = """
import signal, sys, time, weakref
from ray_atr.cli.parse import run_script

def main():
    held = set()
    reference = weakref.ref(held, lambda _: signal.raise_signal(signal.Signals[sys.argv[1]]))
    del held
    time.sleep(10)
    print("went on")

signal.signal(signal.SIGINT, signal.default_int_handler)
run_script(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_at_the_exit_has_no_traceback(number: signal.Signals) -> None:
    """As of torch, which writes a table then; the interrupt was told as an ignored exception, and the code was 0."""
    script = """
import atexit, time
from ray_atr.cli.parse import run_script

def leave():
    print("leaving", flush=True)
    time.sleep(60)

def main():
    atexit.register(leave)

run_script(main)
"""
    assert stopped(script, "leaving", number) == (-number, "")


@pytest.mark.parametrize("first", ["ends the sweep", "is caught by Tune", "is caught before the search proposes"])
def test_a_second_interrupt_of_a_sweep_keeps_the_command_that_resumes(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> SweepResult:
        if first == "ends the sweep":
            raise KeyboardInterrupt
        if first == "is caught by Tune":
            return SweepResult([], [], ["the trial"], [])
        return SweepResult([], [], [], [], num_unproposed=1)

    def again(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    tracker = SimpleNamespace(start_sweep=lambda: None, finish_sweep=again)
    replace_work(monkeypatch, {"cli.running.Tracker": lambda *_, **__: tracker, "cli.running.sweep": interrupted})
    folder = tmp_path / "my run"
    with pytest.raises(KeyboardInterrupt, match=f"resume it with --resume '{folder}'"):
        running.run_plan(
            "train",
            TrainOptions(out=str(folder), ray="never"),
            {},
            lambda *_: SweepPlan(FixedPoints([{}])),
            {},
            echo=print,
        )


@pytest.mark.parametrize("left", [{"unfinished": ["another"]}, {"unfinished": [], "num_unproposed": 1}])
def test_tuning_ends_where_it_was_interrupted(
    left: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = SweepResult(finished=["one trial"], failed=[], stopped=[], **left)
    replace_work(monkeypatch, {"sweep.sweep": lambda *_, **__: result})
    comparison = CorrespondenceSweep(methods=("contrastive",), tune=2, out=str(tmp_path / "check"))
    with pytest.raises(KeyboardInterrupt, match=r"run the same command again to continue .*check-tuning"):
        comparison.before({})


@pytest.mark.parametrize("failures", [1, runtime.STARTS])
def test_a_ray_that_starts_slowly_is_tried_again_then_told_in_a_line(
    failures: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tries: list[dict[str, Any]] = []

    def init(**options: Any) -> None:
        tries.append(options)
        if len(tries) <= failures:
            raise Exception("The current node timed out during startup. " + 400 * "This ")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init, shutdown=lambda: None))
    if failures == 1:
        runtime._start_local(address="local")
    else:
        with pytest.raises(SystemExit) as exit_:
            run_script(lambda: runtime._start_local(address="local"))
        assert exit_.value.code == 74
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"tried {runtime.STARTS} times (The current node timed out during startup." in error
        assert "run the same command again when the machine is less busy" in error
    assert len(tries) == min(failures + 1, runtime.STARTS)


@pytest.mark.ray
def test_a_temporary_folder_too_deep_for_a_socket_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As batch systems make them. Another try, on a less busy machine, would not help."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / ("x" * 100)))
    with pytest.raises(runtime.RayStartError, match=rf"{tmp_path}/x+: too long .* set RAY_TMPDIR to a folder"):
        runtime._start_local(tries=1, address="local", include_dashboard=False)


def test_a_checkpoint_that_would_fill_the_memory_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    torch.save({"weights": torch.zeros(4)}, tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "state.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for entry in plain.infolist():
            content = bytes(2**26) if entry.filename.endswith("data/0") else plain.read(entry)
            packed.writestr(entry.filename, content)
    with (tmp_path / "state.pt").open("r+b") as file:
        _seal(file)
    assert (tmp_path / "state.pt").stat().st_size < 2**18
    with pytest.raises(ValueError, match=r"state.pt: not a complete checkpoint \(its entries are packed"):
        load_checkpoint(tmp_path)


STARTS = """
import ray
from ray_atr.common.runtime import start_ray
start_ray(num_cpus=2)
print(ray.get(ray.remote(lambda: "started").remote()))
"""


@pytest.mark.ray
def test_a_worker_that_dies_while_ray_starts_holds_nothing_up(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="ra", ignore_cleanup_errors=True) as temporary:
        environment = environment_without_ray() | {"RAY_TMPDIR": temporary, "RAY_ATR_HOME": str(tmp_path)}
        process = subprocess.Popen([sys.executable, "-c", STARTS], env=environment, stdout=subprocess.PIPE, text=True)
        try:
            killed = wait_until(lambda: first_worker_of(process.pid), 60, "a worker of Ray to start")
            killed.kill()
            said, _ = process.communicate(timeout=60)
        finally:
            end_processes_of(temporary)
    assert said.strip() == "started"


STARTS_A_TRIAL = """
import ray
from ray_atr.common.runtime import start_ray
start_ray(num_cpus=2)
work = ray.remote(lambda: "started").options(runtime_env={"env_vars": {"AS_TUNE_AND_TRAIN": "1"}})
print(ray.get(work.remote(), timeout=120))
"""


@pytest.mark.ray
def test_trials_start_from_an_environment_whose_folder_has_a_space(tmp_path: Path) -> None:
    folder = tmp_path / "My Drive" / ".venv"
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "these.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    with tempfile.TemporaryDirectory(prefix="ra", ignore_cleanup_errors=True) as temporary:
        environment = environment_without_ray() | {"RAY_TMPDIR": temporary, "RAY_ATR_HOME": str(tmp_path)}
        words = [folder / "bin" / "python", "-c", STARTS_A_TRIAL]
        try:
            said = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=200, check=False)
        finally:
            end_processes_of(temporary)
    assert said.stdout.strip() == "started", said.stderr[-2000:]


def first_worker_of(driver: int) -> psutil.Process | None:
    """A worker that the driver's Ray has started, if there is one: it may not have registered yet."""
    for process in psutil.Process(driver).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if len(words) > 1 and words[1].endswith("default_worker.py"):
                return process
    return None


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("workshop.audit.run.audit_data_set", ["audit", "data", "--out", "out"]),
        ("cli.audit.run_on_audit", ["audit", "audits/one", "--keep", "0.1", "--out", "out"]),
        ("evaluation.run.evaluate", ["evaluate", "--checkpoint", "runs/one"]),
        ("deploy.export.exporting.export", ["export", "runs/one", "--to", "onnx"]),
        (
            "deploy.pack.making.make_pack",
            ["pack", "--space", "a.npy", "--captions", "t.csv", "--text", "sonar:x", "--out", "out"],
        ),
        (
            "workshop.importing.vector_import.import_vectors",
            ["prepare", "vectors", "--audio", "a.npy", "--text", "t.npy", "--table", "t.csv", "--out", "out"],
        ),
    ],
)
def test_a_stop_of_a_command_that_keeps_nothing_says_that_it_starts_again(
    function: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    replace_work(monkeypatch, {function: stop})
    with pytest.raises(SystemExit):
        main(words[0], arguments=words[1:])
    assert "interrupted: the same command starts again" in capsys.readouterr().err
