"""The words of one language, and what its grammar is made of.

A caption says the same in every language: which sounds (`Said`), in which pattern (`TEMPLATES`). A language has a row of words
for each kind of sound, forms that make a clause or a noun phrase of them, and patterns that join these to a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Said:
    """One sound as a caption mentions it; an attribute that is None goes unsaid."""

    kind: str
    intensity: str | None = None
    tempo: str | None = None
    count: int | None = None


TEMPLATES: dict[str, tuple[str, ...]] = {
    "single": ("plain", "sound", "hear", "recording", "scene"),
    "together": ("while", "simultaneous", "hear", "recording", "scene"),
    "sequence": ("then", "first", "hear", "recording", "scene"),
}
"""The sentence patterns of each arrangement; caption j uses the same one in every language."""

Form = Callable[[Said], str]
"""How a sound is put: as a clause, or as a noun phrase."""
Joint = Callable[[Sequence[str]], str]
Pattern = Callable[[Sequence[Said]], tuple[str, str]]
"""(what opens the sentence, its sounds in their forms), of one to three sounds."""


class Grammar(NamedTuple):
    """How a language says what is heard.

    kinds       the kinds of sound it has words for.
    patterns    by template; one of an arrangement's own by both, as `sequence hear`.
    background  what is said of each background.
    frame       where a sentence has them.
    """

    kinds: Collection[str]
    patterns: Mapping[str, Pattern]
    background: Mapping[str, str]
    frame: str = "{opening}{sounds}{background}."

    def sentence(self, arrangement: str, template: str, sounds: Sequence[Said], background: str | None) -> str:
        """One sentence, over a background or without a word on it."""
        pattern = self.patterns.get(f"{arrangement} {template}") or self.patterns[template]
        opening, body = pattern(sounds)
        behind = self.background[background] if background else ""
        text = self.frame.format(opening=opening, sounds=body, background=behind)
        return text[0].upper() + text[1:]


@dataclass(frozen=True)
class Words:
    """A language's words: `template` and `nouns` make captions of the labels of ESC-50, `grammar` those of the soundscapes."""

    template: Callable[[str], str]
    nouns: Mapping[str, str]
    grammar: Grammar


_MANNERS: dict[str, tuple[str, ...]] = {
    "voice": ("dog", "cat", "bird", "rooster", "cow", "sheep", "frog", "crickets", "owl", "crow", "duck", "wolf", "baby"),
    "body": ("cough", "sneeze", "snore", "applause"),
    "force": ("knock", "hammer", "drum"),
    "rain": ("rain",),
    "waves": ("waves",),
}  # fmt: skip
MANNER: dict[str, str] = {kind: manner for manner, kinds in _MANNERS.items() for kind in kinds}
"""Kind -> which pair of adverbs says loud and soft of it; kinds not named here take those of `sound`."""


class Adverbs(NamedTuple):
    """A language's (loud, soft) by manner, its (fast, slow), and its words for twice to five times."""

    intensity: Mapping[str, tuple[str, str]]
    tempo: tuple[str, str]
    counts: tuple[str, str, str, str]
    manners: Mapping[str, str] = MANNER

    def manner(self, said: Said) -> str:
        """The sound's loudness or its pace, or nothing."""
        if said.intensity is not None:
            manner = self.manners.get(said.kind, "sound")
            return self.intensity.get(manner, self.intensity["sound"])[said.intensity == "soft"]
        return "" if said.tempo is None else self.tempo[said.tempo == "slow"]

    def times(self, said: Said) -> str:
        """How often it comes, or nothing."""
        return "" if said.count is None else self.counts[said.count - 2]


def words(*parts: str) -> str:
    """The parts that are not empty, one blank between them."""
    return " ".join(part for part in parts if part)


def ordered(second: str, third: str) -> Joint:
    """Two or three parts in order, with connectives before the second and the third."""
    return lambda parts: (
        parts[0] + "".join(joint + part for joint, part in zip((second, third), parts[1:], strict=False))
    )


def listed(conjunction: str, comma: str = ", ") -> Joint:
    """`a`, `a and b`, `a, b and c`, with the language's own conjunction (blanks included)."""
    return lambda parts: conjunction.join([comma.join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]


def pattern(
    opening: str,
    form: Form,
    joint: Joint = "".join,
    end: str = "",
    *,
    later: Form | None = None,
    last: Form | None = None,
) -> Pattern:
    """The sounds in one form, all but the first in `later`, the last in `last`, joined; `end` follows them."""

    def said_so(sounds: Sequence[Said]) -> tuple[str, str]:
        forms = [form, *[later or form] * (len(sounds) - 1)]
        if last is not None:
            forms[-1] = last
        return opening, joint([one(said) for one, said in zip(forms, sounds, strict=True)]) + end

    return said_so


class Romance(NamedTuple):
    """What French, Spanish and Catalan share. `of` contracts *de* with a noun's article, `relative` is *who* or *that*.

    sounds   kind -> subject with its article | finite verb | what follows the adverb.
    """

    sounds: Mapping[str, Sequence[str]]
    adverbs: Adverbs
    relative: str
    of: Callable[[str], str]

    def clause(self, said: Said) -> str:
        """Subject, verb, adverb, number of times, complement."""
        subject, verb, rest = self.sounds[said.kind]
        return words(subject, verb, self.adverbs.manner(said), self.adverbs.times(said), rest)

    def noun(self, said: Said) -> str:
        """The subject with all the rest in a relative clause."""
        subject = self.sounds[said.kind][0]
        return words(subject, self.relative, self.clause(said)[len(subject) + 1 :])

    def of_noun(self, said: Said) -> str:
        """*of* the noun, contracted with its article."""
        return self.of(self.noun(said))


VOWELS = "aeiouàâèéêëíïîòóôúœ"
