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
    "prepare": "Import a data set, join several, or check one.",
    "translate": "Add captions in missing languages with a translation model, or check translations.",
    "audit": "Find the wrong pairs of a data set, and write it with your decisions applied.",
    "train": "Train one experiment.",
    "sweep": "Compare settings: a grid or search of your own, or one of five comparisons.",
    "report": "Write the report of run folders again, or of several together.",
    "evaluate": "Evaluate saved retrievers, and compare them with a baseline.",
    "index": "Build, update or query an index of an archive of sounds.",
    "serve": "Serve an index: a page to search and listen, and an HTTP interface.",
    "pack": "Add languages to an index, or to vectors of another model.",
    "export": "Export a saved retriever to the format of another library.",
    "cache": "List the caches under data/, or remove those that were not used for long.",
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
        f"{PROGRAM} sweep noise               a first sweep, on synthetic sounds that it makes",
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
    commands = {name: importlib.import_module(f"ray_atr.cli.{name}").OPTIONS for name in COMMANDS}
    with OPTIONS_AND_SETTINGS:
        tyro.extras.subcommand_cli_from_dict(commands, prog=PROGRAM, args=words)
