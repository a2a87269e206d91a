"""The synthetic data set: a clip from its place in the set, and all of them on disk, made once and then found again.

Scene, waveform and captions of a clip have a random stream each.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
import soundfile

from ray_atr.common.caches import cache_key, lock_of
from ray_atr.common.language_codes import normalise
from ray_atr.common.progress import Echo
from ray_atr.common.settings import nearest, refuse
from ray_atr.data.schema import Clip
from ray_atr.data.shards import MANIFEST_FILE, write_clips
from ray_atr.data.soundscapes import NUM_PARAPHRASES, SPLITS, SoundscapesSettings
from ray_atr.workshop import languages as languages_package
from ray_atr.workshop.languages.grammar import TEMPLATES, Said, column, grammar_of
from ray_atr.workshop.soundscapes.render import render
from ray_atr.workshop.soundscapes.scene import Event, Scene, draw_scene

_NEAR_DUPLICATES = 0.06
_CLIPS_AHEAD = 64
_STREAMS = {"scene": 0, "audio": 1, "captions": 2, "duplicate": 3}


def clip(index: int, split: str, settings: SoundscapesSettings) -> Clip:
    """One clip from (settings.seed, split, index) alone: 16-bit FLAC, captions, the kinds of sound as labels.

    About one clip in sixteen repeats the scene of an earlier one of its split in a new rendering: a near-duplicate.
    """
    scene = _scene(index, split, settings)
    waveform = render(scene, _generator(settings.seed, split, index, "audio"), settings.sample_rate)
    file = io.BytesIO()
    soundfile.write(file, waveform, settings.sample_rate, format="FLAC", subtype="PCM_16")
    texts, labels = _described(scene, index, split, settings)
    return Clip(
        clip_id=settings.clip_id(split, index),
        audio=file.getvalue(),
        sample_rate=settings.sample_rate,
        seconds=len(waveform) / settings.sample_rate,
        captions=texts,
        labels=labels,
        split=split,
        source="soundscapes",
    )


def described(index: int, split: str, settings: SoundscapesSettings) -> tuple[dict[str, list[str]], list[str]]:
    """A clip's captions by language and its labels, without its sound, which takes longest to make."""
    return _described(_scene(index, split, settings), index, split, settings)


def _described(
    scene: Scene, index: int, split: str, settings: SoundscapesSettings
) -> tuple[dict[str, list[str]], list[str]]:
    num_captions = settings.num_train_captions if split == "train" else NUM_PARAPHRASES
    rng = _generator(settings.seed, split, index, "captions")
    return captions(scene, rng, num_captions, settings.languages), [event.kind for event in scene.events]


def _scene(index: int, split: str, settings: SoundscapesSettings) -> Scene:
    """Its own, or now and then that of an earlier clip."""
    if split not in SPLITS:
        raise refuse("split", split, ", ".join(SPLITS), nearest(split, SPLITS))
    rng = _generator(settings.seed, split, index, "duplicate")
    shown = int(rng.integers(index)) if index > 0 and rng.random() < _NEAR_DUPLICATES else index
    return draw_scene(_generator(settings.seed, split, shown, "scene"), settings.seconds)


def _generator(seed: int, split: str, index: int, stream: str) -> np.random.Generator:
    return np.random.default_rng([seed, SPLITS.index(split), index, _STREAMS[stream]])


def captions(
    scene: Scene, rng: np.random.Generator, num_captions: int, languages: Sequence[str]
) -> dict[str, list[str]]:
    """Language -> `num_captions` (at most five) different sentences; caption j says the same in every language."""
    templates = TEMPLATES[scene.arrangement]
    texts: dict[str, list[str]] = {language: [] for language in languages}
    for number in rng.permutation(len(templates))[:num_captions]:
        said = [_mentioned(event, rng) for event in scene.events]
        background = scene.background if scene.background != "quiet" and rng.random() < 0.4 else None
        for language in languages:
            text = grammar_of(language).sentence(scene.arrangement, templates[number], said, background)
            texts[language].append(normalise(text))
    return texts


def _mentioned(event: Event, rng: np.random.Generator) -> Said:
    """What a caption says of an event: its loudness or else its pace, and how often, each left out at times."""
    says_manner, says_count = rng.random(2) < (0.6, 0.75)
    return Said(
        event.kind,
        event.intensity if says_manner else None,
        event.tempo if says_manner and event.intensity is None else None,
        event.count if says_count else None,
    )


def generate(settings: SoundscapesSettings, num_threads: int | None = None) -> Iterator[Clip]:
    """Every clip of the set, split after split, in order, made by a few threads (numpy lets them run at once)."""
    places = [(index, split) for split in SPLITS for index in range(settings.num_clips(split))]
    num_threads = num_threads or min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(num_threads) as pool:
        for start in range(0, len(places), _CLIPS_AHEAD):
            yield from pool.map(lambda place: clip(place[0], place[1], settings), places[start : start + _CLIPS_AHEAD])


def ensure_soundscapes(settings: SoundscapesSettings, home: Path, echo: Echo = print) -> Path:
    """The folder in `home` that holds the data set of these settings, made if it is not there yet.

    Its name is a hash of the settings and of the code that makes the clips. Safe to call from several processes.
    """
    folder = Path(home) / f"soundscapes-{_content_hash(settings)}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lock_of(folder):
        if not (folder / MANIFEST_FILE).is_file():
            clips = _echoed(generate(settings), settings, echo)
            write_clips(folder, clips, name="soundscapes", licence="CC0-1.0 (synthetic)")
    return folder


def _echoed(clips: Iterator[Clip], settings: SoundscapesSettings, echo: Echo) -> Iterator[Clip]:
    """The clips, with a word on progress now and then."""
    total = sum(settings.num_clips(split) for split in SPLITS)
    for done, made in enumerate(clips, start=1):
        yield made
        if done % 500 == 0 or done == total:
            echo(f"synthetic clips {done:,} of {total:,}")


def _content_hash(settings: SoundscapesSettings) -> str:
    # Only what these settings use: a language that is added, or changed, leaves the sets without it where they are.
    here, words = Path(__file__).parent, Path(languages_package.__file__).parent
    spoken = [words / "grammar.py", *(words / f"{language}.yaml" for language in settings.languages)]
    code = b"".join(path.read_bytes() for path in [*sorted(here.glob("*.py")), here / "kinds.csv", *spoken])
    code += repr([column("sounds.csv", name) for name in ("manner", *settings.languages)]).encode()
    return cache_key(asdict(settings), code)
