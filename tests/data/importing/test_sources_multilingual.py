"""M2M's captions in 34 languages, in the layout that is published and in that of the code that made them, with small audio."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from ray_atr.data.shards import iterate_rows
from ray_atr.workshop.importing.plan import Import, import_data_set
from ray_atr.workshop.importing.sources.multilingual import NAMES, Multilingual
from tests.support.clips_on_disk import write_tone
from tests.support.found import found_in, place_of

LANGUAGES = [name for name in NAMES if name != "English"]


def write_table(file: Path, header: list[str], rows: list[list[str]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "w", newline="", encoding="utf-8") as content:
        csv.writer(content).writerows([header, *rows])


def published(root: Path, *blanks: tuple[str, int]) -> Path:
    """Two clips with five captions each in every language, but those of `blanks`; the audio of one is there."""
    rows = [
        [f"{clip}.wav", clip, f"{clip} {number}"]
        + ["" if (name, number) in blanks else f"{clip} {number} in {name}" for name in LANGUAGES]
        for clip in ("Rain (1)", "Dog")
        for number in range(5)
    ]
    write_table(root / "test" / "metadata.csv", ["file_name", "audio_name", "caption", *LANGUAGES], rows)
    write_tone(root / "test" / "Rain (1).wav")
    return root


def test_the_published_layout_becomes_a_data_set_in_all_languages(tmp_path: Path) -> None:
    source = Multilingual(source=str(published(tmp_path / "clotho-multilingual")), chinese="Hant")
    manifest = import_data_set(source, tmp_path / "data", options=Import(ray="never"))
    assert len(manifest.languages) == 33
    # All but the English ones are machine-translated.
    assert (manifest.num_translated("eng"), manifest.num_translated("ell"), manifest.num_captions("ell")) == (0, 5, 5)
    (clip,) = iterate_rows(manifest, "test")
    assert clip["clip_id"] == "Rain (1)"
    assert clip["captions"]["eng"] == [f"Rain (1) {number}" for number in range(5)]
    assert clip["captions"]["ell"] == [f"Rain (1) {number} in Greek" for number in range(5)]
    assert clip["captions"]["zho"][0] == "Rain (1) 0 in Chinese (Traditional)"


def test_a_caption_stands_at_one_place_in_every_language_though_a_translation_is_blank(tmp_path: Path) -> None:
    found = found_in(Multilingual(source=str(published(tmp_path, ("Hindi", 1)))))
    (entry,) = found.clips
    assert [one.clip_id for one in found.absent] == ["Dog"]
    assert any("2 translations are blank" in remark for remark in found.remarks)
    assert [text[9] for text in entry.captions["eng"]] == ["0", "2", "3", "4", "1"]
    assert [text[9] for text in entry.captions["deu"]] == ["0", "2", "3", "4", "1"]
    assert [text[9] for text in entry.captions["hin"]] == ["0", "2", "3", "4"]


def test_a_row_that_a_table_has_twice_is_taken_once_and_counted(tmp_path: Path) -> None:
    table = published(tmp_path) / "test" / "metadata.csv"
    header, *rows = table.read_text(encoding="utf-8").splitlines()
    numbered = [f"{number},{row}" for number, row in enumerate([*rows, rows[0], rows[7]])]
    table.write_text("\n".join([f",{header}", *numbered]) + "\n", encoding="utf-8")
    found = found_in(Multilingual(source=str(tmp_path)))
    (entry,) = found.clips
    assert [text[9] for text in entry.captions["deu"]] == list("01234")
    assert any("2 rows left out: another one says the same" in remark for remark in found.remarks)


@pytest.mark.parametrize(("column", "first", "second"), [("file_name", "a.wav", "b/a.wav"), ("start_time", "3", "40")])
def test_captions_of_two_recordings_under_one_name_are_refused(
    tmp_path: Path, column: str, first: str, second: str
) -> None:
    rows = [["a", first, "a dog", "ein Hund"], ["a", second, "a cat", "eine Katze"]]
    write_table(tmp_path / "test" / "metadata.csv", ["audio_name", column, "caption", "German"], rows)
    write_tone(tmp_path / "test" / "a.wav")
    says = f"line 3, {column}: got '{second}'; allowed '{first}', as the row of a before has it"
    with pytest.raises(ValueError, match=says):
        list(Multilingual(source=str(tmp_path)).entries())


def test_blanks_of_two_languages_in_two_rows_leave_a_caption_in_its_place(tmp_path: Path) -> None:
    found = found_in(Multilingual(source=str(published(tmp_path, ("Hindi", 0), ("German", 1)))))
    (entry,) = found.clips
    numbers = {code: [text[9] for text in texts] for code, texts in entry.captions.items()}
    assert numbers["eng"] == numbers["fra"] == ["2", "3", "4", "0", "1"]
    assert (numbers["hin"], numbers["deu"]) == (["2", "3", "4"], ["2", "3", "4", "0"])
    # Of the other clip, which has no audio, none counts.
    assert any(remark.startswith("1 caption left out") for remark in found.remarks)


def test_the_tables_of_the_code_that_made_them_are_read_by_the_columns_that_it_uses(tmp_path: Path) -> None:
    aya = "aya_translated_eng_Latn-{0}-sentence_{0}"
    header = [
        "youtube_id",
        "caption",
        "hin_Deva",
        aya.format("hin_Deva") + "_cleaned",
        "eng_Latn-fra_Latn-sentence_fra_Latn",
    ]
    header += [
        aya.format("fra_Latn"),
        aya.format("fra_Latn") + "_cleaned",
        aya.format("zho_Hant") + "_cleaned",
        "score",
    ]
    rows = [["r1nicOVtvkQ", "a dog", "own", "of Aya", "flores", "Le voici : un chien", "un chien", "traditional", "3"]]
    write_table(tmp_path / "audiocaps_test_33_language_translation_cleaned.csv", header, rows)
    write_tone(tmp_path / "audio" / "Yr1nicOVtvkQ.wav")
    found = found_in(Multilingual(source=str(tmp_path)))
    (entry,) = found.clips
    assert (entry.clip_id, entry.split) == ("r1nicOVtvkQ", "test")
    assert entry.captions == {"eng": ("a dog",), "hin": ("own",), "fra": ("un chien",)}
    assert any("score" in remark for remark in found.remarks)


@pytest.mark.parametrize(("column", "suffix"), [("youtube_id", ""), ("youtube_id", ".wav"), ("file_name", ".wav")])
def test_names_of_clotho_with_blanks_around_them_are_found(tmp_path: Path, column: str, suffix: str) -> None:
    """Nine of the evaluation split have one, and cells are read without them. The ids are those of an import of Clotho."""
    rows = [[f"{name}{suffix}", "a caption", "ein Text"] for name in ("Heat duct ", " Porto")]
    write_table(tmp_path / "clotho_test_cleaned.csv", [column, "caption", "German"], rows)
    for name in ("Heat duct ", " Porto"):
        write_tone(tmp_path / "audio" / f"{name}.wav")
    found = found_in(Multilingual(source=str(tmp_path))).clips
    assert [entry.clip_id for entry in found] == ["Heat duct", "Porto"]


@pytest.mark.parametrize("folders", [("evaluation", "validation"), ("clotho_audio_evaluation", "development")])
def test_of_two_recordings_of_one_name_that_of_the_split_is_taken(tmp_path: Path, folders: tuple[str, str]) -> None:
    """Clotho has some: `Bus(Drive_Reverse)_1-2.wav` is in evaluation and in validation."""
    write_table(
        tmp_path / "clotho_test_cleaned.csv", ["youtube_id", "caption", "German"], [["Bus_1-2", "a bus", "ein Bus"]]
    )
    for folder in folders:
        write_tone(tmp_path / "audio" / folder / "Bus_1-2.wav")
    (entry,) = found_in(Multilingual(source=str(tmp_path))).clips
    assert place_of(entry).file == f"{tmp_path}/audio/{folders[0]}/Bus_1-2.wav"


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        (
            ["file_name", "caption", "score"],
            ["a.wav", "a dog", "3"],
            "no column of a language but English; it has file_name",
        ),
        (["caption", "German"], ["a dog", "ein Hund"], "the row names no clip; its columns are caption, German"),
        (["file_name", "caption", "German"], ["a.wav", " ", "ein Hund"], "line 2: caption is blank"),
        (
            ["file_name", "caption", "German", "deu_Latn"],
            ["a.wav", "a", "b", "c"],
            "German and deu_Latn are of one language",
        ),
        (["file_name", "German"], ["a.wav", "ein Hund"], "column caption is missing"),
    ],
)
def test_another_table_is_refused_in_words(tmp_path: Path, header: list[str], row: list[str], words: str) -> None:
    write_table(tmp_path / "test" / "metadata.csv", header, [row])
    with pytest.raises(ValueError, match=words):
        list(Multilingual(source=str(tmp_path)).entries())


def test_the_audio_of_a_table_without_files_is_where_it_is_set_to_be(tmp_path: Path) -> None:
    file = published(tmp_path / "set") / "test" / "metadata.csv"
    rows = [line.split(",") for line in file.read_text().splitlines()]
    write_table(file, rows[0][1:], [row[1:] for row in rows[1:]])
    (tmp_path / "set" / "test" / "Rain (1).wav").rename(tmp_path / "Rain (1).wav")

    def present(**where: str) -> set[str]:
        source = Multilingual(source=str(tmp_path / "set"), **where)
        return {entry.clip_id for entry in found_in(source).clips}

    assert present() == set()
    assert present(audio=str(tmp_path)) == {"Rain (1)"}
