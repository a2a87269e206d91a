"""FAISS, imported only to search or to cluster: a training without a base does not load it.

With faiss-gpu and a GPU, k-means of a refresh and the lists of an ivf index are computed on the GPU, and an index is searched on
the queries' device. Exact search without an index uses torch: `benchmarks/gpu.py` measures both.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ray_atr.common.settings import refuse

logger = logging.getLogger(__name__)

BLAS_FROM = 4
"""Queries from which FAISS multiplies matrices. Below its own threshold, 20, it computes one dot product after the other, which
takes ten times as long for the batches here."""

_lock = threading.Lock()
_users = 0
_threshold_before = 0


@contextmanager
def faiss_for_search() -> Iterator[ModuleType]:
    """The module `faiss`, with `BLAS_FROM` as its threshold while at least one thread is inside; the last one restores it.

    The threshold is global to the process and changes how results are rounded; one thread may cluster while another
    searches. Raises ValueError with what to install if FAISS is missing or two builds of it are mixed.
    """
    global _users, _threshold_before
    try:
        import faiss
    except ModuleNotFoundError as error:
        if error.name != "faiss":
            raise
        raise refuse("faiss", "no such module", "faiss-cpu or one of its CUDA builds: pip install faiss-cpu") from None
    except AttributeError as error:
        # The files of one build have overwritten some of the other's.
        remedy = "one build: remove faiss-cpu and faiss-gpu, then install the one that is wanted (docs/install.md)"
        raise refuse("faiss", f"two builds in one environment ({error})", remedy) from None
    with _lock:
        if _users == 0:
            _threshold_before, faiss.cvar.distance_compute_blas_threshold = (
                faiss.cvar.distance_compute_blas_threshold,
                BLAS_FROM,
            )
        _users += 1
    try:
        yield faiss
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                faiss.cvar.distance_compute_blas_threshold = _threshold_before


def limit_threads(count: int) -> None:
    """Limit this thread to so many cores. OpenMP has a limit for each thread: a new one would use all cores."""
    torch.set_num_threads(count)
    with faiss_for_search() as faiss:
        faiss.omp_set_num_threads(count)


LARGEST_K = 2048
"""Entries that FAISS finds for a query on a GPU; more are searched on the CPU."""
TRIAL = """
import faiss, numpy
rows = numpy.eye(8, dtype=numpy.float32)
index = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, faiss.IndexFlatL2(8))
index.add(rows)
index.search(rows, 1)
"""


def num_gpus() -> int:
    """GPUs that FAISS can compute on: 0 with faiss-cpu, if this process sees none, or if the build has no code for them."""
    import faiss

    if not hasattr(faiss, "StandardGpuResources"):
        return 0
    gpus = int(faiss.get_num_gpus())
    return gpus if gpus and _runs_on_gpu() else 0


@lru_cache(maxsize=1)
def _runs_on_gpu() -> bool:
    """Whether this build of FAISS has code for the GPU. Tried in another process, because FAISS aborts if it has none."""
    tried = subprocess.run([sys.executable, "-c", TRIAL], capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        return True
    reason = next((line for line in reversed(tried.stderr.splitlines()) if "rror" in line), f"exit {tried.returncode}")
    logger.warning(
        "FAISS cannot compute on this GPU and computes on the CPU (docs/install.md): %s",
        reason.rpartition("details: ")[2],
    )
    return False


def kmeans(rows: NDArray[np.float32], count: int, start: NDArray[np.float32] | None, **settings: Any) -> Any:
    """FAISS's k-means trained on rows [N, D], with `count` clusters from centroids `start` [count, D]; on a GPU if FAISS can."""
    import faiss

    # One GPU is enough for a base, and others may belong to other workers.
    trained = faiss.Kmeans(rows.shape[1], count, gpu=min(1, num_gpus()), **settings)
    trained.train(rows, init_centroids=start)
    return trained


def filled_ivf(index: Any, rows: NDArray[np.float32]) -> Any:
    """An untrained ivf index on the CPU, trained on rows [N, D] and holding them; both done on a GPU if there is one."""
    import faiss

    if not num_gpus():
        index.train(rows)
        index.add(rows)
        return index
    # The index's own clustering settings are used; only the distances are computed on the GPU.
    nearest = on_gpu(faiss.IndexFlatIP(rows.shape[1]))
    index.clustering_index = nearest
    index.train(rows)
    index.clustering_index = None
    filled = on_gpu(index)
    filled.add(rows)
    return faiss.index_gpu_to_cpu(filled)


def on_gpu(index: Any) -> Any:
    """The index on a GPU, where there is one; itself otherwise."""
    import faiss

    return faiss.index_cpu_to_gpu(resources(), 0, index) if num_gpus() else index


def gpu_number(device: torch.device) -> int | None:
    """FAISS's number of a torch device; None if FAISS does not compute there."""
    if device.type != "cuda" or not num_gpus():
        return None
    return torch.cuda.current_device() if device.index is None else device.index


def searched_on(index: Any, device: torch.device) -> Any:
    """A copy of an ivf or flat index on the device, with as many probes; None if it is searched on the CPU (hnsw always is)."""
    import faiss

    number = gpu_number(device)
    if number is None or hasattr(index, "hnsw"):
        return None
    return faiss.index_cpu_to_gpu(resources(), number, index)


@lru_cache(maxsize=1)
def resources() -> Any:
    """FAISS's GPU resources: one object for the process, since each reserves memory for temporary results."""
    import faiss

    return faiss.StandardGpuResources()
