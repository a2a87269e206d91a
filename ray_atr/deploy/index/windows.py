"""From sounds to the vectors of their windows: threads decode, one encoder takes full batches that span files, in this process
or in several through Ray Data, with the same vectors.

Shapes: W windows, T frames, F mel bands, r width of a vector.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ray_atr.common.digests import digest_of
from ray_atr.common.jobs import Resources, run_jobs
from ray_atr.common.runtime import is_inside_a_cluster, require_on_all_nodes, start_ray
from ray_atr.common.settings import refuse, shortened
from ray_atr.common.storage import is_local, locate
from ray_atr.data.audio import FrontEnd, fit, log_mel, windows
from ray_atr.data.decoding import Waveform, open_sound, resampled_blocks
from ray_atr.data.vector_clip import from_bytes
from ray_atr.deploy.index.archive import OTHER_AUDIO, Archive, ArchivedSound, open_archive
from ray_atr.deploy.index.options import IndexEncoding
from ray_atr.models.fingerprint import model_fingerprint
from ray_atr.models.retriever import Retriever

SOUNDS_IN_A_JOB = 32
BEYOND_16_BITS = "its vector is beyond what 16 bits hold"
LOWEST_NORM = 0.5  # unit vectors have norm 1; vectors that are zero or not finite fail this check


@dataclass(frozen=True)
class EncodedSound:
    """A sound, without its audio, and its windows: starts and ends (s) [W] and vectors [W, r]; or why it has none."""

    sound: ArchivedSound
    digest: str
    starts: tuple[float, ...] = ()
    ends: tuple[float, ...] = ()
    vectors: NDArray[np.float16] | None = None
    error: str = ""


class _Reading:
    """A sound that is being decoded, whose windows go to the encoder."""

    def __init__(self, sound: ArchivedSound) -> None:
        self.sound, self.digest, self.error = sound, "", ""
        self.seconds = 0.0
        self.vectors: list[torch.Tensor] = []


def encode_sounds(
    retriever: Retriever,
    sounds: Iterable[ArchivedSound],
    read: Callable[[ArchivedSound], bytes],
    *,
    batch_size: int = 16,
    threads: int | None = None,
) -> Iterator[EncodedSound]:
    """Each sound with its windows' vectors, as `Retriever.encode_windows` makes them, in the order of completion.

    A sound that cannot be read, or has no valid vector, has the reason instead. Memory holds a few batches of windows,
    however long a sound is.
    """
    front_end = retriever.audio_tower.front_end
    threads = threads or max(1, min(8, (os.cpu_count() or 1) - 1))
    waiting: queue.Queue[tuple[_Reading, NDArray[np.float32] | None] | BaseException | None]
    waiting = queue.Queue(4 * batch_size)
    source, lock, is_stopped = iter(sounds), threading.Lock(), threading.Event()

    def put(item: tuple[_Reading, NDArray[np.float32] | None] | BaseException | None) -> None:
        while not is_stopped.is_set():
            try:
                waiting.put(item, timeout=0.2)
            except queue.Full:
                continue
            return

    def decode_all() -> None:
        try:
            while not is_stopped.is_set():
                with lock:
                    sound = next(source, None)
                if sound is None:
                    break
                reading = _Reading(sound.without_data())
                try:
                    data = read(sound)
                    reading.digest = digest_of(data)
                    for window in _windows(data, front_end, reading):
                        put((reading, window))
                except (ValueError, OSError) as error:
                    reading.error = _reason(error, sound)
                put((reading, None))
            put(None)
        except BaseException as error:  # noqa: BLE001 - raised again where the encoder waits
            put(error)

    workers = [threading.Thread(target=decode_all, name="decoding", daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    alive, batch, ended = threads, list[tuple[_Reading, NDArray[np.float32]]](), list[_Reading]()
    try:
        while alive or batch or ended:
            item = waiting.get() if alive else None
            if isinstance(item, BaseException):
                raise item
            if item is None:
                alive -= 1 if alive else 0
            elif item[1] is None:
                ended.append(item[0])
            else:
                batch.append((item[0], item[1]))
            if len(batch) >= batch_size or (batch and not alive):
                _encode(retriever, batch)
                batch.clear()
            if not batch or len(ended) > batch_size:
                pending = {reading for reading, _ in batch}
                for reading in [one for one in ended if one not in pending]:
                    ended.remove(reading)
                    yield _finished(retriever, reading)
    finally:
        is_stopped.set()
        for worker in workers:
            worker.join()


def _windows(data: bytes, front_end: FrontEnd, reading: _Reading) -> Iterator[NDArray[np.float32]]:
    """Frames [T, F] of each window; counts the seconds that are decoded."""
    if front_end.kind == "vector":
        yield from_bytes(data, front_end.num_mels, "clip")[None]
        return
    sound = open_sound(data)

    def counted() -> Iterator[Waveform]:
        for block in sound.blocks():
            reading.seconds += len(block) / sound.sample_rate
            yield block

    for window in windows(resampled_blocks(counted(), sound.sample_rate, front_end.sample_rate), front_end):
        yield log_mel(fit(window, front_end), front_end)


def _encode(retriever: Retriever, batch: list[tuple[_Reading, NDArray[np.float32]]]) -> None:
    with retriever.evaluating():
        embedded = retriever.embed_windows([torch.from_numpy(window) for _, window in batch])
    for (reading, _), row in zip(batch, embedded, strict=True):
        reading.vectors.append(row)


def _finished(retriever: Retriever, reading: _Reading) -> EncodedSound:
    if reading.error:
        return EncodedSound(reading.sound, reading.digest, error=reading.error)
    embedded = torch.stack(reading.vectors)
    if not bool((embedded.norm(dim=-1) > LOWEST_NORM).all()):
        return EncodedSound(reading.sound, reading.digest, error="the model's embedding of it is zero or not finite")
    length = retriever.audio_tower.front_end.clip_seconds
    starts = [number * length for number in range(len(embedded))]
    if len(starts) > 1:
        # The last window ends with the sound and overlaps the one before.
        starts[-1] = min(starts[-1], reading.seconds - length)
    ends = [min(start + length, reading.seconds) for start in starts]
    vectors = retriever.vectors(embedded).numpy().astype(np.float16)
    if not np.isfinite(vectors).all():
        return EncodedSound(reading.sound, reading.digest, error=BEYOND_16_BITS)
    return EncodedSound(reading.sound, reading.digest, tuple(starts), tuple(ends), vectors)


def _reason(error: Exception, sound: ArchivedSound) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    suffix = sound.path.rpartition(".")[2].lower()
    text = str(error).removeprefix("clip: ")
    advice = f"; convert it: ffmpeg -i FILE.{suffix} FILE.flac"
    return shortened(text + (advice if f".{suffix}" in OTHER_AUDIO and "convert it" not in text else ""))


def uses_ray(encoding: IndexEncoding) -> bool:
    """Whether several processes encode: as set, or by `auto` on a cluster or with several GPUs."""
    if encoding.ray == "auto":
        return is_inside_a_cluster() or torch.cuda.device_count() > 1
    return encoding.ray == "always"


def sound_encoder(
    checkpoint: str, model: str, archive: str, batch_size: int
) -> Callable[[Sequence[ArchivedSound]], list[EncodedSound]]:
    """A function that encodes a job of sounds, by a retriever and an archive at locations that every node must reach. ValueError
    if the retriever there is not the one with the fingerprint `model`.
    """
    retriever = Retriever.from_pretrained(checkpoint).to("cuda" if torch.cuda.is_available() else "cpu")
    if model_fingerprint(retriever) != model:
        raise refuse("checkpoint", checkpoint, "the same model on every node")
    read = open_archive(archive).read
    return lambda sounds: list(encode_sounds(retriever, sounds, read, batch_size=batch_size, threads=1))


def encode_archive(
    retriever: Retriever, archive: Archive, sounds: Iterable[ArchivedSound], checkpoint: str, encoding: IndexEncoding
) -> Iterator[EncodedSound]:
    """The sounds with their windows, in the order of completion; those that cannot be read have the reason. ValueError if another
    node that encodes lacks the archive or the checkpoint.
    """
    if not uses_ray(encoding):
        yield from encode_sounds(retriever, sounds, archive.read, batch_size=encoding.batch_size)
        return
    start_ray()
    import ray

    waiting = [sound.without_data() for sound in sounds]
    # A node without the archive's disk would take every sound for a broken file.
    if (found := next((sound for sound in waiting if sound.modified_ns), None)) is not None:
        require_on_all_nodes("--audio", Path(archive.place), Path(archive.place, found.path))
    if is_local(place := locate(checkpoint)):
        require_on_all_nodes("--checkpoint", place, place)
    jobs = [waiting[start : start + SOUNDS_IN_A_JOB] for start in range(0, len(waiting), SOUNDS_IN_A_JOB)]
    gpus = 1.0 if ray.cluster_resources().get("GPU", 0) else 0.0
    each = Resources(gpus=gpus, processes=encoding.encoders, threads=1, setting="--encoders")
    encoder = partial(sound_encoder, checkpoint, model_fingerprint(retriever), archive.place, encoding.batch_size)
    for _, encoded in run_jobs(jobs, encoder, ray=each):
        yield from encoded
