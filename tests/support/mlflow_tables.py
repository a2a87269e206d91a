"""MLflow makes the tables of a new database by some fifty migrations, a second of computing: made once, then copied."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

_tables = b""
"""A database of MLflow that holds nothing, once one was made."""


def copy_tables() -> None:
    """From now on a new database of this process and its forks is a copy of the first, if MLflow's databases are imported."""
    utils = sys.modules.get("mlflow.store.db.utils")
    if utils is None or getattr(utils._initialize_tables, "is_copied", False):
        return
    migrate = utils._initialize_tables

    def initialise(engine: Any) -> None:
        global _tables
        file = Path(engine.url.database) if engine.dialect.name == "sqlite" and engine.url.database else None
        if file is None or (os.path.exists(file) and file.stat().st_size):
            # No file of its own, or one that a migration has begun with.
            migrate(engine)
            return
        if _tables:
            engine.dispose()
            file.write_bytes(_tables)
            return
        migrate(engine)
        engine.dispose()
        _tables = file.read_bytes()

    initialise.is_copied = True  # type: ignore[attr-defined]
    utils._initialize_tables = initialise
