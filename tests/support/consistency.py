"""How far languages agree and how far audio is from text, as the papers' formulas over whole arrays."""

from __future__ import annotations

import numpy as np


def mean_rank_variance(ranks: np.ndarray) -> float:
    """Mean over queries i and languages k of (rank_ik - mean_k rank_ik)^2, ranks [N, K] (Yin et al. 2025, Eq. 16)."""
    return float(np.var(ranks, axis=1).mean())


def language_gap(text: np.ndarray) -> np.ndarray:
    """Norm of the difference of the mean English and mean language-k embedding, text [N, K, D] -> [K], k = 0 English.

    Yin et al. 2025, Eq. 14. Rows are taken as given.
    """
    mean = text.mean(0)
    return np.linalg.norm(mean - mean[:1], axis=-1)


def language_distance(text: np.ndarray) -> np.ndarray:
    """Mean norm of the difference of paired English and language-k embeddings, text [N, K, D] -> [K] (Eq. 15)."""
    return np.linalg.norm(text - text[:, :1], axis=-1).mean(0)


def modality_gap(audio: np.ndarray, text: np.ndarray) -> float:
    """Norm of the difference of the mean audio [N, D] and mean text [M, D] embedding (Luong et al. 2024, section 5.1)."""
    return float(np.linalg.norm(audio.mean(0) - text.mean(0)))
