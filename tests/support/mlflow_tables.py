"""MLflow makes the tables of a new database by some fifty migrations, a second of computing: made once, then copied.

The copy is a file, as each test process and each of their forks would make its own.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import shutil
import sys
import tempfile
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

DATABASES = "mlflow.store.db.utils"

TABLES = "MLFLOW_EMPTY_TABLES"
"""The variable that says, to all processes of a test session, where the database that holds nothing is, once one was made."""


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
    """From now on a new database of this process, those that it starts and their forks is a copy of the first."""
    os.environ.setdefault(TABLES, f"{tempfile.gettempdir()}/mlflow-tables-{os.getpid()}.db")
    if DATABASES in sys.modules:
        _replace(sys.modules[DATABASES])
    else:
        sys.meta_path.insert(0, _Watch())


def remove_tables() -> None:
    """At the end of the session, by the process that began it."""
    Path(os.environ[TABLES]).unlink(missing_ok=True)


def _replace(utils: Any) -> None:
    migrate, upgrade = utils._initialize_tables, utils._upgrade_db

    def initialise(engine: Any) -> None:
        """As MLflow's own."""
        tables = Path(os.environ[TABLES])
        file = Path(engine.url.database) if engine.dialect.name == "sqlite" and engine.url.database else None
        is_begun = file is not None and file.exists() and file.stat().st_size > 0
        # A test may have put something else in the place of the migrations.
        if file is None or is_begun or utils._upgrade_db is not upgrade:
            migrate(engine)
            return
        if tables.exists():
            engine.dispose()
            shutil.copyfile(tables, file)
            return
        migrate(engine)
        engine.dispose()
        # Another process may make them at the same time.
        made = tables.with_suffix(f".{os.getpid()}")
        shutil.copyfile(file, made)
        made.replace(tables)

    utils._initialize_tables = initialise
