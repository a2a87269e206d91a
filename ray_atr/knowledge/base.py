"""A knowledge base as an immutable snapshot: encoded clips, and the prototypes that stand for clusters of them.

Shapes: N entries, P prototypes, L text languages (1: English alone), D embedding width.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from ray_atr.objectives.knowledge.ask import Ask
from ray_atr.objectives.knowledge.based import INDEXES
from ray_atr.settings import Settings, refuse, setting
from ray_atr.storage import whole_folder

MANIFEST_FILE = "manifest.json"
FORMAT = 1
IVF_POINTS_A_LIST = 39


@dataclass(frozen=True, kw_only=True)
class BaseSettings(Settings):
    """How embeddings become a snapshot: `base_settings(knowledge)` reads it off an objective's knowledge settings."""

    prototypes: int = setting(Ask.prototypes, "clusters of the coarse base; 0: no coarse base", at_least=0)
    pooling: str = setting(
        "max", "prototype of a cluster: elementwise max or mean of its members", choices=("max", "mean")
    )
    iterations: int = setting(10, "k-means iterations of the first snapshot", at_least=1)
    warm_iterations: int = setting(3, "k-means iterations from the previous snapshot's centroids", at_least=1)
    storage: str = setting(Ask.storage, "number type of the stored embeddings", choices=("float32", "float16"))
    index: str = setting(Ask.index, "search structure", choices=INDEXES)
    exact_up_to: int = setting(Ask.exact_up_to, "entries up to which `auto` searches exactly", at_least=0)
    seed: int = setting(0, "seed of k-means", at_least=0)


class Entries(NamedTuple):
    """What an encoder made of a source: one row a clip.

    audio [N, D]; text [N, D] (English) or [L, N, D]; ids [N]; text_mask [L, N] bool, None where every text exists.
    """

    audio: NDArray[Any]
    text: NDArray[Any]
    ids: Sequence[str] | NDArray[np.str_]
    text_mask: NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One version of a base. Plain arrays and numbers, so that Ray's object store maps it without a copy; read-only.

    ids [N]; audio [N, D] and text [L, N, D], unit norm; text_mask [L, N] bool. Prototypes coarse_audio [P, D], coarse_text
    [L, P, D], unit norm, coarse_mask [L, P]; cluster [N] int32: each entry's prototype. centroids [C, D]: k-means' own,
    where the next version starts. audio_index, text_index: serialised FAISS indices (uint8), empty for exact search.
    """

    version: int
    step: int
    ids: NDArray[np.str_]
    audio: NDArray[Any]
    text: NDArray[Any]
    text_mask: NDArray[np.bool_]
    coarse_audio: NDArray[Any]
    coarse_text: NDArray[Any]
    coarse_mask: NDArray[np.bool_]
    cluster: NDArray[np.int32]
    centroids: NDArray[np.float32]
    audio_index: NDArray[np.uint8]
    text_index: tuple[NDArray[np.uint8], ...]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_prototypes(self) -> int:
        """P; fewer than asked for where the base is small or clusters are empty."""
        return len(self.coarse_audio)


def base_settings(knowledge: Any, seed: int = 0) -> BaseSettings:
    """The base's part of an objective's knowledge settings; what the variant does not set keeps its default."""
    names = [field.name for field in dataclasses.fields(BaseSettings)]
    found = {name: getattr(knowledge, name) for name in names if hasattr(knowledge, name)}
    return BaseSettings(**{**found, "seed": seed})


def build(
    audio: NDArray[Any],
    text: NDArray[Any],
    ids: Sequence[str] | NDArray[np.str_],
    settings: BaseSettings,
    *,
    text_mask: NDArray[np.bool_] | None = None,
    version: int = 1,
    step: int = 0,
    previous: Snapshot | None = None,
) -> Snapshot:
    """The snapshot of audio [N, D] and text [N, D] or [L, N, D], rows brought to unit norm (Fu et al. 2025, section 4.1).

    Fine: the pairs themselves. Coarse: k-means on the audio embeddings, one prototype a cluster and modality, pooled over
    its members. One assignment for both modalities, so that prototypes are pairs, and unit-norm prototypes are ours: the
    paper says neither. `previous` lends its centroids as k-means' start.

    Raises ValueError where shapes differ, a base is empty, or a value is not finite.
    """
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
    start = previous.centroids if previous is not None else None
    cluster, centroids = _cluster(audio, settings, start)
    P = int(cluster.max()) + 1
    always = np.ones(N, dtype=bool)
    coarse_audio, _ = _pool(audio, cluster, P, always, settings.pooling)
    pooled = [_pool(text[k], cluster, P, mask[k], settings.pooling) for k in range(L)]
    kind = settings.index
    if kind == "auto":
        kind = "exact" if settings.exact_up_to >= N else "ivf"
    dtype = np.dtype(settings.storage)
    return Snapshot(
        version=version,
        step=step,
        ids=names,
        audio=audio.astype(dtype, copy=False),
        text=text.astype(dtype, copy=False),
        text_mask=mask,
        coarse_audio=coarse_audio.astype(dtype, copy=False),
        coarse_text=np.stack([vectors for vectors, _ in pooled]).astype(dtype, copy=False),
        coarse_mask=np.stack([present for _, present in pooled]),
        cluster=cluster,
        centroids=centroids,
        audio_index=_index(audio, kind, settings.seed),
        # A text that is absent is a zero row to the index: what it returns of those is dropped after the search.
        text_index=tuple(_index(text[k], kind, settings.seed) for k in range(L)),
    )


def _unit(name: str, rows: NDArray[Any], ids: NDArray[np.str_]) -> NDArray[np.float32]:
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    norms = np.linalg.norm(rows, axis=1)
    if not np.isfinite(norms).all():
        bad = ids[~np.isfinite(norms)]
        raise refuse(
            f"knowledge.base.{name}", f"{len(bad)} rows that are not finite ({', '.join(bad[:3])})", "finite values"
        )
    return rows / np.maximum(norms, 1e-12)[:, None]


def _cluster(
    audio: NDArray[np.float32], settings: BaseSettings, start: NDArray[np.float32] | None
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Cluster numbers [N], counted without gaps, and the centroids that k-means ended with."""
    N, D = audio.shape
    count = min(settings.prototypes, N)
    if count == 0:
        return np.full(N, -1, dtype=np.int32), np.zeros((0, D), dtype=np.float32)
    is_warm = start is not None and start.shape == (count, D)
    kmeans = faiss.Kmeans(
        D,
        count,
        niter=settings.warm_iterations if is_warm else settings.iterations,
        seed=settings.seed + 1,
        min_points_per_centroid=1,
        max_points_per_centroid=256,
    )
    kmeans.train(audio, init_centroids=start if is_warm else None)
    _, nearest = kmeans.index.search(audio, 1)
    # k-means can leave a cluster empty: an empty one has no prototype.
    _, cluster = np.unique(nearest[:, 0], return_inverse=True)
    return cluster.astype(np.int32), np.asarray(kmeans.centroids, dtype=np.float32).reshape(count, D)


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
    """A serialised FAISS inner-product index, empty where the search is a matrix product over the rows themselves."""
    if kind in ("exact", "flat"):
        return np.zeros(0, dtype=np.uint8)
    N, D = rows.shape
    index: Any
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(D, 32, faiss.METRIC_INNER_PRODUCT)
    else:
        lists = max(1, min(round(4 * N**0.5), N // IVF_POINTS_A_LIST))
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(D), D, lists, faiss.METRIC_INNER_PRODUCT)
        index.cp.seed = seed + 1
        index.cp.min_points_per_centroid = 1
        index.train(rows)
    index.add(rows)
    return faiss.serialize_index(index)


_ARRAYS = (
    "ids",
    "audio",
    "text",
    "text_mask",
    "coarse_audio",
    "coarse_text",
    "coarse_mask",
    "cluster",
    "centroids",
    "audio_index",
)


def save(snapshot: Snapshot, folder: Path) -> Path:
    """Write a snapshot to a folder of arrays and a manifest: aside first, then renamed, so that a folder here is whole."""
    content = {
        "format": FORMAT,
        "version": snapshot.version,
        "step": snapshot.step,
        "entries": len(snapshot),
        "prototypes": snapshot.num_prototypes,
        "text_languages": len(snapshot.text),
        "width": snapshot.audio.shape[1],
        "storage": str(snapshot.audio.dtype),
    }
    with whole_folder(Path(folder)) as aside:
        for name in _ARRAYS:
            np.save(aside / f"{name}.npy", getattr(snapshot, name))
        for position, index in enumerate(snapshot.text_index):
            np.save(aside / f"text_index-{position}.npy", index)
        (aside / MANIFEST_FILE).write_text(json.dumps(content, indent=1) + "\n")
    return Path(folder)


def load(folder: Path) -> Snapshot:
    """The snapshot in a folder, its arrays mapped from the files. ValueError where it is absent or of another format."""
    folder = Path(folder)
    try:
        content = json.loads((folder / MANIFEST_FILE).read_text())
    except FileNotFoundError:
        raise ValueError(f"{folder}: no snapshot of a knowledge base here ({MANIFEST_FILE} is missing)") from None
    if content.get("format") != FORMAT:
        raise refuse(f"{folder}: format", content.get("format"), str(FORMAT))
    # Plain arrays over the mapped files: a memmap would be copied where it is sent elsewhere.
    arrays = {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)) for name in _ARRAYS}
    indices = [
        np.load(folder / f"text_index-{position}.npy", allow_pickle=False)
        for position in range(content["text_languages"])
    ]
    return Snapshot(version=content["version"], step=content["step"], text_index=tuple(indices), **arrays)
