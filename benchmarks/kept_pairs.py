"""What is gained by training on the captions that an audit keeps: vectors of clips and captions, several seeds.

    uv run python benchmarks/kept_pairs.py --vectors VECTORS --out FOLDER

For each share of wrong captions and seed: training clips get another clip's captions, the set is audited, and
`audit --keep 0.05` writes the captions of which at most 5% are wrong. The recipe `vectors` is then trained on all captions,
on the kept ones and on the right ones alone, which is what `oracle` sees; and on all and on the kept ones with
`leave_one_out`. Each is tested on clips and captions as they are. VECTORS is as in `audit_noise.py`.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import numpy as np
from make_vectors import COLUMNS, write_set
from numpy.typing import NDArray
from pair_sets import PairSet, owners, prepare, read_set

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

RIGHT = "right alone"
WEIGHED = ("--objective.correspondence", "leave_one_out")
TRAININGS: dict[str, tuple[str, tuple[str, ...]]] = {
    RIGHT: (RIGHT, ()),
    "all": ("all", ()),
    "kept": ("kept", ()),
    "all, leave_one_out": ("all", WEIGHED),
    "kept, leave_one_out": ("kept", WEIGHED),
}
"""Name -> what is trained on, and with which options."""
RECALLS = [Metric(direction, MEAN, "recall_at_1") for direction in ("text_to_audio", "audio_to_text")]
KEEP = 0.05
OF_CLIP = ("audio_row", "split", "clip_id", "label")
"""Columns that stay with the clip, whichever captions it has."""


def prepared(
    folder: Path, vectors: Path, clips: PairSet, owner: NDArray[np.int64], left_out: NDArray[np.bool_]
) -> Path:
    """The data set, in `folder`, in which clip n has the captions of clip `owner[n]`, unless it is left out."""
    folder.mkdir(parents=True)
    rows = [
        [{**of_owner, **{name: own[name] for name in OF_CLIP}}[column] for column in COLUMNS]
        for n, of_clip in enumerate(clips.tables)
        if not left_out[n]
        for own, of_owner in zip(of_clip, clips.tables[owner[n]], strict=True)
    ]
    write_set(rows, folder / "pairs.csv")
    prepare(vectors, folder / "pairs.csv", folder / "data")
    return folder / "data"


def kept_shares(
    kept: Manifest, clips: PairSet, is_trained: NDArray[np.bool_], is_wrong: NDArray[np.bool_]
) -> tuple[float, float, float]:
    """(share of the captions that are wrong, share of the right ones that are kept, share of the kept ones that are wrong)."""
    number = {rows[0]["clip_id"]: n for n, rows in enumerate(clips.tables)}
    captions = np.zeros(len(number))
    for shard in kept.shards_of("train"):
        for clip in itertools.chain.from_iterable(map(to_clips, read_shard(kept, shard))):
            captions[number[clip.clip_id]] = sum(map(len, clip.captions.values()))
    share_of_right = captions[~is_wrong].sum() / (len(clips.languages) * (is_trained & ~is_wrong).sum())
    return is_wrong[is_trained].mean(), share_of_right, captions[is_wrong].sum() / captions.sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kinds", nargs="+", choices=("pair", "near"), default=("pair",))
    parser.add_argument("--ratios", nargs="+", type=float, default=(0.2, 0.4, 0.5))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    clips = read_set(options.vectors)
    is_trained = np.array([rows[0]["split"] == "train" for rows in clips.tables])
    trained, everyone = np.flatnonzero(is_trained), np.arange(len(clips.tables))
    captions = [clips.captions[n] for n in trained]
    head = ["kind", "ratio", "wrong", "right kept", "kept wrong", "R@1 of", "trained on", "R@1", f"less {RIGHT}"]
    print(f"| {' | '.join(head)} |\n| --- |" + " ---: |" * (len(head) - 1))
    for kind in options.kinds:
        for ratio in options.ratios:
            shares = []
            samples: dict[str, list[Samples]] = {name: [] for name in TRAININGS}
            for seed in range(options.seeds):
                folder = options.out / f"{kind}-{ratio}-{seed}"
                folder.mkdir()
                owner = everyone.copy()
                owner[trained] = trained[owners(kind, ratio, captions, 1, seed)[:, 0]]
                is_wrong = clips.text_row[owner, 0] != clips.text_row[:, 0]
                none = np.zeros_like(is_wrong)
                data = {
                    "all": prepared(folder / "all", options.vectors, clips, owner, none),
                    RIGHT: prepared(folder / "right", options.vectors, clips, everyone, is_wrong),
                }
                audit = audit_data_set(str(data["all"]), None, folder / "audit", AuditOptions())
                kept = keep_certified(audit, KEEP, folder / "kept").manifest
                data["kept"] = Path(str(kept.folder))
                shares.append(kept_shares(kept, clips, is_trained, is_wrong))
                for name, (trained_on, chosen) in TRAININGS.items():
                    run = folder / "runs" / name
                    words = [
                        "--recipe",
                        "vectors",
                        "--data.source",
                        str(data[trained_on]),
                        "--seed",
                        str(seed),
                        *chosen,
                    ]
                    words += ["--data.languages", ",".join(clips.languages)]
                    ray_atr("train", arguments=[*words, "--ray", "never", "--quiet", "--out", str(run)])
                    (trial,) = RunFolder.open(run).trials()
                    samples[name].append(read_scores(trial.folder / TEST_SCORES))
            wrong, kept_right, kept_wrong = np.mean(shares, axis=0)
            differences = {name: compare_runs(samples[RIGHT], of_name) for name, of_name in samples.items()}
            for recall, name in itertools.product(RECALLS, TRAININGS):
                found = differences[name][recall]
                cells = [kind, str(ratio), f"{wrong:.3f}", f"{kept_right:.3f}", f"{kept_wrong:.3f}", recall.task, name]
                cells += [f"{100 * found.second:.1f}"]
                cells += [
                    ""
                    if name == RIGHT
                    else f"{100 * found.value:+.1f} ({100 * found.low:+.1f}, {100 * found.high:+.1f})"
                ]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
