"""How an index encodes its archive. Imports no heavy library, since the commands' help reads it."""

from __future__ import annotations

from dataclasses import dataclass

from ray_atr.common.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class IndexEncoding(Settings):
    """Where and how an archive is encoded; the vectors do not depend on it."""

    batch_size: int = setting(16, "windows that are encoded together", at_least=1)
    ray: str = setting(
        "auto",
        "encode in Ray Data actors. auto: on a cluster (RAY_ADDRESS, a submitted job), or with several GPUs",
        choices=("auto", "always", "never"),
    )
    encoders: int = setting(
        0, "with Ray: actors, each with the retriever and a GPU if there are any; 0: as many as fit", at_least=0
    )
