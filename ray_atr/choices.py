"""Values that settings of several packages allow. Nothing is imported, so that a command's help can name them."""

from __future__ import annotations

from typing import Literal

RELEVANCE = ("auto", "clip", "label")
"""What is relevant to a caption: its own clip, every clip of its class, or the class if each has one caption."""
RELEVANCE_HELP = (
    "clip: a caption's own clip is relevant; label: every clip of its class; auto: label if each class has one caption"
)

Ranking = Literal["learned", "cosine", "plan"]
RANKINGS: tuple[Ranking, ...] = ("learned", "cosine", "plan")
RANKING_HELP = (
    "order of a query's candidates: learned, by distance under the learned metric (cosine if none is learned); cosine; plan, by "
    "the transport plan of the whole set, in which one query's answer depends on the others"
)
