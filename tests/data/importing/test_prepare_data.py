"""The import: bad input, skipping, resuming, splitting among processes; and the script around it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile

from ray_atr.common import locations
from ray_atr.common.progress import CountProgress
from ray_atr.common.storage import StorageError, locate, names_in, write_bytes
from ray_atr.data.schema import to_clips
from ray_atr.data.shards import iterate_rows, read_manifest, read_shard, write_clips
from ray_atr.workshop.importing.plan import Import, import_data_set
from ray_atr.workshop.importing.session import HASH_FILE, unfinished
from ray_atr.workshop.importing.sources.table import TableSource
from tests.support.clips_on_disk import tone, write_tone
from tests.support.scripts import run_pipeline
from tests.support.stores import watched_store


def make_folder(root: Path, number: int = 6, seconds: float = 0.1) -> TableSource:
    for index in range(number):
        write_tone(root / f"{index:03d}.flac", seconds, pitch=200 + 10 * index)
    rows = [f"{index:03d}.flac,caption {index},{'val' if index % 3 == 2 else 'train'}" for index in range(number)]
    (root / "captions.csv").write_text("\n".join(["path,caption,split", *rows]))
    return TableSource(source=str(root))


def test_an_import_holds_the_files_as_they_are(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "in")
    seen: list[tuple[int, int]] = []
    manifest = import_data_set(
        source, tmp_path / "out", options=Import(clips_per_shard=2), progress=lambda *n: seen.append(n)
    )
    assert [(shard.file, shard.num_rows) for shard in manifest.shards] == [
        ("train-00000.parquet", 2),
        ("train-00001.parquet", 2),
        ("val-00000.parquet", 2),
    ]
    rows = list(iterate_rows(manifest, "train"))
    assert [row["clip_id"] for row in rows] == ["000", "001", "003", "004"]
    assert [row["audio"] for row in rows] == [(tmp_path / "in" / f"{row['clip_id']}.flac").read_bytes() for row in rows]
    assert {(row["sample_rate"], row["source"]) for row in rows} == {(16_000, "folder")}
    assert [row["seconds"] for row in rows] == pytest.approx([0.1] * 4)
    assert seen == [(2, 6), (4, 6), (6, 6)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "manifest.json",
        *(shard.file for shard in manifest.shards),
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"this is no audio at all", "not audio"),
        (tone(0.5)[:3000], "truncated"),
        (tone(0.5, ".flac")[:3000], "truncated|not audio"),
        (tone(2.0, ".ogg")[:-300], "truncated"),
        (tone(0.0), "zero length"),
        (tone(0.01), r"0\.0100 s long; at least 0\.04 s"),
        (b"", "not audio"),
    ],
)
def test_a_bad_clip_is_refused_beyond_the_allowed_share_and_named_within(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    source = make_folder(tmp_path / "in")
    (tmp_path / "in" / "003.flac").write_bytes(content)
    with pytest.raises(ValueError, match=f"1 of 6 clips cannot be read so far; allowed 1.00%.*003.*({reason})"):
        import_data_set(source, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    manifest = import_data_set(source, tmp_path / "out", options=Import(max_unreadable=0.2))
    assert [entry.clip_id for entry in manifest.skipped] == ["003"]
    assert [row["clip_id"] for row in iterate_rows(manifest, "train")] == ["000", "001", "004"]


def test_a_clip_that_is_shorter_than_is_allowed_is_left_out(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "in", number=3, seconds=0.1)
    write_tone(tmp_path / "in" / "001.flac", 0.05)
    assert import_data_set(source, tmp_path / "all").num_rows == 3
    manifest = import_data_set(source, tmp_path / "out", options=Import(min_seconds=0.08, max_unreadable=0.5))
    assert [skipped.clip_id for skipped in manifest.skipped] == ["001"]


def test_the_share_is_one_in_a_hundred_or_exactly_what_is_set(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "in", number=100)
    (tmp_path / "in" / "007.flac").write_bytes(b"bad")
    assert import_data_set(source, tmp_path / "one").num_rows == 99
    (tmp_path / "in" / "050.flac").unlink()
    with pytest.raises(ValueError, match="2 of 100 clips cannot be read"):
        import_data_set(source, tmp_path / "two")
    for index in range(60, 87):
        (tmp_path / "in" / f"{index:03d}.flac").unlink()
    # .29 times 100 is less than 29.
    assert import_data_set(source, tmp_path / "many", options=Import(max_unreadable=0.29)).num_rows == 71


def stop_after(clips: int) -> CountProgress:
    """A `progress` that stops an import after so many clips."""

    def stop(done: int, total: int) -> None:
        if done == clips:
            raise KeyboardInterrupt

    return stop


def written(folders: Iterable[Path]) -> dict[str, int]:
    """The shards in some folders, and when each was written."""
    return {path.name: path.stat().st_mtime_ns for folder in folders for path in folder.rglob("*.parquet")}


def test_a_stopped_import_goes_on_with_the_shards_that_are_missing(tmp_path: Path) -> None:
    source, options = make_folder(tmp_path / "in", number=12), Import(clips_per_shard=2)
    whole = import_data_set(source, tmp_path / "whole", options=options)
    with pytest.raises(KeyboardInterrupt, match="run the same command again"):
        import_data_set(source, tmp_path / "out", options=options, progress=stop_after(6))
    assert not (tmp_path / "out").exists()
    done = written(tmp_path.glob(".out*"))
    assert len(done) == 3
    resumed = import_data_set(source, tmp_path / "out", options=options)
    every = written([tmp_path / "out"])
    assert len(every) == len(whole.shards) == 6
    assert every.items() > done.items()
    assert resumed.hash == whole.hash
    assert import_data_set(source, tmp_path / "out", options=options) == resumed
    assert written([tmp_path / "out"]) == every


def test_a_source_that_is_away_takes_nothing_from_a_stopped_import(tmp_path: Path) -> None:
    source, options = make_folder(tmp_path / "in"), Import(clips_per_shard=2)
    with pytest.raises(KeyboardInterrupt):
        import_data_set(source, tmp_path / "out", options=options, progress=stop_after(4))
    done = written(tmp_path.glob(".out*"))
    assert len(done) == 2
    (tmp_path / "in").rename(tmp_path / "away")
    with pytest.raises(ValueError, match="no such folder"):
        import_data_set(source, tmp_path / "out", options=options)
    assert written(tmp_path.glob(".out*")) == done
    (tmp_path / "away").rename(tmp_path / "in")
    import_data_set(source, tmp_path / "out", options=options)
    assert done.items() <= written([tmp_path / "out"]).items()


def test_work_of_another_import_is_not_taken_up(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "in")
    with pytest.raises(KeyboardInterrupt):
        import_data_set(source, tmp_path / "out", options=Import(clips_per_shard=2), progress=stop_after(2))
    (tmp_path / "in" / "captions.csv").write_text("path,caption\n000.flac,another caption")
    manifest = import_data_set(source, tmp_path / "out", options=Import(clips_per_shard=2))
    assert [row["captions"] for row in iterate_rows(manifest, "train")] == [{"eng": ["another caption"]}]


def test_a_note_that_a_kill_left_without_the_works_hash_is_not_taken_up(tmp_path: Path) -> None:
    source, options = make_folder(tmp_path / "in"), Import(clips_per_shard=2)
    with pytest.raises(KeyboardInterrupt):
        import_data_set(source, tmp_path / "out", options=options, progress=stop_after(2))
    (tmp_path / ".out.import" / HASH_FILE).unlink()
    (tmp_path / "in" / "captions.csv").write_text("path,caption\n000.flac,another caption")
    manifest = import_data_set(source, tmp_path / "out", options=options)
    assert [row["captions"] for row in iterate_rows(manifest, "train")] == [{"eng": ["another caption"]}]


def test_an_existing_data_set_is_never_replaced(tmp_path: Path) -> None:
    manifest = import_data_set(make_folder(tmp_path / "in"), tmp_path / "out")
    with pytest.raises(ValueError, match="already holds the data set folder"):
        import_data_set(make_folder(tmp_path / "other", number=3), tmp_path / "out")
    assert read_manifest(tmp_path / "out") == manifest


def test_a_link_is_written_to_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    source = make_folder(tmp_path / "in")
    assert import_data_set(source, tmp_path / "out").num_rows == 6
    assert (tmp_path / "out").is_symlink()
    assert read_manifest(tmp_path / "disk") == import_data_set(source, tmp_path / "out")
    (tmp_path / "copy").symlink_to(tmp_path / "new" / "place")
    held = read_manifest(tmp_path / "out")
    clips = to_clips(next(read_shard(held, held.shards[0])))
    write_clips(tmp_path / "copy", clips, name="copy", licence="none")
    assert read_manifest(tmp_path / "new" / "place").num_rows == len(clips)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "disk", "in", "new", "out"]


def test_two_imports_into_one_folder_do_not_mix(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "in")
    with unfinished(tmp_path / "out") as state:
        with pytest.raises(ValueError, match="this data set is being written by"):
            import_data_set(source, tmp_path / "out")
        assert (state.work / "lock").exists()
    assert import_data_set(source, tmp_path / "out").num_rows == 6


def test_ids_must_be_unique(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "in", number=2)
    (tmp_path / "in" / "captions.csv").write_text("path,caption,clip_id\n000.flac,x,same\n001.flac,y,same")
    with pytest.raises(ValueError, match="clip 'same': its id occurs twice"):
        import_data_set(source, tmp_path / "out")


def test_object_stores_are_written_in_place_with_the_manifest_last(tmp_path: Path) -> None:
    out = f"memory://{tmp_path.name}/out"
    source = make_folder(tmp_path / "in")
    manifest = import_data_set(source, out, options=Import(clips_per_shard=2))
    assert manifest.hash == import_data_set(source, tmp_path / "out", options=Import(clips_per_shard=2)).hash
    assert len(list(iterate_rows(manifest, "val"))) == 2


def test_no_shard_of_another_import_or_of_a_failed_one_stays_in_a_store(tmp_path: Path) -> None:
    source, out = make_folder(tmp_path / "in"), f"memory://{tmp_path.name}/out"
    with pytest.raises(KeyboardInterrupt):
        import_data_set(source, out, options=Import(clips_per_shard=1), progress=stop_after(5))
    manifest = import_data_set(source, out, options=Import(clips_per_shard=100))
    assert names_in(locate(out)) == ["manifest.json", *(shard.file for shard in manifest.shards)]
    # A finished set keeps its shards, also if a kill left the notes on them.
    for name in ("work.sha256", "val-00000.note.json"):
        write_bytes(locate(out) / "_import" / name, b"{}")
    with pytest.raises(ValueError, match="already holds the data set"):
        import_data_set(source, out, options=Import(clips_per_shard=1))
    assert len(list(iterate_rows(manifest, "val"))) == 2
    (tmp_path / "in" / "005.flac").write_bytes(b"bad")
    with pytest.raises(ValueError, match="1 of 6 clips cannot be read"):
        import_data_set(source, f"{out}2", options=Import(clips_per_shard=1))
    assert names_in(locate(f"{out}2")) == []


MEMORY = """
import resource, sys
from ray_atr.workshop.importing.plan import Import, import_data_set
from ray_atr.workshop.importing.sources.table import TableSource

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before = peak()
manifest = import_data_set(TableSource(source=sys.argv[1]), sys.argv[2], options=Import(ray="never"))
print((peak() - before) / manifest.shards[0].num_bytes)
"""


@pytest.mark.slow
def test_memory_is_a_few_times_the_largest_file(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    soundfile.write(tmp_path / "in" / "long.wav", np.zeros((16_000 * 800, 2), np.int16), 16_000)
    (tmp_path / "in" / "captions.csv").write_text("path,caption\nlong.wav,silence\n")
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "in"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # Parquet's statistics alone would copy the file seven times more.
    assert float(done.stdout) < 6


def test_further_languages_join_by_id(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "in")
    german = tmp_path / "deu.csv"
    german.write_text("path,caption\n" + "\n".join(f"{index:03d}.flac,Beschreibung {index}" for index in (0, 2, 5)))
    manifest = import_data_set(source, tmp_path / "out", captions=[f"deu={german}"])
    assert manifest.notes == ("deu captions joined: 1 of 4 train clips, 2 of 2 val clips",)
    assert [row["captions"].get("deu") for row in iterate_rows(manifest, "val")] == [
        ["Beschreibung 2"],
        ["Beschreibung 5"],
    ]


@pytest.mark.parametrize(
    ("assignment", "content", "says"),
    [
        ("German={}", "path,caption\n000.flac,x", "did you mean deu"),
        ("deu", "", "LANGUAGE=FILE"),
        ("deu={}.missing.csv", "", "no such file"),
        ("deu={}", "name,caption\n000.flac,x", "no column names the clip"),
        ("deu={}", "path,text\n000.flac,x", "no caption; its columns are path, text"),
        ("deu={}", "path,caption\nzzz.flac,x", "none of 1 clip in the deu file is in the data set"),
        ("deu={}", "path,caption\n000.flac,x\n000.flac,y", "differ in number"),
        ("eng={}", "path,caption\n000.flac,x", "the source itself has eng captions"),
    ],
)
def test_caption_files_that_do_not_fit_are_refused(tmp_path: Path, assignment: str, content: str, says: str) -> None:
    source = make_folder(tmp_path / "in")
    file = tmp_path / "extra.csv"
    file.write_text(content)
    with pytest.raises(ValueError, match=says):
        import_data_set(source, tmp_path / "out", captions=[assignment.format(file)])
    assert not (tmp_path / "out").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["extra.csv", "in"]


def test_a_set_may_be_named(tmp_path: Path) -> None:
    options = Import(name="bird-song.v2", licence="CC0")
    manifest = import_data_set(make_folder(tmp_path / "in"), tmp_path / "out", options=options)
    assert (manifest.name, manifest.licence) == ("bird-song.v2", "CC0")
    assert {row["source"] for row in iterate_rows(manifest, "val", ["source"])} == {"bird-song.v2"}
    with pytest.raises(ValueError, match=r"name: got '\.\./x'"):
        Import(name="../x")


def test_a_clip_is_not_left_out_because_its_store_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_away = False

    def refuse(request: str, path: str) -> None:
        if is_away and request == "read" and path.endswith("004.flac"):
            raise TimeoutError(110, "Connection timed out")

    make_folder(tmp_path / "in")
    monkeypatch.setattr(locations, "PATIENCE_SECONDS", 0)
    with watched_store(refuse) as place:
        for path in (tmp_path / "in").iterdir():
            write_bytes(place / path.name, path.read_bytes())
        options, is_away = Import(clips_per_shard=2, max_unreadable=1.0), True
        with pytest.raises(StorageError, match=r"004\.flac: the storage cannot be used"):
            import_data_set(TableSource(source=str(place)), tmp_path / "out", options=options)
        is_away = False
        manifest = import_data_set(TableSource(source=str(place)), tmp_path / "out", options=options)
        assert (sum(shard.num_rows for shard in manifest.shards), manifest.skipped) == (6, ())


@pytest.mark.slow
def test_a_bucket_is_read_from_and_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name, value in (("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "y"), ("DEFAULT_REGION", "us-east-1")):
            monkeypatch.setenv(f"AWS_{name}", value)
        bucket = boto3.client("s3")
        bucket.create_bucket(Bucket="sounds")
        local = import_data_set(make_folder(tmp_path / "in"), tmp_path / "out", options=Import(clips_per_shard=2))
        for path in (tmp_path / "in").iterdir():
            bucket.upload_file(str(path), "sounds", f"raw/{path.name}")
        source = TableSource(source="s3://sounds/raw")
        remote = import_data_set(source, "s3://sounds/sets/toy", options=Import(clips_per_shard=2))
        assert remote.hash == local.hash
        assert [row["clip_id"] for row in iterate_rows(remote, "val")] == ["002", "005"]
        names = {entry["Key"] for entry in bucket.list_objects_v2(Bucket="sounds", Prefix="sets/")["Contents"]}
        files = {"manifest.json", *(shard.file for shard in remote.shards)}
        assert {name.removeprefix("sets/toy/") for name in names if not name.endswith("/")} == files
        with pytest.raises(ValueError, match="already holds the data set folder"):
            import_data_set(source, "s3://sounds/sets/toy", options=Import(clips_per_shard=3))
    finally:
        server.stop()


def test_the_script_says_what_it_did_and_what_was_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_folder(tmp_path / "in")
    source, out = str(tmp_path / "in"), str(tmp_path / "out")
    run = partial(run_pipeline, monkeypatch, "prepare_data")
    assert run("folder", "--source", source, "--out", out) == 0
    said = capsys.readouterr().out
    assert "6 clips (train 4, val 2)" in said
    assert "eng 6" in said
    assert run("check", out) == 0
    assert "fit for use" in capsys.readouterr().out
    assert run("folder", "--source", str(tmp_path / "nowhere"), "--out", str(tmp_path / "two")) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'nowhere'}: no such folder\n"
    table = str(next((tmp_path / "in").glob("*.flac")))
    assert run("folder", "--source", table, "--out", str(tmp_path / "two")) == 2
    assert capsys.readouterr().err == f"error: {table}: a file; allowed the folder that it is in\n"
    (tmp_path / "in" / "000.flac").write_bytes(b"no audio")
    assert run("folder", "--source", source, "--out", str(tmp_path / "two")) == 2
    assert "1 of 6 clips cannot be read" in capsys.readouterr().err
    options = ("--out", str(tmp_path / "two"), "--max-unreadable", "0.5")
    assert run("folder", "--source", source, *options) == 0
    assert "1 x got '8 bytes that are not audio" in capsys.readouterr().out
    shard = tmp_path / "two" / "train-00000.parquet"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    assert run("check", str(tmp_path / "two")) == 2
    assert "another SHA-256" in capsys.readouterr().err


@pytest.mark.ray
def test_ray_writes_the_same_shards(tmp_path: Path, ray_session: None) -> None:
    source = make_folder(tmp_path / "in", number=20)
    (tmp_path / "in" / "003.flac").write_bytes(b"bad")
    options = {"clips_per_shard": 3, "max_unreadable": 0.1}
    with_ray = import_data_set(source, tmp_path / "ray", options=Import(ray="always", **options))
    without = import_data_set(source, tmp_path / "plain", options=Import(ray="never", **options))
    assert with_ray.hash == without.hash
    assert with_ray.skipped == without.skipped
    assert [entry.clip_id for entry in with_ray.skipped] == ["003"]
    with pytest.raises(ValueError, match="unreadable"):
        import_data_set(source, tmp_path / "strict", options=Import(ray="always", clips_per_shard=3, cpus_per_task=2))
