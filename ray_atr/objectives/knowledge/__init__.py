"""What an objective knows beyond its batch: one file a variant, one line here."""

from ray_atr.objectives.knowledge.base import Knowledge, NoKnowledge

KNOWLEDGE: dict[str, type[Knowledge]] = {variant.name: variant for variant in (NoKnowledge,)}

__all__ = ["KNOWLEDGE", "Knowledge", "NoKnowledge"]
