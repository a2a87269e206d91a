"""Search of one index, or of several as one: `search` by text, `like` by sound.

Shapes: M queries, k answers, r width of a vector.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ray_atr.common.language_codes import ENGLISH, is_unicode, require_language
from ray_atr.common.settings import refuse
from ray_atr.common.storage import Location
from ray_atr.deploy.index.layout import IndexManifest
from ray_atr.models.audio_input import AudioInput
from ray_atr.models.fingerprint import fitted_to, is_told_language, model_fingerprint, reads_any_text
from ray_atr.models.late_interaction import ONLY_VECTORS
from ray_atr.models.retriever import Retriever
from ray_atr.training.run_folder import saved_retriever

if TYPE_CHECKING:
    from ray_atr.metrics.calibration import Calibration

MOST_ANSWERS = 1_000
LONGEST_QUERY = 2_000  # characters
COUNTED = 50
"""Number of windows whose best sounds decide whether a text gets no answer (`or_nothing`)."""


@dataclass(frozen=True)
class Match:
    """A window of a sound in an answer. Times are in seconds; `score` is the retriever's similarity."""

    path: str
    start: float
    end: float
    score: float
    probability: float | None
    """Probability that it matches the text, if the retriever is calibrated; None for a search by sound."""
    clip_id: str
    captions: dict[str, list[str]]


class Search(ABC):
    """Answers to texts and sounds, by the retriever that made the vectors. Safe to use from several threads."""

    def __init__(
        self, manifest: IndexManifest, *, checkpoint: str | None = None, retriever: Retriever | None = None
    ) -> None:
        self.manifest = manifest
        self._checkpoint, self._given = checkpoint, retriever

    def __len__(self) -> int:
        """Number of windows."""
        return self.sizes()[0]

    @abstractmethod
    def sizes(self) -> tuple[int, int]:
        """Number of windows, and of sounds."""

    @abstractmethod
    def matches(self, queries: NDArray[np.float32], top: int) -> list[list[Match]]:
        """The windows nearest to each query [M, r] of the model's space, best first; without probabilities."""

    @abstractmethod
    def window(self, path: str, start: float) -> NDArray[np.float32]:
        """The vector [r] of a sound's window that contains `start` (s). ValueError for a path that is not in it, and for a
        second before its beginning or after its end.
        """

    @abstractmethod
    def sound(self, path: str) -> bytes:
        """The encoded audio of a sound of the index. ValueError for a path that is not in it, or cannot be read."""

    @cached_property
    def retriever(self) -> Retriever:
        """The retriever that encodes queries. ValueError unless it made the vectors."""
        retriever = self._given
        if retriever is None:
            retriever = Retriever.from_pretrained(str(self.retriever_folder))
            retriever.to("cuda" if torch.cuda.is_available() else "cpu")
        if model_fingerprint(retriever) != self.manifest.model and not self._has_pack:
            given = "the retriever given" if self._given is not None else str(self.retriever_folder)
            allowed = f"the model that made the index's vectors, {self.manifest.checkpoint}"
            raise refuse("checkpoint", given, allowed)
        return retriever

    @cached_property
    def own_retriever(self) -> Retriever | None:
        """For a language pack: the model that made the vectors, if it can be opened. It encodes sounds, which a pack cannot, and,
        if it reads more than the captions of its data, texts marked as English, for which a pack is worse.
        """
        if not self._has_pack:
            return None
        try:
            retriever = Retriever.from_pretrained(str(saved_retriever(self.manifest.checkpoint, "--checkpoint")))
        except (ValueError, OSError):
            return None
        if model_fingerprint(retriever) != self.manifest.model:
            return None
        return retriever.eval().to(self.retriever.device)

    @cached_property
    def _english_retriever(self) -> Retriever:
        """The retriever that encodes texts marked as English."""
        own = self.own_retriever
        is_english = own is not None and reads_any_text(own) and ENGLISH in (own.languages or (ENGLISH,))
        return own if own is not None and is_english else self.retriever

    def _text_retriever(self, code: str | None) -> Retriever:
        """The retriever that encodes texts of a language."""
        return self._english_retriever if code == ENGLISH else self.retriever

    def _calibration_for(self, code: str | None) -> Calibration | None:
        """The calibration of the retriever that encodes texts of a language, if it has one."""
        return self.calibration if self._text_retriever(code) is self.retriever else self._own_calibration

    @cached_property
    def _own_calibration(self) -> Calibration | None:
        from ray_atr.metrics.calibration import Calibration

        return Calibration.read(saved_retriever(self.manifest.checkpoint, "--checkpoint"), self.manifest.model)

    def open_models(self) -> None:
        """Open the retrievers and calibrations now; otherwise the first question that needs them does. ValueError for another
        model, or another model's calibration.
        """
        _ = self.retriever, self.calibration, self._calibration_for(ENGLISH)

    @property
    def _has_pack(self) -> bool:
        """Whether the retriever is a language pack that was fitted to the space of these vectors."""
        return self._given is None and fitted_to(self.retriever_folder) == self.manifest.model

    @property
    def retriever_folder(self) -> Location:
        """Where the retriever that encodes queries is. ValueError if it is nowhere."""
        try:
            return saved_retriever(self._checkpoint or self.manifest.checkpoint, "--checkpoint")
        except ValueError as error:
            if self._checkpoint is not None:
                raise
            raise ValueError(f"{error}; if it has moved, say where with --checkpoint") from None

    @cached_property
    def calibration(self) -> Calibration | None:
        """The retriever's calibration by language, if `evaluate --calibrate` has made one. ValueError for another retriever's."""
        from ray_atr.metrics.calibration import Calibration

        if self._given is not None and self._checkpoint is None:
            return None
        model = model_fingerprint(self.retriever) if self._has_pack else self.manifest.model
        return Calibration.read(self.retriever_folder, model)

    @cached_property
    def is_told_language(self) -> bool:
        """Whether a query needs its language."""
        return is_told_language(self.retriever)

    def search(
        self,
        text: str,
        language: str | None = None,
        *,
        top: int = 10,
        at_least: float | None = None,
        or_nothing: bool = False,
    ) -> list[Match]:
        """The windows that fit a text best, best first. With `at_least`, only those with that probability or more; with
        `or_nothing`, none if the best ones together look as if no sound matches the text.

        >>> [match.path for match in index.search("a dog barks", top=1)]
        ['sound.wav']
        """
        return self.search_many([text], language, top=top, at_least=at_least, or_nothing=or_nothing)[0]

    def search_many(
        self,
        texts: Sequence[str],
        language: str | None = None,
        *,
        top: int = 10,
        at_least: float | None = None,
        or_nothing: bool = False,
    ) -> list[list[Match]]:
        """`search` of several texts of one language at once.

        ValueError for a blank text, for an unknown language or none where the model needs it, and for
        `at_least` or `or_nothing` where the retriever is not calibrated.

        >>> [len(matches) for matches in index.search_many(["rain", "a dog barks"], top=1)]
        [1, 1]
        """
        texts = _listed(texts)
        for text in texts:
            check_text(text)
        check_top(top)
        code = self._language(language)
        calibration = self._calibration_for(code)
        if at_least is not None and not 0 <= at_least <= 1:
            raise refuse("at_least", at_least, "a probability, 0 to 1")
        made = "a calibrated retriever: make its calibration with `ray-atr evaluate --calibrate`"
        if calibration is None and at_least is not None:
            raise refuse("at_least", at_least, made)
        if calibration is None and or_nothing:
            raise refuse("or_nothing", or_nothing, made)
        queries = self._encode(texts, code).numpy()
        matches_of_queries = self._nearest(queries, max(top, COUNTED) if or_nothing else top)
        if calibration is None:
            return matches_of_queries
        calibrated = _calibrated(calibration, code)
        if or_nothing:
            for place, row in enumerate(matches_of_queries):
                # Always of so many windows, whatever `top` is: more windows would add sounds with lower scores.
                counted = best_of_sounds(row[:COUNTED])
                is_nothing = calibration.says_nothing(counted, calibrated, queries[place])
                matches_of_queries[place] = [] if is_nothing else row[:top]
        of_language = calibration.for_language(calibrated)
        chances = [of_language.probability([match.score for match in row]).tolist() for row in matches_of_queries]
        least = 0.0 if at_least is None else at_least
        return [
            [replace(match, probability=chance) for match, chance in zip(row, of_row, strict=True) if chance >= least]
            for row, of_row in zip(matches_of_queries, chances, strict=True)
        ]

    def like(self, clip: AudioInput, sample_rate: int | None = None, *, top: int = 10) -> list[Match]:
        """The windows most like a sound (a file, its bytes, or a waveform [S] at `sample_rate` Hz), best first.

        >>> index.like(sound, 16_000, top=1)[0].path
        'sound.wav'
        """
        check_top(top)
        return self._nearest(self._sound_vector(clip, sample_rate).numpy(), top)[0]

    def like_window(self, path: str, start: float = 0.0, *, top: int = 10) -> list[Match]:
        """The windows most like the window of a sound of the index that contains `start` (s), best first; that one is among them.

        >>> index.like_window("sound.wav", top=1)[0].path
        'sound.wav'
        """
        check_top(top)
        return self._nearest(self.window(path, start)[None], top)[0]

    def tag(
        self, clip: AudioInput, sample_rate: int | None, labels: Sequence[str], language: str | None = None
    ) -> list[dict[str, Any]]:
        """Labels (texts of one language) by how well they fit a sound, best first: `label`, `score`, `probability`.

        The first one has the probability of the best answer (`LanguageCalibration.probability_of_best`), if there are about as
        many labels as candidates in the calibration.

        >>> sorted(one["label"] for one in index.tag(sound, 16_000, ["rain", "a dog"]))
        ['a dog', 'rain']
        """
        code, labels = self._language(language), _listed(labels)
        texts = self._encode(labels, code)
        score = self.retriever.similarity(texts, self._sound_vector(clip, sample_rate))[:, 0].numpy()
        calibration = self._calibration_for(code)
        chance = [None] * len(labels)
        if calibration is not None:
            of_language = calibration.for_language(_calibrated(calibration, code))
            chance = of_language.probability(score).tolist()
            if of_language.knows_best_of(len(labels)):
                chance[score.argmax()] = float(of_language.probability_of_best(score.max()))
        scored = zip(labels, score.tolist(), chance, strict=True)
        tags = [{"label": label, "score": value, "probability": likely} for label, value, likely in scored]
        return sorted(tags, key=lambda tag: -tag["score"])

    def _sound_vector(self, clip: AudioInput, sample_rate: int | None) -> torch.Tensor:
        """The vector [1, r] of a sound. ValueError if no available model encodes sounds; a language pack does not."""
        retriever = self.own_retriever or self.retriever
        is_vector = retriever.audio_tower.front_end.kind == "vector"
        if is_vector and (isinstance(clip, str | Path | bytes) or sample_rate is not None):
            sources = "a text, a sound of the index, or a vector of its space"
            if self._has_pack and self.own_retriever is None:
                allowed = f"{sources}; with {self.manifest.checkpoint} where it was, sounds too: a language pack hears nothing"
            else:
                allowed = f"{sources}: this index was made of vectors, and its model hears nothing"
            raise refuse("sound", "audio", allowed)
        return retriever.encode_audio([clip], sample_rate)

    def warning_of(self, language: str | None) -> str:
        """Warnings about the answers to texts of a language: the model was not trained on it, its calibration is from few clips,
        or the model compares more than vectors. Empty if there are none.

        >>> index.warning_of(None)
        ''
        """
        code = self._language(language)
        retriever, calibration = self._text_retriever(code), self._calibration_for(code)
        warnings = (
            "" if code is None else retriever.warning_of_languages([code]),
            "" if calibration is None else calibration.warning,
            ONLY_VECTORS if retriever.settings.is_late else "",
        )
        return "; ".join(filter(None, warnings))

    def _nearest(self, queries: NDArray[np.float32], top: int) -> list[list[Match]]:
        """`matches` with cosines clipped to 1, which rounding to 16 bits may exceed. Parts are merged by the unclipped scores."""
        matches_of_queries = self.matches(queries, top)
        if self.manifest.distance != "cosine":
            return matches_of_queries
        return [
            [match if abs(match.score) <= 1 else replace(match, score=math.copysign(1.0, match.score)) for match in row]
            for row in matches_of_queries
        ]

    def _encode(self, texts: Sequence[str], code: str | None) -> torch.Tensor:
        retriever = self._text_retriever(code)
        # A text tower without language tags ignores the language, so no warning of an unknown one is needed.
        return retriever.encode_text(texts, code or (*retriever.languages, ENGLISH)[0])

    def _language(self, language: str | None) -> str | None:
        if language is not None:
            return require_language(language).code
        if self.is_told_language:
            raise refuse("language", None, "the code of the text's language, which this model's text tower needs")
        return None


def _listed(texts: Sequence[str]) -> list[str]:
    """The texts as a list, also of an iterator, which can be read once. ValueError for one text."""
    if isinstance(texts, str):
        raise refuse("texts", texts, "a list of texts")
    return list(texts)


def best_of_sounds(matches: Sequence[Match]) -> list[float]:
    """The score of each sound's best window, best first."""
    best: dict[str, float] = {}
    for match in matches:
        best.setdefault(match.path, match.score)
    return list(best.values())


def _calibrated(calibration: Calibration, language: str | None) -> str | None:
    """The language whose calibration applies; None (that over all languages) if it was not fitted on this one."""
    return language if language in calibration.by_language else None


def check_text(text: str, path: str = "text") -> None:
    """ValueError, naming `path`, for a query that is blank, too long, or no Unicode."""
    if not isinstance(text, str) or not text.strip():
        raise refuse(path, text, "a text that is not blank")
    if len(text) > LONGEST_QUERY:
        raise refuse(path, text, f"at most {LONGEST_QUERY:,} characters")
    if not is_unicode(text):
        raise refuse(path, text, "a text in UTF-8")


def check_top(top: int) -> None:
    """ValueError for a number of answers out of range."""
    if not 1 <= top <= MOST_ANSWERS:
        raise refuse("top", top, f"1 to {MOST_ANSWERS:,}")
