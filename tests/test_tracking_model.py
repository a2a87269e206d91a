"""A trial's retriever as an MLflow model: what is loaded from MLflow embeds exactly as what was trained."""

from __future__ import annotations

import ast
import base64
import contextlib
import importlib.metadata
import io
import json
import os
import re
import shutil
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import soundfile
from starlette.testclient import TestClient

import ray_atr
from ray_atr.cli.report import ReportCommand, report_script
from ray_atr.models.adaptation import Adaptation
from ray_atr.models.ced import Ced
from ray_atr.models.mlflow_model import PACKAGES, requirements_of
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.models.text import train_tokenizer
from ray_atr.sweep.tracking import store_of
from ray_atr.sweep.tracking.model import best_trial, register_model
from ray_atr.training.run_folder import RunFolder
from tests.support.commands import replace_work
from tests.support.fake_runs import write_run

TEXTS = ["A dog barks.", "Rain falls on a roof.", "Una campana suena."]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A sweep of two trials with an untrained retriever saved in each, and the store it is registered in."""
    folder = write_run(tmp_path_factory.mktemp("runs") / "run", {"objective": ["contrastive", "m_ltm"]})
    tokenizer = train_tokenizer(TEXTS * 20, 300)
    for seed, trial in enumerate(sorted((folder / "trials").iterdir())):
        build_retriever(ModelSettings(), tokenizer=tokenizer, seed=seed).save_pretrained(trial / "best")
    return folder


def test_the_best_trial_is_that_of_the_best_validation(run):
    assert best_trial(RunFolder.open(run)).describe()["name"] == "m_ltm"


@pytest.mark.parametrize("address", ["", "https://me:hush@mlflow.host"])
def test_the_lines_that_register_prints_load_the_model(run, address, monkeypatch, capsys):
    """In a Python that knows nothing of the run; a password is not printed, and is in the environment already."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    replace_work(monkeypatch, {"sweep.tracking.model.register_model": lambda folder, name: "models:/m-1"})
    report_script(ReportCommand((str(run),), figures=False, register="mine"))
    said = capsys.readouterr().out
    assert "hush" not in said
    opened: list[str] = []
    pyfunc = SimpleNamespace(load_model=opened.append)
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(set_tracking_uri=opened.append, pyfunc=pyfunc))
    monkeypatch.setitem(sys.modules, "mlflow.pyfunc", pyfunc)
    exec(said.partition("to load it in Python:\n")[2], {})  # the lines that were just printed
    assert opened == [*([] if address else [f"sqlite:///{run.parent / 'mlflow.db'}"]), "models:/m-1"]


@pytest.mark.slow
def test_a_registered_model_embeds_as_the_trained_one(run, monkeypatch):
    import mlflow
    from mlflow.pyfunc.scoring_server import infer_and_parse_data, init

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    uri = register_model(run, name="retriever-of-tests")
    # MLflow writes it there, and the next run folder may have another store.
    assert "MLFLOW_TRACKING_URI" not in os.environ
    waveform = (0.1 * np.sin(np.arange(32000) * 0.07)).astype(np.float32)
    file = io.BytesIO()
    soundfile.write(file, waveform, 32000, format="WAV")
    rows = pd.DataFrame(
        {
            "text": [*TEXTS, None],
            "language": ["eng", None, "spa", None],
            "audio": [None, None, None, file.getvalue()],
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files = {
            path.name for path in Path(mlflow.artifacts.download_artifacts("models:/retriever-of-tests/1")).rglob("*")
        }
        assert "mlflow_code.py" in files
        assert not [name for name in files if name.endswith((".pkl", ".pickle"))]
        loaded = mlflow.pyfunc.load_model("models:/retriever-of-tests/1")
        found = loaded.predict(rows)
    original = Retriever.from_pretrained(best_trial(RunFolder.open(run)).folder / "best")
    np.testing.assert_allclose(found[:3], original.encode_text(TEXTS, ["eng", "eng", "spa"]).numpy(), atol=1e-6)
    np.testing.assert_allclose(found[3:], original.encode_audio([file.getvalue()]).numpy(), atol=1e-6)
    assert loaded.metadata.signature.outputs.inputs[0].shape == (-1, found.shape[1])
    # As `mlflow models serve` reads it, in which a cell without bytes is an empty text.
    cells = [[text, language or "", ""] for text, language in zip(TEXTS, ["eng", None, "spa"], strict=True)]
    cells.append(["", "", base64.b64encode(file.getvalue()).decode()])
    request = {"dataframe_split": {"columns": list(rows), "data": cells}}
    served = loaded.predict(infer_and_parse_data(request, loaded.metadata.get_input_schema()))
    np.testing.assert_array_equal(served, found)
    assert uri.startswith("models:/")
    with TestClient(init(loaded)) as server:
        refused = server.post("/invocations", json={"dataframe_records": [{"text": TEXTS[0]}, {"text": None}]})
    assert refused.status_code == 400
    assert "stack_trace" not in refused.json()
    assert "row 1: got 'neither text nor audio'; allowed one of them" in refused.json()["message"]
    client = store_of(run).connect()
    version = client.get_model_version("retriever-of-tests", "1")
    info = client.get_run(version.run_id).info
    assert (info.run_name, info.status) == ("m_ltm", "FINISHED")
    # MLflow shows how long it trained, and not until when it was registered.
    assert info.end_time == int(1000 * best_trial(RunFolder.open(run)).epochs()[-1]["time"])
    assert json.loads((run / "tracking.json").read_text())["sweep_id"]


@pytest.mark.slow
def test_a_registration_that_fails_is_no_failure_of_the_training(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = Path(shutil.copytree(run, tmp_path / "run"))
    (best_trial(RunFolder.open(run)).folder / "best" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        register_model(run)
    client, trial = store_of(run).connect(), best_trial(RunFolder.open(run))
    experiments = [one.experiment_id for one in client.search_experiments()]
    (found,) = [one for one in client.search_runs(experiments) if one.info.run_name == "m_ltm"]
    ended = int(1000 * trial.epochs()[-1]["time"])
    assert (found.info.status, found.info.end_time) == ("FINISHED", ended)


@pytest.mark.slow
def test_a_model_names_every_package_that_its_code_imports() -> None:
    """In an environment of these packages and MLflow alone it would else end with a ModuleNotFoundError."""
    named = with_requirements([*PACKAGES, "mlflow"])
    of_modules = importlib.metadata.packages_distributions()
    imported = {package for name in imported_by("ray_atr.models.mlflow_code") for package in of_modules.get(name, ())}
    assert imported
    assert {canonical(package) for package in imported} <= named
    adapted = ModelSettings(audio=Ced(adapt=Adaptation(lora_rank=2)))
    more = {line.partition("==")[0] for line in requirements_of(adapted)} - {*PACKAGES}
    assert more == {"peft"}


def test_a_model_names_versions_that_the_package_index_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.9.0+cpu")
    assert {line.partition("==")[2] for line in requirements_of(ModelSettings())} == {"2.9.0"}


def imported_by(module: str) -> set[str]:
    """The packages that a module of ours imports when it is imported itself, directly or through others."""
    found, waiting, seen = set[str](), [module], set[str]()
    while waiting:
        name = waiting.pop()
        file = Path(ray_atr.__file__).parents[1] / name.replace(".", "/")
        file = file.with_suffix(".py") if file.with_suffix(".py").is_file() else file / "__init__.py"
        if not name.startswith("ray_atr"):
            found.add(name.partition(".")[0])
        elif file.is_file() and name not in seen:
            seen.add(name)
            waiting.append(name.rpartition(".")[0] or name)
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.Import):
                    waiting += [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.module:
                    waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def with_requirements(packages: list[str]) -> set[str]:
    """The packages, and what these need, by their normalised names."""
    found, waiting = set[str](), list(packages)
    while waiting:
        name = canonical(waiting.pop())
        if name not in found:
            found.add(name)
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                needed = importlib.metadata.requires(name) or []
                waiting += [re.split(r"[^\w.-]", line)[0] for line in needed if "extra ==" not in line]
    return found


def canonical(package: str) -> str:
    return re.sub("[-_.]+", "-", package).lower()
