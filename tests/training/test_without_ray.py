"""`--ray never`: models trained in this process, kept in a run folder as any other; and the metric that selects."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock, patch

import pytest
import torch

from ray_atr.cli import main
from ray_atr.cli.parse import SECONDS
from ray_atr.sweep import SweepResult, sweep
from ray_atr.training import loop
from ray_atr.training.checkpoint import load_checkpoint
from ray_atr.training.checks import check_experiment, check_metric, measured_names
from ray_atr.training.ray_train import run_trial
from ray_atr.training.run_folder import FAILED, RunFolder, TrialFolder
from tests.support.commands import replace_work
from tests.support.crash_points import in_fork
from tests.support.spies import spied
from tests.support.tiny import tiny

SMALL = (
    *("--data.languages", "eng,fra", "--model.embedding_width", "16", "--model.text.width", "16"),
    *("--model.text.num_layers", "1", "--model.text.vocab_size", "300", "--train.batch_size", "8"),
    *("--tracking.mlflow", "false"),
)


def killed_after_two_epochs(arguments: list[str], said: Path) -> None:
    """The command `train`, which ends its process after two epochs, and at once where it would start Ray; each line that it
    prints is kept.
    """
    import ray

    # The process that this one is a fork of may have a Ray from another test.
    ray.is_initialized = lambda: False
    ray.init = lambda *given, **options: os._exit(1)
    add_epoch = TrialFolder.add_epoch

    def killed(trial: TrialFolder, metrics: Mapping[str, Any]) -> bool:
        is_new = add_epoch(trial, metrics)
        if metrics["epoch"] == 2:
            os._exit(9)
        return is_new

    TrialFolder.add_epoch = killed  # type: ignore[assignment, method-assign]
    sys.stdout = said.open("w", buffering=1)
    main("train", arguments=arguments)


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("alloc: you can't allocate memory"), MemoryError()],
)
def test_memory_that_is_too_small_ends_a_trial_with_what_lowers_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr("ray_atr.training.ray_train.prepare", fail)
    run_trial(tiny(tmp_path, scaling__workers=0), tmp_path / "trial", tmp_path, [], print)
    told = (tmp_path / "trial" / "error.txt").read_text()
    assert f"{type(error).__name__}: {error}".strip(" :") in told
    assert "lower train.embedding_chunk" in told


def without_times(row: Mapping[str, Any]) -> dict[str, Any]:
    recorded = ("time", "trial_id")
    return {name: value for name, value in row.items() if name not in recorded and not name.startswith("seconds/")}


@pytest.mark.slow
@pytest.mark.usefixtures("at_home")
def test_a_model_is_trained_without_ray_and_resumed(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = home / "runs" / "one"
    data = ["--ray", "never", *SMALL, "--data.source", str(home / "tones"), "--train.epochs", "3"]
    # A fork: a process of its own would import for five seconds what is here.
    assert in_fork(lambda: killed_after_two_epochs([*data, "--out", str(run)], home / "said")) == 9
    assert (home / "said").read_text().startswith("starting\n")
    (trial,) = RunFolder.open(run).trials()
    assert [row["epoch"] for row in trial.epochs()] == [1, 2]
    assert not trial.is_finished

    steps: list[int] = []
    spied(monkeypatch, loop, "step", lambda _, state, data, texts, batch, clock: steps.append(batch.step))
    main("train", arguments=["--ray", "never", "--no-figures", "--resume", str(run)])
    assert steps == [6, 7, 8]
    assert "1 trial finished, 0 failed" in capsys.readouterr().out
    assert trial.is_finished
    assert (trial.folder / "best").is_dir()
    expected: list[dict[str, Any]] = []
    run_trial(RunFolder.open(run).experiment, home / "whole", home, [], expected.append)
    assert [without_times(row) for row in trial.epochs()] == [without_times(row) for row in expected[:-1]]
    weights, others = (
        load_checkpoint(folder / "last", torch.device("cpu"))["model"] for folder in (trial.folder, home / "whole")
    )
    assert len(weights) == len(others)
    assert all(torch.equal(weights[name], others[name]) for name in others)
    assert 0 < SECONDS <= 10


@pytest.mark.usefixtures("at_home")
def test_a_resumed_sweep_keeps_its_options_until_others_are_given(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = home / "runs" / "kept"
    asked: list[tuple[int | None, bool]] = []
    drawn: list[bool] = []

    def swept(*given: Any, concurrency: int | None, use_ray: bool, **others: Any) -> SweepResult:
        asked.append((concurrency, use_ray))
        return SweepResult(["one"], [], [], [])

    def reported(folder: Path, *, figures: bool) -> Any:
        drawn.append(figures)
        return Mock(summary="")

    replace_work(monkeypatch, {"cli.running.sweep": swept, "cli.running.write_report": reported})
    begun = ["--objectives", "kcl", "--noise", "0", *SMALL, "--data.source", str(home / "tones"), "--out", str(run)]
    main("sweep", "noise", arguments=[*begun, "--concurrency", "2", "--no-figures"])
    for others in ([], ["--concurrency", "3", "--figures"], [], ["--ray", "never"], []):
        main("sweep", "noise", arguments=["--resume", str(run), *others])
    assert asked == [(2, True)] * 2 + [(3, True)] * 2 + [(3, False)] * 2
    assert drawn == [False] * 2 + [True] * 4


@pytest.mark.usefixtures("at_home")
@pytest.mark.parametrize("left", [0, 2])
def test_one_reason_for_every_failure_is_told_with_what_is_left(
    left: int, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = home / "runs" / f"failed-{left}"
    ended = SweepResult([], [], ["a trial"] * left, [], common_failure="no memory")
    replace_work(monkeypatch, {"cli.running.sweep": lambda *_, **__: ended})
    begun = ["--objectives", "kcl", "--noise", "0", *SMALL, "--data.source", str(home / "tones"), "--out", str(run)]
    with pytest.raises(SystemExit):
        main("sweep", "noise", arguments=[*begun, "--ray", "never"])
    reason, advice = capsys.readouterr().err.splitlines()[-2:]
    resumed = f"continue with --resume {run} --retry-failed"
    if left:
        assert reason == "stopped: every trial so far failed for the same reason: no memory"
        assert advice == f"not run to the end: 2 trials; {resumed}"
    else:
        assert (reason, advice) == ("every trial failed for the same reason: no memory", resumed)


@pytest.mark.usefixtures("at_home")
def test_a_failed_trial_of_a_sweep_that_is_out_of_time_is_no_success(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def swept(run: RunFolder, *_: Any, **__: Any) -> SweepResult:
        failed = run.add_trial({"seed": 0})
        failed.update(status=FAILED, error="no memory")
        return SweepResult([], [failed.trial_id], ["another"], [], is_out_of_time=True)

    replace_work(monkeypatch, {"cli.running.sweep": swept})
    begun = ["--objectives", "kcl", "--noise", "0", *SMALL, "--data.source", str(home / "tones"), "--ray", "never"]
    with pytest.raises(SystemExit) as exit_:
        main("sweep", "noise", arguments=[*begun, "--hours", "1", "--out", str(home / "runs" / "late")])
    assert exit_.value.code == 1
    said = capsys.readouterr()
    assert "out of time: 1 trial to do; continue with --resume" in said.out
    assert said.err.splitlines()[-1].endswith("late --retry-failed")


@pytest.mark.usefixtures("at_home")
def test_a_training_that_failed_says_a_command_that_runs_it_again(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said --retry-failed, which `train` refuses."""
    run = home / "runs" / "failed-alone"

    def swept(run: RunFolder, *_: Any, **__: Any) -> SweepResult:
        run.add_trial({}).update(status=FAILED, error="no memory")
        return SweepResult([], [trial.trial_id for trial in run.trials()], [], [])

    replace_work(monkeypatch, {"cli.running.sweep": swept})
    arguments = [*SMALL, "--data.source", str(home / "tones"), "--ray", "never", "--out", str(run)]
    for _ in range(2):
        with pytest.raises(SystemExit) as exit_:
            main("train", arguments=arguments)
        assert exit_.value.code == 1
        advice = capsys.readouterr().err.splitlines()[-1]
        assert advice == f"run what failed again with --resume {run}"
        arguments = advice.partition(" with ")[2].split()


@pytest.mark.usefixtures("at_home")
def test_workers_are_refused_without_ray(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main("train", arguments=["--ray", "never", "--scaling.workers", "2"])
    assert exit_.value.code == 2
    assert "scaling.workers: got '2'; allowed 0 with --ray never" in capsys.readouterr().err


def test_a_failing_trial_is_recorded_without_ray(home: Path) -> None:
    experiment = tiny(
        home / "tones", scaling__workers=0, scaling__ray_data=False, train__epochs=1, data__test_split="test"
    )
    run = RunFolder.create(home / "runs" / "failing-here", experiment, {"name": "test"})
    points = [{"train.learning_rate": 1e30, "seed": 0}, {"seed": 1}]
    result = sweep(run, points, home, use_ray=False, echo=lambda message: None)
    assert (len(result.finished), len(result.failed)) == (1, 1)
    assert "NaN or infinite" in run.trial(result.failed[0]).describe()["error"]


def test_the_selecting_metric_is_one_that_is_measured(home: Path) -> None:
    experiment = tiny(home / "tones")
    languages, trained = experiment.data.languages, experiment.trained_languages
    names = measured_names(languages, frozenset(trained))
    assert {
        "text_to_audio/fra/recall_at_1",
        "audio_to_text/mean/recall_at_10",
        "text_to_audio/trained/recall_at_1",
    } <= {*names}
    for name in names:
        check_metric(name, "evaluation.select_by", languages, trained)
    for wrong, hint in (
        ("text_to_audio/eng/recall_at_3", "did you mean text_to_audio/eng/recall_at_"),
        ("text_to_audio/deu/recall_at_1", "trained, or unseen, mean, eng, fra; "),
        ("recall", "text_to_audio/trained/recall_at_1"),
        ("text_to_audio/eng/median_rank", "whose larger value is better"),
        ("text_to_audio/eng/queries", "whose larger value is better"),
    ):
        with pytest.raises(ValueError, match=f"evaluation.select_by: got '{wrong}'; allowed .*{hint}"):
            check_experiment(tiny(home / "tones", evaluation__select_by=wrong))


@pytest.mark.slow
@pytest.mark.usefixtures("at_home")
def test_a_sweep_without_ray_trains_each_trial_as_if_it_were_alone(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray

    out = home / "runs" / "two"
    data = ["--recipe", "from_scratch", *SMALL, "--data.source", str(home / "tones"), "--train.epochs", "1"]
    what = ["noise", "--objectives", "kcl", "--noise", "0", "0.5", "--seeds", "0"]
    with patch.multiple(ray, init=DEFAULT, remote=DEFAULT, put=DEFAULT) as of_ray:
        main("sweep", arguments=[*what, "--ray", "never", "--quiet", "--no-figures", "--out", str(out), *data])
    assert not any(one.called for one in of_ray.values()), "uses Ray"
    said = capsys.readouterr().out
    assert "2 trials finished, 0 failed" in said
    assert not [word for word in ("starting", "epoch 1/1", "elapsed") if word in said]
    run = RunFolder.open(out)
    for trial in run.trials():
        alone: list[dict[str, Any]] = []
        run_trial(run.experiment_of(trial), home / trial.trial_id, home, [], alone.append)
        assert [without_times(row) for row in trial.epochs()] == [without_times(row) for row in alone[:-1]]


@pytest.mark.usefixtures("at_home")
def test_several_trials_at_a_time_are_refused_without_ray(capsys: pytest.CaptureFixture[str]) -> None:
    space = ["--space", "train.learning_rate=grid(0.001,0.002)"]
    with pytest.raises(SystemExit) as exit_:
        main("sweep", arguments=[*space, "--ray", "never", "--concurrency", "2"])
    assert exit_.value.code == 2
    assert "--concurrency: got 2; allowed 1 with --ray never" in capsys.readouterr().err
