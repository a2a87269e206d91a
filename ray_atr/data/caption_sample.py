"""A sample of the clips and captions that weights were trained on, by which these are known again in another data set.

Each caption of a clip is a number: a hash of the clip's id, then one of the text. A sample has all of a set's numbers up to one
of them, so that it is the same for any order and division into shards, and the samples of two sets agree in what both have
("bottom k": Beyer et al. 2007, "On synopses for distinct-value estimation under multiset operations"). Recordings have no part
in it: a clip of another id, or whose captions are all others, is another clip.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ray_atr.common.positives import folded
from ray_atr.common.sampling import hashes
from ray_atr.common.settings import refuse

CLIPS, CAPTIONS = 1024, 4096
"""Most clips and captions of a sample. A share of a thousand clips is off by .03 at most (two standard errors)."""
FEW = 0.05
"""Largest share of known clips without a warning: a share of true pairs may be off by as much, and by chance fewer clips are the
same, even where ids are numbers and captions are names of classes."""
EVERY = 2**64 - 1
HALF = np.uint64(32)
"""Bits of a number that are the clip's, and the text's."""


def clips_in_words(share: float) -> str:
    """A share of a data set's clips that a retriever was trained on, in words; empty if these are few.

    >>> clips_in_words(1.0), clips_in_words(0.25), clips_in_words(0.01)
    ('these clips', 'some 25% of these clips', '')
    """
    if share <= FEW:
        return ""
    return "these clips" if share == 1 else f"some {share:.0%} of these clips"


@dataclass(frozen=True, eq=False)
class CaptionSample:
    """Captions of clips as ascending numbers, uint64 [n]: those of a set up to the number `last`.

    >>> captions = [["rain", "pluie"], ["wind"]]
    >>> rain_and_wind = CaptionSample.from_clips(["1", "2"], lambda rows: [captions[row] for row in rows])
    >>> rain = CaptionSample.from_clips(["1"], lambda rows: [["Rain"]])
    >>> rain.share_in(rain_and_wind), rain_and_wind.share_in(rain)
    (1.0, 0.5)
    """

    numbers: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    last: int = EVERY

    @classmethod
    def from_clips(
        cls,
        clip_ids: Sequence[str],
        captions_of: Callable[[NDArray[np.int64]], Sequence[Sequence[str]]],
        *,
        are_joined: bool = False,
    ) -> CaptionSample:
        """The sample of clips. `captions_of` returns the captions of the clips at some rows; it is called for no others.

        The ids of a joined data set count without the name of the part in front, as in that part's own data set.
        """
        own_ids = [clip_id.partition("/")[2] for clip_id in clip_ids] if are_joined else clip_ids
        clips = hashes(own_ids, 0, "trained clips") >> HALF << HALF
        rows = np.argsort(clips, kind="stable")[:CLIPS]
        last = EVERY if len(rows) == len(clips) else int(clips[rows[-1]]) | (2**32 - 1)
        captions = captions_of(rows)
        clip_of_caption = np.repeat(clips[rows], [len(texts) for texts in captions])
        texts = hashes([folded(text) for texts in captions for text in texts], 0, "trained captions")
        return cls(clip_of_caption | texts >> HALF)._cut(last)

    def joined(self, other: CaptionSample) -> CaptionSample:
        """The sample of both sets together."""
        return CaptionSample(np.concatenate([self.numbers, other.numbers]))._cut(min(self.last, other.last))

    def share_in(self, other: CaptionSample) -> float:
        """The share of this set's clips that are in the other with one of their captions or more, as far as the samples tell."""
        numbers = self._cut(min(self.last, other.last)).numbers
        shared = numbers[np.isin(numbers, other.numbers)]
        return len(np.unique(shared >> HALF)) / max(len(np.unique(numbers >> HALF)), 1)

    def _cut(self, last: int) -> CaptionSample:
        numbers = np.unique(self.numbers[self.numbers <= last])
        if len(numbers) > CAPTIONS:
            numbers, last = numbers[:CAPTIONS], int(numbers[CAPTIONS - 1])
        return CaptionSample(numbers, last)

    def text(self) -> str:
        """The sample as text for a JSON file: sixteen hexadecimal digits for `last` and for each number."""
        return np.array([self.last, *self.numbers.tolist()], ">u8").tobytes().hex()

    @classmethod
    def from_text(cls, text: object, path: str) -> CaptionSample:
        """The sample from its `text`. ValueError, naming the `path` of its file, for any other text."""
        try:
            last, *numbers = np.frombuffer(bytes.fromhex(str(text)), ">u8").tolist()
        except ValueError:
            raise refuse(path, str(text), "the hexadecimal digits of a sample of captions") from None
        return cls(np.array(numbers, np.uint64), last)
