"""Noisy correspondence: which training clip wears whose captions (Luong et al. 2024, section 5.2).

For each training clip independently z_i ~ Bernoulli(xi); where z_i = 1 its captions are replaced by those of another
clip of the training split. Every draw is a hash of (seed, clip_id), so that the answer is the same on any number of
workers and in any order of the clips. Evaluation splits never pass through here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_atr.data import draws
from ray_atr.settings import Settings, refuse, setting

NOISE_KINDS = ("pair", "language", "prefix_shuffle")


@dataclass(frozen=True, kw_only=True)
class Noise(Settings):
    """How much of the training captions is wrong, and in which way."""

    ratio: float = setting(0.0, "share of training clips with wrong captions (xi)", at_least=0.0, below=1.0)
    kind: str = setting(
        "pair",
        "pair: all captions of the clip are another clip's; language: those of one random language are (a "
        "mistranslation); prefix_shuffle: the first share of the clips, by clip_id, is shuffled among itself (as the "
        "public code of learning to match does; some clips then keep their own)",
        choices=NOISE_KINDS,
    )


def caption_owner(clip_ids: Sequence[str], noise: Noise, seed: int) -> NDArray[np.int64]:
    """For each clip, the index of the clip whose captions it wears, [N]; its own index where nothing is replaced.

    For the kinds `pair` and `prefix_shuffle`; `language` has an answer per language: see `caption_owners`.
    """
    if noise.kind == "language":
        raise refuse("noise.kind", noise.kind, "pair, prefix_shuffle here; caption_owners answers for every kind")
    return caption_owners(clip_ids, ("all",), noise, seed)[:, 0]


def caption_owners(
    clip_ids: Sequence[str],
    languages: Sequence[str],
    noise: Noise,
    seed: int,
    has: NDArray[np.bool_] | None = None,
) -> NDArray[np.int64]:
    """For each clip and language, the index of the clip whose captions it wears, [N, K].

    `has` [N, K] says which clip has which language (default: all). With `kind="language"` one language of those the
    clip has is drawn, and its new owner among the other clips that have it; the columns' order does not matter. A
    clip is never its own replacement. Raises `ValueError` for repeated ids and where there is nobody to swap with.
    """
    count = len(clip_ids)
    if len(set(clip_ids)) != count:
        raise refuse("clip_ids", f"{count - len(set(clip_ids))} repeated", "each clip once")
    owners = np.repeat(np.arange(count, dtype=np.int64)[:, None], len(languages), axis=1)
    if noise.ratio == 0.0 or count == 0:
        return owners
    if count < 2:
        raise refuse("noise.ratio", noise.ratio, "0 for a training split of one clip")
    by_id = np.argsort(np.asarray(clip_ids, dtype=np.str_), kind="stable")
    if noise.kind == "prefix_shuffle":
        prefix = by_id[: round(noise.ratio * count)]
        shuffle = draws.permutation([clip_ids[int(i)] for i in prefix], seed, "noise.shuffle")
        owners[prefix] = prefix[shuffle][:, None]
        return owners
    is_replaced = draws.uniform(clip_ids, seed, "noise.replace") < noise.ratio
    if noise.kind == "pair":
        return np.where(is_replaced[:, None], _another(clip_ids, by_id, seed)[:, None], owners)
    available = np.ones(owners.shape, dtype=bool) if has is None else np.asarray(has, dtype=bool)
    chosen = _one_language(clip_ids, languages, available, seed)
    for column in range(len(languages)):
        rows = np.flatnonzero(is_replaced & (chosen == column))
        candidates = by_id[available[by_id, column]]
        if len(rows) and len(candidates) < 2:
            raise refuse("noise.ratio", noise.ratio, f"0 when one clip alone has captions in {languages[column]}")
        owners[rows, column] = _another([clip_ids[int(i)] for i in rows], candidates, seed, rows)
    return owners


def _another(
    clip_ids: Sequence[str], candidates: NDArray[np.int64], seed: int, rows: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """For each clip one of the candidates, uniform over those that are not the clip itself, [N].

    `candidates` are indices sorted by clip id (so that the draw does not depend on the clips' order); `rows` are the
    clips' own indices, all of them among the candidates.
    """
    rows = np.arange(len(clip_ids)) if rows is None else rows
    place = np.full(int(candidates.max()) + 1, -1, dtype=np.int64)
    place[candidates] = np.arange(len(candidates))
    drawn = draws.integers(clip_ids, 0, len(candidates) - 1, seed, "noise.owner")
    return candidates[drawn + (drawn >= place[rows])]


def _one_language(
    clip_ids: Sequence[str], languages: Sequence[str], available: NDArray[np.bool_], seed: int
) -> NDArray[np.int64]:
    """The column of one language for each clip, uniform over those it has, [N]; the columns' order does not matter."""
    scores = np.stack([draws.uniform(clip_ids, seed, "noise.language", language) for language in languages], axis=1)
    return np.where(available, scores, -1.0).argmax(axis=1)
