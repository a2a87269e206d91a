"""Every setting that an experiment can have, whichever of its kinds are chosen."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from ray_atr.common.override import Setting, describe, override, variant_name


def every_setting(experiment: Any) -> Iterator[tuple[dict[str, str], Setting]]:
    """(What to choose for it, the setting) of the experiment's own settings, then of those of each other kind, once each."""
    seen = set()
    for choice in ({}, *({path: name} for path, name in _kinds(experiment))):
        with contextlib.suppress(ValueError):  # kinds that do not go together
            for one in describe(override(experiment, choice)):
                if (one.path, one.help) not in seen:
                    seen.add((one.path, one.help))
                    yield choice, one


def _kinds(tree: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(Path, name) of all that can be chosen besides what is."""
    for field in dataclasses.fields(tree):
        value = getattr(tree, field.name)
        if dataclasses.is_dataclass(value):
            path = prefix + field.name
            for name, kind in (field.metadata.get("variants") or {}).items():
                if isinstance(kind, type) and name != variant_name(field, value):
                    yield path, name
            yield from _kinds(value, f"{path}.")
