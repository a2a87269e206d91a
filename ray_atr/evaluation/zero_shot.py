"""Zero-shot classification: a clip's class is the class text nearest to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from ray_atr.evaluation.arrays import Array
from ray_atr.evaluation.ranks import count_ranks
from ray_atr.evaluation.relevance import relevance_by_label
from ray_atr.evaluation.retrieval import mean_average_precision, score
from ray_atr.settings import nearest, refuse


def zero_shot_metrics(
    audio: Array,
    class_texts: Array,
    classes: Sequence[str],
    labels: Sequence[str | Collection[str]],
    *,
    device: torch.device | str | None = None,
) -> dict[str, float]:
    """Classification of clips `audio` [N, D] by the texts of C classes [C, D] ("This is a sound of {class}").

    `labels[i]` is clip i's class or classes. Keys: `accuracy` (R@1 of audio to text; for a clip of several classes any
    of them counts), `map` (mean over clips of the AP of its classes among all), `text_to_audio_map` (mean over classes of
    the AP of its clips among all clips), `text_to_audio_map_at_10`. Shares in [0, 1]; equal scores count as chance.
    """
    if len(set(classes)) != len(classes) or len(classes) != len(class_texts):
        raise refuse("classes", len(set(classes)), f"{len(class_texts)} different names, one a class text")
    if len(labels) != len(audio):
        raise refuse("labels", len(labels), f"{len(audio)}, one a clip")
    for clip, own in enumerate(labels):
        for label in {own} if isinstance(own, str) else own:
            if label not in classes:
                raise refuse(f"labels[{clip}]", label, f"one of the {len(classes)} classes", nearest(label, classes))
    relevance = relevance_by_label(classes, labels)
    ranks = count_ranks(class_texts, audio, relevance, device=device)
    retrieval = score(ranks, relevance)
    return {
        "accuracy": float(retrieval.audio_to_text.recall[1].mean()),
        "map": mean_average_precision(relevance.clip.numpy(), ranks.audio_to_text),
        "text_to_audio_map": mean_average_precision(relevance.text.numpy(), ranks.text_to_audio),
        "text_to_audio_map_at_10": float(retrieval.text_to_audio.average_precision.mean()),
    }


def zero_shot_languages(
    audio: Array,
    class_texts: Mapping[str, Array],
    classes: Sequence[str],
    labels: Sequence[str | Collection[str]],
    *,
    device: torch.device | str | None = None,
) -> dict[str, float]:
    """`zero_shot_metrics` of each language's class texts, and their mean: `zero_shot/fra/accuracy`, `zero_shot/mean/...`."""
    if not class_texts:
        raise refuse("class_texts", "no language", "one or more languages")
    by_language = {
        language: zero_shot_metrics(audio, texts, classes, labels, device=device)
        for language, texts in class_texts.items()
    }
    result = {
        f"zero_shot/{language}/{name}": value
        for language, metrics in by_language.items()
        for name, value in metrics.items()
    }
    for name in next(iter(by_language.values())):
        result[f"zero_shot/mean/{name}"] = sum(m[name] for m in by_language.values()) / len(by_language)
    return result
