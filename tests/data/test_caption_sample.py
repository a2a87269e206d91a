"""Samples by which captions that weights were trained on are known again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from ray_atr.data.caption_sample import CAPTIONS, CaptionSample

Clips = Mapping[str, Sequence[str]]


def sample(clips: Clips, *, are_joined: bool = False) -> CaptionSample:
    texts = list(clips.values())
    return CaptionSample.from_clips(list(clips), lambda rows: [texts[row] for row in rows], are_joined=are_joined)


def made(first: int, last: int, languages: int = 1) -> dict[str, list[str]]:
    return {f"clip {n}": [f"sound {n} in {k}" for k in range(languages)] for n in range(first, last)}


def test_a_set_is_known_in_any_order_with_other_languages_and_as_a_part_of_others() -> None:
    clips = made(0, 300, languages=2)
    own = sample(clips)
    turned = dict(reversed(clips.items()))
    one_language = {name: [texts[1].upper()] for name, texts in clips.items()}
    part = {f"a/{name}": texts for name, texts in clips.items()}
    others = {f"b/{name}": texts for name, texts in made(1000, 1100).items()}
    joined = sample(part | others, are_joined=True)
    assert sample(turned).share_in(own) == sample(one_language).share_in(own) == 1
    assert (own.share_in(joined), joined.share_in(own)) == (1, 0.75)
    # Ids that are the same by chance, and captions that are.
    assert sample({name: ["another"] for name in clips}).share_in(own) == 0
    assert sample({f"{name}+": texts for name, texts in clips.items()}).share_in(own) == 0


def test_of_large_sets_the_share_is_read_off_a_sample() -> None:
    whole = sample(made(0, 20_000))
    assert len(whole.numbers) < 1200
    for first, last in ((15_000, 25_000), (0, 2_000), (19_000, 40_000)):
        wanted = (min(last, 20_000) - first) / (last - first)
        assert sample(made(first, last)).share_in(whole) == pytest.approx(wanted, abs=0.05)
    rich = sample(made(0, 2_000, languages=40))
    assert len(rich.numbers) == CAPTIONS
    assert sample(made(0, 1_000, languages=40)).share_in(rich) == 1


def test_samples_of_two_trainings_are_joined_to_that_of_both() -> None:
    for first, other in ((made(0, 40), made(20, 60)), (made(0, 9_000), made(8_000, 8_500))):
        both, at_once = sample(first).joined(sample(other)), sample({**first, **other})
        last = min(both.last, at_once.last)
        found, expected = (one.numbers[one.numbers <= last] for one in (both, at_once))
        np.testing.assert_array_equal(found, expected)
        assert len(found) > 30
    nothing, some = CaptionSample(), sample(made(0, 40))
    np.testing.assert_array_equal(nothing.joined(some).numbers, some.numbers)
    assert some.share_in(nothing) == nothing.share_in(some) == 0


def test_a_sample_is_written_as_text() -> None:
    own = sample(made(0, 3_000))
    read = CaptionSample.from_text(own.text(), "a file")
    assert read.last == own.last < 2**64 - 1
    np.testing.assert_array_equal(read.numbers, own.numbers)
    for broken in ("", "xyz", "00" * 9, None):
        with pytest.raises(ValueError, match=r"a file: got .*; allowed the hexadecimal digits of a sample of captions"):
            CaptionSample.from_text(broken, "a file")
