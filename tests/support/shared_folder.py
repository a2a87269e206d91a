"""Where the real data is that tests use if it is there."""

from __future__ import annotations

import os
from pathlib import Path

SHARED = Path(os.environ.get("RAY_ATR_SHARED", Path(__file__).resolve().parents[3] / "shared"))
