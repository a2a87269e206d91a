"""`ray-atr export`: writes a saved retriever in another library's format, after comparing both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tyro

from ray_atr.cli.parse import heartbeat, option, parse
from ray_atr.common.runtime import STARTS_AGAIN, advising
from ray_atr.common.settings import counted
from ray_atr.deploy.export.options import TARGET_NAMES, ExportOptions


@dataclass(frozen=True, kw_only=True)
class ExportCommand:
    """Export a saved retriever.

    The result is loaded in a fresh process that never imports ray_atr, and compared with the retriever on a split's clips and
    captions; if it differs, nothing is written. `load.py` in it shows how to embed with it.
    """

    retriever: tyro.conf.Positional[str] = option(
        help="a trial's folder, a run of one trial, or a folder of save_pretrained; may be a URL", metavar="FOLDER"
    )
    to: str = option(help="format: " + ", ".join(TARGET_NAMES), metavar="FORMAT")
    out: str | None = option(None, "new folder to write", "FOLDER", "exports/<retriever>-<format>")
    comparison: tyro.conf.OmitArgPrefixes[ExportOptions] = field(default_factory=ExportOptions)


OPTIONS = ExportCommand


def run(arguments: Sequence[str], program: str) -> None:
    command = parse(ExportCommand, arguments, program)
    from ray_atr.deploy.export.exporting import export

    with advising(STARTS_AGAIN), heartbeat(f"export of {command.retriever} to {command.to}") as echo:
        report = export(command.retriever, command.to, command.out, command.comparison, echo=echo)
    compared = f"{counted(report.clips, 'clip')} and {counted(report.texts, 'text')}"
    print(f"largest difference from encode_*: {report.difference:.2g}, over {compared}")
    print(f"equal top-10 lists: {report.same_top_10:.2%}")
    if report.int8_recall_loss is not None:
        print(f"text graph of 8 bits: {report.int8_recall_loss:.2f} points of R@10 lost")
    print(f"exported: {report.folder} ({report.megabytes:.1f} MB)")
