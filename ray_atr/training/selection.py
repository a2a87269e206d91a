"""Which metric may choose the best epoch: one that the validation measures."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from ray_atr.metrics import evaluate_languages
from ray_atr.settings import nearest, refuse


def measured_names(languages: Sequence[str], trained: Collection[str] | None = None) -> list[str]:
    """The metrics of a validation in these languages: those that the metrics' own function returns for any vectors."""
    vectors = torch.eye(4)
    metrics = evaluate_languages(vectors, dict.fromkeys(languages, vectors), torch.arange(4), trained=trained)
    return sorted(str(name) for name in metrics)


def check_metric(metric: str, path: str, languages: Sequence[str], trained: Collection[str] | None = None) -> None:
    """ValueError for a metric that no validation in these languages has, naming the nearest, and the parts of those there are."""
    names = measured_names(languages, trained)
    if metric not in names:
        # Every name would not fit into an error: their parts do.
        parts = [name.split("/") for name in names if "/trained/" in name]
        tasks, measures = (", ".join(dict.fromkeys(part[place] for part in parts)) for place in (0, 2))
        groups = ", ".join(("trained, or unseen", "mean", *languages))
        allowed = f"text_to_audio/trained/recall_at_1 and the like: {tasks}; {groups}; {measures}"
        raise refuse(path, metric, allowed, nearest(metric, names))
