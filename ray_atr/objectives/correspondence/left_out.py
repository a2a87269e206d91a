"""How likely each caption is by a regression that has not seen the captions of its clip.

Of N clips and their captions in one language, as vectors of encoders that do not know the pairs, in rounds:

    e_i      the caption vector that a ridge regression on the clips predicts for clip i, without its own captions (leave-one-out)
    s_ic     <e_i, t_c>, of every caption c of mean 0 and deviation 1 over the clips
    p_i(c)   p(c) exp(s_ic / tau) / sum over captions d of p(d) exp(s_id / tau), p(c) the share of clips that have caption c
    r_i      p_i(y_i) / p(y_i), y_i the clip's caption
    b_i      share r_i / (share r_i + 1 - share): Bayes' rule, if the caption of a wrong pair is a random one
    next     the clip's caption becomes b_i t(y_i) + (1 - b_i) / 2 sum over c of p_i(c) t(c)

tau is the most likely one (largest sum of log(share r_i + 1 - share)). The share of true pairs is that of `clean_share`:
left-out predictions do not tell it, since a mispair's caption is among those that were learned from, and a pair's own is not.
With several captions a clip's target is their mean, and all of them are left out together. In the last line the predicted
captions count by half, so that doubtful clips count less. The decomposition of the clips is made once: a round costs a product
of matrices. Relabelling by what the model predicts is in Reed et al. 2015, "Training deep neural networks on noisy labels with
bootstrapping"; that the model which predicts never saw the label is as in Northcutt et al. 2021, "Confident learning".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_atr.objectives.correspondence.cross_fit import Pairs, random_share
from ray_atr.objectives.correspondence.ridge import (
    ROWS,
    TINY,
    Floats,
    Integers,
    Ridge,
    deviations,
    mean_caption,
    of_unit_norm,
)

ROUNDS = 8
TAUS = np.geomspace(0.05, 3.0, 14)
"""Tried values of tau, in deviations of a caption's similarities."""
PREDICTED_WEIGHT = 0.5
"""The weight of the predicted caption vector of a doubtful clip."""
FITTED, BANK, WIDTH = 20_000, 4096, 128
"""Most clips of a regression, most captions that compete, and the main directions of captions that are predicted."""
LEAST_SHARE = 0.03
ROWS_AT_A_TIME = 128
"""Whose products with the bank stay in the cache: with 1,024, the same takes three times as long."""


class LeftOut(NamedTuple):
    """The predictions for N clips, and how well their M captions fit them.

    clean_probability  [M]: that the pair is a true one.
    predicted  [N, W], wanted [M, W]: their product is s / tau.
    log_prior  [M]: log p(c). log_total [N]: the logarithm of the sum over the captions d.
    random     at most this share of the pairs that are more likely wrong have captions as random ones (`random_share`).
    """

    clean_probability: Floats
    predicted: Floats
    wanted: Floats
    log_prior: Floats
    log_total: Floats
    random: float


def leave_out(
    audio: NDArray[np.floating[Any]],
    text: NDArray[np.floating[Any]],
    clip: Integers,
    key: Integers,
    *,
    share: float,
    seed: int,
) -> LeftOut:
    """Estimate M captions `text` [M, E], of clips `clip` [M] among those of `audio` [N, D]; equal `key` [M]: equal captions.

    `share` is that of true pairs. At most FITTED clips and BANK captions are drawn, by the seed.
    """
    random = np.random.default_rng(seed)
    clips = np.unique(clip)
    keys, first, of_key, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    prior = counts / len(key)
    captions = main_directions(text.astype(np.float64), first, prior)
    bank = np.sort(random.permutation(len(keys))[:BANK])
    competing, log_prior = captions[first[bank]], np.log(prior[bank] / prior[bank].sum())
    clips_of_unit_norm = of_unit_norm(audio.astype(np.float64))
    fitted = np.sort(random.permutation(clips)[:FITTED])
    is_fitted = np.zeros(len(audio), dtype=bool)
    is_fitted[fitted] = True
    used = np.flatnonzero(is_fitted[clip])
    ridge = Ridge(clips_of_unit_norm[fitted])
    place = np.cumsum(is_fitted) - 1
    row = place[clip[used]]
    pairs = Pairs(audio, text, clip, np.full(len(key), ""), key)
    right = max(LEAST_SHARE, share)
    targets = captions[used]
    for _ in range(ROUNDS):
        predicted, centre, scaled = left_out_captions(ridge, row, targets, captions)
        tau = likeliest(predicted, scaled[used], row, scaled[first[bank]], log_prior, right)
        totals, mean = competition(predicted / tau, scaled[first[bank]], log_prior, competing)
        clean = clean_probability(predicted / tau, scaled[used], row, totals, right)[:, None]
        targets = clean * captions[used] + PREDICTED_WEIGHT * (1 - clean) * mean[row]
    everything = np.empty((len(audio), captions.shape[1]))
    everything[~is_fitted] = ridge.predicted(clips_of_unit_norm[~is_fitted]) - centre
    everything[is_fitted] = predicted
    everything /= tau
    totals = log_totals(everything, scaled[first[bank]], log_prior)
    clean = clean_probability(everything, scaled, clip, totals, right)
    doubted = np.sort(random.permutation(np.flatnonzero(clean < 0.5))[:FITTED])
    return LeftOut(
        clean,
        everything,
        scaled,
        np.log(prior)[of_key],
        totals,
        random_share(pairs.subset(doubted), seed),
    )


def left_out_captions(ridge: Ridge, row: Integers, targets: Floats, captions: Floats) -> tuple[Floats, Floats, Floats]:
    """The caption expected of each clip [n, W] by the others' `targets` [m, W], less its mean [W]; that mean; and all captions
    [M, W], each divided by the deviation of its products with what is expected.
    """
    predicted = ridge.left_out(mean_caption(row, targets)[1])
    centre, deviation = predicted.mean(axis=0), deviations(captions, predicted)
    return predicted - centre, centre, captions / deviation[:, None]


def main_directions(text: Floats, first: Integers, prior: Floats) -> Floats:
    """Captions [M, E] less their mean, of unit norm, along the main directions of the distinct ones, [M, W]."""
    text = of_unit_norm(text - prior @ text[first])
    distinct = text[first]
    _, vectors = np.linalg.eigh(distinct.T @ distinct)
    return np.asarray(text @ vectors[:, ::-1][:, :WIDTH])


def likeliest(predicted: Floats, paired: Floats, row: Integers, bank: Floats, log_prior: Floats, share: float) -> float:
    """The tau under which the captions [m, W] of the rows [m] are the likeliest, on some of them."""
    sampled = slice(None, None, -(-len(row) // ROWS))
    row = row[sampled]
    fit, prior = np.einsum("mw,mw->m", predicted[row], paired[sampled]), np.exp(log_prior)
    log_ratios = np.empty((len(TAUS), len(row)))
    for start in range(0, len(row), ROWS_AT_A_TIME):
        part = slice(start, start + ROWS_AT_A_TIME)
        all_fit = predicted[row[part]] @ bank.T
        largest = all_fit.max(axis=1)
        all_fit -= largest[:, None]
        terms = np.empty_like(all_fit)
        for of_tau, tau in zip(log_ratios, TAUS, strict=True):
            # SciPy's logarithm of a sum takes twice as long, and this is most of an estimate's time.
            np.exp(np.divide(all_fit, tau, out=terms), out=terms)
            of_tau[part] = (fit[part] - largest) / tau - np.log(terms @ prior)
    likelihoods = [np.logaddexp(np.log(share) + ratio, np.log(max(1 - share, TINY))).sum() for ratio in log_ratios]
    return float(TAUS[int(np.argmax(likelihoods))])


def log_totals(predicted: Floats, bank: Floats, log_prior: Floats) -> Floats:
    """For rows [n, W] the logarithm of the sum over the bank's captions, [n]."""
    prior = np.exp(log_prior)
    totals = [largest + np.log(terms @ prior) for largest, terms in _competing(predicted, bank)]
    return np.concatenate(totals)


def competition(predicted: Floats, bank: Floats, log_prior: Floats, captions: Floats) -> tuple[Floats, Floats]:
    """For rows [n, W] `log_totals`, [n], and the mean of the bank's captions under p_i, [n, W]."""
    prior = np.exp(log_prior)[:, None]
    weights = np.hstack([captions * prior, prior])
    totals, means = [], []
    for largest, terms in _competing(predicted, bank):
        sums = terms @ weights
        totals.append(largest + np.log(sums[:, -1]))
        means.append(sums[:, :-1] / sums[:, -1:])
    return np.concatenate(totals), np.concatenate(means)


def _competing(predicted: Floats, bank: Floats) -> Iterator[tuple[Floats, Floats]]:
    """For a few rows [r, W] at a time the largest logarithm, [r], and the others' terms as shares of its term, [r, bank]."""
    for start in range(0, len(predicted), ROWS_AT_A_TIME):
        logits = predicted[start : start + ROWS_AT_A_TIME] @ bank.T
        largest = logits.max(axis=1)
        logits -= largest[:, None]
        yield largest, np.exp(logits, out=logits)


def clean_probability(predicted: Floats, paired: Floats, row: Integers, totals: Floats, share: float) -> Floats:
    """b_i of each pair, [m], by Bayes' rule, from the products of its row's prediction with its own caption [m, W]."""
    log_ratio = np.einsum("mw,mw->m", predicted[row], paired) - totals[row]
    true, wrong = np.log(share) + log_ratio, np.log(max(1 - share, TINY))
    return np.asarray(np.exp(true - np.logaddexp(true, wrong)))
