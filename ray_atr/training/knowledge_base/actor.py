"""The knowledge base as a named Ray actor: one a run, its snapshots in the object store, one copy a node.

The actor owns the objects that it puts. Where it dies, workers keep what they have mapped; the restarted actor finds the
versions in its folder and puts them again for whoever asks; a version that was being built is published to it again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ObjectLostError

from ray_atr.common.runtime import NAMESPACE, here_if_there_is_room, this_node
from ray_atr.common.storage import remove_folder
from ray_atr.training.knowledge_base.refresher import (
    KEEP,
    READY,
    Encode,
    InProcessRefresher,
    Outcome,
    version_folder,
    versions_in,
)
from ray_atr.training.knowledge_base.snapshot import Snapshot, SnapshotSettings, files_of, write_files


class RefresherActor(InProcessRefresher):
    """A base behind references, each in a list, or Ray would fetch what it refers to: payloads come and snapshots go in them."""

    def __init__(self, encode: Encode, settings: SnapshotSettings, folder: Path) -> None:
        super().__init__(encode, settings, folder)
        self.references: dict[int, Any] = {}
        self.lock = threading.Lock()

    def _build(self, payload: list[Any], version: int, step: int) -> float:
        # Fetched in the building thread, not while publishing.
        return super()._build(ray.get(payload[0]), version, step)

    def reference(self, version: int) -> list[Any]:
        """That of a snapshot that is ready; every caller gets the same one."""
        with self.lock:
            if version not in self.references:
                self.references[version] = ray.put(self.get(version))
                kept = self.versions()
                self.references = {known: ref for known, ref in self.references.items() if known in kept}
            return [self.references[version]]

    def rewind(self, version: int) -> None:
        with self.lock:
            super().rewind(version)
            self.references = {known: ref for known, ref in self.references.items() if known <= version}

    def files(self, version: int) -> dict[str, bytes]:
        return files_of(version_folder(self.folder, version))

    def receive(self, version: int, files: Mapping[str, bytes]) -> None:
        """Take a version that an earlier base of the run built, on a node whose disk is not this one's."""
        with self._lock:
            if version not in self.versions():
                write_files(files, version_folder(self.folder, version))

    def node(self) -> str:
        return this_node()


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
            if version not in versions_in(folder):
                write_files(ray.get(self.actor.files.remote(version)), version_folder(folder, version))
            for old in versions_in(folder)[:-KEEP]:
                remove_folder(version_folder(folder, old))
        return outcome

    def give_back(self, folder: Path) -> None:
        """Send the actor the versions that a checkpoint brought to this node, and copy those here that it builds."""
        if ray.get(self.actor.node.remote()) == this_node():
            return
        self.copies = folder
        known = ray.get(self.actor.versions.remote())
        for version in versions_in(folder):
            if version not in known:
                ray.get(self.actor.receive.remote(version, files_of(version_folder(folder, version))))

    def get(self, version: int) -> Snapshot:
        """A snapshot whose arrays are mapped from this node's object store, read-only."""
        while True:
            (reference,) = ray.get(self.actor.reference.remote(version))
            try:
                return ray.get(reference)
            except ObjectLostError:
                # Its owner died between the two calls: the restarted one puts it again.
                continue

    def rewind(self, version: int) -> None:
        ray.get(self.actor.rewind.remote(version))
        if (folder := self.copies) is not None:
            for later in versions_in(folder):
                if later > version:
                    remove_folder(version_folder(folder, later))

    def close(self) -> None:
        """End the actor; what it wrote stays."""
        ray.kill(self.actor)


def actor_name(run: str) -> str:
    """The name under which a run's base is found in the namespace `ray_atr`."""
    return f"knowledge-{run}"


def start_knowledge_base(
    run: str,
    encode: Encode,
    settings: SnapshotSettings,
    folder: Path,
    *,
    num_cpus: float = 0.0,
    num_gpus: float = 0.0,
    clients: int = 1,
    labels: Mapping[str, str] | None = None,
) -> ActorRefresher:
    """Start a run's base; it ends with the process that started it. An earlier one of the same run is ended first.

    num_cpus, num_gpus  what its encoding takes: 0 CPUs lets it share with everything else.
    clients             workers that may wait for a version at the same time.
    labels              of the node that it runs on; none: that of the process that starts it, if there is room.
    """
    _end_earlier(actor_name(run))
    # Beside the worker that starts it, which copies the versions to the run's storage with each checkpoint.
    placed: dict[str, Any] = {} if labels else {"scheduling_strategy": here_if_there_is_room()}
    if labels:
        # Ray would place it in the group of the worker that starts it, and never find a node with its labels there.
        placed = {"label_selector": dict(labels), "scheduling_strategy": "DEFAULT"}
    actor = (
        ray.remote(RefresherActor)
        .options(
            name=actor_name(run),
            namespace=NAMESPACE,
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=clients + 4,
            **placed,
        )
        .remote(encode, settings, folder)
    )
    refresher = ActorRefresher(actor)
    refresher.give_back(folder)
    return refresher


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
