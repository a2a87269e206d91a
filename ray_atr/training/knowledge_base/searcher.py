"""Searching a snapshot for a batch: exact by matrix product and top-k, or with a FAISS index where the base is large.

searcher = Searcher(snapshot, spec, device)
positions = searcher.search(audio, text, mask, own_ids)     # small, to be gathered over workers
retrieved = searcher.look_up(positions)                     # for `objective(..., retrieved=retrieved)`
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ray_atr.common.sampling import hashes
from ray_atr.objectives.knowledge.knowledge import Granularity, Neighbours, Retrieved, SearchSpec
from ray_atr.training.knowledge_base.equal_rows import EqualRows, row_keys
from ray_atr.training.knowledge_base.faiss_library import LARGEST_K, faiss_for_search, searched_on
from ray_atr.training.knowledge_base.sharded import EntriesAt, Exchange, ShardedRows, best_first
from ray_atr.training.knowledge_base.snapshot import Snapshot, in_utf8

BLOCK = 16_384
GPU_BLOCK = 2**25
"""Scores, and numbers of widened rows, in a block on a GPU, where small blocks take longer to start than to compute."""
WIDENED = 1_024
"""Rows that are converted to float32 at a time."""
MOST_EQUAL = 4_096
"""Results beyond which equal scores are in the library's order: for queries that are equally near to everything."""
GROUP = 32
"""Scores of which the maximum is taken first."""
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Positions(NamedTuple):
    """The indices of a batch's neighbours in the snapshot, int64, -1 if there is none; plain tensors, to be gathered.

    fine_audio, coarse_audio [B, 1, Kn]: of the audio queries. fine_text, coarse_text [B, K, Kn]: of the text queries.
    """

    fine_audio: Tensor
    fine_text: Tensor
    coarse_audio: Tensor
    coarse_text: Tensor


def exact_top_k(
    queries: Tensor, entries: Tensor, k: int, present: Tensor | None = None, block: int | None = None
) -> tuple[Tensor, Tensor]:
    """(inner products [B, k], positions [B, k]) of the k largest, best first; -inf where `present` [N] is False.

    The base is read block by block: the largest intermediate is [B, block]. Entries in float16 are widened a block at a time.
    None: blocks for the device.
    """
    k = min(k, len(entries))
    block = block or _block_of(queries, entries)
    best_scores, best_positions = [], []
    for start in range(0, len(entries), block):
        part = entries[start : start + block]
        scores = _products(queries, part)
        if present is not None:
            scores.masked_fill_(~present[start : start + block], -torch.inf)
        values, where = _best_of(scores, min(k, len(part)))
        best_scores.append(values)
        best_positions.append(where + start)
    if len(best_scores) == 1:
        return best_scores[0], best_positions[0]
    values, where = torch.cat(best_scores, dim=1).topk(k, dim=1)
    return values, torch.cat(best_positions, dim=1).gather(1, where)


def _block_of(queries: Tensor, entries: Tensor) -> int:
    """Entries of a block."""
    if not entries.is_cuda:
        return BLOCK
    per_entry = max(len(queries), 0 if entries.dtype == queries.dtype else entries.shape[1], 1)
    return max(BLOCK, GPU_BLOCK // per_entry)


def _products(queries: Tensor, part: Tensor) -> Tensor:
    """Inner products [B, n]. On a CPU, rows of another number type are converted a few at a time, so that they fit its cache."""
    if part.dtype == queries.dtype or part.device.type != "cpu" or queries.requires_grad:
        return queries @ part.to(queries.dtype).T
    scores, wide = queries.new_empty(len(queries), len(part)), queries.new_empty(WIDENED, part.shape[1])
    for first in range(0, len(part), WIDENED):
        few = part[first : first + WIDENED]
        rows = wide[: len(few)].copy_(few)
        torch.mm(queries, rows.T, out=scores[:, first : first + len(few)])
    return scores


def _best_of(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(values, positions) [B, k] of the k largest of scores [B, n], best first.

    The k largest are in the k groups with the largest maxima: maxima are computed much faster than an order.
    """
    count = scores.shape[1] // GROUP
    if count < 4 * k:
        return scores.topk(k, dim=1)
    maxima = scores[:, : count * GROUP].unflatten(1, (count, GROUP)).amax(dim=2)
    groups = maxima.topk(k, dim=1).indices
    inside = (groups[:, :, None] * GROUP + torch.arange(GROUP, device=scores.device)).flatten(1)
    rest = torch.arange(count * GROUP, scores.shape[1], device=scores.device).expand(len(scores), -1)
    candidates = torch.cat([inside, rest], dim=1)
    values, where = scores.gather(1, candidates).topk(k, dim=1)
    return values, candidates.gather(1, where)


def fused_top_k(queries: Tensor, entries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`exact_top_k` of float32 tensors on the CPU by FAISS, which ranks a block's scores while they are in the cache.

    No index is built and nothing is copied: the base may be mapped, read-only memory.
    """
    rows, k = np.ascontiguousarray(queries.numpy(), dtype=np.float32), min(k, len(entries))
    with faiss_for_search() as faiss:
        values, positions = faiss.knn(rows, entries.numpy(), k, metric=faiss.METRIC_INNER_PRODUCT)
    return torch.from_numpy(values), torch.from_numpy(positions)


class SearchableRows:
    """A searchable matrix [N, D]: by matrix products on the device, or by a FAISS index if `index` holds one.

    Equal rows are found in the order of their index, on any device and with either library.
    """

    is_shared = False
    """Whether all workers search together."""

    def __init__(
        self,
        rows: NDArray[Any],
        present: NDArray[np.bool_] | None,
        device: torch.device,
        spec: SearchSpec,
        index: NDArray[np.uint8] | None = None,
        is_part: bool = False,
    ) -> None:
        """`is_part`: other parts may have rows equal to these, so that equal ones are ordered when results are merged."""
        self.rows = as_tensor(rows).to(device)
        self.equal = None if is_part else EqualRows(row_keys(rows, present), device)
        self.present = None if present is None or present.all() else torch.from_numpy(present.copy()).to(device)
        self.indexed = None if self.present is None else self.present.nonzero().squeeze(1)
        """The positions of an index's rows, which are those that are present; None: all."""
        self.index: Any = None
        self.on_gpu: Any = None
        self.is_exact = index is None or not len(index)
        if index is None:
            return
        if len(index):
            with faiss_for_search() as faiss:
                self.index = faiss.deserialize_index(np.array(index))
            if hasattr(self.index, "nprobe"):
                self.index.nprobe = spec.probes
            else:
                self.index.hnsw.efSearch = 4 * spec.probes
        elif spec.index == "flat" and len(indexed := rows if present is None else rows[present]):
            with faiss_for_search() as faiss:
                self.index = faiss.IndexFlatIP(rows.shape[1])
                self.index.add(np.ascontiguousarray(indexed, dtype=np.float32))
        if self.index is not None:
            self.on_gpu = searched_on(self.index, device)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, positions: Tensor) -> Tensor:
        """The rows at positions as float32 [*positions, D]; position -1 is any row."""
        flat = positions.clamp(min=0).flatten().to(self.rows.device)
        rows = self.rows.index_select(0, flat).float()
        return rows.to(positions.device).view(*positions.shape, -1)

    def top_k(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """(scores, positions), both [B, min(k, N)]; -inf and any position if there is none.

        Higher scores first, then smaller positions; equal rows by their index, however their scores were rounded (of those that
        an approximate index finds). FAISS and torch order equal scores each in its own way: so one more result is searched, and
        more if the last ones are equal.
        """
        found = self._best_first(queries, k) if self.is_exact else self._top_k(queries, k)
        return found if self.equal is None else self.equal.in_order(*found)

    def _best_first(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        N = len(self.rows)
        k, width = min(k, N), min(k + 1, N)
        while True:
            scores, positions = self._top_k(queries, width)
            ends = k == 0 or width == N or width > MOST_EQUAL
            if ends or not bool(((scores[:, k - 1] == scores[:, -1]) & (scores[:, -1] > -torch.inf)).any()):
                return best_first(scores, positions, k)
            width = min(2 * width, N)

    def _top_k(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """`top_k` with equal scores in any order."""
        if self.index is None:
            # FAISS can read the rows in place if they are float32 on the CPU and all present.
            is_plain = self.rows.device.type == "cpu" and self.rows.dtype == torch.float32 and self.present is None
            return fused_top_k(queries, self.rows, k) if is_plain else exact_top_k(queries, self.rows, k, self.present)
        k = min(k, len(self.rows))
        index = self.index if self.on_gpu is None or k > LARGEST_K else self.on_gpu
        with faiss_for_search():
            values, where = index.search(np.ascontiguousarray(queries.cpu().numpy(), dtype=np.float32), k)
        scores, positions = torch.from_numpy(values).to(queries.device), torch.from_numpy(where).to(queries.device)
        scores = scores.masked_fill(positions < 0, -torch.inf)
        positions = positions.clamp(min=0)
        return scores, positions if self.indexed is None else self.indexed[positions]


class SharedEntries(NamedTuple):
    """The entries of a base in parts; every worker reads the same ones at the same time."""

    ids: NDArray[np.bytes_]
    audio: EntriesAt
    text: list[EntriesAt]
    text_mask: NDArray[np.bool_]


class _ValueIndex:
    """The positions of each value in an array [N]."""

    def __init__(self, values: NDArray[Any]) -> None:
        # Not a sorted copy: the processes of a node share the values, but each would have its own copy.
        self.values = values
        self.order: NDArray[np.int32] | None = None
        """The positions that sort the values; None if they are sorted."""
        if not bool((values[1:] >= values[:-1]).all()):
            self.order = np.argsort(values, kind="stable").astype(np.int32)

    def positions_of(self, wanted: NDArray[Any]) -> Tensor:
        """Positions [B, E] of each wanted value [B], padded with -1; E is the largest number of one value."""
        first, last = self._ranks(wanted, np.less), self._ranks(wanted, np.less_equal)
        E = int((last - first).max(initial=0))
        positions = np.full((len(wanted), E), -1, dtype=np.int64)
        for offset in range(E):
            has = first + offset < last
            positions[has, offset] = self._position_of_rank(first[has] + offset)
        return torch.from_numpy(positions)

    def _position_of_rank(self, ranks: NDArray[np.int64]) -> NDArray[Any]:
        return ranks if self.order is None else self.order[ranks]

    def _ranks(self, wanted: NDArray[Any], is_before: Callable[..., Any]) -> NDArray[np.int64]:
        """Number of values before each wanted one. NumPy's `searchsorted` would first convert the order to 8 bytes an entry."""
        low, high = (np.full(len(wanted), end, dtype=np.int64) for end in (0, len(self.values)))
        while (is_open := low < high).any():
            middle = (low + high) // 2
            before = is_open & is_before(
                self.values[self._position_of_rank(middle.clip(max=len(self.values) - 1))], wanted
            )
            low, high = np.where(before, middle + 1, low), np.where(is_open & ~before, middle, high)
        return low


Rows = SearchableRows | ShardedRows


class Searcher:
    """A snapshot opened by one worker: tensors over its arrays (without a copy on the CPU), and its indices.

    If the snapshot is a part of a base, all workers search and look up together: every one makes the same calls.
    """

    def __init__(self, snapshot: Snapshot, spec: SearchSpec, device: torch.device | str = "cpu") -> None:
        self.snapshot, self.spec, self.device = snapshot, spec, torch.device(device)
        table = partial(SearchableRows, device=self.device, spec=spec)
        fine = partial(table, is_part=not snapshot.part.is_whole)
        masks = snapshot.text_mask[:, snapshot.rows]
        texts = zip(snapshot.text, masks, snapshot.text_index, strict=True)
        audio = fine(snapshot.audio, None, index=snapshot.audio_index)
        by_language = [fine(rows, mask, index=index) for rows, mask, index in texts]
        self.fine_audio: Rows = audio
        self.fine_text: Sequence[Rows] = by_language
        self.entries: Any = snapshot
        """All entries: `audio` [N, D], `text` [L, N, D], `text_mask` [L, N] and `ids` [N] (`in_utf8`), which can be indexed."""
        if not snapshot.part.is_whole:
            share = partial(ShardedRows, count=len(snapshot), exchange=Exchange(snapshot.part.of))
            keys = partial(row_keys, first=snapshot.rows.start)
            audio_parts = share(audio, keys(snapshot.audio, None))
            of_texts = zip(by_language, snapshot.text, masks, strict=True)
            text_parts = [share(shared, keys(rows, mask)) for shared, rows, mask in of_texts]
            self.fine_audio, self.fine_text = audio_parts, text_parts
            texts_at = [EntriesAt(rows) for rows in text_parts]
            self.entries = SharedEntries(snapshot.ids, EntriesAt(audio_parts), texts_at, snapshot.text_mask)
        self.coarse_audio = table(snapshot.coarse_audio, snapshot.coarse_audio_mask)
        self.coarse_text = [table(*part) for part in zip(snapshot.coarse_text, snapshot.coarse_mask, strict=True)]
        self._by_id, self._by_group = _ValueIndex(snapshot.ids), _ValueIndex(snapshot.groups)

    @torch.no_grad()
    def search(
        self,
        audio: Tensor,
        text: Tensor,
        mask: Tensor | None = None,
        own_ids: Sequence[str] | None = None,
        groups: Tensor | None = None,
    ) -> Positions:
        """The neighbours' positions for audio [B, D] and text [B, K, D] where mask [B, K] is True.

        The fine search does not find what the spec excludes: entries with the id of the query's clip (`own_ids` [B]), and
        those of its group of positives (`groups` int64 [B]).
        """
        B, K, _ = text.shape
        wanted = torch.ones(B, K, dtype=torch.bool, device=text.device) if mask is None else mask
        out = self._excluded(own_ids, groups)
        every = torch.ones(B, 1, dtype=torch.bool, device=audio.device)
        audio, text = audio.detach().float(), text.detach().float()
        of_audio: Sequence[Rows] = [self.fine_audio]
        of_text: Sequence[Rows] = self.fine_text
        if self.spec.across:
            of_audio, of_text = self.fine_text[:1], [self.fine_audio]
        return Positions(
            self._positions(of_audio, audio[:, None], every, out, self.spec.fine),
            self._positions(of_text, text, wanted, out, self.spec.fine),
            self._positions([self.coarse_audio], audio[:, None], every, None, self.spec.coarse),
            self._positions(self.coarse_text, text, wanted, None, self.spec.coarse),
        )

    def _excluded(self, own_ids: Sequence[str] | None, groups: Tensor | None) -> Tensor | None:
        """Positions [B, E] that are excluded, padded with -1; None if none are."""
        positions = []
        if self.spec.excluded != "nothing" and own_ids is not None:
            positions.append(self._by_id.positions_of(in_utf8(own_ids)))
        if self.spec.excluded == "positives" and groups is not None:
            positions.append(self._by_group.positions_of(groups.cpu().numpy()))
        return torch.cat(positions, dim=1) if positions else None

    def _positions(
        self, tables: Sequence[Rows], queries: Tensor, wanted: Tensor, own: Tensor | None, is_on: bool
    ) -> Tensor:
        B, Q, _ = queries.shape
        k = min(self.spec.neighbours, len(tables[0])) if is_on else 0
        positions = torch.full((B, Q, k), -1, dtype=torch.int64, device=queries.device)
        if k == 0:
            return positions
        for number, table in enumerate(tables):
            # A single table is for the queries of every language; otherwise each language has its own.
            is_searched = wanted if len(tables) == 1 else wanted & (torch.arange(Q, device=wanted.device) == number)
            clip, query = is_searched.nonzero(as_tuple=True)
            if len(clip) or table.is_shared:
                own_of = None if own is None else own.to(clip.device)[clip]
                positions[clip, query] = _without_own(table, queries[clip, query], k, own_of)
        return positions

    def look_up(self, positions: Positions) -> Retrieved:
        """The entries at the positions, as float32 on the positions' device."""
        return Retrieved(
            fine=_granularity(positions.fine_audio, positions.fine_text, self.fine_audio, self.fine_text),
            coarse=_granularity(positions.coarse_audio, positions.coarse_text, self.coarse_audio, self.coarse_text),
        )


def _granularity(by_audio: Tensor, by_text: Tensor, audio: Rows, texts: Sequence[Rows]) -> Granularity | None:
    if by_audio.shape[-1] == 0:
        return None
    text_of_audio = torch.cat([text.take(by_audio) for text in texts], dim=1)
    of_languages = (text.take(by_text[:, k : k + 1]) for k, text in enumerate(texts))
    text_of_text = texts[0].take(by_text) if len(texts) == 1 else torch.cat(list(of_languages), dim=1)
    return Granularity(
        Neighbours(audio.take(by_audio), text_of_audio, by_audio >= 0, entry=by_audio),
        Neighbours(audio.take(by_text), text_of_text, by_text >= 0, entry=by_text),
    )


def draw_from_pool(positions: Positions, ids: Sequence[str], count: int, seed: int, step: int) -> Positions:
    """`count` of the fine neighbours of each query, drawn anew at each step, the same on any number of workers (ANCE).

    The k-th clip's draws depend on (seed, step, its id) alone; entries that are absent are drawn last.
    """

    def drawn(neighbours: Tensor, kind: str) -> Tensor:
        B, Q, pool = neighbours.shape
        if pool <= count:
            return neighbours
        bits = hashes(ids, seed, "negatives", kind, step)[:, None] + np.arange(Q * pool, dtype=np.uint64) * GOLDEN
        keys = torch.from_numpy((_mixed(bits) >> np.uint64(11)).astype(np.int64)).view(B, Q, pool)
        order = keys.to(neighbours.device).masked_fill(neighbours < 0, 2**62).argsort(dim=2)
        return neighbours.gather(2, order[:, :, :count])

    of_audio, of_text = drawn(positions.fine_audio, "audio"), drawn(positions.fine_text, "text")
    return positions._replace(fine_audio=of_audio, fine_text=of_text)


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function: turns counters into unrelated bits, for a whole batch at once.

    NumPy's Philox would need a generator for each clip's key, of some 20 microseconds each.
    """
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def as_tensor(array: NDArray[Any]) -> Tensor:
    """A tensor over the memory of an array, which may be read-only: do not write to it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(np.asarray(array))


def _without_own(table: Rows, queries: Tensor, k: int, own: Tensor | None) -> Tensor:
    """Positions [n, k] of the best entries that are present and not the query's own; -1 beyond them."""
    extra = 0 if own is None else own.shape[1]
    scores, positions = table.top_k(queries, k + extra)
    if own is not None and extra:
        is_own = (positions[:, :, None] == own[:, None, :]).any(dim=2)
        scores = scores.masked_fill(is_own, -torch.inf)
        # Stable: what is left keeps its order.
        scores, order = scores.sort(dim=1, descending=True, stable=True)
        positions = positions.gather(1, order)
    positions = positions.masked_fill(scores == -torch.inf, -1)[:, :k]
    missing = k - positions.shape[1]
    return torch.nn.functional.pad(positions, (0, missing), value=-1) if missing else positions
