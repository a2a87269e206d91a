"""`ray-atr cache`: lists the caches under data/ with size and last use; `--prune` removes those unused for long."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from ray_atr.cli.parse import option, parse
from ray_atr.common.caches import list_caches, prune
from ray_atr.common.runtime import home
from ray_atr.common.settings import refuse


@dataclass(frozen=True)
class CacheCommand:
    """List what is cached under data/ (features, vectors, tokenisers, copies of indexes): all of it can be made again."""

    prune: bool = option(False, "remove caches that were not used for --unused-days, and files that killed runs left")
    unused_days: float = option(30.0, "with --prune: days without use after which a cache is removed", "DAYS")


OPTIONS = CacheCommand


def run(arguments: Sequence[str], program: str) -> None:
    options = parse(CacheCommand, arguments, program)
    if not 0 <= options.unused_days < math.inf:
        raise refuse("--unused-days", options.unused_days, "a number of days, 0 or more")
    if options.unused_days != CacheCommand.unused_days and not options.prune:
        raise refuse("--unused-days", options.unused_days, "nothing without --prune, which removes caches")
    caches = prune(home(), options.unused_days) if options.prune else list_caches(home())
    table = Table("kind", "size", "unused for", "", "folder or file", box=None, pad_edge=False)
    for cache in caches:
        state = "" if cache.is_complete else "unfinished"
        table.add_row(cache.kind, decimal(cache.num_bytes), f"{cache.days_unused:.1f} days", state, str(cache.path))
    Console(width=10_000).print(table, highlight=False, markup=False, soft_wrap=True)
    verb = "removed" if options.prune else "cached"
    print(f"{len(caches)} {verb}, {decimal(sum(cache.num_bytes for cache in caches))}, under {home() / 'data'}")
