"""What the benchmark of a search prints of its classes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tests.support.scripts import load_script


def test_an_interval_over_classes_is_the_binomial_one() -> None:
    shown = load_script("benchmarks/search_esc50.py").shown
    hits = np.arange(50) < 40
    value, low, high = (float(part.strip("(,)")) for part in shown(hits).split())
    assert value == 0.8
    # Steps of one class in 50, and draws.
    assert [low, high] == pytest.approx(stats.binom(50, 0.8).ppf([0.025, 0.975]) / 50, abs=0.021)
    assert shown(np.ones(50)) == "1.000 (1.000, 1.000)"
