"""Tags by which the runs of a sweep are found again in MLflow."""

from __future__ import annotations

SWEEP_TAG = "ray_atr.sweep"
TRIAL_TAG = "ray_atr.trial"
COMMAND_TAG = "command"
OVERRIDES_TAG = "ray_atr.overrides"
FORMAT_TAG = "ray_atr.format"
EPOCHS_TAG = "ray_atr.epochs_sent"
"""Number of an epoch up to which a trial's metrics are in MLflow; sent together with them."""
STOPPED_TAG = "stopped_early"
"""Tells a trial that was ended for its results so far from one that was killed: MLflow has one status for both."""
