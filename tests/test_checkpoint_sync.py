"""A trial's checkpoints in a store: whole or the one before, whichever node asks."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_atr.common.storage import Location, StorageError, entries_in, locate
from ray_atr.common.transfer import CheckpointSync, on_this_node
from tests.support.stores import watched_store


@pytest.fixture
def remote() -> Iterator[Location]:
    place = locate(f"memory://{uuid.uuid4().hex}/runs/x/trials/t")
    yield place
    place.fs.rm("/" + place.parts[1], recursive=True)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_another_node_gets_the_last_checkpoint(remote: Any, tmp_path: Path) -> None:
    here, there = CheckpointSync(tmp_path / "here", remote), CheckpointSync(tmp_path / "there", remote)
    there.fetch()
    assert not (tmp_path / "there").exists()
    write(here.local, {"last/state": "one", "best/weights": "w", "last/.state": "being written"})
    here.put()
    write(here.local, {"last/state": "two"})
    here.put()
    there.fetch("last/")
    assert (there.local / "last/state").read_text() == "two"
    assert not (there.local / "best").exists()
    there.fetch()
    assert (there.local / "best/weights").read_text() == "w"
    assert not (there.local / "last/.state").exists()
    assert len(entries_in(remote / "objects")) == 2, "the older checkpoint's object should be gone"


def test_a_stop_in_mid_copy_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    written: list[str] = []

    def stop_at_the_fifth(request: str, path: str) -> None:
        """The second of the second checkpoint: each has two objects, then the list of them."""
        written.extend([path] if request == "write" else [])
        if len(written) == 5:
            raise KeyboardInterrupt

    with watched_store(stop_at_the_fifth) as remote:
        here = CheckpointSync(tmp_path / "here", remote)
        write(here.local, {"last/state": "one", "best/weights": "w1"})
        here.put()
        assert written[2:] == [f"{remote.path}/checkpoint.json"]
        write(here.local, {"last/state": "two", "best/weights": "w2"})
        with pytest.raises(KeyboardInterrupt):
            here.put()
        written.clear()
        there = CheckpointSync(tmp_path / "there", remote)
        there.fetch()
    assert (there.local / "last/state").read_text() == "one"
    assert (there.local / "best/weights").read_text() == "w1"


def test_a_file_that_is_gone_or_changed_is_never_taken_for_whole(remote: Any, tmp_path: Path) -> None:
    here = CheckpointSync(tmp_path / "here", remote)
    write(here.local, {"last/state": "one"})
    here.put()
    (stored,) = entries_in(remote / "objects")
    stored.write_text("on")
    with pytest.raises(StorageError, match=r"not the file that checkpoint\.json names as last/state"):
        CheckpointSync(tmp_path / "there", remote).fetch()
    stored.unlink()
    with pytest.raises(StorageError, match="the storage cannot be used"):
        CheckpointSync(tmp_path / "there", remote).fetch()


@pytest.mark.parametrize("name", ["../state", "/tmp/state", "last//state", "last/.state"])
def test_a_name_from_a_store_stays_in_the_folder(remote: Any, tmp_path: Path, name: str) -> None:
    here = CheckpointSync(tmp_path / "here", remote)
    write(here.local, {"last/state": "one"})
    here.put()
    listed = (remote / "checkpoint.json").read_text()
    (remote / "checkpoint.json").write_text(listed.replace("last/state", name))
    with pytest.raises(ValueError, match=r"checkpoint\.json: files: got .*; allowed a name without /"):
        CheckpointSync(tmp_path / "there", remote).fetch()
    assert not (tmp_path / "there").exists()


def test_every_worker_has_the_best_retriever_and_readers_find_it_by_name(remote: Any, tmp_path: Path) -> None:
    first, second = CheckpointSync(tmp_path / "first", remote), CheckpointSync(tmp_path / "second", remote)
    write(first.local, {"last/state": "one", "best/text/tokenizer.json": "t"})
    first.put()
    first.share("best", is_first=True)
    second.share("best", is_first=False)
    assert (second.local / "best/text/tokenizer.json").read_text() == "t"
    assert not (second.local / "last").exists()
    assert (remote / "best/text/tokenizer.json").read_text() == "t"


def test_a_local_folder_needs_no_mirror(tmp_path: Path) -> None:
    with on_this_node(tmp_path) as (folder, sync):
        assert (folder, sync) == (tmp_path, None)
