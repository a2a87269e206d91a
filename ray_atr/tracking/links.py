"""Pages of MLflow's own site that show a sweep at once, as what follows the server's address."""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote, urlencode

from ray_atr.tracking.names import SWEEP_TAG, TRIAL_TAG

# Without it a page shows itself in its mode for language-model applications.
TRAINING_PAGES = {"workflowType": "machine_learning"}


def comparison(experiment_id: str, run_ids: Sequence[str]) -> str:
    """Runs side by side: parallel coordinates, scatter, box and contour plots, and every parameter and metric."""
    return "#/compare-runs?" + _query({"runs": json.dumps(run_ids), "experiments": json.dumps([experiment_id])})


def charts(experiment_id: str, sweep_id: str, metric: str) -> str:
    """The sweep's trials without their parent, the best by a metric first, with a chart of each metric by epoch."""
    wanted = {
        "searchFilter": f"tags.`{SWEEP_TAG}` = {quoted(sweep_id)} AND tags.`{TRIAL_TAG}` != ''",
        "orderByKey": f"metrics.`{metric}`",
        "orderByAsc": "false",
        "compareRunsMode": "CHART",
    }
    return f"#/experiments/{experiment_id}/runs?" + _query(wanted)


def quoted(text: str) -> str:
    """A text as MLflow's filters take it: they have no escapes, but two kinds of quotation marks."""
    return f'"{text}"' if "'" in text else f"'{text}'"


def _query(parts: dict[str, str]) -> str:
    return urlencode({**parts, **TRAINING_PAGES}, quote_via=quote)
