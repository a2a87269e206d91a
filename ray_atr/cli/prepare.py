"""`ray-atr prepare`: import a data set into Parquet shards with captions in any number of languages, or check one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, Union

import tyro
from rich.console import Console

from ray_atr.cli.parse import option, parse, print_plain, progress_bar
from ray_atr.data.importing.check import check_data_set, hours_of, page, reasons_left_out
from ray_atr.data.importing.import_options import Check, Import, VectorImport
from ray_atr.data.importing.plan import import_data_set
from ray_atr.data.importing.sources import SOURCES, Source

if TYPE_CHECKING:
    from ray_atr.data.shards import Manifest

SourceType = TypeVar("SourceType", bound=Source)


@dataclass(frozen=True, kw_only=True)
class ImportCommand(Generic[SourceType]):
    """Import a data set."""

    data: tyro.conf.OmitArgPrefixes[SourceType]
    out: Annotated[str, option("folder or URL to write; must be new or empty", metavar="FOLDER")]
    captions: Annotated[
        tuple[str, ...],
        option(
            "captions in further languages, joined by id (CSV, TSV, JSON lines or Parquet)",
            metavar="LANGUAGE=FILE ...",
            unset="none",
        ),
    ] = ()
    importing: tyro.conf.OmitArgPrefixes[Import] = field(default_factory=Import)


@dataclass(frozen=True, kw_only=True)
class VectorsCommand:
    """Import vectors that you have already: of clips, of captions, and a table that pairs them."""

    data: tyro.conf.OmitArgPrefixes[VectorImport]
    out: Annotated[str, option("folder to write; must be new or empty", metavar="FOLDER")]


@dataclass(frozen=True, kw_only=True)
class CheckCommand:
    """Verify a data set: hashes, schema, languages, audio, duplicates, leaks between splits."""

    data: Annotated[str, tyro.conf.Positional, option("folder or URL of the data set", metavar="FOLDER")]
    check: tyro.conf.OmitArgPrefixes[Check] = field(default_factory=Check)


IMPORT_COMMANDS = [
    Annotated[ImportCommand[source], tyro.conf.subcommand(name, description=source.__doc__)]  # type: ignore[valid-type]
    for name, source in SOURCES.items()
]
OPTIONS: Any = Union[
    (
        *IMPORT_COMMANDS,
        Annotated[VectorsCommand, tyro.conf.subcommand("vectors")],
        Annotated[CheckCommand, tyro.conf.subcommand("check")],
    )
]


def run(arguments: Sequence[str], program: str) -> None:
    command = parse(OPTIONS, arguments, program)
    if isinstance(command, CheckCommand):
        run_check(command)
    elif isinstance(command, VectorsCommand):
        run_vectors(command)
    else:
        run_import(command)


def run_check(command: CheckCommand) -> None:
    console = Console()
    with progress_bar("checking", "shards", console) as bar:
        task = bar.add_task("check", total=None)
        report = check_data_set(
            command.data, command.check, lambda done, total: bar.update(task, completed=done, total=total)
        )
    print_plain(console, page(report))
    if not report.is_fit:
        raise ValueError(f"{command.data}: {', '.join(report.problems)}")


def run_vectors(command: VectorsCommand) -> None:
    from ray_atr.data.importing.vector_import import import_vectors

    manifest = import_vectors(command.data, command.out)
    print_plain(Console(), summary(manifest))
    print_plain(Console(), [f"train on it: ray-atr train --recipe vectors --data.source {manifest.folder}"])


def run_import(command: ImportCommand[Source]) -> None:
    console = Console()
    with progress_bar("importing", "clips", console) as bar:
        task = bar.add_task("import", total=None)
        manifest = import_data_set(
            command.data,
            command.out,
            captions=command.captions,
            options=command.importing,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    print_plain(console, summary(manifest))


def summary(manifest: Manifest) -> list[str]:
    """What was imported and what was left out, in lines."""
    splits = ", ".join(f"{split} {manifest.num_rows_of(split):,}" for split in manifest.splits)
    lines = [
        f"{manifest.name}: {manifest.num_rows:,} clips ({splits}){hours_of(manifest)}",
        "captions: " + ", ".join(f"{code} {manifest.num_captions(code):,}" for code in manifest.languages),
        *manifest.notes,
    ]
    if manifest.skipped:
        lines.append(f"left out: {len(manifest.skipped):,} clips, each named with its reason in manifest.json:")
        lines += [f"  {number:,} x {reason}" for reason, number in reasons_left_out(manifest)[:8]]
    return [*lines, f"licence: {manifest.licence}", f"written to {manifest.folder}"]
