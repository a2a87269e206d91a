"""The tasks for MTEB's own repository load with its own loader, from the folders that are written to be uploaded."""

from __future__ import annotations

import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import tiny

pytest.importorskip("mteb", reason="no mteb: an optional extra")

import mteb
from datasets import Audio

from ray_atr.data.shards import write_clips
from ray_atr.evaluation.mteb_encoder import RetrieverEncoder
from ray_atr.models.audio import SmallCnn
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.retriever import build_retriever
from ray_atr.models.text import SmallTransformer, train_tokenizer

CONTRIBUTION = Path(__file__).parents[2] / "contrib" / "mteb"
CAPTIONS = [
    f"{tone}が{count}回{sound}" for tone in ("低い音", "高い音") for count in "一二三" for sound in ("鳴る", "消える")
]


def test_both_tasks_are_loaded_and_scored_by_mteb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    # MTEB's loader shows the first row to its log, for which `datasets` wants torchcodec; nothing else decodes by it.
    monkeypatch.setattr(Audio, "decode_example", lambda self, value, **told: value)
    clips = [
        tiny.tone_clip("test", row, {"jpn": [caption, f"{caption}、遠くで"], "eng": ["a tone"]}, tiny.NOTES[row % 4])
        for row, caption in enumerate(CAPTIONS)
    ]
    write_clips(tmp_path / "data", clips, name="audiocaps", licence="none")
    command = [sys.executable, str(CONTRIBUTION / "hub_folder.py"), str(tmp_path / "data"), str(tmp_path / "hub")]
    subprocess.run(command, check=True)
    spec = importlib.util.spec_from_file_location("audiocaps_ja", CONTRIBUTION / "audiocaps_ja.py")
    contributed: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(contributed)
    settings = ModelSettings(audio=SmallCnn(width=32), text=SmallTransformer(width=32), embedding_width=16)
    retriever = build_retriever(settings, tokenizer=train_tokenizer(CAPTIONS * 9, 300), seed=0)
    tasks = {"t2a": contributed.AudioCapsJaT2ARetrieval, "a2t": contributed.AudioCapsJaA2TRetrieval}
    for direction, task_class in tasks.items():
        known = task_class.metadata
        # It passes MTEB's checks of a contribution: every field is filled in.
        assert known.is_filled()
        assert known.category == direction
        assert known.name not in {task.metadata.name for task in mteb.get_tasks(languages=["jpn"])}
        place = {**known.dataset, "path": str(tmp_path / "hub" / f"audiocaps_ja_{direction}")}
        local = type(known.name, (task_class,), {"metadata": known.model_copy(update={"dataset": place})})
        found = mteb.evaluate(RetrieverEncoder(retriever, "R"), local(), cache=None, show_progress_bar=False)
        (row,) = found.task_results[0].scores["test"]
        assert row["languages"] == ["jpn-Jpan", "zxx-Zxxx"]
        assert row["hit_rate_at_5"] == pytest.approx(hits(retriever, clips, direction), abs=1e-5)


def test_a_second_run_replaces_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edited = tmp_path / "hub" / "audiocaps_ja_a2t" / "README.md"
    edited.parent.mkdir(parents=True)
    edited.touch()
    # It is refused before the data is read.
    monkeypatch.setattr(sys, "argv", ["hub_folder.py", str(tmp_path / "none"), str(tmp_path / "hub")])
    with pytest.raises(ValueError, match=r"out: got '.*audiocaps_ja_a2t'; allowed a new or empty folder"):
        runpy.run_path(str(CONTRIBUTION / "hub_folder.py"), run_name="__main__")
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["README.md"]


def hits(retriever: Any, clips: Any, direction: str) -> float:
    """The hit rate at 5 by plain counting."""
    texts = [text for clip in clips for text in clip.captions["jpn"]]
    scores = retriever.similarity(
        retriever.encode_text(texts, "jpn"), retriever.encode_audio([clip.audio for clip in clips])
    ).numpy()
    own = np.arange(len(texts))[:, None] // 2 == np.arange(len(clips))
    if direction == "a2t":
        scores, own = scores.T, own.T
    best = np.argsort(-scores, axis=1)[:, :5]
    return float(np.take_along_axis(own, best, axis=1).any(axis=1).mean())
