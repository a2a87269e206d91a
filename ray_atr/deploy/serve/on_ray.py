"""The app under Ray Serve: replicas of it on the nodes of a cluster, and of each shard of the index if there are several.

The app is the one that uvicorn serves; each of its replicas has the retriever. It opens the index itself, or queries the shards,
each of which has its own deployment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from ray_atr.common.runtime import is_inside_a_cluster, other_node_of, require_on_all_nodes, start_ray
from ray_atr.common.settings import refuse
from ray_atr.common.storage import is_local, locate
from ray_atr.deploy.index.current import CurrentIndex
from ray_atr.deploy.index.layout import INDEX_FILE
from ray_atr.deploy.index.opened import Index
from ray_atr.deploy.index.shards import Answer, Given, OpenShard, ShardedIndex, read_first
from ray_atr.deploy.serve.app import create_app
from ray_atr.deploy.serve.batching import BusyError
from ray_atr.deploy.serve.limits import ServerLimits

NAME = "ray_atr"
AT_A_TIME = 64
"""Concurrent requests of a replica, and so its largest batch."""
SHARD_SECONDS = 60.0
"""Time limit for a shard's answer."""
SIZES_SECONDS = 5.0
"""Time limit for a shard's sizes, which need no search: `/health` asks for them often, and each request holds a thread."""
REQUEST_SECONDS = 240.0
"""Time limit for an answer, with the wait for a replica: more than a body (60 s) and a shard (`SHARD_SECONDS`) may take."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RayServer:
    """What is served, at which address, and by how many replicas."""

    indexes: Sequence[str]
    checkpoint: str | None = None
    audio: str | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    replicas: int = 1
    """Replicas of the app, and of each shard."""
    cpus: float = 1.0
    """CPUs that a replica reserves."""
    token: str | None = None
    hosts: Sequence[str] = ("localhost", "127.0.0.1", "[::1]")
    limits: ServerLimits = field(default_factory=ServerLimits)

    @property
    def shards(self) -> Sequence[str]:
        """The indexes that have their own replicas; none if there is only one index."""
        return self.indexes if len(self.indexes) > 1 else ()

    def located(self) -> RayServer:
        """The same with absolute names, as replicas run in another folder."""
        places = [str(locate(place, keeps_links=True)) for place in self.indexes]
        checkpoint = self.checkpoint and str(locate(self.checkpoint, keeps_links=True))
        audio = self.audio and str(locate(self.audio, keeps_links=True))
        return replace(self, indexes=places, checkpoint=checkpoint, audio=audio)


class RemoteShard:
    """A shard that is open in replicas of its own; `model`: fingerprint of the retriever that encodes the queries.

    Raises BusyError if the shard does not answer: Serve starts a replica that died again.
    """

    def __init__(self, handle: DeploymentHandle, model: str) -> None:
        self.handle, self.model = handle, model

    def ask(self, method: Callable[[Index, *Given], Answer], *given: *Given) -> Answer:
        asked, seconds = method.__name__, SIZES_SECONDS if method is Index.sizes else SHARD_SECONDS
        try:
            answer, error = self.handle.answer.remote(self.model, asked, given).result(timeout_s=seconds)
        except RayTaskError:
            # The shard did answer, with an error that would come again.
            raise
        except (TimeoutError, RayError, RayServeException) as lost:
            logger.warning("a shard of the index does not answer", exc_info=lost)
            raise BusyError("index: a part of it does not answer; try again in a moment") from lost
        if error:
            raise ValueError(error)
        found: Answer = answer
        return found


class ShardReplica:
    """One shard, open in a process of its own."""

    def __init__(self, place: str, audio: str | None) -> None:
        self.index = CurrentIndex(place, audio)
        self.place, self.model = place, self.index.index.manifest.model

    async def answer(self, model: str, name: str, given: Sequence[Any]) -> tuple[Any, str]:
        """The index's answer, or the message of a mistake, since Serve would wrap an exception in its own.

        Serve starts replicas again, which may find that an index of another model has taken this one's place.
        """
        try:
            if model != self.model:
                allowed = "an index of the model that the server began with: start the server again"
                raise refuse("index", self.place, allowed)
            return await asyncio.to_thread(getattr(self.index.index, name), *given), ""
        except ValueError as error:
            return None, str(error)


@serve.ingress()
class AppReplica:
    """The app with its retriever, and with the index or its remote shards."""

    def __init__(self, server: RayServer, *shards: DeploymentHandle) -> None:
        first = read_first(server.indexes)
        opened: list[OpenShard] = [RemoteShard(shard, first.model) for shard in shards]
        if not shards:
            only = CurrentIndex(server.indexes[0], server.audio)
            opened, first = [only], only.index.manifest
        index = ShardedIndex(opened, first, checkpoint=server.checkpoint)
        self.asgi = create_app(index, token=server.token, hosts=server.hosts, limits=server.limits)

    def __serve_build_asgi_app__(self) -> Any:
        return self.asgi


def start_serving(server: RayServer) -> None:
    """Deploy the app on the cluster of RAY_ADDRESS, or else on a local Ray; returns when every replica is ready.

    `limits.most_waiting` requests wait for a replica; more are answered 503. Each replica of the app has a GPU if there are
    enough. ValueError if the cluster runs Ray Serve already, which would use its own address instead of the given one, and if a
    node lacks an index or the retriever.
    """
    import ray

    server = server.located()
    # Mistakes are raised before anything starts.
    opened = ShardedIndex([], read_first(server.indexes), checkpoint=server.checkpoint)
    opened.open_models()
    retriever_folder = opened.retriever_folder
    del opened  # the replicas have retrievers of their own
    needed = server.replicas * (1 + len(server.shards)) * server.cpus
    start_ray(num_cpus=None if is_inside_a_cluster() else max(os.cpu_count() or 1, math.ceil(needed)))
    # A running Serve keeps its own address, and only warns about another one.
    if serve.status().proxies:
        raise refuse("--ray", "a cluster on which Ray Serve runs already", "one without it: `serve shutdown` ends it")
    used = [("INDEX", place, place / INDEX_FILE) for place in map(locate, server.indexes) if is_local(place)]
    if is_local(retriever_folder):
        used.append(("--checkpoint", retriever_folder, retriever_folder))
    for name, folder, file in used:
        require_on_all_nodes(name, folder, file, remedy="without --ray this node serves alone")
    if needed > (has := ray.cluster_resources().get("CPU", 0)):
        logger.warning("the server takes %g CPUs, and the cluster has %g: it waits until nodes join", needed, has)
    gpus = 1 if ray.cluster_resources().get("GPU", 0) >= server.replicas else 0
    both: dict[str, Any] = {"num_replicas": server.replicas, "max_ongoing_requests": AT_A_TIME}
    on_cpu, on_gpu = {"num_cpus": server.cpus}, {"num_cpus": server.cpus, "num_gpus": gpus}
    shards = [
        serve.deployment(name=f"shard-{number}", ray_actor_options=on_cpu, **both)(ShardReplica).bind(
            place, server.audio
        )
        for number, place in enumerate(server.shards)
    ]
    most = server.limits.most_waiting
    app = serve.deployment(name="app", ray_actor_options=on_gpu, max_queued_requests=most, **both)(AppReplica)
    try:
        # The host is always given, since Serve's default depends on RAY_SERVE_ENABLE_HA_PROXY.
        http = {"host": server.host, "port": server.port, "request_timeout_s": REQUEST_SECONDS}
        serve.start(proxy_location="HeadOnly", http_options=http)
        serve.run(app.bind(server, *shards), name=NAME, route_prefix="/")
    except BaseException as error:
        mistake = ""
        if isinstance(error, RuntimeError):
            with contextlib.suppress(RayError, RayServeException):
                mistake = mistake_of_replica(serve.status())
        # On a cluster it would stay, and the next start would be refused.
        serve.shutdown()
        if mistake:
            raise ValueError(mistake) from error
        raise


def mistake_of_replica(status: Any) -> str:
    """The message of the ValueError, or of an error of ours, that keeps a replica from starting, with its node; empty if Serve's
    status has none.

    Serve's own error names the deployment alone.
    """
    for app in status.applications.values():
        for deployment in app.deployments.values():
            if found := re.findall(r"^(?:ValueError|ray_atr\.[\w.]+): (.+)", deployment.message, re.MULTILINE):
                return f"{found[-1]}{other_node_of(deployment.message)}"
    return ""


def serve_on_ray(server: RayServer, is_ready: Callable[[], None]) -> None:
    """`start_serving`, then wait until interrupted, and shut Serve down."""
    start_serving(server)
    try:
        is_ready()
        while True:
            time.sleep(1)
    finally:
        serve.shutdown()
