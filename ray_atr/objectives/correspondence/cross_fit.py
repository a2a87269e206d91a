"""Similarities of clips and captions by a regression that never saw the clip: each fold is scored by a regression on the others.

A model that was trained on a wrong pair has memorised it. So the captions' vectors of all folds but one are regressed on the
clips' vectors (ridge regression, one for each language), and the pairs of that one fold are scored: the nearer a caption is to
the caption that the regression expects of a clip, the better it fits. The vectors come from encoders that do not know the
pairs. Wrong pairs that are random average out in a regression, so it finds more of them at 40% and beyond than two heads
trained with the contrastive loss, in a thirtieth of the time. An audit has another scorer beside this one (`both_ways`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ray_atr.common.progress import CountProgress, silent
from ray_atr.common.settings import counted, refuse
from ray_atr.objectives.correspondence.noise_rate import p_values, wrong_share
from ray_atr.objectives.correspondence.ridge import Floats, Integers, Ridge, deviations, mean_caption, of_unit_norm

Keys = NDArray[np.str_] | Integers
"""A text or number for each caption, equal where captions say the same."""
RANDOM_FOLDS, RANDOM_MISPAIRS = 5, 20_000
LEAST_RANDOM = 2 / 3
"""Share of random captions among wrong ones below which a regression's clean probabilities are not used."""


@dataclass(frozen=True)
class Pairs:
    """N clips and M captions as vectors: `audio` [N, D], `text` [M, E], and of each caption its clip, language and key.

    Captions of equal `key` say the same: none is a mispair of a clip that has another of them. Raises ValueError for
    vectors that are not finite.
    """

    audio: NDArray[np.float32]
    text: NDArray[np.float32]
    clip: Integers
    language: NDArray[np.str_]
    key: Keys

    def __post_init__(self) -> None:
        assert len(self.clip) == len(self.language) == len(self.key) == len(self.text), "one for each caption"
        assert np.isin(self.clip, np.arange(len(self.audio))).all(), "rows of clips"
        for name in ("audio", "text"):
            rows = np.flatnonzero(~np.isfinite(getattr(self, name)).all(axis=1))
            if len(rows):
                raise refuse(f"{name}[{rows[0]}]", "a value that is not finite", "finite vectors")

    def subset(self, chosen: Integers) -> Pairs:
        """The captions at these places [m], and the clips that have one of them."""
        clips, clip = np.unique(self.clip[chosen], return_inverse=True)
        return Pairs(self.audio[clips], self.text[chosen], clip, self.language[chosen], self.key[chosen])


@dataclass(frozen=True)
class Fold:
    """Clips [n] of one fold as the others' regressions see them, and the captions of these clips, [m].

    audio  [K, n, V]: what fits each clip in each language. By `OneWay` the caption expected, of unit norm, centred over the fold.
    text   [M, V]: every caption of the set. By `OneWay` centred within its language, of unit norm, divided by the deviation of
           its products with the fold's clips: an inner product is the similarity less what clip and caption have with everything.
    """

    clips: Integers
    captions: Integers
    audio: Floats
    text: Floats
    language: Integers

    def score(self, place: Integers, caption: Integers) -> Floats:
        """The scores [p] of pairs: the clips at these places in the fold [p], with these captions [p]."""
        captions, row = np.unique(caption, return_inverse=True)
        if len(place) <= len(captions) * self.audio.shape[1]:
            return np.einsum("pw,pw->p", self.audio[self.language[caption], place], self.text[caption])
        # Pairs occur again: the products of all of them are fewer, and one matrix for each language.
        table = np.empty((len(captions), self.audio.shape[1]))
        for language in np.unique(self.language[captions]):
            rows = np.flatnonzero(self.language[captions] == language)
            table[rows] = self.text[captions[rows]] @ self.audio[language].T
        return table[row, place]

    def mispairs(
        self, pairs: Pairs, count: int, random: np.random.Generator, captions: Integers | None = None
    ) -> tuple[Integers, Integers]:
        """At most `count` random (place of a clip, caption), where the clip has no caption of the same text.
        `captions` [m]: those of the fold that they are drawn from; None: all.

        The regressions saw neither, so that a wrong pair is a random mispair to them.
        """
        place = random.integers(0, len(self.clips), count)
        caption = random.choice(self.captions if captions is None else captions, count)
        keys, key = np.unique(pairs.key[np.concatenate([self.captions, caption])], return_inverse=True)
        of_fold, drawn = np.split(key, [len(self.captions)])
        true_pairs = pairs.clip[self.captions] * len(keys) + of_fold
        differs = ~np.isin(self.clips[place] * len(keys) + drawn, true_pairs)
        return place[differs], caption[differs]


class PairScorer(Protocol):
    """Scores how captions [m] of one language fit clips: gives both vectors of equal width, whose inner product is the score."""

    def __init__(self, audio: Floats, text: Floats, clip: Integers, key: Keys) -> None:
        """`audio` [N, D], of unit norm, has all clips; `clip` [m] are those of the captions `text` [m, E]."""

    def vectors(self, held_out: Integers) -> tuple[Floats, Floats]:
        """The vectors of the held-out clips [n] and of all captions [m], from the other clips; zeros if these are too few."""


class OneWay:
    """Scores by the caption that a regression of captions on clips expects of each clip."""

    def __init__(self, audio: Floats, text: Floats, clip: Integers, key: Keys) -> None:
        self.audio, self.clip = audio, clip
        self.text = of_unit_norm(text - text.mean(axis=0))

    def vectors(self, held_out: Integers) -> tuple[Floats, Floats]:
        is_fitted = ~np.isin(self.clip, held_out)
        clips, captions = mean_caption(self.clip[is_fitted], self.text[is_fitted])
        expected = np.zeros((len(held_out), self.text.shape[1]))
        if len(clips) > 1:
            ridge = Ridge(self.audio[clips])
            ridge.fit(captions)
            expected = of_unit_norm(ridge.predicted(self.audio[held_out]))
        expected -= expected.mean(axis=0)
        return expected, self.text / deviations(self.text, expected)[:, None]


def require_clips(count: int, folds: int, captions: str = "captions") -> None:
    """ValueError if a number of clips with captions (which) is less than two a fold; there are two folds or more."""
    if count < 4:
        raise refuse("split", f"{counted(count, 'clip')} with {captions}", "4 or more, for two folds")
    if count < 2 * folds:
        allowed = f"at most {count // 2}, half of the {count} clips with {captions}"
        raise refuse("--cross-fit.folds", folds, allowed)


def cross_fit(
    pairs: Pairs, folds: int, seed: int, progress: CountProgress = silent, scorer: type[PairScorer] = OneWay
) -> Iterator[Fold]:
    """The folds, one after the other. Deterministic in the seed. `progress` is called with the folds done and all of them.
    A fold's `text` is overwritten by the next fold's.

    Raises ValueError if there are fewer clips with captions than two folds need.
    """
    captioned = np.unique(pairs.clip)
    require_clips(len(captioned), folds)
    names, language = np.unique(pairs.language, return_inverse=True)
    audio = of_unit_norm(pairs.audio)
    rows_of = [np.flatnonzero(language == k) for k in range(len(names))]
    scorers = [
        scorer(audio, pairs.text[rows].astype(np.float64), pairs.clip[rows], pairs.key[rows]) for rows in rows_of
    ]
    text = np.empty((len(pairs.text), 0))
    shuffled = np.random.default_rng(seed).permutation(captioned)
    for number, part in enumerate(np.array_split(shuffled, folds), start=1):
        held_out = np.sort(part)
        clips = []
        for rows, fold_scorer in zip(rows_of, scorers, strict=True):
            of_clips, of_captions = fold_scorer.vectors(held_out)
            clips.append(of_clips)
            # In one place for all folds: these are the largest arrays of an audit.
            text = text if text.shape[1] else np.empty((len(text), of_captions.shape[1]))
            text[rows] = of_captions
        captions_of_fold = np.flatnonzero(np.isin(pairs.clip, held_out))
        yield Fold(held_out, captions_of_fold, np.stack(clips), text, language)
        progress(number, folds)


def cross_fitted_p_values(pairs: Pairs, folds: int, mispairs: int, seed: int) -> Floats:
    """The p-value of each caption, [M]: the share of random mispairs that score at least as high, by folds that did not see it.

    NaN where a fold's captions all say the same. Raises ValueError as `cross_fit` does.
    """
    random = np.random.default_rng((seed, 1))
    p_value = np.full(len(pairs.text), np.nan)
    place = np.full(len(pairs.audio), -1)
    for fold in cross_fit(pairs, folds, seed):
        place[fold.clips] = np.arange(len(fold.clips))
        null = fold.score(*fold.mispairs(pairs, mispairs // folds, random))
        if len(null):
            p_value[fold.captions] = p_values(fold.score(place[pairs.clip[fold.captions]], fold.captions), null)
    return p_value


def random_share(doubted: Pairs, seed: int) -> float:
    """The share of pairs taken for wrong whose caption is a random one: the upper end of a one-sided 95% interval.

    A regression on the other wrong pairs cannot predict a random caption. It can predict one that a class always has in the place
    of another; which of the two is right is then not known. 1 if there are too few pairs.
    """
    if len(np.unique(doubted.clip)) < 2 * RANDOM_FOLDS:
        return 1.0
    p_value = cross_fitted_p_values(doubted, RANDOM_FOLDS, RANDOM_MISPAIRS, seed)
    is_scored = ~np.isnan(p_value)
    return wrong_share(p_value[is_scored], doubted.clip[is_scored]).most if is_scored.any() else 1.0
