"""Cached features are those of the files, are computed once, and are taken up again where work stopped."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import make_data, tone

from ray_atr.data import feature_cache
from ray_atr.data.audio import FrontEnd, clip_features
from ray_atr.data.feature_cache import ensure_features, find_features
from ray_atr.data.features import MANIFEST_FILE, open_features
from ray_atr.data.shards import read_manifest

FRONT_END = FrontEnd(num_mels=20, clip_seconds=0.5)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "tones", num_train=6, num_val=3, num_test=2)


def test_rows_of_any_order_are_the_files_own_features(data: Path, tmp_path: Path) -> None:
    features = open_features(ensure_features(data, FRONT_END, tmp_path, use_ray=False), "train")
    rows = np.array([4, 0, 4, 5])
    array, frames = features.features(rows)
    assert array.dtype == np.float16
    for row, found, length in zip(rows, array, frames, strict=True):
        expected = clip_features(tone(row % 4, row), FRONT_END, "").astype(np.float16)
        np.testing.assert_array_equal(found[:length], expected)
        assert features.clip_ids[row] == f"train-{row:03d}"
    assert features.captions_in("fra", np.array([1])) == [["un son moyen, numéro 1"]]
    assert features.captions_in("zho", rows) == [[]] * 4
    assert features.labels[3] == ["a very high"]


def test_they_are_computed_once_and_again_for_another_front_end(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = read_manifest(data)
    assert find_features(manifest, FRONT_END, tmp_path) is None
    folder = ensure_features(data, FRONT_END, tmp_path, use_ray=False)
    assert find_features(manifest, FRONT_END, tmp_path) == folder
    other = dataclasses.replace(FRONT_END, num_mels=16)
    assert ensure_features(data, other, tmp_path, use_ray=False) != folder
    monkeypatch.setattr(feature_cache, "clip_windows", None)
    assert ensure_features(data, FRONT_END, tmp_path, use_ray=False) == folder


def test_interrupted_work_is_taken_up_shard_by_shard(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_after_train(job: Any) -> int:
        if read_manifest(job[0]).shards[job[1]].split != "train":
            raise KeyboardInterrupt
        return compute(job)

    compute = feature_cache.compute_shard
    monkeypatch.setattr(feature_cache, "compute_shard", stop_after_train)
    with pytest.raises(KeyboardInterrupt):
        ensure_features(data, FRONT_END, tmp_path, use_ray=False)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    with pytest.raises(ValueError, match=f"not a whole feature cache \\({MANIFEST_FILE} is missing"):
        open_features(folder, "train")
    done = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    monkeypatch.setattr(feature_cache, "compute_shard", compute)
    progress: list[tuple[int, int]] = []
    assert (
        ensure_features(data, FRONT_END, tmp_path, use_ray=False, progress=lambda *seen: progress.append(seen))
        == folder
    )
    assert progress[0][0] > 6
    assert progress[-1] == (11, 11)
    assert {name: (folder / name).stat().st_mtime_ns for name in done} == done
    with pytest.raises(ValueError, match="no split 'tset'; it has train, val, test"):
        open_features(folder, "tset")
