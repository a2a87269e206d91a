"""The command `ray-atr`, and what the scripts in `pipelines/` call."""

from ray_atr.cli.main import main

__all__ = ["main"]
