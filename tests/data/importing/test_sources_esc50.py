from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from ray_atr.workshop.importing.sources.esc50 import Esc50, Esc50Clotho
from ray_atr.workshop.languages.templates import caption
from tests.support.clips_on_disk import make_esc50
from tests.support.found import found_in, place_of


@pytest.mark.parametrize("suffix", [".wav", ".ogg", ".flac"])
def test_folds_become_splits_and_classes_labels(tmp_path: Path, suffix: str) -> None:
    source = Esc50(source=str(make_esc50(tmp_path / "set", suffix=suffix)), languages=("eng", "jpn"))
    entries = found_in(source).clips
    assert Counter(entry.split for entry in entries) == {"train": 12, "val": 4}
    first = entries[1]
    assert first.clip_id == "1-1001-A-1"
    assert place_of(first).file.endswith(f"audio/1-1001-A-1{suffix}")
    assert first.captions == {code: (caption("crying_baby", code),) for code in ("eng", "jpn")}
    assert first.labels == ("crying_baby",)


def test_the_fifth_fold_is_the_test_split_and_options_override(tmp_path: Path) -> None:
    root = str(make_esc50(tmp_path / "set", folds=(1, 2, 3, 4, 5)))
    assert Counter(entry.split for entry in Esc50(source=root).entries()) == {
        "train": 12,
        "val": 4,
        "test": 4,
    }
    for folds in (("train=1,5", "held_out=2"), ("train=1", "held_out=2", "train=5")):
        chosen = Esc50(source=root, folds=folds)
        assert Counter(entry.split for entry in chosen.entries()) == {"train": 8, "held_out": 4}


def test_folds_that_pandas_wrote_are_the_same(tmp_path: Path) -> None:
    root = make_esc50(tmp_path / "set")
    written = list(Esc50(source=str(root)).entries())
    table = pd.read_csv(root / "meta" / "esc50.csv")
    table.astype({"fold": float}).to_csv(root / "meta" / "esc50.csv", index=False)
    assert list(Esc50(source=str(root), folds=("train=1,2,3", "val=4")).entries()) == written


@pytest.mark.parametrize(
    ("folds", "says"),
    [
        (("train=1,2", "val=2"), "2 occurs in two splits"),
        (("train",), "NAME=VALUE"),
        (("train=7",), "folds of this copy: 1, 2, 3, 4"),
        (("Train=1",), "lower-case letters"),
    ],
)
def test_folds_that_cannot_be_are_refused(tmp_path: Path, folds: tuple[str, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        list(Esc50(source=str(make_esc50(tmp_path / "set")), folds=folds).entries())


def test_other_layouts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such folder"):
        list(Esc50(source=str(tmp_path / "absent")).entries())
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty"):
        list(Esc50(source=str(tmp_path / "empty")).entries())
    root = make_esc50(tmp_path / "set")
    (root / "meta" / "esc50.csv").unlink()
    with pytest.raises(ValueError, match=r"esc50\.csv: no such file"):
        list(Esc50(source=str(root)).entries())


def test_a_named_clip_without_audio_is_reported(tmp_path: Path) -> None:
    root = make_esc50(tmp_path / "set")
    (root / "audio" / "2-1001-A-1.wav").unlink()
    (absent,) = found_in(Esc50(source=str(root))).absent
    assert (absent.clip_id, absent.absent) == ("2-1001-A-1", "audio/2-1001-A-1.wav is not there")


def test_the_real_tables(shared_data: Path) -> None:
    entries = found_in(Esc50(source=str(shared_data / "esc50"))).clips
    assert Counter(entry.split for entry in entries) == {"train": 1200, "val": 400}
    assert Counter(entry.labels[0] for entry in entries).most_common(1)[0][1] == 32
    clotho = found_in(Esc50Clotho(source=str(shared_data / "esc50"))).clips
    assert len(clotho) == 135
    assert all(len(entry.captions["eng"]) == 5 for entry in clotho)


def test_the_captions_are_the_zero_shot_sentences(tmp_path: Path) -> None:
    first = found_in(Esc50(source=str(make_esc50(tmp_path / "set")))).clips[0]
    assert len(first.captions) == 8
    assert first.captions["eng"] == ("This is a sound of a dog.",)
    assert first.captions["deu"] == ("Das ist das Geräusch eines Hundes.",)


def test_human_captions_need_a_known_language(tmp_path: Path) -> None:
    root = make_esc50(tmp_path / "set")
    row = {"filename": "1-1000-A-0.wav", "category": "dog", "captions": {"English": ["A dog barks"]}}
    (root / "meta" / "esc50_clotho_captions.jsonl").write_text(json.dumps(row))
    with pytest.raises(ValueError, match=r"line 1, captions: got 'English'.*did you mean eng"):
        list(Esc50Clotho(source=str(root)).entries())
    row["captions"] = {"eng": ["A dog barks"]}
    (root / "meta" / "esc50_clotho_captions.jsonl").write_text(json.dumps(row))
    (entry,) = Esc50Clotho(source=str(root), split="extra").entries()
    assert entry.split == "extra"
    shutil.rmtree(root)


def test_labels_are_worded_as_the_released_code_of_m_ltm_words_them(tmp_path: Path) -> None:
    root = str(make_esc50(tmp_path / "set"))
    as_said, as_labelled = (
        [entry.captions["eng"][0] for entry in found_in(source).clips]
        for source in (Esc50(source=root, languages=("eng",)), Esc50(source=root, languages=("eng",), wording="labels"))
    )
    assert "This is a sound of crying baby" in as_labelled
    assert "This is a sound of crying baby" not in as_said
    assert len(as_said) == len(as_labelled)
    with pytest.raises(ValueError, match=r"wording: got 'labels'; allowed sentences with languages eng,jpn"):
        Esc50(source=root, languages=("eng", "jpn"), wording="labels")
