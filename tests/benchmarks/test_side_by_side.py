"""The peaks of memory that benchmarks report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from Linux's /proc")
MIB = 2**20
FOLDER = Path(__file__).parents[2] / "benchmarks"


def of_another_process(code: str) -> list[int]:
    """The numbers that a new process prints, which has `side_by_side` and none of this one's memory."""
    begin = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import numpy as np; from side_by_side import *\n"
    printed = subprocess.run([sys.executable, "-c", begin + code], capture_output=True, text=True, check=True).stdout
    return [int(number) for number in printed.split()]


def test_a_second_peak_that_is_no_higher_than_the_first_is_seen() -> None:
    peak = f"forget_peak(); before = peak_resident_bytes(); np.ones({64 * MIB // 8}).sum()\n"
    first, second = of_another_process(2 * (peak + "print(peak_resident_bytes() - before)\n"))
    assert min(first, second) > 60 * MIB


def test_a_process_does_not_begin_with_the_peak_of_the_one_that_started_it() -> None:
    from side_by_side import peak_resident_bytes

    held = np.ones(512 * MIB // 8)
    here = peak_resident_bytes()
    (there,) = of_another_process("print(peak_resident_bytes())")
    assert there < here - held.nbytes // 2
