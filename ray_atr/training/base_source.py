"""What a user names as the source of a knowledge base: another data set, and a file of captions in the place of its own."""

from __future__ import annotations

from pathlib import Path

import pyarrow.json
import pyarrow.parquet as pq

from ray_atr.data.shards import read_manifest
from ray_atr.objectives.knowledge import Knowledge
from ray_atr.objectives.knowledge.based import Based


def check_base(knowledge: Knowledge, split: str) -> None:
    """ValueError where the source of a base is no data set, has no clips in the split, or its caption file cannot be read."""
    if not isinstance(knowledge, Based):
        return
    if knowledge.source != "train":
        manifest = read_manifest(knowledge.source)
        if not manifest.num_rows_of(split):
            raise ValueError(f"objective.knowledge.source: {manifest.folder} has no split {split!r}")
    if knowledge.captions is not None:
        read_caption_file(Path(knowledge.captions))


def read_caption_file(path: Path) -> dict[str, str]:
    """Clip id -> caption, of a Parquet or JSON-lines file with the columns clip_id and caption. ValueError where it is none."""
    if not path.is_file():
        raise ValueError(f"objective.knowledge.captions: {path}: no such file")
    table = pq.read_table(path) if path.suffix == ".parquet" else pyarrow.json.read_json(path)
    missing = {"clip_id", "caption"} - set(table.column_names)
    if missing:
        raise ValueError(f"objective.knowledge.captions: {path}: column {', '.join(sorted(missing))} is missing")
    return dict(zip(table.column("clip_id").to_pylist(), table.column("caption").to_pylist(), strict=True))
