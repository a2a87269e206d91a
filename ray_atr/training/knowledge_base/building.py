"""A base's snapshot from its encoded entries: unit-norm rows, prototypes, and an index if one is set.

A base in parts is built where its parts are. They exchange k-means' sample and the clusters' pools, never all of their rows.
Shapes: n entries of a part, N of the base, C centroids, P prototypes, L text languages, D embedding width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_atr.common.settings import refuse
from ray_atr.objectives.knowledge.knowledge import SnapshotSettings
from ray_atr.training.knowledge_base import faiss_library
from ray_atr.training.knowledge_base.faiss_library import faiss_for_search
from ray_atr.training.knowledge_base.parts import SEARCHED_IN_PARTS, WHOLE, BasePart
from ray_atr.training.knowledge_base.prototypes import (
    Pool,
    centroids_of,
    kmeans_sample,
    nearest,
    pool,
    prototype_numbers,
    prototypes,
    together,
)
from ray_atr.training.knowledge_base.snapshot import Entries, PartEntries, Snapshot

IVF_POINTS_A_LIST = 39


class Centroids(NamedTuple):
    """The centroids of k-means: of the audio [C, D], and of texts that are clustered separately [L, C, D] (else [0, C, D])."""

    audio: NDArray[np.float32]
    text: NDArray[np.float32]


class Sampled(NamedTuple):
    """Rows [m, D] of a part and their indices [m]: in k-means' sample, or, of texts, in the base."""

    indices: NDArray[np.int64]
    rows: NDArray[np.float32]


def joined_samples(parts: Sequence[Sampled]) -> Sampled:
    """The parts' rows as one, in the order of the parts."""
    return Sampled(np.concatenate([part.indices for part in parts]), np.concatenate([part.rows for part in parts]))


def build(
    entries: Entries, settings: SnapshotSettings, *, version: int = 1, step: int = 0, previous: Snapshot | None = None
) -> Snapshot:
    """The snapshot of entries, rows brought to unit norm (Fu et al. 2025, section 4.1).

    Fine: the pairs themselves. Coarse: k-means on the audio embeddings, one prototype a cluster and modality, pooled over
    its members (Eq. 8). One assignment for both modalities, so that prototypes are pairs, and unit norms are ours; with
    `separate_text_clusters` "an identical procedure is applied to the text embeddings" as the paper says, and the p-th
    audio and the p-th text prototype are unrelated. k-means starts from the centroids of `previous`.

    Raises ValueError if shapes differ, a base is empty, or a value is not finite.
    """
    builder = PartBuilder(PartEntries.from_entries(entries), settings)
    start = None if previous is None else Centroids(previous.centroids, previous.text_centroids)

    def each(step: str, *arguments: Any) -> list[Any]:
        return [getattr(builder, step)(*arguments)]

    snapshot: Snapshot = build_parts(each, settings, version=version, step=step, start=start)[0]
    return snapshot


def build_parts(
    each: Callable[..., list[Any]], settings: SnapshotSettings, *, version: int, step: int, start: Centroids | None
) -> list[Any]:
    """Build a version whose parts are built by a `PartBuilder` each; returns the results of their `finish`.

    each(name, *arguments) calls a method of every builder, wherever it is, and returns the results in the order of the
    parts. The result is bit for bit that of one part for the whole base; this function does only what needs all parts.
    """
    wanted = [np.unique(np.concatenate(indices)) for indices in zip(*each("external_rows"), strict=True)]
    if any(map(len, wanted)):
        each("set_equal_rows", [joined_samples(parts) for parts in zip(*each("rows_at", wanted), strict=True)])
    samples = zip(*each("sample"), strict=True)
    starts = [] if start is None else [start.audio, *start.text]
    centroids = []
    for number, parts in enumerate(samples):
        sample = np.zeros((sum(len(part.indices) for part in parts), parts[0].rows.shape[1]), dtype=np.float32)
        for part in parts:
            sample[part.indices] = part.rows
        centroids.append(centroids_of(sample, settings, starts[number] if number < len(starts) else None))
    pools = [together(list(parts)) for parts in zip(*each("pool", centroids), strict=True)]
    # Texts that are not clustered separately are in the clusters of their audio.
    is_separate = len(centroids) > 1
    numbers = [prototype_numbers((pool if is_separate else pools[0]).counts) for pool in pools]
    P = max(int(pool.max(initial=-1)) for pool in numbers) + 1
    pooled = [prototypes(pool, clusters, P) for pool, clusters in zip(pools, numbers, strict=True)]
    C = min(settings.prototypes, each("count")[0])
    padded = [
        np.concatenate([centroid, np.zeros((C - len(centroid), centroid.shape[1]), np.float32)])
        for centroid in centroids
    ]
    texts = np.stack(padded[1:]) if is_separate else np.zeros((0, *padded[0].shape), dtype=np.float32)
    return each("finish", version, step, Centroids(padded[0], texts), numbers[0], pooled)


class PartBuilder:
    """Builds one part of a version, in steps, between which the parts exchange what they need (`build_parts`)."""

    def __init__(self, entries: PartEntries, settings: SnapshotSettings, part: BasePart = WHOLE) -> None:
        self.names, self.settings, self.part = entries.names, settings, part
        self.rows = part.rows(len(self.names.ids))
        ids, mask = self.names.ids[self.rows], self.names.text_mask[:, self.rows]
        self.audio = _unit("audio", entries.audio, ids, np.ones(len(ids), dtype=bool))
        self.text = np.empty(entries.text.shape, dtype=np.float32)
        for k, present in enumerate(mask):
            _unit("text", entries.text[k], ids, present, out=self.text[k])
        self.numbers: list[NDArray[np.int32]] = []
        # The index in the base of the entry whose row each text gets: the first one with the same caption.
        own = np.arange(self.rows.start, self.rows.stop)
        self.first = np.tile(own, (len(mask), 1)) if entries.first is None else np.where(mask, entries.first, own)
        self.set_equal_rows([Sampled(own, text) for text in self.text])

    def external_rows(self) -> list[NDArray[np.int64]]:
        """By language, the indices of texts in earlier parts whose captions occur here again: their rows are needed here."""
        return [np.unique(first[first < self.rows.start]) for first in self.first]

    def rows_at(self, wanted: list[NDArray[np.int64]]) -> list[Sampled]:
        """By language, the rows at those of the wanted indices that are in this part."""
        rows = []
        for indices, text in zip(wanted, self.text, strict=True):
            own = indices[(indices >= self.rows.start) & (indices < self.rows.stop)]
            rows.append(Sampled(own, text[own - self.rows.start]))
        return rows

    def set_equal_rows(self, first_rows: list[Sampled]) -> None:
        """Give equal captions the row of the first one, by language.

        The same caption is rounded otherwise in another batch, and a search orders equal rows by their index.
        """
        for text, first, (indices, rows) in zip(self.text, self.first, first_rows, strict=True):
            position = np.searchsorted(indices, first).clip(max=max(0, len(indices) - 1))
            changed = np.flatnonzero((first != np.arange(self.rows.start, self.rows.stop)) & np.isin(first, indices))
            text[changed] = rows[position[changed]]

    def count(self) -> int:
        """N, the number of entries of the whole base."""
        return len(self.names.ids)

    def sample(self) -> list[Sampled]:
        """This part's rows of k-means' sample: of the audio, then of each language if texts are clustered separately."""
        tables = [(self.audio, np.ones(self.count(), dtype=bool))]
        if self.settings.separate_text_clusters:
            tables += zip(self.text, self.names.text_mask, strict=True)
        return [self._sampled(*table) for table in tables]

    def _sampled(self, rows: NDArray[np.float32], present: NDArray[np.bool_]) -> Sampled:
        positions = kmeans_sample(present, self.settings)
        indices = np.flatnonzero((positions >= self.rows.start) & (positions < self.rows.stop))
        return Sampled(indices, rows[positions[indices] - self.rows.start])

    def pool(self, centroids: list[NDArray[np.float32]]) -> list[Pool]:
        """The pools of the part's rows: of the audio, then of each language."""
        audio = nearest(self.audio, np.ones(len(self.audio), dtype=bool), centroids[0])
        mask = self.names.text_mask[:, self.rows]
        if len(centroids) == 1:
            texts = [np.where(present, audio, -1).astype(np.int32) for present in mask]
            centroids = centroids * (1 + len(mask))
        else:
            texts = [nearest(*table) for table in zip(self.text, mask, centroids[1:], strict=True)]
        self.numbers = [audio, *texts]
        tables = zip((self.audio, *self.text), self.numbers, map(len, centroids), strict=True)
        return [pool(*table, self.settings.pooling) for table in tables]

    def finish(
        self,
        version: int,
        step: int,
        centroids: Centroids,
        numbers: NDArray[np.int32],
        pooled: list[tuple[NDArray[np.float32], NDArray[np.bool_]]],
    ) -> Snapshot:
        """The snapshot of this part.

        `numbers` [C] are the prototypes of the audio's centroids. `pooled` are the prototypes of the audio, then of each
        language, as `prototypes` returns them.
        """
        kind = self.settings.index
        if kind == "auto":
            kind = "exact" if self.settings.exact_up_to >= self.count() else "ivf"
        if not self.part.is_whole and kind not in SEARCHED_IN_PARTS:
            raise refuse("objective.knowledge.index", kind, f"{', '.join(SEARCHED_IN_PARTS)} for a base in parts")
        dtype, seed = np.dtype(self.settings.storage), self.settings.seed
        (coarse_audio, has_audio), *texts = pooled
        return Snapshot(
            version=version,
            step=step,
            ids=self.names.ids,
            groups=self.names.groups,
            audio=self.audio.astype(dtype, copy=False),
            text=self.text.astype(dtype, copy=False),
            text_mask=self.names.text_mask,
            coarse_audio=coarse_audio.astype(dtype, copy=False),
            coarse_audio_mask=has_audio,
            coarse_text=np.stack([vectors for vectors, _ in texts]).astype(dtype, copy=False),
            coarse_mask=np.stack([present for _, present in texts]),
            # The appended -1 is for entries without a cluster, whose number is -1.
            cluster=np.append(numbers, np.int32(-1))[self.numbers[0]],
            centroids=centroids.audio,
            text_centroids=centroids.text,
            audio_index=_index(self.audio, kind, seed),
            # Without missing texts: as rows of zeros they would be found before all that a query is unlike.
            text_index=tuple(
                _index(text if has.all() else text[has], kind, seed)
                for text, has in zip(self.text, self.names.text_mask[:, self.rows], strict=True)
            ),
            part=self.part,
        )


def _unit(
    name: str,
    rows: NDArray[Any],
    ids: NDArray[np.bytes_],
    present: NDArray[np.bool_],
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Rows of unit norm, zeros for those that are not present."""
    rows = np.ascontiguousarray(rows if present.all() else np.where(present[:, None], rows, 0), dtype=np.float32)
    norms = np.linalg.norm(rows, axis=1)
    if not np.isfinite(norms).all():
        bad = ids[~np.isfinite(norms)]
        got = f"{len(bad)} rows that are not finite ({', '.join(name.decode() for name in bad[:3])})"
        raise refuse(f"knowledge.base.{name}", got, "finite values")
    return np.divide(rows, np.maximum(norms, 1e-12)[:, None], out=out)


def _index(rows: NDArray[np.float32], kind: str, seed: int) -> NDArray[np.uint8]:
    """A serialised FAISS inner-product index, empty if the search is a matrix product over the rows themselves."""
    if kind in ("exact", "flat") or not len(rows):
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
        return faiss.serialize_index(faiss_library.filled_ivf(index, rows))
