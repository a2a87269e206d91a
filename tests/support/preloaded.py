"""What each process of `run_processes` would import by itself, imported by the one that they are forks of.

Torch's optimisers import its compiler, low-rank updates a thousand modules, and pyarrow pandas.
"""

from __future__ import annotations

import importlib

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
