"""What French, Spanish and Catalan share: clause, noun with relative clause, and the preposition *de* before a noun."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ray_atr.languages.said import Said, adverb, words

VOWELS = "aeiouàâèéêëíïîòóôúœ"

Row = tuple[str, str, str]
"""subject with its article | finite verb | what follows the adverb"""


@dataclass(frozen=True)
class Romance:
    """One language's words; `of` contracts *de* with the noun's article, `relative` is its *who* or *that*."""

    sounds: Mapping[str, Row]
    intensity: Mapping[str, tuple[str, str]]
    tempo: tuple[str, str]
    count: Mapping[int, str]
    relative: str
    of: Callable[[str], str]

    def clause(self, said: Said) -> str:
        """Subject, verb, adverb, number of times, complement."""
        subject, verb, rest = self.sounds[said.kind]
        manner = adverb(said, self.intensity, self.tempo)
        return words(subject, verb, manner, self.count.get(said.count or 0, ""), rest)

    def noun(self, said: Said) -> str:
        """The subject with all the rest in a relative clause."""
        subject = self.sounds[said.kind][0]
        return words(subject, self.relative, self.clause(said)[len(subject) + 1 :])

    def of_noun(self, said: Said) -> str:
        """*of* the noun, contracted with its article."""
        return self.of(self.noun(said))
