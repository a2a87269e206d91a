"""The node of a knowledge base dies in mid-refresh: training goes on, and the base comes back on another node."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.own_ray import end_processes_of, environment_without_ray

ROOT = Path(__file__).parents[2]


@pytest.mark.ray
def test_a_base_whose_node_is_killed_in_mid_refresh_goes_on_elsewhere(tmp_path: Path) -> None:
    # Socket names must stay short, so not under pytest's own long folder.
    with tempfile.TemporaryDirectory(prefix="ra", ignore_cleanup_errors=True) as temporary:
        environment = {
            **environment_without_ray(),
            "RAY_TMPDIR": temporary,
            "RAY_AUTH_MODE": "disabled",
            # Ray lets several nodes in.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
        }
        try:
            done = subprocess.run(
                [sys.executable, "-m", "tests.support.killed_node", str(tmp_path)],
                cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False,
            )  # fmt: skip
        finally:
            end_processes_of(temporary)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
