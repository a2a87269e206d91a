"""Import of the user's own vectors of clips and captions, as a data set that trains like any other.

    --audio X.npy   [N, W]       a clip's vector a row
    --text T.npy    [M, V]       a caption's vector a row
    --table pairs.csv            a caption a row: audio_row, caption[, text_row, language, split, clip_id, label]

`audio_row` and `text_row` count from 0; without `text_row` the table's own row counts. X and T may be NumPy files, safetensors
(`FILE` of one tensor, or `FILE::NAME`) or Parquet columns (`FILE::COLUMN`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from ray_atr.common.digests import seal_folder
from ray_atr.common.language_codes import normalise
from ray_atr.common.settings import refuse, shortened
from ray_atr.common.storage import is_local, locate
from ray_atr.data.caption_vectors import GIVEN, KEYS_FILE, PART, Caption, in_key_order, part_file
from ray_atr.data.features import MANIFEST_FILE
from ray_atr.data.schema import Clip, check_language, check_split
from ray_atr.data.shards import (
    CLIPS_PER_SHARD,
    Manifest,
    in_shards,
    new_data_set,
    order_shards,
    read_manifest,
    write_manifest,
    write_shard,
)
from ray_atr.data.vector_clip import array_bytes, read_array
from ray_atr.workshop.importing.import_options import VectorImport
from ray_atr.workshop.importing.sources.read_table import read_table
from ray_atr.workshop.importing.sources.source import ListedClip, blank_splits, captions_of, cell_of, labels_of


def import_vectors(settings: VectorImport, out: str | Path) -> Manifest:
    """Write the data set to a new folder. ValueError names the file and the row that is wrong; then nothing is written."""
    if not is_local(locate(out)):
        raise refuse("out", str(out), "a folder on this machine; copy the finished data set to a store")
    audio, text = read_vectors(settings.audio, "audio"), read_vectors(settings.text, "text")
    clips, captions, notes = _read_pairs(settings, audio, text)
    with new_data_set(out) as aside:
        shards = []
        for file, of_shard in in_shards(clips, CLIPS_PER_SHARD):
            shard = write_shard(aside, file, of_shard[0].split, _as_rows(of_shard, audio, settings.name))
            assert shard is not None, "a shard of clips"
            shards.append(shard)
        ordered, keys = in_key_order(captions)
        rows = np.array([captions[caption] for caption in ordered], np.int64)
        digest = write_caption_vectors(Path(str(aside)) / GIVEN, keys, text.shape[1], lambda part: text[rows[part]])
        notes.insert(0, f"vectors: clips {audio.shape[1]}, captions {text.shape[1]} numbers each")
        about: dict[str, Any] = {"name": settings.name, "licence": settings.licence, "origin": digest}
        write_manifest(aside, Manifest(shards=order_shards(shards), notes=tuple(notes), **about))
    return read_manifest(out)


def read_vectors(place: str, path: str) -> NDArray[np.float32]:
    """Vectors [N, W] of a file. ValueError names the file, and the row of a vector that is not finite."""
    file, _, part = place.partition("::")
    if not Path(file).is_file():
        why = "this is a folder" if Path(file).is_dir() else "this one is not there"
        raise refuse(path, file, f"a file of vectors (.npy, .safetensors, .parquet::COLUMN); {why}")
    try:
        array = np.asarray(_load(file, part, path))
    except (ValueError, TypeError, OSError, SafetensorError) as error:
        if str(error).startswith(f"{path}: "):
            raise
        raise refuse(path, place, f"a file of vectors ({shortened(str(error))})") from None
    if array.ndim != 2 or 0 in array.shape or not np.issubdtype(array.dtype, np.floating):
        got = f"{place}: {array.dtype} of shape {list(array.shape)}"
        hint = ""
        if array.ndim > 2 and 0 not in array.shape:
            rows = int(np.prod(array.shape[:-1]))
            hint = f" (reshape it to [{rows}, {array.shape[-1]}], with a row of the table for each)"
        raise refuse(path, got, "floating-point vectors [rows, width]", hint)
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    if len(bad := np.flatnonzero(~np.isfinite(array).all(axis=1))):
        raise refuse(f"{path}: {place}, row {bad[0]}", "NaN or infinity", f"finite numbers ({len(bad)} rows are not)")
    return array


def _load(file: str, part: str, path: str) -> Any:
    suffix = Path(file).suffix.lower()
    if suffix == ".npy":
        with open(file, "rb") as opened:
            return read_array(opened)
    if suffix == ".safetensors":
        tensors = load_file(file)
        if not part and len(tensors) == 1:
            return next(iter(tensors.values()))
        if part not in tensors:
            raise _no_part(file, part, path, "tensors", tensors)
        return tensors[part]
    if suffix == ".parquet":
        return _column(file, part, path)
    raise refuse(path, file, "a .npy, .safetensors or .parquet file")


def _no_part(file: str, part: str, path: str, kind: str, names: Iterable[str]) -> ValueError:
    return refuse(path, f"{file}::{part}", f"one of its {kind}: " + ", ".join(f"{file}::{name}" for name in names))


def _column(file: str, part: str, path: str) -> NDArray[Any]:
    names = pq.read_schema(file).names
    if part not in names:
        raise _no_part(file, part, path, "columns", names)
    column = pq.read_table(file, columns=[part]).column(part).combine_chunks()
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise refuse(path, f"{file}::{part}: a column of {kind}", "a column of lists of floating-point numbers")
    lengths = pc.list_value_length(column).fill_null(-1).to_numpy()
    width = max(int(lengths[0]), 0) if len(lengths) else 0
    if len(bad := np.flatnonzero(lengths != width)):
        got = "nothing" if lengths[bad[0]] < 0 else f"{lengths[bad[0]]} numbers"
        raise refuse(f"{path}: {file}, row {bad[0]}", got, f"{width} numbers, as the first row has")
    return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(len(lengths), width)


def _read_pairs(
    settings: VectorImport, audio: NDArray[np.float32], text: NDArray[np.float32]
) -> tuple[list[ListedClip], dict[Caption, int], list[str]]:
    """The clips in the order of their first rows, the row of each caption's vector, and notes for the user."""
    clips: dict[int, ListedClip] = {}
    owners: dict[str, ListedClip] = {}
    captions: dict[Caption, int] = {}
    blank = number = 0
    has_text_rows: bool | None = None
    for number, (at, row) in enumerate(read_table(settings.table, required=["audio_row", "caption"])):
        place = row_number(row["audio_row"], len(audio), f"{at}, audio_row", settings.audio)
        if has_text_rows not in (None, "text_row" in row):
            raise refuse(f"{at}, text_row", row.get("text_row"), "one in each row of the table, or in none")
        has_text_rows = "text_row" in row
        at_text = f"{at}, text_row" if has_text_rows else f"{at} (the table has no text_row)"
        text_place = row_number(row["text_row"] if has_text_rows else number, len(text), at_text, settings.text)
        texts = captions_of(row, at)
        if len(texts) != 1:
            raise refuse(f"{at}, caption", f"{len(texts)} captions", "one caption a row: it has one vector")
        language = check_language(cell_of(row, "language") or settings.language, f"{at}, language")
        blank += "split" in row and not cell_of(row, "split")
        split = check_split(cell_of(row, "split") or settings.split, f"{at}, split")
        # As it will be in the data set.
        caption = (normalise(texts[0]), language)
        if not np.array_equal(text[captions.setdefault(caption, text_place)], text[text_place]):
            allowed = f"the vector that {caption[0]!r} has already, row {captions[caption]}"
            raise refuse(f"{at}, text_row", text_place, allowed)
        clip = clip_of_row(ListedClip(place, cell_of(row, "clip_id"), split, at), clips, owners)
        clip.captions.setdefault(language, []).append(caption[0])
        clip.labels += [label for label in labels_of(row.get("label"), f"{at}, label") if label not in clip.labels]
    if not clips:
        raise ValueError(f"{settings.table}: no pairs")
    notes = [blank_splits(blank, settings.split)] if blank else []
    if not has_text_rows and number + 1 < len(text):
        notes.append(f"the table has no text_row: vectors {number + 1} to {len(text) - 1} of --text are no caption's")
    return list(clips.values()), captions, notes


def clip_of_row(listed: ListedClip, clips: dict[int, ListedClip], owners: dict[str, ListedClip]) -> ListedClip:
    """The clip of a row, new or from an earlier row. ValueError if an earlier row contradicts it."""
    place, at, given = listed.place, listed.at, listed.given_id
    clip = clips.setdefault(place, replace(listed, given_id=given or f"clip-{place:08d}"))
    if clip.split != listed.split:
        raise ValueError(f"{at}: clip {place} is in split {clip.split} in an earlier row and in {listed.split} here")
    if given not in ("", clip.given_id):
        allowed = f"{clip.given_id!r}, the id of audio_row {place} in an earlier row ({clip.at})"
        raise refuse(f"{at}, clip_id", given, allowed)
    owner = owners.setdefault(clip.given_id, clip)
    if owner is not clip:
        allowed = f"an id of one clip alone: audio_row {owner.place} has it already ({owner.at})"
        raise refuse(f"{at}, clip_id", clip.given_id, allowed)
    return clip


def row_number(value: Any, count: int | None, at: str, file: str) -> int:
    """The number of a row of a file in a cell, from 0. ValueError, beginning with `at`, for anything else, or `count` or more."""
    # pandas writes whole numbers as 3.0 where their column has been joined, or had a blank.
    text = str(value).strip().removesuffix(".0")
    if not text.isdecimal() or (count is not None and int(text) >= count):
        raise refuse(at, value, f"a row of {file}, from 0" + ("" if count is None else f" to {count - 1}"))
    return int(text)


def _as_rows(clips: list[ListedClip], audio: NDArray[np.float32], source: str) -> Iterator[Clip]:
    for clip in clips:
        captions = {language: tuple(texts) for language, texts in clip.captions.items()}
        words: dict[str, Any] = {"captions": captions, "labels": tuple(clip.labels), "split": clip.split}
        # The schema requires a rate and a duration; neither is read for vectors.
        words |= {"sample_rate": 1, "seconds": 1.0, "source": source}
        yield Clip(clip_id=clip.given_id, audio=array_bytes(audio[clip.place]), **words)


def write_caption_vectors(
    folder: Path, keys: NDArray[np.int64], width: int, vectors_of: Callable[[slice], NDArray[np.float32]]
) -> str:
    """Write vectors in the layout of `data/caption_vectors.py`, in parts that `vectors_of` gives; returns their SHA-256."""
    digest = hashlib.sha256()
    folder.mkdir(parents=True)

    def write(name: str, array: NDArray[Any]) -> None:
        content = array_bytes(array)
        digest.update(content)
        (folder / name).write_bytes(content)

    write(KEYS_FILE, keys)
    for number, start in enumerate(range(0, len(keys), PART)):
        write(part_file(number), vectors_of(slice(start, start + PART)))
    (folder / MANIFEST_FILE).write_text(json.dumps({"width": width, "num_captions": len(keys)}), encoding="utf-8")
    seal_folder(folder)
    return digest.hexdigest()
