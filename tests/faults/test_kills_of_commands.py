"""A report, an import, an upload to MLflow and an index, killed at any point or on a full disk: run again, they end whole."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ray_atr.data.noise import CaptionAssignment, read_index, write_index
from ray_atr.data.shards import iterate_rows, read_manifest
from ray_atr.evaluation.options import Encoding, EvaluationOptions
from ray_atr.evaluation.report import write_report
from ray_atr.evaluation.run import evaluate
from ray_atr.models.retriever import build_retriever
from ray_atr.models.text import train_tokenizer
from ray_atr.sweep.tracking import Store, upload
from ray_atr.workshop.importing.import_options import Import
from ray_atr.workshop.importing.plan import import_data_set
from ray_atr.workshop.importing.sources.table import TableSource
from tests.support.clips_on_disk import write_tone
from tests.support.crash_points import KILL, every_crash, in_fork, spread
from tests.support.fake_runs import write_run
from tests.support.tiny import make_data, tiny

SPACE = {"objective": ["contrastive"], "data.noise.ratio": [0.0, 0.4]}
FEW = ("eng", "fra")
"""Languages. A report of few takes as many file operations as one of many."""


@pytest.mark.slow
def test_a_report_has_no_half_file(tmp_path: Path) -> None:
    """Figures, which take seconds, are written by the same way as tables and are left out."""
    run = write_run(tmp_path / "run", SPACE, languages=FEW)
    before = shutil.copytree(run, tmp_path / "before")
    write_report(before, figures=False)
    (before / "report" / "mine.txt").write_text("of somebody else")
    write_run(tmp_path / "longer", SPACE, epochs=5, languages=FEW)

    def prepare(folder: Path) -> Callable[[], object]:
        shutil.copytree(before, folder, dirs_exist_ok=True)
        shutil.rmtree(folder / "trials")
        shutil.copytree(tmp_path / "longer" / "trials", folder / "trials")
        return lambda: write_report(folder, figures=False)

    kept = {path.name: path.read_bytes() for path in (before / "report").iterdir()}
    prepare(tmp_path / "after")()
    names = sorted(path.name for path in (tmp_path / "after" / "report").iterdir())
    assert names == ["mine.txt", "report.html", "table.csv", "table.md", "trials.csv"]
    for folder, where in every_crash(prepare, tmp_path / "crashes", most=3):
        report = folder / "report"
        for path in report.iterdir():
            assert path.name in names, where
            if path.read_bytes() != kept[path.name]:
                assert path.suffix != ".html" or path.read_text().rstrip().endswith("</html>"), where
                assert path.suffix != ".csv" or len(pd.read_csv(path)) == 2, where
        write_report(folder, figures=False)
        assert sorted(path.name for path in report.iterdir()) == names, where
        assert [path.name for path in folder.glob(".*")] == [], where


@pytest.mark.slow
def test_an_import_ends_whole(tmp_path: Path) -> None:
    for number in range(4):
        write_tone(tmp_path / "in" / f"{number}.wav", pitch=200 + 10 * number)
    rows = [f"{number}.wav,sound {number},{'val' if number == 3 else 'train'}" for number in range(4)]
    (tmp_path / "in" / "captions.csv").write_text("\n".join(["path,caption,split", *rows]))
    options = Import(clips_per_shard=2, ray="never")

    def act(folder: Path) -> None:
        import_data_set(TableSource(source=str(tmp_path / "in")), folder / "out", options=options)

    def content(folder: Path) -> list[Any]:
        manifest = read_manifest(folder)
        rows = [row for split in ("train", "val") for row in iterate_rows(manifest, split)]
        return [(row["clip_id"], row["audio"], row["captions"]) for row in rows]

    act(tmp_path)
    expected = content(tmp_path / "out")
    assert len(expected) == 4
    for folder, where in every_crash(lambda folder: lambda: act(folder), tmp_path / "crashes", most=10):
        act(folder)
        assert content(folder / "out") == expected, where
        assert [path.name for path in folder.iterdir()] == ["out"], where


def store_in(folder: Path) -> Store:
    return Store(uri=f"sqlite:///{folder}/mlflow.db", artifacts=folder / "mlartifacts")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a database of MLflow that holds nothing. It is opened in forks alone."""
    # Here and not in each fork, which would need a second for it.
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401

    folder = tmp_path_factory.mktemp("database")
    assert in_fork(store_in(folder).connect) == 0
    return folder


CALLS = ("create_run", "log_batch", "update_run", "set_terminated", "log_artifacts", "log_text")


@pytest.mark.slow
def test_an_upload_sends_each_thing_once(tmp_path: Path, database: Path) -> None:
    """Killed before each of its calls that write: MLflow then has the trials, epochs and files of an upload never killed."""
    from mlflow import MlflowClient

    run = write_run(tmp_path / "run", {"objective": ["contrastive"]}, epochs=2, languages=FEW)
    (run / "report").mkdir()
    (run / "report" / "report.html").write_text("<p>")

    def uploading(folder: Path, point: int = 0) -> Callable[[], list[int]]:
        """An upload that dies before its call number `point`; it says how many calls it made."""
        calls = [0]

        def counted(name: str) -> Callable[..., Any]:
            real = getattr(MlflowClient, name)

            def call(*positional: Any, **named: Any) -> Any:
                calls[0] += 1
                if calls[0] == point:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*positional, **named)

            return call

        def act() -> list[int]:
            with pytest.MonkeyPatch.context() as patch:
                for name in CALLS:
                    patch.setattr(MlflowClient, name, counted(name))
                upload(folder / "run", store=store_in(folder))
            return calls

        return act

    def sent(folder: Path) -> list[Any]:
        client = store_in(folder).connect()
        (experiment,) = (one for one in client.search_experiments() if one.name == "ray_atr")
        found = []
        for one in sorted(client.search_runs([experiment.experiment_id]), key=lambda one: one.info.run_name):
            rows = [
                (row.key, row.step, row.value, row.timestamp)
                for name in sorted(one.data.metrics)
                for row in client.get_metric_history(one.info.run_id, name)
            ]
            files = sorted(file.path for file in client.list_artifacts(one.info.run_id))
            found.append([one.info.run_name, one.info.status, rows, sorted(one.data.params.items()), files])
        return found

    def every_point() -> None:
        """In a fork, whose own forks find MLflow's statements compiled: its first upload takes a second."""
        empty = shutil.copytree(database, tmp_path / "empty")
        shutil.copytree(run, empty / "run")
        whole = shutil.copytree(empty, tmp_path / "whole")
        (count,) = uploading(whole)()
        assert count >= 10
        expected = sent(whole)
        assert [(status, len(files)) for _, status, _, _, files in expected] == [("FINISHED", 3), ("FINISHED", 3)]
        for point in spread(range(1, count + 1), 3):
            folder = shutil.copytree(empty, tmp_path / f"killed-{point}")
            assert in_fork(uploading(folder, point)) == -signal.SIGKILL
            uploading(folder)()
            assert sent(folder) == expected, point

    assert in_fork(every_point) == 0


def test_a_noise_index_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    def assigned(shift: int) -> CaptionAssignment:
        owner = np.roll(np.arange(30), shift)[:, None, None]
        return CaptionAssignment(owner, np.zeros_like(owner))

    def prepare(folder: Path) -> Callable[[], object]:
        write_index(folder, assigned(1))
        return lambda: write_index(folder, assigned(2))

    for folder, where in every_crash(prepare, tmp_path):
        found = read_index(str(folder / "noise_index.npy"), np.ones((30, 1), dtype=np.int64), 1).owner[0, 0, 0]
        assert found in (29, 28), where
        write_index(folder, assigned(2))
        assert [path.name for path in folder.iterdir()] == ["noise_index.npy"], where


@pytest.mark.slow
def test_an_evaluation_is_repeated_by_the_same_command(tmp_path: Path, database: Path) -> None:
    """Killed at any point, in MLflow too, the same command ends whole; MLflow then has one run of it, and that is finished."""
    data = make_data(tmp_path / "data", num_train=4, num_val=2, num_test=4)
    tokenizer = train_tokenizer(["a low tone, number 1", "un son grave"], 200)
    build_retriever(tiny(data).model, tokenizer=tokenizer, seed=0).save_pretrained(tmp_path / "saved")

    def evaluating(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_ATR_HOME", str(tmp_path / "home"))
            patch.delenv("MLFLOW_TRACKING_URI", raising=False)
            options = EvaluationOptions(data=str(data), draws=3, figures=False, trec=True)
            encoding, out = Encoding(ray="never"), folder / "runs" / "out"
            evaluate([tmp_path / "saved"], options, encoding=encoding, out=out, echo=lambda text: None)

    def prepare(folder: Path) -> Callable[[], object]:
        shutil.copytree(database, folder / "runs")
        return lambda: evaluating(folder)

    def sent(folder: Path) -> list[Any]:
        client = store_in(folder / "runs").connect()
        runs = [run for one in client.search_experiments() for run in client.search_runs([one.experiment_id])]
        return [
            (run.info.status, len(run.data.metrics), len(client.list_artifacts(run.info.run_id, "evaluation")))
            for run in runs
        ]

    names = ["evaluation.html", "evaluation.json", "evaluation.md", "scores-0.npz"]
    trec = [f"{name}-{code}.trec" for name in ("qrels", "run") for code in ("eng", "fra")]

    def repeated(folder: Path, where: str) -> list[bool]:
        out = folder / "runs" / "out"
        if not (out / "evaluation.json").exists():
            evaluating(folder)
        assert sorted(path.name for path in out.iterdir()) == sorted(names + trec), where
        ((status, metrics, files),) = sent(folder)
        assert metrics > 50, where
        assert files == len(names), where
        return [status == "FINISHED"]

    tried = 0
    for folder, where in every_crash(prepare, tmp_path / "crashes", (KILL,), most=4):
        finished: list[bool] = []
        assert in_fork(partial(repeated, folder, where), into=finished) == 0, where
        tried += sum(finished)
    # Killed between its folder's name and the last word to MLflow, all is there and the run is said to go on.
    assert tried >= 3
