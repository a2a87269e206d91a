"""Language schemes: which texts of a clip are encoded and which (u, v) pairs of embeddings are compared (ATRI, section 4).

A scheme's draw is one int64 for each clip, a hash of (seed, epoch, clip_id): the same on any number of workers. A clip
that lacks a language is left out of that language's pairs. The weights of a scheme's comparisons sum to 1. The last functions
are ATRI's measures of a scheme (section 3): how far a batch is from one with all languages.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ray_atr.common import sampling
from ray_atr.common.settings import Settings, by_name, refuse, setting
from ray_atr.objectives.pairs.embeddings import Embeddings
from ray_atr.objectives.pairs.pair_loss import Comparison

DRAWN = 64
"""The bits of a draw."""


class Weighted(NamedTuple):
    """One comparison, its weight in the loss, and a label to log it by."""

    weight: float
    comparison: Comparison
    label: str


@dataclass(frozen=True, kw_only=True)
class Scheme(Settings):
    """A subclass sets `name` (its key in SCHEMES) and implements `needed`; `draw` where it draws, `pairs` where it differs.

    `splits_by_language`: a comparison holds the texts of one language and weighs its number of pairs. `has_anchor`:
    English, the first language, has a part of its own.
    """

    name: ClassVar[str]
    has_anchor: ClassVar[bool] = False
    splits_by_language: ClassVar[bool] = False

    def draw(self, seed: int, epoch: int, clip_ids: Sequence[str], mask: Tensor) -> Tensor | None:
        """The draw of each clip for an epoch, int64 [B], or None if nothing is drawn. mask [B, K]: languages it has."""
        return None

    def trained_languages(self, languages: Sequence[str]) -> list[str]:
        """Those of an experiment's languages that the scheme trains on."""
        return list(languages)

    def needed(self, mask: Tensor, draw: Tensor | None) -> Tensor:
        """Which texts have to be encoded, bool [B, K]."""
        raise NotImplementedError

    def pairs(self, embeddings: Embeddings, draw: Tensor | None) -> list[Weighted]:
        """The comparisons to score: here (audio, t_k) for each language k needed, over the clips that need it."""
        needed = self.needed(embeddings.available(), draw)
        comparisons = []
        # Not by `nonzero`: torch 2.9 cannot compile an index that is read from a tensor.
        for k in [k for k, is_needed in enumerate(needed.any(dim=0).tolist()) if is_needed]:
            language = torch.full((len(needed),), k, device=embeddings.audio.device)
            comparisons.append((audio_side(embeddings, valid_rows(needed[:, k]), language), f"audio_text{k}"))
        return weigh(comparisons, by_size=True)

    def language_shares(self, mask: Tensor, draw: Tensor | None, chunk: int) -> list[tuple[list[int], float]]:
        """How the loss splits into parts of at most `chunk` languages (0: all): [(language indices, share of loss)].

        The loss is the sum of each share times the loss with a mask that is False outside the part's languages; `mask`
        is the global batch's. Schemes that do not split are one part.
        """
        if not self.splits_by_language:
            return [(list(range(mask.shape[1])), 1.0)]
        # Comparisons weigh as many pairs as they hold, so a part's share is that of its pairs.
        counts = self.needed(mask, draw).sum(dim=0).tolist()
        languages = list(range(len(counts)))
        size, total = chunk if chunk > 0 else len(counts), max(sum(counts), 1)
        parts = [languages[first : first + size] for first in range(0, len(counts), size)]
        shares = [(part, sum(counts[language] for language in part) / total) for part in parts]
        return [(part, share) for part, share in shares if share > 0] or [(languages, 1.0)]

    def require_draw(self, draw: Tensor | None, B: int) -> Tensor:
        """The draw [B]; ValueError if it is missing or has another shape."""
        if draw is None or tuple(draw.shape) != (B,):
            got = None if draw is None else tuple(draw.shape)
            raise refuse("draw", got, f"a LongTensor [{B}] from objective.scheme.draw(seed, epoch, clip_ids, mask)")
        return draw


@dataclass(frozen=True, kw_only=True)
class English(Scheme):
    """Audio with English: pairs (audio, t_0).

    When: English captions, or a baseline that sees one language.
    Related: `MlClap` costs as many texts and trains all languages.

    >>> import torch
    >>> from ray_atr.objectives.schemes import English
    >>> mask = torch.ones(2, 3, dtype=torch.bool)  # two clips with texts in three languages
    >>> scheme = English()
    >>> scheme.needed(mask, scheme.draw(0, 0, ["a", "b"], mask)).sum(dim=1).tolist()  # texts encoded of each clip
    [1, 1]
    """

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
    """ML-CLAP (ATRI Eq. 4): one language a clip and epoch, uniform over those it has; pairs (audio, t_q).

    When: several languages at the cost of one text a clip.
    Related: `Cacl` and `Kcl` compare more texts; `RandomMixture` is the released code.

    >>> import torch
    >>> from ray_atr.objectives.schemes import MlClap
    >>> mask = torch.ones(2, 3, dtype=torch.bool)  # two clips with texts in three languages
    >>> scheme = MlClap()
    >>> scheme.needed(mask, scheme.draw(0, 0, ["a", "b"], mask)).sum(dim=1).tolist()  # texts encoded of each clip
    [1, 1]
    """

    name: ClassVar[str] = "ml_clap"

    def draw(self, seed: int, epoch: int, clip_ids: Sequence[str], mask: Tensor) -> Tensor:
        """The language q_i of each clip; -1 if it has none."""
        return draw_language(seed, epoch, clip_ids, mask, "random")  # a key of the hash: changing it changes every run

    def needed(self, mask: Tensor, draw: Tensor | None) -> Tensor:
        return chosen(self.require_draw(draw, len(mask)), mask)

    def pairs(self, embeddings: Embeddings, draw: Tensor | None) -> list[Weighted]:
        language = self.require_draw(draw, len(embeddings.audio)).to(embeddings.audio.device)
        rows = valid_rows(chosen(language, embeddings.available()).any(dim=1))
        return weigh([(audio_side(embeddings, rows, language), "audio_text")])


@dataclass(frozen=True, kw_only=True)
class Cacl(Scheme):
    """CACL (ATRI Eq. 12-13): audio, English and one drawn other language; the mean of the three pair losses.

    When: several languages that should rank alike, and K texts a clip do not fit.
    Related: `Kcl` compares all languages in each step, `MlClap` one.

    >>> import torch
    >>> from ray_atr.objectives.schemes import Cacl
    >>> mask = torch.ones(2, 3, dtype=torch.bool)  # two clips with texts in three languages
    >>> scheme = Cacl()
    >>> scheme.needed(mask, scheme.draw(0, 0, ["a", "b"], mask)).sum(dim=1).tolist()  # texts encoded of each clip
    [2, 2]
    """

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
        available = embeddings.available()
        language = self.require_draw(draw, len(embeddings.audio)).to(embeddings.audio.device)
        english = torch.zeros_like(language)
        has_english, has_other = available[:, 0], chosen(language, available).any(dim=1)
        comparisons = [
            (audio_side(embeddings, valid_rows(has_english), english), "audio_english"),
            (audio_side(embeddings, valid_rows(has_other), language), "audio_other"),
            (text_side(embeddings, valid_rows(has_english & has_other), english, language), "english_other"),
        ]
        return weigh(comparisons)


@dataclass(frozen=True, kw_only=True)
class Kcl(Scheme):
    """KCL (ATRI Eq. 9-11): audio with every language; the negatives of (a_i, t_ik) are the texts of language k.

    When: several languages that should rank alike, and K texts a clip fit (`train.language_chunk` bounds the memory).
    Related: `Cacl` is its cheaper form.

    >>> import torch
    >>> from ray_atr.objectives.schemes import Kcl
    >>> mask = torch.ones(2, 3, dtype=torch.bool)  # two clips with texts in three languages
    >>> scheme = Kcl()
    >>> scheme.needed(mask, scheme.draw(0, 0, ["a", "b"], mask)).sum(dim=1).tolist()  # texts encoded of each clip
    [3, 3]
    """

    name: ClassVar[str] = "kcl"
    splits_by_language: ClassVar[bool] = True

    def needed(self, mask: Tensor, draw: Tensor | None) -> Tensor:
        return mask.clone()


@dataclass(frozen=True, kw_only=True)
class RandomMixture(Scheme):
    """ML-CLAP as released: English always, each other language by a probability; bit k of a draw: k takes part.

    When: to repeat what ML-CLAP's released code does.
    Related: `MlClap` is the paper's own form.

    >>> import torch
    >>> from ray_atr.objectives.schemes import RandomMixture
    >>> mask = torch.ones(2, 3, dtype=torch.bool)  # two clips with texts in three languages
    >>> scheme = RandomMixture()
    >>> scheme.needed(mask, scheme.draw(0, 0, ["a", "b"], mask))[:, 0].tolist()  # English always takes part
    [True, True]
    """

    name: ClassVar[str] = "random_mixture"
    has_anchor: ClassVar[bool] = True
    splits_by_language: ClassVar[bool] = True
    probability: float = setting(
        0.5, "chance that a clip's text in a language other than English takes part", above=0, at_most=1
    )

    def draw(self, seed: int, epoch: int, clip_ids: Sequence[str], mask: Tensor) -> Tensor:
        self.require_bits(mask.shape[1])
        bits = np.ones(len(clip_ids), dtype=np.int64)
        for k in range(1, mask.shape[1]):
            takes_part = sampling.uniform(clip_ids, seed, "scheme", self.name, epoch, k) < self.probability
            bits |= takes_part.astype(np.int64) << k
        return torch.from_numpy(bits)

    def require_bits(self, K: int) -> None:
        """ValueError if a draw has fewer bits than there are languages."""
        if K > DRAWN:
            raise refuse("objective.scheme", f"{self.name} with {K} languages", f"at most {DRAWN} languages, or kcl")

    def needed(self, mask: Tensor, draw: Tensor | None) -> Tensor:
        bits = self.require_draw(draw, len(mask)).to(mask.device)
        return mask & ((bits[:, None] >> torch.arange(mask.shape[1], device=mask.device)) & 1).bool()


SCHEMES: dict[str, type[Scheme]] = by_name((English, MlClap, Cacl, Kcl, RandomMixture))


def draw_language(seed: int, epoch: int, clip_ids: Sequence[str], mask: Tensor, scheme: str) -> Tensor:
    """A language index for each clip, uniform over the True entries of its row of mask [B, K]; -1 without any."""
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
    among = torch.arange(len(language), device=language.device) if rows is None else rows
    similarity, positives = embeddings.similarity, embeddings.positives
    if similarity is not None:
        similarity = _take(similarity[language[among], :, among].T, rows)
    if positives is not None:
        positives = positives if rows is None else positives[rows][:, rows]
        # A clip is always its own positive, whatever the caller passed.
        positives = positives | torch.eye(len(positives), dtype=torch.bool, device=positives.device)
    return Comparison(
        u=_take(embeddings.audio, rows),
        v=embeddings.text[among, language[among]],
        positives=positives,
        groups=None if embeddings.groups is None else _take(embeddings.groups, rows),
        rows=rows,
        v_language=_take(language, rows),
        similarity=similarity,
    )


def text_side(embeddings: Embeddings, rows: Tensor | None, first: Tensor, second: Tensor) -> Comparison:
    """The comparison of text t_{i, first_i} with text t_{i, second_i}."""
    with_audio = audio_side(embeddings, rows, second)
    u = embeddings.text[with_audio.row_numbers, first[with_audio.row_numbers]]
    return dataclasses.replace(with_audio, u=u, u_language=_take(first, rows), similarity=None)


def _take(values: Tensor, rows: Tensor | None) -> Tensor:
    return values if rows is None else values[rows]


def weigh(comparisons: list[tuple[Comparison, str]], *, by_size: bool = False) -> list[Weighted]:
    """Comparisons that have pairs, with equal weights or weights by number of pairs; ValueError if none has any."""
    nonempty = [(comparison, label) for comparison, label in comparisons if comparison.size > 0]
    if not nonempty:
        raise refuse("embeddings.mask", "no text that the scheme compares", "at least one clip that has one")
    total = sum(comparison.size for comparison, _ in nonempty) if by_size else len(nonempty)
    return [Weighted((part.size if by_size else 1) / total, part, label) for part, label in nonempty]


@torch.no_grad()
def data_distribution_error(
    embeddings: Embeddings, scheme: Scheme, draw: Tensor | None, temperature: Tensor | float = 0.07
) -> Tensor:
    """sum |p - p'_e| over the batch's pairs (a_i, t_ik), in [0, 2] (Yin et al. 2025, Eq. 1, 2, 4 and 6).

    p is the softmax of s(a_i, t_ik)/temperature over all pairs of the batch (Eq. 1; Eq. 2 with one language), p'_e that over
    the pairs alone that the scheme trains (Eq. 4), 0 for the others.
    """
    available = embeddings.available()
    logits = torch.einsum("bd,bkd->bk", embeddings.audio.double(), embeddings.text.double()) / temperature

    def distribution(pairs: Tensor) -> Tensor:
        return logits.masked_fill(~pairs, -torch.inf).flatten().softmax(dim=0)

    return (distribution(available) - distribution(scheme.needed(available, draw))).abs().sum()


def alignment_direction_error(embeddings: Embeddings, scheme: Scheme, draw: Tensor | None) -> Tensor:
    """Mean angle, in degrees, between the mean of a clip's texts that the scheme encodes and that of all; 0 for kcl."""
    available = embeddings.available()
    all_texts = _mean_direction(embeddings.text, available)
    trained = _mean_direction(embeddings.text, scheme.needed(available, draw))
    has_both = (all_texts.norm(dim=1) > 0) & (trained.norm(dim=1) > 0)
    # atan2 of the half-angle's chord: exact near 0, where arccos of a rounded cosine is not.
    chord, sum_length = (all_texts - trained).norm(dim=1), (all_texts + trained).norm(dim=1)
    return torch.rad2deg(2 * torch.atan2(chord, sum_length))[has_both].mean()


def weight_distance(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """Euclidean distance of two runs' weights, ATRI Eq. 6's left side. ValueError if the state dicts' names differ."""
    if first.keys() != second.keys():
        different = sorted(first.keys() ^ second.keys())
        raise ValueError(f"weights: got state dicts that differ in {', '.join(different[:5])}; allowed equal names")
    floating = [name for name in first if first[name].is_floating_point()]
    squares = [(first[name].double() - second[name].double()).square().sum() for name in floating]
    return float(torch.stack(squares).sum().sqrt())


def log10_weight_error_bound(earlier: float, growth: float, steps: int, push: float) -> float:
    """log10 of a^T ||w - w'||_(e-1)T + push * sum over j < T of a^j (Yin et al. 2025, Eq. 6 as its proof has it).

    earlier = ||w - w'|| an epoch of T = `steps` ago, growth = a (Eq. 8), push = eta * sum |p - p'_e| * g_max (Eq. 7), taken
    as constant over the epoch. As a logarithm, for a^T may exceed any number; -inf if both terms are 0.
    """
    log_a = math.log(growth)
    # The sum is (a^T - 1) / (a - 1), or T for a = 1.
    log_sum = math.log(steps)
    if growth > 1:
        log_sum = steps * log_a + math.log1p(-math.exp(-steps * log_a)) - math.log(growth - 1)
    inherited = math.log(earlier) + steps * log_a if earlier > 0 else -math.inf
    added = math.log(push) + log_sum if push > 0 else -math.inf
    return float(np.logaddexp(inherited, added)) / math.log(10)


def _mean_direction(text: Tensor, mask: Tensor) -> Tensor:
    mean = (text * mask[:, :, None]).sum(dim=1)
    return functional.normalize(mean, dim=1)
