"""A key typed on a command line or in a URL stands in no file, tag, parameter, note, page or message."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from upath import UPath

from ray_atr.cli.commands import run_command
from ray_atr.cli.parse import run_script
from ray_atr.common.locations import StorageError, storage_errors
from ray_atr.common.override import override
from ray_atr.common.redaction import redact, redact_command, redact_values
from ray_atr.evaluation.report import write_report
from ray_atr.sweep.tracking import Store, mlflow_command, upload
from ray_atr.training.experiment import Experiment
from ray_atr.training.ray_train import write_error
from ray_atr.training.run_folder import RunFolder
from tests.support.every_setting import every_setting
from tests.support.fake_runs import write_run

SECRET = "hunter2"

HIDDEN = (
    (f"https://ada:{SECRET}@host/x", "https://***@host/x"),
    (f"s3://KEY:{SECRET}/more@bucket/x", "s3://***@bucket/x"),
    (f"https://{SECRET}@host", "https://***@host"),
    (f"https://h/x?X-Amz-Signature={SECRET}&part=1", "https://h/x?X-Amz-Signature=***&part=1"),
    (f"https://h/?a=1&access_token={SECRET}", "https://h/?a=1&access_token=***"),
    (f"run --api-key {SECRET} --seed 1", "run --api-key *** --seed 1"),
    (f"--hub.token={SECRET}", "--hub.token=***"),
    (f"--db_password '{SECRET} {SECRET}'", "--db_password ***"),
)
SHOWN = (
    "s3://bucket/ada@host/x", "http://127.0.0.1:5000/a@b", "--model.text.tokenizer bert --seed 1",
    "sqlite:////runs/it's/mlflow.db", "https://host/x?page=2", "--keyboard x", "a@b.c",
    "--max-new-tokens 64",
)  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), HIDDEN)
def test_a_secret_is_hidden_and_the_rest_stays(text: str, expected: str) -> None:
    assert redact(text) == expected
    assert redact(expected) == expected
    assert redact_values({"deep": [{"x": text}]}) == {"deep": [{"x": expected}]}


@pytest.mark.parametrize("text", SHOWN)
def test_what_is_no_secret_is_shown(text: str) -> None:
    assert redact(text) == text


def test_no_setting_is_taken_for_a_secret() -> None:
    for _, one in every_setting(Experiment()):
        words = ["ray-atr", "train", f"--{one.path}", "8"]
        assert redact_command(words) == redact(" ".join(words)) == " ".join(words)


def test_a_command_is_shown_without_its_secrets() -> None:
    words = [
        "train.py",
        "--api-key",
        f"{SECRET} {SECRET}",
        f"--hub_token={SECRET}",
        "--out",
        "a b",
        f"s3://k:{SECRET}@b",
    ]
    assert redact_command(words) == "train.py --api-key *** '--hub_token=***' --out 'a b' 's3://***@b'"


def test_a_setting_that_holds_a_secret_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    experiment = override(Experiment(), {"data.source": f"s3://k:{SECRET}@bucket/data"})
    with pytest.raises(ValueError, match=r"data.source: got 's3://\*\*\*@bucket/data'; allowed a URL without") as error:
        RunFolder.create(tmp_path / "run", experiment, {})
    assert SECRET not in str(error.value)
    run = RunFolder.create(tmp_path / "run", Experiment(), {})
    with pytest.raises(ValueError, match=r"data.source: got"):
        run.add_trial({"data.source": f"https://h/?key={SECRET}"})
    assert not any(SECRET.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_key_in_the_address_of_the_data_is_refused_before_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_command(["train", "--data.source", f"s3://k:{SECRET}@bucket/data"])
    error = capsys.readouterr().err
    assert "data.source: got 's3://***@bucket/data'; allowed a URL without" in error
    assert SECRET not in error


@pytest.mark.parametrize(
    "command",
    [
        "prepare join --sets {} data/other --out joined",
        "prepare check {}",
        "index build --checkpoint run --audio {} --out archive.index",
        "index query {} rain",
        "evaluate --checkpoint {}",
        "audit {} --out page",
    ],
)
def test_a_key_in_any_address_is_refused(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is written would hold it: the manifest of a joined set, an index, a page."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        run_command([word.format(f"s3://k:{SECRET}@bucket/data") for word in command.split()])
    error = capsys.readouterr().err
    assert "s3://***@bucket/data" in error
    assert "a URL without a user, password or key" in error
    assert SECRET not in error


def test_an_error_of_a_store_that_quotes_its_key_is_not_repeated() -> None:
    place = UPath(f"s3://k:{SECRET}@bucket/x")
    said = r"s3://\*\*\*@bucket/x: .* \(ConnectionError\)"
    with pytest.raises(StorageError, match=said) as error, storage_errors(place):
        raise ConnectionError(f"invalid bucket name k:{SECRET}@bucket")
    assert SECRET not in str(error.value)


@pytest.mark.slow
def test_no_key_of_the_command_is_in_the_run_folder_the_page_or_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "ada's run", {"objective": ["m_ltm"]})
    run = RunFolder(folder)
    # As a hand may have put it there.
    text = (folder / "sweep.json").read_text()
    (folder / "sweep.json").write_text(
        text.replace('"pipelines/', f'"--api-key {SECRET} https://a:{SECRET}@h pipelines/')
    )
    assert SECRET in (folder / "sweep.json").read_text()
    page = write_report(folder, figures=False).page
    assert SECRET not in page.read_text()
    store = Store(uri=f"sqlite:///{tmp_path}/mlflow.db", artifacts=tmp_path / "artifacts")
    upload(folder, store=store)
    held = [path for path in (tmp_path / "mlflow.db", *(tmp_path / "artifacts").rglob("*")) if path.is_file()]
    assert len(held) > 3
    assert not [path for path in held if SECRET.encode() in path.read_bytes()]
    run.update_info(name="again")
    assert SECRET not in (folder / "sweep.json").read_text()
    for name in ("sweep.json", "experiment.json"):
        new = RunFolder.create(tmp_path / name, Experiment(), {"command": f"x --api-key {SECRET}"})
        assert SECRET not in (new.path / name).read_text()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"https://ada:{SECRET}@mlflow.host")
    assert mlflow_command(folder) == "python -m webbrowser https://***@mlflow.host"

    def fail() -> None:
        raise ConnectionError(f"https://ada:{SECRET}@host: refused " + 1000 * "x")

    with pytest.raises(SystemExit):
        run_script(fail)
    error = capsys.readouterr().err
    assert SECRET not in error
    assert len(error) < 560


def test_what_a_trial_says_of_its_end_is_private(tmp_path: Path) -> None:
    write_error(tmp_path, f"https://ada:{SECRET}@host refused")
    (file,) = tmp_path.iterdir()
    assert file.read_text() == "https://***@host refused\n"
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_run_can_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    """Others evaluate it and report on it. None of its settings has a key."""
    previous = os.umask(0o027)
    try:
        run = RunFolder.create(tmp_path / "run", Experiment(), {"command": "ray-atr train"})
        run.add_trial({"train.seed": 1})
    finally:
        os.umask(previous)
    modes = {path.name: path.stat().st_mode & 0o777 for path in run.path.rglob("*.json")}
    assert modes == dict.fromkeys(("experiment.json", "sweep.json", "trial.json"), 0o640)
