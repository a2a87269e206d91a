"""Cached features are those of the files, are computed once, and are taken up again where work stopped."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from ray_atr.common.digests import DIGESTS_FILE
from ray_atr.common.storage import DamagedFileError, files_below, locate, read_bytes, write_json
from ray_atr.data import feature_cache
from ray_atr.data.audio import FrontEnd
from ray_atr.data.feature_cache import ensure_features, find_features
from ray_atr.data.features import MANIFEST_FILE, open_features, rows_file
from ray_atr.data.shards import read_manifest, write_clips
from tests.support.one_window import clip_features
from tests.support.spies import spied
from tests.support.tiny import make_data, tone, tone_clip

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
        expected = clip_features(tone(row % 4, row), FRONT_END).astype(np.float16)
        np.testing.assert_array_equal(found[:length], expected)
        assert features.clip_ids[row] == f"train-{row:03d}"
    assert features.captions_in("fra", np.array([1])) == [["un son moyen, numéro 1"]]
    assert features.captions_in("zho", rows) == [[]] * 4
    assert features.labels[3] == ["a very high"]


def test_they_are_computed_once_and_again_for_another_front_end(data: Path, tmp_path: Path) -> None:
    manifest = read_manifest(data)
    assert find_features(manifest, FRONT_END, tmp_path) is None
    folder = ensure_features(data, FRONT_END, tmp_path, use_ray=False)
    assert find_features(manifest, FRONT_END, tmp_path) == folder
    other = dataclasses.replace(FRONT_END, num_mels=16)
    assert ensure_features(data, other, tmp_path, use_ray=False) != folder
    said: list[str] = []
    assert ensure_features(data, FRONT_END, tmp_path, use_ray=False, echo=said.append) == folder
    assert said == []


def test_they_are_computed_in_one_thread_also_in_this_process(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set[int]()
    spied(monkeypatch, feature_cache, "clip_windows", lambda *_, **__: threads.add(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ensure_features(data, FRONT_END, tmp_path, use_ray=False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert threads == {1}


def test_each_shard_has_no_line_of_its_own(tmp_path: Path) -> None:
    clips = [tone_clip("train", index, {"eng": ["a tone"]}) for index in range(6)]
    write_clips(tmp_path / "data", clips, name="tones", licence="none", clips_per_shard=1)
    said: list[str] = []
    ensure_features(str(tmp_path / "data"), FRONT_END, tmp_path, use_ray=False, echo=said.append)
    assert said == ["log-mel features 1 of 6 clips", "log-mel features 6 of 6 clips"]


def stop(line: str) -> None:
    """An `echo` that stops the work when its first shard, that of the training split, is done."""
    assert line == "log-mel features 6 of 11 clips"
    raise KeyboardInterrupt


def test_interrupted_work_is_taken_up_shard_by_shard(data: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        ensure_features(data, FRONT_END, tmp_path, use_ray=False, echo=stop)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    with pytest.raises(ValueError, match=f"not a complete feature cache \\({MANIFEST_FILE} is missing"):
        open_features(folder, "train")
    done = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    said: list[str] = []
    assert ensure_features(data, FRONT_END, tmp_path, use_ray=False, echo=said.append) == folder
    assert said == ["log-mel features 9 of 11 clips", "log-mel features 11 of 11 clips"]
    assert {name: (folder / name).stat().st_mtime_ns for name in done} == done
    with pytest.raises(ValueError, match="no split 'tset'; it has train, val, test"):
        open_features(folder, "tset")


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "folder" else f"memory://features-{tmp_path.name}"


def test_features_in_a_store_are_those_on_the_disk(data: Path, tmp_path: Path, store: str) -> None:
    here = open_features(ensure_features(data, FRONT_END, tmp_path / "disk", use_ray=False), "train")
    moved = Path(shutil.copytree(data, tmp_path / "data"))
    folder = ensure_features(moved, FRONT_END, tmp_path / "one", use_ray=False, store=store)
    for rows in (np.array([4, 0, 4, 5]), np.array([], np.int64)):
        for found, expected in zip(open_features(folder, "train").features(rows), here.features(rows), strict=True):
            np.testing.assert_array_equal(found, expected)
    assert open_features(folder, "train").captions_in("fra", np.array([1])) == here.captions_in("fra", np.array([1]))
    kept = locate(store)
    in_store = sum(len(read_bytes(kept / name)) for name in files_below(kept) if name.endswith(".features"))
    splits = [open_features(folder, split) for split in ("train", "val", "test")]
    assert in_store == sum(2 * 20 * int(one.features(np.arange(len(one)))[1].sum()) for one in splits)
    assert not list(folder.glob("*.features"))
    # Another node computes nothing, and reads no audio.
    for file in moved.glob("*.parquet"):
        file.unlink()
    other = ensure_features(moved, FRONT_END, tmp_path / "other", use_ray=False, store=store)
    found, expected = (open_features(one, "val").features(np.arange(3))[0] for one in (other, folder))
    np.testing.assert_array_equal(found, expected)


def test_features_are_read_from_the_store_that_is_named_where_it_is_now(data: Path, tmp_path: Path) -> None:
    before, now, cache = tmp_path / "before", tmp_path / "now", tmp_path / "cache"
    ensure_features(data, FRONT_END, cache, use_ray=False, store=str(before))
    before.rename(now)
    said = list[str]()
    folder = ensure_features(data, FRONT_END, cache, use_ray=False, store=str(now), echo=said.append)
    assert not said
    assert len(open_features(folder, "val").features(np.arange(3))[0]) == 3


def test_a_damaged_row_in_a_store_is_refused(data: Path, tmp_path: Path) -> None:
    folder = ensure_features(data, FRONT_END, tmp_path / "one", use_ray=False, store=str(tmp_path / "store"))
    features = open_features(folder, "train")
    (rows,) = (tmp_path / "store").rglob(rows_file(features.shard_files[0]))
    content = bytearray(rows.read_bytes())
    content[0] ^= 1
    rows.write_bytes(content)
    assert len(features.features(np.array([1]))[0]) == 1
    with pytest.raises(DamagedFileError, match=f"{rows.name}: damaged"):
        features.features(np.array([1, 0]))


def test_interrupted_work_in_a_store_is_taken_up(data: Path, tmp_path: Path) -> None:
    store, said = str(tmp_path / "store"), list[str]()
    with pytest.raises(KeyboardInterrupt):
        ensure_features(data, FRONT_END, tmp_path / "one", use_ray=False, store=store, echo=stop)
    folder = ensure_features(data, FRONT_END, tmp_path / "two", use_ray=False, store=store, echo=said.append)
    assert said == ["log-mel features 9 of 11 clips", "log-mel features 11 of 11 clips"]
    assert len(open_features(folder, "val").features(np.arange(3))[0]) == 3


def test_a_store_that_names_files_elsewhere_is_refused(data: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    ensure_features(data, FRONT_END, tmp_path / "one", use_ray=False, store=str(store))
    (kept,) = store.iterdir()
    for files in ({"../outside": "xxh3:0"}, ["train.captions.arrow"], None):
        write_json(kept / DIGESTS_FILE, {"files": files})
        with pytest.raises(ValueError, match=r"digests.json: files: got .*; allowed"):
            ensure_features(data, FRONT_END, tmp_path / "other", use_ray=False, store=str(store))
    assert not (tmp_path / "outside").exists()
