"""A retriever of a few thousand weights and a folder of tones: what the tests of an index share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray_atr.common.override import override
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.models.text import train_tokenizer
from ray_atr.objectives.pairs.learned import LearnedSettings
from tests.support.tiny import tiny, tone

TEXTS = ["a low tone", "a high tone", "un son grave", "un son aigu"]


def save_retriever(
    folder: Path, *, seed: int = 0, metric: str = "euclidean", clip_seconds: float = 0.25, **model: Any
) -> Retriever:
    """A retriever with random weights, saved; `mahalanobis` has a learned metric."""
    window = {} if model.get("audio") == "vectors" else {"audio.clip_seconds": clip_seconds}
    settings = override(tiny(folder).model, {**window, **model})
    tokenizer = train_tokenizer(TEXTS, 280)
    learned = LearnedSettings(metric=metric)
    retriever = build_retriever(settings, tokenizer=tokenizer, learned=learned, seed=seed)
    retriever.save_pretrained(folder)
    return retriever.eval()


def make_tones(folder: Path, count: int = 4, seconds: float = 0.6) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"tone {number}.wav").write_bytes(tone(number % 4, number, seconds))
    return folder
