"""Kills or fails a piece of work at the n-th file operation below a folder, for every n.

What counts is what changes a file system: opening to write, making, renaming, linking and removing. Python tells of each by
an audit event before it happens, also of one that will change nothing: making a folder that is there, removing a file that is
not. A kill after such a one leaves what a kill before it leaves, so only one of the two is tried. Work runs in a fork of this
process, so that a kill is a kill: no `finally`, no exit handlers, every lock let go of by the operating system.
"""

from __future__ import annotations

import errno
import os
import pickle
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

KILL, TEAR, FULL, CUT = "kill", "tear", "full disk", "no room in the middle of a file"
"""End the process before the operation; the same, with half of what was last being written lost; ENOSPC instead of it; the error
of a file that may grow no further (EFBIG), which libraries that write by themselves meet too."""
ALL_POINTS = os.environ.get("RAY_ATR_ALL_POINTS") == "1"
"""Whether works are ended at each of their operations: also at those that change nothing, and slow works not only at some,
spread over all."""
TAKES_ROOM = ("open", "os.mkdir", "os.rename", "os.link", "os.symlink")

_hook: Callable[[str, tuple[Any, ...]], None] | None = None
_is_installed = False


def file_operations(work: Callable[[], object], below: Path) -> list[str]:
    """The operations of a whole run of `work`, as texts."""
    return [seen.operation for seen in _observed(work, below)]


class Seen(NamedTuple):
    """An operation, and whether a file that was being written can be torn before it, and it changes anything."""

    operation: str
    can_tear: bool
    is_change: bool


def _observed(work: Callable[[], object], below: Path) -> list[Seen]:
    """The operations of a whole run of `work`."""
    seen: list[Seen] = []

    def act(number: int, operation: str, last_written: Path | None) -> None:
        can_tear = last_written is not None and last_written.is_file()
        seen.append(Seen(operation, can_tear, _is_change(operation, below)))

    def observed() -> list[Seen]:
        _watching(work, below, act)
        return seen

    assert in_fork(observed, into=seen) == 0, "the work fails without a kill"
    return seen


def killed_at(work: Callable[[], object], below: Path, point: int, how: str = KILL) -> bool:
    """Run `work` in a fork that dies at its operation number `point`; False if it ended before."""

    def act(number: int, operation: str, last_written: Path | None) -> None:
        if number == point:
            if how == TEAR and last_written is not None and last_written.is_file():
                os.truncate(last_written, last_written.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    return in_fork(lambda: _watching(work, below, act)) == -signal.SIGKILL


def failed_at(work: Callable[[], object], below: Path, point: int, error: int = errno.ENOSPC) -> int:
    """Run `work` in a fork whose operation number `point` fails with an errno; 0 if it ended well, 1 if it raised."""

    def act(number: int, operation: str, last_written: Path | None) -> None:
        if number == point:
            raise OSError(error, os.strerror(error), operation)

    return in_fork(lambda: _watching(work, below, act))


def every_crash(
    prepare: Callable[[Path], Callable[[], object]],
    root: Path,
    ways: tuple[str, ...] = (KILL, TEAR, FULL, CUT),
    most: int | None = None,
) -> Iterator[tuple[Path, str]]:
    """For each operation of a work after which the disk is another, and each way to end there: a folder of its own in which it
    did, and a name for it.

    `prepare(folder)` makes what is there before, and returns the work. `most` is how many of them a slow work gets in each
    way, unless RAY_ATR_ALL_POINTS=1. Files may grow to half of what they become, and to all but their last byte: 4 such sizes.
    """
    operations = _observed(prepare(_new(root / "whole")), root / "whole")
    count = len(operations)
    assert count > 0, "the work changes no file below the folder"
    numbered = list(enumerate(operations, start=1))
    # Killed before an operation, all is as it was after the one before it, and that may have changed nothing.
    new = [(point, one) for point, one in numbered if ALL_POINTS or point == 1 or operations[point - 2].is_change]
    points = {
        KILL: [point for point, _ in new],
        TEAR: [point for point, one in new if one.can_tear],
        FULL: [p for p, one in numbered if one.operation.startswith(TAKES_ROOM) and (ALL_POINTS or one.is_change)],
    }
    for how in ways:
        for point in spread(points.get(how, ()), most):
            operation = operations[point - 1].operation
            folder = _new(root / f"{how}-{point}")
            if how == FULL:
                failed_at(prepare(folder), folder, point)
            else:
                assert killed_at(prepare(folder), folder, point, how), f"ended before operation {point} of {count}"
            yield folder, f"{how} at operation {point} of {count} ({operation})"
    sizes = {path.stat().st_size for path in (root / "whole").rglob("*") if path.is_file()}
    for most_bytes in spread(sorted({limit for size in sizes if size > 1 for limit in (size // 2, size - 1)}), 4):
        if CUT in ways:
            folder = _new(root / f"cut-{most_bytes}")
            work = prepare(folder)
            in_fork(partial(_limited, work, most_bytes))
            yield folder, f"no room beyond byte {most_bytes} of a file"


def _is_change(operation: str, below: Path) -> bool:
    """Whether an operation, not yet done, will change anything."""
    event, *paths = operation.split(" ")
    if len(paths) != (2 if event in _TWO_PATHS else 1):
        return True  # a name with a space
    if event == "os.mkdir":
        return not (below / paths[0]).exists() and (below / paths[0]).parent.is_dir()
    return event not in ("os.remove", "os.rmdir", "os.rename", "os.link") or os.path.lexists(below / paths[0])


def _limited(work: Callable[[], object], most_bytes: int) -> None:
    """Run `work` in a process of which no file may grow beyond `most_bytes`."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    work()


def spread(points: Sequence[int], most: int | None) -> list[int]:
    """At most `most` of the points, the first and the last among them; all with RAY_ATR_ALL_POINTS=1."""
    if ALL_POINTS or most is None or len(points) <= most:
        return list(points)
    return [points[round(number * (len(points) - 1) / (most - 1))] for number in range(most)]


def in_fork(work: Callable[[], object], into: list[Any] | None = None) -> int:
    """Run `work` in a fork of this process: 0 if it ended well, 1 if it raised, minus the signal that killed it.

    A list that it returns is put into `into`.
    """
    with tempfile.TemporaryFile() as answer:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                # The threads that computed here before are not in the fork, and OpenMP would wait for them for ever.
                torch.set_num_threads(1)
                result = work()
                if into is not None:
                    pickle.dump(result, answer)
                    answer.flush()
                code = 0
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if into is not None and status == 0:
            answer.seek(0)
            into[:] = pickle.load(answer)
    return os.waitstatus_to_exitcode(status)


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _watching(work: Callable[[], object], below: Path, act: Callable[[int, str, Path | None], None]) -> None:
    """Run `work`, calling `act(number, operation, file last opened to write)` before each operation below a folder."""
    global _hook, _is_installed
    state: dict[str, Any] = {"number": 0, "last": None, "busy": False}
    root = f"{below.resolve()}{os.sep}"

    def hook(event: str, args: tuple[Any, ...]) -> None:
        paths = _paths(event, args)
        if state["busy"] or not any(f"{path}{os.sep}".startswith(root) for path in paths):
            return
        state["busy"] = True
        try:
            state["number"] += 1
            act(state["number"], f"{event} {' '.join(path.removeprefix(root) for path in paths)}", state["last"])
            state["last"] = Path(paths[0]) if event == "open" else state["last"]
        finally:
            state["busy"] = False

    _hook = hook
    if not _is_installed:
        sys.addaudithook(lambda event, args: _hook(event, args) if _hook is not None else None)
        _is_installed = True
    try:
        work()
    finally:
        _hook = None


_ONE_PATH = {"os.remove": 1, "os.mkdir": 2, "os.rmdir": 1, "os.truncate": None}
_TWO_PATHS = ("os.rename", "os.link", "os.symlink")


def _paths(event: str, args: tuple[Any, ...]) -> list[str]:
    """The absolute paths that an operation changes; none for what changes nothing."""
    if event == "open":
        path, _, flags = args
        is_writing = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        return [_absolute(path, None)] if is_writing and isinstance(path, str | bytes | os.PathLike) else []
    if event in _ONE_PATH:
        place = _ONE_PATH[event]
        return [_absolute(args[0], None if place is None else args[place])]
    if event in _TWO_PATHS:
        folders = args[2:4] if len(args) >= 4 else (None, None)
        return [_absolute(path, folder) for path, folder in zip(args[:2], folders, strict=True)]
    return []


def _absolute(path: Any, folder: int | None) -> str:
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")
    text = os.fsdecode(path)
    if folder is not None and folder >= 0 and not os.path.isabs(text):
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)
    return os.path.abspath(text)
