"""Checks of readable captions: texts that are no captions, captions of another clip, and captions in another language than
the table says. Each check lists suspects for a person to look at; none is proof.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from ray_atr.common.language_codes import same_family

PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("a list or an object", re.compile(r"""^\s*[\[({].*[\])}]\s*$|\[\s*['"]|['"]\s*,\s*['"]|\{\s*['"]""")),
    ("markup", re.compile(r"</?[a-zA-Z][^<>]*>|&(?:[a-z]{2,6}|#\d+);|\\[nrt\"]|\\u[0-9a-fA-F]{4}")),
    ("a probability", re.compile(r"(?<![\d.])[01]\.\d{2,}(?!\d)|\d\s?%")),
    ("bytes of another encoding", re.compile("\ufffd|[ÃÂ][\u0080-\u00bf]|â€|ã[\u0080-\u00bf]|[¼½¾°±³µ·¹]{2}")),
    ("a word for nothing", re.compile(r"^\W*(?:nan|none|null|n/?a|unknown|todo|test|untitled)?\W*$", re.IGNORECASE)),
)
"""What a suspect text looks like, and the pattern that finds it."""

LEAST_CHARACTERS = 12
MARGIN = 12.0
"""How much likelier (nats) another language must be: single words and names are left alone."""

MANY_CLIPS = 10
WINDOW = 24
"""Consecutive clips that are compared at once to find a shift."""


def looks_like(text: str) -> list[str]:
    """The kinds of suspect text that a caption matches."""
    return [kind for kind, pattern in PATTERNS if pattern.search(text)]


def other_language(text: str, code: str) -> str | None:
    """The language that a text is in, if it is clearly another than `code`; by py3langid, which knows about 140."""
    if len(text) < LEAST_CHARACTERS and text.isascii():
        return None
    # The likeliest first.
    ranked = _identifier().rank(text)
    likely, largest = ranked[0]
    of_family = next((score for label, score in ranked if same_family(label, code)), None)
    return likely if of_family is not None and largest - of_family > MARGIN else None


@cache
def _identifier() -> Any:
    return LanguageIdentifier.from_model_file(MODEL_FILE)


@dataclass
class RowOrder:
    """Finds blocks of captions that were moved by one row, in the order of a split. Such a block fits the rows before or
    after it better than its own: its captions hold words of the neighbours' ids and labels, or their lengths follow those of
    the neighbours' captions in another language.
    """

    names: list[str] = field(default_factory=list)
    words: list[frozenset[str]] = field(default_factory=list)
    captions: list[Mapping[str, str]] = field(default_factory=list)

    def add(self, clip_id: str, labels: Iterable[str], captions: Mapping[str, Sequence[str]]) -> None:
        """Add the next clip of the split; only its first caption in each language is used."""
        self.names.append(clip_id)
        words = re.split(r"[\W\d_]+", " ".join([clip_id, *labels]).casefold())
        self.words.append(frozenset(word for word in words if len(word) >= 3))
        self.captions.append({code: texts[0] for code, texts in captions.items() if texts and texts[0]})

    def shifted(self) -> Iterator[tuple[str, str]]:
        """(language, first and last clip) of each block of captions that looks moved by one row."""
        languages = sorted({code for captions in self.captions for code in captions})
        for position, code in enumerate(languages):
            rows = [row for row, captions in enumerate(self.captions) if code in captions]
            for first, last in _blocks(self._by_words(rows, code), 0.5):
                yield code, f"{self.names[rows[first]]} to {self.names[rows[last]]}"
            for other in languages[:position]:
                both = [row for row in rows if other in self.captions[row]]
                for first, last in _blocks(self._by_length(both, code, other), 0.6, least=0.75):
                    yield f"{code} or {other}", f"{self.names[both[first]]} to {self.names[both[last]]}"

    def _by_words(self, rows: list[int], code: str) -> NDArray[np.float64]:
        """How well captions fit the ids and labels of the row before, their own, the next, in each window [W, 3]."""
        if len(rows) < WINDOW:
            return np.zeros((0, 3))
        texts = [self.captions[row][code].casefold() for row in rows]
        words = [self.words[row] for row in rows]
        fits = np.zeros((3, len(rows)))
        for shift in (-1, 0, 1):
            for position in range(max(0, -shift), len(rows) - max(0, shift)):
                fits[shift + 1, position] = any(word in texts[position] for word in words[position + shift])
        windows = np.lib.stride_tricks.sliding_window_view(fits, WINDOW, axis=1)
        return np.asarray(windows.mean(axis=2).T)

    def _by_length(self, rows: list[int], code: str, other: str) -> NDArray[np.float64]:
        """Correlation of the lengths in two languages at shifts of -1, 0 and 1, in each window [W, 3]."""
        if len(rows) < WINDOW + 2:
            return np.zeros((0, 3))
        a, b = (np.log([len(self.captions[row][language]) for row in rows]) for language in (code, other))
        shifts = [_correlations(a[1:-1], b[1 + shift : len(b) - 1 + shift]) for shift in (-1, 0, 1)]
        return np.stack(shifts, axis=1)


def _correlations(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pearson's correlation of a [N] and b [N] in each window of `WINDOW`; 0 if one of them does not vary."""
    windows = (np.lib.stride_tricks.sliding_window_view(values, WINDOW) for values in (a, b))
    a_centred, b_centred = (window - window.mean(axis=1, keepdims=True) for window in windows)
    scale = np.sqrt((a_centred**2).sum(axis=1) * (b_centred**2).sum(axis=1))
    products = (a_centred * b_centred).sum(axis=1)
    return np.divide(products, scale, out=np.zeros_like(scale), where=scale > 1e-9)


def _blocks(fits: NDArray[np.float64], lead: float, least: float = 0.0) -> Iterator[tuple[int, int]]:
    """First and last row of each run of windows in which a neighbouring row fits better than its own by `lead`. The
    neighbour's fit must also be `least` or more: of thousands of windows, some fit a neighbour better by chance.
    """
    if not len(fits):
        return
    best = np.maximum(fits[:, 0], fits[:, 2])
    is_shifted = (best - fits[:, 1] > lead) & (best >= least)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_shifted, [False]]).astype(int)))
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        yield int(start), int(end) + WINDOW - 2
