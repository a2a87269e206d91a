"""The reality check with the luck of tuning in its intervals: each seed validates on clips of its own and is tuned by itself.

    uv run python benchmarks/tuned_draws.py --vectors VECTORS --out FOLDER [--seeds 0 1 2 3 4] [--tune 8] [--noise 0 0.4 0.6 0.8]

VECTORS is ESC-50 as `make_vectors.py` writes it. For each seed three clips a class, all clips of a recording together, are drawn
from those that train or validate; they tune every method and choose its epochs. The test clips are the same for all. A seed that
is finished is not run again, and seeds may run side by side, each by a command of its own; the table is of all that are finished,
and its note names the others.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from make_vectors import held_out
from pair_sets import PairSet, prepare, read_set, write_splits

from ray_atr.cli import main as ray_atr
from ray_atr.papers.methods import ON_ANY_DATA
from ray_atr.papers.reality_check import MethodTrials, TrialsOfMethods, draw, page_table, read_trials, table
from ray_atr.training.run_folder import RunFolder

METRIC, MEASURED = "audio_to_text/eng/recall_at_1", "class accuracy (audio to text R@1)"


def validating(clips: PairSet, seed: int) -> set[str]:
    """The ids of three clips a class, or of as many fewer as whole recordings allow, that do not test."""
    recordings: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for first, *_ in clips.tables:
        if first["split"] != "test":
            recordings[first["label"]][first["clip_id"].split("-")[1]].append(first["clip_id"])
    generator = np.random.default_rng(seed)
    found: set[str] = set()
    for _, of_class in sorted(recordings.items()):
        found.update(held_out(of_class, generator.permutation(sorted(of_class))))
    return found


def write_draw(clips: PairSet, seed: int, file: Path) -> None:
    """The table of pairs with the seed's clips to validate on."""
    chosen = validating(clips, seed)

    def split_of(row: dict[str, str]) -> str:
        return row["split"] if row["split"] == "test" else "val" if row["clip_id"] in chosen else "train"

    write_splits(clips, split_of, file)


def run_seed(vectors: Path, clips: PairSet, seed: int, folder: Path, given: argparse.Namespace) -> None:
    """Tunes and trains every method with one seed; what is there already is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    data, run = folder / "data", folder / "run"
    if not (data / "manifest.json").exists():
        write_draw(clips, seed, folder / "pairs.csv")
        prepare(vectors, folder / "pairs.csv", data)
    settings = [
        "--recipe",
        "vectors",
        "--data.source",
        str(data),
        "--data.languages",
        "eng",
        "--evaluation.select_by",
        METRIC,
    ]
    place = ["--resume" if (run / "sweep.json").exists() else "--out", str(run)]
    compared = [
        "--methods",
        *given.methods,
        "--noise",
        *map(str, given.noise),
        "--seeds",
        str(seed),
        "--tune",
        str(given.tune),
    ]
    ray_atr("sweep", "correspondence", arguments=["--ray", "never", "--no-figures", *settings, *place, *compared])


def is_finished(run: RunFolder) -> bool:
    """Whether a seed's trials have all finished; another command may have made the run and not its trials yet."""
    trials = list(run.trials())
    return bool(trials) and all(trial.is_finished for trial in trials)


def together(runs_by_method: Sequence[TrialsOfMethods]) -> dict[tuple[str, str, float], MethodTrials]:
    """The trials of all seeds as one comparison. ValueError if they were not tested on the same clips."""
    found = {}
    for key in dict.fromkeys(key for one in runs_by_method for key in one):
        trials = [one[key] for one in runs_by_method if key in one]
        if not all(np.array_equal(one.clip, trials[0].clip) for one in trials):
            raise ValueError(f"{key}: the runs have different test clips")
        found[key] = MethodTrials(
            hits=np.concatenate([one.hits for one in trials]),
            clip=trials[0].clip,
            seeds=tuple(seed for one in trials for seed in one.seeds),
            last=float(np.mean([one.last for one in trials])),
            seconds=float(np.mean([one.seconds for one in trials])),
            curves={name: np.mean([one.curves[name] for one in trials], axis=0) for name in trials[0].curves},
        )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=range(5))
    parser.add_argument("--tune", type=int, default=8)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 0.4, 0.6, 0.8])
    parser.add_argument("--methods", nargs="+", default=ON_ANY_DATA)
    given = parser.parse_args(arguments)
    clips = read_set(given.vectors)
    for seed in given.seeds:
        run_seed(given.vectors, clips, seed, given.out / f"seed-{seed}", given)
    runs = [RunFolder.open(file.parent) for file in sorted(given.out.glob("seed-*/run/sweep.json"))]
    finished = [run for run in runs if is_finished(run)]
    read = [read_trials(run) for run in finished]
    left_out = [f"{run.path}: not finished" for run in runs if run not in finished]
    left_out += [line for one in read for line in one.left_out]
    runs_by_method = together([one.methods for one in read])
    if not runs_by_method:
        raise SystemExit("\n".join([f"{given.out}: no seed is finished", *left_out]))
    found = table(runs_by_method)
    found.to_csv(given.out / "reality_check.csv", index=False)
    queries = next(iter(runs_by_method.values())).hits.shape[1]
    text = page_table(found, MEASURED, queries, left_out).to_markdown()
    (given.out / "reality_check.md").write_text(text, encoding="utf-8")
    draw(runs_by_method, given.out / "reality_check.png", MEASURED)
    print(text)


if __name__ == "__main__":
    main()
