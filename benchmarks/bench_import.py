"""Importing a data set against plain `soundfile` reading and pyarrow writing of the same files, in the same process.

    python benchmarks/bench_import.py                       # 400 clips of 10 s in WAV, FLAC and OGG, 7 rounds
    python benchmarks/bench_import.py --source ../ESC-50    # files that are there instead
    python benchmarks/bench_import.py --memory              # peak memory of an import of 1x and 10x the clips

The plain reader decodes every file and writes bytes, rate, duration and caption as Parquet, without checks, hashes,
normalised captions or a manifest. Both write the same number of clips to a file, and the clips are compared after each round.
"""

from __future__ import annotations

import argparse
import io
import shutil
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import soundfile
from side_by_side import compared, cpu_seconds, made_sounds, peak_resident_bytes

from ray_atr.data.shards import CLIPS_PER_SHARD, iterate_rows
from ray_atr.workshop.importing.plan import Import, import_data_set
from ray_atr.workshop.importing.sources.table import TableSource

FORMATS = {"wav": "WAV", "flac": "FLAC", "ogg": "OGG"}
SECONDS, SAMPLE_RATE = 10.0, 32_000


def make_clips(folder: Path, number: int, suffix: str, source: Path | None = None) -> TableSource:
    """A folder of clips, those of the source or made ones, and their table."""
    folder.mkdir(parents=True)
    found = sorted(source.rglob(f"*.{suffix}"))[:number] if source else []
    sounds = [file.read_bytes() for file in found] or made_sounds(20, SECONDS, SAMPLE_RATE, FORMATS[suffix])
    rows = ["path,caption"]
    for index in range(len(found) or number):
        name = f"{index:06d}.{suffix}"
        (folder / name).write_bytes(sounds[index % len(sounds)])
        rows.append(f"{name},caption number {index}")
    (folder / "captions.csv").write_text("\n".join(rows))
    return TableSource(source=str(folder))


def ours(folder: Path, out: Path) -> None:
    import_data_set(TableSource(source=str(folder)), out, options=Import(ray="never"))


def plain(folder: Path, out: Path) -> None:
    out.mkdir()
    names = sorted(path.name for path in folder.iterdir() if path.suffix != ".csv")
    for start in range(0, len(names), CLIPS_PER_SHARD):
        columns: dict[str, list[object]] = {"clip_id": [], "audio": [], "sample_rate": [], "seconds": [], "caption": []}
        for index, name in enumerate(names[start : start + CLIPS_PER_SHARD], start=start):
            audio = (folder / name).read_bytes()
            samples, sample_rate = soundfile.read(io.BytesIO(audio), dtype="float32")
            values = (name, audio, sample_rate, len(samples) / sample_rate, f"caption number {index}")
            for column, value in zip(columns, values, strict=True):
                columns[column].append(value)
        table = pa.table({**columns, "audio": pa.array(columns["audio"], pa.large_binary())})
        pq.write_table(table, out / f"{start:06d}.parquet", compression="none", use_dictionary=False)


def compare(number: int, rounds: int, source: Path | None, suffixes: list[str]) -> None:
    print(f"{'format':<8}{'clips':>8}{'plain s':>10}{'ours s':>10}{'ratio':>8}{'spread':>16}   (ratio: plain / ours)")
    for suffix in suffixes:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "in"
            make_clips(folder, number, suffix, source)
            times: dict[str, list[float]] = {"plain": [], "ours": []}
            for turn in range(rounds + 1):
                contenders = [("plain", plain), ("ours", ours)]
                for name, run in contenders if turn % 2 else reversed(contenders):
                    out = Path(temporary) / name
                    shutil.rmtree(out, ignore_errors=True)
                    # CPU time: the machine may be shared, and both read and write the same bytes.
                    seconds = cpu_seconds(partial(run, folder, out))
                    times[name] += [seconds] if turn else []  # the first round warms caches
                assert_same(Path(temporary))
            ratios = sorted(a / b for a, b in zip(times["plain"], times["ours"], strict=True))
            clips = len(list(folder.iterdir())) - 1
            compared(
                f"import of {clips} {suffix} clips",
                statistics.median(times["ours"]),
                statistics.median(times["plain"]),
                "soundfile and pyarrow",
                unit="s",
                at_most=1 / 0.8,
            )
            print(
                f"{suffix:<8}{clips:>8,}{statistics.median(times['plain']):>10.2f}{statistics.median(times['ours']):>10.2f}"
                f"{statistics.median(ratios):>8.2f}{f'{ratios[0]:.2f} to {ratios[-1]:.2f}':>16}",
                flush=True,
            )


def assert_same(folder: Path) -> None:
    from ray_atr.data.shards import read_manifest

    manifest = read_manifest(folder / "ours")
    expected = iter(pq.read_table(folder / "plain", columns=["audio", "seconds"]).to_pylist())
    for row in iterate_rows(manifest, "train", ["audio", "seconds"]):
        wanted = next(expected)
        assert row["audio"] == wanted["audio"]
        assert abs(row["seconds"] - wanted["seconds"]) < 1e-4
    assert next(expected, None) is None


def memory(number: int, suffix: str) -> None:
    """Peak resident memory of an import in a process of its own, beyond that of the same process importing 20 clips."""
    peaks = {}
    for clips in (20, number, 10 * number):
        with tempfile.TemporaryDirectory() as temporary:
            make_clips(Path(temporary) / "in", clips, suffix)
            command = [sys.executable, __file__, "--import-only", f"{temporary}/in", f"{temporary}/out"]
            peaks[clips] = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            size = sum(path.stat().st_size for path in (Path(temporary) / "in").iterdir())
        beyond = (peaks[clips] - peaks[20]) / 2**20
        print(
            f"{clips:>8,} clips, {size / 2**20:>9,.1f} MiB of {suffix}: peak {peaks[clips] / 2**20:,.0f} MiB,"
            f" {beyond:+,.0f} MiB against 20 clips",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=list(FORMATS))
    parser.add_argument("--source", type=Path, help="folder with files of these formats to use instead of made ones")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--import-only", nargs=2, metavar=("IN", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.import_only:
        ours(*map(Path, options.import_only))
        print(peak_resident_bytes())
    elif options.memory:
        memory(options.clips, options.formats[0])
    else:
        compare(options.clips, options.rounds, options.source, options.formats)


if __name__ == "__main__":
    main()
