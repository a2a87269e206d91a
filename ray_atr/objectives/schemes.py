"""Language schemes: which texts of a clip are encoded and which (u, v) pairs of embeddings are compared (ATRI, section 4).

A scheme's draw is one int64 for each clip, a hash of (seed, epoch, clip_id): the same on any number of workers. A clip
that lacks a language is left out of that language's pairs. The weights of a scheme's comparisons sum to 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ray_atr.data import sampling
from ray_atr.objectives.embeddings import Embeddings
from ray_atr.objectives.pairs.pair_loss import Comparison
from ray_atr.settings import Settings, refuse, setting


class Weighted(NamedTuple):
    """One comparison, its weight in the loss, and a label to log it by."""

    weight: float
    comparison: Comparison
    label: str


@dataclass(frozen=True, kw_only=True)
class Scheme(Settings):
    """A subclass sets `name` (its key in SCHEMES) and implements `needed`; `draw` where it draws, `pairs` where it differs.

    `splits_by_language`: each comparison holds the texts of one language and weighs its number of pairs. `has_anchor`: the
    first language, English, has a part of its own.
    """

    name: ClassVar[str]
    has_anchor: ClassVar[bool] = False
    splits_by_language: ClassVar[bool] = False

    def draw(self, seed: int, epoch: int, clip_ids: Sequence[str], mask: Tensor) -> Tensor | None:
        """The draw of each clip for an epoch, int64 [B], or None if nothing is drawn. mask [B, K]: languages it has."""
        return None

    def trained_languages(self, languages: Sequence[str]) -> list[str]:
        """Those of an experiment's languages that a model is trained on; the others it never sees."""
        return list(languages)

    def needed(self, mask: Tensor, draw: Tensor | None) -> Tensor:
        """Which texts have to be encoded, bool [B, K]."""
        raise NotImplementedError

    def pairs(self, embeddings: Embeddings, draw: Tensor | None) -> list[Weighted]:
        """The comparisons to score: here (audio, t_k) for each language k, over the clips whose text in it is needed.

        They weigh as many pairs as they hold; languages that no clip needs are left out.
        """
        needed = self.needed(embeddings.available(), draw)
        comparisons = []
        for k in needed.any(dim=0).nonzero().squeeze(1).tolist():
            language = torch.full((len(needed),), k, device=embeddings.audio.device)
            comparisons.append((audio_side(embeddings, valid_rows(needed[:, k]), language), f"audio_text{k}"))
        return weigh(comparisons, by_size=True)

    def language_shares(self, mask: Tensor, draw: Tensor | None, chunk: int) -> list[tuple[list[int], float]]:
        """How the loss splits into parts that each need only some languages: [(language indices, share of the loss)].

        The loss is the sum over the parts of share times the loss with a mask that is False outside the part's languages.
        `mask` is the global batch's, `chunk` the most languages of a part (0: all). Schemes that do not split are one part.
        """
        if not self.splits_by_language:
            return [(list(range(mask.shape[1])), 1.0)]
        # Comparisons weigh as many pairs as they hold, so a part's share is that of its pairs.
        counts = self.needed(mask, draw).sum(dim=0).tolist()
        K, total = len(counts), sum(counts)
        size = chunk if chunk > 0 else K
        parts = [list(range(first, min(first + size, K))) for first in range(0, K, size)]
        shares = [sum(counts[language] for language in part) / max(total, 1) for part in parts]
        return [(part, share) for part, share in zip(parts, shares, strict=True) if share > 0] or [
            (list(range(K)), 1.0)
        ]

    def require_draw(self, draw: Tensor | None, B: int) -> Tensor:
        """The draw, or a ValueError if the scheme has none to go by."""
        if draw is None or tuple(draw.shape) != (B,):
            got = None if draw is None else tuple(draw.shape)
            raise refuse("draw", got, f"a LongTensor [{B}] from objective.scheme.draw(seed, epoch, clip_ids, mask)")
        return draw


@dataclass(frozen=True, kw_only=True)
class English(Scheme):
    """Audio with English: pairs (audio, t_0)."""

    name: ClassVar[str] = "english"
    has_anchor: ClassVar[bool] = True

    def trained_languages(self, languages: Sequence[str]) -> list[str]:
        return list(languages[:1])

    def needed(self, mask: Tensor, draw: Tensor | None) -> Tensor:
        needed = torch.zeros_like(mask)
        needed[:, 0] = mask[:, 0]
        return needed


@dataclass(frozen=True, kw_only=True)
class MlClap(Scheme):
    """ML-CLAP (ATRI Eq. 4): one language a clip and epoch, uniform over those it has; pairs (audio, t_q)."""

    name: ClassVar[str] = "ml_clap"

    def draw(self, seed: int, epoch: int, clip_ids: Sequence[str], mask: Tensor) -> Tensor:
        """The language q_i of each clip; -1 if it has none."""
        return draw_language(seed, epoch, clip_ids, mask, "random")  # a key of the hash: changing it changes every run

    def needed(self, mask: Tensor, draw: Tensor | None) -> Tensor:
        return chosen(self.require_draw(draw, len(mask)), mask)

    def pairs(self, embeddings: Embeddings, draw: Tensor | None) -> list[Weighted]:
        """One comparison, each clip in its own language."""
        language = self.require_draw(draw, len(embeddings.audio)).to(embeddings.audio.device)
        rows = valid_rows(chosen(language, embeddings.available()).any(dim=1))
        return weigh([(audio_side(embeddings, rows, language), "audio_text")])


@dataclass(frozen=True, kw_only=True)
class Cacl(Scheme):
    """CACL (ATRI Eq. 12-13): audio, English and one drawn other language; the mean of the three pair losses."""

    name: ClassVar[str] = "cacl"
    has_anchor: ClassVar[bool] = True

    def draw(self, seed: int, epoch: int, clip_ids: Sequence[str], mask: Tensor) -> Tensor:
        """The other language q_i of each clip, uniform over those it has; -1 if it has none."""
        others = mask.clone()
        others[:, 0] = False
        return draw_language(seed, epoch, clip_ids, others, "co_anchor")  # a key of the hash, as above

    def needed(self, mask: Tensor, draw: Tensor | None) -> Tensor:
        needed = chosen(self.require_draw(draw, len(mask)), mask)
        needed[:, 0] |= mask[:, 0]
        return needed

    def pairs(self, embeddings: Embeddings, draw: Tensor | None) -> list[Weighted]:
        """(audio, t_0), (audio, t_q), (t_0, t_q)."""
        available = embeddings.available()
        language = self.require_draw(draw, len(embeddings.audio)).to(embeddings.audio.device)
        english = torch.zeros_like(language)
        has_english, has_other = available[:, 0], chosen(language, available).any(dim=1)
        both = has_english & has_other
        comparisons = [
            (audio_side(embeddings, valid_rows(has_english), english), "audio_english"),
            (audio_side(embeddings, valid_rows(has_other), language), "audio_other"),
            (text_side(embeddings, valid_rows(both), english, language), "english_other"),
        ]
        return weigh(comparisons)


@dataclass(frozen=True, kw_only=True)
class Kcl(Scheme):
    """KCL (ATRI Eq. 9-11): audio with every language; the negatives of (a_i, t_ik) are the texts of language k."""

    name: ClassVar[str] = "kcl"
    splits_by_language: ClassVar[bool] = True

    def needed(self, mask: Tensor, draw: Tensor | None) -> Tensor:
        return mask.clone()


@dataclass(frozen=True, kw_only=True)
class RandomMixture(Scheme):
    """ML-CLAP as released: English always, each other language with a probability; one comparison a language.

    The draw is a bit mask: bit k says that language k takes part (K <= 63).
    """

    name: ClassVar[str] = "random_mixture"
    has_anchor: ClassVar[bool] = True
    splits_by_language: ClassVar[bool] = True

    probability: float = setting(
        0.5, "chance that a clip's text in a language other than English takes part", above=0, at_most=1
    )

    def draw(self, seed: int, epoch: int, clip_ids: Sequence[str], mask: Tensor) -> Tensor:
        """The bit mask of each clip's languages."""
        bits = np.ones(len(clip_ids), dtype=np.int64)
        for k in range(1, mask.shape[1]):
            takes_part = sampling.uniform(clip_ids, seed, "scheme", self.name, epoch, k) < self.probability
            bits |= takes_part.astype(np.int64) << k
        return torch.from_numpy(bits)

    def needed(self, mask: Tensor, draw: Tensor | None) -> Tensor:
        bits = self.require_draw(draw, len(mask)).to(mask.device)
        return mask & ((bits[:, None] >> torch.arange(mask.shape[1], device=mask.device)) & 1).bool()


SCHEMES: dict[str, type[Scheme]] = {scheme.name: scheme for scheme in (English, MlClap, Cacl, Kcl, RandomMixture)}


def draw_language(seed: int, epoch: int, clip_ids: Sequence[str], mask: Tensor, scheme: str) -> Tensor:
    """A language index for each clip, uniform over the True entries of its row of mask [B, K]; -1 if there is none."""
    has = mask.cpu().numpy()
    counts = has.sum(axis=1)
    choice = sampling.integers(clip_ids, 0, np.maximum(counts, 1), seed, "scheme", scheme, epoch)
    # The choice-th True of the row is where the running count first reaches choice + 1.
    language = (has.cumsum(axis=1) > choice[:, None]).argmax(axis=1)
    return torch.from_numpy(np.where(counts > 0, language, -1))


def chosen(language: Tensor, mask: Tensor) -> Tensor:
    """Bool [B, K]: the entry of each row's language, where the mask has it; an index of -1 chooses none."""
    return (language.to(mask.device)[:, None] == torch.arange(mask.shape[1], device=mask.device)) & mask


def valid_rows(valid: Tensor) -> Tensor | None:
    """Indices of the True entries of [B], or None if all are."""
    return None if bool(valid.all()) else valid.nonzero().squeeze(1)


def audio_side(embeddings: Embeddings, rows: Tensor | None, language: Tensor) -> Comparison:
    """The comparison of audio i with text t_{i, language_i}, over the given rows of the batch."""
    similarity = None
    if embeddings.similarity is not None:
        columns = torch.arange(len(language), device=language.device) if rows is None else rows
        similarity = embeddings.similarity[language[columns], :, columns].T
    return Comparison(
        u=_take(embeddings.audio, rows),
        v=_text(embeddings, rows, language),
        positives=_square(embeddings.positives, rows),
        rows=rows,
        v_language=_take(language, rows),
        similarity=similarity if similarity is None or rows is None else similarity[rows],
    )


def text_side(embeddings: Embeddings, rows: Tensor | None, first: Tensor, second: Tensor) -> Comparison:
    """The comparison of text t_{i, first_i} with text t_{i, second_i}."""
    with_audio = audio_side(embeddings, rows, second)
    u, u_language = _text(embeddings, rows, first), _take(first, rows)
    return dataclasses.replace(with_audio, u=u, u_language=u_language, similarity=None)


def weigh(comparisons: list[tuple[Comparison, str]], *, by_size: bool = False) -> list[Weighted]:
    """Equal weights, or weights by number of pairs, over the comparisons that have any; ValueError if none has."""
    kept = [(comparison, label) for comparison, label in comparisons if comparison.size > 0]
    if not kept:
        raise refuse("embeddings.mask", "no text that the scheme compares", "at least one clip that has one")
    sizes = [comparison.size if by_size else 1 for comparison, _ in kept]
    return [
        Weighted(size / sum(sizes), comparison, label) for size, (comparison, label) in zip(sizes, kept, strict=True)
    ]


def _text(embeddings: Embeddings, rows: Tensor | None, language: Tensor) -> Tensor:
    rows = torch.arange(len(language), device=language.device) if rows is None else rows
    return embeddings.text[rows, language[rows]]


def _take(values: Tensor, rows: Tensor | None) -> Tensor:
    return values if rows is None else values[rows]


def _square(positives: Tensor | None, rows: Tensor | None) -> Tensor | None:
    if positives is None:
        return None
    positives = positives if rows is None else positives[rows][:, rows]
    # A clip is always its own positive, whatever was passed; and the identity has a faster way.
    return positives | torch.eye(len(positives), dtype=torch.bool, device=positives.device)
