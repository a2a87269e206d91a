"""An index as it is asked: `Index.open(folder)`, then `search` by text and `like` by sound.

Shapes: M queries, k answers, r width of a vector.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import torch
from filelock import FileLock
from numpy.typing import NDArray

from ray_atr.common.runtime import home
from ray_atr.common.settings import refuse
from ray_atr.common.storage import DamagedFileError, Location, is_there, locate, remove_folder, whole_folder
from ray_atr.common.storage.caches import cache_folder, mark_used
from ray_atr.common.storage.transfer import get
from ray_atr.data.language_codes import require_language
from ray_atr.data.schema import captions_by_language
from ray_atr.deploy.index.archive import Archive, ArchivedSound, open_archive
from ray_atr.deploy.index.fingerprint import fitted_to, is_told_language, model_fingerprint
from ray_atr.deploy.index.layout import (
    FILES,
    INDEX_FILE,
    ROWS,
    STRUCTURE,
    VECTORS,
    WINDOWS,
    IndexManifest,
    check_files,
    mapped_table,
    read_index_manifest,
    write_index_manifest,
)
from ray_atr.deploy.index.structure import Rows, nearest_rows, read_structure
from ray_atr.models.retriever import Clip, Retriever
from ray_atr.training.run_folder import saved_retriever

if TYPE_CHECKING:
    from ray_atr.deploy.calibration import Calibration

MOST_ANSWERS = 1_000
LONGEST_QUERY = 2_000  # characters


@dataclass(frozen=True)
class Match:
    """A window of a sound, as an answer. Times are in seconds; `score` is the retriever's similarity."""

    path: str
    start: float
    end: float
    score: float
    probability: float | None
    """That it matches the text, if the retriever is calibrated; None for a search by sound."""
    clip_id: str
    captions: dict[str, list[str]]


class Index:
    """An index of sounds that is open for search. Safe to be used by several threads at a time."""

    def __init__(
        self,
        folder: Path,
        manifest: IndexManifest,
        *,
        checkpoint: str | None = None,
        retriever: Retriever | None = None,
        audio: str | None = None,
    ) -> None:
        self.folder, self.manifest = folder, manifest
        self._checkpoint, self._given, self._audio = checkpoint, retriever, audio
        names = [FILES, WINDOWS, STRUCTURE, *(() if manifest.is_exact else (ROWS,))]
        check_files(folder, manifest, names)
        state = folder / str(manifest.state)
        self._files, self._windows = mapped_table(state / FILES), mapped_table(state / WINDOWS)
        rows: Rows | None = None
        if not manifest.is_exact:
            rows = np.load(state / ROWS, mmap_mode="r", allow_pickle=False)
        self._structure, self.rows = read_structure(state / STRUCTURE, rows)
        if self.rows.shape != (manifest.num_windows, manifest.width) or len(self._windows) != manifest.num_windows:
            raise DamagedFileError(state)

    @classmethod
    def open(
        cls,
        folder: str | Location,
        *,
        checkpoint: str | None = None,
        retriever: Retriever | None = None,
        audio: str | None = None,
    ) -> Self:
        """The index in a folder or at a URL, of which a copy is kept in the home's cache: it is fetched again only if the store's
        index has changed or the copy is damaged.

        Its files' digests are checked. The retriever is the one it was made with, or `checkpoint` or `retriever` where that
        has moved; `audio` is where its archive has moved to. ValueError if there is no index or a file is damaged.
        """
        place = locate(folder)
        if isinstance(place, Path):
            # An update may take the files of the state that was just read away.
            for _ in range(3):
                manifest = read_index_manifest(place)
                try:
                    return cls(place, manifest, checkpoint=checkpoint, retriever=retriever, audio=audio)
                except (DamagedFileError, FileNotFoundError):
                    if read_index_manifest(place).state == manifest.state:
                        raise
            raise ValueError(f"{place}: it is being updated without a pause; try again")
        manifest = read_index_manifest(place)
        identity = json.dumps([str(place), dataclasses.asdict(manifest)], sort_keys=True)
        copy = cache_folder(home(), "indexes") / hashlib.sha256(identity.encode()).hexdigest()[:16]
        copy.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{copy}.lock"):
            if is_there(copy / INDEX_FILE):
                with contextlib.suppress(DamagedFileError, ValueError):
                    check_files(copy, manifest, sorted(manifest.digests))
                    mark_used(copy / INDEX_FILE)
                    return cls(copy, manifest, checkpoint=checkpoint, retriever=retriever, audio=audio)
            remove_folder(copy)
            with whole_folder(copy) as aside:
                for name in sorted(manifest.digests):
                    get(place / str(manifest.state) / name, aside / str(manifest.state) / name)
                check_files(aside, manifest, sorted(manifest.digests))
                write_index_manifest(aside, manifest)
            return cls(copy, manifest, checkpoint=checkpoint, retriever=retriever, audio=audio)

    @cached_property
    def retriever(self) -> Retriever:
        """The retriever that queries are encoded with. ValueError unless it is the one that made the vectors."""
        retriever = self._given
        if retriever is None:
            retriever = Retriever.from_pretrained(str(self._retriever_folder))
            retriever.to("cuda" if torch.cuda.is_available() else "cpu")
        if model_fingerprint(retriever) != self.manifest.model and not self._has_pack:
            given = "the retriever given" if self._given is not None else str(self._retriever_folder)
            allowed = f"the model that made the index's vectors, {self.manifest.checkpoint}"
            raise refuse("checkpoint", given, allowed)
        return retriever

    @property
    def _has_pack(self) -> bool:
        """Whether the retriever is a language pack that was fitted to these very vectors' space."""
        return self._given is None and fitted_to(self._retriever_folder) == self.manifest.model

    @property
    def _retriever_folder(self) -> Location:
        try:
            return saved_retriever(self._checkpoint or self.manifest.checkpoint, "--checkpoint")
        except ValueError as error:
            if self._checkpoint is not None:
                raise
            raise ValueError(f"{error}; if it has moved, say where with --checkpoint") from None

    @cached_property
    def calibration(self) -> Calibration | None:
        """What scores mean, by language, if `evaluate --calibrate` has made that for the retriever."""
        from ray_atr.deploy.calibration import Calibration

        return (
            None if self._given is not None and self._checkpoint is None else Calibration.read(self._retriever_folder)
        )

    @cached_property
    def is_told_language(self) -> bool:
        """Whether a query must say its language."""
        return is_told_language(self.retriever)

    @cached_property
    def archive(self) -> Archive:
        """Where the sounds themselves are read from. ValueError if they are not there."""
        return open_archive(self._audio or self.manifest.archive)

    def __len__(self) -> int:
        """Windows in it."""
        return self.manifest.num_windows

    def search(
        self, text: str, language: str | None = None, *, top: int = 10, at_least: float | None = None
    ) -> list[Match]:
        """The windows that fit a text best, best first; with `at_least`, of that probability or more: maybe none."""
        return self.search_many([text], language, top=top, at_least=at_least)[0]

    def search_many(
        self,
        texts: Sequence[str],
        language: str | None = None,
        *,
        top: int = 10,
        at_least: float | None = None,
    ) -> list[list[Match]]:
        """`search` of several texts of one language at a time.

        ValueError for a blank text, for an unknown language or one that is missing where the model must be told it, and for
        `at_least` where the retriever is not calibrated.
        """
        for text in texts:
            check_text(text)
        check_top(top)
        code = self._language(language)
        calibration = self.calibration
        if at_least is not None:
            if not 0 <= at_least <= 1:
                raise refuse("at_least", at_least, "a probability, 0 to 1")
            if calibration is None:
                made = "a calibrated retriever: make its calibration with `ray-atr evaluate --calibrate`"
                raise refuse("at_least", at_least, made)
        queries = self.retriever.encode_text(list(texts), code or "eng").numpy()
        scores, positions = self.nearest(queries, top)
        found = []
        for row, places in zip(scores, positions, strict=True):
            known = None if calibration is None else calibration_of(calibration, code)
            probability = None if known is None else known.probability(row)
            matches = self._matches(row, places, probability)
            found.append([one for one in matches if at_least is None or (one.probability or 0.0) >= at_least])
        return found

    def like(self, clip: Clip, sample_rate: int | None = None, *, top: int = 10) -> list[Match]:
        """The windows most like a sound (a file, its bytes, or a waveform [S] at `sample_rate` Hz), best first."""
        check_top(top)
        scores, positions = self.nearest(self.retriever.encode_audio([clip], sample_rate).numpy(), top)
        return self._matches(scores[0], positions[0], None)

    def like_window(self, path: str, start: float = 0.0, *, top: int = 10) -> list[Match]:
        """The windows most like the one of a sound of the index in which a second is, itself among them, best first."""
        check_top(top)
        row = self._places.get(path)
        sound = None if row is None else self._files.slice(row, 1).to_pylist()[0]
        if sound is None or not sound["count"]:
            raise refuse("path", path, "a sound of the index")
        starts = self._windows["start"].slice(sound["first"], sound["count"]).to_numpy()
        number = sound["first"] + max(0, int(np.searchsorted(starts, start, side="right")) - 1)
        scores, positions = self.nearest(self.rows[number : number + 1].astype(np.float32), top)
        return self._matches(scores[0], positions[0], None)

    def tag(
        self, clip: Clip, sample_rate: int | None, labels: Sequence[str], language: str | None = None
    ) -> list[dict[str, Any]]:
        """Labels (texts of one language) by how well they fit a sound, best first: `label`, `score`, `probability`."""
        code = self._language(language)
        texts = self.retriever.encode_text(list(labels), code or "eng")
        score = self.retriever.similarity(texts, self.retriever.encode_audio([clip], sample_rate))[:, 0].numpy()
        calibration = self.calibration
        chance = [None] * len(labels)
        if calibration is not None:
            chance = calibration_of(calibration, code).probability(score).tolist()
        found = zip(labels, score.tolist(), chance, strict=True)
        tags = [{"label": label, "score": value, "probability": known} for label, value, known in found]
        return sorted(tags, key=lambda one: -one["score"])

    def nearest(self, queries: NDArray[np.float32], top: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """(scores, row numbers), both [M, min(top, windows)], of queries [M, r] in the model's space; -1: none."""
        if queries.ndim != 2 or queries.shape[1] != self.manifest.width:
            raise refuse("queries", queries.shape, f"vectors [M, {self.manifest.width}]")
        return nearest_rows(self._structure, self.rows, queries, top, self.manifest.distance)

    def sound(self, path: str) -> bytes:
        """The encoded audio of a sound of the index. ValueError for a path that is not in it, or cannot be read."""
        if path not in self._places:
            raise refuse("path", path, "a sound of the index")
        try:
            return self.archive.read(ArchivedSound(path))
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror or 'cannot be read'}") from None

    def check_vectors(self) -> None:
        """DamagedFileError unless `vectors.parquet`, which a search does not read, is as it was written."""
        check_files(self.folder, self.manifest, [VECTORS])

    @cached_property
    def _places(self) -> dict[str, int]:
        return {path: row for row, path in enumerate(self._files["path"].to_pylist())}

    def _language(self, language: str | None) -> str | None:
        if language is not None:
            return require_language(language).code
        if self.is_told_language:
            raise refuse("language", None, "the code of the text's language: this model's text tower is told it")
        return None

    def _matches(
        self, scores: NDArray[np.float32], places: NDArray[np.int64], probability: NDArray[np.float64] | None
    ) -> list[Match]:
        is_there = places >= 0
        windows = self._windows.take(pa.array(places[is_there])).to_pylist()
        sounds = self._files.select(["path", "clip_id", "captions"]).take(pa.array([row["file"] for row in windows]))
        likely: list[Any] = [None] * len(windows) if probability is None else probability[is_there].tolist()
        return [
            Match(
                path=sound["path"],
                start=window["start"],
                end=window["end"],
                score=score,
                probability=chance,
                clip_id=sound["clip_id"],
                captions=captions_by_language(sound["captions"] or ()),
            )
            for window, sound, score, chance in zip(
                windows, sounds.to_pylist(), scores[is_there].tolist(), likely, strict=True
            )
        ]


def calibration_of(calibration: Calibration, language: str | None) -> Any:
    """The calibration of a language, or over all where it was not fitted on that one."""
    return calibration.of(language if language in calibration.by_language else None)


def check_text(text: str) -> None:
    """ValueError for a query that is blank or too long."""
    if not isinstance(text, str) or not text.strip():
        raise refuse("text", text, "a text that is not blank")
    if len(text) > LONGEST_QUERY:
        raise refuse("text", text, f"at most {LONGEST_QUERY:,} characters")


def check_top(top: int) -> None:
    """ValueError unless so many answers can be asked for."""
    if not 1 <= top <= MOST_ANSWERS:
        raise refuse("top", top, f"1 to {MOST_ANSWERS:,}")
