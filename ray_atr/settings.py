"""What every settings dataclass shares: declared bounds, one check, and errors that name the remedy.

Each part of the package owns its own frozen dataclass (`Noise`, `FrontEnd`, `Contrastive`, ...), so that a default
stands in one place: beside the code it steers. `ray_atr.experiment` composes them into the tree a user overrides.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any


def nearest(name: str, allowed: Iterable[str]) -> str:
    """` (did you mean Z?)` for the closest allowed name, or nothing when none is close."""
    close = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""


def refuse(path: str, got: object, allowed: str, hint: str = "") -> ValueError:
    """The one form of a user's mistake: *path: got X; allowed Y (did you mean Z?)*."""
    return ValueError(f"{path}: got {got!r}; allowed {allowed}{hint}")


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
) -> Any:
    """A dataclass field with its help text (say the unit) and the values it allows.

    `above`/`below` are open bounds, `at_least`/`at_most` closed ones; they are checked when the dataclass is made.
    `choices` are the allowed strings. `variants` maps a name to what builds the settings of that name: the field then
    holds a nested settings object that `override` can select by name.
    """
    metadata = {
        "help": help,
        "above": above,
        "at_least": at_least,
        "below": below,
        "at_most": at_most,
        "choices": tuple(choices) if choices is not None else None,
        "variants": variants,
    }
    if default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def describe_allowed(field: dataclasses.Field[Any]) -> str:
    """The allowed values of a field in words: `(0, 1]`, `one of a, b`, or nothing."""
    metadata = field.metadata
    if metadata.get("choices"):
        return "one of " + ", ".join(metadata["choices"])
    if metadata.get("variants"):
        return "one of " + ", ".join(metadata["variants"])
    low_open, low, high_open, high = (metadata.get(key) for key in ("above", "at_least", "below", "at_most"))
    if low_open is None and low is None and high_open is None and high is None:
        return ""
    left = f"({low_open:g}" if low_open is not None else f"[{low:g}" if low is not None else "(-inf"
    right = f"{high_open:g})" if high_open is not None else f"{high:g}]" if high is not None else "inf)"
    return f"{left}, {right}"


class Settings:
    """Base of every settings dataclass: refuses values outside the declared bounds as soon as it is made.

    Subclasses are `@dataclass(frozen=True, kw_only=True)`. Their own checks go into `__post_init__` after
    `super().__post_init__()`, as `ValueError` made with `refuse`.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if not _is_allowed(value, field):
                choices = field.metadata.get("choices") or ()
                hint = nearest(value, choices) if isinstance(value, str) else ""
                raise refuse(field.name, value, describe_allowed(field), hint)


def _is_allowed(value: Any, field: dataclasses.Field[Any]) -> bool:
    metadata = field.metadata
    if metadata.get("choices"):
        return value is None or value in metadata["choices"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    if math.isnan(value):
        return False
    above, at_least, below, at_most = (metadata.get(key) for key in ("above", "at_least", "below", "at_most"))
    return (
        (above is None or value > above)
        and (at_least is None or value >= at_least)
        and (below is None or value < below)
        and (at_most is None or value <= at_most)
    )
