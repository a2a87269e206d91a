"""A snapshot of 100,000 x 1024 x 2 reaches four workers of one node through the object store: memory that each adds.

    python benchmarks/bench_snapshot.py [--entries 100000 --width 1024 --workers 4]

Private memory (USS) is what a process would free by ending; shared memory counts once a node. Without sharing, every worker
would add the snapshot's size. Each worker searches first, so that every page has been read.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
import torch
from side_by_side import compared

from ray_atr.common.runtime import start_ray
from ray_atr.objectives.knowledge import Ask
from ray_atr.objectives.knowledge.knowledge import SnapshotSettings
from ray_atr.training.knowledge_base.actor import start_knowledge_base
from ray_atr.training.knowledge_base.parts import WHOLE, BasePart
from ray_atr.training.knowledge_base.refresher import SnapshotClient
from ray_atr.training.knowledge_base.snapshot import Entries, PartEntries

MIB = 2**20


class RandomSource:
    """Encodes a source of random clips: embeddings of the size that is asked for."""

    def __init__(self, entries: int, width: int) -> None:
        self.entries, self.width = entries, width

    def encode_part(self, weights: object, part: BasePart = WHOLE) -> PartEntries:
        random = np.random.default_rng(0)
        audio, text = (random.standard_normal((self.entries, self.width), dtype=np.float32) for _ in range(2))
        return PartEntries.from_entries(Entries(audio, text, np.arange(self.entries).astype(np.str_)), part)


@ray.remote(num_cpus=0.1)
class Worker:
    """A training worker, as far as the base is concerned."""

    def __init__(self, refresher: object, width: int) -> None:
        torch.set_num_threads(1)
        spec = Ask(coarse=False).search_spec
        self.client, self.width = SnapshotClient(refresher, spec, 0, is_publisher=False), width  # type: ignore[arg-type]
        audio = torch.randn(4, width)
        warm = torch.randn(100, width)
        (audio @ warm.T).topk(5)

    def private_bytes(self) -> int:
        return int(psutil.Process().memory_full_info().uss)

    def search(self) -> float:
        self.client.refresh(0, None)
        started = time.perf_counter()
        self.client.before_step(0)
        opened = time.perf_counter() - started
        audio = torch.nn.functional.normalize(torch.randn(32, self.width), dim=1)
        with self.client.searching() as searcher:
            searcher.look_up(searcher.search(audio, audio[:, None]))
        return opened


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()
    start_ray(num_cpus=2)
    source = RandomSource(options.entries, options.width)
    with tempfile.TemporaryDirectory() as folder:
        refresher = start_knowledge_base(
            "bench", source, SnapshotSettings(prototypes=0), Path(folder), clients=options.workers
        )
        refresher.publish(None, 1, 0)
        remote: Any = Worker
        workers = [remote.remote(refresher, options.width) for _ in range(options.workers)]
        before = ray.get([worker.private_bytes.remote() for worker in workers])
        while refresher.wait(1, 10.0).state != "ready":
            time.sleep(0.1)
        size = options.entries * options.width * 2 * 4
        shared = psutil.virtual_memory().shared
        refresher.get(1)
        used = psutil.virtual_memory().shared - shared
        opened = [ray.get(worker.search.remote()) for worker in workers]
        after = ray.get([worker.private_bytes.remote() for worker in workers])
        print(f"snapshot {size / MIB:,.0f} MiB; the node's shared memory grew by {used / MIB:,.0f} MiB")
        for number, (old, new, seconds) in enumerate(zip(before, after, opened, strict=True)):
            print(f"worker {number}: {(new - old) / MIB:8.1f} MiB private memory added, opened in {seconds:.2f} s")
        added = sum(after) - sum(before)
        compared(f"memory that {options.workers} workers add", added, size, "one snapshot", unit="bytes", at_most=0.1)
        print(f"{options.workers} workers add {added / MIB:,.1f} MiB = {added / size:.3f} snapshots")
        refresher.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
