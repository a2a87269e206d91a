"""Data, checkpoints, run folder and report on S3, against a server of the test's own on the loopback address."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import s3fs
import torch
from moto.server import ThreadedMotoServer

from ray_atr.common.storage import StorageError, entries_in
from ray_atr.common.transfer import on_this_node
from ray_atr.evaluation.options import Encoding, EvaluationOptions
from ray_atr.evaluation.report import write_report
from ray_atr.evaluation.run import evaluate
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.training.checkpoint import load_checkpoint
from ray_atr.training.inputs import Prepared, prepare
from ray_atr.training.loop import train_trial
from ray_atr.training.run_folder import LAST, RunFolder
from ray_atr.training.trajectory import OtherRun
from tests.support.stopped import killed_after
from tests.support.tiny import MEASURED, make_data, tiny


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedMotoServer]:
    """An S3 with one empty bucket, `bucket`, to which the environment's credentials and address lead."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("bucket")
    yield server
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def weights_of_a_run_that_never_stopped(experiment: Any, prepared: Prepared, folder: Path) -> dict[str, torch.Tensor]:
    train_trial(experiment, prepared, folder, lambda metrics: None, use_ray_data=False)
    return load_checkpoint(folder / LAST)["model"]


@pytest.mark.slow
def test_a_trial_killed_on_one_node_goes_on_from_s3_on_another(s3: ThreadedMotoServer, tmp_path: Path) -> None:
    make_data("s3://bucket/data/tones")
    experiment = tiny("s3://bucket/data/tones", train__keep_trajectory=True, **MEASURED)
    prepared = prepare(experiment, tmp_path, use_ray=False, echo=lambda message: None)
    assert (prepared.data, prepared.features.parent) == (
        "s3://bucket/data/tones",
        tmp_path / "data" / "cache" / "features",
    )
    expected = weights_of_a_run_that_never_stopped(experiment, prepared, tmp_path / "whole")

    run = RunFolder.create("s3://bucket/runs/x", experiment, {"name": "test", "varied": ["seed"], "seeds": [0]})
    trial = run.add_trial({"seed": 0})
    # An epoch has three steps.
    with killed_after(3), on_this_node(trial.folder) as (folder, sync):
        train_trial(experiment, prepared, folder, lambda metrics: None, use_ray_data=False, sync=sync)
    assert not folder.exists()

    reported: list[dict[str, Any]] = []
    with on_this_node(trial.folder) as (folder, sync):
        train_trial(experiment, prepared, folder, reported.append, use_ray_data=False, sync=sync)
        found = load_checkpoint(folder / LAST)["model"]
    assert [metrics["epoch"] for metrics in reported] == [1, 2, 2]
    assert all(torch.equal(expected[name], found[name]) for name in expected)

    for metrics in reported[:-1]:
        trial.add_epoch(metrics)
    trial.finish(reported[-1])
    names = {path.name for path in entries_in(trial.folder)}
    assert names == {"best", "checkpoint.json", "metrics.jsonl", "objects", "result.json", "test", "trial.json"}
    assert set(json.loads((trial.folder / "checkpoint.json").read_text())["files"]) >= {"last/state.pt"}
    assert Retriever.from_pretrained(str(trial.folder / "best")).settings == experiment.model
    fresh = build_retriever(experiment.model, tokenizer=prepared.load_tokenizer(), seed=0)
    steps = int(reported[-2]["step"])
    weights = OtherRun(str(trial.folder), fresh, steps // experiment.train.epochs).weights_after(steps)
    assert weights is not None
    assert all(torch.equal(expected[name], weights[name]) for name in expected)
    paths = write_report("s3://bucket/runs/x", figures=False)
    assert str(paths.page) == "s3://bucket/runs/x/report/report.html"
    assert "1 of 1 trials finished" in paths.page.read_text()

    evaluated = evaluate(
        ["s3://bucket/runs/x"],
        EvaluationOptions(draws=20, mlflow=False, figures=False, trec=True),
        encoding=Encoding(ray="never"),
        out="s3://bucket/evaluations/x",
        echo=lambda message: None,
    )
    assert str(evaluated.folder / "evaluation.html") == "s3://bucket/evaluations/x/evaluation.html"
    assert (evaluated.folder / "run-fra.trec").is_file()
    ours = json.loads((evaluated.folder / "evaluation.json").read_text())["metrics"]
    assert ours["text_to_audio/fra/recall_at_10"] == pytest.approx(reported[-1]["test/text_to_audio/fra/recall_at_10"])
    again = evaluate(
        [str(trial.folder)],
        EvaluationOptions(draws=20, mlflow=False, figures=False),
        baseline=["s3://bucket/evaluations/x"],
        encoding=Encoding(ray="never"),
        out=tmp_path / "again",
        echo=lambda message: None,
    )
    assert {difference.value for difference in again.page.comparison.values()} == {0.0}

    s3.stop()
    # One that has answered would be asked again for minutes.
    with pytest.raises(StorageError, match=r"s3://other/runs/x/sweep\.json: the storage cannot be used"):
        RunFolder.open("s3://other/runs/x")
