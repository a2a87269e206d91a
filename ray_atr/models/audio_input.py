"""What the functions that encode clips take: a file, its bytes or a waveform, read as the frames of its windows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ray_atr.common.settings import refuse
from ray_atr.data import vector_clip
from ray_atr.data.audio import FrontEnd, clip_windows, waveform_windows
from ray_atr.data.decoding import Waveform, open_sound

AudioInput = str | Path | bytes | Waveform | Tensor
"""A file, a file's bytes, or a mono waveform [S]"""


def frames_of_windows(
    clip: AudioInput, sample_rate: int, front_end: FrontEnd, name: str, all_windows: bool
) -> Iterator[NDArray[np.float32]]:
    """Log-mel frames [T, F] of each window of a path, of encoded bytes, or of a waveform [S]. ValueError for anything else;
    it names the path, or `name`.
    """
    if isinstance(clip, str | Path | bytes):
        data, name = _bytes_of(clip, name)
        return clip_windows(data, front_end, name, all_windows=all_windows)
    if isinstance(clip, Tensor) and clip.is_floating_point():
        clip = clip.detach().float().cpu()
    if front_end.kind == "vector":
        return iter([vector_clip.checked(np.asarray(clip), front_end.num_mels, name)[None]])
    if isinstance(clip, tuple):
        raise refuse(name, "a tuple", "a path, or a mono waveform [S]; its rate is the argument `sample_rate`")
    waveform = np.asarray(clip)
    if waveform.dtype.kind not in "fiub":
        raise refuse(name, f"a {type(clip).__name__}", "a path, or a mono waveform [S] of finite samples")
    if waveform.dtype.kind in "iub":
        raise refuse(name, f"samples of type {waveform.dtype}", "floats with full scale 1 (int16: samples / 32768)")
    waveform = waveform.astype(np.float32, copy=False)
    if waveform.ndim != 1 or not len(waveform) or not np.isfinite(waveform).all():
        raise refuse(name, f"an array of shape {waveform.shape}", "a path, or a mono waveform [S] of finite samples")
    return waveform_windows(waveform, sample_rate, front_end, all_windows=all_windows)


def seconds_of(clip: AudioInput, sample_rate: int) -> float:
    """How long a clip is (s); `sample_rate` (Hz) is that of a waveform."""
    if not isinstance(clip, str | Path | bytes):
        return len(clip) / sample_rate
    sound = open_sound(*_bytes_of(clip, "clip"))
    return sum(map(len, sound.blocks())) / sound.sample_rate


def _bytes_of(clip: str | Path | bytes, name: str) -> tuple[bytes, str]:
    """(the encoded clip, its name in errors)."""
    if isinstance(clip, bytes):
        return clip, name
    path = Path(clip)
    if not path.is_file():
        raise refuse(str(path), "no file", "the path of an audio file")
    return path.read_bytes(), str(path)
