"""What every pipeline script shares: parse, run, and end with one clear line when the user made a mistake.

A script's own options are a small dataclass that tyro parses; everything it does not know is taken as
`--dotted.path value` (or `--dotted.path=value`) and goes through `override`, like a sweep's or a test's settings.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tyro
from rich.console import Console
from rich.table import Table

from ray_atr.override import describe

Options = TypeVar("Options")

EXIT_BAD_INPUT = 2
EXIT_IO = 74  # sysexits.h: an input or output failed
EXIT_INTERRUPTED = 130


def parse(
    options: Callable[..., Options], *, tree: Any = None, argv: Sequence[str] | None = None
) -> tuple[Options, dict[str, str]]:
    """A script's options and the settings to override, from the command line.

    `tree` is the settings tree that the remaining `--dotted.path value` pairs address; without one, unknown options
    are refused. `--help` prints both.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if tree is None:
        return tyro.cli(options, args=arguments), {}
    if "--help-settings" in arguments:
        print_settings(tree)
        raise SystemExit(0)
    parsed, rest = tyro.cli(options, args=arguments, return_unknown_args=True)
    return parsed, settings_from(rest)


def settings_from(arguments: Sequence[str]) -> dict[str, str]:
    """`["--train.epochs", "3", "--seed=1"]` -> `{"train.epochs": "3", "seed": "1"}`. ValueError on anything else."""
    values: dict[str, str] = {}
    queue = list(arguments)
    while queue:
        token = queue.pop(0)
        if not token.startswith("--") or len(token) == 2:
            raise ValueError(
                f"{token}: not understood here; settings are written --dotted.path VALUE (see --help-settings)"
            )
        path, equals, value = token[2:].partition("=")
        if not equals:
            if not queue or queue[0].startswith("--"):
                raise ValueError(f"--{path}: a value is missing; write --{path} VALUE (see --help-settings)")
            value = queue.pop(0)
        values[path.replace("-", "_")] = value
    return values


def print_settings(tree: Any) -> None:
    """The settings tree as a table: path, value, what is allowed, what it does."""
    table = Table("setting", "default", "allowed", "meaning", box=None, pad_edge=False)
    for entry in describe(tree):
        table.add_row("--" + entry.path, str(entry.default), entry.allowed or entry.type, entry.help)
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def run_script(main: Callable[[], None]) -> None:
    """Run a script's main: exit 2 with one line on a user's mistake, 74 where a disk or the network fails (what was written
    whole is kept: the same command goes on, a sweep with --resume), 130 with what to do next on Ctrl-C."""
    try:
        main()
    except (ValueError, FileNotFoundError, PermissionError, FileExistsError, NotADirectoryError) as error:
        print(f"error: {_one_line(error)}", file=sys.stderr)
        raise SystemExit(EXIT_BAD_INPUT) from None
    except OSError as error:
        print(f"error: {_one_line(error)}; nothing that was finished is lost", file=sys.stderr)
        raise SystemExit(EXIT_IO) from None
    except KeyboardInterrupt as interrupt:
        print(f"\ninterrupted{': ' + str(interrupt) if str(interrupt) else ''}", file=sys.stderr)
        raise SystemExit(EXIT_INTERRUPTED) from None


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())
