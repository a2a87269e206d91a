"""Several data sets as one: a manifest over their shards, without the clips that would leak from one into another. For sets of
vectors, a copy of their captions' vectors is beside it.

Sets of captions share recordings: WavCaps holds clips of AudioCaps' and Clotho's test splits. So clips that a list names are
left out, and every clip is compared with all others. If a recording is in two splits, of one set or of two, the copy in the more
important split stays: test before val before all others.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ray_atr.common.jobs import Resources
from ray_atr.common.progress import CountProgress, NamedProgress, silent
from ray_atr.common.settings import counted, refuse
from ray_atr.common.storage import is_local, locate
from ray_atr.data.audio import one_thread
from ray_atr.data.caption_vectors import GIVEN, has_vectors
from ray_atr.data.schema import captions_by_language, part_of
from ray_atr.data.shards import (
    ClipCounts,
    Manifest,
    Part,
    Shard,
    Skipped,
    place_of,
    read_manifest,
    read_shard,
)
from ray_atr.data.vector_clip import is_vector
from ray_atr.workshop.importing.import_options import Join, named_folder, require_joined_name
from ray_atr.workshop.importing.joined_captions import join_caption_vectors, require_one_encoder
from ray_atr.workshop.importing.plan import uses_ray
from ray_atr.workshop.importing.recordings import RecordingKey, recording_key, same_recordings
from ray_atr.workshop.importing.session import Unfinished, unfinished
from ray_atr.workshop.importing.sources.read_table import read_id_lists
from ray_atr.workshop.importing.sources.source import stem

IMPORTANCE = {"test": 0, "val": 1}
"""Ranks of the splits whose copy of a recording stays; all others come after them, as equals."""
EXAMPLES = 2


class Member(NamedTuple):
    """A clip of one of the sets, by its id in the joined set."""

    clip_id: str
    split: str
    key: RecordingKey


def join_data_sets(options: Join, out: str | Path, progress: NamedProgress = silent) -> Manifest:
    """Write the joined data set to a new folder. If the folder has the same join already, it is returned unchanged. ValueError
    names what cannot be joined; then nothing is written. A stopped join leaves the recordings that it has read in a hidden
    folder, and the same call continues from there.
    """
    sets = read_sets(options.sets)
    are_vectors = has_vectors(next(iter(sets.values())).folder)
    if are_vectors and not is_local(locate(out)):
        raise refuse("out", str(out), "a folder on this machine, for sets of vectors")
    # Before any audio is compared, which may take hours.
    joined_name = options.name or "+".join(sets)
    require_joined_name(joined_name)
    listed, notes = left_out_by_lists(options.leave_out, sets)
    parts = tuple(Part(name, manifest.folder, manifest.hash) for name, manifest in sets.items())
    licence = options.licence or "; ".join(f"{name}: {manifest.licence}" for name, manifest in sets.items())
    asked = [joined_name, licence, options.recordings, options.leaks, sorted(listed)]
    of_parts = [[part.name, part.folder, part.hash, sets[part.name].origin] for part in parts]
    origin = hashlib.sha256(json.dumps([asked, of_parts]).encode()).hexdigest()
    with unfinished(out) as state:
        if held := state.already_made(origin):
            return held
        members = _members(sets, state, listed, options, partial(progress, "reading"))
        shared, recording_notes = shared_recordings(members, partial(progress, "comparing"))
        left_out = {**listed, **(shared if options.leaks == "leave-out" else {})}
        shards = [
            recounted(manifest, name, shard, left_out) for name, manifest in sets.items() for shard in manifest.shards
        ]
        joined = Manifest(
            name=joined_name,
            licence=licence,
            # Stable: the clips of a set follow each other within a split.
            shards=tuple(sorted(filter(lambda shard: shard.num_rows, shards), key=lambda shard: place_of(shard.split))),
            skipped=tuple(Skipped(clip_id, reason) for clip_id, reason in left_out.items()),
            notes=(*notes, *recording_notes),
            parts=parts,
            origin=origin,
        )
        if not joined.shards:
            raise ValueError("join: every clip is left out")
        if are_vectors:
            join_caption_vectors([Path(manifest.folder) for manifest in sets.values()], Path(str(state.target)))
        return state.finish(joined, keep=(GIVEN,))


def read_sets(places: Sequence[str]) -> dict[str, Manifest]:
    """The data sets at `FOLDER` or `NAME=FOLDER`, by name. ValueError for fewer than two, names that are equal, sets that
    were joined already, and sets of vectors that are not all of one encoder.
    """
    sets: dict[str, Manifest] = {}
    for place in places:
        given, folder = named_folder(place)
        opened = locate(folder, keeps_links=True)
        # The joined set may be used from anywhere.
        manifest = read_manifest(opened)
        name = given or manifest.name
        if name in sets:
            raise refuse("sets", place, f"names that differ; give one as NAME={manifest.folder}")
        if manifest.parts:
            raise refuse(
                "sets", place, "the sets that it was joined from: " + ", ".join(p.folder for p in manifest.parts)
            )
        sets[name] = manifest
    if len(sets) < 2:
        raise refuse("sets", list(places), "two or more data sets")
    of_vectors = [name for name, manifest in sets.items() if _holds_vectors(manifest)]
    if of_vectors and len(of_vectors) < len(sets):
        raise refuse(
            "sets", list(places), f"sets of audio alone, or of vectors alone; of vectors: {', '.join(of_vectors)}"
        )
    for name in of_vectors:
        if not has_vectors(sets[name].folder):
            raise refuse(
                "sets", sets[name].folder, f"a folder on this machine with {GIVEN}/, as `prepare vectors` makes it"
            )
    if of_vectors:
        require_one_encoder({name: manifest.folder for name, manifest in sets.items()})
    return sets


def _holds_vectors(manifest: Manifest) -> bool:
    """Whether a set's clips are vectors, by its first clip."""
    first = next(read_shard(manifest, manifest.shards[0], ["audio"], batch_size=1))
    return is_vector(first["audio"][0].as_py())


def left_out_by_lists(lists: Sequence[str], sets: Mapping[str, Manifest]) -> tuple[dict[str, str], list[str]]:
    """(clip id in the joined set -> why it is left out, notes) of lists `NAME=FILE` of ids. Folders and suffixes of files do not
    count: `12345` and `FreeSound/12345.flac` name `freesound/12345`. ValueError for a list for an unknown set, and for one
    without any id of its set.
    """
    reasons: dict[str, str] = {}
    notes = []
    for entry in lists:
        name, equals, file = entry.partition("=")
        if not equals or name not in sets:
            raise refuse("leave_out", entry, f"NAME=FILE with one of {', '.join(sets)}")
        ids = set(map(stem, chain.from_iterable(read_id_lists(file).values())))
        rows = (read_shard(sets[name], shard, ["clip_id"]) for shard in sets[name].shards)
        all_ids = (clip_id for batch in chain.from_iterable(rows) for clip_id in batch["clip_id"].to_pylist())
        clip_ids = [f"{name}/{clip_id}" for clip_id in all_ids if stem(clip_id) in ids]
        if not clip_ids:
            raise refuse("leave_out", entry, f"a list with ids of {name}; none of its {counted(len(ids), 'id')} is one")
        reasons |= dict.fromkeys(clip_ids, f"named by {Path(file).name}")
        notes.append(
            f"{Path(file).name}: {counted(len(clip_ids), 'clip')} of {name} left out, of {counted(len(ids), 'id')}"
        )
    return reasons, notes


def note_recordings(alone: Manifest, *, is_decoded: bool) -> dict[str, Any]:
    """The note of a shard, by a manifest of it alone: the id and the recording key of each of its clips."""
    rows = read_shard(alone, alone.shards[0], ["clip_id", "audio"])
    pairs = (zip(batch["clip_id"].to_pylist(), batch["audio"], strict=True) for batch in rows)
    with one_thread():
        clips = [
            (clip_id, recording_key(audio.as_buffer().to_pybytes(), clip_id, is_decoded=is_decoded).as_json())
            for clip_id, audio in chain.from_iterable(pairs)
        ]
    return {"clips": clips}


def _members(
    sets: Mapping[str, Manifest],
    state: Unfinished,
    left_out: Mapping[str, str],
    options: Join,
    progress: CountProgress,
) -> list[Member]:
    """All clips that are not left out, in the order of the sets."""
    shards = [(name, manifest, shard) for name, manifest in sets.items() for shard in manifest.shards]
    # Without the other shards: a process would be sent, or read, the whole manifest for each of its shards.
    alone = [replace(manifest, shards=(shard,), skipped=(), notes=()) for _, manifest, shard in shards]
    jobs = {str(number): one for number, one in enumerate(alone)}
    worker: Callable[[Manifest], dict[str, Any]] = partial(note_recordings, is_decoded=options.recordings == "sound")
    total, done = sum(manifest.num_rows for manifest in sets.values()), 0
    of_shards: dict[int, list[tuple[str, RecordingKey]]] = {}
    ray = Resources() if uses_ray(options.ray, total) else None
    for number, note in state.written(jobs, lambda: worker, ray):
        of_shards[number] = [(clip_id, RecordingKey.from_json(*key)) for clip_id, key in note["clips"]]
        done += len(note["clips"])
        progress(done, total)
    return [
        Member(joined, shard.split, key)
        for number, (name, _, shard) in enumerate(shards)
        for clip_id, key in of_shards[number]
        if (joined := f"{name}/{clip_id}") not in left_out
    ]


def shared_recordings(members: Sequence[Member], progress: CountProgress) -> tuple[dict[str, str], list[str]]:
    """(clip id -> why it is to be left out, notes) for recordings that are in more than one split. Recordings that occur
    twice within one split only get a note: they leak nothing.
    """
    pairs = same_recordings([member.key for member in members], progress)
    left_out: dict[str, str] = {}
    leaks: defaultdict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    within: Counter[str] = Counter()
    for group in groups_of(sorted(pairs)):
        best = min(group, key=lambda number: (IMPORTANCE.get(members[number].split, len(IMPORTANCE)), number))
        original = members[best]
        for number in group:
            member = members[number]
            if member.split == original.split:
                within[member.split] += number != best
                continue
            left_out[member.clip_id] = f"the recording of {original.clip_id} ({original.split})"
            sides = (part_of(member.clip_id), member.split, part_of(original.clip_id), original.split)
            leaks[sides].append(f"{member.clip_id} = {original.clip_id}")
    notes = [
        f"{counted(len(examples), 'recording')} of {part} ({split}) also in {other} ({other_split}): "
        + "; ".join(examples[:EXAMPLES])
        + (", ..." if len(examples) > EXAMPLES else "")
        for (part, split, other, other_split), examples in leaks.items()
    ]
    notes += [
        f"{counted(number, 'clip')} of {split} with a recording that {split} has already"
        for split, number in within.items()
        if number
    ]
    return left_out, notes


def groups_of(pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The connected components of pairs of numbers, each sorted."""
    numbers, number_of = np.unique(np.array(pairs, np.int64).reshape(-1, 2), return_inverse=True)
    first, other = number_of.reshape(-1, 2).T
    graph = coo_array((np.ones(len(first), bool), (first, other)), shape=(len(numbers), len(numbers)))
    _, group = connected_components(graph, directed=False)
    return pd.Series(numbers).groupby(group).agg(list).tolist()


def recounted(manifest: Manifest, name: str, shard: Shard, left_out: Mapping[str, str]) -> Shard:
    """A shard as the joined set lists it: under its part's name, counted without the clips that are left out."""
    counts, is_unchanged = ClipCounts(), True
    for batch in read_shard(manifest, shard, ["clip_id", "seconds", "captions", "translated"]):
        for row in batch.to_pylist():
            if f"{name}/{row['clip_id']}" in left_out:
                is_unchanged = False
            else:
                counts.add(row["seconds"], captions_by_language(row["captions"]), row["translated"])
    return replace(shard, part=name, **({} if is_unchanged else counts.entries()))
