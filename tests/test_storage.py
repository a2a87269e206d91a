"""Places of a run: local names, URLs, and a run folder that behaves the same on both."""

from __future__ import annotations

import errno
import io
import itertools
import os
import resource
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFile
from fsspec.registry import _registry, known_implementations
from tokenizers import Tokenizer, models

from ray_atr.common import locations
from ray_atr.common.atomic import disk_errors, files_aside, new_folder
from ray_atr.common.locations import files_below, storage_errors
from ray_atr.common.storage import (
    StorageError,
    atomic_file,
    atomic_folder,
    complete_file,
    entries_in,
    fetched,
    file_exists,
    locate,
    make_folder,
    names_in,
    opened,
    read_bytes,
    read_json,
    require_new,
    sent,
    write_bytes,
    write_json,
    write_text,
)
from ray_atr.common.transfer import get, put_folder
from ray_atr.evaluation.report import read_runs, write_report
from ray_atr.models.text import SmallTransformerTower
from ray_atr.models.weights import link_weights, write_weights
from ray_atr.training.checkpoint import save_checkpoint
from ray_atr.training.experiment import Experiment
from ray_atr.training.run_folder import RunFolder
from tests.support.crash_points import in_fork
from tests.support.denied import deny
from tests.support.stores import nobody, watched_store


@pytest.fixture(params=["local", "file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The name of a folder that does not exist yet."""
    name = uuid.uuid4().hex
    yield {"local": str(tmp_path / name), "file": f"file://{tmp_path}/{name}", "memory": f"memory://{name}"}[
        request.param
    ]
    memory = fsspec.filesystem("memory")
    if memory.exists(name):
        memory.rm(name, recursive=True)


def test_local_names_become_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate("runs/x") == tmp_path / "runs" / "x"
    assert locate(f"file://{tmp_path}/x") == tmp_path / "x"
    assert locate("~/x") == Path.home() / "x"
    assert str(locate("memory://runs/x/")) == "memory://runs/x"
    assert locate(locate("memory://runs/x")) == locate("memory://runs/x")


def test_an_unknown_kind_of_url_is_refused() -> None:
    with pytest.raises(ValueError, match=r"s4://b/x: unknown kind of path s4://; allowed a local path"):
        locate("s4://b/x")


@pytest.mark.parametrize("url", ["s3://", "s3:///", "gs:///runs/x"])
def test_a_url_without_a_bucket_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=rf"^{url}: no bucket; allowed {url[:2]}://BUCKET/FOLDER$"):
        locate(url)


@pytest.mark.parametrize("url", ["memory://", "memory:///", "http://"])
def test_a_url_without_a_path_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=rf"^{url}: no path; allowed {url.rstrip('/')}//FOLDER$"):
        locate(url)


def test_a_file_system_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known_implementations, "gs", {"class": "no_gcsfs.System", "err": "Please install gcsfs"})
    monkeypatch.delitem(_registry, "gs", raising=False)
    with pytest.raises(
        ValueError,
        match=r"gs://b/x: Please install gcsfs \(with the extra: pip install 'ray_atr\[gcs\]', .*--extra gcs\)",
    ):
        locate("gs://b/x")


def test_a_run_folder_is_the_same_wherever_it_lies(place: str) -> None:
    run = RunFolder.create(place, Experiment(), {"name": "test", "varied": ["seed"]})
    assert RunFolder.open(place).experiment == Experiment()
    trial = run.add_trial({"seed": 1})
    trial.update(status="running")
    assert run.add_trial({"seed": 1}).describe()["status"] == "running"
    recall = {"text_to_audio/eng/recall_at_1": 0.5}
    assert trial.add_epoch({"epoch": 1, "seconds/train": 2.0, **recall})
    assert not trial.add_epoch({"epoch": 1, **recall})
    assert not trial.is_finished
    trial.finish({"best_epoch": 1, "test/text_to_audio/eng/recall_at_1": 0.25})
    (found,) = RunFolder.open(place).trials()
    assert found.is_finished
    assert found.describe()["status"] == "finished"
    assert read_json(found.folder / "result.json")["test"] == {"text_to_audio/eng/recall_at_1": 0.25}
    assert [row["epoch"] for row in found.epochs()] == [1]
    with pytest.raises(ValueError, match="a run folder already; continue it with --resume"):
        RunFolder.create(place, Experiment(), {})


@pytest.mark.parametrize(("file", "what"), [("manifest.json", "data set"), ("retriever.json", "retriever")])
def test_a_run_is_not_written_into_something_else(place: str, file: str, what: str) -> None:
    make_folder(locate(place))
    write_text(locate(place) / file, "{}")
    with pytest.raises(ValueError, match=f"holds a {what}"):
        RunFolder.create(place, Experiment(), {})
    assert [name.rpartition("/")[2] for name in names_in(locate(place))] == [file]


def test_a_report_is_written_beside_the_run(place: str) -> None:
    run = RunFolder.create(place, Experiment(), {"name": "test", "varied": ["seed"]})
    trial = run.add_trial({"seed": 1})
    trial.add_epoch({"epoch": 1, "text_to_audio/eng/recall_at_1": 0.5})
    trial.finish({"best_epoch": 1})
    paths = write_report(place, figures=False)
    assert "50.0" in paths.page.read_text()
    assert file_exists(run.path / "report" / "table.csv")
    assert len(read_runs([place]).finished) == 1


def test_a_folder_is_fetched_and_sent(place: str) -> None:
    folder = locate(place)
    with sent(folder) as local:
        (local / "deep").mkdir()
        (local / "deep" / "one.txt").write_text("1")
    with fetched(folder) as local:
        assert (local / "deep" / "one.txt").read_text() == "1"
    assert [found.name for found in entries_in(folder)] == ["deep"]
    assert entries_in(folder / "nothing") == []


def test_what_is_fetched_stays_in_its_folder() -> None:
    read: list[str] = []
    with watched_store(lambda request, path: read.append(path) if request == "read" else None) as folder:
        for name in ("plain", "deep/plain", "../aside", "deep/../../aside", "/tmp/aside", ".hidden"):
            # A store takes any name as it is.
            folder.fs.pipe_file(f"{folder.path}/{name}", b"content")
        with fetched(folder) as local:
            assert files_below(local) == ["deep/plain", "plain"]
        assert sorted(read) == [f"{folder.path}/deep/plain", f"{folder.path}/plain"]


def test_what_says_that_a_folder_is_whole_is_sent_last(tmp_path: Path) -> None:
    written: list[str] = []
    for name in ("b", "manifest", "z"):
        (tmp_path / name).write_text(name)
    with watched_store(lambda request, path: written.append(path) if request == "write" else None) as target:
        put_folder(tmp_path, target, last="manifest")
        assert written == [f"{target.path}/{name}" for name in ("b", "z", "manifest")]


def test_what_vanishes_is_named_and_never_made_anew_from_a_part(place: str) -> None:
    run = RunFolder.create(place, Experiment(), {"name": "test", "varied": ["seed"]})
    trial = run.add_trial({"seed": 1})
    (trial.folder / "trial.json").unlink()
    with pytest.raises(StorageError, match=r"trial\.json: the storage cannot be used"):
        trial.update(status="running")
    assert not file_exists(trial.folder / "trial.json")
    (run.path / "sweep.json").unlink()
    with pytest.raises(ValueError, match=r"not a run folder \(sweep\.json is missing\)"):
        RunFolder.open(place)


def test_storage_that_is_away_is_not_taken_for_a_file_that_is_absent() -> None:
    def refuse(request: str, path: str) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    told = r"result\.json: the storage cannot be used \(Connection refused\)"
    with watched_store(refuse) as place, pytest.raises(StorageError, match=told):
        file_exists(place / "result.json")


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EIO])
@pytest.mark.parametrize("failures", [5, 10**6])
def test_a_store_that_has_answered_is_asked_again_for_a_while(
    failures: int, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """s3fs raises an answer that it does not know, such as XMinioServerNotInitialized, as EIO, with its cause."""
    now, asked = [0.0], [0]

    def away(request: str, path: str) -> None:
        asked[0] += request != "info"
        if request != "info" and asked[0] <= failures:
            raise OSError(number, "Connection timed out") from RuntimeError("of the client's library")

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(locations, "time", clock)
    with watched_store(away) as place:
        with pytest.raises(StorageError, match="Connection timed out"):
            write_json(place / "result.json", {})
        assert asked == [1], "a store that never answered is refused at once"
        assert not file_exists(place / "result.json"), "this one answers"
        if failures == 5:
            write_json(place / "result.json", {"recall": 1})
            assert read_json(place / "result.json") == {"recall": 1}
        else:
            with pytest.raises(StorageError, match="Connection timed out"):
                write_json(place / "result.json", {})
            assert locations.PATIENCE_SECONDS - 10 <= now[0] <= locations.PATIENCE_SECONDS
    assert len(caplog.records) == 1


def test_a_file_of_a_store_is_read_on_where_a_request_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    away = TimeoutError(errno.ETIMEDOUT, "Connection timed out")
    answers: Iterator[OSError | None] = itertools.cycle([away, None])

    def read(file: MemoryFile, size: int = -1) -> bytes:
        if (error := next(answers)) is not None:
            raise error
        return io.BytesIO.read(file, size)

    content = os.urandom(100_000)
    with watched_store(nobody) as place:
        write_bytes(place / "shard", content)
        assert read_bytes(place / "shard") == content
        monkeypatch.setattr(MemoryFile, "read", read, raising=False)
        monkeypatch.setattr(locations, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda seconds: None))
        with opened(place / "shard") as file:
            assert file.read(3) == content[:3]
            file.seek(50_000)
            assert file.read() == content[50_000:]
        closed = PermissionError(errno.EACCES, "Access Denied")
        answers = iter([closed])
        with (
            pytest.raises(StorageError, match=r"shard: the storage cannot be used \(Access Denied\)"),
            opened(place / "shard") as file,
        ):
            file.read()


def test_half_a_file_is_not_sent_to_a_store() -> None:
    def stopped() -> Iterator[bytes]:
        yield b"half"
        raise ZeroDivisionError

    with watched_store(nobody) as place:
        write_bytes(place / "shard", b"old")
        with pytest.raises(ZeroDivisionError), complete_file(place / "shard") as output:
            output.writelines(stopped())
        assert read_bytes(place / "shard") == b"old"


def test_a_local_file_that_cannot_be_written_leaves_the_older_one(tmp_path: Path) -> None:
    write_json(tmp_path / "trial.json", {"status": "running"})
    with pytest.raises(TypeError):
        write_json(tmp_path / "trial.json", {"status": object()})
    assert read_json(tmp_path / "trial.json") == {"status": "running"}
    with pytest.raises(StorageError, match="No such file"), storage_errors(tmp_path):
        write_json(tmp_path / "gone" / "trial.json", {})


def test_a_file_or_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.write_text("old")
    with atomic_folder(folder) as aside:
        (aside / "a").write_text("old")

    def write_half() -> None:
        with atomic_file(file) as output, atomic_folder(folder) as aside:
            output.write(b"half")
            (aside / "a").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert (file.read_text(), (folder / "a").read_text()) == ("old", "old")
    with atomic_file(file, is_synced=True) as output, atomic_folder(folder) as aside:
        output.write(b"new")
        (aside / "b").write_text("new")
    assert (file.read_text(), [path.name for path in folder.iterdir()]) == ("new", ["b"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_the_older_folder_is_removed_once_the_new_one_has_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, is_there = tmp_path / "folder", list[bool]()
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: is_there.append((folder / "a").is_file()))
    for content in ("old", "new"):
        with atomic_folder(folder) as aside:
            (aside / "a").write_text(content)
    assert is_there
    assert all(is_there)


def test_a_folder_is_checked_before_the_work_for_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "new").mkdir()
    for allowed in (tmp_path / "new", tmp_path / "not" / "yet"):
        assert require_new(str(allowed), "out") == allowed
    for refused in (tmp_path, "memory://bucket/x"):
        with pytest.raises(ValueError, match=r"out: got .*; allowed a new or empty folder of this machine"):
            require_new(refused, "out")
    for below in ("file", "file/new"):
        with pytest.raises(NotADirectoryError, match=f"is a file, not a folder: '{tmp_path}/file'"):
            require_new(tmp_path / below, "out")
    # An empty folder that one may write is replaced from beside it, where one may not.
    deny(monkeypatch, tmp_path)
    with pytest.raises(PermissionError, match=f"cannot be written: '{tmp_path}'"):
        require_new(tmp_path / "new", "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "new"]


def test_a_full_disk_is_told_by_the_files_name(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=rf"No space left on device: '{tmp_path}/file'"), atomic_file(tmp_path / "file"):
        # As a write to an open file does: without a name.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_another_kind_is_not_told_as_the_files(tmp_path: Path) -> None:
    with pytest.raises(ConnectionResetError) as reset, atomic_file(tmp_path / "file"):
        raise ConnectionResetError(errno.ECONNRESET, "reset")
    assert reset.value.filename is None


def test_a_full_disk_while_a_folder_is_written_is_told_by_the_final_name(tmp_path: Path) -> None:
    full = errno.ENOSPC, os.strerror(errno.ENOSPC)
    for name in (("audio", "frozen.safetensors"), (), None):
        with pytest.raises(OSError, match="No space left") as error, atomic_folder(tmp_path / "best") as aside:
            raise OSError(*full) if name is None else OSError(*full, str(aside.joinpath(*name)))
        assert error.value.filename == str(tmp_path.joinpath("best", *(name or ())))
    # Another file's error, and one of a connection, say what they are of.
    with pytest.raises(FileNotFoundError) as missing, atomic_folder(tmp_path / "best"):
        (tmp_path / "source").read_bytes()
    assert missing.value.filename == str(tmp_path / "source")
    with pytest.raises(ConnectionResetError) as reset, atomic_folder(tmp_path / "best"):
        raise ConnectionResetError(errno.ECONNRESET, "reset")
    assert reset.value.filename is None


@pytest.mark.parametrize("call", ["replace", "fsync", "open"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_failing_disk_is_told_by_the_final_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, call: str
) -> None:
    """Of a rename Python names the name aside, of a sync no name at all."""
    target = tmp_path / "target"

    def refuse_disk(*places: object, **options: object) -> None:
        names = [str(place) for place in places if isinstance(place, str | Path)]
        names = names if len(names) < 2 else [names[0], None, names[1]]  # type: ignore[list-item]
        raise OSError(errno.EIO, os.strerror(errno.EIO), *names)

    def break_disk() -> None:
        monkeypatch.setattr(f"os.{call}", refuse_disk)

    def write() -> None:
        if kind == "file":
            with atomic_file(target, is_synced=True) as output:
                output.write(b"new")
                break_disk()
        else:
            with new_folder(target, is_synced=True) as aside:
                (aside / "b").write_text("new")
                break_disk()

    with pytest.raises(OSError, match="Input/output error") as error:
        write()
    assert Path(str(error.value.filename)) in (target, target / "b", target.parent)
    assert (error.value.errno, error.value.filename2) == (errno.EIO, None)


@pytest.mark.parametrize("writer", [atomic_file, new_folder, files_aside])
def test_what_cannot_be_made_aside_is_told_by_the_final_name(
    tmp_path: Path, writer: Callable[[Path], AbstractContextManager[object]]
) -> None:
    """As on a disk that is mounted to be read only; here the longest name has no room for more. A name aside tells nothing."""
    target = tmp_path / ("x" * 255)
    with pytest.raises(OSError, match="File name too long") as error, writer(target):
        pass
    assert error.value.filename == str(target)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["checkpoint", "weights", "linked weights", "tokeniser"])
def test_a_full_disk_is_told_by_the_files_name_also_by_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    tensors = {"weights": torch.rand(100_000), "more": torch.rand(1000)}
    words = Tokenizer(models.WordLevel({f"word{number}": number for number in range(10_000)}, unk_token="word0"))
    writes: dict[str, Callable[[], object]] = {
        "checkpoint": lambda: save_checkpoint(tmp_path, tensors),
        "weights": lambda: write_weights(tmp_path / "model.safetensors", tensors),
        "linked weights": lambda: link_weights(whole, tmp_path / "model.safetensors"),
        "tokeniser": lambda: SmallTransformerTower.save(SimpleNamespace(tokenizer=words), tmp_path),
    }
    whole = tmp_path / "another disk" / "model.safetensors"
    whole.parent.mkdir()
    write_weights(whole, tensors)
    monkeypatch.setattr("os.link", Mock(side_effect=OSError(errno.EXDEV, "Invalid cross-device link")))
    raised: list[object] = []

    def write_to_a_full_disk() -> list[object]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        try:
            writes[kind]()
        except OSError as error:
            return [error.errno, Path(error.filename).parent]
        return []

    assert in_fork(write_to_a_full_disk, raised) == 0
    assert raised == [errno.EFBIG, tmp_path]


def test_a_disk_that_is_full_before_a_file_is_sent_to_a_store_is_named() -> None:
    raised: list[object] = []

    def write_to_a_full_disk() -> list[object]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        with watched_store(nobody) as place, pytest.raises(OSError, match="File too large") as error:
            write_bytes(place / "shard", bytes(100_000))
        return [error.value.errno, Path(error.value.filename).parent]

    assert in_fork(write_to_a_full_disk, raised) == 0
    assert raised == [errno.EFBIG, Path(tempfile.gettempdir())]


def test_a_disk_that_is_full_while_a_file_is_fetched_is_named_at_once() -> None:
    """Not the store, which was asked again for two minutes."""
    raised: list[object] = []

    def fetch_to_a_full_disk() -> list[object]:
        with watched_store(nobody) as place, tempfile.TemporaryDirectory() as folder:
            write_bytes(place / "shard", bytes(100_000))
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
            started = time.monotonic()
            with pytest.raises(OSError, match="File too large") as error:
                get(place / "shard", Path(folder, "shard"))
            return [
                error.value.errno,
                Path(error.value.filename) == Path(folder, "shard"),
                time.monotonic() - started < 5,
            ]

    assert in_fork(fetch_to_a_full_disk, raised) == 0
    assert raised == [errno.EFBIG, True, True]


def test_a_share_that_refuses_to_change_modes_and_times_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of NFS or SMB, where new files belong to another user than the one who made them."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    for name in ("chmod", "fchmod", "utime", "setxattr"):
        monkeypatch.setattr(os, name, refused)
    (tmp_path / "a").mkdir()
    write_text(tmp_path / "a" / "error.txt", "private", is_private=True)
    write_weights(tmp_path / "a" / "weights.safetensors", {"bias": torch.zeros(2)})
    put_folder(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "error.txt").stat().st_mode & 0o777 == 0o600
    assert files_below(tmp_path / "b") == ["error.txt", "weights.safetensors"]


def test_a_disk_that_is_full_while_a_folder_is_copied_is_named(tmp_path: Path) -> None:
    """`shutil.copytree` raises a list of triples, which was printed as it is."""
    told = [("a", "b", "[Errno 28] No space left on device: 'a' -> 'b'")]
    with pytest.raises(OSError, match="No space left") as error, disk_errors(tmp_path / "export"):
        raise shutil.Error(told)
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(tmp_path / "export"))


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_ctrl_c_in_the_middle_of_torchs_writing_is_one(number: int) -> None:
    """torch ends such a file while it handles the KeyboardInterrupt, which fails with a RuntimeError about positions."""
    written, calls = io.BytesIO(), itertools.count()

    def write(content: bytes) -> int:
        if next(calls) == number:
            raise KeyboardInterrupt
        return written.write(content)

    with pytest.raises(KeyboardInterrupt), disk_errors(Path("state.pt")):
        torch.save({"weight": torch.zeros(1000)}, SimpleNamespace(write=write, flush=lambda: None))
    assert next(calls) > number
