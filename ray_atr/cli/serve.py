"""`ray-atr serve`: serves an index over HTTP, with a page to search and listen."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import tyro

from ray_atr.cli.parse import option, parse
from ray_atr.common.settings import installing, refuse
from ray_atr.deploy.serve.limits import ServerLimits

TOKEN = "RAY_ATR_TOKEN"
LEAST_TOKEN = 16  # characters


@dataclass(frozen=True, kw_only=True)
class ServeCommand:
    """Serve an index: a page to search and listen, and the same by HTTP (/search, /similar, /tag, /audio, /health).

    It opens the index again after each `index update`. It listens on this machine alone. Beyond it, the environment variable
    RAY_ATR_TOKEN must hold a secret, which every request must send as `Authorization: Bearer SECRET`; the page takes
    it from `#token=SECRET` at the end of its address.
    """

    index: tyro.conf.Positional[tuple[str, ...]] = option(
        help="folder or URL of an index; several of one model are served as one", metavar="INDEX ..."
    )
    host: str = option("127.0.0.1", "address to listen on", "ADDRESS")
    port: int = option(8080, "port to listen on", "PORT")
    name: tuple[str, ...] = option((), "with a secret: host names that browsers may use", "HOST ...", "any")
    checkpoint: str | None = option(
        None, "new place of the index's retriever, if it has moved", "FOLDER", "its old place"
    )
    audio: str | None = option(None, "new place of the index's archive, if it has moved", "ARCHIVE", "its old place")
    ray: bool = option(False, "run under Ray Serve: on RAY_ADDRESS's cluster, or on a Ray of this machine")
    replicas: int = option(1, "with --ray: processes for each index")
    request: tyro.conf.OmitArgPrefixes[ServerLimits] = field(default_factory=ServerLimits)


OPTIONS = ServeCommand


def run(arguments: Sequence[str], program: str) -> None:
    command = parse(ServeCommand, arguments, program)
    token = required_token(command.host)
    if not 1 <= command.port <= 65535:
        raise refuse("--port", command.port, "1 to 65535")
    if command.replicas != 1 and not command.ray:
        raise refuse("--replicas", command.replicas, "1 without --ray: one process answers")
    if command.replicas < 1:
        raise refuse("--replicas", command.replicas, "at least 1")
    host = f"[{command.host}]" if ":" in command.host else command.host
    if command.name and token is None:
        raise refuse("--name", " ".join(command.name), f"nothing unless {TOKEN} holds a secret")
    hosts = (command.name or ("*",)) if token is not None else (host, "localhost", "127.0.0.1", "[::1]")
    where = f"http://{host}:{command.port}/"
    try:
        from ray_atr.deploy.serve.app import create_app
        from ray_atr.deploy.serve.connections import server_of

        if command.ray:
            from ray_atr.deploy.serve.on_ray import RayServer, serve_on_ray
    except ModuleNotFoundError as error:
        raise ValueError(f"serve: {error}; install the extra: {installing('serve')}") from None
    if command.ray:
        server = RayServer(
            indexes=command.index,
            checkpoint=command.checkpoint,
            audio=command.audio,
            host=command.host,
            port=command.port,
            replicas=command.replicas,
            token=token,
            hosts=hosts,
            limits=command.request,
        )
        serve_on_ray(server, lambda: print(f"serving at {where} under Ray Serve (Ctrl-C ends it)", flush=True))
        return
    from ray_atr.deploy.index.current import open_current

    with ExitStack() as stack:
        index = stack.enter_context(open_current(command.index, checkpoint=command.checkpoint, audio=command.audio))
        app = create_app(index, token=token, hosts=hosts, limits=command.request)
        opened = stack.enter_context(listening(command.host, command.port))
        print(f"serving {len(index):,} windows at {where} (Ctrl-C ends it)", flush=True)
        server_of(app).run(sockets=[opened])


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens at an address. ValueError if it is not available."""
    try:
        opened = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise refuse(
            "--host, --port", f"{host}:{port}", f"an address of this machine that is free ({reason})"
        ) from None
    # asyncio sets this only for sockets that name their protocol, unlike create_server's; without it the body of an answer
    # waits about 40 ms for the client to acknowledge the headers.
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


def required_token(host: str) -> str | None:
    """The secret in the environment. ValueError if it is missing and the address is not of this machine only, if it is short, or
    if a header does not carry it unchanged.
    """
    token = os.environ.get(TOKEN) or None
    if token is None and not is_loopback(host):
        raise refuse("--host", host, f"127.0.0.1, or any address once {TOKEN} holds a secret")
    if token is not None and len(token) < LEAST_TOKEN:
        raise refuse(TOKEN, f"{len(token)} characters", f"a secret of {LEAST_TOKEN} or more")
    if token is not None and not (token.isascii() and token.isprintable() and token == token.strip()):
        # Clients send other characters in different bytes, and headers lose spaces at their ends.
        allowed = "a secret of ASCII characters, without a space at its beginning or end"
        raise refuse(TOKEN, "other characters", allowed)
    return token


def is_loopback(host: str) -> bool:
    """Whether an address can be reached only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
