"""The peaks of memory that benchmarks report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from Linux's /proc")
MIB = 2**20


def test_a_second_peak_that_is_no_higher_than_the_first_is_seen() -> None:
    from side_by_side import forget_peak, peak_resident_bytes

    for _ in range(2):
        forget_peak()
        before = peak_resident_bytes()
        np.ones(64 * MIB // 8).sum()
        assert peak_resident_bytes() - before > 60 * MIB


def test_a_process_does_not_begin_with_the_peak_of_the_one_that_started_it() -> None:
    from side_by_side import peak_resident_bytes

    held = np.ones(512 * MIB // 8)
    here = peak_resident_bytes()
    folder = Path(__file__).parents[2] / "benchmarks"
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import side_by_side; print(side_by_side.peak_resident_bytes())"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(there) < here - held.nbytes // 2
