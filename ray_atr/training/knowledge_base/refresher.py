"""A knowledge base that builds new versions in the background, and the client through which a worker switches to them.

The refresher (`InProcessRefresher`, or an actor) turns published weights into snapshots. Every worker has a `SnapshotClient`
with the same refresh points. It switches to a version exactly `lag` steps after its weights were published, and waits if it is
not ready: so a run is reproducible, however long a refresh takes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from ray_atr.objectives.knowledge.knowledge import SearchSpec, SnapshotSettings
from ray_atr.training.knowledge_base.building import build_parts
from ray_atr.training.knowledge_base.faiss_library import limit_threads
from ray_atr.training.knowledge_base.searcher import Searcher
from ray_atr.training.knowledge_base.shard import BaseShard, EncodePart
from ray_atr.training.knowledge_base.snapshot import Entries, PartEntries, Snapshot, remove_version

logger = logging.getLogger(__name__)

KEEP = 3
"""Number of last versions that are not removed, whether they are needed or not."""

ATTEMPTS, PAUSE = 3, 0.5
"""Attempts at a version, as a disk or a network may fail once; seconds before the second attempt (the third: twice as many)."""

UNKNOWN, BUILDING, READY, FAILED = "unknown", "building", "ready", "failed"


class Outcome(NamedTuple):
    """The state of a version: `unknown` (never published, or lost in a crash), `building`, `ready` or `failed`."""

    state: str
    error: str = ""
    seconds: float = 0.0
    failures: int = 0
    """How often it failed before it was ready."""


class Shards(Protocol):
    """The parts of a base, each in a `BaseShard`."""

    def encode(self, version: int, payload: Any) -> None:
        """Begin a version in every shard, from weights or from its part of `Entries`."""

    def each(self, name: str, *arguments: Any) -> list[Any]:
        """Call a method of every shard; the results are in the order of the parts."""


def removable(versions: Sequence[int], needed: int | None) -> list[int]:
    """The versions (given oldest first) that can be removed: those before `needed`; None: all. The last KEEP always stay."""
    return [version for version in versions[:-KEEP] if needed is None or version < needed]


class BackgroundRefresher:
    """Builds versions one after the other in a thread; the last ones are in `folder`.

    A version is written before it is `ready`, so a new base over the same folder has every version that was ready. It does what
    the parts must agree on, k-means and when a version is ready; the rows stay in the shards.
    """

    def __init__(self, shards: Shards, settings: SnapshotSettings, folder: Path, *, pause: float = PAUSE) -> None:
        self.shards, self.settings, self.folder, self.pause = shards, settings, folder, pause
        self._executor = ThreadPoolExecutor(
            1, "knowledge-refresh", initializer=limit_threads, initargs=(torch.get_num_threads(),)
        )
        self._futures: dict[int, Future[float]] = {}
        self._failures: dict[int, int] = {}
        self._lock = threading.Lock()

    def publish(self, payload: Any, version: int, step: int, needed: int | None = None) -> None:
        """Start building a version; returns at once. `payload` is what `Shards.encode` takes.

        When it is built, versions before `needed` are removed, except the last KEEP; None: all except the last KEEP.
        A version is built once: if it is ready, being built or failed, publishing it again has no effect.
        """
        with self._lock:
            if version in self._futures or version in self.versions():
                return
            self._futures[version] = self._executor.submit(self._build_with_retries, payload, version, step, needed)

    def _build_with_retries(self, payload: Any, version: int, step: int, needed: int | None) -> float:
        """Build a version, again if that fails; the error of the last attempt is the version's."""
        for failures in range(1, ATTEMPTS):
            try:
                return self._build(payload, version, step, needed)
            except Exception as error:  # noqa: BLE001
                self._failures[version] = failures
                logger.warning("knowledge base: version %d failed (%s); it is built again", version, in_words(error))
                time.sleep(self.pause * failures)
        return self._build(payload, version, step, needed)

    def _build(self, payload: Any, version: int, step: int, needed: int | None) -> float:
        """Build a version and write it; returns the seconds that this took."""
        started = time.perf_counter()
        earlier = [older for older in self.versions() if older < version]
        self.shards.encode(version, payload)
        start = self.shards.each("centroids", earlier[-1])[0] if earlier else None

        def each(name: str, *arguments: Any) -> list[Any]:
            return self.shards.each("build", version, name, *arguments)

        build_parts(each, self.settings, version=version, step=step, start=start)
        with self._lock:
            for old in removable(self.versions(), needed):
                self._remove(old)
        return time.perf_counter() - started

    def _remove(self, version: int) -> None:
        self.shards.each("remove", version)
        remove_version(self.folder, version)

    def wait(self, version: int, timeout: float) -> Outcome:
        """The outcome once it is known, or after `timeout` seconds."""
        with self._lock:
            future = self._futures.get(version)
        if future is not None:
            wait([future], timeout)
        with self._lock:
            future, is_built = self._futures.get(version), version in self.versions()
        if future is not None and not future.done():
            return Outcome(BUILDING)
        if future is not None and (error := future.exception()) is not None:
            return Outcome(FAILED, in_words(error), failures=ATTEMPTS)
        if not is_built:
            return Outcome(UNKNOWN)
        seconds = future.result() if future is not None else 0.0
        return Outcome(READY, seconds=seconds, failures=self._failures.get(version, 0))

    def versions(self) -> list[int]:
        """The versions that are ready, oldest first."""
        return sorted(set.intersection(*map(set, self.shards.each("versions"))))

    def rewind(self, version: int) -> None:
        """Remove the versions after this one: a resumed run publishes them again. Waits for builds in progress."""
        wait(list(self._futures.values()))
        with self._lock:
            for later in [built for built in self.versions() if built > version]:
                self._remove(later)
            self._futures = {built: future for built, future in self._futures.items() if built <= version}

    def close(self) -> None:
        """Cancel the builds that have not been started."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class LocalShards:
    """Shards in this process, one after the other."""

    def __init__(self, shards: Sequence[BaseShard]) -> None:
        self.shards = shards

    def encode(self, version: int, payload: Any) -> None:
        for shard in self.shards:
            is_entries = isinstance(payload, Entries)
            shard.encode(version, PartEntries.from_entries(payload, shard.part) if is_entries else payload)

    def each(self, name: str, *arguments: Any) -> list[Any]:
        return [getattr(shard, name)(*arguments) for shard in self.shards]


class InProcessRefresher(BackgroundRefresher):
    """A base in one part, in this process."""

    def __init__(self, encoder: EncodePart, settings: SnapshotSettings, folder: Path, *, pause: float = PAUSE) -> None:
        self.shard = BaseShard(encoder, settings, folder)
        super().__init__(LocalShards([self.shard]), settings, folder, pause=pause)

    def get(self, version: int) -> Snapshot:
        """A version that is ready. ValueError if it is not here."""
        return self.shard.get(version)


def in_words(error: BaseException) -> str:
    """An error's type and text, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


class Refresher(Protocol):
    """A knowledge base as its clients see it: in this process, or an actor elsewhere."""

    def publish(self, payload: Any, version: int, step: int, needed: int | None = None) -> None: ...
    def wait(self, version: int, timeout: float) -> Outcome: ...
    def get(self, version: int) -> Snapshot: ...
    def rewind(self, version: int) -> None: ...
    def close(self) -> None: ...


class Pending(NamedTuple):
    """A version that was published at a step, and the step at which every worker switches to it."""

    version: int
    step: int
    due: int


@dataclass
class Timing:
    """Seconds that the client spent since the last report, and failed attempts."""

    stall: float = 0.0
    search: float = 0.0
    refresh: float = 0.0
    failures: int = 0


@dataclass
class SnapshotClient:
    """One worker's view of the base. All workers make the same calls at the same steps; one of them publishes.

        client.refresh(step, payload)       # at a refresh point; only the publisher's payload is sent
        client.before_step(step)            # switches to what is due
        with client.searching() as searcher:
            positions = searcher.search(...)

    A version that fails at every attempt ends the run on all workers: with the old version it would end with other weights
    than a run whose disk did not fail. It can be resumed from its last checkpoint.
    """

    refresher: Refresher
    spec: SearchSpec
    lag: int
    is_publisher: bool = True
    device: torch.device | str = "cpu"
    poll_seconds: float = 10.0
    republish_seconds: float = 1.0
    searcher: Searcher | None = None
    next_version: int = 1
    pending: list[Pending] = field(default_factory=list)
    timing: Timing = field(default_factory=Timing)
    _sent: dict[int, tuple[Any, int]] = field(default_factory=dict)
    _sending: dict[int, Future[None]] = field(default_factory=dict)
    _outbox: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1, "knowledge-outbox"))

    @property
    def version(self) -> int:
        """The version that is searched; 0 before the first."""
        return self.searcher.snapshot.version if self.searcher is not None else 0

    def refresh(self, step: int, payload: Any, lag: int | None = None) -> int:
        """Publish a new version, which every worker switches to `lag` steps later (None: `self.lag`). Returns at once.

        payload  what `Refresher.publish` takes.
        """
        version, lag = self.next_version, self.lag if lag is None else lag
        self.next_version += 1
        self.pending.append(Pending(version, step, step + lag))
        if self.is_publisher:
            # Stored until the version is in use, to be sent again if the base crashes or its node is lost with the folder.
            self._sent[version] = payload, self.version
            self._sending[version] = self._outbox.submit(self._send, version, step)
        return version

    def _send(self, version: int, step: int) -> None:
        """Publish a version's payload. In a thread: gigabytes of weights take seconds to enter an object store.

        The version that was searched when it was published is still needed: a run that is resumed searches it, or a later one.
        """
        payload, needed = self._sent[version]
        self.refresher.publish(payload, version, step, needed)

    def before_step(self, step: int) -> None:
        """Switch to the newest version that is due. Waits for it if it is not ready, which `timing.stall` counts."""
        due = [request for request in self.pending if request.due <= step]
        self.pending = [request for request in self.pending if request.due > step]
        for request in due:
            self.timing.failures += self._await(request).failures
            self._open(request.version)

    def wait_until_built(self) -> None:
        """Wait until all published versions are on disk, so that a checkpoint made now can be resumed with them."""
        for request in self.pending:
            self._await(request)

    def _await(self, request: Pending) -> Outcome:
        """Wait for a version. RuntimeError if it failed or was lost at every attempt, or is lost and its weights are gone too."""
        started = time.perf_counter()
        if (sending := self._sending.pop(request.version, None)) is not None:
            sending.result()
        sent, attempts = time.perf_counter(), 1
        outcome = self.refresher.wait(request.version, 0.0)
        while outcome.state in (UNKNOWN, BUILDING):
            if outcome.state == UNKNOWN:
                if self.is_publisher and request.version not in self._sent:
                    lost = f"version {request.version} of step {request.step} is gone from its folder"
                    raise RuntimeError(f"knowledge base: {lost}")
                # Not received yet, or lost in a crash of the base.
                time.sleep(0.02)
                if self.is_publisher and time.perf_counter() - sent > self.republish_seconds:
                    if attempts == ATTEMPTS:
                        lost = f"version {request.version} of step {request.step} was lost {attempts} times"
                        reason = "the process that builds it dies, as the system ends one where memory is full"
                        raise RuntimeError(f"knowledge base: {lost}: {reason}")
                    self._send(request.version, request.step)
                    sent, attempts = time.perf_counter(), attempts + 1
            outcome = self.refresher.wait(request.version, self.poll_seconds)
        self.timing.stall += time.perf_counter() - started
        if outcome.state == READY:
            self.timing.refresh = outcome.seconds
            return outcome
        self._sent.pop(request.version, None)
        message = f"version {request.version} of step {request.step} failed {outcome.failures} times ({outcome.error})"
        raise RuntimeError(f"knowledge base: {message}; the run can be resumed from its last checkpoint")

    def _open(self, version: int) -> None:
        self.searcher = Searcher(self.refresher.get(version), self.spec, self.device)
        self._sent.pop(version, None)

    @contextlib.contextmanager
    def searching(self) -> Iterator[Searcher]:
        """The searcher of the version in use; the time of the block counts as search."""
        if self.searcher is None:
            raise RuntimeError("knowledge base: searched before its first version; call refresh and before_step first")
        started = time.perf_counter()
        yield self.searcher
        self.timing.search += time.perf_counter() - started

    def stats(self, step: int) -> dict[str, float]:
        """Scalars to log: version, staleness, and seconds since the last call."""
        timing, self.timing = self.timing, Timing(refresh=self.timing.refresh)
        assert self.searcher is not None, "asked for after a step"
        snapshot = self.searcher.snapshot
        return {
            "version": float(snapshot.version),
            "staleness_steps": float(step - snapshot.step),
            "entries": float(len(snapshot)),
            "stall_seconds": timing.stall,
            "search_seconds": timing.search,
            "refresh_seconds": timing.refresh,
            "failed_refreshes": float(timing.failures),
        }

    def state_dict(self) -> dict[str, Any]:
        """Numbers for a checkpoint; the snapshots are in the base's folder. Call `wait_until_built` before."""
        return {
            "version": self.version,
            "next_version": self.next_version,
            "pending": [list(request) for request in self.pending],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Search the version that the stopped run searched; versions that it did not publish are removed."""
        self.pending = [Pending(*numbers) for numbers in state["pending"]]
        self.next_version = state["next_version"]
        if self.is_publisher:
            self.refresher.rewind(state["next_version"] - 1)
        if state["version"]:
            self._open(state["version"])
