"""The tokeniser of a text tower as a stock library opens it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray_atr.models.retriever import Retriever
from ray_atr.models.transformers import TransformersTextTower

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def stock_tokeniser(retriever: Retriever) -> PreTrainedTokenizerBase:
    """The tokeniser whose `save_pretrained` keeps what the tower reads: its longest text, and plain words.

    Classes of one model, like BertTokenizer, make their normaliser anew when they are loaded and would read the words as they are
    written. PreTrainedTokenizerFast takes tokenizer.json as it is.
    """
    from transformers import PreTrainedTokenizerFast

    tower = retriever.text_tower
    assert isinstance(tower, TransformersTextTower)
    tokenizer = tower.tokenizer
    tokenizer.model_max_length = tower.max_tokens
    if not getattr(retriever.settings.text, "plain_words", False):
        return tokenizer
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        model_max_length=tower.max_tokens,
        model_input_names=tokenizer.model_input_names,
        padding_side=tokenizer.padding_side,
        truncation_side=tokenizer.truncation_side,
        **tokenizer.special_tokens_map,
    )
