"""Noise as a file: which caption each training clip has, as papers exchange it and as every run leaves it.

    [M] integers          the papers' files (NCR, DECL): entry m is the clip that caption m is paired with; M captions, those of
                          clip 0 first, then clip 1's. A file for clips with one caption each is the same thing.
    [N, J] or [N, J, K]   a run's own noise_index.npy: the number m of the caption that slot j of clip i has (in language k),
                          -1 for none; m counts J captions for every clip: owner * J + slot.

Clips are counted in the data set's order.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ray_atr.data.noise import Worn
from ray_atr.data.numpy_file import array_bytes, read_array
from ray_atr.settings import refuse
from ray_atr.storage import write_bytes

INDEX_FILE = "noise_index.npy"


def write_index(folder: Path, worn: Worn) -> None:
    """Write a run's noise to `folder`; one table for all languages if they agree."""
    J = worn.owner.shape[1]
    numbers = worn.owner * J + worn.slot
    folder.mkdir(parents=True, exist_ok=True)
    is_shared = (numbers == numbers[:, :, :1]).all()
    write_bytes(folder / INDEX_FILE, array_bytes(numbers[:, :, 0] if is_shared else numbers))


def read_index(path: str, num_captions: NDArray[np.int64], J: int) -> Worn:
    """The captions of N clips from a file, for clips that have `num_captions` [N, K] of their own, J at most.

    ValueError names the file, and the row, if it does not fit the data set.
    """
    content = _load(path)
    N, K = num_captions.shape
    if content.ndim == 1:
        numbers = _captions_of_clips(path, content, num_captions.max(axis=1), J)[:, :, None]
    elif content.ndim in (2, 3) and content.shape[:2] == (N, J) and content.shape[2:] in ((), (K,)):
        numbers = content.reshape(N, J, -1)
    else:
        allowed = f"[{int(num_captions.max(axis=1).sum())}], [{N}, {J}] or [{N}, {J}, {K}] for this training split"
        raise refuse("data.noise.index", f"{path} of shape {list(content.shape)}", allowed)
    bad = np.argwhere((numbers < -1) | (numbers >= N * J))
    if len(bad):
        row, value = int(bad[0, 0]), int(numbers[tuple(bad[0])])
        raise refuse(f"data.noise.index: {path}, row {row}", value, f"a caption's number below {N * J}")
    grid = np.broadcast_to(numbers, (N, J, K)).astype(np.int64)
    # A slot without a caption points behind the clip's last one, where none is found.
    return Worn(np.where(grid < 0, np.arange(N)[:, None, None], grid // J), np.where(grid < 0, J, grid % J))


def _captions_of_clips(path: str, clips: NDArray[np.int64], counts: NDArray[np.int64], J: int) -> NDArray[np.int64]:
    """The papers' file [M] as numbers [N, J]: own captions keep their places, the others fill those that are left."""
    N, M = len(counts), int(counts.sum())
    if len(clips) != M:
        raise refuse("data.noise.index", f"{path} of {len(clips)} entries", f"{M}, the captions of this training split")
    bad = np.flatnonzero((clips < 0) | (clips >= N))
    if len(bad):
        raise refuse(f"data.noise.index: {path}, row {bad[0]}", int(clips[bad[0]]), f"a clip's number below {N}")
    found = np.bincount(clips, minlength=N)
    wrong = np.flatnonzero(found != counts)
    if len(wrong):
        row = int(wrong[0])
        raise refuse(
            f"data.noise.index: {path}, clip {row}", f"{found[row]} captions", f"{counts[row]}, as the clip has"
        )
    owners = np.repeat(np.arange(N), counts)
    slots = np.arange(M) - np.repeat(np.cumsum(counts) - counts, counts)
    numbers = np.full((N, J), -1, np.int64)
    is_own = clips == owners
    numbers[owners[is_own], slots[is_own]] = owners[is_own] * J + slots[is_own]
    for m in np.flatnonzero(~is_own):
        row = clips[m]
        numbers[row, int((numbers[row, : counts[row]] < 0).argmax())] = owners[m] * J + slots[m]
    return numbers


def _load(path: str) -> NDArray[np.int64]:
    """The integers of a NumPy file; nothing in it is unpickled."""
    try:
        with open(path, "rb") as file:
            content = read_array(file)
    except FileNotFoundError:
        raise refuse("data.noise.index", path, "a NumPy file (.npy) of integers; this one is not there") from None
    except (ValueError, OSError) as error:
        raise refuse("data.noise.index", path, f"a NumPy file (.npy) of integers ({error})") from None
    if not np.issubdtype(content.dtype, np.integer):
        raise refuse("data.noise.index", f"{path} of {content.dtype}", "integers")
    return content.astype(np.int64)
