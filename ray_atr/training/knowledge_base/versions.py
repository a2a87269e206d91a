"""The versions of a base in a folder: `v000003`, or its parts `v000003-0-of-4` to `v000003-3-of-4`.

A version is there if it can be put together: as a whole, or from all parts that some number of them have. So a run can be
resumed with another number of parts.
"""

from __future__ import annotations

import re
from pathlib import Path

from ray_atr.common.storage import remove_folder
from ray_atr.training.knowledge_base.parts import WHOLE, BasePart
from ray_atr.training.knowledge_base.snapshot import MANIFEST_FILE, Snapshot, load, part_of, save


def version_folder(folder: Path, version: int, part: BasePart = WHOLE) -> Path:
    return folder / (f"v{version:06d}" if part.is_whole else f"v{version:06d}-{part.number}-of-{part.of}")


def versions_in(folder: Path) -> list[int]:
    """The versions that are whole in a base's folder, oldest first: a folder alone may be what a kill left of a removal."""
    return sorted({version for version, count, parts in _kept(folder) if len(parts) == count})


def has_part(folder: Path, version: int, part: BasePart) -> bool:
    """Whether just this part of a version is here."""
    return (version_folder(folder, version, part) / MANIFEST_FILE).is_file()


def versions_of_part(folder: Path, part: BasePart) -> list[int]:
    """The versions of which just this part is here, oldest first."""
    return sorted(version for version, count, parts in _kept(folder) if count == part.of and part.number in parts)


def save_version(snapshot: Snapshot, folder: Path) -> None:
    """Write a version, or a part of it, to its place in the folder."""
    save(snapshot, version_folder(folder, snapshot.version, snapshot.part))


def load_version(folder: Path, version: int, part: BasePart = WHOLE) -> Snapshot:
    """A version or a part of it, put together from other parts where needed. ValueError if it is not here."""
    if not has_part(folder, version, part):
        for own, count, parts in sorted(_kept(folder), key=lambda found: found[1]):
            if own == version and len(parts) == count:
                pieces = [load(version_folder(folder, version, BasePart(number, count))) for number in range(count)]
                return part_of(pieces, part)
    return load(version_folder(folder, version, part))


def remove_version(folder: Path, version: int) -> None:
    """Remove a version and all parts of it."""
    whole = version_folder(folder, version)
    for path in (whole, *folder.glob(f"{whole.name}-*")):
        remove_folder(path)


def _kept(folder: Path) -> list[tuple[int, int, set[int]]]:
    """(version, in how many parts, the numbers of those that are here)."""
    found: dict[tuple[int, int], set[int]] = {}
    for path in folder.glob(f"v*/{MANIFEST_FILE}"):
        if match := re.fullmatch(r"v(\d+)(?:-(\d+)-of-(\d+))?", path.parent.name):
            found.setdefault((int(match[1]), int(match[3] or 1)), set()).add(int(match[2] or 0))
    return [(version, count, numbers) for (version, count), numbers in found.items()]
