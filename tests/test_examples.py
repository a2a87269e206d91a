"""What people call from Python says when to take it and what is related, and its example runs as printed."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import soundfile

from ray_atr import metrics
from ray_atr.deploy.index.build import build_index
from ray_atr.deploy.index.opened import Index
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.objectives import KNOWLEDGE, PAIRS, SCHEMES, Embeddings, Learned, Objective, preset
from ray_atr.objectives.correspondence import CORRESPONDENCES
from ray_atr.objectives.transport import exact_plan, log_plan, matching_loss, solve
from ray_atr.training.recipes import RECIPES
from ray_atr.training.train_modules import train

VARIANTS = [*PAIRS.values(), *SCHEMES.values(), *(KNOWLEDGE[name] for name in KNOWLEDGE if name != "none")]
TRANSPORT = [solve, exact_plan, log_plan, matching_loss]
PARTS = [Embeddings, Learned, Objective]
CALLED: list[Any] = [*VARIANTS, *CORRESPONDENCES.values(), preset, *PARTS, *TRANSPORT, train, Retriever, Index]
METHODS = [
    Retriever.similarity, Retriever.encode_audio, Retriever.encode_windows, Retriever.encode_text,
    Retriever.embed_sentences, Retriever.save_pretrained, Retriever.from_pretrained, build_retriever,
    Index.search, Index.search_many, Index.like, Index.like_window, Index.tag,
]  # fmt: skip
FUNCTIONS = [
    getattr(metrics, name) for name in metrics.__all__ if name not in ("retrieval_samples", "classification_metrics")
]
"""Two are in the examples of the functions whose results they take."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the examples of a retriever and of an index begin with."""
    folder = tmp_path_factory.mktemp("examples")
    retriever = build_retriever(RECIPES["quickstart"]().model, seed=0).eval()
    sound = np.sin(np.arange(16_000) / 5).astype(np.float32)
    retriever.save_pretrained(folder / "model")
    (folder / "archive").mkdir()
    soundfile.write(folder / "archive" / "sound.wav", sound, 16_000)
    build_index(str(folder / "model"), str(folder / "archive"), str(folder / "index"), echo=lambda line: None)
    return {"retriever": retriever, "sound": sound, "folder": folder / "saved", "index": Index.open(folder / "index")}


@pytest.mark.parametrize("called", [*CALLED, *METHODS, *FUNCTIONS], ids=lambda one: one.__qualname__)
def test_an_example_is_what_it_says(called: Callable[..., Any], world: dict[str, Any]) -> None:
    module = importlib.import_module(called.__module__)
    found = doctest.DocTestFinder(recurse=False).find(called, called.__qualname__, module, {**vars(module), **world})
    assert any(example.want for test in found for example in test.examples), "no example"
    said: list[str] = []
    for test in found:
        doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=said.append)
    assert not said, "".join(said)


@pytest.mark.parametrize("called", [*CALLED, *FUNCTIONS], ids=lambda one: one.__qualname__)
def test_it_says_what_is_related_and_a_choice_says_when(called: Callable[..., Any]) -> None:
    text = called.__doc__ or ""
    assert "Related: " in text
    if called in (*VARIANTS, *CORRESPONDENCES.values(), *PARTS, *TRANSPORT, *FUNCTIONS):
        assert "When: " in text
