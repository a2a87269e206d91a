"""Whether what a text asks for is in an archive at all: decided by its best answers together.

One answer that scores high by chance is common among many windows; several are rare. How many answers are counted, and below
which mean score they say nothing, is fitted on texts whose matching clips are there and are then left out.

Shapes: M texts, N clips.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_atr.metrics.relevance import Relevance

COUNTS = (1, 3, 5)
FALSE_SHARE = 0.05
"""Of the texts whose matching clips are there, so many find nothing, unless another share is stated."""
Floats = NDArray[np.float64]


class Evidence(NamedTuple):
    """Mean scores of the best 1, 3 and 5 answers [counts, M], with the clips that match and without them."""

    there: Floats
    absent: Floats


def evidence(scores: NDArray[np.floating], relevance: Relevance) -> Evidence:
    """The evidence of scores [M, N], of the texts for which one clip or more matches and one or more does not."""
    match = np.zeros(scores.shape, bool)
    match[relevance.text.numpy(), relevance.clip.numpy()] = True
    own = match.any(axis=1) & ~match.all(axis=1)
    others = np.where(match, -np.inf, scores)[own]
    return Evidence(means_of_best(scores[own]), means_of_best(others))


def means_of_best(scores: NDArray[np.floating]) -> Floats:
    """Means [counts, M] of the best 1, 3 and 5 of scores [M, N], or of all that are finite if there are fewer."""
    best = -np.sort(-scores.astype(np.float64), axis=1)[:, : max(COUNTS)]
    known = np.isfinite(best)
    sums, numbers = np.cumsum(np.where(known, best, 0.0), axis=1), np.cumsum(known, axis=1)
    columns = [min(count, best.shape[1]) - 1 for count in COUNTS]
    return (sums[:, columns] / numbers[:, columns]).T


def fit_nothing(found: Evidence, false_share: float = FALSE_SHARE) -> tuple[int, float]:
    """How many answers are counted, and below which mean score there is nothing: a share `false_share` of the texts whose
    matching clips are there finds nothing among the pairs of the fit.

    As many as set what is there farthest apart from what is not, in units of the spread of both: shares of right decisions
    say nothing where a model is nearly perfect on the pairs of the fit.
    """
    apart = found.there.mean(axis=1) - found.absent.mean(axis=1)
    spread = np.sqrt(found.there.var(axis=1) + found.absent.var(axis=1)) + np.finfo(np.float64).tiny
    place = int((apart / spread).argmax())
    return COUNTS[place], float(np.quantile(found.there[place], false_share, method="lower"))
