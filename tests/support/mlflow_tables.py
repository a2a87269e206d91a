"""MLflow makes the tables of a new database by some fifty migrations, a second of computing: made once, then copied."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

_tables = b""
"""A database of MLflow that holds nothing, once one was made."""


def copy_tables() -> None:
    """From now on a new database of this process and its forks is a copy of the first, if MLflow's databases are imported."""
    utils: Any = sys.modules.get("mlflow.store.db.utils")
    if utils is None or getattr(utils._initialize_tables, "is_copied", False):
        return
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
    utils._initialize_tables.is_copied = True
