"""Only what is needed is tokenised and encoded, each distinct caption once, with little padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ray_atr.common.override import override
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.models.text import train_tokenizer
from ray_atr.training.encoding.texts import TextBatcher
from tests.support.spies import spied

WORDS = [
    "a",
    "dog",
    "barks",
    "rain",
    "falls",
    "on",
    "the",
    "tin",
    "roof",
    "while",
    "cars",
    "pass",
    "by",
    "in",
    "two",
    "three",
]
TEXTS = [[" ".join(WORDS[:length]), " ".join(WORDS[-length:])] for length in (2, 9, 3, 12, 2, 7)]
LANGUAGES = ("eng", "fra")


@pytest.fixture
def retriever() -> Retriever:
    settings = override(ModelSettings(), {"embedding_width": 8, "text.width": 8, "text.num_heads": 2})
    return build_retriever(settings, tokenizer=train_tokenizer([" ".join(WORDS)], 300), seed=0)


class Seen:
    """What passes through a retriever's text tower."""

    def __init__(self, retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tokenised: list[str] = []
        self.padded: list[tuple[int, int]] = []
        tower = retriever.text_tower
        spied(monkeypatch, tower, "tokenise", lambda _, texts, languages: self.tokenised.extend(texts))
        tower.register_forward_pre_hook(self._look)

    def _look(self, tower: nn.Module, inputs: tuple[Tensor, Tensor]) -> None:
        token_ids, token_mask = inputs
        self.padded.append((len(token_ids), int((~token_mask).sum())))


def test_only_needed_texts_are_tokenised_and_encoded(retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(retriever, monkeypatch)
    needed = np.zeros((6, 2), bool)
    needed[[0, 3, 4], [0, 1, 0]] = True
    grid = TextBatcher(retriever).embed_grid(TEXTS, needed, LANGUAGES)
    # Clips 0 and 4 have the same caption.
    assert sorted(seen.tokenised) == sorted({TEXTS[0][0], TEXTS[3][1]})
    assert sum(count for count, _ in seen.padded) == 2
    assert torch.equal(grid[0, 0], grid[4, 0])
    assert not grid[torch.from_numpy(~needed)].any()


def test_tokens_are_kept_between_batches(retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, texts = Seen(retriever, monkeypatch), TextBatcher(retriever)
    for _ in range(2):
        texts.embed([(row[0], "eng") for row in TEXTS])
    assert len(seen.tokenised) == len({row[0] for row in TEXTS})


@pytest.mark.parametrize("chunk", [0, 2])
def test_buckets_hold_texts_of_like_length_and_the_order_is_kept(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    captions = [(text, language) for row in TEXTS for text, language in zip(row, LANGUAGES, strict=True)]
    alone = torch.cat([TextBatcher(retriever).embed([caption]) for caption in captions])
    seen = Seen(retriever, monkeypatch)
    together = TextBatcher(retriever, bucket=4).embed(captions, chunk=chunk)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
    padding = sum(padded for _, padded in seen.padded)
    assert [count for count, _ in seen.padded] == ([4, 4, 2] if chunk == 0 else [2] * 5)
    whole = Seen(retriever, monkeypatch)
    TextBatcher(retriever, bucket=100).embed(captions)
    assert padding < sum(padded for _, padded in whole.padded) / 2
