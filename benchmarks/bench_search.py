"""Exact search of a knowledge base against torch's matmul + topk and a tuned FAISS flat index, and the approximate ones.

    python benchmarks/bench_search.py [--entries 50000 --width 1024 --rounds 9]

One process, the same unit-norm queries, rounds interleaved, medians in CPU milliseconds; ratio = ours / the faster peer.
"""

from __future__ import annotations

import argparse
from functools import partial

import faiss
import numpy as np
import torch
from side_by_side import compared, cpu_milliseconds

from ray_atr.objectives.knowledge import Ask
from ray_atr.objectives.knowledge.knowledge import SnapshotSettings
from ray_atr.training.knowledge_base.building import build
from ray_atr.training.knowledge_base.searcher import SearchableRows, Searcher
from ray_atr.training.knowledge_base.snapshot import Entries

NEIGHBOURS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    faiss.omp_set_num_threads(options.threads)
    random = np.random.default_rng(0)
    # Clusters, as trained embeddings have: 500 centres with noise of their own size.
    centres = random.normal(size=(500, options.width)).astype(np.float32)
    rows = centres[random.integers(0, 500, options.entries)]
    rows += random.normal(size=rows.shape).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    ids = [f"clip{i}" for i in range(options.entries)]
    snapshot = build(Entries(rows, rows, ids), SnapshotSettings(prototypes=0))
    ask = Ask(coarse=False, neighbours=NEIGHBOURS)
    searcher = Searcher(snapshot, ask.search_spec)
    entries = torch.from_numpy(rows)
    flat = faiss.IndexFlatIP(options.width)
    flat.add(rows)
    small = SnapshotSettings(prototypes=0, index="ivf")
    index = build(Entries(rows, rows, ids), small).audio_index
    ivf = SearchableRows(rows, None, torch.device("cpu"), ask.search_spec, index)
    print(
        f"{options.entries} x {options.width}, K = {NEIGHBOURS}, {options.threads} thread(s), median of {options.rounds}"
    )
    for batch in (32, 256):
        queries = rows[random.integers(0, options.entries, batch)] + 0.5 * random.normal(
            size=(batch, options.width)
        ).astype(np.float32)
        asked = torch.from_numpy(queries / np.linalg.norm(queries, axis=1, keepdims=True))

        def tuned(threshold: int, asked: torch.Tensor = asked) -> object:
            before, faiss.cvar.distance_compute_blas_threshold = faiss.cvar.distance_compute_blas_threshold, threshold
            try:
                return flat.search(asked.numpy(), NEIGHBOURS)
            finally:
                faiss.cvar.distance_compute_blas_threshold = before

        def whole(asked: torch.Tensor = asked) -> object:
            return (asked @ entries.T).topk(NEIGHBOURS, dim=1)

        def chunks(asked: torch.Tensor = asked) -> object:
            parts = [
                (asked @ entries[start : start + 16_384].T).topk(NEIGHBOURS, dim=1)
                for start in range(0, len(rows), 16_384)
            ]
            values, where = torch.cat([part.values for part in parts], 1).topk(NEIGHBOURS, 1)
            positions = torch.cat([part.indices + 16_384 * n for n, part in enumerate(parts)], 1)
            return values, positions.gather(1, where)

        def ours(asked: torch.Tensor = asked) -> object:
            return searcher.fine_audio.top_k(asked, NEIGHBOURS)

        # Exactness in the same run: the same scores as the whole matrix's.
        assert torch.allclose(ours()[0], whole().values, atol=1e-5)  # type: ignore[index,attr-defined]
        found = cpu_milliseconds(
            {
                "ours (exact)": ours,
                "torch matmul + topk": whole,
                "torch matmul + topk, chunks of 16,384": chunks,
                "FAISS flat, blas threshold 1": lambda: tuned(1),
                "FAISS flat, blas threshold 20": lambda: tuned(20),
                "ours (ivf, 16 probes)": partial(ivf.top_k, asked, NEIGHBOURS),
            },
            options.rounds,
        )
        peer = min(value for name, value in found.items() if not name.startswith("ours"))
        compared(
            f"exact search, {options.entries:,} entries, batch {batch}",
            found["ours (exact)"],
            peer,
            "the faster of torch and FAISS",
            at_most=1.1,
        )
        exact = whole().indices  # type: ignore[attr-defined]
        near = ivf.top_k(asked, NEIGHBOURS)[1]
        recall = np.mean(
            [len(set(a) & set(b)) / NEIGHBOURS for a, b in zip(exact.tolist(), near.tolist(), strict=True)]
        )
        print(
            f"batch {batch}: ratio to the faster peer {found['ours (exact)'] / peer:.2f} (goal 1.1); ivf recall {recall:.3f}"
        )
        for name, value in found.items():
            print(f"  {name:40s} {value:9.1f} ms")


if __name__ == "__main__":
    main()
