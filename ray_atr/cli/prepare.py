"""`ray-atr prepare`: import a data set into Parquet shards with captions in any number of languages, or check one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Union

import tyro
from rich.console import Console

from ray_atr.cli.parse import counting, heartbeat, option, parse, print_plain
from ray_atr.common.runtime import STARTS_AGAIN, advising
from ray_atr.common.settings import counted
from ray_atr.workshop.importing.check import check_data_set, hours_of, lines_left_out, page
from ray_atr.workshop.importing.import_options import Check, Import, Join, VectorImport
from ray_atr.workshop.importing.plan import import_data_set
from ray_atr.workshop.importing.sources import SOURCES, Source
from ray_atr.workshop.importing.sources.source import UNUSUAL_SPLIT, unusual_splits

if TYPE_CHECKING:
    from ray_atr.data.shards import Manifest


@dataclass(frozen=True, kw_only=True)
class ImportCommand:
    """Import a data set."""

    data: tyro.conf.OmitArgPrefixes[Source]
    out: str = option(
        help="folder or URL to write: new, empty, or that of the same import, which is then completed", metavar="FOLDER"
    )
    captions: tuple[str, ...] = option(
        (), "captions in further languages, joined by id (CSV, TSV, JSON lines or Parquet)", "LANGUAGE=FILE ...", "none"
    )
    importing: tyro.conf.OmitArgPrefixes[Import] = field(default_factory=Import)

    def run(self) -> None:
        console = Console()
        with counting("clips", console, "importing") as count:
            progress = partial(count, "importing")
            manifest = import_data_set(
                self.data, self.out, captions=self.captions, options=self.importing, progress=progress
            )
        print_plain(console, summary(manifest))


@dataclass(frozen=True, kw_only=True)
class VectorsCommand:
    """Import your own vectors of clips and captions, and a table that pairs them."""

    data: tyro.conf.OmitArgPrefixes[VectorImport]
    out: str = option(help="folder to write; must be new or empty", metavar="FOLDER")

    def run(self) -> None:
        from ray_atr.workshop.importing.vector_import import import_vectors

        with advising(STARTS_AGAIN), heartbeat("importing"):
            manifest = import_vectors(self.data, self.out)
        words = ["ray-atr", "train", "--recipe", "vectors", "--data.source", manifest.folder]
        hint = f"train on it: {shlex.join(words)}"
        if not {"train", "val"} <= set(manifest.splits):
            hint = "to train on it, it needs clips in train and in val: a column split of the table says where each belongs"
        print_plain(Console(), [*summary(manifest), hint])


@dataclass(frozen=True, kw_only=True)
class JoinCommand:
    """Join data sets into one, without the recordings that would leak from one into another; no audio is copied."""

    data: tyro.conf.OmitArgPrefixes[Join]
    out: str = option(
        help="folder or URL to write: new, empty, or that of the same join, which is then completed", metavar="FOLDER"
    )

    def run(self) -> None:
        from ray_atr.workshop.importing.join import join_data_sets

        console = Console()
        with counting("clips", console, "reading") as count:
            manifest = join_data_sets(self.data, self.out, count)
        print_plain(console, summary(manifest))


@dataclass(frozen=True, kw_only=True)
class CheckCommand:
    """Verify a data set: hashes, schema, languages, audio, duplicates, leaks between splits."""

    data: tyro.conf.Positional[str] = option(help="folder or URL of the data set", metavar="FOLDER")
    check: tyro.conf.OmitArgPrefixes[Check] = field(default_factory=Check)

    def run(self) -> None:
        console = Console()
        with counting("shards", console, "checking") as count:
            report = check_data_set(self.data, self.check, partial(count, "checking"))
        print_plain(console, page(report))
        if not report.is_fit:
            raise ValueError(f"{self.data}: {', '.join(report.problems)}")


def import_command(name: str, source: type[Source]) -> Any:
    """The command that imports from one kind of source, with the settings of that kind."""
    data = ("data", tyro.conf.OmitArgPrefixes[source])  # type: ignore[misc, valid-type]
    command = make_dataclass(f"Import {name}", [data], bases=(ImportCommand,), frozen=True, kw_only=True)
    return Annotated[command, tyro.conf.subcommand(name, description=source.__doc__)]


OPTIONS: Any = Union[
    (
        *(import_command(name, source) for name, source in SOURCES.items()),
        Annotated[VectorsCommand, tyro.conf.subcommand("vectors")],
        Annotated[JoinCommand, tyro.conf.subcommand("join")],
        Annotated[CheckCommand, tyro.conf.subcommand("check")],
    )
]


def run(arguments: Sequence[str], program: str) -> None:
    parse(OPTIONS, arguments, program).run()


def summary(manifest: Manifest) -> list[str]:
    """The numbers of imported and left out clips, in lines."""
    splits = ", ".join(f"{split} {manifest.num_rows_of(split):,}" for split in manifest.splits)
    lines = [
        f"{manifest.name}: {counted(manifest.num_rows, 'clip')} ({splits}){hours_of(manifest)}",
        "captions: " + ", ".join(f"{code} {manifest.num_captions(code):,}" for code in manifest.languages),
        *manifest.notes,
        *(f"{UNUSUAL_SPLIT}: {split}" for split in unusual_splits(manifest.splits)),
    ]
    if manifest.skipped:
        lines.append(f"left out: {counted(len(manifest.skipped), 'clip')} (manifest.json names the reason of each):")
        lines += lines_left_out(manifest, 8)
    return [*lines, f"licence: {manifest.licence}", f"written to {manifest.folder}"]
