"""Two nodes of which the second does not have the first one's folders: what a sweep says before it begins."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.archives import make_tones, save_retriever
from tests.support.own_ray import Head, own_ray, without
from tests.support.tiny import make_data, typed_settings

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    folder = tmp_path_factory.mktemp("folders")
    (folder / "own").mkdir()
    (folder / "shared").mkdir()
    if sys.platform != "linux" or subprocess.run([*without(folder / "own"), "true"], check=False).returncode:
        pytest.skip("this system does not let a user mount")
    with own_ray(folder / "shared", nodes=2, takes_jobs=False, hidden=folder / "own") as head:
        yield head


@pytest.mark.ray
@pytest.mark.parametrize(("data", "runs"), [("shared", "own"), ("own", "shared")])
def test_a_folder_that_another_node_lacks_is_refused_before_anything_is_made(head: Head, data: str, runs: str) -> None:
    root = head.home.parent
    source, out = make_data(root / data / f"tones-{runs}", num_test=0), root / runs / "run"
    done = subprocess.run(
        [sys.executable, "-m", "ray_atr", "train", f"--out={out}", *typed_settings(source, "1")],
        cwd=root, capture_output=True, text=True, timeout=200, check=False,
        env={**head.environment, "RAY_ADDRESS": head.ray_address, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    name, folder = ("run folder (--out, RAY_ATR_HOME)", out) if runs == "own" else ("data.source", source)
    assert f"error: {name}: got '{folder}'" in done.stderr
    assert f"it is missing on {os.uname().nodename}" in done.stderr
    assert not (head.home / "data").exists(), "no features"


@pytest.mark.ray
def test_what_another_node_lacks_is_not_left_out_as_broken(head: Head) -> None:
    """The second node has the folder itself, as where a disk is not mounted, but nothing in it."""
    root = head.home.parent
    own, shared = root / "own", root / "shared"
    make_tones(own)
    sounds = make_tones(shared / "sounds")
    for folder in (own, sounds):
        lines = [f"tone {number}.wav,tone {number}\n" for number in range(4)]
        (folder / "captions.csv").write_text("path,caption\n" + "".join(lines), encoding="utf-8")
    save_retriever(shared / "model")
    save_retriever(own / "model")
    for name, words in {
        "--audio": ["index", "build", "--checkpoint", shared / "model", "--audio", own, "--out", shared / "index"],
        "--checkpoint": ["index", "build", "--checkpoint", own / "model", "--audio", sounds, "--out", shared / "index"],
        "--source": ["prepare", "folder", "--source", own, "--max-unreadable", "1", "--out", shared / "imported"],
        "--out": ["prepare", "folder", "--source", sounds, "--out", own / "imported"],
    }.items():
        done = subprocess.run(
            [sys.executable, "-m", "ray_atr", *map(str, words)],
            cwd=root, capture_output=True, text=True, timeout=200, check=False,
            env={**head.environment, "RAY_ADDRESS": head.ray_address, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 2, done.stdout + done.stderr
        assert f"error: {name}: got '{own}" in done.stderr
        assert f"it is missing on {os.uname().nodename}; --ray never" in done.stderr
