"""The command `ray-atr`, and what the scripts in `pipelines/` call.

A command's module imports what its help needs. What imports torch, transformers, Ray or MLflow is imported by the function
that runs the command, so that help is printed in less than 2 s.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(*command: str, arguments: Sequence[str] | None = None) -> None:
    """Run a command. `command` holds the first words of a script (`"sweep", "noise"`), which precede the command line's."""
    try:
        # Imported inside `try`, since Ctrl-C may come meanwhile.
        from ray_atr.cli.commands import run_command
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        raise SystemExit(130) from None
    run_command([*command, *(sys.argv[1:] if arguments is None else arguments)])
