"""A saved model on disk: weights, settings and tokeniser in one folder that is either whole or not there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from ray_atr.migrate import migrated_retriever, migrated_weights
from ray_atr.models.loading import read_checkpoint
from ray_atr.settings import refuse, shortened
from ray_atr.storage import disk_errors

SETTINGS_FILE = "retriever.json"
WEIGHTS_FILE = "model.safetensors"
FROZEN_FILE = "frozen.safetensors"
"""In a tower's own folder: its weights, where many saved models share them."""
FORMAT = 1


def write_weights(file: Path, state: Mapping[str, Tensor], *, prefix: str = "") -> None:
    """Writes the tensors by name, behind a prefix, as safetensors."""
    # Safetensors refuses tensors that share memory; a copy of each shares none.
    copies = {prefix + name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    with disk_errors(file):
        save_file(copies, file)


def link_weights(source: Path, file: Path) -> None:
    """Makes a file of weights appear under a second name, without writing them again where the file system can do so."""
    try:
        os.link(source, file)
    except OSError:
        with disk_errors(file):
            shutil.copyfile(source, file)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of a saved model, frozen towers' too. Raises ValueError for a missing or broken file."""
    file = folder / WEIGHTS_FILE
    if not file.is_file():
        raise refuse("model folder", str(folder), f"a folder that save_pretrained wrote; it lacks {WEIGHTS_FILE}")
    weights = read_checkpoint(file, "model folder")
    for frozen in sorted(folder.glob(f"*/{FROZEN_FILE}")):
        weights.update(read_checkpoint(frozen, "model folder"))
    return migrated_weights(weights)


def write_settings(folder: Path, content: Mapping[str, Any]) -> None:
    """Writes the settings as JSON, with the number of this layout."""
    text = json.dumps({"format": FORMAT, **content}, indent=1, ensure_ascii=False)
    (folder / SETTINGS_FILE).write_text(text + "\n", encoding="utf-8")


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings that `write_settings` wrote. Raises ValueError for a missing or broken file, or another layout."""
    file = folder / SETTINGS_FILE
    if not file.is_file():
        raise refuse("model folder", str(folder), f"a folder that save_pretrained wrote; it lacks {SETTINGS_FILE}")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise refuse("model folder", str(file), f"whole JSON ({shortened(str(error))})") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise refuse("model folder", str(file), f"settings of format {FORMAT}")
    return migrated_retriever(content)
