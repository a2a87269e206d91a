"""What judging the pairs costs a training step: an epoch with each correspondence, against the same epoch without.

    python benchmarks/bench_correspondence.py [--rounds 15 --clips 1216 --batch 64]

CPU seconds on one thread, epochs in turn: the median step times the steps of an epoch, and the medians of what is done before
and after them. `towers`: small towers on soundscapes, trained from scratch. `heads`: heads on vectors, the cheapest step that
there is, of which a judgement is the largest share.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from side_by_side import compared

from ray_atr.common.override import override
from ray_atr.training.batch import TrainingData
from ray_atr.training.clock import Clock
from ray_atr.training.correspondence import read_first
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import prepare
from ray_atr.training.languages import with_languages
from ray_atr.training.loop import step
from ray_atr.training.recipes import RECIPES
from ray_atr.training.setup import first_state
from ray_atr.workshop.importing.import_options import VectorImport
from ray_atr.workshop.importing.vector_import import import_vectors

GOALS = {
    "small_loss": 1.05,
    "leave_one_out": 1.15,
    "self_refining": 1.05,
    "transport": 1.05,
    "rematch": 1.05,
    "neighbours": 1.15,
}
WIDTH = 512


def vector_set(folder: Path, clips: int) -> Path:
    """A data set of random vectors, one English caption a clip, that a clip's vector resembles."""
    generator = np.random.default_rng(0)
    text, noise = (generator.standard_normal((clips + 64, WIDTH)).astype(np.float32) for _ in range(2))
    for name, vectors in (("text", text), ("audio", text + 0.5 * noise)):
        np.save(folder / f"{name}.npy", vectors)
    lines = [f"{row},sound {row},{'train' if row < clips else 'val'}" for row in range(clips + 64)]
    (folder / "pairs.csv").write_text("\n".join(["audio_row,caption,split", *lines]) + "\n")
    files = {name: str(folder / f"{name}.npy") for name in ("audio", "text")}
    import_vectors(VectorImport(**files, table=str(folder / "pairs.csv")), folder / "data")
    return folder / "data"


@dataclass
class Took:
    """CPU milliseconds of the parts of a contender's epochs: before the steps, each step, and after them."""

    begin: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)

    @contextlib.contextmanager
    def timed(self, part: list[float]) -> Iterator[None]:
        began = time.process_time()
        yield
        part.append(1e3 * (time.process_time() - began))

    @property
    def epoch(self) -> float:
        """An epoch of median parts: what else the machine does in a round is in a few of its steps."""
        steps = len(self.step) // len(self.begin)
        return statistics.median(self.begin) + steps * statistics.median(self.step) + statistics.median(self.end)


def an_epoch(experiment: Experiment, home: Path, folder: Path) -> Callable[[Took], None]:
    """What trains one epoch more whenever it is called, from batches that are in memory, and says what it took."""
    prepared = prepare(experiment, home, use_ray=False, echo=lambda message: None)
    group, clock = WorkerGroup(), Clock()
    data = TrainingData(experiment, prepared, group)
    state = first_state(data, folder)
    texts = TextBatcher(state.retriever)
    batches = list(next(iter(data.epochs(0, 0, use_ray=False)))[1])
    warm_up = 4
    passed = 0
    read_first(state.estimator, state.retriever, data.captions, experiment, group)

    def train(took: Took) -> None:
        nonlocal passed
        with took.timed(took.begin):
            # Judged as after the warm-up, however many epochs a round has had.
            state.estimator.begin_epoch(passed if passed < warm_up else warm_up)
        passed += 1
        for batch in batches:
            with took.timed(took.step):
                step(state, data, texts, batch, clock)
        with took.timed(took.end):
            state.estimator.end_epoch()

    state.retriever.train()
    for _ in range(warm_up + 1):
        train(Took())
    return train


def compare(what: str, base: Experiment, names: Sequence[str], rounds: int, folder: Path) -> None:
    """Print and record each correspondence's epoch against one without."""
    epochs = {
        name: an_epoch(override(base, {"objective.correspondence": name}), folder / "home", folder / what / name)
        for name in ("none", *names)
    }
    took = {name: Took() for name in epochs}
    for _ in range(rounds):
        for name, train in epochs.items():
            train(took[name])
    without = took["none"].epoch
    for name in names:
        label = f"epoch of {what}, {name}"
        ratio = compared(label, took[name].epoch, without, "without", unit="ms", at_most=GOALS[name])
        print(f"{what:8} {name:14} {ratio:.3f} of an epoch without, {without:.1f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--clips", type=int, default=1216)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--only", choices=("heads", "towers"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        common = {"train.batch_size": options.batch, "data.noise.ratio": 0.4, "train.learning_rate": 1e-4}
        if options.only != "towers":
            heads = {"data.source": str(vector_set(folder, options.clips)), **common}
            compare("heads", with_languages(override(RECIPES["vectors"](), heads)), list(GOALS), options.rounds, folder)
        if options.only != "heads":
            sizes = {"num_train": options.clips // 4, "num_val": 16, "num_test": 16, "languages": "eng"}
            sounds = {f"data.soundscapes.{name}": value for name, value in sizes.items()}
            towers = override(RECIPES["from_scratch"](), {**sounds, **common})
            rounds = max(3, options.rounds // 3)
            compare("towers", with_languages(towers), list(GOALS), rounds, folder)


if __name__ == "__main__":
    main()
