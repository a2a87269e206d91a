"""Several batches for one step of the optimiser (B of m-LTM Eq. 8): the mean of their gradients, each at the same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ray_atr.training import loop
from ray_atr.training.checkpoint import load_checkpoint
from ray_atr.training.checks import check_experiment
from ray_atr.training.knowledge_base.memory import MomentumMemory
from ray_atr.training.loop import train_trial
from ray_atr.training.run_folder import LAST
from tests.support.spies import spied
from tests.support.tiny import prepared_for, tiny

BARELY = {
    "train__learning_rate": 1e-30,
    "train__schedule": "constant",
    "train__clip_norm": 0.0,
    "train__warmup_fraction": 0.0,
}


def gradients(
    home: Path, folder: Path, report: Callable[[Any], None] = lambda row: None, **changes: Any
) -> list[torch.Tensor]:
    """The gradient of all weights at each step of the optimiser, in an epoch of three batches."""
    found: list[torch.Tensor] = []

    def keep(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        found.append(torch.cat([p.grad.flatten().clone() for p in every if p.grad is not None]))

    experiment = tiny(home / "tones", train__epochs=1, **{**BARELY, **changes})
    hook = register_optimizer_step_pre_hook(keep)
    try:
        train_trial(experiment, prepared_for(experiment, home), folder, report, use_ray_data=False)
    finally:
        hook.remove()
    return found


def test_a_step_has_the_mean_gradient_of_its_batches_and_the_last_of_those_left(home: Path, tmp_path: Path) -> None:
    first, second, third = gradients(home, tmp_path / "one")
    both, last = gradients(home, tmp_path / "two", train__batches_per_step=2)
    torch.testing.assert_close(both, (first + second) / 2, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(last, third, rtol=1e-4, atol=1e-7)
    assert not torch.allclose(first, second, rtol=1e-2)


def test_a_last_step_of_fewer_batches_has_their_mean_and_norms_are_of_the_mean_so_far(
    home: Path, tmp_path: Path
) -> None:
    """Six batches of four clips, one by one, or four and two; the weights do not move."""
    rows: list[Any] = []
    alone = gradients(home, tmp_path / "one", train__batch_size=4)
    together = gradients(home, tmp_path / "four", rows.append, train__batch_size=4, train__batches_per_step=4)
    assert (len(alone), len(together)) == (6, 2)
    torch.testing.assert_close(together[1], (alone[4] + alone[5]) / 2, rtol=1e-4, atol=1e-7)
    so_far = [
        sum(alone[first : last + 1]) / (last + 1 - first)
        for first, last in ((0, 0), (0, 1), (0, 2), (0, 3), (4, 4), (4, 5))
    ]
    norms = [float(torch.as_tensor(one).norm()) for one in so_far]
    assert rows[0]["train/gradient_norm"] == pytest.approx(sum(norms) / 6, rel=1e-4)


def test_the_rate_falls_over_all_steps_and_no_checkpoint_is_due_with_an_epochs_last(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that resumed after the last step of an epoch would begin the next one without this one's validation."""
    saved: list[tuple[int, int]] = []
    spied(
        monkeypatch,
        loop,
        "save_state",
        lambda _, state, *__: saved.append((state.progress.epoch, state.progress.step_in_epoch)),
    )
    rows: list[Any] = []
    every = {"train__batches_per_step": 2, "train__checkpoint_every_steps": 1, "train__warmup_fraction": 0.0}
    experiment = tiny(home / "tones", train__learning_rate=1e-3, **every)
    train_trial(experiment, prepared_for(experiment, home), tmp_path, rows.append, use_ray_data=False)
    assert saved == [(0, 2), (1, 0), (1, 2), (2, 0)]
    # After two of four steps of a half cosine.
    assert rows[0]["train/learning_rate"] == pytest.approx(0.5e-3)


@pytest.mark.parametrize(("batches", "steps"), [(1, 3), (2, 2)])
def test_momentum_encoders_follow_steps_and_not_batches(
    batches: int, steps: int, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    for name in ("after_step", "after_batch"):
        spied(monkeypatch, MomentumMemory, name, lambda *_, name=name: called.append(name))
    experiment = tiny(home / "tones", objective="moco", train__epochs=1, train__batches_per_step=batches)
    train_trial(experiment, prepared_for(experiment, home), tmp_path, lambda row: None, use_ray_data=False)
    assert (called.count("after_step"), called.count("after_batch")) == (steps, 3)


@pytest.mark.parametrize("knowledge", ["moco", "ance"])
def test_a_pair_loss_that_the_knowledge_is_not_defined_for_is_refused_before_training(
    knowledge: str, home: Path
) -> None:
    experiment = tiny(home / "tones", objective="triplet", objective__knowledge=knowledge)
    with pytest.raises(ValueError, match=f"objective.pair: got 'triplet'; allowed contrastive.*{knowledge}"):
        check_experiment(experiment)


def test_a_run_stopped_between_two_batches_of_a_step_ends_as_one_that_was_not(home: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"train__batches_per_step": 2, "train__checkpoint_every_steps": 1, "train__epochs": 2}
    experiment = tiny(home / "tones", **settings)
    prepared = prepared_for(experiment, home)
    train_trial(experiment, prepared, tmp_path / "whole", lambda row: None, use_ray_data=False)
    whole = load_checkpoint(tmp_path / "whole" / LAST)["model"]

    steps = 0

    def kill(*_: Any) -> None:
        # At the third step, the first of the second epoch: half of its gradients are in no checkpoint.
        nonlocal steps
        steps += 1
        if steps == 3:
            raise KeyboardInterrupt

    hook = register_optimizer_step_pre_hook(kill)
    with pytest.raises(KeyboardInterrupt):
        train_trial(experiment, prepared, tmp_path / "killed", lambda row: None, use_ray_data=False)
    hook.remove()
    train_trial(experiment, prepared, tmp_path / "killed", lambda row: None, use_ray_data=False)
    resumed = load_checkpoint(tmp_path / "killed" / LAST)["model"]
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())
