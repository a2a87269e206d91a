"""What recordings say without a model: against plain loops, and of every window of a clip."""

from __future__ import annotations

import cmath
import dataclasses
import itertools
import math
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from ray_atr.data.audio import FrontEnd
from ray_atr.data.feature_cache import ensure_features
from ray_atr.data.features import FeatureSet, open_features
from ray_atr.data.frame_statistics import BAND_GROUPS, CEPSTRA, LEAST_POWER, OCTAVES, frame_statistics
from tests.data.test_windows import make_set


def means(rows: list[list[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def deviations(rows: list[list[float]]) -> list[float]:
    squares = [[(value - mean) ** 2 for value, mean in zip(row, means(rows), strict=True)] for row in rows]
    return [math.sqrt(value) for value in means(squares)]


@pytest.mark.parametrize(("frames", "bands"), [(150, 64), (30, 5), (1, 20)])
def test_statistics_are_those_of_loops(frames: int, bands: int) -> None:
    values = np.random.default_rng(0).standard_normal((frames, bands)).cumsum(axis=0)
    found = frame_statistics(values.astype(np.float32)).tolist()
    level = [sum(values[:, f]) / frames for f in range(bands)]
    number = min(bands, CEPSTRA)
    cepstra = [
        [
            math.sqrt((1 if c == 0 else 2) / bands)
            * sum(v * math.cos(math.pi * c * (2 * f + 1) / (2 * bands)) for f, v in enumerate(row))
            for c in range(number)
        ]
        for row in values
    ]
    loudness = [sum(row) / bands for row in values]
    loud = [row for row, value in zip(cepstra, loudness, strict=True) if value >= sum(loudness) / frames]
    changes = [[0.0] * number] + [[b - a for a, b in zip(*pair, strict=True)] for pair in itertools.pairwise(cepstra)]
    parts = [means(cepstra), deviations(cepstra), means(loud), deviations(loud), deviations(changes)]
    assert found[: 5 * number] == pytest.approx([value for part in parts for value in part], abs=1e-3)
    groups = min(bands, BAND_GROUPS)
    length = max(frames, 128)
    expected = []
    for octave in range(OCTAVES):
        for group in range(groups):
            own = [f for f in range(bands) if group * bands // groups <= f < (group + 1) * bands // groups]
            course = [sum(row[f] - level[f] for f in own) / len(own) for row in values]
            powers = []
            for k in range(1, length // 2 + 1):
                # Octave o is [2^(o - OCTAVES - 1), 2^(o - OCTAVES)) of the frame rate; what is slower belongs to the first.
                slowest, fastest = 2.0 ** (octave - OCTAVES - 1), 2.0 ** (octave - OCTAVES)
                is_last = octave == OCTAVES - 1 and k / length == 0.5
                if is_last or (k / length < fastest and (octave == 0 or k / length >= slowest)):
                    turned = sum(one * cmath.exp(-2j * math.pi * k * t / length) for t, one in enumerate(course))
                    powers.append(abs(turned) ** 2 / frames)
            expected.append(math.log(sum(powers) / len(powers) + LEAST_POWER))
    assert found[5 * number :] == pytest.approx(expected, abs=1e-2)


@pytest.mark.parametrize("value", [0.0, 0.3, -1.7])
def test_a_recording_that_never_changes_has_finite_statistics(value: float) -> None:
    for frames in (1, 7, 251):
        found = frame_statistics(np.full((frames, 64), value, np.float16))
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found[24:48], 0, atol=1e-3)


class CountedReads(FeatureSet):
    """Notes the clips of the windows that are read."""

    read: ClassVar[list[int]] = []

    def features(self, rows: np.ndarray, windows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        self.read.extend(rows.tolist())
        return super().features(rows, windows)


def test_a_clip_is_the_mean_of_its_windows_and_they_are_read_once(tmp_path: Path) -> None:
    data, front_end = make_set(tmp_path / "set"), FrontEnd(num_mels=16, clip_seconds=1.0)
    opened = open_features(ensure_features(data, front_end, tmp_path, in_windows=True, use_ray=False), "train")
    whole = CountedReads(**{field.name: getattr(opened, field.name) for field in dataclasses.fields(opened)})
    assert whole.holds_frames
    some = whole.statistics_of(np.array([5, 2, 5]), together=5)
    statistics = whole.statistics_of(np.arange(8), together=5)
    assert sorted(whole.read) == np.repeat(np.arange(8), whole.num_windows).tolist()
    assert statistics.shape == (8, 5 * 16 + OCTAVES * 16)
    np.testing.assert_array_equal(some, statistics[[5, 2, 5]])
    for row, count in enumerate(whole.num_windows.tolist()):
        found, frames = whole.features(np.full(count, row), np.arange(count))
        each = [frame_statistics(one[:size]) for one, size in zip(found, frames, strict=True)]
        np.testing.assert_allclose(statistics[row], np.mean(each, axis=0), rtol=1e-5)
