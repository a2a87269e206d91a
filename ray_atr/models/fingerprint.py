"""Fingerprint of the model that made vectors or scores: those of another model cannot be compared with them."""

from __future__ import annotations

import xxhash

from ray_atr.common.storage import Location, file_exists, read_json
from ray_atr.models.retriever import Retriever
from ray_atr.models.tower import add_state

PACK_FILE = "pack.json"
"""File beside a language pack's retriever that names the space to which its texts are fitted."""
PROBE = "A dog barks twice; rain falls on a tin roof. 犬が吠える"


def model_fingerprint(retriever: Retriever) -> str:
    """The digest of what determines a vector: towers, weights, front end, tokeniser, learned metric. How a tower pools its
    tokens, and a model its windows, is not in it.
    """
    digest = xxhash.xxh3_128()
    towers = (retriever.audio_tower, retriever.text_tower)
    settings = retriever.settings
    facts = [
        *(type(tower).__qualname__ for tower in towers),
        repr(retriever.audio_tower.front_end),
        settings.projection,
        settings.interaction,
        retriever.distance,
        repr(_tokens(retriever, "eng")),
    ]
    digest.update("\n".join(facts).encode())
    add_state(digest, retriever)
    return f"xxh3:{digest.hexdigest()}"


def fitted_to(folder: Location) -> str:
    """The fingerprint of the model whose index a language pack was fitted to; empty for any other retriever."""
    file = folder / PACK_FILE
    return str(read_json(file).get("model", "")) if file_exists(file) else ""


def is_told_language(retriever: Retriever) -> bool:
    """Whether the text tower encodes a text differently in another language, so that a query needs its language."""
    return retriever.text_tower.reads_texts and _tokens(retriever, "eng") != _tokens(retriever, "fra")


def reads_any_text(retriever: Retriever) -> bool:
    """Whether the text tower takes any text, and not only captions whose vectors it has."""
    return not isinstance(_tokens(retriever, "eng"), str)


def _tokens(retriever: Retriever, language: str) -> list[int] | str:
    try:
        return retriever.text_tower.tokenise([PROBE], [language])[0]
    except ValueError:
        # A tower of stored vectors has only its own captions, by language.
        return language
