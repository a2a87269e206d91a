"""A newcomer's folder becomes a served search by the commands of docs/search.md: files of four formats, some of them broken."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import soundfile

from ray_atr.cli import main

ROOT = Path(__file__).parents[2]
SETTINGS = ["--ray", "never", "--train.epochs", "1", "--train.batch_size", "4", "--tracking.mlflow", "false"]


def make_folder(folder: Path) -> None:
    """Recordings in folders, with spaces and umlauts, of three lengths and rates; a broken one, and text called .wav."""
    rows = ["file;english;deutsch"]
    for number in range(20):
        name = f"{('', 'Vögel im Wald/')[number % 2]}Aufnahme {number} ü.{('wav', 'flac', 'mp3', 'ogg')[number % 4]}"
        rate, seconds = (16_000, 22_050, 44_100)[number % 3], (0.3, 1.0, 11.0)[number % 3]
        time = np.arange(int(rate * seconds)) / rate
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / name, 0.3 * np.sin(2 * np.pi * (200 + 50 * number) * time), rate)
        rows.append(f"{name};a tone of number {number};ein Ton der Nummer {number}")
    (folder / "kaputt.wav").write_bytes(b"RIFF\x10\0\0\0WAVEfmt none")
    (folder / "notiz.wav").write_text("only text")
    (folder / "Thumbs.db").write_bytes(b"x")
    rows.append("kaputt.wav;a broken one;ein kaputter Ton")
    (folder / "captions.csv").write_text("\n".join(rows), encoding="utf-8-sig")


@pytest.mark.slow
def test_a_messy_folder_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_folder(tmp_path / "my_sounds")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "search.md").read_text()
    commands = [shlex.split(line) for line in re.findall(r"^    ray-atr (.*)$", page, re.MULTILINE)]
    usual, served = commands[0], commands[3]
    (prepare, train) = (one for one in commands if "eng=english" in one or "ml_clap" in one)
    (build,) = (one for one in commands[:4] if one[:2] == ["index", "build"])
    with pytest.raises(SystemExit):
        main(arguments=usual)
    assert "--path-column says which one it is" in capsys.readouterr().err
    main(arguments=prepare)
    assert "deu 20" in capsys.readouterr().out
    given = [word for word in train if word not in ("--train.epochs", "20", "--train.batch_size", "16")]
    main(arguments=[*given, *SETTINGS])
    assert "validated alone" not in capsys.readouterr().out
    main(arguments=build)
    said = capsys.readouterr().out
    assert "left out: notiz.wav" in said
    assert re.search(r"20 sounds in \d+ windows \(20 encoded, 0 unchanged, 0 removed, 2 left out\)", said)
    assert "ray-atr serve mine.index" in said
    main(arguments=["index", "query", "mine.index", "ein Ton der Nummer 3", "--top", "100"])
    assert "Vögel im Wald/Aufnahme 3 ü.ogg" in capsys.readouterr().out
    assert served == ["serve", "mine.index"]
