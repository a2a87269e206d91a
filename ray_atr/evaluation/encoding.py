"""A split's clips and captions to embeddings: Ray Data actors, each with a copy of the retriever, or this process.

A job is one shard of clips or some hundred captions. An actor holds one batch of features at a time; what comes back and is
kept are the embeddings. Features come from the cache where a run has left one, else from the audio itself, rounded alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ray_atr.data.audio import clip_windows
from ray_atr.data.decoding import IMPORTED
from ray_atr.data.feature_cache import find_features
from ray_atr.data.features import open_features
from ray_atr.data.shards import Manifest, Shard, read_manifest, read_shard
from ray_atr.encoding.encode import ClipBatch, as_clip_batch, clip_batches, embed_batches, rows_in_parts
from ray_atr.evaluation.options import Encoding
from ray_atr.jobs import Resources, run_jobs
from ray_atr.models.retriever import Retriever
from ray_atr.runtime import home
from ray_atr.storage import Location
from ray_atr.storage.caches import cache_folder

TEXTS_IN_A_JOB = 512
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Job:
    """The clips of one shard, or some sentences (language, text); `start` is the first one's row in the result."""

    kind: str
    """clips or texts"""
    start: int
    shard: int = -1
    sentences: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class EncodingSource:
    """What an encoder reads, by name, so that it can be sent to any worker."""

    retriever: str
    data: str
    split: str
    features: str
    """Root of the feature caches."""
    batch_size: int
    device: str = "cpu"
    threads: int = 0
    """Threads that torch computes with; 0: as it is."""

    @classmethod
    def of(cls, retriever: Location, manifest: Manifest, split: str, encoding: Encoding) -> EncodingSource:
        """What the encoders of an evaluation or an audit read, and where they compute."""
        is_here = encoding.ray == "never"
        on_gpu = torch.cuda.is_available() if is_here else encoding.gpus_per_encoder > 0
        return cls(
            retriever=str(retriever),
            data=manifest.folder,
            split=split,
            features=str(cache_folder(home(), "features")),
            batch_size=encoding.batch_size,
            device="cuda" if on_gpu else "cpu",
            threads=0 if is_here else max(1, int(encoding.cpus_per_encoder)),
        )


def encode(
    source: EncodingSource, sentences: Sequence[tuple[str, str]], encoding: Encoding, progress: Progress | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Unit-norm embeddings of every clip of the split [N, D], and of each (language, text) [M, D].

    `progress` is called with the clips and captions done and their number in all.
    """
    manifest = read_manifest(source.data)
    shards = manifest.shards_of(source.split)
    num_clips = sum(shard.num_rows for shard in shards)
    jobs = [*_clip_jobs(shards), *_text_jobs(sentences)]
    embedded: dict[str, NDArray[np.float32]] = {}
    done = 0
    actors = Resources(
        encoding.cpus_per_encoder, encoding.gpus_per_encoder, encoding.encoders, source.threads, setting="encoders"
    )
    for number, rows in run_jobs(jobs, partial(Encoder, source), ray=None if encoding.ray == "never" else actors):
        kind, start = jobs[number].kind, jobs[number].start
        if kind not in embedded:
            size = num_clips if kind == "clips" else len(sentences)
            embedded[kind] = np.full((size, rows.shape[1]), np.nan, np.float32)
        embedded[kind][start : start + len(rows)] = rows
        done += len(rows)
        if progress is not None:
            progress(done, num_clips + len(sentences))
    assert done == num_clips + len(sentences), "a job is missing"
    return embedded["clips"], embedded["texts"]


def _clip_jobs(shards: Sequence[Shard]) -> Iterator[Job]:
    start = 0
    for number, shard in enumerate(shards):
        yield Job("clips", start, shard=number)
        start += shard.num_rows


def _text_jobs(sentences: Sequence[tuple[str, str]]) -> Iterator[Job]:
    for start in range(0, len(sentences), TEXTS_IN_A_JOB):
        yield Job("texts", start, sentences=tuple(sentences[start : start + TEXTS_IN_A_JOB]))


class Encoder:
    """A retriever in memory that does one job after the other."""

    def __init__(self, source: EncodingSource) -> None:
        self.source = source
        self.retriever = Retriever.from_pretrained(source.retriever).to(source.device)
        self.clips = ClipFeatures(source, self.retriever)

    def __call__(self, job: Job) -> NDArray[np.float32]:
        """The job's embeddings [n, D]."""
        if job.kind == "clips":
            return embed_batches(self.retriever, self.clips.batches(job.shard)).cpu().numpy()
        languages, texts = zip(*job.sentences, strict=True)
        return self.retriever.embed_sentences(list(texts), languages, batch_size=self.source.batch_size).numpy()


class ClipFeatures:
    """Batches of a shard's log-mel features as the retriever hears them: `[b, T, F]` float32 and their frames `[b]`."""

    def __init__(self, source: EncodingSource, retriever: Retriever) -> None:
        self.manifest = read_manifest(source.data)
        self.shards = self.manifest.shards_of(source.split)
        self.starts = np.cumsum([0, *(shard.num_rows for shard in self.shards)])
        self.front_end, self.is_whole = retriever.audio_tower.front_end, retriever.settings.hears_windows
        self.batch_size = source.batch_size
        cache = find_features(self.manifest, self.front_end, Path(source.features), in_windows=self.is_whole)
        self.cached = None if cache is None else open_features(cache, source.split)

    def batches(self, shard: int) -> Iterator[ClipBatch]:
        """The batches of one shard."""
        if self.cached is None:
            return self._computed(shard)
        first, end = int(self.starts[shard]), int(self.starts[shard + 1])
        return clip_batches(self.cached, rows_in_parts(first, end, self.batch_size))

    def _computed(self, shard: int) -> Iterator[ClipBatch]:
        clips: list[int] = []
        windows: list[NDArray[np.float32]] = []
        rows = read_shard(self.manifest, self.shards[shard], ["clip_id", "audio"], self.batch_size)
        audio = ((i, a) for batch in rows for i, a in zip(batch["clip_id"].to_pylist(), batch["audio"], strict=True))
        for clip, (clip_id, encoded) in enumerate(audio):
            for window in clip_windows(
                encoded.as_buffer(), self.front_end, clip_id, is_whole=self.is_whole, bounds=IMPORTED
            ):
                clips.append(clip)
                windows.append(window)
                if len(windows) == self.batch_size:
                    yield _padded(windows, clips, self.front_end.dtype)
                    clips, windows = [], []
        if windows:
            yield _padded(windows, clips, self.front_end.dtype)


def _padded(windows: Sequence[NDArray[np.float32]], clips: Sequence[int], dtype: type[np.floating[Any]]) -> ClipBatch:
    frames = np.array([len(window) for window in windows])
    # Rounded as the cache rounds, so that it makes no difference whether there is one.
    padded = np.zeros((len(windows), int(frames.max()), windows[0].shape[1]), dtype)
    for row, window in zip(padded, windows, strict=True):
        row[: len(window)] = window
    return as_clip_batch(padded, frames, np.array(clips))
