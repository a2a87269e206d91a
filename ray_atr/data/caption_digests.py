"""Digests of captions by language, independent of order: equal if two data sets have the same captions of the same clips."""

from __future__ import annotations

import json
from collections.abc import Iterable

from ray_atr.common.sampling import number_of


def caption_digests(captions: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """By language a digest of (clip id, language, caption): equal for equal captions of equal clips, in any order or shards.

    Audio has no part in it: a data set that is imported again, or translated, has the same digests of its old captions.

    >>> rain, wind = ("1", "eng", "rain"), ("2", "eng", "wind")
    >>> caption_digests([rain, wind]) == caption_digests([wind, rain]) != caption_digests([rain])
    True
    """
    totals: dict[str, int] = {}
    for clip_id, language, text in captions:
        totals[language] = totals.get(language, 0) + number_of(json.dumps([clip_id, text]).encode())
    return {language: f"{totals[language] % 2**64:016x}" for language in sorted(totals)}
