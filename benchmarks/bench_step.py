"""A training step against the same model and loss in a plain torch loop, and where an epoch's time goes.

    uv run python benchmarks/bench_step.py              # small towers, and a text tower of six layers of width 256
    uv run python benchmarks/bench_step.py shares       # seconds of each part of a run with that text tower

Both loops take the same batches of features and captions, embed them with the same retriever, compute the contrastive loss,
clip, and step AdamW and a cosine schedule, on one thread; the plain loop finds its tokens made beforehand and leaves out
every check. They are run in turn, and their gradients of the first batch must agree. Goals: at most 1.05 x; nothing but the
towers above 5% of the time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from side_by_side import compared, cpu_milliseconds, gradient_of, relative_error
from torch import Tensor

from ray_atr.common.override import override
from ray_atr.metrics.epoch_report import TIMED_PARTS
from ray_atr.models.tower import pad_tokens
from ray_atr.objectives.pairs import Contrastive
from ray_atr.training.batch import Batch, TrainingData
from ray_atr.training.clock import Clock
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import Prepared, prepare
from ray_atr.training.loop import begin_epoch, step, train_trial
from ray_atr.training.recipes import RECIPES
from ray_atr.training.setup import first_state

TOWERS: dict[str, dict[str, Any]] = {
    "small towers": {},
    "a text tower of 6 layers": {"model.text.num_layers": 6, "model.text.width": 256},
}
OF_TOWERS = ("forward", "backward", "validation")


def experiment_with(towers: dict[str, Any], clips: int, batch: int) -> Experiment:
    """The recipe from scratch in English with the contrastive loss."""
    changes = {
        "objective": "contrastive",
        "data.languages": "eng",
        "data.soundscapes.languages": "eng",
        "data.soundscapes.num_train": clips,
        "data.soundscapes.num_val": max(8, clips // 8),
        "data.soundscapes.num_test": 8,
        "train.batch_size": batch,
    }
    return override(RECIPES["from_scratch"](), {**changes, **towers})


@dataclass
class PlainLoop:
    """The same training as anyone would write it."""

    retriever: Any
    optimiser: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    temperature: float
    clip_norm: float

    def step(self, features: Tensor, frames: Tensor, token_ids: Tensor, mask: Tensor) -> None:
        """One batch whose clips all have captions of their own."""
        self.optimiser.zero_grad(set_to_none=True)
        scores = self.retriever.embed_audio(features, frames) @ self.retriever.embed_text(token_ids, mask).T
        scores = scores / self.temperature
        own = torch.arange(len(scores))
        loss = torch.nn.functional.cross_entropy(scores, own) + torch.nn.functional.cross_entropy(scores.T, own)
        (loss / 2).backward()
        torch.nn.utils.clip_grad_norm_(self.retriever.parameters(), self.clip_norm)
        self.optimiser.step()
        self.schedule.step()
        loss.item()


def compare(name: str, home: Path, steps: int, batch: int, rounds: int) -> None:
    """CPU time of the same steps in both loops."""
    experiment = experiment_with(TOWERS[name], steps * batch, batch)
    prepared = prepare(experiment, home, use_ray=False, echo=lambda message: None)
    group = WorkerGroup()
    with tempfile.TemporaryDirectory() as folder:
        data = TrainingData(experiment, prepared, group)
        batches = list(next(iter(data.epochs(0, 0, use_ray=False)))[1])[:steps]
        ours = first_state(data, Path(folder))
        theirs = first_state(data, Path(folder))
    texts, clock = TextBatcher(ours.retriever), Clock()
    inputs = [plain_inputs(batch, theirs.retriever) for batch in batches]
    pair = experiment.objective.pair
    assert isinstance(pair, Contrastive)
    plain = PlainLoop(
        theirs.retriever, theirs.optimizer, theirs.scheduler, pair.temperature, experiment.train.clip_norm
    )
    begin_epoch(ours, data, 0)
    for state in (ours, theirs):
        state.retriever.train()
    step(ours, data, texts, batches[0], clock)
    plain.step(*inputs[0])
    error = relative_error(gradient_of(ours.retriever), gradient_of(theirs.retriever))
    assert error < 1e-4, f"the gradients differ by {error:.1e}"

    def run_ours() -> None:
        for one in batches:
            with clock.step():
                step(ours, data, texts, one, clock)

    def run_plain() -> None:
        for one in inputs:
            plain.step(*one)

    times = cpu_milliseconds({"ours": run_ours, "plain": run_plain}, rounds, is_cold=True)
    print(
        f"{name}, batch {batch}: ours {times['ours'] / steps:.1f} ms a step, plain loop {times['plain'] / steps:.1f}, "
        f"gradients apart by {error:.0e}",
        flush=True,
    )
    compared(f"step, {name}", times["ours"] / steps, times["plain"] / steps, "plain torch loop", at_most=1.05)


def plain_inputs(batch: Batch, retriever: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A batch's features and padded tokens."""
    captions = [row[0] for row in batch.captions.texts]
    tokens = retriever.text_tower.tokenise(captions, ["eng"] * len(captions))
    return batch.features, batch.frames, *pad_tokens(tokens, retriever.text_tower.pad_token_id)


def shares(home: Path, steps: int, batch: int) -> None:
    """Seconds by part of a whole run without Ray, as every run logs them (`seconds/...`)."""
    name = "a text tower of 6 layers"
    experiment = override(experiment_with(TOWERS[name], steps * batch, batch), {"train.epochs": 3})
    prepared: Prepared = prepare(experiment, home, use_ray=False, echo=lambda message: None)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        train_trial(experiment, prepared, Path(folder), rows.append, use_ray_data=False)
    epochs = [row for row in rows if "seconds/forward" in row][1:]
    seconds = {part: sum(row.get(f"seconds/{part}", 0.0) for row in epochs) for part in TIMED_PARTS}
    total = sum(seconds.values())
    print(
        f"{name}, batch {batch}, {steps} steps an epoch: "
        + ", ".join(f"{p} {s / total:.1%}" for p, s in seconds.items())
    )
    for part in TIMED_PARTS:
        if part not in OF_TOWERS:
            compared(f"share of {part}", seconds[part], total, "an epoch", unit="s", at_most=0.05)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="loop", choices=("loop", "shares"))
    parser.add_argument("--steps", type=int, help="of an epoch (default: 4 of `loop`, 24 of `shares`)")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if options.what == "shares":
            shares(Path(folder), options.steps or 24, options.batch)
            return
        for name in TOWERS:
            compare(name, Path(folder), options.steps or 4, options.batch, options.rounds)


if __name__ == "__main__":
    main()
