"""The server answers what the index answers, refuses in one form, loses no client, and has a page that works by keyboard."""

from __future__ import annotations

import asyncio
import http.client
import io
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile

from ray_atr.cli import main
from ray_atr.cli.serve import is_loopback, listening, required_token
from ray_atr.deploy.index.build import build_index
from ray_atr.deploy.index.opened import Index
from ray_atr.metrics.calibration import Calibration
from tests.support.archives import make_tones, save_retriever
from tests.support.browser import CHROMIUM, opened
from tests.support.calls import call
from tests.support.tiny import tone

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("starlette", reason="the extra serve is not installed")

from starlette.testclient import TestClient

from ray_atr.deploy.serve import connections
from ray_atr.deploy.serve.app import _Question, _Served, create_app
from ray_atr.deploy.serve.batching import Batcher
from ray_atr.deploy.serve.connections import server_of
from ray_atr.deploy.serve.limits import ServerLimits
from tests.support.commands import replace_work

TOKEN = "a secret of the tests"
HOSTILE = "<img src=x onerror=window.hacked=1>.wav"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("served")
    retriever = save_retriever(folder / "model", seed=1)  # by which ten hits are of all five files
    retriever.languages = ("eng", "fra")
    retriever.save_pretrained(folder / "model")
    make_tones(folder / "audio")
    (folder / "audio" / HOSTILE.replace("/", "")).write_bytes(tone(1, 9))
    (folder / "secret.wav").write_bytes(tone(1, 10))
    build_index(str(folder / "model"), str(folder / "audio"), str(folder / "index"))
    return Index.open(folder / "index")


@contextmanager
def serving(index: Index, **options: Any) -> Iterator[int]:
    """The port of a running server."""
    server = server_of(create_app(index, **options))
    with listening("127.0.0.1", 0) as opened_socket:
        thread = threading.Thread(target=server.run, args=([opened_socket],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield opened_socket.getsockname()[1]
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def port(index: Index) -> Iterator[int]:
    limits = ServerLimits(most_megabytes=0.1, most_seconds=2.0, heard_seconds=0.2)
    with serving(index, limits=limits) as found:
        yield found


def test_it_answers_what_the_index_answers(index: Index, port: int) -> None:
    status, found = call(port, "GET", "/search", text="un son aigu", top=3)
    assert status == 200
    assert [one["path"] for one in found["matches"]] == [one.path for one in index.search("un son aigu", top=3)]
    status, found = call(port, "POST", "/similar", body=tone(2, 2), top=1)
    assert (status, found["matches"][0]["path"]) == (200, "tone 2.wav")
    status, found = call(port, "GET", "/similar", path="tone 1.wav", start=0.3, top=1)
    assert (found["matches"][0]["path"], found["matches"][0]["start"]) == ("tone 1.wav", 0.25)
    status, found = call(port, "POST", "/tag", body=tone(2, 2), label=["a low tone", "a high tone"])
    assert status == 200
    assert {one["label"] for one in found["tags"]} == {"a low tone", "a high tone"}
    assert found["tags"][0]["score"] >= found["tags"][1]["score"]
    status, content = call(port, "GET", "/audio", path="tone 1.wav", start=0.25)
    samples, rate = soundfile.read(io.BytesIO(content))
    whole, _ = soundfile.read(io.BytesIO(index.sound("tone 1.wav")))
    # At most `heard_seconds` of it.
    assert np.allclose(samples, whole[int(0.25 * rate) : int(0.45 * rate)], atol=1e-4)
    assert call(port, "GET", "/health")[1]["windows"] == len(index)
    described = call(port, "GET", "/openapi.json")[1]
    assert set(described["paths"]) == {"/search", "/similar", "/tag", "/audio", "/health"}


def test_a_part_of_a_sound_is_sent_where_one_is_asked_for(port: int) -> None:
    def ask(**headers: str) -> tuple[int, str | None, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", "/audio?path=tone%201.wav", headers=named)
        answer = connection.getresponse()
        assert answer.headers["Accept-Ranges"] == "bytes"
        return answer.status, answer.headers["Content-Range"], answer.read()

    status, place, whole = ask()
    size = len(whole)
    assert (status, place) == (200, None)
    parts = {
        "bytes=0-3": (0, 3), "bytes=4-": (4, size - 1), "bytes=-5": (size - 5, size - 1), "Bytes = 2 - 2": (2, 2),
        f"bytes=10-{size + 99}": (10, size - 1), f"bytes=-{2 * size}": (0, size - 1),
    }  # fmt: skip
    for asked, (first, last) in parts.items():
        assert ask(Range=asked) == (206, f"bytes {first}-{last}/{size}", whole[first : last + 1])
    # Several, none, of another kind, from the end backwards, or of another state of the sound: all is sent.
    for asked in ("bytes=0-1,4-5", "bytes=-", "bytes=a-b", "lines=0-1", "bytes=5-2", "bytes"):
        assert ask(Range=asked) == (200, None, whole)
    assert ask(Range="bytes=0-1", If_Range='"old"') == (200, None, whole)
    for asked in (f"bytes={size}-", "bytes=-0"):
        status, place, said = ask(Range=asked)
        assert (status, place) == (416, f"bytes */{size}")
        assert b"Range: got" in said


def test_a_language_that_the_model_did_not_learn_is_said_in_the_answer(port: int) -> None:
    warning = "no captions in swe in training, which had eng, fra: the vectors may mean little"
    asks: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "/search", {"text": "en hund"}),
        ("POST", "/tag", {"label": "en hund", "body": tone(2, 2)}),
    ]
    for method, path, given in asks:
        assert call(port, method, path, **given, language="sv")[1]["warning"] == warning
        assert "warning" not in call(port, method, path, **given, language="fra")[1]
        assert "warning" not in call(port, method, path, **given)[1]


@pytest.mark.parametrize(
    ("method", "path", "parameters", "body", "status", "message"),
    [
        ("GET", "/search", {}, None, 400, "text: got ''"),
        ("GET", "/search", {"text": "x" * 2001}, None, 400, "at most 2,000 characters"),
        ("GET", "/search", {"text": "x", "top": "0"}, None, 400, "top: got 0; allowed 1 to 1,000"),
        ("GET", "/search", {"text": "x", "top": "ten"}, None, 400, "an integer"),
        ("GET", "/search", {"text": "x", "at_least": "nan"}, None, 400, "at_least: got nan; allowed a prob"),
        ("GET", "/search", {"text": "x", "at_least": "0.5"}, None, 400, "calibrate"),
        ("GET", "/search", {"text": "x", "or_nothing": "1"}, None, 400, "calibrate"),
        ("GET", "/search", {"text": "x", "or_nothing": "2"}, None, 400, "or_nothing: got '2'; allowed 0 or 1"),
        ("GET", "/audio", {"path": "tone 1.wav", "start": "1e308"}, None, 400, "start: got"),
        ("GET", "/search", {"text": "x", "language": "klingonish"}, None, 400, "language: got"),
        ("GET", "/search", {"text": "x", "tpo": "1"}, None, 400, "parameter: got 'tpo'"),
        ("GET", "/search", {"text": ["x", "y"]}, None, 400, "one value"),
        ("GET", "/audio", {"path": "../secret.wav"}, None, 400, "a sound of the index"),
        ("GET", "/audio", {"path": "/etc/passwd"}, None, 400, "a sound of the index"),
        ("GET", "/audio", {"path": "tone 1.wav\0"}, None, 400, "a sound of the index"),
        ("GET", "/audio", {"path": "tone 1.wav", "start": "-1"}, None, 400, "start: got"),
        ("GET", "/similar", {"path": "absent.wav"}, None, 400, "a sound of the index"),
        ("GET", "/similar", {"path": "tone 1.wav", "start": "-1"}, None, 400, "start: got -1.0; allowed a second"),
        ("GET", "/similar", {"path": "tone 1.wav", "start": "1e308"}, None, 400, "start: got"),
        ("POST", "/similar", {}, b"no sound", 400, "not audio"),
        ("POST", "/similar", {}, b"", 400, "not audio"),
        ("POST", "/similar", {}, tone(1, 1, 2.5), 400, "at most 2 s"),
        ("POST", "/similar", {}, b"\0" * 200_000, 413, "at most 0.1 MB"),
        ("POST", "/tag", {}, tone(1, 1), 400, "label"),
        ("POST", "/search", {"text": "x"}, b"", 405, "method: got 'POST'"),
        ("GET", "/../../etc/passwd", {}, None, 404, "path: got"),
        ("POST", "/similar", {"path": "tone 1.wav"}, tone(2, 2), 400, "parameter: got 'path'; allowed one of top"),
        ("GET", "/search?text=%FF", {}, None, 400, "query: got 'text=%FF'; allowed parameters in UTF-8"),
        ("GET", "/audio?path=%ED%A0%80", {}, None, 400, "in UTF-8"),
        ("POST", "/tag?label=rain&label=%c3", {}, tone(1, 1), 400, "in UTF-8"),
    ],
)  # fmt: skip
def test_a_mistake_has_one_form(
    port: int, method: str, path: str, parameters: Any, body: Any, status: int, message: str
) -> None:
    found, answer = call(port, method, path, body, **parameters)
    assert (found, list(answer)) == (status, ["error"]), answer
    assert message in answer["error"]


def test_a_form_is_told_that_the_file_alone_is_the_body(port: int) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    status, answer = call(port, "POST", "/similar", body=b"--x\r\n\r\n" + tone(1, 1) + b"\r\n--x--", headers=headers)
    assert (status, "--data-binary" in answer["error"]) == (400, True)


def test_a_body_without_a_length_is_cut_off_at_the_limit(port: int) -> None:
    parts = (b"\0" * 10_000 for _ in range(1000))
    try:
        status, answer = call(port, "POST", "/similar", body=parts)
    except (BrokenPipeError, ConnectionResetError):
        return  # it hung up before all was sent
    assert status == 413, answer


def test_another_name_and_a_wrong_token_are_refused(index: Index) -> None:
    with serving(index, token=TOKEN) as port:
        assert call(port, "GET", "/search", headers={"Host": "evil.example"}, text="x")[0] == 400
        assert call(port, "GET", "/search", text="x")[0] == 401
        assert call(port, "GET", "/search", headers={"Authorization": "Bearer wrong"}, text="x")[0] == 401
        assert call(port, "GET", "/search", headers={"Authorization": f"Bearer {TOKEN}"}, text="x")[0] == 200
        assert call(port, "GET", "/search", headers={"Authorization": f"Basic {TOKEN}"}, text="x")[0] == 401
        assert {call(port, "GET", place)[0] for place in ("/", "/health", "/openapi.json")} == {200}


def test_a_name_of_the_server_may_be_in_capitals(index: Index) -> None:
    client = TestClient(create_app(index, hosts=("Sounds.Example",)), base_url="http://sounds.example")
    assert client.get("/health").status_code == 200
    assert client.get("/health", headers={"Host": "SOUNDS.example:8080"}).status_code == 200
    assert client.get("/health", headers={"Host": "other.example"}).status_code == 400


def test_beyond_this_machine_a_token_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ATR_TOKEN", raising=False)
    assert required_token("127.0.0.1") is None
    with pytest.raises(ValueError, match="--host"):
        required_token("0.0.0.0")
    monkeypatch.setenv("RAY_ATR_TOKEN", "short")
    with pytest.raises(ValueError, match="16 or more"):
        required_token("0.0.0.0")
    monkeypatch.setenv("RAY_ATR_TOKEN", 16 * "x")
    assert required_token("0.0.0.0") == 16 * "x"
    for unsent in ("ein Geheimnis für alle", f" {TOKEN}", f"{TOKEN}\n"):
        monkeypatch.setenv("RAY_ATR_TOKEN", unsent)
        with pytest.raises(ValueError, match="RAY_ATR_TOKEN: got 'other characters'; allowed a secret of ASCII"):
            required_token("127.0.0.1")
    monkeypatch.setenv("RAY_ATR_TOKEN", TOKEN)
    assert required_token("0.0.0.0") == TOKEN
    assert [is_loopback(host) for host in ("::1", "localhost", "::", "10.0.0.1")] == [True, True, False, False]


def test_any_address_of_this_machine_is_a_name_of_the_server(
    index: Index, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """127.0.0.2 is this machine's too."""
    monkeypatch.delenv("RAY_ATR_TOKEN", raising=False)
    given = list[Sequence[str]]()

    def refused(index: Index, *, hosts: Sequence[str], **options: Any) -> None:
        given.append(hosts)
        raise ValueError("nothing is served")

    replace_work(monkeypatch, {"deploy.serve.app.create_app": refused})
    for host, name in (("127.0.0.2", "127.0.0.2"), ("0::1", "[0::1]")):
        with pytest.raises(SystemExit):
            main("serve", arguments=[str(index.folder), "--host", host])
        assert name in given.pop()
    with pytest.raises(SystemExit):
        main("serve", arguments=[str(index.folder)])
    assert {"localhost", "127.0.0.1", "[::1]"} <= set(given.pop())
    names = ["--name", "sounds.example.org"]
    with pytest.raises(SystemExit):
        main("serve", arguments=[str(index.folder), *names])
    assert "--name: got 'sounds.example.org'; allowed nothing unless RAY_ATR_TOKEN holds" in capsys.readouterr().err
    monkeypatch.setenv("RAY_ATR_TOKEN", TOKEN)
    with pytest.raises(SystemExit):
        main("serve", arguments=[str(index.folder), *names])
    assert given == [("sounds.example.org",)]


def test_an_address_that_cannot_be_had_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ValueError, match="that is free"):
        listening("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ValueError, match=r"--host, --port: got 'nowhere\.invalid:8080'"):
        listening("nowhere.invalid", 8080)


@pytest.mark.parametrize("words", [["--replicas", "2"], ["--ray", "--replicas", "0"]])
def test_replicas_that_cannot_be_are_refused(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit):
        main("serve", arguments=["an.index", *words])
    assert f"--replicas: got {words[-1]}; allowed" in capsys.readouterr().err


def test_a_method_that_is_not_allowed_is_told_which_are(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("OPTIONS", "/similar")
    answer = connection.getresponse()
    allowed = {one.strip() for one in answer.headers["Allow"].split(",")}
    assert (answer.status, allowed) == (405, {"GET", "HEAD", "POST"})


def test_a_head_is_that_of_the_answer(port: int) -> None:
    for place in (
        "/search?text=x",
        "/similar?path=tone%201.wav&start=0.3",
        "/audio?path=tone%201.wav",
        "/similar?path=no",
    ):
        heads = []
        for method in ("HEAD", "GET"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request(method, place)
            answer = connection.getresponse()
            heads.append((answer.status, answer.headers["Content-Length"]))
        assert heads[0] == heads[1]


def test_an_answer_is_sent_without_waiting_for_the_client() -> None:
    with listening("127.0.0.1", 0) as opened, socket.create_connection(opened.getsockname()):
        accepted, _ = opened.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_clients_at_once_each_get_their_own_answer(index: Index, port: int) -> None:
    texts = [f"a tone, number {number}" for number in range(40)]
    top_of = {text: 2 + number % 3 for number, text in enumerate(texts)}
    answers: dict[str, Any] = {}

    def ask(text: str) -> None:
        answers[text] = call(port, "GET", "/search", text=text, top=top_of[text])

    threads = [threading.Thread(target=ask, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for text in texts:
        status, found = answers[text]
        assert status == 200
        assert [one["path"] for one in found["matches"]] == [one.path for one in index.search(text, top=top_of[text])]


def test_a_text_that_is_refused_fails_alone(index: Index) -> None:
    def choosy(texts: Sequence[str], *given: Any, **options: Any) -> Any:
        if "bad" in texts:
            raise ValueError("text: got 'bad'; allowed another one")
        return index.search_many(texts, *given, **options)

    searched: Any = SimpleNamespace(search_many=choosy)
    questions = [_Question(text, None, 3, None, False) for text in ("a low tone", "bad", "a high tone")]
    first, second, third = _Served(searched, ServerLimits())._answer_all(questions)
    assert [first, third] == [index.search_many([text], None, top=3)[0] for text in ("a low tone", "a high tone")]
    assert str(second) == "text: got 'bad'; allowed another one"


def test_a_slow_body_is_refused(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = asyncio.timeout
    monkeypatch.setattr(asyncio, "timeout", lambda seconds: limit(0.1 if seconds == 60 else seconds))
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(b"POST /similar HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\nRIFF")
        assert client.recv(100).startswith(b"HTTP/1.1 408 ")


def test_queries_that_wait_at_the_same_time_are_answered_together() -> None:
    batches: list[list[int]] = []

    def answer_all(asked: Sequence[int]) -> list[int | Exception]:
        batches.append(list(asked))
        return [10 * one for one in asked]

    async def ask() -> list[int]:
        batcher = Batcher[int, int](answer_all, most_waiting=9)
        async with batcher.running():
            return await asyncio.gather(*map(batcher.ask, range(5)))

    assert asyncio.run(ask()) == [0, 10, 20, 30, 40]
    assert batches == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("work", "path", "asked"),
    [("search_many", "/search", {"text": "x"}), ("like_window", "/similar", {"path": "tone 1.wav"})],
)
def test_too_many_that_wait_are_told_so(index: Index, work: str, path: str, asked: dict[str, str]) -> None:
    limits = ServerLimits(most_waiting=1)
    release = threading.Event()
    slow = Index.open(index.folder)
    original = getattr(slow, work)

    def held(*given: Any, **options: Any) -> Any:
        release.wait(30)
        return original(*given, **options)

    setattr(slow, work, held)
    with serving(slow, limits=limits) as port:
        found: list[int] = []
        threads = [threading.Thread(target=lambda: found.append(call(port, "GET", path, **asked)[0])) for _ in range(6)]
        for thread in threads:
            thread.start()
        while found.count(503) < 4:
            time.sleep(0.05)
        release.set()
        for thread in threads:
            thread.join()
    # The second waits, unless it came before the first was begun.
    assert found.count(200) in (1, 2)
    assert found.count(200) + found.count(503) == 6


def test_a_client_that_dies_leaves_the_server_whole(port: int) -> None:
    for request in (b"GET /search?text=x HTTP/1.1\r\nHost: localhost\r\n\r\n",
                    b"POST /similar HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000\r\n\r\nRIFF"):  # fmt: skip
        for _ in range(5):
            client = socket.create_connection(("127.0.0.1", port))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(request)
            client.close()
    assert call(port, "GET", "/search", text="x")[0] == 200


def hung_up(client: socket.socket) -> bool:
    """Whether the server closed the connection; waits for as long as the client's timeout is."""
    try:
        return client.recv(100) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.mark.slow
def test_a_client_that_never_ends_its_head_is_hung_up_on(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", port), timeout=0.2) as slow:
        slow.sendall(b"GET /search?text=x&top=1 HTTP/1.1\r\nHost: localhost\r\n")
        # A byte now and then does not make it wait anew: it would never hang up.
        until = time.monotonic() + 60
        while not hung_up(slow):
            assert time.monotonic() < until
            with suppress(OSError):
                slow.sendall(b"X")
    whole = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for _ in range(2):
        whole.request("GET", "/search?text=x&top=1")
        answer = whole.getresponse()
        assert answer.status == 200
        assert answer.read()
    whole.sock.sendall(b"GET /he")  # the next request on the same connection
    assert hung_up(whole.sock)
    whole.close()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_is_used_by_keyboard(port: int, width: int) -> None:
    async def use() -> None:
        async with opened(f"http://127.0.0.1:{port}/?text=un%20son%20aigu") as page:
            await page.size(width, 800)
            await page.until("document.querySelectorAll('li').length === 10")
            await page.press("ArrowDown")
            await page.press("ArrowDown")
            await page.press(" ", " ")
            await page.until("document.querySelector('li.chosen canvas') !== null")
            await page.until("document.querySelector('audio').duration > 0.1")
            assert (
                await page.run("[...document.querySelectorAll('li')].indexOf(document.querySelector('.chosen'))") == 1
            )
            is_lit = (
                "canvas.getContext('2d').getImageData(0, 0, 600, 96).data.some((value, n) => n % 4 < 3 && value > 128)"
            )
            assert await page.run(f"(() => {{ const canvas = document.querySelector('canvas'); return {is_lit}; }})()")
            # Buttons of one name tell a screen reader nothing.
            names = "[...document.querySelectorAll('#found button, #found audio')].map((one) => one.getAttribute('aria-label'))"
            assert len(set(await page.run(names))) == 11  # five files, and the player of one
            await page.press("s", "s")
            await page.until(
                "document.querySelector('audio') === null && note.textContent.startsWith('10 found like ')"
            )
            await page.run("form.elements.language.value = 'swe'; form.requestSubmit(); 0")
            await page.until("note.textContent.includes('no captions in swe in training')")
            await page.run("form.elements.text.value = ' '; form.requestSubmit(); 0")
            await page.until("note.textContent.includes('not blank')")
            assert await page.run("nothing.hidden")  # no calibration says what nothing is
            await page.run("listen(new File([new Uint8Array(2e5)], 'long.wav')); 0")
            assert await page.run("note.textContent") == "long.wav: 0.2 MB; allowed at most 0.1 MB"
            assert await page.run("document.documentElement.scrollWidth") <= width
            assert await page.run("window.hacked === undefined")

    asyncio.run(use())


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_the_page_says_that_nothing_was_found_and_what_is_wrong(index: Index) -> None:
    class NothingWhereAllowed(Index):
        calibration = Calibration({}, clips=25)

        def search_many(self, texts: Any, *given: Any, or_nothing: bool = False, **options: Any) -> Any:
            return [[] for _ in texts] if or_nothing else [index.search(text, top=2) for text in texts]

    calibrated = NothingWhereAllowed.open(index.folder)
    rough = "the calibration was fitted on 25 clips, fewer than 100: it is rough"

    async def use() -> None:
        with serving(calibrated, token=TOKEN) as port:
            async with opened(f"http://127.0.0.1:{port}/?text=x") as page:
                await page.until("note.textContent.startsWith('a token is needed')")
        with ExitStack() as running:
            port = running.enter_context(serving(calibrated, token="aSecret+of/Base64=="))
            async with opened(f"http://127.0.0.1:{port}/?text=x#token=aSecret+of/Base64==") as page:
                await page.until(f"note.textContent === '2 found for “x” ({rough})' && !nothing.hidden")
                await page.run("form.elements.or_nothing.click(); form.requestSubmit(); 0")
                await page.until(f"note.textContent.startsWith('nothing found for “x” ({rough}); without the tick')")
                await asyncio.to_thread(running.close)
                await page.run("form.requestSubmit(); 0")
                await page.until("note.textContent.startsWith('the server does not answer')")

    asyncio.run(use())
