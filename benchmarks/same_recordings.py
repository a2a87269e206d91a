"""How well fingerprints tell recordings apart, on a folder of ESC-50's clips (`FOLD-RECORDING-TAKE-CLASS`).

    python benchmarks/same_recordings.py ESC-50/audio [--copies 200]
    python benchmarks/same_recordings.py ESC-50/audio --aisfx packages/aisfx-0.1.2-py2.py3-none-any.whl

Prints how much clips of different recordings agree, and how much a clip agrees with copies of itself: as MP3, at other sample
rates, softer, with noise, and begun later. With --aisfx (see make_vectors.py), how near the vectors of that encoder are.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import scipy.signal
import soundfile
from make_vectors import audio_vector, load_encoder
from numpy.typing import NDArray

from ray_atr.workshop.importing.recordings import SAME, SAME_VECTORS, fingerprint

Samples = NDArray[np.float64]
Encode = Callable[[bytes, str], NDArray[np.float32]]
"""Makes a unit vector of a clip's bytes; the name is for errors."""


def resampled(samples: Samples, rate: int, to: int, form: str = "WAV") -> bytes:
    return encoded(scipy.signal.resample_poly(samples, to, rate), to, form)


def encoded(samples: Samples, rate: int, form: str = "WAV") -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples.clip(-1, 1), rate, format=form)
    return buffer.getvalue()


def noisy(samples: Samples, rate: int) -> bytes:
    noise = np.random.default_rng(0).standard_normal(len(samples))
    return encoded(samples + noise * 0.1 * np.sqrt((samples**2).mean()), rate)


COPIES: dict[str, Callable[[Samples, int], bytes]] = {
    "FLAC": lambda samples, rate: encoded(samples, rate, "FLAC"),
    "MP3": lambda samples, rate: encoded(samples, rate, "MP3"),
    "OGG at 22,050 Hz": lambda samples, rate: resampled(samples, rate, 22_050, "OGG"),
    "WAV at 8,000 Hz": lambda samples, rate: resampled(samples, rate, 8_000),
    "6 dB softer": lambda samples, rate: encoded(samples / 2, rate),
    "with noise at -20 dB": noisy,
    "begun 20 ms later": lambda samples, rate: encoded(samples[rate // 50 :], rate),
    "begun 100 ms later": lambda samples, rate: encoded(samples[rate // 10 :], rate),
}


def fingerprints(files: Sequence[Path]) -> tuple[NDArray[np.float32], Encode, float]:
    """The signs of all clips as unit vectors, the function that makes those of a copy, and what counts as agreement."""

    def unit(content: bytes, name: str) -> NDArray[np.float32]:
        signs = fingerprint(content, name).astype(np.float32)
        return signs / max(float(np.linalg.norm(signs)), 1.0)

    return np.stack([unit(file.read_bytes(), file.name) for file in files]), unit, SAME


def vectors(files: Sequence[Path], wheel: Path) -> tuple[NDArray[np.float32], Encode, float]:
    """The same of an encoder's vectors, from which the mean of all clips is subtracted."""
    encoder = load_encoder(wheel)
    found = np.stack([audio_vector(encoder, file.read_bytes(), file.name) for file in files])
    mean = found.mean(axis=0)

    def unit(content: bytes, name: str) -> NDArray[np.float32]:
        centred = audio_vector(encoder, content, name) - mean
        return np.asarray(centred / np.linalg.norm(centred))

    centred = found - mean
    return centred / np.linalg.norm(centred, axis=1, keepdims=True), unit, SAME_VECTORS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--copies", type=int, default=200)
    parser.add_argument(
        "--aisfx", type=Path, help="the wheel of aisfx 0.1.2: compare its vectors in place of fingerprints"
    )
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.*"))
    prints, of_copy, least = vectors(files, options.aisfx) if options.aisfx else fingerprints(files)
    recordings = np.array([file.name.split("-")[1] for file in files])
    matrix = prints @ prints.T
    matrix[recordings[:, None] == recordings] = -1
    first, other = np.triu_indices(len(files), 1)
    values = matrix[first, other]
    worst = np.argsort(values)[::-1][:6]
    print(f"{len(files)} clips, {len(set(recordings))} recordings; pairs of different ones: {(values > -1).sum():,}")
    for place in worst:
        print(f"  {values[place]:.3f}  {files[first[place]].name}  {files[other[place]].name}")
    print(f"  at {least} or more: {(values >= least).sum()}")
    some = np.random.default_rng(0).choice(len(files), min(options.copies, len(files)), replace=False)
    some = [number for number in some if np.any(prints[number])]
    for kind, copy in COPIES.items():
        found = [float(prints[number] @ of_copy(copy(*soundfile.read(files[number])), kind)) for number in some]
        low, median = np.quantile(found, [0.02, 0.5])
        share = np.mean(np.array(found) >= least)
        print(f"{kind}: 2% quantile {low:.2f}, median {median:.3f}, at {least} or more {share:.1%}")


if __name__ == "__main__":
    main()
