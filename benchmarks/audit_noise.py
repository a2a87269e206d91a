"""What an audit finds of injected noise, against plain similarity: vectors of ESC-50, several seeds.

    uv run python benchmarks/audit_noise.py --vectors VECTORS

VECTORS holds audio vectors [N, D], a table of the clips in the same order, and the class captions' vectors [50, K, E].
`plain` trains the same heads on all pairs and scores the same pairs. Precision and recall are of the pairs called wrong
at the stated share of false alarms, 0.1; by chance the precision would be the share of wrong pairs. `area`: under the ROC curve.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from ray_atr.audit import folds
from ray_atr.audit.folds import Pairs
from ray_atr.audit.options import CrossFit
from ray_atr.audit.score import audit_pairs

RATE = 0.1
NEAR = 5


def injected(kind: str, ratio: float, labels: np.ndarray, words: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The clip whose caption each clip has, [N]: pair (any clip's), shift (blocks of 40 rows shifted by one), or near (of one of
    the five classes whose captions, [classes, E] unit rows, are most alike)."""
    owner = np.arange(len(labels))
    if kind == "shift":
        for start in random.choice(len(labels) // 40, max(1, round(ratio * len(labels) / 40)), replace=False) * 40:
            owner[start + 1 : start + 40] = np.arange(start, start + 39)
        return owner
    chosen = random.choice(len(labels), round(ratio * len(labels)), replace=False)
    owner[chosen] = random.integers(0, len(labels), len(chosen))
    if kind == "near":
        similarity = words @ words.T
        np.fill_diagonal(similarity, -np.inf)
        alike = np.argsort(-similarity, axis=1)[:, :NEAR]
        for clip in chosen:
            of_class = np.flatnonzero(labels == random.choice(alike[labels[clip]]))
            owner[clip] = random.choice(of_class)
    return owner


def area(score: np.ndarray, is_wrong: np.ndarray) -> float:
    """Probability that a right pair scores above a wrong one."""
    return float((score[~is_wrong][:, None] > score[is_wrong][None, :]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--audio", default="esc50_audio_aisfx.npy")
    parser.add_argument("--text", default="esc50_text_use.npy")
    parser.add_argument("--clips", default="esc50_clips.csv")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    audio = np.load(options.vectors / options.audio).astype(np.float32)
    text = np.load(options.vectors / options.text).astype(np.float32)
    with (options.vectors / options.clips).open(newline="") as file:
        rows = list(csv.DictReader(file))
    labels = np.array([int(row["target"]) for row in rows])
    audio /= np.linalg.norm(audio, axis=1, keepdims=True)
    english_words = text[:, 0] if text.ndim == 3 else text
    print(
        "| kind | ratio | wrong | share found | precision | recall | area | plain area | plain precision at that recall |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for kind in ("pair", "near", "shift"):
        for ratio in (0.1, 0.2, 0.4):
            found = []
            for seed in range(options.seeds):
                owner = injected(kind, ratio, labels, english_words, np.random.default_rng(seed))
                worn = labels[owner]
                is_wrong = worn != labels
                pairs = Pairs(
                    audio, english_words[worn], np.arange(len(labels)), np.full(len(labels), "eng"), worn.astype(str)
                )
                settings = CrossFit(seed=seed)
                result = audit_pairs(pairs, settings)
                called = result.judged.flagged(RATE)
                heads = folds._train(pairs, np.arange(len(labels)), settings, 0, lambda epoch: None)
                everything = folds._fold(heads, pairs, np.arange(len(labels)))
                plain = everything.score(np.arange(len(labels)), np.arange(len(labels)))
                recall = (called & is_wrong).sum() / is_wrong.sum()
                order = np.argsort(plain)
                enough = np.searchsorted(np.cumsum(is_wrong[order]), recall * is_wrong.sum())
                found.append(
                    [
                        is_wrong.mean(),
                        result.judged.wrong_share,
                        (called & is_wrong).sum() / max(1, called.sum()),
                        recall,
                        area(result.score, is_wrong),
                        area(plain, is_wrong),
                        is_wrong[order[: enough + 1]].mean(),
                    ]
                )
            mean = np.mean(found, axis=0)
            print(f"| {kind} | {ratio} | " + " | ".join(f"{value:.3f}" for value in mean) + " |", flush=True)


if __name__ == "__main__":
    main()
