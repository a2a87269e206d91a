"""Writes docs/settings.md: every setting of an experiment, from the code that declares it.

uv run python docs/settings_page.py
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ray_atr.common.override import Setting, as_typed, describe
from ray_atr.training.recipes import RECIPES

PAGE = Path(__file__).parent / "settings.md"
HEAD = """# Settings

Every setting of an experiment, as `--dotted.path VALUE` on the command line, as a key of a `--config` file, and as a path of a
sweep's `--space`. Defaults are those of the recipe `quickstart`; other recipes set others. Where a setting chooses among several
kinds (`objective.pair`, `model.audio`), a table of its own lists the settings that each kind adds, and those whose default is
another. This page is made from the code by `docs/settings_page.py`; `ray-atr train --help-settings` prints the settings of the
quickstart's own kinds.
"""


def page() -> str:
    """The page as Markdown."""
    experiment = RECIPES["quickstart"]()
    parts: dict[str, list[Setting]] = {}
    for one in describe(experiment):
        parts.setdefault(one.path.partition(".")[0], []).append(one)
    alone = [entries[0] for entries in parts.values() if len(entries) == 1]
    text = [HEAD, "## The experiment itself\n", table(alone)]
    for name, entries in parts.items():
        if len(entries) > 1:
            text += [f"## {name}\n", table(entries)]
            for title, rows in kinds(getattr(experiment, name), f"{name}."):
                text += [f"### {title}\n", table(rows)]
    return "\n".join(text)


def kinds(tree: Any, prefix: str) -> Iterator[tuple[str, list[Setting]]]:
    """Of each choice below a part its other kinds, and the settings that each adds, or has another default or help of."""
    for field in dataclasses.fields(tree):
        value, path = getattr(tree, field.name), prefix + field.name
        if not dataclasses.is_dataclass(value):
            continue
        shown = list(describe(value, f"{path}."))
        for name, make in (field.metadata.get("variants") or {}).items():
            if isinstance(make, type) and make is not type(value):
                rows = [one for one in describe(make(), f"{path}.") if one not in shown]
                if rows:
                    yield f"{path} {name}", rows
        yield from kinds(value, f"{path}.")


def table(entries: Sequence[Setting]) -> str:
    """The settings as a Markdown table."""
    rows = ["| setting | default | allowed | meaning |", "| --- | --- | --- | --- |"]
    for one in entries:
        default = "none" if one.default is None else str(as_typed(one.default))
        cells = (f"`{one.path}`", f"`{default}`" if default else "", one.allowed or one.type, one.help)
        rows.append("| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
