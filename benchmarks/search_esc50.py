"""Searches an archive of ESC-50's fold 4 in eight languages: precision@10, and how often an absent class gets no answer.

    uv run python benchmarks/search_esc50.py VECTORS OUT [--epochs 60]

VECTORS is what `make_vectors.py` wrote. `ray-atr prepare vectors`, `train --recipe vectors` on folds 1 and 2, `evaluate
--calibrate` on fold 3 and `index build` on fold 4. A query is a class's caption in a language. 8 of the 400 clips are of its
class, so precision@10 is .8 at most.

Absent classes: fifths of the classes are taken out of the archive in turn, and every class is asked for with `--or-nothing`, by
a rule that was fitted on fold 3, with `--false-nothing` stated. Intervals are over classes, by bootstrap.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pair_sets import PairSet, prepare, read_set, write_splits

from ray_atr.common.language_codes import DEFAULT_LANGUAGES as LANGUAGES
from ray_atr.deploy.index.build import build_index
from ray_atr.deploy.index.opened import Index
from ray_atr.metrics.bootstrap import bootstrap_runs
from ray_atr.metrics.metric import QueryGroup
from ray_atr.metrics.nothing import FALSE_SHARE
from ray_atr.metrics.samples import Sample
from ray_atr.models.retriever import Retriever
from ray_atr.training.run_folder import saved_retriever
from ray_atr.workshop.languages.templates import ESC50_CLASSES, caption

SPLITS = {"1": "train", "2": "train", "3": "val", "4": "test"}
"""Fold, with which a clip's name begins -> split."""
PARTS = 5
Found = NDArray[np.float64]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vectors", type=Path, help="folder of audio.npy, text.npy and pairs.csv")
    parser.add_argument("out", type=Path, help="folder for all that is made")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--false-nothing", type=float, default=FALSE_SHARE, help="share of `evaluate --calibrate`")
    given = parser.parse_args(arguments)
    # What is there is not made again; another training has its own data set, run and indexes.
    out = given.out / f"epochs-{given.epochs}"
    out.mkdir(parents=True, exist_ok=True)
    clips = read_set(given.vectors)
    run = train(given.vectors, out, clips, given.epochs)
    calibrate = ["--calibrate", "--false-nothing", given.false_nothing, "--split", "val", "--ray", "never"]
    # Made each time: another share may have replaced the retriever's calibration.
    evaluation = out / "calibrated"
    shutil.rmtree(evaluation, ignore_errors=True)
    command("evaluate", "--checkpoint", run, *calibrate, "--out", evaluation)
    retriever = Retriever.from_pretrained(str(saved_retriever(str(run), "--checkpoint")))
    archive = np.array([row for row, (first, *_) in enumerate(clips.tables) if split_of(first) == "test"])
    target = np.array([ESC50_CLASSES.index(first["label"]) for first, *_ in clips.tables])
    vectors = retriever.encode_audio(list(clips.audio)).numpy()
    whole = open_index(run, vectors[archive], out / "fold4")
    classes = range(len(ESC50_CLASSES))
    queries = {(number, code): caption(ESC50_CLASSES[number], code) for number in classes for code in LANGUAGES}
    for code in LANGUAGES:
        hits = [precision(whole, queries[number, code], code, target[archive], number) for number in classes]
        print(f"{code}: precision@10 {shown(np.array(hits))} of .8")
    there, absent = nothing_of_parts(run, vectors, archive, target, queries, out / "parts")
    for place, code in enumerate(LANGUAGES):
        print(f"{code}: nothing for absent classes {shown(absent[:, place])}, there {shown(there[:, place])}")
    print(f"all: nothing for absent classes {shown(absent.mean(1))}, there {shown(there.mean(1))}")


def split_of(row: dict[str, str]) -> str:
    return SPLITS[row["clip_id"].partition("-")[0]]


def train(vectors: Path, out: Path, clips: PairSet, epochs: int) -> Path:
    """The run folder, made or continued unless it is finished."""
    data, run = out / "data", out / "run"
    if not (data / "manifest.json").exists():
        write_splits(clips, split_of, out / "pairs.csv")
        prepare(vectors, out / "pairs.csv", data)
    learned = {"train.epochs": epochs, "objective.scheme": "kcl", "data.positives": "labels"}
    settings = [part for name, value in learned.items() for part in (f"--{name}", value)]
    place = "--resume" if (run / "sweep.json").exists() else "--out"
    command("train", "--recipe", "vectors", "--ray", "never", "--data.source", data, *settings, place, run)
    return run


def command(*arguments: object) -> None:
    """One command of this package, as a person would type it."""
    subprocess.run([sys.executable, "-m", "ray_atr", *map(str, arguments)], check=True)


def open_index(run: Path, vectors: NDArray[np.float32], place: Path) -> Index:
    """An index of vectors of the retriever's own space."""
    if not place.exists():
        file = place.with_suffix(".npy")
        np.save(file, vectors)
        build_index(str(run), str(file), str(place))
    return Index.open(place)


def precision(index: Index, text: str, language: str, target: NDArray[np.int64], wanted: int) -> float:
    found = index.search(text, language, top=10)
    return float(np.mean([target[int(one.path)] == wanted for one in found]))


def nothing_of_parts(
    run: Path,
    vectors: NDArray[np.float32],
    rows: NDArray[np.int64],
    target: NDArray[np.int64],
    queries: dict[tuple[int, str], str],
    place: Path,
) -> tuple[Found, Found]:
    """Whether nothing was found [classes, languages] where the class is there, and where it is not."""
    classes = sorted({number for number, _ in queries})
    part_of = np.random.default_rng(0).permutation(np.arange(len(classes)) % PARTS)
    there, absent = np.zeros((2, len(classes), len(LANGUAGES)))
    place.mkdir(exist_ok=True)
    for part in range(PARTS):
        kept = rows[part_of[target[rows]] != part]
        index = open_index(run, vectors[kept], place / f"without{part}")
        for number in classes:
            is_absent = part_of[number] == part
            if not is_absent and part_of[number] != (part + 1) % PARTS:
                continue  # each class is asked for once where it is, and once where it is not
            for column, code in enumerate(LANGUAGES):
                found = index.search(queries[number, code], code, top=1, or_nothing=True)
                (absent if is_absent else there)[number, column] = not found
    return there, absent


def shown(values: NDArray[np.floating | np.bool_]) -> str:
    """The mean over classes with its 95% interval."""
    classes = np.arange(len(values))
    sample = Sample(classes, classes, {"mean": values.astype(np.float64)}, {})
    found = next(iter(bootstrap_runs([{QueryGroup("queries", "classes"): sample}]).values()))
    return f"{found.value:.3f} ({found.low:.3f}, {found.high:.3f})"


if __name__ == "__main__":
    main()
