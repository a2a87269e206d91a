"""Whether two data sets give the same clips the same captions: a digest by language that no order has a part in."""

from __future__ import annotations

import json
from collections.abc import Iterable

from ray_atr.common.sampling import number_of


def caption_digests(captions: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """By language a digest of (clip id, language, caption): equal for equal captions of equal clips, in any order or shards.

    Audio has no part in it: a set that was imported again, or translated, keeps those of its captions.

    >>> rain, wind = ("1", "eng", "rain"), ("2", "eng", "wind")
    >>> caption_digests([rain, wind]) == caption_digests([wind, rain]) != caption_digests([rain])
    True
    """
    totals: dict[str, int] = {}
    for clip_id, language, text in captions:
        totals[language] = totals.get(language, 0) + number_of(json.dumps([clip_id, text]).encode())
    return {language: f"{totals[language] % 2**64:016x}" for language in sorted(totals)}
