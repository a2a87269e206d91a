"""`ray-atr COMMAND ...`: selects the command and imports only its module, so that help is fast."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import tyro
from rich.console import Console
from rich.table import Table

import ray_atr
from ray_atr.cli.parse import OPTIONS_AND_SETTINGS, run_script
from ray_atr.common.settings import refuse, require_known

PROGRAM = "ray-atr"
COMMANDS = {
    "train": "Train one experiment.",
    "sweep": "Search any space of settings, or compare objectives, transport or knowledge bases.",
    "evaluate": "Evaluate saved retrievers and compare two.",
    "export": "Export a saved retriever to other libraries' formats, and compare.",
    "prepare": "Import a data set, or check one.",
    "audit": "Find wrong pairs of a data set, and apply the decisions on them.",
    "index": "Build an index of an archive of sounds, bring it up to date, and ask it.",
    "pack": "Teach an index, or vectors of another model, languages.",
    "serve": "Serve an index: a page to search and listen, and the same by HTTP.",
    "translate": "Fill missing languages with a translation model, or check translations.",
    "report": "Write the report of run folders.",
    "cache": "List what is cached under data/, with its size and last use, and remove what is not needed.",
}
"""Command -> its description; the module of the same name in this package runs it."""


def run_command(words: Sequence[str]) -> None:
    """Run a command by its words; a mistake or an interrupt ends the process with one line."""
    run_script(lambda: _run(list(words)))


def _run(words: list[str]) -> None:
    name = words[0] if words else "--help"
    if name in ("--help", "-h"):
        _print_help()
    elif name == "--version":
        print(f"{PROGRAM} {ray_atr.__version__}")
    elif name == "--tyro-print-completion":
        _print_completion(words)
    else:
        require_known("command", name, COMMANDS)
        importlib.import_module(f"ray_atr.cli.{name}").run(words[1:], f"{PROGRAM} {name}")


def _print_help() -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, text in COMMANDS.items():
        table.add_row(f"  {name}", text)
    lines = (
        f"{PROGRAM} COMMAND --help            the options of a command",
        f"{PROGRAM} train --help-settings     every setting of an experiment, given as --dotted.path VALUE",
        f"{PROGRAM} --tyro-print-completion bash|zsh     a shell's completion script",
        f"{PROGRAM} --version",
    )
    console = Console()
    console.print(f"usage: {PROGRAM} COMMAND ...\n", table, sep="\n", highlight=False)
    console.print("", *lines, sep="\n", highlight=False, markup=False, soft_wrap=True)


def _print_completion(words: list[str]) -> None:
    """Print the completion script of all commands. ValueError for a shell that has none."""
    shells = ("bash", "zsh")
    if len(words) != 2 or words[1] not in shells:
        raise refuse("--tyro-print-completion", " ".join(words[1:]), "one of " + ", ".join(shells))
    modules = {name: importlib.import_module(f"ray_atr.cli.{name}") for name in COMMANDS}
    commands = {name: module.OPTIONS for name, module in modules.items()}
    with OPTIONS_AND_SETTINGS:
        tyro.extras.subcommand_cli_from_dict(commands, prog=PROGRAM, args=words)
