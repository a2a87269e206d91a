"""A file of captions for a knowledge base is read before the training, with an error that names what is wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_atr.common.storage import locate, write_bytes
from ray_atr.data.captions import read_caption_file


def test_both_formats_are_read(tmp_path: Path) -> None:
    rows = [{"clip_id": "1", "caption": "rain"}, {"clip_id": "2", "caption": ""}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    for file in ("rows.jsonl", "rows.parquet"):
        assert read_caption_file(tmp_path / file) == {"1": "rain", "2": ""}
        store = locate("memory://captions") / file
        write_bytes(store, (tmp_path / file).read_bytes())
        assert read_caption_file(str(store)) == {"1": "rain", "2": ""}
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress((tmp_path / "rows.jsonl").read_bytes()))
    assert read_caption_file(tmp_path / "rows.jsonl.gz") == {"1": "rain", "2": ""}
    with pytest.raises(ValueError, match=r"knowledge\.captions: memory://captions/none\.jsonl: no such file"):
        read_caption_file("memory://captions/none.jsonl")


def test_ids_and_captions_like_times_stay_texts(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"clip_id": "2021-05-01", "caption": "2021-05-01 06:00:00"}\n')
    assert read_caption_file(tmp_path / "rows.jsonl") == {"2021-05-01": "2021-05-01 06:00:00"}


@pytest.mark.parametrize("wrong", [{"clip_id": "2", "caption": None}, {"clip_id": None, "caption": "rain"}])
def test_a_row_without_a_text_is_named(tmp_path: Path, wrong: dict[str, Any]) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ({"clip_id": "1", "caption": "rain"}, wrong)))
    with pytest.raises(ValueError, match=r"rows.jsonl, row 2: got .*None.*; allowed a text as clip_id and as caption"):
        read_caption_file(file)


def test_numbers_are_no_texts(tmp_path: Path) -> None:
    pq.write_table(pa.table({"clip_id": [1], "caption": ["rain"]}), tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match=r"row 1: got \(1, 'rain'\)"):
        read_caption_file(tmp_path / "rows.parquet")


def test_a_clip_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"clip_id": ["1", "1"], "caption": ["rain", "a dog"]}), tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match=r"row 2, clip_id: got '1'; allowed each clip once"):
        read_caption_file(tmp_path / "rows.parquet")
