"""What a person sees when a command line is wrong."""

from __future__ import annotations

import errno
import io
import os
import pwd
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from ray_atr.cli import main
from ray_atr.cli.parse import _of_box, counting, run_script, settings_from
from ray_atr.common.runtime import advising
from ray_atr.common.settings import counted


def test_pairs_and_equals_are_the_same() -> None:
    assert settings_from(["--train.epochs", "3", "--objective.pair.transport-mass=0.8"]) == {
        "train.epochs": "3",
        "objective.pair.transport_mass": "0.8",
    }


@pytest.mark.parametrize("arguments", [["train.epochs", "3"], ["--seed"], ["--seed", "--train.epochs", "3"], ["--"]])
def test_what_is_not_a_pair_is_refused(arguments: list[str]) -> None:
    with pytest.raises(ValueError, match="--"):
        settings_from(arguments)


def test_a_box_of_a_terminal_without_rules_is_in_our_words_too() -> None:
    """The words were followed by the rule's dashes and by where the help is."""
    rule, help_ = "-" * 14, "For full helptext, see ray-atr prepare --help"
    box = (
        f"Value error\n {rule}\n  Error parsing source.folder: split: got 'x'; allowed\n  train\n  {rule}\n  {help_}\n"
    )
    assert _of_box(box, []) == "split: got 'x'; allowed train"


def test_values_of_one_setting_have_commas_between_them() -> None:
    with pytest.raises(ValueError, match=r"fra: not understood here; .*are joined: --data.languages eng,fra$"):
        settings_from(["--data.languages", "eng", "fra"])
    with pytest.raises(ValueError, match=r"are joined: --data.languages 9+ … 9+,9$") as error:
        settings_from(["--data.languages", "9" * 5000, "9"])
    assert len(str(error.value)) < 400
    with pytest.raises(
        ValueError, match=r"b: not understood here; .*made one by ray-atr prepare join --sets a b \.\.\.$"
    ):
        settings_from(["--data.source", "a", "b"])


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 trials"), (1, "1 trial"), (2, "2 trials"), (1000, "1,000 trials")]
)
def test_a_number_of_things_is_in_words(number: int, words: str) -> None:
    assert counted(number, "trial") == words


def test_a_verb_agrees_with_the_number_of_things() -> None:
    assert counted(1, "clip is", "clips are") == "1 clip is"
    assert counted(2, "clip is", "clips are") == "2 clips are"


def test_a_users_mistake_ends_with_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise ValueError("noise: got 1.2;\nallowed [0, 1)")

    with pytest.raises(SystemExit) as exit_:
        run_script(main)
    assert exit_.value.code == 2
    assert capsys.readouterr().err == "error: noise: got 1.2; allowed [0, 1)\n"


def test_a_full_disk_ends_with_one_line_that_names_the_file_and_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def main() -> None:
        with advising("resume it with --resume RUN"):
            raise OSError(errno.ENOSPC, "No space left on device", "/data/shard.parquet")

    with pytest.raises(SystemExit) as exit_:
        run_script(main)
    assert exit_.value.code == 74
    said = (
        "/data/shard.parquet: No space left on device; nothing that was finished is lost; resume it with --resume RUN"
    )
    assert capsys.readouterr().err == f"error: {said}\n"


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lambda folder: (folder / "file").mkdir(exist_ok=True), "file: is a file, not a folder"),
        (lambda folder: folder.read_text(), "Is a directory"),
    ],
)
def test_a_folder_in_the_place_of_a_file_is_a_mistake_as_the_reverse_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mistake: Callable[[Path], None], says: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as exit_:
        run_script(lambda: mistake(tmp_path))
    assert exit_.value.code == 2
    assert capsys.readouterr().err.endswith(f"{says}\n")


def test_a_working_directory_that_is_gone_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(SystemExit) as exit_:
        # Before anything computes, which torch cannot do there.
        run_script(lambda: pytest.fail("the command began"))
    assert exit_.value.code == 2
    assert capsys.readouterr().err == "error: the working directory no longer exists; change to one that does\n"


def test_a_line_is_seen_in_a_pipe_when_it_is_printed() -> None:
    script = "from ray_atr.cli.parse import run_script; import time; run_script(lambda: [print('starting'), time.sleep(600)])"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "starting\n"
        process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(("encoding", "seen"), [("latin-1", "12.5\xb0 text?audio"), ("ascii", "12.5? text?audio")])
def test_output_in_another_encoding_ends_no_command(encoding: str, seen: str) -> None:
    script = "from ray_atr.cli.parse import run_script; run_script(lambda: print('12.5° text→audio'))"
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True)
    assert done.stdout.decode(encoding) == f"{seen}\n"


@pytest.mark.parametrize("printer", ["print", "Console().print"])
def test_a_reader_who_has_seen_enough_is_no_failure(printer: str) -> None:
    """`--help | head` ended with an error about a pipe, and what rich printed with the exit code of failed trials."""
    script = f"""
from rich.console import Console
from ray_atr.cli.parse import run_script
run_script(lambda: [{printer}('x' * 20) for _ in range(9_999)])
"""
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(script)} | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("x" * 20 + "\n", "", 141)


def test_the_time_that_elapses_ends_with_its_reader() -> None:
    """`train | head` ended with the traceback of a thread."""
    script = """
import time
from ray_atr.cli.parse import heartbeat, run_script
def main():
    with heartbeat("starting", seconds=0.1):
        time.sleep(1)
run_script(main)
"""
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(script)} | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("starting\n", "")


def test_a_mistake_is_not_preceded_by_a_bar_that_counted_nothing() -> None:
    for error, is_shown in ((ValueError, False), (FileNotFoundError, False), (KeyboardInterrupt, True)):
        console = Console(file=io.StringIO(), width=80)
        with pytest.raises(error), counting("clips", console, "importing"):
            raise error
        assert ("importing" in console.file.getvalue()) == is_shown  # type: ignore[attr-defined]


def test_an_unexpected_error_keeps_its_traceback() -> None:
    def main() -> None:
        raise KeyError("a defect of ours")

    with pytest.raises(KeyError):
        run_script(main)


def test_a_command_whose_streams_are_closed_runs(tmp_path: Path) -> None:
    """As a service may start it. A file that it opens must not become its output."""
    program = f"{shlex.quote(sys.executable)} -m ray_atr cache <&- >&- 2>&-"
    done = subprocess.run(program, shell=True, env=os.environ | {"RAY_ATR_HOME": str(tmp_path)}, check=False)
    assert done.returncode == 0


def test_a_user_without_a_home_has_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray Train and MLflow look the home up when they are imported, and a training ended in a RuntimeError."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("HOME")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError):
        Path.home()
    main("cache", arguments=[])
    assert Path.home() == tmp_path
