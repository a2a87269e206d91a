"""The two towers, the retriever that joins them, and the loading of published weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray_atr.models.retriever import Retriever as Retriever


def __getattr__(name: str) -> Any:
    if name == "Retriever":
        # Imported when it is asked for: the modules of this folder import each other.
        from ray_atr.models.retriever import Retriever

        return Retriever
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
