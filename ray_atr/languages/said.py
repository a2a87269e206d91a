"""What a caption says, before it has words: the same in every language."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Said:
    """One sound as a caption mentions it; an attribute that is None goes unsaid."""

    kind: str
    intensity: str | None = None
    tempo: str | None = None
    count: int | None = None


Sentence = Callable[[str, str, Sequence[Said], str | None], str]
"""(arrangement, template, sounds, background or None) -> one sentence."""

TEMPLATES: dict[str, tuple[str, ...]] = {
    "single": ("plain", "sound", "hear", "recording", "scene"),
    "together": ("while", "simultaneous", "hear", "recording", "scene"),
    "sequence": ("then", "first", "hear", "recording", "scene"),
}
"""The sentence patterns of each arrangement; caption j uses the same one in every language."""

_MANNERS: dict[str, tuple[str, ...]] = {
    "voice": (
        "dog",
        "cat",
        "bird",
        "rooster",
        "cow",
        "sheep",
        "frog",
        "crickets",
        "owl",
        "crow",
        "duck",
        "wolf",
        "baby",
    ),
    "body": ("cough", "sneeze", "snore", "applause"),
    "force": ("knock", "hammer", "drum"),
    "rain": ("rain",),
    "waves": ("waves",),
}

MANNER: dict[str, str] = {kind: manner for manner, kinds in _MANNERS.items() for kind in kinds}
"""Kind -> which pair of adverbs says loud and soft of it; kinds not named here take those of `sound`."""


def adverb(
    said: Said,
    intensity: Mapping[str, tuple[str, str]],
    tempo: tuple[str, str],
    manners: Mapping[str, str] = MANNER,
) -> str:
    """The adverb of a sound: its loudness or its pace, or nothing. Pairs are (loud, soft) and (fast, slow)."""
    if said.intensity is not None:
        manner = manners.get(said.kind, "sound")
        return intensity.get(manner, intensity["sound"])[said.intensity == "soft"]
    if said.tempo is not None:
        return tempo[said.tempo == "slow"]
    return ""


def words(*parts: str) -> str:
    """The parts that are not empty, one blank between them."""
    return " ".join(part for part in parts if part)


def capitalised(text: str) -> str:
    """The text with its first letter in upper case and a full stop."""
    return text[0].upper() + text[1:] + "."


def ordered(parts: Sequence[str], second: str, third: str) -> str:
    """Two or three parts in order, with the connectives before the second and the third."""
    return parts[0] + second + parts[1] + (third + parts[2] if len(parts) == 3 else "")


def listed(parts: Sequence[str], conjunction: str, comma: str = ", ") -> str:
    """`a`, `a and b`, `a, b and c`, with the language's own conjunction (blanks included)."""
    if len(parts) == 1:
        return parts[0]
    return comma.join(parts[:-1]) + conjunction + parts[-1]
