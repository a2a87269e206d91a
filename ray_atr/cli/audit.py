"""`ray-atr audit`: which pairs of a data set are wrong, a page to decide on, and the data set that the decisions make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tyro
from rich.console import Console

from ray_atr.cli.parse import counting, option, parse, print_plain
from ray_atr.common.settings import counted
from ray_atr.common.storage import read_json
from ray_atr.evaluation.options import Encoding
from ray_atr.workshop.audit.options import RATE_CAVEAT, AuditOptions, CrossFit


@dataclass(frozen=True, kw_only=True)
class AuditCommand:
    """Find wrong pairs of a data set, or apply the decisions on them.

    Every caption of the split is judged by small heads that never saw its clip. They use the vectors of a saved retriever that
    was not trained on these pairs, or the vectors that a data set holds. The new folder holds the page to listen and decide
    (audit.html) and every pair, worst first (pairs.csv). With --apply, DATA is the folder of an audit, and --out is the data
    set to write, with the fixed captions and without the dropped ones.
    """

    data: tyro.conf.Positional[str] = option(
        help="folder or URL of a data set; with --apply, the folder of an audit", metavar="DATA"
    )
    out: str = option(help="new folder to write", metavar="FOLDER")
    checkpoint: str | None = option(
        None, "saved retriever whose vectors the judges are trained on", "FOLDER", "the data set's own vectors"
    )
    apply: str | None = option(None, "decisions that the page saved", "FILE", "audit, apply nothing")
    audit: tyro.conf.OmitArgPrefixes[AuditOptions] = field(default_factory=AuditOptions)
    judges: CrossFit = field(default_factory=CrossFit)
    encoding: tyro.conf.OmitArgPrefixes[Encoding] = field(default_factory=Encoding)


TELLING = 0.5  # least share of right pairs that the judges must find for their list to be believed

OPTIONS = AuditCommand


def run(arguments: Sequence[str], program: str) -> None:
    given = parse(OPTIONS, arguments, program)
    console = Console()
    if given.apply is not None:
        run_apply(given, console)
        return
    from ray_atr.workshop.audit.run import audit_data_set

    with counting("steps", console) as count:
        folder = audit_data_set(
            given.data,
            given.checkpoint,
            given.out,
            given.audit,
            cross_fit=given.judges,
            encoding=given.encoding,
            progress=count,
            say=lambda message: console.print(message, markup=False, highlight=False),
        )
    print_plain(console, [*audit_lines(folder), f"page to decide on: {folder / 'audit.html'}"])


def run_apply(given: AuditCommand, console: Console) -> None:
    from ray_atr.workshop.audit.decisions import apply_decisions

    assert given.apply is not None
    applied = apply_decisions(Path(given.data), Path(given.apply), given.out)
    found = f"{counted(applied.dropped, 'caption')} dropped, {applied.fixed:,} fixed"
    left_out = (
        f"{counted(applied.clips_without_captions, 'clip was', 'clips were')} left out, with all their captions dropped"
    )
    print_plain(console, [f"{found}; {left_out}", f"written to {applied.manifest.folder}"])


def audit_lines(folder: Path) -> list[str]:
    """What an audit found, in a few lines."""
    facts = read_json(folder / "audit.json")
    called = f"{facts['called_wrong']:,} called wrong (at most {facts['rate']:.0%} of these are right)"
    if not facts["called_wrong"]:
        called = f"none can be called wrong with at most {facts['rate']:.0%} of them right"
        if facts["wrong_share"] > 0:
            called += "; the worst stand first on the page all the same, and a higher --rate calls more of them"
    of_all = f"{counted(facts['captions'], 'caption')} of {counted(facts['clips'], 'clip')}"
    lines = [f"{of_all}: an estimated {facts['wrong_share']:.0%} wrong, {called}", RATE_CAVEAT]
    if facts["found_share"] < TELLING:
        lines.append(
            f"warning: only {facts['found_share']:.0%} of the right pairs fit clearly better than random ones: with vectors that "
            "carry too little information, trust neither the list nor the blocks; use a better encoder or more clips"
        )
    lines += [
        f"shifted: {block['rows']} rows from {block['first']} to {block['last']} fit the captions {block['offset']:+d} rows away"
        for block in facts["shifted_blocks"]
    ]
    return lines
