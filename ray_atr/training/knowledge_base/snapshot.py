"""A knowledge base as an immutable snapshot: encoded clips, and the prototypes that stand for clusters of them.

The versions of a base are in a folder as `v000003`, or in parts as `v000003-0-of-4` to `v000003-3-of-4`. A version is complete
if all parts of one division are in the folder. So a run can be resumed with another number of parts.

Shapes: N entries, P prototypes, L text languages (1: English alone), D embedding width.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ray_atr.common.digests import check_folder, seal_folder
from ray_atr.common.formats import FORMATS, require_format
from ray_atr.common.settings import refuse
from ray_atr.common.storage import atomic_folder, read_json, remove_folder
from ray_atr.training.knowledge_base.parts import WHOLE, BasePart

MANIFEST_FILE = "manifest.json"


class Entries(NamedTuple):
    """The encoded clips of a source, one row for each.

    audio [N, D]; text [N, D] (English) or [L, N, D]; ids [N]; text_mask [L, N] bool, None if every text exists;
    groups [N] int64, equal for clips that are positives of each other, None if every clip is its own.
    """

    audio: NDArray[Any]
    text: NDArray[Any]
    ids: Sequence[str] | NDArray[np.str_]
    text_mask: NDArray[np.bool_] | None = None
    groups: NDArray[np.int64] | None = None


def in_utf8(ids: Sequence[str] | NDArray[np.str_]) -> NDArray[np.bytes_]:
    """Ids as UTF-8 bytes: NumPy's text takes four bytes a letter."""
    return np.array([str(name).encode() for name in ids], dtype=np.bytes_)


class Names(NamedTuple):
    """What identifies all entries of a base: ids [N] `in_utf8`, groups [N] int64, text_mask [L, N] bool."""

    ids: NDArray[np.bytes_]
    groups: NDArray[np.int64]
    text_mask: NDArray[np.bool_]


class PartEntries(NamedTuple):
    """The encoded entries of a part, audio [n, D] and text [L, n, D], and the names of all entries of the base.

    first [L, n]: the index in the base of the first entry with the same caption, whose row it gets; None: rows stay as they are.
    """

    audio: NDArray[Any]
    text: NDArray[Any]
    names: Names
    first: NDArray[np.int64] | None = None

    @classmethod
    def from_entries(cls, entries: Entries, part: BasePart = WHOLE) -> Self:
        """A part of the encoded entries. ValueError if shapes differ or there are no entries."""
        audio, text, ids, text_mask, groups = entries
        text = text[None] if text.ndim == 2 else text
        L, N, D = text.shape
        names = in_utf8(ids)
        if audio.shape != (N, D) or len(names) != N:
            raise refuse("knowledge.base", f"audio {audio.shape}, text {text.shape}, {len(names)} ids", "equal N and D")
        if N == 0:
            raise refuse("knowledge.base", "0 entries", "at least one clip in the source")
        mask = np.ones((L, N), dtype=bool) if text_mask is None else np.asarray(text_mask, dtype=bool)
        if mask.shape != (L, N):
            raise refuse("knowledge.base.text_mask", mask.shape, f"({L}, {N})")
        # Without groups each clip is its own group, with a number below 0, which no group has.
        own_groups = np.asarray(-1 - np.arange(N) if groups is None else groups, dtype=np.int64)
        rows = part.rows(N)
        return cls(audio[rows], text[:, rows], Names(names, own_groups, mask))


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One version of a base, or a part of it. Plain arrays and numbers, so that Ray's object store maps it without a copy;
    read-only.

    Of all N entries: ids [N] `in_utf8`; groups [N] int64, equal for positives of each other; text_mask [L, N] bool. Of the n
    entries of the part: audio [n, D] and text [L, n, D], unit norm; cluster [n] int32, each entry's prototype. Prototypes
    coarse_audio [P, D], coarse_text [L, P, D], unit norm, coarse_audio_mask [P], coarse_mask [L, P], the same in every part.
    centroids [C, D], and text_centroids [L, C, D] if texts are clustered by themselves: k-means' own, where the next version
    starts. audio_index, text_index: serialised FAISS indices (uint8), empty for exact search.
    """

    version: int
    step: int
    ids: NDArray[np.bytes_]
    groups: NDArray[np.int64]
    audio: NDArray[Any]
    text: NDArray[Any]
    text_mask: NDArray[np.bool_]
    coarse_audio: NDArray[Any]
    coarse_audio_mask: NDArray[np.bool_]
    coarse_text: NDArray[Any]
    coarse_mask: NDArray[np.bool_]
    cluster: NDArray[np.int32]
    centroids: NDArray[np.float32]
    text_centroids: NDArray[np.float32]
    audio_index: NDArray[np.uint8]
    text_index: tuple[NDArray[np.uint8], ...]
    part: BasePart = WHOLE

    def __len__(self) -> int:
        """N, also of a part."""
        return len(self.ids)

    @property
    def names(self) -> list[str]:
        """The ids [N] as text, made anew at each call."""
        return [name.decode() for name in self.ids.tolist()]

    @property
    def rows(self) -> slice:
        """Which of the N entries the part holds."""
        return self.part.rows(len(self))

    @property
    def num_prototypes(self) -> int:
        """P; fewer than asked for where the base is small or clusters are empty."""
        return len(self.coarse_audio)


def part_of(pieces: Sequence[Snapshot], part: BasePart) -> Snapshot:
    """A part of a base, assembled from all parts of another division, in their order. ValueError if the base has an index."""
    first = pieces[0]
    if len(pieces) == 1 and first.part == part:
        return first
    if any(len(index) for index in (first.audio_index, *first.text_index)):
        raise refuse("scaling.base_shards", part.of, "1 for a base with an ivf or hnsw index")
    wanted, audio, text, cluster = part.rows(len(first)), [], [], []
    for piece in pieces:
        own = piece.rows
        own_rows = slice(max(wanted.start, own.start) - own.start, max(0, min(wanted.stop, own.stop) - own.start))
        audio.append(piece.audio[own_rows])
        text.append(piece.text[:, own_rows])
        cluster.append(piece.cluster[own_rows])
    return replace(first, audio=_joined(audio, 0), text=_joined(text, 1), cluster=_joined(cluster, 0), part=part)


def _joined(arrays: Sequence[NDArray[Any]], axis: int) -> NDArray[Any]:
    """The concatenated arrays; without a copy if only one is not empty."""
    filled = [array for array in arrays if array.shape[axis]] or [arrays[0]]
    return filled[0] if len(filled) == 1 else np.concatenate(filled, axis=axis)


_ARRAYS = tuple(field.name for field in fields(Snapshot) if field.name not in ("version", "step", "text_index", "part"))


def save(snapshot: Snapshot, folder: Path) -> Path:
    """Write a snapshot to a folder of arrays and a manifest, under another name first: the folder appears complete."""
    content = {
        "format": FORMATS["knowledge base"],
        "version": snapshot.version,
        "step": snapshot.step,
        "entries": len(snapshot),
        "prototypes": snapshot.num_prototypes,
        "text_languages": len(snapshot.text),
        "width": snapshot.audio.shape[1],
        "storage": str(snapshot.audio.dtype),
        "part": list(snapshot.part),
    }
    with atomic_folder(folder, is_synced=True) as aside:
        for name in _ARRAYS:
            np.save(aside / f"{name}.npy", getattr(snapshot, name))
        for position, index in enumerate(snapshot.text_index):
            np.save(aside / f"text_index-{position}.npy", index)
        (aside / MANIFEST_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        seal_folder(aside)
    return folder


def load(folder: Path) -> Snapshot:
    """The snapshot in a folder, its arrays mapped from the files. ValueError if it is absent or of another format."""
    if not (folder / MANIFEST_FILE).is_file():
        raise ValueError(f"{folder}: no snapshot of a knowledge base here ({MANIFEST_FILE} is missing)")
    check_folder(folder)
    content = require_format("knowledge base", read_json(folder / MANIFEST_FILE), folder / MANIFEST_FILE)
    # Plain arrays over the mapped files: Ray would copy a memmap when it sends it.
    mapped = ((name, np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)) for name in _ARRAYS)
    arrays = {name: np.asarray(rows) for name, rows in mapped}
    files = (folder / f"text_index-{position}.npy" for position in range(content["text_languages"]))
    indices = tuple(np.load(file, allow_pickle=False) for file in files)
    part = BasePart(*content["part"])
    return Snapshot(version=content["version"], step=content["step"], text_index=indices, part=part, **arrays)


def version_folder(folder: Path, version: int, part: BasePart = WHOLE) -> Path:
    return folder / (f"v{version:06d}" if part.is_whole else f"v{version:06d}-{part.number}-of-{part.of}")


def versions_in(folder: Path) -> list[int]:
    """The complete versions in a base's folder, oldest first: a kill may have left a part of a version that was being removed."""
    return sorted({version for version, count, parts in _versions_and_parts(folder) if len(parts) == count})


def versions_of_part(folder: Path, part: BasePart) -> list[int]:
    """The versions of which the folder has this very part, oldest first."""
    return sorted(
        version for version, count, parts in _versions_and_parts(folder) if count == part.of and part.number in parts
    )


def save_version(snapshot: Snapshot, folder: Path) -> None:
    """Write a version, or a part of it, to its place in the folder."""
    save(snapshot, version_folder(folder, snapshot.version, snapshot.part))


def load_version(folder: Path, version: int, part: BasePart = WHOLE) -> Snapshot:
    """A version or a part of it, assembled from other parts if needed. ValueError if it is not in the folder."""
    if version not in versions_of_part(folder, part):
        for stored, count, parts in sorted(_versions_and_parts(folder), key=lambda entry: entry[1]):
            if stored == version and len(parts) == count:
                pieces = [load(version_folder(folder, version, BasePart(number, count))) for number in range(count)]
                return part_of(pieces, part)
    return load(version_folder(folder, version, part))


def remove_version(folder: Path, version: int) -> None:
    """Remove a version and all parts of it."""
    complete = version_folder(folder, version)
    for path in (complete, *folder.glob(f"{complete.name}-*")):
        remove_folder(path)


def _versions_and_parts(folder: Path) -> list[tuple[int, int, set[int]]]:
    """(version, number of parts, the parts that are in the folder)."""
    parts_of: dict[tuple[int, int], set[int]] = {}
    for path in folder.glob(f"v*/{MANIFEST_FILE}"):
        if match := re.fullmatch(r"v(\d+)(?:-(\d+)-of-(\d+))?", path.parent.name):
            parts_of.setdefault((int(match[1]), int(match[3] or 1)), set()).add(int(match[2] or 0))
    return [(version, count, numbers) for (version, count), numbers in parts_of.items()]
