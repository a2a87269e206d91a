"""Arrays as the bytes of NumPy files, and from such files that anyone may have written."""

from __future__ import annotations

import io
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ray_atr.settings import shortened


def read_array(file: IO[bytes]) -> NDArray[Any]:
    """The array of a NumPy file (.npy); nothing in it is unpickled. ValueError if it is none, or promises more than it holds."""
    try:
        return np.lib.format.read_array(file, allow_pickle=False)
    except (EOFError, MemoryError, OverflowError, RecursionError, SyntaxError, TokenError, TypeError) as error:
        # A header can ask for any memory, is parsed as Python, and may have keys of any type.
        raise ValueError(f"not a NumPy file ({shortened(str(error), 100)})") from None


def array_bytes(array: NDArray[Any]) -> bytes:
    """The bytes of the NumPy file (.npy) of an array."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
