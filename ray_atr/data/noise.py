"""Noisy correspondence: which captions each training clip has (Luong et al. 2024, section 5.2; and noise as it is found).

For each training clip (or each of its captions) independently z ~ Bernoulli(xi); where z = 1 the captions are replaced by
another clip's of the training split. Every draw is a hash of (seed, clip_id), so that the answer is the same on any number of
workers and in any order of the clips. Evaluation splits never pass through here.

Shapes: N clips, J captions of a clip at most, K languages. `ray_atr.data.wear` applies this to captions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_atr.data import sampling
from ray_atr.data.positives import folded
from ray_atr.settings import Settings, refuse, setting

NOISE_KINDS = ("pair", "language", "prefix_shuffle", "shift", "near")
NEAREST = 5
"""Clips among which `near` draws the wrong caption's owner."""
ROWS_AT_A_TIME = 1024

Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Noise(Settings):
    """How much of the training captions is wrong, and in which way."""

    ratio: float = setting(0.0, "share of training clips (or captions) that are wrong (xi)", at_least=0.0, below=1.0)
    kind: str = setting(
        "pair",
        "pair: a clip gets another clip's captions; language: only in one random language (a mistranslation); near: those of "
        "one of the 5 clips whose captions are most similar; shift: those of the next clip, in one block of consecutive clips "
        "by clip_id (as happens to released tables); prefix_shuffle: the captions of the first clips by clip_id are shuffled "
        "among these (as the public code of learning to match does; some then keep their own)",
        choices=NOISE_KINDS,
    )
    unit: str = setting(
        "clip",
        "what is replaced: clip, all captions of a clip together, or caption, each one independently (the papers' z_i)",
        choices=("clip", "caption"),
    )
    index: str | None = setting(
        None,
        "NumPy file that says which caption each clip has, instead of ratio, kind and unit: the index files that papers "
        "exchange, or a run's own noise_index.npy",
        path="always",
    )

    @property
    def is_there(self) -> bool:
        """Whether any caption may be wrong on purpose."""
        return self.ratio > 0 or self.index is not None


class Worn(NamedTuple):
    """Which captions the clips have: caption j of clip i in language k is caption `slot` of clip `owner`; both [N, J, K]."""

    owner: Integers
    slot: Integers

    @property
    def is_own(self) -> NDArray[np.bool_]:
        """Whether it is the clip's own, [N, J, K]."""
        return self.owner == np.arange(len(self.owner))[:, None, None]


def caption_owners(
    clip_ids: Sequence[str],
    languages: Sequence[str],
    noise: Noise,
    seed: int,
    has: NDArray[np.bool_] | None = None,
    texts: Callable[[], Sequence[str]] | None = None,
) -> Integers:
    """For each clip and language, the index of the clip whose captions it has, [N, K], all its captions together.

    `has` [N, K] says which clip has which language (default: all). With `kind="language"` one language of those the
    clip has is drawn, and its new owner among the other clips that have it; the columns' order does not matter. A
    clip is never its own replacement. Raises `ValueError` if there is nobody to swap with.
    """
    count = len(clip_ids)
    owners = np.repeat(np.arange(count, dtype=np.int64)[:, None], len(languages), axis=1)
    by_id = np.argsort(np.asarray(clip_ids, dtype=np.str_), kind="stable")
    if noise.kind == "prefix_shuffle":
        prefix = by_id[: round(noise.ratio * count)]
        shuffle = sampling.permutation([clip_ids[int(i)] for i in prefix], seed, "noise.shuffle")
        owners[prefix] = prefix[shuffle][:, None]
        return owners
    if noise.kind == "shift":
        block = _block(by_id, noise.ratio, seed)
        owners[block] = np.roll(block, -1)[:, None]
        return owners
    is_replaced = sampling.uniform(clip_ids, seed, "noise.replace") < noise.ratio
    if noise.kind == "pair":
        return np.where(is_replaced[:, None], _another(clip_ids, by_id, seed)[:, None], owners)
    if noise.kind == "near":
        return np.where(is_replaced[:, None], _similar(clip_ids, by_id, texts, seed)[:, None], owners)
    available = np.ones(owners.shape, dtype=bool) if has is None else np.asarray(has, dtype=bool)
    chosen = _one_language(clip_ids, languages, available, seed)
    for column in range(len(languages)):
        rows = np.flatnonzero(is_replaced & (chosen == column))
        candidates = by_id[available[by_id, column]]
        if len(rows) and len(candidates) < 2:
            raise refuse("noise.ratio", noise.ratio, f"0 if only one clip has captions in {languages[column]}")
        owners[rows, column] = _another([clip_ids[int(i)] for i in rows], candidates, seed, rows)
    return owners


def _block(by_id: Integers, ratio: float, seed: int) -> Integers:
    """Consecutive clips in the order of ids, from a place that the seed draws."""
    size = round(ratio * len(by_id))
    first = int(sampling.integers(["block"], 0, len(by_id) - size + 1, seed, "noise.block")[0])
    return by_id[first : first + size]


def _similar(
    clip_ids: Sequence[str], by_id: Integers, texts: Callable[[], Sequence[str]] | None, seed: int
) -> Integers:
    """For each clip one of those whose first caption is most like its own without being the same, [N].

    Captions are compared in the order of clip ids, so that which of two equally similar ones is taken does not depend on the
    clips' order.
    """
    if texts is None:
        raise refuse("noise.kind", "near", "on clips whose captions are at hand")
    written = texts()
    nearest = nearest_texts([written[int(row)] for row in by_id], NEAREST)
    known = (nearest >= 0).sum(axis=1)
    if not known.all():
        raise refuse("noise.kind", "near", "on clips that do not all have the same caption")
    drawn = sampling.uniform([clip_ids[int(row)] for row in by_id], seed, "noise.near")
    owners = np.empty(len(by_id), np.int64)
    owners[by_id] = by_id[nearest[np.arange(len(nearest)), (drawn * known).astype(np.int64)]]
    return owners


def nearest_texts(texts: Sequence[str], count: int) -> Integers:
    """For each text the `count` most similar ones that are not equal to it, best first, [N, count]; -1 if there are fewer.

    Cosine of TF-IDF vectors over words and pairs of words (scikit-learn); of equally similar ones the earlier comes first.
    """
    # A second of import that only this kind of noise needs.
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectors = TfidfVectorizer(token_pattern=r"(?u)\b\w+\b|[^\x00-\x7f]", ngram_range=(1, 2)).fit_transform(texts)
    _, group = np.unique([folded(text) for text in texts], return_inverse=True)
    nearest = np.full((len(texts), count), -1, np.int64)
    for start in range(0, len(texts), ROWS_AT_A_TIME):
        rows = slice(start, start + ROWS_AT_A_TIME)
        scores = (vectors[rows] @ vectors.T).toarray()
        scores[group[rows][:, None] == group] = -1.0
        order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        found = np.take_along_axis(scores, order, axis=1) >= 0
        nearest[rows, : order.shape[1]] = np.where(found, order, -1)
    return nearest


def _another(clip_ids: Sequence[str], candidates: Integers, seed: int, rows: Integers | None = None) -> Integers:
    """For each clip one of the candidates, uniform over those that are not the clip itself, [N].

    `candidates` are indices sorted by clip id (so that the draw does not depend on the clips' order); `rows` are the
    clips' own indices, all of them among the candidates.
    """
    rows = np.arange(len(clip_ids)) if rows is None else rows
    place = np.full(int(candidates.max()) + 1, -1, dtype=np.int64)
    place[candidates] = np.arange(len(candidates))
    drawn = sampling.integers(clip_ids, 0, len(candidates) - 1, seed, "noise.owner")
    return candidates[drawn + (drawn >= place[rows])]


def _one_language(
    clip_ids: Sequence[str], languages: Sequence[str], available: NDArray[np.bool_], seed: int
) -> Integers:
    """The column of one language for each clip, uniform over those it has, [N]; the columns' order does not matter."""
    scores = np.stack([sampling.uniform(clip_ids, seed, "noise.language", language) for language in languages], axis=1)
    return np.where(available, scores, -1.0).argmax(axis=1)
