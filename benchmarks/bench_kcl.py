"""kcl (KCL, eight languages) language by language against the joint padded form: time, peak memory, gradients.

    python benchmarks/bench_kcl.py                     # 64 clips, 8 languages, one thread

Three ways to one gradient, over one audio tower and one small transformer: `joint, padded`, the paper's way, encodes all texts
at once, padding included; `joint, packed` leaves padding out of the linear layers; `by language, packed` encodes and
back-propagates a language at a time into a detached leaf of the audio embeddings, then the audio tower once. `english` is
the same packed model with one language. Caption lengths are drawn as real ones are spread (the longest of a batch is about
2.5 times the mean). Memory is the peak of live tensors beyond the weights; gradients must agree within 1e-5.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from side_by_side import compared, cpu_milliseconds, peak_bytes, relative_error
from torch import Tensor, nn

from ray_atr.models.text.small_transformer import PackedBlock, unpack
from ray_atr.objectives import Embeddings, preset

VOCABULARY = 4096
# Tokens a caption of one clip takes, over English: cheap scripts and wordy languages differ.
RELATIVE_LENGTHS = (1.0, 1.2, 1.15, 1.15, 1.1, 1.2, 1.3, 0.9)


class Tower(nn.Module):
    """Blocks over packed tokens or frames, mean over what is real."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([PackedBlock(width, 4) for _ in range(layers)])

    def forward(self, inputs: Tensor, mask: Tensor, is_packed: bool) -> Tensor:
        """Pooled [N, W] of inputs [N, L, W]; unpacked, the linear layers run on padding too."""
        N, L, W = inputs.shape
        index = mask.flatten().nonzero().squeeze(1) if is_packed else torch.arange(N * L)
        packed = inputs.reshape(N * L, W)[index]
        for block in self.blocks:
            packed = block(packed, index, mask)
        tokens = unpack(packed, index, mask) * mask[:, :, None]
        return tokens.sum(dim=1) / mask.sum(dim=1, keepdim=True)


class Model(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.audio, self.text = Tower(width, layers), Tower(width, layers)
        self.frames, self.tokens = nn.Linear(64, width), nn.Embedding(VOCABULARY, width)

    def embed_audio(self, features: Tensor) -> Tensor:
        mask = torch.ones(features.shape[:2], dtype=torch.bool)
        return self.audio(self.frames(features), mask, True)

    def embed_text(self, token_ids: Tensor, lengths: Tensor, is_packed: bool) -> Tensor:
        """[B, k, W] of token ids [B, k, L], cut to the longest of them."""
        B, k, _ = token_ids.shape
        longest = int(lengths.max())
        mask = torch.arange(longest) < lengths.reshape(B * k, 1)
        inputs = self.tokens(token_ids[:, :, :longest].reshape(B * k, longest))
        return self.text(inputs, mask, is_packed).view(B, k, -1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    B, K = options.batch, len(RELATIVE_LENGTHS)
    model = Model(options.width, options.layers)
    features = torch.randn(B, 100, 64)
    words = torch.exp(2.6 + 0.42 * torch.randn(B, 1)) * torch.tensor(RELATIVE_LENGTHS) + 2
    lengths = (words + torch.randn(B, K)).round().long().clamp(4, 64)
    token_ids = torch.randint(VOCABULARY, (B, K, 64))
    kcl, english = preset("kcl"), preset("contrastive")
    mask = torch.ones(B, K, dtype=torch.bool)

    def joint(is_packed: bool) -> None:
        model.zero_grad(set_to_none=True)
        embeddings = Embeddings(audio=model.embed_audio(features), text=model.embed_text(token_ids, lengths, is_packed))
        kcl(embeddings).loss.backward()

    def by_language() -> None:
        model.zero_grad(set_to_none=True)
        audio = model.embed_audio(features)
        leaf = audio.detach().requires_grad_()
        for languages, share in kcl.scheme.language_shares(mask, None, 1):
            text = model.embed_text(token_ids[:, languages], lengths[:, languages], True)
            (share * kcl(Embeddings(audio=leaf, text=text)).loss).backward()
        audio.backward(leaf.grad)

    def only_english() -> None:
        model.zero_grad(set_to_none=True)
        text = model.embed_text(token_ids[:, :1], lengths[:, :1], True)
        english(Embeddings(audio=model.embed_audio(features), text=text)).loss.backward()

    def gradient_of(step: Callable[[], None]) -> Tensor:
        step()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])

    contenders: dict[str, Callable[[], None]] = {
        "english, packed": only_english,
        "joint, padded": lambda: joint(False),
        "joint, packed": lambda: joint(True),
        "by language, packed": by_language,
    }
    reference = gradient_of(contenders["joint, padded"])
    errors = {name: relative_error(gradient_of(step), reference) for name, step in list(contenders.items())[1:]}
    assert max(errors.values()) < 1e-5, errors
    times = cpu_milliseconds(contenders, is_cold=True)
    model.zero_grad(set_to_none=True)
    peaks = {}
    for name, step in contenders.items():
        peaks[name] = peak_bytes(step)
        model.zero_grad(set_to_none=True)
    longest = lengths[:, 0].max().item() / lengths[:, 0].float().mean().item()
    for name in list(contenders)[1:]:
        if name.startswith("by language"):
            compared(f"kcl {name}, time", times[name], times["joint, padded"], "joint, padded", at_most=0.65)
            compared(
                f"kcl {name}, peak memory", peaks[name], peaks["english, packed"], "english", unit="bytes", at_most=1.15
            )
    print(f"kcl, B = {B}, K = {K}, longest caption over the mean {longest:.1f}")
    print(f"{'contender':22} {'ms':>9} {'over padded':>12} {'peak MB':>9} {'over english':>13} {'error':>9}")
    for name in contenders:
        over_padded, over_english = times[name] / times["joint, padded"], peaks[name] / peaks["english, packed"]
        error = f"{errors[name]:9.0e}" if name in errors else ""
        print(
            f"{name:22} {times[name]:9.1f} {over_padded:12.2f} {peaks[name] / 2**20:9.1f} {over_english:13.2f} {error}"
        )


if __name__ == "__main__":
    main()
