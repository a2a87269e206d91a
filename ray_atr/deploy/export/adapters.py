"""A retriever as a SentenceTransformer in this process, with any towers, long clips and any sample rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray_atr.common.settings import require_extra
from ray_atr.deploy.export.sentence_transformers import EXTRA
from ray_atr.models.retriever import Retriever

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def as_sentence_transformer(retriever: Retriever, language: str = "eng") -> SentenceTransformer:
    """A SentenceTransformer that embeds as `retriever.encode_text` and `encode_audio` do; `similarity` ranks as `distance` says.

    All texts are in one language, which is used only by a tokeniser with language tags. A clip is a mono waveform with its rate,
    `{"array": [S], "sampling_rate": Hz}`, alone or as `{"audio": ...}`. It cannot be saved, as that
    library opens only its own modules; `ray-atr export --to sentence-transformers` writes a folder that it can open.

    ValueError, with what to install, without sentence-transformers.

    When: code that takes a SentenceTransformer, such as MTEB, is to use a retriever.
    Related: `ray-atr export` writes a folder that is opened without this package.
    """
    require_extra("sentence_transformers", EXTRA, "as_sentence_transformer")
    from sentence_transformers import SentenceTransformer

    from ray_atr.deploy.export.retriever_module import RetrieverModule

    similarity: Any = retriever.distance
    return SentenceTransformer(
        modules=[RetrieverModule(retriever, language)], similarity_fn_name=similarity, device=str(retriever.device)
    )
