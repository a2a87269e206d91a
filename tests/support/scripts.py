"""Scripts of pipelines/, benchmarks/ and docs/, which no package holds: run in this process, or as modules."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def load_script(name: str) -> ModuleType:
    """The script with this path in the repository, such as `benchmarks/make_vectors.py`, run as a module."""
    path = ROOT / name
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run_pipeline(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> int | str | None:
    """Run `pipelines/<name>.py` in this process, as from a command line; its exit status."""
    path = str(ROOT / "pipelines" / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [path, *arguments])
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        return end.code
    return 0
