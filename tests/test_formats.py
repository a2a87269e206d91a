"""Each thing that is written names its format, and one of another format is refused by whoever reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ray_atr.common.formats import FORMATS
from ray_atr.common.storage import read_json, write_json
from ray_atr.data.shards import read_manifest
from ray_atr.models.weights import read_settings, write_settings
from ray_atr.objectives.knowledge.knowledge import SnapshotSettings
from ray_atr.training.checkpoint import STATE_FILE, resume, save_checkpoint
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.knowledge_base.building import build
from ray_atr.training.knowledge_base.snapshot import Entries, load, save
from ray_atr.training.run_folder import LAST, RunFolder
from tests.support.tiny import make_data

READERS: dict[str, list[str]] = {
    "run": ["sweep.json", "trial.json"],
    "data set": ["manifest.json"],
    "knowledge base": ["manifest.json"],
    "retriever": ["retriever.json"],
    "checkpoint": [STATE_FILE],
}


def run_folder(folder: Path, file: str) -> tuple[Path, Callable[[], object]]:
    run = RunFolder.create(folder / "run", Experiment(), {"name": "train"})
    trial = run.add_trial({"seed": 1})
    if file == "sweep.json":
        return folder / "run" / file, lambda: run.info
    return Path(str(trial.folder)) / file, trial.describe


def data_set(folder: Path, file: str) -> tuple[Path, Callable[[], object]]:
    make_data(folder / "tones", num_train=2, num_val=1, num_test=1)
    return folder / "tones" / file, lambda: read_manifest(folder / "tones")


def knowledge_base(folder: Path, file: str) -> tuple[Path, Callable[[], object]]:
    rows = np.eye(4, 3, dtype=np.float32) + 1
    save(build(Entries(rows, rows, list("abcd")), SnapshotSettings(prototypes=2)), folder / "v1")
    (folder / "v1" / "digests.json").unlink()
    return folder / "v1" / file, lambda: load(folder / "v1")


def retriever(folder: Path, file: str) -> tuple[Path, Callable[[], object]]:
    write_settings(folder, {"interaction": "global"})
    return folder / file, lambda: read_settings(folder)


MAKERS = {"run": run_folder, "data set": data_set, "knowledge base": knowledge_base, "retriever": retriever}


@pytest.mark.parametrize(("what", "file"), [(what, file) for what in MAKERS for file in READERS[what]])
@pytest.mark.parametrize("number", [None, "next"])
def test_another_format_is_refused_in_one_line(tmp_path: Path, what: str, file: str, number: str | None) -> None:
    path, read = MAKERS[what](tmp_path, file)
    read()
    content = read_json(path)
    assert content["format"] == FORMATS[what]
    other = None if number is None else FORMATS[what] + 1
    if other is None:
        del content["format"]
    else:
        content["format"] = other
    if what == "run":
        write_json(path, content)
    else:
        path.write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=rf"{file}: format: got {other}; allowed {FORMATS[what]}, the format of a {what}"
    ):
        read()


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    data = SimpleNamespace(experiment=Experiment(), group=WorkerGroup(), input_digests={})
    save_checkpoint(tmp_path / LAST, {"experiment": "{}", "weights": torch.zeros(2)})
    with pytest.raises(ValueError, match=rf"{STATE_FILE}: format: got None; allowed {FORMATS['checkpoint']}"):
        resume(None, data, tmp_path)


def test_each_format_is_tried() -> None:
    assert READERS.keys() == FORMATS.keys()
