"""Any audio encoder of the transformers library as an audio tower; HTS-AT and AST are this with other defaults."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ray_atr.data.audio import FrontEnd
from ray_atr.models.loading import AUDIO_CHECKPOINT
from ray_atr.models.pretrained import encoder_class, load_model, read_feature_extractor, read_model_config
from ray_atr.models.tower import AudioSettings, AudioTower, Encoded, encode_groups
from ray_atr.settings import inherited, refuse, setting

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

HEADS = ("classifier.", "projector.", "lm_head.", "quantizer.", "project_q.", "project_hid.", "masked_spec_embed")
"""Beginnings of names that an encoder has no use for."""


@dataclass(frozen=True, kw_only=True)
class TransformersAudio(AudioSettings):
    """An encoder from a local folder or the hub, with the front end that its preprocessor_config.json describes."""

    name: ClassVar[str] = "transformers"

    checkpoint: str = setting("", "folder or hub id of the encoder and its preprocessor_config.json", path="if there")
    pooling: str = setting(
        "model", "embedding of a clip: as the model pools its tokens, or their mean", choices=("model", "mean")
    )
    clip_seconds: float | None = setting(
        None,
        "length of a window (s); model.windows says how longer clips are encoded; none: the length that the checkpoint was made "
        "for, or 10",
        above=0,
    )
    dropout: float | None = setting(
        None, "replaces every dropout of the model; none keeps the checkpoint's", at_least=0, below=1
    )
    allow_mismatch: tuple[str, ...] = setting((), "patterns of parameter names that the checkpoint need not match")

    @property
    def front_end(self) -> FrontEnd:
        """The front end that the checkpoint's own feature extractor computes."""
        return front_end_of(read_feature_extractor(self.checkpoint, AUDIO_CHECKPOINT), self.clip_seconds)

    def build(self) -> TransformersAudioTower:
        config = read_model_config(self.checkpoint, AUDIO_CHECKPOINT, self.dropout)
        load = partial(load_model, checkpoint=self.checkpoint, config=config, path=AUDIO_CHECKPOINT)
        if config.model_type == "clap":
            from transformers import ClapModel

            model = load(ClapModel, skip=("text_model.",), allowed=self.allow_mismatch).audio_model
        else:
            model = load(audio_encoder(config), skip=HEADS, allowed=self.allow_mismatch)
        return TransformersAudioTower(self, model, read_feature_extractor(self.checkpoint, AUDIO_CHECKPOINT))

    def rebuild(self, folder: Path) -> TransformersAudioTower:
        config = read_model_config(folder, "model folder", self.dropout)
        model = audio_encoder(config)(config)
        return TransformersAudioTower(self, model, read_feature_extractor(folder, "model folder"))


@dataclass(frozen=True, kw_only=True)
class Ast(TransformersAudio):
    """The audio spectrogram transformer (Gong et al. 2021), on Kaldi's filter bank."""

    name: ClassVar[str] = "ast"

    checkpoint: str = inherited(TransformersAudio, "checkpoint", "MIT/ast-finetuned-audioset-10-10-0.4593")


@dataclass(frozen=True, kw_only=True)
class Htsat(TransformersAudio):
    """HTS-AT (Chen et al. 2022) as CLAP's audio encoder; clips are repeated to fill its ten seconds."""

    name: ClassVar[str] = "htsat"

    checkpoint: str = inherited(TransformersAudio, "checkpoint", "laion/clap-htsat-unfused")


class TransformersAudioTower(AudioTower):
    """Encodes clips of equal length together and never pads one: no encoder of the library masks padding in every layer."""

    def __init__(self, settings: TransformersAudio, model: PreTrainedModel, extractor: Any) -> None:
        super().__init__()
        self.model, self.extractor = model, extractor
        self.front_end = front_end_of(extractor, settings.clip_seconds)
        self.pooling = settings.pooling
        self.model_type = model.config.model_type
        for name, parameter in model.named_parameters():
            # Filled in for masked-prediction training only; without a gradient it would stop distributed training.
            if name.endswith("masked_spec_embed"):
                parameter.requires_grad_(False)
        config = model.config
        is_clap = self.model_type == "clap_audio_model"
        self.width = (
            int(config.patch_embeds_hidden_size * 2 ** (len(config.depths) - 1)) if is_clap else int(config.hidden_size)
        )

    def forward(self, features: Tensor, frames: Tensor) -> Encoded:
        lengths = frames.tolist()
        if len(set(lengths)) == 1:
            return self._encode(features[:, : lengths[0]])
        groups = [((frames == length).nonzero().flatten(), length) for length in dict.fromkeys(lengths)]
        return encode_groups(groups, lambda rows, length: self._encode(features[rows, :length]))

    def _encode(self, features: Tensor) -> Encoded:
        """Clips [N, T, F] of the same length, without padding."""
        if self.front_end.kind == "waveform":
            output = self.model(features[..., 0])
        elif self.model_type == "clap_audio_model":
            is_longer = torch.zeros(len(features), 1, dtype=torch.bool, device=features.device)
            output = self.model(features[:, None], is_longer=is_longer)
        else:
            output = self.model(features)
        tokens = output.last_hidden_state
        if tokens.ndim == 4:
            tokens = tokens.flatten(2).transpose(1, 2)
        pooled = getattr(output, "pooler_output", None) if self.pooling == "model" else None
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        return Encoded(tokens.mean(dim=1) if pooled is None else pooled, tokens, mask)

    def save(self, folder: Path) -> None:
        self.model.config.save_pretrained(folder)
        self.extractor.save_pretrained(folder)


def audio_encoder(config: PreTrainedConfig) -> Any:
    """The class that encodes this configuration's clips."""
    from transformers import ClapAudioModel

    allowed = "an audio encoder, like clap, audio-spectrogram-transformer, wav2vec2 or hubert"
    return encoder_class(config, AUDIO_CHECKPOINT, {"clap_audio_model": ClapAudioModel}, allowed)


def front_end_of(extractor: Any, clip_seconds: float | None) -> FrontEnd:
    """Our front end that computes what a transformers feature extractor computes. Raises ValueError for a kind we lack."""
    kind = type(extractor).__name__
    if kind == "ClapFeatureExtractor":
        # A fused model takes the whole clip as its only view, as it does for clips that are not longer than its window.
        is_fused = extractor.truncation == "fusion"
        return FrontEnd(
            sample_rate=extractor.sampling_rate,
            window_size=extractor.fft_window_size,
            hop_size=extractor.hop_length,
            num_mels=extractor.feature_size,
            low_hz=float(extractor.frequency_min),
            high_hz=float(extractor.frequency_max),
            mel_scale="htk" if is_fused else "slaney",
            mel_norm="none" if is_fused else "slaney",
            top_db=extractor.top_db,
            clip_seconds=clip_seconds or float(extractor.max_length_s),
            pad="repeat",
        )
    if kind == "ASTFeatureExtractor":
        rate = extractor.sampling_rate
        normalisation = {"mean": extractor.mean, "std": 2 * extractor.std} if extractor.do_normalize else {}
        return FrontEnd(
            kind="kaldi",
            sample_rate=rate,
            window_size=rate // 40,
            hop_size=rate // 100,
            num_mels=extractor.num_mel_bins,
            low_hz=20.0,
            high_hz=rate / 2,
            clip_seconds=clip_seconds or extractor.max_length / 100 + 0.015,
            pad_frames=extractor.max_length,
            **normalisation,
        )
    if kind == "Wav2Vec2FeatureExtractor":
        return FrontEnd(
            kind="waveform",
            sample_rate=extractor.sampling_rate,
            num_mels=1,
            high_hz=extractor.sampling_rate / 2,
            normalises_clip=bool(extractor.do_normalize),
            clip_seconds=clip_seconds or 10.0,
            # What the convolutions of wav2vec 2.0 need for one output.
            minimum_samples=400,
        )
    raise refuse(
        AUDIO_CHECKPOINT, kind, "a feature extractor of CLAP, AST or wav2vec 2.0 (HuBERT, WavLM, data2vec) kind"
    )
