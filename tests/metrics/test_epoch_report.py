"""What training reports, by its parts."""

from __future__ import annotations

import json
import pickle

import pytest
from scipy.stats import binomtest

from ray_atr.metrics.epoch_report import EpochReport, FinalReport
from ray_atr.metrics.measures import is_chance
from ray_atr.metrics.metric import Metric, language_means

RECALL = Metric("text_to_audio", "eng", "recall_at_1")


def test_an_epochs_parts_come_back_from_its_row() -> None:
    report = EpochReport.from_groups(epoch=2, step=8, train={"loss": 1.5}, knowledge={"version": 3.0})
    assert report.validation == {}
    report = report.validated({RECALL: 0.25}, best_epoch=1)
    again = EpochReport(json.loads(json.dumps(report)))
    assert again == report
    assert again.epoch == 2
    assert again.validation == {RECALL: 0.25}
    assert again.group("train") == {"loss": 1.5}
    # Whatever group is added later, it is no validation metric by accident.
    assert EpochReport(report, **{"correspondence/auc": 0.9}).validation == {RECALL: 0.25}
    assert again.numbers == {
        "validation/text_to_audio/eng/recall_at_1": 0.25,
        "train/loss": 1.5,
        "knowledge/version": 3.0,
    }


def test_the_end_has_the_test_splits_metrics() -> None:
    final = FinalReport.from_groups(epoch=3, best_epoch=2, clean_share=0.8, test={RECALL: 0.5})
    again = FinalReport(json.loads(json.dumps(final)))
    assert (again.test, again.clean_share, again["is_final"]) == ({RECALL: 0.5}, 0.8, True)


def test_a_metric_is_its_name_and_its_parts() -> None:
    metric = Metric.parse("text_to_audio_by_plan/fra/recall_at_1")
    assert (metric.task, metric.language, metric.name) == ("text_to_audio_by_plan", "fra", "recall_at_1")
    assert metric == "text_to_audio_by_plan/fra/recall_at_1" == str(pickle.loads(pickle.dumps(metric)))
    assert pickle.loads(pickle.dumps(metric)).language == "fra"
    assert metric.in_language("deu") == "text_to_audio_by_plan/deu/recall_at_1"
    with pytest.raises(ValueError, match="--maximize: got 'recall'; allowed TASK/LANGUAGE/MEASURE"):
        Metric.parse("recall", "--maximize")


def test_means_over_languages_have_no_member_twice() -> None:
    values = {"eng": 3.0, "fra": 1.0, "deu": 2.0}
    assert language_means(values) == {"trained": 2.0, "mean": 2.0}
    assert language_means(values, ["eng"]) == {"trained": 3.0, "unseen": 1.5, "mean": 2.0}
    assert language_means(values, []) == {"unseen": 2.0, "mean": 2.0}


@pytest.mark.parametrize(
    ("hits", "queries", "chance"), [(1, 300, 1 / 300), (4, 300, 1 / 300), (6, 300, 1 / 300), (40, 300, 0.1)]
)
def test_chance_is_what_an_independent_interval_says(hits: int, queries: int, chance: float) -> None:
    low = binomtest(hits, queries).proportion_ci(0.95, method="wilson").low
    assert is_chance(hits / queries, chance, queries) == (low <= chance)
