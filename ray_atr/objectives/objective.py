"""An objective: four independent choices, language scheme x pair loss x knowledge x correspondence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ray_atr.common.settings import Settings, nearest, refuse, setting
from ray_atr.objectives.correspondence import CORRESPONDENCES, Correspondence, NoCorrespondence
from ray_atr.objectives.knowledge import KNOWLEDGE, Knowledge, NoKnowledge
from ray_atr.objectives.pairs import PAIRS, Comparison, Contrastive, PairLoss, Terms
from ray_atr.objectives.pairs.around_ring import own_pairs
from ray_atr.objectives.pairs.embeddings import Embeddings
from ray_atr.objectives.pairs.learned import NOTHING_LEARNED, Learned
from ray_atr.objectives.pairs.pair_loss import weighted_sum
from ray_atr.objectives.pairs.ring import Ring
from ray_atr.objectives.schemes import SCHEMES, English, Scheme, Weighted


@dataclass(frozen=True, kw_only=True)
class Objective(Settings):
    """What training minimises: a function from the embeddings of the global batch to `Terms`, without state.

    When: a combination that no preset has, or a loop of your own.
    Related: `preset` makes those of the papers; `ray_atr.train` trains two of your modules with one.

    >>> import torch
    >>> from ray_atr.objectives import Embeddings
    >>> batch = Embeddings(audio=torch.eye(4), text=torch.eye(4)[:, None])
    >>> round(Objective()(batch).loss.item(), 4)
    0.0
    """

    scheme: Scheme = setting(
        default_factory=English, help="language scheme: which texts are encoded and compared", variants=SCHEMES
    )
    pair: PairLoss = setting(default_factory=Contrastive, help="pair loss: how two sides are compared", variants=PAIRS)
    knowledge: Knowledge = setting(
        default_factory=NoKnowledge, help="knowledge from outside the batch", variants=KNOWLEDGE
    )
    correspondence: Correspondence = setting(
        default_factory=NoCorrespondence, help="how likely each pair is to be a true one", variants=CORRESPONDENCES
    )

    def __call__(
        self,
        embeddings: Embeddings,
        *,
        learned: Learned = NOTHING_LEARNED,
        draw: Tensor | None = None,
        retrieved: Any = None,
        weigh_pairs: Callable[[Comparison], Comparison] | None = None,
    ) -> Terms:
        """The loss of a global batch, and scalars to log: in float32, or float64 if the embeddings are, within autocast too.

        learned    takes the place of the pair loss's settings.
        draw       [B] int64: what `scheme.draw` returned, for the schemes that draw.
        retrieved  what the knowledge base returned for the batch, for the knowledge variants that need it.
        weigh_pairs  sets sample weights and soft targets of a comparison: `Estimator.for_batch(rows, slots)`. None: weights
                   of 1, no soft targets.

        >>> import torch
        >>> from ray_atr.objectives import Embeddings, preset
        >>> embeddings = Embeddings(audio=torch.eye(4), text=torch.eye(4)[:, None])  # [B, D] and [B, K, D]
        >>> bool(preset("contrastive")(embeddings).loss < 0.01)
        True
        """
        if self.knowledge.needs_retrieval and retrieved is None:
            raise refuse("retrieved", None, f"the neighbours that objective.knowledge={self.knowledge.name} needs")
        self.knowledge.check_pair(self.pair)
        learned = learned.to(embeddings.audio.dtype)
        # A loop of one's own may call it within autocast, which would round every similarity to half precision.
        with torch.autocast(embeddings.audio.device.type, enabled=False):
            parts = self.scheme.pairs(embeddings, draw)
            if weigh_pairs is not None:
                parts = [part._replace(comparison=weigh_pairs(part.comparison)) for part in parts]
            scored = [self.knowledge.score(part.comparison, self.pair, retrieved, learned) for part in parts]
            return self._combined(parts, scored)

    @property
    def gathers(self) -> str:
        """The setting that makes workers gather all embeddings; empty if each can keep its own (`score_own`)."""
        if not self.pair.goes_around:
            return f"objective.pair={self.pair.name}"
        if self.knowledge.name != NoKnowledge.name:
            return f"objective.knowledge={self.knowledge.name}"
        if self.correspondence.reads_embeddings:
            return f"objective.correspondence={self.correspondence.name}"
        return ""

    def score_own(
        self,
        audio: Tensor,
        text: Tensor,
        mask: Tensor,
        ring: Ring,
        *,
        groups: Tensor | None = None,
        learned: Learned = NOTHING_LEARNED,
        draw: Tensor | None = None,
        weigh_pairs: Callable[[Comparison], Comparison] | None = None,
    ) -> Terms:
        """The loss of a global batch of B clips that are spread over workers. Every worker gets the same loss, and the gradients
        of its own clips.

        audio [b, D] and text [b, K, D], in float32 or float64, belong to the worker's clips, `ring.own`. mask [B, K], groups
        [B, G] and draw [B] belong to all clips, and are as `Embeddings` and `__call__` have them. Only for objectives whose
        `gathers` is empty. If the ring has `pending` gradients, those of the texts are complete after `pending.backward()`.
        """
        if self.gathers:
            raise refuse("objective", self.gathers, "a contrastive or sigmoid loss of the batch alone")
        # What is compared with what depends on the masks alone.
        nothing = Embeddings(audio.new_zeros(len(mask), 1), audio.new_zeros(*mask.shape, 1), mask, groups=groups)
        parts = self.scheme.pairs(nothing, draw)
        if weigh_pairs is not None:
            parts = [part._replace(comparison=weigh_pairs(part.comparison)) for part in parts]
        with torch.autocast(audio.device.type, enabled=False):
            audio = functional.normalize(audio, dim=-1)
            owned = (own_pairs(part.comparison, audio, text, ring) for part in parts)
            return self._combined(parts, [self.pair.score_own(pairs, learned) for pairs in owned])

    def _combined(self, parts: Sequence[Weighted], terms: Sequence[Terms]) -> Terms:
        """The weighted sum of the scheme's comparisons."""
        loss, scalars = weighted_sum(terms, [part.weight for part in parts])
        if len(parts) > 1 or self.scheme.splits_by_language:
            by_part = {f"loss_{part.label}": term.loss.detach() for part, term in zip(parts, terms, strict=True)}
            return Terms(loss, {**scalars, **by_part})
        return Terms(loss, scalars)

    @property
    def needs_clean_share(self) -> bool:
        """Whether a part reads the estimated share of true pairs."""
        return self.pair.needs_clean_share or self.correspondence.needs_clean_share

    def with_settings(self, **settings: Any) -> Objective:
        """A copy with settings of its four parts changed, by their bare names. A name of two parts means the earlier one's."""
        parts: dict[str, Any] = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        owners = {field.name: role for role, part in reversed(parts.items()) for field in dataclasses.fields(part)}
        changes: dict[str, dict[str, Any]] = {}
        for name, value in settings.items():
            if name not in owners:
                raise refuse("setting", name, "one of " + ", ".join(sorted(owners)), nearest(name, owners))
            changes.setdefault(owners[name], {})[name] = value
        changed = {role: dataclasses.replace(parts[role], **values) for role, values in changes.items()}
        return dataclasses.replace(self, **changed)
