"""Frozen towers encode a data set once: their pooled vectors are cached, and then read instead of audio and tokens.

A cache's folder is named by what its vectors depend on: data, front end, the tower's settings and the fingerprint of its
weights. A file in `known/` maps the checkpoint's files to that folder, so that a later use finds it without building the tower.
Vectors are float32, computed without autocast. Interrupted work continues part by part.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ray_atr.common.caches import cache_folder, cache_key, lock_of
from ray_atr.common.jobs import Resources, run_jobs
from ray_atr.common.override import flatten
from ray_atr.common.progress import Echo, spaced
from ray_atr.common.storage import Location, read_json, write_bytes
from ray_atr.data.audio import FrontEnd
from ray_atr.data.caption_vectors import KEYS_FILE, PART, Caption, in_key_order, part_file
from ray_atr.data.feature_cache import LAYOUT, FolderHere, ensure_features, has_long_clips, is_complete, write_rows
from ray_atr.data.features import MANIFEST_FILE, discard_damaged, fetch_folder, finish_folder, folder_in, open_features
from ray_atr.data.shards import Manifest, read_captions, read_manifest
from ray_atr.data.vector_clip import array_bytes
from ray_atr.models.adaptation import merge_updates
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.models.text import read_tokenizer
from ray_atr.models.tower import AudioSettings, TextSettings, checkpoint_of, tower_fingerprint
from ray_atr.models.vectors import encode_captions
from ray_atr.models.weights import identity_of_checkpoint, write_weights
from ray_atr.training.encoding.encode import clip_batches, encode_clips, rows_in_parts

CLIPS = 32
"""Clips that are encoded together."""

TOWER_FILE = "tower.safetensors"
"""The tower's weights, stored with its vectors: retrievers that are trained on these are saved with them."""

PROBE = 256
"""Captions whose tokens distinguish tokenisers."""


@dataclass(frozen=True)
class FrozenTower:
    """A frozen tower of a model, where its vectors are stored, and how it encodes."""

    kind: str
    """audio or text"""
    model: ModelSettings
    seed: int
    tokenizer: Path | None
    home: Path
    store: str
    """where features are stored besides this node's disk (scaling.feature_store); empty: nowhere"""
    encoder: Resources
    """what each encoding process gets"""
    use_ray: bool
    echo: Echo
    start: Location | None = None
    """the saved retriever whose tower it is; None: its own checkpoint's"""

    @property
    def settings(self) -> AudioSettings | TextSettings:
        """The tower's settings."""
        return self.model.audio if self.kind == "audio" else self.model.text

    @property
    def checkpoint(self) -> str | None:
        """Where all of the tower's weights come from; None if some are drawn from the seed."""
        return complete_checkpoint(self.settings)

    def build(self) -> Any:
        """The tower as training builds it, in evaluation mode, on the device that one of its workers has."""
        if self.checkpoint is not None:
            tower: Any = self.settings.build()
        else:
            tokenizer = None if self.tokenizer is None else read_tokenizer(self.tokenizer)
            # Built with the whole retriever, so that it has the same random weights.
            retriever = build_retriever(self.model, tokenizer=tokenizer, seed=self.seed)
            tower = retriever.audio_tower if self.kind == "audio" else retriever.text_tower
        if self.start is not None:
            tower.load_state_dict(self._saved_weights(self.start))
        is_cuda = bool(self.encoder.gpus) and torch.cuda.is_available()
        return tower.eval().to("cuda" if is_cuda else "cpu")

    def _saved_weights(self, folder: Location) -> dict[str, torch.Tensor]:
        """The weights of a saved retriever's tower; low-rank updates are part of them."""
        saved = Retriever.from_pretrained(str(folder))
        is_audio = self.kind == "audio"
        tower: torch.nn.Module = saved.audio_tower if is_audio else saved.text_tower
        merge_updates(tower, (saved.settings.audio if is_audio else saved.settings.text).adapt)
        return dict(tower.state_dict())

    def identity(self) -> Any:
        """An identity of the tower's weights that needs no reading of them; None if there is none."""
        if self.start is not None:
            return identity_of_checkpoint(str(self.start))
        if self.checkpoint is not None:
            return identity_of_checkpoint(self.checkpoint)
        model = {k: value for k, value in flatten(self.model, "model.").items() if ".adapt." not in k}
        checkpoints = [value for k, value in model.items() if k.endswith(".checkpoint") and value is not None]
        files = [identity_of_checkpoint(value) for value in checkpoints]
        if None in files:
            return None
        tokenizer = self.tokenizer and self.tokenizer.name
        return {"seed": self.seed, "model": model, "files": files, "tokenizer": tokenizer}


def complete_checkpoint(settings: AudioSettings | TextSettings) -> str | None:
    """Where all of a tower's weights come from; None if some are drawn from the seed."""
    return None if getattr(settings, "allow_mismatch", ()) else checkpoint_of(settings)


@cache
def frames_on_this_node(
    data: str, data_hash: str, front_end: FrontEnd, home: Path, in_windows: bool, store: str
) -> Path:
    """The data set's features on the node of a job's process; cached for all jobs of the process on this state of it."""
    root = cache_folder(home, "features")
    return ensure_features(data, front_end, root, in_windows=in_windows, use_ray=False, echo=print, store=store)


def ensure_audio_vectors(tower: FrozenTower, data: str) -> Path:
    """A feature folder of the data set with one vector for each window of a clip; encoded now if it is missing."""
    manifest, model, store = read_manifest(data), tower.model, tower.store
    front_end, in_windows = model.audio.front_end, model.pools_windows

    def encode(folder: Path, built: Any) -> dict[str, Any]:
        root, use_ray, echo = cache_folder(tower.home, "features"), tower.use_ray, tower.echo
        features = ensure_features(
            data, front_end, root, in_windows=in_windows, use_ray=use_ray, echo=echo, store=store
        )
        frames = partial(frames_on_this_node, data, manifest.hash, front_end, tower.home, in_windows, store)
        splits = read_json(features / MANIFEST_FILE)["splits"]
        jobs: list[ClipJob] = []
        for split, files in splits.items():
            first = 0
            for file in files:
                jobs.append(ClipJob(frames, split, file["file"], first, file["num_rows"]))
                first += file["num_rows"]
            shutil.copyfile(features / f"{split}.captions.arrow", folder / f"{split}.captions.arrow")
        _encode_parts(tower, built, jobs, folder)
        return {"num_features": built.width, "dtype": "float32", "splits": splits}

    about: dict[str, Any] = {"front_end": flatten(front_end), "layout": LAYOUT}
    if in_windows and has_long_clips(manifest, front_end.clip_seconds):
        about["windows"] = True
    return _ensure(tower, manifest, about, tower_fingerprint, encode)


def ensure_text_vectors(tower: FrozenTower, data: str, languages: Sequence[str]) -> Path:
    """A folder with the vectors of a data set's distinct captions; encoded now if it is missing."""
    manifest = read_manifest(data)

    def fingerprint(built: Any) -> str:
        # Tokenisers may differ in one language only, as in what they do with accents.
        probe = [
            caption for language in languages for caption in itertools.islice(_captions(manifest, [language]), PROBE)
        ]
        tokens = built.tokenise([text for text, _ in probe], [language for _, language in probe])
        return tower_fingerprint(built) + cache_key(tokens)

    def encode(folder: Path, built: Any) -> dict[str, Any]:
        captions, keys = in_key_order(_captions(manifest, languages))
        starts = range(0, len(captions), PART)
        jobs = [CaptionJob(part_file(number), captions[start : start + PART]) for number, start in enumerate(starts)]
        _encode_parts(tower, built, jobs, folder)
        write_bytes(folder / KEYS_FILE, array_bytes(keys))
        return {"width": built.width, "num_captions": len(captions)}

    return _ensure(tower, manifest, {"languages": list(languages)}, fingerprint, encode)


@dataclass(frozen=True)
class ClipJob:
    """The clips of one feature file; `frames` returns the feature folder on the node that encodes."""

    frames: Callable[[], Path]
    split: str
    file: str
    first: int
    size: int

    def write(self, tower: Any, file: Path) -> None:
        """Writes the vectors of the clips' windows, each as one frame."""
        features = open_features(self.frames(), self.split)
        device = next(tower.parameters()).device

        def embed(*clips: torch.Tensor) -> torch.Tensor:
            return tower(*clips).pooled.float().cpu()

        def batches() -> Iterator[tuple[list[str], list[np.ndarray]]]:
            for rows in rows_in_parts(self.first, self.first + self.size, CLIPS):
                pooled = encode_clips(embed, clip_batches(features, [rows]), width=tower.width, device=device)
                ids = [features.clip_ids[row] for row in rows for _ in range(features.num_windows[row])]
                # The file says float32, whatever the tower computes in.
                yield ids, [vector[None] for vector in pooled.numpy().astype(np.float32, copy=False)]

        write_rows(file, batches())


@dataclass(frozen=True)
class CaptionJob:
    """Some captions, in the order of their keys."""

    file: str
    captions: list[Caption]

    @property
    def size(self) -> int:
        return len(self.captions)

    def write(self, tower: Any, file: Path) -> None:
        """Writes the captions' vectors."""
        write_bytes(file, array_bytes(encode_captions(tower, self.captions).numpy()))


def _ensure(
    tower: FrozenTower,
    manifest: Manifest,
    about: dict[str, Any],
    fingerprint: Callable[[Any], str],
    encode: Callable[[Path, Any], dict[str, Any]],
) -> Path:
    """The folder of the tower's vectors of a data set. If it is not complete, `encode` fills it and returns its description."""
    # These settings change no vector: they are for training alone, or say where the weights come from.
    ignored = ("adapt.", "checkpoint", "allow_mismatch")
    settings = {k: v for k, v in flatten(tower.settings).items() if not k.startswith(ignored)}
    content = {"data": manifest.hash, "kind": tower.kind, "name": tower.settings.name, **settings, **about}
    identity, root = tower.identity(), cache_folder(tower.home, "vectors")
    link = root / "known" / cache_key([content, identity])
    if identity is not None and link.is_file():
        folder = root / link.read_text(encoding="utf-8")
        if is_complete(folder):
            return folder
    built = tower.build()
    content["fingerprint"] = fingerprint(built)
    folder = root / f"{manifest.name}-{tower.kind}-{cache_key(content)}"
    folder.mkdir(parents=True, exist_ok=True)
    store = folder_in(tower.store, folder.name)
    with lock_of(folder):
        if not is_complete(folder) and (store is None or not fetch_folder(store, folder)):
            discard_damaged(folder)
            write_weights(folder / TOWER_FILE, built.state_dict(), prefix=f"{tower.kind}_tower.")
            finish_folder(folder, store, {**content, **encode(folder, built)})
    if identity is not None:
        link.parent.mkdir(exist_ok=True)
        write_bytes(link, folder.name.encode())
    return folder


def _encode_parts(tower: FrozenTower, built: Any, jobs: Sequence[ClipJob | CaptionJob], folder: Path) -> None:
    waiting = [job for job in jobs if not (folder / job.file).is_file()]
    total = sum(job.size for job in jobs)
    done = total - sum(job.size for job in waiting)
    # Other processes build the tower again: its weights may be too large to send.
    make_built = dataclasses.replace(tower, echo=print).build if tower.use_ray else lambda: built
    target, kind = FolderHere(folder), "clips" if tower.kind == "audio" else "captions"
    encoder, say = partial(_encoder, make_built, target), spaced(tower.echo)
    for number, content in run_jobs(waiting, encoder, ray=tower.encoder if tower.use_ray else None):
        target.receive(waiting[number].file, content)
        done += waiting[number].size
        say(f"frozen {tower.kind} tower: {done:,} of {total:,} {kind} encoded", done, total)


def _encoder(make_tower: Callable[[], Any], target: FolderHere) -> Callable[[ClipJob | CaptionJob], bytes | None]:
    """A function that encodes a part; the tower is built once."""
    tower = make_tower()
    return lambda job: target.make(job.file, partial(job.write, tower))


def _captions(manifest: Manifest, languages: Sequence[str]) -> Iterator[Caption]:
    for split in manifest.splits:
        for clip in read_captions(manifest, split):
            for language in languages:
                for text in clip.captions.get(language) or ():
                    yield text, language
