"""From the bytes of an audio file to samples, a block at a time, to bound the memory.

Shapes: S samples.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from ray_atr.common.settings import Settings, refuse, setting, shortened
from ray_atr.data.vector_clip import Buffer, is_vector

Waveform = NDArray[np.float32]
BLOCK = 2**19
"""Samples of all channels that are decoded at a time. Large, because each read has a fixed cost."""
AUDIO_SUFFIXES = (
    ".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".w64", ".caf", ".au", ".snd",
)  # fmt: skip
"""Endings of the names of files that libsndfile decodes."""
READABLE = "a WAV, FLAC, OGG, MP3, AIFF, AU, CAF or W64 file"
CONVERT = "convert it with ffmpeg -i FILE NEW.flac"
UNKNOWN_LENGTH = 2**62
"""Where a FLAC file's header lacks the number of samples, libsndfile says the largest one, and fails at the file's end."""
CONTAINERS = (
    (4, b"ftyp", "AAC or another sound in MP4 (m4a, mp4)"),
    (0, b"\x1aE\xdf\xa3", "a Matroska or WebM file"),
    (0, b"0&\xb2u\x8ef\xcf\x11", "Windows Media (wma)"),
    (0, b"wvpk", "WavPack"),
    (0, b"#!AMR", "AMR"),
)
"""Position and bytes that identify files of phones and browsers that the audio library cannot read."""


@dataclass(frozen=True, kw_only=True)
class AudioBounds(Settings):
    """Limits of an audio file: a small file can claim hours, or a rate of 1 Hz, which is resampled to gigabytes."""

    lowest_rate: int = setting(1_000, "lowest sample rate of an audio file (Hz)", at_least=1)
    highest_rate: int = setting(1_000_000, "highest sample rate of an audio file (Hz)", at_least=1)
    most_channels: int = setting(64, "most channels of an audio file", at_least=1)
    longest_seconds: float = setting(24 * 3600.0, "longest audio file (s)", above=0)
    largest_sample: float = setting(2.0**31, "largest sample of a float file, where full scale is 1", above=0)


IMPORTED = AudioBounds(lowest_rate=1, highest_rate=10**9, most_channels=1024, longest_seconds=7 * 24 * 3600.0)
"""Bounds for the clips of a data set, which its import has checked."""


@dataclass(frozen=True)
class Sound:
    """An encoded clip with its header read: its rate in Hz, and its samples as float32, mean over channels."""

    name: str
    data: bytes
    sample_rate: int
    promised: int
    """Number of samples according to the header."""
    bounds: AudioBounds

    def blocks(self) -> Iterator[Waveform]:
        """The samples, a block at a time. ValueError, with the clip's name, if the bytes are cut off or hold no samples, or if a
        sample is not finite or out of bounds.
        """
        number = 0
        try:
            with soundfile.SoundFile(io.BytesIO(self.data)) as file:
                block = max(1, BLOCK // file.channels)
                while len(frames := file.read(block, dtype="float32", always_2d=True)):
                    number += len(frames)
                    yield self._checked(frames)
        except (soundfile.LibsndfileError, MemoryError) as error:
            raise _no_audio(self.name, self.data, error) from None
        if number < self.promised or is_cut_off(self.data):
            raise refuse(self.name, f"a truncated file (it holds {number} of its samples)", "a complete file")
        if number == 0:
            raise refuse(self.name, "a clip of zero length", "at least one sample")

    def _checked(self, frames: NDArray[np.float32]) -> Waveform:
        samples = frames[:, 0] if frames.shape[1] == 1 else frames.mean(axis=1, dtype=np.float32)
        # With a NaN among the samples, both extremes are NaN, and both comparisons are False.
        largest = self.bounds.largest_sample
        if not (samples.min() >= -largest and samples.max() <= largest):
            if not np.isfinite(samples).all():
                raise refuse(self.name, "samples that are infinite or not a number", "finite samples")
            got = f"a sample of {np.abs(samples).max():g}"
            raise refuse(self.name, got, f"at most {largest:g} (full scale is 1)")
        return np.ascontiguousarray(samples)


def open_sound(data: Buffer, name: str = "clip", bounds: AudioBounds | None = None) -> Sound:
    """An encoded clip that libsndfile reads, and whose header is within bounds. ValueError names the clip if it is not."""
    data, bounds = bytes(data), bounds or AudioBounds()
    if is_vector(data):
        raise refuse(name, "a vector", f"{READABLE}; for data sets of vectors choose model.audio=vectors")
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate, channels, promised = file.samplerate, file.channels, file.frames
    except (soundfile.LibsndfileError, MemoryError) as error:
        raise _no_audio(name, data, error) from None
    if not bounds.lowest_rate <= rate <= bounds.highest_rate:
        raise refuse(f"{name}, sample rate", rate, f"{bounds.lowest_rate} to {bounds.highest_rate} Hz")
    if channels > bounds.most_channels:
        raise refuse(f"{name}, channels", channels, f"at most {bounds.most_channels}")
    if promised >= UNKNOWN_LENGTH:
        raise refuse(name, "a file that was written to a pipe, without its length", f"{READABLE}; {CONVERT}")
    if promised / rate > bounds.longest_seconds:
        seconds = f"{promised / rate:.0f} s by its header"
        raise refuse(f"{name}, length", seconds, f"at most {bounds.longest_seconds:g} s")
    return Sound(name, data, rate, promised, bounds)


def decode(data: Buffer, name: str = "clip", bounds: AudioBounds | None = None) -> tuple[Waveform, int]:
    """All of the clip's samples [S] as float32, mean over channels, and its sample rate in Hz. ValueError as `Sound`."""
    sound = open_sound(data, name, bounds)
    return np.concatenate(list(sound.blocks())), sound.sample_rate


def first_samples(blocks: Iterable[Waveform], most: int) -> Waveform:
    """The first `most` samples of a clip in blocks; further blocks are not read."""
    first: list[Waveform] = []
    for block in blocks:
        first.append(block)
        if sum(map(len, first)) >= most:
            break
    return np.concatenate(first)[:most]


def _no_audio(name: str, data: bytes, error: Exception) -> ValueError:
    if not data:
        return refuse(name, "an empty file (0 bytes), not audio", READABLE)
    for start, mark, kind in CONTAINERS:
        if data[start : start + len(mark)] == mark:
            return refuse(name, f"{kind}, which is not supported", f"{READABLE}; {CONVERT}")
    size = len(data)
    reason = error.error_string if isinstance(error, soundfile.LibsndfileError) else str(error)
    return refuse(name, f"{size} bytes that are not audio ({shortened(reason, 120)})", READABLE)


def is_cut_off(data: bytes) -> bool:
    """Whether a WAV or OGG file ends before its stated length; libsndfile reads it as a shorter file without an error."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        position = 12
        while position + 8 <= len(data):
            size = int.from_bytes(data[position + 4 : position + 8], "little")
            if data[position : position + 4] == b"data":
                # Writers to a pipe do not know the size and write nearly the largest number, unsigned (FFmpeg) or signed (SoX).
                return size >> 16 not in (0xFFFF, 0x7FFF) and position + 8 + size > len(data)
            position += 8 + size + size % 2
        return True
    if data[:4] == b"OggS":
        page = data.rfind(b"OggS")
        if page + 27 > len(data):
            return True
        num_segments = data[page + 26]
        end = page + 27 + num_segments + sum(data[page + 27 : page + 27 + num_segments])
        is_last_page = bool(data[page + 5] & 4)
        return end > len(data) or not is_last_page
    return False


def resampled_blocks(blocks: Iterable[Waveform], sample_rate: int, target_rate: int) -> Iterator[Waveform]:
    """Blocks of samples at another sample rate (band-limited, soxr's high quality), as if all were resampled at once."""
    if sample_rate == target_rate:
        yield from blocks
        return
    stream = soxr.ResampleStream(sample_rate, target_rate, 1, dtype="float32", quality="HQ")
    for block in blocks:
        yield stream.resample_chunk(block)
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)
