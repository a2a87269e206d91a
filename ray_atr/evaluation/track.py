"""One evaluation to MLflow: a run of its own next to the sweeps', found by a tag."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from ray_atr.experiment import Experiment, TrackingSettings
from ray_atr.redaction import redact
from ray_atr.report.evaluation_page import Page
from ray_atr.storage import Location, fetched
from ray_atr.tracking import store_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mlflow.entities import Metric

EVALUATION_TAG = "ray_atr.metrics"
MAX_PARAM = 6000
METRICS_AT_ONCE = 800


def track_evaluation(
    folder: Location, page: Page, experiment: Experiment | None, say: Callable[[str], None]
) -> str | None:
    """Log facts, metrics, differences to the baseline and the folder's files; the run id, or None if MLflow is away.

    The store is that of the run folder, as for a sweep. Results stay in the folder whatever happens here.
    """
    from mlflow.entities import Param, RunTag
    from mlflow.exceptions import MlflowException

    store = store_of(folder)
    tracking = experiment.tracking if experiment is not None else TrackingSettings()
    try:
        client = store.connect()
        run = client.create_run(
            store.experiment_id(client, tracking.experiment_name),
            run_name=folder.name,
            tags={EVALUATION_TAG: folder.name},
        )
        run_id = str(run.info.run_id)
        params = [Param(name.replace(" ", "_"), str(value)[:MAX_PARAM]) for name, value in page.facts.items()]
        client.log_batch(run_id, params=params, tags=[RunTag("mlflow.note.content", page.title)])
        metrics = [*_metrics(page.metrics), *_metrics({f"difference/{k}": d.value for k, d in page.comparison.items()})]
        for start in range(0, len(metrics), METRICS_AT_ONCE):
            client.log_batch(run_id, metrics=metrics[start : start + METRICS_AT_ONCE])
        with fetched(folder) as files:
            client.log_artifacts(run_id, str(files), "evaluation")
        client.set_terminated(run_id)
    except (MlflowException, OSError) as error:
        say(f"MLflow at {store}: {redact(' '.join(str(error).split()))[:200]}; results are in {folder}")
        return None
    return run_id


def _metrics(values: Mapping[Any, float]) -> list[Metric]:
    from mlflow.entities import Metric

    now = int(1000 * time.time())
    return [Metric(name, value if math.isfinite(value) else math.nan, now, 0) for name, value in values.items()]
