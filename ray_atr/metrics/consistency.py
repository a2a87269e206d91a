"""How far languages agree (rank variance, gap and distance from English), and how far audio is from text."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch

from ray_atr.metrics.arrays import Array, as_floats, as_matrix
from ray_atr.settings import refuse

A = TypeVar("A", torch.Tensor, np.ndarray)


def mean_rank_variance(ranks: Array) -> float:
    """Mean over queries i and languages k of (rank_ik - mean_k rank_ik)^2, ranks [N, K] (Yin et al. 2025, Eq. 16).

    The same whether ranks count from 0 or from 1; 0 when every query has one rank in all languages.
    """
    return float(rank_variance_by_language(ranks).mean())


def rank_variance_by_language(ranks: Array) -> np.ndarray:
    """The part of each language k in the mean rank variance: mean over i of (rank_ik - mean_k rank_ik)^2, [K]."""
    values = as_floats("ranks", ranks).double()
    if values.ndim != 2 or 0 in values.shape:
        raise refuse("ranks.shape", tuple(values.shape), "[N queries, K languages]")
    return (values - values.mean(1, keepdim=True)).square().mean(0).cpu().numpy()


def language_gap(text: A) -> A:
    """Norm of the difference of the mean English and mean language-k embedding, text [N, K, D] -> [K], k = 0 English.

    Yin et al. 2025, Eq. 14. Rows are taken as given (a retriever's are unit norm). Entry 0 is 0.
    """
    mean = _texts(text).double().mean(0)
    return _like(text, (mean - mean[:1]).norm(dim=-1))


def language_distance(text: A) -> A:
    """Mean norm of the difference of paired English and language-k embeddings, text [N, K, D] -> [K], k = 0 English.

    Yin et al. 2025, Eq. 15. Rows are taken as given. Entry 0 is 0; never below `language_gap`.
    """
    texts = _texts(text).double()
    return _like(text, (texts - texts[:, :1]).norm(dim=-1).mean(0))


def modality_gap(audio: Array, text: Array) -> float:
    """Norm of the difference of the mean audio [N, D] and mean text [M, D] embedding (Luong et al. 2024, section 5.1).

    Rows are taken as given: for unit rows it is between 0 and 2.
    """
    clips = as_matrix("audio", audio)
    texts = as_matrix("text", text, clips.shape[1]).to(clips.device)
    return float((clips.double().mean(0) - texts.double().mean(0)).norm())


def _texts(text: Array) -> torch.Tensor:
    values = as_floats("text", text)
    if values.ndim != 3 or 0 in values.shape:
        raise refuse("text.shape", tuple(values.shape), "[N texts, K languages, D]")
    return values


def _like(given: A, values: torch.Tensor) -> A:
    return values if isinstance(given, torch.Tensor) else values.cpu().numpy()
