"""A server's index is that of the last update, and none that is damaged or of another model."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ray_atr.common.caches import list_caches
from ray_atr.common.storage import locate
from ray_atr.common.transfer import put_folder
from ray_atr.deploy.index.build import build_index, update_index
from ray_atr.deploy.index.current import CurrentIndex, open_current
from ray_atr.deploy.index.layout import INDEX_FILE
from ray_atr.deploy.index.opened import Index
from tests.support.archives import make_tones, save_retriever
from tests.support.tiny import tone


@pytest.fixture
def place(tmp_path: Path) -> Path:
    save_retriever(tmp_path / "model")
    make_tones(tmp_path / "audio")
    build_index(str(tmp_path / "model"), str(tmp_path / "audio"), str(tmp_path / "index"))
    return tmp_path


@pytest.fixture
def current(place: Path) -> Iterator[CurrentIndex]:
    shard = CurrentIndex(str(place / "index"), pause=0.01)
    yield shard
    shard.close()


def wait_until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_update_is_answered_from(place: Path, current: CurrentIndex) -> None:
    (place / "audio" / "tone 0.wav").unlink()
    (place / "audio" / "new.wav").write_bytes(tone(2, 9))
    update_index(str(place / "index"))
    wait_until(lambda: current.index.has("new.wav"))
    index = Index.open(place / "index")
    query = index.window("new.wav", 0.0)[None]
    assert current.index.matches(query, 4) == index.matches(query, 4)
    assert current.index.sizes() == index.sizes()
    assert not current.index.has("tone 0.wav")
    assert current.index.sound("new.wav") == (place / "audio" / "new.wav").read_bytes()


def test_a_link_that_names_another_index_is_followed(place: Path) -> None:
    (place / "current").symlink_to("index")
    shard = CurrentIndex(str(place / "current"), pause=0.01)
    try:
        build_index(str(place / "model"), str(make_tones(place / "more", count=6)), str(place / "newer"))
        (place / "new link").symlink_to("newer")
        (place / "new link").replace(place / "current")
        wait_until(lambda: shard.index.has("tone 5.wav"))
    finally:
        shard.close()


def test_an_index_of_another_model_that_comes_as_it_is_opened_changes_no_answer(
    place: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = CurrentIndex(str(place / "index"), pause=60)
    save_retriever(place / "other", seed=1)
    build_index(str(place / "other"), str(place / "audio"), str(place / "another"))
    make_tones(place / "audio", count=6)
    update_index(str(place / "index"))
    original = Index.open

    def after_replacement(*given: Any, **options: Any) -> Index:
        shutil.rmtree(place / "index")
        (place / "another").rename(place / "index")
        return original(*given, **options)

    monkeypatch.setattr(Index, "open", after_replacement)
    with pytest.raises(ValueError, match="the model that the server began with"):
        shard._renew()
    assert shard.index.sizes()[1] == 4
    shard.close()


def test_a_server_does_not_start_with_an_index_of_another_model_that_came_while_it_opened_the_first(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_retriever(place / "other", seed=1)
    places = [str(place / "index"), str(place / "second")]
    build_index(str(place / "model"), str(make_tones(place / "more", 1)), places[1])
    build_index(str(place / "other"), str(place / "more"), str(place / "another"))
    original = Index.open

    def after_replacement(*given: Any, **options: Any) -> Index:
        monkeypatch.undo()
        shutil.rmtree(places[1])
        (place / "another").rename(places[1])
        return original(*given, **options)

    monkeypatch.setattr(Index, "open", after_replacement)
    with (
        pytest.raises(ValueError, match=f"INDEX: got '{places[1]}'; allowed an index of the model of"),
        open_current(places),
    ):
        pass


def test_what_cannot_be_opened_changes_no_answer(
    place: Path, current: CurrentIndex, caplog: pytest.LogCaptureFixture
) -> None:
    """Another model's index, then none, then a damaged one; and in the end a whole one."""
    kept, state = current.index.sizes(), place / "index" / "1"
    save_retriever(place / "other", seed=1)
    build_index(str(place / "other"), str(make_tones(place / "more", count=6)), str(place / "another"))
    with caplog.at_level(logging.WARNING):
        (place / "another" / INDEX_FILE).replace(place / "index" / INDEX_FILE)
        wait_until(lambda: "the model that the server began with" in caplog.text)
        (place / "index" / INDEX_FILE).unlink()
        wait_until(lambda: "a folder with an index.json" in caplog.text)
        shutil.rmtree(place / "index")
        build_index(str(place / "model"), str(place / "more"), str(place / "whole"))
        shutil.copytree(place / "whole", place / "damaged", ignore=shutil.ignore_patterns("windows.arrow"))
        (place / "damaged").rename(place / "index")
        wait_until(lambda: str(state / "windows.arrow") in caplog.text)
        time.sleep(0.2)
        assert current.index.sizes() == kept
        assert len(caplog.records) == 3, "each reason is said once"
        shutil.copy(place / "whole" / "1" / "windows.arrow", state)
        wait_until(lambda: current.index.sizes() == Index.open(place / "whole").sizes() != kept)


def test_a_state_that_is_back_may_be_lost_again(
    place: Path, current: CurrentIndex, caplog: pytest.LogCaptureFixture
) -> None:
    manifest, away, opened = place / "index" / INDEX_FILE, place / "away", current.index
    for _ in range(2):
        manifest.rename(away)
        wait_until(lambda: "a folder with an index.json" in caplog.text)
        away.rename(manifest)
        wait_until(lambda: not current._told)
        caplog.clear()
    assert current.index is opened


def test_an_update_at_a_url_leaves_one_copy_of_the_index(place: Path, own_home: Path) -> None:
    store = locate(f"memory://{place.name}/index")
    put_folder(place / "index", store, last=INDEX_FILE)
    with open_current([str(store)], pause=0.01) as index:
        (place / "audio" / "new.wav").write_bytes(tone(2, 9))
        update_index(str(place / "index"))
        put_folder(place / "index", store, last=INDEX_FILE)
        wait_until(lambda: index.sizes()[1] == 5)
        assert len(index.search("a low tone", top=3)) == 3
        wait_until(lambda: len(list_caches(own_home)) == 1)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_questions_meanwhile_are_answered(place: Path, count: int) -> None:
    """By one index and by two, one of which is updated again and again."""
    (make_tones(place / "more", count=1) / "tone 0.wav").rename(place / "more" / "other.wav")
    build_index(str(place / "model"), str(place / "more"), str(place / "second"))
    places, ended = [place / "index", place / "second"][:count], threading.Event()

    def ask() -> int:
        asked = 0
        while not ended.is_set():
            assert len(index.search("a low tone", top=3)) == 3
            assert len(index.like_window("tone 1.wav", top=1)) == 1
            asked += 1
        return asked

    with open_current(list(map(str, places)), pause=0.0) as index, ThreadPoolExecutor() as threads:
        clients = [threads.submit(ask) for _ in range(2)]
        for number in range(2):
            (place / "audio" / f"added {number}.wav").write_bytes(tone(number, 20 + number))
            update_index(str(place / "index"))
        wait_until(lambda: index.sizes()[1] == 6 + count - 1)
        ended.set()
        assert all(client.result() for client in clients)
