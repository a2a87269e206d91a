"""Base of the settings dataclasses: declared bounds, one check, and errors that name the remedy.

Each part of the package owns its own frozen dataclass (`Noise`, `FrontEnd`, `Contrastive`, ...), so that a default
is written once, in the file of the code that it controls. `ray_atr.training.experiment` composes them into the tree
that a user overrides.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import math
import operator
import os
import re
import sys
import typing
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar

MAX_SHOWN = 200  # characters of a wrong value that an error repeats


def nearest(name: str, allowed: Iterable[str], similarity: float = 0.5) -> str:
    """` (did you mean Z?)` for the closest allowed name, or an empty text if none is that similar (`difflib`'s ratio, without
    regard to case).
    """
    folded = {known.casefold(): known for known in reversed(list(allowed))}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=similarity)
    return f" (did you mean {folded[close[0]]}?)" if close else ""


def refuse(path: str, got: object, allowed: str, hint: str = "") -> ValueError:
    """The one form of a user's mistake: *path: got X; allowed Y (did you mean Z?)*; a long X is cut."""
    try:
        shown = repr(got)
    except ValueError:  # an integer of more digits than Python prints
        shown = f"an integer of more than {sys.get_int_max_str_digits()} digits"
    shown = shown if len(shown) <= MAX_SHOWN else f"{shown[: MAX_SHOWN - 1]}…"
    return ValueError(f"{path}: got {shown}; allowed {allowed}{hint}")


def require_known(path: str, name: str, allowed: Collection[str]) -> None:
    """ValueError unless the name is one of those allowed."""
    if name not in allowed:
        raise refuse(path, name, "one of " + ", ".join(allowed), nearest(name, allowed))


class _Named(Protocol):
    name: ClassVar[str]


_Class = TypeVar("_Class", bound=type[_Named])


def by_name(classes: Iterable[_Class]) -> dict[str, _Class]:
    """The classes by their `name`. ValueError if two have one name: settings and run folders know a class by it alone."""
    named: dict[str, _Class] = {}
    for one in classes:
        if (other := named.setdefault(one.name, one)) is not one:
            raise ValueError(f"{one.__module__}.{one.__name__}: its name {one.name!r} is that of {other.__name__}")
    return named


def require_extra(module: str, extra: str, what: str) -> None:
    """ValueError unless the library of an extra of this package is installed; `what` names the feature that needs it."""
    if importlib.util.find_spec(module) is None:
        raise refuse(what, f"no {module} installed", f"with the extra: {installing(extra)}")


def installing(extra: str) -> str:
    """The commands that install an extra of this package, for an installed package and for a clone."""
    return f"pip install 'ray_atr[{extra}]', or in a clone: uv sync --inexact --extra {extra}"


class RepeatedNameError(ValueError):
    """A name that occurs twice in one mapping of a file; Python's readers would silently use the last one."""


def each_once(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """The pairs as a dict. RepeatedNameError for a name that occurs twice."""
    values: dict[Any, Any] = {}
    for name, value in pairs:
        if name in values:
            raise RepeatedNameError(f"{shortened(str(name))} occurs twice")
        values[name] = value
    return values


def shortened(text: str, most: int = MAX_SHOWN) -> str:
    """An external text on one line, without its middle if it is longer than `most` characters."""
    text = " ".join(text.split())
    end = min(55, most // 2)
    return text if len(text) <= most else f"{text[: most - end - 5]} … {text[-end:]}"


def counted(number: int, what: str, many: str = "") -> str:
    """A number with its noun: `1 trial`, `1,000 trials`; `many` is an irregular plural."""
    return f"{number:,} {what if number == 1 else many or what + 's'}"


def setting(
    default: Any = dataclasses.MISSING,
    help: str = "",
    *,
    default_factory: Any = dataclasses.MISSING,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    choices: Iterable[str] | None = None,
    variants: Mapping[str, Any] | None = None,
    path: Literal["always", "if there"] | None = None,
    words: Iterable[str] = (),
) -> Any:
    """A dataclass field with its help text (with the unit) and the allowed values.

    `above`/`below` are open bounds, `at_least`/`at_most` closed ones, checked when the dataclass is made. No number may be
    infinite or NaN. `choices` are the allowed strings. `variants` maps a name to what builds the settings of that name: the
    field then holds a nested settings object that `override` can select by name. `path` marks a file, folder or URL: a
    relative one becomes absolute when the dataclass is made; with `if there`, only one that exists or is plainly a path, as
    it may be a hub id. `words` are values that are never a path, or the texts that are allowed beside numbers.
    """
    bounds = {"above": above, "at_least": at_least, "below": below, "at_most": at_most}
    allowed = {"choices": None if choices is None else tuple(choices), "variants": variants, "words": tuple(words)}
    metadata = {"help": help, **bounds, **allowed, "path": path}
    return dataclasses.field(default=default, default_factory=default_factory, metadata=metadata)


def inherited(base: type, name: str, default: Any = dataclasses.MISSING, where: str = "") -> Any:
    """A field of `base` with the same help and bounds, and another default if one is given. The help begins with `where`, which
    says when the setting is used.
    """
    (field,) = (field for field in dataclasses.fields(base) if field.name == name)
    default = field.default if default is dataclasses.MISSING else default
    return dataclasses.field(default=default, metadata={**field.metadata, "help": where + field.metadata["help"]})


def describe_allowed(field: dataclasses.Field[Any]) -> str:
    """The allowed values of a field in words: `(0, 1]`, `one of a, b`, or nothing."""
    metadata = field.metadata
    if names := metadata.get("choices") or metadata.get("variants"):
        return "one of " + ", ".join(names)
    low_open, low, high_open, high = bounds = [metadata.get(name) for name in BOUNDS]
    if all(bound is None for bound in bounds):
        return ""
    left = f"({_bound(low_open)}" if low_open is not None else f"[{_bound(low)}" if low is not None else "(-inf"
    right = f"{_bound(high_open)})" if high_open is not None else f"{_bound(high)}]" if high is not None else "inf)"
    return f"{left}, {right}"


def allowed_in_words(field: dataclasses.Field[Any], hint: Any) -> str:
    """The allowed values of a field, with those that are no number within its bounds: `(0, 1] or auto`."""
    numbers = describe_allowed(field)
    if not numbers or numbers.startswith("one of "):
        return numbers
    words = [*field.metadata["words"], *(["a path"] if field.metadata["path"] else [])]
    others = words or type_in_words(hint).split(" or ")[1:]
    return " or ".join(filter(None, [", ".join([numbers, *others[:-1]]), *others[-1:]]))


def type_in_words(hint: Any) -> str:
    """A type as users read it, such as `float or auto`, `str or none`, `str,str,...`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is type(None):
        return "none"
    if origin is tuple:
        return f"{type_in_words(arguments[0])}," * 2 + "..."
    if origin is typing.Literal:
        return " or ".join(map(str, arguments))
    return " or ".join(map(type_in_words, arguments)) if arguments else str(hint.__name__)


def _bound(value: float) -> str:
    """A bound as a user types it, with all digits of an integer."""
    return str(value) if isinstance(value, int) else f"{value:g}"


BOUNDS = {"above": operator.gt, "at_least": operator.ge, "below": operator.lt, "at_most": operator.le}
LARGEST_INTEGER = 2**63 - 1  # integer settings are used in 64-bit computations
WORD = re.compile(r"'\w+'|\w+")
"""A name in the source text of a field's type, or a word of its `Literal`, in quotes."""


class Settings:
    """Base of every settings dataclass: on creation it makes paths absolute and refuses values outside the declared
    bounds, and texts where the type has none.

    Subclasses are `@dataclass(frozen=True, kw_only=True)`. Their own checks go into `__post_init__` after
    `super().__post_init__()`, as `ValueError` made with `refuse`.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.metadata.get("path") and isinstance(value, str | tuple):
                parts = [_absolute(part, field.metadata) for part in ((value,) if isinstance(value, str) else value)]
                value = parts[0] if isinstance(value, str) else tuple(parts)
                object.__setattr__(self, field.name, value)
            if isinstance(value, str) and not {"str", repr(value)} & set(WORD.findall(str(field.type))):
                hint = typing.get_type_hints(type(self))[field.name]
                kind, allowed = type_in_words(hint), allowed_in_words(field, hint)
                # A union's words are among what is allowed.
                raise refuse(field.name, value, (allowed or kind) if " or " in kind else f"{kind} {allowed}".strip())
            if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
                raise refuse(field.name, value, "integers of 64 bits")
            if not _is_allowed(value, field):
                choices = field.metadata.get("choices") or ()
                hint = nearest(value, choices) if isinstance(value, str) else ""
                raise refuse(field.name, value, describe_allowed(field) or "finite numbers", hint)


def local_path(text: str) -> Path | None:
    """The path of a local name or of a `file://` URL, with `~` expanded; None for another URL. ValueError for a `~` that is
    nobody's home.
    """
    protocol, separator, rest = text.partition("://")
    if separator and protocol not in ("file", "local"):
        return None
    try:
        return Path(rest if separator else text).expanduser()
    except RuntimeError:
        raise ValueError(f"{text}: no home folder is known for its ~; write the path without it") from None


def _absolute(text: str, metadata: Mapping[str, Any]) -> str:
    """The absolute form of a relative path, since another process may run in another folder. URLs and names are unchanged.
    Links are not resolved: only the link of a file of the hub's cache has its name.
    """
    path = local_path(text) if text and text not in metadata["words"] else None
    if path is None:
        return text
    is_plainly_path = "://" in text or text.startswith((".", "/", "~"))
    if metadata["path"] == "if there" and not is_plainly_path and not os.path.exists(path):
        return text
    return os.path.abspath(path)


def _is_allowed(value: Any, field: dataclasses.Field[Any]) -> bool:
    metadata = field.metadata
    if metadata.get("choices"):
        return value is None or value in metadata["choices"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    if not math.isfinite(value):
        return False
    return all((bound := metadata.get(name)) is None or holds(value, bound) for name, holds in BOUNDS.items())


def wing(module: str) -> Any:
    """A module of a higher layer of the package, imported on first use.

    Training depends neither on the code that makes data nor on that of the papers' tables. The few callers that need them load
    them with this function.
    """
    return importlib.import_module(f"ray_atr.{module}")
