"""Exact ranks by counting: how many candidates score above a relevant one, and how many tie with it.

Scores are cosines. They are computed block by block in float32 on the device, so that the full matrix is never in memory. Scores
too near to a relevant one for float32 to order them are computed again in float64. The counts are therefore those of the exact
cosines of the given rows: the same at any block size, on any device, and equal rows always tie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from ray_atr.common.settings import refuse
from ray_atr.metrics.relevance import Array, Relevance, as_floats, as_matrix, as_relevance

# Two float64 cosines nearer than this are equal: rounding in float64 stays below 1e-15 for unit rows.
TIE = 1e-12
BLOCK_SIDE_CPU = 1024  # a block of scores that stays in a core's cache
BLOCK_SIDE_GPU = 4096
# From this number of relevant pairs on, a query's scores are sorted and searched for each pair, instead of compared with it.
MANY_PAIRS = 128


Exact = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class PairRanks(NamedTuple):
    """For each relevant pair, the candidates above it and those that tie with it (itself included), int64 [P]."""

    greater: torch.Tensor
    tied: torch.Tensor


class BothRanks(NamedTuple):
    """Ranks of every relevant pair in both directions."""

    text_to_audio: PairRanks
    audio_to_text: PairRanks


def count_ranks(
    text: Array,
    audio: Array,
    relevance: Relevance,
    *,
    is_cosine: bool = True,
    device: torch.device | str | None = None,
) -> BothRanks:
    """Ranks of the relevant pairs among all candidates by cosine, in both directions from one pass over the scores.

    `text` [M, D] and `audio` [N, D] need not be unit rows; a zero row has cosine 0 with everything. With `is_cosine` False
    rows are not normalised, and ranked by inner product. They are copied to `device` (default: that of `audio`) block by block.
    The pass also needs a few blocks of scores, and some hundred bytes for each row or pair. ValueError for a row
    that is not finite.
    """
    audio_matrix = as_matrix("audio", audio)
    text_matrix = as_matrix("text", text, audio_matrix.shape[1])
    relevance = as_relevance(relevance, len(text_matrix), len(audio_matrix))
    device = torch.device(device) if device is not None else audio_matrix.device
    side = BLOCK_SIDE_CPU if device.type == "cpu" else BLOCK_SIDE_GPU
    texts = _Rows("text", text_matrix, device, is_unit=is_cosine)
    clips = _Rows("audio", audio_matrix, device, is_unit=is_cosine)
    pairs = zip(relevance.text.split(side), relevance.clip.split(side), strict=True)
    score = torch.cat([_dots(texts.pick(text), clips.pick(clip)) for text, clip in pairs])
    # Worst rounding of a float32 inner product of unit rows grows like sqrt(D) units of 2^-24; four times that is safe.
    size = texts.largest * clips.largest
    margin = size * max(1e-6, 4 * audio_matrix.shape[1] ** 0.5 * 2.0**-24)
    by_text = _Counter(relevance.text, relevance.clip, score, margin, size * TIE)
    by_clip = _Counter(relevance.clip, relevance.text, score, margin, size * TIE)
    with full_float32(device):
        for first_text in range(0, len(text_matrix), side):
            rows = texts.block(first_text, first_text + side)
            for first_clip in range(0, len(audio_matrix), side):
                columns = clips.block(first_clip, first_clip + side)
                scores, exact = rows @ columns.T, _Exact(rows, columns)
                by_text.add(scores, exact, first_text, first_clip)
                # Contiguous: indexing the transposed view is thirty times slower.
                by_clip.add(scores.T.contiguous(), _transposed(exact), first_clip, first_text)
    return BothRanks(by_text.ranks(), by_clip.ranks())


def count_ranks_of_matrix(scores: Array, relevance: Relevance, *, tie: float = 0.0) -> BothRanks:
    """Ranks of the relevant pairs in a given score matrix [M texts, N clips]; scores within `tie` of each other tie."""
    matrix = as_floats("scores", scores)
    if matrix.ndim != 2:
        raise refuse("scores.shape", tuple(matrix.shape), "[texts, clips]")
    relevance = as_relevance(relevance, *matrix.shape)
    if bool(matrix.isnan().any()):
        raise refuse("scores", "NaN", "numbers")
    score = matrix[relevance.text.to(matrix.device), relevance.clip.to(matrix.device)].double()
    by_text = _Counter(relevance.text, relevance.clip, score, tie, tie)
    by_clip = _Counter(relevance.clip, relevance.text, score, tie, tie)
    for number, block in enumerate(matrix.split(BLOCK_SIDE_CPU)):
        first_text = number * BLOCK_SIDE_CPU
        by_text.add(block, _entries(block), first_text, 0)
        by_clip.add(block.T.contiguous(), _entries(block.T), 0, first_text)
    return BothRanks(by_text.ranks(), by_clip.ranks())


class _Rows:
    """Rows of a matrix, scaled to unit norm with `is_unit`, block by block, without a scaled copy of the matrix."""

    def __init__(self, path: str, matrix: torch.Tensor, device: torch.device, *, is_unit: bool) -> None:
        self.matrix, self.device = matrix, device
        norms = torch.cat([rows.to(device).double().norm(dim=1) for rows in matrix.split(8192)])
        if not bool(norms.isfinite().all()):
            bad = int((~norms.isfinite()).nonzero()[0])
            raise refuse(f"{path}[{bad}]", "a row with NaN or infinity", "finite embeddings")
        self.scale = torch.where(norms > 0, 1 / norms, 0.0) if is_unit else torch.ones_like(norms)
        self.largest = 1.0 if is_unit else float(norms.max())

    def block(self, start: int, stop: int) -> torch.Tensor:
        rows = self.matrix[start:stop].to(self.device).double()
        return (rows * self.scale[start:stop, None]).float()

    def pick(self, index: torch.Tensor) -> torch.Tensor:
        rows = self.matrix[index.to(self.matrix.device)].to(self.device).double()
        return (rows * self.scale[index.to(self.device), None]).float()


class _Exact:
    """Cosines of a block in float64, for indices of rows and columns."""

    def __init__(self, rows: torch.Tensor, columns: torch.Tensor) -> None:
        self.rows, self.columns = rows, columns

    def __call__(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        # A collapsed model needs all of the block: one product is then much faster than gathering each pair's rows.
        if len(rows) * 16 > len(self.rows) * len(self.columns):
            return self._all[rows, columns]
        pieces = max(1, 2**22 // self.rows.shape[1])
        pairs = zip(rows.split(pieces), columns.split(pieces), strict=True)
        return torch.cat([_dots(self.rows[i], self.columns[j]) for i, j in pairs])

    @cached_property
    def _all(self) -> torch.Tensor:
        return self.rows.double() @ self.columns.double().T


def _entries(scores: torch.Tensor) -> Exact:
    return lambda rows, columns: scores[rows, columns].double()


def _transposed(exact: Exact) -> Exact:
    return lambda rows, columns: exact(columns, rows)


class _Counter:
    """Counts, over blocks of scores, the candidates above each relevant pair of a query, and those that tie with it."""

    def __init__(
        self, query: torch.Tensor, candidate: torch.Tensor, score: torch.Tensor, margin: float, tie: float
    ) -> None:
        device = score.device
        self.query, self.candidate, self.score = query.to(device), candidate.to(device), score
        self.margin, self.tie = margin, tie
        self.greater = torch.zeros(len(score), dtype=torch.int64, device=device)
        self.tied = torch.zeros_like(self.greater)
        self.levels, self.many = _levels(query, device)

    def add(self, block: torch.Tensor, exact: Exact, first_query: int, first_candidate: int) -> None:
        """Count in a block of scores [queries, candidates]; `exact(rows, columns)` are its scores in float64."""
        num_queries = len(block)
        flags = torch.empty_like(block)
        for queries, pairs_of in self.levels:
            start, stop = np.searchsorted(queries, (first_query, first_query + num_queries))
            if start == stop:
                continue
            pairs = pairs_of[start:stop]
            has_all = stop - start == num_queries
            scores = block if has_all else block[self.query[pairs] - first_query]
            flag = flags if has_all else torch.empty_like(scores)
            low, high = self._band(pairs, scores.dtype)
            above = _count(torch.gt(scores, high[:, None], out=flag))
            near = _count(torch.ge(scores, low[:, None], out=flag)) - above
            self._add(block, exact, pairs, above, near, first_query, first_candidate)
        queries, pairs_of_many = self.many
        start, stop = np.searchsorted(queries, (first_query, first_query + num_queries))
        for pairs in pairs_of_many[start:stop]:
            rising = block[self.query[pairs[0]] - first_query].sort().values
            low, high = self._band(pairs, rising.dtype)
            above = len(rising) - torch.searchsorted(rising, high, right=True)
            near = len(rising) - torch.searchsorted(rising, low) - above
            self._add(block, exact, pairs, above, near, first_query, first_candidate)

    def _add(
        self,
        block: torch.Tensor,
        exact: Exact,
        pairs: torch.Tensor,
        above: torch.Tensor,
        near: torch.Tensor,
        first_query: int,
        first_candidate: int,
    ) -> None:
        """`above` and `near` [P]: the block's candidates that score above a pair by more than the margin, and within it."""
        num_candidates = block.shape[1]
        candidate = self.candidate[pairs]
        is_candidate = ((candidate >= first_candidate) & (candidate < first_candidate + num_candidates)).long()
        is_alone = near == is_candidate  # nothing but the relevant candidate itself is within the margin
        self.greater[pairs] += above
        self.tied[pairs] += is_candidate * is_alone
        open_pairs = pairs[~is_alone]
        for part in open_pairs.split(BLOCK_SIDE_CPU) if len(open_pairs) else ():
            self._count_exactly(block, exact, self.query[part] - first_query, part)

    def _count_exactly(self, block: torch.Tensor, exact: Exact, rows: torch.Tensor, pairs: torch.Tensor) -> None:
        """Count in float64 the candidates within the margin of the relevant one."""
        scores = block[rows]
        low, high = self._band(pairs, scores.dtype)
        which, candidate = ((scores >= low[:, None]) & (scores <= high[:, None])).nonzero(as_tuple=True)
        difference = exact(rows[which], candidate) - self.score[pairs[which]]
        self.greater.index_add_(0, pairs[which], (difference > self.tie).long())
        self.tied.index_add_(0, pairs[which], (difference.abs() <= self.tie).long())

    def _band(self, pairs: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        score = self.score[pairs]
        return (score - self.margin).to(dtype), (score + self.margin).to(dtype)

    def ranks(self) -> PairRanks:
        return PairRanks(self.greater.cpu(), self.tied.cpu())


def _count(flags: torch.Tensor) -> torch.Tensor:
    # Summing floats is several times faster than summing booleans, and exact below 2^24 columns.
    return flags.sum(1).long()


_Levels = list[tuple[np.ndarray, torch.Tensor]]


def _levels(query: torch.Tensor, device: torch.device) -> tuple[_Levels, tuple[np.ndarray, list[torch.Tensor]]]:
    """([(queries in order, the r-th relevant pair of each) for each r], (queries of many pairs, the pairs of each)).

    Queries of many pairs are in no level.
    """
    order = torch.argsort(query, stable=True)
    ordered = query[order].numpy()
    first, size = np.searchsorted(ordered, ordered), np.bincount(ordered)[ordered]
    is_many = size >= MANY_PAIRS
    starts = np.unique(first[is_many])
    many = ordered[starts], [order[start : start + size[start]].to(device) for start in starts]
    few = np.flatnonzero(~is_many)
    occurrence = few - first[few]
    by_level = few[np.argsort(occurrence, kind="stable")]
    bounds = np.cumsum(np.bincount(occurrence))[:-1]
    return [(ordered[part], order[part].to(device)) for part in np.split(by_level, bounds)], many


def _dots(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Inner products of paired rows, float64."""
    return (a.double() * b).sum(1)


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """Products in true float32: TF32 and bfloat16 shortcuts change 4-36% of the ranks and flatter recall."""
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    before = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "ieee"
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
