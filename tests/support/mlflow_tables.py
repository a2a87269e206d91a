"""MLflow makes the tables of a new database by some fifty migrations, a second of computing: made once, then copied."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

DATABASES = "mlflow.store.db.utils"

_tables = b""
"""A database of MLflow that holds nothing, once one was made."""


class _Watch(importlib.abc.MetaPathFinder):
    """Puts its own in the place of what makes the tables, as soon as MLflow's databases are imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != DATABASES:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def run_and_replace(module: ModuleType) -> None:
            run(module)
            _replace(module)

        spec.loader.exec_module = run_and_replace  # type: ignore[method-assign]
        return spec


def copy_tables() -> None:
    """From now on a new database of this process and its forks is a copy of the first."""
    if DATABASES in sys.modules:
        _replace(sys.modules[DATABASES])
    else:
        sys.meta_path.insert(0, _Watch())


def _replace(utils: Any) -> None:
    migrate, upgrade = utils._initialize_tables, utils._upgrade_db

    def initialise(engine: Any) -> None:
        """As MLflow's own."""
        global _tables
        file = Path(engine.url.database) if engine.dialect.name == "sqlite" and engine.url.database else None
        is_begun = file is not None and file.exists() and file.stat().st_size > 0
        # A test may have put something else in the place of the migrations.
        if file is None or is_begun or utils._upgrade_db is not upgrade:
            migrate(engine)
            return
        if _tables:
            engine.dispose()
            file.write_bytes(_tables)
            return
        migrate(engine)
        engine.dispose()
        _tables = file.read_bytes()

    utils._initialize_tables = initialise
