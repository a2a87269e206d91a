"""The share of true pairs that a run estimates before its first epoch, against the truth, by set, noise ratio and draw.

    uv run python benchmarks/clean_share.py --recipe quickstart --languages eng fra
    uv run python benchmarks/clean_share.py --recipe from_scratch --languages deu --set data.soundscapes.seed=1
    uv run python benchmarks/clean_share.py --recipe vectors --languages eng jpn cat --set data.source=data/vectors

Nothing is trained. A line for each language: the estimate, the truth, and the share of the true pairs that were found; then a
table of the estimates by ratio, and those that are more than 0.05 off. Where a run finds no more than chance, it has no estimate:
`unknown`.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import defaultdict
from pathlib import Path

import torch

from ray_atr.common.override import override
from ray_atr.training.batch import TrainingData
from ray_atr.training.correspondence import estimate_clean_shares, what_is_read
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import prepare
from ray_atr.training.languages import with_languages
from ray_atr.training.recipes import RECIPES
from ray_atr.training.setup import first_state

NOISE, GOAL = (0.0, 0.2, 0.4, 0.6, 0.8), 0.05
AUTO = {
    "objective.scheme": "kcl",
    "objective.pair": "partial_learning_to_match",
    "objective.pair.transport_mass": "auto",
    "objective.pair.metric": "euclidean",
}


def training_data(experiment: Experiment, home: Path) -> TrainingData:
    """The training split with its wrong captions, as a run reads it."""
    prepared = prepare(experiment, home, use_ray=False, echo=lambda message: None)
    return TrainingData(with_languages(experiment), prepared, WorkerGroup())


def estimated(experiment: Experiment, home: Path) -> list[tuple[str, float, float, float]]:
    """By language: what is estimated before the first epoch, what is true, and the share found (0: nothing is estimated)."""
    data = training_data(experiment, home)
    experiment, captions = data.experiment, data.captions
    with tempfile.TemporaryDirectory() as folder:
        state = first_state(data, Path(folder))
    shares = state.estimator.clean_shares
    assert shares is not None, "the objective asks for the share"
    reads = what_is_read(experiment, captions)
    estimate_clean_shares(shares, state.retriever, captions, experiment, reads)
    found = []
    for k, language in enumerate(captions.languages):
        truth = captions.truth[:, :, k][captions.has_caption[:, :, k]].mean()
        found.append((language, float(shares.shares[k]), float(truth), float(shares.found_shares[k])))
    return found


def shown(share: float, truth: float) -> str:
    return f"{'unknown' if math.isnan(share) else f'{share:.3f}'} of {truth:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", choices=tuple(RECIPES), default="quickstart", metavar="RECIPE")
    parser.add_argument("--languages", nargs="+", default=["eng"], metavar="LANGUAGE")
    parser.add_argument("--noise", nargs="+", type=float, default=list(NOISE), metavar="RATIO")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--set", nargs="*", default=[], metavar="PATH=VALUE", help="further settings")
    parser.add_argument("--home", type=Path, default=Path(".cache"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    given = dict(one.split("=", 1) for one in options.set)
    cells: dict[tuple[str, float], list[tuple[float, float]]] = defaultdict(list)
    for ratio in options.noise:
        for seed in options.seeds:
            changes = {**AUTO, "data.languages": ",".join(options.languages), **given, "data.noise.ratio": ratio}
            experiment = override(RECIPES[options.recipe](), {**changes, "seed": seed})
            for language, share, truth, found in estimated(experiment, options.home):
                cells[language, ratio].append((share if found else math.nan, truth))
                print(
                    f"{language} {ratio:g}, seed {seed}: {shown(*cells[language, ratio][-1])}, {found:.2f} found",
                    flush=True,
                )
    print("\n| language | " + " | ".join(f"{ratio:g}" for ratio in options.noise) + " |")
    print("| --- |" + " --- |" * len(options.noise))
    for language in options.languages:
        row = [", ".join(shown(*pair) for pair in cells[language, ratio]) for ratio in options.noise]
        print(f"| {language} | " + " | ".join(row) + " |")
    everything = [(key, e - t) for key, pairs in cells.items() for e, t in pairs]
    errors = [(key, error) for key, error in everything if not math.isnan(error)]
    missed = [f"{language} {ratio:g} ({error:+.3f})" for (language, ratio), error in errors if abs(error) > GOAL]
    print(f"\n{len(missed)} of {len(errors)} more than {GOAL:g} off: {', '.join(missed) or 'none'}")
    print(f"{len(everything) - len(errors)} unknown")


if __name__ == "__main__":
    main()
