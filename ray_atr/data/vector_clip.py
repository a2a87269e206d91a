"""A clip that is a vector instead of audio: kept as the bytes of a NumPy file in the place of an encoded clip."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_atr.data.numpy_file import array_bytes, read_array
from ray_atr.settings import refuse

Buffer = bytes | bytearray | memoryview

MAGIC = b"\x93NUMPY"
"""What a NumPy file begins with."""


def is_vector(data: Buffer) -> bool:
    """Whether a clip's bytes are a vector's."""
    return bytes(memoryview(data)[: len(MAGIC)]) == MAGIC


def to_bytes(vector: NDArray[Any]) -> bytes:
    """A vector [W] as a clip's bytes, float32."""
    return array_bytes(np.ascontiguousarray(vector, np.float32))


def from_bytes(data: Buffer, width: int, name: str) -> NDArray[np.float32]:
    """The vector [W] of a clip. ValueError names the clip if it is none of that width."""
    if not is_vector(data):
        raise refuse(
            name, "a clip of audio", "a vector: model.audio=vectors takes data sets that `prepare vectors` made"
        )
    return checked(loaded(data, name), width, name)


def loaded(data: Buffer, name: str) -> NDArray[Any]:
    """The array in a clip's bytes. ValueError names the clip if they are no NumPy file."""
    try:
        return read_array(io.BytesIO(bytes(data)))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def checked(vector: NDArray[Any], width: int, name: str) -> NDArray[np.float32]:
    """The vector as float32. ValueError if it is not finite numbers of that width."""
    array = np.asarray(vector)
    if array.shape != (width,) or not np.issubdtype(array.dtype, np.floating):
        raise refuse(
            name, f"{array.dtype} of shape {list(array.shape)}", f"a vector of {width} numbers (model.audio.width)"
        )
    if not np.isfinite(array).all():
        raise refuse(name, "a vector with NaN or infinity", "finite numbers")
    return array.astype(np.float32)
