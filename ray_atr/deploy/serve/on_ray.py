"""The app under Ray Serve: replicas on the nodes of a cluster, each with the index and the retriever open."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ray_atr.deploy.index.opened import Index
from ray_atr.deploy.serve.app import create_app
from ray_atr.deploy.serve.limits import ServerLimits
from ray_atr.runtime import start_ray

NAME = "ray_atr"


def serve_on_ray(
    index: str,
    options: Mapping[str, Any],
    host: str,
    port: int,
    replicas: int,
    token: str | None,
    hosts: Sequence[str],
    limits: ServerLimits,
    *,
    is_waiting: bool = True,
) -> None:
    """Deploy the app on the Ray that there is, or a new one of this machine; returns when it is interrupted, and takes it away.

    Requests beyond those that a replica works on wait, `limits.most_waiting` of them, and are then answered 503.
    """
    try:
        from ray import serve
    except ModuleNotFoundError as error:
        raise ValueError(f"--ray: {error}; install the extra: pip install 'ray_atr[serve]'") from None
    start_ray()
    # The host is always said: Serve's own default is not the same in all of its set-ups.
    serve.start(http_options={"host": host, "port": port})

    def app() -> Any:
        return create_app(Index.open(index, **options), token=token, hosts=hosts, limits=limits)

    @serve.ingress(app)
    class Replica:
        pass

    gpus = 1 if torch.cuda.is_available() else 0
    deployment = serve.deployment(
        num_replicas=replicas,
        max_ongoing_requests=64,
        max_queued_requests=limits.most_waiting,
        ray_actor_options={"num_cpus": 1, "num_gpus": gpus},
    )(Replica)
    serve.run(deployment.bind(), name=NAME, route_prefix="/")
    try:
        while is_waiting:
            time.sleep(1)
    finally:
        if is_waiting:
            serve.delete(NAME)
            serve.shutdown()
