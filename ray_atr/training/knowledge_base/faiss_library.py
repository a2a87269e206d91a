"""FAISS, imported by what searches or clusters, and by nothing else: a training without a base does not load it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch

from ray_atr.common.settings import refuse

BLAS_FROM = 4
"""Queries from which FAISS multiplies matrices. Below its own threshold, 20, it computes one dot product after the other, which
takes ten times as long for the batches here."""

_lock = threading.Lock()
_users = 0
_threshold_before = 0


@contextmanager
def faiss_for_search() -> Iterator[ModuleType]:
    """The module `faiss`, with `BLAS_FROM` as its threshold while at least one thread is inside; then it is what it was before.

    The threshold belongs to the process, and results are rounded by it: a base may be clustered in one thread while another
    thread searches, so that the last one to leave restores it. Raises ValueError with what to install if FAISS
    is absent or two builds of it are mixed.
    """
    global _users, _threshold_before
    try:
        import faiss
    except ModuleNotFoundError as error:
        if error.name != "faiss":
            raise
        raise refuse("faiss", "no such module", "faiss-cpu or one of its CUDA builds: pip install faiss-cpu") from None
    except AttributeError as error:
        # The files of one build lie over those of the other.
        remedy = "one build: remove faiss-cpu and faiss-gpu-cu12, then install the one that is wanted (docs/install.md)"
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
    """Let this thread compute on so many cores. OpenMP's limits are a thread's own: a new one would compute on all of them."""
    torch.set_num_threads(count)
    with faiss_for_search() as faiss:
        faiss.omp_set_num_threads(count)
