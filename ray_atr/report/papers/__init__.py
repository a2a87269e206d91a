"""What the papers print, number by number: reference beside our own runs on the same data set and split, never an expectation."""

from ray_atr.report.papers import ask_tables, atri_tables, m_ltm_tables
from ray_atr.report.papers.printed_table import PaperTable, PrintedRow

MODULES = (m_ltm_tables, atri_tables, ask_tables)


def printed_tables() -> tuple[PaperTable, ...]:
    """Every table that is printed in one of the papers, in the papers' order."""
    found: list[PaperTable] = []
    for module in MODULES:
        for value in vars(module).values():
            found += [one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, PaperTable)]
    return tuple(found)


__all__ = ["PaperTable", "PrintedRow", "ask_tables", "atri_tables", "m_ltm_tables", "printed_tables"]
