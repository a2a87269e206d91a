"""A script for a separate process: embeds the inputs of a file with an export's load.py. Does not import ray_atr.

`python -I check.py LOAD INPUTS OUTPUTS [NAME=VALUE]`
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np


def main(load: str, inputs: str, outputs: str, *assigned: str) -> None:
    """Write the vectors of the clips and texts in `inputs` (npz) to `outputs` (npz). Fails if this package was loaded."""
    # Importing must not add files to the export.
    sys.dont_write_bytecode = True
    spec = importlib.util.spec_from_file_location("load", load)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, _, value in (pair.partition("=") for pair in assigned):
        setattr(module, name, value)
    with np.load(inputs) as given:
        waveforms = np.split(given["samples"], np.cumsum(given["lengths"])[:-1])
        texts, languages = given["texts"].tolist(), given["languages"].tolist()
    audio, text = module.encode_audio(waveforms), module.encode_text(texts, languages)
    ours = sys.modules.get("ray_atr")
    own_copy = getattr(module, "CARRIES_RAY_ATR", False) and str(Path(load).parent) in str(
        getattr(ours, "__file__", "")
    )
    if ours is not None and not own_copy:
        raise SystemExit("ray_atr was imported")
    np.savez(outputs, audio=audio, text=text)


if __name__ == "__main__":
    main(*sys.argv[1:])
