"""Folders that may not be written. Root, as in a container, could write them all the same."""

from __future__ import annotations

from pathlib import Path

import pytest


def deny(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """The system says that this process may not write these folders; without any, that it may write none."""
    monkeypatch.setattr("os.access", lambda path, _: bool(folders) and path not in folders)
