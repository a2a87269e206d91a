"""Removal of secrets from commands, URLs and messages: the only place that defines what a secret is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from ray_atr.common.settings import refuse

HIDDEN = "***"

# A number of tokens (`--model.text.max_tokens`) is none.
_TOKEN = r"(?<!max[_-])(?<!max[_-]new[_-])token(?!i[sz])"
_SECRET_WORD = rf"(?:{_TOKEN}|key(?!s?tone|board|word)|passw(?:or)?d|pwd|secret|credential|signature|\bsig\b|\bauth)"
_SECRET_NAME = re.compile(_SECRET_WORD, re.IGNORECASE)
# `user:password@`, in which a password may hold a slash, or `user@`. A port is no password.
_USER = re.compile(r"(?<=://)(?:[^/\s@:'\"]*:(?!\d+/)[^\s@'\"]*|[^/\s@'\"]+)@")
# MLflow's pages order runs by `orderByKey`, which is no key to anything.
_QUERY = re.compile(rf"(?i)([?&;](?!orderByKey=)[^=&\s'\"]*{_SECRET_WORD}[^=&\s'\"]*=)[^&\s'\"#]+")
_OPTION = re.compile(rf"(?i)(--[\w.-]*{_SECRET_WORD}[\w.-]*(?:=|\s+))(?!--)('[^']*'|\"[^\"]*\"|[^\s'\"]\S*)")


def redact(text: str) -> str:
    """The text with `***` for every URL's user and secret query values, and for the values of `--*token*` and the like."""
    return _OPTION.sub(rf"\1{HIDDEN}", _QUERY.sub(rf"\1{HIDDEN}", _USER.sub(f"{HIDDEN}@", text)))


def redact_command(words: Iterable[str]) -> str:
    """A command as it would be typed, without its secrets."""
    hidden: list[str] = []
    is_value = False
    for word in words:
        name, equals, _ = word.partition("=")
        if is_value and not word.startswith("--"):
            word = HIDDEN
        elif equals and _is_secret_option(name):
            word = f"{name}={HIDDEN}"
        is_value = not equals and _is_secret_option(word)
        hidden.append(redact(word))
    return shlex.join(hidden).replace(f"'{HIDDEN}'", HIDDEN)


def _is_secret_option(word: str) -> bool:
    return word.startswith("--") and _SECRET_NAME.search(word) is not None


def redact_values(value: Any) -> Any:
    """A value with every text in it redacted, however deep in mappings, lists and tuples."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {name: redact_values(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(redact_values(item) for item in value)
    return value


WITHOUT_SECRETS = (
    f"a URL without a user, password or key (here {HIDDEN}); give those in the environment, in the store's own "
    "variables (AWS_ACCESS_KEY_ID and the like), or in fsspec's configuration file"
)
"""What is allowed where a URL is."""


def refuse_secrets(settings: Mapping[str, Any]) -> None:
    """ValueError for a setting with a password or key in a URL: a run folder stores its settings in plain text."""
    for path, value in settings.items():
        if redact_values(value) != value:
            raise refuse(path, redact(str(value)), WITHOUT_SECRETS)
