"""A split's clips and captions to embeddings: Ray Data actors, each with a copy of the retriever, or this process.

A job is one shard of clips or some hundred captions. An actor holds one batch of features at a time; what comes back and is
kept are the embeddings. Features come from the cache where a run has left one, else from the audio itself, rounded alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ray_atr.data.audio import FrontEnd, clip_features
from ray_atr.data.cache import find_features
from ray_atr.data.features import FEATURE_DTYPE, open_features
from ray_atr.data.shards import Shard, read_manifest, read_shard
from ray_atr.models.retriever import Retriever
from ray_atr.settings import Settings, refuse, setting

TEXTS_IN_A_JOB = 512
Job = dict[str, Any]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Encoding(Settings):
    """Where and how clips and captions are embedded."""

    ray: str = setting("always", "encode in Ray actors, or in this process", choices=("always", "never"))
    batch_size: int = setting(64, "clips or captions embedded at a time", at_least=1)
    encoders: int = setting(0, "Ray actors, each with a copy of the retriever; 0: as many as fit", at_least=0)
    cpus_per_encoder: float = setting(1.0, "logical CPUs of an actor", above=0)
    gpus_per_encoder: float = setting(0.0, "GPUs of an actor, may be a share of one; 0: on the CPU", at_least=0)


@dataclass(frozen=True)
class Source:
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


def encode(
    source: Source, sentences: Sequence[tuple[str, str]], encoding: Encoding, progress: Progress | None = None
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
    run = _run_here if encoding.ray == "never" else _run_with_ray
    for kind, start, rows in run(jobs, source, encoding):
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
        yield {"kind": "clips", "start": start, "shard": number, "texts": [], "languages": []}
        start += shard.num_rows


def _text_jobs(sentences: Sequence[tuple[str, str]]) -> Iterator[Job]:
    for start in range(0, len(sentences), TEXTS_IN_A_JOB):
        part = sentences[start : start + TEXTS_IN_A_JOB]
        languages, texts = zip(*part, strict=True)
        yield {"kind": "texts", "start": start, "shard": -1, "texts": list(texts), "languages": list(languages)}


class Encoder:
    """A retriever in memory that does one job after the other; a Ray Data actor, or used as it is."""

    def __init__(self, source: Source) -> None:
        if source.threads:
            torch.set_num_threads(source.threads)
        self.source = source
        self.retriever = Retriever.from_pretrained(source.retriever).to(source.device)
        self.clips = ClipFeatures(source, self.retriever.audio_tower.front_end)

    @torch.inference_mode()
    def __call__(self, job: Job) -> Job:
        """The job's embeddings, as bytes: Arrow then need not know that jobs differ in length."""
        if job["kind"] == "clips":
            device = self.retriever.device
            parts = [
                self.retriever.embed_audio(features.to(device), frames.to(device)).cpu()
                for features, frames in self.clips.batches(int(job["shard"]))
            ]
            embedded = torch.cat(parts)
        else:
            texts, languages = list(job["texts"]), list(job["languages"])
            embedded = self.retriever.encode_text(texts, languages, batch_size=self.source.batch_size)
        rows = embedded.numpy()
        return {"kind": job["kind"], "start": job["start"], "width": rows.shape[1], "embedded": rows.tobytes()}


class ClipFeatures:
    """Batches of a shard's log-mel features: `[b, T, F]` float32 and their frames `[b]`, one batch in memory."""

    def __init__(self, source: Source, front_end: FrontEnd) -> None:
        self.manifest = read_manifest(source.data)
        self.shards = self.manifest.shards_of(source.split)
        self.starts = np.cumsum([0, *(shard.num_rows for shard in self.shards)])
        self.front_end, self.batch_size = front_end, source.batch_size
        cache = find_features(self.manifest, front_end, Path(source.features))
        self.cached = None if cache is None else open_features(cache, source.split)

    def batches(self, shard: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for array, frames in self._cached(shard) if self.cached is not None else self._computed(shard):
            yield torch.from_numpy(array.astype(np.float32)), torch.from_numpy(frames.astype(np.int64))

    def _cached(self, shard: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        assert self.cached is not None
        rows = np.arange(self.starts[shard], self.starts[shard + 1])
        for start in range(0, len(rows), self.batch_size):
            yield self.cached.features(rows[start : start + self.batch_size])

    def _computed(self, shard: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for batch in read_shard(self.manifest, self.shards[shard], ["clip_id", "audio"], self.batch_size):
            ids = batch.column("clip_id").to_pylist()
            clips = [
                clip_features(audio.as_buffer(), self.front_end, clip_id)
                for clip_id, audio in zip(ids, batch.column("audio"), strict=True)
            ]
            frames = np.array([len(clip) for clip in clips])
            # Rounded as the cache rounds, so that it makes no difference whether there is one.
            padded = np.zeros((len(clips), int(frames.max()), clips[0].shape[1]), FEATURE_DTYPE)
            for row, clip in zip(padded, clips, strict=True):
                row[: len(clip)] = clip
            yield padded, frames


def _run_here(jobs: Sequence[Job], source: Source, encoding: Encoding) -> Iterator[tuple[str, int, np.ndarray]]:
    encoder = Encoder(source)
    for job in jobs:
        yield _unpacked(encoder(job))


def _run_with_ray(jobs: Sequence[Job], source: Source, encoding: Encoding) -> Iterator[tuple[str, int, np.ndarray]]:
    from ray_atr.runtime import is_inside_a_cluster, start_ray

    start_ray()
    import ray

    encoders = num_encoders(encoding, ray.cluster_resources(), grows=is_inside_a_cluster())
    rows = ray.data.from_items(list(jobs), override_num_blocks=len(jobs))
    # A large tower on a CPU may need minutes for one shard: that is work, not a hang.
    rows.context.execution_no_progress_timeout_s = -1
    encoded = rows.map(
        Encoder,  # type: ignore[arg-type]
        fn_constructor_kwargs={"source": source},
        compute=ray.data.ActorPoolStrategy(size=min(len(jobs), encoders)),
        num_cpus=encoding.cpus_per_encoder,
        num_gpus=encoding.gpus_per_encoder or None,
    )
    for row in encoded.iter_rows():
        yield _unpacked(row)


def num_encoders(encoding: Encoding, has: Mapping[str, float], *, grows: bool = False) -> int:
    """Actors that were asked for, or that fit into the resources `has`; more than fit are refused unless the cluster grows.

    An actor that fits nowhere would be waited for without end.
    """
    fit = has.get("CPU", 0) / encoding.cpus_per_encoder
    if encoding.gpus_per_encoder:
        fit = min(fit, has.get("GPU", 0) / encoding.gpus_per_encoder)
    if not grows and fit < max(1, encoding.encoders):
        asked = f"{encoding.cpus_per_encoder:g} CPUs and {encoding.gpus_per_encoder:g} GPUs each"
        room = f"{has.get('CPU', 0):g} CPUs and {has.get('GPU', 0):g} GPUs"
        raise refuse("encoders", f"{max(1, encoding.encoders)} of {asked}", f"what fits into {room}")
    return encoding.encoders or max(1, int(fit))


def _unpacked(row: Job) -> tuple[str, int, np.ndarray]:
    return row["kind"], int(row["start"]), np.frombuffer(row["embedded"], np.float32).reshape(-1, int(row["width"]))
