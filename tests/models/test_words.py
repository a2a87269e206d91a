"""Words beside an encoder's vectors: which they are, what the tower makes of them, and texts that have none."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from ray_atr.models.retriever import Retriever
from ray_atr.models.tower import pad_tokens
from ray_atr.models.words import (
    WORD_DIRECTIONS,
    WORDS_FILE,
    WithWords,
    frequent_words,
    with_saved_words,
    word_vectors,
    words_of,
)
from tests.support.archives import save_retriever

WORDS = ["a", "dog", "barks", "犬", "tone"]


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> WithWords:
    return WithWords(save_retriever(tmp_path_factory.mktemp("words") / "model").text_tower, WORDS)


def pooled(tower: WithWords, texts: list[str]) -> torch.Tensor:
    with torch.inference_mode():
        tokens = tower.tokenise(texts, ["eng"] * len(texts))
        return tower(*pad_tokens(tokens, tower.pad_token_id)).pooled


def test_words_are_of_letters_or_digits_and_characters_of_east_asia() -> None:
    assert words_of("L'ÉTÉ, 12dB_high—ﬁne!") == ["l", "été", "12", "db", "high", "fine"]
    assert words_of("犬が2回、吠える。") == ["犬", "が", "2", "回", "吠", "え", "る"]
    assert words_of("лает СОБАКА") == ["лает", "собака"]
    assert words_of("कुत्ता 3 बार भौंकता है") == ["कुत्ता", "3", "बार", "भौंकता", "है"]  # vowel signs are no letters
    assert words_of("கண்ணாடி") == ["கண்ணாடி"]
    assert words_of("ครั้ง ๓") == ["ค", "รั้", "ง", "๓"]  # no spaces between words
    for empty in ("", " \n", "?!…", "🐕🐕"):
        assert words_of(empty) == []


def test_a_vocabulary_has_the_words_of_most_texts_and_none_of_one_text() -> None:
    texts = ["a dog dog dog", "a dog", "a cat cat", "one cat", "a bird"]
    assert frequent_words(texts, 9) == ["a", "dog", "cat"]
    assert frequent_words(texts, 1) == ["a"]


def test_the_vector_is_the_encoders_and_its_product_with_the_share_of_known_words(tower: WithWords) -> None:
    texts = ["A dog barks.", "a cat barks a tone", "un chat", "a dog: ein Ton"]
    encoder = tower.encoder
    with torch.inference_mode():
        tokens = encoder.tokenise(texts, ["eng"] * len(texts))
        v = encoder(*pad_tokens(tokens, encoder.pad_token_id)).pooled
    known = torch.tensor([1.0, 3 / 5, 0.0, 0.0])
    has = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 0, 0, 0]])
    k = known[:, None]
    torch.testing.assert_close(pooled(tower, texts), torch.cat([v, k * v, k * has, k], dim=1))
    torch.testing.assert_close(tower.bag(texts), torch.cat([has, k], dim=1))


def test_hostile_texts_have_the_vector_that_they_have_alone(tower: WithWords) -> None:
    texts = ["", "\0?!🐕", "a dog " * 20_000, "dog" * 30_000, "犬" * 300, "كلب ينبح", "कुत्ता", "\ud7a3\u0301" * 99]
    together = pooled(tower, texts)
    assert torch.isfinite(together).all()
    for text, found in zip(texts, together, strict=True):
        torch.testing.assert_close(pooled(tower, [text])[0], found)
    shares = together[:, -1].tolist()
    assert shares == [0, 0, 1, 0, 1, 0, 0, 0]


def test_a_saved_retriever_knows_its_words_again(tower: WithWords, tmp_path: Path) -> None:
    plain = save_retriever(tmp_path / "plain")
    assert with_saved_words(plain.text_tower, tmp_path / "plain" / "text") is plain.text_tower
    retriever = Retriever(plain.audio_tower, tower, plain.settings).eval()
    retriever.save_pretrained(tmp_path / "words")
    opened = Retriever.from_pretrained(tmp_path / "words")
    texts = ["a dog barks", "un chat", "ein Ton: a dog barks"]
    assert torch.equal(opened.encode_text(texts), retriever.encode_text(texts))
    file = tmp_path / "words" / "text" / WORDS_FILE
    file.write_text(re.sub("dog", "cat", file.read_text()))
    with pytest.raises(ValueError, match=WORDS_FILE):
        Retriever.from_pretrained(tmp_path / "words")


def test_vectors_of_words_have_the_products_of_weighted_bags() -> None:
    texts = ["a dog barks", "a dog, a DOG", "the bell rings", "the bell barks", "unheard", ""]
    found = word_vectors(texts)
    rarity = {"a": np.log(3), "dog": np.log(3), "the": np.log(3), "bell": np.log(3), "barks": np.log(3)}
    for a, one in enumerate(texts):
        for b, other in enumerate(texts):
            shared = {*words_of(one)} & {*words_of(other)} & set(rarity)
            assert float(found[a] @ found[b]) == pytest.approx(sum(rarity[word] ** 2 for word in shared), abs=1e-5)
    assert word_vectors(["all", "texts", "differ"]).tolist() == [[0.0]] * 3
    many = [f"word{number % 300} other{number % 7}" for number in range(900)]
    assert word_vectors(many).shape == (900, WORD_DIRECTIONS)
