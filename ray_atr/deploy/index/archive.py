"""Archives that can be indexed (a folder of audio files, a prepared data set, or a file of vectors), and reading one sound.

A sound has a path in the archive: that of a file in the folder, `split/clip_id` of a data set, or a row's number.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath

import numpy as np
import xxhash
from numpy.typing import NDArray

from ray_atr.common.settings import local_path, refuse, shortened
from ray_atr.common.storage import file_exists, locate
from ray_atr.data.decoding import AUDIO_SUFFIXES
from ray_atr.data.row_groups import ids_of_groups, read_group
from ray_atr.data.shards import Manifest, iterate_rows, read_manifest
from ray_atr.data.vector_clip import read_array

OTHER_AUDIO = (".m4a", ".mp4", ".aac", ".wma", ".webm", ".mka", ".wv", ".ape", ".amr", ".3gp")
"""Audio that libsndfile does not decode: such files are reported as broken, not ignored."""


@dataclass(frozen=True)
class ArchivedSound:
    """One sound of an archive. `size` and `modified_ns` are those of its file; 0 if it has no file of its own."""

    path: str
    size: int = 0
    modified_ns: int = 0
    clip_id: str = ""
    captions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    data: bytes | None = None
    """The encoded audio, if listing the archive reads it anyway."""

    def without_data(self) -> ArchivedSound:
        """The sound without its audio."""
        return replace(self, data=None)


class Archive(ABC):
    """Sounds by path."""

    place: str
    """The location in the index's manifest: an absolute path, or a URL."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of sounds, with broken ones."""

    @abstractmethod
    def sounds(self) -> Iterator[ArchivedSound]:
        """Every sound, always in the same order."""

    @abstractmethod
    def read(self, sound: ArchivedSound) -> bytes:
        """A sound's encoded bytes. OSError or ValueError if they cannot be read."""


class AudioFolder(Archive):
    """The audio files below a folder, links followed, each folder once; hidden names are left out."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, str(folder)

    def __len__(self) -> int:
        return sum(1 for _ in _files_below(self.folder))

    def sounds(self) -> Iterator[ArchivedSound]:
        names = [path.relative_to(self.folder).as_posix() for path in sorted(_files_below(self.folder))]
        # Named as an import of the folder names the clips: `a/rain`, or `a/rain.wav` if there is `a/rain.mp3` too.
        short = {name: name.rpartition(".")[0] for name in names}
        count = Counter(short.values())
        for name in names:
            try:
                status = (self.folder / name).stat()
                size, modified_ns = status.st_size, status.st_mtime_ns
            except OSError:
                # A link to nothing, or a file that was removed meanwhile: reading it gives the reason.
                size = modified_ns = 0
            yield ArchivedSound(name, size, modified_ns, clip_id=short[name] if count[short[name]] == 1 else name)

    def read(self, sound: ArchivedSound) -> bytes:
        # An index may come from somebody else, so its paths must stay below the folder.
        path = PurePosixPath(sound.path)
        if path.is_absolute() or ".." in path.parts or "\0" in sound.path:
            raise refuse("path", sound.path, "a path below the archive's folder")
        return (self.folder / path).read_bytes()


class DataSetArchive(Archive):
    """The clips of all splits of a prepared data set, with their captions."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest, self.place = manifest, manifest.folder
        # Successive clips are mostly in one row group.
        self._audio = lru_cache(maxsize=2)(read_group)

    def __len__(self) -> int:
        return self.manifest.num_rows

    def sounds(self) -> Iterator[ArchivedSound]:
        for split in self.manifest.splits:
            for row in iterate_rows(self.manifest, split, ["clip_id", "audio", "captions"]):
                yield ArchivedSound(
                    path=f"{split}/{row['clip_id']}",
                    size=len(row["audio"]),
                    clip_id=row["clip_id"],
                    captions=row["captions"],
                    data=row["audio"],
                )

    def read(self, sound: ArchivedSound) -> bytes:
        if sound.data is not None:
            return sound.data
        place = self._locations.get(sound.path)
        if place is None:
            raise refuse("path", sound.path, "a clip of the data set")
        shard, group, row = place
        clips = self._audio(self.place, shard, group)
        # A data set that is made again has shards of the same names.
        if clips["clip_id"].slice(row, 1).to_pylist() != [sound.path.partition("/")[2]]:
            raise refuse("path", sound.path, "a clip of the data set, which was made again: bring the index up to date")
        return bytes(clips["audio"][row].as_py())

    @cached_property
    def _locations(self) -> dict[str, tuple[str, int, int]]:
        """Location of each clip: `Shard.place`, row group, row. Reads only the ids."""
        locations: dict[str, tuple[str, int, int]] = {}
        for split in self.manifest.splits:
            for shard in self.manifest.shards_of(split):
                for group, names in enumerate(ids_of_groups(self.manifest, shard)):
                    locations.update((f"{split}/{name}", (shard.place, group, n)) for n, name in enumerate(names))
        return locations


class ReadyVectors(Archive):
    """Vectors [N, r] of the retriever's own space, from a NumPy file: nothing is encoded; a sound's path is its row number."""

    def __init__(self, file: Path) -> None:
        self.file, self.place = file, str(file)
        try:
            with file.open("rb") as opened:
                vectors = read_array(opened)
        except ValueError as error:
            raise refuse("--audio", str(file), f"a NumPy file of vectors ({shortened(str(error))})") from None
        if vectors.ndim != 2 or vectors.dtype.kind != "f" or not len(vectors):
            raise refuse(str(file), f"an array {vectors.dtype} {vectors.shape}", "floats [N, width], N at least 1")
        self.vectors: NDArray[np.float32] = vectors.astype(np.float32)

    def __len__(self) -> int:
        return len(self.vectors)

    def sounds(self) -> Iterator[ArchivedSound]:
        for number in range(len(self.vectors)):
            yield ArchivedSound(str(number), clip_id=str(number), data=self.vectors[number].tobytes())

    def read(self, sound: ArchivedSound) -> bytes:
        raise refuse("path", sound.path, "an archive of audio; this one is of vectors")


def numbers_of_part(part: str) -> tuple[int, int]:
    """(K - 1, N) of `K/N`, the K-th of N parts of an archive; (0, 1) of an empty text, all of it. ValueError for another."""
    number, _, count = (part or "1/1").partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise refuse("--part", part, "K/N with K from 1 to N, such as 1/3")
    return int(number) - 1, int(count)


def sounds_of_part(archive: Archive, part: str) -> Iterator[ArchivedSound]:
    """The sounds of a part, by a digest of each sound's path, so that other sounds do not change a sound's part."""
    number, count = numbers_of_part(part)
    for sound in archive.sounds():
        # The same bytes whatever the locale, in which a clip's name may have no place.
        if xxhash.xxh3_64_intdigest(sound.path.encode("utf-8", "surrogateescape")) % count == number:
            yield sound


def open_archive(place: str) -> Archive:
    """The archive at a place: a data set's folder or URL, a folder of audio, or a `.npy` file. ValueError if it is none."""
    local = local_path(place) if place else None
    if local is not None and local.is_file() and local.suffix == ".npy":
        return ReadyVectors(Path(os.path.abspath(local)))
    if place and file_exists(locate(place) / "manifest.json"):
        return DataSetArchive(read_manifest(place))
    if local is None or not local.is_dir():
        raise refuse("--audio", place, "a folder of audio files, the folder or URL of a data set, or a .npy file")
    return AudioFolder(Path(os.path.abspath(local)))


def _files_below(folder: Path) -> Iterator[Path]:
    """The audio files below a folder, names without a file that can be found, such as links to nothing, and folders that cannot
    be listed, so that reading these gives the reason; a link to a folder that was already listed is not followed.
    """
    seen, closed = set[tuple[int, int]](), list[OSError]()
    for parent, folders, names in os.walk(folder, onerror=closed.append, followlinks=True):
        here = os.stat(parent)
        if (here.st_dev, here.st_ino) in seen:
            folders.clear()
            continue
        seen.add((here.st_dev, here.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            path = Path(parent, name)
            if name.startswith(".") or path.suffix.lower() not in AUDIO_SUFFIXES + OTHER_AUDIO:
                continue
            # Unlike pathlib's, these functions do not raise where a folder may be listed, but not entered.
            if os.path.isfile(path) or not os.path.exists(path):
                yield path
    yield from (Path(error.filename) for error in closed)
