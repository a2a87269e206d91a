"""FSDnoisy18k and ARCA23K in the layouts of their archives, with generated audio; AudioCaps 2.0's tables."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from ray_atr.data.shards import iterate_rows
from ray_atr.workshop.importing.plan import Import, import_data_set
from ray_atr.workshop.importing.sources.audiocaps import AudioCaps
from ray_atr.workshop.importing.sources.freesound_labels import Arca23k, FsdNoisy18k
from tests.support.clips_on_disk import write_tone
from tests.support.found import found_in


def write_table(file: Path, *lines: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def fsdnoisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 training clips, of which every fourth is checked and of the others every third is in the small set; 4 of test."""
    root = tmp_path_factory.mktemp("fsd")
    rows = []
    for number in range(40):
        is_checked = number % 4 == 0
        write_tone(root / "FSDnoisy18k.audio_train" / f"{1000 + number}.wav", pitch=200 + number)
        is_small = not is_checked and number % 3 == 0
        rows.append(f"{1000 + number}.wav,Acoustic_guitar,/m/042v_gx,{int(is_checked)},{int(is_small)}")
    for number in range(4):
        write_tone(root / "FSDnoisy18k.audio_test" / f"{2000 + number}.wav")
    head = "fname,label,aso_id,manually_verified"
    write_table(root / "FSDnoisy18k.meta" / "train.csv", f"{head},noisy_small", *rows)
    write_table(
        root / "FSDnoisy18k.meta" / "test.csv",
        "fname,label,aso_id",
        *(f"{2000 + n}.wav,Rain,/m/06mb1" for n in range(4)),
    )
    return root


def numbers(source: FsdNoisy18k | Arca23k) -> Counter[str]:
    return Counter(entry.split for entry in source.entries())


@pytest.mark.parametrize(
    ("clips", "train"),
    [("all", 40), ("noisy", 30), ("noisy_small", sum(n % 4 != 0 and n % 3 == 0 for n in range(40))), ("clean", 10)],
)
def test_the_clips_that_were_asked_for_are_read(fsdnoisy: Path, clips: str, train: int) -> None:
    assert numbers(FsdNoisy18k(source=str(fsdnoisy), clips=clips, validation_share=0)) == {"train": train, "test": 4}


def test_validation_clips_are_checked_ones_and_never_trained_on(fsdnoisy: Path) -> None:
    for clips in ("all", "noisy", "clean"):
        entries = found_in(FsdNoisy18k(source=str(fsdnoisy), clips=clips, validation_share=0.5)).clips
        validation = {entry.clip_id for entry in entries if entry.split == "val"}
        assert 0 < len(validation) < 10
        assert all((int(clip_id) - 1000) % 4 == 0 for clip_id in validation)
        assert not validation & {entry.clip_id for entry in entries if entry.split == "train"}


def test_copies_of_a_file_are_not_trained_on_and_validated(fsdnoisy: Path, tmp_path: Path) -> None:
    """Each checked clip has a copy that is checked too, and some have one that is trained on, as it is not checked."""
    shutil.copytree(fsdnoisy, tmp_path / "in")
    audio = tmp_path / "in" / "FSDnoisy18k.audio_train"
    table = tmp_path / "in" / "FSDnoisy18k.meta" / "train.csv"
    rows = table.read_text().splitlines()
    for number in range(0, 40, 4):
        rows.append(f"{3000 + number}.wav,Rain,/m/0,1,0")
        shutil.copy(audio / f"{1000 + number}.wav", audio / f"{3000 + number}.wav")
    for number in (0, 12, 36):
        shutil.copy(audio / f"{1000 + number}.wav", audio / f"{1001 + number}.wav")
    write_table(table, *rows)
    source = FsdNoisy18k(source=str(tmp_path / "in"), validation_share=0.5)
    split = {int(entry.clip_id): entry.split for entry in source.entries()}
    assert all(split[1000 + number] == split[3000 + number] for number in range(0, 40, 4))
    assert {split[1000 + number] for number in (0, 12, 36)} == {"train"}
    assert 0 < sum(split[1000 + number] == "val" for number in range(0, 40, 4)) < 8


def test_a_file_of_the_table_that_is_not_there_counts_as_unreadable(fsdnoisy: Path, tmp_path: Path) -> None:
    shutil.copytree(fsdnoisy, tmp_path / "in")
    (tmp_path / "in" / "FSDnoisy18k.audio_train" / "1001.wav").unlink()
    source = FsdNoisy18k(source=str(tmp_path / "in"))
    with pytest.raises(ValueError, match=r"1 of 44 clips cannot be read .* 1001: its audio is not below .*/in"):
        import_data_set(source, tmp_path / "out", options=Import(ray="never"))


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("1000.wav,Rain,/m/0,yes,0", "train.csv, line 2, manually_verified: got 'yes'; allowed 0 or 1"),
        ("1000.wav,Rain,/m/0,,0", "train.csv, line 2, manually_verified: got ''; allowed 0 or 1"),
        ("1000.wav,Rain,/m/0,1,2", "train.csv, line 2, noisy_small: got '2'; allowed 0 or 1"),
        ("1000.wav, ,/m/0,1,0", "train.csv, line 2: fname or label is blank"),
        (",Rain,/m/0,1,0", "train.csv, line 2: fname or label is blank"),
    ],
)
def test_a_row_that_does_not_say_what_its_clip_is_is_named(fsdnoisy: Path, tmp_path: Path, row: str, says: str) -> None:
    shutil.copytree(fsdnoisy, tmp_path / "in")
    write_table(
        tmp_path / "in" / "FSDnoisy18k.meta" / "train.csv", "fname,label,aso_id,manually_verified,noisy_small", row
    )
    with pytest.raises(ValueError, match=re.escape(says)):
        list(FsdNoisy18k(source=str(tmp_path / "in")).entries())


def test_a_table_that_a_spreadsheet_saved_says_the_same(fsdnoisy: Path, tmp_path: Path) -> None:
    """Blanks beside names, and TRUE and FALSE for 1 and 0, which made each clip an unchecked one."""
    shutil.copytree(fsdnoisy, tmp_path / "in")
    table = tmp_path / "in" / "FSDnoisy18k.meta" / "train.csv"
    head, *rows = table.read_text().splitlines()
    words = {"0": "FALSE", "1": "TRUE"}
    cells = [row.split(",") for row in rows]
    write_table(table, head, *(f" {c[0]} , {c[1]},{c[2]},{words[c[3]]},{words[c[4]]}" for c in cells))
    for clips in ("noisy_small", "clean"):
        sources = (FsdNoisy18k(source=str(folder), clips=clips) for folder in (fsdnoisy, tmp_path / "in"))
        own, other = ([(e.clip_id, e.split, e.captions) for e in found_in(source).clips] for source in sources)
        assert own == other


def test_labels_are_captions(fsdnoisy: Path, tmp_path: Path) -> None:
    source = FsdNoisy18k(source=str(fsdnoisy), clips="clean", validation_share=0)
    manifest = import_data_set(source, tmp_path / "out", options=Import(ray="never"))
    rows = list(iterate_rows(manifest, "train"))
    assert rows[0]["captions"] == {"eng": ["This is a sound of acoustic guitar"]}
    assert rows[0]["labels"] == ["Acoustic_guitar"]
    assert manifest.num_rows == 14


def test_further_captions_name_a_clip_as_the_tables_do(fsdnoisy: Path, tmp_path: Path) -> None:
    write_table(tmp_path / "deu.csv", "fname,caption", "2003.wav,Regen")
    manifest = import_data_set(
        FsdNoisy18k(source=str(fsdnoisy)), tmp_path / "out", captions=[f"deu={tmp_path}/deu.csv"]
    )
    found = {row["clip_id"]: row["captions"].get("deu") for row in iterate_rows(manifest, "test")}
    assert found == {"2000": None, "2001": None, "2002": None, "2003": ["Regen"]}


def test_arca23k_takes_noisy_or_checked_labels_for_training(tmp_path: Path) -> None:
    for number in (1, 2, 3, 7, 8, 9):
        write_tone(tmp_path / ("ARCA23K.audio" if number < 5 else "FSD50K.dev_audio") / f"{number}.wav")
    head = "fname,label,mid"
    write_table(
        tmp_path / "ARCA23K.ground_truth" / "train.csv", head, "1,Bark,/m/05tny_", "2,Bark,/m/05tny_", "3,Rain,/m/06mb1"
    )
    for split, rows in (("train", ["7,Bark,x"]), ("val", ["8,Rain,x"]), ("test", ["9,Rain,x", "10,Rain,x"])):
        write_table(tmp_path / "ARCA23K-FSD.ground_truth" / f"{split}.csv", head, *rows)
    noisy = found_in(Arca23k(source=str(tmp_path)))
    assert [(e.clip_id, e.split) for e in noisy.clips] == [
        ("1", "train"), ("2", "train"), ("3", "train"), ("8", "val"), ("9", "test"),
    ]  # fmt: skip
    # FSD50K may be there in part.
    assert [(e.clip_id, e.split, e.absent) for e in noisy.absent] == [("10", "test", "")]
    clean = found_in(Arca23k(source=str(tmp_path), clips="clean")).clips
    assert [e.clip_id for e in clean if e.split == "train"] == ["7"]
    elsewhere = tmp_path.with_name(f"{tmp_path.name} elsewhere")
    for folder in ("ARCA23K.audio", "FSD50K.dev_audio"):
        shutil.move(tmp_path / folder, elsewhere / folder)
    moved = found_in(Arca23k(source=str(tmp_path), audio=str(elsewhere))).clips
    assert [e.clip_id for e in moved] == [e.clip_id for e in noisy.clips]


def test_a_table_of_another_layout_is_named(tmp_path: Path) -> None:
    write_tone(tmp_path / "a.wav")
    write_table(tmp_path / "FSDnoisy18k.meta" / "train.csv", "file,label", "a.wav,Rain")
    with pytest.raises(ValueError, match=r"FSDnoisy18k\.meta/train\.csv"):
        list(FsdNoisy18k(source=str(tmp_path)).entries())


def test_tables_of_audiocaps_2_are_read_as_published(tmp_path: Path) -> None:
    """`dataset2.0/`: the columns of the first version, five captions a clip of val and test, one row each."""
    head = "audiocap_id,youtube_id,start_time,caption"
    write_table(
        tmp_path / "dataset2.0" / "train.csv",
        head,
        "1,r1nicOVtvkQ,130,A woman talks",
        "2,r1nicOVtvkQ,130,A woman speaks",
    )
    write_table(tmp_path / "dataset2.0" / "test.csv", head, *(f"{10 + n},vfY_TJq7n_U,130,Rain {n}" for n in range(5)))
    for name in ("train/r1nicOVtvkQ.wav", "test/vfY_TJq7n_U.wav"):
        write_tone(tmp_path / name)
    entries = found_in(AudioCaps(source=str(tmp_path))).clips
    assert {entry.clip_id: len(entry.captions["eng"]) for entry in entries} == {"r1nicOVtvkQ": 2, "vfY_TJq7n_U": 5}


def test_two_segments_of_one_video_are_not_taken_for_one_clip(tmp_path: Path) -> None:
    head = "audiocap_id,youtube_id,start_time,caption"
    rows = ("1,r1nicOVtvkQ,130,A woman talks", "2,r1nicOVtvkQ,30,A dog barks")
    write_table(tmp_path / "train.csv", head, *rows)
    write_tone(tmp_path / "audio" / "r1nicOVtvkQ.wav")
    with pytest.raises(ValueError, match=r"train\.csv, line 3, start_time: got .*30.*; allowed 130"):
        list(AudioCaps(source=str(tmp_path)).entries())
