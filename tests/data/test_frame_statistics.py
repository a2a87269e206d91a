"""What recordings say without a model: against plain loops, and of every window of a clip."""

from __future__ import annotations

import cmath
import math
from pathlib import Path

import numpy as np
import pytest

from ray_atr.data import features
from ray_atr.data.audio import FrontEnd
from ray_atr.data.feature_cache import ensure_features
from ray_atr.data.features import open_features
from ray_atr.data.frame_statistics import BAND_GROUPS, LEAST_POWER, OCTAVES, frame_statistics
from tests.data.test_windows import make_set


@pytest.mark.parametrize(("frames", "bands"), [(150, 64), (30, 5), (1, 20)])
def test_statistics_are_those_of_loops(frames: int, bands: int) -> None:
    values = np.random.default_rng(0).standard_normal((frames, bands)).cumsum(axis=0)
    found = frame_statistics(values.astype(np.float32)).tolist()
    level = [sum(values[:, f]) / frames for f in range(bands)]
    spread = [math.sqrt(sum((v - level[f]) ** 2 for v in values[:, f]) / frames) for f in range(bands)]
    assert found[:bands] == pytest.approx(level, abs=1e-3)
    assert found[bands : 2 * bands] == pytest.approx(spread, abs=1e-3)
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
    assert found[2 * bands :] == pytest.approx(expected, abs=1e-2)


def test_a_clip_is_the_mean_of_its_windows_and_they_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, front_end = make_set(tmp_path / "set"), FrontEnd(num_mels=16, clip_seconds=1.0)
    whole = open_features(ensure_features(data, front_end, tmp_path, in_windows=True, use_ray=False), "train")
    monkeypatch.setattr(features, "READ_TOGETHER", 5)
    assert whole.holds_frames
    some = whole.statistics_of(np.array([5, 2, 5]))
    statistics = whole.statistics_of(np.arange(8))
    assert statistics.shape == (8, 2 * 16 + OCTAVES * 16)
    np.testing.assert_array_equal(some, statistics[[5, 2, 5]])
    for row, count in enumerate(whole.num_windows.tolist()):
        found, frames = whole.features(np.full(count, row), np.arange(count))
        each = [frame_statistics(one[:size]) for one, size in zip(found, frames, strict=True)]
        np.testing.assert_allclose(statistics[row], np.mean(each, axis=0), rtol=1e-5)
    monkeypatch.setattr(features, "frame_statistics", lambda frames: pytest.fail("they are read again"))
    assert len(whole.statistics_of(np.arange(8))) == 8
