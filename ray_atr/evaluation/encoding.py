"""A split's clips and captions to embeddings: Ray Data actors, each with a copy of the retriever, or this process.

A job is one shard of clips or some hundred captions. An actor holds one batch of features at a time and returns embeddings.
Features are read from a run's cache if there is one, else computed from the audio and rounded in the same way.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ray_atr.common.caches import cache_folder
from ray_atr.common.jobs import Resources, run_jobs
from ray_atr.common.progress import CountProgress, silent
from ray_atr.common.runtime import home
from ray_atr.common.storage import Location
from ray_atr.data.audio import FrontEnd, clip_windows
from ray_atr.data.caption_vectors import check_kind
from ray_atr.data.decoding import IMPORTED
from ray_atr.data.feature_cache import find_features
from ray_atr.data.features import open_features
from ray_atr.data.padding import padded
from ray_atr.data.shards import Manifest, read_manifest, read_shard
from ray_atr.data.vector_clip import Buffer
from ray_atr.evaluation.options import Encoding
from ray_atr.models.late_interaction import late_interaction
from ray_atr.models.retriever import Retriever
from ray_atr.models.weights import reads_vectors
from ray_atr.training.encoding.encode import ClipBatch, as_clip_batch, clip_batches, embed_batches, rows_in_parts
from ray_atr.training.encoding.texts import TextBatcher, distinct

TEXTS_IN_A_JOB = 512
TEXTS_TOGETHER = 64
"""Texts whose tokens are padded and compared together."""


Job = int | Sequence[tuple[str, str]]
"""The clips of a shard, by its number; or some sentences (language, text)."""


@dataclass(frozen=True)
class EncodingSource:
    """The inputs of an encoder, as paths, so that it can be sent to any worker."""

    retriever: str
    data: str
    split: str
    features: str
    """Root of the feature caches."""
    batch_size: int
    device: str = "cpu"
    threads: int = 0
    """torch's threads; 0: their number is not changed."""

    @classmethod
    def from_retriever(cls, retriever: Location, manifest: Manifest, split: str, encoding: Encoding) -> EncodingSource:
        """The inputs of the encoders of an evaluation or an audit, and their device. ValueError for a data set of vectors with a
        retriever of audio, and the other way round.
        """
        check_kind(manifest.folder, "checkpoint", str(retriever), reads_vectors=reads_vectors(retriever))
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
    source: EncodingSource,
    sentences: Sequence[tuple[str, str]],
    encoding: Encoding,
    progress: CountProgress = silent,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Unit-norm embeddings of the split's clips [N, D] and of each (language, text) [M, D]; `progress(done, total)`."""
    once, row_of = distinct(sentences)
    shards = read_manifest(source.data).shards_of(source.split)
    starts = np.cumsum([0, *(shard.num_rows for shard in shards)]).tolist()
    in_parts = range(0, len(once), TEXTS_IN_A_JOB)
    # Kind and first row in the result of each job.
    starts_of_parts = [*(("clips", start) for start in starts[:-1]), *(("texts", start) for start in in_parts)]
    jobs: list[Job] = [*range(len(shards)), *(once[start : start + TEXTS_IN_A_JOB] for start in in_parts)]
    sizes = {"clips": starts[-1], "texts": len(once)}
    embedded: dict[str, NDArray[np.float32]] = {}
    done, total = 0, sum(sizes.values())
    actors = Resources(
        encoding.cpus_per_encoder, encoding.gpus_per_encoder, encoding.encoders, source.threads, setting="encoders"
    )
    for number, rows in run_jobs(jobs, partial(Encoder, source), ray=None if encoding.ray == "never" else actors):
        kind, start = starts_of_parts[number]
        if kind not in embedded:
            embedded[kind] = np.full((sizes[kind], rows.shape[1]), np.nan, np.float32)
        embedded[kind][start : start + len(rows)] = rows
        done += len(rows)
        progress(done, total)
    assert done == total, "a job is missing"
    return embedded["clips"], embedded["texts"][row_of]


@torch.no_grad()
def token_similarities(
    source: EncodingSource, sentences: Sequence[tuple[str, str]], progress: CountProgress = silent
) -> NDArray[np.float32]:
    """Similarities [M, N] of each (language, text) with the split's clips by late interaction, computed in this process.

    The tokens of all texts are in memory, those of clips a batch at a time.
    """
    encoder = Encoder(source)
    retriever, texts = encoder.retriever, TextBatcher(encoder.retriever)
    once, row_of = distinct(sentences)
    parts = [once[start : start + TEXTS_TOGETHER] for start in range(0, len(once), TEXTS_TOGETHER)]
    rows: list[torch.Tensor] = []
    done, total = 0, int(encoder.starts[-1])
    with retriever.evaluating():
        tokens = [texts.embed_tokens([(text, language) for language, text in part]) for part in parts]
        for shard in range(len(encoder.shards)):
            for batch in encoder.batches(shard):
                clips = retriever.audio_tokens(batch.features.to(source.device), batch.frames.to(source.device))
                compared = [late_interaction(clips.tokens, clips.token_mask, t.tokens, t.token_mask) for t in tokens]
                rows.append(torch.cat(compared, dim=1).cpu())
                done += len(rows[-1])
                progress(done, total)
    return np.ascontiguousarray(torch.cat(rows).T.numpy()[row_of])


class Encoder:
    """A retriever, with a split's log-mel features for its front end; computes one job after the other."""

    def __init__(self, source: EncodingSource) -> None:
        self.retriever = Retriever.from_pretrained(source.retriever).to(source.device)
        self.manifest = read_manifest(source.data)
        self.shards = self.manifest.shards_of(source.split)
        self.starts = np.cumsum([0, *(shard.num_rows for shard in self.shards)])
        self.front_end = self.retriever.audio_tower.front_end
        self.all_windows = self.retriever.settings.pools_windows
        self.batch_size = source.batch_size
        cache = find_features(self.manifest, self.front_end, Path(source.features), in_windows=self.all_windows)
        self.cached = None if cache is None else open_features(cache, source.split)

    def __call__(self, job: Job) -> NDArray[np.float32]:
        """The job's embeddings [n, D]."""
        if isinstance(job, int):
            return embed_batches(self.retriever, self.batches(job)).cpu().numpy()
        languages, texts = zip(*job, strict=True)
        return self.retriever.embed_sentences(list(texts), languages, batch_size=self.batch_size).numpy()

    def batches(self, shard: int) -> Iterator[ClipBatch]:
        """The batches of one shard: features `[b, T, F]` float32, their frames `[b]`."""
        if self.cached is not None:
            first, end = int(self.starts[shard]), int(self.starts[shard + 1])
            yield from clip_batches(self.cached, rows_in_parts(first, end, self.batch_size))
            return
        rows = read_shard(self.manifest, self.shards[shard], ["clip_id", "audio"], self.batch_size)
        audio = ((i, a) for batch in rows for i, a in zip(batch["clip_id"].to_pylist(), batch["audio"], strict=True))
        sounds = ((clip_id, encoded.as_buffer()) for clip_id, encoded in audio)
        yield from window_batches(sounds, self.front_end, all_windows=self.all_windows, batch_size=self.batch_size)


def window_batches(
    sounds: Iterable[tuple[str, Buffer]], front_end: FrontEnd, *, all_windows: bool, batch_size: int
) -> Iterator[ClipBatch]:
    """Batches of the windows of (id, encoded clip), rounded as in a feature cache."""
    windows = (
        (clip, window)
        for clip, (clip_id, encoded) in enumerate(sounds)
        for window in clip_windows(encoded, front_end, clip_id, all_windows=all_windows, bounds=IMPORTED)
    )
    while batch := list(itertools.islice(windows, batch_size)):
        # Rounded as in a cache, so that results do not depend on whether there is one.
        features, frames = padded([window for _, window in batch], front_end.num_mels, front_end.dtype)
        yield as_clip_batch(features, frames, np.array([clip for clip, _ in batch]))
