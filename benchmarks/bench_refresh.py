"""What a refresh of a knowledge base costs beyond encoding the source once: prototypes, checks, writing to disk.

    python benchmarks/bench_refresh.py [--clips 4000 --width 1024 --prototypes 256]

The default towers encode random log-mel features and captions; CPU seconds of the whole process, interleaved, medians.
The first refresh clusters from scratch, the later ones from the centroids of the one before.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faiss
import numpy as np
import torch
from side_by_side import compared, cpu_seconds

from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.retriever import build_retriever
from ray_atr.models.text import train_tokenizer
from ray_atr.objectives.knowledge.knowledge import SnapshotSettings
from ray_atr.training.knowledge_base.refresher import InProcessRefresher
from ray_atr.training.knowledge_base.snapshot import Entries, PartEntries


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

    entries = encode(None)
    encoding, building = [], []
    with tempfile.TemporaryDirectory() as folder:
        encoder: Any = SimpleNamespace(
            encode_part=lambda weights, part: PartEntries.from_entries(encode(weights), part)
        )
        base = InProcessRefresher(encoder, SnapshotSettings(prototypes=options.prototypes), Path(folder))
        for version in range(1, options.rounds + 2):
            encoding.append(cpu_seconds(lambda: encode(None)))

            def build(version: int = version) -> None:
                # Entries need no encoding: what is left of a refresh is measured by itself, which noise of the encoding
                # would drown otherwise.
                base.publish(entries, version, 0)
                base.wait(version, 3600.0)

            building.append(cpu_seconds(build))
            assert base.wait(version, 0.0).state == "ready"
    alone, first, later = statistics.median(encoding), building[0], statistics.median(building[1:])
    print(f"{options.clips} clips of {options.seconds:g} s, width {options.width}, {options.prototypes} prototypes")
    print(f"encoding once               {alone:8.2f} CPU s")
    for name, cost in (("first", first), ("later", later)):
        compared(f"a refresh, {name}", alone + cost, alone, "encoding the source once", unit="CPU s", at_most=1.15)
    print(f"all else, first refresh     {first:8.2f} CPU s: {1 + first / alone:.3f} x encoding in all (goal 1.15)")
    print(f"all else, later refreshes   {later:8.2f} CPU s: {1 + later / alone:.3f} x encoding in all (goal 1.15)")


if __name__ == "__main__":
    main()
