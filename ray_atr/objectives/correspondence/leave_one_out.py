"""A pair is true if a regression that has not seen it expects its caption; a wrong pair takes what is expected. This is ours.

Before the first epoch the towers' outputs of all clips and captions are judged, by language (`left_out`): what comes of it is
a belief b_i and p_i(c), how well each caption fits the clip. Pair i of a batch then has the partners

    q_i(c) = b_i [c = y_i] + (1 - b_i) p_i(c),   c a caption of the batch, y_i the clip's own

and the weight sum_c q_i(c): what is expected of a clip and is not in its batch is left out. Nothing here is read from the
model that is trained, so that what it memorises is never believed: this is what the losses of training pairs lack where most
pairs are wrong.

Towers that know nothing yet find too few of the true pairs. While they are trained they are asked again before each of the next
epochs, and until a quarter is found the pairs are judged by small loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ray_atr.common.settings import setting
from ray_atr.objectives.correspondence.clean_share import TRIES
from ray_atr.objectives.correspondence.correspondence import Judgement, Places, TrainingPairs
from ray_atr.objectives.correspondence.cross_fit import Floats, Integers
from ray_atr.objectives.correspondence.left_out import leave_out
from ray_atr.objectives.correspondence.small_loss import SmallLoss, SmallLossEstimator
from ray_atr.objectives.pairs import Comparison
from ray_atr.objectives.pairs.pair_loss import FOUNDED

LEAST_FOUND = 0.25
"""Share of the true pairs, as estimated, below which a regression is not relied on."""


class TowerOutputs(NamedTuple):
    """Of a training split: clips [N, D]; M captions [M, E], the places of their pairs, and equal numbers for equal texts [M]."""

    audio: Floats
    text: Floats
    places: tuple[Integers, Integers, Integers]
    key: Integers


@dataclass(frozen=True, kw_only=True)
class LeaveOneOut(SmallLoss):
    """Beliefs and soft targets of a regression on the towers' outputs that leaves the clip itself out."""

    name: ClassVar[str] = "leave_one_out"
    relabels: bool = setting(
        True, "whether a pair that is not believed takes the captions of its batch that are expected of the clip"
    )

    def estimator(self, pairs: TrainingPairs) -> LeaveOneOutEstimator:
        return LeaveOneOutEstimator(pairs, self)


class LeaveOneOutEstimator(SmallLossEstimator):
    """Small loss for pairs of languages that no regression has judged."""

    settings: LeaveOneOut

    def __init__(self, pairs: TrainingPairs, settings: LeaveOneOut) -> None:
        super().__init__(pairs, settings)
        self.is_final = False
        self.left_out = self.table("left_out", torch.nan)
        """How far the regression believes each pair; NaN where there is none."""

    def is_wanted(self, epoch: int, *, trains_towers: bool) -> bool:
        """Whether towers are to be judged before this epoch, from 0."""
        return epoch == 0 or (trains_towers and not self.is_final and epoch < TRIES)

    def judged_from(self, outputs: TowerOutputs) -> dict[str, Tensor]:
        """What towers say, for `take`: tables by name, and how much was found by language, [K]."""
        N, J, K = self.left_out.shape
        rows, slots, languages = outputs.places
        tables = {name: torch.full((N, J, K), value) for name, value in (("left_out", torch.nan), ("log_prior", 0.0))}
        tables["caption"] = torch.zeros(N, J, K, dtype=torch.int64)
        tables["log_total"] = torch.full((N, 1, K), torch.nan)
        found = torch.ones(K)
        shares = self.pairs.wrong_shares
        for k in np.unique(languages).tolist():
            of = np.flatnonzero(languages == k)
            share = None if shares is None else 1 - shares[k]
            one = leave_out(
                outputs.audio, outputs.text[of], rows[of], outputs.key[of], share=share, seed=self.pairs.seed
            )
            found[k] = 0.0 if one is None else one.found
            if one is None or one.found < LEAST_FOUND:
                continue
            place = rows[of], slots[of], np.full(len(of), k)
            for name, values in (("left_out", one.belief), ("log_prior", one.log_prior), ("caption", outputs.key[of])):
                tables[name][place] = torch.from_numpy(values).to(tables[name].dtype)
            tables["log_total"][:, 0, k] = torch.from_numpy(one.log_total).float()
            if "expected" not in tables:
                width = one.expected.shape[1]
                tables["expected"], tables["wanted"] = torch.zeros(N, 1, K, width), torch.zeros(N, J, K, width)
            tables["expected"][:, 0, k] = torch.from_numpy(one.expected).float()
            tables["wanted"][place] = torch.from_numpy(one.wanted).float()
        return {**tables, "found": found}

    def take(self, judged: Mapping[str, Tensor]) -> None:
        """Believe what `judged_from` found."""
        for name, table in judged.items():
            if name != "found":
                self.tables[name] = table.to(self.device)
        self.left_out = self.tables["left_out"]
        self.is_final = bool((judged["found"] >= FOUNDED).all())

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        self.standing.copy_(torch.where(self.left_out.isnan(), self.standing, self.left_out))

    def judge(self, comparison: Comparison, places: Places) -> Judgement:
        believed = self.left_out[places].to(comparison.u.dtype)
        is_judged = ~believed.isnan()
        if not bool(is_judged.all()):
            small_loss = super().judge(comparison, places).belief
            assert small_loss is not None
            believed = torch.where(is_judged, believed, small_loss)
        if not self.settings.relabels or not bool(is_judged.any()):
            return Judgement(believed)
        # Own partners, and of the other captions of the batch what is expected: q_i, [n, n].
        doubt = torch.where(is_judged, 1 - believed, 0.0)
        partners = doubt[:, None] * self.expected_in(places).to(believed.dtype)
        caption, language = self.tables["caption"][places], places.languages
        same = (caption[:, None] == caption) & (language[:, None] == language)
        own = (partners * same).sum(dim=1) + believed
        partners = partners.masked_fill(same, 0.0)
        partners.diagonal().add_(own)
        weight = partners.sum(dim=1)
        tiny = torch.finfo(weight.dtype).tiny
        targets = partners / weight.clamp(min=tiny)[:, None]
        targets.diagonal().add_((weight <= tiny).to(weight.dtype))
        return Judgement(weight.clamp(max=1), targets)

    def expected_in(self, places: Places) -> Tensor:
        """p_i(c) of the pairs' captions, [n, n]: spread over those of one text, and averaged over the languages in them."""
        tables, (rows, _, languages) = self.tables, places
        found = torch.zeros(len(rows), len(rows), device=self.device)
        present = languages.unique()
        for k in present:
            of = (languages == k).nonzero().squeeze(1)
            caption = tables["caption"][places][of]
            total = tables["log_total"][rows, 0, k]
            logits = tables["expected"][rows, 0, k] @ tables["wanted"][places][of].T - total[:, None]
            equal = (caption[:, None] == caption).sum(dim=1)
            found[:, of] = (logits + tables["log_prior"][places][of]).exp() / (equal * len(present))
        return found.nan_to_num(nan=0.0)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "is_final": self.is_final}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.is_final = bool(state["is_final"])
