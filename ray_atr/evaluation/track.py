"""One evaluation to MLflow: a run of its own next to the sweeps', found by a tag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray_atr.experiment import Experiment, TrackingSettings
from ray_atr.report.evaluation_page import Page
from ray_atr.storage import Location, fetched
from ray_atr.tracking import store_of
from ray_atr.tracking.store import brief
from ray_atr.tracking.tracker import MAX_METRICS, as_metrics, as_params, as_tags

if TYPE_CHECKING:
    from collections.abc import Callable

EVALUATION_TAG = "ray_atr.metrics"


def track_evaluation(
    folder: Location, page: Page, experiment: Experiment | None, say: Callable[[str], None]
) -> str | None:
    """Log facts, metrics, differences to the baseline and the folder's files; the run id, or None if MLflow is away.

    The store is that of the run folder, as for a sweep. Results stay in the folder whatever happens here.
    """
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
        params = as_params({name.replace(" ", "_"): str(value) for name, value in page.facts.items()})
        client.log_batch(run_id, params=params, tags=as_tags({"mlflow.note.content": page.title}))
        differences = {f"difference/{name}": difference.value for name, difference in page.comparison.items()}
        metrics = list(as_metrics({**page.metrics, **differences}))
        for start in range(0, len(metrics), MAX_METRICS):
            client.log_batch(run_id, metrics=metrics[start : start + MAX_METRICS])
        with fetched(folder) as files:
            client.log_artifacts(run_id, str(files), "evaluation")
        client.set_terminated(run_id)
    except (MlflowException, OSError) as error:
        say(f"MLflow at {store}: {brief(error)}; results are in {folder}")
        return None
    return run_id
