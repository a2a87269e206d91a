"""A pair is true if its loss is small and the clips like it have captions like it. This is ours.

After each epoch, of the embeddings that the training batches made, averaged over epochs by `momentum`:

    p_i(c) = softmax over captions c of <a_i, t_c> / temperature
    v_i(c) = sum over the nearest clips n of w_n k(c, y_n) / sum of w_n, mixed with an even vote by `even_vote`
    score_i = standardised log P_i + standardised small loss, P_i = sum_c k(y_i, c) p_i(c) v_i(c) / sum_c p_i(c) v_i(c)

y_i is a clip's caption, k(c, d) = exp((<t_c, t_d> - 1) / sameness) how far two captions say the same: 1 for one text, so
that it serves captions of a class and free ones. w_n is the cosine of the two clips times n's own clean probability. A
clip is never among its own neighbours, so that a pair which the model has memorised has no vote for itself: this is what
small loss alone lacks where most pairs are wrong. Nothing is encoded again. Neighbours and captions c are at most `bank`
clips' in a fixed order: all of a small set, a sample of a large one. The idea of asking neighbours about a noisy label is
in Iscen et al. 2022, "Learning with neighbor consistency for noisy labels", and Ortego et al. 2021 (MOIT).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from ray_atr.common.settings import setting
from ray_atr.data import sampling
from ray_atr.objectives.correspondence.correspondence import PairIndex, TrainingPairs
from ray_atr.objectives.correspondence.scored import FEWEST
from ray_atr.objectives.correspondence.small_loss import SmallLoss, SmallLossEstimator
from ray_atr.objectives.pairs import Comparison

ROUNDS = 2
"""How often neighbours vote in an epoch: first as their small loss lets them, then as the votes did."""
ROWS_AT_A_TIME = 1024


@dataclass(frozen=True, kw_only=True)
class NeighbourVotes(SmallLoss):
    """Small loss and the votes of the nearest clips, together in one mixture.

    When: most pairs are wrong; at 0% noise it costs recall.
    Related: `small_loss` is its first half.

    >>> from ray_atr.objectives import Objective
    >>> from ray_atr.objectives.correspondence import CORRESPONDENCES
    >>> Objective(correspondence=CORRESPONDENCES["neighbour_votes"]()).correspondence.name
    'neighbour_votes'
    """

    name: ClassVar[str] = "neighbour_votes"
    temperature: float = setting(0.1, "divides the similarities in the losses and shares of the estimate", above=0)
    neighbours: int = setting(15, "clips that vote on a pair", at_least=1)
    bank: int = setting(4096, "clips of which these are the nearest, and whose captions compete", at_least=2)
    momentum: float = setting(
        0.7, "share of the earlier epochs in a clip's and a caption's embedding", at_least=0, below=1
    )
    sameness: float = setting(0.1, "the smaller, the nearer two captions must be to count as the same", above=0)
    even_vote: float = setting(0.02, "share of the votes that is spread over all captions", above=0, below=1)

    def estimator(self, pairs: TrainingPairs) -> SmallLossEstimator:
        return _NeighbourVotesEstimator(pairs, self)


class _NeighbourVotesEstimator(SmallLossEstimator):
    settings: NeighbourVotes

    def __init__(self, pairs: TrainingPairs, settings: NeighbourVotes) -> None:
        super().__init__(pairs, settings)
        order = sampling.permutation(pairs.clip_ids, pairs.seed, "bank")
        self.order = torch.from_numpy(order.copy()).to(pairs.device)

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        if epoch < self.settings.warmup_epochs or "audio" not in self.tables:
            return
        for _ in range(ROUNDS):
            scores = torch.full_like(self.scores, torch.nan)
            for language in range(self.pairs.languages):
                scores[:, :, language] = self._of_language(language)
            self.clean_probabilities.copy_(self.posterior(scores))
        self.ranking_scores.copy_(scores)

    def score(self, comparison: Comparison, index: PairIndex) -> Tensor:
        """The small loss; what the pair's embeddings are is recorded with it."""
        self.remember("audio", PairIndex(index.rows, 0 * index.rows, 0 * index.rows), comparison.u, (1, 1))
        self.remember("text", index, comparison.v, (self.pairs.slots, self.pairs.languages))
        return super().score(comparison, index)

    def remember(self, name: str, index: PairIndex, values: Tensor, shape: tuple[int, int]) -> None:
        """Average unit vectors [n, D] into a table [N, *shape, D], in which 0 is what was never met."""
        if name not in self.tables:
            self.tables[name] = torch.zeros(len(self.pairs.clip_ids), *shape, values.shape[1], device=self.device)
        table, values = self.tables[name], values.float()
        before = table[index]
        mean = torch.where(before.any(dim=1, keepdim=True), self.settings.momentum * before, 0.0)
        table[index] = functional.normalize(mean + (1 - self.settings.momentum) * values, dim=1)

    def _of_language(self, language: int) -> Tensor:
        """The scores [N, J] of the pairs of one language, NaN for pairs that were never met."""
        audio, text = self.tables["audio"][:, 0, 0], self.tables["text"][:, :, language]
        scores = self.scores[:, :, language]
        met = ~scores.isnan()
        result = torch.full_like(scores, torch.nan)
        # Of a clip with several captions, the one of the highest clean probability stands for it in the bank.
        best = self.clean_probabilities[:, :, language].masked_fill(~met, -1.0).max(dim=1)
        bank = self.order[(best.values >= 0)[self.order]][: self.settings.bank]
        if len(bank) < max(FEWEST, 2):
            return scores.clone()
        captions, weights = text[bank, best.indices[bank]], best.values[bank]
        same = self._same(captions, captions)
        for slot in range(text.shape[1]):
            rows = met[:, slot].nonzero().squeeze(1)
            for part in rows.split(ROWS_AT_A_TIME):
                result[part, slot] = self._log_share(audio, text[part, slot], part, bank, captions, same, weights)
        agreed, loss = result[met], scores[met]
        result[met] = _standardised(agreed) + _standardised(loss)
        return result

    def _log_share(
        self, audio: Tensor, own: Tensor, rows: Tensor, bank: Tensor, captions: Tensor, same: Tensor, weights: Tensor
    ) -> Tensor:
        """log P_i, [n], of clips `rows` with captions `own` [n, D], among the bank's clips with its captions [M, D].

        `same` [M, M] is how far these say what each other says.
        """
        settings = self.settings
        clips = audio[rows]
        nearness = (clips @ audio[bank].T).masked_fill(rows[:, None] == bank, -1.0)
        nearest = nearness.topk(min(settings.neighbours, len(bank) - 1), dim=1)
        share = nearest.values.clamp(min=0) * weights[nearest.indices]
        share = share / share.sum(dim=1, keepdim=True).clamp(min=torch.finfo(share.dtype).tiny)
        votes = torch.zeros_like(nearness).scatter_(1, nearest.indices, share)
        votes = (1 - settings.even_vote) * votes @ same
        of_model = (clips @ captions.T / settings.temperature).log_softmax(dim=1)
        even = settings.even_vote / len(bank)
        both = (of_model + (votes + even).log()).softmax(dim=1)
        return (both * self._same(own, captions)).sum(dim=1).clamp(min=1e-12).log()

    def _same(self, first: Tensor, second: Tensor) -> Tensor:
        """How far each of the first captions [n, D] says what each of the second [M, D] says, in [0, 1]."""
        return ((first @ second.T - 1) / self.settings.sameness).exp()


def _standardised(values: Tensor) -> Tensor:
    return (values - values.mean()) / values.std().clamp(min=1e-6)
