"""Equal entries of a base are found in the order of their places, whichever search finds them and however it rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from ray_atr.objectives.knowledge.knowledge import SearchSpec, SnapshotSettings
from ray_atr.training.knowledge_base import searcher
from ray_atr.training.knowledge_base.building import build
from ray_atr.training.knowledge_base.equal_rows import EqualRows
from ray_atr.training.knowledge_base.searcher import SearchableRows
from ray_atr.training.knowledge_base.snapshot import Entries

N, D, K = 120, 24, 7


def texts() -> NDArray[np.float32]:
    """Rows of which every fourth is one of six, so that some 5 are equal."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(N, D)).astype(np.float32)
    rows[::4] = random.normal(size=(6, D))[random.integers(0, 6, len(rows[::4]))]
    return rows


def queries() -> torch.Tensor:
    return normalize(torch.randn(40, D, generator=torch.Generator().manual_seed(1)), dim=1)


def by_loop(query: NDArray[Any], rows: NDArray[Any], present: NDArray[np.bool_]) -> list[int]:
    """Places of the best rows that are there, equal ones in their order."""
    found = [(-round(sum(map(float, query.astype(float) * row.astype(float))), 6), n) for n, row in enumerate(rows)]
    return [place for score, place in sorted(found) if present[place]][:K]


@pytest.mark.parametrize("storage", ["float32", "float16"])
@pytest.mark.parametrize("index", ["exact", "flat", "ivf", "hnsw"])
@pytest.mark.parametrize("is_whole", [True, False], ids=["all there", "some absent"])
def test_equal_rows_are_found_by_their_places(index: str, storage: str, is_whole: bool) -> None:
    present = np.ones(N, bool) if is_whole else np.arange(N) % 5 != 0
    entries = Entries(texts(), texts()[None], [str(n) for n in range(N)], present[None])
    snapshot = build(entries, SnapshotSettings(prototypes=0, index=index, storage=storage))
    # Every list and every link: only the order of equals is at stake.
    spec = SearchSpec(K, index, 1000)
    rows = SearchableRows(snapshot.text[0], snapshot.text_mask[0], torch.device("cpu"), spec, snapshot.text_index[0])
    asked = queries()
    scores, places = rows.top_k(asked, K)
    for row, query in enumerate(asked.numpy()):
        assert places[row].tolist() == by_loop(query, snapshot.text[0].astype(np.float32), present)
    # One at a time, scores are summed otherwise.
    alone = torch.cat([rows.top_k(query[None], K)[1] for query in asked])
    assert torch.equal(alone, places)
    assert bool((scores.diff(dim=1) <= 1e-6).all())


def test_both_searches_find_the_same_when_scores_are_rounded_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = SearchableRows(texts(), None, torch.device("cpu"), SearchSpec(K, "exact", 1))
    found = rows.top_k(queries(), K)[1]
    noise = 1e-6 * torch.randn(N, generator=torch.Generator().manual_seed(2))

    def rounded(asked: torch.Tensor, entries: torch.Tensor, k: int, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return (asked @ entries.T + noise).topk(k, dim=1)

    for search in (searcher.exact_top_k, rounded):
        monkeypatch.setattr(searcher, "fused_top_k", search)
        assert torch.equal(rows.top_k(queries(), K)[1], found)


@pytest.mark.parametrize("repeated", [0, 10, N])
def test_kept_are_only_rows_that_have_an_equal(repeated: int) -> None:
    """Of 4 bytes each: their places twice, and their groups."""
    keys = np.arange(N, dtype=np.uint64)
    keys[N - repeated :] = np.arange(repeated) // 2 + 2 * N
    kept = [value for value in vars(EqualRows(keys, torch.device("cpu"))).values() if isinstance(value, torch.Tensor)]
    assert sum(tensor.nbytes for tensor in kept) == 3 * 4 * repeated + 2 * 4 * (repeated // 2)


def test_fewer_rows_than_are_asked_for() -> None:
    rows = SearchableRows(np.ones((3, D), np.float32), None, torch.device("cpu"), SearchSpec(K, "exact", 1))
    assert rows.top_k(queries()[:2], K)[1].tolist() == [[0, 1, 2], [0, 1, 2]]
