"""What a sweep over objectives costs with frozen towers: encoded once and read, against encoded at every step.

    uv run python benchmarks/bench_frozen.py
    uv run python benchmarks/bench_frozen.py --clips 1200 --epochs 7 --size base

Soundscapes in two languages; CED and a small text transformer with random weights, both frozen: what counts is what is
computed, not what is retrieved. Every trial prepares its inputs again, as a trial of a sweep does, then trains, validates, saves
its best retriever and tests it. The two ways are run in turn and must end with the same loss.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from side_by_side import compared

from ray_atr.common.override import override
from ray_atr.data.feature_cache import ensure_features
from ray_atr.objectives import PAIRS, SCHEMES
from ray_atr.training.experiment import Experiment
from ray_atr.training.inputs import Prepared, prepare
from ray_atr.training.loop import train_trial
from ray_atr.training.recipes import RECIPES

COMPARED = ("contrastive", "learning_to_match", "partial_learning_to_match")
"""Pair losses of the sweep, each under every scheme."""


def frozen(clips: int, epochs: int, size: str) -> Experiment:
    """The recipe from scratch with frozen towers."""
    return override(
        RECIPES["from_scratch"](),
        {
            "data.soundscapes.num_train": clips,
            "data.soundscapes.num_val": max(clips // 6, 8),
            "data.soundscapes.num_test": max(clips // 6, 8),
            "data.soundscapes.languages": "eng,fra",
            "data.languages": "eng,fra",
            "model.audio": "ced",
            "model.audio.size": size,
            "model.audio.adapt.is_frozen": True,
            "model.text.num_layers": 4,
            "model.text.adapt.is_frozen": True,
            "model.projection": "mlp",
            "model.embedding_width": 256,
            "train.epochs": epochs,
            "train.batch_size": min(48, clips),
        },
    )


def anew(prepared: Prepared, experiment: Experiment) -> Prepared:
    """The same inputs as log-mel frames and captions, for towers that encode at every step."""
    root = prepared.home / "data" / "cache" / "features"
    features = ensure_features(prepared.data, experiment.model.audio.front_end, root, use_ray=False)
    return dataclasses.replace(prepared, features=features, is_audio_encoded=False, captions=None)


def trial(experiment: Experiment, home: Path, *, is_anew: bool = False) -> tuple[float, float]:
    """Seconds of a trial from its start to its tested best retriever, and its last epoch's loss."""
    started = time.perf_counter()
    prepared = prepare(experiment, home, use_ray=False, echo=lambda message: None)
    reports: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        inputs = anew(prepared, experiment) if is_anew else prepared
        train_trial(experiment, inputs, Path(folder), reports.append, use_ray_data=False)
        return time.perf_counter() - started, reports[-2]["train/loss"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=240, help="training clips")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--size", default="tiny", help="published size of CED")
    parser.add_argument("--rounds", type=int, default=3, help="trials of either way that are compared")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    experiment = frozen(options.clips, options.epochs, options.size)
    with tempfile.TemporaryDirectory() as home:
        started = time.perf_counter()
        prepare(experiment, Path(home), use_ray=False, echo=lambda message: None)
        print(f"data made, decoded and encoded once: {time.perf_counter() - started:.1f} s")
        # What the first trial of a process imports is nobody's cost.
        trial(experiment, Path(home))
        read, encoded = [], []
        for _ in range(options.rounds):
            seconds, loss = trial(experiment, Path(home))
            seconds_anew, loss_anew = trial(experiment, Path(home), is_anew=True)
            assert abs(loss - loss_anew) < 1e-4 * abs(loss_anew), (loss, loss_anew)
            read.append(seconds)
            encoded.append(seconds_anew)
        here, there = statistics.median(read), statistics.median(encoded)
        compared("a trial on vectors of frozen towers", here, there, "encoding at every step", unit="s", at_most=0.5)
        print(
            f"a trial of {options.epochs} epochs: {here:.2f} s on vectors, {there:.1f} s on audio and text, {there / here:.0f} x"
        )
        points = [
            override(experiment, {"objective.scheme": scheme, "objective.pair": pair})
            for scheme in SCHEMES
            for pair in PAIRS
            if pair in COMPARED
        ]
        costs = [trial(point, Path(home))[0] for point in points]
        print(f"a sweep of {len(points)} objectives: {sum(costs):.1f} s, at most {max(costs):.2f} s a trial")


if __name__ == "__main__":
    main()
