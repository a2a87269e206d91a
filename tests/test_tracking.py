"""MLflow holds what the run folder holds, each thing once, whatever was restarted or away in between."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sqlite3
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import parse_qs

import pytest
from mlflow import MlflowClient
from sqlalchemy.exc import OperationalError

from ray_atr.cli import main
from ray_atr.cli.running import end_tracking
from ray_atr.common.lock import user_name
from ray_atr.common.override import flatten, override
from ray_atr.common.runtime import RayStartError
from ray_atr.common.storage import locate, make_folder, read_appended, read_json, write_json
from ray_atr.common.transfer import put_folder
from ray_atr.sweep import SweepResult
from ray_atr.sweep.tracking import Store, Tracker, fetch_experiment, mlflow_command, store_of, upload
from ray_atr.sweep.tracking.names import from_mlflow, in_mlflow, tracked
from ray_atr.training.experiment import Experiment
from ray_atr.training.objective_label import objective_label
from ray_atr.training.run_folder import TEST_SCORES, RunFolder, trial_name
from tests.support import fake_runs
from tests.support.commands import replace_work
from tests.support.crash_points import in_fork
from tests.support.spies import spied

SPACE: dict[str, list[Any]] = {"objective": ["contrastive", "m_ltm"], "data.noise.ratio": [0.0, 0.4]}
OBJECTIVES = {"objective": SPACE["objective"]}
"""Two trials: MLflow takes as long as there are numbers."""
AWAY = "http://127.0.0.1:9"
FEW = ("eng", "fra")
metrics = partial(fake_runs.metrics, languages=FEW)
write_run = partial(fake_runs.write_run, languages=FEW)
write_trial = partial(fake_runs.write_trial, languages=FEW)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    """One database for all tests: making it takes seconds."""
    folder = tmp_path_factory.mktemp("runs")
    return Store(uri=f"sqlite:///{folder / 'mlflow.db'}", artifacts=folder / "artifacts")


@pytest.fixture(scope="module")
def sent(tmp_path_factory, store) -> Tracker:
    """A sweep of four trials, each with its scores, that was sent and has ended."""
    folder = write_run(tmp_path_factory.mktemp("sent") / "run", SPACE)
    for trial in (folder / "trials").iterdir():
        (trial / "test").mkdir()
        (trial / "test" / "scores.npz").write_bytes(b"scores")
    tracker = Tracker(folder, store=store, sample_seconds=None)
    track(tracker)
    assert tracker.finish_sweep()
    return tracker


def runs(store: Store, tracker: Tracker):
    client = store.connect()
    experiment = client.get_experiment_by_name(tracker.experiment_name)
    found = client.search_runs([experiment.experiment_id], f"tags.`ray_atr.sweep` = '{tracker.sweep_id}'")
    parents = [run for run in found if "ray_atr.trial" not in run.data.tags]
    children = {run.info.run_name: run for run in found if "ray_atr.trial" in run.data.tags}
    assert len(parents) == 1
    assert len(children) == len(found) - 1
    return client, parents[0], children


def track(tracker: Tracker) -> None:
    tracker.start_sweep()
    for folder in sorted((tracker.run_folder / "trials").iterdir()):
        assert tracker.update_trial(folder.name)


def called(run: Path, experiment: str) -> None:
    """Give the run another experiment of MLflow than the other tests' runs."""
    file = run / "experiment.json"
    write_json(file, {**read_json(file), "tracking.experiment_name": experiment})


@pytest.mark.slow
def test_a_sweep_is_a_parent_and_its_trials_are_children(tmp_path, store):
    tracker = Tracker(write_run(tmp_path / "run", SPACE, failed=[1]), store=store, sample_seconds=None)
    track(tracker)
    (tmp_path / "run" / "report").mkdir()
    (tmp_path / "run" / "report" / "report.html").write_text("<p>")
    assert tracker.finish_sweep()
    client, parent, children = runs(store, tracker)
    assert parent.info.run_name == "noise"
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["mlflow.source.git.commit"] == "1234abcd"
    assert parent.data.tags["version.torch"] == "2.11.0"
    assert set(children) == {f"{name} noise={ratio}" for name in SPACE["objective"] for ratio in ("0", "0.4")}
    assert [file.path for file in client.list_artifacts(parent.info.run_id, "report")] == ["report/report.html"]
    failed = children["contrastive noise=0.4"]
    assert (failed.info.status, failed.data.tags["error"]) == ("FAILED", "step 12: loss is nan (worker 0)")
    child = children["m_ltm noise=0.4"]
    assert child.info.status == "FINISHED"
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert child.data.tags["data.noise.ratio"] == "0.4"
    assert child.data.params["data.noise.ratio"] == "0.4"
    assert child.data.params["train.learning_rate"] == "0.001"


def test_a_run_is_called_as_reports_call_its_objective() -> None:
    pot = {"objective.pair": "partial_learning_to_match", "objective.pair.metric": "euclidean"}
    for overrides, expected in (
        ({**pot, "objective.correspondence": "none", "seed": 1}, "m_ltm_pot_euclidean correspondence=none seed=1"),
        ({"objective": "m_ltm", "data.noise.ratio": 0.4}, "m_ltm noise=0.4"),
        ({"train.learning_rate": 0.01}, "lr=0.01"),
        (
            {"model.audio.adapt.is_frozen": True, "model.text.adapt.is_frozen": False, "seed": 1},
            "audio.adapt.is_frozen=True text.adapt.is_frozen=False seed=1",
        ),
    ):
        settings = flatten(override(Experiment(), overrides))
        assert trial_name(overrides, settings) == expected
        if "objective" in expected or "m_ltm" in expected:
            assert expected.startswith(objective_label(settings, overrides))


def test_every_epoch_and_the_final_metrics_arrive(tmp_path, store):
    tracker = Tracker(write_run(tmp_path / "run", {"objective": ["kcl"]}), store=store, sample_seconds=None)
    track(tracker)
    client, _, children = runs(store, tracker)
    child = children["kcl"]
    for code in (*FEW, "mean"):
        name = f"text_to_audio/{code}/recall_at_1"
        history = client.get_metric_history(child.info.run_id, in_mlflow(f"validation/{name}"))
        assert [(point.step, point.value) for point in history] == [
            (epoch, pytest.approx(metrics({"objective": "kcl"}, epoch)[name])) for epoch in (1, 2, 3)
        ]
    assert child.data.metrics["best_epoch"] == 3
    expected = metrics({"objective": "kcl"}, 3)["audio_to_text/mean/map_at_10"]
    assert child.data.metrics["test/audio_to_text.mean.map_at_10"] == pytest.approx(expected - 0.01)
    assert child.data.metrics["best/audio_to_text.mean.map_at_10"] == pytest.approx(expected)


def test_a_restarted_controller_goes_on_in_the_same_runs(tmp_path, store):
    folder = write_run(tmp_path / "run", OBJECTIVES, running=[0])
    first = Tracker(folder, store=store, sample_seconds=None)
    track(first)
    trial = write_trial(folder, {"objective": "contrastive"})
    second = Tracker(folder, store=store, sample_seconds=None)
    assert second.start_sweep() == first.start_sweep()
    assert second.update_trial(trial)
    for path in folder.glob("trials/*/metrics.jsonl"):
        # Points of the same value and time are one point to SQLite: other times show whether anything is sent twice.
        path.write_text(path.read_text().replace('"time": 17', '"time": 16'))
    third = Tracker(folder, store=store, sample_seconds=None)
    track(third)
    client, _, children = runs(store, third)
    assert len(children) == 2
    for child in children.values():
        steps = [point.step for point in client.get_metric_history(child.info.run_id, "train/loss")]
        assert steps == [1, 2, 3]
        assert child.info.status == "FINISHED"
        assert child.data.metrics["best_epoch"] == 3
        assert "test/text_to_audio.mean.recall_at_1" in child.data.metrics


@pytest.mark.slow
def test_a_trial_that_was_run_again_has_no_error_of_its_first_attempt(tmp_path, store):
    folder = write_run(tmp_path / "run", {"objective": ["kcl"]}, failed=[0])
    called(folder, tmp_path.name)
    track(Tracker(folder, store=store, sample_seconds=None))
    write_trial(folder, {"objective": "kcl"})
    tracker = Tracker(folder, store=store, sample_seconds=None)
    track(tracker)
    _, _, children = runs(store, tracker)
    assert (children["kcl"].info.status, children["kcl"].data.tags.get("error")) == ("FINISHED", None)
    (back,) = fetch_experiment(tmp_path.name, store, tmp_path / "back")
    (trial,) = RunFolder.open(back).trials()
    assert (trial.describe()["status"], trial.describe()["error"]) == ("finished", None)


def test_a_trial_that_is_trained_anew_has_a_run_of_its_own(tmp_path, store):
    """As if its folder had been removed, which is the remedy for a damaged one."""
    folder = write_run(tmp_path / "run", {"objective": ["kcl"]})
    track(Tracker(folder, store=store, sample_seconds=None))
    (trial,) = (folder / "trials").iterdir()
    shutil.rmtree(trial)
    for epochs, is_finished in ((1, False), (3, True)):
        write_trial(folder, {"objective": "kcl"}, epochs=epochs, is_finished=is_finished)
        tracker = Tracker(folder, store=store, sample_seconds=None)
        track(tracker)
        client, _, children = runs(store, tracker)
        run = children["kcl"]
        history = client.get_metric_history(run.info.run_id, "train/loss")
        assert [point.step for point in history] == list(range(1, epochs + 1))
        assert (run.info.status == "FINISHED") == ("best_epoch" in run.data.metrics) == is_finished


def test_trials_whose_parent_was_deleted_have_the_new_one_which_knows_where_the_folder_is(tmp_path, store):
    folder = write_run(tmp_path / "run", SPACE)
    client, parent, _ = runs(store, upload(folder, store=store))
    client.delete_run(parent.info.run_id)
    moved = folder.rename(tmp_path / "moved")
    for _ in range(2):
        _, again, children = runs(store, upload(moved, store=store))
        assert {child.data.tags["mlflow.parentRunId"] for child in children.values()} == {again.info.run_id}
    assert len(children) == 4
    upload(moved.rename(folder), store=store)
    assert runs(store, Tracker(folder, store=store))[1].data.tags["run_folder"] == str(folder)


def test_a_folder_that_another_process_writes_is_not_sent_beside_it(tmp_path, store):
    """Each of the two would look for runs that the other has not made yet."""
    folder = write_run(tmp_path / "run", OBJECTIVES)
    with RunFolder.open(folder).locked(), pytest.raises(ValueError, match="is being written by process"):
        upload(folder, store=store)
    _, _, children = runs(store, upload(folder, store=store))
    assert len(children) == 2


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (RayStartError("no Ray answers"), []),
        (ValueError("the cluster is too small"), ["KILLED"]),
        (OSError(errno.ENOSPC, "No space left on device"), ["KILLED"]),
        (RuntimeError("an error of Ray"), ["KILLED"]),
    ],
)
def test_a_sweep_that_cannot_start_or_go_on_does_not_run_in_mlflow(own_home, monkeypatch, error, left):
    def fail(*_: object, **__: object) -> None:
        raise error

    replace_work(monkeypatch, {"cli.running.sweep": fail})
    with pytest.raises((SystemExit, RuntimeError)):
        main("train", arguments=[f"--out={own_home / 'runs' / 'one'}"])
    store = store_of(own_home / "runs" / "one")
    client = store.connect()
    found = client.search_runs([store.experiment_id(client, "ray_atr")])
    assert [run.info.status for run in found] == left
    assert (own_home / "runs" / "one").exists() == bool(left)


@pytest.mark.parametrize(("left", "status"), [([], "FINISHED"), (["two"], "KILLED")])
def test_a_sweep_whose_report_cannot_be_written_does_not_run_in_mlflow(own_home, monkeypatch, left, status):
    result = SweepResult(["one"], [], left, [])
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    replace_work(monkeypatch, {"cli.running.sweep": lambda *_, **__: result, "cli.running.write_report": full})
    with pytest.raises(SystemExit):
        main("train", arguments=[f"--out={own_home / 'runs' / 'one'}"])
    store = store_of(own_home / "runs" / "one")
    client = store.connect()
    (run,) = client.search_runs([store.experiment_id(client, "ray_atr")])
    assert run.info.status == status


@pytest.mark.slow
@pytest.mark.parametrize("name", [".hidden", "..x", "e" * 240, "été, 日本", "'"])
def test_a_sweep_comes_back_whatever_its_folder_is_called(tmp_path, store, name):
    folder = write_run(tmp_path / name, {"objective": ["kcl"]})
    called(folder, f"from {name[:9]}")
    # MLflow cuts it, within quotation marks.
    long = f"ray-atr train --data.source '{'x y ' * 2000}'"
    write_json(folder / "sweep.json", {**read_json(folder / "sweep.json"), "command": long})
    sent = upload(folder, store=store)
    (fetched,) = fetch_experiment(f"from {name[:9]}", store, tmp_path / "fetched")
    assert fetched.name == sent.sweep_id
    parent = sent.parent_run_id()
    assert upload(fetched, store=store).parent_run_id() == parent
    store.connect().delete_run(parent)
    assert upload(fetched, store=store).parent_run_id() not in (None, parent)


def test_a_trial_that_was_run_again_has_lost_its_error(tmp_path, store):
    folder = write_run(tmp_path / "run", {"objective": ["kcl"]}, failed=[0])
    called(folder, "run again")
    upload(folder, store=store)
    write_trial(folder, {"objective": "kcl"})
    _, _, children = runs(store, upload(folder, store=store))
    assert children["kcl"].info.status == "FINISHED"
    assert "error" not in children["kcl"].data.tags
    (fetched,) = fetch_experiment("run again", store, tmp_path / "fetched")
    (trial,) = RunFolder.open(fetched).trials()
    assert trial.describe()["error"] is None


def test_stopped_sweeps_are_marked_killed(tmp_path, store):
    tracker = Tracker(write_run(tmp_path / "run", OBJECTIVES, running=[0]), store=store, sample_seconds=None)
    track(tracker)
    tracker.finish_sweep(is_complete=False)
    _, parent, children = runs(store, tracker)
    assert parent.info.status == "KILLED"
    assert sorted(child.info.status for child in children.values()) == ["FINISHED", "KILLED"]


def test_without_a_server_training_goes_on_and_the_results_are_sent_later(tmp_path, store, caplog, capsys):
    folder = write_run(tmp_path / "a run", OBJECTIVES)
    tracker = Tracker(folder, store=Store(uri=AWAY, artifacts=None), sample_seconds=None, retry_seconds=0)
    assert tracker.start_sweep() is None
    assert not any(tracker.update_trial(trial.name) for trial in (folder / "trials").iterdir())
    assert not end_tracking(tracker, is_complete=True)
    assert len([record for record in caplog.records if record.name.startswith("ray_atr")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"MLflow at {AWAY} lacks results (" in line
    assert line.endswith(f"send them later with ray-atr report '{folder}' --upload")
    with pytest.raises(ConnectionError, match=AWAY):
        upload(folder, store=Store(uri=AWAY, artifacts=None))
    run_id = upload(folder, store=store).parent_run_id()
    assert run_id is not None
    assert upload(folder, store=store).parent_run_id() == run_id
    client, _, children = runs(store, tracker)
    assert len(children) == 2
    for child in children.values():
        history = client.get_metric_history(child.info.run_id, "train/loss")
        assert len(history) == 3
        assert len(client.get_metric_history(child.info.run_id, "best_epoch")) == 1
        # MLflow shows when it was trained, and for how long, and not that of the upload.
        assert child.info.end_time == history[-1].timestamp
        assert 0 < history[0].timestamp - child.info.start_time < 60_000


def test_a_database_is_whole_or_not_there(tmp_path, monkeypatch):
    store = store_of(tmp_path / "run")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr("mlflow.store.db.utils._upgrade_db", lambda engine: os.kill(os.getpid(), signal.SIGKILL))
    assert in_fork(store.connect) == -signal.SIGKILL
    assert not (tmp_path / "mlflow.db").exists()


def test_a_database_that_cannot_be_opened_stops_no_training(tmp_path, caplog):
    folder = write_run(tmp_path / "run", {"objective": ["m_ltm"]})
    (tmp_path / "mlflow.db").write_text("not a database")
    tracker = Tracker(folder, sample_seconds=None)
    assert tracker.start_sweep() is None
    assert "the database cannot be opened (" in tracker.problem
    assert "move it away" in tracker.problem


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("database is locked", "; another process uses it"),
        ("database or disk is full", ""),
        ("unable to open database file", ""),
        ("no such table: experiments", "; move it away, and a new one is made"),
    ],
)
def test_only_a_damaged_database_is_to_be_moved_away(reason, remedy, store, monkeypatch):
    def search(*_: object, **__: object) -> None:
        raise OperationalError("SELECT 1", {}, sqlite3.OperationalError(reason))

    monkeypatch.setattr("mlflow.MlflowClient.search_experiments", search)
    with pytest.raises(ConnectionError, match=rf"{reason}\){remedy}$"):
        store.connect()


def test_a_full_disk_is_told_in_a_line_without_sql_and_tracebacks(tmp_path, store, monkeypatch, capsys):
    folder = write_run(tmp_path / "run", {"objective": ["m_ltm"]})
    tracker = Tracker(folder, store=store, sample_seconds=None)
    assert tracker.start_sweep() is not None

    def commit(_: object) -> None:
        raise OperationalError("INSERT INTO metrics", {}, sqlite3.OperationalError("database or disk is full"))

    monkeypatch.setattr("sqlalchemy.orm.Session.commit", commit)
    assert not tracker.update_trial(next((folder / "trials").iterdir()).name)
    assert tracker.problem == "(sqlite3.OperationalError) database or disk is full"
    assert "Traceback" not in capsys.readouterr().err


def test_a_server_that_comes_back_gets_what_it_missed(tmp_path, store):
    folder = write_run(tmp_path / "run", {"objective": ["m_ltm"]})
    tracker = Tracker(folder, store=Store(uri=AWAY, artifacts=None), sample_seconds=None, retry_seconds=0)
    trial = next((folder / "trials").iterdir()).name
    assert not tracker.update_trial(trial)
    tracker.store = store
    assert tracker.update_trial(trial)
    client, _, children = runs(store, tracker)
    assert [p.step for p in client.get_metric_history(children["m_ltm"].info.run_id, "train/loss")] == [1, 2, 3]


def test_a_long_value_is_cut_and_many_metrics_are_sent_in_batches(tmp_path, store, monkeypatch):
    sizes: list[int] = []
    spied(monkeypatch, MlflowClient, "log_batch", lambda _, client, run_id, metrics, **of: sizes.append(len(metrics)))
    folder = write_run(tmp_path / "run", {"objective": ["m_ltm"]}, running=[0])
    trial = next((folder / "trials").iterdir())
    many = {"epoch": 2, "time": 1.7e9, **{f"many/metric_{index}": float(index) for index in range(1900)}}

    with (trial / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(many) + "\n")
    base = json.loads((folder / "experiment.json").read_text())
    (folder / "experiment.json").write_text(json.dumps({**base, "data.source": "x" * 7000}))
    tracker = Tracker(folder, store=store, sample_seconds=None)
    track(tracker)
    _, parent, children = runs(store, tracker)
    assert len(parent.data.params["data.source"]) == 6000
    assert children["m_ltm"].data.metrics["many/metric_1899"] == 1899
    # MLflow's server takes no more at a time.
    assert max(sizes) <= 1000


@pytest.mark.parametrize("name", ["sounds%20of rain", "what?", "100% & more#1", "é+ü"])
def test_a_database_is_beside_the_run_whatever_its_folder_is_called(tmp_path, monkeypatch, name):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    store = store_of(tmp_path / name / "run")
    store.experiment_id(store.connect(), "one")
    assert (tmp_path / name / "mlflow.db").stat().st_size
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [".mlflow.db.lock", "mlflow.db"]


def test_the_default_store_lies_beside_the_run_folders_and_the_environment_overrules(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert store_of(tmp_path / "run").uri == f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert mlflow_command(tmp_path / "run") == (
        f"uv run mlflow ui --backend-store-uri sqlite:///{tmp_path / 'mlflow.db'} --host 127.0.0.1 --port 5000"
    )
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.example:5000")
    assert store_of(Path("run")) == Store(uri="http://tracking.example:5000", artifacts=None)
    assert "http://tracking.example:5000" in mlflow_command(Path("run"))


def test_a_user_without_a_name_is_tracked_by_number(tmp_path, store, monkeypatch):
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("getpass.getuser", nobody)
    tracker = Tracker(write_run(tmp_path / "run", {"objective": ["m_ltm"]}), store=store, sample_seconds=None)
    track(tracker)
    _, parent, _ = runs(store, tracker)
    assert parent.data.tags["mlflow.user"] == user_name() == str(os.getuid())


@pytest.mark.slow
def test_what_was_tracked_comes_back_as_a_run_folder(tmp_path, store):
    folder = write_run(tmp_path / "run", {**OBJECTIVES, "seed": [0, 1]}, failed=[3], running=[0])
    data = {"name": "clips", "hash": "123", "set": "audiocaps"}
    write_json(folder / "sweep.json", {**read_json(folder / "sweep.json"), "data": data})
    called(folder, "to fetch")
    scored = next((folder / "trials").glob("*/result.json")).parent
    make_folder(scored / "test")
    (scored / TEST_SCORES).write_bytes(b"of each query")
    upload(folder, store=store)
    (fetched,) = fetch_experiment("to fetch", store, tmp_path / "fetched")
    assert read_json(fetched / "sweep.json")["data"] == data
    assert read_json(fetched / "experiment.json").items() >= read_json(folder / "experiment.json").items()
    for trial in (folder / "trials").iterdir():
        other = fetched / "trials" / trial.name
        before, after = (read_trial(path) for path in (trial, other))
        elsewhere = ("step", "best_epoch")
        rows = [{name: value for name, value in row.items() if name not in elsewhere} for row in before["epochs"]]
        found = [{name: value for name, value in row.items() if name != "trial_id"} for row in after["epochs"]]
        assert found == [pytest.approx(row) for row in rows]
        assert {row["trial_id"] for row in after["epochs"]} == {trial.name}
        assert after["result"] == before["result"]
        assert (other / TEST_SCORES).is_file() == (trial == scored)
        for key in ("trial_id", "name", "overrides", "error"):
            assert after["trial"][key] == before["trial"][key]
    assert (fetched / "trials" / scored.name / TEST_SCORES).read_bytes() == b"of each query"
    with pytest.raises(ValueError, match=r"no experiment to_fetch.*did you mean to fetch"):
        fetch_experiment("to_fetch", store, tmp_path / "none")


@pytest.mark.slow
def test_what_was_fetched_while_it_ran_is_brought_up_to_date(tmp_path, store):
    """A report of the experiment showed, from then on, what the first one had."""
    folder = write_run(tmp_path / "run", OBJECTIVES, running=[0])
    called(folder, "still running")
    upload(folder, store=store)
    fetch = partial(fetch_experiment, "still running", store, tmp_path / "fetched")
    (fetched,) = fetch()
    assert sorted(trial.is_finished for trial in RunFolder.open(fetched).trials()) == [False, True]
    write_trial(folder, {"objective": OBJECTIVES["objective"][0]})
    write_trial(folder, {"objective": "ask"})
    upload(folder, store=store)
    assert fetch() == [fetched]
    assert [trial.is_finished for trial in RunFolder.open(fetched).trials()] == [True] * 3
    # A run of this machine stays as it is.
    RunFolder.open(fetched).update_info(ray="never", seeds=[7])
    assert fetch() == [fetched]
    assert RunFolder.open(fetched).info["seeds"] == [7]


def read_trial(folder: Path) -> dict[str, Any]:
    result = folder / "result.json"
    return {
        "trial": read_json(folder / "trial.json"),
        "epochs": read_appended(folder / "metrics.jsonl"),
        "result": read_json(result) if result.is_file() else None,
    }


@pytest.mark.slow
def test_the_data_set_comes_back_though_it_is_known_only_after_the_start(tmp_path, store):
    folder = write_run(tmp_path / "run", {"objective": ["kcl"]})
    called(folder, tmp_path.name)
    info = read_json(folder / "sweep.json")
    write_json(folder / "sweep.json", {**info, "data": {}})
    tracker = Tracker(folder, store=store, sample_seconds=None)
    tracker.start_sweep()
    RunFolder.open(folder).update_info(data=info["data"])
    track(tracker)
    (back,) = fetch_experiment(tmp_path.name, store, tmp_path / "back")
    assert RunFolder.open(back).info["data"] == info["data"]


def test_objectives_come_back_also_those_of_another_version(tmp_path, store):
    """A setting that is none is a text in MLflow; what cannot be read as settings stays text, and no objective another's."""
    choices = {"objective": ["contrastive", "ml_clap"]}
    for name, more in (("all settings", {}), ("another version", {"a.setting": "of then"})):
        folder = write_run(tmp_path / name, choices)
        write_json(folder / "experiment.json", {**flatten(Experiment()), "tracking.experiment_name": name, **more})
        upload(folder, store=store)
        (fetched,) = map(RunFolder.open, fetch_experiment(name, store, tmp_path / "fetched"))
        assert more or fetched.experiment == RunFolder.open(folder).experiment
        overrides = [trial.describe()["overrides"] for trial in fetched.trials()]
        labels = [objective_label(fetched.settings_of(one), one) for one in overrides]
        assert labels == [one["objective"] for one in overrides]
        assert sorted(labels) == choices["objective"]


def test_the_load_of_the_machine_is_sampled_while_the_sweep_runs(tmp_path, store):
    tracker = Tracker(write_run(tmp_path / "run", {"objective": ["m_ltm"]}), store=store, sample_seconds=0.2)
    run_id = tracker.start_sweep()
    client = store.connect()
    deadline = time.monotonic() + 60
    while "system/cpu_utilization_percentage" not in client.get_run(run_id).data.metrics:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert tracker.finish_sweep()
    assert client.get_run(run_id).info.status == "FINISHED"
    assert not any(thread.name == "SystemMetricsMonitor" for thread in threading.enumerate())


@pytest.mark.slow
def test_the_comparison_page_names_every_trial(sent, store):
    _, _, children = runs(store, sent)
    page, _, query = sent.comparison_url().partition("?")
    values = parse_qs(query)
    assert page == "http://127.0.0.1:5000/#/compare-runs"
    assert set(json.loads(values["runs"][0])) == {child.info.run_id for child in children.values()}
    assert Tracker(sent.run_folder, store=Store(uri=AWAY, artifacts=None)).comparison_url() is None


def test_the_parent_leads_to_its_trials_alone_best_first(tmp_path, store, sent):
    # Another sweep of the same experiment.
    track(Tracker(write_run(tmp_path / "other", {"objective": ["kcl"]}), store=store, sample_seconds=None))
    client, parent, children = runs(store, sent)
    page, _, query = sent.charts_url().partition("?")
    wanted = {name: values[0] for name, values in parse_qs(query).items()}
    experiment_id = parent.info.experiment_id
    assert page == f"http://127.0.0.1:5000/#/experiments/{experiment_id}/runs"
    order = f"{wanted['orderByKey']} {'ASC' if wanted['orderByAsc'] == 'true' else 'DESC'}"
    shown = client.search_runs([experiment_id], wanted["searchFilter"], order_by=[order])
    assert {run.info.run_id for run in shown} == {child.info.run_id for child in children.values()}
    assert shown[0].info.run_name == "m_ltm noise=0"
    note = parent.data.tags["mlflow.note.content"]
    assert f"({page.partition('/#')[2].join(['#', '?' + query])})" in note
    assert all(child.info.run_id in note for child in children.values())


def test_the_metric_that_chooses_is_sent_first(tmp_path, store):
    run = write_run(tmp_path / "run", {"objective": ["kcl"]})
    settings = json.loads((run / "experiment.json").read_text())
    settings["evaluation.select_by"] = "text_to_audio/eng/recall_at_1"
    (run / "experiment.json").write_text(json.dumps(settings))
    tracker = Tracker(run, store=store, sample_seconds=None)
    track(tracker)
    _, _, children = runs(store, tracker)
    assert next(iter(children["kcl"].data.metrics)) == "validation/text_to_audio.eng.recall_at_1"


def test_a_trial_that_was_stopped_early_comes_back_as_stopped(tmp_path, store):
    run = write_run(tmp_path / "run", {"objective": ["kcl", "m_ltm"]}, running=[0])
    (described,) = (run / "trials").glob("kcl-*/trial.json")
    described.write_text(described.read_text().replace('"running"', '"stopped"'))
    called(run, "stopped")
    tracker = Tracker(run, store=store, sample_seconds=None)
    track(tracker)
    assert tracker.finish_sweep()
    _, parent, children = runs(store, tracker)
    assert parent.info.status == "FINISHED"
    assert (children["kcl"].info.status, children["kcl"].data.tags["stopped_early"]) == ("KILLED", "after epoch 1")
    (back,) = fetch_experiment("stopped", store, tmp_path / "back")
    statuses = {trial.describe()["status"] for trial in RunFolder.open(back).trials()}
    assert statuses == {"finished", "stopped"}


def test_a_run_in_an_object_store_is_sent_like_one_on_disk(tmp_path, store):
    local = write_run(tmp_path / "run", OBJECTIVES, name="in_a_store")
    (local / "report").mkdir()
    (local / "report" / "report.html").write_text("<p>")
    place = locate("memory://tracked/run")
    put_folder(local, place)
    upload(place, store=store)
    client, parent, children = runs(store, Tracker(place, store=store, sample_seconds=None))
    assert parent.data.tags["run_folder"] == "memory://tracked/run"
    assert len(children) == 2
    assert all("test/text_to_audio.mean.recall_at_1" in child.data.metrics for child in children.values())
    assert [file.path for file in client.list_artifacts(parent.info.run_id, "report")] == ["report/report.html"]


def test_a_database_beside_a_run_in_an_object_store_is_at_home(own_home):
    assert store_of("memory://tracked/run").uri == f"sqlite:///{own_home}/runs/mlflow.db"


def test_what_compares_trials_is_first_by_name_and_constants_are_no_metrics(tmp_path, store):
    tracker = Tracker(write_run(tmp_path / "run", {"objective": ["kcl"]}), store=store, sample_seconds=None)
    track(tracker)
    client, _, children = runs(store, tracker)
    found = children["kcl"].data.metrics
    # A section of the page is what stands before the last slash; names without one are in the last section.
    sections = {name.rpartition("/")[0] for name in found if "/" in name}
    assert sections <= {"all", "validation", "best", "test", "train", "seconds", "knowledge", "memory"}
    assert min(sections) == "all"
    assert [name for name in found if "/" not in name] == ["best_epoch"]
    first = "all/R1 text to audio mean of languages"
    assert found[first] == found["validation/text_to_audio.mean.recall_at_1"]
    assert found["all/test R1 text to audio mean of languages"] == found["test/text_to_audio.mean.recall_at_1"]
    points = client.get_metric_history(children["kcl"].info.run_id, "all/R1 text to audio mean of languages")
    assert [point.step for point in points] == [1, 2, 3]


def test_a_name_goes_to_mlflow_and_back():
    for name in ("validation/text_to_audio/eng/recall_at_1", "train/loss", "test/by_plan/fra/map_at_10", "best_epoch"):
        assert from_mlflow(in_mlflow(name)) == name
    numbers = {
        "train/loss": 2.0,
        "validation/text_to_audio/eng/chance_at_1": 0.1,
        "validation/text_to_audio/eng/queries": 8.0,
    }
    assert tracked(numbers) == {"all/loss": 2.0, "train/loss": 2.0}


def test_a_trial_has_its_files_its_data_set_and_no_choice_twice(sent, store):
    client, parent, children = runs(store, sent)
    hashes = read_json(sent.run_folder / "sweep.json")["data"]
    for run in (parent, *children.values()):
        (used,) = client.get_run(run.info.run_id).inputs.dataset_inputs
        assert (used.dataset.name, used.dataset.digest) == (hashes["name"], hashes["hash"][:36])
        assert [(tag.key, tag.value) for tag in used.tags] == [("mlflow.data.context", "training")]
    for child in children.values():
        names = {file.path for file in client.list_artifacts(child.info.run_id)}
        assert names == {"metrics.jsonl", "result.json", "settings.json", "test"}
        assert [file.path for file in client.list_artifacts(child.info.run_id, "test")] == ["test/scores.npz"]
        assert child.data.params["objective"] in SPACE["objective"]
        # MLflow's parallel plot opens on the first three that differ; what follows from a choice would be among them.
        assert not [name for name in child.data.params if name.startswith("objective.")]
    compared = [child.data.params for child in children.values()]
    assert {name for name in compared[0] if any(other.get(name) != compared[0][name] for other in compared)} <= set(
        SPACE
    )
    # The parent has all of them: a run folder is made of its parameters again.
    assert parent.data.params["objective.pair"] == "contrastive"


@pytest.mark.slow
def test_a_trial_of_a_sweep_over_data_sets_has_its_own_alone(tmp_path, store):
    sources = [str(tmp_path / place) for place in ("x/a", "x/b", "y/b")]
    folder = write_run(tmp_path / "run", {"data.source": sources})
    # Of two folders of one name, the second is called by its path.
    data = {"name": f"a, b, {sources[2]}", "hash": "1, 2, 3", "set": "a, b"}
    write_json(folder / "sweep.json", {**read_json(folder / "sweep.json"), "data": data})
    client, parent, children = runs(store, upload(folder, store=store))

    def used(run):
        inputs = client.get_run(run.info.run_id).inputs.dataset_inputs
        return sorted((one.dataset.digest, json.loads(one.dataset.source)["uri"]) for one in inputs)

    assert sorted(map(used, children.values())) == [[pair] for pair in zip("123", sources, strict=True)]
    assert [digest for digest, _ in used(parent)] == ["1", "2", "3"]


def test_the_page_of_a_sweep_is_a_short_address(sent, store):
    _, parent, _ = runs(store, sent)
    where = f"http://127.0.0.1:5000/#/experiments/{parent.info.experiment_id}/runs/{parent.info.run_id}"
    assert sent.sweep_url() == f"{where}?workflowType=machine_learning"


def test_an_experiment_that_another_program_made_opens_as_one_of_training(store):
    client = store.connect()
    made = client.create_experiment("made by hand")
    assert store.experiment_id(client, "made by hand") == made
    assert client.get_experiment(made).tags["mlflow.experimentKind"] == "custom_model_development"
