"""What a refresh of a knowledge base costs beyond encoding the source once: prototypes, checks, writing to disk.

    python benchmarks/bench_refresh.py [--clips 4000 --width 1024 --prototypes 256]

The default towers encode random log-mel features and captions; CPU seconds of the whole process, interleaved, medians.
The first refresh clusters from scratch, the later ones from the centroids of the one before.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import torch

from ray_atr.knowledge.base import BaseSettings, Entries
from ray_atr.knowledge.refreshing import KnowledgeBase
from ray_atr.models.retriever import ModelSettings, build_retriever
from ray_atr.models.text.tokenizer import train_tokenizer


def cpu_seconds(run: Callable[[], object]) -> float:
    """CPU seconds of this process, all threads."""
    started = time.process_time()
    run()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=4000)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a clip")
    parser.add_argument("--prototypes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    settings = ModelSettings(embedding_width=options.width)
    captions = [f"a dog barks {n} times while rain falls on a tin roof" for n in range(50)]
    retriever = build_retriever(settings, tokenizer=train_tokenizer(captions, 300), seed=0).eval()
    front_end = settings.audio.front_end
    frames = round(options.seconds * front_end.sample_rate / front_end.hop_size)
    features = torch.randn(64, frames, front_end.num_mels)
    lengths = torch.full((64,), frames)
    token_ids = torch.randint(2, 300, (64, 16))
    ids = [f"clip{n}" for n in range(options.clips)]

    @torch.no_grad()
    def encode(weights: object) -> Entries:
        audio, text = [], []
        for start in range(0, options.clips, 64):
            # Another offset each time: equal embeddings would make the clustering too easy.
            audio.append(retriever.embed_audio(features + 0.01 * start, lengths))
            text.append(
                retriever.embed_text((token_ids + start) % 298 + 2, torch.ones_like(token_ids, dtype=torch.bool))
            )
        rows = [torch.cat(parts).numpy()[: options.clips] for parts in (audio, text)]
        return Entries(rows[0], rows[1], np.asarray(ids))

    encode(None)
    encoding, refreshing = [], []
    with tempfile.TemporaryDirectory() as folder:
        base = KnowledgeBase(encode, BaseSettings(prototypes=options.prototypes), Path(folder))
        for version in range(1, options.rounds + 2):
            encoding.append(cpu_seconds(lambda: encode(None)))

            def refresh(version: int = version) -> None:
                base.publish(None, version, 0)
                base.wait(version, 3600.0)

            refreshing.append(cpu_seconds(refresh))
    print(f"{options.clips} clips of {options.seconds:g} s, width {options.width}, {options.prototypes} prototypes")
    print(f"encoding once    {statistics.median(encoding):8.2f} CPU s")
    print(f"first refresh    {refreshing[0]:8.2f} CPU s, {refreshing[0] / encoding[0]:.3f} x encoding (goal 1.15)")
    ratios = [whole / alone for whole, alone in zip(refreshing[1:], encoding[1:], strict=True)]
    print(
        f"later refreshes  {statistics.median(refreshing[1:]):8.2f} CPU s, {statistics.median(ratios):.3f} x encoding"
    )


if __name__ == "__main__":
    main()
