"""How well fingerprints tell recordings apart, on a folder of ESC-50's clips (`FOLD-RECORDING-TAKE-CLASS`).

    python benchmarks/same_recordings.py ESC-50/audio [--copies 200]

Prints how much clips of different recordings agree, and how much a clip agrees with copies of itself: as MP3, at other sample
rates, softer, with noise, and begun later.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.signal
import soundfile
from numpy.typing import NDArray

from ray_atr.workshop.importing.recordings import SAME, fingerprint

Samples = NDArray[np.float64]


def resampled(samples: Samples, rate: int, to: int) -> bytes:
    return encoded(scipy.signal.resample_poly(samples, to, rate), to)


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
    "OGG at 22,050 Hz": lambda samples, rate: encoded(scipy.signal.resample_poly(samples, 22_050, rate), 22_050, "OGG"),
    "WAV at 8,000 Hz": lambda samples, rate: resampled(samples, rate, 8_000),
    "6 dB softer": lambda samples, rate: encoded(samples / 2, rate),
    "with noise at -20 dB": noisy,
    "begun 20 ms later": lambda samples, rate: encoded(samples[rate // 50 :], rate),
    "begun 100 ms later": lambda samples, rate: encoded(samples[rate // 10 :], rate),
}


def agreement(first: NDArray[np.int8], other: NDArray[np.int8]) -> float:
    norms = np.sqrt(float(np.count_nonzero(first)) * np.count_nonzero(other))
    return float(first.astype(int) @ other.astype(int)) / max(norms, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--copies", type=int, default=200)
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.*"))
    prints = [fingerprint(file.read_bytes(), file.name) for file in files]
    recordings = np.array([file.name.split("-")[1] for file in files])
    signs = np.stack(prints).astype(np.float32)
    signs /= np.linalg.norm(signs, axis=1, keepdims=True).clip(1.0)
    matrix = signs @ signs.T
    matrix[recordings[:, None] == recordings] = -1
    first, other = np.triu_indices(len(files), 1)
    values = matrix[first, other]
    worst = np.argsort(values)[::-1][:6]
    print(f"{len(files)} clips, {len(set(recordings))} recordings; pairs of different ones: {(values > -1).sum():,}")
    for place in worst:
        print(f"  {values[place]:.3f}  {files[first[place]].name}  {files[other[place]].name}")
    print(f"  at {SAME} or more: {(values >= SAME).sum()}")
    some = np.random.default_rng(0).choice(len(files), min(options.copies, len(files)), replace=False)
    for kind, copy in COPIES.items():
        found = []
        for number in some:
            samples, rate = soundfile.read(files[number])
            if np.any(prints[number]):
                found.append(agreement(prints[number], fingerprint(copy(samples, rate), kind)))
        low, median = np.quantile(found, [0.02, 0.5])
        share = np.mean(np.array(found) >= SAME)
        print(f"{kind}: 2% quantile {low:.2f}, median {median:.2f}, at {SAME} or more {share:.1%}")


if __name__ == "__main__":
    main()
