"""For the rendered API: lines of a docstring that describe one name each (`audio  [B, D], unit norm`) become a list."""

from __future__ import annotations

import re

import griffe

NAME = re.compile(r"^(?P<names>[\w.*]+(?:, ?[\w.*]+)*)(?:  +)(?P<rest>\S.*)$")
CONTINUED = re.compile(r"^ {4,}(?P<rest>\S.*)$")


def as_list(text: str) -> str:
    """The docstring with each line `name  what it is`, and the lines that continue it, as an item of a Markdown list."""
    lines: list[str] = []
    is_item = False
    for line in text.splitlines():
        if found := NAME.match(line):
            lines += [] if is_item else [""]
            lines.append(f"- `{found['names']}`: {found['rest']}")
            is_item = True
        elif is_item and (found := CONTINUED.match(line)):
            lines.append(f"  {found['rest']}")
        else:
            lines += ["", line] if is_item and line.strip() else [line]
            is_item = False
    return "\n".join(lines)


class ArgumentLists(griffe.Extension):
    """Rewrites every docstring that is rendered."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Once an object, of any kind."""
        if obj.docstring is not None:
            obj.docstring.value = as_list(obj.docstring.value)
