"""Step time and peak memory of ml_clap, cacl and kcl with towers of the published sizes, beside ATRI's Table 4.

    uv run python benchmarks/bench_towers_gpu.py                  # on a CUDA device: CED-Base and SONAR's encoder
    uv run python benchmarks/bench_towers_gpu.py --size tiny      # any machine: shows that it runs, and that gradients agree

What is timed is the product's own training step (with `train.language_chunk` where languages are taken some at a time) and
the optimiser's. Weights and data are random: what counts is how much is computed and kept. Captions have the lengths of
AudioCaps' (the longest of a batch about 2.2 times the mean). Forms of kcl: `padded` encodes all languages at once, padded to the
longest caption, as the paper does; `grouped`, the default, encodes them at once in groups of similar length; `by language`
encodes and back-propagates one language after the other. Their gradients are compared in float32 before anything is timed; forms
are timed in turn, `--repeats` rounds, and the median is shown. Goals: kcl in at most 1.15 x the memory of ml_clap, and at most
0.65 x the time of the padded form.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from side_by_side import compared, gradient_of, relative_error
from transformers import M2M100Config
from transformers.models.m2m_100.modeling_m2m_100 import M2M100Encoder

from ray_atr.data.captions import CaptionBatch
from ray_atr.models.audio import Ced
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.retriever import Retriever
from ray_atr.models.text import Sonar
from ray_atr.models.transformers import TransformersTextTower
from ray_atr.objectives import preset
from ray_atr.training.batch import Batch
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.group import WorkerGroup
from ray_atr.training.step import training_step

PAPER = {"ml_clap": (1.00, 1.00), "cacl": (1.21, 1.12), "kcl padded": (3.08, 1.26)}
"""ATRI, Table 4: memory (GMO) and time (TO) relative to ml_clap, on an input-bound A100."""

GOALS = {"memory": 1.15, "time": 0.65}
"""kcl's memory relative to ml_clap's, and its time relative to the padded form's."""


@dataclass(frozen=True)
class Form:
    """A way to take a step: an objective, languages embedded at a time (0: all), groups of similar length."""

    objective: str
    language_chunk: int = 0
    length_groups: int = 1


FORMS = {
    "ml_clap": Form("ml_clap"),
    "cacl": Form("cacl"),
    "kcl padded": Form("kcl"),
    "kcl grouped": Form("kcl", length_groups=4),
    "kcl by 2 languages": Form("kcl", language_chunk=2, length_groups=3),
    "kcl by language": Form("kcl", language_chunk=1, length_groups=3),
}


class Numbers:
    """A tokeniser of texts that are their own token ids, written as numbers."""

    pad_token_id = 1

    def __call__(self, texts: list[str], **options: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[int(word) for word in text.split()] for text in texts]}


def build(size: str, device: torch.device) -> Retriever:
    """A retriever with random weights: CED-Base and SONAR's text encoder (0.77 billion weights), or toys."""
    torch.manual_seed(0)
    is_base = size == "base"
    audio = Ced(size="base") if is_base else Ced(size="tiny", num_blocks=2)
    config = M2M100Config(
        vocab_size=256_206 if is_base else 500,
        d_model=1024 if is_base else 64,
        encoder_layers=24 if is_base else 2,
        encoder_ffn_dim=8192 if is_base else 256,
        encoder_attention_heads=16 if is_base else 4,
        max_position_embeddings=514,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        encoder_layerdrop=0.0,
        activation_function="relu",
    )
    text = Sonar(checkpoint="random weights")
    tower = TransformersTextTower(text, M2M100Encoder(config), Numbers())  # type: ignore[arg-type]
    settings = ModelSettings(audio=audio, text=text, embedding_width=1024 if is_base else 32, projection="mlp")
    return Retriever(audio.build(), tower, settings).to(device).train()


def make_batch(B: int, K: int, vocabulary: int) -> Batch:
    """B clips of ten seconds with a caption in each of K languages."""
    generator = torch.Generator().manual_seed(1)
    # Log-normal: mean about 16 tokens, the longest of 24 about 2.2 times as long.
    lengths = torch.exp(2.7 + 0.4 * torch.randn(B, K, generator=generator)).round().clamp(5, 80).long()

    def caption(length: int) -> str:
        return " ".join(str(token) for token in torch.randint(5, vocabulary, (length,), generator=generator).tolist())

    return Batch.gathered(
        clip_ids=[f"clip {number}" for number in range(B)],
        features=torch.randn(B, 1001, 64, generator=generator) * 20 - 30,
        frames=torch.full((B,), 1001),
        captions=CaptionBatch(
            texts=[[caption(length) for length in row] for row in lengths.tolist()],
            mask=np.ones((B, K), bool),
            groups=np.arange(B),
            slots=np.zeros(B, np.int64),
        ),
        draw=None,
        languages=tuple(f"language {k}" for k in range(K)),
        group=WorkerGroup(),
    )


def step(retriever: Retriever, texts: TextBatcher, batch: Batch, form: Form, *, autocast: bool = False) -> None:
    """One step of a form, which leaves its gradients."""
    objective = preset(form.objective)
    assert isinstance(retriever.text_tower, TransformersTextTower)
    retriever.text_tower.num_groups = form.length_groups
    draw = objective.scheme.draw(0, 0, batch.clip_ids, batch.mask)
    group = WorkerGroup(device=retriever.device)
    training_step(
        retriever,
        texts,
        objective,
        Batch.gathered(batch.clip_ids, batch.features, batch.frames, batch.captions, draw, batch.languages, group),
        group,
        autocast=autocast,
        language_chunk=form.language_chunk,
    )


def check_gradients(device: torch.device) -> float:
    """Largest relative difference of the gradients of the forms of kcl (small towers, float32)."""
    retriever = build("tiny", device)
    texts, batch = TextBatcher(retriever, bucket=10_000), make_batch(6, 8, 500)
    gradients = {}
    for name, form in FORMS.items():
        if form.objective == "kcl":
            retriever.zero_grad(set_to_none=True)
            step(retriever, texts, batch, form)
            gradients[name] = gradient_of(retriever)
    return max(relative_error(value, gradients["kcl padded"]) for value in gradients.values())


@dataclass(frozen=True)
class Cost:
    """Median seconds of a step, allocated and reserved peak bytes (0 without CUDA)."""

    seconds: float
    allocated: float = 0.0
    reserved: float = 0.0


def measure(retriever: Retriever, batch: Batch, repeats: int) -> dict[str, Cost]:
    """What a step of every form costs; forms that do not fit into the device's memory are left out."""
    is_cuda = retriever.device.type == "cuda"
    # One bucket, so that the form alone decides what is padded together.
    texts = TextBatcher(retriever, bucket=10_000)
    # foreach would hold a second copy of all weights while it steps, and drown what the forms differ in.
    optimiser = torch.optim.AdamW(retriever.parameters(), lr=1e-6, foreach=False)
    seconds: dict[str, list[float]] = {name: [] for name in FORMS}
    memory: dict[str, tuple[float, float]] = dict.fromkeys(FORMS, (0.0, 0.0))
    warm_ups = 2 if is_cuda else 1
    for round_number in range(repeats + warm_ups):
        for name, form in FORMS.items():
            if name not in seconds:
                continue
            optimiser.zero_grad(set_to_none=True)
            if is_cuda:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                torch.cuda.synchronize()
            started = time.perf_counter()
            try:
                step(retriever, texts, batch, form, autocast=is_cuda)
                optimiser.step()
            except torch.OutOfMemoryError:
                del seconds[name]
                continue
            if is_cuda:
                torch.cuda.synchronize()
                memory[name] = (float(torch.cuda.max_memory_allocated()), float(torch.cuda.max_memory_reserved()))
            if round_number >= warm_ups:
                seconds[name].append(time.perf_counter() - started)
    return {name: Cost(statistics.median(took), *memory[name]) for name, took in seconds.items()}


def show(costs: dict[str, Cost]) -> None:
    """The table and the rows of kcl by languages, and on a GPU whether the goals are met."""
    base, padded = costs["ml_clap"], costs.get("kcl padded", Cost(float("nan")))
    columns = f"{'ms':>8} {'time':>6} {'/padded':>8} {'MB alloc':>9} {'memory':>7} {'MB res.':>8} {'memory':>7}"
    print(f"\n{'form':20} {columns}   ATRI memory, time")
    for form, cost in costs.items():
        peaks = ((cost.allocated, base.allocated), (cost.reserved, base.reserved))
        ratios = [value / reference if reference else float("nan") for value, reference in peaks]
        paper = "{:.2f}, {:.2f}".format(*PAPER[form]) if form in PAPER else ""
        print(
            f"{form:20} {1e3 * cost.seconds:8.1f} {cost.seconds / base.seconds:6.2f} {cost.seconds / padded.seconds:8.2f} "
            f"{cost.allocated / 1e6:9.0f} {ratios[0]:7.2f} {cost.reserved / 1e6:8.0f} {ratios[1]:7.2f}   {paper}"
        )
    for form, cost in costs.items():
        if not FORMS[form].language_chunk:
            continue
        # Without a GPU no memory is measured, and toys have no goal.
        is_judged = base.allocated > 0
        if "kcl padded" in costs:
            goal = GOALS["time"] if is_judged else None
            compared(f"step, {form}", 1e3 * cost.seconds, 1e3 * padded.seconds, "kcl padded", at_most=goal)
        if is_judged:
            mine, other = (one.allocated / 2**20 for one in (cost, base))
            memory = compared(f"memory of a step, {form}", mine, other, "ml_clap", unit="MiB", at_most=GOALS["memory"])
            seconds = cost.seconds / padded.seconds
            print(
                f"{form}: memory {memory:.2f} of ml_clap's (goal {GOALS['memory']}: {_met(memory, 'memory')}), "
                f"time {seconds:.2f} of the padded form's (goal {GOALS['time']}: {_met(seconds, 'time')})"
            )


def _met(ratio: float, goal: str) -> str:
    return "met" if ratio <= GOALS[goal] else "missed"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("base", "tiny"), default="base")
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--languages", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and options.size == "base":
        parser.error("--size base needs a CUDA device; --size tiny runs anywhere")
    # TF32 would make the forms' gradients differ by more than their order of summation does.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    difference = check_gradients(device)
    assert difference < 1e-4, f"the forms of kcl disagree: {difference:.2e}"
    retriever = build(options.size, device)
    assert isinstance(retriever.text_tower, TransformersTextTower)
    batch = make_batch(options.batch, options.languages, retriever.text_tower.model.config.vocab_size)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    tokens = [len(text.split()) for row in batch.captions.texts for text in row]
    shape = (
        f"batch {options.batch}, K = {options.languages}, captions {np.mean(tokens):.1f} tokens (longest {max(tokens)})"
    )
    print(f"{name}, {shape}")
    print(f"gradients of the forms of kcl agree to {difference:.1e} (float32)")
    show(measure(retriever, batch, options.repeats))


if __name__ == "__main__":
    main()
