"""What every source yields: entries, clips of which the words and the place of the audio are known, the audio unread."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ray_atr.data.importing.sources.places import Place, stem
from ray_atr.data.schema import SPLITS
from ray_atr.settings import Settings, counted, refuse, setting


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A clip to import."""

    clip_id: str
    place: Place
    captions: Mapping[str, Sequence[str]]
    labels: Sequence[str] = ()
    split: str
    translated: Sequence[str] = ()
    alias: str = ""
    """Another name of the clip, by which tables of further captions may speak of it."""


@dataclass(frozen=True)
class Absent:
    """A clip that the source's tables name but whose audio is not there. `is_normal`: as happens with the data set."""

    clip_id: str
    split: str
    reason: str
    is_normal: bool = False


SPLIT_OF = {
    **{split: split for split in SPLITS},
    **dict.fromkeys(("validation", "valid", "dev"), "val"),
    **dict.fromkeys(("evaluation", "eval", "testing"), "test"),
}
"""The split that a word in the name of a file or folder stands for."""
UNUSUAL_SPLIT = "split that training looks for only if --data.train_split or the like names it (not train, val, test)"


def unusual_splits(splits: Iterable[str]) -> list[str]:
    """Those that training does not look for by default, each with the one that may be meant."""
    found = []
    for split in splits:
        if split not in SPLITS:
            close = difflib.get_close_matches(split, SPLIT_OF, n=1, cutoff=0.5)
            found.append(split + (f" (did you mean {SPLIT_OF[close[0]]}?)" if close else ""))
    return found


def blank_splits(count: int, split: str) -> str:
    """What to say of rows whose cell in a column of splits is blank."""
    return f"blank splits: {counted(count, 'row')}, taken to be in {split} (--split)"


ID_COLUMNS = ("file_name", "filename", "path", "youtube_id", "id")


@dataclass(frozen=True, kw_only=True)
class Source(Settings):
    """A data set on disk. Subclasses read one layout: `entries` yields every clip once, in a fixed order."""

    name: ClassVar[str]
    licence: ClassVar[str]

    source: str = setting(help="folder or URL of the data set", path="always")

    def entries(self) -> Iterator[Entry | Absent | Note | BadRow]:
        """The clips, with the words read and the audio found but unread. ValueError on a layout that is another's."""
        raise NotImplementedError

    def id_of(self, row: Mapping[str, Any]) -> str | None:
        """The clip that a row of an extra caption file speaks of, or None if no column names a clip."""
        if row.get("clip_id"):
            return str(row["clip_id"])
        column = next((name for name in ID_COLUMNS if row.get(name)), None)
        return stem(str(row[column])).strip() if column else None


@dataclass(frozen=True)
class Note:
    """Something that a person should know of the import."""

    text: str


@dataclass(frozen=True)
class BadRow:
    """A row of a table that was dropped, and why."""

    at: str
    reason: str


def captions_of(row: Mapping[str, Any], at: str) -> list[str]:
    """The captions in a row: `caption`, `captions`, `caption_1`, `caption_2`, ... in this order, blanks left out.

    A cell may hold one text or a list of them. ValueError, beginning with `at`, for anything else.
    """
    numbered = sorted(
        (int(name.removeprefix("caption_")), name)
        for name in row
        if name.startswith("caption_") and name.removeprefix("caption_").isdigit()
    )
    names = [name for name in ("caption", "captions") if name in row] + [name for _, name in numbered]
    return [text for name in names for text in texts_of(row[name], f"{at}, {name}")]


def texts_of(value: Any, at: str) -> list[str]:
    """The texts in a cell that holds one, or a list of them; none in an absent or blank one. ValueError for anything else."""
    values = value if isinstance(value, list | tuple) else [value]
    for text in values:
        if not isinstance(text, str) and not is_absent(text):
            raise refuse(at, text, "a text, or a list of texts")
    return [text for text in values if not is_absent(text) and text.strip()]


def labels_of(value: Any, at: str) -> tuple[str, ...]:
    """The labels in a cell that holds one, a list of them, or none. ValueError for anything else."""
    values = value if isinstance(value, list | tuple) else [value]
    for label in values:
        if isinstance(label, dict | list | tuple | bytes):
            raise refuse(at, label, "a label, or a list of labels")
    return tuple(str(label).strip() for label in values if not is_absent(label) and str(label).strip())


def cell_of(row: Mapping[str, Any], column: str) -> str:
    """The text in a cell, without blanks around it; empty if there is none."""
    value = row.get(column)
    return "" if is_absent(value) else str(value).strip()


def is_absent(value: Any) -> bool:
    """Whether a cell holds nothing: None, or the number that stands for nothing in tables of pandas."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def require_split_choices(assignments: Sequence[str], path: str) -> dict[str, list[str]]:
    """`("train=1,2", "val=3")` -> `{"train": ["1", "2"], "val": ["3"]}`. ValueError on another form or a value named twice."""
    chosen: dict[str, list[str]] = {}
    seen: set[str] = set()
    for assignment in assignments:
        name, equals, values = assignment.partition("=")
        parts = [part.strip() for part in values.split(",") if part.strip()]
        if not equals or not name or not parts:
            raise ValueError(f"{path}: got {assignment!r}; allowed NAME=VALUE,VALUE such as train=1,2,3")
        for part in parts:
            if part in seen:
                raise ValueError(f"{path}: {part} occurs in two splits")
            seen.add(part)
        chosen[name] = parts
    return chosen
