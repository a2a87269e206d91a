"""Audio on its way into training: from encoded files in the first epoch, from kept features in the later ones.

    uv run --group bench python benchmarks/bench_input.py                  # one process each, CPU time
    uv run --group bench python benchmarks/bench_input.py --processes 2    # ours on Ray, the loader's workers: wall time
    uv run --group bench python benchmarks/bench_input.py --memory         # peak memory of 1 x and 50 x the limit

Everyone reads the same FLAC clips of ten seconds from the form that it keeps them in, decodes with soundfile, and yields shuffled
batches of the same log-mel frames. The limit is a plain loop of soundfile and torch over files in their order.
Ours ends its first epoch with the features on disk; the others compute them again in each epoch, or, in the second table, read
float16 features that were written beforehand. Goals: the first epoch at least 0.85 of the limit and faster than every peer,
later ones at least 10 x the first, memory that does not grow with the set.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import soundfile
import torch
from side_by_side import compared, cpu_milliseconds, made_sounds
from torch import Tensor
from transformers.audio_utils import mel_filter_bank

from ray_atr.data.feature_cache import ensure_features
from ray_atr.data.features import open_features
from ray_atr.data.schema import Clip
from ray_atr.data.shards import write_clips
from ray_atr.data.stream import stream, training_plan
from ray_atr.models.audio import SmallCnn

SECONDS, BATCH = 10.0, 32
FRONT_END = SmallCnn().front_end
SHARD_CLIPS = 128
LIMIT_MB, TIMES = 64, 50


def clips(number: int, sounds: list[bytes]) -> Iterator[Clip]:
    """The clips of a set, one after the other; they repeat the sounds."""
    for index in range(number):
        yield Clip(
            clip_id=f"{index:06d}",
            audio=sounds[index % len(sounds)],
            sample_rate=FRONT_END.sample_rate,
            seconds=SECONDS,
            captions={"eng": [f"caption {index}"]},
            split="train",
            source="made",
        )


class LogMel:
    """Log-mel frames [T, F] of a clip's bytes, with soundfile, torch's spectrogram and transformers' filters."""

    def __init__(self) -> None:
        filters = mel_filter_bank(
            num_frequency_bins=FRONT_END.window_size // 2 + 1,
            num_mel_filters=FRONT_END.num_mels,
            min_frequency=FRONT_END.low_hz,
            max_frequency=FRONT_END.high_hz,
            sampling_rate=FRONT_END.sample_rate,
        )
        self.filters = torch.from_numpy(filters).float().T
        self.window = torch.hann_window(FRONT_END.window_size)

    def __call__(self, audio: bytes) -> Tensor:
        samples, _ = soundfile.read(io.BytesIO(audio), dtype="float32")
        spectrum = torch.stft(
            torch.from_numpy(samples),
            FRONT_END.window_size,
            FRONT_END.hop_size,
            window=self.window,
            pad_mode="reflect",
            return_complex=True,
        )
        power = (self.filters @ spectrum.abs().square()).clamp(min=FRONT_END.floor)
        return ((10 * torch.log10(power) - FRONT_END.mean) / FRONT_END.std).T


class Peers:
    """The same clips and features in the form that each peer reads: files, tar files, a Parquet file, an array on disk."""

    def __init__(self, folder: Path, number: int, sounds: list[bytes], features: np.ndarray) -> None:
        self.number, self.shape = number, features.shape[1:]
        self.files = [folder / f"{index:06d}.flac" for index in range(number)]
        for index, file in enumerate(self.files):
            file.write_bytes(sounds[index % len(sounds)])
        self.array = folder / "features.npy"
        np.save(self.array, features)
        self.tars = {
            "flac": list(_write_tars(folder, "flac", (file.read_bytes() for file in self.files))),
            "f16": list(_write_tars(folder, "f16", (row.tobytes() for row in features))),
        }
        self.parquet = {
            "flac": _write_parquet(folder / "audio.parquet", [file.read_bytes() for file in self.files]),
            "f16": _write_parquet(folder / "features.parquet", [row.tobytes() for row in features]),
        }

    def plain_loop(self) -> Iterator[Tensor]:
        """The limit: nothing but decoding and transforming, in the files' order."""
        log_mel = LogMel()
        for start in range(0, self.number - BATCH + 1, BATCH):
            yield torch.stack([log_mel(file.read_bytes()) for file in self.files[start : start + BATCH]])

    def plain_array(self) -> Iterator[Tensor]:
        """The limit of features: rows of a mapped array, in a random order."""
        features = np.load(self.array, mmap_mode="r")
        order = np.random.default_rng(0).permutation(self.number)
        for start in range(0, self.number - BATCH + 1, BATCH):
            yield torch.from_numpy(features[order[start : start + BATCH]].astype(np.float32))

    def data_loader(self, kind: str, workers: int = 0) -> Iterable[Tensor]:
        """torch's DataLoader over the files, or over rows of the array."""
        items: torch.utils.data.Dataset[Tensor] = _Files(self.files) if kind == "flac" else _Rows(self.array)
        return torch.utils.data.DataLoader(items, BATCH, shuffle=True, drop_last=True, num_workers=workers)

    def webdataset(self, kind: str) -> Iterable[Tensor]:
        """webdataset: shards in a random order, clips shuffled in a buffer of 1,000."""
        import webdataset

        read = LogMel() if kind == "flac" else self._frames
        samples = webdataset.WebDataset(self.tars[kind], shardshuffle=100, seed=0)
        return samples.shuffle(1000).map(lambda sample: read(sample[kind])).batched(BATCH, torch.stack, partial=False)

    def hugging_face(self, kind: str) -> Iterator[Tensor]:
        """datasets: a memory-mapped table, shuffled by an index over all of it."""
        import datasets

        read = LogMel() if kind == "flac" else self._frames
        folder = str(self.array.parent / "hugging_face")
        table = datasets.Dataset.from_parquet(str(self.parquet[kind]), cache_dir=folder).shuffle(seed=0)
        for rows in table.iter(BATCH, drop_last_batch=True):
            yield torch.stack([read(data) for data in rows["data"]])

    def _frames(self, data: bytes) -> Tensor:
        return torch.from_numpy(np.frombuffer(data, np.float16).astype(np.float32).reshape(self.shape))


class _Files(torch.utils.data.Dataset[Tensor]):
    def __init__(self, files: list[Path]) -> None:
        self.files, self.log_mel = files, LogMel()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        return self.log_mel(self.files[index].read_bytes())


class _Rows(torch.utils.data.Dataset[Tensor]):
    def __init__(self, array: Path) -> None:
        self.features = np.load(array, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(self.features[index].astype(np.float32))


def _write_tars(folder: Path, suffix: str, contents: Iterable[bytes]) -> Iterator[str]:
    content = list(contents)
    for start in range(0, len(content), SHARD_CLIPS):
        name = folder / f"{suffix}-{start:06d}.tar"
        with tarfile.open(name, "w") as tar:
            for index, data in enumerate(content[start : start + SHARD_CLIPS], start):
                entry = tarfile.TarInfo(f"{index:06d}.{suffix}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        yield str(name)


def _write_parquet(file: Path, contents: list[bytes]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"data": pa.array(contents, pa.large_binary())}), file, compression="none")
    return file


class Ours:
    """A data set and its kept features; `first` makes them again and trains on them, `later` reads them."""

    def __init__(self, folder: Path, number: int, sounds: list[bytes], *, use_ray: bool = False) -> None:
        self.folder, self.use_ray, self.made = folder, use_ray, 0
        write_clips(folder / "data", clips(number, sounds), name="made", licence="none")

    def features(self) -> Path:
        """A folder of features of its own for each call."""
        self.made += 1
        root = self.folder / f"features-{self.made}"
        return ensure_features(self.folder / "data", FRONT_END, root, use_ray=self.use_ray)

    def first(self) -> Iterator[Tensor]:
        """The first epoch: features are computed, kept and read."""
        yield from self.epoch(self.features(), 0)

    def epoch(self, features: Path, epoch: int) -> Iterator[Tensor]:
        """An epoch over features that are there."""
        opened = open_features(features, "train")
        plan = training_plan(opened.clip_ids, seed=0, epoch=epoch, batch_size=BATCH)
        assert is_shuffled(np.concatenate(plan.rows)), "an epoch in the files' order"
        for batch in stream(opened, [plan], use_ray=self.use_ray):
            yield batch.features


def is_shuffled(rows: np.ndarray) -> bool:
    """Whether rows come in an order over the whole set: each once, neighbours as far apart as in a random order."""
    apart = float(np.abs(np.diff(rows)).mean())
    return len(set(rows.tolist())) == len(rows) and 0.6 < apart / (len(rows) / 3) < 1.6


def drain(batches: Callable[[], Iterable[Tensor]]) -> Callable[[], None]:
    """Reads all batches, each element once, as a training step would."""

    def run() -> None:
        for batch in batches():
            batch.sum()

    return run


def compare(number: int, rounds: int) -> None:
    """Both tables, one process, CPU time of it with all its threads."""
    torch.set_num_threads(1)
    sounds = made_sounds(20, SECONDS, FRONT_END.sample_rate, "FLAC")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        ours = Ours(folder / "ours", number, sounds)
        kept = ours.features()
        features, _ = open_features(kept, "train").features(np.arange(number))
        (folder / "peers").mkdir()
        peers = Peers(folder / "peers", number, sounds, features)
        error = (LogMel()(sounds[0]).numpy() - features[0].astype(np.float32)).astype(np.float64)
        assert np.abs(error).max() < 0.01, f"the peers' features differ by {np.abs(error).max():.3g}"
        encoded: dict[str, Callable[[], Iterable[Tensor]]] = {
            "ours": ours.first,
            "plain loop": peers.plain_loop,
            "torch DataLoader": lambda: peers.data_loader("flac"),
            "webdataset": lambda: peers.webdataset("flac"),
            "datasets": lambda: peers.hugging_face("flac"),
        }
        cached: dict[str, Callable[[], Iterable[Tensor]]] = {
            "ours": lambda: ours.epoch(kept, 1),
            "plain array": peers.plain_array,
            "torch DataLoader": lambda: peers.data_loader("f16"),
            "webdataset": lambda: peers.webdataset("f16"),
            "datasets": lambda: peers.hugging_face("f16"),
        }
        clips_read = number // BATCH * BATCH
        first = table("encoded clips", encoded, clips_read, rounds)
        later = table("kept features", cached, clips_read, rounds)
    compared("first epoch", first["ours"], first["plain loop"], "soundfile and torch loop", at_most=1 / 0.85)
    for name in ("torch DataLoader", "webdataset", "datasets"):
        compared("first epoch", first["ours"], first[name], name, at_most=1.0)
        compared("later epoch", later["ours"], later[name], name, at_most=1.0)
    compared("later epoch", later["ours"], later["plain array"], "rows of a mapped array")
    compared("later epoch", later["ours"], first["ours"], "our first epoch", at_most=0.1)


def table(
    title: str, contenders: dict[str, Callable[[], Iterable[Tensor]]], number: int, rounds: int
) -> dict[str, float]:
    """CPU milliseconds of an epoch by contender, printed as clips per CPU second."""
    times = cpu_milliseconds({name: drain(batches) for name, batches in contenders.items()}, rounds, is_cold=True)
    print(f"{title}, {number} clips of {SECONDS:g} s, batches of {BATCH}")
    for name, milliseconds in times.items():
        rate = 1e3 * number / milliseconds
        print(f"  {name:18}{rate:10,.0f} clips per CPU second {milliseconds / times['ours']:8.2f} x ours", flush=True)
    return times


def with_processes(number: int, processes: int, rounds: int) -> None:
    """The first epoch in wall time: ours through Ray Data, the peers' loop and loader with as many processes."""
    from multiprocessing import Pool

    from ray_atr.common.runtime import start_ray

    sounds = made_sounds(20, SECONDS, FRONT_END.sample_rate, "FLAC")
    start_ray(num_cpus=processes)
    took: dict[str, list[float]] = {"ours": [], "plain loop": [], "torch DataLoader": []}
    with tempfile.TemporaryDirectory() as temporary, Pool(processes, _one_thread) as pool:
        folder = Path(temporary)
        ours = Ours(folder / "ours", number, sounds, use_ray=True)
        (folder / "peers").mkdir()
        peers = Peers(folder / "peers", number, sounds, np.zeros((1, 1, 1), np.float16))
        runs = {
            "ours": drain(ours.first),
            "plain loop": lambda: pool.map(_log_mel_of, peers.files, chunksize=BATCH),
            "torch DataLoader": drain(lambda: peers.data_loader("flac", processes)),
        }
        for turn in range(rounds + 1):
            for name, run in runs.items():
                began = time.perf_counter()
                run()
                took[name] += [time.perf_counter() - began] if turn else []
    seconds = {name: statistics.median(times) for name, times in took.items()}
    for name, value in seconds.items():
        print(f"  {name:18}{number / value:10,.0f} clips/s on {processes} processes", flush=True)
    compared(
        f"first epoch, {processes} processes", seconds["ours"], seconds["plain loop"], "plain loop in a pool", unit="s"
    )
    compared(
        f"first epoch, {processes} processes",
        seconds["ours"],
        seconds["torch DataLoader"],
        "torch DataLoader",
        unit="s",
    )


def _one_thread() -> None:
    torch.set_num_threads(1)


def _log_mel_of(file: Path) -> int:
    """The number of frames of a file, after its log-mel frames have been computed (and dropped)."""
    return len(LogMel()(file.read_bytes()))


def memory() -> None:
    """Private memory, beyond its start, of a process that makes and reads the features of 1 x and of 50 x the limit."""
    sounds = made_sounds(4, SECONDS, FRONT_END.sample_rate, "FLAC")
    at_limit = LIMIT_MB * 2**20 // len(sounds[0])
    peaks: dict[int, float] = {}
    for times in (1, TIMES):
        with tempfile.TemporaryDirectory() as temporary:
            write_clips(f"{temporary}/data", clips(times * at_limit, sounds), name="made", licence="none")
            command = [sys.executable, __file__, "--epoch-of", temporary]
            peaks[times] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        print(
            f"{times:>3} x {LIMIT_MB} MB of audio, {times * at_limit:,} clips: peak {peaks[times]:,.0f} MB", flush=True
        )
    growth = peaks[TIMES] - peaks[1]
    compared(f"growth of memory, set of {TIMES} x {LIMIT_MB} MB", growth, LIMIT_MB, "the limit", unit="MB", at_most=0.5)


def peak_of_an_epoch(folder: Path) -> float:
    """Private memory (anonymous pages) beyond that before it, in MB, of making features and reading an epoch."""
    torch.set_num_threads(1)
    status, done, seen = Path(f"/proc/{os.getpid()}/status"), threading.Event(), []

    def private() -> float:
        line = next(line for line in status.read_text().splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) / 2**10

    def watch() -> None:
        while not done.wait(0.005):
            seen.append(private())

    before = private()
    watcher = threading.Thread(target=watch)
    watcher.start()
    features = open_features(ensure_features(folder / "data", FRONT_END, folder, use_ray=False), "train")
    plan = training_plan(features.clip_ids, seed=0, epoch=0, batch_size=BATCH)
    for batch in stream(features, [plan], use_ray=False):
        batch.features.sum()
    done.set()
    watcher.join()
    return max(seen) - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=0)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--epoch-of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.epoch_of:
        print(peak_of_an_epoch(options.epoch_of))
    elif options.memory:
        memory()
    elif options.processes:
        with_processes(options.clips, options.processes, options.rounds)
    else:
        compare(options.clips, options.rounds)


if __name__ == "__main__":
    main()
