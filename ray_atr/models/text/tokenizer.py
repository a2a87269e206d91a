"""A subword vocabulary trained on the training captions of all languages at once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from ray_atr.settings import refuse, shortened
from ray_atr.storage import read_json, write_json

PAD, START = "<pad>", "<s>"
PAD_ID, START_ID = 0, 1
TOKENIZER_FILE = "tokenizer.json"


def train_tokenizer(captions: Iterable[str], vocab_size: int = 4096) -> Tokenizer:
    """A byte-level BPE tokeniser: no text of any language is unknown to it, and equal captions give equal merges.

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
    """Write a tokeniser with its digest, whole, in a folder that exists."""
    write_json(path, {"tokenizer": json.loads(tokenizer.to_str())})


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokeniser that `save_tokenizer` or `Tokenizer.save` wrote. ValueError if the file is missing, damaged or none."""
    if not path.is_file():
        raise refuse("tokenizer", str(path), "the tokenizer.json that was saved with the model; the file is missing")
    content = read_json(path)
    try:
        return Tokenizer.from_str(json.dumps(content.get("tokenizer", content)))
    except Exception as error:  # noqa: BLE001 (the Rust binding raises bare Exception)
        raise refuse("tokenizer", str(path), f"a whole tokenizer.json ({shortened(str(error))})") from None
