"""Any encoder of the transformers library as a tower; HTS-AT, AST, SONAR, LaBSE, BERT and XLM-R have defaults of their own."""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ray_atr.common.language_codes import tag_among
from ray_atr.common.settings import inherited, refuse, setting
from ray_atr.data.audio import SHORTEST_WINDOW, FrontEnd
from ray_atr.models import pretrained
from ray_atr.models.tower import AudioSettings, AudioTower, Encoded, TextSettings, TextTower, encode_groups, masked_mean
from ray_atr.models.weights import AUDIO_CHECKPOINT, TEXT_CHECKPOINT

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

AUDIO_HEADS = ("classifier.", "projector.", "lm_head.", "quantizer.", "project_q.", "project_hid.", "masked_spec_embed")
TEXT_HEADS = ("cls.", "lm_head.", "pooler.", "decoder.", "model.decoder.", "shared.", "embeddings.position_ids")
"""Prefixes of tensors that an encoder does not need."""
CHECKPOINT_FILES = ("config.json", "*.pt")
"""Of a model of transformers, or of LAION-CLAP and ML-CLAP."""
GPU_TOKENS = 4096
"""Least tokens in a group of texts on a GPU: with fewer, starting a layer takes as long as computing it."""
PUNCTUATION = r"[(，。！？;：、,.!?:|*\")]"
"""Characters that the released code of ML-CLAP removes from captions."""
_TAGGING = threading.Lock()
"""Held while a tokeniser has the tag of a language: a server answers in several threads. Of the module, as towers are copied."""


@dataclass(frozen=True, kw_only=True)
class TransformersAudio(AudioSettings):
    """An encoder from a local folder or the hub, with the front end that its preprocessor_config.json describes."""

    name: ClassVar[str] = "transformers"
    checkpoint_files: ClassVar[tuple[str, ...]] = CHECKPOINT_FILES
    checkpoint: str = setting("", "folder or hub id of the encoder and its preprocessor_config.json", path="if there")
    pooling: str = setting(
        "model", "embedding of a clip: as the model pools its tokens, or their mean", choices=("model", "mean")
    )
    clip_seconds: float | None = setting(
        None,
        "length of a window (s), at most the length that the checkpoint was made for; model.windows says how longer clips are "
        "encoded; none: that length, or 10 for a checkpoint that takes any",
        at_least=SHORTEST_WINDOW,
    )
    dropout: float | None = setting(
        None, "replaces every dropout of the model; none keeps the checkpoint's", at_least=0, below=1
    )
    allow_mismatch: tuple[str, ...] = setting((), "patterns of parameter names that the checkpoint need not match")

    @property
    def front_end(self) -> FrontEnd:
        """The front end that the checkpoint's own feature extractor computes."""
        return front_end_of(pretrained.read_feature_extractor(self.checkpoint, AUDIO_CHECKPOINT), self.clip_seconds)

    def build(self) -> TransformersAudioTower:
        return self._tower(self.checkpoint, AUDIO_CHECKPOINT, has_weights=True)

    def outline(self) -> TransformersAudioTower:
        return self._tower(self.checkpoint, AUDIO_CHECKPOINT)

    def rebuild(self, folder: Path) -> TransformersAudioTower:
        return self._tower(folder, "model folder")

    def _tower(self, place: str | Path, path: str, *, has_weights: bool = False) -> TransformersAudioTower:
        """The tower that the files at a place describe; errors name them as `path`."""
        config: Any = pretrained.read_model_config(place, path, self.dropout)
        how: dict[str, Any] = {"path": path, "allowed": self.allow_mismatch, "has_weights": has_weights}
        from transformers import ClapAudioModel, ClapModel

        if config.model_type == "clap":
            model = pretrained.load_model(ClapModel, place, config, skip=("text_model.",), **how).audio_model
        else:
            allowed = "an audio encoder, like clap, audio-spectrogram-transformer, wav2vec2 or hubert"
            encoder = pretrained.encoder_class(config, AUDIO_CHECKPOINT, {"clap_audio_model": ClapAudioModel}, allowed)
            model = pretrained.load_model(encoder, place, config, skip=AUDIO_HEADS, **how)
        return TransformersAudioTower(self, model, pretrained.read_feature_extractor(place, path))


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
    """Encodes clips of equal length together, without padding: no encoder of the library masks padding in every layer."""

    def __init__(self, settings: TransformersAudio, model: PreTrainedModel, extractor: Any) -> None:
        super().__init__()
        self.model, self.extractor = model, extractor
        self.front_end = front_end_of(extractor, settings.clip_seconds)
        self.pooling = settings.pooling
        self.model_type = model.config.model_type
        for name, parameter in model.named_parameters():
            # Only masked-prediction training uses it.
            if name.endswith("masked_spec_embed"):
                parameter.requires_grad_(False)
        for module in model.modules():
            if "enable_fusion" in vars(module):
                # A fused CLAP gets a clip as its only view. The branch for longer clips cannot be in a graph.
                vars(module)["enable_fusion"] = False
        if self.model_type == "clap_audio_model":
            self.width = int(model.config.patch_embeds_hidden_size * 2 ** (len(model.config.depths) - 1))
        else:
            self.width = int(model.config.hidden_size)

    def forward(self, features: Tensor, frames: Tensor) -> Encoded:
        lengths = frames.tolist()
        if len(set(lengths)) == 1 and not self.is_sharded:
            return self._encode(features[:, : lengths[0]])
        groups = [((frames == length).nonzero().flatten(), length) for length in dict.fromkeys(lengths)]
        return encode_groups(
            groups, lambda rows, length: self._encode(features[rows, :length]), is_sharded=self.is_sharded
        )

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


def front_end_of(extractor: Any, clip_seconds: float | None) -> FrontEnd:
    """The front end that computes the same as a transformers feature extractor. ValueError for an unknown kind."""
    kind = type(extractor).__name__
    if kind == "ClapFeatureExtractor":
        # A fused model gets the clip as its only view, as for clips that are not longer than its window.
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
            # The convolutions of wav2vec 2.0 need this many for one output.
            minimum_samples=400,
        )
    allowed = "a feature extractor of CLAP, AST or wav2vec 2.0 (HuBERT, WavLM, data2vec) kind"
    raise refuse(AUDIO_CHECKPOINT, kind, allowed)


@dataclass(frozen=True, kw_only=True)
class TransformersText(TextSettings):
    """An encoder from a local folder or the hub, with the tokeniser in its folder."""

    name: ClassVar[str] = "transformers"
    checkpoint_files: ClassVar[tuple[str, ...]] = CHECKPOINT_FILES
    checkpoint: str = setting("", "folder or hub id of the encoder and its tokeniser", path="if there")
    pooling: str = setting(
        "mean",
        "embedding of a text: the mean of its tokens, the first one (cls), or the first one through the model's "
        "own pooler",
        choices=("mean", "cls", "pooler"),
    )
    max_tokens: int = setting(128, "longer texts are cut to this many tokens", at_least=3)
    length_groups: int = setting(
        4,
        "a batch is sorted by length and encoded in this many groups, each padded to its own longest text",
        at_least=1,
    )
    plain_words: bool = setting(False, "read texts in lower case and without punctuation, as the code of ML-CLAP does")
    dropout: float | None = inherited(TransformersAudio, "dropout", None)
    allow_mismatch: tuple[str, ...] = inherited(TransformersAudio, "allow_mismatch", ())

    def build(self, tokenizer: object | None = None) -> TransformersTextTower:
        """The tower with the checkpoint's weights; its tokeniser is the checkpoint's, `tokenizer` is ignored."""
        return self._tower(self.checkpoint, TEXT_CHECKPOINT, has_weights=True)

    def outline(self) -> TransformersTextTower:
        return self._tower(self.checkpoint, TEXT_CHECKPOINT)

    def rebuild(self, folder: Path) -> TransformersTextTower:
        return self._tower(folder, "model folder")

    def _tower(self, place: str | Path, path: str, *, has_weights: bool = False) -> TransformersTextTower:
        """The tower that the files at a place describe; errors name them as `path`."""
        config: Any = pretrained.read_model_config(place, path, self.dropout)
        how: dict[str, Any] = {"path": path, "allowed": self.allow_mismatch, "has_weights": has_weights}
        of_text = config
        if config.model_type == "clap":
            from transformers import ClapModel

            of_text = config.text_config
            model = pretrained.load_model(ClapModel, place, config, skip=("audio_model.",), **how).text_model
        else:
            model_class, arguments = text_encoder(config, self.pooling)
            model = pretrained.load_model(model_class, place, config, skip=TEXT_HEADS, **how, **arguments)
        return TransformersTextTower(self, model, pretrained.load_tokenizer(place, of_text, path))


@dataclass(frozen=True, kw_only=True)
class Sonar(TransformersText):
    """SONAR (Duquenne et al. 2023), 200 languages in one space: NLLB's tokeniser with its language tag, masked mean."""

    name: ClassVar[str] = "sonar"
    checkpoint: str = inherited(TransformersText, "checkpoint", "cointegrated/SONAR_200_text_encoder")


@dataclass(frozen=True, kw_only=True)
class Labse(TransformersText):
    """LaBSE (Feng et al. 2022), 109 languages in one space: the first token through the model's own pooler."""

    name: ClassVar[str] = "labse"
    checkpoint: str = inherited(TransformersText, "checkpoint", "sentence-transformers/LaBSE")
    pooling: str = inherited(TransformersText, "pooling", "pooler")


@dataclass(frozen=True, kw_only=True)
class Bert(TransformersText):
    """BERT (Devlin et al. 2019), English: the first token."""

    name: ClassVar[str] = "bert"
    checkpoint: str = inherited(TransformersText, "checkpoint", "google-bert/bert-base-uncased")
    pooling: str = inherited(TransformersText, "pooling", "cls")


@dataclass(frozen=True, kw_only=True)
class XlmRoberta(TransformersText):
    """XLM-R (Conneau et al. 2020), 100 languages: masked mean."""

    name: ClassVar[str] = "xlm_roberta"
    checkpoint: str = inherited(TransformersText, "checkpoint", "FacebookAI/xlm-roberta-base")


class TransformersTextTower(TextTower):
    """Tokenises each language as the tokeniser needs it, and encodes all texts together in groups of similar length."""

    def __init__(self, settings: TransformersText, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        if model.config.model_type == "clap_text_model" and settings.pooling != "pooler":
            # As `text_encoder` makes it; that of a whole ClapModel has one.
            setattr(model, "pooler", None)  # noqa: B010 (nn.Module's declared attribute type has no None)
        self.model, self.tokenizer = model, tokenizer
        if settings.plain_words:
            read_plain_words(tokenizer)
        self.pooling, self.num_groups = settings.pooling, settings.length_groups
        self.width = int(model.config.hidden_size)
        self.pad_token_id = int(tokenizer.pad_token_id)
        positions = int(getattr(model.config, "max_position_embeddings", settings.max_tokens))
        tables = [module for name, module in model.named_modules() if name.endswith("position_embeddings")]
        # The positions of RoBERTa, MPNet and CamemBERT begin after the padding index.
        padding = [table.padding_idx for table in tables if getattr(table, "padding_idx", None) is not None]
        self.max_tokens = min(settings.max_tokens, positions - (padding[0] + 1 if padding else 0))
        self.language_tags = hasattr(tokenizer, "src_lang") and hasattr(tokenizer, "tgt_lang")
        self._tag_of: dict[str, str | None] = {}

    def tokenise(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[int]]:
        """Token ids, with the language's tag if the tokeniser has tags. ValueError for a language that it lacks."""
        if not self.language_tags:
            return self._tokenise(list(texts))
        token_ids: list[list[int]] = [[] for _ in texts]
        for code in dict.fromkeys(languages):
            if code not in self._tag_of:
                self._tag_of[code] = tag_among(code, self.tokenizer.get_vocab())
            tag = self._tag_of[code]
            if tag is None:
                raise refuse("language", code, "one that the text tower's tokeniser has a tag for")
            rows = [place for place, language in enumerate(languages) if language == code]
            with _TAGGING:
                self.tokenizer.src_lang = tag
                of_language = self._tokenise([texts[place] for place in rows])
            for place, ids in zip(rows, of_language, strict=True):
                token_ids[place] = ids
        return token_ids

    def _tokenise(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            # The library's tokenisers fail on an empty list.
            return []
        return [list(ids) for ids in self.tokenizer(texts, truncation=True, max_length=self.max_tokens)["input_ids"]]

    def forward(self, token_ids: Tensor, token_mask: Tensor) -> Encoded:
        groups = length_groups(token_mask.sum(dim=1), self.num_groups, GPU_TOKENS if token_ids.is_cuda else 0)
        if len(groups) == 1 and not self.is_sharded:
            return self._encode(token_ids, token_mask)
        return encode_groups(
            groups,
            lambda rows, longest: self._encode(token_ids[rows, :longest], token_mask[rows, :longest]),
            token_ids.shape[1],
            is_sharded=self.is_sharded,
        )

    def _encode(self, token_ids: Tensor, token_mask: Tensor) -> Encoded:
        output = self.model(input_ids=token_ids, attention_mask=token_mask.long())
        tokens = output.last_hidden_state
        if self.pooling == "mean":
            pooled = masked_mean(tokens, token_mask)
        else:
            pooled = tokens[:, 0] if self.pooling == "cls" else output.pooler_output
        return Encoded(pooled, tokens, token_mask)

    def save(self, folder: Path) -> None:
        self.model.config.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def length_groups(lengths: Tensor, num_groups: int, least_tokens: int = 0) -> list[tuple[Tensor, int]]:
    """Row numbers sorted by length, in at most `num_groups` groups, each with its greatest length.

    A group has at least 8 rows, and `least_tokens` on average.
    """
    lengths, device = lengths.cpu(), lengths.device
    num_groups = max(1, min(num_groups, len(lengths) // 8))
    if least_tokens:
        num_groups = max(1, min(num_groups, int(lengths.sum()) // least_tokens))
    order = torch.argsort(lengths, stable=True)
    return [(rows.to(device), int(lengths[rows[-1]])) for rows in order.tensor_split(num_groups)]


def read_plain_words(tokenizer: PreTrainedTokenizerBase) -> None:
    """Make a tokeniser lower-case texts and replace each punctuation mark by a space.

    The steps are saved in its tokenizer.json; a tokeniser that has them is not changed. ValueError for a tokeniser that is not of
    the tokenizers library.
    """
    from tokenizers import Regex, normalizers

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise refuse("model.text.plain_words", True, "false with a tokeniser that has no tokenizer.json")
    steps = [
        normalizers.Lowercase(),
        normalizers.Replace(Regex(PUNCTUATION), " "),
        normalizers.Replace(Regex(r"\s+"), " "),
        normalizers.Strip(),
    ]
    plain, given = normalizers.Sequence(steps), backend.normalizer
    if given is None or _steps(given)[: len(steps)] != _steps(plain):
        backend.normalizer = normalizers.Sequence([*steps, *([given] if given else [])])


def _steps(normalizer: Any) -> list[Any]:
    """The steps of a normaliser, as in tokenizer.json."""
    state = json.loads(normalizer.__getstate__())
    return list(state.get("normalizers", [state]))


def text_encoder(config: PreTrainedConfig, pooling: str) -> tuple[Any, dict[str, Any]]:
    """(the class that encodes this configuration's texts, its arguments).

    Without a pooler if it is not used: it would be saved, but never trained.
    """
    from transformers import ClapTextModel
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100Encoder

    allowed = "an encoder, like bert, xlm-roberta or m2m_100"
    classes = {"m2m_100": M2M100Encoder, "clap_text_model": ClapTextModel}
    model_class = pretrained.encoder_class(config, TEXT_CHECKPOINT, classes, allowed)
    takes_pooler = "add_pooling_layer" in inspect.signature(model_class.__init__).parameters
    if pooling == "pooler" and not takes_pooler:
        raise refuse("model.text.pooling", pooling, f"mean or cls; {config.model_type} has no pooler")
    return model_class, {"add_pooling_layer": pooling == "pooler"} if takes_pooler else {}
