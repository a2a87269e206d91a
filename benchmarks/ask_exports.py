"""Opens one retriever in three formats by their own libraries, asks ESC-50's fold 4 in every language, and prints tables.

    python -I benchmarks/ask_exports.py ESC-50-master EXPORTS

EXPORTS holds the folders `clap`, `sentence-transformers` and `onnx`, and what `exports_of_esc50.py` wrote beside them. Needs
transformers, sentence-transformers, onnxruntime, soundfile; imports no ray_atr, and fails if anything else did.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

FILES = ("questions.json", "vectors.npz")
FOLD = "4"
SMALL = "onnx, text of 8 bits"


def main(esc50: str, exports: str) -> None:
    """Prints what the formats answer, and how far they are from the vectors in the file."""
    folder = Path(exports)
    asked = json.loads((folder / FILES[0]).read_text(encoding="utf-8"))
    classes, waveforms = read_clips(Path(esc50))
    labels = np.array([asked["classes"].index(name) for name in classes])
    with np.load(folder / FILES[1]) as file:
        ours = {name: file[name] for name in file.files}
    made = {"encode_*": ours}
    for name in ("clap", "sentence-transformers", "onnx"):
        made[name] = embed(load(folder / name), waveforms, asked["texts"])
    small = load(folder / "onnx")
    small.TEXT = "text.int8.onnx"
    made[SMALL] = {"audio": made["onnx"]["audio"], **texts_of(small, asked["texts"])}
    print_differences(made, ours)
    print_zero_shot(folder / "clap", asked, made["clap"], waveforms)
    for title, of_text in (("50 captions ask for 400 clips", True), ("400 clips ask for 50 captions", False)):
        print_recall(title, made, labels, of_text=of_text)
    if "ray_atr" in sys.modules:
        raise SystemExit("ray_atr was imported")


def load(folder: Path) -> Any:
    """An export's load.py."""
    spec = importlib.util.spec_from_file_location(folder.name, folder / "load.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_clips(esc50: Path, folds: str = FOLD) -> tuple[list[str], list[np.ndarray]]:
    """The class and the waveform [S] of each clip of some folds, at the file's own rate."""
    with (esc50 / "meta" / "esc50.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["fold"] in folds]
    files = [next((esc50 / "audio").glob(Path(row["filename"]).stem + ".*")) for row in rows]
    waveforms = [soundfile.read(file, dtype="float32")[0] for file in files]
    return [row["category"] for row in rows], waveforms


def embed(loader: Any, waveforms: list[np.ndarray], texts: dict[str, list[str]]) -> dict[str, np.ndarray]:
    """Vectors of the clips, and of the texts of each language."""
    return {"audio": loader.encode_audio(waveforms), **texts_of(loader, texts)}


def texts_of(loader: Any, texts: dict[str, list[str]]) -> dict[str, np.ndarray]:
    """Vectors of the texts of each language."""
    return {language: loader.encode_text(own, [language] * len(own)) for language, own in texts.items()}


def print_differences(made: dict[str, dict[str, np.ndarray]], ours: dict[str, np.ndarray]) -> None:
    """The largest difference from `encode_*`, and the share of equal lists of ten."""
    print("\n| format | largest difference, clips | texts | equal top-10 lists, of texts | of clips |")
    print("| --- | --- | --- | --- | --- |")
    languages = [name for name in ours if name != "audio"]
    for name, vectors in list(made.items())[1:]:
        of_texts = max(np.abs(vectors[language] - ours[language]).max() for language in languages)
        of_clips = np.abs(vectors["audio"] - ours["audio"]).max()
        lists = [
            np.concatenate([ten_best(one[language] @ one["audio"].T) for language in languages])
            for one in (vectors, ours)
        ]
        back = [
            np.concatenate([ten_best(one["audio"] @ one[language].T) for language in languages])
            for one in (vectors, ours)
        ]
        shares = [f"{(one == other).all(axis=1).mean():.2%}" for one, other in (lists, back)]
        print(f"| {name} | {of_clips:.1e} | {of_texts:.1e} | {shares[0]} | {shares[1]} |")


def ten_best(similarity: np.ndarray) -> np.ndarray:
    """The ten highest columns of each row, highest first."""
    return np.argsort(-similarity, axis=1, kind="stable")[:, :10]


def print_recall(title: str, made: dict[str, dict[str, np.ndarray]], labels: np.ndarray, *, of_text: bool) -> None:
    """R@1 and R@10 in each language and format: whether one of the k best is of the class asked for."""
    languages = [name for name in made["encode_*"] if name != "audio"]
    print(f"\n{title}: R@1 / R@10 (%)\n\n| format | {' | '.join(languages)} | mean |")
    print("| --- |" + " --- |" * (len(languages) + 1))
    for name, vectors in made.items():
        rows = []
        for language in languages:
            similarity = vectors[language] @ vectors["audio"].T
            best = labels[ten_best(similarity)] if of_text else ten_best(similarity.T)
            hits = best == (np.arange(len(similarity)) if of_text else labels)[:, None]
            rows.append((100 * hits[:, 0].mean(), 100 * hits.any(axis=1).mean()))
        cells = [f"{one:.1f} / {ten:.1f}" for one, ten in [*rows, np.mean(rows, axis=0)]]
        print(f"| {name} | {' | '.join(cells)} |")


def print_zero_shot(
    folder: Path, asked: dict[str, Any], vectors: dict[str, np.ndarray], waveforms: list[np.ndarray]
) -> None:
    """How often the zero-shot pipeline of transformers names the class that the vectors do, of 50 clips in Japanese."""
    from transformers import pipeline

    texts = asked["texts"]["jpn"]
    classify: Any = pipeline("zero-shot-audio-classification", model=str(folder))
    clips = range(0, len(waveforms), 8)
    named = [classify(waveforms[row], candidate_labels=texts, hypothesis_template="{}")[0]["label"] for row in clips]
    nearest = [texts[place] for place in (vectors["audio"][list(clips)] @ vectors["jpn"].T).argmax(axis=1)]
    same = np.mean([one == other for one, other in zip(named, nearest, strict=True)])
    print(
        f"\nzero-shot-audio-classification pipeline, {len(named)} clips in Japanese: {same:.1%} of its answers are the vectors'"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
