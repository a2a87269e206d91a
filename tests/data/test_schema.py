from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from ray_atr.data.schema import SCHEMA, Clip, check_clip, check_schema, to_batch, to_clips, with_audio_bytes

CLIP = Clip(
    clip_id="a",
    audio=b"RIFF",
    sample_rate=16_000,
    seconds=1.5,
    captions={"eng": ("A dog barks",), "fra": ("Un chien aboie",)},
    labels=("dog",),
    split="train",
    source="test",
    translated=("fra",),
)


def test_a_clip_survives_arrow() -> None:
    assert to_clips(with_audio_bytes(to_batch([CLIP, CLIP]))) == [CLIP, CLIP]


def test_captions_are_composed_but_keep_their_case() -> None:
    clip = dataclasses.replace(CLIP, captions={"fra": ("  Un  bébé\tpleure ",)})
    assert check_clip(clip).captions == {"fra": ("Un bébé pleure",)}


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("clip_id", " ", "clip_id"),
        ("audio", b"", "clip 'a', audio"),
        ("sample_rate", 0, "sample_rate"),
        ("seconds", 0.0, "seconds"),
        ("seconds", float("nan"), "seconds"),
        ("split", "Train set", "split"),
        ("source", "", "source"),
        ("captions", {"English": ("x",)}, "did you mean eng"),
        ("captions", {"French": ("x",)}, "did you mean fra"),
        ("captions", {"eng": ("x",), "en": ("y",)}, "each language once"),
        ("captions", {"eng": ()}, r"captions\[eng\]"),
        ("captions", {"eng": "A dog"}, "a list of one or more"),
        ("captions", {"eng": ("A dog", " ")}, "not blank"),
        ("translated", ("jpn",), "translated"),
    ],
)
def test_a_bad_field_is_refused_by_name(field: str, value: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_clip(dataclasses.replace(CLIP, **{field: value}))


def test_a_clip_without_any_words_is_refused() -> None:
    with pytest.raises(ValueError, match="neither captions nor labels"):
        check_clip(dataclasses.replace(CLIP, captions={}, labels=(), translated=()))


def test_a_foreign_schema_is_refused_by_column() -> None:
    with pytest.raises(ValueError, match=r"x\.parquet: column labels is missing"):
        check_schema(SCHEMA.remove(SCHEMA.get_field_index("labels")), "x.parquet")
    index = SCHEMA.get_field_index("audio")
    with pytest.raises(ValueError, match="column audio is string"):
        check_schema(SCHEMA.set(index, pa.field("audio", pa.string())), "x.parquet")
    other = pa.struct([("data", pa.binary()), ("path", pa.string())])
    with pytest.raises(ValueError, match="column audio is struct<data"):
        check_schema(SCHEMA.set(index, pa.field("audio", other)), "x.parquet")
