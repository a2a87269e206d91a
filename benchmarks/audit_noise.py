"""What an audit finds of injected noise: vectors of clips and captions, several seeds.

    uv run python benchmarks/audit_noise.py --vectors VECTORS

VECTORS is what `make_vectors.py` or `make_soundscape_vectors.py` wrote, with captions in K languages.
The kinds are those of `data.noise`: pair, near and shift of English captions, language of captions in K languages, and
caption, where K captions a clip are wrong each by itself. In `apart` three languages are wrong each by itself: none of the first,
a quarter of the ratio of the second, all of it of the third.
Precision and recall are of the pairs called wrong at the stated share of false alarms; by chance the precision would be
the share of wrong pairs. `of clean`: how many of the called are in languages without a wrong pair. `area`: under the
posterior's ROC curve. `calibration error`: of the posterior, mean over languages.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pair_sets import PairSet, owners, paired, read_set
from sklearn.metrics import roc_auc_score

from ray_atr.metrics.calibration import expected_calibration_error
from ray_atr.workshop.audit.options import CrossFit
from ray_atr.workshop.audit.score import audit_pairs

KINDS = ("pair", "near", "shift", "language", "caption", "apart")
HEAD = ("wrong", "share found", "called", "of clean", "precision", "recall", "area", "calibration error")


def found(clips: PairSet, owner: NDArray[np.int64], rate: float, seed: int) -> list[float]:
    """The figures of `HEAD` for clips that have the captions of clips [N, k]."""
    pairs, is_wrong = paired(clips, owner)
    result = audit_pairs(pairs, CrossFit(seed=seed))
    called = result.flagged(rate)
    columns = [pairs.language == one for one in np.unique(pairs.language)]
    errors = [expected_calibration_error(result.posteriors.wrong[one], is_wrong[one]) for one in columns]
    recall = (called & is_wrong).sum() / is_wrong.sum()
    return [
        is_wrong.mean(),
        result.posteriors.wrong_share,
        called.sum(),
        sum(called[one].sum() for one in columns if not is_wrong[one].any()),
        (called & is_wrong).sum() / max(1, called.sum()),
        recall,
        roc_auc_score(is_wrong, result.posteriors.wrong),
        float(np.mean(errors)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--ratios", nargs="+", type=float, default=(0.1, 0.2, 0.4))
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    clips = read_set(options.vectors)
    print("| kind | ratio | " + " | ".join(HEAD) + " |\n| --- |" + " ---: |" * (1 + len(HEAD)))
    for kind in options.kinds:
        for ratio in options.ratios:
            rows = [
                found(clips, owners(kind, ratio, clips.captions, len(clips.languages), seed), options.rate, seed)
                for seed in range(options.seeds)
            ]
            print(
                f"| {kind} | {ratio} | " + " | ".join(f"{value:.3f}" for value in np.mean(rows, axis=0)) + " |",
                flush=True,
            )


if __name__ == "__main__":
    main()
