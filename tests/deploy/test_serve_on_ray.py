"""Under Ray Serve the one app answers as it does alone, also when the index is in shards, and nothing listens beyond loopback."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from ray.exceptions import RayActorError, RayTaskError
from starlette.testclient import TestClient

from ray_atr.deploy.index.build import build_index, update_index
from ray_atr.deploy.index.opened import Index
from ray_atr.deploy.index.shards import ShardedIndex, open_shards
from ray_atr.deploy.serve.app import create_app
from ray_atr.deploy.serve.limits import ServerLimits
from tests.support.archives import make_tones, save_retriever
from tests.support.calls import call
from tests.support.tiny import tone

pytest.importorskip("grpc_reflection", reason="the extra serve is not installed")
SHARDS, TEXTS = 3, ("a low tone", "un son aigu", "a high tone", "un son grave")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of a folder, and one of each third of it."""
    folder = tmp_path_factory.mktemp("on-ray")
    save_retriever(folder / "model")
    make_tones(folder / "audio", count=9)
    for name, part in (("whole", ""), *((f"part-{number}", f"{number}/{SHARDS}") for number in range(1, SHARDS + 1))):
        build_index(str(folder / "model"), str(folder / "audio"), str(folder / name), part=part)
    return folder


def parts(place: Path) -> list[str]:
    return [str(place / f"part-{number}") for number in range(1, SHARDS + 1)]


def answers(index: Any) -> list[list[tuple[str, float]]]:
    return [[(one.path, one.start) for one in found] for found in index.search_many(TEXTS, top=7)]


def test_shards_together_answer_as_the_one_index_does(place: Path, tmp_path: Path) -> None:
    whole, shards = Index.open(place / "whole"), open_shards(parts(place))
    sizes = [len(Index.open(part)) for part in parts(place)]
    assert min(sizes) > 0
    assert sum(sizes) == len(shards) == len(whole)
    assert answers(shards) == answers(whole)
    near = [(one.path, one.start) for one in whole.like_window("tone 5.wav", 0.3, top=4)]
    assert [(one.path, one.start) for one in shards.like_window("tone 5.wav", 0.3, top=4)] == near
    assert shards.sound("tone 5.wav") == (place / "audio" / "tone 5.wav").read_bytes()
    with pytest.raises(ValueError, match="a sound of the index"):
        shards.sound("absent.wav")
    twice = Index.open(parts(place)[0]).search(TEXTS[0], top=1)[0].path
    with pytest.raises(ValueError, match="that one shard alone has"):
        open_shards([str(place / "whole"), parts(place)[0]]).sound(twice)
    for again in ("whole", "part-1/../whole", "whole/"):
        with pytest.raises(ValueError, match=f"got '{place}/{again}'; allowed each index once"):
            open_shards([str(place / "whole"), f"{place}/{again}"])
    save_retriever(tmp_path / "other", seed=1)
    build_index(str(tmp_path / "other"), str(place / "audio"), str(tmp_path / "index"))
    with pytest.raises(ValueError, match="an index of the model of"):
        open_shards([str(place / "whole"), str(tmp_path / "index")])


def test_a_shard_that_was_replaced_by_one_of_another_model_is_not_searched(place: Path, tmp_path: Path) -> None:
    from ray_atr.deploy.serve.on_ray import RemoteShard, ShardReplica

    class Called:
        """What Serve's handle of the replica is."""

        def remote(self, *given: Any) -> Any:
            return SimpleNamespace(result=lambda timeout_s: asyncio.run(replica.answer(*given)))

    folder = shutil.copytree(parts(place)[0], tmp_path / "index")
    model = Index.open(folder).manifest.model
    shard, query = RemoteShard(SimpleNamespace(answer=Called()), model), np.ones((1, 16), np.float32)
    replica = ShardReplica(str(folder), None)
    assert shard.ask(Index.matches, query, 1) == Index.open(folder).matches(query, 1)
    save_retriever(tmp_path / "other", seed=1)
    shutil.rmtree(folder)
    build_index(str(tmp_path / "other"), str(place / "audio"), str(folder))
    assert shard.ask(Index.matches, query, 1)
    replica = ShardReplica(str(folder), None)  # as Serve starts one after a crash
    with pytest.raises(
        ValueError, match=f"index: got '{folder}'; allowed an index of the model that the server began with"
    ):
        shard.ask(Index.matches, query, 1)


@pytest.mark.parametrize("lost", [TimeoutError(), RayActorError()], ids=["late", "dead"])
def test_a_shard_that_does_not_answer_is_said_to_be_away_and_not_an_error(place: Path, lost: Exception) -> None:
    from ray_atr.deploy.serve.on_ray import RemoteShard

    limits = list[float]()

    class Called:
        def remote(self, *_: Any) -> Any:
            def result(timeout_s: float) -> Any:
                limits.append(timeout_s)
                raise lost

            return SimpleNamespace(result=result)

    manifest = Index.open(parts(place)[0]).manifest
    index = ShardedIndex([RemoteShard(SimpleNamespace(answer=Called()), manifest.model)] * 2, manifest)
    with TestClient(create_app(index), base_url="http://localhost") as client:
        for path in ("/health", f"/search?text={TEXTS[0]}&language=eng"):
            answer = client.get(path)
            assert (answer.status_code, answer.headers.get("Retry-After")) == (503, "1"), answer.text
            assert answer.json()["error"].startswith("index: a part of it does not answer")
    # Health is asked for often, and must not hold the threads that answer others.
    assert limits[0] <= 5
    # An error within a shard is an error.
    lost = RayTaskError("answer", "its traceback", TypeError("a mistake of ours")).as_instanceof_cause()
    with pytest.raises(TypeError, match="its traceback"):
        index.sizes()


@pytest.fixture
def served(place: Path, request: pytest.FixtureRequest, ray_session: object) -> Iterator[int]:
    """The port of a server under Ray Serve, of the whole index or of the shards."""
    from ray import serve

    from ray_atr.deploy.serve.on_ray import RayServer, start_serving

    port = free_port()
    indexes = parts(place) if request.param else [str(place / "whole")]
    limits = ServerLimits(most_waiting=64)
    try:
        start_serving(RayServer(indexes=indexes, port=port, limits=limits, cpus=0.1))
        yield port
    finally:
        serve.shutdown()


@pytest.mark.ray
@pytest.mark.parametrize("served", [False, True], indirect=True, ids=["one index", "three shards"])
def test_it_answers_what_the_index_answers(place: Path, served: int) -> None:
    whole, found = Index.open(place / "whole"), dict[str, Any]()

    def ask(text: str) -> None:
        found[text] = call(served, "GET", "/search", text=text, top=7)

    threads = [
        threading.Thread(target=ask, args=(f"{text}{' again' * number}",)) for text in TEXTS for number in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for text, (status, answer) in found.items():
        assert status == 200, answer
        assert [one["path"] for one in answer["matches"]] == [one.path for one in whole.search(text, top=7)]
    assert call(served, "GET", "/health")[1]["windows"] == len(whole)
    status, answer = call(served, "POST", "/similar", body=tone(2, 2), top=1)
    assert (status, answer["matches"][0]["path"]) == (200, "tone 2.wav")
    assert call(served, "GET", "/audio", path="tone 7.wav")[0] == 200
    assert call(served, "GET", "/similar", path="absent.wav") == (
        400,
        {"error": "path: got 'absent.wav'; allowed a sound of the index"},
    )
    assert call(served, "GET", "/search", headers={"Host": "evil.example"}, text="x")[0] == 400
    listening = {
        one.laddr.ip
        for one in psutil.net_connections("tcp")
        if one.laddr and one.laddr.port == served and one.status == "LISTEN"
    }
    assert listening == {"127.0.0.1"}
    count = len(list((place / "audio").iterdir()))
    (place / "audio" / f"added {count}.wav").write_bytes(tone(1, count))
    for index in (place / "whole", *map(Path, parts(place))):
        update_index(str(index))
    end = time.monotonic() + 30
    while call(served, "GET", "/health")[1]["sounds"] != count + 1:
        assert time.monotonic() < end, "the update is not answered from"
        time.sleep(0.1)


@pytest.mark.ray
def test_the_address_is_always_said_and_a_cluster_that_serves_already_is_refused(
    place: Path, ray_session: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray import serve

    from ray_atr.deploy.serve.on_ray import RayServer, start_serving

    class StartedError(Exception):
        """Serve would start."""

    def started(**options: Any) -> None:
        raise StartedError(options["http_options"])

    server = RayServer(indexes=[str(place / "whole")])
    with monkeypatch.context() as changed:
        changed.setattr(serve, "start", started)
        with pytest.raises(StartedError, match=r"'host': '127\.0\.0\.1'"):
            start_serving(server)
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": free_port()})
    try:
        with pytest.raises(ValueError, match="runs already"):
            start_serving(server)
    finally:
        serve.shutdown()


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("start", RuntimeError("the port is taken")),
        ("run", RuntimeError("no replica starts")),
        ("run", KeyboardInterrupt()),
    ],
)
def test_a_start_that_fails_leaves_no_serve_on_the_cluster(
    place: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    import ray
    from ray import serve

    from ray_atr.deploy.serve import on_ray

    called = list[str]()

    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(on_ray, "start_ray", lambda num_cpus: called.append("ray"))
    monkeypatch.setattr(ray, "cluster_resources", dict)
    monkeypatch.setattr(serve, "status", lambda: SimpleNamespace(proxies={}, applications={}))
    monkeypatch.setattr(serve, "start", lambda **_: called.append("start"))
    monkeypatch.setattr(serve, step, failing)
    monkeypatch.setattr(serve, "shutdown", lambda: called.append("shutdown"))
    with pytest.raises(type(error)):
        on_ray.start_serving(on_ray.RayServer(indexes=[str(place / "whole")]))
    assert called == ["ray", *(["start"] if step == "run" else []), "shutdown"]


def test_replicas_are_given_absolute_names(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray_atr.deploy.serve.on_ray import RayServer

    monkeypatch.chdir(place)
    located = RayServer(indexes=["whole", "s3://bucket/index"], checkpoint="run", audio="audio").located()
    assert located.indexes == [str(place / "whole"), "s3://bucket/index"]
    assert (located.checkpoint, located.audio) == (str(place / "run"), str(place / "audio"))
    assert RayServer(indexes=["whole"]).located().checkpoint is None


def test_a_mistake_that_keeps_a_replica_from_starting_is_told_with_its_node() -> None:
    from ray_atr.deploy.serve.on_ray import mistake_of_replica

    message = (
        "The deployment failed to start 3 times in a row. See controller logs for details. Error:\n"
        "ray::ServeReplica:ray_atr:shard-0.initialize_and_get_metadata() (pid=14200, ip=10.77.0.2, actor_id=5a)\n"
        "ValueError: index: got '/own/index'; allowed a folder with an index.json"
    )
    failed = SimpleNamespace(
        deployments={"app": SimpleNamespace(message=""), "shard-0": SimpleNamespace(message=message)}
    )
    told = mistake_of_replica(SimpleNamespace(applications={"ray_atr": failed}))
    assert told == "index: got '/own/index'; allowed a folder with an index.json (on the node 10.77.0.2)"
    damaged = SimpleNamespace(message="ray_atr.common.digests.DamagedFileError: 1/windows.arrow: damaged")
    of_damaged = SimpleNamespace(applications={"ray_atr": SimpleNamespace(deployments={"app": damaged})})
    assert mistake_of_replica(of_damaged) == "1/windows.arrow: damaged"
    failed = SimpleNamespace(deployments={"app": SimpleNamespace(message="TypeError: a mistake of ours")})
    assert not mistake_of_replica(SimpleNamespace(applications={"ray_atr": failed}))


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
