"""One table, three ways to write it: nothing is lost in Markdown, nothing is announced that a terminal does not show."""

from __future__ import annotations

import contextlib
import os
import pty
import re
from typing import ClassVar

import pytest

from ray_atr.common.table import Cell, Table, terminal_width, text_table
from ray_atr.evaluation.report.html import render_template

TABLE = Table(
    title="Recall | by <objective>",
    note="Percent.",
    columns=["objective", "R@1", "R@10"],
    groups=[("", 1), ("text→audio", 2)],
    blocks=[
        [
            [Cell("m_ltm", is_number=False), Cell("31.2 ±0.1", is_best=True, detail="[30.0, 32.0]"), Cell("70.0")],
            [Cell("a|b\n<script>", is_number=False), Cell("2.0"), Cell("8.0")],
        ]
    ],
    references=[[Cell("m_ltm (paper)", is_number=False), Cell("35.51"), Cell("–")]],
)


def test_markdown_has_every_cell_once_and_nothing_breaks_its_row() -> None:
    lines = TABLE.to_markdown(2).splitlines()
    assert lines[0] == "## Recall \\| by &lt;objective>"
    rows = [line for line in lines if line.startswith("|")]
    assert len({len(line) for line in rows}) == 1, "aligned in the source too"
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in rows] == [4] * 5
    assert "text→audio R@1" in rows[0]
    assert "**31.2 ±0.1** [30.0, 32.0]" in rows[2]
    assert "a\\|b &lt;script>" in rows[3]
    assert "*35.51*" in rows[4]


def test_a_terminal_shows_the_best_and_no_smaller_print() -> None:
    text = TABLE.to_text()
    assert "31.2 ±0.1*" in text
    assert "[30.0" not in text
    assert text.splitlines()[-1] == "Percent."
    assert all(line == line.rstrip() for line in text.splitlines())


def test_a_page_scrolls_a_wide_table_and_escapes_it() -> None:
    wide = Table("t", "", [str(n) for n in range(80)], [[[Cell("<b>")] * 80]])

    class Page:
        title, warnings, reading, comparison, queries = "t", (), (), (), ()
        facts: ClassVar[dict[str, str]] = {}
        tables = (wide, TABLE)

    html = render_template("evaluation.html.j2", page=Page, pictures={})
    assert html.count('<div class="scroll">') == html.count("<table>") == 2
    assert re.search(r"\.scroll \{[^}]*overflow-x: auto", html)
    assert "<script>" not in html
    assert "<small>[30.0, 32.0]</small>" in html


def test_lines_of_text_are_aligned_without_markup() -> None:
    assert text_table(["language", "n"], [["eng", "1,000"], ["fra", "2"]]) == [
        "language        n", "eng         1,000", "fra             2",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 110])
def test_a_table_fits_its_terminal_with_every_cell_once(width: int) -> None:
    """Lines that a terminal breaks cannot be read: what does not fit side by side stands below."""
    columns = ["objective", "noise", *(f"R@{n} of a language" for n in range(8))]
    rows = [
        [Cell(f"a name of many words, number {row}", is_number=False), Cell("many words " * 2, is_number=False)]
        + [Cell(f"{row}{n}.125 ±0.5", is_best=not row) for n in range(8)]
        for row in range(3)
    ]
    lines = Table(
        "Title", "A note of so many words that it has to be broken in a terminal " * 2, columns, [rows]
    ).to_text(width)
    assert max(map(len, lines.splitlines())) <= width
    for row in range(3):
        for n in range(8):
            assert lines.count(f"{row}{n}.125 ±0.5") == 1
    wide = TABLE.to_text(200)
    assert TABLE.to_text(60) == wide


@pytest.mark.parametrize("width", [*range(78, 90), 110])
def test_a_name_that_fits_is_not_broken_to_make_room_for_a_number(width: int) -> None:
    columns = ["noise", "objective", "in training?", *(f"text→audio\nR@{n}" for n in range(6))]
    names = [Cell(text, is_number=False) for text in ("0.4", "contrastive", "none")]
    lines = Table("", "", columns, [[[*names, *[Cell("61.2 ±12.0")] * 6]]]).to_text(width).splitlines()
    assert max(map(len, lines)) <= width
    assert any("contrastive" in line for line in lines)
    assert all("in training?" in line for line in lines if "objective" in line)


def test_a_table_takes_the_terminals_width_and_none_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert terminal_width() == 200
    monkeypatch.setenv("COLUMNS", "72")
    ends = pty.openpty()
    with os.fdopen(ends[0]), os.fdopen(ends[1], "w") as terminal, contextlib.redirect_stdout(terminal):
        assert terminal_width() == 72
