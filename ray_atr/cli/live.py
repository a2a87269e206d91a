"""The terminal's display of a sweep: one table of running and recently ended trials, and the remaining time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ray_atr.cli.parse import DISPLAYED
from ray_atr.common.progress import Echo
from ray_atr.common.settings import counted
from ray_atr.sweep.recording import ConsoleProgress, numbers_of
from ray_atr.training.run_folder import TrialFolder

ENDED_SHOWN = 5
"""Number of ended trials in the table."""
COLUMNS = ("trial", "epoch", "loss", "text>audio R@1", "audio>text R@1")
NOTHING = ("", "", "")


@dataclass
class LiveTable(ConsoleProgress):
    """A table that changes in place. A failed trial gets a permanent line above it."""

    running: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Trial id -> its row."""
    ended: deque[tuple[str, ...]] = field(default_factory=lambda: deque(maxlen=ENDED_SHOWN))
    num_ended: int = 0

    def __rich__(self) -> Group:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
        for column in COLUMNS:
            table.add_column(column, justify="left" if column == COLUMNS[0] else "right", overflow="fold")
        # Copies: a thread of rich's draws while trials end.
        for row in list(self.ended):
            table.add_row(*map(Text, row), style="dim")
        for row in list(self.running.values()):
            table.add_row(*map(Text, row))
        of_all = f" of {self.num_trials}" if self.num_trials is not None else ""
        ended = f"{self.num_ended_before + self.num_ended}{of_all} trials ended"
        words = f"{ended}, {counted(len(self.running), 'trial')} running; {self.clock()}"
        # Above the table, since the end of a table that is higher than the terminal is cut off. The empty line is for the ^C of
        # a terminal: after a full line it would begin a new one, and rich would redraw the table one line too low.
        return Group(Text(words, style="bold"), table, Text())

    def trial_started(self, trial: TrialFolder) -> None:
        super().trial_started(trial)
        self.running[trial.trial_id] = (self._head(trial), "starts", *NOTHING)

    def epoch_ended(self, trial: TrialFolder, metrics: Mapping[str, Any]) -> None:
        self.time_epoch(trial)
        epoch = f"{metrics['epoch']}/{self.epochs_per_trial}"
        _, _, *before = self.running.get(trial.trial_id, ("", "", *NOTHING))
        # An epoch without validation shows the last validated one's numbers.
        numbers = [new or old for new, old in zip(numbers_of(metrics), before, strict=True)]
        self.running[trial.trial_id] = (self._head(trial), epoch, *numbers)

    def trial_finished(self, trial: TrialFolder) -> None:
        self.marks.pop(trial.trial_id, None)
        result = trial.result()
        early = f", patience ended it after {self._spared(trial)}" if result["out_of_patience"] else ""
        self._end(trial, f"best {result['best_epoch']}{early}")

    def trial_stopped(self, trial: TrialFolder) -> None:
        self.marks.pop(trial.trial_id, None)
        self._end(trial, f"stopped after {self._spared(trial)}")

    def trial_failed(self, trial: TrialFolder, error: str) -> None:
        super().trial_failed(trial, error)
        self._end(trial, "FAILED")

    def _end(self, trial: TrialFolder, how: str) -> None:
        _, _, *numbers = self.running.pop(trial.trial_id, ("", "", *NOTHING))
        self.ended.append((self._head(trial), how, *numbers))
        self.num_ended += 1


@contextmanager
def shown_progress(
    epochs_per_trial: int, echo: Echo, console: Console | None = None, *, is_quiet: bool = False
) -> Iterator[ConsoleProgress]:
    """The progress display of a sweep: a table in a terminal; one line per epoch to `echo` elsewhere, or with `is_quiet`."""
    console = console or Console()
    if is_quiet or not console.is_terminal:
        yield ConsoleProgress(epochs_per_trial, echo)
        return
    table = LiveTable(epochs_per_trial, echo)
    DISPLAYED.set()
    try:
        # Other output goes above the table.
        with Live(table, console=console, refresh_per_second=2):
            yield table
    finally:
        DISPLAYED.clear()
