"""Sounds over HTTP: an upload is decoded within limits, and part of a matching sound is sent as a WAV file."""

from __future__ import annotations

import io
import re
import time

import numpy as np
import soundfile

from ray_atr.common.settings import refuse
from ray_atr.data.decoding import AudioBounds, Waveform, open_sound
from ray_atr.deploy.serve.limits import ServerLimits


def decode_upload(data: bytes, limits: ServerLimits) -> tuple[Waveform, int]:
    """The samples [S] of an uploaded sound, and its rate (Hz). ValueError beyond the limits, or if it is not audio."""
    deadline = time.monotonic() + limits.decode_seconds
    sound = open_sound(data, "body", AudioBounds(longest_seconds=limits.most_seconds))
    blocks, number = list[Waveform](), 0
    for block in sound.blocks():
        blocks.append(block)
        number += len(block)
        # A header may state less than the file holds.
        if number > limits.most_seconds * sound.sample_rate:
            raise refuse("body, length", f"more than {limits.most_seconds:g} s", f"at most {limits.most_seconds:g} s")
        if time.monotonic() > deadline:
            raise refuse("body", "a sound that takes too long to read", f"at most {limits.decode_seconds:g} s")
    return np.concatenate(blocks), sound.sample_rate


def stretch(data: bytes, name: str, start: float, seconds: float) -> bytes:
    """A WAV file of `seconds` of a sound from `start` (s). ValueError if it is not audio, or ends before `start`."""
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate = file.samplerate
            if not 0 <= start * rate < max(1, file.frames):
                raise refuse("start", start, f"a second of the sound, 0 to {file.frames / rate:g}")
            file.seek(int(start * rate))
            samples = file.read(int(seconds * rate), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise refuse("path", name, f"a sound that can be read ({error.error_string})") from None
    if samples.shape[1] > 2:
        samples = samples.mean(axis=1, keepdims=True)
    buffer = io.BytesIO()
    soundfile.write(buffer, np.clip(samples, -1, 1), rate, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def asked_part(asked: str | None, size: int) -> tuple[int, int] | None:
    """First and last byte that a `Range` header requests; None for all: no header, one that is not understood, or several
    ranges, which a server may ignore (RFC 9110, 14.2). ValueError if there is no such part.

    Starlette does this only for files, and a part of a sound is not one.

    >>> asked_part("bytes=2-", 10), asked_part("bytes=-3", 10), asked_part("bytes=0-1,4-5", 10)
    ((2, 9), (7, 9), None)
    """
    asked_range = re.fullmatch(r"bytes\s*=\s*([0-9]*)\s*-\s*([0-9]*)", (asked or "").strip(), re.IGNORECASE)
    if asked_range is None or not any(asked_range.groups()):
        return None
    first, last = (int(part) if part else None for part in asked_range.groups())
    if first is None:
        first, last = max(0, size - (last or 0)), size - 1
    elif last is not None and last < first:
        return None  # no range at all
    if first >= size:
        raise refuse("Range", asked, f"a part of the {size:,} bytes")
    return first, size - 1 if last is None else min(last, size - 1)
