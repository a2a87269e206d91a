"""The folder that people have: every format and every accident at once, imported, checked and trained in three languages."""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from ray_atr.common.override import override
from ray_atr.data.shards import iterate_rows
from ray_atr.models.retriever import Retriever
from ray_atr.training.ray_train import run_trial
from ray_atr.workshop.importing.check import check_data_set, lines_left_out, page
from ray_atr.workshop.importing.import_options import Import
from ray_atr.workshop.importing.plan import import_data_set
from ray_atr.workshop.importing.sources.table import TableSource
from tests.support.tiny import tiny

WORDS = {
    "eng": "A dog barks loudly while {} cars pass by in the rain",
    "swe": "En hund skäller högt medan {} bilar kör förbi i regnet",
    "kor": "비가 오는 동안 개가 크게 짖고 자동차 {}대가 지나간다",
}


def encoded(seconds: float, number: int, kind: str = "WAV", rate: int = 16_000, subtype: str | None = None) -> bytes:
    time = np.arange(round(seconds * rate)) / rate
    samples = 0.3 * np.sin(2 * np.pi * (200 + 40 * number) * time)
    buffer = io.BytesIO()
    soundfile.write(buffer, samples.astype(np.float32), rate, format=kind, subtype=subtype)
    return buffer.getvalue()


def make_mess(root: Path, language: str) -> list[dict[str, Any]]:
    """Audio of every kind, and the rows of a table that speaks of it."""
    broken = np.full(16_000, 0.1, np.float32)
    broken[5_000] = np.nan
    nan = io.BytesIO()
    soundfile.write(nan, broken, 16_000, format="WAV", subtype="FLOAT")
    files = {
        "a.mp3": encoded(1.0, 1, "MP3"),
        "a.flac": encoded(1.0, 2, "FLAC"),
        "b.aiff": encoded(1.0, 3, "AIFF"),
        "eight bits.wav": encoded(1.0, 4, subtype="PCM_U8"),
        "high rate.wav": encoded(0.5, 5, rate=96_000),
        "ogg/c.ogg": encoded(1.0, 6, "OGG"),
        "two minutes.flac": encoded(120.0, 7, "FLAC", rate=8_000),
        unicodedata.normalize("NFD", "ljud/åska – 개.wav"): encoded(1.0, 8),
        "a copy.flac": encoded(1.0, 2, "FLAC"),
        "nan.wav": nan.getvalue(),
        "empty.wav": b"",
        "short.wav": encoded(0.01, 9),
        "text.wav": b"this is not audio",
        "nobody names me.wav": encoded(0.2, 10),
        **{f"more/{number:02d}.wav": encoded(0.4, 11 + number) for number in range(12)},
    }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    rows = []
    for number, name in enumerate(files):
        if name != "nobody names me.wav":
            caption = WORDS[language].format(number)
            rows.append({"path": unicodedata.normalize("NFC", name), "caption": caption, "split": "train"})
    rows[2]["caption"] += '\n"' + WORDS[language].format("2") + '"'
    rows[-1]["split"] = rows[-2]["split"] = "val"
    rows.append(dict(rows[5]))
    return rows


def write_table(root: Path, language: str, rows: list[dict[str, Any]]) -> None:
    """A CSV with a byte order mark, one of Excel in cp1252, or JSON lines with lists and nulls; with bad rows in each."""
    if language == "kor":
        rows[0]["caption"] = [rows[0]["caption"], None, "개가 짖는 소리가 멀리서 들린다"]
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        bad = [
            '{"path": "a.mp3"',
            json.dumps({"path": None, "caption": "x"}),
            json.dumps({"path": "a.mp3", "caption": None}),
        ]
        (root / "captions.jsonl").write_text("\n".join([*lines, *bad]), encoding="utf-8")
        return
    buffer = io.StringIO()
    table = csv.writer(buffer, delimiter=";" if language == "swe" else ",")
    table.writerow(["path", "caption", "split"])
    # cp1252 has no Korean letters, and Excel writes a question mark.
    table.writerows(
        [[row["path"], row["caption"], row["split"]] for row in rows if language != "swe" or "개" not in row["path"]]
    )
    table.writerows([["a.mp3", ""], ["", "x", "train"], ["a.mp3", "", "train"]])
    encoding = "cp1252" if language == "swe" else "utf-8-sig"
    (root / "captions.csv").write_bytes(buffer.getvalue().encode(encoding))


@pytest.mark.slow
@pytest.mark.usefixtures("own_home")
@pytest.mark.parametrize("language", ["eng", "swe", "kor"])
def test_a_messy_folder_is_imported_checked_and_trained(tmp_path: Path, language: str) -> None:
    rows = make_mess(tmp_path / "in", language)
    write_table(tmp_path / "in", language, rows)
    source = TableSource(source=str(tmp_path / "in"), language=language, drop_bad_rows=True)
    with pytest.raises(ValueError, match=r"--max-unreadable.*empty\.wav|clips are unreadable"):
        import_data_set(source, tmp_path / "strict")
    manifest = import_data_set(source, tmp_path / "set", options=Import(max_unreadable=0.3))

    named = 25 - 4 - (language == "swe")
    assert manifest.num_rows == named
    assert manifest.languages == (language,)
    reasons = lines_left_out(manifest)
    assert len(manifest.skipped) == 4 + 3
    for said in ("not a number", "not audio", "0.0100 s long"):
        assert any(said in reason for reason in reasons), (said, reasons)
    assert "3 rows of tables were dropped" in manifest.notes
    unnamed = "2 audio files are" if language == "swe" else "1 audio file is"
    assert any(note.startswith(f"{unnamed} named by no row") for note in manifest.notes)

    clips = {row["clip_id"]: row for row in iterate_rows(manifest, "train")}
    assert {"a.mp3", "a.flac", "b", "eight bits", "high rate", "ogg/c", "two minutes"} <= set(clips)
    assert ("ljud/åska – 개" in clips) == (language != "swe")
    assert "\n" not in clips["b"]["captions"][language][0]
    assert '"' in clips["b"]["captions"][language][0]
    if language == "kor":
        assert len(clips["a.mp3"]["captions"]["kor"]) == 2
    assert clips["eight bits"]["captions"][language] == [WORDS[language].format(3)]

    report = check_data_set(str(tmp_path / "set"))
    assert report.is_fit
    assert not [kind for kind in report.remarks if "another language" in kind or "looks like" in kind]
    assert report.remarks[f"clip has the same {language} caption twice"].examples == ["ogg/c (train)"]
    assert report.remarks["two clips of a split have the same audio"].examples == ["a.flac (train) = a copy (train)"]
    assert any("longer than one window: 1 clip;" in line for line in page(report))

    settings = {"data.languages": "", "scaling.workers": 0, "scaling.ray_data": False, "train.epochs": 1}
    experiment = override(tiny(tmp_path / "set"), settings)
    reports: list[dict[str, Any]] = []
    run_trial(experiment, tmp_path / "trial", tmp_path / "home", [], reports.append)
    assert np.isfinite(reports[0]["train/loss"])
    assert any(name.startswith(f"text_to_audio/{language}/") for name in reports[0])
    retriever = Retriever.from_pretrained(tmp_path / "trial" / "best")
    starts, vectors = retriever.encode_windows(tmp_path / "in" / "two minutes.flac")
    assert len(starts) == len(vectors) == 12
