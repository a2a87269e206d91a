"""The command `ray-atr`, and what the scripts in `pipelines/` call.

A command's module imports what its help needs. What imports torch, transformers, Ray or MLflow is imported by the function
that runs the command, so that help is printed in less than 2 s.
"""

from ray_atr.cli.main import main

__all__ = ["main"]
