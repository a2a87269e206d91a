"""The node of a knowledge base dies in mid-refresh: training goes on, and the base comes back on another node."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.own_ray import output_of_cluster


@pytest.mark.ray
def test_a_base_whose_node_is_killed_in_mid_refresh_goes_on_elsewhere(tmp_path: Path) -> None:
    output_of_cluster("tests.support.killed_node", str(tmp_path), seconds=180)
