"""What a sweep prints while it runs: the time until the first epoch and the time left, and a sign of life in every silence."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from ray_atr.cli import audit, evaluate
from ray_atr.cli.live import LiveTable, shown_progress
from ray_atr.cli.parse import DISPLAYED, counting, heartbeat
from ray_atr.sweep.recording import ConsoleProgress, FirstEpoch, FirstEstimate
from tests.support.commands import replace_work
from tests.support.tiny import make_data, tiny


def trial(name: str, overrides: Mapping[str, Any] | None = None, epochs: Callable[[], list[Any]] = list) -> Any:
    result = {"best_epoch": 1, "out_of_patience": False}
    described = {"name": name, "overrides": overrides or {}}
    return SimpleNamespace(trial_id=name, describe=lambda: described, epochs=epochs, result=lambda: result)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


def simulated(
    now: list[float], *, start_up: float, epoch: float, epochs: int, trials: int, ray_start: float
) -> tuple[list[str], float]:
    """What two trials at a time of a sweep print, and how long it all takes."""
    said: list[str] = []
    progress = ConsoleProgress(epochs, said.append)
    progress.sweep_started(trials, 0)
    now[0] += ray_start
    for pair in range(0, trials, 2):
        both = [trial(f"t{pair}"), trial(f"t{pair + 1}")]
        for one in both:
            progress.trial_started(one)
        for number in range(1, epochs + 1):
            now[0] += epoch + (start_up if number == 1 else 0)
            for one in both:
                progress.epoch_ended(one, {"epoch": number})
        for one in both:
            progress.trial_finished(one)
    return said, now[0]


def minutes(text: str) -> float:
    whole, seconds = text.split(":")
    return int(whole) + int(seconds) / 60


def test_the_time_left_counts_no_start_up_of_ray(now: list[float]) -> None:
    said, total = simulated(now, start_up=3.0, epoch=2.0, epochs=5, trials=16, ray_start=120.0)
    lines = [line for line in said if "gone" in line]
    assert "left" not in lines[0]
    checked = 0
    for line in lines[2:]:
        gone, left = line.rsplit("  ", 1)[1].split(" gone, about ")
        # What is said to be left, is: to a tenth, and the seconds of two epochs.
        truly = total / 60 - minutes(gone)
        assert minutes(left.removesuffix(" left")) == pytest.approx(truly, rel=0.1, abs=5 / 60)
        checked += 1
    assert checked > 50


def test_a_trial_of_one_epoch_has_a_time_left_too(now: list[float]) -> None:
    said, _ = simulated(now, start_up=3.0, epoch=2.0, epochs=1, trials=4, ray_start=60.0)
    assert [line for line in said if "about 0:05 left" in line]


def test_epochs_of_before_a_resume_are_not_to_come(now: list[float]) -> None:
    said: list[str] = []
    progress = ConsoleProgress(5, said.append)
    progress.sweep_started(1, 0)
    one, recorded = trial("resumed"), [{"epoch": number} for number in (1, 2, 3)]
    one.epochs = lambda: recorded
    for number in (4, 5):
        # Also where its process died and it was begun again.
        progress.trial_started(one)
        now[0] += 2.0
        recorded.append({"epoch": number})
        progress.epoch_ended(one, {"epoch": number})
    assert progress.epochs_ended == 5
    progress.trial_finished(one)
    assert progress.epochs_ended == 5


def test_a_trial_that_patience_ended_says_so_and_its_epochs_are_not_to_come() -> None:
    said: list[str] = []
    progress = ConsoleProgress(9, said.append)
    progress.sweep_started(2, 0)
    for name, is_early in (("early", True), ("whole", False)):
        one, recorded = trial(name), list[dict[str, int]]()
        one.epochs = lambda recorded=recorded: recorded
        one.result = lambda is_early=is_early: {"best_epoch": 3, "out_of_patience": is_early}
        progress.trial_started(one)
        for number in range(1, (5 if is_early else 9) + 1):
            recorded.append({"epoch": number})
            progress.epoch_ended(one, recorded[-1])
        progress.trial_finished(one)
    finished = [line for line in said if "finished" in line]
    assert finished == [
        "[ 1/2] early  finished, ended by train.patience after epoch 5, best epoch 3",
        "[ 2/2] whole  finished, best epoch 3",
    ]
    assert progress.epochs_ended == 2 * 9


@pytest.mark.parametrize("kind", [ConsoleProgress, LiveTable])
def test_a_trial_may_have_a_number_of_epochs_of_its_own(now: list[float], kind: type[ConsoleProgress]) -> None:
    said: list[str] = []
    progress = kind(10, said.append)
    progress.sweep_started(2, 0)
    short, long = trial("short", {"train.epochs": 2}), trial("long", {"train.epochs": 20})
    progress.trial_started(short)
    for number in (1, 2):
        now[0] += 60.0
        progress.epoch_ended(short, {"epoch": number})
    progress.trial_finished(short)
    progress.trial_started(long)
    now[0] += 60.0
    progress.epoch_ended(long, {"epoch": 1})
    assert progress.clock() == "3:00 gone, about 19:00 left"
    shown = progress.running["long"][1] if isinstance(progress, LiveTable) else said[-1].split("epoch ")[1]
    assert shown.startswith("1/20")


def test_the_epochs_of_a_trial_that_failed_are_not_to_come(now: list[float]) -> None:
    said: list[str] = []
    progress = ConsoleProgress(5, said.append)
    progress.sweep_started(2, 0)
    one = trial("broken", epochs=lambda: [{"epoch": 1}])
    progress.trial_started(one)
    progress.epoch_ended(one, {"epoch": 1})
    progress.trial_failed(one, "loss is nan")
    progress.trial_started(trial("whole"))
    for number in range(1, 6):
        now[0] += 60.0
        progress.epoch_ended(trial("whole"), {"epoch": number})
    assert said[-1].endswith("5:00 gone, about 0:00 left")


@pytest.mark.parametrize("kind", [ConsoleProgress, LiveTable])
def test_no_epoch_of_a_trial_that_ends_without_a_start_is_to_come(kind: type[ConsoleProgress]) -> None:
    """A race drops trials that wait, also those of which an earlier session trained some epochs, or of fewer epochs."""
    progress = kind(10)
    progress.sweep_started(3, 0)
    for number, overrides in enumerate(({}, {"train.epochs": 4})):
        progress.trial_stopped(trial(f"dropped {number}", overrides, epochs=lambda: [{"epoch": 1}, {"epoch": 2}]))
    assert progress.epochs_ended == 2 * 10


@pytest.mark.parametrize("kind", [ConsoleProgress, LiveTable])
def test_the_further_seeds_of_a_race_are_counted_on(now: list[float], kind: type[ConsoleProgress]) -> None:
    """`sweep` calls itself for them, and starts its listeners again."""
    said: list[str] = []
    progress = kind(2, said.append)
    for num_trials, num_ended, names in ((3, 1, "ab"), (4, 3, "c")):
        progress.sweep_started(num_trials, num_ended)
        for name in names:
            progress.trial_started(trial(name))
            for number in (1, 2)[: 1 if name == "c" else 2]:
                now[0] += 60.0
                progress.epoch_ended(trial(name), {"epoch": number})
            if name != "c":
                progress.trial_finished(trial(name))
    assert progress._head(trial("c")) == "[ 4/4] c"
    assert progress.clock() == "5:00 gone, about 1:00 left"
    if isinstance(progress, LiveTable):
        assert progress.num_ended_before + progress.num_ended == 3


def test_a_silence_is_broken() -> None:
    """By a clock that goes when it is told to: on a busy machine a thread looks at a real one too late."""
    clock, looks, said = [0.0], [0], list[str]()

    def monotonic() -> float:
        looks[0] += 1
        return clock[0]

    def looked() -> None:
        """Wait until what watches has looked at the clock twice: what the first look led to is done."""
        before = looks[0]
        while looks[0] < before + 4:
            time.sleep(0.005)

    with heartbeat("starting", seconds=0.4, write=said.append, clock=monotonic) as echo:
        assert said == ["starting"]
        looked()
        clock[0] = 0.35
        looked()
        assert said == ["starting"]
        # A tenth early.
        clock[0] = 0.37
        looked()
        assert len(said) == 2
        assert said[1].startswith("... 0:0")
        echo("an epoch")
        clock[0] = 0.7
        looked()
        assert said[2:] == ["an epoch"]
        clock[0] = 1.2
        looked()
        assert len(said) == 4
        echo("another")
    clock[0] = 10.0
    assert "heartbeat" not in [thread.name for thread in threading.enumerate()]
    assert said[4:] == ["another"]


def listener(said: list[str]) -> FirstEpoch:
    first = FirstEpoch(said.append)
    first.parts["imports"] = 2.0
    first.inputs_ready({"Ray": 4.0, "data and features": 6.0})
    return first


def test_the_parts_add_up_to_the_time_and_are_said_once(now: list[float]) -> None:
    said: list[str] = []
    first = listener(said)
    first.trial_started(trial("a"))
    first.trial_started(trial("b"))
    now[0] += 8
    first.epoch_ended(trial("a"), {"epoch": 1, "seconds/train": 2.5, "seconds/validation": 0.5})
    first.epoch_ended(trial("b"), {"epoch": 1, "seconds/train": 2.5})
    assert said == [
        "first epoch 20.0 s after the command: imports 2.0, Ray 4.0, data and features 6.0, start of the trial 5.0, epoch 3.0"
    ]


def test_the_epochs_of_before_of_a_resumed_trial_are_none(now: list[float]) -> None:
    said: list[str] = []
    first = listener(said)
    first.epoch_ended(trial("never started here"), {"epoch": 1})
    first.trial_started(trial("a"))
    first.epoch_ended(trial("a"), {"epoch": 3})
    assert said == []


def test_imports_are_counted_from_the_start_of_the_process() -> None:
    assert 0 < FirstEpoch().parts["imports"] < 24 * 3600


def test_a_trial_without_an_estimate_starts_without_a_look_at_its_data() -> None:
    elsewhere = tiny(Path("no/such/set"), data__languages=("eng",))
    FirstEstimate(elsewhere).trial_started(trial("a", overrides={"objective": "kcl"}))


def test_what_is_estimated_before_the_first_epoch_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    data = make_data(tmp_path / "tones")
    first = FirstEstimate(tiny(data), said.append)

    def start(**overrides: Any) -> None:
        values = {path.replace("__", "."): value for path, value in overrides.items()}
        first.trial_started(trial("a", overrides=values))

    method = {"objective": "kcl", "objective__correspondence": "leave_one_out"}
    start(objective="kcl")
    assert not said
    start(**method, seed=0)
    start(**method, seed=1)
    english = "before the first epoch, leave_one_out estimates which captions of 24 clips in 1 language are right"
    assert said == [english.replace("1 language", "2 languages")]
    start(**{**method, "objective": "contrastive"})
    assert said[1:] == [english]
    estimated = {"objective": "m_ltm_pot", "objective__pair__transport_mass": "auto"}
    start(**estimated, data__wrong_share=0.2)
    assert len(said) == 2
    start(**estimated)
    assert said[2:] == ["before the first epoch, the share of right captions in 1 language is estimated by 24 clips"]
    first.said.clear()
    first.trial_started(trial("a", overrides={"objective.correspondence": "leave_one_out"}, epochs=lambda: [1]))
    assert len(said) == 3


def shown(table: LiveTable) -> list[str]:
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(table)
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]  # type: ignore[attr-defined]


def test_a_terminal_has_a_row_a_trial_that_runs_and_the_last_that_ended(now: list[float]) -> None:
    said: list[str] = []
    table = LiveTable(3, said.append)
    table.sweep_started(9, 1)
    for number in range(7):
        one = trial(f"t{number}")
        table.trial_started(one)
        now[0] += 2
        table.epoch_ended(one, {"epoch": 1, "train/loss": 2.5, "text_to_audio/trained/recall_at_1": number / 10})
        now[0] += 2
        # Without a validation.
        table.epoch_ended(one, {"epoch": 2, "train/loss": 1.25})
        if number < 5:
            table.trial_finished(one)
    table.trial_failed(trial("t5"), "step 3: loss is nan")
    first, head, *rows = [line for line in shown(table) if "─" not in line and "━" not in line]
    assert head.split()[0] == "trial"
    assert [row.split()[2] for row in rows if "t6" not in row] == ["t1", "t2", "t3", "t4", "t5"]
    assert [row.split()[3:] for row in rows if "t6" in row] == [["2/3", "1.250", "60.0%"]]
    assert "FAILED" in next(row for row in rows if "t5" in row)
    assert "best 1" in next(row for row in rows if "t4" in row)
    # A place for the terminal's ^C, which would push the end of a full line down.
    assert str(table.__rich__().renderables[-1]) == ""
    assert first.startswith("7 of 9 trials ended, 1 trial running; 0:28 gone, about ")
    assert said == ["[ 7/9] t5  FAILED: step 3: loss is nan"]


@pytest.mark.parametrize("rows", ["ended", "running"])
def test_trials_start_and_end_while_the_table_is_drawn(rows: str) -> None:
    """By another thread, which an error would end, and the table would stand still."""
    table = LiveTable(3, print)

    class DrawnMeanwhile(tuple[str, ...]):
        """A row during whose drawing the trial ends and the next one starts."""

        def __iter__(self) -> Iterator[str]:
            table.trial_finished(trial("t0"))
            table.trial_started(trial("t1"))
            return super().__iter__()

    row = DrawnMeanwhile(("[ 1] t0", "best 1", "", "", ""))
    table.running["t0"] = row
    if rows == "ended":
        table.ended.append(row)
    assert table.__rich__().renderables


def test_of_more_trials_than_lines_the_time_left_is_seen(now: list[float]) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80, height=10, color_system=None)
    with shown_progress(2, print, terminal) as progress:
        progress.sweep_started(40, 0)
        for number in range(20):
            progress.trial_started(trial(f"t{number}"))
    seen, *_ = terminal.file.getvalue().split("t19")  # type: ignore[attr-defined]
    assert "0 of 40 trials ended, 20 trials running" in seen


def test_lines_are_printed_only_where_the_output_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    file = Console(file=io.StringIO())
    written: list[str] = []
    with shown_progress(2, written.append, file) as progress:
        progress.trial_started(trial("a"))
        progress.epoch_ended(trial("a"), {"epoch": 1})
        assert not DISPLAYED.is_set()
    assert len(written) == 1
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80, height=20, color_system=None)
    with shown_progress(2, written.append, terminal) as progress, heartbeat("starting", seconds=0.05):
        progress.trial_started(trial("a"))
        progress.epoch_ended(trial("a"), {"epoch": 1})
        time.sleep(0.3)
        assert DISPLAYED.is_set()
    assert not DISPLAYED.is_set()
    assert len(written) == 1
    assert "1/2" in terminal.file.getvalue()  # type: ignore[attr-defined]
    # The table is the sign of life.
    assert "elapsed" not in capsys.readouterr().out + terminal.file.getvalue()  # type: ignore[attr-defined]


def test_a_full_bar_is_no_sign_of_life() -> None:
    """`evaluate` encodes with a bar, and then ranks for minutes."""
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80, height=20, color_system=None)
    with heartbeat("evaluating", write=print):
        with counting("clips", terminal) as count:
            count("encoding", 1, 2)
            assert DISPLAYED.is_set()
            count("encoding", 2, 2)
            assert not DISPLAYED.is_set()
        with counting("clips", terminal) as count:
            count("encoding", 1, 2)
        assert not DISPLAYED.is_set(), "a bar that ended early"
        with counting("clips", Console(file=io.StringIO())) as count:
            count("encoding", 1, 2)
            assert not DISPLAYED.is_set(), "a file has the bar at its end alone"


def test_a_bar_in_a_file_prints_a_line_now_and_then() -> None:
    """The index of 20,000 sounds said nothing for its whole minute."""
    for is_terminal in (False, True):
        console = Console(file=io.StringIO(), force_terminal=is_terminal, width=80, color_system=None)
        with counting("", console, "sounds", seconds=0.0) as count:
            count("sounds", 1_500, 20_000)
            count("sounds", 20_000, 20_000)
        written = console.file.getvalue()  # type: ignore[attr-defined]
        assert ("sounds: 1,500 of 20,000\n" in written) != is_terminal
        assert "20,000 of" not in written


def test_an_audit_in_a_file_is_not_silent_within_a_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of ten steps of 180,000 captions took up to 100 seconds."""

    def audit_data_set(*arguments: object, **options: object) -> None:
        assert "heartbeat" in [thread.name for thread in threading.enumerate()]
        raise ValueError("seen enough")

    replace_work(monkeypatch, {"workshop.audit.run.audit_data_set": audit_data_set})
    with pytest.raises(ValueError, match="seen enough"):
        audit.run(["data", "--out", "out"], "audit")
    assert capsys.readouterr().out.startswith("audit of data")


@pytest.mark.parametrize(
    ("command", "arguments", "works", "line"),
    [
        (audit, ["data", "--out", "out"], "workshop.audit.run.audit_data_set", "part: 1 of 10 steps"),
        (
            evaluate,
            ["--checkpoint", "c"],
            "evaluation.run.evaluate",
            "encoding by part: 1 of 10 clips and captions",
        ),
    ],
)
def test_a_count_in_a_file_is_the_sign_of_life(
    monkeypatch: pytest.MonkeyPatch, command: ModuleType, arguments: list[str], works: str, line: str
) -> None:
    """Both the count and the elapsed time stood there, two lines in ten seconds."""
    said: list[str] = []

    def work(*arguments: object, progress: Callable[[str, int, int], None], **options: object) -> None:
        progress("part", 1, 10)
        raise ValueError("seen enough")

    own = command.__name__.removeprefix("ray_atr.")
    at_once = {
        f"{own}.heartbeat": lambda name, write: nullcontext(said.append),
        f"{own}.counting": partial(counting, seconds=0.0),
    }
    replace_work(monkeypatch, {works: work, **at_once})
    with pytest.raises(ValueError, match="seen enough"):
        command.run(arguments, "command")
    assert said == [line]


def test_an_interrupted_display_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80, height=20, color_system=None)
    with pytest.raises(KeyboardInterrupt), shown_progress(2, print, terminal):
        raise KeyboardInterrupt
    assert not DISPLAYED.is_set()
