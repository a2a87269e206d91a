"""A pair is clean if a regression that has not seen it predicts its caption; a wrong pair takes what is predicted. This is ours.

Before the first epoch the regression reads all clips and captions as vectors, language by language (`left_out`): the towers'
outputs, or statistics of the recordings and the words of the captions, which know something before any tower does. What comes of
it is a clean probability b_i and p_i(c), how well each caption fits the clip. The partners of pair i of a batch are

    q_i(c) = b_i [c = y_i] + (1 - b_i) p_i(c),   c a caption of the batch, y_i the clip's own

and the sample weight sum_c q_i(c): what is predicted for a clip and is not in its batch is left out. A text's loss is weighted by
the sum of q_i(c) over the clips instead, so that one which is no clip's pulls none. Nothing is read from the
model that is trained, so that a pair which it memorises gains nothing: this is what the losses of training pairs lack where
most pairs are wrong.

Where a class is always called by the same wrong name, the regression learns that name with the right one. The pairs that it
takes for wrong show this: a regression on these alone predicts their captions (`random_share`). Then every pair of the
language is kept.

Of the two readings the one is taken that finds more of the true pairs, if that is more than chance (`clean_share`). In a language
where neither is, small loss is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ray_atr.common.settings import inherited, setting
from ray_atr.objectives.correspondence.clean_share import SAMPLE, PairVectors, true_share
from ray_atr.objectives.correspondence.correspondence import PairEstimate, PairIndex, TrainingPairs
from ray_atr.objectives.correspondence.cross_fit import LEAST_RANDOM
from ray_atr.objectives.correspondence.left_out import LeftOut, leave_out
from ray_atr.objectives.correspondence.small_loss import SmallLoss, SmallLossEstimator
from ray_atr.objectives.pairs import Comparison

IN_ITS_PLACE = "in a language where small loss takes its place: "
"""Where the settings of small loss count, which are otherwise not read."""


@dataclass(frozen=True, kw_only=True)
class LeaveOneOut(SmallLoss):
    """Clean probabilities and soft targets of a regression on the clips' vectors that leaves the clip itself out.

    When: more pairs than a few are wrong, by chance; the towers know something of the data, or the clips are recordings.
    Related: `small_loss` takes its place where the regression finds too little.

    >>> from ray_atr.objectives import Objective
    >>> from ray_atr.objectives.correspondence import CORRESPONDENCES
    >>> Objective(correspondence=CORRESPONDENCES["leave_one_out"]()).correspondence.name
    'leave_one_out'
    """

    name: ClassVar[str] = "leave_one_out"
    mixture: str = inherited(SmallLoss, "mixture", where=IN_ITS_PLACE)
    warmup_epochs: int = inherited(SmallLoss, "warmup_epochs", where=IN_ITS_PLACE)
    prior: str = inherited(SmallLoss, "prior", where=IN_ITS_PLACE)
    temperature: float = inherited(SmallLoss, "temperature", where=IN_ITS_PLACE)
    relabels: bool = setting(
        True, "whether a doubtful pair takes the captions of its batch that are predicted for the clip"
    )
    reads: str = setting(
        "auto",
        "what the regression reads: towers, their outputs; recordings, statistics of the log-mel frames and the words of the "
        "captions; auto, for each language the one that finds more of the true pairs, but recordings alone if "
        "train.start_from was trained on these pairs",
        choices=("auto", "towers", "recordings"),
    )

    def estimator(self, pairs: TrainingPairs) -> LeaveOneOutEstimator:
        return LeaveOneOutEstimator(pairs, self)


class LeaveOneOutEstimator(SmallLossEstimator):
    """Small loss for pairs of languages in which no regression is relied on."""

    settings: LeaveOneOut

    def __init__(self, pairs: TrainingPairs, settings: LeaveOneOut) -> None:
        super().__init__(pairs, settings)
        self.left_out = self.table("left_out", torch.nan)
        """Each pair's clean probability by the regression; NaN where there is none."""

    def estimate_from(self, *readings: PairVectors, is_asked: NDArray[np.bool_] | None = None) -> dict[str, Tensor]:
        """The estimate from vectors of the captions, for `take`: tables by name, and by language, [K], the share of true pairs
        that was found and the share of random captions among wrong ones. Of several readings of the same captions, each
        language uses the one that finds most. `is_asked` [N]: clips that the share may be estimated by; None: all.
        """
        N, J, K = self.left_out.shape
        rows, slots, languages = readings[0].pair_index
        key = readings[0].key
        tables = {name: torch.full((N, J, K), value) for name, value in (("left_out", torch.nan), ("log_prior", 0.0))}
        tables["caption"] = torch.zeros(N, J, K, dtype=torch.int64)
        tables["log_total"] = torch.full((N, 1, K), torch.nan)
        found_shares, random_shares = torch.ones(K), torch.ones(K)
        shares = self.pairs.wrong_shares
        left_out: dict[int, LeftOut] = {}
        for k in np.unique(languages).tolist():
            of_k = np.flatnonzero(languages == k)
            share = None if shares is None else 1 - shares[k]
            sample = np.random.default_rng((self.pairs.seed, 1)).permutation(np.unique(rows[of_k]))
            sample = sample if is_asked is None else sample[is_asked[sample]]
            sampled = of_k[np.isin(rows[of_k], sample[:SAMPLE])]
            estimate = true_share([vectors.subset(sampled) for vectors in readings], self.pairs.seed, share)
            found_shares[k] = estimate.found_share
            if estimate.is_certain:
                best = readings[estimate.reading]
                left_out[k] = leave_out(
                    best.audio, best.text[of_k], rows[of_k], key[of_k], share=estimate.share, seed=self.pairs.seed
                )
        if left_out:
            width = max(fit.predicted.shape[1] for fit in left_out.values())
            tables["predicted"], tables["wanted"] = torch.zeros(N, 1, K, width), torch.zeros(N, J, K, width)
        for k, fit in left_out.items():
            of_k = np.flatnonzero(languages == k)
            random_shares[k] = fit.random
            index = rows[of_k], slots[of_k], np.full(len(of_k), k)
            for name, values in (
                ("left_out", fit.clean_probability if fit.random >= LEAST_RANDOM else np.ones(len(of_k))),
                ("log_prior", fit.log_prior),
                ("caption", key[of_k]),
            ):
                tables[name][index] = torch.from_numpy(values).to(tables[name].dtype)
            tables["log_total"][:, 0, k] = torch.from_numpy(fit.log_total)
            numbers = slice(fit.predicted.shape[1])
            tables["predicted"][:, 0, k, numbers] = torch.from_numpy(fit.predicted)
            tables["wanted"][*index, numbers] = torch.from_numpy(fit.wanted).float()
        return {**tables, "found_share": found_shares, "random_share": random_shares}

    def take(self, estimated: Mapping[str, Tensor]) -> None:
        """Use the result of `estimate_from`."""
        for name, table in estimated.items():
            if name not in ("found_share", "random_share"):
                self.tables[name] = table.to(self.device)
        self.left_out = self.tables["left_out"]

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        self.ranking_scores.copy_(torch.where(self.left_out.isnan(), self.ranking_scores, self.left_out))

    def estimate(self, comparison: Comparison, index: PairIndex) -> PairEstimate:
        clean = self.left_out[index].to(comparison.u.dtype)
        is_known = ~clean.isnan()
        if not bool(is_known.all()):
            small_loss = super().estimate(comparison, index).sample_weight
            assert small_loss is not None
            clean = torch.where(is_known, clean, small_loss)
        doubt = torch.where(is_known, 1 - clean, 0.0)
        if not self.settings.relabels or not bool(doubt.any()):
            return PairEstimate(clean)
        # q_i, [n, n]: the own caption, and the other captions of the batch as far as they are predicted.
        partners = doubt[:, None] * self.predicted_share(index).to(clean.dtype)
        caption, language = self.tables["caption"][index], index.languages
        same = (caption[:, None] == caption) & (language[:, None] == language)
        on_diagonal = (partners * same).sum(dim=1) + clean
        partners = partners.masked_fill(same, 0.0)
        partners.diagonal().add_(on_diagonal)
        weight = partners.sum(dim=1)
        tiny = torch.finfo(weight.dtype).tiny
        targets = partners / weight.clamp(min=tiny)[:, None]
        targets.diagonal().add_((weight <= tiny).to(weight.dtype))
        return PairEstimate(weight.clamp(max=1), targets)

    def predicted_share(self, index: PairIndex) -> Tensor:
        """p_i(c) of the pairs' captions, [n, n]: spread over those of one text, and averaged over the languages in them."""
        tables, (rows, _, languages) = self.tables, index
        shares = torch.zeros(len(rows), len(rows), device=self.device)
        present = languages.unique()
        for k in present:
            in_language = (languages == k).nonzero().squeeze(1)
            caption = tables["caption"][index][in_language]
            total = tables["log_total"][rows, 0, k]
            logits = tables["predicted"][rows, 0, k] @ tables["wanted"][index][in_language].T - total[:, None]
            equal = (caption[:, None] == caption).sum(dim=1)
            shares[:, in_language] = (logits + tables["log_prior"][index][in_language]).exp() / (equal * len(present))
        return shares.nan_to_num(nan=0.0)
