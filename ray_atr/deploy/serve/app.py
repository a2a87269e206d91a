"""The ASGI app of an index: `/search`, `/similar`, `/tag`, `/audio`, `/health`, `/openapi.json`, and the page.

    from ray_atr.deploy.serve.app import create_app
    app = create_app(Index.open("birds.index"))     # then any ASGI server; `on_ray` has Ray Serve

A mistake gives 4xx with `{"error": "top: got 0; allowed 1 to 1,000"}`, in the form of the command line; a busy server gives 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hmac
import importlib.metadata
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import yaml
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from ray_atr.common.redaction import redact
from ray_atr.common.settings import refuse
from ray_atr.deploy.index.search import Match, Search, check_text, check_top
from ray_atr.deploy.serve.batching import Batcher, BusyError
from ray_atr.deploy.serve.limits import ServerLimits
from ray_atr.deploy.serve.sounds import asked_part, decode_upload, stretch

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
MOST_LABELS = 256
MOST_LISTENING = 4
"""Number of sounds that are decoded and encoded at the same time; others wait."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class _Question:
    text: str
    language: str | None
    top: int
    at_least: float | None
    or_nothing: bool


def create_app(
    index: Search,
    *,
    token: str | None = None,
    hosts: Sequence[str] = ("localhost", "127.0.0.1", "[::1]", "testserver"),
    limits: ServerLimits | None = None,
) -> Starlette:
    """The app of an open index. With a token, every answer but the page, `/health` and `/openapi.json` needs
    `Authorization: Bearer TOKEN`. `hosts` are the allowed values of the header Host, so that another site cannot use the server
    by a name of its own.
    """
    limits = limits or ServerLimits()
    served = _Served(index, limits)
    index.retriever.eval()
    index.open_models()

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with served.batcher.running():
            yield

    def route(path: str, handler: Handler, *methods: str, is_open: bool = False) -> Route:
        async def guarded(request: Request) -> Response:
            if not _is_called(request, hosts):
                host = request.headers.get("host", "")
                return _error(400, str(refuse("Host", host, "a name of this server")))
            if token is not None and not is_open and not _has_token(request, token):
                return _error(401, "Authorization: got no token, or a wrong one; allowed the server's token")
            return await _answered(handler, request)

        return Route(path, guarded, methods=list(methods or ("GET",)))

    routes = [
        route("/", served.page, is_open=True),
        route("/health", served.health, is_open=True),
        route("/openapi.json", served.openapi, is_open=True),
        route("/search", served.search),
        route("/similar", served.similar, "GET", "POST"),
        route("/tag", served.tag, "POST"),
        route("/audio", served.audio),
    ]
    handlers: dict[Any, Any] = {HTTPException: _http_error, Exception: _failed}
    return Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)


class _Served:
    """The handlers, with what they share."""

    def __init__(self, index: Search, limits: ServerLimits) -> None:
        self.index, self.limits = index, limits
        self.batcher = Batcher(self._answer_all, most_waiting=limits.most_waiting)
        self.listening = asyncio.Semaphore(MOST_LISTENING)
        self.num_listening = 0

    async def page(self, request: Request) -> Response:
        return HTMLResponse((FOLDER / "page.html").read_text(encoding="utf-8"), headers=HEADERS)

    async def health(self, request: Request) -> Response:
        windows, sounds = await asyncio.to_thread(self.index.sizes)
        facts = {
            "status": "ok",
            "version": importlib.metadata.version("ray_atr"),
            "sounds": sounds,
            "windows": windows,
            "model": self.index.manifest.model,
            "languages": list(self.index.retriever.languages),
            "needs_language": self.index.is_told_language,
            "has_pack": self.index.own_retriever is not None,
            "is_calibrated": self.index.calibration is not None,
            "most_megabytes": self.limits.most_megabytes,
        }
        return JSONResponse(facts, headers=HEADERS)

    async def openapi(self, request: Request) -> Response:
        api = yaml.safe_load((FOLDER / "openapi.yaml").read_text(encoding="utf-8"))
        api["info"]["version"] = importlib.metadata.version("ray_atr")
        return JSONResponse(api, headers=HEADERS)

    async def search(self, request: Request) -> Response:
        asked = _only(request, "text", "language", "top", "at_least", "or_nothing")
        question = _Question(
            asked.get("text", ""),
            asked.get("language") or None,
            _number(asked, "top", int, 10),
            _number(asked, "at_least", float, None),
            _flag(asked, "or_nothing"),
        )
        check_text(question.text)
        check_top(question.top)
        return _matches(await self.batcher.ask(question), self.index.warning_of(question.language))

    def _answer_all(self, questions: Sequence[_Question]) -> list[list[Match] | Exception]:
        answers: dict[int, list[Match] | Exception] = {}
        groups: dict[tuple[str | None, float | None, bool], list[int]] = {}
        for number, question in enumerate(questions):
            groups.setdefault((question.language, question.at_least, question.or_nothing), []).append(number)
        for (language, at_least, or_nothing), numbers in groups.items():
            top = max(questions[number].top for number in numbers)
            texts = [questions[number].text for number in numbers]
            try:
                matches = self.index.search_many(texts, language, top=top, at_least=at_least, or_nothing=or_nothing)
                answers.update((n, found[: questions[n].top]) for n, found in zip(numbers, matches, strict=True))
            except ValueError as error:
                # A text that the model refuses fails alone.
                alone = [self._answer_all([questions[n]])[0] for n in numbers] if len(numbers) > 1 else [error]
                answers.update(zip(numbers, alone, strict=True))
        return [answers[number] for number in range(len(questions))]

    async def similar(self, request: Request) -> Response:
        is_of_index = request.method != "POST"
        asked = _only(request, "top", *(("path", "start") if is_of_index else ()))
        top = _number(asked, "top", int, 10)
        check_top(top)
        if is_of_index:
            start = _number(asked, "start", float, 0.0)
            return _matches(await self._listen(lambda: self.index.like_window(asked.get("path", ""), start, top=top)))
        data = await self._body(request)
        return _matches(await self._listen(lambda: self.index.like(*decode_upload(data, self.limits), top=top)))

    async def tag(self, request: Request) -> Response:
        asked = _only(request, "label", "language")
        labels = request.query_params.getlist("label")
        if not 1 <= len(labels) <= MOST_LABELS:
            raise refuse("label", f"{len(labels)} labels", f"1 to {MOST_LABELS}, each as label=TEXT")
        for label in labels:
            check_text(label, "label")
        data = await self._body(request)
        tags = await self._listen(
            lambda: self.index.tag(*decode_upload(data, self.limits), labels, asked.get("language") or None)
        )
        warning = self.index.warning_of(asked.get("language") or None)
        return JSONResponse({"tags": tags, **_warned(warning)}, headers=HEADERS)

    async def audio(self, request: Request) -> Response:
        asked = _only(request, "path", "start")
        path, start = asked.get("path", ""), _number(asked, "start", float, 0.0)
        content = await self._listen(lambda: stretch(self.index.sound(path), path, start, self.limits.heard_seconds))
        size, headers = len(content), {**HEADERS, "Accept-Ranges": "bytes"}
        # The server sends no validators, so `If-Range` cannot match: all is sent.
        asked_for = None if "if-range" in request.headers else request.headers.get("range")
        try:
            part = asked_part(asked_for, size)
        except ValueError as error:
            return _error(416, str(error), {**headers, "Content-Range": f"bytes */{size}"})
        if part is None:
            return Response(content, media_type="audio/wav", headers=headers)
        headers["Content-Range"] = f"bytes {part[0]}-{part[1]}/{size}"
        return Response(content[part[0] : part[1] + 1], 206, media_type="audio/wav", headers=headers)

    async def _listen(self, work: Callable[[], Any]) -> Any:
        """The result of `work` on a sound, done in a thread, a few at the same time. BusyError if too many wait."""
        if self.num_listening >= self.limits.most_waiting:
            raise BusyError("busy: too many sounds wait; try again in a moment")
        self.num_listening += 1
        try:
            async with self.listening:
                return await asyncio.to_thread(work)
        finally:
            self.num_listening -= 1

    async def _body(self, request: Request) -> bytes:
        if request.headers.get("content-type", "").startswith("multipart/"):
            raise refuse("body", "a form", "the audio file itself as the body (curl --data-binary @FILE)")
        most = int(self.limits.most_megabytes * 1e6)
        allowed = f"at most {self.limits.most_megabytes:g} MB"
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > most:
            raise HTTPException(413, f"body: got {int(length):,} bytes; allowed {allowed}")
        parts, size = list[bytes](), 0
        try:
            async with asyncio.timeout(60):
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        raise HTTPException(413, f"body: got more than {most:,} bytes; allowed {allowed}")
                    parts.append(part)
        except TimeoutError:
            raise HTTPException(408, "body: got no end of it; allowed all of it within 60 s") from None
        return b"".join(parts)


async def _answered(handler: Handler, request: Request) -> Response:
    try:
        return await handler(request)
    except BusyError as error:
        return _error(503, str(error), {"Retry-After": "1"})
    except ValueError as error:
        return _error(400, " ".join(redact(str(error)).split()))
    except ClientDisconnect:
        return _error(400, "body: the client went away")


def _matches(matches: Sequence[Match], warning: str = "") -> Response:
    return JSONResponse(
        {"matches": [dataclasses.asdict(match) for match in matches], **_warned(warning)}, headers=HEADERS
    )


def _warned(warning: str) -> dict[str, str]:
    return {"warning": warning} if warning else {}


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": message}, status_code=status, headers={**HEADERS, **(headers or {})})


async def _http_error(request: Request, error: HTTPException) -> Response:
    message = str(error.detail)
    if error.status_code == 404:
        message = str(refuse("path", request.url.path, "/search, /similar, /tag, /audio, /health or /openapi.json"))
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another one")
        message = str(refuse("method", request.method, allowed))
    return _error(error.status_code, message, dict(error.headers or {}))


async def _failed(request: Request, error: Exception) -> Response:
    # Details of an internal error go to the log, not to the client.
    logger.error("a request failed", exc_info=error)
    return _error(500, "the server failed; its log has more")


def _only(request: Request, *names: str) -> dict[str, str]:
    """The request's parameters. ValueError for an unknown one, one that is given twice, or bytes that are not UTF-8."""
    given = request.query_params
    try:
        unquote_to_bytes(request.url.query).decode()
    except UnicodeDecodeError:
        # Starlette would read another character in their place.
        raise refuse("query", request.url.query, "parameters in UTF-8") from None
    for name in given:
        if name not in names:
            raise refuse("parameter", name, "one of " + ", ".join(names))
        if name != "label" and len(given.getlist(name)) > 1:
            raise refuse(name, given.getlist(name), "one value")
    return dict(given)


def _flag(asked: dict[str, str], name: str) -> bool:
    text = asked.get(name) or "0"
    if text not in ("0", "1"):
        raise refuse(name, text, "0 or 1")
    return text == "1"


def _number(asked: dict[str, str], name: str, kind: type, default: Any) -> Any:
    text = asked.get(name)
    if not text:
        return default
    try:
        return kind(text)
    except ValueError:
        raise refuse(name, text, "an integer" if kind is int else "a number") from None


def _is_called(request: Request, hosts: Sequence[str]) -> bool:
    """Whether a request's header Host is among the allowed ones."""
    host = request.headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return "*" in hosts or name.lower() in map(str.lower, hosts)


def _has_token(request: Request, token: str) -> bool:
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    return kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())
