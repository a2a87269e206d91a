"""The node with a trial's process is lost: the trial goes on elsewhere, from its last checkpoint."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ray_atr.training.run_folder import RunFolder
from tests.support.own_ray import end_processes_of, environment_without_ray

ROOT = Path(__file__).parents[2]


@pytest.mark.ray
def test_a_trial_whose_node_is_lost_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    # Socket names must stay short, so not under pytest's own long folder.
    with tempfile.TemporaryDirectory(prefix="ra", ignore_cleanup_errors=True) as temporary:
        environment = {
            **environment_without_ray(),
            "RAY_TMPDIR": temporary,
            "RAY_ATR_HOME": str(tmp_path),
            "RAY_AUTH_MODE": "disabled",
            # Ray lets several nodes in.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
        }
        try:
            done = subprocess.run(
                [sys.executable, "-m", "tests.support.lost_trial", str(tmp_path)],
                cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False,
            )  # fmt: skip
        finally:
            end_processes_of(temporary)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "its node was lost; it will go on from its last checkpoint" in done.stdout
    assert "1 trial finished, 0 failed" in done.stdout
    (trial,) = RunFolder.open(tmp_path / "run").trials()
    assert [row["epoch"] for row in trial.epochs()] == list(range(1, 61))
