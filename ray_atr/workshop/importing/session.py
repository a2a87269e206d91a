"""A data set while it is being written shard by shard, by any number of processes, over any number of attempts.

The shards, and a note next to each that says what is in it, are in a hidden folder next to a local destination (in
`_import` inside an object store's). A stopped attempt leaves them; the next attempt at the same work continues with the
shards that are missing.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ray_atr.common import storage
from ray_atr.common.jobs import Resources, run_jobs
from ray_atr.common.lock import HOLDER_FILE, LOCK_FILE
from ray_atr.common.runtime import advising, require_on_all_nodes, start_ray
from ray_atr.data import shards

HASH_FILE, NOTE = "work.sha256", ".note.json"
Job = TypeVar("Job")


@dataclass
class Unfinished:
    """`work` holds plan and notes, `target` gets the shards, `destination` is what the user named."""

    destination: storage.Location
    work: storage.Location
    target: storage.Location
    is_begun: bool = False
    """Whether `work` is of this attempt, and no longer of an earlier one."""

    def already_made(self, origin: str, *keep: str) -> shards.Manifest | None:
        """The data set at the destination if it has the same origin; None if there is none. ValueError if the destination
        holds another one. Work of an earlier attempt stays if its origin is the same; else it is removed, except the files
        `keep`.
        """
        self.is_begun = True
        hash_file = self.work / HASH_FILE
        if not storage.file_exists(hash_file) or storage.read_bytes(hash_file).decode() != origin:
            # Without the hash too: a kill while work was being discarded may have left notes of it.
            self.discard(*keep)
        storage.write_bytes(hash_file, origin.encode())
        if storage.file_exists(self.destination / shards.MANIFEST_FILE):
            held = shards.read_manifest(self.destination)
            if held.origin == origin:
                storage.remove_all(self.work)
                return held
        shards.refuse_overwrite(self.destination)
        return None

    def discard(self, *keep: str) -> None:
        """Remove the work, except the lock and the files `keep`, and from a store the shards of which it has notes."""
        has_shards = self.target != self.work and not storage.file_exists(self.destination / shards.MANIFEST_FILE)
        for name in storage.names_in(self.work):
            if has_shards and name.endswith(NOTE):
                storage.remove_all(self.target / f"{name.removesuffix(NOTE)}.parquet")
            if name not in (*keep, LOCK_FILE, HOLDER_FILE):
                storage.remove_all(self.work / name)

    def written(
        self,
        jobs: Mapping[str, Job],
        make_worker: Callable[[], Callable[[Job], dict[str, Any]]],
        ray: Resources | None,
        read: storage.Location | None = None,
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """The position and the note of each shard, of jobs by their shards' files. First those that an earlier attempt
        wrote and that have a note, then those written now: a worker writes a shard and returns its note. With Ray, ValueError if
        another node lacks the folder, or `read`, one of the files that the jobs read.
        """
        names = set(storage.names_in(self.work))
        waiting: list[tuple[int, tuple[str, Job]]] = []
        for index, (file, job) in enumerate(jobs.items()):
            if note_file(file) in names:
                yield index, json.loads(storage.read_bytes(self.work / note_file(file)))
            else:
                waiting.append((index, (file, job)))
        if waiting and ray is not None:
            start_ray()
            # What a node lacks says nothing against the work so far, which a ValueError removes once it is begun.
            self.is_begun = False
            if storage.is_local(self.work):
                require_on_all_nodes("--out", Path(str(self.destination)), self.work / HASH_FILE)
            if read is not None and storage.is_local(read):
                require_on_all_nodes("--source", read, read)
            self.is_begun = True
        noting = partial(_noting, str(self.work), make_worker)
        for number, note in run_jobs([job for _, job in waiting], noting, ray=ray):
            yield waiting[number][0], note

    def finish(self, manifest: shards.Manifest, keep: Sequence[str] = ()) -> shards.Manifest:
        """Write the manifest and move the data set to the destination: its shards, if they are its own, and what `keep` names."""
        shards.write_manifest(self.target, manifest)
        if storage.is_local(self.destination):
            own = () if manifest.parts else (shard.file for shard in manifest.shards)
            for name in set(storage.names_in(self.work)) - {shards.MANIFEST_FILE, *own, *keep}:
                storage.remove_all(self.work / name)
            # An empty folder is replaced, no other.
            shards.refuse_overwrite(self.destination)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(self.destination)
            storage.rename(self.work, self.destination)
        else:
            storage.remove_all(self.work)
        return shards.read_manifest(self.destination)


def note_file(shard_file: str) -> str:
    return shard_file.removesuffix(".parquet") + NOTE


def _noting(
    work: str, make_worker: Callable[[], Callable[[Job], dict[str, Any]]]
) -> Callable[[tuple[str, Job]], dict[str, Any]]:
    """A worker of (shard's file, job) that writes a shard's note after the shard."""
    worker, folder = make_worker(), storage.locate(work, keeps_links=True)

    def write(named_job: tuple[str, Job]) -> dict[str, Any]:
        file, job = named_job
        note = worker(job)
        storage.write_bytes(folder / note_file(file), json.dumps(note).encode())
        return note

    return write


@contextlib.contextmanager
def unfinished(out: str | Path) -> Iterator[Unfinished]:
    """Work alone on the data set `out`. A ValueError removes the work, but not that of an earlier attempt if this one did not get
    to begin: its source may be a disk that is away. Any other stop leaves the work for the next attempt.
    """
    destination = shards.destination(out)
    if storage.is_local(destination):
        storage.require_writable(destination)
        work: storage.Location = destination.with_name(f".{destination.name}.import")
        storage.make_folder(work)
    else:
        work = destination / "_import"
    state = Unfinished(destination, work, work if storage.is_local(destination) else destination)
    advice = f"run the same command again to continue ({work} holds the work so far)"
    with advising(advice), storage.hold(work, "this data set"):
        try:
            yield state
        except ValueError:
            if state.is_begun or not storage.file_exists(work / HASH_FILE):
                if work != state.target:
                    state.discard()
                storage.remove_all(work)
            raise
