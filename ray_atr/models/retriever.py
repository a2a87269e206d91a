"""The trained model: two towers, their projections, and every learned parameter of the objective.

Shapes: N clips or texts, T frames, F mel bands, L tokens, D embedding width.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ray_atr.common.digests import check_folder, seal_folder
from ray_atr.common.language_codes import is_unicode, require_language
from ray_atr.common.override import flatten, override
from ray_atr.common.ranking import RankingSettings
from ray_atr.common.settings import refuse
from ray_atr.common.storage import atomic_folder, fetched, is_local, locate, names_in
from ray_atr.data.caption_sample import CaptionSample
from ray_atr.data.decoding import AudioBounds
from ray_atr.models.adaptation import adapt, parameter_levels
from ray_atr.models.audio_input import AudioInput, frames_of_windows, seconds_of
from ray_atr.models.card import CARD_FILE, card_text
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.published import is_published, read_published
from ray_atr.models.sharding import EqualCalls, Extra, shard_tower
from ray_atr.models.tower import AudioTower, Encoded, TextTower, embed_by_length, masked_mean
from ray_atr.models.weights import (
    SETTINGS_FILE,
    load_weights,
    read_settings,
    read_weights,
    trained_captions_of,
    write_settings,
    write_state,
)
from ray_atr.models.words import with_saved_words
from ray_atr.objectives.pairs.learned import LearnedParameters, LearnedSettings
from ray_atr.objectives.pairs.mahalanobis import Mahalanobis

WIDE = 512
"""Least width inside of a `wide_mlp`."""
ATTENTION_TEMPERATURE = 0.1
"""Divides the mean of a clip's windows in the query of attention over them."""


class Retriever(nn.Module):
    """Embeds clips and texts into one space, and holds the objective's learned parameters. `similarity` compares vectors.

    When: clips and texts are to be embedded, compared or trained.
    Related: `build_retriever` makes one from settings, `from_pretrained` opens a saved one, `ray_atr.Index` searches many sounds.

    >>> retriever = Retriever.from_pretrained("runs/one/trials/seed_0/best")  # doctest: +SKIP
    >>> text, audio = retriever.encode_text(["rain", "a dog barks"]), retriever.encode_audio([sound, sound])
    >>> tuple(retriever.similarity(text, audio).shape)
    (2, 2)
    """

    def __init__(
        self,
        audio_tower: AudioTower,
        text_tower: TextTower,
        settings: ModelSettings,
        *,
        learned: LearnedSettings | None = None,
        ranking: RankingSettings | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.ranking = ranking or RankingSettings()
        self.audio_tower, self.text_tower = audio_tower, text_tower
        D = settings.embedding_width
        settings.require_width(audio_tower.width)
        audio_kind = "none" if settings.audio_projection == "none" else settings.projection
        self.audio_projection = _projection(audio_tower.width, D, audio_kind)
        self.text_projection = _projection(text_tower.width, D, settings.projection)
        self.learned = LearnedParameters(_with_temperature(learned or LearnedSettings(), settings), D)
        learns_windows = settings.windows == "attention" and settings.training_windows > 1
        self.window_query = nn.Parameter(torch.zeros(D)) if learns_windows else None
        """Learned part of the query of attention over windows."""
        self.languages: tuple[str, ...] = ()
        """ISO 639-3 codes of the captions that it was trained on; empty: unknown."""
        self.trained_captions = CaptionSample()
        """A sample of the clips and captions that runs trained it on; empty: unknown."""
        self.calls: EqualCalls | None = None
        """Coordinates the workers' calls of sharded towers; None if the towers are not sharded."""

    @property
    def learned_metric(self) -> Mahalanobis | None:
        """The learned transport metric, for rankings; None if none is learned."""
        metric = self.learned.metric
        return None if metric is None else Mahalanobis(self.learned.settings.metric, metric.detach())

    @property
    def distance(self) -> str:
        """How `encode_*`'s vectors are ranked: `cosine` (unit rows, by inner product) or `euclidean` (by distance)."""
        return "cosine" if self.ranking.ranking == "cosine" or self.learned.metric is None else "euclidean"

    def vectors(self, embeddings: Tensor) -> Tensor:
        """Embeddings [N, D] as vectors [N, r] that rank by `distance`: rows u become u R with M = R R^T if M was learned.

        A ranking by plan needs all queries at once; with it, vectors are those of the learned distance.
        """
        if self.distance == "cosine":
            return embeddings
        assert self.learned_metric is not None
        return (embeddings.double() @ self.learned_metric.root().to(embeddings.device)).float()

    def similarity(self, text: Tensor, audio: Tensor) -> Tensor:
        """How well texts fit clips [M, N], from `encode_*`'s vectors [M, r], [N, r]: cosine, or minus the distance. Vectors in 16
        bits, as an index has them, are compared in 32.

        ValueError for other shapes, such as those of another retriever's vectors.

        >>> text = retriever.encode_text(["rain", "a dog barks"])
        >>> bool(retriever.similarity(text, text).diagonal().min() > 0.99)
        True
        """
        text, audio = torch.as_tensor(text), torch.as_tensor(audio)
        kind = torch.promote_types(torch.promote_types(text.dtype, audio.dtype), torch.float32)
        text, audio = text.to(kind), audio.to(kind)
        if not text.ndim == audio.ndim == 2 or text.shape[1] != audio.shape[1]:
            shapes = f"{tuple(text.shape)} and {tuple(audio.shape)}"
            raise refuse(
                "shapes of text and audio", shapes, "[M, r] and [N, r]: what encode_text and encode_audio return"
            )
        if self.distance == "cosine":
            return text @ audio.T
        # torch's way with inner products is inexact for near vectors.
        return -torch.cdist(text, audio, compute_mode="donot_use_mm_for_euclid_dist")

    @property
    def vector_width(self) -> int:
        """Width of `encode_*`'s vectors."""
        return int(self.vectors(torch.zeros(0, self.settings.embedding_width)).shape[1])

    def train(self, mode: bool = True) -> Self:
        """Training mode. A frozen tower stays in evaluation mode (no dropout), so that its embeddings do not change."""
        super().train(mode)
        for tower in (self.audio_tower, self.text_tower):
            if not any(parameter.requires_grad for parameter in tower.parameters()):
                tower.eval()
        return self

    def parameter_groups(
        self,
        learning_rate: float,
        weight_decay: float = 0.0,
        *,
        metric_scale: float = 1.0,
        towers_apart: bool = False,
    ) -> list[dict[str, Any]]:
        """Optimiser groups of all trained parameters: `{"params", "lr", "weight_decay"}`, one for each rate and decay.

        Level l of a tower with n levels has `learning_rate * learning_rate_scale * layer_decay ** (n - 1 - l)`. Weight decay is
        only for weight matrices: vectors (biases, norms) have none, and neither have the objective's learned parameters (the
        metric has `metric_scale` times the rate): it would distort the scale that they learn. With `towers_apart` parameters
        that can be sharded are in groups of their own: fused optimisers do not mix sharded and other weights.
        """
        groups: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
        of_towers = {id(parameter) for parameter in self.divisible_parameters().values()} if towers_apart else set()

        def add(parameter: nn.Parameter, rate: float, decay: float = weight_decay) -> None:
            if parameter.requires_grad:
                key = rate, decay if parameter.ndim > 1 else 0.0, id(parameter) in of_towers
                groups.setdefault(key, []).append(parameter)

        for tower, settings in ((self.audio_tower, self.settings.audio), (self.text_tower, self.settings.text)):
            levels = parameter_levels(tower)
            for depth, level in enumerate(levels):
                share = settings.adapt.layer_decay ** (len(levels) - 1 - depth)
                for parameter in level:
                    add(parameter, learning_rate * settings.adapt.learning_rate_scale * share)
        for parameter in (*self.audio_projection.parameters(), *self.text_projection.parameters()):
            add(parameter, learning_rate)
        for name, parameter in self.learned.named_parameters():
            add(parameter, learning_rate * (metric_scale if name == "metric" else 1.0), decay=0.0)
        if self.window_query is not None:
            add(self.window_query, learning_rate)
        return [{"params": params, "lr": rate, "weight_decay": decay} for (rate, decay, _), params in groups.items()]

    def adapt(self, *, compiles: bool = True) -> None:
        """Apply each tower's training options. Call it once, after the weights of checkpoints are loaded."""
        adapt(self.audio_tower, self.settings.audio.adapt, "model.audio.adapt", compiles=compiles)
        adapt(self.text_tower, self.settings.text.adapt, "model.text.adapt", compiles=compiles)

    def shard(self, device: torch.device) -> None:
        """Shard the towers' weights over the workers. All workers call it once, before the rest is moved to the device.

        From then on, call the towers only within `equal_calls`.
        """
        towers = [tower for tower in (self.audio_tower, self.text_tower) if next(tower.parameters(), None) is not None]
        for tower in towers:
            shard_tower(tower, device)
        self.calls = EqualCalls(towers, device)

    def equal_calls(self, *, gradient: bool = False, again: bool = False) -> AbstractContextManager[Extra]:
        """Within, a worker may call the towers at will; `EqualCalls` equalises the calls of sharded ones."""
        return nullcontext(Extra()) if self.calls is None else self.calls.together(gradient=gradient, again=again)

    def divisible_parameters(self) -> dict[str, nn.Parameter]:
        """The towers' parameters that can be sharded, by name; the same before and after `shard`."""
        named = self.named_parameters(remove_duplicate=False)
        return {
            name: value for name, value in named if name.startswith(("audio_tower.", "text_tower.")) and value.ndim > 0
        }

    def trained_state(self) -> dict[str, Tensor]:
        """The entries of `state_dict` that training changes: unfrozen parameters (with LoRA its updates), and buffers."""
        parameters = self.named_parameters(remove_duplicate=False)
        fixed = {name for name, parameter in parameters if not parameter.requires_grad}
        return {name: value for name, value in self.state_dict().items() if name not in fixed}

    def load_trained_state(self, state: Mapping[str, Tensor]) -> None:
        """Load the `trained_state` of a retriever with equal settings and frozen weights. ValueError if names differ."""
        result = self.load_state_dict(dict(state), strict=False)
        wrong = [*result.unexpected_keys, *(self.trained_state().keys() - state.keys())]
        if wrong:
            raise refuse("trained state", sorted(wrong)[0], "exactly what this retriever trains")

    def embed_audio(self, features: Tensor, frames: Tensor, *blank: Tensor) -> Tensor:
        """Unit-norm float32 embeddings [N, D] of log-mel frames [N, T, F], of which `frames[n]` count; `blank`, bool
        [N, T, F], is given in training alone, to a tower that blanks bands itself.

        When: a training loop of your own. Related: `encode_audio` takes files or samples, without gradients.
        """
        return self._embedded(self.audio_tower(features, frames, *blank), self.audio_projection)

    def embed_text(self, token_ids: Tensor, token_mask: Tensor) -> Tensor:
        """Unit-norm float32 embeddings [N, D] of token ids [N, L] where the mask [N, L] is True.

        When: a training loop of your own. Related: `encode_text` takes texts, without gradients.
        """
        return self._embedded(self.text_tower(token_ids, token_mask), self.text_projection)

    def _embedded(self, encoded: Encoded, projection: nn.Module) -> Tensor:
        if self.settings.is_late:
            return _projected_tokens(encoded, projection).pooled
        return _unit(projection(encoded.pooled))

    def audio_tokens(self, features: Tensor, frames: Tensor, *blank: Tensor) -> Encoded:
        """Unit-norm embeddings of a clip's frames, [N, L, D], and of their mean, [N, D], for late interaction; `blank` as
        in `embed_audio`.
        """
        return _projected_tokens(self.audio_tower(features, frames, *blank), self.audio_projection)

    def text_tokens(self, token_ids: Tensor, token_mask: Tensor) -> Encoded:
        """Unit-norm embeddings of a text's tokens, [N, L, D], and of their mean, [N, D], for late interaction."""
        if len(token_ids) == 0:
            # A tower takes no empty batch, and a worker without texts must have gradients to exchange, as the others have.
            one = self.text_tokens(token_ids.new_full((1, 1), self.text_tower.pad_token_id), token_mask.new_ones(1, 1))
            return Encoded(*(values[:0] for values in one))
        return _projected_tokens(self.text_tower(token_ids, token_mask), self.text_projection)

    def with_towers(self, audio_tower: AudioTower, text_tower: TextTower) -> Self:
        """A retriever with other towers; it shares all other parameters with this one."""
        other = copy.copy(self)
        other._modules = dict(self._modules)
        other.audio_tower, other.text_tower = audio_tower, text_tower
        return other

    def of_tower(self, side: str) -> Self:
        """A retriever with the same towers whose embeddings are the output of one of them (audio or text). It has no projection,
        which would lose some of this output. Windows are pooled without the learned query, a vector of the shared space.
        """
        other = self.with_towers(self.audio_tower, self.text_tower)
        setattr(other, f"{side}_projection", nn.Identity())
        other.settings = dataclasses.replace(self.settings, embedding_width=getattr(self, f"{side}_tower").width)
        other._parameters = dict(self._parameters)
        other.window_query = None
        return other

    def pool_windows(self, embedded: Tensor, clips: Tensor) -> Tensor:
        """Unit-norm embeddings [N, D] of clips, from their windows' [M, D]; `clips` [M]: each window's clip, ascending."""
        N = int(clips[-1]) + 1 if len(clips) else 0
        if len(clips) == N:
            return embedded
        if self.settings.windows == "max":
            index = clips[:, None].expand_as(embedded)
            lowest = torch.full((N, embedded.shape[1]), -torch.inf, dtype=embedded.dtype, device=embedded.device)
            return nn.functional.normalize(lowest.scatter_reduce(0, index, embedded, "amax"), dim=-1)
        zeros = embedded.new_zeros(N, embedded.shape[1])
        mean = nn.functional.normalize(zeros.index_add(0, clips, embedded), dim=-1)
        if self.settings.windows != "attention":
            return mean
        query = mean / ATTENTION_TEMPERATURE
        if self.window_query is not None:
            query = query + self.window_query.to(query.device)
        logits = (embedded * query[clips]).sum(dim=1)
        largest = logits.new_full((N,), -torch.inf).scatter_reduce(0, clips, logits.detach(), "amax")
        weights = (logits - largest[clips]).exp()[:, None]
        return nn.functional.normalize(zeros.index_add(0, clips, weights * embedded), dim=-1)

    @torch.inference_mode()
    def encode_audio(
        self, clips: AudioInput | Sequence[AudioInput], sample_rate: int | None = None, *, batch_size: int = 16
    ) -> Tensor:
        """Vectors [N, r] (CPU) of audio files (paths), encoded bytes, or mono waveforms [S]; of one clip alone [1, r].

        Waveforms are arrays or tensors of floats with full scale 1, one for each clip. A 2-D array, which may be channels or a
        batch, and integers, whose full scale is another, are a ValueError.

        Vectors are ranked as `distance` says: by cosine (unit norm), or with a learned metric by Euclidean distance.
        `sample_rate` (Hz) is that of the waveforms; None: the front end's. ValueError names a clip that cannot be read, or whose
        embedding is zero or not finite.

        Related: `encode_windows`, for a search inside a recording.

        >>> tuple(retriever.encode_audio(sound, 16_000).shape) == (1, retriever.vector_width)
        True
        """
        clips = _listed(clips)
        shape = tuple(clips.shape) if isinstance(clips, np.ndarray | Tensor) else None
        if shape is not None and len(shape) != 1 and self.audio_tower.front_end.kind != "vector":
            allowed = "a mono waveform [S] (average the channels first: samples.mean(axis=1)), or a list of clips"
            raise refuse("clips", f"an array of shape {shape}", allowed)
        alone = isinstance(clips, str | Path | bytes) or (shape is not None and len(shape) == 1)
        inputs: Any = [clips] if alone else clips
        embedded, owners = self._embed_windows(inputs, sample_rate, batch_size, self.settings.pools_windows)
        return self.vectors(_refuse_zero(self.pool_windows(embedded, owners), "clip"))

    @torch.inference_mode()
    def encode_windows(
        self, clip: AudioInput, sample_rate: int | None = None, *, batch_size: int = 16
    ) -> tuple[list[float], Tensor]:
        """(start of each window of a clip (s), its vectors [W, r]), for a search inside a recording.

        >>> starts, vectors = retriever.encode_windows(sound, 16_000)
        >>> starts, len(vectors)
        ([0.0], 1)
        """
        embedded, _ = self._embed_windows([clip], sample_rate, batch_size, True)
        length = self.audio_tower.front_end.clip_seconds
        starts = [number * length for number in range(len(embedded))]
        if len(starts) > 1:
            seconds = seconds_of(clip, sample_rate or self.audio_tower.front_end.sample_rate)
            starts[-1] = min(starts[-1], seconds - length)
        return starts, self.vectors(_refuse_zero(embedded, "window"))

    def _embed_windows(
        self, clips: Sequence[AudioInput], sample_rate: int | None, batch_size: int, all_windows: bool
    ) -> tuple[Tensor, Tensor]:
        """Unit-norm embeddings [M, D] (CPU) of the clips' windows, and the clip of each [M]."""
        front_end, bounds = self.audio_tower.front_end, AudioBounds()
        if batch_size < 1:
            raise refuse("batch_size", batch_size, "1 or more")
        rate = front_end.sample_rate if sample_rate is None else sample_rate
        if sample_rate is not None and not bounds.lowest_rate <= rate <= bounds.highest_rate:
            raise refuse("sample_rate", rate, f"{bounds.lowest_rate} to {bounds.highest_rate} Hz")
        windows = (
            (number, torch.from_numpy(window))
            for number, clip in enumerate(clips)
            for window in frames_of_windows(clip, rate, front_end, f"clip {number}", all_windows)
        )
        owners: list[int] = []
        parts = [torch.zeros(0, self.settings.embedding_width)]
        with self.evaluating():
            while batch := list(itertools.islice(windows, batch_size)):
                owners += [number for number, _ in batch]
                parts.append(self.embed_windows([window for _, window in batch]))
        return torch.cat(parts), torch.tensor(owners, dtype=torch.int64)

    @torch.no_grad()
    def embed_windows(self, windows: Sequence[Tensor]) -> Tensor:
        """Unit-norm embeddings [M, D] (CPU) of windows, each of log-mel frames [T, F], embedded together.

        When: windows are read elsewhere, as by an index's build. Related: `encode_windows` takes files or samples.
        """
        # A model may have been brought to half precision.
        kind = next((weight.dtype for weight in self.audio_tower.parameters()), torch.float32)
        lengths = torch.tensor([len(window) for window in windows], device=self.device)
        padded = nn.utils.rnn.pad_sequence(list(windows), batch_first=True)
        return self.embed_audio(padded.to(kind).to(self.device), lengths).cpu()

    @torch.inference_mode()
    def encode_text(
        self, texts: Sequence[str], language: str | Sequence[str] = "eng", *, batch_size: int = 128
    ) -> Tensor:
        """Vectors [N, r] (CPU) of texts, all in one language (`en`, `eng`) or each in its own; ranked as `distance` says.

        Warns about languages that the retriever was not trained on, if that is known. ValueError, with its number, for a text
        without words.

        >>> vectors = retriever.encode_text(["a dog barks", "un chien aboie"], ["eng", "fra"])
        >>> tuple(vectors.shape) == (2, retriever.vector_width)
        True
        """
        texts, language = _listed(texts), _listed(language)
        if not isinstance(texts, str | np.ndarray | Tensor):
            for number, text in enumerate(texts):
                if isinstance(text, str) and not text.strip():
                    raise refuse(f"text {number}", text, "a text with words")
            if message := self.warning_of_languages([language] if isinstance(language, str) else language):
                # The caller's line is behind torch's wrapper.
                warnings.warn(message, stacklevel=3)
        return self.vectors(self.embed_sentences(texts, language, batch_size=batch_size))

    def warning_of_languages(self, languages: Sequence[str]) -> str:
        """A warning about languages that the retriever was not trained on; empty if there are none or it is unknown."""
        codes = {require_language(code).code for code in languages}
        unseen = sorted(codes.difference(self.languages or codes))
        if not unseen:
            return ""
        trained = ", ".join(self.languages)
        return f"no captions in {', '.join(unseen)} in training, which had {trained}: the vectors may mean little"

    @torch.inference_mode()
    def embed_sentences(
        self,
        texts: Sequence[str] | NDArray[Any] | Tensor,
        language: str | Sequence[str] = "eng",
        *,
        batch_size: int = 128,
    ) -> Tensor:
        """Unit-norm embeddings [N, D] (CPU) of texts, before any learned metric.

        ValueError, with its number, for a text whose embedding is zero or not finite.

        >>> bool((retriever.embed_sentences(["rain"]).norm(dim=1) - 1).abs().max() < 1e-5)
        True
        """
        texts, language = _listed(texts), _listed(language)
        if isinstance(texts, str):
            raise refuse("texts", texts, "a list of texts")
        if batch_size < 1:
            raise refuse("batch_size", batch_size, "1 or more")
        if isinstance(texts, np.ndarray | Tensor):
            # The inputs are vectors [N, W] already.
            rows = torch.as_tensor(texts)
            if rows.ndim != 2 or rows.shape[1] != self.text_tower.width or not bool(torch.isfinite(rows).all()):
                raise refuse("texts", tuple(rows.shape), f"texts, or finite vectors [N, {self.text_tower.width}]")
            with self.evaluating():
                return _refuse_zero(_unit(self.text_projection(rows.float().to(self.device))).cpu(), "text")
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise refuse(f"text {number}", text, "a string")
            if not is_unicode(text):
                raise refuse(f"text {number}", text, "a text in UTF-8")
        languages = [language] * len(texts) if isinstance(language, str) else list(language)
        if len(languages) != len(texts):
            allowed = f"one language, or one for each of the {len(texts)} texts"
            raise refuse("language", f"{len(languages)} languages", allowed)
        code_of = {code: require_language(code).code for code in dict.fromkeys(languages)}
        with self.evaluating():
            embedded = embed_by_length(
                lambda tokens, mask: self.embed_text(tokens, mask).cpu(),
                self.text_tower.tokenise(list(texts), [code_of[code] for code in languages]),
                self.text_tower.pad_token_id,
                bucket=batch_size,
                width=self.settings.embedding_width,
                device=self.device,
            )
        return _refuse_zero(embedded.cpu(), "text")

    @property
    def device(self) -> torch.device:
        """The device of the weights; the CPU for a retriever without any."""
        weight = next(self.parameters(), None)
        return torch.device("cpu") if weight is None else weight.device

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode within the context; the mode is restored afterwards."""
        was_training = self.training
        self.eval()
        try:
            yield
        finally:
            self.train(was_training)

    def save_pretrained(
        self,
        folder: str | Path,
        *,
        frozen: Mapping[str, Path] | None = None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Write weights (safetensors), settings and front end (JSON) and the tokeniser. A saved retriever there is replaced.
        ValueError for a folder with something else.

        `weights` are written instead of its own: a complete `state_dict`, gathered from sharded towers. `frozen` gives existing
        files of a tower's weights (`{"audio": file}`), which are linked.

        >>> retriever.save_pretrained(folder)
        >>> sorted(path.name for path in folder.iterdir() if path.suffix == ".json")[-1]
        'retriever.json'
        """
        place = locate(folder, keeps_links=True)
        if not is_local(place) or place.is_file() or (names_in(place) and not (place / SETTINGS_FILE).is_file()):
            allowed = "a new or empty folder of this machine, or a saved retriever's, which is replaced"
            raise refuse("folder", str(folder), allowed)
        with atomic_folder(place, is_synced=True) as aside:
            content = {
                "model": flatten(self.settings),
                "learned": flatten(self.learned.settings),
                "ranking": {**flatten(self.ranking), "distance": self.distance},
                "front_end": flatten(self.audio_tower.front_end),
                "languages": list(self.languages),
            }
            if len(self.trained_captions.numbers):
                content["trained_captions"] = self.trained_captions.text()
            write_settings(aside, content)
            for name, tower in (("audio", self.audio_tower), ("text", self.text_tower)):
                (aside / name).mkdir()
                tower.save(aside / name)
            linked = {
                kind: file for kind, file in (frozen or {}).items() if f"{kind}_tower." not in self._saved_by_towers
            }
            saved_state = self.state_dict() if weights is None else weights
            state = {name: value for name, value in saved_state.items() if not name.startswith(self._saved_by_towers)}
            (aside / CARD_FILE).write_text(self.card(), encoding="utf-8")
            # An evaluation replaces the card.
            seal_folder(aside, write_state(aside, state, linked), left_out=[CARD_FILE])

    @property
    def _saved_by_towers(self) -> tuple[str, ...]:
        """Prefixes of the weights that a tower saves in its own folder."""
        towers = (("audio_tower.", self.audio_tower), ("text_tower.", self.text_tower))
        return tuple(prefix for prefix, tower in towers if tower.saves_weights)

    def card(self, **known: Any) -> str:
        """The card of this retriever as Markdown; `known` are further arguments of `models.card.card_text`, from an evaluation.

        When: you publish it. Related: an evaluation writes one with its scores; `push_to_hub` uploads it.
        """
        return card_text(
            self.settings,
            front_end=self.audio_tower.front_end,
            distance=self.distance,
            vector_width=self.vector_width,
            **known,
        )

    def push_to_hub(self, repository: str, *, folder: str | Path | None = None, private: bool = True) -> str:
        """Upload this retriever with its card to a repository `owner/name` of the Hugging Face hub. If it does not exist, it is
        created, `private` or public; one that exists stays as visible as it is.

        `folder`, where it was saved, maybe with an evaluation's card and calibration, is uploaded unchanged. The token and the
        address are those of huggingface_hub (HF_TOKEN, HF_ENDPOINT). Returns the commit's URL.
        """
        from huggingface_hub import HfApi

        if repository.count("/") != 1 or not all(repository.split("/")):
            raise refuse("repository", repository, "owner/name")
        if folder is not None:
            folder = Path(folder).expanduser()
            check_folder(folder)
            read_settings(folder)
        hub = HfApi()
        hub.create_repo(repository, private=private, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            if folder is None:
                folder = Path(scratch) / "retriever"
                self.save_pretrained(folder)
            # Hidden files are those of other writers in progress.
            done = hub.upload_folder(repo_id=repository, folder_path=folder, ignore_patterns=[".*"])
        return str(done.commit_url)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """The retriever that `save_pretrained` wrote, in evaluation mode, on the CPU; it encodes the same, bit for bit. Or a
        published one, whose projected embeddings this one's are: a folder of transformers' `ClapModel`, or of LAION-CLAP's or
        ML-CLAP's `.pt`.

        `folder` may be a URL (`s3://bucket/runs/x/trials/.../best`). Raises ValueError for a folder that is missing,
        incomplete or broken.

        >>> retriever.save_pretrained(folder)
        >>> opened = Retriever.from_pretrained(folder)
        >>> bool((opened.encode_text(["rain"]) == retriever.encode_text(["rain"])).all())
        True
        """
        if "://" in str(folder):
            with fetched(locate(folder)) as copy:
                try:
                    return cls.from_pretrained(copy)
                except ValueError as error:
                    # The copy is gone when the message is read.
                    error.args = (str(error).replace(str(copy), str(folder)),)
                    raise
        folder = Path(folder).expanduser()
        if not (folder / SETTINGS_FILE).is_file() and is_published(folder):
            parts = read_published(folder)
            with torch.random.fork_rng():
                retriever = cls(parts.audio_tower, parts.text_tower, parts.settings)
            retriever.load_state_dict({**retriever.state_dict(), **parts.projections})
            return retriever.eval()
        check_folder(folder)
        content = read_settings(folder)
        try:
            settings = override(ModelSettings(), content["model"])
            learned = override(LearnedSettings(), content["learned"])
            values = {name: value for name, value in content["ranking"].items() if name != "distance"}
            ranking = override(RankingSettings(), values)
        except (ValueError, KeyError) as error:
            raise refuse("model folder", str(folder), f"settings of this version ({error})") from None
        with torch.random.fork_rng():
            audio, text = settings.audio.rebuild(folder / "audio"), settings.text.rebuild(folder / "text")
            text = with_saved_words(text, folder / "text")
            retriever = cls(audio, text, settings, learned=learned, ranking=ranking)
        if flatten(retriever.audio_tower.front_end) != content["front_end"]:
            raise refuse("model folder", str(folder), "a model whose front end this version computes the same way")
        retriever.adapt(compiles=False)
        state = {n: value for n, value in retriever.state_dict().items() if n.startswith(retriever._saved_by_towers)}
        load_weights(retriever, {**state, **read_weights(folder)}, source=str(folder), path="model folder")
        retriever.languages = tuple(map(str, content.get("languages", ())))
        retriever.trained_captions = trained_captions_of(content, folder)
        return retriever.eval()


def _listed(values: Any) -> Any:
    """An array of strings or other objects, such as a column of a table, and an iterator as a list; anything else as it is."""
    is_column = isinstance(values, np.ndarray) and values.dtype.kind in "UO" and values.ndim == 1
    return list(values) if is_column or isinstance(values, Iterator) else values


def _refuse_zero(embedded: Tensor, kind: str) -> Tensor:
    """The embeddings [N, D]. ValueError for one that is zero or not finite, which cannot be ranked."""
    wrong = (~(embedded.norm(dim=-1) > 0.5)).nonzero().flatten().tolist()
    if wrong:
        raise refuse(f"{kind} {wrong[0]}", "an embedding that is zero or not finite", "one of unit norm")
    return embedded


def build_retriever(
    settings: ModelSettings,
    *,
    tokenizer: object | None = None,
    learned: LearnedSettings | None = None,
    ranking: RankingSettings | None = None,
    seed: int | None = None,
) -> Retriever:
    """The retriever of the settings. With a seed its initial weights depend on it alone; torch's global generator is restored.

    Related: `Retriever.from_pretrained` opens a saved one.

    >>> from ray_atr.training.recipes import RECIPES
    >>> build_retriever(RECIPES["quickstart"]().model, seed=0).settings.embedding_width == retriever.settings.embedding_width
    True
    """
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        towers = settings.audio.build(), settings.text.build(tokenizer)
        retriever = Retriever(*towers, settings, learned=learned, ranking=ranking)
        retriever.adapt()
    return retriever


def require_same_names(path: str, folder: str, needed: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """ValueError, naming the setting, if a saved retriever's weights have other names or shapes; what an objective learns may."""
    different = [name for name in sorted(needed.keys() | stored.keys()) if needed.get(name) != stored.get(name)]
    different = [name for name in different if not name.startswith(("learned.", "window_query"))]
    if different:
        allowed = f"a retriever with the same towers; it differs in {', '.join(different[:3])}"
        raise refuse(path, folder, allowed)


def _with_temperature(learned: LearnedSettings, model: ModelSettings) -> LearnedSettings:
    """The learned parameters' settings, with the temperature of the model's settings."""
    return dataclasses.replace(
        learned,
        temperature=model.initial_temperature or learned.temperature,
        learn_temperature=model.learn_temperature or learned.learn_temperature,
    )


def _unit(projected: Tensor) -> Tensor:
    return nn.functional.normalize(projected.float(), dim=-1)


def _projected_tokens(encoded: Encoded, projection: nn.Module) -> Encoded:
    tokens = _unit(projection(encoded.tokens))
    return Encoded(_unit(masked_mean(tokens, encoded.token_mask)), tokens, encoded.token_mask)


def _projection(width: int, D: int, kind: str) -> nn.Module:
    if kind == "none":
        return nn.Identity()
    if kind == "linear":
        return nn.Linear(width, D)
    between = [nn.ReLU()] if kind.endswith("mlp") else []
    inner = max(D, WIDE) if kind == "wide_mlp" else D
    return nn.Sequential(nn.Linear(width, inner), *between, nn.Linear(inner, D))
