"""A text tower with a bag of words in addition to its encoder's vector.

Shapes: N texts, L tokens, W width of the encoder, V words of the vocabulary.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from ray_atr.common.storage import read_json, write_json
from ray_atr.models.tower import Encoded, TextTower, pad_tokens

WORDS_FILE = "words.json"
LEAST = 2
"""Least number of texts that contain a word of the vocabulary."""
MOST_WORDS, WORD_DIRECTIONS = 2048, 128
"""Most words, the most frequent ones, of the vectors of words; and their main directions."""
_MARKS = "".join(mark for mark in map(chr, range(0x300, 0x2E80)) if unicodedata.category(mark).startswith("M"))
_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\U0010ffff"
"""Scripts without spaces between words: Thai, Lao, Burmese, Khmer, and those of East Asia."""
_LETTER = rf"[^\W\d_{_UNSPACED}]"
# The vowel signs of Indian scripts are marks, which are not in \w.
_WORD = re.compile(rf"\d+|(?=\w)[{_UNSPACED}][{_MARKS}]*|{_LETTER}(?:{_LETTER}|[{_MARKS}])*")


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case: runs of letters or of digits, and each letter of the scripts without spaces.

    >>> words_of("A dog barks 3 times. 犬が")
    ['a', 'dog', 'barks', '3', 'times', '犬', 'が']
    """
    return _WORD.findall(unicodedata.normalize("NFKC", text).lower())


def frequent_words(texts: Iterable[str], most: int) -> list[str]:
    """The words that are in the most texts, at most `most` of them, each in `LEAST` texts or more."""
    counts = Counter(chain.from_iterable(dict.fromkeys(words_of(text)) for text in texts))
    return [word for word, count in counts.most_common(most) if count >= LEAST]


def word_vectors(texts: Sequence[str]) -> NDArray[np.float32]:
    """Vectors of the words of texts [M, W], W at most WORD_DIRECTIONS: their inner products approximate those of the texts' bags
    of words, with each word weighted by the logarithm of its inverse frequency.

    >>> a, b, c = word_vectors(["a dog barks", "a dog howls", "a bell barks"])
    >>> bool(a @ b > 0), bool(abs(b @ c) < 1e-5)
    (True, True)
    """
    vocabulary = {word: number for number, word in enumerate(frequent_words(texts, MOST_WORDS))}
    if not vocabulary:
        return np.zeros((len(texts), 1), np.float32)
    of_texts = [sorted({vocabulary[word] for word in words_of(text) if word in vocabulary}) for text in texts]
    ends = np.cumsum([0, *map(len, of_texts)])
    columns = np.fromiter(chain.from_iterable(of_texts), np.int64, ends[-1])
    rarity = np.log(len(texts) / np.bincount(columns))
    bags = csr_array((rarity[columns], columns, ends), shape=(len(texts), len(vocabulary)))
    _, directions = np.linalg.eigh((bags.T @ bags).toarray())
    return np.asarray(bags @ directions[:, ::-1][:, :WORD_DIRECTIONS], np.float32)


def vector_and_words(text: Tensor, words: Tensor) -> Tensor:
    """[v, k v, k b, k], [N, 2W + V + 1], from the encoder's vectors v (`text` [N, W]) and b and k [N, V + 1] (`WithWords.bag`).

    A linear map of it is one map of v if no word is in the vocabulary (k = 0), another one of v and the words if all are
    (k = 1), and in between a mixture of both.
    """
    has_known = words[:, -1:]
    return torch.cat([text, has_known * text, has_known * words[:, :-1], has_known], dim=1)


class WithWords(TextTower):
    """An encoder, with the words of a text that are in a vocabulary.

    A word of a text is one more token: -1 - n for the vocabulary's n-th, and -1 - V for one that it lacks.
    """

    def __init__(self, encoder: TextTower, words: Sequence[str]) -> None:
        super().__init__()
        self.encoder, self.words = encoder, list(words)
        self.width = 2 * encoder.width + len(words) + 1
        self.pad_token_id, self.saves_weights = encoder.pad_token_id, encoder.saves_weights
        self.reads_texts = encoder.reads_texts
        self._tokens = {word: -1 - number for number, word in enumerate(words)}

    def knows(self, texts: Sequence[str], language: str) -> bool:
        return self.encoder.knows(texts, language)

    def tokenise(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[int]]:
        encoded = self.encoder.tokenise(texts, languages)
        return [token_ids + self._words(text) for token_ids, text in zip(encoded, texts, strict=True)]

    def forward(self, token_ids: Tensor, token_mask: Tensor) -> Encoded:
        is_read = token_mask & (token_ids >= 0)
        L = int(is_read.sum(dim=1).max())
        is_read = is_read[:, :L]
        encoded = self.encoder(token_ids[:, :L].masked_fill(~is_read, self.pad_token_id), is_read)
        pooled = vector_and_words(encoded.pooled, self._bag(token_ids))
        return Encoded(pooled, pooled[:, None], token_mask[:, :1])

    def bag(self, texts: Sequence[str]) -> Tensor:
        """[N, V + 1]: whether each word is in the text, and k: the share of the text's words that are in the vocabulary minus
        the share of the others, at least 0.
        """
        return self._bag(pad_tokens([self._words(text) for text in texts], 0)[0])

    def save(self, folder: Path) -> None:
        self.encoder.save(folder)
        write_json(folder / WORDS_FILE, {"words": self.words})

    def _words(self, text: str) -> list[int]:
        return [self._tokens.get(word, -1 - len(self.words)) for word in words_of(text)]

    def _bag(self, token_ids: Tensor) -> Tensor:
        V, is_word = len(self.words), token_ids < 0
        counts = torch.zeros(len(token_ids), V + 1, device=token_ids.device)
        counts.scatter_add_(1, (-1 - token_ids).clamp(min=0), is_word.float())
        num_known, num_unknown = counts[:, :V].sum(dim=1), counts[:, V]
        share = (num_known - num_unknown).clamp(min=0) / (num_known + num_unknown).clamp(min=1)
        return torch.cat([counts[:, :V].clamp(max=1), share[:, None]], dim=1)


def with_saved_words(encoder: TextTower, folder: Path) -> TextTower:
    """The tower with the words that were saved in the folder; unchanged if there are none."""
    file = folder / WORDS_FILE
    return WithWords(encoder, read_json(file)["words"]) if file.is_file() else encoder
