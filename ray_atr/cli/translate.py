"""`ray-atr translate`: fills missing languages of a data set with a local model, or checks translations by back-translation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import tyro
from rich.console import Console

from ray_atr.cli.parse import counting, option, parse, print_plain
from ray_atr.common.settings import counted, refuse
from ray_atr.data.shards import read_manifest
from ray_atr.workshop.importing.import_options import Translation


@dataclass(frozen=True, kw_only=True)
class Fill:
    """Write a copy of a data set in which every clip has every language."""

    data: str = option(help="folder or URL of the data set", metavar="FOLDER")
    out: str = option(
        help="folder or URL to write, new or empty; the same command continues a stopped one", metavar="FOLDER"
    )
    translation: tyro.conf.OmitArgPrefixes[Translation]

    def run(self) -> None:
        from ray_atr.workshop.importing.translation import fill_languages

        console = Console()
        with counting("clips", console, "translating") as count:
            manifest = fill_languages(self.data, self.out, self.translation, progress=partial(count, "translating"))
        lines = [
            f"{code}: {counted(manifest.num_captions(code), 'caption')}, {manifest.num_translated(code):,} made by machine"
            for code in manifest.languages
        ]
        print_plain(console, [*lines, *manifest.notes, f"written to {manifest.folder}"])


@dataclass(frozen=True, kw_only=True)
class BackTranslate:
    """Translate a sample of the captions back to the source language and print how close they come to its captions."""

    data: str = option(help="folder or URL of the data set", metavar="FOLDER")
    translation: tyro.conf.OmitArgPrefixes[Translation]
    split: str = option("test", "split to draw captions from", "NAME")
    samples: int = option(200, "captions of each language", "INT")
    embedder: str = option(
        "", "folder or hub id of a text encoder: cosine of its embeddings instead of chrF", "CHECKPOINT", "chrF"
    )

    def run(self) -> None:
        from ray_atr.workshop.importing import translation

        if self.samples < 1:
            raise refuse("--samples", self.samples, "1 or more")
        manifest, options, source = read_manifest(self.data), self.translation, self.translation.source_language
        languages = [code for code in options.languages if code in manifest.languages and code != source]
        if not languages:
            has = ", ".join(manifest.languages)
            raise ValueError(f"{self.data}: it has no language to translate back; it has {has}")
        by, measure = None, "chrF"
        if self.embedder:
            by, measure = translation.embedding_similarity(self.embedder), f"cosine by {self.embedder}"
        request = (manifest, self.split, translation.Translator(options), languages)
        results = translation.back_translate(*request, samples=self.samples, similarity=by, source_language=source)
        print(f"{manifest.name} ({self.split}): captions translated back to {source}, {measure}")
        print(*translation.back_translation_table(results), sep="\n")


OPTIONS = Annotated[Fill, tyro.conf.subcommand("fill")] | Annotated[BackTranslate, tyro.conf.subcommand("check")]


def run(arguments: Sequence[str], program: str) -> None:
    parse(OPTIONS, arguments, program).run()
