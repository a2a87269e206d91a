from __future__ import annotations

import itertools
import re
import unicodedata

import pytest
from iso639 import iter_langs

from ray_atr.common.language_codes import (
    LANGUAGES,
    english_first,
    language_codes,
    normalise,
    require_language,
    tag_among,
    tags_by_code,
)


def test_the_papers_eight_languages_english_first() -> None:
    assert list(LANGUAGES)[:8] == ["eng", "fra", "deu", "spa", "nld", "cat", "jpn", "zho"]
    assert LANGUAGES["jpn"].tag == "jpn_Jpan"
    assert LANGUAGES["zho"].tag == "zho_Hans"
    for code, language in LANGUAGES.items():
        assert language.code == code
        assert language.tag.startswith(f"{code}_")


@pytest.mark.parametrize(
    ("got", "code"),
    [("en", "eng"), ("ko", "kor"), ("sv", "swe"), ("kor", "kor"), ("EN", "eng"), ("ger", "deu"), ("eng_Latn", "eng"),
     ("sv-SE", "swe"), ("zh-Hans", "zho"), (" fr ", "fra"), ("gsw", "gsw"), ("qaa", "qaa")],
)  # fmt: skip
def test_a_language_is_found_by_any_of_its_codes(got: str, code: str) -> None:
    assert require_language(got).code == code


def test_a_language_without_a_file_has_its_names_of_iso_639() -> None:
    korean = require_language("ko")
    assert (korean.name, korean.iso_639_1) == ("Korean", "ko")


@pytest.mark.parametrize("wrong", ["xx", "xyz", "gem", "", "e", "english please", "../eng"])
def test_what_is_no_code_of_iso_639_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"languages: got .*; allowed eng, .* or another code of ISO 639"):
        require_language(wrong, "languages")


def test_two_codes_of_one_language_are_a_repetition() -> None:
    with pytest.raises(ValueError, match="each language once"):
        language_codes(("en", "eng"))
    assert language_codes(("ko", "eng")) == ("kor", "eng")


def test_reports_put_english_first_then_the_known_ones_then_by_code() -> None:
    assert english_first(["qab", "qaa", "fra", "eng"]) == ("eng", "fra", "qaa", "qab")


@pytest.mark.parametrize(
    ("code", "tags", "tag"),
    [
        ("kor", ["kor_Hang", "eng_Latn"], "kor_Hang"),
        ("zho", ["zho_Hant", "zho_Hans"], "zho_Hans"),
        ("ara", ["acm_Arab_no", "arb_Arab"], "arb_Arab"),
        ("lvs", ["lav_Latn"], "lav_Latn"),
        ("ara", ["acm_Arab", "arz_Arab", "arb_Arab", "acq_Arab"], "arb_Arab"),
        ("nor", ["nno_Latn", "nob_Latn"], "nob_Latn"),
        ("apc", ["arz_Arab", "acm_Arab"], "acm_Arab"),
        ("ace", ["ace_Latn", "ace_Arab"], "ace_Arab"),
        ("swe", ["kor_Hang", "swe", "<s>"], None),
    ],
)
def test_the_tag_of_a_language_among_those_of_a_tokeniser(code: str, tags: list[str], tag: str | None) -> None:
    for order in itertools.permutations(tags):
        assert tag_among(code, order) == tag


def test_the_codes_of_the_languages_that_a_tokeniser_has_tags_for() -> None:
    tags = ["swe_Latn", "zho_Hant", "zho_Hans", "a_word", "arb_Arab", "xxx_Latn", "qaa_Latn"]
    found = tags_by_code(tags)
    names = {"swe_Latn": {"swe", "sv"}, "zho_Hans": {"zho", "zh", "chi", "yue", "cmn"}, "arb_Arab": {"ara", "ar", "arb", "arz"},
             "qaa_Latn": {"qaa"}}  # fmt: skip
    for name, codes in names.items():
        assert codes <= {code for code, own in found.items() if own == name}
    every = {code for one in iter_langs() if one.pt3 for code in (one.pt1, one.pt2b, one.pt3)}
    assert found == {code: tag for code in {*every, "qaa"} - {""} if (tag := tag_among(code, tags))}


@pytest.mark.parametrize(
    ("got", "code"),
    [
        ("German", "deu"),
        ("français", "fra"),
        ("jap", "jpn"),
        ("Swedish", "swe"),
        ("korean", "kor"),
        ("Greek", "ell"),
        ("slovene", "slv"),
        ("Mandarin", "zho"),
        ("Farsi", "fas"),
        ("norwegian bokmål", "nob"),
        ("Occitan (post 1500)", "oci"),
    ],
)
def test_a_wrong_code_is_refused_with_the_right_one(got: str, code: str) -> None:
    with pytest.raises(
        ValueError, match=rf"data\.languages: got '{re.escape(got)}'; allowed eng, .*did you mean {code}\?"
    ):
        require_language(got, "data.languages")


def test_languages_are_refused_when_repeated_empty_or_a_string() -> None:
    assert language_codes(("en", "cat")) == ("eng", "cat")
    for wrong in (("eng", "eng"), (), "eng"):
        with pytest.raises(ValueError, match="languages: got"):
            language_codes(wrong)


def test_normalise_composes_and_trims() -> None:
    decomposed = unicodedata.normalize("NFD", " un  grillón\n canta ")
    assert normalise(decomposed) == "un grillón canta"
    assert normalise("パ\u3000ン") == "パ ン"


def test_normalise_leaves_case_and_width_as_they_are() -> None:
    for text in ("İstanbul ıssız", "Straße GROSS", "ＡＢＣ ｶﾅ", "ﬁn"):
        assert normalise(text) == text
