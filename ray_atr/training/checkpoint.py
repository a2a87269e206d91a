"""A checkpoint folder: everything a stopped run needs to end with the weights of one that never stopped.

Written aside and renamed, so a folder with a `state.pt` is a whole one. The file is torch's ZIP archive; its digest is the
archive's comment, so that both appear at once. Loaded with `weights_only=True`: tensors and plain values only, nothing is
unpickled.
"""

from __future__ import annotations

import os
import pickle
import random
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from ray_atr.migrate import migrated_checkpoint
from ray_atr.models.loading import require_plain_archive
from ray_atr.settings import shortened
from ray_atr.storage import DamagedFileError, disk_errors, whole_file
from ray_atr.storage.digests import digest_of, digest_of_file, mapped

STATE_FILE = "state.pt"
_END = b"PK\x05\x06"
_END_BYTES, _LENGTH_BYTES, _COMMENT_BYTES = 22, 2, len(digest_of(b""))


def save_checkpoint(folder: Path, state: dict[str, Any]) -> Path:
    """Write `state` (tensors and plain values) to `folder/state.pt`, replacing an older one only when whole."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / STATE_FILE
    with whole_file(path, is_synced=True) as file:
        with disk_errors(path):
            torch.save(state, file)
        _seal(file)
    return folder


def load_checkpoint(folder: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The state saved in a checkpoint folder. ValueError, naming the file, if it is absent, damaged or no checkpoint."""
    path = Path(folder) / STATE_FILE
    if not path.is_file():
        raise ValueError(f"{folder}: no checkpoint here ({STATE_FILE} is missing)")
    is_sealed = _check(path)
    try:
        require_plain_archive(path)
        # The digest has read every byte: mapped, they are not read a second time. A file here is replaced, never changed.
        state = torch.load(path, map_location=device, weights_only=True, mmap=is_sealed)
    except (RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: not a whole checkpoint ({shortened(str(error))})") from None
    if not isinstance(state, dict):
        raise ValueError(f"{path}: not a checkpoint of ray_atr")
    return migrated_checkpoint(state)


def _seal(file: IO[bytes]) -> None:
    """Make the digest of a ZIP archive its comment: the length of the comment is the last thing that the archive says."""
    file.flush()
    file.seek(-_LENGTH_BYTES, os.SEEK_END)
    file.truncate()
    file.write(_comment(digest_of_file(Path(file.name))))


def _check(path: Path) -> bool:
    """Whether the archive has a digest; DamagedFileError if it is not that of its bytes. Earlier versions wrote none."""
    with mapped(path) as content:
        own = len(content) - _COMMENT_BYTES - _LENGTH_BYTES
        is_sealed = own > 0 and content[own - (_END_BYTES - _LENGTH_BYTES) :][:4] == _END
        is_whole = is_sealed and content[own:] == _comment(digest_of(content[:own]))
        has_no_comment = content[-_END_BYTES:][:4] == _END and content[-_LENGTH_BYTES:] == bytes(_LENGTH_BYTES)
    if is_sealed and not is_whole:
        raise DamagedFileError(path, "delete it to train from the start, or restore it from a copy")
    if not is_sealed and not has_no_comment:
        raise ValueError(f"{path}: not a whole checkpoint (its end is missing)")
    return is_sealed


def _comment(digest: str) -> bytes:
    """The length of an archive's comment and the comment itself."""
    return len(digest).to_bytes(_LENGTH_BYTES, "little") + digest.encode()


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
