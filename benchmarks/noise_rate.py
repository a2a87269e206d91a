"""Whether the audit's noise rate and certified subset keep what they state: intervals, bounds and kept sets of many audits.

    uv run python benchmarks/noise_rate.py --vectors VECTORS

VECTORS as in audit_noise.py. For each kind and ratio a set of `--clips` clips is drawn many times, gets wrong captions, and is
audited by itself: its share is estimated from the scores and from 60 pairs that are heard, which are drawn `--listens` times
from each set, and a subset is kept. `covers`: share of the 95% intervals that hold the set's true share, with its standard
error (sets vary, and draws within them); `too high`: of the intervals that begin above it. `above`: of the one-sided bounds.
`kept wrong`: mean share of wrong pairs among those kept; `promise held`: how often it is at most the stated one; `right
kept`: share of the right pairs that are kept.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from audit_noise import KINDS
from numpy.typing import NDArray
from pair_sets import owners, paired, read_set

from ray_atr.objectives.correspondence.noise_rate import wrong_share
from ray_atr.workshop.audit.certify import certified
from ray_atr.workshop.audit.estimate import STRATA, draw, interval, strata_of
from ray_atr.workshop.audit.options import CrossFit
from ray_atr.workshop.audit.score import audit_pairs

HEAD = (
    "wrong",
    "estimated",
    "covers",
    "error",
    "too high",
    "width",
    "above",
    "kept wrong",
    "promise held",
    "right kept",
)
HEARD = 60


def one_set(
    p_value: NDArray[np.float64],
    is_wrong: NDArray[np.bool_],
    clip: NDArray[np.int64],
    rate: float,
    seed: int,
    listens: int,
) -> list[float]:
    """The figures of `HEAD` for one set of pairs [m], without the error."""
    truth = float(is_wrong.mean())
    found = wrong_share(p_value, clip)
    strata = strata_of(p_value, found.share)
    ends = []
    for number in range(listens):
        heard = draw(strata, HEARD, seed * listens + number)
        of_strata = (strata, strata[heard], strata[heard[is_wrong[heard]]])
        ends.append(interval(*(np.bincount(some, minlength=STRATA) for some in of_strata))[1:])
    low, high = np.transpose(ends)
    above, below = low > truth + 1e-9, high < truth - 1e-9
    kept = certified(p_value, rate, found)
    wrong_kept = float(is_wrong[kept].mean()) if kept.any() else 0.0
    return [
        truth,
        found.share,
        1 - float((above | below).mean()),
        float(above.mean()),
        float((high - low).mean()),
        found.most >= truth,
        wrong_kept,
        wrong_kept <= rate,
        float(kept[~is_wrong].mean()),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--ratios", nargs="+", type=float, default=(0.05, 0.1, 0.2, 0.4))
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--clips", type=int, default=400)
    parser.add_argument("--sets", type=int, default=300)
    parser.add_argument("--listens", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    clips = read_set(options.vectors)
    if options.clips > len(clips.audio):
        parser.error(
            f"--clips: got {options.clips}; allowed at most {len(clips.audio)}, the clips of {options.vectors}"
        )
    print("| kind | ratio | " + " | ".join(HEAD) + " |\n| --- |" + " ---: |" * (1 + len(HEAD)))
    for kind in options.kinds:
        for ratio in options.ratios:
            rows = []
            for number in range(options.sets):
                random = np.random.default_rng((options.seed, number))
                chosen = np.sort(random.choice(len(clips.audio), options.clips, replace=False))
                some = clips.subset(chosen)
                seed = options.seed + number
                pairs, is_wrong = paired(some, owners(kind, ratio, some.captions, len(some.languages), seed))
                p_value = audit_pairs(pairs, CrossFit(seed=seed)).posteriors.p_value
                rows.append(one_set(p_value, is_wrong, pairs.clip, options.rate, number, options.listens))
            figures = list(np.mean(rows, axis=0))
            figures.insert(HEAD.index("error"), np.std(rows, axis=0)[HEAD.index("covers")] / np.sqrt(len(rows)))
            cells = " | ".join(f"{value:.3f}" for value in figures)
            print(f"| {kind} | {ratio} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
