"""The model that is trained: two towers, their projections, and every learned parameter of the objective.

Shapes: N clips or texts, T frames, F mel bands, L tokens, D embedding width.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ray_atr.data.audio import FrontEnd, Waveform, clip_features, fit, log_mel, resample
from ray_atr.data.languages import require_language
from ray_atr.models.adaptation import adapt, parameter_groups
from ray_atr.models.audio import AUDIO_TOWERS, SmallCnn
from ray_atr.models.augment import SpecAugment
from ray_atr.models.loading import load_weights
from ray_atr.models.saved import (
    FROZEN_FILE,
    WEIGHTS_FILE,
    link_weights,
    read_settings,
    read_weights,
    write_settings,
    write_weights,
)
from ray_atr.models.text import TEXT_TOWERS, SmallTransformer
from ray_atr.models.tower import (
    AudioSettings,
    AudioTower,
    Encoded,
    TextSettings,
    TextTower,
    masked_mean,
    pad_tokens,
)
from ray_atr.objectives.metric import project_metric
from ray_atr.override import flatten, override
from ray_atr.settings import Settings, refuse, setting
from ray_atr.storage import fetched, locate, whole_folder

Clip = str | Path | bytes | Waveform
"""A file, a file's bytes, or a mono waveform [S]"""


@dataclass(frozen=True, kw_only=True)
class MetricSettings(Settings):
    """The transport metric that the pair loss asks the retriever to own."""

    kind: str = setting("euclidean", "kind of metric", choices=("euclidean", "diagonal", "mahalanobis", "factored"))
    rank: int | None = setting(None, "columns of a factored metric; none: the embedding width", at_least=1)
    project_every: int = setting(
        1, "optimiser steps between projections to the positive semi-definite metrics", at_least=1
    )


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """The two towers and what joins them."""

    audio: AudioSettings = setting(default_factory=SmallCnn, help="audio tower", variants=AUDIO_TOWERS)
    text: TextSettings = setting(default_factory=SmallTransformer, help="text tower", variants=TEXT_TOWERS)
    embedding_width: int = setting(128, "width D of the space that audio and text share", at_least=2)
    projection: str = setting(
        "linear",
        "from a tower to the shared space: one linear layer, or two with a ReLU between (mlp)",
        choices=("linear", "mlp"),
    )
    interaction: str = setting(
        "global",
        "similarity of a clip and a text: global, of one embedding each; local, late interaction over audio frames and text "
        "tokens, and one embedding is then the mean of its tokens",
        choices=("global", "local"),
    )
    augment: SpecAugment = setting(default_factory=SpecAugment, help="bands of the training clips that are blanked out")
    learn_temperature: bool = setting(False, "learn the temperature, in place of the objective's own fixed one")
    initial_temperature: float = setting(0.07, "first value of the temperature where it is learnt", above=0)


class Retriever(nn.Module):
    """Embeds clips and texts into one space, unit norm; owns the temperature and the transport metric."""

    def __init__(
        self,
        audio_tower: AudioTower,
        text_tower: TextTower,
        settings: ModelSettings,
        *,
        metric: MetricSettings | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.audio_tower, self.text_tower = audio_tower, text_tower
        D = settings.embedding_width
        self.audio_projection = _projection(audio_tower.width, D, settings.projection)
        self.text_projection = _projection(text_tower.width, D, settings.projection)
        log_temperature = torch.tensor(math.log(settings.initial_temperature))
        self.log_temperature = nn.Parameter(log_temperature) if settings.learn_temperature else None
        self.metric_settings = metric or MetricSettings()
        initial = initial_metric(self.metric_settings, D)
        self.metric = nn.Parameter(initial) if initial is not None else None
        # A buffer, so that a resumed run projects at the same steps.
        self.register_buffer("num_steps", torch.zeros((), dtype=torch.int64))
        self.num_steps: Tensor

    @property
    def temperature(self) -> Tensor | None:
        """The learnt temperature, a scalar > 0 with gradient, or None: the objective's own then holds."""
        return None if self.log_temperature is None else self.log_temperature.exp()

    @property
    def is_audio_frozen(self) -> bool:
        """Whether nothing of the audio tower is trained, so that its pooled vectors can be computed once."""
        return not any(parameter.requires_grad for parameter in self.audio_tower.parameters())

    @property
    def is_text_frozen(self) -> bool:
        """Whether nothing of the text tower is trained."""
        return not any(parameter.requires_grad for parameter in self.text_tower.parameters())

    def train(self, mode: bool = True) -> Self:
        """Training mode; a frozen tower stays in evaluation mode (no dropout): its embeddings do not change."""
        super().train(mode)
        if self.is_audio_frozen:
            self.audio_tower.eval()
        if self.is_text_frozen:
            self.text_tower.eval()
        return self

    def parameter_groups(self, learning_rate: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """The optimiser's groups: each tower's own rates, and no weight decay on vectors, metric and temperature."""
        return parameter_groups(
            [(self.audio_tower, self.settings.audio.adapt), (self.text_tower, self.settings.text.adapt)],
            [*self.audio_projection.parameters(), *self.text_projection.parameters()],
            [parameter for parameter in (self.log_temperature, self.metric) if parameter is not None],
            learning_rate,
            weight_decay,
        )

    def after_step(self) -> None:
        """To be called after every optimiser step: brings the metric back to the positive semi-definite ones."""
        if self.metric is None:
            return
        self.num_steps += 1
        if int(self.num_steps) % self.metric_settings.project_every == 0:
            project_metric(self.metric.data, self.metric_settings.kind)

    def adapt(self, *, compiles: bool = True) -> None:
        """Applies each tower's training options; to be called once, after the weights of checkpoints are loaded."""
        adapt(self.audio_tower, self.settings.audio.adapt, compiles=compiles)
        adapt(self.text_tower, self.settings.text.adapt, compiles=compiles)

    def embed_audio(self, features: Tensor, frames: Tensor) -> Tensor:
        """Unit-norm float32 embeddings [N, D] of log-mel frames [N, T, F], of which `frames[n]` count."""
        if self.settings.interaction == "local":
            return self.audio_tokens(features, frames).pooled
        return self.project_audio(self.audio_tower(features, frames).pooled)

    def embed_text(self, token_ids: Tensor, token_mask: Tensor) -> Tensor:
        """Unit-norm float32 embeddings [N, D] of token ids [N, L] where the mask [N, L] is True."""
        if self.settings.interaction == "local":
            return self.text_tokens(token_ids, token_mask).pooled
        return self.project_text(self.text_tower(token_ids, token_mask).pooled)

    def audio_tokens(self, features: Tensor, frames: Tensor) -> Encoded:
        """Unit-norm embeddings of a clip's frames, [N, L, D], and of their mean, [N, D], for local interaction."""
        encoded = self.audio_tower(features, frames)
        return _with_mean(self.project_audio(encoded.tokens), encoded.token_mask)

    def text_tokens(self, token_ids: Tensor, token_mask: Tensor) -> Encoded:
        """Unit-norm embeddings of a text's tokens, [N, L, D], and of their mean, [N, D], for local interaction."""
        encoded = self.text_tower(token_ids, token_mask)
        return _with_mean(self.project_text(encoded.tokens), encoded.token_mask)

    def project_audio(self, pooled: Tensor) -> Tensor:
        """Unit-norm embeddings [N, D] of the audio tower's pooled vectors [N, W]."""
        return nn.functional.normalize(self.audio_projection(pooled).float(), dim=-1)

    def project_text(self, pooled: Tensor) -> Tensor:
        """Unit-norm embeddings [N, D] of the text tower's pooled vectors [N, W]."""
        return nn.functional.normalize(self.text_projection(pooled).float(), dim=-1)

    def with_towers(self, audio_tower: AudioTower, text_tower: TextTower) -> Self:
        """A retriever with other towers that shares everything else with this one: what trains one trains the other."""
        other = copy.copy(self)
        other._modules = dict(self._modules)
        other.audio_tower, other.text_tower = audio_tower, text_tower
        return other

    @torch.inference_mode()
    def encode_audio(self, clips: Sequence[Clip], sample_rate: int | None = None, *, batch_size: int = 16) -> Tensor:
        """Unit-norm embeddings [N, D] (CPU) of audio files (paths), encoded bytes, or mono waveforms [S].

        `sample_rate` (Hz) is that of the waveforms; none: the front end's own. ValueError names a clip that cannot be read.
        """
        front_end = self.audio_tower.front_end
        rate = sample_rate or front_end.sample_rate
        parts = []
        with self._evaluating():
            for start in range(0, len(clips), batch_size):
                frames = [
                    torch.from_numpy(_features(clip, rate, front_end, f"clip {start + place}"))
                    for place, clip in enumerate(clips[start : start + batch_size])
                ]
                lengths = torch.tensor([len(clip) for clip in frames], device=self.device)
                batch = torch.nn.utils.rnn.pad_sequence(frames, batch_first=True)
                parts.append(self.embed_audio(batch.to(self.device), lengths).cpu())
        return torch.cat(parts) if parts else torch.zeros(0, self.settings.embedding_width)

    @torch.inference_mode()
    def encode_text(
        self, texts: Sequence[str], language: str | Sequence[str] = "eng", *, batch_size: int = 128
    ) -> Tensor:
        """Unit-norm embeddings [N, D] (CPU) of texts, all in one language (ISO 639-3) or each in its own."""
        if isinstance(texts, str):
            raise refuse("texts", texts, "a list of texts")
        languages = [language] * len(texts) if isinstance(language, str) else list(language)
        if len(languages) != len(texts):
            raise refuse(
                "language", f"{len(languages)} languages", f"one language, or one for each of the {len(texts)} texts"
            )
        for code in dict.fromkeys(languages):
            require_language(code)
        token_ids = self.text_tower.tokenise(list(texts), languages)
        order = sorted(range(len(texts)), key=lambda row: len(token_ids[row]))
        embedded = torch.zeros(len(texts), self.settings.embedding_width)
        with self._evaluating():
            for start in range(0, len(order), batch_size):
                rows = order[start : start + batch_size]
                tokens, mask = pad_tokens([token_ids[row] for row in rows], self.text_tower.pad_token_id)
                embedded[rows] = self.embed_text(tokens.to(self.device), mask.to(self.device)).cpu()
        return embedded

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Evaluation mode for a while, then the mode there was."""
        was_training = self.training
        self.eval()
        try:
            yield
        finally:
            self.train(was_training)

    def save_pretrained(self, folder: str | Path, *, frozen: Mapping[str, Path] | None = None) -> None:
        """Writes weights (safetensors), settings and front end (JSON) and the tokeniser; replaces what was in the folder.

        `frozen` names files that hold a tower's weights already (`{"audio": file}`); they are linked instead of written.
        """
        linked = {f"{kind}_tower.": (file, Path(kind) / FROZEN_FILE) for kind, file in (frozen or {}).items()}
        with whole_folder(Path(folder)) as aside:
            state = {name: value for name, value in self.state_dict().items() if not name.startswith(tuple(linked))}
            write_weights(aside / WEIGHTS_FILE, state)
            content = {
                "model": flatten(self.settings),
                "metric": flatten(self.metric_settings),
                "front_end": flatten(self.audio_tower.front_end),
            }
            write_settings(aside, content)
            for name, tower in (("audio", self.audio_tower), ("text", self.text_tower)):
                (aside / name).mkdir()
                tower.save(aside / name)
            for file, name_inside in linked.values():
                link_weights(file, aside / name_inside)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """The retriever that `save_pretrained` wrote, in evaluation mode, on the CPU; it encodes the same, bit for bit.

        `folder` may be a URL (`s3://bucket/runs/x/trials/.../best`). Raises ValueError for a folder that is missing,
        incomplete or broken.
        """
        if "://" in str(folder):
            with fetched(locate(folder)) as copy:
                return cls.from_pretrained(copy)
        folder = Path(folder)
        content = read_settings(folder)
        try:
            settings = override(ModelSettings(), content["model"])
            metric = override(MetricSettings(), content["metric"])
        except (ValueError, KeyError) as error:
            raise refuse("model folder", str(folder), f"settings of this version ({error})") from None
        with torch.random.fork_rng():
            audio_tower = settings.audio.rebuild(folder / "audio")
            text_tower = settings.text.rebuild(folder / "text")
            retriever = cls(audio_tower, text_tower, settings, metric=metric)
        if flatten(audio_tower.front_end) != content["front_end"]:
            raise refuse("model folder", str(folder), "a model whose front end this version computes the same way")
        retriever.adapt(compiles=False)
        load_weights(retriever, read_weights(folder), source=str(folder), path="model folder")
        return retriever.eval()


def _features(clip: Clip, sample_rate: int, front_end: FrontEnd, name: str) -> NDArray[np.float32]:
    """Log-mel frames [T, F] of a path, of encoded bytes, or of a waveform [S]."""
    if isinstance(clip, str | Path):
        path = Path(clip)
        if not path.is_file():
            raise refuse(str(path), "no file", "the path of an audio file")
        return clip_features(path.read_bytes(), front_end, str(path))
    if isinstance(clip, bytes):
        return clip_features(clip, front_end, name)
    waveform = np.asarray(clip, dtype=np.float32)
    if waveform.ndim != 1 or not len(waveform) or not np.isfinite(waveform).all():
        raise refuse(name, f"an array of shape {waveform.shape}", "a path, or a mono waveform [S] of finite samples")
    return log_mel(fit(resample(waveform, sample_rate, front_end.sample_rate), front_end), front_end)


def build_retriever(
    settings: ModelSettings,
    *,
    tokenizer: object | None = None,
    metric: MetricSettings | None = None,
    seed: int | None = None,
) -> Retriever:
    """The retriever of the settings. With a seed its weights depend on nothing else, and no generator outside moves.

    `tokenizer` is needed by text towers that train their own vocabulary; `metric` comes from the pair loss (`metric_arguments`).
    """
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        retriever = Retriever(settings.audio.build(), settings.text.build(tokenizer), settings, metric=metric)
        retriever.adapt()
    return retriever


def initial_metric(metric: MetricSettings, D: int) -> Tensor | None:
    """The transport metric's first value: None, a diagonal [D], M [D, D], or its factor L [D, rank] with M = L L^T.

    M = (A + A^T)/2 + I with A small and random (Luong et al. 2024, section 4), made positive semi-definite at once.
    """
    if metric.kind == "euclidean":
        return None
    if metric.kind == "diagonal":
        return torch.ones(D)
    if metric.kind == "factored":
        rank = metric.rank or D
        # The identity where the rank allows it; no direction favoured where it does not.
        return torch.eye(D) if rank >= D else nn.init.orthogonal_(torch.empty(D, rank)) * math.sqrt(D / rank)
    A = torch.randn(D, D) * 0.01
    M = (A + A.T) / 2 + torch.eye(D)
    project_metric(M, metric.kind)
    return M


def metric_arguments(pair: Any) -> dict[str, MetricSettings]:
    """The metric that a pair loss wants, as `build_retriever`'s argument; Euclidean (nothing learnt) for losses without one."""
    metric = MetricSettings(
        kind=getattr(pair, "metric", "euclidean"),
        rank=getattr(pair, "metric_rank", None),
        project_every=getattr(pair, "project_every", 1),
    )
    return {"metric": metric}


def _with_mean(tokens: Tensor, mask: Tensor) -> Encoded:
    return Encoded(nn.functional.normalize(masked_mean(tokens, mask), dim=-1), tokens, mask)


def _projection(width: int, D: int, kind: str) -> nn.Module:
    if kind == "linear":
        return nn.Linear(width, D)
    return nn.Sequential(nn.Linear(width, D), nn.ReLU(), nn.Linear(D, D))
