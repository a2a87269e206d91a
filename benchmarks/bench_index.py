"""The index at size: build, open, recall against exact search, time of a query; many queries together against a loop.

    uv run python benchmarks/bench_index.py                        # 1,000,000 x 256 in lists, 100,000 x 512 exact
    uv run python benchmarks/bench_index.py --rows 200000 --width 128
    uv run python benchmarks/bench_index.py --clips 1000           # built from audio beside the encoder alone; an update of 1%

Vectors are drawn around 20,000 centres, unit norm; queries are drawn the same way. One JSON line a measurement, with the
machine's load when it began.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import torch
from side_by_side import compared, cpu_milliseconds, cpu_seconds, made_sounds

from ray_atr.deploy.index.build import build_index, update_index
from ray_atr.deploy.index.layout import FILE_SCHEMA, ROWS, STRUCTURE, WINDOW_SCHEMA, check_files, write_state
from ray_atr.deploy.index.opened import Index
from ray_atr.deploy.index.structure import nearest_rows
from ray_atr.models.retriever import build_retriever
from ray_atr.models.text import train_tokenizer
from ray_atr.objectives.pairs.learned import LearnedSettings
from ray_atr.training.recipes import RECIPES

CENTRES, SPREAD, QUERIES, TOP = 20_000, 0.6, 200, 10


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rows", type=int)
    options.add_argument("--width", type=int, default=256)
    options.add_argument("--clips", type=int, help="of 10 s, indexed from audio; no vectors are drawn")
    chosen = options.parse_args()
    if chosen.clips:
        from_audio(chosen.clips)
        return
    for rows, width in [(chosen.rows, chosen.width)] if chosen.rows else [(100_000, 512), (1_000_000, 256)]:
        measure(rows, width)


def tell(what: str, **facts: Any) -> None:
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in facts.items()}
    print(json.dumps({"what": what, **rounded, "load": round(os.getloadavg()[0], 1)}), flush=True)


def drawn(count: int, centres: np.ndarray, random: np.random.Generator) -> np.ndarray:
    width = centres.shape[1]
    rows = np.empty((count, width), np.float16)
    for start in range(0, count, 50_000):
        part = centres[random.integers(0, len(centres), min(50_000, count - start))]
        part = part + SPREAD / np.sqrt(width) * random.standard_normal(part.shape, np.float32)
        rows[start : start + len(part)] = part / np.linalg.norm(part, axis=1, keepdims=True)
    return rows


def measure(count: int, width: int) -> None:
    random = np.random.default_rng(0)
    centres = random.standard_normal((CENTRES, width), np.float32)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    rows, queries = drawn(count, centres, random), drawn(QUERIES, centres, random).astype(np.float32)
    numbers = np.arange(count)
    files = pa.table(
        [
            [f"{number}.wav" for number in numbers], *([np.ones(count, np.int64)] * 2), *([[""] * count] * 3),
            pa.nulls(count, FILE_SCHEMA.field("captions").type), numbers, np.ones(count, np.int64),
        ],
        schema=FILE_SCHEMA,
    )  # fmt: skip
    windows = pa.table([numbers, np.zeros(count), np.ones(count)], schema=WINDOW_SCHEMA)
    with tempfile.TemporaryDirectory(prefix="bench-index-") as scratch:
        began, began_cpu = time.perf_counter(), time.process_time()
        manifest = write_state(
            Path(scratch), files, windows, rows, model="m", checkpoint="c", archive="a", distance="cosine"
        )
        taken_seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
        tell("build", rows=count, width=width, seconds=taken_seconds, cpu_seconds=cpu_seconds)
        before = resident()
        opening, opening_cpu = [], []
        for _ in range(5):
            began, began_cpu = time.perf_counter(), time.process_time()
            index = Index(Path(scratch), manifest)
            opening.append(time.perf_counter() - began)
            opening_cpu.append(time.process_time() - began_cpu)
        on_disk = sum(
            (Path(scratch) / "1" / name).stat().st_size for name in manifest.digests if name in (STRUCTURE, ROWS)
        )
        tell(
            "open",
            median=float(np.median(opening)),
            cpu=float(np.median(opening_cpu)),
            megabytes_searched=on_disk / 1e6,
        )
        check_files(Path(scratch), manifest, list(manifest.digests))
        taken, taken_cpu, found = [], [], []
        for query in queries:
            began, began_cpu = time.perf_counter(), time.process_time()
            _, positions = nearest_rows(index._structure, index.rows, query[None], TOP, "cosine")
            taken.append(time.perf_counter() - began)
            taken_cpu.append(time.process_time() - began_cpu)
            found.append(positions[0])
        best = exact(rows, queries)
        recall = np.mean([len(set(one) & set(other)) / TOP for one, other in zip(found, best, strict=True)])
        milliseconds = np.array(taken[10:]) * 1000
        size, goal = f"{count:,} x {width}", 20.0 if count > 200_000 else 30.0
        compared(f"query of {size}, p95", float(np.percentile(milliseconds, 95)), goal, "the goal", at_most=1.0)
        compared(f"recall@10 of {size}", 1 - float(recall), 0.01, "the share that may be missed", unit="", at_most=1.0)
        tell(
            "query",
            recall_at_10=float(recall),
            median_ms=float(np.median(milliseconds)),
            p95_ms=float(np.percentile(milliseconds, 95)),
            cpu_ms=1000 * float(np.median(taken_cpu)),
            megabytes_grown=(resident() - before) / 1e6,
        )
        if not manifest.is_exact:
            return
        # In turn, so that what else runs disturbs both alike.
        ways = {
            "loop": lambda: [index.nearest(one[None], TOP) for one in queries[:64]],
            "together": lambda: index.nearest(queries[:64], TOP),
        }
        milliseconds_of = cpu_milliseconds(ways)
        compared(
            f"64 queries together of {size}",
            milliseconds_of["together"],
            milliseconds_of["loop"],
            "64 single ones, CPU time",
            at_most=1 / 8,
        )
        tell("64 together", times_a_loop=milliseconds_of["loop"] / milliseconds_of["together"], **milliseconds_of)


def from_audio(clips: int) -> None:
    """A build beside `Retriever.encode_windows` of each file, and an update of 1% new files beside the build; CPU time."""
    model = RECIPES["from_scratch"]().model
    tokenizer = train_tokenizer(["a dog barks", "rain falls"], 300)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="bench-index-") as scratch:
        place = Path(scratch)
        retriever = build_retriever(model, tokenizer=tokenizer, learned=LearnedSettings(), seed=0)
        retriever.save_pretrained(place / "model")
        (place / "audio").mkdir()
        new = max(1, clips // 100)
        sounds = made_sounds(clips + new, 10.0, 32_000, "FLAC")
        for number, sound in enumerate(sounds[:clips]):
            (place / "audio" / f"{number}.flac").write_bytes(sound)
        retriever.eval()
        files = sorted((place / "audio").iterdir())
        # What the encoder needs is imported before; the build is the first of this process, and imports the rest.
        retriever.encode_windows(files[0])
        alone = cpu_seconds(lambda: [retriever.encode_windows(file) for file in files])
        index = str(place / "index")
        began = time.perf_counter()
        built = cpu_seconds(lambda: build_index(str(place / "model"), str(place / "audio"), index))
        wall = time.perf_counter() - began
        for number, sound in enumerate(sounds[clips:]):
            (place / "audio" / f"new {number}.flac").write_bytes(sound)
        updated = cpu_seconds(lambda: update_index(index))
        compared(f"{clips:,} clips indexed, CPU", built, alone, "the encoder alone", unit="s", at_most=1 / 0.9)
        compared("an update of 1% new files, CPU", updated, built, "the build", unit="s", at_most=0.03)
        tell("from audio", clips=clips, alone=alone, built=built, built_wall=wall, updated=updated)


def exact(rows: np.ndarray, queries: np.ndarray) -> np.ndarray:
    best, where = np.full((len(queries), 0), 0, np.float32), np.zeros((len(queries), 0), np.int64)
    for start in range(0, len(rows), 50_000):
        scores = queries @ rows[start : start + 50_000].astype(np.float32).T
        top = np.argpartition(-scores, TOP, axis=1)[:, :TOP]
        best = np.concatenate([best, np.take_along_axis(scores, top, 1)], axis=1)
        where = np.concatenate([where, top + start], axis=1)
    return np.take_along_axis(where, np.argsort(-best, axis=1)[:, :TOP], 1)


def resident() -> int:
    """Bytes of this process that are in memory, mapped files included."""
    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    main()
