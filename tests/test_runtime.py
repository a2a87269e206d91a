"""Joining a cluster that is not there."""

from __future__ import annotations

import socket

import pytest

from ray_atr.cli.parse import run_script
from ray_atr.runtime import require_answer


@pytest.mark.parametrize("prefix", ["", "ray://"])
def test_a_cluster_that_does_not_answer_is_named_at_once(prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{prefix}127.0.0.1:{server.getsockname()[1]}"
        require_answer(address)
    with pytest.raises(SystemExit):
        run_script(lambda: require_answer(address))
    assert f"RAY_ADDRESS: no Ray answers at {address} (Connection refused)" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["", "auto", "local"])
def test_an_address_without_a_port_is_left_to_ray(address: str) -> None:
    require_answer(address)
