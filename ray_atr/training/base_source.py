"""What a user names as the source of a knowledge base: another data set, and a file of captions in the place of its own."""

from __future__ import annotations

from pathlib import Path

import pyarrow.json
import pyarrow.parquet as pq


def read_caption_file(path: Path) -> dict[str, str]:
    """Clip id -> caption, of a Parquet or JSON-lines file with the columns clip_id and caption. ValueError if it is none."""
    if not path.is_file():
        raise ValueError(f"objective.knowledge.captions: {path}: no such file")
    table = pq.read_table(path) if path.suffix == ".parquet" else pyarrow.json.read_json(path)
    missing = {"clip_id", "caption"} - set(table.column_names)
    if missing:
        raise ValueError(f"objective.knowledge.captions: {path}: column {', '.join(sorted(missing))} is missing")
    return dict(zip(table.column("clip_id").to_pylist(), table.column("caption").to_pylist(), strict=True))
