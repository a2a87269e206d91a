from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_atr.common.storage import StorageError, locate
from ray_atr.data.row_groups import read_group
from ray_atr.data.schema import Clip
from ray_atr.data.shards import (
    MANIFEST_FILE,
    hash_of_file,
    iterate_rows,
    new_data_set,
    read_captions,
    read_manifest,
    read_shard,
    write_clips,
)
from tests.support.stores import watched_store


def clip(index: int, split: str = "train", **changes: object) -> Clip:
    fields: dict[str, object] = {
        "clip_id": f"clip-{index}",
        "audio": bytes([index % 251]) * 100,
        "sample_rate": 16_000,
        "seconds": 2.0,
        "captions": {"fra": [f"légende {index}"], "eng": [f"caption {index}"]},
        "split": split,
        "source": "test",
        "translated": ["fra"],
    }
    return Clip(**{**fields, **changes})


def clips(number: int) -> list[Clip]:
    return [clip(index, "val" if index % 3 == 0 else "train") for index in range(number)]


@pytest.mark.parametrize("place", ["local", "memory", "file"])
def test_written_clips_come_back_in_order(tmp_path: Path, place: str) -> None:
    out = {"local": tmp_path / "set", "memory": f"memory://{tmp_path.name}/set", "file": f"file://{tmp_path}/set"}[
        place
    ]
    written = write_clips(out, clips(20), name="toy", licence="CC0", clips_per_shard=4)
    manifest = read_manifest(out)
    assert manifest == written
    assert manifest.splits == ("train", "val")
    assert [shard.num_rows for shard in manifest.shards] == [4, 4, 4, 1, 4, 3]
    assert manifest.languages == ("eng", "fra")
    assert (manifest.num_captions("fra"), manifest.num_translated("fra"), manifest.num_translated("eng")) == (20, 20, 0)
    for split in manifest.splits:
        rows = list(iterate_rows(manifest, split))
        expected = [entry for entry in clips(20) if entry.split == split]
        assert [row["clip_id"] for row in rows] == [entry.clip_id for entry in expected]
        assert [row["audio"] for row in rows] == [entry.audio for entry in expected]
        assert [row["captions"] for row in rows] == [entry.captions for entry in expected]
        words = list(read_captions(manifest, split))
        assert [entry.captions["eng"] for entry in words] == [entry.captions["eng"] for entry in expected]


def test_a_shard_holds_one_split_and_its_true_size_and_hash(tmp_path: Path) -> None:
    manifest = write_clips(tmp_path / "set", clips(20), name="toy", licence="CC0", clips_per_shard=5)
    folder = locate(manifest.folder)
    for shard in manifest.shards:
        splits = {row for batch in read_shard(manifest, shard, ["split"]) for row in batch.column("split").to_pylist()}
        assert splits == {shard.split}
        assert hash_of_file(folder / shard.file) == shard.sha256
        assert os.path.getsize(f"{folder}/{shard.file}") == shard.num_bytes
    # Any Parquet reader can read it.
    assert pq.read_table(f"{folder}/{manifest.shards[0].file}").num_rows == manifest.shards[0].num_rows


def test_hash_follows_content_not_name_or_place(tmp_path: Path) -> None:
    first = write_clips(tmp_path / "a", clips(9), name="one", licence="CC0")
    same = write_clips(tmp_path / "b", clips(9), name="two", licence="CC0")
    fewer = write_clips(tmp_path / "c", clips(8), name="one", licence="CC0")
    changed = [*clips(8), clip(8, captions={"eng": ["another caption"]}, translated=[])]
    other = write_clips(tmp_path / "d", changed, name="one", licence="CC0")
    assert first.hash == same.hash
    assert len({first.hash, fewer.hash, other.hash}) == 3


def test_a_large_shard_is_written_in_small_row_groups(tmp_path: Path) -> None:
    many = [clip(index) for index in range(200)]
    manifest = write_clips(tmp_path / "set", many, name="toy", licence="CC0", clips_per_shard=1000)
    parquet = pq.ParquetFile(f"{locate(manifest.folder)}/{manifest.shards[0].file}")
    assert parquet.num_row_groups == 4
    assert max(batch.num_rows for batch in read_shard(manifest, manifest.shards[0])) <= 64


def test_another_data_set_is_never_overwritten(tmp_path: Path) -> None:
    write_clips(tmp_path / "set", clips(3), name="first", licence="CC0")
    with pytest.raises(ValueError, match="already holds the data set first"):
        write_clips(tmp_path / "set", clips(3), name="second", licence="CC0")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="neither empty nor a data set"):
        write_clips(tmp_path / "home", clips(3), name="second", licence="CC0")
    (tmp_path / "empty").mkdir()
    assert write_clips(tmp_path / "empty", clips(3), name="third", licence="CC0").num_rows == 3


def test_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    for bad in ([clip(0), clip(0)], [clip(0), clip(1, audio=b"")], []):
        with pytest.raises(ValueError, match=r"its id occurs twice|audio|no clips"):
            write_clips(tmp_path / "set", bad, name="toy", licence="CC0")
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError), new_data_set(tmp_path / "set"):
        raise RuntimeError("stopped in the middle")
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_folder_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        write_clips(tmp_path / "file" / "set", clips(3), name="toy", licence="CC0")


def test_a_folder_without_whole_manifest_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"manifest\.json is missing"):
        read_manifest(tmp_path)
    manifest = write_clips(tmp_path / "set", clips(3), name="toy", licence="CC0")
    path = Path(manifest.folder) / MANIFEST_FILE
    with pytest.raises(ValueError, match=r"manifest\.json: is a file; a data set is a folder"):
        read_manifest(path)
    content = json.loads(path.read_text())
    content["shards"][0]["sha256"] = "0" * 64
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="changed by hand"):
        read_manifest(tmp_path / "set")
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"manifest.json: format: got None"):
        read_manifest(tmp_path / "set")


def test_a_missing_split_is_named(tmp_path: Path) -> None:
    manifest = write_clips(tmp_path / "set", clips(3), name="toy", licence="CC0")
    with pytest.raises(ValueError, match="no split 'test'; it has train, val"):
        manifest.shards_of("test")


def test_a_shard_of_other_columns_is_refused(tmp_path: Path) -> None:
    manifest = write_clips(tmp_path / "set", clips(3), name="toy", licence="CC0")
    path = f"{locate(manifest.folder)}/{manifest.shards[0].file}"
    pq.write_table(pa.table({"clip_id": ["a"]}), path)
    with pytest.raises(ValueError, match="column audio is missing"):
        list(read_shard(manifest, manifest.shards[0]))


HOSTILE_MANIFESTS = {
    "no hash": lambda content: content.pop("hash"),
    "no shards": lambda content: content.pop("shards"),
    "name is a number": lambda content: content.update(name=1),
    "name leads out": lambda content: content.update(name="../x"),
    "shards is text": lambda content: content.update(shards="x"),
    "a shard is a number": lambda content: content.update(shards=[1]),
    "file leads out": lambda content: content["shards"][0].update(file="/etc/passwd"),
    "split leads out": lambda content: content["shards"][0].update(split="../../x"),
    "rows of 400 digits": lambda content: content["shards"][0].update(num_rows=10**400),
    "negative rows": lambda content: content["shards"][0].update(num_rows=-1),
    "captions is a list": lambda content: content["shards"][0].update(captions=["eng"]),
    "notes is a number": lambda content: content.update(notes=1),
    "a long name": lambda content: content.update(name="x" * 100_000),
    "an unknown field": lambda content: content["shards"][0].update(path="x"),
}


@pytest.mark.parametrize("change", HOSTILE_MANIFESTS)
def test_a_hostile_manifest_is_refused_in_one_short_line(tmp_path: Path, change: str) -> None:
    write_clips(tmp_path / "set", [clip(0)], name="toy", licence="CC0")
    file = tmp_path / "set" / "manifest.json"
    content = json.loads(file.read_text())
    HOSTILE_MANIFESTS[change](content)
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"manifest\.json") as caught:
        read_manifest(tmp_path / "set")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("content", ["[" * 100_000, '{"name": 1' + "0" * 5_000 + "}", "[1]", "\0", ""])
def test_what_is_no_manifest_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match="not a manifest of clips") as caught:
        read_manifest(tmp_path)
    assert len(str(caught.value)) < 500


def test_a_store_that_refuses_is_not_taken_for_a_damaged_shard() -> None:
    is_closed = False

    def refuse(request: str, path: str) -> None:
        if is_closed and request == "read":
            raise PermissionError(errno.EACCES, "Access Denied")

    with watched_store(refuse) as place:
        manifest = write_clips(place, clips(3), name="toy", licence="CC0")
        shard, is_closed = manifest.shards[0], True
        told = rf"{shard.file}: the storage cannot be used \(Access Denied\)"
        with pytest.raises(StorageError, match=told):
            list(read_shard(manifest, shard))
        with pytest.raises(StorageError, match=told):
            hash_of_file(place / shard.file)
        with pytest.raises(StorageError, match=told):
            read_group(str(place), shard.file, 0)
