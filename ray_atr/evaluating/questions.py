"""What is asked of a split: its captions in the languages wanted, its classes, and its audio to listen to."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import soundfile

from ray_atr.data.audio import decode, resample
from ray_atr.data.classes import class_sentences
from ray_atr.data.languages import LANGUAGES, require_languages
from ray_atr.data.shards import Manifest, read_captions, read_shard
from ray_atr.evaluation.captions import AlignedCaptions, align_captions
from ray_atr.evaluation.players import SIGNATURES
from ray_atr.settings import nearest, refuse

PLAYED_BYTES = 128 * 2**10
PLAYED_SECONDS = 30
PLAYED_RATE = 16_000


@dataclass(frozen=True)
class Questions:
    """One split of a data set as an evaluation asks about it."""

    manifest: Manifest
    split: str
    clip_ids: list[str]
    labels: list[list[str]]
    captions: AlignedCaptions
    classes: list[str]
    class_sentences: dict[str, list[str]]
    """Language -> a sentence for each class; empty where the clips have no labels."""
    notes: list[str] = field(default_factory=list)

    @property
    def languages(self) -> list[str]:
        return list(self.captions.sentences)

    def listen(self, clip: int) -> bytes:
        """The encoded audio of a clip, small enough to be embedded in a page, in a form that browsers play."""
        for shard in self.manifest.shards_of(self.split):
            if clip < shard.num_rows:
                break
            clip -= shard.num_rows
        for batch in read_shard(self.manifest, shard, ["audio"]):
            if clip < batch.num_rows:
                return playable(batch.column("audio")[clip].as_py())
            clip -= batch.num_rows
        raise ValueError(f"{shard.file}: fewer clips than the manifest says")


def pose_questions(
    manifest: Manifest, split: str, languages: Sequence[str] = (), *, relevance: str = "auto", max_captions: int = 0
) -> Questions:
    """Read a split's captions and labels. ValueError for a split or language that the data set does not have.

    `languages` empty: all that the split has. Clips without captions are candidates only.
    """
    if split not in manifest.splits:
        raise refuse(
            "split", split, f"splits of {manifest.name}: {', '.join(manifest.splits)}", nearest(split, manifest.splits)
        )
    rows = list(read_captions(manifest, split))
    if not rows:
        raise refuse("split", split, f"a split with clips; {manifest.folder} has none in it")
    has = [code for code in manifest.languages if any(row.captions.get(code) for row in rows)]
    wanted, notes = _languages(has, languages, f"{manifest.name}, split {split}")
    labels = [list(row.labels or ()) for row in rows]
    captions = align_captions(
        {language: [row.captions.get(language) or [] for row in rows] for language in wanted},
        max_captions,
        labels=labels,
        relevance=relevance,
    )
    classes = sorted({label for own in labels for label in own})
    sentences = class_sentences(classes, wanted) if len(classes) > 1 else {}
    if len(classes) > 1 and len(sentences) < len(wanted):
        without = ", ".join(language for language in wanted if language not in sentences)
        notes.append(f"Zero-shot classification: the classes have no names in {without}.")
    ids = [row.clip_id for row in rows]
    return Questions(manifest, split, ids, labels, captions, classes if sentences else [], sentences, notes)


def _languages(has: Sequence[str], wanted: Sequence[str], where: str) -> tuple[list[str], list[str]]:
    """The languages to ask in, and a note on those that no text encoder here has a name for."""
    if wanted:
        require_languages(list(wanted))
        missing = [language for language in wanted if language not in has]
        if missing:
            raise refuse("languages", ", ".join(missing), f"languages of {where}: {', '.join(has) or 'none'}")
        return list(wanted), []
    known = [language for language in has if language in LANGUAGES]
    if not known:
        raise refuse("languages", ", ".join(has) or "no captions at all", ", ".join(LANGUAGES))
    others = [language for language in has if language not in LANGUAGES]
    return known, [f"Captions in {', '.join(others)} were left out."] if others else []


def playable(audio: bytes) -> bytes:
    """The file itself where it is small and browsers play it, else its first 30 s as OGG at 16 kHz."""
    if len(audio) <= PLAYED_BYTES and audio.startswith(tuple(SIGNATURES)):
        return audio
    waveform, sample_rate = decode(audio)
    waveform = resample(waveform[: PLAYED_SECONDS * sample_rate], sample_rate, PLAYED_RATE)
    buffer = io.BytesIO()
    with soundfile.SoundFile(buffer, "w", PLAYED_RATE, 1, format="OGG", subtype="VORBIS") as file:
        # In pieces: libsndfile's Vorbis encoder keeps what it is given at once on its stack.
        for piece in np.array_split(waveform, max(1, len(waveform) // 2**15)):
            file.write(piece)
    return buffer.getvalue()
