"""One way to change settings: `override(tree, {"objective.pair.transport_mass": 0.8})`.

The command line, sweeps and tests all use it, so that a path means the same and a mistake gives the same message
everywhere. `flatten` is its inverse: `override(default, flatten(tree)) == tree`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import itertools
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from ray_atr.common.settings import allowed_in_words, describe_allowed, nearest, refuse, shortened, type_in_words

Tree = TypeVar("Tree")

MAX_PATH = 200
# Cached: slow, and called often.
_hints = cache(typing.get_type_hints)
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def override(tree: Tree, values: Mapping[str, Any]) -> Tree:
    """A copy of a settings tree with the values at the given dotted paths replaced.

    Strings are converted to the field's type (`"0.8"`, `"true"`, `"eng,fra"`, `"none"`). A field that selects among variants
    (`objective.pair`) takes the variant's name: another variant starts from its defaults, and the present one keeps its settings.
    The order of the paths does not matter.
    Raises ValueError, naming the full path, what it got, what is allowed and the nearest name.
    """
    if longest := [path for path in values if len(path) > MAX_PATH]:
        path = shortened(longest[0])
        raise ValueError(f"{path}: no such setting; a setting's path has at most {MAX_PATH} characters")
    # Shorter paths first: choosing `objective.pair` must not undo `objective.pair.epsilon`.
    for path in sorted(values, key=lambda path: path.count(".")):
        tree = _replace(tree, path.split("."), values[path], path, tree)
    return tree


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Every setting of the tree as `{dotted path: plain value}`, variants by their name; JSON-ready."""
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(tree):
        value, path = getattr(tree, field.name), prefix + field.name
        if dataclasses.is_dataclass(value):
            if (name := variant_name(field, value)) is not None:
                flat[path] = name
            flat |= flatten(value, path + ".")
        else:
            flat[path] = list(value) if isinstance(value, tuple) else value
    return flat


def as_typed(value: Any) -> Any:
    """A setting's value as a user types it: a list as its items with commas between them, any other as it is."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


def with_absolute_paths(tree: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with relative paths replaced by the absolute ones in the tree. ValueError as `override` raises it."""
    settings = flatten(override(tree, values))
    # Where the tree holds a string, it is a name or a path; "0.8" and "eng,fra" stay as they were given.
    return {
        path: settings[path] if isinstance(value, str) and isinstance(settings.get(path), str) else value
        for path, value in values.items()
    }


@dataclasses.dataclass(frozen=True)
class Setting:
    """One line of the settings' help."""

    path: str
    type: str
    default: Any
    allowed: str
    help: str


def describe(tree: Any, prefix: str = "") -> Iterator[Setting]:
    """Every setting of the tree with its type, current value, allowed values and help, depth first."""
    hints = _hints(tree.__class__)
    for field in dataclasses.fields(tree):
        value, path = getattr(tree, field.name), prefix + field.name
        allowed, help_text = allowed_in_words(field, hints[field.name]), field.metadata.get("help", "")
        if dataclasses.is_dataclass(value):
            if field.metadata.get("variants"):
                yield Setting(path, "name", variant_name(field, value) or "-", allowed, help_text)
            yield from describe(value, path + ".")
        else:
            yield Setting(path, type_in_words(hints[field.name]), value, allowed, help_text)


def variant_name(field: dataclasses.Field[Any], value: Any) -> str | None:
    """The registered name of a nested settings object, or None if the field has no variants of classes."""
    variants = field.metadata.get("variants") or {}
    return next((str(name) for name, variant in variants.items() if variant is type(value)), None)


def _replace(tree: Any, parts: list[str], value: Any, path: str, whole: Any) -> Any:
    name, rest = parts[0], parts[1:]
    fields = {field.name: field for field in dataclasses.fields(tree)}
    done = path.split(".")[: -len(parts)]
    if name not in fields:
        where = ".".join(done) or "the experiment"
        # A setting of exactly this name before one of a name like it, and a like name anywhere before one that is less alike.
        suggestion = nearest_path(tree, name, done, 1.0) or nearest(name, fields, 0.8)
        suggestion = suggestion or nearest_path(tree, name, done) or nearest(name, fields)
        kind = getattr(tree, "name", None)
        of_kind = f" (which is {kind})" if isinstance(kind, str) and done else ""
        raise ValueError(f"{path}: no such setting; {where}{of_kind} has {', '.join(fields) or 'none'}{suggestion}")
    field, current = fields[name], getattr(tree, name)
    if rest:
        if not dataclasses.is_dataclass(current):
            raise ValueError(f"{path}: {'.'.join([*done, name])} is a single value and has no settings below it")
        new = _replace(current, rest, value, path, whole)
    elif dataclasses.is_dataclass(current):
        new = _variant(field, current, value, path, whole)
    else:
        new = _coerce(_hints(tree.__class__)[name], value, path, field)
    if new is current or (type(new) is type(current) and isinstance(new, str | bool | int | float) and new == current):
        # Most values of a stored experiment are unchanged; a copy would check every setting beside it again.
        return tree
    try:
        return dataclasses.replace(tree, **{name: new})
    except ValueError as error:
        # The refusing part has only its own field's name; the user typed the full path.
        refused, separator, after = str(error).partition(":")
        is_field = not rest and refused in fields
        raise ValueError(".".join([*done, refused]) + separator + after if is_field else str(error)) from None


def nearest_path(tree: Any, name: str, done: Sequence[str] = (), least: float = 0.8) -> str:
    """As `nearest`, for the last part of a setting's path, with the whole path: `done` are the parts above the tree."""
    paths: dict[str, str] = {}
    for entry in describe(tree):
        paths.setdefault(entry.path.rsplit(".", 1)[-1], entry.path)
    close = difflib.get_close_matches(name, paths, n=1, cutoff=least)
    return f" (did you mean {'.'.join([*done, paths[close[0]]])}?)" if close else ""


def _taken_by(tree: Any, name: str) -> str:
    """Names the first setting of the tree that takes the name: objectives, losses and methods are easily confused."""
    named = (entry for entry in describe(tree) if entry.type == "name")
    taken_by = (entry.path for entry in named if name in entry.allowed.removeprefix("one of ").split(", "))
    return next((f" ({path} takes {name})" for path in taken_by), "")


def _variant(field: dataclasses.Field[Any], current: Any, value: Any, path: str, whole: Any) -> Any:
    variants = field.metadata.get("variants")
    if isinstance(value, type(current)) or (variants and dataclasses.is_dataclass(value)):
        return value
    if not variants:
        first = dataclasses.fields(current)[0].name
        raise refuse(path, value, f"several settings: set one of them, e.g. {path}.{first}")
    if not isinstance(value, str) or value not in variants:
        hint = _taken_by(whole, str(value)) or nearest(str(value), variants)
        raise refuse(path, value, "one of " + ", ".join(variants), hint)
    if variant_name(field, current) == value:
        return current
    variant = variants[value]
    return variant() if callable(variant) and not dataclasses.is_dataclass(type(variant)) else variant


def _coerce(hint: Any, value: Any, path: str, field: dataclasses.Field[Any]) -> Any:
    arguments = typing.get_args(hint)
    if isinstance(value, str):
        if value.lower() == "none" and type(None) in arguments:
            return None
        if typing.get_origin(hint) is tuple or any(typing.get_origin(argument) is tuple for argument in arguments):
            value = tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, list):
        value = tuple(value)
    # A file's `yes` is no number, though pydantic takes it for 1.
    if not isinstance(value, bool) or bool in (hint, *arguments):
        with contextlib.suppress(ValidationError):
            return _adapter(hint).validate_python(value)
    raise refuse(path, value, f"{type_in_words(hint)} {describe_allowed(field)}".strip())


def combinations(values: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination of the values of the paths, the last changing fastest."""
    return (dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values()))
