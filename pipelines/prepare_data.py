"""Import a data set into Parquet shards with captions in any number of languages, or check one.

python pipelines/prepare_data.py esc50 --source data/ESC-50-master --out data/esc50
python pipelines/prepare_data.py audiocaps --source data/audiocaps --out data/ac --captions jpn=test.csv jpn=val.csv
python pipelines/prepare_data.py check data/esc50
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Generic, TypeVar, Union

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ray_atr.cli import parse, run_script
from ray_atr.data.check import Check, check_data_set, page, reasons_left_out
from ray_atr.data.preparing import Import, prepare
from ray_atr.data.shards import Manifest
from ray_atr.data.sources import SOURCES, Source

SourceType = TypeVar("SourceType", bound=Source)


@dataclass(frozen=True, kw_only=True)
class ImportCommand(Generic[SourceType]):
    """Import a data set."""

    data: tyro.conf.OmitArgPrefixes[SourceType]
    out: str
    """Folder or URL to write; must be new or empty."""
    captions: tuple[str, ...] = ()
    """Captions in further languages, joined by id: jpn=FILE ... (CSV, TSV, JSON lines or Parquet)."""
    options: tyro.conf.OmitArgPrefixes[Import] = field(default_factory=Import)


@dataclass(frozen=True, kw_only=True)
class CheckCommand:
    """Verify a data set: hashes, schema, languages, audio, duplicates, leaks between splits."""

    data: Annotated[str, tyro.conf.Positional]
    """Folder or URL of the data set."""
    options: tyro.conf.OmitArgPrefixes[Check] = field(default_factory=Check)


IMPORT_COMMANDS = [
    Annotated[ImportCommand[source], tyro.conf.subcommand(name, description=source.__doc__)]  # type: ignore[valid-type]
    for name, source in SOURCES.items()
]
Command = Union[(*IMPORT_COMMANDS, Annotated[CheckCommand, tyro.conf.subcommand("check")])]


def main() -> None:
    command, _ = parse(Command)  # type: ignore[arg-type]
    if isinstance(command, CheckCommand):
        run_check(command)
    else:
        run_import(command)


def run_check(command: CheckCommand) -> None:
    console = Console()
    with progress_bar(console, "checking", "shards") as bar:
        task = bar.add_task("check", total=None)
        report = check_data_set(
            command.data, command.options, lambda done, total: bar.update(task, completed=done, total=total)
        )
    for line in page(report):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not report.is_fit:
        raise ValueError(f"{command.data}: {', '.join(report.problems)}")


def progress_bar(console: Console, doing: str, unit: str) -> Progress:
    return Progress(
        TextColumn(doing),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def run_import(command: ImportCommand[Source]) -> None:
    console = Console()
    with progress_bar(console, "importing", "clips") as bar:
        task = bar.add_task("import", total=None)
        manifest = prepare(
            command.data,
            command.out,
            captions=command.captions,
            options=command.options,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    for line in summary(manifest):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def summary(manifest: Manifest) -> list[str]:
    splits = ", ".join(f"{split} {manifest.num_rows_of(split):,}" for split in manifest.splits)
    lines = [
        f"{manifest.name}: {manifest.num_rows:,} clips ({splits}), {manifest.seconds / 3600:.2f} hours",
        "captions: " + ", ".join(f"{code} {manifest.num_captions(code):,}" for code in manifest.languages),
        *manifest.notes,
    ]
    if manifest.skipped:
        lines.append(f"left out: {len(manifest.skipped):,} clips, each named with its reason in manifest.json:")
        lines += [f"  {number:,} x {reason}" for reason, number in reasons_left_out(manifest)[:8]]
    return [*lines, f"licence: {manifest.licence}", f"written to {manifest.folder}"]


if __name__ == "__main__":
    run_script(main)
