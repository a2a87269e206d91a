"""Kills or fails a piece of work at the n-th file operation below a folder, for every n.

What counts is what changes a file system: opening to write, making, renaming, linking and removing. Python tells of each by
an audit event before it happens, also of one that will change nothing: making a folder that is there, removing a file that is
not. A kill after such a one leaves what a kill before it leaves, so only one of the two is tried. Work runs in one fork of
this process, which makes a copy at each point: what is on the disk then is what a kill leaves, without what a `finally` or an
exit handler would add. With RAY_ATR_ALL_POINTS=1 a fork is killed at each.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import pickle
import resource
import shutil
import signal
import sys
import tempfile
import threading
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
    """The operations of a whole run of `work` in a fork, as texts."""
    seen: list[Seen] = []
    assert in_fork(lambda: _observed(work, below), into=seen) == 0, "the work fails without a kill"
    return [one.operation for one in seen]


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

    _watching(work, below, act)
    return seen


def failed_at(work: Callable[[], object], below: Path, point: int, error: int = errno.ENOSPC) -> int:
    """Run `work` in a fork whose operation number `point` fails with an errno; 0 if it ended well, 1 if it raised."""
    return in_fork(partial(_failing, work, below, point, error))


class Crash(NamedTuple):
    """A folder in which the work has ended, or a copy of what was in it then, and a name for how."""

    folder: Path
    copy: Path | None
    name: str


def every_crash(
    prepare: Callable[[Path], Callable[[], object]],
    root: Path,
    ways: tuple[str, ...] = (KILL, TEAR, FULL, CUT),
    most: int | None = None,
) -> Iterator[tuple[Path, str]]:
    """For each operation of a work after which the disk is another, and each way to end there: a folder in which it did, and a
    name for it.

    `prepare(folder)` makes what is there before, and returns the work. `most` is how many of them a slow work gets in each
    way, unless RAY_ATR_ALL_POINTS=1. Files may grow to half of what they become, and to all but their last byte: 4 such sizes.

    What a kill leaves is what is on the disk at that moment: a copy made then, which takes the folder's place, so that paths
    in its files are those of a killed process. RAY_ATR_ALL_POINTS=1 kills a process for each.
    """
    found: list[Crash] = []
    assert in_fork(lambda: list(_crashes(prepare, root, ways, most)), into=found) == 0, "the work fails without a kill"
    for folder, copy, name in found:
        if copy is not None:
            shutil.rmtree(folder, ignore_errors=True)
            copy.rename(folder)
        yield folder, name


def _crashes(
    prepare: Callable[[Path], Callable[[], object]], root: Path, ways: tuple[str, ...], most: int | None
) -> Iterator[Crash]:
    """The crashes, one after the other in this process, which ends after them."""
    operations = _observed(prepare(_new(root / "whole")), root / "whole")
    count = len(operations)
    assert count > 0, "the work changes no file below the folder"
    numbered = list(enumerate(operations, start=1))
    # Killed before an operation, all is as it was after the one before it, and that may have changed nothing.
    new = [(point, one) for point, one in numbered if ALL_POINTS or point == 1 or operations[point - 2].is_change]
    room = [p for p, one in numbered if one.operation.startswith(TAKES_ROOM) and (ALL_POINTS or one.is_change)]
    points = {
        KILL: spread([point for point, _ in new], most),
        TEAR: spread([point for point, one in new if one.can_tear], most),
    }
    kills = [(how, point) for how in ways for point in points.get(how, ())]
    names = {
        (how, point): f"{how} at operation {point} of {count} ({operations[point - 1].operation})"
        for how, point in kills
    }
    if ALL_POINTS:
        for how, point in kills:
            folder = _new(root / f"{how}-{point}")
            assert _killed_at(prepare(folder), folder, point, how), f"ended before operation {point} of {count}"
            yield Crash(folder, None, names[how, point])
    elif kills:
        folder, copies = _new(root / "killed"), _new(root / "at")
        _copying(prepare(folder), folder, copies, kills)
        for how, point in kills:
            assert (copies / f"{how}-{point}").is_dir(), f"ended before operation {point} of {count}"
            yield Crash(folder, copies / f"{how}-{point}", names[how, point])
    for point in spread(room, most) if FULL in ways else ():
        folder = _new(root / f"{FULL}-{point}")
        work = prepare(folder)
        with contextlib.suppress(Exception):
            _failing(work, folder, point)
        yield Crash(folder, None, f"{FULL} at operation {point} of {count} ({operations[point - 1].operation})")
    sizes = {path.stat().st_size for path in (root / "whole").rglob("*") if path.is_file()}
    limits = sorted({limit for size in sizes if size > 1 for limit in (size // 2, size - 1)})
    for most_bytes in spread(limits, 4) if CUT in ways else ():
        folder = _new(root / f"cut-{most_bytes}")
        work = prepare(folder)
        with contextlib.suppress(Exception):
            _limited(work, most_bytes)
        yield Crash(folder, None, f"no room beyond byte {most_bytes} of a file")


def _killed_at(work: Callable[[], object], below: Path, point: int, how: str) -> bool:
    """Run `work` in a fork that dies at its operation number `point`; False if it ended before."""

    def act(number: int, operation: str, last_written: Path | None) -> None:
        if number == point:
            if how == TEAR:
                _tear(last_written)
            os.kill(os.getpid(), signal.SIGKILL)

    return in_fork(lambda: _watching(work, below, act)) == -signal.SIGKILL


def _copying(work: Callable[[], object], below: Path, copies: Path, kills: Sequence[tuple[str, int]]) -> None:
    """Run `work` and copy, before each operation where it is to be killed, what is there: what a kill would leave."""

    def act(number: int, operation: str, last_written: Path | None) -> None:
        for how, point in kills:
            if number == point:
                copy = shutil.copytree(below, copies / f"{how}-{point}", symlinks=True)
                if how == TEAR and last_written is not None:
                    _tear(copy / last_written.resolve().relative_to(below.resolve()))

    _watching(work, below, act)


def _tear(file: Path | None) -> None:
    if file is not None and file.is_file():
        os.truncate(file, file.stat().st_size // 2)


def _failing(work: Callable[[], object], below: Path, point: int, error: int = errno.ENOSPC) -> None:
    """Run `work`, whose operation number `point` fails with an errno."""

    def act(number: int, operation: str, last_written: Path | None) -> None:
        if number == point:
            raise OSError(error, os.strerror(error), operation)

    _watching(work, below, act)


def _is_change(operation: str, below: Path) -> bool:
    """Whether an operation, not yet done, will change anything."""
    event, *paths = operation.split(" ")
    if len(paths) != (2 if event in _TWO_PATHS else 1):
        return True  # a name with a space
    if event == "os.mkdir":
        return not (below / paths[0]).exists() and (below / paths[0]).parent.is_dir()
    return event not in ("os.remove", "os.rmdir", "os.rename", "os.link") or os.path.lexists(below / paths[0])


def _limited(work: Callable[[], object], most_bytes: int) -> None:
    """Run `work` while no file of this process may grow beyond `most_bytes`."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, usual[1]))
    try:
        work()
    finally:
        # What the work left open is closed, and so written, under the same limit.
        gc.collect()
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)


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
                if (ray := sys.modules.get("ray")) is not None:
                    # This process's Ray may be running, and a fork that asks it for an actor would wait for ever.
                    ray.is_initialized = lambda: False  # type: ignore[attr-defined]
                # A search for garbage would look at all that is there, and so copy the memory that holds it.
                gc.freeze()
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
    # Other threads wait until `act` has looked at the disk; what `act` itself does there is no operation of the work.
    one_thread = threading.RLock()

    def hook(event: str, args: tuple[Any, ...]) -> None:
        paths = _paths(event, args)
        if not any(f"{path}{os.sep}".startswith(root) for path in paths):
            return
        with one_thread:
            if state["busy"]:
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
