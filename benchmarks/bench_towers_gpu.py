"""Step time and peak memory of ml_clap, cacl and kcl with towers of the published sizes, beside ATRI's Table 4.

    uv run python benchmarks/bench_towers_gpu.py                  # a CUDA device; CED-Base + SONAR's encoder, random weights
    uv run python benchmarks/bench_towers_gpu.py --size tiny      # any machine: shows that it runs, and that gradients agree

Weights and data are random; what counts is how much is computed and kept. Captions have the lengths of AudioCaps' (longest
about 2.2 times the mean in a batch). The forms are timed in turn, `--repeats` rounds, and the median is shown. Forms of kcl:
`kcl padded` encodes all languages at once, padded to the longest caption (as the paper does); `kcl grouped` encodes them at once
in groups of similar length; `kcl by language` encodes and back-propagates one language after the other on one audio graph.
Their gradients are compared in float32 before anything is timed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import M2M100Config
from transformers.models.m2m_100.modeling_m2m_100 import M2M100Encoder

from ray_atr.models.audio import Ced
from ray_atr.models.text.transformers import length_groups
from ray_atr.models.tower import length_mask, masked_mean

PAPER = {"ml_clap": (1.00, 1.00), "cacl": (1.21, 1.12), "kcl padded": (3.08, 1.26)}
"""ATRI, Table 4: memory (GMO) and time (TO) relative to ml_clap, on an input-bound A100."""


@dataclass
class Towers:
    """The two encoders and their projections."""

    audio: nn.Module
    text: nn.Module
    audio_projection: nn.Module
    text_projection: nn.Module

    def parameters(self) -> list[nn.Parameter]:
        modules = (self.audio, self.text, self.audio_projection, self.text_projection)
        return [parameter for module in modules for parameter in module.parameters()]

    def embed_audio(self, features: Tensor, frames: Tensor) -> Tensor:
        pooled = self.audio(features, frames).pooled
        return nn.functional.normalize(self.audio_projection(pooled).float(), dim=-1)

    def embed_text(self, token_ids: Tensor, lengths: Tensor, num_groups: int) -> Tensor:
        """Embeddings [N, D] of texts [N, L], encoded in groups of similar length, each padded to its own longest."""
        parts, order = [], []
        for rows, longest in length_groups(lengths, num_groups):
            rows = rows.to(token_ids.device)
            ids, mask = token_ids[rows, :longest], length_mask(lengths[rows], longest)
            tokens = self.text(input_ids=ids, attention_mask=mask.long()).last_hidden_state
            parts.append(self.text_projection(masked_mean(tokens, mask)))
            order.append(rows)
        return nn.functional.normalize(torch.cat(parts)[torch.argsort(torch.cat(order))].float(), dim=-1)


def build(size: str, device: torch.device) -> Towers:
    """Random towers: CED-Base and SONAR's text encoder (0.77 billion weights), or toys."""
    torch.manual_seed(0)
    is_base = size == "base"
    audio = Ced(size="base").build() if is_base else Ced(size="tiny", num_blocks=2).build()
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
    D = 1024 if is_base else 32
    text = M2M100Encoder(config)
    projections = [
        nn.Sequential(nn.Linear(width, D), nn.ReLU(), nn.Linear(D, D)) for width in (audio.width, config.d_model)
    ]
    return Towers(*(module.to(device).train() for module in (audio, text, *projections)))


@dataclass
class Batch:
    """B clips of ten seconds and K captions each, as [B, K, L] token ids with lengths [B, K]."""

    features: Tensor
    frames: Tensor
    token_ids: Tensor
    lengths: Tensor


def make_batch(B: int, K: int, vocabulary: int, device: torch.device) -> Batch:
    generator = torch.Generator().manual_seed(1)
    # Log-normal: mean about 16 tokens, the longest of 24 about 2.2 times as long.
    lengths = torch.exp(2.7 + 0.4 * torch.randn(B, K, generator=generator)).round().clamp(5, 80).long()
    token_ids = torch.randint(5, vocabulary, (B, K, int(lengths.max())), generator=generator)
    token_ids[torch.arange(token_ids.shape[2]) >= lengths[..., None]] = 1
    features = torch.randn(B, 1001, 64, generator=generator) * 20 - 30
    return Batch(features.to(device), torch.full((B,), 1001, device=device), token_ids.to(device), lengths.to(device))


def contrastive(u: Tensor, v: Tensor) -> Tensor:
    """The symmetric NT-Xent loss of B pairs."""
    logits = u @ v.T / 0.07
    target = torch.arange(len(u), device=u.device)
    return (nn.functional.cross_entropy(logits, target) + nn.functional.cross_entropy(logits.T, target)) / 2


def ml_clap(towers: Towers, batch: Batch) -> None:
    """One random language a clip."""
    B, K, _ = batch.token_ids.shape
    rows, drawn = torch.arange(B, device=batch.frames.device), torch.arange(B, device=batch.frames.device) % K
    audio = towers.embed_audio(batch.features, batch.frames)
    text = towers.embed_text(batch.token_ids[rows, drawn], batch.lengths[rows, drawn], num_groups=1)
    contrastive(audio, text).backward()


def cacl(towers: Towers, batch: Batch) -> None:
    """English and one random other language a clip; three pairs."""
    B, K, L = batch.token_ids.shape
    rows = torch.arange(B, device=batch.frames.device)
    drawn = 1 + rows % (K - 1)
    ids = torch.stack([batch.token_ids[:, 0], batch.token_ids[rows, drawn]]).view(2 * B, L)
    lengths = torch.cat([batch.lengths[:, 0], batch.lengths[rows, drawn]])
    audio = towers.embed_audio(batch.features, batch.frames)
    english, other = towers.embed_text(ids, lengths, num_groups=1).view(2, B, -1)
    ((contrastive(audio, english) + contrastive(audio, other) + contrastive(english, other)) / 3).backward()


def kcl(towers: Towers, batch: Batch, num_groups: int) -> None:
    """All languages at once, in groups of similar length (one group: all padded to the longest)."""
    B, K, L = batch.token_ids.shape
    audio = towers.embed_audio(batch.features, batch.frames)
    text = towers.embed_text(batch.token_ids.view(B * K, L), batch.lengths.view(B * K), num_groups).view(B, K, -1)
    torch.stack([contrastive(audio, text[:, k]) for k in range(K)]).mean().backward()


def kcl_by_language(towers: Towers, batch: Batch, languages_at_once: int = 1) -> None:
    """The same loss, a few languages after the others: their gradients meet in the audio embeddings, then go on once."""
    B, K, L = batch.token_ids.shape
    audio = towers.embed_audio(batch.features, batch.frames)
    leaf = audio.detach().requires_grad_()
    for start in range(0, K, languages_at_once):
        ids, lengths = (part[:, start : start + languages_at_once] for part in (batch.token_ids, batch.lengths))
        k = ids.shape[1]
        text = towers.embed_text(ids.reshape(B * k, L), lengths.reshape(B * k), num_groups=3).view(B, k, -1)
        (torch.stack([contrastive(leaf, text[:, place]) for place in range(k)]).sum() / K).backward()
    audio.backward(leaf.grad)


FORMS: dict[str, Callable[[Towers, Batch], None]] = {
    "ml_clap": ml_clap,
    "cacl": cacl,
    "kcl padded": lambda towers, batch: kcl(towers, batch, num_groups=1),
    "kcl grouped": lambda towers, batch: kcl(towers, batch, num_groups=8),
    "kcl by 2 languages": lambda towers, batch: kcl_by_language(towers, batch, languages_at_once=2),
    "kcl by language": kcl_by_language,
}


def check_gradients(device: torch.device) -> float:
    """Largest relative difference of the gradients of the forms of kcl (small towers, float32)."""
    towers = build("tiny", device)
    batch = make_batch(6, 8, 500, device)
    gradients = {}
    for name in (name for name in FORMS if name.startswith("kcl")):
        for parameter in towers.parameters():
            parameter.grad = None
        FORMS[name](towers, batch)
        gradients[name] = torch.cat([parameter.grad.flatten() for parameter in towers.parameters()])
    reference = gradients["kcl padded"]
    return max(float((value - reference).norm() / reference.norm()) for value in gradients.values())


def measure(towers: Towers, batch: Batch, device: torch.device, repeats: int) -> dict[str, tuple[float, float, float]]:
    """Median seconds, allocated and reserved peak bytes (0 without CUDA) of a step of every form."""
    # foreach would hold a second copy of all weights while it steps, and drown what the forms differ in.
    optimiser = torch.optim.AdamW(towers.parameters(), lr=1e-6, foreach=False)
    is_cuda = device.type == "cuda"
    seconds: dict[str, list[float]] = {name: [] for name in FORMS}
    memory: dict[str, tuple[float, float]] = {}
    for round_number in range(repeats + 2):
        for name, form in FORMS.items():
            optimiser.zero_grad(set_to_none=True)
            if is_cuda:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                torch.cuda.synchronize()
            started = time.perf_counter()
            with torch.autocast(device.type, torch.bfloat16, enabled=is_cuda):
                form(towers, batch)
            optimiser.step()
            if is_cuda:
                torch.cuda.synchronize()
                memory[name] = (float(torch.cuda.max_memory_allocated()), float(torch.cuda.max_memory_reserved()))
            if round_number >= 2:
                seconds[name].append(time.perf_counter() - started)
    return {name: (statistics.median(seconds[name]), *memory.get(name, (0.0, 0.0))) for name in FORMS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("base", "tiny"), default="base")
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--languages", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and options.size == "base":
        parser.error("--size base needs a CUDA device; --size tiny runs anywhere")
    # TF32 would make the forms' gradients differ by more than their order of summation does.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    difference = check_gradients(device)
    assert difference < 1e-4, f"the forms of kcl disagree: {difference:.2e}"
    towers = build(options.size, device)
    batch = make_batch(options.batch, options.languages, towers.text.config.vocab_size, device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    mean, longest = batch.lengths.float().mean().item(), int(batch.lengths.max())
    print(f"{name}, batch {options.batch}, K = {options.languages}, captions {mean:.1f} tokens (longest {longest})")
    print(f"gradients of the forms of kcl agree to {difference:.1e} (float32)")
    results = measure(towers, batch, device, options.repeats)
    base, padded = results["ml_clap"], results["kcl padded"]
    columns = f"{'ms':>8} {'time':>6} {'/padded':>8} {'MB alloc':>9} {'memory':>7} {'MB res.':>8} {'memory':>7}"
    print(f"\n{'form':20} {columns}   ATRI memory, time")
    for form, (seconds, allocated, reserved) in results.items():
        peaks = zip((allocated, reserved), base[1:], strict=True)
        ratios = [value / reference if reference else float("nan") for value, reference in peaks]
        paper = "{:.2f}, {:.2f}".format(*PAPER[form]) if form in PAPER else ""
        print(
            f"{form:20} {1e3 * seconds:8.1f} {seconds / base[0]:6.2f} {seconds / padded[0]:8.2f} "
            f"{allocated / 1e6:9.0f} {ratios[0]:7.2f} {reserved / 1e6:8.0f} {ratios[1]:7.2f}   {paper}"
        )


if __name__ == "__main__":
    main()
