"""How well captions fit clips by two regressions that saw neither: of captions on clips, and of clips on captions. This is ours.

Of the other clips and their captions in one language, as vectors of encoders that do not know the pairs:

    s_ic   the fit of caption c to the caption that the first regression expects of clip i, and b_i, the probability that the
           clip's own is right, left out itself (`left_out`, its first round)
    a_c    the clip that a ridge regression of clips on captions expects of caption c, by the pairs with b_i > 1/2
    d_ic   log density of clip i in a normal distribution around a_c, with the covariance of the regression's left-out errors
    f_ic   w s_ic / tau + d_ic / tau'
    fit    log p(c | i) / p(c), p(c | i) = p(c) exp(f_ic) / sum over captions e of p(e) exp(f_ie)

tau and tau' are the most likely ones, each by itself. The first regression is robust to wrong captions. The second knows how
clips of a caption spread, and is not robust, so it is fitted to the pairs that the first gives a probability above 1/2, and
again to those whose mean probability by both is above 1/2. Both read the same vectors and err together, so that the first has
the weight w. Neither saw a held-out clip or which caption it has, so that a wrong pair is a random mispair to both. The
covariance has three times its mean variance added in each direction, as there are fewer pairs than directions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_atr.objectives.correspondence.clean_share import MISPAIRS
from ray_atr.objectives.correspondence.cross_fit import Keys
from ray_atr.objectives.correspondence.left_out import (
    LEAST_SHARE,
    clean_probability,
    left_out_captions,
    likeliest,
    log_totals,
    main_directions,
)
from ray_atr.objectives.correspondence.noise_rate import p_values, wrong_share
from ray_atr.objectives.correspondence.ridge import ROWS, TINY, Floats, Integers, Ridge

FIRST_WEIGHT = 0.35
"""w: the weight of the first regression, where the second's is 1. Chosen among .25 to 1 (notebook, 2026-11-26)."""
SHRINKAGE = 3.0
"""Added to the errors' covariance, in mean variances. With 1 the area is less by up to .007."""
RIVALS = 1024
"""Most captions that compete: four times as many take four times as long."""
LEAST_RIGHT = 20
"""With fewer pairs of a probability above 1/2, the second regression is fitted to all pairs."""


class BothWays:
    """The log ratio by both, as inner products of vectors (a `PairScorer` of `cross_fit`).

    When: pairs are scored once and accuracy matters more than time, as in an audit.
    Related: `OneWay` is some four times as fast.

    >>> import numpy as np
    >>> random = np.random.default_rng(0)
    >>> audio, clip = random.normal(size=(60, 8)), np.arange(60)
    >>> scorer = BothWays(audio, audio @ random.normal(size=(8, 4)), clip, clip.astype(str))
    >>> clips, captions = scorer.vectors(np.arange(10))
    >>> bool(((clips @ captions[:10].T).argmax(axis=1) == np.arange(10)).mean() > 0.5)
    True
    """

    def __init__(self, audio: Floats, text: Floats, clip: Integers, key: Keys) -> None:
        # A copy in float64 would be held for each language.
        self.audio, self.clip = audio, clip
        _, self.first, self.of_key, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
        self.captions = main_directions(text, self.first, counts / len(key))

    def vectors(self, held_out: Integers) -> tuple[Floats, Floats]:
        """The vectors of the clips held out, [n, V], and of all captions, [m, V]; zeros if the other clips are too few."""
        random = np.random.default_rng(0)
        fitted = np.flatnonzero(~np.isin(self.clip, held_out))
        counts = np.bincount(self.of_key[fitted], minlength=len(self.first))
        bank = random.permutation(np.flatnonzero(counts))[:RIVALS]
        clips, row = np.unique(self.clip[fitted], return_inverse=True)
        if len(clips) < 2 or len(bank) < 2:
            width = self.captions.shape[1] + self.audio.shape[1] + 2
            return np.zeros((len(held_out), width)), np.zeros((len(self.captions), width))
        log_prior, competing = np.log(counts[bank] / counts[bank].sum()), self.first[bank]
        audio, audio_out = self.audio[clips].astype(np.float64), self.audio[held_out].astype(np.float64)
        ridge = Ridge(audio)
        predicted, centre, scaled = left_out_captions(ridge, row, self.captions[fitted], self.captions)
        p_value = left_out_p_values(predicted, scaled[fitted], row, self.of_key[fitted], random)
        share = max(LEAST_SHARE, 1 - wrong_share(p_value).share)
        tau = likeliest(predicted, scaled[fitted], row, scaled[competing], log_prior, share)
        predicted /= tau
        totals = log_totals(predicted, scaled[competing], log_prior)
        by_first = clean_probability(predicted, scaled[fitted], row, totals, share)
        expected = FIRST_WEIGHT * (ridge.predicted(audio_out) - centre) / tau

        about = (audio, row, fitted, competing, log_prior, share)
        second = self._backwards(by_first > 0.5, *about)
        near = second.near(audio)
        totals = log_totals(near, second.words[competing], log_prior)
        by_second = clean_probability(near, second.around(second.expected), row, totals, share)
        second = self._backwards(by_first + by_second > 1, *about)
        of_clips = np.concatenate([expected, second.near(audio_out)], axis=1)
        of_captions = np.concatenate([scaled, second.words, np.ones((len(scaled), 1))], axis=1)
        totals = log_totals(of_clips, of_captions[competing, :-1], log_prior)
        return np.column_stack([of_clips, -totals]), of_captions

    def _backwards(
        self,
        is_right: NDArray[np.bool_],
        audio: Floats,
        row: Integers,
        fitted: Integers,
        competing: Integers,
        log_prior: Floats,
        share: float,
    ) -> Backwards:
        """The second regression by the right ones among the fitted captions, of the rows [m] of the clips `audio` [n, D]."""
        if is_right.sum() < LEAST_RIGHT:
            is_right = np.ones_like(is_right)
        ridge, targets = Ridge(self.captions[fitted[is_right]]), audio[row[is_right]]
        left_out, centre = ridge.left_out(targets), targets.mean(axis=0)
        errors = targets - centre - left_out
        covariance = errors.T @ errors
        covariance += (SHRINKAGE * np.trace(covariance) / len(covariance) + TINY) * np.eye(len(covariance))
        precision = np.linalg.inv(covariance / is_right.sum())

        rotated = ridge.rotated_as_fitted(self.captions)
        # The expected clips span no more directions than captions have.
        squares = np.einsum("mw,mw->m", rotated @ (ridge.weights @ precision @ ridge.weights.T), rotated)
        words = np.column_stack([rotated @ ridge.weights, -squares / 2])
        expected = words[fitted, :-1]
        expected[is_right] = left_out
        second = Backwards(centre, precision, 1.0, words, expected)
        sampled = slice(None, None, -(-len(fitted) // ROWS))
        near = second.near(audio[row[sampled]])
        deviation = float((near @ words[competing].T).std()) or 1.0
        tau = deviation * likeliest(
            near / deviation, second.around(expected[sampled]), np.arange(len(near)), words[competing], log_prior, share
        )
        return second._replace(tau=tau)


class Backwards(NamedTuple):
    """The second regression, by the pairs that seem right.

    centre [D], precision [D, D]  of its left-out errors
    tau                           the most likely tau'
    words [M, D + 1]              of all captions: with `near` their products are d_ic / tau'
    expected [m, D]               the clips that are expected of those fitted, by the other pairs that are right
    """

    centre: Floats
    precision: Floats
    tau: float
    words: Floats
    expected: Floats

    def near(self, audio: Floats) -> Floats:
        """The vectors of clips `audio` [n, D], [n, D + 1]."""
        return np.column_stack([(audio - self.centre) @ self.precision, np.ones(len(audio))]) / self.tau

    def around(self, expected: Floats) -> Floats:
        """The vectors of the captions for which the clips `expected` [m, D] are predicted, as in `words`, [m, D + 1]."""
        return np.column_stack([expected, -np.einsum("nd,nd->n", expected @ self.precision, expected) / 2])


def left_out_p_values(
    predicted: Floats, captions: Floats, row: Integers, key: Integers, random: np.random.Generator
) -> Floats:
    """The p-values of the `captions` [m, W] of the rows [m], against at most MISPAIRS random pairs of a row and a caption that
    has another key [m] than the row's own.
    """
    rows, others = random.choice(row, MISPAIRS), random.integers(0, len(row), MISPAIRS)
    differs = ~np.isin(rows * (key.max() + 1) + key[others], row * (key.max() + 1) + key)
    mispaired = np.einsum("mw,mw->m", predicted[rows[differs]], captions[others[differs]])
    return p_values(np.einsum("mw,mw->m", predicted[row], captions), mispaired)
