"""The command `ray-atr`, and what the scripts in `pipelines/` call.

A command's module imports what its help needs. What imports torch, transformers, Ray or MLflow is imported by the function
that runs the command, so that help is printed in less than 2 s.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(*command: str, arguments: Sequence[str] | None = None) -> None:
    """Run a command. `command` holds the first words of a script (`"sweep", "noise"`), which precede the command line's."""
    _open_closed_streams()
    _have_a_home()
    try:
        # Imported inside `try`, since Ctrl-C may come meanwhile.
        from ray_atr.cli.commands import run_command
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        raise SystemExit(130) from None
    run_command([*command, *(sys.argv[1:] if arguments is None else arguments)])


def _open_closed_streams() -> None:
    """Open streams that were closed when the process was started, as by `>&-`, on the null device. Otherwise the next opened file
    would get such a stream's number, and with it what libraries print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 as long as the process lives


def _have_a_home() -> None:
    """Take the current folder as the home of a user who has none, as in some containers: Ray Train and MLflow cannot be imported
    without one.
    """
    if os.path.expanduser("~") == "~":
        os.environ["HOME"] = os.getcwd()
