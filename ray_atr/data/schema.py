"""A clip: one row of a data set, its Arrow schema, and the check every row passes before it is written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ray_atr.common.language_codes import normalise, require_language
from ray_atr.common.settings import refuse

AUDIO = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
CAPTIONS = pa.list_(pa.struct([("language", pa.string()), ("texts", pa.list_(pa.string()))]))
SCHEMA = pa.schema(
    [
        pa.field("clip_id", pa.string(), nullable=False),
        # `datasets` takes a column for its own Audio only if the type is the very same, nulls allowed.
        pa.field("audio", AUDIO),
        pa.field("sample_rate", pa.int32(), nullable=False),
        pa.field("seconds", pa.float32(), nullable=False),
        pa.field("captions", CAPTIONS, nullable=False),
        pa.field("labels", pa.list_(pa.string()), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("translated", pa.list_(pa.string()), nullable=False),
    ]
)
"""`audio` is the encoded file as it came (WAV, FLAC, OGG, MP3), its path the clip's id; `captions` are by ISO 639-3 code, caption
j being the same sentence in every language; `translated` names the languages whose captions a machine made. Audio and captions
are in the columns that `datasets` of Hugging Face has types for; it has none for maps."""

SPLITS = ("train", "val", "test")
"""The usual splits, in their order in shards and reports; a data set may have others."""
SPLIT_PATTERN = re.compile(r"[a-z0-9_]+")


@dataclass(frozen=True, kw_only=True)
class Clip:
    """One clip with its captions; the fields are those of `SCHEMA`."""

    clip_id: str
    audio: bytes = field(repr=False)
    sample_rate: int
    seconds: float
    captions: Mapping[str, Sequence[str]]
    labels: Sequence[str] = ()
    split: str
    source: str
    translated: Sequence[str] = ()


def part_of(clip_id: str) -> str:
    """The part of a joined data set that a clip belongs to."""
    return clip_id.partition("/")[0]


def check_clip(clip: Clip) -> Clip:
    """The clip with normalised captions (NFC, single blanks). Raises ValueError naming the clip and the field."""
    at = f"clip {clip.clip_id!r}"
    if not clip.clip_id or not clip.clip_id.strip() or not clip.clip_id.isprintable():
        raise refuse("clip_id", clip.clip_id, "printable text that is not blank")
    if not clip.audio:
        raise refuse(f"{at}, audio", clip.audio, "the bytes of an encoded audio file")
    if len(clip.audio) >= 2**31:
        raise refuse(f"{at}, audio", f"{len(clip.audio):,} bytes", "fewer than 2 GiB, the most that Parquet holds")
    if clip.sample_rate <= 0:
        raise refuse(f"{at}, sample_rate", clip.sample_rate, "a positive number of Hz")
    if not clip.seconds > 0:
        raise refuse(f"{at}, seconds", clip.seconds, "a positive duration")
    check_split(clip.split, f"{at}, split")
    if not clip.source:
        raise refuse(f"{at}, source", clip.source, "the name of the data set it comes from")
    captions = check_captions(clip.captions, at)
    if not captions and not clip.labels:
        raise ValueError(f"{at}: it has neither captions nor labels")
    for code in clip.translated:
        if code not in captions:
            raise refuse(f"{at}, translated", code, "languages the clip has captions in: " + ", ".join(captions))
    return replace(clip, captions=captions, labels=tuple(clip.labels), translated=tuple(clip.translated))


def check_captions(captions: Mapping[str, Sequence[str]], at: str) -> dict[str, tuple[str, ...]]:
    """Captions by language, normalised; `at` names the clip in errors. ValueError on a bad code or an empty caption."""
    checked: dict[str, tuple[str, ...]] = {}
    for code, texts in captions.items():
        language = check_language(code, f"{at}, captions")
        if isinstance(texts, str) or not texts or not all(isinstance(text, str) for text in texts):
            raise refuse(f"{at}, captions[{code}]", texts, "a list of one or more captions")
        if language in checked:
            raise refuse(f"{at}, captions", tuple(captions), f"each language once ({code} is {language})")
        checked[language] = tuple(normalise(text) for text in texts)
        if not all(checked[language]):
            raise refuse(f"{at}, captions[{code}]", tuple(texts), "captions that are not blank")
    return checked


def check_language(code: str, path: str) -> str:
    """The ISO 639-3 code of a language as a user wrote it (`en` -> `eng`). ValueError for what is no code of ISO 639."""
    return require_language(code, path).code


def check_split(split: str, path: str = "split") -> str:
    """The split's name, if it can be part of a file name; else ValueError."""
    if not isinstance(split, str) or not SPLIT_PATTERN.fullmatch(split):
        raise refuse(path, split, "lower-case letters, digits and _ (train, val, test)")
    return split


def to_batch(clips: Iterable[Clip]) -> pa.RecordBatch:
    """The clips as one Arrow record batch of `SCHEMA`, unchecked."""
    rows = list(clips)
    return pa.record_batch([_column(rows, field) for field in SCHEMA], schema=SCHEMA)


def _column(rows: Sequence[Clip], field: pa.Field) -> pa.Array:
    values = [getattr(row, field.name) for row in rows]
    if field.name == "captions":
        values = list(map(caption_rows, values))
    if field.name == "audio":
        paths = pa.array([row.clip_id for row in rows], pa.string())
        return pa.StructArray.from_arrays([_encoded(values), paths], fields=list(AUDIO))
    return pa.array(values, field.type)


def _encoded(values: Sequence[bytes]) -> pa.Array:
    if len(values) > 1:
        return pa.array(values, pa.binary())
    # A single value, which may be hours long, is not copied.
    ends = np.array([0, len(values[0])], np.int32)
    return pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(ends), pa.py_buffer(values[0])])


def caption_rows(captions: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Captions by language as a value of the column `captions`."""
    return [{"language": code, "texts": list(texts)} for code, texts in captions.items()]


def captions_by_language(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """A value of the column `captions` as captions by language."""
    return {row["language"]: row["texts"] for row in rows}


def aligned_captions(captions: Mapping[str, Mapping[int, str]]) -> dict[str, tuple[str, ...]]:
    """Captions by language, from captions by slot (which sentence each is), so that caption j is one sentence in every language.

    Each next slot is the one that most of the remaining languages have, and among equal ones the one whose languages have the
    most captions. A language without it gets no further captions, because there would be a gap.
    """

    def worth(slot: int) -> tuple[int, int]:
        having = [language for language in aligned if slot in captions[language]]
        return len(having), sum(len(captions[language]) for language in having)

    slots = sorted({slot for texts in captions.values() for slot in texts})
    if all(len(texts) == len(slots) for texts in captions.values()):
        return {language: tuple(texts[slot] for slot in slots) for language, texts in captions.items() if texts}
    result: dict[str, list[str]] = {language: [] for language in captions}
    aligned = list(captions)
    while slots and aligned:
        slot = max(slots, key=worth)
        aligned = [language for language in aligned if slot in captions[language]]
        for language in aligned:
            result[language].append(captions[language][slot])
        slots.remove(slot)
    return {language: tuple(texts) for language, texts in result.items() if texts}


def with_audio_bytes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with the encoded files themselves as its column `audio`, if it has one; nothing is copied."""
    place = batch.schema.get_field_index("audio")
    return batch if place < 0 else batch.set_column(place, "audio", batch.column(place).field("bytes"))


def to_clips(batch: pa.RecordBatch) -> list[Clip]:
    """The clips of a record batch that has every column of `SCHEMA`, as `read_shard` gives it."""
    clips = []
    for row in batch.select(SCHEMA.names).to_pylist():
        row |= {name: tuple(row[name]) for name in ("labels", "translated")}
        row["captions"] = {code: tuple(texts or ()) for code, texts in captions_by_language(row["captions"]).items()}
        clips.append(Clip(**row))
    return clips


def file_schema(*, holds_vectors: bool) -> pa.Schema:
    """`SCHEMA` with metadata for `datasets`, which then decodes the column `audio`; not if it holds vectors."""
    features = {field.name: _feature(field.type) for field in SCHEMA}
    if not holds_vectors:
        features["audio"] = {"_type": "Audio"}
    return SCHEMA.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def _feature(kind: pa.DataType) -> Any:
    """A type in the notation of `datasets`; a list with one element is its oldest list type, which all versions read."""
    if pa.types.is_struct(kind):
        return {field.name: _feature(field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_feature(kind.value_type)]
    return {"dtype": "float32" if kind == pa.float32() else str(kind), "_type": "Value"}


def check_schema(schema: pa.Schema, path: str) -> None:
    """ValueError if a file's columns are not those of `SCHEMA`; `path` names the file."""
    for expected in SCHEMA:
        index = schema.get_field_index(expected.name)
        if index < 0:
            raise ValueError(f"{path}: column {expected.name} is missing; it has {', '.join(schema.names) or 'none'}")
        # Parquet readers name the inner field of a list differently (item, element), which `datasets` does not see either.
        if str(_feature(schema.field(index).type)) != str(_feature(expected.type)):
            raise ValueError(f"{path}: column {expected.name} is {schema.field(index).type}; allowed {expected.type}")
