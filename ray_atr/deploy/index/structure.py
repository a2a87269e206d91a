"""The search structure of an index's rows, by FAISS: exact up to 200,000 rows, inverted lists with 8-bit codes above.

Shapes: N rows, M queries, r width of a vector.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ray_atr.common.atomic import disk_errors
from ray_atr.deploy.index.coarse import TOGETHER, CoarseRows, inner_products
from ray_atr.training.knowledge_base.faiss_library import faiss_for_search
from ray_atr.training.knowledge_base.searcher import exact_top_k

EXACT_ROWS = 200_000
"""Largest number of rows for an exact index, which compares every row with the query."""
RANKED_AGAIN = 100
"""Number of best rows by 8-bit codes that are ranked again by their 16-bit rows."""
SPARE = 8
"""Number of rows beyond the wanted ones that are compared, to notice equal rows at the end of the answers."""
PROBES = 64
"""Number of lists searched per query."""
ROWS_A_CENTRE = 64
"""Training rows per list in k-means."""
MANY_QUERIES = 8
"""Number of queries from which a matrix product is faster than FAISS's scan of 16-bit codes."""
BLOCK = 8_192
SEED = 1234  # of k-means

Rows = NDArray[np.float16]


def build_structure(rows: Rows, distance: str, *, exact_rows: int = EXACT_ROWS) -> Any:
    """FAISS's index of rows [N, r] for `cosine` or `euclidean`: equal rows give equal indexes."""
    N, r = rows.shape
    with faiss_for_search() as faiss:
        metric = faiss.METRIC_INNER_PRODUCT if distance == "cosine" else faiss.METRIC_L2
        if exact_rows >= N:
            index: Any = faiss.IndexScalarQuantizer(r, faiss.ScalarQuantizer.QT_fp16, metric)
        else:
            # About 2 sqrt(N), a power of two.
            lists = int(2 ** round(np.log2(2 * np.sqrt(N))))
            quantizer = faiss.IndexFlat(r, metric)
            index = faiss.IndexIVFScalarQuantizer(quantizer, r, lists, faiss.ScalarQuantizer.QT_8bit, metric)
            index.cp.seed, index.cp.niter = SEED, 8
            index.cp.max_points_per_centroid = ROWS_A_CENTRE
            drawn = np.random.default_rng(0).choice(N, min(N, lists * ROWS_A_CENTRE), replace=False)
            index.train(rows[np.sort(drawn)].astype(np.float32))
        for start in range(0, N, BLOCK * 4):
            index.add(rows[start : start + BLOCK * 4].astype(np.float32))
    return index


def write_structure(index: Any, file: Path) -> None:
    with faiss_for_search() as faiss, disk_errors(file):
        faiss.write_index(index, str(file))


def read_structure(file: Path, rows_file: Path | None) -> tuple[Any, Rows]:
    """FAISS's index, and its 16-bit rows: those of a file, or the exact index's own codes. The files' digests were checked.

    The rows of a file stay there, mapped, as do the codes of lists.
    """
    with faiss_for_search() as faiss:
        if rows_file is None:
            index: Any = faiss.read_index(str(file))
            codes = faiss.rev_swig_ptr(index.codes.data(), index.codes.size())
            return index, codes.view(np.float16).reshape(index.ntotal, index.d)
        index = faiss.read_index(str(file), faiss.IO_FLAG_MMAP)
    index.nprobe = min(PROBES, index.nlist)
    return index, np.load(rows_file, mmap_mode="r", allow_pickle=False)


def nearest_rows(
    index: Any,
    rows: Rows,
    queries: NDArray[np.float32],
    k: int,
    distance: str,
    coarse: Callable[[], CoarseRows] | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(scores, positions), both [M, min(k, N)], best first: inner products, or minus the distance. Missing ones have
    position -1 and score -inf. Scores are exact for the 16-bit rows. `coarse` has their copies in 8 bits, for many queries.
    """
    k = min(int(k), len(rows))  # FAISS takes no integer of NumPy
    is_exact = not hasattr(index, "nprobe")
    many = is_exact and distance == "cosine" and len(queries) >= MANY_QUERIES
    if many and coarse is not None:
        return coarse().nearest(queries, k)
    wanted = min(k + SPARE if is_exact else max(k, RANKED_AGAIN), len(rows))
    if many:
        positions = exact_top_k(torch.from_numpy(queries), torch.from_numpy(rows), wanted, block=BLOCK)[1].numpy()
    else:
        with faiss_for_search():
            _, positions = index.search(np.ascontiguousarray(queries, np.float32), wanted)
    scores = exact_scores(rows, queries, positions, distance)
    # For equal scores the earlier row comes first.
    order = np.lexsort((positions, -scores), axis=-1)
    scores, positions = np.take_along_axis(scores, order, 1), np.take_along_axis(positions, order, 1)
    if is_exact and wanted < len(rows):
        # If only some of the equal rows are wanted, FAISS and torch keep any of them.
        for number in np.flatnonzero(scores[:, k - 1] == scores[:, -1]):
            best = _best_of_all(rows, queries[number : number + 1], k, distance)
            scores[number, :k], positions[number, :k] = best
    return scores[:, :k], positions[:, :k]


def _best_of_all(
    rows: Rows, query: NDArray[np.float32], k: int, distance: str
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(scores, positions) [k] of the rows nearest to one query [1, r], of equal ones the earlier first."""
    blocks = (np.arange(start, min(start + BLOCK, len(rows)))[None] for start in range(0, len(rows), BLOCK))
    scores = np.concatenate([exact_scores(rows, query, block, distance)[0] for block in blocks])
    best = np.argsort(-scores, kind="stable")[:k]
    return scores[best], best


def exact_scores(
    rows: Rows, queries: NDArray[np.float32], positions: NDArray[np.int64], distance: str
) -> NDArray[np.float32]:
    """Scores [M, k] of the rows at positions [M, k]; -inf where the position is -1."""
    scores = np.empty(positions.shape, np.float32)
    for first in range(0, len(queries), TOGETHER):
        some, candidates = queries[first : first + TOGETHER], np.maximum(positions[first : first + TOGETHER], 0)
        if distance == "cosine":
            scores[first : first + TOGETHER] = inner_products(rows, some, candidates)
        else:
            scores[first : first + TOGETHER] = -np.linalg.norm(
                some[:, None] - rows[candidates].astype(np.float32), axis=-1
            )
    return np.where(positions < 0, np.float32(-np.inf), scores)
