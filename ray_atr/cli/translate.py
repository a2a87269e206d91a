"""`ray-atr translate`: fill missing languages of a data set with a local model, or check translations by going back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console

from ray_atr.cli.parse import option, parse, print_plain, progress_bar
from ray_atr.data.importing.import_options import Translation
from ray_atr.data.shards import read_manifest


@dataclass(frozen=True, kw_only=True)
class Fill:
    """Write a copy of a data set in which every clip has every language."""

    data: Annotated[str, option("folder or URL of the data set", metavar="FOLDER")]
    out: Annotated[
        str,
        option("folder or URL to write, new or empty; the same command continues a stopped one", metavar="FOLDER"),
    ]
    translation: tyro.conf.OmitArgPrefixes[Translation]


@dataclass(frozen=True, kw_only=True)
class BackTranslate:
    """Translate a sample of the captions back and print how close they come to the English ones."""

    data: Annotated[str, option("folder or URL of the data set", metavar="FOLDER")]
    translation: tyro.conf.OmitArgPrefixes[Translation]
    split: Annotated[str, option("split to draw captions from", metavar="NAME")] = "test"
    samples: Annotated[int, option("captions of each language", metavar="INT")] = 200
    embedder: Annotated[
        str,
        option(
            "folder or hub id of a text encoder: cosine of its embeddings instead of chrF",
            metavar="CHECKPOINT",
            unset="chrF",
        ),
    ] = ""


OPTIONS = Annotated[Fill, tyro.conf.subcommand("fill")] | Annotated[BackTranslate, tyro.conf.subcommand("check")]


def run(arguments: Sequence[str], program: str) -> None:
    command = parse(OPTIONS, arguments, program)
    if isinstance(command, Fill):
        run_fill(command)
    else:
        run_back_translation(command)


def run_fill(command: Fill) -> None:
    from ray_atr.data.importing.translation import fill_languages

    console = Console()
    with progress_bar("translating", "clips", console) as bar:
        task = bar.add_task("fill", total=None)
        manifest = fill_languages(
            command.data,
            command.out,
            command.translation,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    lines = [
        f"{code}: {manifest.num_captions(code):,} captions, {manifest.num_translated(code):,} made by machine"
        for code in manifest.languages
    ]
    print_plain(console, [*lines, *manifest.notes, f"written to {manifest.folder}"])


def run_back_translation(command: BackTranslate) -> None:
    from ray_atr.data.importing.translation import (
        EmbeddingSimilarity,
        Translator,
        back_translate,
        back_translation_table,
    )

    manifest, options = read_manifest(command.data), command.translation
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
