"""Ridge regression of captions' vectors on clips' vectors: the caption that is expected of a clip by the other clips' captions.

The strength of the ridge is the one whose predictions with each row left out are the best (Allen's PRESS), which is known
from one decomposition: the more is wrong, the stronger it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Of the ridge, in mean eigenvalues of the clips' covariance."""
ROWS = 2000
"""Most rows that the strength is chosen on."""
TINY = 1e-12


class Ridge:
    """Ridge regressions on rows [n, D]; the strength is the one whose left-out predictions are the best."""

    def __init__(self, rows: Floats) -> None:
        self.centre = rows.mean(axis=0)
        values, self.vectors = np.linalg.eigh((rows - self.centre).T @ (rows - self.centre))
        values = np.maximum(values, 0)
        self.rotated = (rows - self.centre) @ self.vectors
        strengths = np.array(STRENGTHS) * max(float(values.mean()), TINY)
        self.shrunk = [1 / (values + strength) for strength in strengths]
        self.sampled = slice(None, None, -(-len(rows) // ROWS))

    def left_out(self, targets: Floats) -> Floats:
        """The prediction for each row, [n, W], from the targets [n, W] of the other rows, less the mean of these.

        So it holds nothing of the row's own target. The others' mean alone would make that one the least likely of all, and a
        regression around the mean of all rows has it as minus the sum of the others, which is all it needs where rows are few.
        """
        wanted, product, shrunk = self.fit(targets)
        num_others = max(len(wanted) - 1, 1)
        return (1 + 1 / num_others) * wanted - self._errors(wanted, product, shrunk, slice(None))

    def fit(self, targets: Floats) -> tuple[Floats, Floats, Floats]:
        """Take the targets [n, W] of the rows; returns them less their mean, their product with the rows, and the factors of the
        strength that was chosen.
        """
        wanted = targets - targets.mean(axis=0)
        product = self.rotated.T @ wanted
        errors = [float((self._errors(wanted, product, factors, self.sampled) ** 2).sum()) for factors in self.shrunk]
        shrunk = self.shrunk[int(np.argmin(errors))]
        self.weights = shrunk[:, None] * product
        return wanted, product, shrunk

    def predicted(self, rows: Floats) -> Floats:
        """The targets [h, W], less their mean, of rows [h, D] that were not among those fitted, by the last targets."""
        return self.rotated_as_fitted(rows) @ self.weights

    def rotated_as_fitted(self, rows: Floats) -> Floats:
        """Rows [h, D] less the mean of those fitted, along the main directions of these, [h, D]."""
        return np.asarray((rows - self.centre) @ self.vectors)

    def _errors(self, wanted: Floats, product: Floats, shrunk: Floats, rows: slice) -> Floats:
        """The error of each left-out prediction: the residual, divided by 1 - leverage, the mean's included."""
        rotated = self.rotated[rows]
        leverage = 1 / len(self.rotated) + np.einsum("nd,nd->n", rotated * shrunk, rotated)
        errors = wanted[rows] - rotated @ (shrunk[:, None] * product)
        return np.asarray(errors / np.maximum(1 - leverage, TINY)[:, None])


def deviations(text: Floats, predicted: Floats) -> Floats:
    """The deviation over the clips of the product of each caption [M, W] with what is predicted for them, [n, W]."""
    covariance = np.cov(predicted.T, ddof=0)
    deviation = np.sqrt(np.maximum(np.einsum("mw,mw->m", text @ np.atleast_2d(covariance), text), 0))
    return np.asarray(np.maximum(deviation, TINY + 1e-3 * deviation.max(initial=0)))


def mean_caption(clip: Integers, text: Floats) -> tuple[Integers, Floats]:
    """The clips [n] that have one of these captions [m], and the mean of each one's, [n, E]."""
    clips, place = np.unique(clip, return_inverse=True)
    total = np.zeros((len(clips), text.shape[1]))
    np.add.at(total, place, text)
    return clips, total / np.bincount(place, minlength=len(clips))[:, None]


def of_unit_norm(rows: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), TINY))
