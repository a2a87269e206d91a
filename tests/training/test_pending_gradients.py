"""The gradients of texts that went around the workers are on their last way while the audio tower is back-propagated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ray_atr.objectives.pairs.ring as ring_module
from ray_atr.common.ranks import Ranks
from ray_atr.objectives.pairs.ring import Ring
from ray_atr.training.batch import TrainingData
from ray_atr.training.clock import Clock
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.group import WorkerGroup
from ray_atr.training.loop import begin_epoch, group_for, step
from ray_atr.training.setup import first_state
from tests.support.tiny import prepared_for, tiny


@pytest.mark.parametrize("language_chunk", [0, 1])
def test_a_step_waits_for_texts_when_the_audio_tower_has_its_gradient(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language_chunk: int
) -> None:
    events: list[str] = []
    summed_at_owners = Ring.summed_at_owners

    def noted(ring: Ring, *arguments: Any) -> Callable[[], Tensor]:
        received = summed_at_owners(ring, *arguments)

        def when_waited_for() -> Tensor:
            events.append("received")
            return received()

        return when_waited_for

    monkeypatch.setattr(Ring, "summed_at_owners", noted)
    settings = {"scaling__share_losses_from": 2, "train__language_chunk": language_chunk}
    experiment = tiny(home / "tones", objective="kcl", train__epochs=1, **settings)
    data = TrainingData(experiment, prepared_for(experiment, home), group_for(experiment, WorkerGroup()))
    state = first_state(data, tmp_path)
    begin_epoch(state, data, 0)
    for which in ("audio", "text"):
        for name, parameter in state.retriever.named_parameters():
            if name.startswith(which):
                parameter.register_post_accumulate_grad_hook(lambda _, which=which: events.append(which))
    batch = next(iter(next(iter(data.epochs(0, 0, use_ray=False)))[1]))
    step(state, data, TextBatcher(state.retriever), batch, Clock())
    last = len(events) - events[::-1].index("audio")
    # Two languages: by language, the first one's texts come home before the next are embedded.
    assert events.count("received") == 2
    assert events[:last].count("received") == (1 if language_chunk else 0)
    assert events[last] == "received"
    assert set(events[last:]) == {"received", "text"}


def test_sums_are_on_their_last_way_when_all_parts_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the second of three processes; the others would send ones."""
    waited: list[tuple[int, ...]] = []

    class FakeExchange:
        def __init__(self, ranks: Ranks, sent: Tensor, received: Tensor) -> None:
            self.into = received.fill_(1)

        def received(self) -> Tensor:
            waited.append(tuple(self.into.shape))
            return self.into

    monkeypatch.setattr(ring_module, "_Exchange", FakeExchange)
    ring, seen = Ring(Ranks(1, 3), (slice(0, 3), slice(3, 5), slice(5, 9))), []

    def part(owner: int, block: Tensor) -> Tensor:
        seen.append(owner)
        return 10 * block

    received = ring.summed_at_owners(torch.full((2, 1), 7.0), part)
    assert seen == [1, 0, 2]
    # Two blocks of rows, and two sums that its own parts were added to.
    assert waited == [(3, 1), (3, 1), (4, 1), (4, 1)]
    assert received().tolist() == [[1.0], [1.0]]
    assert waited[4:] == [(2, 1)]
