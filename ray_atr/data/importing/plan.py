"""Importing a data set: plan the shards from the source's tables, then read, check and write them shard by shard.

The plan (which clip goes into which shard, with its words and the place of its audio) is written next to the shards, so
that the work can be split among processes and machines, memory holds one row group a process, and an import that was
stopped continues with the shards that are missing. The shards do not depend on how many processes wrote them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ray_atr.data.decoding import AudioBounds, open_sound
from ray_atr.data.importing.import_options import Import
from ray_atr.data.importing.session import Unfinished, unfinished, write_note
from ray_atr.data.importing.sources.joining import ExtraCaptions
from ray_atr.data.importing.sources.places import Place, read_place
from ray_atr.data.importing.sources.source import Absent, BadRow, Entry, Note, Source
from ray_atr.data.schema import SCHEMA, Clip, check_captions, check_split
from ray_atr.data.shards import Manifest, Shard, Skipped, open_arrow, order_shards, shard_file, write_shard
from ray_atr.jobs import Resources
from ray_atr.runtime import is_inside_a_cluster
from ray_atr.storage import open_folder

Progress = Callable[[int, int], None]

PLAN_FILE = "plan.arrow"
PLAN_SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("clip_id", "split", "file", "kind")),
        pa.field("first", pa.int64()),
        pa.field("second", pa.int64()),
        pa.field("column", pa.string()),
        *(SCHEMA.field(name) for name in ("captions", "labels", "translated")),
    ]
)
WORTH_RAY_CLIPS = 5_000


@dataclass(frozen=True, kw_only=True)
class ImportPlan:
    """The shards to write, in order, and what is known before any audio is read."""

    hash: str
    shards: tuple[tuple[str, str, int], ...]
    """File name, split, number of clips."""
    absent: tuple[Skipped, ...]
    missing: tuple[Skipped, ...]
    notes: tuple[str, ...]

    @property
    def num_clips(self) -> int:
        return sum(number for _, _, number in self.shards)


def import_data_set(
    source: Source,
    out: str | Path,
    *,
    captions: Sequence[str] = (),
    options: Import | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Import a source into the folder `out` and return its manifest; the same import made before is returned as it is.

    `captions` are further languages as `jpn=FILE`. ValueError on bad input, which leaves nothing behind; an import that
    is stopped leaves its work in a hidden folder and the same call continues from there. `progress` is called with the
    clips done and the clips in all.
    """
    options = options or Import()
    with unfinished(out) as state:
        plan = _make_plan(source, captions, options, state)
        if held := state.finished_before(plan.hash):
            state.remove()
            return held
        notes = _run(options.name or source.name, plan, state, options, progress)
        return state.finish(_manifest(source, plan, notes, options))


@dataclass(frozen=True)
class ShardJob:
    """One shard to write: all that a worker must know, the folders by name."""

    work: str
    target: str
    index: int
    file: str
    split: str
    source: str
    min_seconds: float
    bounds: AudioBounds


def import_shard(job: ShardJob) -> dict[str, Any]:
    """Read, check and write one shard of a plan; returns what its note says: the shard, and the clips left out."""
    work = open_folder(job.work)
    with open_arrow(work, PLAN_FILE) as source, pa.ipc.open_file(source) as batches:
        rows = batches.get_batch(job.index).to_pylist()
    skipped: list[Skipped] = []
    clips = _read_clips(rows, job.source, job.min_seconds, job.bounds, skipped)
    shard = write_shard(open_folder(job.target), job.file, job.split, clips)
    note = {
        "shard": dataclasses.asdict(shard) if shard else None,
        "skipped": [dataclasses.asdict(entry) for entry in skipped],
    }
    write_note(work, job.file, note)
    return note


def _read_clips(
    rows: list[dict[str, Any]], source_name: str, min_seconds: float, bounds: AudioBounds, skipped: list[Skipped]
) -> Iterator[Clip]:
    for row in rows:
        # Of a file that may be large nothing is held when the next one is read.
        found = _read_clip(row, source_name, min_seconds, bounds)
        if isinstance(found, Clip):
            yield found
        else:
            skipped.append(Skipped(row["clip_id"], found))
        del found


def _read_clip(row: dict[str, Any], source_name: str, min_seconds: float, bounds: AudioBounds) -> Clip | str:
    """The clip of a plan's row, or why it is left out."""
    place = Place(row["file"], row["kind"], row["first"], row["second"], row["column"])
    try:
        audio = read_place(place)
        sound = open_sound(audio, place.file, bounds)
        seconds = sum(len(block) for block in sound.blocks()) / sound.sample_rate
    except (ValueError, OSError) as error:
        return _reason(error)
    if seconds < min_seconds:
        return f"{place.file}: {seconds:.4f} s long; at least {min_seconds:g} s"
    return Clip(
        clip_id=row["clip_id"],
        audio=audio,
        sample_rate=sound.sample_rate,
        seconds=seconds,
        captions=dict(row["captions"]),
        labels=row["labels"],
        split=row["split"],
        source=source_name,
        translated=row["translated"],
    )


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _make_plan(source: Source, captions: Sequence[str], options: Import, state: Unfinished) -> ImportPlan:
    """Write the plan into the work folder; the work of a stopped import with the same plan is kept, other work removed."""
    extra = ExtraCaptions(captions, source)
    absent: list[Skipped] = []
    missing: list[Skipped] = []
    shards: list[tuple[str, str, int]] = []
    waiting: dict[str, list[Entry]] = {}
    written: Counter[str] = Counter()
    seen: set[str] = set()
    num_absent: Counter[str] = Counter()
    notes: list[str] = []
    bad_rows: list[Skipped] = []
    work, new_file = state.work, f"{PLAN_FILE}.new"
    with work.writing(new_file) as output, pa.ipc.new_file(output, PLAN_SCHEMA) as writer:

        def flush(split: str) -> None:
            entries = waiting.pop(split)
            shards.append((shard_file(split, written[split]), split, len(entries)))
            written[split] += 1
            writer.write_batch(_to_batch(entries))

        for entry in source.entries():
            if isinstance(entry, Note):
                notes.append(entry.text)
                continue
            if isinstance(entry, BadRow):
                bad_rows.append(Skipped(entry.at, entry.reason))
                continue
            if entry.clip_id in seen:
                raise ValueError(f"clip {entry.clip_id!r}: its id occurs twice in {source.source}; ids must be unique")
            seen.add(entry.clip_id)
            if isinstance(entry, Absent):
                (absent if entry.is_normal else missing).append(Skipped(entry.clip_id, entry.reason))
                num_absent[entry.split] += 1
                continue
            check_split(entry.split, f"clip {entry.clip_id!r}, split")
            entry = extra.join(entry)
            entry = dataclasses.replace(entry, captions=check_captions(entry.captions, f"clip {entry.clip_id!r}"))
            waiting.setdefault(entry.split, []).append(entry)
            if len(waiting[entry.split]) >= options.clips_per_shard:
                flush(entry.split)
        for split in list(waiting):
            flush(split)
    if not shards:
        named = f"{len(seen)} clips are named, the audio of none is there" if seen else "no clips are named"
        first = next(iter(absent + missing + bad_rows), None)
        raise ValueError(f"{source.source}: {named}" + (f" (first: {first.clip_id}: {first.reason})" if first else ""))
    notes += [*extra.notes(), *(f"{split}: audio of {number} clips is absent" for split, number in num_absent.items())]
    if bad_rows:
        notes.append(f"{len(bad_rows):,} rows of tables were dropped")
    content = work.read(new_file)
    decisive = (options.name, options.licence, options.min_seconds, options.clips_per_shard)
    bounds = [dataclasses.asdict(options.audio)] if options.audio != AudioBounds() else []
    settings = json.dumps([decisive, [dataclasses.asdict(entry) for entry in missing], *bounds])
    plan_hash = hashlib.sha256(content + settings.encode()).hexdigest()
    del content
    state.keep_work_of(plan_hash, new_file)
    work.rename(new_file, PLAN_FILE)
    return ImportPlan(
        hash=plan_hash, shards=tuple(shards), absent=(*absent, *bad_rows), missing=tuple(missing), notes=tuple(notes)
    )


def _to_batch(entries: list[Entry]) -> pa.RecordBatch:
    columns: dict[str, list[Any]] = {
        **{name: [getattr(entry, name) for entry in entries] for name in ("clip_id", "split")},
        **{name: [getattr(entry.place, name) for entry in entries] for name in ("file", "kind", "first", "second")},
        "column": [entry.place.column for entry in entries],
        "captions": [[(code, list(texts)) for code, texts in entry.captions.items()] for entry in entries],
        "labels": [list(entry.labels) for entry in entries],
        "translated": [list(entry.translated) for entry in entries],
    }
    return pa.record_batch([pa.array(columns[field.name], field.type) for field in PLAN_SCHEMA], schema=PLAN_SCHEMA)


def _run(
    source: str, plan: ImportPlan, state: Unfinished, options: Import, progress: Progress | None
) -> list[dict[str, Any]]:
    """The notes of all shards, in the plan's order. ValueError as soon as too many clips are unreadable."""
    allowed = math.floor(options.max_unreadable * (plan.num_clips + len(plan.missing)))
    notes: dict[int, dict[str, Any]] = {}
    left_out = list(plan.missing)
    done = 0
    if len(left_out) > allowed:
        _refuse_unreadable(left_out, plan, options)

    def job_of(index: int) -> ShardJob:
        file, split, _ = plan.shards[index]
        bounds = options.min_seconds, options.audio
        return ShardJob(state.work.name, state.target.name, index, file, split, source, *bounds)

    use_ray = options.ray == "always" or (
        options.ray == "auto" and (is_inside_a_cluster() or plan.num_clips >= WORTH_RAY_CLIPS)
    )
    tasks = Resources(cpus=options.cpus_per_task, setting="cpus_per_task") if use_ray else None
    for index, note in state.written([file for file, _, _ in plan.shards], job_of, lambda: import_shard, tasks):
        notes[index] = note
        done += plan.shards[index][2]
        left_out += [Skipped(**entry) for entry in note["skipped"]]
        if len(left_out) > allowed:
            _refuse_unreadable(left_out, plan, options)
        if progress is not None:
            progress(done, plan.num_clips)
    return [notes[index] for index in range(len(plan.shards))]


def _refuse_unreadable(left_out: Sequence[Skipped], plan: ImportPlan, options: Import) -> None:
    total = plan.num_clips + len(plan.missing)
    shown = "; ".join(f"{entry.clip_id}: {entry.reason}" for entry in left_out[:3])
    raise ValueError(
        f"{len(left_out)} of {total} clips are unreadable so far; allowed {options.max_unreadable:.2%}"
        f" (--max-unreadable). The first: {shown}"
    )


def _manifest(source: Source, plan: ImportPlan, notes: Sequence[dict[str, Any]], options: Import) -> Manifest:
    unreadable = [Skipped(**entry) for note in notes for entry in note["skipped"]]
    shards = [Shard(**note["shard"]) for note in notes if note["shard"]]
    if not shards:
        raise ValueError(f"{source.source}: no clip could be read")
    return Manifest(
        name=options.name or source.name,
        licence=options.licence or source.licence,
        shards=order_shards(shards),
        skipped=(*plan.absent, *plan.missing, *unreadable),
        notes=plan.notes,
        origin=plan.hash,
    )
