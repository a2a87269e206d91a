"""Texts and JSON files, local or in a store, with digests (XXH3, 64 bits) by which damaged bytes are detected.

A record is a JSON text whose object, or each of whose lines, ends with `"digest": "xxh3:0123456789abcdef"`, the digest of
the text with sixteen zeros in its place. A sealed folder has a list of its files' digests, `digests.json`, which is a record
itself: name -> digest. A text that another program wrote has none and is read unchecked.

XXH3 detects damage, and is fast. Where a digest names content, or others check it (the shards of a data set, the
objects of a checkpoint in a store, a tower), it is SHA-256, which cannot be forged.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import xxhash
from safetensors import SafetensorError, safe_open

from ray_atr.common.atomic import atomic_file
from ray_atr.common.locations import Location, complete_file, storage_errors, with_retries
from ray_atr.common.settings import shortened

DIGESTS_FILE = "digests.json"
DIGEST = "digest"
_ZEROS = "xxh3:" + 16 * "0"
_SEAL = re.compile(rb'"digest": "(xxh3:[0-9a-f]{16})"')
_MARK = b'"digest": "xxh3:'
_AFTER_MARK = 16 + len('"')
RESTORE = "restore it from a copy"


class DamagedFileError(ValueError):
    """A file whose bytes differ from those that were written."""

    def __init__(self, file: object, remedy: str = "restore it from a copy, or delete it") -> None:
        super().__init__(f"{file}: damaged, not the whole file as it was written; {remedy}")
        self.file = str(file)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.file, self.args[0].partition("written; ")[2])


class DamagedCacheError(DamagedFileError):
    """A damaged file of a cache, which was removed: the next start makes it again."""

    def __init__(self, file: object, remedy: str = "it was removed, and the next start makes it again") -> None:
        super().__init__(file, remedy)


def digest_of(content: bytes | memoryview) -> str:
    """The digest of bytes, as it is written."""
    return f"xxh3:{xxhash.xxh3_64_hexdigest(content)}"


@contextlib.contextmanager
def mapped(file: Path) -> Iterator[memoryview]:
    """A file's bytes, mapped instead of read."""
    with file.open("rb") as opened:
        if os.fstat(opened.fileno()).st_size == 0:
            yield memoryview(b"")
            return
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
            yield view


def digest_of_file(file: Path) -> str:
    with mapped(file) as content:
        return digest_of(content)


def seal(content: Mapping[str, Any], **layout: Any) -> str:
    """The object as JSON text that ends with its digest; `layout` is passed to json.dumps."""
    text = json.dumps({**unsealed(content), DIGEST: _ZEROS}, ensure_ascii=False, **layout)
    # A lone surrogate, which a command line can hold, becomes a JSON escape.
    encoded = text.encode("utf-8", "backslashreplace")
    head, _, tail = encoded.decode().rpartition(_ZEROS)
    return head + digest_of(encoded) + tail


def unsealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The object without its digest."""
    is_sealed = str(content.get(DIGEST, "")).startswith("xxh3:")
    return {name: value for name, value in content.items() if name != DIGEST or not is_sealed}


def check_seal(text: bytes, file: object) -> None:
    """DamagedFileError if a sealed text was changed; a text without a digest passes."""
    text = text.removesuffix(b"\n")
    seals = list(_SEAL.finditer(text))
    if not seals:
        if _has_remains(text):
            raise DamagedFileError(file)
        return
    start, end = seals[-1].span(1)
    if digest_of(text[:start] + _ZEROS.encode() + text[end:]) != seals[-1][1].decode():
        raise DamagedFileError(file)


def is_sealed(text: bytes) -> bool:
    """Whether a text holds a complete digest, right or wrong."""
    return _SEAL.search(text) is not None


def missing_digest(file: Location, *, is_lines: bool = False) -> str | None:
    """A message if a record, or a line of a file of records, has no digest and so cannot be checked; None if all have one."""
    content = read_bytes(file)
    # Text after the last line break is an interrupted write.
    parts = content.rpartition(b"\n")[0].splitlines() if is_lines else [content]
    if all(map(is_sealed, parts)):
        return None
    return f"{file}: its digest is gone, as after an edit by hand; nothing checks what it says"


def _has_remains(text: bytes) -> bool:
    """Whether a text without a valid digest had one: most bytes of the digest's key are at the end of the record."""
    if b"xxh3:" in text:
        return True
    entry = text.rstrip(b"\n}")
    mark = entry[-_AFTER_MARK - len(_MARK) : -_AFTER_MARK]
    return sum(ours == theirs for ours, theirs in zip(_MARK, mark, strict=False)) > len(_MARK) // 2


def seal_folder(
    folder: Path, known_digests: Mapping[str, str] | None = None, *, left_out: Collection[str] = ()
) -> None:
    """Write the list of a folder's files with their digests. `known_digests` has those of files that need not be read or are
    elsewhere. Files of `left_out` are not listed, as they may be changed later.
    """
    # Names with a leading dot are unfinished files.
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    present = {path.relative_to(folder).as_posix() for path in paths}
    names = sorted((present | set(known_digests or {})) - {DIGESTS_FILE, *left_out})
    files = {name: (known_digests or {}).get(name) or digest_of_file(folder / name) for name in names}
    write_bytes(folder / DIGESTS_FILE, (seal({"files": files}, indent=1) + "\n").encode())


def check_folder(folder: Path) -> None:
    """DamagedFileError for the first of a folder's files that was changed or removed since it was sealed.

    If several files exist and differ, and none of them is another file of the list, the error names the list: it may be of
    another folder.
    """
    listed = digests_of(folder)
    now = {name: digest_of_file(folder / name) for name in listed if (folder / name).is_file()}
    differing = [name for name in listed if now.get(name) != listed[name]]
    others = [now[name] for name in differing if name in now]
    if len(others) > 1 and not set(others) & set(listed.values()):
        differ = f"{len(others)} of the {len(listed)} files that it lists differ from it"
        raise DamagedFileError(folder / DIGESTS_FILE, f"{differ}: it may be of another folder")
    if differing:
        raise DamagedFileError(folder / differing[0], RESTORE)


def first_cut_short(folder: Path) -> Path | None:
    """The first of a sealed folder's files that is gone or cut short; None if all are complete, or the folder has no list.

    Fast enough for many folders: of weights (safetensors) only the header is read, which states the length of the file, so a
    changed byte is not found (`check_folder` finds it). Other files are small and are compared with their digests.
    """
    try:
        names = list(digests_of(folder))
    except DamagedFileError:
        return folder / DIGESTS_FILE
    for name in names:
        try:
            if not name.endswith(".safetensors"):
                check_file(folder, name)
                continue
            with safe_open(folder / name, "numpy"):
                pass
        except (DamagedFileError, OSError, SafetensorError):
            return folder / name
    return None


def check_file(folder: Path, name: str) -> None:
    """DamagedFileError if a file of a sealed folder was changed; a file that is not in the list passes."""
    digest = digests_of(folder).get(name)
    if digest is not None and (not (folder / name).is_file() or digest_of_file(folder / name) != digest):
        raise DamagedFileError(folder / name, RESTORE)  # one that is gone is damaged too


def digests_of(folder: Path) -> dict[str, str]:
    """The digests of a sealed folder's files, by name; none for a folder without a list."""
    file = folder / DIGESTS_FILE
    return _listed(file, file.stat().st_mtime_ns) if file.is_file() else {}


@lru_cache(maxsize=64)
def _listed(file: Path, changed: int) -> dict[str, str]:
    text = file.read_bytes()
    check_seal(text, file)
    try:
        return dict(json.loads(text)["files"])
    except (ValueError, KeyError, TypeError):
        raise DamagedFileError(file) from None


def write_bytes(file: Location, content: bytes) -> None:
    """Write a file atomically, replacing an older one."""
    with complete_file(file) as output:
        output.write(content)


def write_text(file: Location, content: str, *, is_private: bool = False) -> None:
    """Write a text file atomically into a folder that exists, replacing an older one. StorageError if that fails."""
    if not isinstance(file, Path):
        with_retries(file, lambda: file.write_text(content, encoding="utf-8"))
        return
    with storage_errors(file), atomic_file(file, is_synced=True, is_private=is_private) as output:
        output.write(content.encode())


def read_bytes(file: Location) -> bytes:
    """The content of a file. StorageError if it is gone."""
    return with_retries(file, lambda: bytes(file.read_bytes()))


def read_text(file: Location) -> str:
    """The content of a text file. ValueError names a file that is not UTF-8, StorageError one that is gone."""
    try:
        return read_bytes(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not a text ({error.reason} at byte {error.start})") from None


def write_json(file: Location, content: Mapping[str, Any]) -> None:
    """Write an object atomically as sealed JSON into a folder that exists."""
    write_text(file, seal(content, indent=1) + "\n")


def read_json(file: Location) -> Any:
    """The content of a JSON file, without its digest.

    ValueError names the file if it is not JSON, DamagedFileError if it was changed, StorageError if it is gone.
    """
    text = read_bytes(file)
    check_seal(text, file)
    content = _parsed(text, file)
    return unsealed(content) if isinstance(content, dict) else content


def write_lines(file: Location, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write objects atomically as sealed JSON, one per line."""
    write_text(file, "".join(seal(row) + "\n" for row in rows))


def row_of(line: bytes, where: str) -> dict[str, Any]:
    """The object of a sealed line. ValueError, naming the place, if it is not an object or was changed."""
    check_seal(line, where)
    row = _parsed(line, where)
    if not isinstance(row, dict):
        raise ValueError(f"{where}: not a JSON object")
    return unsealed(row)


def _parsed(text: bytes, where: object) -> Any:
    try:
        return json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({shortened(str(error), 100)})") from None
