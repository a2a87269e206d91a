"""Finding a language by what a user types (`en`, `eng`, `sv-SE`), for every language of ISO 639-3."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ray_atr.common.settings import nearest, refuse


@dataclass(frozen=True)
class Language:
    """One language: `code` is ISO 639-3, `iso_639_1` its two-letter code (if it has one), `tag` its FLORES-200 tag."""

    code: str
    name: str
    endonym: str = ""
    iso_639_1: str = ""
    tag: str = ""


LANGUAGES: dict[str, Language] = {
    language.code: language
    for language in (
        Language("eng", "English", "English", "en", "eng_Latn"),
        Language("fra", "French", "français", "fr", "fra_Latn"),
        Language("deu", "German", "Deutsch", "de", "deu_Latn"),
        Language("spa", "Spanish", "español", "es", "spa_Latn"),
        Language("nld", "Dutch", "Nederlands", "nl", "nld_Latn"),
        Language("cat", "Catalan", "català", "ca", "cat_Latn"),
        Language("jpn", "Japanese", "日本語", "ja", "jpn_Jpan"),
        Language("zho", "Chinese", "中文", "zh", "zho_Hans"),
    )
}
"""The languages with a name and a tag here, English first; the order of reports."""

DEFAULT_LANGUAGES = ("eng", "fra", "deu", "spa", "nld", "cat", "jpn", "zho")
"""Those of Yin et al. 2025 (ACL), the default of generated data. Fixed, so that a new language changes no existing data set."""

ENGLISH = "eng"
_STANDARD = {"ara": "arb", "aze": "azj", "fas": "pes", "kur": "kmr", "lav": "lvs", "msa": "zsm", "nor": "nob"}
"""The member that the name of a macrolanguage usually means, where FLORES-200 has several."""
_USUAL_NAMES = {
    "bangla": "ben", "cantonese": "yue", "farsi": "fas", "frisian": "fry", "greek": "ell", "kurmanji": "kmr", "mandarin": "zho",
    "occitan": "oci", "sesotho": "sot", "setswana": "tsn", "slovene": "slv", "sorani": "ckb",
}  # fmt: skip
"""Names in everyday use that ISO 639-3 lacks."""
_PRIVATE_USE = re.compile(r"q[a-t][a-z]")
_TAG = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}")


def require_language(code: str, path: str = "language") -> Language:
    """The language of an ISO 639 code: three letters (`eng`, also `ger`) or two (`en`), with or without script or region.

    Raises `ValueError` for any other text; for a language's name the message gives its code.
    """
    primary = re.split(r"[-_]", str(code).strip())[0].lower()
    if language := _by_code(primary):
        return language
    allowed = ", ".join(LANGUAGES) + " or another code of ISO 639, such as swe or kor"
    meant = language_by_name(str(code).strip())
    raise refuse(path, code, allowed, f" (did you mean {meant}?)" if meant else nearest(str(code), LANGUAGES))


def language_codes(codes: Sequence[str], path: str = "languages") -> tuple[str, ...]:
    """The ISO 639-3 codes of several languages as a user wrote them: `("en", "swe")` -> `("eng", "swe")`.

    Raises `ValueError` for an unknown or repeated one, or none at all.
    """
    if isinstance(codes, str) or not codes:
        raise refuse(path, codes, "a sequence of one or more of " + ", ".join(LANGUAGES))
    three_letter = tuple(require_language(code, path).code for code in codes)
    if len(set(three_letter)) != len(three_letter):
        raise refuse(path, tuple(codes), "each language once")
    return three_letter


def english_first(codes: Iterable[str]) -> tuple[str, ...]:
    """The codes in the order of reports: as in `LANGUAGES`, English first, then by code."""
    order = list(LANGUAGES)
    return tuple(sorted(codes, key=lambda code: (order.index(code) if code in order else len(order), code)))


def tag_among(code: str, tags: Iterable[str]) -> str | None:
    """A language's FLORES-200 tag among those of a tokeniser (`kor` -> `kor_Hang`), or None if it has none.

    Where ISO 639-3 has a macrolanguage (`ara`) and the tokeniser a member of it (`arb_Arab`), or the other way, the member
    stands for it: that of `_STANDARD`, else the first by the alphabet. If there are several scripts, the one in `LANGUAGES` is
    used, else the first by the alphabet.
    """
    language = require_language(code)
    # In an order of its own: a tokeniser's vocabulary has another one in each process.
    valid = sorted(tag for tag in tags if _TAG.fullmatch(tag))
    if language.tag in valid:
        return language.tag
    family = _family(language.code)
    of_language = [tag for tag in valid if tag[:3] == language.code]
    members = [tag for tag in valid if _family(tag[:3]) == family]
    standard = [tag for tag in members if tag[:3] == _STANDARD.get(family)]
    return next(iter(of_language or standard or members), None)


def tags_by_code(tags: Iterable[str]) -> dict[str, str]:
    """The tags of a tokeniser by code of ISO 639, of two or three letters. If it has a tag of a macrolanguage or of one of its
    members, the codes of all members are included.
    """
    valid = [tag for tag in tags if _TAG.fullmatch(tag)]
    codes = {code for tag in valid for code in (tag[:3], _family(tag[:3]))}
    codes |= {member.pt3 for code in codes if (entry := _entry(pt3=code)) for member in entry.individuals()}
    tag_of_code: dict[str, str] = {}
    for code in sorted(codes):
        language, entry = _by_code(code), _entry(pt3=code)
        if language is not None and (tag := tag_among(code, valid)) is not None:
            tag_of_code |= dict.fromkeys(filter(None, (code, language.iso_639_1, entry and entry.pt2b)), tag)
    return tag_of_code


@cache
def has_two_letters(code: str) -> bool:
    """Whether a language, or the macrolanguage that it belongs to, has a code of two letters, as the most spoken ones do.

    ValueError if it is not a code.
    """
    language = require_language(code)
    family = _by_code(_family(language.code))
    return bool(language.iso_639_1) or (family is not None and bool(family.iso_639_1))


@cache
def same_family(first: str, second: str) -> bool:
    """Whether two codes name one language, or members of one macrolanguage (`nob` and `no`)."""
    codes = [language.code for code in (first, second) if (language := _by_code(code))]
    return len(codes) == 2 and _family(codes[0]) == _family(codes[1])


@cache
def _by_code(code: str) -> Language | None:
    # Avoids loading the table of 8,000 languages for the usual ones.
    for language in LANGUAGES.values():
        if code in (language.code, language.iso_639_1):
            return language
    if _PRIVATE_USE.fullmatch(code):
        return Language(code, code)
    entry = _in_iso(pt1=code) if len(code) == 2 else _in_iso(pt3=code) or _in_iso(pt2b=code)
    return None if entry is None else LANGUAGES.get(entry.code, entry)


def language_by_name(name: str) -> str | None:
    """The code of the language with this name, in English or, for those of `LANGUAGES`, its own, with or without accents.

    >>> language_by_name("francais"), language_by_name("Greek"), language_by_name("text")
    ('fra', 'ell', None)
    """
    for language in LANGUAGES.values():
        if _plain(name) in (_plain(language.name), _plain(language.endonym)):
            return language.code
    entry = _in_iso(name=name.capitalize()) or _in_iso(name=name.title())
    return _USUAL_NAMES.get(_plain(name)) if entry is None else entry.code


def _plain(name: str) -> str:
    letters = unicodedata.normalize("NFD", name.casefold())
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def _in_iso(**key: str) -> Language | None:
    entry = _entry(**key)
    return Language(entry.pt3, entry.name, iso_639_1=entry.pt1) if entry and entry.pt3 else None


@cache
def _family(code: str) -> str:
    """The code of the macrolanguage that a language belongs to, or its own."""
    entry = _entry(pt3=code)
    macro = entry.macro() if entry else None
    return macro.pt3 if macro else code


def _entry(**key: str) -> Any:
    """The language of ISO 639 with this code or name, or None."""
    # Imported late, since its tables take 0.1 s to read, which would delay help texts.
    from iso639 import Lang
    from iso639.exceptions import DeprecatedLanguageValue, InvalidLanguageValue

    try:
        return Lang(**key)
    except (InvalidLanguageValue, DeprecatedLanguageValue):
        return None


def normalise(text: str) -> str:
    """The text in Unicode NFC, with runs of white space as one blank and none at the ends."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def is_unicode(text: str) -> bool:
    """Whether a text can be written in UTF-8; texts from a command line or a file name may hold other bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
