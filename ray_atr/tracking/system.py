"""CPU, memory, disk, network and GPU use of the controller's machine, as MLflow's system metrics of the sweep's run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor


def watch_system(run_id: str, uri: str, sample_seconds: float) -> SystemMetricsMonitor:
    """Start a thread that logs a sample every `sample_seconds` while the run is RUNNING; end it with `.finish()`.

    It continues counting from where an earlier controller of the same run stopped. It gives up when MLflow cannot be reached.
    """
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    # It would tell of its start, its end and the absence of a GPU between the lines of the sweep's progress, and of a server
    # that is away, which the tracker has said.
    logging.getLogger("mlflow.system_metrics").setLevel(logging.CRITICAL)
    monitor = SystemMetricsMonitor(
        run_id, sampling_interval=sample_seconds, samples_before_logging=1, resume_logging=True, tracking_uri=uri
    )
    monitor.start()
    return monitor
