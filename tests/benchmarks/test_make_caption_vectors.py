"""One person's caption stands for the recording, and the others' are its captions: each row of the table is its own text's."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from tests.support.scripts import load_script


def test_rows_of_the_table_are_those_of_the_vectors(tmp_path: Path) -> None:
    script = load_script("benchmarks/make_caption_vectors.py")
    for name, count in (("development", 70), ("validation", 2), ("evaluation", 3)):
        with (tmp_path / f"clotho_captions_{name}.csv").open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["file_name", *(f"caption_{place}" for place in range(1, 6))])
            for number in range(count):
                said = [f"{name} {number}, by {place}" for place in range(1, 6)]
                # Of two recordings the same is said.
                rows.writerow([f"{number}.wav", *said[:4], "wind" if name == "validation" else said[4]])
    texts: list[str] = []

    def encode(together: list[str]) -> np.ndarray:
        texts.extend(together)
        return np.arange(len(texts) - len(together), len(texts), dtype=np.float32)[:, None]

    assert script.write_vectors(tmp_path, tmp_path / "out", encode) == 75
    audio, text = np.load(tmp_path / "out" / "audio.npy"), np.load(tmp_path / "out" / "text.npy")
    assert audio.shape == (75, 1)
    assert text.shape == (299, 1)
    with (tmp_path / "out" / "pairs.csv").open(encoding="utf-8", newline="") as file:
        pairs = list(csv.DictReader(file))
    assert [one["split"] for one in pairs] == 280 * ["train"] + 8 * ["val"] + 12 * ["test"]
    for one in pairs:
        assert texts[int(text[int(one["text_row"]), 0])] == one["caption"]
        stands_for = texts[int(audio[int(one["audio_row"]), 0])]
        assert one["caption"] == "wind" or stands_for == f"{one['caption'].split(', ')[0]}, by 1"
