"""Shards are read by programs that know nothing of this project: Hugging Face's `datasets` and DuckDB."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from ray_atr.data.schema import Clip
from ray_atr.data.shards import write_clips
from ray_atr.data.vector_clip import array_bytes

for name in ("datasets", "duckdb"):
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed: bash .ci/run reference", allow_module_level=True)

BY_DATASETS = """
import json, sys
import datasets
found = datasets.load_dataset("parquet", data_files=sys.argv[1], split="train", cache_dir=sys.argv[2])
audio = found.features["audio"]
is_audio = isinstance(audio, datasets.Audio)
rows = found.cast_column("audio", datasets.Audio(decode=False)) if is_audio else found
print(json.dumps({
    "is_audio": is_audio,
    "rows": [{**row, "audio": [row["audio"]["path"], row["audio"]["bytes"].hex()]} for row in rows],
}))
"""
BY_DUCKDB = """
import json, sys
import duckdb
query = (
    "select clip_id, audio.path, octet_length(audio.bytes), c.language, c.texts "
    "from (select clip_id, audio, unnest(captions) as c from read_parquet(?)) order by all"
)
print(json.dumps(duckdb.execute(query, [sys.argv[1]]).fetchall()))
"""


def shard(folder: Path, audio: bytes) -> Path:
    captions = ({"eng": ["a dog", "one dog"], "fra": ["un chien"]}, {"eng": ["rain"]})
    clips = [
        Clip(
            clip_id=f"clip-{number}", audio=audio, sample_rate=8_000, seconds=1.0, captions=own, labels=["x"],
            split="train", source="test", translated=["fra"] if "fra" in own else [],
        )
        for number, own in enumerate(captions)
    ]  # fmt: skip
    write_clips(folder / "set", clips, name="toy", licence="CC0")
    return folder / "set" / "train-00000.parquet"


def printed_by(program: str, *arguments: object) -> object:
    """What a program of another process prints as JSON."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", ["audio", "vectors"])
def test_datasets_opens_a_shard_and_knows_which_column_is_audio(tmp_path: Path, kind: str) -> None:
    audio = b"RIFF and so on" if kind == "audio" else array_bytes(np.ones(4, np.float32))
    found = printed_by(BY_DATASETS, shard(tmp_path, audio), tmp_path / "cache")
    assert isinstance(found, dict)
    assert found["is_audio"] == (kind == "audio")
    first, second = found["rows"]
    assert [row["audio"] for row in (first, second)] == [[f"clip-{number}", audio.hex()] for number in range(2)]
    english = {"language": "eng", "texts": ["a dog", "one dog"]}
    assert first["captions"] == [english, {"language": "fra", "texts": ["un chien"]}]
    assert (first["labels"], first["translated"], second["translated"]) == (["x"], ["fra"], [])
    assert (first["sample_rate"], first["seconds"], first["split"]) == (8_000, 1.0, "train")


def test_duckdb_asks_by_language(tmp_path: Path) -> None:
    found = printed_by(BY_DUCKDB, shard(tmp_path, b"12345"))
    assert found == [
        ["clip-0", "clip-0", 5, "eng", ["a dog", "one dog"]],
        ["clip-0", "clip-0", 5, "fra", ["un chien"]],
        ["clip-1", "clip-1", 5, "eng", ["rain"]],
    ]
