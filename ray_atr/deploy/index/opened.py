"""An open index: `Index.open(folder)`, then `search` by text and `like` by sound.

Shapes: M queries, k answers, r width of a vector.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ray_atr.common.caches import cache_folder, cache_key, lock_of, mark_used
from ray_atr.common.digests import digest_of_file
from ray_atr.common.eight_bits import eight_bits_are_fast
from ray_atr.common.runtime import home
from ray_atr.common.settings import refuse
from ray_atr.common.storage import DamagedFileError, Location, StorageError, atomic_folder, locate, remove_folder
from ray_atr.common.transfer import get
from ray_atr.data.schema import captions_by_language
from ray_atr.deploy.index import layout
from ray_atr.deploy.index.archive import Archive, ArchivedSound, open_archive
from ray_atr.deploy.index.coarse import CoarseRows
from ray_atr.deploy.index.search import Match, Search
from ray_atr.deploy.index.structure import nearest_rows, read_structure
from ray_atr.models.retriever import Retriever

COARSE_ROWS = 8_192
"""Number of rows from which many queries together use the copies in 8 bits."""


class Index(Search):
    """An index of sounds, open for search. Safe to use from several threads.

    When: an archive that `ray-atr index build` has indexed is searched from Python.
    Related: `build_index` makes one, `open_shards` asks several as one, `ray-atr serve` answers over HTTP.

    >>> index = Index.open("indexes/sounds")  # doctest: +SKIP
    >>> len(index), index.search("a dog barks", top=1)[0].path
    (1, 'sound.wav')
    """

    def __init__(
        self,
        folder: Path,
        manifest: layout.IndexManifest,
        *,
        checkpoint: str | None = None,
        retriever: Retriever | None = None,
        audio: str | None = None,
    ) -> None:
        super().__init__(manifest, checkpoint=checkpoint, retriever=retriever)
        self.folder, self._audio = folder, audio
        layout.check_files(folder, manifest, [name for name in manifest.digests if name != layout.VECTORS])
        state = folder / str(manifest.state)
        # Small tables are in memory, like their vectors: copying another index over this one changes mapped files.
        is_mapped = not manifest.is_exact
        self._files = layout.stored_table(state / layout.FILES, is_mapped=is_mapped)
        self._windows = layout.stored_table(state / layout.WINDOWS, is_mapped=is_mapped)
        self._structure, self.rows = read_structure(
            state / layout.STRUCTURE, None if manifest.is_exact else state / layout.ROWS
        )
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
        """The index in a folder or at a URL. A copy of a remote index stays in the home's cache, and is fetched again only if the
        index has changed or the copy is damaged.

        The digests of its files are checked. Queries are encoded by the retriever that made it. If that has moved, `checkpoint`
        or `retriever` give it; `audio` gives an archive that has moved. ValueError if there is no index or a file is damaged.
        """
        place = locate(folder)
        # An update may remove the files of the state that was just read.
        for _ in range(3):
            manifest = layout.read_index_manifest(place)
            try:
                with _on_this_machine(place, manifest) as local:
                    return cls(local, manifest, checkpoint=checkpoint, retriever=retriever, audio=audio)
            # FAISS raises a RuntimeError for a missing file.
            except (DamagedFileError, FileNotFoundError, StorageError, RuntimeError):
                # An index that was moved to this place may have the same number of its state.
                if layout.read_index_manifest(place) == manifest:
                    raise
        raise ValueError(f"{place}: it is being updated without a pause; try again")

    @cached_property
    def archive(self) -> Archive:
        """The archive from which sounds are read. ValueError if it does not exist."""
        return open_archive(self._audio or self.manifest.archive)

    def sizes(self) -> tuple[int, int]:
        """Number of windows, and of sounds."""
        return self.manifest.num_windows, self.manifest.num_sounds

    def matches(self, queries: NDArray[np.float32], top: int) -> list[list[Match]]:
        return [self._matches(*row) for row in zip(*self.nearest(queries, top), strict=True)]

    def window(self, path: str, start: float) -> NDArray[np.float32]:
        row = self._row_of_path.get(path)
        sound = None if row is None else self._files.slice(row, 1).to_pylist()[0]
        if sound is None or not sound["count"]:
            raise refuse("path", path, "a sound of the index")
        windows = self._windows.slice(sound["first"], sound["count"])
        last = float(layout.numbers_of(windows["end"])[-1])
        if not 0 <= start <= last:
            raise refuse("start", start, f"a second of the sound, 0 to {last:g}")
        number = sound["first"] + int(np.searchsorted(layout.numbers_of(windows["start"]), start, side="right")) - 1
        return self.rows[number].astype(np.float32)

    def has(self, path: str) -> bool:
        """Whether it lists a sound, which may be broken."""
        return path in self._row_of_path

    def nearest(self, queries: NDArray[np.float32], top: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """(scores, row numbers), both [M, min(top, windows)], of queries [M, r] in the model's space; -1 for missing ones."""
        if queries.ndim != 2 or queries.shape[1] != self.manifest.width:
            raise refuse("queries", queries.shape, f"vectors [M, {self.manifest.width}]")
        coarse = (lambda: self._coarse) if len(self.rows) >= COARSE_ROWS and eight_bits_are_fast() else None
        return nearest_rows(self._structure, self.rows, queries, top, self.manifest.distance, coarse)

    def sound(self, path: str) -> bytes:
        """The encoded audio of a sound of the index. ValueError for a path that is not in it, or cannot be read."""
        if path not in self._row_of_path:
            raise refuse("path", path, "a sound of the index")
        try:
            return self.archive.read(ArchivedSound(path))
        except FileNotFoundError:
            moved = "it was moved or removed since; bring the index up to date with `ray-atr index update`"
            raise ValueError(f"{path}: no such file any more: {moved}") from None
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror or 'cannot be read'}") from None

    def check_vectors(self) -> None:
        """DamagedFileError if `vectors.parquet`, which a search does not read, was changed."""
        layout.check_files(self.folder, self.manifest, [layout.VECTORS])

    @cached_property
    def _coarse(self) -> CoarseRows:
        return CoarseRows(self.rows)

    @cached_property
    def _row_of_path(self) -> dict[str, int]:
        return {path: row for row, path in enumerate(self._files["path"].to_pylist())}

    def _matches(self, scores: NDArray[np.float32], places: NDArray[np.int64]) -> list[Match]:
        is_valid = places >= 0
        taken = self._windows.take(layout.number_array(places[is_valid]))
        windows = taken.to_pylist()
        sounds = self._files.select(["path", "clip_id", "captions"]).take(taken["file"])
        return [
            Match(
                path=sound["path"],
                start=window["start"],
                end=window["end"],
                score=score,
                probability=None,
                clip_id=sound["clip_id"],
                captions=captions_by_language(sound["captions"] or ()),
            )
            for window, sound, score in zip(windows, sounds.to_pylist(), scores[is_valid].tolist(), strict=True)
        ]


@contextmanager
def _on_this_machine(place: Location, manifest: layout.IndexManifest) -> Iterator[Path]:
    """The folder of an index, or the copy of an index at a URL, fetched if it is not there or damaged. Nobody removes the copy
    before the block ends.
    """
    if isinstance(place, Path):
        yield place
        return
    copy = cache_folder(home(), "indexes") / cache_key([str(place), dataclasses.asdict(manifest)])
    copy.parent.mkdir(parents=True, exist_ok=True)
    with lock_of(copy):
        try:
            layout.check_files(copy, manifest, sorted(manifest.digests))
        except DamagedFileError:
            remove_folder(copy)
            with atomic_folder(copy) as aside:
                for name, digest in manifest.digests.items():
                    stored, fetched = place / str(manifest.state) / name, aside / str(manifest.state) / name
                    get(stored, fetched)
                    if digest_of_file(fetched) != digest:
                        raise DamagedFileError(stored, layout.REMEDY) from None
                layout.write_index_manifest(aside, manifest)
        mark_used(copy / layout.INDEX_FILE)
        yield copy
