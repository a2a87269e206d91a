"""How well `leave_one_out` tells right pairs from wrong ones where clips are few, by number of clips and share of wrong ones.

    uv run python benchmarks/few_clips.py --vectors VECTORS [--clips 40 100 200 400] [--noise 0.2 0.4 0.6] [--draws 8]

VECTORS is a folder as `make_vectors.py` writes it; the captions are those of its first language. Nothing is trained. The
regression is given the true share of right pairs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pair_sets import PairSet, owners, paired, read_set
from sklearn.metrics import log_loss, roc_auc_score

from ray_atr.objectives.correspondence.left_out import leave_out


def measured(clips: PairSet, ratio: float, seed: int) -> NDArray[np.float64]:
    """The area, the mean clean probability of right and of wrong pairs, and the mean negative log-likelihood, [4]."""
    pairs, is_wrong = paired(clips, owners("pair", ratio, clips.captions, 1, seed))
    _, key = np.unique(pairs.key, return_inverse=True)
    share = float(1 - is_wrong.mean())
    clean = leave_out(pairs.audio, pairs.text, pairs.clip, key, share=share, seed=seed).clean_probability
    area = roc_auc_score(~is_wrong, clean)
    return np.array([area, clean[~is_wrong].mean(), clean[is_wrong].mean(), log_loss(~is_wrong, clean)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--clips", type=int, nargs="+", default=[40, 100, 200, 400])
    parser.add_argument("--noise", type=float, nargs="+", default=[0.2, 0.4, 0.6])
    parser.add_argument("--draws", type=int, default=8)
    given = parser.parse_args()
    clips = read_set(given.vectors)
    if (most := max(given.clips)) > len(clips.audio):
        parser.error(f"--clips: got {most}; allowed at most {len(clips.audio)}, the clips of {given.vectors}")
    print(
        "| clips | wrong | area | clean probability: right | wrong | log loss |\n| ---: | ---: | ---: | ---: | ---: | ---: |"
    )
    for count in given.clips:
        for ratio in given.noise:
            draws = []
            for draw in range(given.draws):
                chosen = np.sort(np.random.default_rng(draw).permutation(len(clips.audio))[:count])
                draws.append(measured(clips.subset(chosen), ratio, draw))
            area, right, wrong, loss = np.mean(draws, axis=0)
            print(f"| {count} | {ratio:g} | {area:.3f} | {right:.2f} | {wrong:.2f} | {loss:.3f} |", flush=True)


if __name__ == "__main__":
    main()
