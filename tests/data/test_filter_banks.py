"""Mel filters and Kaldi's filter bank against torchaudio, where that is installed (the group `reference`)."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from ray_atr.data.audio import FrontEnd, log_mel, mel_filters

if importlib.util.find_spec("torchaudio") is None:
    pytest.skip("torchaudio is not installed: uv run --isolated --group reference pytest", allow_module_level=True)

from tests.support.torchaudio_reference import kaldi, melscale_fbanks


def noise(num_samples: int) -> np.ndarray:
    return np.random.RandomState(0).uniform(-0.5, 0.5, num_samples).astype(np.float32)


@pytest.mark.parametrize("mel_scale", ["htk", "slaney"])
@pytest.mark.parametrize("mel_norm", ["none", "slaney"])
@pytest.mark.parametrize(
    ("rate", "size", "bands", "low", "high"), [(16_000, 640, 64, 0, 8_000), (44_100, 2048, 96, 50, 2e4)]
)
def test_mel_filters_are_torchaudios(
    mel_scale: str, mel_norm: str, rate: int, size: int, bands: int, low: float, high: float
) -> None:
    front_end = FrontEnd(
        sample_rate=rate,
        window_size=size,
        num_mels=bands,
        low_hz=low,
        high_hz=high,
        mel_scale=mel_scale,
        mel_norm=mel_norm,
    )
    norm = None if mel_norm == "none" else mel_norm
    expected = melscale_fbanks(size // 2 + 1, low, high, bands, rate, norm=norm, mel_scale=mel_scale).numpy()
    np.testing.assert_allclose(mel_filters(front_end), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "num_samples"),
    [
        ({}, 16_000),
        ({}, 399),
        ({"num_mels": 80, "low_hz": 0.0, "high_hz": 7_600.0}, 5_000),
        ({"sample_rate": 44_100, "window_size": 1_103, "hop_size": 441, "high_hz": 16_000.0}, 30_000),
        ({"sample_rate": 8_000, "window_size": 256, "hop_size": 77, "num_mels": 23, "high_hz": 4_000.0}, 8_000),
        ({"mel_scale": "slaney", "mel_norm": "slaney"}, 8_000),
    ],
)
def test_kaldis_filter_bank_is_torchaudios(settings: dict[str, float], num_samples: int) -> None:
    of_ast = {"window_size": 400, "hop_size": 160, "num_mels": 128, "low_hz": 20.0}
    front_end = FrontEnd(**{"kind": "kaldi", **of_ast, **settings})
    waveform = noise(num_samples) + 0.25
    waveform[len(waveform) // 2 :] *= 1e-3
    padded = np.pad(waveform, (0, max(0, front_end.window_size - num_samples)))
    expected = kaldi.fbank(
        # Its float32 is off by more than 1e-4 in the quiet bands.
        torch.from_numpy(padded).double()[None],
        sample_frequency=front_end.sample_rate,
        # Half a sample more: the reference cuts the product to whole samples, and rounding may leave it just below.
        frame_length=1000 * (front_end.window_size + 0.5) / front_end.sample_rate,
        frame_shift=1000 * (front_end.hop_size + 0.5) / front_end.sample_rate,
        window_type="hanning",
        num_mel_bins=front_end.num_mels,
        low_freq=front_end.low_hz,
        high_freq=front_end.high_hz,
        dither=0.0,
    ).numpy()
    actual = log_mel(waveform, front_end)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, atol=1e-4)
