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

import numpy as np
from numpy.typing import NDArray

from ray_atr.objectives.correspondence.clean_share import MISPAIRS
from ray_atr.objectives.correspondence.cross_fit import Keys
from ray_atr.objectives.correspondence.left_out import (
    LEAST_SHARE,
    clean_of,
    competition,
    left_out_captions,
    likeliest,
    main_directions,
    weighed,
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
        self.audio, self.clip = audio.astype(np.float64), clip
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
        ridge = Ridge(self.audio[clips])
        predicted, centre, scaled = left_out_captions(ridge, row, self.captions[fitted], self.captions)
        others = mispairs(row, self.of_key[fitted], len(self.first), random)
        p_value = left_out_p_values(predicted, scaled[fitted], row, others)
        share = max(LEAST_SHARE, 1 - wrong_share(p_value).share)
        tau, _, by_first = weighed(
            predicted, scaled[fitted], row, scaled[competing], log_prior, self.captions[competing], share
        )
        expected = FIRST_WEIGHT * (ridge.predicted(self.audio[held_out]) - centre) / tau

        about = (held_out, fitted, competing, log_prior, share)
        _, _, by_second = self._backwards(by_first > 0.5, *about)
        near, words, _ = self._backwards(by_first + by_second > 1, *about)
        of_clips, of_captions = np.concatenate([expected, near], axis=1), np.concatenate([scaled, words], axis=1)
        totals, _ = competition(of_clips, of_captions[competing], log_prior, self.captions[competing])
        return np.column_stack([of_clips, -totals]), np.column_stack([of_captions, np.ones(len(of_captions))])

    def _backwards(
        self,
        is_right: NDArray[np.bool_],
        held_out: Integers,
        fitted: Integers,
        competing: Integers,
        log_prior: Floats,
        share: float,
    ) -> tuple[Floats, Floats, Floats]:
        """Vectors of the clips held out, [n, D + 1], and of all captions, [m, D + 1], whose products are d_ic / tau'; and the
        clean probability of each fitted caption, [m], by the other pairs that are right.
        """
        right = fitted[is_right] if is_right.sum() >= LEAST_RIGHT else fitted
        ridge, targets = Ridge(self.captions[right]), self.audio[self.clip[right]]
        left_out, centre = ridge.left_out(targets), targets.mean(axis=0)
        errors = targets - centre - left_out
        covariance = errors.T @ errors
        covariance += (SHRINKAGE * np.trace(covariance) / len(covariance) + TINY) * np.eye(len(covariance))
        precision = np.linalg.inv(covariance / len(right))

        def around(expected: Floats) -> Floats:
            return np.column_stack([expected, -np.einsum("nd,nd->n", expected @ precision, expected) / 2])

        def of_clips(clips: Integers) -> Floats:
            return np.column_stack([(self.audio[clips] - centre) @ precision, np.ones(len(clips))])

        words = around(ridge.predicted(self.captions))
        expected = words.copy()
        expected[right] = around(left_out)
        near = of_clips(self.clip[fitted])
        sampled = slice(None, None, -(-len(fitted) // ROWS))
        deviation = float((near[sampled] @ words[competing].T).std()) or 1.0
        rows = np.arange(len(near[sampled]))
        tau = deviation * likeliest(
            near[sampled] / deviation, expected[fitted[sampled]], rows, words[competing], log_prior, share
        )
        totals, _ = competition(near / tau, words[competing], log_prior, self.captions[competing])
        log_ratio = np.einsum("md,md->m", near / tau, expected[fitted]) - totals
        return of_clips(held_out) / tau, words, clean_of(log_ratio, share)


def mispairs(row: Integers, key: Integers, keys: int, random: np.random.Generator) -> tuple[Integers, Integers]:
    """At most MISPAIRS random pairs of a row and a caption that is not the row's own: the rows, and the captions' indices."""
    rows, others = random.choice(row, MISPAIRS), random.integers(0, len(row), MISPAIRS)
    differs = ~np.isin(rows * keys + key[others], row * keys + key)
    return rows[differs], others[differs]


def left_out_p_values(predicted: Floats, captions: Floats, row: Integers, others: tuple[Integers, Integers]) -> Floats:
    """The p-values of the `captions` [m, W] of the rows [m], against the mispairs `others` (`mispairs`)."""
    mispaired = np.einsum("mw,mw->m", predicted[others[0]], captions[others[1]])
    return p_values(np.einsum("mw,mw->m", predicted[row], captions), mispaired)
