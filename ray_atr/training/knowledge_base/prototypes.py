"""Clusters of a base's embeddings, and one prototype for each, computed part by part with the same result as in one part.

Shapes: n rows of a part, N of the base, C centroids, D embedding width. k-means gets the sample that FAISS would draw from all
rows. The rest does not depend on the order: a row's nearest centroid, a maximum, and a sum of integers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_atr.objectives.knowledge.knowledge import SnapshotSettings
from ray_atr.training.knowledge_base import faiss_library
from ray_atr.training.knowledge_base.faiss_library import faiss_for_search
from ray_atr.training.knowledge_base.parts import UNIT

POINTS_A_CENTROID = 256
POOLED = 16 * UNIT
"""Rows that are pooled at a time."""
FIXED = 2.0**36
"""Means are summed in units of 1/FIXED: as int64, sums do not depend on their order. 2^27 rows of unit norm fit into them."""


class Pool(NamedTuple):
    """For each cluster the number of rows [C], and their elementwise maximum (float32, -inf for none) or sum (int64), [C, D]."""

    counts: NDArray[np.int64]
    values: NDArray[Any]


def kmeans_sample(present: NDArray[np.bool_], settings: SnapshotSettings) -> NDArray[np.int64]:
    """The positions of k-means' rows among those present [N], in its order: all of them, or the sample that FAISS draws."""
    positions = np.flatnonzero(present)
    most = POINTS_A_CENTROID * min(settings.prototypes, len(positions))
    if 0 < most < len(positions):
        order = np.empty(len(positions), dtype=np.int32)
        with faiss_for_search() as faiss:
            faiss.rand_perm(faiss.swig_ptr(order), len(positions), settings.seed + 1)
        positions = positions[order]
    return positions[:most]


def centroids_of(
    sample: NDArray[np.float32], settings: SnapshotSettings, start: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """The centroids [C, D] of k-means; `start` are those of the version before. C is at most the number of rows."""
    count, D = min(settings.prototypes, len(sample)), sample.shape[1]
    if count == 0:
        return np.zeros((0, D), dtype=np.float32)
    is_warm = start is not None and start.shape == (count, D)
    with faiss_for_search():
        kmeans = faiss_library.kmeans(
            np.ascontiguousarray(sample),
            count,
            start if is_warm else None,
            niter=settings.warm_iterations if is_warm else settings.iterations,
            seed=settings.seed + 1,
            min_points_per_centroid=1,
            max_points_per_centroid=POINTS_A_CENTROID,
        )
    return np.asarray(kmeans.centroids, dtype=np.float32).reshape(count, D)


def nearest(rows: NDArray[np.float32], present: NDArray[np.bool_], centroids: NDArray[np.float32]) -> NDArray[np.int32]:
    """The number of each row's nearest centroid, [n]; -1 for a row that is not present."""
    nearest = np.full(len(rows), -1, dtype=np.int32)
    if len(centroids) == 0:
        return nearest
    with faiss_for_search() as faiss:
        index = faiss_library.on_gpu(faiss.IndexFlatL2(rows.shape[1]))
        index.add(centroids)
        for start in range(0, len(rows), UNIT):
            part = slice(start, start + UNIT)
            nearest[part] = index.search(rows[part], 1)[1][:, 0]
    nearest[~present] = -1
    return nearest


def pool(rows: NDArray[np.float32], numbers: NDArray[np.int32], C: int, pooling: str) -> Pool:
    """The pool of each cluster; numbers [n] are the rows' clusters, -1 for none."""
    shape, is_max = (C, rows.shape[1]), pooling == "max"
    values = np.full(shape, -np.inf, dtype=np.float32) if is_max else np.zeros(shape, dtype=np.int64)
    for start in range(0, len(rows), POOLED):
        part, number = rows[start : start + POOLED], numbers[start : start + POOLED]
        order = np.argsort(number, kind="stable")
        order = order[number[order] >= 0]
        clusters, starts = np.unique(number[order], return_index=True)
        if len(clusters) == 0:
            continue
        if is_max:
            values[clusters] = np.maximum(values[clusters], np.maximum.reduceat(part[order], starts, axis=0))
        else:
            integers = np.rint(part[order] * FIXED).astype(np.int64)
            values[clusters] += np.add.reduceat(integers, starts, axis=0)
    return Pool(np.bincount(numbers[numbers >= 0], minlength=C).astype(np.int64), values)


def together(pools: list[Pool]) -> Pool:
    """The pool of a base from those of its parts."""
    values = [part.values for part in pools]
    is_max = values[0].dtype == np.float32
    counts = np.sum([part.counts for part in pools], axis=0)
    return Pool(counts, np.maximum.reduce(values) if is_max else np.add.reduce(values))


def prototype_numbers(counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """The number of each centroid's prototype [C], counted without gaps; -1 for a cluster that k-means left empty."""
    has_any = counts > 0
    return np.where(has_any, np.cumsum(has_any) - 1, -1).astype(np.int32)


def prototypes(pool: Pool, numbers: NDArray[np.int32], P: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Unit-norm prototypes [P, D] of clusters with these numbers [C], and which of them have any rows."""
    pooled, has_any = np.zeros((P, pool.values.shape[1]), dtype=np.float32), np.zeros(P, dtype=bool)
    filled = pool.counts > 0
    values = pool.values[filled]
    pooled[numbers[filled]] = values if values.dtype == np.float32 else values / FIXED
    has_any[numbers[filled]] = True
    return pooled / np.maximum(np.linalg.norm(pooled, axis=1), 1e-12)[:, None], has_any
