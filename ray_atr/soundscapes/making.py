"""The synthetic data set on disk: made once from its settings, in parallel, then found again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock

from ray_atr import languages
from ray_atr.data.schema import Clip
from ray_atr.data.shards import MANIFEST_FILE, write_clips
from ray_atr.soundscapes.clips import SPLITS, SoundscapesSettings, clip

_CLIPS_AHEAD = 64


def ensure_soundscapes(settings: SoundscapesSettings, home: Path, say: Callable[[str], None] = print) -> Path:
    """The folder in `home` that holds the data set of these settings, made if it is not there yet.

    Its name is a hash of the settings and of the code that makes the clips. Safe to call from several processes.
    """
    folder = Path(home) / f"soundscapes-{_content_hash(settings)}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / MANIFEST_FILE).is_file():
            write_clips(
                folder, _told(generate(settings), settings, say), name="soundscapes", licence="CC0-1.0 (synthetic)"
            )
    return folder


def generate(settings: SoundscapesSettings, num_threads: int | None = None) -> Iterator[Clip]:
    """Every clip of the set, split after split, in order, made by a few threads (numpy lets them run at once)."""
    places = [(index, split) for split in SPLITS for index in range(settings.num_clips(split))]
    num_threads = num_threads or min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(num_threads) as pool:
        for start in range(0, len(places), _CLIPS_AHEAD):
            yield from pool.map(lambda place: clip(place[0], place[1], settings), places[start : start + _CLIPS_AHEAD])


def _told(clips: Iterator[Clip], settings: SoundscapesSettings, say: Callable[[str], None]) -> Iterator[Clip]:
    """The clips, with a word on progress now and then."""
    total = sum(settings.num_clips(split) for split in SPLITS)
    for done, made in enumerate(clips, start=1):
        yield made
        if done % 500 == 0 or done == total:
            say(f"synthetic clips {done:,} of {total:,}")


def _content_hash(settings: SoundscapesSettings) -> str:
    # Only what these settings use: a language that is added, or changed, leaves the sets without it where they are.
    words = Path(languages.__file__).parent
    spoken = [words / f"{name}.py" for name in ("romance", "said", *settings.languages)]
    code = b"".join(path.read_bytes() for path in [*sorted(Path(__file__).parent.rglob("*.py")), *spoken])
    return hashlib.sha256(json.dumps(asdict(settings), sort_keys=True).encode() + code).hexdigest()[:16]
