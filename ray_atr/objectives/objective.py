"""An objective: three independent choices, language scheme x pair loss x knowledge."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ray_atr.objectives.embeddings import Embeddings
from ray_atr.objectives.knowledge import KNOWLEDGE, Knowledge, NoKnowledge
from ray_atr.objectives.pairs import PAIRS, Contrastive, PairLoss
from ray_atr.objectives.schemes import SCHEMES, English, Scheme
from ray_atr.objectives.terms import Terms, weighted_sum
from ray_atr.settings import Settings, nearest, refuse, setting


@dataclass(frozen=True, kw_only=True)
class Objective(Settings):
    """What training minimises. Pure: embeddings of the global batch in, `Terms` out; nothing learned, gathered or kept."""

    scheme: Scheme = setting(
        default_factory=English, help="language scheme: which texts are encoded and compared", variants=SCHEMES
    )
    pair: PairLoss = setting(default_factory=Contrastive, help="pair loss: how two sides are compared", variants=PAIRS)
    knowledge: Knowledge = setting(
        default_factory=NoKnowledge, help="knowledge from outside the batch", variants=KNOWLEDGE
    )

    def __call__(
        self,
        embeddings: Embeddings,
        *,
        metric: Tensor | None = None,
        temperature: Tensor | None = None,
        draw: Tensor | None = None,
        retrieved: Any = None,
    ) -> Terms:
        """The loss of a global batch, and scalars to log.

        metric       learned metric of learning to match: [D] diagonal, [D, D] mahalanobis, [D, rank] factored.
        temperature  learned temperature, a scalar > 0, in place of the pair loss's setting.
        draw         [B] int64: what `scheme.draw` returned, for the schemes that draw.
        retrieved    what the knowledge base returned for the batch, for the knowledge variants that need it.
        """
        if self.knowledge.needs_retrieval and retrieved is None:
            raise refuse("retrieved", None, f"the neighbours that objective.knowledge={self.knowledge.name} needs")
        parts = self.scheme.pairs(embeddings, draw)
        terms = [
            self.knowledge.score(part.comparison, self.pair, retrieved, metric=metric, temperature=temperature)
            for part in parts
        ]
        loss, scalars = weighted_sum(terms, [part.weight for part in parts])
        if len(parts) > 1 or self.scheme.splits_by_language:
            by_part = {f"loss_{part.label}": one.loss.detach() for part, one in zip(parts, terms, strict=True)}
            scalars = {**scalars, **by_part}
        return Terms(loss, scalars)

    def with_settings(self, **settings: Any) -> Objective:
        """A copy with settings of the scheme, the pair loss or the knowledge changed, found by their bare names."""
        parts: dict[str, Any] = {"scheme": self.scheme, "pair": self.pair, "knowledge": self.knowledge}
        owners = {field.name: role for role, part in reversed(parts.items()) for field in dataclasses.fields(part)}
        changes: dict[str, dict[str, Any]] = {}
        for name, value in settings.items():
            if name not in owners:
                raise unknown_setting(name, owners)
            changes.setdefault(owners[name], {})[name] = value
        changed = {role: dataclasses.replace(parts[role], **values) for role, values in changes.items()}
        return dataclasses.replace(self, **changed)


def unknown_setting(name: str, known: dict[str, str]) -> ValueError:
    """The error that names an unknown setting, those that exist, and the nearest of them."""
    return refuse("setting", name, "one of " + ", ".join(sorted(known)), nearest(name, known))
