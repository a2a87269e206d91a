"""`ray-atr pack`: adds languages to an index with another model's vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import tyro
from rich.console import Console
from rich.table import Table

from ray_atr.cli.parse import heartbeat, option, parse_with_settings
from ray_atr.common.runtime import STARTS_AGAIN, advising
from ray_atr.deploy.pack.pack_options import PackOptions

if TYPE_CHECKING:
    from ray_atr.deploy.pack.making import Pack


@dataclass(frozen=True, kw_only=True)
class PackCommand:
    """Fit a multilingual text encoder to an existing space of audio vectors, which do not change.

    The result is a saved retriever: build an index of such vectors with it, or query the index that was given as --space.
    """

    space: str = option(help="clips' vectors (.npy, .safetensors, .parquet::COLUMN), or an index", metavar="VECTORS")
    captions: str = option(
        help="table: audio_row, caption[, language, split, clip_id, label, text_row]", metavar="TABLE"
    )
    text: str = option(
        help="multilingual text encoder: NAME:CHECKPOINT of a text tower, a saved retriever, or captions' vectors",
        metavar="TOWER",
    )
    space_text: str | None = option(
        None, "the space's own vectors of the captions, or of the English ones", "VECTORS", "--method audio alone"
    )
    out: str = option(help="new folder to write", metavar="FOLDER")
    split: str = option("test", "split on which before and after are measured")
    fit: tyro.conf.OmitArgPrefixes[PackOptions] = field(default_factory=PackOptions)


OPTIONS = PackCommand


def run(arguments: Sequence[str], program: str) -> None:
    command, settings = parse_with_settings(PackCommand, arguments, program)
    from ray_atr.deploy.pack.making import make_pack

    with advising(STARTS_AGAIN), heartbeat(f"a pack for {command.space} by {command.fit.method}") as echo:
        pack = make_pack(
            command.space,
            command.captions,
            command.text,
            command.out,
            space_text=command.space_text,
            options=command.fit,
            settings=settings,
            split=command.split,
            echo=echo,
        )
    Console().print(_table(pack))
    size = f", projection.onnx {pack.projection_bytes / 1e6:.2f} MB" if pack.projection_bytes else ""
    print(f"trained in {pack.seconds:.0f} s{size}: {pack.folder}")


def _table(pack: Pack) -> Table:
    """Recall, rank variance and gap by language, before and after."""
    from ray_atr.metrics.metric import MEAN, Metric

    table = Table("language", "R@1 before", "after", "R@10 before", "after", "rank variance", "after", "gap", "after")
    table.box, table.pad_edge = None, False
    after = pack.after.metrics
    before = {} if pack.before is None else pack.before.metrics
    languages = list(dict.fromkeys(metric.language for metric in after))
    # A mean over fewer languages compares with nothing.
    has_mean = {metric.language for metric in before}.issuperset(languages)
    for language in (language for language in languages if language not in ("trained", "unseen", "")):
        baseline = before if language != MEAN or has_mean else {}
        row = [language]
        for task, name, scale in (
            ("text_to_audio", "recall_at_1", 100.0),
            ("text_to_audio", "recall_at_10", 100.0),
            ("text_to_audio", "mean_rank_variance", 1.0),
            ("embedding", "language_gap", 1.0),
        ):
            values = (scores.get(Metric(task, language, name)) for scores in (baseline, after))
            row += ["" if value is None else f"{scale * value:.{1 if scale > 1 else 2}f}" for value in values]
        table.add_row(*row)
    return table
