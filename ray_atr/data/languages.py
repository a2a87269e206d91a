"""The languages captions are written in: ISO 639-3 codes, names, and the tags that text encoders expect."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from ray_atr.settings import nearest, refuse


@dataclass(frozen=True)
class Language:
    """One language: `code` is ISO 639-3, `iso_639_1` its two-letter code, `tag` its FLORES-200 tag (NLLB, SONAR)."""

    code: str
    name: str
    endonym: str
    iso_639_1: str
    tag: str
    is_spaced: bool = True


LANGUAGES: dict[str, Language] = {
    language.code: language
    for language in (
        Language("eng", "English", "English", "en", "eng_Latn"),
        Language("fra", "French", "français", "fr", "fra_Latn"),
        Language("deu", "German", "Deutsch", "de", "deu_Latn"),
        Language("spa", "Spanish", "español", "es", "spa_Latn"),
        Language("nld", "Dutch", "Nederlands", "nl", "nld_Latn"),
        Language("cat", "Catalan", "català", "ca", "cat_Latn"),
        Language("jpn", "Japanese", "日本語", "ja", "jpn_Jpan", is_spaced=False),
        Language("zho", "Chinese", "中文", "zh", "zho_Hans", is_spaced=False),
    )
}
"""The eight languages of Yin et al. 2025 (ACL), English first."""


def require_language(code: str, path: str = "language") -> Language:
    """The language of an ISO 639-3 code.

    Raises `ValueError` for an unknown one; a two-letter code, an English name or an endonym is pointed to its code.
    """
    if code in LANGUAGES:
        return LANGUAGES[code]
    folded = str(code).casefold()
    for language in LANGUAGES.values():
        synonyms = (language.code, language.name, language.endonym, language.iso_639_1, language.tag)
        if folded in {synonym.casefold() for synonym in synonyms}:
            raise refuse(path, code, ", ".join(LANGUAGES), f" (did you mean {language.code}?)")
    raise refuse(path, code, ", ".join(LANGUAGES), nearest(folded, LANGUAGES))


def require_languages(codes: Sequence[str], path: str = "languages") -> tuple[Language, ...]:
    """The languages of several codes, none repeated. Raises `ValueError` for an unknown, repeated or absent one."""
    if isinstance(codes, str) or not codes:
        raise refuse(path, codes, "a sequence of one or more of " + ", ".join(LANGUAGES))
    if len(set(codes)) != len(codes):
        raise refuse(path, tuple(codes), "each language once")
    return tuple(require_language(code, path) for code in codes)


def normalise(text: str) -> str:
    """The text in Unicode NFC, white space runs as one blank, none at the ends."""
    return " ".join(unicodedata.normalize("NFC", text).split())
