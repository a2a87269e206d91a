"""The node with a trial's process is lost: the trial goes on elsewhere, from its last checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from ray_atr.training.run_folder import RunFolder
from tests.support.own_ray import output_of_cluster


@pytest.mark.ray
def test_a_trial_whose_node_is_lost_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    said = output_of_cluster("tests.support.lost_trial", str(tmp_path), seconds=300, RAY_ATR_HOME=str(tmp_path))
    assert "its node was lost; it will go on from its last checkpoint" in said
    assert "1 trial finished, 0 failed" in said
    (trial,) = RunFolder.open(tmp_path / "run").trials()
    assert [row["epoch"] for row in trial.epochs()] == list(range(1, 61))
