"""One writer at a time for a folder, local or in a store; a note next to the lock names the holder.

On a file system the operating system holds the lock and releases it when the process ends, however it ends. A store, and
a file system whose locks do not reach other machines, has only the note: the holder renews it every minute, and after three
minutes without renewal the holder counts as dead. A holder that was suspended, or could not reach the store, for that long
finds the other's note when it renews its own, and ends at once.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from ray_atr.common.digests import read_json, write_json
from ray_atr.common.locations import Location, StorageError, file_exists, storage_errors, with_retries

LOCK_FILE = "lock"
HOLDER_FILE = "lock.json"
RENEW_SECONDS = 60.0
DEAD_AFTER_SECONDS = 180.0
POLL_SECONDS = 2.0
EXIT_LOST = 2
"""The exit code of a process whose folder another one has taken over; the same as if it had been taken from the start."""


@dataclass(frozen=True)
class Holder:
    """The holder of a folder: a process, since when, and the last renewal (seconds since 1970)."""

    id: str
    host: str
    pid: int
    user: str
    since: float
    renewed: float

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} of {self.user} on {self.host}, since {since}"

    @property
    def seconds_left(self) -> float:
        """Seconds until it counts as dead, at most those after a renewal."""
        return min(self.renewed + DEAD_AFTER_SECONDS - time.time(), DEAD_AFTER_SECONDS)


@contextlib.contextmanager
def hold(folder: Location, what: str) -> Iterator[None]:
    """Be the only writer of a folder that exists. ValueError, with its holder and a remedy, if it has one already."""
    with contextlib.ExitStack() as held:
        if isinstance(folder, Path):
            try:
                held.enter_context(FileLock(folder / LOCK_FILE).acquire(timeout=0))
            except Timeout:
                who = _holder(folder) or "another process"
                wait = "wait until it ends, or end it and run the same command again"
                raise ValueError(f"{folder}: {what} is being written by {who}; {wait}") from None
            # Removed while it is held: a process that opened it before and locks it afterwards has a file without a
            # name, which `FileLock` detects.
            held.callback(_remove, folder / LOCK_FILE)
        held.enter_context(_noted(folder, what))
        yield


def _remove(file: Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)


@contextlib.contextmanager
def _noted(folder: Location, what: str) -> Iterator[None]:
    """The note that names this process as holder, renewed until the block ends."""
    host, earlier = socket.gethostname(), _holder(folder)
    # This machine's operating system has released the lock of an earlier process on it, which is dead.
    is_of_here = isinstance(folder, Path) and earlier is not None and earlier.host == host
    if earlier is not None and earlier.seconds_left > 0 and not is_of_here:
        _outlive(folder, earlier, what)
    now = time.time()
    mine = Holder(uuid.uuid4().hex, host, os.getpid(), user_name(), now, now)
    _write(folder, mine, is_first=earlier is None)
    if not isinstance(folder, Path) and (holder := _holder(folder)) is not None and holder.id != mine.id:
        raise _taken(folder, what, holder)
    ended = threading.Event()
    renewing = threading.Thread(target=_renew, args=(folder, what, mine, ended), name="lock", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        # If the store does not answer, the note expires by itself.
        with contextlib.suppress(OSError), storage_errors(folder):
            if _successor(folder, mine) is None:
                (folder / HOLDER_FILE).unlink(missing_ok=True)


def _outlive(folder: Location, holder: Holder, what: str) -> None:
    """Wait until the holder counts as dead or has let go. ValueError as soon as it, or another process, writes the note.

    A job that is queued again because its node was lost starts before the note expires, and nobody would start it a third time.
    """
    advice = (
        f"if it is dead, this command goes on in {holder.seconds_left:.0f} s, or once {folder / HOLDER_FILE} is deleted"
    )
    print(f"{folder}: {what} is being written by {holder}; {advice}", file=sys.stderr, flush=True)
    found: Holder | None = holder
    # By this process's own clock: the holder's may be hours ahead, and either may be set back.
    until = time.monotonic() + holder.seconds_left
    while found is not None and time.monotonic() < until:
        if found != holder:
            raise _taken(folder, what, found)
        time.sleep(POLL_SECONDS)
        found = _holder(folder)


def _taken(folder: Location, what: str, holder: Holder) -> ValueError:
    return ValueError(f"{folder}: {what} is being written by {holder}; run the same command again when it has ended")


def _renew(folder: Location, what: str, mine: Holder, ended: threading.Event) -> None:
    while not ended.wait(RENEW_SECONDS):
        with contextlib.suppress(OSError):
            if (successor := _successor(folder, mine)) is not None:
                # As if it had been killed, which a folder survives: whatever this process wrote now, also on its way out, the
                # other one would not know of.
                print(f"error: {_taken(folder, what, successor)}", file=sys.stderr, flush=True)
                os._exit(EXIT_LOST)
            write_json(folder / HOLDER_FILE, {**asdict(mine), "renewed": time.time()})


def _successor(folder: Location, mine: Holder) -> Holder | None:
    """The process that has taken the folder over, because this one did not renew its note in time; usually None."""
    holder = _holder(folder)
    return holder if holder is not None and holder.id != mine.id else None


def _write(folder: Location, holder: Holder, *, is_first: bool) -> None:
    if isinstance(folder, Path) or not is_first:
        write_json(folder / HOLDER_FILE, asdict(holder))
        return
    file = folder / HOLDER_FILE

    def created() -> None:
        # If two start at once, the store lets one create the file; the other reads its name in it.
        with contextlib.suppress(FileExistsError):
            file.fs.pipe_file(file.path, json.dumps(asdict(holder)).encode(), mode="create")

    with_retries(file, created)


def _holder(folder: Location) -> Holder | None:
    """The holder by the folder's note; None if there is no note, or it cannot be read."""
    try:
        return Holder(**read_json(folder / HOLDER_FILE)) if file_exists(folder / HOLDER_FILE) else None
    except (ValueError, TypeError, StorageError):
        return None


def user_name() -> str:
    """The user of this process; the number of a user without a name, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
