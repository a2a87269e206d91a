"""Importing a data set: plan the shards from the source's tables, then read, check and write them shard by shard.

The plan (which clip goes into which shard, with its words and the place of its audio) is written beside the shards, so
that the work can be split among processes and machines, memory holds one row group a process, and an import that was
stopped goes on with the shards that are missing. The shards do not depend on how many processes wrote them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ray_atr.data.audio import decode
from ray_atr.data.schema import SCHEMA, Clip, check_captions, check_split
from ray_atr.data.shards import (
    CLIPS_PER_SHARD,
    Manifest,
    Shard,
    Skipped,
    open_folder,
    order_shards,
    shard_file,
    write_shard,
)
from ray_atr.data.sources.base import Absent, Entry, Source
from ray_atr.data.sources.joining import ExtraCaptions
from ray_atr.data.sources.places import Place, read_place
from ray_atr.data.unfinished import Unfinished, unfinished, write_note
from ray_atr.runtime import is_inside_a_cluster, start_ray
from ray_atr.settings import Settings, refuse, setting

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
NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True)
class Import(Settings):
    """How a data set is imported."""

    name: str = setting("", "name of the data set; unset: the kind of source")
    licence: str = setting("", "its licence; unset: what is known of the kind of source")
    max_unreadable: float = setting(0.01, "share of clips that may be unreadable and left out", at_least=0, at_most=1)
    min_seconds: float = setting(
        0.04, "shorter clips count as unreadable (s); one analysis window of the default front end", at_least=0
    )
    clips_per_shard: int = setting(CLIPS_PER_SHARD, "clips in one Parquet file", at_least=1)
    ray: str = setting(
        "auto",
        "decode on Ray's workers; auto: in a cluster, or where there are 5,000 clips or more",
        choices=("auto", "always", "never"),
    )
    cpus_per_task: float = setting(1.0, "logical CPUs that Ray reserves for a shard in work", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name and not NAME_PATTERN.fullmatch(self.name):
            raise refuse("name", self.name, "letters, digits, _, - and .")


@dataclass(frozen=True, kw_only=True)
class Plan:
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


def prepare(
    source: Source,
    out: str | Path,
    *,
    captions: Sequence[str] = (),
    options: Import | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Import a source into the folder `out` and return its manifest; the same import made before is returned as it is.

    `captions` are further languages as `jpn=FILE`. ValueError on bad input, which leaves nothing behind; an import that
    is stopped leaves its work in a hidden folder and the same call goes on from there. `progress` is called with the
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


def import_shard(job: ShardJob) -> dict[str, Any]:
    """Read, check and write one shard of a plan; returns what its note says: the shard, and the clips left out."""
    work = open_folder(job.work)
    with work.open_arrow(PLAN_FILE) as source, pa.ipc.open_file(source) as batches:
        rows = batches.get_batch(job.index).to_pylist()
    skipped: list[Skipped] = []
    clips = _read_clips(rows, job.source, job.min_seconds, skipped)
    shard = write_shard(open_folder(job.target), job.file, job.split, clips)
    note = {
        "shard": dataclasses.asdict(shard) if shard else None,
        "skipped": [dataclasses.asdict(entry) for entry in skipped],
    }
    write_note(work, job.file, note)
    return note


def _read_clips(
    rows: list[dict[str, Any]], source_name: str, min_seconds: float, skipped: list[Skipped]
) -> Iterator[Clip]:
    for row in rows:
        place = Place(row["file"], row["kind"], row["first"], row["second"], row["column"])
        try:
            audio = read_place(place)
            waveform, sample_rate = decode(audio, place.file)
        except (ValueError, OSError) as error:
            skipped.append(Skipped(row["clip_id"], _reason(error)))
            continue
        seconds = len(waveform) / sample_rate
        if seconds < min_seconds:
            skipped.append(Skipped(row["clip_id"], f"{place.file}: {seconds:.4f} s long; at least {min_seconds:g} s"))
            continue
        yield Clip(
            clip_id=row["clip_id"],
            audio=audio,
            sample_rate=sample_rate,
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


def _make_plan(source: Source, captions: Sequence[str], options: Import, state: Unfinished) -> Plan:
    """Write the plan into the work folder; the work of a stopped import with the same plan is kept, other work removed."""
    extra = ExtraCaptions(captions, source)
    absent: list[Skipped] = []
    missing: list[Skipped] = []
    shards: list[tuple[str, str, int]] = []
    waiting: dict[str, list[Entry]] = {}
    written: Counter[str] = Counter()
    seen: set[str] = set()
    num_absent: Counter[str] = Counter()
    work, new_file = state.work, f"{PLAN_FILE}.new"
    with work.writing(new_file) as output, pa.ipc.new_file(output, PLAN_SCHEMA) as writer:

        def flush(split: str) -> None:
            entries = waiting.pop(split)
            shards.append((shard_file(split, written[split]), split, len(entries)))
            written[split] += 1
            writer.write_batch(_to_batch(entries))

        for entry in source.entries():
            if entry.clip_id in seen:
                raise ValueError(f"clip {entry.clip_id!r}: its id stands twice in {source.source}; ids must be unique")
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
        first = next(iter(absent + missing), None)
        raise ValueError(f"{source.source}: {named}" + (f" (first: {first.clip_id}: {first.reason})" if first else ""))
    notes = [*extra.notes(), *(f"{split}: audio of {number} clips is absent" for split, number in num_absent.items())]
    content = work.read(new_file)
    decisive = (options.name, options.licence, options.min_seconds, options.clips_per_shard)
    settings = json.dumps([decisive, [dataclasses.asdict(entry) for entry in missing]])
    plan_hash = hashlib.sha256(content + settings.encode()).hexdigest()
    del content
    state.keep_work_of(plan_hash, new_file)
    work.filesystem.mv(work.file(new_file), work.file(PLAN_FILE))
    return Plan(hash=plan_hash, shards=tuple(shards), absent=tuple(absent), missing=tuple(missing), notes=tuple(notes))


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
    source: str, plan: Plan, state: Unfinished, options: Import, progress: Progress | None
) -> list[dict[str, Any]]:
    """The notes of all shards, in the plan's order. ValueError as soon as too many clips are unreadable."""
    allowed = math.floor(options.max_unreadable * (plan.num_clips + len(plan.missing)))
    notes: dict[int, dict[str, Any]] = {}
    left_out = list(plan.missing)
    done = 0

    def take(index: int, note: dict[str, Any]) -> None:
        nonlocal done
        notes[index] = note
        done += plan.shards[index][2]
        left_out.extend(Skipped(**entry) for entry in note["skipped"])
        if len(left_out) > allowed:
            _refuse_unreadable(left_out, plan, options)
        if progress is not None:
            progress(done, plan.num_clips)

    if len(left_out) > allowed:
        _refuse_unreadable(left_out, plan, options)
    finished = state.notes()
    jobs = []
    for index, (file, split, _) in enumerate(plan.shards):
        if file in finished:
            take(index, state.read_note(file))
        else:
            jobs.append(ShardJob(state.work.name, state.target.name, index, file, split, source, options.min_seconds))
    use_ray = options.ray == "always" or (
        options.ray == "auto" and (is_inside_a_cluster() or plan.num_clips >= WORTH_RAY_CLIPS)
    )
    for index, note in _run_with_ray(jobs, options.cpus_per_task) if use_ray else _run_here(jobs):
        take(index, note)
    return [notes[index] for index in range(len(plan.shards))]


def _run_here(jobs: Sequence[ShardJob]) -> Iterator[tuple[int, dict[str, Any]]]:
    for job in jobs:
        yield job.index, import_shard(job)


def _run_with_ray(jobs: Sequence[ShardJob], cpus: float) -> Iterator[tuple[int, dict[str, Any]]]:
    if not jobs:
        return
    start_ray()
    import ray

    dataset = ray.data.from_items([dataclasses.asdict(job) for job in jobs], override_num_blocks=len(jobs))
    # A shard may come from a slow disk or network.
    dataset.context.execution_no_progress_timeout_s = 1800

    def run(row: dict[str, Any]) -> dict[str, Any]:
        return {"index": row["index"], "note": json.dumps(import_shard(ShardJob(**row)))}

    for row in dataset.map(run, num_cpus=cpus).iter_rows():
        yield int(row["index"]), json.loads(row["note"])


def _refuse_unreadable(left_out: Sequence[Skipped], plan: Plan, options: Import) -> None:
    total = plan.num_clips + len(plan.missing)
    shown = "; ".join(f"{entry.clip_id}: {entry.reason}" for entry in left_out[:3])
    raise ValueError(
        f"{len(left_out)} of {total} clips are unreadable so far; allowed {options.max_unreadable:.2%}"
        f" (--max-unreadable). The first: {shown}"
    )


def _manifest(source: Source, plan: Plan, notes: Sequence[dict[str, Any]], options: Import) -> Manifest:
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
