"""Whether every combination is tested, or some that hold each pair of choices: RAY_ATR_WHOLE_PRODUCT=1."""

from __future__ import annotations

import os

import pytest

IS_WHOLE = os.environ.get("RAY_ATR_WHOLE_PRODUCT") == "1"
ONLY_IN_WHOLE = pytest.mark.skipif(
    not IS_WHOLE, reason="what it consists of is in other cases: RAY_ATR_WHOLE_PRODUCT=1"
)
