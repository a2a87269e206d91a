"""A knowledge base as an immutable snapshot: encoded clips, and the prototypes that stand for clusters of them.

Shapes: N entries, P prototypes, L text languages (1: English alone), D embedding width.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_atr.common.formats import FORMATS, require_format
from ray_atr.common.settings import refuse
from ray_atr.common.storage import atomic_folder, read_json
from ray_atr.common.storage.digests import check_folder, seal_folder
from ray_atr.objectives.knowledge.knowledge import SnapshotSettings
from ray_atr.training.knowledge_base import faiss_gpu
from ray_atr.training.knowledge_base.faiss_library import faiss_for_search

MANIFEST_FILE = "manifest.json"
IVF_POINTS_A_LIST = 39


class Entries(NamedTuple):
    """What an encoder made of a source: one row a clip.

    audio [N, D]; text [N, D] (English) or [L, N, D]; ids [N]; text_mask [L, N] bool, None if every text exists;
    groups [N] int64, equal for clips that are positives of each other, None if every clip is its own.
    """

    audio: NDArray[Any]
    text: NDArray[Any]
    ids: Sequence[str] | NDArray[np.str_]
    text_mask: NDArray[np.bool_] | None = None
    groups: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One version of a base. Plain arrays and numbers, so that Ray's object store maps it without a copy; read-only.

    ids [N]; groups [N] int64, equal for positives of each other; audio [N, D] and text [L, N, D], unit norm; text_mask
    [L, N] bool. Prototypes coarse_audio [P, D], coarse_text [L, P, D], unit norm, coarse_audio_mask [P], coarse_mask [L, P];
    cluster [N] int32: each entry's prototype. centroids [C, D], and text_centroids [L, C, D] if texts are clustered by
    themselves: k-means' own, where the next version starts. audio_index, text_index: serialised FAISS indices (uint8),
    empty for exact search.
    """

    version: int
    step: int
    ids: NDArray[np.str_]
    groups: NDArray[np.int64]
    audio: NDArray[Any]
    text: NDArray[Any]
    text_mask: NDArray[np.bool_]
    coarse_audio: NDArray[Any]
    coarse_audio_mask: NDArray[np.bool_]
    coarse_text: NDArray[Any]
    coarse_mask: NDArray[np.bool_]
    cluster: NDArray[np.int32]
    centroids: NDArray[np.float32]
    text_centroids: NDArray[np.float32]
    audio_index: NDArray[np.uint8]
    text_index: tuple[NDArray[np.uint8], ...]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_prototypes(self) -> int:
        """P; fewer than asked for where the base is small or clusters are empty."""
        return len(self.coarse_audio)


def build(
    entries: Entries, settings: SnapshotSettings, *, version: int = 1, step: int = 0, previous: Snapshot | None = None
) -> Snapshot:
    """The snapshot of entries, rows brought to unit norm (Fu et al. 2025, section 4.1).

    Fine: the pairs themselves. Coarse: k-means on the audio embeddings, one prototype a cluster and modality, pooled over
    its members (Eq. 8). One assignment for both modalities, so that prototypes are pairs, and unit norms are ours; with
    `separate_text_clusters` "an identical procedure is applied to the text embeddings" as the paper says, and the p-th
    audio and the p-th text prototype have nothing to do with each other. `previous` lends its centroids as k-means' start.

    Raises ValueError if shapes differ, a base is empty, or a value is not finite.
    """
    audio, text, ids, text_mask, groups = entries
    text = text[None] if text.ndim == 2 else text
    L, N, D = text.shape
    names = np.asarray(ids, dtype=np.str_)
    if audio.shape != (N, D) or len(names) != N:
        raise refuse("knowledge.base", f"audio {audio.shape}, text {text.shape}, {len(names)} ids", "equal N and D")
    if N == 0:
        raise refuse("knowledge.base", "0 entries", "at least one clip in the source")
    mask = np.ones((L, N), dtype=bool) if text_mask is None else np.asarray(text_mask, dtype=bool)
    if mask.shape != (L, N):
        raise refuse("knowledge.base.text_mask", mask.shape, f"({L}, {N})")
    audio = _unit("audio", audio, names)
    text = np.stack([_unit("text", np.where(mask[k][:, None], text[k], 0), names) for k in range(L)])
    always = np.ones(N, dtype=bool)
    cluster, centroids = _cluster(audio, always, settings, previous.centroids if previous is not None else None)
    of_texts, text_centroids = [cluster] * L, np.zeros((0, len(centroids), D), dtype=np.float32)
    if settings.separate_text_clusters:
        starts = previous.text_centroids if previous is not None and len(previous.text_centroids) == L else [None] * L
        by_language = [_cluster(text[k], mask[k], settings, starts[k]) for k in range(L)]
        of_texts = [own for own, _ in by_language]
        text_centroids = np.stack([found for _, found in by_language])
    P = 1 + max(int(own.max()) for own in (cluster, *of_texts))
    coarse_audio, coarse_audio_mask = _pool(audio, cluster, P, always, settings.pooling)
    pooled = [_pool(text[k], of_texts[k], P, mask[k], settings.pooling) for k in range(L)]
    kind = settings.index
    if kind == "auto":
        kind = "exact" if settings.exact_up_to >= N else "ivf"
    dtype = np.dtype(settings.storage)
    return Snapshot(
        version=version,
        step=step,
        ids=names,
        groups=_own_groups(N) if groups is None else np.asarray(groups, dtype=np.int64),
        audio=audio.astype(dtype, copy=False),
        text=text.astype(dtype, copy=False),
        text_mask=mask,
        coarse_audio=coarse_audio.astype(dtype, copy=False),
        coarse_audio_mask=coarse_audio_mask,
        coarse_text=np.stack([vectors for vectors, _ in pooled]).astype(dtype, copy=False),
        coarse_mask=np.stack([present for _, present in pooled]),
        cluster=cluster,
        centroids=centroids,
        text_centroids=text_centroids,
        audio_index=_index(audio, kind, settings.seed),
        # A text that is absent is a zero row to the index: what it returns of those is dropped after the search.
        text_index=tuple(_index(text[k], kind, settings.seed) for k in range(L)),
    )


def _unit(name: str, rows: NDArray[Any], ids: NDArray[np.str_]) -> NDArray[np.float32]:
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    norms = np.linalg.norm(rows, axis=1)
    if not np.isfinite(norms).all():
        bad = ids[~np.isfinite(norms)]
        got = f"{len(bad)} rows that are not finite ({', '.join(bad[:3])})"
        raise refuse(f"knowledge.base.{name}", got, "finite values")
    return rows / np.maximum(norms, 1e-12)[:, None]


def _own_groups(N: int) -> NDArray[np.int64]:
    """Groups of N clips that are nobody's positives but their own: numbers that no group has."""
    return -1 - np.arange(N, dtype=np.int64)


def _cluster(
    every_row: NDArray[np.float32],
    present: NDArray[np.bool_],
    settings: SnapshotSettings,
    start: NDArray[np.float32] | None,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Cluster numbers [N], counted without gaps, -1 for rows that are not present, and the centroids of k-means."""
    rows = np.ascontiguousarray(every_row[present])
    N, D = rows.shape
    count = min(settings.prototypes, N)
    numbers = np.full(len(every_row), -1, dtype=np.int32)
    if count == 0:
        return numbers, np.zeros((min(settings.prototypes, len(every_row)), D), dtype=np.float32)
    is_warm = start is not None and start.shape == (count, D)
    with faiss_for_search():
        kmeans = faiss_gpu.kmeans(
            rows,
            count,
            start if is_warm else None,
            niter=settings.warm_iterations if is_warm else settings.iterations,
            seed=settings.seed + 1,
            min_points_per_centroid=1,
            max_points_per_centroid=256,
        )
        _, nearest = kmeans.index.search(rows, 1)
    # k-means can leave a cluster empty: an empty one has no prototype.
    _, numbers[present] = np.unique(nearest[:, 0], return_inverse=True)
    centroids = np.zeros((min(settings.prototypes, len(every_row)), D), dtype=np.float32)
    centroids[:count] = np.asarray(kmeans.centroids, dtype=np.float32).reshape(count, D)
    return numbers, centroids


def _pool(
    rows: NDArray[np.float32], cluster: NDArray[np.int32], P: int, present: NDArray[np.bool_], pooling: str
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Unit-norm prototypes [P, D] of the present rows, and which clusters had any."""
    D = rows.shape[1]
    if P == 0:
        return np.zeros((0, D), dtype=np.float32), np.zeros(0, dtype=bool)
    order = np.argsort(np.where(present, cluster, P), kind="stable")[: int(present.sum())]
    counts = np.bincount(cluster[present], minlength=P)
    has_any = counts > 0
    starts = np.concatenate([[0], np.cumsum(counts[has_any])[:-1]]).astype(np.int64)
    pooled = np.zeros((P, D), dtype=np.float32)
    if len(order):
        reduce = np.maximum if pooling == "max" else np.add
        pooled[has_any] = reduce.reduceat(rows[order], starts, axis=0)
    return pooled / np.maximum(np.linalg.norm(pooled, axis=1), 1e-12)[:, None], has_any


def _index(rows: NDArray[np.float32], kind: str, seed: int) -> NDArray[np.uint8]:
    """A serialised FAISS inner-product index, empty if the search is a matrix product over the rows themselves."""
    if kind in ("exact", "flat"):
        return np.zeros(0, dtype=np.uint8)
    N, D = rows.shape
    index: Any
    with faiss_for_search() as faiss:
        if kind == "hnsw":
            index = faiss.IndexHNSWFlat(D, 32, faiss.METRIC_INNER_PRODUCT)
            index.add(rows)
            return faiss.serialize_index(index)
        lists = max(1, min(round(4 * N**0.5), N // IVF_POINTS_A_LIST))
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(D), D, lists, faiss.METRIC_INNER_PRODUCT)
        index.cp.seed = seed + 1
        index.cp.min_points_per_centroid = 1
        return faiss.serialize_index(faiss_gpu.filled_ivf(index, rows))


_ARRAYS = tuple(field.name for field in fields(Snapshot) if field.name not in ("version", "step", "text_index"))


def save(snapshot: Snapshot, folder: Path) -> Path:
    """Write a snapshot to a folder of arrays and a manifest: aside first, then renamed, so that a folder here is whole."""
    content = {
        "format": FORMATS["knowledge base"],
        "version": snapshot.version,
        "step": snapshot.step,
        "entries": len(snapshot),
        "prototypes": snapshot.num_prototypes,
        "text_languages": len(snapshot.text),
        "width": snapshot.audio.shape[1],
        "storage": str(snapshot.audio.dtype),
    }
    with atomic_folder(folder, is_synced=True) as aside:
        for name in _ARRAYS:
            np.save(aside / f"{name}.npy", getattr(snapshot, name))
        for position, index in enumerate(snapshot.text_index):
            np.save(aside / f"text_index-{position}.npy", index)
        (aside / MANIFEST_FILE).write_text(json.dumps(content, indent=1) + "\n")
        seal_folder(aside)
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of a snapshot's folder, to be sent to another node."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def write_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the files of a snapshot that was sent: a folder here is whole."""
    with atomic_folder(folder, is_synced=True) as aside:
        for name, content in files.items():
            (aside / name).write_bytes(content)


def load(folder: Path) -> Snapshot:
    """The snapshot in a folder, its arrays mapped from the files. ValueError if it is absent or of another format."""
    if not (folder / MANIFEST_FILE).is_file():
        raise ValueError(f"{folder}: no snapshot of a knowledge base here ({MANIFEST_FILE} is missing)")
    check_folder(folder)
    content = require_format("knowledge base", read_json(folder / MANIFEST_FILE), folder / MANIFEST_FILE)
    # Plain arrays over the mapped files: a memmap would be copied where it is sent elsewhere.
    mapped = ((name, np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)) for name in _ARRAYS)
    arrays = {name: np.asarray(rows) for name, rows in mapped}
    files = (folder / f"text_index-{position}.npy" for position in range(content["text_languages"]))
    indices = tuple(np.load(file, allow_pickle=False) for file in files)
    return Snapshot(version=content["version"], step=content["step"], text_index=indices, **arrays)
