"""Names of an evaluation's numbers: task, language and measure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Self, TypeVar

import numpy as np

from ray_atr.common.settings import refuse

DIRECTIONS = ("text_to_audio", "audio_to_text")
MEAN, TRAINED, UNSEEN = "mean", "trained", "unseen"
"""Means over languages: all measured ones, the trained ones, and the others."""
MEANS = (TRAINED, UNSEEN, MEAN)


class NamedParts(str):
    """The text `task/language/last` with its parts as attributes: a key in JSON, MLflow and tables."""

    __slots__ = ("language", "last", "task")
    task: str
    language: str
    last: str

    def __new__(cls, task: str, language: str, last: str = "") -> Self:
        self = super().__new__(cls, "/".join(part for part in (task, language, last) if part))
        self.task, self.language, self.last = task, language, last
        return self

    def __getnewargs__(self) -> tuple[str, str, str]:  # type: ignore[override]
        return self.task, self.language, self.last


class Metric(NamedParts):
    """A metric's name `task/language/name`.

    task      `text_to_audio`, `audio_to_text` (in the main ranking), `text_to_audio_by_plan`, `classification`, ...
    language  an ISO 639-3 code, one of `MEANS`, or "" for a number without a language.
    name      a key of `MEASURES`.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        return self.last

    @classmethod
    def parse(cls, text: str, path: str = "metric") -> Metric:
        """The metric with this name. ValueError unless it is `task/language/name` or `task/name`."""
        if isinstance(text, cls):
            return text
        parts = text.split("/")
        if not 2 <= len(parts) <= 3 or not all(parts):
            raise refuse(path, text, "TASK/LANGUAGE/MEASURE, such as text_to_audio/eng/recall_at_1")
        return cls(parts[0], "/".join(parts[1:-1]), parts[-1])

    def in_language(self, language: str) -> Metric:
        """The same number in another language."""
        return Metric(self.task, language, self.name)


class QueryGroup(NamedParts):
    """The queries of a task in a language, `task/language`; with the last part `classes`, a classification's classes."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str, path: str = "queries") -> QueryGroup:
        """The group with this name. ValueError unless it is `task/language` or `task/language/part`."""
        parts = text.split("/")
        if not 2 <= len(parts) <= 3 or not all(parts):
            raise refuse(path, text, "TASK/LANGUAGE, such as text_to_audio/eng")
        return cls(*parts)


def task_name(direction: str, by: str = "") -> str:
    """The task of a direction; `by` is the name of a ranking other than the main one."""
    return f"{direction}_by_{by}" if by else direction


def of_part(metric: Metric, part: str) -> Metric:
    """The metric on the clips of one part of a joined data set: `text_to_audio_in_clotho/eng/recall_at_1`."""
    return Metric(task_within(metric.task, part), metric.language, metric.name)


def task_within(task: str, part: str) -> str:
    """The task among the clips of one part of a joined data set."""
    return f"{task}_in_{part}"


def with_means(
    task: str, of_languages: Mapping[str, Mapping[str, float]], trained: Collection[str] | None = None
) -> dict[Metric, float]:
    """A task's measures by language {language: {measure: value}} as metrics, with `language_means` of each measure."""
    result: dict[Metric, float] = {}
    of_measures: dict[str, dict[str, float]] = {}
    for language, values in of_languages.items():
        for name, value in values.items():
            result[Metric(task, language, name)] = value
            of_measures.setdefault(name, {})[language] = value
    for name, by_language in of_measures.items():
        result |= {Metric(task, group, name): mean for group, mean in language_means(by_language, trained).items()}
    return result


Value = TypeVar("Value", float, np.ndarray)


def languages_of_means(languages: Collection[str], trained: Collection[str]) -> dict[str, list[str]]:
    """The languages over which the means `trained`, `unseen` and `mean` are taken.

    >>> languages_of_means(["eng", "fra"], ["eng"])
    {'trained': ['eng'], 'unseen': ['fra'], 'mean': ['eng', 'fra']}
    """
    seen = [language for language in languages if language in trained]
    return {TRAINED: seen, UNSEEN: [language for language in languages if language not in seen], MEAN: list(languages)}


def language_means(values: Mapping[str, Value], trained: Collection[str] | None = None) -> dict[str, Value]:
    """The means of one measure over all languages, the trained ones and the unseen ones, from its values by language.

    `trained` None: all. Groups without a language are left out.
    """
    members = languages_of_means(values, values if trained is None else trained)
    return {
        group: sum((values[language] for language in languages[1:]), values[languages[0]]) / len(languages)
        for group, languages in members.items()
        if languages
    }
