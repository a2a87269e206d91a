"""`ray-atr audit`: finds wrong pairs of a data set, with a page to decide on them, and writes the corrected data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.console import Console

from ray_atr.cli.parse import check_actors, counting, heartbeat, option, parse, print_plain
from ray_atr.common.runtime import STARTS_AGAIN, advising
from ray_atr.common.settings import counted, refuse
from ray_atr.common.storage import read_json
from ray_atr.evaluation.options import Encoding
from ray_atr.workshop.audit.options import NOTHING_FOUND, RATE_CAVEAT, TELLING, AuditOptions, CrossFit

if TYPE_CHECKING:
    from ray_atr.workshop.audit.decisions import Applied


@dataclass(frozen=True, kw_only=True)
class AuditCommand:
    """Find wrong pairs of a data set, or apply the decisions on them.

    Every caption of the split is scored by regressions that never saw its clip. They use the vectors of a saved retriever
    that was not trained on these pairs, or the vectors that a data set holds. The new folder holds the page to listen and
    decide (audit.html) and every pair, worst first (pairs.csv), and a random sample to listen to (listen.html, listen.csv).
    With --apply, --keep or --estimate, DATA is the folder of an audit. --apply writes a data set with the fixed captions and
    without the dropped ones. --keep writes one with a subset of the captions, of which at most a share is wrong. --estimate
    writes a file.
    """

    data: tyro.conf.Positional[str] = option(
        help="folder or URL of a data set; with --apply, --keep, --estimate: the folder of an audit", metavar="DATA"
    )
    out: str = option(help="new folder to write; with --estimate, the JSON file", metavar="FOLDER")
    checkpoint: str | None = option(
        None, "saved retriever whose vectors the regressions are trained on", "FOLDER", "the data set's own vectors"
    )
    apply: str | None = option(None, "apply the decisions that the page saved in this file", "FILE", "none")
    keep: float | None = option(
        None,
        "keep the largest set of captions of which at most this share is wrong, in 95% of such sets",
        "SHARE",
        "none",
    )
    estimate: str | None = option(
        None,
        "from the answers in this file, estimate the share of wrong captions with its 95% interval",
        "FILE",
        "none",
    )
    audit: tyro.conf.OmitArgPrefixes[AuditOptions] = field(default_factory=AuditOptions)
    cross_fit: CrossFit = field(default_factory=CrossFit)
    encoding: tyro.conf.OmitArgPrefixes[Encoding] = field(default_factory=Encoding)


OPTIONS = AuditCommand


def run(arguments: Sequence[str], program: str) -> None:
    command = parse(OPTIONS, arguments, program)
    check_actors(command.encoding)
    console = Console()
    chosen = [name for name in ("apply", "keep", "estimate") if getattr(command, name) is not None]
    if len(chosen) > 1:
        raise refuse("--" + " --".join(chosen), "together", "one of them at a time")
    if chosen:
        made = (command.checkpoint, command.audit, command.cross_fit, command.encoding)
        if made != (None, AuditOptions(), CrossFit(), Encoding()):
            allowed = "--out alone beside it: how the audit was made is in its folder"
            raise refuse(f"--{chosen[0]}", getattr(command, chosen[0]), allowed)
        # The first two copy the audio of all clips.
        with advising(STARTS_AGAIN), heartbeat(f"{chosen[0]}: the audit {command.data}"):
            run_on_audit(command, console)
        return
    from ray_atr.workshop.audit.run import audit_data_set

    # A step may take minutes, and a bar in a file says nothing within one.
    with (
        advising(STARTS_AGAIN),
        heartbeat(f"audit of {command.data}", write=lambda line: print_plain(console, [line])) as echo,
        counting("steps", console, write=echo) as count,
    ):
        folder = audit_data_set(
            command.data,
            command.checkpoint,
            command.out,
            command.audit,
            cross_fit=command.cross_fit,
            encoding=command.encoding,
            progress=count,
            echo=echo,
        )
    print_plain(console, [*audit_lines(folder), f"page to decide on: {folder / 'audit.html'}"])


def run_on_audit(command: AuditCommand, console: Console) -> None:
    """Apply decisions, keep captions, or estimate a share from answers."""
    from ray_atr.workshop.audit.answers import estimate
    from ray_atr.workshop.audit.decisions import apply_decisions, keep_certified

    audit = Path(command.data)
    if command.apply is not None:
        print_applied(apply_decisions(audit, Path(command.apply), command.out), console)
    elif command.keep is not None:
        promise = f"of the audited captions that are kept at most {command.keep:.1%} are wrong, in 95% of such sets"
        print_applied(keep_certified(audit, command.keep, command.out), console, promise)
    elif command.estimate is not None:
        estimated = estimate(audit, Path(command.estimate), Path(command.out))
        line = f"{estimated.share:.1%} wrong, 95% interval {estimated.low:.1%} to {estimated.high:.1%}"
        print_plain(console, [line, f"written to {command.out}"])


def print_applied(applied: Applied, console: Console, promise: str = "") -> None:
    changes = f"{counted(applied.dropped, 'caption')} dropped, {promise or f'{applied.fixed:,} fixed'}"
    left_out = (
        f"{counted(applied.clips_without_captions, 'clip was', 'clips were')} left out, with all their captions dropped"
    )
    lines = [f"{changes}; {left_out}"]
    if applied.unaligned:
        more = counted(applied.unaligned, "further caption is", "further captions are")
        lines.append(f"{more} left out: caption j has to be one sentence in every language, without a gap before it")
    if applied.unaudited:
        lines.append(f"not audited, and kept as they are: captions in {', '.join(applied.unaudited)}")
    print_plain(console, [*lines, f"written to {applied.manifest.folder}"])


def audit_lines(folder: Path) -> list[str]:
    """The findings of an audit in a few lines."""
    facts = read_json(folder / "audit.json")
    called = f"{facts['called_wrong']:,} called wrong (at most {100 * facts['rate']:g}% of these are right)"
    is_something_found = facts.get("is_something_found", True)
    if not is_something_found:
        called = NOTHING_FOUND
    elif not facts["called_wrong"]:
        called = f"none can be called wrong with at most {100 * facts['rate']:g}% of them right"
        if facts["wrong_share"] > 0:
            called += "; the worst stand first on the page all the same, and a higher --rate calls more of them"
    if facts["wrong_but_not_called"] and is_something_found:
        more = "more are" if facts["called_wrong"] else "are"
        called += f"; an estimated {facts['wrong_but_not_called']:,} {more} wrong and cannot be named"
    of_all = f"{counted(facts['captions'], 'caption')} of {counted(facts['clips'], 'clip')}"
    lines = [
        f"{of_all}: an estimated {facts['wrong_share']:.0%} wrong (at most {facts['wrong_share_at_most']:.0%}), {called}",
        RATE_CAVEAT,
    ]
    if facts["found_share"] < TELLING:
        lines.append(
            f"warning: only {facts['found_share']:.0%} of the right pairs fit clearly better than random ones: with vectors that "
            "carry too little information, do not trust the list; no shifted block is named; use a better encoder or more clips"
        )
    lines += [
        f"shifted: {block['rows']} rows from {block['first']} to {block['last']} fit the captions {block['offset']:+d} rows away"
        for block in facts["shifted_blocks"]
    ]
    return lines
