"""Which texts are most alike: word and letter statistics, no model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ROWS_AT_A_TIME = 1024


def nearest_texts(texts: Sequence[str], count: int) -> NDArray[np.int64]:
    """For each text the `count` most similar ones that are not equal to it, best first, [N, count]; -1 if there are fewer.

    Cosine of TF-IDF vectors over words and pairs of words (scikit-learn); of equally similar ones the earlier comes first.
    """
    # A second of import that only this kind of noise needs.
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectors = TfidfVectorizer(token_pattern=r"(?u)\b\w+\b|[^\x00-\x7f]", ngram_range=(1, 2)).fit_transform(texts)
    folded = np.array([" ".join(text.casefold().split()) for text in texts])
    _, group = np.unique(folded, return_inverse=True)
    nearest = np.full((len(texts), count), -1, np.int64)
    for start in range(0, len(texts), ROWS_AT_A_TIME):
        rows = slice(start, start + ROWS_AT_A_TIME)
        scores = (vectors[rows] @ vectors.T).toarray()
        scores[group[rows][:, None] == group] = -1.0
        order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        found = np.take_along_axis(scores, order, axis=1) >= 0
        nearest[rows, : order.shape[1]] = np.where(found, order, -1)
    return nearest
