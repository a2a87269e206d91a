"""Importing a data set: plan the shards from the source's tables, then read, check and write them shard by shard.

The plan (which clip goes into which shard, with its captions and the location of its audio) is written next to the shards, so
that the work can be split among processes and machines, memory holds one row group a process, and an import that was
stopped continues with the shards that are missing. The shards do not depend on how many processes wrote them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from ray_atr.common.jobs import Resources
from ray_atr.common.locations import ANSWERS
from ray_atr.common.progress import CountProgress, silent
from ray_atr.common.runtime import is_inside_a_cluster
from ray_atr.common.settings import counted
from ray_atr.common.storage import Location, StorageError, complete_file, locate, read_bytes, rename
from ray_atr.data import schema
from ray_atr.data.decoding import AudioBounds, open_sound
from ray_atr.data.shards import Manifest, Shard, Skipped, in_shards, open_arrow, order_shards, write_shard
from ray_atr.workshop.importing.import_options import Import
from ray_atr.workshop.importing.session import Unfinished, unfinished
from ray_atr.workshop.importing.sources.read_table import read_table
from ray_atr.workshop.importing.sources.source import (
    AudioLocation,
    Entry,
    Source,
    aligned,
    captions_of,
    read_location,
)

PLAN_FILE = "plan.arrow"
PLAN_SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("clip_id", "split", "file", "kind")),
        *(pa.field(name, pa.int64()) for name in ("first", "second")),
        pa.field("column", pa.string()),
        *(schema.SCHEMA.field(name) for name in ("captions", "labels", "translated")),
    ]
)
LEAST_FOR_RAY = 5_000
"""Clips from which `auto` takes Ray, on one machine too."""


def uses_ray(ray: str, num_clips: int) -> bool:
    """Whether Ray's tasks read this many clips; `ray` is the setting: always, never or auto."""
    return ray == "always" or (ray == "auto" and (is_inside_a_cluster() or num_clips >= LEAST_FOR_RAY))


@dataclass(kw_only=True)
class ImportPlan:
    """The shards to write, in order, and what the tables say before any audio is read."""

    hash: str = ""
    shards: list[tuple[str, str, int]] = field(default_factory=list)
    """File name, split, number of clips."""
    absent: list[Skipped] = field(default_factory=list)
    missing: list[Skipped] = field(default_factory=list)
    bad_rows: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def num_clips(self) -> int:
        return sum(number for _, _, number in self.shards)


def import_data_set(
    source: Source,
    out: str | Path,
    *,
    captions: Sequence[str] = (),
    options: Import | None = None,
    progress: CountProgress = silent,
) -> Manifest:
    """Import a source into the folder `out` and return its manifest; a finished import of the same source is returned unchanged.
    `captions` are further languages as `jpn=FILE`. ValueError on bad input; then nothing is written. A stopped import leaves
    its work in a hidden folder, and the same call continues from there. `progress` is called with the number of clips done
    and the number of all.
    """
    options = options or Import()
    with unfinished(out) as state:
        plan = _make_plan(source, captions, options, state.work)
        if held := state.already_made(plan.hash, f"{PLAN_FILE}.new"):
            return held
        rename(state.work / f"{PLAN_FILE}.new", state.work / PLAN_FILE)
        notes = _run(options.name or source.name, plan, state, options, progress)
        shards = [Shard(**note["shard"]) for note in notes if note["shard"]]
        if not shards:
            raise ValueError(f"{source.source}: no clip could be read")
        unreadable = [Skipped(**entry) for note in notes for entry in note["skipped"]]
        return state.finish(
            Manifest(
                name=options.name or source.name,
                licence=options.licence or source.licence,
                shards=order_shards(shards),
                skipped=(*plan.absent, *plan.bad_rows, *plan.missing, *unreadable),
                notes=tuple(plan.notes),
                origin=plan.hash,
            )
        )


@dataclass(frozen=True)
class ShardJob:
    """One shard to write, with everything that a worker needs; folders are given by name."""

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
    with open_arrow(locate(job.work, keeps_links=True) / PLAN_FILE) as source, pa.ipc.open_file(source) as batches:
        rows = batches.get_batch(job.index).to_pylist()
    skipped: list[dict[str, str]] = []

    def clips() -> Iterator[schema.Clip]:
        for row in rows:
            # Frees the audio of one clip, which may be large, before the next one is read.
            clip = _read_clip(row, job)
            if isinstance(clip, schema.Clip):
                yield clip
            else:
                skipped.append({"clip_id": row["clip_id"], "reason": clip})
            del clip

    shard = write_shard(locate(job.target, keeps_links=True), job.file, job.split, clips())
    return {"shard": dataclasses.asdict(shard) if shard else None, "skipped": skipped}


def _read_clip(row: dict[str, Any], job: ShardJob) -> schema.Clip | str:
    """The clip of a plan's row, or why it is left out."""
    place = AudioLocation(*(row[name] for name in ("file", "kind", "first", "second", "column")))
    try:
        audio = read_location(place)
        sound = open_sound(audio, place.file, job.bounds)
        seconds = sum(len(block) for block in sound.blocks()) / sound.sample_rate
    except (ValueError, OSError) as error:
        if isinstance(error, StorageError) and not isinstance(error.__cause__, ANSWERS):
            # A store that is away says nothing about the clip.
            raise
        if isinstance(error, OSError) and error.filename is not None:
            return f"{error.filename}: {error.strerror}"
        return str(error)
    if seconds < job.min_seconds:
        return f"{place.file}: {seconds:.4f} s long; at least {job.min_seconds:g} s"
    words = {name: row[name] for name in ("clip_id", "labels", "split", "translated")}
    words |= {"captions": schema.captions_by_language(row["captions"]), "source": job.source}
    return schema.Clip(audio=audio, sample_rate=sound.sample_rate, seconds=seconds, **words)


def _make_plan(source: Source, captions: Sequence[str], options: Import, work: Location) -> ImportPlan:
    """Write the plan into the work folder, as a new file. ValueError if there is no clip to import."""
    plan, extra, counts = ImportPlan(), ExtraCaptions(captions, source), Counter[str]()
    with complete_file(work / f"{PLAN_FILE}.new") as output, pa.ipc.new_file(output, PLAN_SCHEMA) as writer:
        for file, entries in in_shards(_entries(source, extra, plan, counts), options.clips_per_shard):
            plan.shards.append((file, entries[0].split, len(entries)))
            rows = [
                {**vars(entry), **vars(entry.place), "captions": schema.caption_rows(entry.captions)}
                for entry in entries
            ]
            writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=PLAN_SCHEMA))
    if not plan.shards:
        left_out = plan.absent + plan.missing
        named = (
            f"{counted(len(left_out), 'clip is', 'clips are')} named, none of which can be imported"
            if left_out
            else "no clips are named"
        )
        first = next(iter(left_out + plan.bad_rows), None)
        raise ValueError(f"{source.source}: {named}" + (f" (first: {first.clip_id}: {first.reason})" if first else ""))
    plan.notes += extra.notes()
    plan.notes += [
        f"{split}: audio of {counted(number, 'clip')} is absent" for split, number in counts.items() if number
    ]
    if plan.bad_rows:
        plan.notes.append(f"{counted(len(plan.bad_rows), 'row of tables was', 'rows of tables were')} dropped")
    decisive = (options.name, options.licence, options.min_seconds, options.clips_per_shard)
    bounds = [dataclasses.asdict(options.audio)] if options.audio != AudioBounds() else []
    settings = json.dumps([decisive, [dataclasses.asdict(entry) for entry in plan.missing], *bounds])
    plan.hash = hashlib.sha256(read_bytes(work / f"{PLAN_FILE}.new") + settings.encode()).hexdigest()
    return plan


def _entries(source: Source, extra: ExtraCaptions, plan: ImportPlan, num_absent: Counter[str]) -> Iterator[Entry]:
    """The entries to import, checked, with their further captions. Absent clips and notes go into the plan."""
    seen: set[str] = set()
    for entry in aligned(source.entries()):
        if isinstance(entry, str):
            plan.notes.append(entry)
            continue
        if isinstance(entry, Skipped):
            plan.bad_rows.append(entry)
            continue
        at = f"clip {entry.clip_id!r}"
        if entry.clip_id in seen:
            raise ValueError(f"{at}: its id occurs twice in {source.source}; ids must be unique{source.remedy}")
        seen.add(entry.clip_id)
        if entry.place is None:
            reason = Skipped(entry.clip_id, entry.absent or "its audio is absent")
            (plan.missing if entry.absent else plan.absent).append(reason)
            # Only normal absences are counted; others are listed with their reasons.
            num_absent[entry.split] += not entry.absent
            continue
        schema.check_split(entry.split, f"{at}, split")
        yield dataclasses.replace(entry, captions=schema.check_captions(extra.joined_to(entry), at))


class ExtraCaptions:
    """Captions in further languages, of files given as `jpn=FILE`, joined to the clips of a source by id, and counted.
    A table has a column that names the clip as the source does, and `caption` (one row a caption, in the order of the
    source's captions) or `caption_1`, `caption_2`, ... Several files of one language are read one after another.
    """

    def __init__(self, files: Sequence[str], source: Source) -> None:
        self.by_language: dict[str, dict[str, tuple[str, ...]]] = {}
        self.repeated: dict[tuple[str, str], str] = {}
        self.joined: Counter[tuple[str, str]] = Counter()
        self.unequal: Counter[str] = Counter()
        self.clips: Counter[str] = Counter()
        for assignment in files:
            language, equals, file = assignment.partition("=")
            if not equals or not file:
                raise ValueError(f"captions: got {assignment!r}; allowed LANGUAGE=FILE such as jpn=test.csv")
            self._read(schema.check_language(language, "captions"), file, source)

    def _read(self, language: str, file: str, source: Source) -> None:
        captions_of_clips: dict[str, list[str]] = {}
        for at, row in read_table(file):
            clip_id, captions = source.id_of(row), captions_of(row, at)
            if clip_id is None:
                raise ValueError(f"{at}: no column names the clip; it has {', '.join(row)}")
            if not captions:
                raise ValueError(f"{at}: no caption; its columns are {', '.join(row)}")
            captions_of_clips.setdefault(clip_id, []).extend(captions)
        earlier = self.by_language.setdefault(language, {})
        for clip_id, texts in captions_of_clips.items():
            if clip_id in earlier:
                self.repeated[language, clip_id] = file
            earlier[clip_id] = schema.check_captions({language: texts}, f"{file}, clip {clip_id}")[language]

    def joined_to(self, entry: Entry) -> dict[str, Sequence[str]]:
        """An entry's captions with the further ones. ValueError if it has captions in that language already. Caption j
        must be the same sentence in every language, so a clip with another number of captions than the source gives it
        stays without; `notes` counts these.
        """
        self.clips[entry.split] += 1
        captions = dict(entry.captions)
        expected = max((len(texts) for texts in captions.values()), default=0)
        for language, by_clip in self.by_language.items():
            texts = by_clip.get(entry.clip_id) or by_clip.get(entry.alias)
            if texts is None:
                continue
            # Only now: two parts of Clotho have files of one name, whose clips have other ids.
            if file := self.repeated.get((language, entry.clip_id)) or self.repeated.get((language, entry.alias)):
                raise ValueError(f"{file}: clip {entry.clip_id} has {language} captions in an earlier file too")
            if language in captions:
                has = f"the source itself has {language} captions"
                raise ValueError(f"clip {entry.clip_id}: {has}; give other languages")
            if expected and len(texts) != expected:
                self.unequal[language] += 1
                continue
            captions[language] = texts
            self.joined[language, entry.split] += 1
        return captions

    def notes(self) -> list[str]:
        """A line for each language: to how many clips of each split its captions were joined, and how many were left out.
        ValueError for a language without any clip to join to.
        """
        lines = []
        for language, by_clip in self.by_language.items():
            counts = {split: self.joined[language, split] for split in self.clips}
            if not sum(counts.values()):
                clips = f"none of {counted(len(by_clip), 'clip')} in the {language} file"
                where = f"is in the data set (the first is {next(iter(by_clip), '')!r})"
                raise ValueError(f"captions: {clips} {where}, or their captions differ in number")
            parts = [f"{number} of {self.clips[split]} {split} clips" for split, number in counts.items()]
            left = self.unequal[language]
            left_out = f"; {left} with another number of captions left out" if left else ""
            lines.append(f"{language} captions joined: {', '.join(parts)}{left_out}")
        return lines


def _run(
    source: str, plan: ImportPlan, state: Unfinished, options: Import, progress: CountProgress
) -> list[dict[str, Any]]:
    """The notes of all shards, in the plan's order. ValueError as soon as too many clips are unreadable."""
    notes: dict[int, dict[str, Any]] = {}
    left_out = list(plan.missing)
    done = 0
    _check_unreadable(left_out, plan, options)
    use_ray = uses_ray(options.ray, plan.num_clips)
    tasks = Resources(cpus=options.cpus_per_task, setting="cpus_per_task") if use_ray else None
    folders, bounds = (str(state.work), str(state.target)), (options.min_seconds, options.audio)
    listed = enumerate(plan.shards)
    jobs = {file: ShardJob(*folders, index, file, split, source, *bounds) for index, (file, split, _) in listed}
    read = None
    if tasks is not None and plan.shards:
        with open_arrow(state.work / PLAN_FILE) as opened, pa.ipc.open_file(opened) as batches:
            read = locate(batches.get_batch(0)["file"][0].as_py(), keeps_links=True)
    for index, note in state.written(jobs, lambda: import_shard, tasks, read):
        notes[index] = note
        done += plan.shards[index][2]
        left_out += [Skipped(**entry) for entry in note["skipped"]]
        _check_unreadable(left_out, plan, options)
        progress(done, plan.num_clips)
    return [notes[index] for index in range(len(plan.shards))]


def _check_unreadable(left_out: Sequence[Skipped], plan: ImportPlan, options: Import) -> None:
    total = plan.num_clips + len(plan.missing)
    # Not compared as a product: .29 times 100 is less than 29 in floating point.
    if left_out and len(left_out) / total > options.max_unreadable:
        shown = "; ".join(f"{entry.clip_id}: {entry.reason}" for entry in left_out[:3])
        allowed = f"allowed {options.max_unreadable:.2%} (--max-unreadable 0.1 leaves out up to a tenth)"
        raise ValueError(f"{len(left_out)} of {total} clips cannot be read so far; {allowed}. The first: {shown}")
