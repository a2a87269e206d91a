"""From an encoded clip to its log-mel frames: decode, resample, cut or pad, transform. Functions of bytes and settings alone.

Shapes: S samples, T frames, F mel bands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ray_atr.common.settings import Settings, refuse, setting
from ray_atr.data.decoding import AudioBounds, Waveform, open_sound, resampled_blocks
from ray_atr.data.vector_clip import Buffer, from_bytes

SLACK = 0.01
"""Share of a window by which a clip may exceed it and still be one window: encoders add a few milliseconds."""

FRAMES_TOGETHER = 64
"""Frames whose spectra are computed at a time, so that they fit the processor's cache."""

SHORTEST_WINDOW = 0.04
"""Seconds. Shorter windows have hardly any frames, and a clip would have any number of them."""
PRE_EMPHASIS = 0.97
"""Kaldi's pre-emphasis: the share of the previous sample that is subtracted from each sample."""


@dataclass(frozen=True, kw_only=True)
class FrontEnd(Settings):
    """Everything that determines log-mel frames: equal bytes and an equal front end give equal frames."""

    sample_rate: int = setting(16_000, "samples per second that clips are resampled to (Hz)", at_least=1_000)
    window_size: int = setting(640, "length of the Hann window and of the FFT (samples)", at_least=16)
    hop_size: int = setting(320, "distance between frames (samples)", at_least=1)
    num_mels: int = setting(64, "number of mel bands F", at_least=1)
    low_hz: float = setting(0.0, "lower edge of the lowest mel band (Hz)", at_least=0)
    high_hz: float = setting(8_000.0, "upper edge of the highest mel band (Hz)", above=0)
    mel_scale: str = setting("htk", "formula of the mel scale", choices=("htk", "slaney"))
    mel_norm: str = setting(
        "none", "scale every band to unit area (slaney) or to unit height (none)", choices=("none", "slaney")
    )
    kind: str = setting(
        "power_db",
        "power_db: centred frames, decibels; kaldi: Kaldi's filter bank (pre-emphasis, no centring, natural log); "
        "waveform: the samples themselves, one per frame; vector: the clip is not audio but num_mels numbers, used "
        "as they are",
        choices=("power_db", "kaldi", "waveform", "vector"),
    )
    floor: float = setting(1e-10, "smallest mel power before the logarithm", above=0)
    top_db: float | None = setting(None, "range kept below the clip's own maximum (dB); none keeps all", above=0)
    mean: float = setting(0.0, "subtracted from the log-mel values (dB, or nepers for kaldi)")
    std: float = setting(1.0, "divides the log-mel values after the mean is subtracted", above=0)
    clip_seconds: float = setting(10.0, "longer clips are cut to this length (s)", above=0)
    normalises_clip: bool = setting(False, "bring each clip's samples to zero mean and unit variance (waveform only)")
    cut: str = setting("start", "which part of a longer clip is kept", choices=("start", "centre"))
    pad: str = setting(
        "none",
        "fills a shorter clip up to clip_seconds: none leaves it, zeros, or repeat (whole repeats, then zeros)",
        choices=("none", "zeros", "repeat"),
    )
    pad_frames: int | None = setting(
        None, "log-mel frames are filled up (with 0 before normalising) or cut to this number", at_least=1
    )
    minimum_samples: int = setting(1, "a clip with fewer samples is filled up with zeros to this many", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.high_hz > self.sample_rate / 2:
            raise refuse("high_hz", self.high_hz, f"at most half the sample rate, {self.sample_rate / 2:g} Hz")
        if self.kind == "waveform" and self.num_mels != 1:
            raise refuse("num_mels", self.num_mels, "1 for a waveform")
        if self.low_hz >= self.high_hz:
            raise refuse("low_hz", self.low_hz, f"below high_hz, {self.high_hz:g} Hz")

    @property
    def dtype(self) -> type[np.floating[Any]]:
        """The number type of stored features: half precision suffices for log-mel frames, but not for any vector."""
        return np.float32 if self.kind == "vector" else np.float16

    @property
    def clip_samples(self) -> int:
        """Samples of a clip of `clip_seconds`."""
        return round(self.clip_seconds * self.sample_rate)


def fit(waveform: Waveform, front_end: FrontEnd) -> Waveform:
    """The waveform cut to `clip_seconds`, and padded as the front end says."""
    length = front_end.clip_samples
    if len(waveform) > length:
        start = 0 if front_end.cut == "start" else (len(waveform) - length) // 2
        waveform = waveform[start : start + length]
    if front_end.pad == "repeat":
        waveform = np.tile(waveform, max(1, length // max(1, len(waveform))))
    wanted = front_end.minimum_samples if front_end.pad == "none" else max(length, front_end.minimum_samples)
    if len(waveform) < wanted:
        waveform = np.pad(waveform, (0, wanted - len(waveform)))
    return waveform


def log_mel(waveform: Waveform, front_end: FrontEnd) -> NDArray[np.float32]:
    """Log-mel frames [T, F] of a waveform [S]; `top_db` is relative to this clip's own maximum."""
    frames = {"power_db": _power_db, "kaldi": _kaldi, "waveform": _samples}[front_end.kind](waveform, front_end)
    if front_end.pad_frames is not None:
        frames = frames[: front_end.pad_frames]
        frames = torch.nn.functional.pad(frames, (0, 0, 0, front_end.pad_frames - len(frames)))
    if front_end.mean != 0.0 or front_end.std != 1.0:
        frames = (frames - front_end.mean) / front_end.std
    return frames.numpy()


def clip_windows(
    data: Buffer,
    front_end: FrontEnd,
    name: str = "clip",
    *,
    all_windows: bool = True,
    bounds: AudioBounds | None = None,
) -> Iterator[NDArray[np.float32]]:
    """Log-mel frames [T, F] of each window of an encoded clip, or of the one window that it is cut to. The audio is
    decoded in blocks, so that memory holds one window however long the clip is. ValueError names the clip.
    """
    if front_end.kind == "vector":
        yield from_bytes(data, front_end.num_mels, name)[None]
        return
    sound = open_sound(data, name, bounds)
    yield from _frames(sound.blocks, sound.sample_rate, front_end, all_windows)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch in one thread meanwhile: the operations on a clip are small. Threads that wait for each other take ten
    times the time of one as soon as another program is running.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def waveform_windows(
    waveform: Waveform, sample_rate: int, front_end: FrontEnd, *, all_windows: bool = True
) -> Iterator[NDArray[np.float32]]:
    """Log-mel frames [T, F] of each window of a waveform [S], or of the one window that it is cut to."""
    return _frames(lambda: [waveform], sample_rate, front_end, all_windows)


def _frames(
    blocks: Callable[[], Iterable[Waveform]], sample_rate: int, front_end: FrontEnd, all_windows: bool
) -> Iterator[NDArray[np.float32]]:
    """The frames of samples in blocks; `blocks()` starts from the beginning at each call."""

    def samples() -> Iterator[Waveform]:
        return resampled_blocks(blocks(), sample_rate, front_end.sample_rate)

    of_windows = windows(samples(), front_end) if all_windows else [_cut(samples, front_end)]
    for window in of_windows:
        yield log_mel(fit(window, front_end), front_end)


def windows(samples: Iterable[Waveform], front_end: FrontEnd) -> Iterator[Waveform]:
    """A clip's samples, in blocks, as consecutive windows of `clip_seconds`.

    All windows have the same length, so that they have equal weight: the last one ends with the clip and overlaps the one
    before. A rest of at most `SLACK` of a window is left out, so a clip of at most one window plus `SLACK` is one window.
    """
    length, before, waiting = front_end.clip_samples, np.zeros(0, np.float32), np.zeros(0, np.float32)
    is_first = True
    for block in samples:
        waiting = np.concatenate([waiting, block])
        while len(waiting) > length + (SLACK * length if is_first else 0):
            yield waiting[:length]
            before, waiting, is_first = waiting[:length], waiting[length:], False
    if is_first:
        yield waiting[:length]
    elif len(waiting) > SLACK * length:
        yield np.concatenate([before, waiting])[-length:]


def _cut(samples: Callable[[], Iterable[Waveform]], front_end: FrontEnd) -> Waveform:
    """The window that a clip is cut to, from its start or its centre; decodes no more than it needs."""
    length, start = front_end.clip_samples, 0
    if front_end.cut == "centre":
        start = max(0, (sum(len(block) for block in samples()) - length) // 2)
    blocks: list[Waveform] = []
    num_read = 0
    for block in samples():
        num_read += len(block)
        if num_read > start:
            blocks.append(block[-(num_read - start) :])
        if num_read >= start + length:
            break
    return (np.concatenate(blocks) if len(blocks) != 1 else blocks[0])[:length] if blocks else np.zeros(0, np.float32)


def fft_size(front_end: FrontEnd) -> int:
    """Samples in the Fourier transform of a frame: the window's, padded to a power of two for Kaldi."""
    size = front_end.window_size
    return 1 << (size - 1).bit_length() if front_end.kind == "kaldi" else size


def mel_filters(front_end: FrontEnd) -> NDArray[np.float32]:
    """Triangular mel filters [fft_size // 2 + 1, F], linear in Hz between their corners, or in mel for Kaldi.

    Computed in float64 and rounded: torchaudio's `melscale_fbanks` computes in float32, which changes one filter weight in
    thirty and one stored feature in five hundred.
    """
    is_kaldi = front_end.kind == "kaldi"
    scale = "htk" if is_kaldi else front_end.mel_scale
    bins_hz = np.linspace(0, front_end.sample_rate / 2, fft_size(front_end) // 2 + 1)
    low, high = _to_mel(np.array([front_end.low_hz, front_end.high_hz]), scale)
    corners_mel = np.linspace(low, high, front_end.num_mels + 2)
    corners_hz = _to_hz(corners_mel, scale)
    bins, corners = (_to_mel(bins_hz, scale), corners_mel) if is_kaldi else (bins_hz, corners_hz)
    widths = np.diff(corners)
    distance = corners[None, :] - bins[:, None]
    rising, falling = -distance[:, :-2] / widths[:-1], distance[:, 2:] / widths[1:]
    filters = np.maximum(0, np.minimum(rising, falling))
    if front_end.mel_norm == "slaney" and not is_kaldi:
        filters *= 2 / (corners_hz[2:] - corners_hz[:-2])
    return filters.astype(np.float32)


def _power_db(waveform: Waveform, front_end: FrontEnd) -> torch.Tensor:
    """Decibels of the mel power of centred, Hann-windowed frames [T, F].

    torchaudio's `MelSpectrogram` and `amplitude_to_DB` would hold the spectrum of all frames at once.
    """
    size = front_end.window_size
    samples = torch.from_numpy(np.ascontiguousarray(waveform, dtype=np.float32))
    half = size // 2
    if len(samples) <= half:
        # Reflection needs more samples than it reflects.
        samples = torch.nn.functional.pad(samples, (0, half + 1 - len(samples)))
    # Reflected at both ends; torch's own reflection takes six times as long.
    padded = torch.cat([samples[1 : half + 1].flip(0), samples, samples[-half - 1 : -1].flip(0)])
    window, filters = _window_and_filters(front_end)
    frames = padded.unfold(0, size, front_end.hop_size)[: 1 + len(waveform) // front_end.hop_size]
    power = samples.new_empty(len(frames), half + 1)
    for part, power_part in zip(frames.split(FRAMES_TOGETHER), power.split(FRAMES_TOGETHER), strict=True):
        # In float64: in float32 rounding next to a loud band changes a quiet one by up to 1 dB in real clips.
        spectrum = torch.fft.rfft(part * window)
        # A sum over the last axis of two elements would take five times as long.
        power_part.copy_(torch.square(spectrum.real).add_(spectrum.imag.square()))
    decibels = 10.0 * torch.log10(torch.clamp(power @ filters, min=front_end.floor))
    if front_end.top_db is not None:
        decibels = torch.clamp(decibels, min=(decibels.max() - front_end.top_db).item())
    return decibels


def _kaldi(waveform: Waveform, front_end: FrontEnd) -> torch.Tensor:
    """Kaldi's log filter bank [T, F] for the AST models: complete frames only, mean removed, pre-emphasis 0.97 (the first
    sample of a frame is its own predecessor), a symmetric Hann window, padding to a power of two, natural log.

    Equal to torchaudio's `compliance.kaldi.fbank`, which does not support the newest torch.
    """
    size, hop = front_end.window_size, front_end.hop_size
    samples = torch.from_numpy(np.ascontiguousarray(waveform, dtype=np.float32))
    if len(samples) < size:
        samples = torch.nn.functional.pad(samples, (0, size - len(samples)))
    window, filters = _window_and_filters(front_end)
    frames = samples.unfold(0, size, hop)
    energies = samples.new_empty(len(frames), front_end.num_mels)
    for part, energies_part in zip(frames.split(FRAMES_TOGETHER), energies.split(FRAMES_TOGETHER), strict=True):
        # In float64, as above.
        frame = part.double()
        centred = frame - frame.mean(dim=1, keepdim=True)
        emphasised = centred - PRE_EMPHASIS * torch.cat([centred[:, :1], centred[:, :-1]], dim=1)
        spectrum = torch.fft.rfft(emphasised * window, n=fft_size(front_end))
        torch.matmul((spectrum.real.square() + spectrum.imag.square()).to(filters.dtype), filters, out=energies_part)
    return energies.clamp_(min=torch.finfo(torch.float32).eps).log_()


def _samples(waveform: Waveform, front_end: FrontEnd) -> torch.Tensor:
    """The samples as frames [S, 1], with zero mean and unit variance if the front end asks for it."""
    samples = torch.from_numpy(np.array(waveform, dtype=np.float32))
    if front_end.normalises_clip:
        samples = (samples - samples.mean()) / torch.sqrt(samples.var(correction=0) + 1e-7)
    return samples[:, None]


@cache
def _window_and_filters(front_end: FrontEnd) -> tuple[torch.Tensor, torch.Tensor]:
    window = torch.hann_window(front_end.window_size, periodic=front_end.kind != "kaldi", dtype=torch.float64)
    return window, torch.from_numpy(mel_filters(front_end))


# Slaney's scale (Auditory Toolbox, 1998): linear to 1 kHz (mel 15), then 27 steps a factor of 6.4.
_LINEAR_HZ_PER_MEL, _BREAK_HZ, _LOG_STEP = 200.0 / 3.0, 1000.0, np.log(6.4) / 27.0


def _to_mel(hz: NDArray[np.float64], scale: str) -> NDArray[np.float64]:
    if scale == "htk":
        return 2595.0 * np.log10(1.0 + hz / 700.0)
    above = _BREAK_HZ / _LINEAR_HZ_PER_MEL + np.log(np.maximum(hz, _BREAK_HZ) / _BREAK_HZ) / _LOG_STEP
    return np.where(hz < _BREAK_HZ, hz / _LINEAR_HZ_PER_MEL, above)


def _to_hz(mel: NDArray[np.float64], scale: str) -> NDArray[np.float64]:
    if scale == "htk":
        return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)
    break_mel = _BREAK_HZ / _LINEAR_HZ_PER_MEL
    above = _BREAK_HZ * np.exp(_LOG_STEP * (np.maximum(mel, break_mel) - break_mel))
    return np.where(mel < break_mel, mel * _LINEAR_HZ_PER_MEL, above)
