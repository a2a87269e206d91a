"""Peak memory and time of the training step itself, by `train.language_chunk` and `train.embedding_chunk`.

    python benchmarks/bench_step_memory.py                  # 64 clips of 10 s, 8 languages, small towers, one thread

Every way to a gradient of kcl over eight languages is compared with `english` at the same batch, and with the joint padded form,
the paper's way: all texts at once, each padded to the longest, padding run through the linear layers too. The floor is what
must be done anyway: the clips and the texts of eight languages, forward and backward, without a loss. Captions are made words
whose numbers are spread as real captions' are. Memory is the peak of live tensors beyond the weights; gradients of the kcl
steps must agree within 1e-5. Goals: by language, at most 1.15 x the memory of `english`, 0.65 x the time of the joint padded
form, and 1.1 x the floor.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from side_by_side import compared, cpu_milliseconds, gradient_of, peak_bytes, relative_error
from torch import Tensor, nn

from ray_atr.common.language_codes import DEFAULT_LANGUAGES
from ray_atr.common.override import override
from ray_atr.data.captions import CaptionBatch
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.retriever import build_retriever
from ray_atr.models.text import SmallTransformerTower, train_tokenizer
from ray_atr.models.tower import Encoded, masked_mean
from ray_atr.objectives import preset
from ray_atr.training.batch import Batch
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.group import WorkerGroup
from ray_atr.training.step import training_step

WORDS = 400
WAYS = {
    "english": ("contrastive", 0, 0),
    "kcl, joint and padded": ("kcl", 0, 0),
    "kcl": ("kcl", 0, 0),
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


class MadeStep:
    """The training step on one made batch: of `batch` clips a worker, in the first `num_languages` languages."""

    def __init__(
        self, batch: int, frames: int, num_languages: int, layers: int = 2, group: WorkerGroup | None = None
    ) -> None:
        languages = DEFAULT_LANGUAGES[:num_languages]
        texts = made_captions(batch, num_languages)
        settings = override(ModelSettings(), {"text.num_layers": layers})
        tokenizer = train_tokenizer((caption for row in texts for caption in row), 1000)
        self.group = group or WorkerGroup()
        self.retriever = build_retriever(settings, tokenizer=tokenizer, seed=0).train()
        captions = CaptionBatch(
            texts=texts,
            mask=np.ones((batch, num_languages), bool),
            groups=np.arange(batch) + self.group.rank * batch,
            slots=np.zeros(batch, np.int64),
        )
        self.batch = Batch.gathered(
            clip_ids=[str(clip) for clip in range(batch)],
            features=torch.randn(batch, frames, 64, generator=torch.Generator().manual_seed(0)),
            frames=torch.full((batch,), frames),
            captions=captions,
            draw=None,
            languages=languages,
            group=self.group,
        )

    def __call__(self, name: str, language_chunk: int, embedding_chunk: int, bucket: int = 256) -> None:
        """Gradients of an objective's step."""
        self.retriever.zero_grad(set_to_none=True)
        training_step(
            self.retriever,
            TextBatcher(self.retriever, bucket=bucket),
            preset(name),
            self.batch,
            self.group,
            language_chunk=language_chunk,
            embedding_chunk=embedding_chunk,
        )

    def padded(self) -> None:
        """kcl with all texts at once, padding included."""
        with padding(self.retriever.text_tower):
            self("kcl", 0, 0, bucket=10**6)

    def floor(self) -> None:
        """Every clip and text through its tower and back, without a loss."""
        retriever, batch = self.retriever, self.batch
        retriever.zero_grad(set_to_none=True)
        texts = TextBatcher(retriever)
        for column, language in enumerate(batch.languages):
            texts.embed([(row[column], language) for row in batch.captions.texts]).sum().backward()
        retriever.embed_audio(batch.features, batch.frames).sum().backward()

    def gradient(self, way: Callable[[], None]) -> Tensor:
        """All gradients that a step leaves, flat."""
        way()
        return gradient_of(self.retriever)


@contextmanager
def padding(tower: nn.Module) -> Iterator[None]:
    """The text tower with its linear layers run on padding too."""

    def forward(token_ids: Tensor, token_mask: Tensor) -> Encoded:
        assert isinstance(tower, SmallTransformerTower)
        assert isinstance(tower.positions, Tensor)
        N, L = token_mask.shape
        everything = torch.arange(N * L)
        packed = (tower.embedding(token_ids) + tower.positions[:L]).flatten(0, 1)
        for block in tower.blocks:
            packed = block(packed, everything, token_mask)
        tokens = tower.norm(packed).view(N, L, -1)
        return Encoded(masked_mean(tokens, token_mask), tokens, token_mask)

    tower.forward = forward
    try:
        yield
    finally:
        del tower.forward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--frames", type=int, default=500, help="log-mel frames of a clip")
    parser.add_argument("--layers", type=int, default=2, help="layers of the text tower")
    options = parser.parse_args()
    torch.set_num_threads(1)
    B, K = options.batch, len(DEFAULT_LANGUAGES)
    step = MadeStep(B, options.frames, K, options.layers)
    ways: dict[str, Callable[[], None]] = {name: partial(step, *way) for name, way in WAYS.items()}
    ways["kcl, joint and padded"] = step.padded
    reference = step.gradient(ways["kcl"])
    errors = {
        name: relative_error(step.gradient(way), reference) for name, way in ways.items() if WAYS[name][0] == "kcl"
    }
    times = cpu_milliseconds({**ways, "floor": step.floor}, rounds=5, is_cold=True)
    peaks = {}
    for name, run in ways.items():
        step.retriever.zero_grad(set_to_none=True)
        peaks[name] = peak_bytes(run)
    own = "language_chunk 1"
    what = "kcl step by language"
    compared(f"{what}, peak memory", peaks[own], peaks["english"], "english", unit="bytes", at_most=1.15)
    compared(f"{what}, time", times[own], times["kcl, joint and padded"], "joint, padded", at_most=0.65)
    compared(f"{what}, time", times[own], times["floor"], "eight texts encoded", at_most=1.1)
    print(f"training step, B = {B}, K = {K}, {options.frames} frames, {options.layers} text layers")
    print(f"{'way':22} {'ms':>9} {'over english':>13} {'peak MB':>9} {'over english':>13} {'error':>9}")
    for name in WAYS:
        over_time, over_memory = times[name] / times["english"], peaks[name] / peaks["english"]
        error = f"{errors[name]:9.0e}" if name in errors else ""
        print(f"{name:22} {times[name]:9.1f} {over_time:13.2f} {peaks[name] / 2**20:9.1f} {over_memory:13.2f} {error}")
    print(f"{'floor':22} {times['floor']:9.1f} {times['floor'] / times['english']:13.2f}")
    assert max(errors.values()) < 1e-5, errors


if __name__ == "__main__":
    main()
