"""A clip's log-mel frames, cut to one window."""

from __future__ import annotations

import numpy as np

from ray_atr.data.audio import FrontEnd, clip_windows


def clip_features(data: bytes, front_end: FrontEnd) -> np.ndarray:
    """Log-mel frames [T, F] of an encoded clip, cut to one window."""
    return next(clip_windows(data, front_end, all_windows=False))
