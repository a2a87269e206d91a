"""Where an archive is encoded: in this process, or by several through Ray Data, with the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ray_atr.common.jobs import Resources, run_jobs
from ray_atr.common.runtime import is_inside_a_cluster, start_ray
from ray_atr.deploy.index.archive import Archive, ArchivedSound, open_archive
from ray_atr.deploy.index.windows import EncodedSound, encode_sounds
from ray_atr.deploy.index_encoding import IndexEncoding
from ray_atr.models.retriever import Retriever

SOUNDS_IN_A_JOB = 32


def uses_ray(encoding: IndexEncoding) -> bool:
    """Whether several processes encode: on a cluster, or where this machine has several GPUs, unless that was chosen."""
    if encoding.ray == "auto":
        return is_inside_a_cluster() or torch.cuda.device_count() > 1
    return encoding.ray == "always"


@dataclass(frozen=True)
class SoundSource:
    """What the processes read, by name: every node must reach both places."""

    checkpoint: str
    archive: str
    batch_size: int


class SoundEncoder:
    """A retriever and an archive that are open; encodes one job of sounds after the other."""

    def __init__(self, source: SoundSource) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.retriever = Retriever.from_pretrained(source.checkpoint).to(device)
        self.archive, self.batch_size = open_archive(source.archive), source.batch_size

    def __call__(self, sounds: Sequence[ArchivedSound]) -> list[EncodedSound]:
        found = encode_sounds(self.retriever, sounds, self.archive.read, batch_size=self.batch_size, threads=1)
        return [one.without_data() for one in found]


def encode_archive(
    retriever: Retriever, archive: Archive, sounds: Iterable[ArchivedSound], checkpoint: str, encoding: IndexEncoding
) -> Iterator[EncodedSound]:
    """The sounds with their windows, in the order in which they are done; those that cannot be read come with the reason."""
    if not uses_ray(encoding):
        here = encode_sounds(retriever, sounds, archive.read, batch_size=encoding.batch_size)
        yield from (one.without_data() for one in here)
        return
    start_ray()
    import ray

    waiting = [sound.without_data() for sound in sounds]
    jobs = [waiting[start : start + SOUNDS_IN_A_JOB] for start in range(0, len(waiting), SOUNDS_IN_A_JOB)]
    gpus = 1.0 if ray.cluster_resources().get("GPU", 0) else 0.0
    each = Resources(gpus=gpus, processes=encoding.encoders, threads=1, setting="--encoders")
    source = SoundSource(checkpoint, archive.place, encoding.batch_size)
    for _, found in run_jobs(jobs, partial(SoundEncoder, source), ray=each):
        yield from found
