"""NumPy files from untrusted sources, and clips that are vectors: such a file instead of encoded audio."""

from __future__ import annotations

import io
from functools import lru_cache
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ray_atr.common.settings import refuse, shortened

Buffer = bytes | bytearray | memoryview
"""Bytes, or a view of bytes (also of an Arrow buffer)."""

MAGIC = b"\x93NUMPY"
"""The first bytes of a NumPy file."""


def read_array(file: IO[bytes]) -> NDArray[Any]:
    """The array of a NumPy file (.npy), without unpickling. ValueError if it is none, or claims more data than it holds."""
    try:
        return np.lib.format.read_array(file, allow_pickle=False)
    except (EOFError, MemoryError, OverflowError, RecursionError, SyntaxError, TokenError, TypeError) as error:
        # A header can claim any size, is parsed as Python, and may have keys of any type.
        raise ValueError(f"not a NumPy file ({shortened(str(error), 100)})") from None


def array_bytes(array: NDArray[Any]) -> bytes:
    """The bytes of the NumPy file (.npy) of an array."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def is_vector(data: Buffer) -> bool:
    """Whether a clip's bytes are a vector's."""
    return bytes(memoryview(data)[: len(MAGIC)]) == MAGIC


def loaded(data: Buffer, name: str) -> NDArray[Any]:
    """The array in a clip's bytes. ValueError names the clip if they are no NumPy file."""
    try:
        return read_array(io.BytesIO(bytes(data)))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def from_bytes(data: Buffer, width: int, name: str) -> NDArray[np.float32]:
    """The vector [W] of a clip. ValueError names the clip if it is none of that width, or not finite."""
    if not is_vector(data):
        allowed = "a vector: model.audio=vectors takes data sets that `prepare vectors` made"
        raise refuse(name, "a clip of audio", allowed)
    header = _header(width)
    if len(data) == len(header) + 4 * width and bytes(memoryview(data)[: len(header)]) == header:
        # A header is parsed as Python, which takes most of the time of a vector.
        return checked(np.frombuffer(data, "<f4", offset=len(header)), width, name)
    return checked(loaded(data, name), width, name)


@lru_cache(maxsize=16)
def _header(width: int) -> bytes:
    """What precedes the numbers of a float32 vector in the file that `array_bytes` makes."""
    return array_bytes(np.zeros(width, "<f4"))[: -4 * width]


def checked(vector: Any, width: int, name: str) -> NDArray[np.float32]:
    """The vector as float32. ValueError if it is not finite numbers of that width."""
    array = np.asarray(vector)
    if array.shape != (width,) or not np.issubdtype(array.dtype, np.floating):
        allowed = f"a vector of {width} numbers (model.audio.width)"
        raise refuse(name, f"{array.dtype} of shape {list(array.shape)}", allowed)
    if not np.isfinite(array).all():
        raise refuse(name, "a vector with NaN or infinity", "finite numbers")
    return array.astype(np.float32)
