"""Encoders of a knowledge base through Ray Data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ray_atr.common.jobs import Resources
from ray_atr.models.retriever import build_retriever
from ray_atr.training.base_encoding import SourceEncoder
from ray_atr.training.inputs import prepare
from tests.support.tiny import tiny

pytestmark = pytest.mark.ray

ASK = {
    "objective.knowledge": "ask",
    "objective.knowledge.prototypes": 4,
    "objective.knowledge.neighbours": 2,
    "objective.knowledge.refresh_lag": 2,
}


@pytest.mark.usefixtures("ray_session")
def test_several_encoders_give_the_entries_of_one_bit_for_bit(home: Path) -> None:
    experiment = tiny(home / "tones", **ASK, **{"objective.knowledge.text_entries": "each"})
    prepared = prepare(experiment, home, use_ray=False, echo=lambda message: None)
    weights = build_retriever(experiment.model, tokenizer=prepared.load_tokenizer(), seed=3).state_dict()
    one = SourceEncoder(experiment, prepared, block=10)
    assert -(-24 // one.block) == 3
    processes = Resources(cpus=0.0, processes=2, threads=1)
    several = SourceEncoder(experiment, prepared, block=10, processes=processes).encode_part(weights)
    threads = torch.get_num_threads()
    # As many as an encoder takes: another number adds in another order.
    torch.set_num_threads(1)
    alone = one.encode_part(weights)
    torch.set_num_threads(threads)
    assert np.array_equal(several.audio, alone.audio)
    assert np.array_equal(several.text, alone.text)
    assert (
        several.names.ids.tolist() == alone.names.ids.tolist() == [f"train-{index:03d}".encode() for index in range(24)]
    )
    assert np.array_equal(several.names.text_mask, alone.names.text_mask)
