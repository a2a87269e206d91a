"""The text towers by name, and one to train from scratch: a light transformer over a subword vocabulary of its own."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn

from ray_atr.common.settings import by_name, refuse, setting, shortened
from ray_atr.common.storage import disk_errors, read_json, write_json
from ray_atr.models.sentence_transformers import SentenceTransformersText
from ray_atr.models.tower import Encoded, TextSettings, TextTower, masked_mean
from ray_atr.models.transformers import Bert, Labse, Sonar, TransformersText, XlmRoberta
from ray_atr.models.vectors import TextVectors
from ray_atr.models.weights import TEXT_CHECKPOINT, WEIGHT_FILES, find_weights, load_weights, read_checkpoint

PAD, START = "<pad>", "<s>"
PAD_ID, START_ID = 0, 1
TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True, kw_only=True)
class SmallTransformer(TextSettings):
    """Token embeddings, a pre-norm transformer, mean over the tokens."""

    name: ClassVar[str] = "small_transformer"
    checkpoint_files: ClassVar[tuple[str, ...]] = WEIGHT_FILES
    vocab_size: int = setting(
        4096,
        "subwords of the vocabulary trained on the training captions; a checkpoint brings its own",
        at_least=260,
        at_most=2**20,
    )
    checkpoint: str | None = setting(
        None,
        "folder of the weights and their tokenizer.json; shipped:small_transformer: those that come with the "
        "package, trained to find the sounds that captions of soundscapes name, in eight languages; none: random "
        "weights",
        path="if there",
    )
    width: int = setting(128, "width W of the tower", at_least=8, at_most=2**14)
    num_layers: int = setting(2, "transformer layers", at_least=1, at_most=256)
    num_heads: int = setting(4, "attention heads; they divide the width", at_least=1, at_most=2**10)
    max_tokens: int = setting(64, "longer texts are cut to this many tokens", at_least=2, at_most=2**14)
    dropout: float = setting(0.0, "share of token embeddings' elements that training sets to zero", at_least=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.num_heads:
            raise refuse("num_heads", self.num_heads, f"a divisor of the width, {self.width}")

    @property
    def trained_vocabulary(self) -> int:
        return self.vocab_size if self.checkpoint is None else 0

    def build(self, tokenizer: object | None = None) -> SmallTransformerTower:
        if self.checkpoint is not None:
            weights = find_weights(self.checkpoint, TEXT_CHECKPOINT)
            tower = SmallTransformerTower(self, read_tokenizer(weights.parent / TOKENIZER_FILE))
            load_weights(tower, read_checkpoint(weights, TEXT_CHECKPOINT), source=self.checkpoint, path=TEXT_CHECKPOINT)
            return tower
        if not isinstance(tokenizer, Tokenizer):
            allowed = f"a tokeniser trained on the training captions; {self.name} has no other"
            raise refuse("model.text", tokenizer, allowed)
        return SmallTransformerTower(self, tokenizer)

    def outline(self) -> SmallTransformerTower:
        return SmallTransformerTower(self, Tokenizer(models.WordLevel({PAD: PAD_ID}, unk_token=PAD)))

    def rebuild(self, folder: Path) -> SmallTransformerTower:
        return SmallTransformerTower(self, read_tokenizer(folder / TOKENIZER_FILE))


class SmallTransformerTower(TextTower):
    """Linear layers run on packed tokens without padding, attention on padded ones."""

    def __init__(self, settings: SmallTransformer, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.tokenizer, self.pad_token_id = tokenizer, PAD_ID
        self.width, self.max_tokens = settings.width, settings.max_tokens
        self.embedding = nn.Embedding(tokenizer.get_vocab_size(), settings.width)
        nn.init.normal_(self.embedding.weight, std=1.0)
        self.register_buffer("positions", sinusoids(settings.max_tokens, settings.width), persistent=False)
        self.dropout = nn.Dropout(settings.dropout)
        blocks = [PackedBlock(settings.width, settings.num_heads) for _ in range(settings.num_layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(settings.width)

    def tokenise(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[int]]:
        """One vocabulary is for all languages, so `languages` is ignored."""
        encodings = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [[START_ID, *encoding.ids[: self.max_tokens - 1]] for encoding in encodings]

    def forward(self, token_ids: Tensor, token_mask: Tensor) -> Encoded:
        index = token_mask.flatten().nonzero().squeeze(1)
        columns = torch.arange(token_ids.shape[1], device=token_ids.device).expand_as(token_ids)
        assert isinstance(self.positions, Tensor)
        packed = self.embedding(token_ids.flatten()[index]) + self.positions[columns.flatten()[index]]
        packed = self.dropout(packed)
        for block in self.blocks:
            packed = block(packed, index, token_mask)
        tokens = unpack(self.norm(packed), index, token_mask)
        return Encoded(masked_mean(tokens, token_mask), tokens, token_mask)

    def save(self, folder: Path) -> None:
        with disk_errors(folder / TOKENIZER_FILE):
            self.tokenizer.save(str(folder / TOKENIZER_FILE))


class PackedBlock(nn.Module):
    """Pre-norm self-attention and feed-forward on packed tokens [tokens, W]."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, packed: Tensor, index: Tensor, token_mask: Tensor) -> Tensor:
        N, L = token_mask.shape
        qkv = unpack(self.attention_in(self.norm1(packed)), index, token_mask)
        q, k, v = qkv.view(N, L, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=token_mask[:, None, None, :])
        packed = packed + self.attention_out(attended.transpose(1, 2).reshape(N * L, -1)[index])
        return packed + self.feed_forward(self.norm2(packed))


def unpack(packed: Tensor, index: Tensor, token_mask: Tensor) -> Tensor:
    """Packed tokens [tokens, W] at their places in [N, L, W], zero on padding."""
    N, L = token_mask.shape
    return packed.new_zeros(N * L, packed.shape[1]).index_copy(0, index, packed).view(N, L, -1)


def sinusoids(length: int, width: int) -> Tensor:
    """Sine and cosine position table [length, width] (Vaswani et al. 2017, section 3.5)."""
    rates = torch.exp(-math.log(10_000.0) * torch.arange(0, width, 2) / width)
    angles = torch.arange(length)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]


def train_tokenizer(captions: Iterable[str], vocab_size: int = 4096) -> Tokenizer:
    """A byte-level BPE tokeniser of all languages: no text is unknown to it, and equal captions give equal merges.

    Ids 0 and 1 are padding and the start of a text. Texts are NFKC-normalised and lower-cased.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, START],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sorted(set(captions)), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Write a tokeniser with its digest into an existing folder; the file appears complete."""
    write_json(path, {"tokenizer": json.loads(tokenizer.to_str())})


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokeniser that `save_tokenizer` or `Tokenizer.save` wrote. ValueError if it is missing, damaged or no tokeniser."""
    if not path.is_file():
        raise refuse("tokenizer", str(path), "the tokenizer.json that was saved with the model; the file is missing")
    content = read_json(path)
    try:
        return Tokenizer.from_str(json.dumps(content.get("tokenizer", content)))
    except Exception as error:  # noqa: BLE001 (the Rust binding raises bare Exception)
        raise refuse("tokenizer", str(path), f"a complete tokenizer.json ({shortened(str(error))})") from None


TEXT_TOWERS: dict[str, type[TextSettings]] = by_name(
    (SmallTransformer, Sonar, Labse, Bert, XlmRoberta, TransformersText, TextVectors, SentenceTransformersText)
)
