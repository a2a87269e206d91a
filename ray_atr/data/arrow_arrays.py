"""Arrow arrays of Python strings and NumPy numbers, from their buffers: `pyarrow.array` imports pandas whenever it is given a
list or a NumPy array, a third of a second of CPU time for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_atr.data.schema import CAPTIONS

OFFSETS = np.int32
"""Of a list's or string's places, unless they are said to be large."""


def number_array(values: NDArray[np.generic]) -> pa.Array:
    """The Arrow array of numbers [N], which shares their memory if they are contiguous."""
    kept = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(kept.dtype), len(kept), [None, pa.py_buffer(kept)])


def numbers_of(column: pa.ChunkedArray) -> NDArray[np.generic]:
    """The numbers [N] of a column without nulls: not copied if it is in one piece, and then not to be written to."""
    return np.from_dlpack(column.combine_chunks())


def string_array(values: Sequence[str]) -> pa.Array:
    """The Arrow array of strings. ValueError for more than 2 GiB of UTF-8, or for what is no Unicode."""
    return pa.Array.from_buffers(pa.string(), len(values), _buffers([value.encode() for value in values]))


def binary_array(values: Sequence[bytes]) -> pa.Array:
    """The Arrow array (`large_binary`) of bytes."""
    return pa.Array.from_buffers(pa.large_binary(), len(values), _buffers(values, np.int64))


def list_array(counts: Iterable[int], values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The Arrow array of lists, of so many of the values in turn."""
    return pa.ListArray.from_arrays(number_array(_ends(counts, OFFSETS)), values, type=kind)


def caption_array(rows: Sequence[Mapping[str, Sequence[str]]]) -> pa.Array:
    """Captions by language, those of a language that has none left out, as an array of the column `captions`."""
    given = [[(code, texts) for code, texts in row.items() if texts] for row in rows]
    pairs = [pair for row in given for pair in row]
    entry = CAPTIONS.value_type
    words = string_array([text for _, texts in pairs for text in texts])
    texts = list_array([len(texts) for _, texts in pairs], words, entry.field("texts").type)
    entries = pa.StructArray.from_arrays([string_array([code for code, _ in pairs]), texts], fields=list(entry))
    return list_array([len(row) for row in given], entries, CAPTIONS)


def _buffers(values: Sequence[bytes], kind: type[np.integer] | None = None) -> list[pa.Buffer | None]:
    return [None, pa.py_buffer(_ends(map(len, values), kind or OFFSETS)), pa.py_buffer(b"".join(values))]


def _ends(counts: Iterable[int], kind: type[np.integer]) -> NDArray[np.integer]:
    ends = np.cumsum([0, *counts], dtype=np.int64)
    if ends[-1] > np.iinfo(kind).max:
        raise ValueError(f"{ends[-1]:,} are more than an Arrow array holds: {np.iinfo(kind).max:,}")
    return ends.astype(kind)
