"""Zero-shot classification by text prompts: a clip's class is the nearest class text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ray_atr.common.settings import nearest, refuse
from ray_atr.metrics.metric import Metric, with_means
from ray_atr.metrics.ranking import LearnedMetric
from ray_atr.metrics.relevance import Array, relevance_by_label
from ray_atr.metrics.retrieval import Retrieval, average_precision, ranked, score

CLASSIFICATION = "classification"


@dataclass(frozen=True)
class Classification:
    """Each clip's and each class's scores: `map` [clips with a class] and `class_map` [classes with a clip] are APs in [0, 1]."""

    retrieval: Retrieval
    map: np.ndarray
    class_map: np.ndarray

    @property
    def of_clips(self) -> dict[str, np.ndarray]:
        """Measures of each clip: `accuracy` (R@1 of audio to text; any of several classes counts) and `map` (the AP of its
        classes).
        """
        return {"accuracy": self.retrieval.audio_to_text.recall[1], "map": self.map}

    @property
    def of_classes(self) -> dict[str, np.ndarray]:
        """Measures of each class: `text_to_audio_map` (the AP of its clips among all clips) and `text_to_audio_map_at_10`."""
        top = self.retrieval.text_to_audio.average_precision
        return {"text_to_audio_map": self.class_map, "text_to_audio_map_at_10": top}

    def metrics(self) -> dict[str, float]:
        """The means over clips and over classes, shares in [0, 1]."""
        return {name: float(values.mean()) for name, values in {**self.of_clips, **self.of_classes}.items()}


def classify(
    audio: Array,
    class_texts: Array,
    classes: Sequence[str],
    labels: Sequence[str | Collection[str]],
    *,
    metric: LearnedMetric | None = None,
    device: torch.device | str | None = None,
) -> Classification:
    """Classification of clips `audio` [N, D] by the texts of C classes [C, D] ("This is a sound of {class}").

    `labels[i]` is clip i's class or classes; a clip without one is a candidate only. Ties count as their expectation.

    When: each clip has one or several of C classes, and vectors of the classes' texts are given.
    Related: `classify_languages` for class texts in several languages.

    >>> import numpy as np
    >>> from ray_atr.metrics import classify
    >>> classify(np.eye(2), np.eye(2), ["dog", "rain"], ["dog", "rain"]).metrics()["accuracy"]
    1.0
    """
    if len(set(classes)) != len(classes) or len(classes) != len(class_texts):
        raise refuse("classes", len(set(classes)), f"{len(class_texts)} different names, one a class text")
    if len(labels) != len(audio):
        raise refuse("labels", len(labels), f"{len(audio)}, one a clip")
    names = set(classes)
    for clip, labels_of_clip in enumerate(labels):
        for label in {labels_of_clip} if isinstance(labels_of_clip, str) else labels_of_clip:
            if label not in names:
                raise refuse(f"labels[{clip}]", label, f"one of the {len(classes)} classes", nearest(label, classes))
    relevance = relevance_by_label(classes, labels)
    ranks = ranked(audio, class_texts, relevance, metric=metric, device=device)
    return Classification(
        score(ranks, relevance),
        average_precision(relevance.clip.numpy(), ranks.audio_to_text),
        average_precision(relevance.text.numpy(), ranks.text_to_audio),
    )


def classify_languages(
    audio: Array,
    class_texts: Mapping[str, Array],
    classes: Sequence[str],
    labels: Sequence[str | Collection[str]],
    *,
    metric: LearnedMetric | None = None,
    device: torch.device | str | None = None,
) -> dict[str, Classification]:
    """`classify` by each language's class texts {language: [C, D]}.

    audio [N, D], classes, labels, metric and device are those of `classify`.

    When: the classes have texts in several languages.
    Related: `classification_metrics` computes metrics and their means over languages from it.

    >>> import numpy as np
    >>> from ray_atr.metrics import classification_metrics, classify_languages
    >>> found = classify_languages(np.eye(2), {"eng": np.eye(2)}, ["dog", "rain"], ["dog", "dog"])
    >>> {str(name): value for name, value in classification_metrics(found).items()}["classification/eng/accuracy"]
    0.5
    """
    if not class_texts:
        raise refuse("class_texts", "no language", "one or more languages")
    return {
        language: classify(audio, texts, classes, labels, metric=metric, device=device)
        for language, texts in class_texts.items()
    }


def classification_metrics(
    classifications: Mapping[str, Classification], trained: Collection[str] | None = None
) -> dict[Metric, float]:
    """`Classification.metrics` by each language's class texts, and their means: `classification/fra/accuracy`, `.../mean/...`.

    Zero-shot only if the model was trained on none of the classes, which is not checked.
    """
    of_languages = {language: classification.metrics() for language, classification in classifications.items()}
    return with_means(CLASSIFICATION, of_languages, trained)
