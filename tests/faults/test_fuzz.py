"""Whatever bytes or values come from outside: understood, or refused by a ValueError of one short message; nothing else.

Each surface takes 60 cases here, and 40 if they are slow; as many as it says takes
`RAY_ATR_FUZZ=100000 uv run pytest -p no:timeout tests/faults/test_fuzz.py`.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ray_atr.cli.parse import settings_from
from ray_atr.common.override import flatten, override
from ray_atr.common.redaction import redact
from ray_atr.common.storage import read_appended, read_json, safe_name, write_json
from ray_atr.data import vector_clip
from ray_atr.data.shards import read_manifest
from ray_atr.data.vector_clip import array_bytes, from_bytes
from ray_atr.training.checkpoint import load_checkpoint, save_checkpoint
from ray_atr.training.experiment import Experiment, load_experiment
from ray_atr.training.run_folder import RunFolder, TrialFolder
from tests.support.tiny import make_data


def taking(cases: int) -> settings:
    return settings(
        max_examples=int(os.environ.get("RAY_ATR_FUZZ", cases)),
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )


cases, slow_cases = taking(60), taking(40)
"""The slow ones take 4 ms each. A weekly run takes thousands."""
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
changes = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4)


def refused_or_read(read: Callable[[], Any]) -> Any:
    problem = None
    try:
        return read()
    except ValueError as error:
        problem = str(error)
    assert len(problem) < 1000, problem
    return None


def changed(content: bytes, where: list[tuple[float, int]], cut: float) -> bytes:
    """Some bytes replaced, and the end cut off."""
    result = bytearray(content)
    for place, byte in where:
        result[int(place * len(result))] = byte
    return bytes(result[: max(1, int(cut * len(result)))])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@slow_cases
@given(content=st.binary(max_size=200) | anything.map(lambda value: json.dumps(value).encode()))
def test_records(folder: Path, content: bytes) -> None:
    (folder / "record").write_bytes(content)
    for read in (read_json, read_appended, load_experiment):
        refused_or_read(partial(read, folder / "record"))


@slow_cases
@given(where=changes, cut=st.floats(0.5, 1))
def test_a_changed_record_is_never_read_as_another(folder: Path, where: list[tuple[float, int]], cut: float) -> None:
    write_json(folder / "sealed.json", {"recall": 0.25, "name": "m_ltm", "deep": [1, {"x": None}]})
    expected = read_json(folder / "sealed.json")
    content = (folder / "sealed.json").read_bytes()
    (folder / "sealed.json").write_bytes(changed(content, where, cut))
    assert refused_or_read(lambda: read_json(folder / "sealed.json")) in (None, expected)


@slow_cases
@given(where=changes, cut=st.sampled_from([1.0, 1.0, 0.999, 0.7]))
def test_a_changed_checkpoint_is_never_read_as_another(
    folder: Path, where: list[tuple[float, int]], cut: float
) -> None:
    save_checkpoint(folder, {"weights": torch.arange(20.0), "epoch": 3})
    content = (folder / "state.pt").read_bytes()
    (folder / "state.pt").write_bytes(changed(content, where, cut))
    found = refused_or_read(lambda: load_checkpoint(folder))
    assert found is None or found["weights"].equal(torch.arange(20.0))


HEADER = "{{'descr': '<f4', 'fortran_order': False, 'shape': ({},)}}"


@cases
@given(
    where=changes,
    cut=st.floats(0.1, 1),
    header=st.none() | st.text(max_size=30) | st.integers().map(HEADER.format),
)
def test_numpy_files(where: list[tuple[float, int]], cut: float, header: str | None) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(6, dtype=np.float32))
    content = buffer.getvalue()
    if header is not None:
        written = header.encode()
        content = content[:8] + len(written).to_bytes(2, "little") + written + content[128:]
    for data in (content, changed(content, where, cut)):
        found = refused_or_read(partial(from_bytes, data, 6, "clip 1"))
        assert found is None or found.shape == (6,)


def test_a_vector_as_we_write_it_is_read_without_parsing_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    vector = np.arange(6, dtype=np.float32)
    monkeypatch.setattr(vector_clip, "read_array", None)
    np.testing.assert_array_equal(from_bytes(array_bytes(vector), 6, "clip 1"), vector)
    with pytest.raises(TypeError):
        from_bytes(array_bytes(vector.astype(np.float16)), 6, "clip 1")


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    return make_data(folder / "tones", num_train=2, num_val=1, num_test=1)


def test_a_numpy_header_with_keys_of_two_types_is_refused() -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(6, dtype=np.float32))
    assert (
        refused_or_read(partial(from_bytes, buffer.getvalue().replace(b" 'shape'", b"b'shape'"), 6, "clip 1")) is None
    )


@slow_cases
@given(
    path=st.sampled_from(["name", "shards.split", "shards.file", "shards.captions", "skipped", "hash"]), value=anything
)
def test_manifests(data: Path, path: str, value: Any) -> None:
    whole = (data / "manifest.json").read_bytes()
    content = json.loads(whole)
    part, _, inner = path.rpartition(".")
    (content[part][0] if part else content)[inner] = value
    (data / "manifest.json").write_text(json.dumps(content))
    found = refused_or_read(lambda: read_manifest(data))
    (data / "manifest.json").write_bytes(whole)
    if found is not None:
        assert all((data / shard.file).parent == data for shard in found.shards)


@cases
@given(words=st.lists(st.text(max_size=15) | st.sampled_from(["--seed", "--train.epochs", "9" * 400]), max_size=4))
def test_command_lines(words: list[str]) -> None:
    refused_or_read(lambda: override(Experiment(), settings_from(words)))


PATHS = sorted(flatten(Experiment()))


@slow_cases
@given(
    path=st.sampled_from(PATHS) | st.text(max_size=12), value=anything | st.just(int("9" * 4000)) | st.just("9" * 5000)
)
def test_settings_from_a_file(path: str, value: Any) -> None:
    refused_or_read(lambda: override(Experiment(), {path: value}))


@slow_cases
@given(
    kind=st.sampled_from(["trial", "sweep", "experiment"]),
    part=st.sampled_from(["overrides", "status", "name", "format", "data", "space", "command", "seed", "objective"]),
    value=anything,
    is_whole=st.booleans(),
)
def test_what_a_run_folder_says(folder: Path, kind: str, part: str, value: Any, is_whole: bool) -> None:
    if not (folder / "run").exists():
        RunFolder.create(folder / "run", Experiment(), {"name": "test"}).add_trial({"seed": 1})
    run = RunFolder(folder / "run")
    (trial,) = (TrialFolder(path) for path in (run.path / "trials").iterdir())
    file, read = {
        "trial": (trial.folder / "trial.json", lambda: run.settings_of(trial.describe()["overrides"])),
        "sweep": (run.path / "sweep.json", lambda: run.info),
        "experiment": (run.path / "experiment.json", lambda: run.settings_of({"seed": 2})),
    }[kind]
    whole = file.read_bytes()
    content = json.loads(whole)
    content.pop("digest")
    file.write_text(json.dumps({**content, part: value} if is_whole else value))
    refused_or_read(read)
    file.write_bytes(whole)


@cases
@given(name=st.text(max_size=12) | st.sampled_from(["..", ".", "a/b", "/etc", "a\\b", "\0", "x" * 300]) | anything)
def test_a_name_stays_in_its_folder(tmp_path_factory: pytest.TempPathFactory, name: Any) -> None:
    found = refused_or_read(lambda: safe_name(name, "name"))
    if found is not None:
        root = Path("/somewhere")
        assert Path(os.path.normpath(root / found)).parent == root


@cases
@given(text=st.text(max_size=60), secret=st.text("abcdefghij0123456789", min_size=8, max_size=20))
def test_no_secret_survives_in_any_text(text: str, secret: str) -> None:
    for written in (
        f"https://user:{secret}@host/",
        f"https://h/?token={secret}",
        f" --api-key {secret} ",
        f" --x.password={secret} ",
    ):
        shown = redact(f"{text} {written} {text}")
        assert f"user:{secret}" not in shown
        assert f"={secret}" not in shown
        assert f"key {secret}" not in shown
        assert redact(shown) == shown
