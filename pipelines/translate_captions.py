"""Fill missing languages of a data set with a local translation model, or check translations by translating them back.

python pipelines/translate_captions.py fill --data data/clotho --out data/clotho8 --model facebook/nllb-200-distilled-600M
python pipelines/translate_captions.py check --data data/clotho8 --model facebook/nllb-200-distilled-600M --split test
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ray_atr.cli import parse, run_script
from ray_atr.data.shards import read_manifest
from ray_atr.data.translation import (
    EmbeddingSimilarity,
    Translation,
    Translator,
    back_translate,
    back_translation_table,
    fill_languages,
)


@dataclass(frozen=True, kw_only=True)
class Fill:
    """Write a copy of a data set in which every clip has every language."""

    data: str
    """Folder or URL of the data set."""
    out: str
    """Folder or URL to write; must be new or empty. The same command goes on where a stopped one ended."""
    options: tyro.conf.OmitArgPrefixes[Translation]


@dataclass(frozen=True, kw_only=True)
class Check:
    """Translate a sample of the captions back and print how close they come to the English ones."""

    data: str
    """Folder or URL of the data set."""
    options: tyro.conf.OmitArgPrefixes[Translation]
    split: str = "test"
    """Split to draw captions from."""
    samples: int = 200
    """Captions a language."""
    embedder: str = ""
    """Folder or hub id of a text encoder: cosine of its embeddings instead of chrF."""


Command = Annotated[Fill, tyro.conf.subcommand("fill")] | Annotated[Check, tyro.conf.subcommand("check")]


def main() -> None:
    command, _ = parse(Command)  # type: ignore[arg-type]
    if isinstance(command, Fill):
        run_fill(command)
    else:
        run_check(command)


def run_fill(command: Fill) -> None:
    console = Console()
    columns = (TextColumn("translating"), BarColumn(), MofNCompleteColumn(), TextColumn("clips"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("fill", total=None)
        manifest = fill_languages(
            command.data,
            command.out,
            command.options,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    for code in manifest.languages:
        by_machine = manifest.num_translated(code)
        console.print(
            f"{code}: {manifest.num_captions(code):,} captions, {by_machine:,} made by machine", highlight=False
        )
    for line in (*manifest.notes, f"written to {manifest.folder}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def run_check(command: Check) -> None:
    manifest, options = read_manifest(command.data), command.options
    languages = [code for code in options.languages if code in manifest.languages and code != options.source_language]
    if not languages:
        raise ValueError(
            f"{command.data}: it has no language to translate back; it has {', '.join(manifest.languages)}"
        )
    results = back_translate(
        manifest,
        command.split,
        Translator(options),
        languages,
        samples=command.samples,
        similarity=EmbeddingSimilarity(command.embedder) if command.embedder else None,
        source_language=options.source_language,
    )
    measure = f"cosine by {command.embedder}" if command.embedder else "chrF"
    print(f"{manifest.name} ({command.split}): captions translated back to {options.source_language}, {measure}")
    for line in back_translation_table(results):
        print(line)


if __name__ == "__main__":
    run_script(main)
