"""For the rendered API: what a docstring and a class of settings say, as lists and blocks of Markdown.

- Lines that describe one name each (`audio  [B, D], unit norm`) become a list.
- An example (`>>> ...`) becomes a block of code, with what it prints. As Markdown it would be a quotation.
- `When:` and `Related:` begin paragraphs of their own.
- A class of settings gets a list of them: name, default, meaning and allowed values. Of another dataclass, the
  fields are listed, except those that its docstring lists.
"""

from __future__ import annotations

import dataclasses
import importlib
import re

import griffe

from ray_atr.common.settings import describe_allowed

NAME = re.compile(r"^(?P<names>[\w.*]+(?:, ?[\w.*]+)*)(?:  +)(?P<rest>\S.*)$")
CONTINUED = re.compile(r"^ {4,}(?P<rest>\S.*)$")
LEAD = re.compile(r"^(When|Related): ")
DIRECTIVE = re.compile(r"  # doctest: .*$")


def escaped(line: str) -> str:
    """The line with `<` as text and not as the begin of a tag, except in code."""
    if line.startswith("    "):
        return line
    parts = line.split("`")
    return "`".join(part if place % 2 else part.replace("<", "&lt;") for place, part in enumerate(parts))


def as_list(text: str) -> str:
    """The docstring with each line `name  what it is`, and the lines that continue it, as an item of a Markdown list."""
    lines: list[str] = []
    is_item = is_example = False
    for line in text.splitlines():
        if line.startswith(">>> ") and not is_example:
            lines += ["", "```pycon"]
            is_item, is_example = False, True
        if is_example:
            lines += [DIRECTIVE.sub("", line)] if line.strip() else ["```", ""]
            is_example = bool(line.strip())
        elif found := NAME.match(line):
            lines += [] if is_item else [""]
            lines.append(f"- `{found['names']}`: {escaped(found['rest'])}")
            is_item = True
        elif is_item and (found := CONTINUED.match(line)):
            lines.append(f"  {escaped(found['rest'])}")
        elif LEAD.match(line):
            lines += ["", LEAD.sub(r"**\1:** ", escaped(line))]
            is_item = False
        else:
            lines += ["", escaped(line)] if is_item and line.strip() else [escaped(line)]
            is_item = False
    return "\n".join([*lines, "```"] if is_example else lines)


def settings_list(settings: type) -> str:
    """A Markdown list of a class's settings; empty if it declares none."""
    lines = []
    for field in dataclasses.fields(settings) if dataclasses.is_dataclass(settings) else ():
        if not field.metadata.get("help"):
            continue
        made_by = field.default_factory
        default = "" if field.default is dataclasses.MISSING else f" ({field.default!r})"
        default = f" ({made_by.__name__}())" if isinstance(made_by, type) else default
        allowed = describe_allowed(field)
        text = f"{field.metadata['help']}{f'; {allowed}' if allowed else ''}".replace("<", "&lt;").replace("*", r"\*")
        lines.append(f"- `{field.name}`{default}: {text}")
    return "\n".join(["", "", "**Settings**, with their defaults:", "", *lines]) if lines else ""


def fields_list(fields: griffe.Class) -> str:
    """A Markdown list of a dataclass's own fields. If its docstring has a list, without those that it mentions."""
    text = fields.docstring.value if fields.docstring else ""
    listed = text if "- `" in text else ""
    lines = [
        f"- `{name}: {field.annotation}`"
        for name, field in fields.attributes.items()
        if "dataclass" in fields.labels
        and field.annotation is not None
        and not (
            name.startswith("_")
            or field.docstring
            or "ClassVar" in str(field.annotation)
            or re.search(rf"\b{name}\b", listed)
        )
    ]
    return "\n".join(["", "", "**Fields:**", "", *lines]) if lines else ""


class ArgumentLists(griffe.Extension):
    """Rewrites every docstring that is rendered."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Once an object, of any kind."""
        if obj.docstring is not None:
            obj.docstring.value = as_list(obj.docstring.value)
            if isinstance(obj, griffe.Class):
                has_settings = any("setting(" in str(field.value) for field in obj.attributes.values())
                cls = getattr(importlib.import_module(obj.module.path), obj.name) if has_settings else None
                obj.docstring.value += settings_list(cls) if cls else fields_list(obj)
