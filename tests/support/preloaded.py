"""What each process of `run_processes` would import by itself, imported by the one that they are forks of.

Torch's optimisers import its compiler, low-rank updates a thousand modules, and pyarrow pandas.
"""

from __future__ import annotations

import gc
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

# Nothing of it becomes garbage, and a fork that looked for some would copy the memory of all.
gc.disable()
for name in MODULES:
    importlib.import_module(name)
gc.freeze()
gc.enable()
