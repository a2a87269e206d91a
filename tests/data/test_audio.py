"""Waveform to log-mel: against the textbook formula, published numbers, and every way a file can be broken."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile

from ray_atr.data.audio import FrontEnd, fit, log_mel, mel_filters
from ray_atr.data.decoding import decode, resampled_blocks
from tests.support.one_window import clip_features


def encoded(waveform: np.ndarray, sample_rate: int = 16_000, format: str = "WAV", subtype: str | None = None) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, waveform, sample_rate, format=format, subtype=subtype)
    return buffer.getvalue()


def noise(num_samples: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).uniform(-0.5, 0.5, num_samples).astype(np.float32)


def test_decoding_averages_the_channels() -> None:
    stereo = np.stack([noise(4000, 0), noise(4000, 1)], axis=1)
    waveform, sample_rate = decode(encoded(stereo, 22_050, subtype="FLOAT"))
    assert sample_rate == 22_050
    assert waveform.dtype == np.float32
    np.testing.assert_allclose(waveform, stereo.mean(axis=1), atol=1e-7)


@pytest.mark.parametrize(("format", "subtype"), [("WAV", None), ("FLAC", None), ("OGG", "VORBIS"), ("MP3", None)])
def test_whole_files_of_every_format_are_read(format: str, subtype: str | None) -> None:
    waveform, _ = decode(encoded(noise(16_000), format=format, subtype=subtype))
    assert abs(len(waveform) - 16_000) < 2_000


@pytest.mark.parametrize(("format", "subtype"), [("WAV", None), ("FLAC", None), ("OGG", "VORBIS")])
@pytest.mark.parametrize("share", [0.3, 0.7, 0.98])
def test_a_truncated_file_is_refused_by_name(format: str, subtype: str | None, share: float) -> None:
    data = encoded(noise(48_000), format=format, subtype=subtype)
    with pytest.raises(ValueError, match="rain_17"):
        decode(data[: int(len(data) * share)], "rain_17")


@pytest.mark.parametrize("stated", [0xFFFFFFFF, 0x7FFFF000], ids=["FFmpeg", "SoX"])
def test_a_wav_that_was_written_to_a_pipe_is_read_to_its_end(stated: int) -> None:
    data = bytearray(encoded(noise(16_000)))
    size = data.index(b"data") + 4
    data[size : size + 4] = stated.to_bytes(4, "little")
    assert len(decode(bytes(data))[0]) == 16_000


def test_a_flac_that_was_written_to_a_pipe_is_refused_with_a_remedy() -> None:
    data = bytearray(encoded(noise(16_000), format="FLAC"))
    data[21] &= 0xF0  # the last 36 bits before the checksum are the number of samples
    data[22:26] = bytes(4)
    with pytest.raises(ValueError, match=r"rain_17: got .* without its length'; .* ffmpeg"):
        decode(bytes(data), "rain_17")


@pytest.mark.parametrize("data", [b"", b"RIFF", b"this is a text file, not audio", b"\0" * 5000])
def test_what_is_no_audio_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"rain_17: got .* not audio"):
        decode(data, "rain_17")


def test_a_clip_of_zero_length_is_refused() -> None:
    with pytest.raises(ValueError, match="rain_17: got 'a clip of zero length'"):
        decode(encoded(np.zeros(0, np.float32)), "rain_17")


def test_samples_that_are_not_finite_are_refused() -> None:
    waveform = noise(1000)
    waveform[500] = np.nan
    with pytest.raises(ValueError, match="not a number"):
        decode(encoded(waveform, subtype="FLOAT"), "rain_17")


def test_resampling_keeps_a_tone_and_removes_what_would_fold_back() -> None:
    t = np.arange(44_100) / 44_100
    low, high = np.sin(2 * np.pi * 440 * t), np.sin(2 * np.pi * 15_000 * t)
    expected = np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    inner = slice(500, -500)
    found_low, found_high = (
        np.concatenate(list(resampled_blocks([tone.astype(np.float32)], 44_100, 16_000)))[inner] for tone in (low, high)
    )
    np.testing.assert_allclose(found_low, expected[inner], atol=1e-3)
    assert np.abs(found_high).max() < 1e-3


def test_longer_clips_are_cut_and_shorter_ones_filled_as_told() -> None:
    waveform = np.arange(1, 25, dtype=np.float32)
    ten = {"sample_rate": 1000, "high_hz": 500, "clip_seconds": 0.01}
    assert fit(waveform, FrontEnd(**ten)).tolist() == list(range(1, 11))
    assert fit(waveform, FrontEnd(**ten, cut="centre")).tolist() == list(range(8, 18))
    assert fit(waveform[:4], FrontEnd(**ten)).tolist() == [1, 2, 3, 4]
    assert fit(waveform[:4], FrontEnd(**ten, pad="zeros")).tolist() == [1, 2, 3, 4, 0, 0, 0, 0, 0, 0]
    assert fit(waveform[:4], FrontEnd(**ten, pad="repeat")).tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 0, 0]
    # One sample at a third of the rate is none.
    assert fit(waveform[:0], FrontEnd(**ten, pad="repeat")).tolist() == [0] * 10
    assert fit(waveform[:4], FrontEnd(**ten, minimum_samples=6)).tolist() == [1, 2, 3, 4, 0, 0]


def slow_log_mel(waveform: np.ndarray, front_end: FrontEnd) -> np.ndarray:
    """The definition in float64: one frame, one band at a time."""
    size, bins = front_end.window_size, front_end.window_size // 2 + 1
    padded = np.pad(waveform.astype(np.float64), size // 2, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    corners = 700 * (
        10
        ** (
            np.linspace(
                2595 * np.log10(1 + front_end.low_hz / 700),
                2595 * np.log10(1 + front_end.high_hz / 700),
                front_end.num_mels + 2,
            )
            / 2595
        )
        - 1
    )
    frames = []
    for start in range(0, len(waveform) + 1, front_end.hop_size):
        power = np.abs(np.fft.fft(padded[start : start + size] * window)[:bins]) ** 2
        bands = []
        for left, middle, right in zip(corners, corners[1:], corners[2:], strict=False):
            total = 0.0
            for index in range(bins):
                hz = index * front_end.sample_rate / size
                if left < hz <= middle:
                    total += power[index] * (hz - left) / (middle - left)
                elif middle < hz < right:
                    total += power[index] * (right - hz) / (right - middle)
            bands.append(10 * np.log10(max(total, front_end.floor)))
        frames.append(bands)
    return np.array(frames)


def test_log_mel_is_the_definition() -> None:
    front_end = FrontEnd(sample_rate=8_000, window_size=256, hop_size=100, num_mels=20, low_hz=30, high_hz=3_900)
    waveform = noise(1_234)
    actual = log_mel(waveform, front_end)
    assert len(actual) == 1 + 1_234 // 100
    np.testing.assert_allclose(actual, slow_log_mel(waveform, front_end), atol=1e-4)


def test_silence_is_kaldis_smallest_value() -> None:
    actual = log_mel(np.zeros(800, np.float32), FrontEnd(kind="kaldi", window_size=400, hop_size=160))
    assert actual.shape == (3, 64)
    assert np.unique(actual).tolist() == [np.log(np.finfo(np.float32).eps).astype(np.float32)]


def test_top_db_is_measured_from_the_clips_own_maximum() -> None:
    loud_then_silent = np.concatenate([noise(8_000), np.zeros(8_000, np.float32)])
    actual = log_mel(loud_then_silent, FrontEnd(top_db=30.0))
    assert actual.min() == pytest.approx(actual.max() - 30.0, abs=1e-4)
    assert log_mel(np.zeros(8_000, np.float32), FrontEnd(top_db=30.0)).max() == pytest.approx(-100.0)


def test_slaney_filters_have_unit_area() -> None:
    front_end = FrontEnd(
        sample_rate=32_000, window_size=4096, mel_scale="slaney", mel_norm="slaney", low_hz=50, high_hz=14_000
    )
    area = mel_filters(front_end).sum(axis=0) * front_end.sample_rate / front_end.window_size
    np.testing.assert_allclose(area, 1.0, atol=0.02)


def test_the_same_bytes_give_the_same_features_in_any_container_without_loss() -> None:
    waveform = (noise(16_000) * 32767).astype(np.int16)
    first, second = (clip_features(encoded(waveform, format=name), FrontEnd()) for name in ("WAV", "FLAC"))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("num_samples", [1, 7, 319, 321])
def test_the_shortest_clips_have_finite_features(num_samples: int) -> None:
    front_end = FrontEnd()
    actual = log_mel(noise(num_samples), front_end)
    assert actual.shape == (1 + num_samples // front_end.hop_size, 64)
    assert np.isfinite(actual).all()


def test_impossible_bands_are_refused() -> None:
    with pytest.raises(ValueError, match="high_hz"):
        FrontEnd(sample_rate=16_000, high_hz=9_000)
    with pytest.raises(ValueError, match="low_hz"):
        FrontEnd(low_hz=8_000)
