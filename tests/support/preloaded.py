"""What each process of `run_processes` would import and make by itself, done by the one that they are forks of.

Torch's optimisers import its compiler, low-rank updates a thousand modules, and pyarrow pandas. Pydantic compiles the types of
settings and of manifests when it first meets them.
"""

from __future__ import annotations

import importlib
from pathlib import Path

MODULES = (
    "torch._dynamo",
    "torch.utils.serialization",
    "peft",
    "faiss",
    "pandas",
    "pyarrow.pandas_compat",
    "ray_atr.training.loop",
    "ray_atr.training.inputs",
    "ray_atr.evaluation.run",
)

for name in MODULES:
    importlib.import_module(name)

importlib.import_module("tests.support.tiny").tiny(Path("tones"))
importlib.import_module("ray_atr.data.shards")._manifest_type()
