"""What an audit finds of injected noise: vectors of ESC-50, several seeds.

    uv run python benchmarks/audit_noise.py --vectors VECTORS

VECTORS holds audio vectors [N, D], a table of the clips in the same order, and the class captions' vectors [50, K, E].
The kinds are those of `data.noise`: pair, near and shift of English captions, language of captions in K languages, and
caption, where K captions a clip are wrong each by itself.
Precision and recall are of the pairs called wrong at the stated share of false alarms; by chance the precision would be
the share of wrong pairs. `area`: under the ROC curve. `calibration error`: of the posterior, mean over languages.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from ray_atr.data.noise import Noise, assign_captions
from ray_atr.deploy.calibration import expected_calibration_error
from ray_atr.objectives.correspondence.cross_fit import Pairs
from ray_atr.workshop.audit.options import CrossFit
from ray_atr.workshop.audit.score import audit_pairs
from ray_atr.workshop.languages.templates import ESC50_CLASSES, caption

KINDS = ("pair", "near", "shift", "language", "caption")
HEAD = ("wrong", "share found", "called", "precision", "recall", "area", "calibration error")


def owners(kind: str, ratio: float, labels: NDArray[np.int64], K: int, seed: int) -> NDArray[np.int64]:
    """The clip whose caption each clip has, [N, 1], or [N, K] for kinds in which a clip's K captions differ."""
    ids = [f"{row:05d}" for row in range(len(labels))]
    texts = [caption(ESC50_CLASSES[label], "eng") for label in labels]
    slots, languages = (K if kind == "caption" else 1), (K if kind == "language" else 1)
    noise = Noise(
        ratio=ratio, kind="pair" if kind == "caption" else kind, unit="caption" if kind == "caption" else "clip"
    )
    counts = np.full((len(labels), languages), slots)
    assigned = assign_captions(ids, counts, [f"language {k}" for k in range(languages)], noise, seed, lambda: texts)
    return assigned.owner.reshape(len(labels), -1)


def found(
    audio: NDArray[np.float32],
    text: NDArray[np.float32],
    labels: NDArray[np.int64],
    owner: NDArray[np.int64],
    rate: float,
    seed: int,
) -> list[float]:
    """The figures of `HEAD` for clips [N, D] of classes [N] that have the captions of clips [N, k]."""
    N, k = owner.shape
    clip, column = np.divmod(np.arange(N * k), k)
    assigned = labels[owner].ravel()
    is_wrong = assigned != labels[clip]
    keys = np.array([f"{label} {place}" for label, place in zip(assigned, column, strict=True)])
    pairs = Pairs(audio, text[assigned, column], clip, column.astype(str), keys)
    settings = CrossFit(seed=seed)
    result = audit_pairs(pairs, settings)
    called = result.posteriors.flagged(rate)
    columns = [column == c for c in range(k)]
    errors = [expected_calibration_error(result.posteriors.wrong[one], is_wrong[one]) for one in columns]
    recall = (called & is_wrong).sum() / is_wrong.sum()
    return [
        is_wrong.mean(),
        result.posteriors.wrong_share,
        called.sum(),
        (called & is_wrong).sum() / max(1, called.sum()),
        recall,
        roc_auc_score(~is_wrong, result.score),
        float(np.mean(errors)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--audio", default="esc50_audio_aisfx.npy")
    parser.add_argument("--text", default="esc50_text_use.npy")
    parser.add_argument("--clips", default="esc50_clips.csv")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--ratios", nargs="+", type=float, default=(0.1, 0.2, 0.4))
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    audio = np.load(options.vectors / options.audio).astype(np.float32)
    text = np.load(options.vectors / options.text).astype(np.float32)
    with (options.vectors / options.clips).open(newline="") as file:
        labels = np.array([int(row["target"]) for row in csv.DictReader(file)])
    audio /= np.linalg.norm(audio, axis=1, keepdims=True)
    print("| kind | ratio | " + " | ".join(HEAD) + " |\n| --- |" + " ---: |" * (1 + len(HEAD)))
    for kind in options.kinds:
        for ratio in options.ratios:
            rows = [
                found(audio, text, labels, owners(kind, ratio, labels, text.shape[1], seed), options.rate, seed)
                for seed in range(options.seeds)
            ]
            print(
                f"| {kind} | {ratio} | " + " | ".join(f"{value:.3f}" for value in np.mean(rows, axis=0)) + " |",
                flush=True,
            )


if __name__ == "__main__":
    main()
