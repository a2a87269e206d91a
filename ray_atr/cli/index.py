"""`ray-atr index`: builds, updates and queries an index of an archive of sounds."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.table import Table

from ray_atr.cli.parse import check_actors, counting, heartbeat, option, parse, print_plain
from ray_atr.common.runtime import advising
from ray_atr.common.settings import counted, refuse
from ray_atr.common.table import minutes
from ray_atr.deploy.index.options import IndexEncoding

if TYPE_CHECKING:
    from ray_atr.deploy.index.build import Changes
    from ray_atr.deploy.index.search import Match


@dataclass(frozen=True, kw_only=True)
class BuildIndex:
    """Index an archive: a folder of audio files, a prepared data set, or vectors (.npy) of the model's own space.

    Long sounds are indexed window by window, with the time at which each begins. The same command continues an interrupted
    build. Files that cannot be read are named and left out.
    """

    checkpoint: str = option(help="saved retriever: its folder, its trial's, or its run's", metavar="FOLDER")
    audio: str = option(help="folder of audio, folder or URL of a data set, or .npy file", metavar="ARCHIVE")
    out: str = option(help="folder of the new index", metavar="INDEX")
    part: str = option(
        "", "index only the K-th of N parts of the archive; `serve` searches several parts as one", "K/N", "all"
    )
    encoding: tyro.conf.OmitArgPrefixes[IndexEncoding] = field(default_factory=IndexEncoding)


@dataclass(frozen=True, kw_only=True)
class UpdateIndex:
    """Update an index: new and changed sounds are encoded, removed ones are left out."""

    index: tyro.conf.Positional[str] = option(help="folder of the index", metavar="INDEX")
    checkpoint: str | None = option(
        None, "new place of the index's retriever, if it has moved", "FOLDER", "its old place"
    )
    audio: str | None = option(None, "new place of the archive, if it has moved", "ARCHIVE", "its old place")
    encoding: tyro.conf.OmitArgPrefixes[IndexEncoding] = field(default_factory=IndexEncoding)


@dataclass(frozen=True, kw_only=True)
class QueryIndex:
    """Query an index by text, in any language that its retriever learned, or by a sound."""

    index: tyro.conf.Positional[str] = option(help="folder or URL of an index", metavar="INDEX")
    text: tyro.conf.Positional[tuple[str, ...]] = option(
        (), "what to hear, with or without quotes around it", "TEXT", "with --like or --from: none"
    )
    like: str | None = option(None, "a sound to find others like it", "FILE", "search by text")
    from_: Annotated[str | None, tyro.conf.arg(name="from")] = option(
        None, "a file with a text on each line, or - for the standard input", "FILE", "the one text"
    )
    language: str | None = option(None, "ISO 639 code of the text's language; only some models need it", "CODE", "none")
    top: int = option(10, "most answers to a query")
    at_least: float | None = option(
        None, "only answers with at least this probability; needs a calibration", "P", "all of the top"
    )
    or_nothing: bool = option(
        False, "answer 'nothing found' if nothing in the archive seems to match; needs a calibration"
    )
    json: bool = option(False, "print one JSON object per line, for each query")
    checkpoint: str | None = option(
        None, "new place of the index's retriever, if it has moved", "FOLDER", "its old place"
    )


OPTIONS = (
    Annotated[BuildIndex, tyro.conf.subcommand("build")]
    | Annotated[UpdateIndex, tyro.conf.subcommand("update")]
    | Annotated[QueryIndex, tyro.conf.subcommand("query")]
)


def run(arguments: Sequence[str], program: str) -> None:
    command = parse(OPTIONS, arguments, program)
    if isinstance(command, QueryIndex):
        _query(command)
        return
    check_actors(command.encoding)
    with advising("the same command goes on where it stopped"):
        _make(command)


def _make(command: BuildIndex | UpdateIndex) -> None:
    from ray_atr.deploy.index.build import build_index, update_index

    console = Console()

    def echo(message: str) -> None:
        console.print(printable(message), markup=False, highlight=False, soft_wrap=True)

    with counting("", console, "sounds") as count:
        common = {"encoding": command.encoding, "progress": count, "echo": echo}
        if isinstance(command, BuildIndex):
            changes = build_index(command.checkpoint, command.audio, command.out, part=command.part, **common)
            folder = command.out
        else:
            changes = update_index(command.index, command.checkpoint, command.audio, **common)
            folder = command.index
    name = shlex.quote(folder)
    ask = [f"ask it:   ray-atr index query {name} {changes.query}"] if changes.query else []
    print_plain(console, [_summary(changes), *ask, f"serve it: ray-atr serve {name}"])


def _summary(changes: Changes) -> str:
    manifest = changes.manifest
    parts = [f"{changes.encoded:,} encoded", f"{changes.taken_over:,} unchanged", f"{changes.removed:,} removed"]
    if changes.broken:
        parts.append(f"{len(changes.broken):,} left out")
    contents = f"{counted(manifest.num_sounds, 'sound')} in {counted(manifest.num_windows, 'window')}"
    return f"{contents} ({', '.join(parts)})"


def _query(command: QueryIndex) -> None:
    ways = {"TEXT": bool(command.text), "--like": command.like is not None, "--from": command.from_ is not None}
    chosen = " and ".join(way for way, is_given in ways.items() if is_given)
    if chosen not in ways:
        raise refuse(
            "query", chosen or "nothing to look for", 'a text, such as "a dog barks", --like FILE or --from FILE'
        )
    if command.like is not None and (
        command.at_least is not None or command.language is not None or command.or_nothing
    ):
        raise refuse("--like", command.like, "no --at-least, --or-nothing and --language, which are of a text")
    texts = [" ".join(command.text)] if command.from_ is None else _lines(command.from_)
    from ray_atr.deploy.index.opened import Index

    index = Index.open(command.index, checkpoint=command.checkpoint)
    if command.like is None and (warning := index.warning_of(command.language)):
        _note(f"note: {warning}")
    if command.like is not None:
        queries, of_queries = [command.like], [index.like(command.like, top=command.top)]
    else:
        # The answers to a file of texts come together, after minutes if there are very many.
        alive = heartbeat(counted(len(texts), "text"), write=_note) if command.from_ else contextlib.nullcontext()
        with warnings.catch_warnings(), alive:
            if command.language is not None:
                # The note says the same, without a line of code.
                warnings.filterwarnings("ignore", "no captions in")
            queries = texts
            of_queries = index.search_many(
                texts, command.language, top=command.top, at_least=command.at_least, or_nothing=command.or_nothing
            )
    for query, matches in zip(queries, of_queries, strict=True):
        _print(query, matches, command, is_alone=len(queries) == 1)


def _note(message: str) -> None:
    print(message, file=sys.stderr)


def _lines(file: str) -> list[str]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (UnicodeDecodeError, IsADirectoryError):
        raise refuse("--from", file, "a text file in UTF-8") from None
    from ray_atr.deploy.index.search import check_text

    # Editors of Windows put a mark first, which would be a part of the first text.
    listed = text.removeprefix("\ufeff").splitlines()
    lines = {number: line.strip() for number, line in enumerate(listed, start=1) if line.strip()}
    if not lines:
        raise refuse("--from", file, "a file with a text on a line")
    for number, line in lines.items():
        check_text(line, f"--from: line {number}")
    return list(lines.values())


def _print(query: str, matches: Sequence[Match], command: QueryIndex, *, is_alone: bool) -> None:
    if command.json:
        answer = {"query": query, "matches": [dataclasses.asdict(match) for match in matches]}
        # Another encoding may lack letters of a path, which are then escaped.
        print(json.dumps(answer, ensure_ascii=sys.stdout.encoding != "utf-8"))
        return
    if not is_alone:
        print(printable(query))
    if not matches:
        print("nothing found" + ("" if command.at_least is None else f" of probability {command.at_least:g} or more"))
        return
    has_probability = matches[0].probability is not None
    columns = ("start", "score", *(("probability",) if has_probability else ()), "file")
    table = Table(*columns, box=None, pad_edge=False)
    for match in matches:
        chance = (f"{match.probability:.2f}",) if match.probability is not None else ()
        table.add_row(minutes(match.start), f"{match.score:.3f}", *chance, printable(match.path))
    Console(width=None if sys.stdout.isatty() else 10_000).print(table, highlight=False, markup=False, soft_wrap=True)


def printable(name: str) -> str:
    """A name that is safe for a terminal: line feeds and escape sequences are escaped."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in name)
