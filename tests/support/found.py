"""What a source finds, by kind."""

from __future__ import annotations

from typing import NamedTuple

from ray_atr.data.shards import Skipped
from ray_atr.workshop.importing.sources.source import AudioLocation, Entry, Source, aligned


class FoundInSource(NamedTuple):
    """The clips with audio, those without, the rows that were dropped, and the remarks, each in the source's order."""

    clips: list[Entry]
    absent: list[Entry]
    dropped: list[Skipped]
    remarks: list[str]


def found_in(source: Source) -> FoundInSource:
    found = FoundInSource([], [], [], [])
    for one in aligned(source.entries()):
        if isinstance(one, str):
            found.remarks.append(one)
        elif isinstance(one, Skipped):
            found.dropped.append(one)
        else:
            (found.absent if one.place is None else found.clips).append(one)
    return found


def place_of(entry: Entry) -> AudioLocation:
    """Where a clip's audio is, which has some."""
    assert entry.place is not None
    return entry.place
