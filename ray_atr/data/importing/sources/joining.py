"""Captions in further languages, from tables of their own, joined to the clips of a source by id."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from ray_atr.data.importing.sources.read_table import read_table
from ray_atr.data.importing.sources.source import Entry, Source, captions_of
from ray_atr.data.schema import check_captions, check_language


class ExtraCaptions:
    """The captions of files given as `jpn=FILE`, by language and clip; `join` adds them to an entry and counts.

    A table has a column that names the clip as the source does, and `caption` (one row a caption, in the order of the source's
    captions) or `caption_1`, `caption_2`, ... Several files of one language are read one after another.
    """

    def __init__(self, files: Sequence[str], source: Source) -> None:
        self.by_language: dict[str, dict[str, tuple[str, ...]]] = {}
        self.joined: Counter[tuple[str, str]] = Counter()
        self.unequal: Counter[str] = Counter()
        self.clips: Counter[str] = Counter()
        for assignment in files:
            language, equals, file = assignment.partition("=")
            if not equals or not file:
                raise ValueError(f"captions: got {assignment!r}; allowed LANGUAGE=FILE such as jpn=test.csv")
            self._read(check_language(language, "captions"), file, source)

    def _read(self, language: str, file: str, source: Source) -> None:
        found: dict[str, list[str]] = {}
        for at, row in read_table(file):
            clip_id, captions = source.id_of(row), captions_of(row, at)
            if clip_id is None:
                raise ValueError(f"{at}: no column names the clip; it has {', '.join(row)}")
            if not captions:
                raise ValueError(f"{at}: no caption; its columns are {', '.join(row)}")
            found.setdefault(clip_id, []).extend(captions)
        known = self.by_language.setdefault(language, {})
        for clip_id, texts in found.items():
            if clip_id in known:
                raise ValueError(f"{file}: clip {clip_id} has {language} captions in an earlier file too")
            known[clip_id] = check_captions({language: texts}, f"{file}, clip {clip_id}")[language]

    def join(self, entry: Entry) -> Entry:
        """The entry with its further captions. ValueError if it has captions in that language already.

        Caption j must be the same sentence in every language, so a clip with another number of captions than the
        source gives it stays without; `notes` counts these.
        """
        self.clips[entry.split] += 1
        captions = dict(entry.captions)
        expected = max((len(texts) for texts in captions.values()), default=0)
        for language, by_clip in self.by_language.items():
            texts = by_clip.get(entry.clip_id) or by_clip.get(entry.alias)
            if texts is None:
                continue
            if language in captions:
                raise ValueError(
                    f"clip {entry.clip_id}: the source itself has {language} captions; give other languages"
                )
            if expected and len(texts) != expected:
                self.unequal[language] += 1
                continue
            captions[language] = texts
            self.joined[language, entry.split] += 1
        return dataclasses.replace(entry, captions=captions)

    def notes(self) -> list[str]:
        """A line a language: of how many clips of each split the captions were joined, and how many were left out.

        ValueError for a language of which nothing could be joined."""
        lines = []
        for language, by_clip in self.by_language.items():
            counts = {split: self.joined[language, split] for split in self.clips}
            if not sum(counts.values()):
                clip_id = next(iter(by_clip), "")
                raise ValueError(
                    f"captions: none of the {len(by_clip)} clips in the {language} file is in the data set (the first is"
                    f" {clip_id!r}), or their captions differ in number"
                )
            parts = [f"{number} of {self.clips[split]} {split} clips" for split, number in counts.items()]
            left = (
                f"; {self.unequal[language]} with another number of captions left out" if self.unequal[language] else ""
            )
            lines.append(f"{language} captions joined: {', '.join(parts)}{left}")
        return lines
