"""Searches on a real Ray: early stopping, populations, kills, and nothing computed twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_atr.cli.parse import heartbeat
from ray_atr.common.storage import read_json
from ray_atr.sweep import ConsoleProgress, FixedPoints, Goal, OptunaSearch, RandomSearch, SweepPlan, sweep
from ray_atr.sweep.race import Scores
from ray_atr.sweep.space import Space
from ray_atr.training.knowledge_base.snapshot import load
from ray_atr.training.run_folder import FINISHED, STOPPED, RaceEvidence, RunFolder
from tests.support.tiny import make_data, new_run, prepared_for, tiny

pytestmark = [pytest.mark.ray, pytest.mark.timeout(120)]

RECALL = Goal("text_to_audio/eng/recall_at_10")
LOSS = Goal("train/loss", is_maximised=False)
ROOT = Path(__file__).resolve().parents[2]
ONE_AT_A_TIME: dict[str, Any] = {"scaling__cpus_per_worker": 2}
"""Trials of the size of the session's Ray, which take turns in one process: a second one takes three seconds to import torch."""


def in_process(home: Path, name: str, **changes: Any) -> RunFolder:
    """Of trials without Ray Train's workers."""
    return new_run(home, name, **{"scaling__workers": 0, "scaling__ray_data": False, "train__epochs": 3, **changes})


def quiet(message: str) -> None:
    """Says nothing."""


@pytest.mark.usefixtures("ray_session")
def test_stopped_trials_are_recorded_as_such_and_not_repeated(home: Path) -> None:
    run = in_process(home, "asha", train__epochs=4)
    # Rates from useless to good: the loss after an epoch tells them apart.
    space = Space.parse(["train.learning_rate=loguniform(1e-7,3e-2)"], run.experiment)
    lines: list[str] = []

    def plan(num_points: int) -> SweepPlan:
        return SweepPlan(OptunaSearch(space, (LOSS,)), (0,), num_points, scheduler="asha")

    result = sweep(run, plan(6), home, listeners=[ConsoleProgress(4, echo=lines.append)], concurrency=1, echo=quiet)
    assert result.stopped
    assert result.finished
    assert len(result.stopped) + len(result.finished) == 6
    assert any("stopped early, after" in line for line in lines)
    assert lines[0].startswith("[ 1/6] ")
    for trial_id in result.stopped:
        trial = run.trial(trial_id)
        assert trial.describe()["status"] == STOPPED
        assert len(trial.epochs()) < 4
    before = {trial.trial_id: (trial.folder / "metrics.jsonl").stat().st_mtime_ns for trial in run.trials()}
    more = sweep(run, plan(7), home, listeners=[ConsoleProgress(4, echo=lines.append)], use_ray=False, echo=quiet)
    assert lines[-1].startswith("[ 7/7] ")
    assert len(more.stopped) + len(more.finished) == 7
    after = {trial.trial_id: (trial.folder / "metrics.jsonl").stat().st_mtime_ns for trial in run.trials()}
    assert before.items() <= after.items()


@pytest.mark.usefixtures("ray_session")
def test_a_race_on_ray_starts_no_further_seed_of_a_dropped_point(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decided by hand, as soon as the point's first seed has ended: eight clips are evidence of nothing."""

    def decide(points: Mapping[str, Scores], seeds: Sequence[int], **options: Any) -> dict[str, RaceEvidence]:
        behind = [name for name, scores in points.items() if name == "lr=1e-07" and scores]
        return {name: RaceEvidence("lr=0.01", 1, 0.5, 0.4, 0.025) for name in behind}

    monkeypatch.setattr("ray_atr.sweep.racing.run_race", decide)
    run, lines = in_process(home, "race"), list[str]()
    points = [{"train.learning_rate": rate, "seed": seed} for rate in (1e-7, 0.01) for seed in (0, 1, 2)]
    plan = SweepPlan(FixedPoints(points), scheduler="race")
    # What a command says goes through a lock, which Tune could not pickle.
    with heartbeat("starting", write=lines.append) as echo:
        result = sweep(run, plan, home, concurrency=1, echo=echo)
    assert (len(result.finished), len(result.stopped), result.num_left) == (4, 2, 0)
    of_stopped = [run.trial(trial_id) for trial_id in result.stopped]
    assert {trial.describe()["name"] for trial in of_stopped} == {"lr=1e-07 seed=1", "lr=1e-07 seed=2"}
    assert all(len(trial.epochs()) < 3 for trial in of_stopped)
    assert any(line.startswith("race: lr=1e-07 is dropped") for line in lines)
    assert any("no point is dropped by 8 validation clips" in line for line in lines)
    assert sweep(run, plan, home, concurrency=1, echo=quiet).num_left == 0


@pytest.mark.usefixtures("ray_session")
def test_a_second_sweep_decodes_no_audio(home: Path, tmp_path: Path) -> None:
    data = make_data(tmp_path / "tones")
    said: list[str] = []

    def clips_decoded() -> int:
        counts = [int(line.split()[2]) for line in said if line.startswith("log-mel features")]
        said.clear()
        return max(counts, default=0)

    experiment = tiny(data, scaling__workers=0, scaling__ray_data=False, train__epochs=1, data__test_split="test")
    run = RunFolder.create(tmp_path / "first", experiment, {"name": "test"})
    assert sweep(run, [{"seed": 0}], home=tmp_path, use_ray=False, echo=said.append).finished
    assert clips_decoded() == 40
    # Without the shards there is nothing that could be decoded.
    for shard in data.rglob("*.parquet"):
        shard.unlink()
    again = RunFolder.create(tmp_path / "second", experiment, {"name": "test"})
    points = [{"objective": "triplet", "seed": 1}, {"data.noise.ratio": 0.4, "seed": 0}]
    assert len(sweep(again, points, home=tmp_path, concurrency=1, echo=said.append).finished) == 2
    assert clips_decoded() == 0


@pytest.mark.usefixtures("ray_session")
def test_other_data_under_the_same_name_is_refused_on_resume(home: Path) -> None:
    run = in_process(home, "other-data", train__epochs=1)
    sweep(run, [{"seed": 0}], home, use_ray=False, echo=quiet)
    info = run.info
    assert info["data"]["name"] == "tones"
    (run.path / "sweep.json").write_text(json.dumps({**info, "data": {"name": "tones", "hash": "0" * 64}}))
    with pytest.raises(ValueError, match="run on other data: tones has the hash 0000"):
        sweep(run, [{"seed": 1}], home, echo=quiet)
    assert [trial.describe()["status"] for trial in run.trials()] == [FINISHED, "pending"]


@pytest.mark.usefixtures("ray_session")
def test_out_of_time_leaves_trials_to_go_on_with(home: Path) -> None:
    run = in_process(home, "hours", train__epochs=400, **ONE_AT_A_TIME)
    result = sweep(
        run,
        SweepPlan(
            RandomSearch(Space.parse(["train.learning_rate=loguniform(1e-4,1e-2)"], run.experiment)),
            (0,),
            2,
            hours=6 / 3600,
        ),
        home,
        echo=quiet,
    )
    assert result.is_out_of_time
    assert len(result.unfinished) == 2
    assert {trial.describe()["status"] for trial in run.trials()} == {"pending"}


@pytest.mark.timeout(280)
@pytest.mark.usefixtures("ray_session")
def test_trials_readers_and_knowledge_bases_share_two_cores(home: Path) -> None:
    """Each trial has a base of its own, all share the cached features, and nothing waits for a CPU that never comes free.

    The trials train in their own processes: workers with a base are in test_two_nodes.py.
    """
    from ray.util import list_named_actors

    ask = {"objective.knowledge": "ask", "objective.knowledge.prototypes": 4, "objective.knowledge.refresh_lag": 2}
    run = in_process(home, "ask", scaling__ray_data=True, train__epochs=2, **ask)
    points = [{"seed": 0}, {"seed": 1}]
    result = sweep(run, points, home, concurrency=2, echo=quiet)
    assert len(result.finished) == 2
    for trial in run.trials():
        outcome = read_json(trial.folder / "result.json")
        assert 0 <= outcome["test"]["text_to_audio/fra/recall_at_1"] <= 1
    assert sweep(run, points, home, echo=quiet).finished == result.finished
    bases = [load(trial.folder / "knowledge" / "v000002") for trial in run.trials()]
    assert not np.allclose(bases[0].audio, bases[1].audio)
    for trial in run.trials():
        assert [row["knowledge/version"] for row in trial.epochs()] == [1, 2]
    caches = [folder for folder in (home / "data" / "cache" / "features").iterdir() if folder.is_dir()]
    assert len(caches) == 1
    left = [actor["name"] for actor in list_named_actors(all_namespaces=True) if actor["name"].startswith("knowledge-")]
    assert left == []


@pytest.mark.timeout(280)
def test_a_killed_driver_leaves_a_sweep_that_goes_on(home: Path, tmp_path: Path) -> None:
    """kill -9 in mid-sweep: what had finished is untouched, the search proposes what it would have."""
    out = tmp_path / "run"
    prepared_for(tiny(home / "tones"), home)
    settings = {
        "data.source": str(home / "tones"),
        "data.languages": "eng,fra",
        "model.embedding_width": "16",
        "model.text.width": "16",
        "model.text.vocab_size": "300",
        "train.epochs": "8",
        "scaling.workers": "0",
        "scaling.ray_data": "false",
        "train.batch_size": "8",
        "tracking.mlflow": "false",
        "objective": "m_ltm_pot",
    }
    command = [
        *(sys.executable, str(ROOT / "pipelines" / "sweep.py"), "--out", str(out), "--concurrency", "1"),
        *("--search", "optuna", "--trials", "3", "--space", "objective.pair.transport_mass=uniform(0.3,1)"),
        *(part for path, value in settings.items() for part in (f"--{path}", value)),
    ]
    environment = {**os.environ, "RAY_ATR_HOME": str(home), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as driver:
        try:
            wait_for(lambda: len(list(out.glob("trials/*/result.json"))) >= 1 and any_checkpoint(out), driver)
        finally:
            os.kill(driver.pid, signal.SIGKILL)
    run = RunFolder.open(out)
    finished = {path: path.stat().st_mtime_ns for path in out.glob("trials/*/result.json")}
    begun = [trial.trial_id for trial in run.trials()]
    space = Space.parse([f"{path}={text}" for path, text in run.info["space"].items()], run.experiment)
    goals = (Goal(run.experiment.evaluation.select_by),)
    result = sweep(run, SweepPlan(OptunaSearch(space, goals), (0,), 3), home, use_ray=False, echo=quiet)
    assert len(result.finished) == 3
    assert set(begun) <= set(result.finished)
    assert all(path.stat().st_mtime_ns == written for path, written in finished.items())
    for trial in run.trials():
        assert [row["epoch"] for row in trial.epochs()] == list(range(1, 9))
        assert read_json(trial.folder / "result.json")["test"]


def any_checkpoint(out: Path) -> bool:
    """Whether a trial is in its middle."""
    return any(not (path.parents[1] / "result.json").is_file() for path in out.glob("trials/*/last/state.pt"))


def wait_for(condition: Any, driver: subprocess.Popen[bytes], seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert driver.poll() is None, "the sweep ended before it could be killed"
        assert time.monotonic() < deadline, "the sweep did not come that far"
        time.sleep(0.05)
