"""The knowledge base as a named Ray actor: one a run, its snapshots in the object store, one copy a node.

The actor owns the objects that it puts. Where it dies, workers keep what they have mapped; the restarted actor finds the
versions in its folder and puts them again for whoever asks; a version that was being built is published to it again.

A base in parts is an actor for each part, on the node that searches it, and one by which they agree. Parts go into the object
store of their own node; what travels is the weights, k-means' sample and the clusters' pools.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ObjectLostError

from ray_atr.common.runtime import NAMESPACE, here_if_there_is_room, this_node
from ray_atr.objectives.knowledge.knowledge import SnapshotSettings
from ray_atr.training.knowledge_base.parts import BasePart
from ray_atr.training.knowledge_base.refresher import (
    KEEP,
    READY,
    Encode,
    InProcessRefresher,
    Outcome,
    ShardedRefresher,
)
from ray_atr.training.knowledge_base.shard import BaseShard, EncodePart
from ray_atr.training.knowledge_base.snapshot import (
    Entries,
    PartEntries,
    Snapshot,
    has_part,
    load_version,
    remove_version,
    save_version,
    versions_in,
)


class References:
    """Snapshots in the object store, each put there once. A reference travels in a list, or Ray would fetch what it refers to."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}
        self._lock = threading.Lock()

    def of(self, version: int, get: Callable[[int], Snapshot], kept: Callable[[], Sequence[int]]) -> list[Any]:
        """That of a version; every caller gets the same one. Those of versions that are not kept are dropped."""
        with self._lock:
            if version not in self._known:
                self._known[version] = ray.put(get(version))
                versions = kept()
                self._known = {known: ref for known, ref in self._known.items() if known in versions}
            return [self._known[version]]

    def drop(self, versions: Callable[[int], bool]) -> None:
        with self._lock:
            self._known = {known: ref for known, ref in self._known.items() if not versions(known)}


class RefresherActor(InProcessRefresher):
    """A base behind references: payloads come and snapshots go in lists of them."""

    def __init__(self, encode: Encode, settings: SnapshotSettings, folder: Path) -> None:
        super().__init__(encode, settings, folder)
        self.references = References()

    def _make(self, payload: list[Any], version: int, step: int, previous: int | None) -> None:
        # Fetched in the building thread, not while publishing.
        super()._make(ray.get(payload[0]), version, step, previous)

    def reference(self, version: int) -> list[Any]:
        """That of a snapshot that is ready."""
        return self.references.of(version, self.get, self.versions)

    def rewind(self, version: int) -> None:
        super().rewind(version)
        self.references.drop(lambda known: known > version)

    def receive(self, snapshot: Snapshot) -> None:
        """Take a version that an earlier base of the run built, on a node whose disk is not this one's."""
        with self._lock:
            if snapshot.version not in self.versions():
                save_version(snapshot, self.folder)

    def node(self) -> str:
        return this_node()


class ShardActor(BaseShard):
    """A shard behind references: its payload comes and its snapshots go in lists of them."""

    def __init__(self, encoder: EncodePart, settings: SnapshotSettings, folder: Path, part: BasePart) -> None:
        super().__init__(encoder, settings, folder, part)
        self.references = References()

    def encode(self, version: int, payload: list[Any]) -> None:
        super().encode(version, ray.get(payload[0]))

    def reference(self, version: int) -> list[Any]:
        """That of the part of a version that is ready."""
        return self.references.of(version, self.get, self.versions)

    def remove(self, version: int) -> None:
        super().remove(version)
        self.references.drop(version.__eq__)


class ActorShards:
    """The shards of a base, each an actor where its part is searched."""

    def __init__(self, actors: Sequence[Any]) -> None:
        self.actors = actors

    def encode(self, version: int, payload: Any) -> None:
        """`payload` has a reference to the weights, or one to the entries of each part, which goes to its shard alone."""
        payloads = payload * (len(self.actors) // len(payload))
        ray.get([actor.encode.remote(version, [own]) for actor, own in zip(self.actors, payloads, strict=True)])

    def each(self, name: str, *arguments: Any) -> list[Any]:
        found: list[Any] = ray.get([getattr(actor, name).remote(*arguments) for actor in self.actors])
        return found


class ActorRefresher:
    """An actor as a `SnapshotClient`'s refresher. Picklable: a worker that gets one talks to the same actor.

    `copies` is the folder from which checkpoints are made, if the actor's own is on another node: the last versions are
    copied there.
    """

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.copies: Path | None = None

    def publish(self, payload: Any, version: int, step: int) -> None:
        """Put the payload into the object store and tell the actor; does not wait for it."""
        self.actor.publish.remote([ray.put(payload)], version, step)

    def wait(self, version: int, timeout: float) -> Outcome:
        outcome: Outcome = ray.get(self.actor.wait.remote(version, timeout))
        if (folder := self.copies) is not None and outcome.state == READY:
            self._copy(version, folder)
            for old in versions_in(folder)[:-KEEP]:
                remove_version(folder, old)
        return outcome

    def _copy(self, version: int, folder: Path) -> None:
        if version not in versions_in(folder):
            save_version(self.get(version), folder)

    def give_back(self, folder: Path) -> None:
        """Send the actor the versions that a checkpoint brought to this node, and copy those here that it builds."""
        if ray.get(self.actor.node.remote()) == this_node():
            return
        self.copies = folder
        known = ray.get(self.actor.versions.remote())
        for version in versions_in(folder):
            if version not in known:
                ray.get(self.actor.receive.remote(load_version(folder, version)))

    def get(self, version: int) -> Snapshot:
        """A snapshot whose arrays are mapped from this node's object store, read-only."""
        return _fetched(self.actor, version)

    def rewind(self, version: int) -> None:
        ray.get(self.actor.rewind.remote(version))
        if (folder := self.copies) is not None:
            for later in versions_in(folder):
                if later > version:
                    remove_version(folder, later)

    def close(self) -> None:
        """End the actor; what it wrote stays."""
        ray.kill(self.actor)


class ShardedActorRefresher(ActorRefresher):
    """The same for a base in parts: `get` is this worker's part. Each part is built on the node that searches it.

    `copies` gets every part, since a checkpoint holds all of them.
    """

    def __init__(self, actor: Any, shards: Sequence[Any], part: BasePart) -> None:
        super().__init__(actor)
        self.shards, self.part = shards, part
        self.started: Any = None
        """The shard that this process started, held here: Ray ends an actor whose first handle is gone."""

    def publish(self, payload: Any, version: int, step: int) -> None:
        parts = [BasePart(number, self.part.of) for number in range(self.part.of)]
        is_encoded = isinstance(payload, Entries)
        payloads = [ray.put(PartEntries.of(payload, part)) for part in parts] if is_encoded else [ray.put(payload)]
        self.actor.publish.remote(payloads, version, step)

    def get(self, version: int) -> Snapshot:
        return _fetched(self.shards[self.part.number], version)

    def _copy(self, version: int, folder: Path) -> None:
        for number, shard in enumerate(self.shards):
            # One after the other: this node holds a part more at a time, not the whole base.
            if not has_part(folder, version, BasePart(number, self.part.of)):
                save_version(_fetched(shard, version), folder)

    def close(self) -> None:
        for shard in self.shards:
            ray.kill(shard)
        super().close()


def _fetched(actor: Any, version: int) -> Snapshot:
    """What an actor has of a version, mapped from this node's object store."""
    while True:
        (reference,) = ray.get(actor.reference.remote(version))
        try:
            snapshot: Snapshot = ray.get(reference)
        except ObjectLostError:
            # Its owner died between the two calls: the restarted one puts it again.
            continue
        return snapshot


def actor_name(run: str) -> str:
    """The name under which a run's base is found in the namespace `ray_atr`."""
    return f"knowledge-{run}"


@dataclass(frozen=True)
class ActorPlace:
    """Where an actor of a base runs, and what it takes there."""

    num_cpus: float = 0.0
    """What its encoding takes: 0 lets it share the CPUs of its node."""
    num_gpus: float = 0.0
    clients: int = 1
    """Workers that may wait for a version at the same time."""
    labels: Mapping[str, str] | None = None
    """Of the node that it runs on; none: that of the process that starts it, if there is room."""


def start_knowledge_base(
    run: str, encode: Encode, settings: SnapshotSettings, folder: Path, place: ActorPlace | None = None
) -> ActorRefresher:
    """Start a run's base; it ends with the process that started it. An earlier one of the same run is ended first."""
    refresher = ActorRefresher(_started(RefresherActor, actor_name(run), (encode, settings, folder), place))
    refresher.give_back(folder)
    return refresher


def start_shard(
    run: str,
    encoder: EncodePart,
    settings: SnapshotSettings,
    folder: Path,
    part: BasePart,
    place: ActorPlace | None = None,
) -> Any:
    """Start what holds one part of a run's base; called where the part is searched. It ends when nobody holds it."""
    return _started(ShardActor, shard_name(run, part), (encoder, settings, folder, part), place)


def start_sharded_base(
    run: str, settings: SnapshotSettings, folder: Path, part: BasePart, *, clients: int = 1
) -> ShardedActorRefresher:
    """Start a run's base over its shards, which have been started, and give them the versions in `folder`."""
    shards = _shards(run, part.of)
    for version in versions_in(folder):
        for number, shard in enumerate(shards):
            if not ray.get(shard.has.remote(version)):
                ray.get(shard.receive.remote(load_version(folder, version, BasePart(number, part.of))))
    arguments = ActorShards(shards), settings, folder
    actor = _started(ShardedRefresher, actor_name(run), arguments, ActorPlace(clients=clients))
    refresher = ShardedActorRefresher(actor, shards, part)
    refresher.copies = folder
    return refresher


def find_sharded_base(run: str, part: BasePart) -> ShardedActorRefresher:
    """The base that another process started. ValueError if there is none."""
    return ShardedActorRefresher(find_knowledge_base(run).actor, _shards(run, part.of), part)


def shard_name(run: str, part: BasePart) -> str:
    """The name under which a shard is found."""
    return f"{actor_name(run)}-{part.number}-of-{part.of}"


def _shards(run: str, count: int) -> list[Any]:
    return [ray.get_actor(shard_name(run, BasePart(number, count)), namespace=NAMESPACE) for number in range(count)]


def _started(kind: type, name: str, arguments: tuple[Any, ...], place: ActorPlace | None) -> Any:
    place = place or ActorPlace()
    _end_earlier(name)
    # Beside the worker that starts it, which copies the versions to the run's storage with each checkpoint.
    placed: dict[str, Any] = {"scheduling_strategy": here_if_there_is_room(place.num_cpus, place.num_gpus)}
    if place.labels:
        # Ray would place it in the group of the worker that starts it, and never find a node with its labels there.
        placed = {"label_selector": dict(place.labels), "scheduling_strategy": "DEFAULT"}
    actor: Any = ray.remote(kind)
    options = actor.options(
        name=name,
        namespace=NAMESPACE,
        num_cpus=place.num_cpus,
        num_gpus=place.num_gpus,
        max_restarts=-1,
        max_task_retries=-1,
        max_concurrency=place.clients + 4,
        **placed,
    )
    return options.remote(*arguments)


def _end_earlier(name: str) -> None:
    """End a base whose process has died, and wait for its name. Ray would end it too, but a new run may be there before."""
    while True:
        try:
            actor = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            return
        ray.kill(actor)
        time.sleep(0.05)


def find_knowledge_base(run: str) -> ActorRefresher:
    """The base that another process started. ValueError if there is none."""
    return ActorRefresher(ray.get_actor(actor_name(run), namespace=NAMESPACE))
