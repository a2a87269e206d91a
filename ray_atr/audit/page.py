"""The page of an audit: listen, read, decide by keyboard; decisions are kept in the browser and saved as a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_atr.report.html import data_url, render_template


@dataclass(frozen=True)
class Suspect:
    """One pair to decide on. `wrong` is the posterior that it is wrong, `repeats` how many captions have this very text."""

    row: int
    clip_id: str
    language: str
    slot: int
    caption: str
    preferred: str
    wrong: float
    is_flagged: bool
    repeats: int

    @property
    def key(self) -> str:
        """What the decisions' file calls the pair."""
        return f"{self.clip_id}\t{self.language}\t{self.slot}"


def write_audit_page(
    path: Path, facts: Mapping[str, Any], suspects: Sequence[Suspect], listen: Callable[[int], bytes | None] | None
) -> None:
    """Write the page: self-contained, works from a file, makes no request. Audio of a clip is embedded once.

    `listen` None: the clips are vectors, of which there is nothing to hear.
    """
    rows = sorted({suspect.row for suspect in suspects})
    heard = {} if listen is None else {row: listen(row) for row in rows}
    audio = {row: data_url(sound) for row, sound in heard.items() if sound is not None}
    page = render_template("audit.html.j2", package="ray_atr.audit", facts=facts, suspects=suspects, audio=audio)
    path.write_text(page, encoding="utf-8")
