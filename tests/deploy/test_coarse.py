"""Many queries by way of rows in 8 bits: the answer is that of an exact search, also where rows are too close for 8 bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ray_atr.common.eight_bits import eight_bits_are_fast
from ray_atr.deploy.index.coarse import CoarseRows

N, WIDTH = 3_000, 24


def spread(random: np.random.Generator) -> np.ndarray:
    return random.standard_normal((N, WIDTH))


def crowded(random: np.random.Generator) -> np.ndarray:
    """All rows within less than the steps of 8 bits."""
    return random.standard_normal(WIDTH) + 1e-3 * random.standard_normal((N, WIDTH))


def uneven(random: np.random.Generator) -> np.ndarray:
    """One long number in each row, so that the others are rounded coarsely; rows of all lengths, some 0, some equal."""
    rows = random.standard_normal((N, WIDTH)) * np.where(np.arange(WIDTH) == 3, 100, 1)
    rows *= 10 ** random.uniform(-3, 1, (N, 1))
    rows[5:9] = 0
    rows[20:30] = rows[10:20]
    return rows


@pytest.mark.parametrize("made", [spread, crowded, uneven])
@pytest.mark.parametrize("k", [1, 10, 500])
def test_it_finds_what_a_plain_search_finds(made, k: int) -> None:
    random = np.random.default_rng(0)
    rows = made(random).astype(np.float16)
    queries = np.concatenate([random.standard_normal((66, WIDTH)), rows[:5]]).astype(np.float32)
    scores, found = CoarseRows(rows, block=256).nearest(queries, k)  # several blocks, the last not full
    exact = queries.astype(np.float64) @ rows.astype(np.float64).T
    order = np.argsort(-exact, axis=1, kind="stable")[:, :k]
    best = np.take_along_axis(exact, order, 1)
    largest = np.abs(exact).max(axis=1, keepdims=True) + 1e-12
    assert np.abs((scores - best) / largest).max() < 1e-5
    # Where another row stands, it is as good but for the last digits of 32 bits.
    assert np.abs((np.take_along_axis(exact, found, 1) - best) / largest).max() < 1e-5
    assert (np.sort(found, axis=1)[:, 1:] != np.sort(found, axis=1)[:, :-1]).all()
    if made is spread and k <= 10:
        assert np.array_equal(found, order)


def test_fewer_rows_than_candidates() -> None:
    rows = np.eye(3, WIDTH, dtype=np.float16)
    scores, found = CoarseRows(rows).nearest(rows[::-1].astype(np.float32), 3)
    assert np.array_equal(found, [[2, 0, 1], [1, 0, 2], [0, 1, 2]])
    assert np.array_equal(scores, [[1, 0, 0]] * 3)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="a torch without oneDNN")
@pytest.mark.parametrize("has_vnni", [False, True])
def test_eight_bits_are_for_processors_that_multiply_them(monkeypatch: pytest.MonkeyPatch, has_vnni: bool) -> None:
    """AVX2 alone is not enough: there torch multiplies them in a plain loop."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "avx512_vnni": has_vnni})
    assert eight_bits_are_fast() == has_vnni
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert not eight_bits_are_fast(), "an older torch does not tell"
