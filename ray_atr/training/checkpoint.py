"""A checkpoint folder: everything a stopped run needs to end with the weights of one that never stopped.

Written aside and renamed, so a folder with a `state.pt` is a whole one. Loaded with `weights_only=True`: tensors and
plain values only, nothing is unpickled.
"""

from __future__ import annotations

import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ray_atr.storage import whole_file

STATE_FILE = "state.pt"


def save_checkpoint(folder: Path, state: dict[str, Any]) -> Path:
    """Write `state` (tensors and plain values) to `folder/state.pt`, replacing an older one only when whole."""
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / STATE_FILE, is_synced=True) as file:
        torch.save(state, file)
    return folder


def load_checkpoint(folder: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The state saved in a checkpoint folder. ValueError, naming the file, when it is absent or not whole."""
    path = Path(folder) / STATE_FILE
    if not path.is_file():
        raise ValueError(f"{folder}: no checkpoint here ({STATE_FILE} is missing)")
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except (RuntimeError, EOFError, ValueError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: not a whole checkpoint ({error})") from None
    if not isinstance(state, dict):
        raise ValueError(f"{path}: not a checkpoint of ray_atr")
    return state


def random_state() -> dict[str, Any]:
    """The state of every global random generator of this process, as tensors and plain values."""
    version, words, gauss = random.getstate()
    numpy_state: Any = np.random.get_state()
    return {
        "python": [version, list(words), gauss],
        "numpy": [
            numpy_state[0],
            torch.from_numpy(numpy_state[1].astype(np.int64)),
            int(numpy_state[2]),
            int(numpy_state[3]),
            float(numpy_state[4]),
        ],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Put every global random generator back to a `random_state`."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([rng.cpu() for rng in state["cuda"]])
