"""AudioCaps, Clotho and WavCaps: the real tables, and generated audio under the names people have."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ray_atr.common.override import override
from ray_atr.common.storage import locate, read_bytes
from ray_atr.data.shards import iterate_rows
from ray_atr.evaluation.eval_split import read_eval_split
from ray_atr.training.checks import check_experiment
from ray_atr.training.experiment import Experiment
from ray_atr.workshop.importing.import_options import VectorImport
from ray_atr.workshop.importing.plan import Import, import_data_set
from ray_atr.workshop.importing.sources import Entry
from ray_atr.workshop.importing.sources.audiocaps import AudioCaps, youtube_id
from ray_atr.workshop.importing.sources.clotho import Clotho
from ray_atr.workshop.importing.sources.wavcaps import WavCaps, read_data
from tests.support.clips_on_disk import write_tone
from tests.support.found import found_in, place_of
from tests.support.whole_product import IS_WHOLE

ID = "r1nicOVtvkQ"


def write_csv(path: Path, header: list[str], *rows: list[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def found(source: AudioCaps | Clotho | WavCaps) -> tuple[list[Entry], list[Entry]]:
    return found_in(source)[:2]


def splits_of(entries: list[Entry], absent: list[Entry]) -> Counter[str]:
    return Counter([entry.split for entry in entries] + [entry.split for entry in absent])


# --- AudioCaps


def test_paths_of_importers_are_absolute_from_where_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert WavCaps(source="WavCaps", exclude=("a.json", "s3://b/c.txt")).exclude == (
        str(tmp_path / "a.json"),
        "s3://b/c.txt",
    )
    vectors = VectorImport(audio="a.npy", text="t.npy::x", table="pairs.csv")
    assert (vectors.audio, vectors.text, vectors.table) == tuple(
        str(tmp_path / name) for name in ("a.npy", "t.npy::x", "pairs.csv")
    )


@pytest.mark.parametrize(
    "name",
    [
        f"Y{ID}.wav",
        f"{ID}.flac",
        f"train/Y{ID}.mp3",
        f"{ID}_130.wav",
        f"Y{ID}_130.000_140.000.ogg",
        f"{ID}_130000_140000.flac",
        "audio/train/91139.wav",
    ],
)
def test_audiocaps_finds_audio_under_the_usual_names(tmp_path: Path, name: str) -> None:
    write_csv(
        tmp_path / "train.csv",
        ["audiocap_id", "youtube_id", "start_time", "caption"],
        [91139, ID, 130, "A woman talks"],
    )
    write_tone(tmp_path / name)
    (entry,), absent = found(AudioCaps(source=str(tmp_path)))
    assert (entry.clip_id, entry.captions, absent) == (ID, {"eng": ("A woman talks",)}, [])
    assert place_of(entry).file == str(tmp_path / name)


def test_audiocaps_ids_may_begin_with_y_or_hold_underscores() -> None:
    assert youtube_id("YYQSuFyFm3Lc.wav") == "YQSuFyFm3Lc"
    assert youtube_id("YQSuFyFm3Lc.wav") == "YQSuFyFm3Lc"
    assert youtube_id("Y_xylo5_IiaM.wav") == "_xylo5_IiaM"
    assert youtube_id("Yfs_R7e__X_0_10.flac") == "fs_R7e__X_0"


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("clip_id", ID),
        ("youtube_id", ID),
        ("youtube_id", f" {ID} "),
        ("file_name", f"Y{ID}.wav"),
        ("file_name", f" Y{ID}.wav"),
        ("path", f"{ID}.flac"),
    ],
)
def test_captions_of_another_language_join_audiocaps_by_any_name_of_a_clip(
    tmp_path: Path, column: str, name: str
) -> None:
    write_csv(tmp_path / "in" / "test.csv", ["youtube_id", "start_time", "caption"], [ID, 130, "A woman talks"])
    write_tone(tmp_path / "in" / f"Y{ID}.wav")
    french = write_csv(tmp_path / "fra.csv", [column, "caption"], [name, "Une femme parle"])
    manifest = import_data_set(AudioCaps(source=str(tmp_path / "in")), tmp_path / "out", captions=[f"fra={french}"])
    assert manifest.num_captions("fra") == 1


def test_a_blank_video_id_leaves_the_name_to_the_file_name() -> None:
    # As pandas reads a blank cell.
    assert AudioCaps(source="x").id_of({"youtube_id": math.nan, "file_name": f"Y{ID}.wav"}) == ID


def test_a_clip_of_another_split_with_the_same_number_is_not_taken(tmp_path: Path) -> None:
    header = ["audiocap_id", "youtube_id", "start_time", "caption"]
    write_csv(tmp_path / "train.csv", header, [1, "aaaaaaaaaaa", 0, "x"])
    write_csv(tmp_path / "test.csv", header, [1, "bbbbbbbbbbb", 0, "y"])
    for split in ("test", "train"):
        write_tone(tmp_path / split / "1.wav")
    entries, _ = found(AudioCaps(source=str(tmp_path)))
    assert [place_of(entry).file.split("/")[-2] for entry in entries] == ["train", "test"]


def test_audiocaps_layouts_that_cannot_be_told_are_refused(tmp_path: Path) -> None:
    write_tone(tmp_path / f"Y{ID}.wav")
    with pytest.raises(ValueError, match=r"no train\.csv"):
        found(AudioCaps(source=str(tmp_path)))
    write_csv(tmp_path / "v1" / "train.csv", ["youtube_id", "start_time", "caption"], [ID, 130, "x"])
    write_csv(tmp_path / "retrieval" / "train.csv", ["file_name", "caption"], [f"Y{ID}.wav", "x"])
    with pytest.raises(ValueError, match="choose with --tables: retrieval, v1"):
        found(AudioCaps(source=str(tmp_path)))
    for tables in ("v1", "retrieval"):
        entries, _ = found(AudioCaps(source=str(tmp_path), tables=tables))
        assert [entry.clip_id for entry in entries] == [ID]
    with pytest.raises(ValueError, match=r"did you mean v1\?"):
        found(AudioCaps(source=str(tmp_path), tables="v2"))
    # Those of the folder itself can be chosen too.
    write_csv(tmp_path / "train.csv", ["youtube_id", "start_time", "caption"], [ID, 130, "of the folder"])
    with pytest.raises(ValueError, match=r"choose with --tables: \., retrieval, v1"):
        found(AudioCaps(source=str(tmp_path)))
    (entry,), _ = found(AudioCaps(source=str(tmp_path), tables="."))
    assert entry.captions == {"eng": ("of the folder",)}


def test_audiocaps_tables_with_other_columns_or_a_row_twice_are_refused(tmp_path: Path) -> None:
    write_tone(tmp_path / f"Y{ID}.wav")
    table = tmp_path / "train.csv"
    write_csv(table, ["id", "Youtube_id", "Caption"], [1, ID, "x"])
    with pytest.raises(ValueError, match=r"train\.csv: column youtube_id is missing; .* \(did you mean Youtube_id\?\)"):
        found(AudioCaps(source=str(tmp_path)))
    header = ["audiocap_id", "youtube_id", "start_time", "caption"]
    # Two people may say the same.
    write_csv(table, header, [7, ID, 130, "rain"], [8, ID, 130, "rain"])
    (entry,), _ = found(AudioCaps(source=str(tmp_path)))
    assert entry.captions["eng"] == ("rain", "rain")
    write_csv(table, header, [7, ID, 130, "rain"], [7, ID, 130, "rain"])
    with pytest.raises(ValueError, match=r"train\.csv, line 3: audiocap_id 7 occurs twice"):
        found(AudioCaps(source=str(tmp_path)))


@pytest.mark.slow
@pytest.mark.parametrize(("tables", "counts"), [("v1", (49_838, 495, 975)), ("retrieval_split", (49_274, 494, 957))])
def test_audiocaps_real_tables_with_little_audio(
    shared_data: Path, tmp_path: Path, tables: str, counts: tuple[int, ...]
) -> None:
    write_tone(tmp_path / f"Y{ID}.wav")
    write_tone(tmp_path / "Y7fmOlUlwoNg.wav")
    source = AudioCaps(source=str(shared_data / "captions" / "audiocaps"), tables=tables, audio=str(tmp_path))
    entries, absent = found(source)
    assert splits_of(entries, absent) == dict(zip(("train", "val", "test"), counts, strict=True))
    assert {entry.split: len(entry.captions["eng"]) for entry in entries} == {"train": 1, "test": 5}
    assert entries[1].captions["eng"][0] == "Constant rattling noise and sharp vibrations"
    assert not any(entry.absent for entry in absent)


@pytest.mark.slow
def test_japanese_captions_join_every_clip_of_the_retrieval_split(shared_data: Path, tmp_path: Path) -> None:
    captions, audio = shared_data / "captions", tmp_path / "audio"
    sample = write_tone(tmp_path / "sample.wav", seconds=0.05)
    audio.mkdir()
    clips = {"val": 494, "test": 957} if IS_WHOLE else {"val": 494}
    for split in clips:
        for row in read_csv(captions / "audiocaps" / "retrieval_split" / f"{split}.csv"):
            (audio / row["file_name"]).hardlink_to(sample)
    manifest = import_data_set(
        AudioCaps(source=str(captions / "audiocaps"), tables="retrieval_split", audio=str(audio)),
        tmp_path / "out",
        captions=[f"jpn={captions}/audiocaps_ja/{split}.csv" for split in clips],
    )
    assert {split: manifest.num_rows_of(split) for split in manifest.splits} == clips
    assert manifest.num_captions("jpn") == manifest.num_captions("eng") == 5 * sum(clips.values())
    joined = ", ".join(f"{number} of {number} {split} clips" for split, number in clips.items())
    assert f"jpn captions joined: {joined}" in manifest.notes
    assert len(manifest.skipped) == 49_274 + 494 + 957 - sum(clips.values())
    # Caption j must be the same sentence in both languages: the pairs of the translators' own tables.
    pairs: dict[Any, set[str]] = {}
    for split in clips:
        tables = [captions / "audiocaps_ja" / f"{prefix}{split}.csv" for prefix in ("en_", "")]
        english, japanese = (read_csv(table) for table in tables)
        for one, other in zip(english, japanese, strict=True):
            assert one["audiocap_id"] == other["audiocap_id"]
            pairs.setdefault((one["youtube_id"], " ".join(one["caption"].split())), set()).add(
                " ".join(other["caption"].split())
            )
    for split in clips:
        for clip in iterate_rows(manifest, split, ["clip_id", "captions"]):
            for one, other in zip(clip["captions"]["eng"], clip["captions"]["jpn"], strict=True):
                assert other in pairs[clip["clip_id"], one]


# --- Clotho


def make_clotho(root: Path, folders: dict[str, str]) -> Path:
    header = ["file_name", *(f"caption_{number}" for number in range(1, 6))]
    for part, folder in folders.items():
        names = [f"{part} one.wav", f" {part} two.wav"]
        write_csv(
            root / f"clotho_captions_{part}.csv",
            header,
            *([name, *(f"{name} caption {number}" for number in range(5))] for name in names),
        )
        for name in names:
            write_tone(root / folder / name)
    return root


@pytest.mark.parametrize("pattern", ["{}", "clotho_audio_files/{}", "clotho_audio_{}/{}"])
def test_clotho_parts_become_splits(tmp_path: Path, pattern: str) -> None:
    parts = ("development", "validation", "evaluation")
    make_clotho(tmp_path, {part: pattern.format(part, part) for part in parts})
    entries, absent = found(Clotho(source=str(tmp_path)))
    assert [entry.split for entry in entries] == ["train", "train", "val", "val", "test", "test"]
    assert absent == []
    assert entries[1].clip_id == "development two"
    assert entries[1].captions["eng"][4] == " development two.wav caption 4"


def test_a_name_that_two_parts_of_clotho_have_is_two_clips(tmp_path: Path) -> None:
    """The published tables have five; an import of the whole set was refused."""
    header = ["file_name", *(f"caption_{number}" for number in range(1, 6))]
    for part, names in (
        ("validation", ("Bus.wav", "Knocking .wav")),
        ("evaluation", ("Bus.wav", "Knocking.wav", "Rain.wav")),
    ):
        rows = [[name, *(f"{part} {name} {number}" for number in range(5))] for name in names]
        write_csv(tmp_path / "in" / f"clotho_captions_{part}.csv", header, *rows)
        for pitch, name in enumerate(names):
            write_tone(tmp_path / "in" / part / name, pitch=300 + 50 * pitch + len(part))
    french = [
        f"fra={write_csv(tmp_path / 'val.csv', header, ['Bus.wav', *'abcde'])}",
        f"fra={write_csv(tmp_path / 'test.csv', header, ['Bus.wav', *'abcde'], ['Rain.wav', *'abcde'])}",
    ]
    manifest = import_data_set(Clotho(source=str(tmp_path / "in")), tmp_path / "out", captions=french)
    rows_of = {split: list(iterate_rows(manifest, split)) for split in ("val", "test")}
    ids = {split: [row["clip_id"] for row in rows] for split, rows in rows_of.items()}
    assert ids == {
        "val": ["validation/Bus", "validation/Knocking"],
        "test": ["evaluation/Bus", "evaluation/Knocking", "Rain"],
    }
    assert rows_of["test"][0]["captions"]["eng"][0] == "evaluation Bus.wav 0"
    # Whose captions those of a name alone are cannot be told.
    assert [row["clip_id"] for rows in rows_of.values() for row in rows if "fra" in row["captions"]] == ["Rain"]
    with pytest.raises(ValueError, match=r"test.csv: clip Rain has fra captions in an earlier file too"):
        import_data_set(Clotho(source=str(tmp_path / "in")), tmp_path / "again", captions=[french[1], french[1]])


def test_clotho_audio_of_another_part_is_not_taken(tmp_path: Path) -> None:
    make_clotho(tmp_path, {"development": "development"})
    shutil.move(tmp_path / "development", tmp_path / "evaluation")
    entries, absent = found(Clotho(source=str(tmp_path)))
    assert entries == []
    assert len(absent) == 2
    assert absent[0].absent.endswith("is not in a folder development")


def test_two_tables_of_a_part_of_clotho_are_refused(tmp_path: Path) -> None:
    make_clotho(make_clotho(tmp_path, {"development": "development"}) / "old", {"development": "development"})
    with pytest.raises(
        ValueError, match=r"clotho_captions_development\.csv and old/.*; allowed one clotho_captions_dev"
    ):
        found(Clotho(source=str(tmp_path)))


def test_clotho_real_tables(shared_data: Path, tmp_path: Path) -> None:
    write_tone(tmp_path / "development" / " typical neighborhood in Porto.wav")
    write_tone(tmp_path / "evaluation" / "Santa Motor.flac")
    entries, absent = found(Clotho(source=str(shared_data / "captions" / "clotho"), audio=str(tmp_path)))
    assert [entry.clip_id for entry in entries] == ["typical neighborhood in Porto", "Santa Motor"]
    assert splits_of(entries, absent) == {
        "train": 3_839,
        "val": 1_045,
        "test": 1_045,
    }
    assert all(len(entry.captions["eng"]) == 5 for entry in entries)
    assert len({entry.clip_id for entry in entries} | {one.clip_id for one in absent}) == 5_929


def test_clotho_captions_of_another_language_join_by_file_name(tmp_path: Path) -> None:
    make_clotho(tmp_path / "in", {"evaluation": "evaluation"})
    header = ["file_name", *(f"caption_{number}" for number in range(1, 6))]
    names = ["evaluation one.wav", " evaluation two.wav"]
    french = write_csv(tmp_path / "fra.csv", header, *([name, *(f"{name} {j}" for j in "abcde")] for name in names))
    manifest = import_data_set(Clotho(source=str(tmp_path / "in")), tmp_path / "out", captions=[f"fra={french}"])
    assert manifest.notes == ("fra captions joined: 2 of 2 test clips",)
    rows = list(iterate_rows(manifest, "test", ["captions"]))
    assert rows[1]["captions"]["fra"][4] == "evaluation two.wav e"


# --- WavCaps


def make_wavcaps(root: Path) -> Path:
    tables: dict[str, list[dict[str, Any]]] = {
        "AudioSet_SL/as_final.json": [{"id": "Yabcdefghijk.wav", "caption": "Rain falls", "duration": 10.0}],
        "BBC_Sound_Effects/bbc_final.json": [{"id": "NHU0501", "caption": "Gulls – many", "description": "x" * 500}],
        "FreeSound/fsd_final.json": [
            {"id": str(number), "caption": f"Sound {number}", "author": "é", "tags": ["a", "b]"]}
            for number in range(40)
        ],
    }
    for path, items in tables.items():
        file = root / "json_files" / path
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"num_captions_per_audio": 1, "data": items}, ensure_ascii=False), encoding="utf-8")
        for item in items:
            name = str(item["id"]).removesuffix(".wav")
            pitch = 200.0 + len(name) + sum(map(ord, name))
            write_tone(root / "Zip_files" / path.split("/")[0] / f"{name}.flac", seconds=0.05, pitch=pitch)
    return root


def test_wavcaps_joins_json_and_flac_by_subset(tmp_path: Path) -> None:
    entries, absent = found(WavCaps(source=str(make_wavcaps(tmp_path))))
    assert len(entries) == 42
    assert absent == []
    by_id = {entry.clip_id: entry for entry in entries}
    assert by_id["audioset/Yabcdefghijk"].captions == {"eng": ("Rain falls",)}
    assert by_id["bbc/NHU0501"].captions == {"eng": ("Gulls – many",)}
    assert place_of(by_id["freesound/7"]).file.endswith("FreeSound/7.flac")


@pytest.mark.parametrize("form", ["by subset", "plain json", "text"])
def test_wavcaps_exclusion_lists_keep_test_clips_out(tmp_path: Path, form: str) -> None:
    make_wavcaps(tmp_path)
    file = (
        tmp_path / "json_files" / "blacklist" / ("blacklist_exclude_all_ac" + (".txt" if form == "text" else ".json"))
    )
    file.parent.mkdir()
    content = {
        "by subset": json.dumps({"AudioSet": ["Yabcdefghijk.wav"], "FreeSound": ["3", 4]}),
        "plain json": json.dumps(["Yabcdefghijk", "3", "4.flac"]),
        "text": "Yabcdefghijk.wav\n3\n4\n",
    }
    file.write_text(content[form])
    entries, _ = found(WavCaps(source=str(tmp_path), exclude=(str(file),)))
    assert len(entries) == 39
    assert not {"audioset/Yabcdefghijk", "freesound/3", "freesound/4"} & {entry.clip_id for entry in entries}


def test_wavcaps_says_how_many_clips_were_excluded(tmp_path: Path) -> None:
    """A list of others would leave nothing out, and nobody would know."""
    make_wavcaps(tmp_path / "in")
    (tmp_path / "list.txt").write_text("3\n4\nnone of these\n")
    source = WavCaps(source=str(tmp_path / "in"), exclude=(str(tmp_path / "list.txt"),))
    assert found_in(source).remarks == ["excluded: 2 clips, by 3 ids in lists"]


@pytest.mark.parametrize(
    ("item", "captions"),
    [
        ({"id": " 7.wav ", "caption": "Rain"}, ("Rain",)),
        ({"id": "7", "caption": ["Rain", "More rain"]}, ("Rain", "More rain")),
        ({"id": "7", "caption": {"en": "Rain"}}, "clip 1, caption: got .*allowed a text, or a list of texts"),
        ({"id": "7", "caption": 7}, "clip 1, caption: got '?7.*allowed a text, or a list of texts"),
        ({"id": None, "caption": "Rain"}, "clip 1: id or caption is missing"),
        ({"id": " ", "caption": "Rain"}, "clip 1: id or caption is missing"),
        ({"id": "7", "caption": [" "]}, "clip 1: id or caption is missing"),
    ],
)
def test_a_clip_of_wavcaps_has_an_id_and_texts(
    tmp_path: Path, item: dict[str, Any], captions: tuple[str, ...] | str
) -> None:
    make_wavcaps(tmp_path)
    (tmp_path / "json_files" / "FreeSound" / "fsd_final.json").write_text(json.dumps({"data": [item]}))
    if isinstance(captions, str):
        with pytest.raises(ValueError, match=r"fsd_final\.json, " + captions):
            found(WavCaps(source=str(tmp_path)))
    else:
        by_id = {entry.clip_id: tuple(entry.captions["eng"]) for entry in found(WavCaps(source=str(tmp_path)))[0]}
        assert by_id["freesound/7"] == captions


def test_a_blank_beside_an_id_is_none_of_it_and_a_row_without_one_is_named(tmp_path: Path) -> None:
    head = ["audiocap_id", "youtube_id", "start_time", "caption"]
    write_tone(tmp_path / "audiocaps" / "audio" / "Yr1nicOVtvkQ.wav")
    write_csv(tmp_path / "audiocaps" / "train.csv", head, ["1", " r1nicOVtvkQ ", "130", "Rain"])
    ((entry,), absent) = found(AudioCaps(source=str(tmp_path / "audiocaps")))
    assert (entry.clip_id, absent) == ("r1nicOVtvkQ", [])
    write_csv(tmp_path / "audiocaps" / "train.csv", head, ["1", "r1nicOVtvkQ", "130", "Rain"], ["2", " ", "30", "Wind"])
    with pytest.raises(ValueError, match=r"train\.csv, line 3: the row names no clip"):
        found(AudioCaps(source=str(tmp_path / "audiocaps")))
    write_tone(tmp_path / "clotho" / "development" / "rain.wav")
    rows = (["rain.wav", *"abcde"], ["", *"abcde"])
    write_csv(
        tmp_path / "clotho" / "clotho_captions_development.csv",
        ["file_name", *(f"caption_{n}" for n in range(1, 6))],
        *rows,
    )
    with pytest.raises(ValueError, match=r"clotho_captions_development\.csv, line 3: the row names no clip"):
        found(Clotho(source=str(tmp_path / "clotho")))


def test_wavcaps_captions_of_another_language_join_by_clip_id(tmp_path: Path) -> None:
    source = WavCaps(source=str(make_wavcaps(tmp_path / "in")))
    spanish = write_csv(tmp_path / "spa.csv", ["clip_id", "caption"], ["freesound/7", "Sonido 7"])
    manifest = import_data_set(source, tmp_path / "out", captions=[f"spa={spanish}"])
    assert manifest.num_captions("spa") == 1


def test_wavcaps_absent_clips_and_held_out_share(tmp_path: Path) -> None:
    make_wavcaps(tmp_path)
    (tmp_path / "Zip_files" / "FreeSound" / "11.flac").unlink()
    entries, absent = found(WavCaps(source=str(tmp_path), validation_share=0.25))
    assert [(entry.clip_id, entry.absent) for entry in absent] == [("freesound/11", "")]
    counts = Counter(entry.split for entry in entries)
    assert 3 <= counts["val"] <= 20
    again, _ = found(WavCaps(source=str(tmp_path), validation_share=0.25))
    assert [entry.split for entry in again] == [entry.split for entry in entries]


def test_copies_of_a_file_of_wavcaps_are_in_one_split(tmp_path: Path) -> None:
    """Each clip of FreeSound has one, of its own subset; the others are drawn as before, by their ids."""
    folder = make_wavcaps(tmp_path) / "Zip_files" / "FreeSound"
    alone = {entry.clip_id: entry.split for entry in found(WavCaps(source=str(tmp_path), validation_share=0.25))[0]}
    for number in range(20):
        shutil.copy(folder / f"{number}.flac", folder / f"{20 + number}.flac")
    split = {entry.clip_id: entry.split for entry in found(WavCaps(source=str(tmp_path), validation_share=0.25))[0]}
    assert [split[f"freesound/{n}"] for n in range(20)] == [split[f"freesound/{20 + n}"] for n in range(20)]
    assert 0 < sum(one == "val" for one in split.values()) < 30
    assert {one: split[one] for one in split if "freesound" not in one} == {
        one: alone[one] for one in alone if "freesound" not in one
    }


def test_large_json_is_read_in_pieces_of_any_size(tmp_path: Path) -> None:
    folder = locate(make_wavcaps(tmp_path))
    path = "json_files/FreeSound/fsd_final.json"
    expected = json.loads(read_bytes(folder / path))["data"]
    for chunk in (1, 7, 100, 10**6):
        assert [item for _, item in read_data(folder, path, chunk)] == expected


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"data": [{"id": 1, "cap', "cut off"),
        (b"{}", "no list"),
        (b'{"data": [{"id": "\xff\xff\xff\xff"}]}', "UTF-8"),
    ],
)
def test_wavcaps_json_that_is_broken_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "FreeSound.json").write_bytes(content)
    with pytest.raises(ValueError, match=says):
        list(read_data(locate(tmp_path), "FreeSound.json"))


def test_absent_clips_do_not_count_as_unreadable(tmp_path: Path) -> None:
    write_csv(tmp_path / "test.csv", ["file_name", "caption"], *([f"Y{number:011d}.wav", "x"] for number in range(20)))
    write_tone(tmp_path / f"Y{3:011d}.wav")
    manifest = import_data_set(AudioCaps(source=str(tmp_path)), tmp_path / "out", options=Import(max_unreadable=0))
    assert (manifest.num_rows, len(manifest.skipped)) == (1, 19)
    assert manifest.notes == ("test: audio of 19 clips is absent",)
    shutil.rmtree(tmp_path / "out")
    (tmp_path / f"Y{3:011d}.wav").unlink()
    write_tone(tmp_path / "other.wav")
    with pytest.raises(ValueError, match="20 clips are named, none of which can be imported"):
        import_data_set(AudioCaps(source=str(tmp_path)), tmp_path / "out")


def test_a_split_of_which_no_audio_is_there_is_left_out_and_named(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_csv(tmp_path / f"{split}.csv", ["file_name", "caption"], [f"Y{split:_>11}.wav", "x"])
    write_tone(tmp_path / f"Y{'train':_>11}.wav")
    manifest = import_data_set(AudioCaps(source=str(tmp_path)), tmp_path / "out")
    assert manifest.splits == ("train",)
    assert manifest.notes == ("val: audio of 1 clip is absent",)
    with pytest.raises(ValueError, match=r"split: got 'val'; allowed splits of audiocaps: train"):
        read_eval_split(manifest, "val")
    with pytest.raises(ValueError, match=r"data\.validation_split: got 'val'; .* has train alone; a column split"):
        check_experiment(override(Experiment(), {"data.source": str(tmp_path / "out"), "data.languages": "eng"}))


def test_audio_is_looked_for_where_it_is_set_to_be(tmp_path: Path) -> None:
    clotho = make_clotho(tmp_path / "clotho", {"development": "development"})
    wavcaps = make_wavcaps(tmp_path / "wavcaps")
    audiocaps = tmp_path / "audiocaps"
    header = ["audiocap_id", "youtube_id", "start_time", "caption"]
    write_csv(audiocaps / "train.csv", header, [91139, ID, 130, "Rain"])
    write_tone(audiocaps / "audio" / f"Y{ID}.wav")
    kinds: list[tuple[Any, Path, str]] = [
        (AudioCaps, audiocaps, "audio"), (Clotho, clotho, "development"), (WavCaps, wavcaps, "Zip_files"),
    ]  # fmt: skip
    for kind, folder, audio in kinds:
        complete, _ = found(kind(source=str(folder)))
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        elsewhere = tmp_path / "elsewhere" / folder.name
        shutil.move(folder / audio, elsewhere / audio)
        assert found(kind(source=str(folder)))[0] == []
        entries, absent = found(kind(source=str(folder), audio=str(elsewhere)))
        assert [entry.clip_id for entry in entries] == [entry.clip_id for entry in complete]
        assert absent == []


def test_the_one_split_of_wavcaps_is_called_as_is_set(tmp_path: Path) -> None:
    entries, _ = found(WavCaps(source=str(make_wavcaps(tmp_path)), split="extra"))
    assert {entry.split for entry in entries} == {"extra"}
