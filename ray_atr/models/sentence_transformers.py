"""Any model of sentence-transformers, or any ClapModel, as a frozen tower: the projection takes its final vector.

It encodes a data set once, as every frozen tower. Only that library's own modules are loaded (no `trust_remote_code`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from ray_atr.common.settings import refuse, require_extra, setting
from ray_atr.data.audio import SHORTEST_WINDOW, FrontEnd
from ray_atr.models.adaptation import Adaptation
from ray_atr.models.pretrained import require_name
from ray_atr.models.tower import AudioSettings, AudioTower, Encoded, TextSettings, TextTower, Tower
from ray_atr.models.weights import AUDIO_CHECKPOINT, TEXT_CHECKPOINT, identity_of_checkpoint, refusing

EXTRA = "sentence-transformers"
CHECKPOINT_HELP = "folder or hub id of a model that sentence-transformers opens; a ClapModel's folder is one"
MODEL_FOLDER = "model"


def _frozen() -> Any:
    """The field of training options; the tower is frozen by default."""
    about = "a tower of sentence-transformers is frozen (is_frozen true)"
    return setting(default_factory=lambda: Adaptation(is_frozen=True), help=about)


@dataclass(frozen=True, kw_only=True)
class SentenceTransformersText(TextSettings):
    """A text encoder, frozen; its own tokeniser, pooling and default prompt."""

    name: ClassVar[str] = "sentence_transformers"
    adapt: Adaptation = _frozen()
    checkpoint: str = setting("", CHECKPOINT_HELP, path="if there")

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_frozen("model.text", self.adapt)

    def build(self, tokenizer: object | None = None) -> SentenceTransformersTextTower:
        return SentenceTransformersTextTower(open_model(self.checkpoint, TEXT_CHECKPOINT, "text"))

    def rebuild(self, folder: Path) -> SentenceTransformersTextTower:
        return SentenceTransformersTextTower(open_model(str(folder / MODEL_FOLDER), "model folder", "text"))


class OpenedTower(Tower):
    """A model of the library, which saves its own weights."""

    saves_weights = True

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.width = model.eval(), int(model.get_embedding_dimension())
        # Its modules with their settings, such as the pooling, and the tokens at which a text is cut.
        self.beyond_weights = f"{model!r} {getattr(model, 'max_seq_length', None)}"

    def save(self, folder: Path) -> None:
        self.model.save_pretrained(str(folder / MODEL_FOLDER), create_model_card=False)


class SentenceTransformersTextTower(OpenedTower, TextTower):
    """The pooled vector is the model's output, after all of its layers: what its `encode` returns."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.pad_token_id = int(getattr(getattr(model, "tokenizer", None), "pad_token_id", None) or 0)
        self.prompt = model.prompts.get(model.default_prompt_name) or None
        probe = model.preprocess(["a"], prompt=self.prompt)
        # A table of token vectors (model2vec) takes the tokens of all texts in one row.
        self.is_flat = "offsets" in probe
        if not self.is_flat and "attention_mask" not in probe:
            raise refuse(
                TEXT_CHECKPOINT, f"a model that begins with {type(model[0]).__name__}", "one that reads tokens"
            )
        # Some models leave their prompt's tokens out of the mean.
        self.prompt_length = {"prompt_length": probe["prompt_length"]} if "prompt_length" in probe else {}

    def tokenise(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[int]]:
        """Token ids; the languages are ignored."""
        if not texts:
            return []
        tokens = self.model.preprocess(list(texts), prompt=self.prompt)
        if self.is_flat:
            return [ids.tolist() for ids in tokens["input_ids"].tensor_split(tokens["offsets"][1:])]
        rows = zip(tokens["input_ids"], tokens["attention_mask"].bool(), strict=True)
        return [ids[mask].tolist() for ids, mask in rows]

    def forward(self, token_ids: Tensor, token_mask: Tensor) -> Encoded:
        features: dict[str, Any]
        if self.is_flat:
            lengths = token_mask.sum(dim=1)
            features = {"input_ids": token_ids[token_mask], "offsets": lengths.cumsum(dim=0) - lengths}
        else:
            mask = token_mask.long()
            features = {"input_ids": token_ids, "attention_mask": mask, "modality": "text", **self.prompt_length}
        pooled = self.model(features)["sentence_embedding"]
        return Encoded(pooled, pooled[:, None], token_mask[:, :1])


@dataclass(frozen=True, kw_only=True)
class SentenceTransformersAudio(AudioSettings):
    """An audio encoder, frozen; its own feature extractor, which is given the waveform."""

    name: ClassVar[str] = "sentence_transformers"
    adapt: Adaptation = _frozen()
    checkpoint: str = setting("", CHECKPOINT_HELP, path="if there")
    clip_seconds: float = setting(
        10.0,
        "length of a window (s); at most what the model's extractor takes, which cuts the rest",
        at_least=SHORTEST_WINDOW,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_frozen("model.audio", self.adapt)

    @property
    def front_end(self) -> FrontEnd:
        """The waveform at the model's rate, in windows that its extractor does not cut."""
        return waveform_of(self.checkpoint, AUDIO_CHECKPOINT, self.clip_seconds)

    def build(self) -> SentenceTransformersAudioTower:
        return SentenceTransformersAudioTower(open_model(self.checkpoint, AUDIO_CHECKPOINT, "audio"), self.front_end)

    def outline(self) -> SentenceTransformersAudioTower:
        # The library opens a model with its weights alone.
        raise NotImplementedError

    def rebuild(self, folder: Path) -> SentenceTransformersAudioTower:
        saved = str(folder / MODEL_FOLDER)
        front_end = waveform_of(saved, "model folder", self.clip_seconds)
        return SentenceTransformersAudioTower(open_model(saved, "model folder", "audio"), front_end)


class SentenceTransformersAudioTower(OpenedTower, AudioTower):
    """Encodes one clip at a time: the library pads the clips of a batch, and a vector would depend on its batch."""

    def __init__(self, model: Any, front_end: FrontEnd) -> None:
        super().__init__(model)
        self.front_end = front_end

    def forward(self, features: Tensor, frames: Tensor) -> Encoded:
        vectors = [self._encode(clip[:length, 0]) for clip, length in zip(features, frames.tolist(), strict=True)]
        pooled = torch.cat(vectors)
        return Encoded(pooled, pooled[:, None], torch.ones_like(pooled[:, :1], dtype=torch.bool))

    def _encode(self, samples: Tensor) -> Tensor:
        clip = {"array": samples.float().cpu().numpy(), "sampling_rate": self.front_end.sample_rate}
        inputs = self.model.preprocess([{"audio": clip}])
        moved = {
            name: value.to(samples.device) if isinstance(value, Tensor) else value for name, value in inputs.items()
        }
        return self.model(moved)["sentence_embedding"]


def _require_frozen(path: str, adapt: Adaptation) -> None:
    if not adapt.is_frozen:
        raise refuse(f"{path}.adapt.is_frozen", False, "true for a tower of sentence-transformers")


def open_model(checkpoint: str, path: str, modality: str) -> Any:
    """The SentenceTransformer of a folder or hub id, on the CPU. ValueError if it cannot be opened or lacks the modality."""
    require_extra("sentence_transformers", EXTRA, path)
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging as transformers_logging

    require_name(checkpoint, path)
    transformers_logging.disable_progress_bar()
    with refusing(path, checkpoint, "a model of sentence-transformers' own modules", ImportError, TypeError):
        model = SentenceTransformer(checkpoint, device="cpu", trust_remote_code=False)
    if modality not in model.modalities:
        raise refuse(
            path, checkpoint, f"a model that takes {modality}; this one takes {', '.join(map(str, model.modalities))}"
        )
    return model


def waveform_of(checkpoint: str, path: str, clip_seconds: float) -> FrontEnd:
    """The front end of a model that takes waveforms: the rate and longest clip are those of its feature extractor."""
    # Another model may be at its place by now.
    return _waveform_of(checkpoint, path, clip_seconds, tuple(identity_of_checkpoint(checkpoint) or ()))


@cache
def _waveform_of(checkpoint: str, path: str, clip_seconds: float, _identity: tuple[Any, ...]) -> FrontEnd:
    for module in open_model(checkpoint, path, "audio").modules():
        processor = getattr(module, "processor", None)
        extractor = getattr(processor, "feature_extractor", processor)
        if rate := int(getattr(extractor, "sampling_rate", 0)):
            longest = float(getattr(extractor, "max_length_s", None) or clip_seconds)
            return FrontEnd(
                kind="waveform",
                sample_rate=rate,
                num_mels=1,
                high_hz=rate / 2,
                clip_seconds=min(clip_seconds, longest),
                # The convolutions of wav2vec 2.0 need this many for one output.
                minimum_samples=400,
            )
    raise refuse(path, checkpoint, "a model whose feature extractor has a sampling_rate")
