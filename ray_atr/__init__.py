"""ray_atr: train, sweep and compare audio-text retrieval objectives on noisy, multilingual data. The public names are
imported when they are first used, so that `import ray_atr` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray_atr import objectives as objectives
    from ray_atr.evaluation.options import EvaluationOptions as EvaluationOptions
    from ray_atr.evaluation.run import evaluate as evaluate
    from ray_atr.metrics import retrieval_metrics as retrieval_metrics
    from ray_atr.models.retriever import Retriever as Retriever
    from ray_atr.objectives.transport import solve as solve
    from ray_atr.training.train_modules import train as train

    __version__: str
    # Names of deploy are not declared here, since packages below it import this module.

_WHERE = {
    "EvaluationOptions": "ray_atr.evaluation.options",
    "Index": "ray_atr.deploy.index.opened",
    "Retriever": "ray_atr.models.retriever",
    "as_sentence_transformer": "ray_atr.deploy.export.adapters",
    "evaluate": "ray_atr.evaluation.run",
    "retrieval_metrics": "ray_atr.metrics",
    "solve": "ray_atr.objectives.transport",
    "train": "ray_atr.training.train_modules",
}

__all__ = sorted([*_WHERE, "__version__", "objectives"])


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # Not above: it would be most of what `ray-atr` imports before it can answer Ctrl-C.
        from importlib.metadata import version

        return version("ray_atr")
    if name == "objectives":
        return importlib.import_module("ray_atr.objectives")
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    # Imported here, since `import ray_atr` costs nothing.
    from ray_atr.common.settings import nearest

    hint = nearest(name, __all__)
    if name.startswith("recall"):
        hint = "; recalls are in what ray_atr.retrieval_metrics returns"
    raise AttributeError(f"module 'ray_atr' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    # Without the modules that this file imports.
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
