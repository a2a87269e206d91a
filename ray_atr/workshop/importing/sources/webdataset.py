"""WebDataset tars: members that share a name up to its first dot are one clip (`a.flac`, `a.json`, `a.txt`).

Nothing is unpacked: the audio is read later from its span of the tar, so no member's name ever becomes a path on disk.
The library `webdataset` is not used: it reads tars as streams and gives no offset of a member.
"""

from __future__ import annotations

import itertools
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from ray_atr.common.language_codes import is_unicode
from ray_atr.common.settings import counted, refuse, setting
from ray_atr.common.storage import Location, locate, opened
from ray_atr.data.schema import check_language, check_split
from ray_atr.workshop.importing.sources import source
from ray_atr.workshop.importing.sources.read_table import parse_json

IN_NAME = re.compile(rf"({'|'.join(source.SPLIT_OF)})(?![a-z])")
LARGEST_TEXT = 2**20


@dataclass(frozen=True, kw_only=True)
class WebDataset(source.Source):
    """Uncompressed tars of audio with a .json (text, caption or captions by language) or .txt for each clip."""

    name: ClassVar[str] = "webdataset"
    licence: ClassVar[str] = "as given by the owner of the tars"
    remedy: ClassVar[str] = " (in a tar, the files of a clip must follow each other)"

    language: str = setting("eng", "ISO 639 code of captions that name no language")
    split: str = setting("train", "split of tars whose name or folder contains none")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "language", check_language(self.language, "language"))
        check_split(self.split)

    def entries(self) -> Iterator[source.Entry | str]:
        folder = locate(self.source, keeps_links=True)
        files = source.list_files(folder)
        packed = [path for path in files if path.endswith((".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst"))]
        if packed:
            advice = "a compressed tar cannot be read in parts; unpack it to .tar first"
            raise ValueError(f"{folder}/{packed[0]}: {advice}")
        tars = [path for path in files if path.endswith(".tar")]
        if not tars:
            raise ValueError(f"{folder}: no .tar file")
        tar_of, renamed = dict[str, str](), list[str]()
        for path in tars:
            tar, split = f"{folder}/{path}", self._split_of(path)
            for key, place, texts in _clips_of(folder / path, tar):
                clip_id = key
                if tar_of.setdefault(key, path) != path:
                    # Keys are unique within a tar only.
                    clip_id = f"{path.removesuffix('.tar')}/{key}"
                    renamed.append(clip_id)
                if place is None:
                    yield source.Entry(clip_id=clip_id, place=None, split=split, absent=f"{tar} has no audio for it")
                    continue
                captions, labels = self._words(texts, f"{tar}, {key}")
                if not captions:
                    absent = f"{tar}, {key}: no caption in its .json (text, caption, captions) or .txt"
                    yield source.Entry(clip_id=clip_id, place=None, split=split, absent=absent)
                    continue
                yield source.Entry(clip_id=clip_id, place=place, captions=captions, labels=labels, split=split)
        if renamed:
            clips = counted(len(renamed), "clip is", "clips are")
            yield f"{clips} called TAR/KEY, as an earlier tar has the key too: {renamed[0]}"

    def _split_of(self, path: str) -> str:
        match = next(filter(None, map(IN_NAME.match, reversed(path.lower().split("/")))), None)
        return source.SPLIT_OF[match[1]] if match else self.split

    def _words(self, texts: Mapping[str, bytes], at: str) -> tuple[dict[str, list[str]], tuple[str, ...]]:
        """The captions by language and the labels, of the contents of a clip's files of text by their suffix."""
        try:
            text = {suffix: content.decode("utf-8-sig") for suffix, content in texts.items()}
        except UnicodeDecodeError as error:
            raise ValueError(f"{at}: its text is not UTF-8 ({error.reason} at byte {error.start})") from None
        row = parse_json(text["json"], f"{at}.json") if "json" in text else {}
        if not isinstance(row, dict):
            raise ValueError(f"{at}.json: a JSON object is expected")
        labels = source.labels_of(row.get("labels") or row.get("tag") or row.get("label"), f"{at}.json, labels")
        language = str(row.get("language") or self.language)
        captions = source.texts_by_language(row, f"{at}.json", language, ("text",))
        lines = [line.strip() for line in text.get("txt", "").splitlines() if line.strip()]
        if not captions and lines:
            captions = {check_language(language, f"{at}, language"): lines}
        return captions, labels


def _clips_of(file: Location, tar: str) -> Iterator[tuple[str, source.AudioLocation | None, dict[str, bytes]]]:
    """The key of each clip of a tar, where its audio is, and its files of text by their suffix. ValueError if it is no tar."""
    try:
        with opened(file) as source_file, tarfile.open(fileobj=source_file, mode="r:") as members:
            # Hidden ones are no clips: macOS writes a `._0.flac` before each `0.flac`.
            files = (
                member for member in members if member.isfile() and not member.name.rpartition("/")[2].startswith(".")
            )
            for key, of_clip in itertools.groupby(files, key=lambda member: _key(member.name)[0]):
                yield key, *_read_members(key, of_clip, members, tar)
    except tarfile.TarError as error:
        raise ValueError(f"{tar}: not a complete tar file ({error})") from None


def _read_members(
    key: str, of_clip: Iterable[tarfile.TarInfo], members: tarfile.TarFile, tar: str
) -> tuple[source.AudioLocation | None, dict[str, bytes]]:
    """Where a clip's audio is, and its files of text by their suffix. ValueError for a second audio file, a text that
    is too long, or a path outside the tar's folder.
    """
    place, texts = None, dict[str, bytes]()
    for member in of_clip:
        if not is_unicode(member.name):
            raise refuse(f"{tar}, member", member.name, "a name in UTF-8, from which an id is made")
        if member.name.startswith("/") or ".." in member.name.split("/"):
            raise refuse(f"{tar}, member", member.name, "names inside the tar's own folder")
        suffix = _key(member.name)[1]
        if source.is_audio(member.name):
            if place is not None:
                raise ValueError(f"{tar}: {key} has two audio files")
            place = source.AudioLocation(tar, "span", member.offset_data, member.size)
        elif suffix in ("json", "txt"):
            if member.size > LARGEST_TEXT:
                raise ValueError(f"{tar}, {member.name}: {member.size} bytes of text; at most {LARGEST_TEXT}")
            content = members.extractfile(member)
            assert content is not None
            texts[suffix] = content.read()
    return place, texts


def _key(name: str) -> tuple[str, str]:
    """`a/b.c.flac` -> (`a/b`, `c.flac`): the key ends at the first dot of the file's name."""
    parent, _, file = name.removeprefix("./").rpartition("/")
    base, _, suffix = file.partition(".")
    return (f"{parent}/{base}" if parent else base), suffix.lower()
