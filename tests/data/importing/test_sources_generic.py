"""A folder with a table, Hugging Face exports, WebDataset tars, and what a table of captions may get wrong."""

from __future__ import annotations

import io
import json
import os
import re
import struct
import tarfile
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_atr.common.storage import files_below, locate, write_bytes
from ray_atr.data.decoding import open_sound
from ray_atr.data.shards import Skipped, iterate_rows
from ray_atr.workshop.importing.plan import Import, import_data_set
from ray_atr.workshop.importing.sources import Entry, Source
from ray_atr.workshop.importing.sources.huggingface import HuggingFace
from ray_atr.workshop.importing.sources.read_table import file_at, read_table
from ray_atr.workshop.importing.sources.source import list_files, read_location
from ray_atr.workshop.importing.sources.table import TableSource
from ray_atr.workshop.importing.sources.webdataset import WebDataset
from tests.support.clips_on_disk import tone, write_tone
from tests.support.found import found_in, place_of

ROWS = [
    {"path": "a.wav", "caption": "A dog, barking", "language": "eng", "split": "train"},
    {"path": "a.wav", "caption": "Un chien aboie", "language": "fra", "split": "train"},
    {"path": "sub/b.flac", "caption": "Rain\u0301", "language": "eng", "split": "val"},
]


def write_rows(path: Path, rows: list[dict[str, str]]) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        delimiter = "\t" if path.suffix == ".tsv" else ","
        lines = [list(rows[0]), *(list(row.values()) for row in rows)]
        path.write_text(
            "".join(delimiter.join(f'"{v}"' for v in line) + "\r\n" for line in lines), encoding="utf-8-sig"
        )


def entries_of(source: Source) -> list[Entry]:
    clips, absent, dropped, _ = found_in(source)
    assert not absent
    assert not dropped
    return clips


def make_folder(root: Path, table: str = "captions.csv", rows: list[dict[str, str]] | None = None) -> Path:
    write_tone(root / "a.wav")
    write_tone(root / "sub" / "b.flac")
    write_rows(root / table, ROWS if rows is None else rows)
    return root


@pytest.mark.parametrize("table", ["captions.csv", "captions.tsv", "captions.jsonl", "captions.parquet"])
def test_any_kind_of_table_gives_the_same_clips(tmp_path: Path, table: str) -> None:
    first, second = entries_of(TableSource(source=str(make_folder(tmp_path, table))))
    assert (first.clip_id, first.split) == ("a", "train")
    assert first.captions == {"eng": ("A dog, barking",), "fra": ("Un chien aboie",)}
    assert (second.clip_id, second.split, place_of(second).file) == ("sub/b", "val", str(tmp_path / "sub" / "b.flac"))


def test_language_split_id_and_labels_have_defaults_and_columns(tmp_path: Path) -> None:
    rows = [
        {
            "path": "./a.wav",
            "caption_1": "Eén",
            "caption_2": "Twee",
            "caption_10": "Tien",
            "clip_id": "x",
            "label": "dog",
        }
    ]
    source = TableSource(source=str(make_folder(tmp_path, rows=rows)), language="nld", split="test")
    (entry,) = entries_of(source)
    assert (entry.clip_id, entry.split, entry.labels) == ("x", "test", ("dog",))
    assert entry.captions == {"nld": ("Eén", "Twee", "Tien")}


def test_blank_splits_are_counted(tmp_path: Path) -> None:
    rows = [{"path": path, "caption": "x", "split": split} for path, split in (("a.wav", " "), ("sub/b.flac", "val"))]
    manifest = import_data_set(TableSource(source=str(make_folder(tmp_path / "in", rows=rows))), tmp_path / "out")
    assert manifest.notes == ("blank splits: 1 row, taken to be in train (--split)",)


def test_splits_are_drawn_where_no_row_names_one(tmp_path: Path) -> None:
    rows = [{"path": f"{number:02}.wav", "caption": f"sound {number}"} for number in range(30)]
    for row in rows:
        (tmp_path / row["path"]).write_bytes(row["path"].encode())

    def splits(number: int, **options: str) -> dict[str, str]:
        write_rows(tmp_path / "captions.csv", [{**row, **cells} for row in rows[:number]])
        return {one.clip_id: one.split for one in entries_of(TableSource(source=str(tmp_path), **options))}

    cells: dict[str, str] = {}
    drawn = list(splits(30).values())
    assert [drawn.count(split) for split in ("train", "val", "test")] == [24, 3, 3]
    assert list(splits(30).values()) == drawn
    notes = notes_of(TableSource(source=str(tmp_path)))
    assert any(note.startswith("no column split: of 30 clips 3 were drawn for val and 3 for test;") for note in notes)
    assert set(splits(30, split="train").values()) == {"train"}
    assert set(splits(19).values()) == {"train"}
    # A tenth of 20 to 29 is two.
    for number in (20, 29):
        assert sorted(splits(number).values()) == ["test"] * 2 + ["train"] * (number - 4) + ["val"] * 2
    cells = {"split": ""}
    assert set(splits(30).values()) == {"train"}


@pytest.mark.parametrize("place", ["{0}", "memory://{0}"])
def test_copies_of_a_recording_are_drawn_into_one_split(tmp_path: Path, place: str) -> None:
    folder = locate(place.format(tmp_path))
    names = [f"{number:02}.wav" for number in range(40)]

    def drawn(content_of: Callable[[int], bytes]) -> dict[str, str]:
        for number, name in enumerate(names):
            write_bytes(folder / name, content_of(number))
        return {entry.clip_id: entry.split for entry in entries_of(TableSource(source=str(folder)))}

    write_bytes(folder / "captions.csv", "\n".join(["path,caption", *(f"{name},x" for name in names)]).encode())
    alone = drawn(lambda number: b"%02d" % number)
    twins = drawn(lambda number: b"%02d" % (number // 2))
    assert all(twins[f"{number:02}"] == twins[f"{number + 1:02}"] for number in range(0, 40, 2))
    assert Counter(twins.values()) == Counter(alone.values()) == {"train": 32, "val": 4, "test": 4}
    # More copies than there is room for train.
    many = drawn(lambda number: b"%02d" % max(20, number))
    assert {many[f"{number:02}"] for number in range(21)} == {"train"}
    assert Counter(many.values()) == {"train": 32, "val": 4, "test": 4}


def test_a_file_that_cannot_be_read_does_not_stop_the_draw_of_splits(tmp_path: Path) -> None:
    rows = [{"path": f"{number:02}.wav", "caption": "x"} for number in range(20)]
    for row in rows[1:]:
        write_tone(tmp_path / row["path"])
    (tmp_path / "00.wav").symlink_to(tmp_path / "nowhere.wav")
    write_rows(tmp_path / "captions.csv", rows)
    _, *others = entries_of(TableSource(source=str(tmp_path)))
    assert {entry.split for entry in others} == {"train"}


def test_a_file_is_one_clip_however_its_path_is_written(tmp_path: Path) -> None:
    composed, decomposed = (unicodedata.normalize(form, "é.wav") for form in ("NFC", "NFD"))
    paths = ["sub/b.flac", "./sub//b.flac", ".\\sub\\b.flac", "sub/../sub/./b.flac", composed, decomposed]
    write_tone(tmp_path / decomposed)
    rows = [{"path": path, "caption": f"caption {number}"} for number, path in enumerate(paths)]
    found = entries_of(TableSource(source=str(make_folder(tmp_path, "captions.jsonl", rows))))
    assert {entry.clip_id: len(entry.captions["eng"]) for entry in found} == {"sub/b": 4, "é": 2}
    # Two files whose names differ in this alone are two clips, each with its own file.
    write_tone(tmp_path / composed)
    found = entries_of(TableSource(source=str(tmp_path)))
    assert {place_of(entry).file.rpartition("/")[2]: len(entry.captions["eng"]) for entry in found} == {
        "b.flac": 4,
        composed: 1,
        decomposed: 1,
    }
    rows[1]["split"] = "test"
    write_rows(tmp_path / "captions.jsonl", rows)
    with pytest.raises(ValueError, match="has another split"):
        entries_of(TableSource(source=str(tmp_path)))


def test_captions_are_written_composed(tmp_path: Path) -> None:
    manifest = import_data_set(TableSource(source=str(make_folder(tmp_path / "in"))), tmp_path / "out")
    assert [row["captions"]["eng"] for row in iterate_rows(manifest, "val")] == [["Raiń"]]


@pytest.mark.parametrize("form", ["columns", "object", "lists in an object", "lists in columns", "export"])
def test_blank_cells_leave_a_caption_in_its_place_in_every_language(tmp_path: Path, form: str) -> None:
    rows = [
        {"eng": "A", "fra": "", "deu": "a3"},
        {"eng": "B", "fra": "b2", "deu": ""},
        {"eng": "C", "fra": "c2", "deu": "c3"},
    ]
    source: Source
    if form == "columns":
        root = make_folder(tmp_path, rows=[{"path": "a.wav", **row} for row in rows])
        source = TableSource(source=str(root), caption_column=("eng", "fra", "deu"))
    elif form == "export":
        root, columns = tmp_path, {code: [[row[code] for row in rows]] for code in rows[0]}
        pq.write_table(audio_table(["a.wav"], **columns), root / "train.parquet")
        source = HuggingFace(source=str(root), caption_columns=tuple(f"{code}={code}" for code in rows[0]))
    elif form.startswith("lists"):
        cells = {code: [row[code] or None for row in rows] for code in rows[0]}
        row: dict[str, Any] = {"path": "a.wav", **({"captions": cells} if form.endswith("object") else cells)}
        root = make_folder(tmp_path, "captions.jsonl", rows=[row])
        source = TableSource(source=str(root), caption_column=tuple(cells) if form.endswith("columns") else ())
    else:
        written = [{"path": "a.wav", "captions": {k: v for k, v in row.items() if v}} for row in rows]
        root = make_folder(tmp_path, "captions.jsonl", rows=written)
        source = TableSource(source=str(root))
    found = found_in(source)
    (entry,) = found.clips
    assert entry.captions == {"eng": ("C", "A", "B"), "fra": ("c2",), "deu": ("c3", "a3")}
    assert any(remark.startswith("1 caption left out") for remark in found.remarks)


def test_rows_of_one_language_each_in_columns_of_several_follow_each_other(tmp_path: Path) -> None:
    rows = [{"path": "a.wav", "eng": "A", "fra": ""}, {"path": "a.wav", "eng": "", "fra": "a"}]
    source = TableSource(source=str(make_folder(tmp_path, rows=rows)), caption_column=("eng", "fra"))
    assert found_in(source).clips[0].captions == {
        "eng": ("A",),
        "fra": ("a",),
    }


@pytest.mark.parametrize(
    "path", ["../secret.wav", "/etc/passwd", "sub/../../secret.wav", "C:\\x.wav", "sub\\..\\..\\x.wav"]
)
def test_a_path_that_leaves_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    write_tone(tmp_path / "secret.wav")
    root = make_folder(tmp_path / "set", "captions.jsonl", [{"path": path, "caption": "x"}])
    with pytest.raises(ValueError, match=r"line 1, path: got .* allowed a path inside"):
        entries_of(TableSource(source=str(root)))


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"file": "a.wav", "caption": "x"}], "it has file, caption.*--path-column says"),
        ([{"path": "a.wav", "captoin": "x"}], "columns are path, captoin; --caption-column COLUMN"),
        ([{"path": "a.wav", "caption": " "}], "no caption"),
        ([{"path": "a.wav", "caption": "x", "language": "English"}], "did you mean eng"),
        ([{"path": "a.wav", "caption": "x", "split": "Test Set"}], "split: got 'Test Set'"),
        ([{"path": "a.wav", "caption": "x", "split": s} for s in ("train", "val")], "has another split"),
    ],
)
def test_rows_that_are_not_right_are_refused(tmp_path: Path, rows: list[dict[str, str]], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        entries_of(TableSource(source=str(make_folder(tmp_path, rows=rows))))


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"path": "a.wav", "caption": "x", "split": "Train"}, "split: got 'Train'; allowed lower-case letters"),
        ({"path": "../a.wav", "caption": "x", "split": "train"}, "path: got '../a.wav'; allowed a path inside"),
    ],
)
def test_a_row_that_is_not_right_is_placed_once(tmp_path: Path, row: dict[str, str], says: str) -> None:
    root = make_folder(tmp_path, rows=[row])
    with pytest.raises(ValueError, match=rf"^{root}/captions\.csv, line 2, {re.escape(says)}"):
        entries_of(TableSource(source=str(root)))
    (dropped,) = (
        one for one in TableSource(source=str(root), drop_bad_rows=True).entries() if isinstance(one, Skipped)
    )
    assert dropped.reason.startswith(says)


@pytest.mark.parametrize("kind", [TableSource, HuggingFace])
def test_a_folder_may_hold_data_sets_that_were_imported_from_it(tmp_path: Path, kind: type[Source]) -> None:
    source = kind(source=str(make_folder(tmp_path / "in")))
    if kind is HuggingFace:
        pq.write_table(audio_table(["a.wav"], text=["x"]), tmp_path / "in" / "train-00000.parquet")
    first = import_data_set(source, tmp_path / "in" / "sets" / "one")
    # The same import again is the data set that is there, and another one reads what the first read.
    assert import_data_set(source, tmp_path / "in" / "sets" / "one") == first
    assert import_data_set(source, tmp_path / "in" / "two").hash == first.hash
    # Files of these names that are no data set are the user's.
    (tmp_path / "in" / "two" / "manifest.json").unlink()
    assert f"two/{first.shards[0].file}" in list_files(tmp_path / "in")


def test_a_named_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    root = make_folder(tmp_path, rows=[{"path": "a.wav", "caption": "x"}, {"path": "c.wav", "caption": "x"}])
    found = found_in(TableSource(source=str(root)))
    assert found.remarks == ["1 audio file is named by no row: sub/b.flac"]
    assert len(found.clips) == 1
    assert [absent.absent for absent in found.absent] == ["c.wav is not there"]


def test_the_table_must_be_clear(tmp_path: Path) -> None:
    write_tone(tmp_path / "a.wav")
    with pytest.raises(ValueError, match="no table of captions"):
        entries_of(TableSource(source=str(tmp_path)))
    make_folder(tmp_path)
    make_folder(tmp_path, "other.csv")
    with pytest.raises(ValueError, match=r"choose with --table: captions\.csv, other\.csv"):
        entries_of(TableSource(source=str(tmp_path)))
    assert len(entries_of(TableSource(source=str(tmp_path), table="other.csv"))) == 2


# --- tables


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"path,caption\n", "no rows below the header"),
        (b"path,caption\n\xc3\xa9\xc3\xa8\xc3\xa0.wav,caf\xe9\n", "line 2: not UTF-8"),
        (b"path,caption\na.wav,x\nb.wav,one, two\n", "line 3: 3 fields where the header has 2"),
        (b"path,caption\na.wav\n", "line 2: 1 fields"),
        (b'path,caption\na.wav,"open\n', "line 2: a quote that opens here is not closed"),
        (b"path,caption\na\x00.wav,x\n", "zero byte"),
        (b"path,caption\ra.wav,x\r", "carriage return alone; save the file with line feeds"),
        (b"\xff\xfep\x00a\x00", "column path is missing; it has pa"),
        (b"path,captions\na.wav,x\n", r"column caption is missing; it has path, captions \(did you mean captions\?\)"),
        (b"path,caption, caption\na.wav,x,y\n", r"captions\.csv: column caption occurs twice"),
    ],
)
def test_a_broken_csv_is_refused_by_line(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "captions.csv"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=says):
        list(read_table(str(file), required=["path", "caption"]))


def test_blank_lines_above_the_header_are_not_the_table(tmp_path: Path) -> None:
    (tmp_path / "captions.csv").write_text("\ufeff\n \npath;caption\na.wav;x\n", encoding="utf-8")
    ((at, row),) = read_table(str(tmp_path / "captions.csv"), ["path", "caption"])
    assert (at[-6:], row) == ("line 4", {"path": "a.wav", "caption": "x"})
    (tmp_path / "captions.csv").write_text("\n\n")
    with pytest.raises(ValueError, match=r"captions\.csv: the file is empty"):
        list(read_table(str(tmp_path / "captions.csv")))


def test_texts_of_parquet_that_are_not_utf_8_are_refused_with_the_file(tmp_path: Path) -> None:
    texts = pa.array([b"caf\xe9"]).cast(pa.string(), safe=False)
    table = audio_table(["a.wav"], path=["a.wav"]).append_column("caption", texts)
    pq.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"train\.parquet: cannot be read .*UTF8"):
        entries_of(HuggingFace(source=str(tmp_path)))
    with pytest.raises(ValueError, match=r"train\.parquet: .*utf-8"):
        list(read_table(str(tmp_path / "train.parquet")))


def test_rows_of_delimiters_alone_are_blank_lines(tmp_path: Path) -> None:
    file = tmp_path / "captions.csv"
    file.write_text("path;caption;\n;;\na.wav;x;\n;; \n;;\n")
    assert [(at[-6:], row["path"]) for at, row in read_table(str(file), ["path", "caption"])] == [("line 3", "a.wav")]


def test_broken_json_lines_and_parquet_are_refused(tmp_path: Path) -> None:
    for name, content, says in [
        ("a.jsonl", b'{"path": 1}\n{oops\n', "line 2: not JSON"),
        ("b.jsonl", b"[1]\n", "line 1: a JSON object"),
        ("c.jsonl", b"\n", "empty"),
        ("f.jsonl", b'{"path": 1, "caption": "a", "caption": "b"}\n', "line 1: caption occurs twice"),
        ("d.parquet", b"PAR1", "not a Parquet file"),
        ("e.xlsx", b"", "not a table of captions"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=says):
            list(read_table(str(tmp_path / name), required=["path"]))


def test_a_column_is_there_once(tmp_path: Path) -> None:
    names = ["path", "caption", "caption"]
    pq.write_table(pa.table([["a.wav"], ["x"], ["y"]], names=names), tmp_path / "captions.parquet")
    with pytest.raises(ValueError, match=r"captions\.parquet: column caption occurs twice"):
        list(read_table(str(tmp_path / "captions.parquet")))
    # What a spreadsheet leaves at the end has no name, and is nothing to refuse.
    (tmp_path / "captions.csv").write_text("path,caption,,\na.wav,x,,\n")
    assert [row["caption"] for _, row in read_table(str(tmp_path / "captions.csv"))] == ["x"]


def test_a_quoted_line_break_belongs_to_the_caption(tmp_path: Path) -> None:
    file = tmp_path / "captions.csv"
    file.write_bytes(b'path,caption\na.wav,"one\ntwo"\nb.wav,x\n')
    assert [row["caption"] for _, row in read_table(str(file))] == ["one\ntwo", "x"]


# --- Hugging Face


def audio_table(names: list[str], with_bytes: bool = True, **columns: list[object]) -> pa.Table:
    audio = [{"bytes": tone(pitch=200 + 50 * i) if with_bytes else None, "path": name} for i, name in enumerate(names)]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.table({"audio": pa.array(audio, kind), **columns})


def test_parquet_export_keeps_rows_and_splits(tmp_path: Path) -> None:
    names = [f"clip{i}.wav" for i in range(7)]
    table = audio_table(names, caption=[f"caption {i}" for i in range(7)], label=["x"] * 7)
    (tmp_path / "data").mkdir()
    pq.write_table(table.slice(0, 5), tmp_path / "data" / "train-00000-of-00001.parquet", row_group_size=2)
    pq.write_table(table.slice(5), tmp_path / "data" / "validation-00000-of-00001-0123456789abcdef.parquet")
    entries = entries_of(HuggingFace(source=str(tmp_path), label_column="label"))
    assert [entry.clip_id for entry in entries] == [f"clip{i}" for i in range(7)]
    assert [entry.split for entry in entries] == ["train"] * 5 + ["val"] * 2
    assert [read_location(place_of(entry)) for entry in entries] == [tone(pitch=200 + 50 * i) for i in range(7)]
    assert entries[6].captions == {"eng": ("caption 6",)}
    assert entries[6].labels == ("x",)
    manifest = import_data_set(HuggingFace(source=str(tmp_path)), tmp_path / "out")
    assert [row["audio"] for row in iterate_rows(manifest, "val")] == [tone(pitch=450), tone(pitch=500)]


def test_a_table_that_was_written_again_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "in" / "train.parquet"
    file.parent.mkdir()
    for names in (["one.wav", "two.wav"], ["two.wav", "one.wav"]):
        table = audio_table(names, caption=names)
        table = table.take([names.index(name) for name in ("one.wav", "two.wav")])
        pq.write_table(table, file)
        manifest = import_data_set(HuggingFace(source=str(file.parent)), tmp_path / names[0])
        audio = [row["bytes"] for row in table["audio"].to_pylist()]
        assert [row["audio"] for row in iterate_rows(manifest, "train")] == audio


def test_a_file_of_any_name_is_of_the_split_of_its_folder(tmp_path: Path) -> None:
    files = ["default/test/0000.parquet", "default/partial-train/0001.parquet", "val/a/part-3.parquet", "x/00.parquet"]
    for number, file in enumerate(files):
        (tmp_path / file).parent.mkdir(parents=True)
        pq.write_table(audio_table([f"{number}.wav"], text=["x"]), tmp_path / file)
    entries = entries_of(HuggingFace(source=str(tmp_path), split="train_other"))
    assert {entry.clip_id: entry.split for entry in entries} == {
        "0": "test",
        "1": "train",
        "2": "val",
        "3": "train_other",
    }


def test_class_labels_are_their_names(tmp_path: Path) -> None:
    """The features are as `datasets` 5.2 writes them. The number -1 stands for no class."""
    of_class = {"names": ["dog", "rain"], "_type": "ClassLabel"}
    features = {
        "label": of_class,
        "tags": {"feature": of_class, "_type": "List"},
        "id": {"dtype": "int64", "_type": "Value"},
    }
    columns: dict[str, list[object]] = {"id": [0, 1], "label": [1, -1], "tags": [[0, 1], []], "text": ["x", "y"]}
    table = audio_table(["x.wav", "y.wav"], **columns).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    pq.write_table(table, tmp_path / "train.parquet")
    with pa.ipc.new_stream(tmp_path / "data-00000-of-00001.arrow", table.schema) as stream:
        stream.write_table(table)
    for column, labels in {"label": [("rain",), ()], "tags": [("dog", "rain"), ()], "id": [("0",), ("1",)]}.items():
        entries = entries_of(HuggingFace(source=str(tmp_path), label_column=column))
        assert [entry.labels for entry in entries] == labels * 2, column
    source = HuggingFace(source=str(tmp_path), caption_columns=("eng=label", "fra=text"))
    assert [entry.captions.get("eng") for entry in entries_of(source)] == [("rain",), None] * 2


def test_the_number_zero_is_an_id(tmp_path: Path) -> None:
    table = audio_table(["x.wav", "y.wav", "z.wav"], id=[0, 1, None], caption=["one", "two", "three"])
    (tmp_path / "set").mkdir()
    pq.write_table(table, tmp_path / "set" / "train.parquet")
    french = tmp_path / "french.jsonl"
    french.write_text('{"id": 0, "caption": "un"}\n{"id": 1, "caption": "deux"}\n')
    for id_column in ("", "id"):
        source = HuggingFace(source=str(tmp_path / "set"), id_column=id_column)
        manifest = import_data_set(source, tmp_path / f"out{id_column}", captions=[f"fra={french}"])
        captions = {row["clip_id"]: row["captions"] for row in iterate_rows(manifest, "train")}
        assert captions == {
            "0": {"eng": ["one"], "fra": ["un"]},
            "1": {"eng": ["two"], "fra": ["deux"]},
            "z": {"eng": ["three"]},
        }


def test_rows_can_be_numbered_where_paths_repeat(tmp_path: Path) -> None:
    for split in ("train", "test"):
        pq.write_table(audio_table(["a.wav", "a.wav"], text=["x", "y"]), tmp_path / f"{split}.parquet")
    with pytest.raises(ValueError, match=r"clip 'a': its id occurs twice .* \(--id-column row numbers the clips\)"):
        import_data_set(HuggingFace(source=str(tmp_path)), tmp_path / "out")
    manifest = import_data_set(HuggingFace(source=str(tmp_path), id_column="row"), tmp_path / "out")
    assert [row["clip_id"] for row in iterate_rows(manifest, "test")] == ["test-0000000", "test-0000001"]


def test_a_folder_of_save_to_disk_is_read(tmp_path: Path) -> None:
    table = audio_table(["a.wav", "b.wav", "c.wav"], captions=[["one", "two"]] * 3, nederlands=["een", "twee", "drie"])
    folder = tmp_path / "set" / "test"
    folder.mkdir(parents=True)
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=2)
    source = HuggingFace(source=str(tmp_path / "set"), caption_columns=("eng=captions", "nld=nederlands"))
    entries = entries_of(source)
    assert [entry.split for entry in entries] == ["test"] * 3
    assert entries[2].captions == {"eng": ("one", "two"), "nld": ("drie",)}
    assert read_location(place_of(entries[2])) == tone(pitch=300)


def test_a_damaged_arrow_file_is_refused(tmp_path: Path) -> None:
    table = audio_table(["a.wav"], caption=["A dog barks."])
    with pa.BufferOutputStream() as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    # Where the caption begins and ends.
    before, _, after = sink.getvalue().to_pybytes().rpartition(struct.pack("<ii", 0, len("A dog barks.")))
    (tmp_path / "train").mkdir()
    damaged = before + struct.pack("<ii", 0, 2**30) + after
    (tmp_path / "train" / "data-00000-of-00001.arrow").write_bytes(damaged)
    with pytest.raises(ValueError, match=r"00001\.arrow: cannot be read"):
        entries_of(HuggingFace(source=str(tmp_path)))


def test_audio_beside_the_table_and_mixed_presence(tmp_path: Path) -> None:
    names = ["a.wav", "b.wav"]
    pq.write_table(audio_table(names, with_bytes=False, text=["x", "y"]), tmp_path / "train.parquet")
    write_tone(tmp_path / "a.wav")
    found = found_in(HuggingFace(source=str(tmp_path)))
    assert [place_of(entry).file for entry in found.clips] == [str(tmp_path / "a.wav")]
    assert len(found.absent) == 1
    mixed = audio_table(names, text=["x", "y"]).to_pylist()
    mixed[0]["audio"]["bytes"] = None
    pq.write_table(pa.Table.from_pylist(mixed), tmp_path / "train.parquet")
    first, second = entries_of(HuggingFace(source=str(tmp_path)))
    assert (place_of(first).kind, place_of(second).kind) == ("file", "parquet")
    assert read_location(place_of(second)) == tone(pitch=250)


def test_exports_without_audio_or_captions_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "train.parquet"
    pq.write_table(pa.table({"x": [1]}), file)
    with pytest.raises(ValueError, match=r"0 Audio columns .* x \(int64\)"):
        entries_of(HuggingFace(source=str(tmp_path)))
    pq.write_table(audio_table(["a.wav"], words=["x"]), file)
    with pytest.raises(ValueError, match=r"no caption; choose its column with --caption-columns: words$"):
        entries_of(HuggingFace(source=str(tmp_path)))
    with pytest.raises(ValueError, match=r"column word is missing.*did you mean words"):
        entries_of(HuggingFace(source=str(tmp_path), caption_columns=("eng=word",)))


def test_captions_may_be_an_object_by_language(tmp_path: Path) -> None:
    captions: list[object] = [{"eng": ["rain", "wind"], "fr": ["pluie", None]}, {"eng": ["a dog"], "fr": None}]
    pq.write_table(audio_table(["a.wav", "b.wav"], captions=captions), tmp_path / "train.parquet")
    found = [entry.captions for entry in entries_of(HuggingFace(source=str(tmp_path)))]
    assert found == [{"eng": ("rain", "wind"), "fra": ("pluie",)}, {"eng": ("a dog",)}]


def test_further_captions_name_a_clip_by_the_column_that_was_chosen(tmp_path: Path) -> None:
    table = audio_table(["a.wav", "b.wav"], caption=["rain", "wind"], sound=["1", "2"])
    (tmp_path / "in").mkdir()
    pq.write_table(table, tmp_path / "in" / "train.parquet")
    (tmp_path / "deu.csv").write_text("sound,file_name,caption\n2,b.wav,Wind\n1,a.wav,Regen\n")
    source = HuggingFace(source=str(tmp_path / "in"), id_column="sound")
    manifest = import_data_set(source, tmp_path / "out", captions=[f"deu={tmp_path}/deu.csv"])
    found = {row["clip_id"]: row["captions"] for row in iterate_rows(manifest, "train")}
    assert found == {"1": {"eng": ["rain"], "deu": ["Regen"]}, "2": {"eng": ["wind"], "deu": ["Wind"]}}


def test_a_column_row_of_further_captions_is_no_id(tmp_path: Path) -> None:
    source = HuggingFace(source=str(tmp_path), id_column="row")
    assert source.id_of({"row": "7", "clip_id": "train-0000001"}) == "train-0000001"


def test_a_row_is_named_by_its_number_in_its_file(tmp_path: Path) -> None:
    for number, texts in enumerate((["rain", "wind"], ["rain", None])):
        names = [f"{number}{row}.wav" for row in range(2)]
        pq.write_table(audio_table(names, caption=texts), tmp_path / f"train-0000{number}-of-00002.parquet")
    absent = found_in(HuggingFace(source=str(tmp_path))).absent
    assert [one.absent for one in absent] == [f"{tmp_path}/train-00001-of-00002.parquet, row 2: no caption"]


@pytest.mark.parametrize("form", ["Parquet", "object", "tar"])
def test_a_clip_without_a_caption_is_left_out_and_listed(tmp_path: Path, form: str) -> None:
    names = [f"{number}.wav" for number in range(3)]
    texts: list[object] = ["rain", None, "wind"]
    source: Source = HuggingFace(source=str(tmp_path / "in"))
    (tmp_path / "in").mkdir()
    if form == "tar":
        source = WebDataset(source=str(tmp_path / "in"))
        words = [(f"{number}.json", json.dumps({"caption": text}).encode()) for number, text in enumerate(texts)]
        members = [pair for name, own in zip(names, words, strict=True) for pair in ((name, tone()), own)]
        write_tar(tmp_path / "in" / "train.tar", members)
    else:
        table = audio_table(names, caption=[{"eng": text} for text in texts] if form == "object" else texts)
        pq.write_table(table, tmp_path / "in" / "train.parquet")
    with pytest.raises(ValueError, match=r"1 of 3 clips cannot be read.*The first: 1: .*no caption"):
        import_data_set(source, tmp_path / "out")
    manifest = import_data_set(source, tmp_path / "out", options=Import(max_unreadable=0.4))
    assert [row["clip_id"] for row in iterate_rows(manifest, "train")] == ["0", "2"]
    (left_out,) = manifest.skipped
    assert left_out.clip_id == "1"
    assert "no caption" in left_out.reason


# --- WebDataset


def write_tar(path: Path, members: list[tuple[str, bytes]], mode: str = "w") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def test_tars_give_clips_from_their_spans(tmp_path: Path) -> None:
    write_tar(
        tmp_path / "set" / "train-000.tar",
        [
            ("a.flac", tone(suffix=".flac")),
            ("a.json", json.dumps({"text": ["one", "two"], "tag": ["dog"]}).encode()),
            ("d/b.json", json.dumps({"captions": {"eng": ["rain"], "deu": ["Regen"]}}).encode()),
            ("d/b.wav", tone(pitch=300)),
        ],
    )
    write_tar(tmp_path / "set" / "val-000.tar", [("c.txt", b"Chuva\n"), ("c.oga", tone(suffix=".ogg"))])
    entries = entries_of(WebDataset(source=str(tmp_path / "set"), language="por"))
    assert [(entry.clip_id, entry.split) for entry in entries] == [("a", "train"), ("d/b", "train"), ("c", "val")]
    assert entries[0].captions == {"por": ("one", "two")}
    assert entries[0].labels == ("dog",)
    assert entries[1].captions == {"eng": ("rain",), "deu": ("Regen",)}
    assert entries[2].captions == {"por": ("Chuva",)}
    assert read_location(place_of(entries[1])) == tone(pitch=300)
    manifest = import_data_set(
        WebDataset(source=str(tmp_path / "set")), tmp_path / "out", options=Import(clips_per_shard=1)
    )
    assert [row["audio"] for row in iterate_rows(manifest, "train")][1] == tone(pitch=300)


def test_tars_as_macos_and_windows_write_them(tmp_path: Path) -> None:
    words = {"eng": ["one", "two", "three"], "deu": ["eins", None, "drei"], "fra": "un", "spa": None}
    members = [("./._a.wav", b"icon"), ("./a.wav", tone()), ("./._a.json", b"icon")]
    members += [("./a.json", b"\xef\xbb\xbf" + json.dumps({"captions": words}).encode())]
    write_tar(tmp_path / "train.tar", [*members, ("b.wav", tone()), ("b.txt", b"\xef\xbb\xbfrain")])
    first, second = entries_of(WebDataset(source=str(tmp_path)))
    # Caption j is one sentence in every language.
    assert first.captions == {"eng": ("one", "three", "two"), "deu": ("eins", "drei"), "fra": ("un",)}
    assert (second.clip_id, second.captions) == ("b", {"eng": ("rain",)})
    (tmp_path / "train.tar").unlink()
    words = {"eng": ["one", "", "three"], "deu": ["", "zwei", "drei"]}
    write_tar(tmp_path / "val.tar", [("a.wav", tone()), ("a.json", json.dumps({"captions": words}).encode())])
    (remark,) = found_in(WebDataset(source=str(tmp_path))).remarks
    assert remark.startswith("1 caption left out: other captions of the clip have blank translations")


def test_a_tar_is_of_the_split_that_its_name_or_folder_tells(tmp_path: Path) -> None:
    told = {"evaluation-000": "test", "testing-1": "test", "validation": "val", "dev/000": "val", "other": "train"}
    for name in told:
        (tmp_path / f"{name}.tar").parent.mkdir(exist_ok=True)
        write_tar(
            tmp_path / f"{name}.tar",
            [(f"{name}.txt".replace("/", "-"), b"rain"), (f"{name}.wav".replace("/", "-"), tone())],
        )
    found = {entry.clip_id: entry.split for entry in entries_of(WebDataset(source=str(tmp_path)))}
    assert found == {name.replace("/", "-"): split for name, split in told.items()}


def test_keys_may_begin_anew_in_each_tar(tmp_path: Path) -> None:
    for name, pitch in (("test-0", 200), ("train-0", 300), ("train-1", 400)):
        write_tar(tmp_path / f"{name}.tar", [("0.txt", name.encode()), ("0.wav", tone(pitch=pitch))])
    found = found_in(WebDataset(source=str(tmp_path)))
    assert [(one.clip_id, one.split, one.captions["eng"]) for one in found.clips] == [
        ("0", "test", ("test-0",)),
        ("train-0/0", "train", ("train-0",)),
        ("train-1/0", "train", ("train-1",)),
    ]
    assert found.remarks == ["2 clips are called TAR/KEY, as an earlier tar has the key too: train-0/0"]
    # Within a tar a key is of one clip.
    write_tar(tmp_path / "test-0.tar", [(f"{key}.{end}", b"x") for key in "010" for end in ("wav", "txt")])
    with pytest.raises(ValueError, match=r"its id occurs twice .* the files of a clip must follow each other"):
        import_data_set(WebDataset(source=str(tmp_path)), tmp_path / "out")


@pytest.mark.parametrize("name", ["../a.wav", "/tmp/a.wav", "x/../../a.wav", os.fsdecode("é.wav".encode("cp1252"))])
def test_a_member_that_leaves_the_tar_or_has_no_name_in_utf_8_is_refused(tmp_path: Path, name: str) -> None:
    write_tar(tmp_path / "train.tar", [(name, tone()), ("b.txt", b"rain")])
    with pytest.raises(ValueError, match=r"train\.tar, member: got"):
        entries_of(WebDataset(source=str(tmp_path)))


def test_links_in_a_tar_are_never_followed(tmp_path: Path) -> None:
    write_tone(tmp_path / "secret.wav")
    with tarfile.open(tmp_path / "train.tar", "w") as tar:
        link = tarfile.TarInfo("a.wav")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret.wav")
        tar.addfile(link)
        text = tarfile.TarInfo("a.txt")
        text.size = 1
        tar.addfile(text, io.BytesIO(b"x"))
    clips, absent, *_ = found_in(WebDataset(source=str(tmp_path)))
    assert (len(clips), len(absent)) == (0, 1)


def test_tars_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.tar").write_bytes(b"no tar" * 200)
    with pytest.raises(ValueError, match="not a complete tar file"):
        entries_of(WebDataset(source=str(tmp_path)))
    write_tar(tmp_path / "train.tar", [("a.wav", tone())])
    with pytest.raises(
        ValueError, match=r"1 clip is named, none of which can be imported \(first: a: .*no caption in its"
    ):
        import_data_set(WebDataset(source=str(tmp_path)), tmp_path / "out")
    write_tar(tmp_path / "train.tar", [("a.wav", tone()), ("a.json", b"{")])
    with pytest.raises(ValueError, match=r"a\.json: not JSON"):
        entries_of(WebDataset(source=str(tmp_path)))
    write_tar(tmp_path / "train.tar.gz", [("a.wav", tone())], "w:gz")
    with pytest.raises(ValueError, match="compressed tar"):
        entries_of(WebDataset(source=str(tmp_path)))


# --- tables as they come


@pytest.mark.parametrize(
    "content",
    [
        b"path;caption\na.wav;caf\xe9 bruyant, l\xe0-bas\n",
        b"path\tcaption\na.wav\tcaf\xe9 bruyant, l\xe0-bas\n",
        b"path|caption\na.wav|caf\xc3\xa9 bruyant, l\xc3\xa0-bas\n",
        b"\xef\xbb\xbfpath;caption\r\na.wav;caf\xc3\xa9 bruyant, l\xc3\xa0-bas\r\n",
        "path\tcaption\na.wav\tcafé bruyant, là-bas\n".encode("utf-16"),
        b'sep=;\r\npath;caption\r\na.wav;"caf\xe9 bruyant, l\xe0-bas"\r\n',
    ],
)
def test_delimiter_and_encoding_are_found(tmp_path: Path, content: bytes) -> None:
    write_tone(tmp_path / "a.wav")
    (tmp_path / "captions.csv").write_bytes(content)
    (entry,) = entries_of(TableSource(source=str(tmp_path), language="fr"))
    assert entry.captions == {"fra": ("café bruyant, là-bas",)}


@pytest.mark.parametrize(("given", "character"), [("^", "^"), ("tab", "\t")])
def test_columns_are_separated_by_the_character_that_is_set(tmp_path: Path, given: str, character: str) -> None:
    write_tone(tmp_path / "a.wav")
    # Commas would give as many columns.
    (tmp_path / "captions.csv").write_text(
        f"path{character}caption{character}a,b,c\na.wav{character}rain{character}x\n"
    )
    (entry,) = entries_of(TableSource(source=str(tmp_path), delimiter=given))
    assert entry.captions == {"eng": ("rain",)}
    with pytest.raises(ValueError, match="delimiter: got '::'; allowed one character, or tab"):
        entries_of(TableSource(source=str(tmp_path), delimiter="::"))


def test_an_encoding_that_was_guessed_is_noted_and_another_can_be_chosen(tmp_path: Path) -> None:
    write_tone(tmp_path / "a.wav")
    (tmp_path / "captions.csv").write_bytes("path;caption\na.wav;큰 개가 짖는다\n".encode("cp949"))
    (note,) = notes_of(TableSource(source=str(tmp_path), language="ko"))
    assert "--encoding says otherwise" in note
    (entry,) = entries_of(TableSource(source=str(tmp_path), language="ko", encoding="cp949", delimiter=";"))
    assert entry.captions == {"kor": ("큰 개가 짖는다",)}
    with pytest.raises(ValueError, match="encoding: got 'klingon'"):
        entries_of(TableSource(source=str(tmp_path), encoding="klingon"))


@pytest.mark.parametrize("table", ["captions.jsonl", "captions.parquet"])
def test_lists_are_captions(tmp_path: Path, table: str) -> None:
    rows = [{"path": "a.wav", "caption": ["x one", None, "x two"]}, {"path": "sub/b.flac", "caption": ["y"]}]
    entries = entries_of(TableSource(source=str(make_folder(tmp_path, table, rows))))
    assert [entry.captions for entry in entries] == [{"eng": ("x one", "x two")}, {"eng": ("y",)}]


def test_columns_are_chosen_by_name_and_captions_by_language(tmp_path: Path) -> None:
    rows = [{"file": "a.wav", "text": "a dog", "text_sv": "en hund", "key": "k1"}]
    root = make_folder(tmp_path, rows=rows)
    source = TableSource(source=str(root), path_column="file", caption_column=("text", "sv=text_sv"), id_column="key")
    (entry,) = entries_of(source)
    assert (entry.clip_id, entry.captions) == ("k1", {"eng": ("a dog",), "swe": ("en hund",)})
    by_language = [{"path": "a.wav", "captions": {"en": ["a dog"], "ko": "개"}}]
    (entry,) = entries_of(TableSource(source=str(make_folder(tmp_path / "two", "c.jsonl", by_language))))
    assert entry.captions == {"eng": ("a dog",), "kor": ("개",)}


def test_a_json_line_may_leave_out_a_language(tmp_path: Path) -> None:
    """The column of a language that no line has is named, and so is a misspelt one."""
    rows = [{"path": "a.wav", "en": "a dog"}, {"path": "sub/b.flac", "de": "ein Hund"}]
    root = make_folder(tmp_path, "captions.jsonl", rows)
    entries = entries_of(TableSource(source=str(root), caption_column=("en", "de")))
    assert [entry.captions for entry in entries] == [{"eng": ("a dog",)}, {"deu": ("ein Hund",)}]
    with pytest.raises(ValueError, match=r"captions\.jsonl: column fr is missing; it has path, en, de"):
        entries_of(TableSource(source=str(root), caption_column=("en", "de", "fr")))
    with pytest.raises(ValueError, match=r"line 1: column dee is missing; it has path, en"):
        entries_of(TableSource(source=str(root), caption_column=("dee",)))


def test_a_file_whose_name_no_table_can_hold_stops_nothing(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "in")
    os.rename(write_tone(root / "c.wav"), os.fsencode(root) + b"/\xe9.wav")
    assert import_data_set(TableSource(source=str(root)), tmp_path / "out").notes == ()


def test_a_pipe_among_the_files_is_not_waited_for(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "in", rows=[{"path": "a.wav", "caption": "x"}, {"path": "p.wav", "caption": "y"}])
    os.mkfifo(root / "p.wav")
    manifest = import_data_set(TableSource(source=str(root)), tmp_path / "out", options=Import(max_unreadable=0.5))
    assert manifest.skipped == (Skipped("p", f"{root}/p.wav: is no file"),)


def test_half_of_a_pair_of_surrogates_is_named(tmp_path: Path) -> None:
    rows = [{"path": "a.wav", "caption": "\ud83d"}, {"path": "sub/b.flac", "caption": "\U0001f415 barks"}]
    root = make_folder(tmp_path, "captions.jsonl", rows)
    with pytest.raises(ValueError, match=r"captions\.jsonl, line 1: half of a pair of surrogates"):
        entries_of(TableSource(source=str(root)))
    _, dropped, *_ = TableSource(source=str(root), drop_bad_rows=True).entries()
    assert isinstance(dropped, Skipped)


@pytest.mark.parametrize("caption", [3, {"x": [1]}, [["x"]], True])
def test_what_is_no_caption_is_refused(tmp_path: Path, caption: object) -> None:
    root = make_folder(tmp_path, "captions.jsonl", [{"path": "a.wav", "caption": caption}])
    with pytest.raises(ValueError, match="line 1, caption"):
        entries_of(TableSource(source=str(root)))


def test_bad_rows_are_dropped_on_request_counted_and_listed(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "set")
    lines = ["path,caption", "a.wav,x", "a.wav,y,z", ",no path", "sub/b.flac,", "../c.wav,out", "sub/b.flac,fine", ""]
    (root / "captions.csv").write_text("\n".join(lines))
    with pytest.raises(ValueError, match="line 3: 3 fields"):
        entries_of(TableSource(source=str(root)))
    source = TableSource(source=str(root), drop_bad_rows=True)
    dropped = [entry for entry in source.entries() if isinstance(entry, Skipped)]
    assert [entry.clip_id.rsplit(", ", 1)[1] for entry in dropped] == ["line 3", "line 4", "line 5", "line 6"]
    manifest = import_data_set(source, tmp_path / "out")
    assert manifest.num_rows == 2
    assert len(manifest.skipped) == 4
    assert "4 rows of tables were dropped" in manifest.notes


def test_each_row_whose_path_leaves_the_folder_is_dropped_and_no_split_is_drawn_for_it(tmp_path: Path) -> None:
    write_tone(tmp_path / "a.wav")
    lines = [f"{path},x" for path in ("a.wav", *(f"../{number // 2}.wav" for number in range(40)))]
    (tmp_path / "captions.csv").write_text("\n".join(["path,caption", *lines]))
    found = found_in(TableSource(source=str(tmp_path), drop_bad_rows=True))
    assert [clip.clip_id for clip in found.clips] == ["a"]
    assert [row.clip_id.rpartition(" ")[2] for row in found.dropped] == [str(number) for number in range(3, 43)]
    assert not found.remarks


def test_a_column_in_other_letters_is_meant(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "set")
    (root / "captions.csv").write_text("PATH,caption\na.wav,x\n")
    with pytest.raises(ValueError, match=r"column path is missing; it has PATH, caption \(did you mean PATH\?\)"):
        entries_of(TableSource(source=str(root)))


def test_a_row_that_cannot_be_used_is_named_with_the_remedy(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "set")
    (root / "captions.csv").write_text("path\tname\tdeutsch\na.wav\t\t\n", encoding="utf-8")
    blank = TableSource(source=str(root), caption_column=("name", "deu=deutsch"))
    with pytest.raises(ValueError, match=r"line 2: no caption in name, deutsch; --drop-bad-rows leaves such rows out"):
        entries_of(blank)
    (root / "captions.csv").write_text("path,caption\na.wav,\n")
    with pytest.raises(ValueError, match=r"line 2: no caption in caption; --drop-bad-rows leaves such rows out"):
        entries_of(TableSource(source=str(root)))
    (root / "captions.csv").write_text('path,caption,clip_id\n"a\tb.wav",x,\n"a\tc.wav",y,c\na.wav,z,"a\tb"\n')
    with pytest.raises(
        ValueError, match=r"line 2, path: got 'a\\tb.wav'; allowed printable text, or an id in column cl"
    ):
        entries_of(TableSource(source=str(root)))
    found = found_in(TableSource(source=str(root), drop_bad_rows=True))
    assert [row.clip_id.rsplit(", ", 1)[1] for row in found.dropped] == ["line 2", "line 4"]
    assert [clip.clip_id for clip in found.absent] == ["c"]


def test_no_clip_has_the_path_of_another_as_its_id(tmp_path: Path) -> None:
    """Further captions are by id or by path: those of `a.wav` were joined to `a.wav.wav` too."""
    write_tone(tmp_path / "in" / "a.wav.wav")
    rows = [{"path": "a.wav", "caption": "one"}, {"path": "a.wav.wav", "caption": "two"}]
    root = make_folder(tmp_path / "in", rows=rows)
    write_rows(tmp_path / "de.csv", [{"path": row["path"], "caption": row["path"]} for row in rows])
    manifest = import_data_set(TableSource(source=str(root)), tmp_path / "out", captions=[f"de={tmp_path}/de.csv"])
    found = {row["clip_id"]: row["captions"]["deu"] for row in iterate_rows(manifest, "train")}
    assert found == {"a": ["a.wav"], "a.wav.wav": ["a.wav.wav"]}


def test_ids_keep_the_extension_where_two_clips_would_share_one(tmp_path: Path) -> None:
    rows = [{"path": path, "caption": path} for path in ("a.wav", "a.flac", "sub/b.flac")]
    root = make_folder(tmp_path / "set", rows=rows)
    write_tone(root / "a.flac")
    german = tmp_path / "deu.csv"
    german.write_text("path,caption\na.flac,flac\na.wav,wav\nsub/b,b\n")
    manifest = import_data_set(TableSource(source=str(root)), tmp_path / "out", captions=[f"de={german}"])
    found = {row["clip_id"]: row["captions"].get("deu") for row in iterate_rows(manifest, "train")}
    assert found == {"a.wav": ["wav"], "a.flac": ["flac"], "sub/b": ["b"]}


def test_deep_and_huge_json_is_one_line_of_an_error(tmp_path: Path) -> None:
    for text in ("[" * 100_000, '{"path": 1' + "0" * 5000 + "}"):
        (tmp_path / "captions.jsonl").write_text(text)
        with pytest.raises(ValueError, match="line 1: not JSON") as caught:
            list(read_table(str(tmp_path / "captions.jsonl")))
        assert len(str(caught.value)) < 500 + len(str(tmp_path))


def notes_of(source: TableSource) -> list[str]:
    return found_in(source).remarks


def test_columns_of_splits_and_languages_have_any_name(tmp_path: Path) -> None:
    rows = [
        {"path": "a.wav", "caption": "Ein Hund.", "Menge": "test", "Sprache": "de"},
        {"path": "sub/b.flac", "caption": "Rain.", "Menge": "", "Sprache": ""},
    ]
    root = str(make_folder(tmp_path, rows=rows))
    source = TableSource(source=root, split_column="Menge", language_column="Sprache")
    entries = found_in(source).clips
    assert [(entry.split, dict(entry.captions)) for entry in entries] == [
        ("test", {"deu": ("Ein Hund.",)}),
        ("train", {"eng": ("Rain.",)}),
    ]
    assert notes_of(source) == ["blank splits: 1 row, taken to be in train (--split)"]
    # --split is for the blank cell alone.
    chosen = found_in(TableSource(source=root, split_column="Menge", split="val"))
    assert [entry.split for entry in chosen.clips] == ["test", "val"]
    with pytest.raises(ValueError, match=r"column Mengen is missing; .*did you mean Menge\?"):
        list(TableSource(source=root, split_column="Mengen").entries())


def test_columns_that_are_not_read_are_named_with_what_may_be_meant(tmp_path: Path) -> None:
    rows = [{"path": "a.wav", "caption": "x", "splt": "test", "Sprache": "de", "lable": "dog", "rating": "5"}]
    rows.append({**rows[0], "path": "sub/b.flac"})
    assert notes_of(TableSource(source=str(make_folder(tmp_path / "a", rows=rows)))) == [
        "columns that were not read: splt (did you mean split?), Sprache, lable (did you mean label?), rating"
    ]
    usual = [{"path": "a.wav", "caption_1": "x", "split": "test", "language": "en", "label": "dog", "clip_id": "1"}]
    usual.append({**usual[0], "path": "sub/b.flac", "clip_id": "2"})
    assert notes_of(TableSource(source=str(make_folder(tmp_path / "b", rows=usual)))) == []


def test_a_split_in_other_letters_is_refused_with_what_it_means(tmp_path: Path) -> None:
    for given, meant in (("Validation", "val"), ("TEST", "test"), ("Dev", "val")):
        root = make_folder(tmp_path / given, rows=[{"path": "a.wav", "caption": "x", "split": given}])
        with pytest.raises(ValueError, match=rf"line 2, split: got '{given}'; .*did you mean {meant}\?"):
            list(TableSource(source=str(root)).entries())


def test_caption_columns_named_by_languages_are_of_those_languages(tmp_path: Path) -> None:
    rows: list[dict[str, str]] = [
        {"path": name, "eng": "A dog.", "arb": "كلب.", "ko": "개.", "txt": "A cat."} for name in ("a.wav", "sub/b.flac")
    ]
    root = str(make_folder(tmp_path, rows=rows))
    named = TableSource(source=root, caption_column=("eng", "arb", "ko"))
    first = found_in(named).clips[0]
    assert list(first.captions) == ["eng", "arb", "kor"]
    assert "columns of captions by language: eng (eng), arb (arb), ko (kor)" in notes_of(named)
    # `txt` is the code of a language of Papua, and the name of most columns of text.
    plain = TableSource(source=root, caption_column=("txt",))
    assert list(found_in(plain).clips[0].captions) == ["eng"]
    mixed = TableSource(source=root, caption_column=("swe=eng", "txt"))
    assert list(found_in(mixed).clips[0].captions) == ["swe", "eng"]
    for names in (("English", "francais", "日本語"), ("english", "Français", "japanese")):
        called = make_folder(tmp_path / names[0], rows=[{"path": "a.wav", **dict.fromkeys(names, "x y")}])
        source = TableSource(source=str(called), caption_column=names)
        assert list(found_in(source).clips[0].captions) == ["eng", "fra", "jpn"]
    greek = make_folder(tmp_path / "greek", rows=[{"path": "a.wav", "greek": "x", "western frisian": "y"}])
    source = TableSource(source=str(greek), caption_column=("greek", "western frisian"))
    assert list(found_in(source).clips[0].captions) == ["ell", "fry"]


@pytest.mark.parametrize("names", [("caption", "french"), ("en", "french", "Chinese (Simplified)"), ("txt", "french")])
def test_caption_columns_of_which_some_are_named_by_languages_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"--caption-column: got 'french'; allowed LANGUAGE=COLUMN for each column"):
        TableSource(source="x", caption_column=names)
    assert TableSource(source="x", caption_column=("caption", "en")).caption_column == ("caption", "en")


def test_a_link_that_leads_back_is_followed_once(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "set")
    (root / "loop").symlink_to(root)
    (root / "up").symlink_to("..")
    (root / "one").mkdir()
    (root / "two").mkdir()
    (root / "one" / "other").symlink_to("../two")
    (root / "two" / "other").symlink_to("../one")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "c.wav").write_bytes(b"c")
    (root / "linked").symlink_to(elsewhere)
    files = files_below(locate(str(root)))
    assert files == ["a.wav", "captions.csv", "linked/c.wav", "sub/b.flac"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "an empty file (0 bytes)"),
        (b"\0\0\0\x20ftypM4A ", "AAC or another sound in MP4 (m4a, mp4), which is not supported"),
        (b"\x1aE\xdf\xa3webm", "a Matroska or WebM file, which is not supported"),
        (b"0&\xb2u\x8ef\xcf\x11wma", "Windows Media (wma), which is not supported"),
        (b"wvpk....", "WavPack, which is not supported"),
    ],
)
def test_what_phones_record_is_called_by_its_name(content: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        open_sound(content, "a.bin")
    assert "a WAV, FLAC, OGG, MP3, AIFF, AU, CAF or W64 file" in str(error.value)
    assert ("ffmpeg -i FILE NEW.flac" in str(error.value)) == bool(content)


def test_one_of_several_columns_of_audio_is_chosen(tmp_path: Path) -> None:
    table = audio_table(["a.wav"], caption=["x"])
    other = audio_table(["b.wav"])["audio"]
    pq.write_table(table.append_column("second", other), tmp_path / "train.parquet")
    with pytest.raises(ValueError, match="2 Audio columns"):
        entries_of(HuggingFace(source=str(tmp_path)))
    (entry,) = entries_of(HuggingFace(source=str(tmp_path), audio_column="second"))
    assert entry.clip_id == "b"


def test_tars_whose_names_tell_no_split_are_of_the_split_that_is_set(tmp_path: Path) -> None:
    write_tar(tmp_path / "000.tar", [("a.txt", b"rain"), ("a.wav", tone())])
    write_tar(tmp_path / "val.tar", [("b.txt", b"rain"), ("b.wav", tone())])
    entries = entries_of(WebDataset(source=str(tmp_path), split="test"))
    assert {entry.clip_id: entry.split for entry in entries} == {"a": "test", "b": "val"}


def test_a_table_in_the_root_folder_is_not_one_of_the_current_folder() -> None:
    # As a container mounts it.
    assert file_at("/captions.csv") == Path("/captions.csv")
