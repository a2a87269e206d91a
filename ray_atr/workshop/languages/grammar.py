"""How each language says what is heard: its file of words, `eng.yaml` and the like, and its columns of two tables.

A caption says the same in every language: which sounds (`Said`), in which pattern (`TEMPLATES`). A file of words has

    class       the sentence of a class of ESC-50; `classes.csv` has the classes' nouns
    sentence    where a sentence has its sounds and its background
    parts       what the parts of its cells in `sounds.csv` are called
    forms       how a sound is put, by its parts and what is said of its manner and how often it comes; of several ways it is the
                first for which all of `where`, regular expressions by part, fit
    manners     kinds of sound whose manner is another here than in `sounds.csv`
    intensity   (loud, soft) by manner; `sound` where a manner has no words of its own
    tempo       (fast, slow)
    times       twice to five times
    background  what is said of each
    patterns    by template; one of an arrangement's own by both, as `sequence hear`. Each says three sounds in their order, or
                with a number before the form in another one. What is in brackets falls away for two sounds; one sound takes the
                last form, with what opens and what ends the pattern
    rewrites    regular expressions and what takes their place in a whole sentence: contractions, elisions, agreement
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from ray_atr.common.language_codes import LANGUAGES, require_language
from ray_atr.common.settings import refuse

FOLDER = Path(__file__).parent
TEMPLATES: dict[str, tuple[str, ...]] = {
    "single": ("plain", "sound", "hear", "recording", "scene"),
    "together": ("while", "simultaneous", "hear", "recording", "scene"),
    "sequence": ("then", "first", "hear", "recording", "scene"),
}
"""The sentence patterns of each arrangement; caption j uses the same one in every language."""
FORM = re.compile(r"\{(?:(\d) )?(?!background)(\w+)\}")


@dataclass(frozen=True)
class Said:
    """One sound as a caption mentions it; an attribute that is None goes unsaid."""

    kind: str
    intensity: str | None = None
    tempo: str | None = None
    count: int | None = None


@cache
def column(table: str, name: str) -> dict[str, str]:
    """A column of `classes.csv` or `sounds.csv`, such as a language's: what it says of each row."""
    with (FOLDER / table).open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        place = next(rows).index(name)
        return {row[0]: row[place] for row in rows}


class Grammar:
    """What a language says of classes of sound, and of sounds that are heard."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.words: dict[str, Any] = yaml.safe_load((FOLDER / f"{code}.yaml").read_text(encoding="utf-8"))

    @cached_property
    def nouns(self) -> dict[str, str]:
        """Class of ESC-50 -> its noun."""
        return column("classes.csv", self.code)

    @cached_property
    def parts(self) -> dict[str, dict[str, str]]:
        """Kind of sound -> its words by the names of the parts."""
        names = self.words["parts"].split(" | ")
        cells = column("sounds.csv", self.code)
        return {kind: dict(zip(names, map(str.strip, cell.split("|")), strict=True)) for kind, cell in cells.items()}

    def class_sentence(self, name: str) -> str:
        """The sentence of a class of ESC-50."""
        return self.rewritten(self.words["class"].format(noun=self.nouns[name]))

    def sentence(self, arrangement: str, template: str, sounds: Sequence[Said], background: str | None) -> str:
        """One sentence of one to three sounds, over a background or without a word on it."""
        patterns = self.words["patterns"]
        pattern = patterns.get(f"{arrangement} {template}") or patterns[template]
        pattern = re.sub(r"\[(.*?)\]", "" if len(sounds) < 3 else r"\1", pattern)
        forms = list(FORM.finditer(pattern))
        if len(sounds) == 1:
            pattern = pattern[: forms[0].start()] + forms[-1][0] + pattern[forms[-1].end() :]
            forms = list(FORM.finditer(pattern))
        order = [int(form[1] or place) for place, form in enumerate(forms, start=1)]
        of_form = {form.start(): sounds[sorted(order).index(own)] for form, own in zip(forms, order, strict=True)}
        said = FORM.sub(lambda form: self._put(form[2], of_form[form.start()]), pattern)
        behind = self.words["background"][background] if background else ""
        frame = self.words["sentence"]
        if "{background}" in said:
            said, frame = said.replace("{background}", behind), frame.replace("{background}", "")
        text = self.rewritten(frame.format(sounds=said, background=behind))
        return text[0].upper() + text[1:]

    def _put(self, form: str, said: Said) -> str:
        """A sound in one of the forms."""
        parts = {**self.parts[said.kind], "manner": self._manner(said), "times": ""}
        if said.count is not None:
            parts["times"] = self.words["times"][said.count - 2]
        given: Any = self.words["forms"][form]
        ways: list[dict[str, Any]] = [{"say": given}] if isinstance(given, str) else given
        for way in ways:
            if all(re.fullmatch(pattern, parts[name]) for name, pattern in way.get("where", {}).items()):
                return " ".join(way["say"].format_map(parts).split())
        raise AssertionError(f"{self.code}: no way to put {said} as {form}")

    def _manner(self, said: Said) -> str:
        """The sound's loudness or its pace, or nothing."""
        if said.intensity is not None:
            own = (manner for manner, kinds in self.words.get("manners", {}).items() if said.kind in kinds)
            manner = next(own, column("sounds.csv", "manner")[said.kind])
            intensity = self.words["intensity"]
            return intensity.get(manner, intensity["sound"])[said.intensity == "soft"]
        return "" if said.tempo is None else self.words["tempo"][said.tempo == "slow"]

    def rewritten(self, text: str) -> str:
        """A sentence with its contractions, elisions and agreements."""
        for pattern, instead in self.words.get("rewrites", ()):
            text = re.sub(pattern, instead, text)
        return text


WITH_WORDS = tuple(code for code in LANGUAGES if (FOLDER / f"{code}.yaml").is_file())
"""The languages that have words for sounds and classes."""


def grammar_of(language: str) -> Grammar:
    """The grammar of a language. ValueError if it has none here."""
    code = require_language(language).code
    if code not in WITH_WORDS:
        raise refuse("languages", language, ", ".join(WITH_WORDS) + ", which have words for sounds and classes")
    return _grammar(code)


@cache
def _grammar(code: str) -> Grammar:
    return Grammar(code)
