"""The wheel in an environment of nothing but itself and what it needs: no clone, no git, no compiler."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
IS_REQUIRED = bool(os.environ.get("RAY_ATR_WHEEL_REQUIRED"))
"""Set by `.ci/run wheel`, which needs a package index."""
PYTHON = os.environ.get("RAY_ATR_WHEEL_PYTHON", sys.executable)
"""What the environment is made with. `.ci/versions` sets another, and by UV_RESOLUTION other versions of the libraries."""
SMALL = [
    *("--data.soundscapes.num_train", "16", "--data.soundscapes.num_val", "8", "--data.soundscapes.num_test", "8"),
    *("--train.batch_size", "8", "--train.epochs", "1"),
]
BASE = ["--objective", "ask", "--objective.knowledge.neighbours", "2", "--objective.knowledge.prototypes", "4"]
IMPORT = """
import resource
before = resource.getrusage(resource.RUSAGE_SELF)
import ray_atr
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
"""
RECORDINGS = """
import pathlib
import numpy as np
import soundfile

folder = pathlib.Path("recordings")
folder.mkdir()
rows = ["file,text,split"]
for index in range(48):
    hertz = 200 + 30 * index
    time = np.arange(8000) / 16_000
    soundfile.write(folder / f"{index}.flac", np.sin(2 * np.pi * hertz * time), 16_000)
    rows.append(f"{index}.flac,a tone of {hertz} hertz,{'train' if index < 40 else 'val'}")
(folder / "table.csv").write_text("\\n".join(rows))
for name in ("rain.wav", "dog.flac"):
    soundfile.write(name, np.sin(np.arange(16_000) / 9), 16_000)
"""
"""A folder of tones with a table, and the two files that README encodes."""
README = """
import torch

a, t, m = torch.randn(4, 8, requires_grad=True), torch.randn(4, 2, 8), torch.ones(8)
{objective}
assert a.grad.abs().sum() > 0
{retriever}
assert retriever.similarity(text, audio).shape == (1, 2)
"""
"""Both of README's snippets of Python."""

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not IS_REQUIRED, reason="installs 5 GB into a new environment: bash .ci/run wheel"),
]


def run(command: list[str | Path], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]


def made(command: list[str | Path], what: str) -> None:
    done = run(command, cwd=ROOT, timeout=800)
    assert done.returncode == 0, f"{what}: {done.stderr[-3000:]}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    made(["uv", "build", "--wheel", "-q", "--out-dir", folder], "the wheel cannot be built here")
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def bare(wheel: Path) -> Iterator[Path]:
    """A virtual environment with the wheel, inside somebody's own repository.

    On the disk of uv's cache, whose files it shares there: in pytest's folder, which is in memory, its 6 GB are memory that the
    tests after it lack, and pytest keeps the folders of three runs.
    """
    with tempfile.TemporaryDirectory(prefix="somebody", dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
        home = Path(folder)
        run(["git", "init", "-q", home])
        made(["uv", "venv", "-q", "--python", PYTHON, home / "venv"], "an environment cannot be made here")
        made(
            ["uv", "pip", "install", "-q", "--python", home / "venv", wheel],
            "what the wheel needs cannot be installed here",
        )
        yield home


def by_user(bare: Path, *words: str) -> str:
    """What a command of the environment prints, with nothing else to be called than a shell."""
    tools = bare / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("bash", "sh"):
        if not (tools / name).exists():
            (tools / name).symlink_to(f"/bin/{name}")
    programs = bare / "venv" / "bin"
    environment = {"PATH": f"{programs}:{tools}", "HOME": str(bare), "OMP_NUM_THREADS": "1"}
    done = run([programs / words[0], *words[1:]], cwd=bare, env=environment, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    # Libraries have a last word if the interpreter is ended in an unusual way (nanobind: leaked 513 functions).
    assert "leaked" not in done.stderr
    return done.stdout


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"ray_atr/py.typed", "ray_atr/cli/commands.py"} <= set(names)
    assert any(name.startswith("ray_atr/evaluation/report/templates/") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"ray_atr"}
    assert wheel.stat().st_size < 3_000_000


def test_what_is_installed_fits_together_and_is_imported_at_once(bare: Path) -> None:
    done = run(["uv", "pip", "check", "--python", bare / "venv"])
    assert done.returncode == 0, done.stderr
    by_user(bare, "python", "-c", "import ray_atr")
    # Seconds of computing, which is what a quiet machine waits.
    assert float(by_user(bare, "python", "-c", IMPORT)) < 0.3


def test_an_epoch_with_a_base_is_trained_evaluated_and_reported(bare: Path) -> None:
    said = by_user(bare, "ray-atr", "train", "--ray", "never", "--out", "runs/ask", *SMALL, *BASE)
    assert "1 trial finished, 0 failed" in said
    assert "compare:     mlflow ui --backend-store-uri" in said
    assert "uv run" not in said
    code = json.loads((bare / "runs" / "ask" / "sweep.json").read_text())["code"]
    assert code["git_commit"] == "unknown"
    assert code["faiss-cpu"] != "absent"
    assert len(code["code_digest"]) == 16
    page = (bare / "runs" / "ask" / "report" / "report.html").read_text()
    assert f"files {code['code_digest']}" in page
    assert "pipelines/" not in page
    assert "evaluation.html" in by_user(bare, "ray-atr", "evaluate", "--checkpoint", "runs/ask", "--ray", "never")
    assert "to load it in Python" in by_user(bare, "ray-atr", "report", "runs/ask", "--register", "first")


def test_recordings_are_prepared_checked_and_audited_with_what_was_trained(bare: Path) -> None:
    by_user(bare, "python", "-c", RECORDINGS)
    table = ["--path-column", "file", "--caption-column", "text", "--language", "eng"]
    by_user(bare, "ray-atr", "prepare", "folder", "--source", "recordings", *table, "--out", "data/tones")
    assert "eng" in by_user(bare, "ray-atr", "prepare", "check", "data/tones")
    few = ["--cross-fit.mispairs", "2000", "--ray", "never"]
    by_user(bare, "ray-atr", "audit", "data/tones", "--checkpoint", "runs/ask", *few, "--out", "audits/tones")
    assert "a tone of 200 hertz" in (bare / "audits" / "tones" / "pairs.csv").read_text()


def test_the_snippets_of_readme_run(bare: Path) -> None:
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert [name for text in snippets for name in re.findall(r"^from ray_atr import (\w+)", text)] == [
        "objectives",
        "Retriever",
    ]
    objective, retriever = snippets
    (best,) = (bare / "runs" / "ask").glob("trials/*/best")
    by_user(
        bare,
        "python",
        "-c",
        README.format(objective=objective, retriever=retriever.replace("runs/.../best", str(best))),
    )


def test_the_notebook_trains_modules_of_ones_own(bare: Path) -> None:
    cells = json.loads((ROOT / "docs" / "own.ipynb").read_text())["cells"]
    (bare / "own.py").write_text("\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"))
    said = by_user(bare, "python", "own.py")
    assert "epochs is" in said
    assert "text_to_audio/eng/recall_at_1" in said


def test_a_sweep_of_noise_runs_on_ray(bare: Path) -> None:
    points = ["--objectives", "kcl", "--noise", "0", "0.4", "--seeds", "0", "--recipe", "from_scratch"]
    said = by_user(bare, "ray-atr", "sweep", "noise", "--out", "runs/two", *points, *SMALL)
    assert "2 trials finished, 0 failed" in said
