"""Arrow arrays from buffers are those that pyarrow makes of lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from ray_atr.data import arrow_arrays
from ray_atr.data.arrow_arrays import (
    binary_array,
    caption_array,
    list_array,
    number_array,
    numbers_of,
    string_array,
)
from ray_atr.data.schema import CAPTIONS, caption_rows

TIMES = pa.list_(pa.float64())


@pytest.mark.parametrize("values", [[], [""], ["a", "", "犬が吠える", "ü" * 300]])
def test_strings_and_bytes(values: list[str]) -> None:
    made = string_array(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.string()))
    encoded = [value.encode() for value in values]
    assert binary_array(encoded).equals(pa.array(encoded, pa.large_binary()))


@pytest.mark.parametrize("kind", [np.int64, np.float64, np.float16])
def test_numbers_there_and_back(kind: type[np.generic]) -> None:
    values = np.arange(12).astype(kind)
    assert number_array(values[::3]).equals(pa.array(values[::3]))
    column = pa.chunked_array([number_array(values), number_array(values)])
    assert numbers_of(column.slice(3, 15)).tolist() == [*values, *values][3:18]
    assert numbers_of(column.slice(0, 0)).tolist() == []


def test_lists_and_captions() -> None:
    made = list_array([2, 0, 1], number_array(np.array([0.5, 1, 2])), TIMES)
    assert made.equals(pa.array([[0.5, 1], [], [2]], TIMES))
    rows: list[dict[str, Sequence[str]]] = [{"eng": ["a dog", "a bark"], "deu": []}, {}, {"jpn": ("犬",), "eng": [""]}]
    made = caption_array(rows)
    made.validate(full=True)
    expected = [caption_rows({code: texts for code, texts in row.items() if texts}) for row in rows]
    assert made.equals(pa.array(expected, CAPTIONS))


def test_more_than_an_array_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_arrays, "OFFSETS", np.int8)
    with pytest.raises(ValueError, match="200 are more than an Arrow array holds: 127"):
        string_array(["a" * 200])
