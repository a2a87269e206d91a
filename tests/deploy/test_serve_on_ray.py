"""Under Ray Serve the server answers as it does alone."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path

import pytest
from archives import make_tones, save_retriever

from ray_atr.deploy.index import Index, build_index
from ray_atr.deploy.serve.limits import ServerLimits

pytest.importorskip("grpc_reflection", reason="the extra serve is not installed")


@pytest.mark.ray
@pytest.mark.slow
def test_it_answers_what_the_index_answers(tmp_path: Path, ray_session: object) -> None:
    from ray import serve

    from ray_atr.deploy.serve.on_ray import serve_on_ray

    save_retriever(tmp_path / "model")
    make_tones(tmp_path / "audio")
    place = str(tmp_path / "index")
    build_index(str(tmp_path / "model"), str(tmp_path / "audio"), place)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    hosts = ("127.0.0.1", "localhost")
    try:
        serve_on_ray(place, {}, "127.0.0.1", port, 1, None, hosts, ServerLimits(), is_waiting=False)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("GET", "/search?text=a%20low%20tone&top=3")
        answer = connection.getresponse()
        found = json.loads(answer.read())
        assert answer.status == 200, found
        expected = Index.open(place).search("a low tone", top=3)
        assert [one["path"] for one in found["matches"]] == [one.path for one in expected]
        connection.request("GET", "/search?text=")
        answer = connection.getresponse()
        assert (answer.status, list(json.loads(answer.read()))) == (400, ["error"])
    finally:
        serve.shutdown()
