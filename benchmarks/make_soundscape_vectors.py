"""Vectors of the synthetic soundscapes and of their captions in eight languages, by the towers that come with the package.

    uv run python benchmarks/make_soundscape_vectors.py --out vectors

Writes audio.npy, text.npy and pairs.csv as `make_vectors.py` does, of all splits: 1,200 clips train, 200 validate and 300 test.
The towers were trained on such sounds and captions, of other soundscapes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from make_vectors import write_set

from ray_atr.common.language_codes import DEFAULT_LANGUAGES as LANGUAGES
from ray_atr.common.override import override
from ray_atr.common.runtime import home
from ray_atr.data.caption_vectors import open_caption_vectors
from ray_atr.data.features import open_features
from ray_atr.training.inputs import prepare
from ray_atr.training.recipes import RECIPES

SPLITS = ("train", "val", "test")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for audio.npy, text.npy and pairs.csv")
    options = parser.parse_args()
    languages = ",".join(LANGUAGES)
    experiment = override(
        RECIPES["quickstart"](), {"data.languages": languages, "data.soundscapes.languages": languages}
    )
    prepared = prepare(experiment, home(), use_ray=False)
    assert prepared.captions is not None, "the text tower is frozen"
    known = open_caption_vectors(prepared.captions)
    rows: list[list[object]] = []
    places: dict[tuple[str, str], int] = {}
    audio: list[np.ndarray] = []
    for split in SPLITS:
        features = open_features(prepared.features, split)
        captions = [features.captions_in(language) for language in LANGUAGES]
        for row, clip_id in enumerate(features.clip_ids):
            for language, of_clips in zip(LANGUAGES, captions, strict=True):
                words = of_clips[row][0]
                place = places.setdefault((words, language), len(places))
                rows.append([len(audio) + row, place, words, language, split, f"{split}-{clip_id}", ""])
        audio += list(features.features(np.arange(len(features)))[0][:, 0])
    options.out.mkdir(parents=True, exist_ok=True)
    np.save(options.out / "audio.npy", np.stack(audio).astype(np.float32))
    np.save(options.out / "text.npy", known.vectors(known.rows(list(places))))
    write_set(rows, options.out / "pairs.csv")
    print(f"written to {options.out}: {len(audio):,} clips, {len(places):,} captions")


if __name__ == "__main__":
    main()
