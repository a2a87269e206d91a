"""The knowledge base as named Ray actors, one for each part, its snapshots in the object store, one copy a node.

An actor owns the objects that it puts. If it dies, workers keep what they have mapped; the restarted actor finds the
versions in its folder and puts them again on request; a version that was being built is published to it again.

A base in one part is one actor. In a base in parts, each actor is on the node that searches its part, and the first part's
actor leads. Each part is in the object store of its own node; only the weights, k-means' sample and the clusters' pools are
sent between nodes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ObjectLostError

from ray_atr.common.jobs import Resources
from ray_atr.common.runtime import NAMESPACE, here_if_there_is_room
from ray_atr.objectives.knowledge.knowledge import SnapshotSettings
from ray_atr.training.knowledge_base.parts import WHOLE, BasePart
from ray_atr.training.knowledge_base.refresher import READY, BackgroundRefresher, Outcome, removable
from ray_atr.training.knowledge_base.shard import BaseShard, EncodePart
from ray_atr.training.knowledge_base.snapshot import (
    Entries,
    PartEntries,
    Snapshot,
    load_version,
    remove_version,
    save_version,
    versions_in,
    versions_of_part,
)

ENCODES_FOR_FREE = Resources(cpus=0.0)
"""An actor that shares the CPUs of its node."""


class ShardActor(BaseShard):
    """A part whose payloads and snapshots are passed as references, in lists: Ray would fetch a bare reference's object.

    A snapshot is in the object store once.
    """

    def __init__(self, encoder: EncodePart, settings: SnapshotSettings, folder: Path, part: BasePart) -> None:
        super().__init__(encoder, settings, folder, part)
        self._references: dict[int, Any] = {}

    def encode(self, version: int, payload: list[Any]) -> None:
        super().encode(version, ray.get(payload[0]))

    def reference(self, version: int) -> list[Any]:
        """The reference to the part of a version that is ready; every caller gets the same one."""
        with self._lock:
            if version not in self._references:
                self._references[version] = ray.put(self.get(version))
            return [self._references[version]]

    def remove(self, version: int) -> None:
        super().remove(version)
        with self._lock:
            self._references.pop(version, None)


class LeadingActor(ShardActor):
    """The first part, or the only one; its refresher coordinates the parts."""

    def __init__(self, encoder: EncodePart, settings: SnapshotSettings, folder: Path, part: BasePart, run: str) -> None:
        super().__init__(encoder, settings, folder, part)
        self.run = run
        self._leading = threading.Lock()

    @cached_property
    def _refresher(self) -> BackgroundRefresher:
        others = [_actor_of(self.run, BasePart(number, self.part.of)) for number in range(1, self.part.of)]
        return BackgroundRefresher(ActorShards(self, others), self.settings, self.folder)

    def lead(self, name: str, *arguments: Any) -> Any:
        """Call a method of the base's refresher, which is made at the first call: by then the other parts have started."""
        with self._leading:
            refresher = self._refresher
        return getattr(refresher, name)(*arguments)


class ActorShards:
    """The shards of a base, each an actor where its part is searched; the first one is in this process."""

    def __init__(self, here: ShardActor, others: Sequence[Any]) -> None:
        self.here, self.others = here, others

    def encode(self, version: int, payload: list[Any]) -> None:
        """`payload` has a reference to the weights, or one to the entries of each part, which goes to its shard alone."""
        own, *rest = payload if len(payload) > 1 else payload * (1 + len(self.others))
        begun = [actor.encode.remote(version, [share]) for actor, share in zip(self.others, rest, strict=True)]
        self.here.encode(version, [own])
        ray.get(begun)

    def each(self, name: str, *arguments: Any) -> list[Any]:
        begun = [getattr(actor, name).remote(*arguments) for actor in self.others]
        return [getattr(self.here, name)(*arguments), *ray.get(begun)]


class ActorRefresher:
    """A run's actors as the refresher of a `SnapshotClient`; `get` returns this worker's part. Picklable, with the same actors.

    `copies` is the folder that checkpoints take all parts from: the last versions of parts on other disks are copied there.
    """

    def __init__(self, run: str, part: BasePart = WHOLE, started: Any = None) -> None:
        self.run, self.part = run, part
        self.started = started
        """The actor that this process started. Held, because Ray ends an actor when its first handle is deleted."""
        self.copies: Path | None = None
        self.needed: int | None = 0
        """The oldest version that must not be removed (`BackgroundRefresher.publish`). Until one is published, none is."""

    @cached_property
    def actors(self) -> list[Any]:
        """The actors of all parts. ValueError if one has not been started."""
        return [_actor_of(self.run, part) for part in self._parts]

    @property
    def _parts(self) -> list[BasePart]:
        return [BasePart(number, self.part.of) for number in range(self.part.of)]

    def publish(self, payload: Any, version: int, step: int, needed: int | None = None) -> None:
        """Put the payload into the object store and tell the leading actor; does not wait for it."""
        self.needed = needed
        is_encoded = isinstance(payload, Entries)
        payloads = [PartEntries.from_entries(payload, part) for part in self._parts] if is_encoded else [payload]
        self.actors[0].lead.remote("publish", list(map(ray.put, payloads)), version, step, needed)

    def wait(self, version: int, timeout: float) -> Outcome:
        outcome: Outcome = ray.get(self.actors[0].lead.remote("wait", version, timeout))
        if (folder := self.copies) is not None and outcome.state == READY:
            for actor, part in zip(self.actors, self._parts, strict=True):
                # One after the other, so that this node holds one more part at a time and not the whole base.
                if version not in versions_of_part(folder, part):
                    save_version(_fetched(actor, version), folder)
            for old in removable(versions_in(folder), self.needed):
                remove_version(folder, old)
        return outcome

    def restore(self, folder: Path) -> None:
        """Send the actors the versions that a checkpoint brought to this node; from now on copy their versions here."""
        self.copies = folder
        for version in versions_in(folder):
            for actor, part in zip(self.actors, self._parts, strict=True):
                if version not in ray.get(actor.versions.remote()):
                    ray.get(actor.receive.remote(load_version(folder, version, part)))

    def get(self, version: int) -> Snapshot:
        """A snapshot whose arrays are mapped from this node's object store, read-only."""
        return _fetched(self.actors[self.part.number], version)

    def rewind(self, version: int) -> None:
        ray.get(self.actors[0].lead.remote("rewind", version))
        if (folder := self.copies) is not None:
            for later in versions_in(folder):
                if later > version:
                    remove_version(folder, later)

    def close(self) -> None:
        """End the actors; what they wrote stays."""
        for actor in self.actors:
            ray.kill(actor)


def _fetched(actor: Any, version: int) -> Snapshot:
    """An actor's part of a version, mapped from this node's object store."""
    while True:
        (reference,) = ray.get(actor.reference.remote(version))
        try:
            snapshot: Snapshot = ray.get(reference)
        except ObjectLostError:
            # Its owner died between the two calls: the restarted one puts it again.
            continue
        return snapshot


def _name(run: str, part: BasePart) -> str:
    """The name of a part's actor in the namespace `ray_atr`; the first part has the name of the base."""
    return f"knowledge-{run}" + (f"-{part.number}-of-{part.of}" if part.number else "")


def _actor_of(run: str, part: BasePart) -> Any:
    return ray.get_actor(_name(run, part), namespace=NAMESPACE)


def start_knowledge_base(
    run: str,
    encoder: EncodePart,
    settings: SnapshotSettings,
    folder: Path,
    part: BasePart = WHOLE,
    *,
    takes: Resources = ENCODES_FOR_FREE,
    clients: int = 1,
) -> ActorRefresher:
    """Start a run's base, or a part of it; called where it is searched. An earlier one of the same run is ended first.

    takes      resources of its encoding; its node has the labels, or, without labels, is this one if there is room.
    clients    workers that may wait for a version at the same time.

    It ends with the process that started it. Use the result once all parts have been started.
    """
    _end_earlier(_name(run, part))
    # Beside the worker that starts it, which copies the versions to the run's storage with each checkpoint.
    placed: dict[str, Any] = {"scheduling_strategy": here_if_there_is_room(takes.cpus, takes.gpus)}
    if takes.labels:
        # By default Ray looks for the labels within the placement group of the worker, which has no such node.
        placed = {"label_selector": dict(takes.labels), "scheduling_strategy": "DEFAULT"}
    kind: Any = ray.remote(ShardActor if part.number else LeadingActor)
    options = kind.options(
        name=_name(run, part),
        namespace=NAMESPACE,
        num_cpus=takes.cpus,
        num_gpus=takes.gpus,
        max_restarts=-1,
        max_task_retries=-1,
        max_concurrency=clients + 4,
        **placed,
    )
    arguments = (encoder, settings, folder, part) if part.number else (encoder, settings, folder, part, run)
    return ActorRefresher(run, part, options.remote(*arguments))


def _end_earlier(name: str) -> None:
    """End a base of a dead process, and wait until its name is free. Ray ends it too, but maybe after the new run starts."""
    while True:
        try:
            actor = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            return
        ray.kill(actor)
        time.sleep(0.05)
