"""Names of metrics in MLflow, whose page sorts them by name, with a section for each prefix up to the last slash.

The few that compare trials have a prefix that sorts first, since MLflow puts names without one below all sections: `all/R1 text
to audio trained` after each epoch's validation, `all/test R1 ...` of the best epoch. All others are in
one section a kind: `validation/`, `best/`, `test/`, `train/`, `seconds/`, `knowledge/`, `memory/`. What is the same in every
epoch and trial is in the files `result.json` and `metrics.jsonl` of a trial instead.
"""

from __future__ import annotations

from collections.abc import Mapping

SUMMARY = "all"
"""Prefix of the metrics that compare trials; short, since a chart has little room for its title."""
KINDS = ("validation", "best", "test")
"""Prefixes of an evaluation's metrics: after an epoch, at the best epoch, on the test split."""
CONSTANTS = ("chance_at_1", "queries", "tied_queries")
"""Measures of a data set, not of a model."""
GROUPS = {"trained": "trained", "mean": "mean of languages"}
HEADINGS = {
    f"{direction}/{group}/{measure}": f"{short} {direction.replace('_', ' ')} {words}"
    for measure, short in (("recall_at_1", "R1"), ("map_at_10", "mAP10"))
    for direction in ("text_to_audio", "audio_to_text")
    for group, words in GROUPS.items()
} | {"text_to_audio/mean/mean_rank_variance": "mean rank variance text to audio"}
"""Names of the metrics that compare trials; MLflow does not allow the `@` of R@1."""


def summary_name(metric: str) -> str | None:
    """The name under which a metric of each epoch's validation compares trials; None if it is not among those."""
    return f"{SUMMARY}/{HEADINGS[metric]}" if metric in HEADINGS else None


def in_mlflow(name: str) -> str:
    """A metric's name in MLflow; the slashes of an evaluation's metric after its kind become dots."""
    kind, slash, rest = name.partition("/")
    return kind + slash + rest.replace("/", ".") if kind in KINDS else name


def from_mlflow(name: str) -> str:
    """The metric's name for a name in MLflow."""
    kind, slash, rest = name.partition("/")
    return kind + slash + rest.replace(".", "/") if kind in KINDS else name


def tracked(numbers: Mapping[str, float]) -> dict[str, float]:
    """The numbers that are sent to MLflow, by name: the summary first, without constants."""
    summary: dict[str, float] = {}
    for kind, before in (("validation", ""), ("test", "test ")):
        by_heading = {heading: numbers.get(f"{kind}/{name}") for name, heading in HEADINGS.items()}
        summary |= {f"{SUMMARY}/{before}{heading}": value for heading, value in by_heading.items() if value is not None}
    if "train/loss" in numbers:
        summary[f"{SUMMARY}/loss"] = numbers["train/loss"]
    rest = {in_mlflow(name): value for name, value in numbers.items() if name.rsplit("/", 1)[-1] not in CONSTANTS}
    return summary | rest
