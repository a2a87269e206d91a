from __future__ import annotations

import unicodedata

import pytest

from ray_atr.data.languages import LANGUAGES, normalise, require_language, require_languages


def test_the_eight_languages_english_first() -> None:
    assert list(LANGUAGES) == ["eng", "fra", "deu", "spa", "nld", "cat", "jpn", "zho"]
    assert LANGUAGES["jpn"].tag == "jpn_Jpan"
    assert LANGUAGES["zho"].tag == "zho_Hans"
    for code, language in LANGUAGES.items():
        assert language.code == code
        assert language.tag.startswith(f"{code}_")


@pytest.mark.parametrize(
    ("got", "code"), [("de", "deu"), ("German", "deu"), ("français", "fra"), ("eng_Latn", "eng"), ("jap", "jpn")]
)
def test_a_wrong_code_is_refused_with_the_right_one(got: str, code: str) -> None:
    with pytest.raises(ValueError, match=rf"data\.languages: got '{got}'; allowed eng, .*did you mean {code}\?"):
        require_language(got, "data.languages")


def test_languages_are_refused_when_repeated_empty_or_a_string() -> None:
    assert [language.name for language in require_languages(("eng", "cat"))] == ["English", "Catalan"]
    for wrong in (("eng", "eng"), (), "eng"):
        with pytest.raises(ValueError, match="languages: got"):
            require_languages(wrong)


def test_normalise_composes_and_trims() -> None:
    decomposed = unicodedata.normalize("NFD", " un  grillón\n canta ")
    assert normalise(decomposed) == "un grillón canta"
    assert normalise("パ\u3000ン") == "パ ン"


def test_normalise_leaves_case_and_width_as_they_are() -> None:
    for text in ("İstanbul ıssız", "Straße GROSS", "ＡＢＣ ｶﾅ", "ﬁn"):
        assert normalise(text) == text
