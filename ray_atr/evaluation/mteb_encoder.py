"""A retriever as MTEB's encoder. It needs the extra `mteb`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Audio, Dataset
from mteb.models import ModelMeta
from torch import Tensor

from ray_atr.common.language_codes import ENGLISH, LANGUAGES
from ray_atr.common.settings import refuse
from ray_atr.evaluation.encoding import embed_batches, window_batches
from ray_atr.models.retriever import Retriever

NO_LANGUAGE = "zxx"
"""MTEB's language of sounds: the ISO 639-3 code for content without language."""


class RetrieverEncoder:
    """Embeds clips and texts as `evaluate` does, and compares them by `similarity`: MTEB's EncoderProtocol.

    Clips are decoded and resampled by this package: `datasets` would need torchcodec. Their log-mel frames are rounded as in a
    feature cache (float16), which may change ranks that are nearly equal.
    """

    def __init__(self, retriever: Retriever, name: str) -> None:
        self.retriever = retriever
        languages = [language_and_script(code) for code in retriever.languages or ()]
        self.mteb_model_meta = ModelMeta.create_empty(
            {
                "name": f"ray_atr/{name}",
                "modalities": ["text", "audio"],
                "languages": languages or None,
                "embed_dim": retriever.vector_width,
                "framework": ["PyTorch"],
            }
        )

    def encode(
        self,
        inputs: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        batch_size: int = 32,
        **kwargs: Any,
    ) -> Tensor:
        """Vectors [N, r] of a DataLoader's clips or texts. ValueError for another kind of input, or both at once."""
        data = inputs.dataset
        kinds = {"audio", "text"}.intersection(data.column_names, task_metadata.get_modalities(prompt_type))
        if len(kinds) != 1:
            raise refuse(task_metadata.name, ", ".join(data.column_names), "a task of clips alone or texts alone")
        if kinds == {"text"}:
            # As `encode_text`, without its warning of a language for each batch: the evaluation has said it.
            language = language_of(task_metadata.eval_langs, hf_subset)
            return self.retriever.vectors(self.retriever.embed_sentences(list(data["text"]), language))
        rows = audio_rows(data)
        if "bytes" not in rows[0] and "path" not in rows[0]:
            waves = ((torch.as_tensor(row["array"], dtype=torch.float32), int(row["sampling_rate"])) for row in rows)
            return torch.cat([self.retriever.encode_audio([wave], rate) for wave, rate in waves])
        sounds = ((f"clip {place}", row["bytes"] or Path(row["path"]).read_bytes()) for place, row in enumerate(rows))
        all_windows, front_end = self.retriever.settings.pools_windows, self.retriever.audio_tower.front_end
        batches = window_batches(sounds, front_end, all_windows=all_windows, batch_size=batch_size)
        with torch.no_grad(), self.retriever.evaluating():
            return self.retriever.vectors(embed_batches(self.retriever, batches).cpu())

    def similarity(self, first: Any, second: Any) -> Tensor:
        """The retriever's similarities [M, N]: cosine, or minus the distance."""
        return self.retriever.similarity(_rows(first), _rows(second))

    def similarity_pairwise(self, first: Any, second: Any) -> Tensor:
        """The similarity of each row and its partner, [N]."""
        pairs = zip(_rows(first).split(1), _rows(second).split(1), strict=True)
        return torch.cat([self.retriever.similarity(a, b)[0] for a, b in pairs])


def audio_rows(data: Dataset) -> Any:
    """The rows of a data set's column `audio`, as encoded files if possible."""
    if isinstance(data.features["audio"], Audio):
        data = data.cast_column("audio", Audio(decode=False))
    return data["audio"]


def language_of(eval_langs: Any, hf_subset: str) -> str:
    """The language (ISO 639-3) of a task's texts, from codes such as `jpn-Jpan`; English where none is named."""
    codes = eval_langs[hf_subset] if isinstance(eval_langs, dict) else eval_langs
    languages = [code.partition("-")[0] for code in codes]
    return next((code for code in languages if code != NO_LANGUAGE), ENGLISH)


def language_and_script(code: str) -> str:
    """A language in MTEB's form `jpn-Jpan`, without the script if it is unknown."""
    return LANGUAGES[code].tag.replace("_", "-") if code in LANGUAGES else code


def _rows(values: Any) -> Tensor:
    rows = torch.as_tensor(values)
    return rows[None] if rows.ndim == 1 else rows
