"""One split for an evaluation: its captions in some languages, its classes, and its audio for players."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import soundfile
from numpy.typing import NDArray

from ray_atr.common.language_codes import language_codes
from ray_atr.common.settings import nearest, refuse, wing
from ray_atr.data.caption_vectors import has_vectors
from ray_atr.data.decoding import IMPORTED, first_samples, open_sound, resampled_blocks
from ray_atr.data.schema import part_of
from ray_atr.data.shards import ClipCaptions, Manifest, read_captions, read_shard
from ray_atr.evaluation.report.html import SOUNDS
from ray_atr.metrics.alignment import AlignedCaptions, align_captions

PLAYED_BYTES, PLAYED_SECONDS, PLAYED_RATE = 128 * 2**10, 30, 16_000


@dataclass(frozen=True)
class EvalSplit:
    """One split of a data set for an evaluation."""

    manifest: Manifest
    split: str
    rows: list[ClipCaptions] = field(repr=False)
    """The clips with their captions in all languages."""
    labels: list[list[str]]
    captions: AlignedCaptions
    classes: list[str]
    class_sentences: dict[str, list[str]]
    """Language -> a sentence for each class; empty if the clips have no labels."""
    notes: list[str] = field(default_factory=list)

    @cached_property
    def clip_ids(self) -> list[str]:
        return [row.clip_id for row in self.rows]

    @property
    def languages(self) -> list[str]:
        return list(self.captions.sentences)

    @property
    def clips_of_parts(self) -> dict[str, NDArray[np.int64]]:
        """The clips [n], ascending, of each part of a joined data set that has captions here; empty for a single part."""
        if not self.manifest.is_joined:
            return {}
        parts, part = np.unique([part_of(clip_id) for clip_id in self.clip_ids], return_inverse=True)
        captioned = part[self.captions.relevance.clip.numpy()]
        clips = {str(name): np.flatnonzero(part == k) for k, name in enumerate(parts) if k in captioned}
        return clips if len(clips) > 1 else {}

    def captions_of(self, clips: Sequence[str]) -> list[int]:
        """The first caption of each clip that every language has. ValueError for an unknown clip, or without one."""
        numbers = {clip_id: number for number, clip_id in enumerate(self.clip_ids)}
        everywhere = np.logical_and.reduce(list(self.captions.present.values()))
        pairs = self.captions.relevance
        rows = []
        for clip in clips:
            if clip not in numbers:
                raise refuse("clips", clip, f"ids of clips of split {self.split}", nearest(clip, self.clip_ids))
            texts = [row for row in pairs.text[pairs.clip == numbers[clip]].tolist() if everywhere[row]]
            if not texts:
                raise refuse("clips", clip, "clips with a caption in every language")
            rows.append(min(texts))
        return rows


def listen(manifest: Manifest, split: str, clip: int) -> bytes | None:
    """The encoded audio of a split's clip, as a small file that browsers play; None if the clips are vectors."""
    if has_vectors(manifest.folder):
        return None
    for shard in manifest.shards_of(split):
        if clip < shard.num_rows:
            break
        clip -= shard.num_rows
    for batch in read_shard(manifest, shard, ["audio"]):
        if clip < batch.num_rows:
            return playable(batch.column("audio")[clip].as_py())
        clip -= batch.num_rows
    raise ValueError(f"{shard.file}: fewer clips than in the manifest")


def read_eval_split(
    manifest: Manifest, split: str, languages: Sequence[str] = (), *, relevance: str = "auto", max_captions: int = 0
) -> EvalSplit:
    """Read a split's captions and labels. ValueError for a split or language that the data set does not have.

    `languages` empty: all that the split has. Clips without captions are candidates only.
    """
    require_split(manifest, split)
    rows = list(read_captions(manifest, split))
    if not rows:
        raise refuse("split", split, f"a split with clips; {manifest.folder} has none in it")
    has = [code for code in manifest.languages if any(row.captions.get(code) for row in rows)]
    wanted = languages_among(has, languages, f"{manifest.name}, split {split}")
    labels = [list(row.labels or ()) for row in rows]
    captions = align_captions(
        {language: [row.captions.get(language) or [] for row in rows] for language in wanted},
        max_captions,
        labels=labels,
        relevance=relevance,
    )
    classes = sorted({label for labels_of_clip in labels for label in labels_of_clip})
    notes = []
    sentences = wing("workshop.languages.templates").class_sentences(classes, wanted) if len(classes) > 1 else {}
    if len(classes) > 1 and len(sentences) < len(wanted):
        without = ", ".join(language for language in wanted if language not in sentences)
        notes.append(f"Zero-shot classification: the classes have no names in {without}.")
    return EvalSplit(manifest, split, rows, labels, captions, classes if sentences else [], sentences, notes)


def require_split(manifest: Manifest, split: str) -> None:
    """ValueError for a split that the data set does not have."""
    if split not in manifest.splits:
        allowed = f"splits of {manifest.name}: {', '.join(manifest.splits)}"
        raise refuse("split", split, allowed, nearest(split, manifest.splits))


def languages_among(has: Sequence[str], wanted: Sequence[str], where: str) -> list[str]:
    """The wanted languages as codes, one by one or joined by commas; all if none are named. ValueError for a missing one."""
    wanted = language_codes([code.strip() for given in wanted for code in given.split(",")]) if wanted else has
    missing = [language for language in wanted if language not in has]
    if missing or not wanted:
        raise refuse("languages", ", ".join(missing), f"languages of {where}: {', '.join(has) or 'none'}")
    return list(wanted)


def playable(audio: bytes) -> bytes:
    """The file itself if it is small and browsers play it, else its first 30 s as OGG at 16 kHz."""
    if len(audio) <= PLAYED_BYTES and audio.startswith(tuple(SOUNDS)):
        return audio
    sound = open_sound(audio, bounds=IMPORTED)
    resampled = resampled_blocks(sound.blocks(), sound.sample_rate, PLAYED_RATE)
    waveform = first_samples(resampled, PLAYED_SECONDS * PLAYED_RATE)
    buffer = io.BytesIO()
    with soundfile.SoundFile(buffer, "w", PLAYED_RATE, 1, format="OGG", subtype="VORBIS") as file:
        # In pieces, because libsndfile's Vorbis encoder puts each write on its stack.
        for piece in np.array_split(waveform, max(1, len(waveform) // 2**15)):
            file.write(piece)
    return buffer.getvalue()
