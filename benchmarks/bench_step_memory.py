"""Peak memory and time of the training step itself, by `train.language_chunk` and `train.embedding_chunk`.

    python benchmarks/bench_step_memory.py                  # 64 clips of 10 s, 8 languages, the quickstart's towers, one thread

Every way to a gradient of one_to_k over eight languages is compared with `english` at the same batch. Captions are made
words whose numbers are spread as real captions' are. Memory is the peak of live tensors beyond the weights; gradients of the
one_to_k steps must agree within 1e-5.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from side_by_side import cpu_milliseconds, peak_bytes, relative_error
from torch import Tensor

from ray_atr.data.captions import CaptionBatch
from ray_atr.data.languages import LANGUAGES
from ray_atr.models.retriever import ModelSettings, build_retriever
from ray_atr.models.text.tokenizer import train_tokenizer
from ray_atr.objectives import preset
from ray_atr.override import override
from ray_atr.training.group import WorkerGroup
from ray_atr.training.step import StepInput, training_step
from ray_atr.training.texts import TextBatcher

WORDS = 400
WAYS = {
    "english": ("contrastive", 0, 0),
    "one_to_k": ("kcl", 0, 0),
    "language_chunk 1": ("kcl", 1, 0),
    "embedding_chunk 16": ("kcl", 0, 16),
    "both": ("kcl", 1, 16),
}


def made_captions(B: int, K: int) -> list[list[str]]:
    """B captions in K languages of made words; 8 words or so, the longest of a batch about 2.5 times that."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abdefgiklmnoprstu"), rng.integers(3, 9))) for _ in range(WORDS)]
    lengths = np.exp(2.0 + 0.42 * rng.standard_normal((B, 1))) * rng.uniform(0.9, 1.3, (1, K)) + 1
    return [[" ".join(rng.choice(words, int(length))) for length in row] for row in lengths]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--frames", type=int, default=500, help="log-mel frames of a clip")
    parser.add_argument("--layers", type=int, default=2, help="layers of the text tower")
    options = parser.parse_args()
    torch.set_num_threads(1)
    languages = tuple(LANGUAGES)
    B, K = options.batch, len(languages)
    texts = made_captions(B, K)
    settings = override(ModelSettings(), {"text.num_layers": options.layers})
    tokenizer = train_tokenizer((caption for row in texts for caption in row), 1000)
    retriever = build_retriever(settings, tokenizer=tokenizer, seed=0).train()
    captions = CaptionBatch(texts=texts, mask=np.ones((B, K), bool), groups=np.arange(B))
    batch = StepInput(
        clip_ids=[str(clip) for clip in range(B)],
        features=torch.randn(B, options.frames, 64, generator=torch.Generator().manual_seed(0)),
        frames=torch.full((B,), options.frames),
        captions=captions,
        draw=None,
    )

    def step(name: str, language_chunk: int, embedding_chunk: int) -> None:
        retriever.zero_grad(set_to_none=True)
        training_step(
            retriever,
            TextBatcher(retriever),
            preset(name),
            batch,
            languages,
            WorkerGroup(),
            language_chunk=language_chunk,
            embedding_chunk=embedding_chunk,
        )

    def gradient(way: tuple[str, int, int]) -> Tensor:
        step(*way)
        return torch.cat(
            [parameter.grad.flatten() for parameter in retriever.parameters() if parameter.grad is not None]
        )

    reference = gradient(WAYS["one_to_k"])
    errors = {name: relative_error(gradient(way), reference) for name, way in WAYS.items() if way[0] == "kcl"}
    contenders: dict[str, Callable[[], None]] = {name: lambda way=way: step(*way) for name, way in WAYS.items()}
    times = cpu_milliseconds(contenders, rounds=5, is_cold=True)
    peaks = {}
    for name, run in contenders.items():
        retriever.zero_grad(set_to_none=True)
        peaks[name] = peak_bytes(lambda run=run: (run(), retriever.zero_grad(set_to_none=True)))
    print(f"training step, B = {B}, K = {K}, {options.frames} frames, {options.layers} text layers")
    print(f"{'way':22} {'ms':>9} {'over english':>13} {'peak MB':>9} {'over english':>13} {'error':>9}")
    for name in WAYS:
        over_time, over_memory = times[name] / times["english"], peaks[name] / peaks["english"]
        error = f"{errors[name]:9.0e}" if name in errors else ""
        print(f"{name:22} {times[name]:9.1f} {over_time:13.2f} {peaks[name] / 2**20:9.1f} {over_memory:13.2f} {error}")
    assert max(errors.values()) < 1e-5, errors


if __name__ == "__main__":
    main()
