"""What is right and wrong with a data set on disk: files, schema, ids, audio, languages, leaks between splits; one page.

A *problem* makes the set unfit (a changed file, a repeated id, audio in two splits); a *remark* is for a person to judge
(silent clips, a language that some clips lack, a caption text in two splits).
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import pyarrow as pa

from ray_atr.data.audio import decode
from ray_atr.data.draws import uniform
from ray_atr.data.schema import check_clip, to_clips
from ray_atr.data.shards import Manifest, Shard, hash_of_file, open_folder, read_manifest, read_shard
from ray_atr.settings import Settings, setting

EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class Check(Settings):
    """What a check looks at and where it draws the line."""

    audio_share: float = setting(1.0, "share of clips whose audio is decoded, drawn by id", at_least=0, at_most=1)
    silent_peak: float = setting(1e-3, "a clip is silent when no sample exceeds this (full scale is 1)", above=0)
    clipped_level: float = setting(0.999, "a sample at or above this is at full scale", above=0, at_most=1)
    clipped_share: float = setting(1e-3, "a clip is clipped when this share of its samples is at full scale", above=0)
    min_seconds: float = setting(0.04, "shorter clips are named (s); one analysis window of the default front end")


@dataclass
class Finding:
    """One kind of thing found: how often, and the first few examples."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, example: str) -> None:
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(example)


@dataclass
class Report:
    """Problems and remarks by kind, and what the page says of the set itself."""

    manifest: Manifest
    problems: dict[str, Finding] = field(default_factory=dict)
    remarks: dict[str, Finding] = field(default_factory=dict)
    num_decoded: int = 0
    clips: Counter[str] = field(default_factory=Counter)
    with_language: Counter[tuple[str, str]] = field(default_factory=Counter)
    shared_text: dict[tuple[str, str], int] = field(default_factory=dict)
    """Clips of a (split, language) that share a caption text with another clip of the same split."""
    leaked_text: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """Caption texts of (split, other split, language) that stand in both."""

    @property
    def is_fit(self) -> bool:
        return not self.problems

    def problem(self, kind: str, example: str) -> None:
        self.problems.setdefault(kind, Finding()).add(example)

    def remark(self, kind: str, example: str) -> None:
        self.remarks.setdefault(kind, Finding()).add(example)


def check_data_set(
    folder: str, options: Check | None = None, progress: Callable[[int, int], None] | None = None
) -> Report:
    """Read a whole data set and report what is wrong. ValueError only where there is no data set.

    Memory grows by about 30 bytes a caption: hashes of ids, audio and texts, never the audio.
    """
    options = options or Check()
    manifest = read_manifest(folder)
    report, memory = Report(manifest), _Memory()
    for number, shard in enumerate(manifest.shards, start=1):
        if _check_file(manifest, shard, report):
            for batch in _batches(manifest, shard, report):
                _check_batch(batch, shard, options, report, memory)
        if progress is not None:
            progress(number, len(manifest.shards))
    _compare_splits(report, memory)
    return report


def _check_file(manifest: Manifest, shard: Shard, report: Report) -> bool:
    folder = open_folder(manifest.folder)
    if not folder.exists(shard.file):
        report.problem("shard is missing", shard.file)
        return False
    found = hash_of_file(folder, shard.file)
    if found != shard.sha256:
        report.problem("shard has another SHA-256 than the manifest says", f"{shard.file} ({found[:12]}...)")
    return True


def _batches(manifest: Manifest, shard: Shard, report: Report) -> Iterator[pa.RecordBatch]:
    num_rows = 0
    try:
        for batch in read_shard(manifest, shard):
            num_rows += batch.num_rows
            yield batch
    except (ValueError, OSError) as error:
        # Arrow's errors are of both kinds; the shard is unreadable from here on.
        report.problem("shard cannot be read", str(error))
        return
    if num_rows != shard.num_rows:
        report.problem("shard has another number of clips than the manifest says", f"{shard.file}: {num_rows}")


def _check_batch(batch: pa.RecordBatch, shard: Shard, options: Check, report: Report, memory: _Memory) -> None:
    for clip in to_clips(batch):
        name = f"{clip.clip_id} ({clip.split})"
        if clip.split != shard.split:
            report.problem("clip lies in a shard of another split", f"{name} in {shard.file}")
        try:
            check_clip(clip)
        except ValueError as error:
            report.problem("clip breaks the schema", str(error))
        report.clips[clip.split] += 1
        index = memory.add_clip(clip.clip_id, clip.split, clip.audio)
        for language, texts in clip.captions.items():
            report.with_language[clip.split, language] += 1
            memory.add_texts(clip.split, language, index, texts)
            if len(set(texts)) < len(texts):
                report.remark(f"clip has the same {language} caption twice", name)
        expected = len(clip.captions.get("eng", ()))
        for language, texts in clip.captions.items():
            if expected and len(texts) != expected:
                report.remark(f"clip has another number of {language} captions than of English ones", name)
        if options.audio_share >= 1 or uniform([clip.clip_id], 0, "check")[0] < options.audio_share:
            _check_audio(clip.audio, name, clip.seconds, options, report)


def _check_audio(audio: bytes, name: str, seconds: float, options: Check, report: Report) -> None:
    report.num_decoded += 1
    try:
        waveform, sample_rate = decode(audio, name)
    except ValueError as error:
        report.problem("audio cannot be decoded", str(error))
        return
    found = len(waveform) / sample_rate
    if abs(found - seconds) > max(0.01, 1e-3 * seconds):
        report.problem("clip has another duration than its row says", f"{name}: {found:.2f} s, not {seconds:.2f} s")
    if found < options.min_seconds:
        report.remark("clip is shorter than one analysis window", f"{name}: {found:.4f} s")
    level = np.abs(waveform)
    if level.max() < options.silent_peak:
        report.remark("clip is silent", name)
    elif (level >= options.clipped_level).mean() >= options.clipped_share:
        report.remark("clip is clipped", f"{name}: {(level >= options.clipped_level).mean():.1%} at full scale")


class _Memory:
    """Hashes of what must not repeat, and in which clip and split each was seen first."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.ids: dict[str, str] = {}
        self.repeated_ids: list[tuple[str, str, str]] = []
        self.audio: dict[int, tuple[int, str]] = {}
        self.repeated_audio: list[tuple[int, str, int, str]] = []
        self.texts: dict[tuple[str, str], tuple[array[int], array[int]]] = {}

    def add_clip(self, clip_id: str, split: str, audio: bytes) -> int:
        index = len(self.names)
        self.names.append(clip_id)
        if clip_id in self.ids:
            self.repeated_ids.append((clip_id, self.ids[clip_id], split))
        self.ids.setdefault(clip_id, split)
        digest = _digest(audio)
        if digest in self.audio:
            self.repeated_audio.append((*self.audio[digest], index, split))
        self.audio.setdefault(digest, (index, split))
        return index

    def add_texts(self, split: str, language: str, clip: int, texts: Sequence[str]) -> None:
        hashes, clips = self.texts.setdefault((split, language), (array("Q"), array("Q")))
        for text in texts:
            hashes.append(_digest(text.casefold().encode()))
            clips.append(clip)


def _digest(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _compare_splits(report: Report, memory: _Memory) -> None:
    for clip_id, first, second in memory.repeated_ids:
        kind = "id stands twice" if first == second else "id stands in two splits"
        report.problem(kind, f"{clip_id} ({first}, {second})")
    for first_clip, first, second_clip, second in memory.repeated_audio:
        example = f"{memory.names[first_clip]} ({first}) = {memory.names[second_clip]} ({second})"
        if first == second:
            report.remark("two clips of a split have the same audio", example)
        else:
            report.problem("the same audio is in two splits", example)
    for split in report.clips:
        for language in report.manifest.languages:
            missing = report.clips[split] - report.with_language[split, language]
            if missing:
                report.remark(
                    "language is missing", f"{language} in {missing:,} of {report.clips[split]:,} {split} clips"
                )
    for (split, language), (hashes, clips) in memory.texts.items():
        report.shared_text[split, language] = num_clips_sharing(np.asarray(hashes), np.asarray(clips))
    for first, second in combinations(report.clips, 2):
        for language in report.manifest.languages:
            pair = [memory.texts.get((split, language)) for split in (first, second)]
            if pair[0] is not None and pair[1] is not None:
                common = np.intersect1d(np.asarray(pair[0][0]), np.asarray(pair[1][0]))
                if len(common):
                    report.leaked_text[first, second, language] = len(common)


def num_clips_sharing(hashes: np.ndarray, clips: np.ndarray) -> int:
    """Number of clips that have a text which another clip has too; `hashes` and `clips` are [N], one entry a text."""
    pairs = np.unique(np.stack([hashes, clips.astype(hashes.dtype)], axis=1), axis=0)
    _, inverse, counts = np.unique(pairs[:, 0], return_inverse=True, return_counts=True)
    return len(np.unique(pairs[counts[inverse.reshape(-1)] > 1, 1]))


def page(report: Report) -> list[str]:
    """The report as lines of text, one page."""
    manifest = report.manifest
    lines = [
        f"{manifest.name} at {manifest.folder}",
        f"licence: {manifest.licence}",
        f"{manifest.num_rows:,} clips, {manifest.seconds / 3600:.2f} hours, {len(manifest.shards)} shards,"
        f" {sum(shard.num_bytes for shard in manifest.shards) / 2**20:,.1f} MiB, hash {manifest.hash[:16]}",
        *manifest.notes,
        "",
        f"{'language':<10}{'captions':>10}{'by machine':>12}"
        + "".join(f"{split + ' clips':>16}{'sharing a text':>16}" for split in report.clips),
    ]
    for language in manifest.languages:
        row = f"{language:<10}{manifest.num_captions(language):>10,}{manifest.num_translated(language):>12,}"
        for split in report.clips:
            coverage = f"{report.with_language[split, language]:,} of {report.clips[split]:,}"
            row += f"{coverage:>16}{report.shared_text.get((split, language), 0):>16,}"
        lines.append(row)
    lines += ["", f"audio decoded: {report.num_decoded:,} clips; left out at import: {len(manifest.skipped):,}"]
    lines += [f"  {number:,} x {reason}" for reason, number in reasons_left_out(manifest)]
    for (first, second, language), number in report.leaked_text.items():
        lines.append(f"caption texts in both {first} and {second}: {number:,} {language}")
    for title, findings in (("remarks", report.remarks), ("problems", report.problems)):
        lines += ["", f"{title}: {sum(finding.count for finding in findings.values()) or 'none'}"]
        for kind, finding in findings.items():
            more = "" if finding.count <= EXAMPLES else ", ..."
            lines.append(f"  {finding.count:,} x {kind}: {'; '.join(finding.examples)}{more}")
    return [*lines, "", "fit for use" if report.is_fit else "NOT fit for use"]


def reasons_left_out(manifest: Manifest) -> list[tuple[str, int]]:
    """Why clips were left out at import and how many for each reason, the most frequent first."""
    # A reason may begin with the file it speaks of and quote what was found there; equal reasons shall count together.
    kinds = Counter(_kind_of(entry.reason, entry.clip_id) for entry in manifest.skipped)
    return kinds.most_common()


def _kind_of(reason: str, clip_id: str) -> str:
    kind = reason.rsplit(": ", 1)[-1].split("; allowed")[0]
    kind = re.sub(rf"\S*(?<!\w){re.escape(clip_id)}(?!\w)\S*", "its file", kind)
    return re.sub(r"\d[\d.,]*", "N", kind)
