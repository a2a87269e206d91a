"""Validation: ranked by a learned metric against cosine, and beside training against between two epochs.

    uv run python benchmarks/bench_validation.py ranking
    uv run python benchmarks/bench_validation.py beside

ranking  a whole validation ranked by a learned metric against the same ranked by cosine, in turn in one process. `an epoch`:
         encoding and scoring the synthetic validation split with the small towers, in eight languages. `scoring`: what is left
         if encoding costs nothing, 2,500 captions of 500 clips of random unit rows, 512 wide.
beside   seconds of an epoch of a trial with one Ray Train worker of one CPU, with `scaling.validate_beside` and without. The
         process that validates has the other CPU. The first epoch, in which that process starts, is left out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import torch
import tyro
from side_by_side import compared, cpu_milliseconds

from ray_atr.common.override import override
from ray_atr.common.ranking import RankingSettings
from ray_atr.common.runtime import start_ray
from ray_atr.data.features import open_features
from ray_atr.metrics import evaluate_languages
from ray_atr.models.retriever import build_retriever
from ray_atr.objectives.pairs.learned import initial_metric
from ray_atr.training.checkpoint import load_checkpoint
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import prepare
from ray_atr.training.languages import with_languages
from ray_atr.training.ray_train import run_trial
from ray_atr.training.recipes import RECIPES
from ray_atr.training.run_folder import LAST
from ray_atr.training.validation import evaluate_split

GOAL = 1.1
CAPTIONS, CLIPS, WIDTH = 2500, 500, 512


Home = Annotated[Path | None, tyro.conf.arg(help="folder for the data (default: a temporary one)")]


@dataclass(frozen=True)
class Ranking:
    """Measure what ranking by a learned metric adds to a validation."""

    home: Home = None
    rounds: int = 15

    def measure(self, home: Path) -> None:
        torch.set_num_threads(1)
        show("whole validation, small towers", of_an_epoch(home), self.rounds, GOAL)
        show(f"scoring alone, {CAPTIONS} x {CLIPS}, {WIDTH} wide", of_scoring(), self.rounds, None)


@dataclass(frozen=True)
class Beside:
    """Measure what validation beside training saves."""

    home: Home = None
    epochs: int = 6
    clips: Annotated[int, tyro.conf.arg(help="in training and in the validation split")] = 400

    def measure(self, home: Path) -> None:
        start_ray(num_cpus=2)
        beside, between = (seconds_of_an_epoch(home, self, is_beside=is_beside) for is_beside in (True, False))
        what = f"an epoch of {self.clips} clips with a validation of as many, in eight languages"
        compared(what, 1e3 * beside, 1e3 * between, "validation between epochs", at_most=1.0)
        print(f"{what}: beside {beside:.2f} s, between {between:.2f} s, ratio {beside / between:.3f}", flush=True)


def main() -> None:
    options = tyro.extras.subcommand_cli_from_dict({"ranking": Ranking, "beside": Beside})
    with tempfile.TemporaryDirectory() as aside:
        options.measure(options.home or Path(aside))


def seconds_of_an_epoch(home: Path, options: Beside, *, is_beside: bool) -> float:
    """The mean over the epochs after the first: steps, waiting for data and validation, and checkpoints."""
    sizes = {f"data.soundscapes.num_{split}": options.clips for split in ("train", "val")}
    changes = {"train.epochs": options.epochs, "scaling.workers": 1, "scaling.validate_beside": is_beside, **sizes}
    experiment = with_languages(override(RECIPES["from_scratch"](), {**changes, "tracking.mlflow": False}))
    prepare(experiment, home, use_ray=False, echo=lambda message: None)
    folder = home / f"run-{is_beside}"
    run_trial(experiment, folder, home, [], print)
    rows = load_checkpoint(folder / LAST)["progress"]["history"]
    of_epochs = [
        later["seconds/train"]
        - row["seconds/train"]
        + later.get("seconds/validation", 0.0)
        + later["seconds/checkpoint"]
        for row, later in pairwise(rows)
    ]
    return sum(of_epochs) / len(of_epochs)


def of_an_epoch(home: Path) -> dict[str, Callable[[], object]]:
    """A validation as it is at the end of an epoch of small towers from scratch, by ranking."""
    experiment = with_languages(override(RECIPES["from_scratch"](), {"objective": "m_ltm"}))
    prepared = prepare(experiment, home, use_ray=False, echo=lambda message: None)
    features = open_features(prepared.features, experiment.data.validation_split)

    def validate(ranking: str) -> Callable[[], object]:
        retriever = build_retriever(
            experiment.model,
            tokenizer=prepared.load_tokenizer(),
            learned=experiment.learned,
            ranking=RankingSettings(ranking=ranking),
            seed=0,
        )
        texts, group = TextBatcher(retriever), WorkerGroup()
        limit = experiment.evaluation.validation_captions
        return lambda: evaluate_split(retriever, texts, features, experiment, group, max_captions=limit)

    return {ranking: validate(ranking) for ranking in ("learned", "cosine")}


def of_scoring() -> dict[str, Callable[[], object]]:
    """The scoring of one language, by ranking."""
    generator = torch.Generator().manual_seed(0)
    audio = torch.nn.functional.normalize(torch.randn(CLIPS, WIDTH, generator=generator), dim=1)
    clip = torch.arange(CAPTIONS) % CLIPS
    noise = torch.nn.functional.normalize(torch.randn(CAPTIONS, WIDTH, generator=generator), dim=1)
    text = {"eng": torch.nn.functional.normalize(audio[clip] + 6.0 * noise, dim=1)}
    metric = initial_metric("mahalanobis", WIDTH)
    return {
        ranking: lambda ranking=ranking: evaluate_languages(audio, text, clip, ranking=ranking, metric=metric)  # type: ignore[misc]
        for ranking in ("learned", "cosine")
    }


def show(what: str, contenders: dict[str, Callable[[], object]], rounds: int, goal: float | None) -> None:
    took = cpu_milliseconds(contenders, rounds)
    ratio = compared(what, took["learned"], took["cosine"], "cosine", at_most=goal)
    told = "" if goal is None else f" (at most {goal})"
    print(
        f"{what}: learned {took['learned']:.1f}, cosine {took['cosine']:.1f} CPU ms, ratio {ratio:.3f}{told}",
        flush=True,
    )


if __name__ == "__main__":
    main()
