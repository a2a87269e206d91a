"""Check of a data set on disk: files, schema, ids, audio, languages, leaks between splits; a report of one page.

A *problem* makes the set unfit (a changed file, a repeated id, audio in two splits); a *remark* is for a person to judge
(silent clips, a language that some clips lack, a caption text in two splits).
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product

import numpy as np

from ray_atr.common.language_codes import ENGLISH
from ray_atr.common.progress import CountProgress, silent
from ray_atr.common.sampling import number_of, repeats, uniform
from ray_atr.common.settings import counted, shortened
from ray_atr.common.storage import StorageError, file_exists
from ray_atr.common.table import terminal_width, text_table
from ray_atr.data import vector_clip
from ray_atr.data.decoding import open_sound
from ray_atr.data.schema import Clip, check_clip, to_clips
from ray_atr.data.shards import Manifest, Shard, hash_of_file, read_manifest, read_shard
from ray_atr.workshop.importing.caption_checks import MANY_CLIPS, WINDOW, RowOrder, looks_like, other_language
from ray_atr.workshop.importing.import_options import Check
from ray_atr.workshop.importing.sources.source import UNUSUAL_SPLIT, unusual_splits

EXAMPLES = 3
OTHER_LANGUAGE, MOSTLY = "{} caption is in another language", 0.5
"""The remark, and the share of a language's captions above which it becomes a problem."""
ROWS_TOGETHER = 1024
"""Rows of a split whose order is checked together."""
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


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
    problems: defaultdict[str, Finding] = field(default_factory=lambda: defaultdict(Finding))
    remarks: defaultdict[str, Finding] = field(default_factory=lambda: defaultdict(Finding))
    num_decoded: int = 0
    clips: Counter[str] = field(default_factory=Counter)
    with_language: Counter[tuple[str, str]] = field(default_factory=Counter)
    shared_text: dict[tuple[str, str], int] = field(default_factory=dict)
    """Clips of a (split, language) that share a caption text with another clip of the same split."""
    num_identified: Counter[str] = field(default_factory=Counter)
    """Number of captions of each language whose language was identified."""
    seconds: float = 0.0
    long_clips: int = 0
    seconds_cut: float = 0.0
    """Seconds of long clips beyond the front end's window."""
    leaked_text: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """Caption texts of (split, other split, language) that are in both."""

    @property
    def is_fit(self) -> bool:
        return not self.problems

    @property
    def verdict(self) -> str:
        """Whether the set is fit for training, for evaluation only, or not at all."""
        if not self.is_fit:
            return "NOT fit for use"
        for split, setting, purpose in (("train", "train_split", "evaluation"), ("val", "validation_split", "use")):
            if split not in self.manifest.splits:
                return f"fit for {purpose}; to train on it, name a split with --data.{setting}: none is called {split}"
        return "fit for use"


def check_data_set(folder: str, options: Check | None = None, progress: CountProgress = silent) -> Report:
    """Read all of a data set and report what is wrong. ValueError only if there is no data set. Memory grows by about 30
    bytes per caption, for hashes of ids, audio and texts.
    """
    options = options or Check()
    manifest = read_manifest(folder)
    report, memory, orders = Report(manifest), _Memory(), dict[str, RowOrder]()
    for split in unusual_splits(manifest.splits):
        report.remarks[UNUSUAL_SPLIT].add(split)
    for number, shard in enumerate(manifest.shards, start=1):
        order = orders.setdefault(shard.split, RowOrder())
        _check_shard(shard, options, report, memory, order)
        if len(order.names) >= ROWS_TOGETHER:
            orders[shard.split] = _remark_shifts(order, shard.split, report)
        progress(number, len(manifest.shards))
    for split, order in orders.items():
        _remark_shifts(order, split, report)
    for language, number in report.num_identified.items():
        kind = OTHER_LANGUAGE.format(language)
        if number >= MANY_CLIPS and report.remarks.get(kind, Finding()).count > MOSTLY * number:
            report.problems[f"most {kind}"] = report.remarks.pop(kind)
    _compare_splits(report, memory)
    return report


def _remark_shifts(order: RowOrder, split: str, report: Report) -> RowOrder:
    """Add remarks on blocks that look moved by one row. Returns the last rows, which are checked again with the next ones."""
    for language, clips in order.shifted():
        report.remarks[f"captions look moved by one row ({language})"].add(f"{clips} ({split})")
    return RowOrder(order.names[-WINDOW:], order.words[-WINDOW:], order.captions[-WINDOW:])


def _check_shard(shard: Shard, options: Check, report: Report, memory: _Memory, order: RowOrder) -> None:
    file = report.manifest.file_of(shard)
    if not file_exists(file):
        report.problems["shard is missing"].add(shard.file)
        return
    digest = hash_of_file(file)
    if digest != shard.sha256:
        report.problems["shard has another SHA-256 than the manifest says"].add(f"{shard.file} ({digest[:12]}...)")
    num_rows = 0
    batches = read_shard(report.manifest, shard)
    while True:
        try:
            batch = next(batches, None)
        except StorageError:
            raise
        except (ValueError, OSError) as error:
            # Arrow's errors are of both kinds; the shard is unreadable from here on.
            report.problems["shard cannot be read"].add(str(error))
            return
        if batch is None:
            break
        num_rows += batch.num_rows
        for row in to_clips(batch):
            clip = _schema_checked(row, report)
            _check_clip(clip, shard, options, report, memory)
            order.add(clip.clip_id, clip.labels, clip.captions)
    if num_rows != shard.num_rows:
        report.problems["shard has another number of clips than the manifest says"].add(f"{shard.file}: {num_rows}")


def _schema_checked(clip: Clip, report: Report) -> Clip:
    """The clip; what breaks the schema is reported. Languages and captions that are not text, as another program may write them,
    are left out.
    """
    try:
        check_clip(clip)
    except ValueError as error:
        report.problems["clip breaks the schema"].add(str(error))
        texts = {
            code: tuple(text for text in texts if isinstance(text, str))
            for code, texts in clip.captions.items()
            if isinstance(code, str)
        }
        return replace(clip, captions=texts)
    return clip


def _check_clip(clip: Clip, shard: Shard, options: Check, report: Report, memory: _Memory) -> None:
    name = f"{clip.clip_id} ({clip.split})"
    if clip.split != shard.split:
        report.problems["clip is in a shard of another split"].add(f"{name} in {shard.file}")
    report.clips[clip.split] += 1
    memory.add(clip)
    for language, texts in clip.captions.items():
        report.with_language[clip.split, language] += 1
        if len(set(texts)) < len(texts):
            report.remarks[f"clip has the same {language} caption twice"].add(name)
    reference = ENGLISH if ENGLISH in clip.captions else next(iter(clip.captions), "")
    for language, texts in clip.captions.items():
        if len(texts) != len(clip.captions[reference]):
            whom = "English" if reference == ENGLISH else reference
            report.remarks[f"clip has another number of {language} captions than of {whom} ones"].add(name)
    _check_texts(clip, name, options, report)
    if not vector_clip.is_vector(clip.audio):
        report.seconds += clip.seconds
        if clip.seconds > options.clip_seconds:
            report.long_clips += 1
            report.seconds_cut += clip.seconds - options.clip_seconds
    if uniform([clip.clip_id], 0, "check")[0] < options.audio_share:
        report.num_decoded += 1
        check = _check_vector if vector_clip.is_vector(clip.audio) else _check_audio
        check(clip, name, options, report)


def _check_texts(clip: Clip, name: str, options: Check, report: Report) -> None:
    is_looked_at = uniform([clip.clip_id], 0, "language")[0] < options.language_share
    for language, texts in clip.captions.items():
        for text in texts:
            for kind in looks_like(text):
                report.remarks[f"{language} caption looks like {kind}"].add(f"{name}: {shortened(text, 80)}")
            if len(text) > options.caption_characters:
                kind = (
                    f"{language} caption is longer than {options.caption_characters} characters, more than towers read"
                )
                report.remarks[kind].add(f"{name}: {len(text):,}: {shortened(text, 40)}")
            report.num_identified[language] += is_looked_at
            if is_looked_at and (other := other_language(text, language)):
                kind = OTHER_LANGUAGE.format(language)
                report.remarks[kind].add(f"{name}: {other}: {shortened(text, 80)}")


def _check_audio(clip: Clip, name: str, options: Check, report: Report) -> None:
    length, peak, clipped = 0, 0.0, 0
    try:
        sound = open_sound(clip.audio, name, options.audio)
        for block in sound.blocks():
            level = np.abs(block)
            length, peak = length + len(block), max(peak, float(level.max()))
            clipped += int((level >= options.clipped_level).sum())
    except ValueError as error:
        report.problems["audio cannot be decoded"].add(str(error))
        return
    seconds = length / sound.sample_rate
    if abs(seconds - clip.seconds) > max(0.01, 1e-3 * clip.seconds):
        durations = f"{name}: {seconds:.2f} s, not {clip.seconds:.2f} s"
        report.problems["clip has another duration than its row says"].add(durations)
    if seconds < options.min_seconds:
        report.remarks["clip is shorter than one analysis window"].add(f"{name}: {seconds:.4f} s")
    if peak < options.silent_peak:
        report.remarks["clip is silent"].add(name)
    elif clipped / length >= options.clipped_share:
        report.remarks["clip is clipped"].add(f"{name}: {clipped / length:.1%} at full scale")


def _check_vector(clip: Clip, name: str, options: Check, report: Report) -> None:
    try:
        vector = vector_clip.loaded(clip.audio, name)
    except ValueError as error:
        report.problems["vector cannot be read"].add(str(error))
        return
    if vector.ndim != 1 or not np.issubdtype(vector.dtype, np.floating) or not np.isfinite(vector).all():
        report.problems["vector is not finite numbers"].add(name)
    elif not vector.any():
        report.remarks["vector is zero"].add(name)


class _Memory:
    """What must not repeat: of each clip its id, its split and a hash of its audio; of each caption a hash and its clip."""

    def __init__(self) -> None:
        self.clips: list[tuple[str, str]] = []
        self.audio = array("Q")
        self.texts: dict[tuple[str, str], tuple[array[int], array[int]]] = {}

    def add(self, clip: Clip) -> None:
        number = len(self.clips)
        self.clips.append((clip.clip_id, clip.split))
        self.audio.append(number_of(clip.audio))
        for language, texts in clip.captions.items():
            hashes, clips = self.texts.setdefault((clip.split, language), (array("Q"), array("Q")))
            hashes.extend(number_of(text.casefold().encode()) for text in texts)
            clips.extend(number for _ in texts)


def _compare_splits(report: Report, memory: _Memory) -> None:
    for first, second in repeats(clip_id for clip_id, _ in memory.clips):
        (clip_id, split), (_, other) = memory.clips[first], memory.clips[second]
        kind = "id occurs twice" if split == other else "id occurs in two splits"
        report.problems[kind].add(f"{clip_id} ({split}, {other})")
    for first, second in repeats(memory.audio):
        (clip_id, split), (other_id, other) = memory.clips[first], memory.clips[second]
        example = f"{clip_id} ({split}) = {other_id} ({other})"
        if split == other:
            report.remarks["two clips of a split have the same audio"].add(example)
        else:
            report.problems["the same audio is in two splits"].add(example)
    languages = report.manifest.languages
    for split, language in product(report.clips, languages):
        if missing := report.clips[split] - report.with_language[split, language]:
            of_all = f"{missing:,} of {report.clips[split]:,} {split} clips"
            report.remarks["language is missing"].add(f"{language} in {of_all}")
    for (split, language), (hashes, clips) in memory.texts.items():
        pairs = texts_of_clips(np.asarray(hashes), np.asarray(clips))
        report.shared_text[split, language] = num_clips_sharing(pairs)
        for clip, number in widespread(pairs):
            report.remarks[f"one {language} caption is on many clips"].add(f"{number:,} as {memory.clips[clip][0]}")
    for (split, other), language in product(combinations(report.clips, 2), languages):
        if (split, language) in memory.texts and (other, language) in memory.texts:
            ours, theirs = (np.asarray(memory.texts[name, language][0]) for name in (split, other))
            if len(common := np.intersect1d(ours, theirs)):
                report.leaked_text[split, other, language] = len(common)


def texts_of_clips(hashes: np.ndarray, clips: np.ndarray) -> np.ndarray:
    """(text, clip), each pair once, in order; `hashes` and `clips` are [N], one entry a caption."""
    return np.unique(np.stack([hashes, clips.astype(hashes.dtype)], axis=1), axis=0)


def num_clips_sharing(pairs: np.ndarray) -> int:
    """Number of clips that have a text which another clip has too, of the pairs of `texts_of_clips`."""
    _, inverse, counts = np.unique(pairs[:, 0], return_inverse=True, return_counts=True)
    return len(np.unique(pairs[counts[inverse.reshape(-1)] > 1, 1]))


def widespread(pairs: np.ndarray) -> list[tuple[int, int]]:
    """(first clip, number of clips) of each text on `MANY_CLIPS` clips or more, and on a hundredth of the number of texts."""
    _, first, counts = np.unique(pairs[:, 0], return_index=True, return_counts=True)
    many = np.flatnonzero(counts >= max(MANY_CLIPS, 0.01 * len(counts)))
    return [(int(pairs[first[place], 1]), int(counts[place])) for place in many]


def hours_of(manifest: Manifest) -> str:
    """The total length of the clips, as text to follow their number; empty for a data set of vectors."""
    return f", {manifest.seconds / 3600:.2f} hours" if manifest.seconds else ""


def page(report: Report) -> list[str]:
    """The report as lines of text, one page."""
    manifest = report.manifest
    lines = [
        f"{manifest.name} at {manifest.folder}",
        f"licence: {manifest.licence}",
        f"{counted(manifest.num_rows, 'clip')}{hours_of(manifest)}, {counted(len(manifest.shards), 'shard')},"
        f" {sum(shard.num_bytes for shard in manifest.shards) / 2**20:,.1f} MiB, hash {manifest.hash[:16]}",
        *manifest.notes,
        "",
    ]
    lines += _languages(report)
    lines += [
        "",
        f"decoded: {counted(report.num_decoded, 'clip')}; left out at import: {len(manifest.skipped):,}",
    ]
    lines += lines_left_out(manifest)
    if report.long_clips:
        beyond = (
            f"{counted(report.long_clips, 'clip')}; {report.seconds_cut / report.seconds:.1%} of the audio is beyond it"
        )
        heard_by = "is heard only by models whose windows are not cut (--model.windows)"
        lines.append(f"longer than one window: {beyond}, and {heard_by}")
    leaked: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for (first, second, language), number in report.leaked_text.items():
        leaked[first, second].append(f"{number:,} {language}")
    lines += [f"caption texts in both {one} and {other}: {', '.join(texts)}" for (one, other), texts in leaked.items()]
    for title, findings in (("remarks", report.remarks), ("problems", report.problems)):
        lines += ["", f"{title}: {sum(finding.count for finding in findings.values()) or 'none'}"]
        for kind, finding in findings.items():
            more = "" if finding.count <= EXAMPLES else ", ..."
            lines.append(f"  {finding.count:,} x {kind}: {'; '.join(finding.examples)}{more}")
    return [*lines, "", report.verdict]


def _languages(report: Report) -> list[str]:
    """Captions and clips by language; one table per split if the terminal is too narrow for a single table."""
    manifest = report.manifest
    for parts in ([tuple(report.clips)], [(split,) for split in report.clips]):
        tables = []
        for splits in parts:
            columns = ["language", "captions", "by machine"]
            columns += [head for split in splits for head in (f"{split} clips", "sharing a text")]
            rows = []
            for code in manifest.languages:
                rows.append([code, f"{manifest.num_captions(code):,}", f"{manifest.num_translated(code):,}"])
                for split in splits:
                    rows[-1].append(f"{report.with_language[split, code]:,} of {report.clips[split]:,}")
                    rows[-1].append(f"{report.shared_text.get((split, code), 0):,}")
            tables.append(text_table(columns, rows))
        if max(len(line) for table in tables for line in table) <= terminal_width():
            break
    return [line for table in tables for line in ("", *table)][1:]


def lines_left_out(manifest: Manifest, most: int | None = None) -> list[str]:
    """A line for each of the `most` frequent reasons why clips were left out, with the first clips, and one for all others."""
    lines, reasons = [], _left_out(manifest)
    for reason, clips in reasons[:most]:
        named = ", ".join(shortened(clip, 40) for clip in clips[:EXAMPLES]) + (", ..." if len(clips) > EXAMPLES else "")
        lines.append(f"  {len(clips):,} x {reason}: {named}")
    if others := reasons[len(lines) :]:
        lines.append(f"  {sum(len(clips) for _, clips in others):,} for {counted(len(others), 'other reason')}")
    return lines


def _left_out(manifest: Manifest) -> list[tuple[str, list[str]]]:
    """The clips by the reason for which they were left out, the most frequent reason first. Reasons that differ only in numbers
    count as one; the first few numbers are shown.
    """
    kinds: dict[str, list[tuple[str, str]]] = {}
    for entry in manifest.skipped:
        # A reason may begin with a file's name and quote its content; the quote holds no file names.
        said = entry.reason.split("; allowed")[0]
        begins, got, reason = said.partition(": got '")
        # What was got may hold a colon too.
        begins, _, reason = (begins, "", f"got '{reason}") if got else said.rpartition(": ")
        reason = reason if begins else re.sub(rf"\S*(?<!\w){re.escape(entry.clip_id)}(?!\w)\S*", "its file", reason)
        kinds.setdefault(NUMBER.sub("N", reason), []).append((reason, entry.clip_id))
    most_first = sorted(kinds.items(), key=lambda item: -len(item[1]))
    return [
        (_with_numbers(kind, [reason for reason, _ in reasons]), [clip_id for _, clip_id in reasons])
        for kind, reasons in most_first
    ]


def _with_numbers(kind: str, reasons: Sequence[str]) -> str:
    if len(set(reasons)) == 1:
        return reasons[0]
    numbers = [" and ".join(NUMBER.findall(reason)) for reason in dict.fromkeys(reasons)]
    return f"{kind} (N: {', '.join(numbers[:EXAMPLES])}{', ...' if len(numbers) > EXAMPLES else ''})"
