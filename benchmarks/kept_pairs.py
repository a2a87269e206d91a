"""What training on an audit's kept captions is worth: vectors of ESC-50 in eight languages, several seeds.

    uv run python benchmarks/kept_pairs.py --vectors VECTORS --out FOLDER

For each share of wrong captions and seed: training clips get another clip's captions, the set is audited, and
`audit --keep 0.05` writes the captions of which at most 5% are wrong. The recipe `vectors` is then trained on all captions,
on the kept ones and on the right ones alone, which is what `oracle` sees. Each is tested on clips and captions as they are.
VECTORS is as in `audit_noise.py`; its captions are in the eight languages of `make_vectors.py`.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from audit_noise import owners
from make_vectors import COLUMNS, LANGUAGES, splits_of
from numpy.typing import NDArray

from ray_atr.cli import main as ray_atr
from ray_atr.data.schema import to_clips
from ray_atr.data.shards import Manifest, read_shard
from ray_atr.evaluation.report.tables import read_scores
from ray_atr.metrics.bootstrap import compare_runs
from ray_atr.metrics.metric import MEAN, Metric
from ray_atr.metrics.samples import Samples
from ray_atr.training.run_folder import TEST_SCORES, RunFolder
from ray_atr.workshop.audit.decisions import keep_certified
from ray_atr.workshop.audit.options import AuditOptions
from ray_atr.workshop.audit.run import audit_data_set
from ray_atr.workshop.languages.templates import ESC50_CLASSES, caption

SETS = ("all", "kept", "right")
RECALLS = [Metric(direction, MEAN, "recall_at_1") for direction in ("text_to_audio", "audio_to_text")]
KEEP = 0.05
TRAINED = ["--data.languages", ",".join(LANGUAGES)]


def write_table(
    clips: Sequence[Mapping[str, str]], labels: NDArray[np.int64], is_left_out: NDArray[np.bool_], file: Path
) -> None:
    """The table of pairs in which clip n has the captions of class `labels[n]`, unless it is left out."""
    split = splits_of(clips)
    with file.open("w", newline="", encoding="utf-8") as output:
        rows = csv.writer(output)
        rows.writerow(COLUMNS)
        for number, one in enumerate(clips):
            if is_left_out[number]:
                continue
            name, label = one["filename"], int(labels[number])
            for column, language in enumerate(LANGUAGES):
                words = caption(ESC50_CLASSES[label], language)
                row = [number, label * len(LANGUAGES) + column, words, language, split[name], Path(name).stem]
                rows.writerow([*row, one["category"]])


def prepared(
    folder: Path,
    vectors: Path,
    clips: Sequence[Mapping[str, str]],
    labels: NDArray[np.int64],
    left_out: NDArray[np.bool_],
) -> Path:
    """The data set of these pairs, in `folder`."""
    folder.mkdir(parents=True)
    table = folder / "pairs.csv"
    write_table(clips, labels, left_out, table)
    given = ["--audio", str(vectors / "esc50_audio_aisfx.npy"), "--text", str(folder.parent.parent / "text.npy")]
    ray_atr("prepare", "vectors", arguments=[*given, "--table", str(table), "--out", str(folder / "data")])
    return folder / "data"


def kept_shares(
    kept: Manifest, clips: Sequence[Mapping[str, str]], is_wrong: NDArray[np.bool_]
) -> tuple[float, float, float]:
    """(share of the captions that are wrong, share of the right ones that are kept, share of the kept ones that are wrong)."""
    split, number = splits_of(clips), {Path(one["filename"]).stem: n for n, one in enumerate(clips)}
    trained = np.array([split[one["filename"]] == "train" for one in clips])
    captions = np.zeros(len(clips))
    for shard in kept.shards_of("train"):
        for clip in itertools.chain.from_iterable(map(to_clips, read_shard(kept, shard))):
            captions[number[clip.clip_id]] = sum(map(len, clip.captions.values()))
    right = captions[~is_wrong].sum() - captions[~trained].sum()
    share_of_right = right / (len(LANGUAGES) * (trained & ~is_wrong).sum())
    return is_wrong[trained].mean(), share_of_right, captions[is_wrong].sum() / captions.sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kinds", nargs="+", choices=("pair", "near"), default=("pair",))
    parser.add_argument("--ratios", nargs="+", type=float, default=(0.2, 0.4, 0.6))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    np.save(
        options.out / "text.npy", np.load(options.vectors / "esc50_text_use.npy").reshape(len(ESC50_CLASSES) * 8, -1)
    )
    with (options.vectors / "esc50_clips.csv").open(newline="") as file:
        clips = list(csv.DictReader(file))
    labels = np.array([int(row["target"]) for row in clips])
    split = splits_of(clips)
    is_trained = np.array([split[row["filename"]] == "train" for row in clips])
    head = [
        "kind",
        "ratio",
        "wrong",
        "right kept",
        "kept wrong",
        "R@1 of",
        "all",
        "kept",
        "right alone",
        "kept less right alone",
    ]
    print(f"| {' | '.join(head)} |\n| --- |" + " ---: |" * (len(head) - 1))
    for kind in options.kinds:
        for ratio in options.ratios:
            shares = []
            samples: dict[str, list[Samples]] = {name: [] for name in SETS}
            for seed in range(options.seeds):
                folder = options.out / f"{kind}-{ratio}-{seed}"
                folder.mkdir()
                assigned = labels.copy()
                trained = np.flatnonzero(is_trained)
                assigned[trained] = labels[trained][owners(kind, ratio, labels[trained], 1, seed)[:, 0]]
                is_wrong = assigned != labels
                none = np.zeros_like(is_wrong)
                data = {
                    "all": prepared(folder / "all", options.vectors, clips, assigned, none),
                    "right": prepared(folder / "right", options.vectors, clips, labels, is_wrong),
                }
                audit = audit_data_set(str(data["all"]), None, folder / "audit", AuditOptions())
                kept = keep_certified(audit, KEEP, folder / "kept").manifest
                data["kept"] = Path(str(kept.folder))
                shares.append(kept_shares(kept, clips, is_wrong))
                for name in SETS:
                    run = folder / "runs" / name
                    words = ["--recipe", "vectors", "--data.source", str(data[name]), "--seed", str(seed), *TRAINED]
                    ray_atr("train", arguments=[*words, "--ray", "never", "--quiet", "--out", str(run)])
                    (trial,) = RunFolder.open(run).trials()
                    samples[name].append(read_scores(trial.folder / TEST_SCORES))
            wrong, kept_right, kept_wrong = np.mean(shares, axis=0)
            of_all = compare_runs(samples["right"], samples["all"])
            of_kept = compare_runs(samples["right"], samples["kept"])
            for recall in RECALLS:
                found = of_kept[recall]
                cells = [kind, str(ratio), f"{wrong:.3f}", f"{kept_right:.3f}", f"{kept_wrong:.3f}", recall.task]
                cells += [f"{100 * value:.1f}" for value in (of_all[recall].second, found.second, found.first)]
                cells += [f"{100 * found.value:+.1f} ({100 * found.low:+.1f}, {100 * found.high:+.1f})"]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
