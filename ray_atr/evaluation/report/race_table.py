"""Which points a race dropped, and why: their numbers in other tables are of the seeds that they had by then."""

from __future__ import annotations

from collections.abc import Mapping

from ray_atr.common.table import Cell, Table
from ray_atr.sweep.race import RaceEvidence


def race_table(dropped: Mapping[str, RaceEvidence]) -> Table | None:
    """A row a dropped point, by its name; None if none was dropped."""
    if not dropped:
        return None
    rows = [
        [
            Cell(name, is_number=False),
            Cell(one.rival, is_number=False),
            Cell(str(one.seeds)),
            Cell(f"{100 * one.ahead:.1f}"),
            Cell(f"{100 * one.at_least:.1f}"),
            Cell(f"{one.level:.2g}"),
        ]
        for name, one in dropped.items()
    ]
    note = (
        "These points were given no further seed, because another is better on validation by paired evidence over clips and "
        "seeds. What they would have reached with all seeds was not measured: where they have numbers, these are of the seeds "
        "that had ended by then. Ahead: by how many points (percent) the rival was, and by how many at least, in an interval "
        "that holds for all pairs of the race at once but with the probability that is stated last."
    )
    heads = ("dropped", "rival", "after seeds", "ahead", "at least", "but with probability")
    return Table("Dropped by the race", note, heads, [rows])
