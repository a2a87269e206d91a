"""What is kept of a trial's failure, and when a sweep is given up: when three trials failed for one reason and none works."""

from __future__ import annotations

import pickle
import re
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray import cloudpickle

from ray_atr.cli.parse import heartbeat
from ray_atr.common.override import flatten, override
from ray_atr.common.runtime import WORKER_CPU_SHARE
from ray_atr.sweep import SEARCHES, ConsoleProgress, Goal, SweepPlan
from ray_atr.sweep.recording import Recording
from ray_atr.sweep.space import Space
from ray_atr.sweep.trial_queue import TrialQueue
from ray_atr.sweep.tune_bridge import (
    TRIAL_PROCESS_CPUS,
    _asker,
    _error_of,
    _is_lost_with_its_node,
    resources_by_trial,
    resources_of_trial_process,
    trainable_of,
)
from ray_atr.training.experiment import Experiment
from ray_atr.training.listener import SweepListener
from ray_atr.training.ray_train import REMEDY, TRACEBACK_FILE, TrialError, write_error
from ray_atr.training.recipes import RECIPES
from ray_atr.training.run_folder import RunFolder, TrialFolder

TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\nKeyError: 3\n'


def failed_in_tune(folder: Path, text: str) -> SimpleNamespace:
    (folder / "tune_error").write_text(text)
    return SimpleNamespace(error_file=str(folder / "tune_error"))


def test_an_error_that_nobody_foresaw_is_a_line_and_its_traceback_kept(tmp_path: Path) -> None:
    error = _error_of(TrialFolder(tmp_path), failed_in_tune(tmp_path, TRACEBACK))
    assert error == f"KeyError: 3 ({tmp_path / TRACEBACK_FILE})"
    assert (tmp_path / TRACEBACK_FILE).read_text() == TRACEBACK


def test_the_first_cause_is_told_without_the_name_of_its_class(tmp_path: Path) -> None:
    text = TRACEBACK.replace("KeyError: 3", "".join(traceback.format_exception_only(TrialError("worker 1 died: why"))))
    error = _error_of(TrialFolder(tmp_path), failed_in_tune(tmp_path, text))
    assert error == f"worker 1 died: why ({tmp_path / TRACEBACK_FILE})"


@pytest.mark.parametrize(
    ("text", "is_lost"),
    [
        ("The actor died unexpectedly before finishing this task.\nThe actor died because its node has died.", True),
        ("The actor died unexpectedly before finishing this task.\nThe worker died.", False),
        # Ray Train has restarted its workers as often as it may.
        ("its node has died\nray_atr.training.ray_train.TrialError: worker 1 died: its node is gone", False),
    ],
)
def test_a_trial_is_lost_with_its_node_alone(tmp_path: Path, text: str, is_lost: bool) -> None:
    assert _is_lost_with_its_node(failed_in_tune(tmp_path, text), set()) == is_lost


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("OSError: [Errno 5] Input/output error: '/runs/a b/last.tmp'", "/runs/a b/last.tmp: Input/output error"),
        (
            "OSError: [Errno 28] No space left on device: '/a' -> '/b'\n\nThe above was raised by Ray Train",
            "/a: No space left on device",
        ),
    ],
)
def test_a_disk_that_fails_is_told_as_elsewhere_with_its_path(tmp_path: Path, error: str, told: str) -> None:
    text = TRACEBACK.replace("KeyError: 3", error)
    assert _error_of(TrialFolder(tmp_path), failed_in_tune(tmp_path, text)) == told
    assert (tmp_path / TRACEBACK_FILE).read_text() == text


def test_a_file_that_is_missing_is_no_disk_that_fails(tmp_path: Path) -> None:
    error = "FileNotFoundError: [Errno 2] No such file or directory: '/a'"
    told = _error_of(TrialFolder(tmp_path), failed_in_tune(tmp_path, TRACEBACK.replace("KeyError: 3", error)))
    assert told == f"{error} ({tmp_path / TRACEBACK_FILE})"


def test_a_mistake_in_the_settings_is_told_in_its_own_words(tmp_path: Path) -> None:
    write_error(tmp_path, "train.batch_size: got 5")
    assert _error_of(TrialFolder(tmp_path), failed_in_tune(tmp_path, TRACEBACK)) == "train.batch_size: got 5"
    assert not (tmp_path / TRACEBACK_FILE).exists()


@pytest.mark.parametrize(
    "error", ["ray.exceptions.ObjectStoreFullError: full", "MemoryError", "killed by the OOM killer"]
)
def test_memory_that_is_too_small_is_told_with_the_settings_that_lower_it(tmp_path: Path, error: str) -> None:
    told = _error_of(TrialFolder(tmp_path), failed_in_tune(tmp_path, TRACEBACK.replace("KeyError: 3", error)))
    assert told.startswith(
        f"{error} ({tmp_path / TRACEBACK_FILE}); if memory was too small: lower train.embedding_chunk"
    )


def test_a_process_that_rays_memory_monitor_ended_is_told_as_such(tmp_path: Path) -> None:
    """As Ray 2.60 has it: forty lines, the last of which is advice on its own settings."""
    text = (
        "Failure # 1 (occurred at 2026-11-27_05-22-34)\n1 worker(s) were killed due to the node running low on memory. "
        "Memory on the node (IP: 127.0.0.1, ID: a6e2) was 3.40GB used / 23.54GB limit\nRefer to the documentation on how"
    )
    told = _error_of(TrialFolder(tmp_path), failed_in_tune(tmp_path, text))
    assert told.startswith("Ray ended its process, because the memory of the node was nearly full (")
    assert "lower train.embedding_chunk" in told


def test_every_setting_that_lowers_memory_exists() -> None:
    named = re.findall(r"[a-z]+\.[a-z_.]+", REMEDY)
    assert len(named) == 5
    tree = flatten(override(Experiment(), {"objective": "ask"}))
    assert all(path in tree for path in named)


def test_a_process_that_died_without_a_word(tmp_path: Path) -> None:
    assert _error_of(TrialFolder(tmp_path), SimpleNamespace(error_file=None)) == "the trial's process died"
    assert _error_of(TrialFolder(tmp_path), failed_in_tune(tmp_path, "\n")) == "the trial's process died"


@pytest.mark.parametrize(("workers", "is_on_the_head"), [("2:4", True), (2, False), (0, False)])
def test_a_trial_whose_nodes_come_and_go_is_led_from_the_head(workers: int | str, is_on_the_head: bool) -> None:
    resources = resources_of_trial_process(override(Experiment(), {"scaling.workers": workers}))
    assert ("node:__internal_head__" in resources) == is_on_the_head


def test_each_trial_has_the_room_of_its_own_scaling(tmp_path: Path) -> None:
    """With that of the first one, the worker of the second waits for ever for the GPU that its own trial's process has."""
    base = override(Experiment(), {"scaling.workers": 0, "scaling.gpus_per_worker": 1.0})
    run = RunFolder.create(tmp_path / "run", base, {"name": "sweep"})
    resources = resources_by_trial(run)
    trials = [run.add_trial(point) for point in ({"seed": 1}, {"scaling.workers": 1, "seed": 1})]
    (alone,), (waiting,) = (resources({"trial_id": trial.trial_id}).bundles for trial in trials)
    assert alone == {"CPU": WORKER_CPU_SHARE, "GPU": 1.0}
    assert waiting == {"CPU": TRIAL_PROCESS_CPUS}


def test_what_tune_writes_to_a_file_leaves_the_listeners_out() -> None:
    """The heartbeat's `echo` holds a lock, and Tune pickles its callbacks before the first trial."""
    with heartbeat("starting", write=lambda message: None) as echo:
        recording = Recording([ConsoleProgress(1, echo=echo)])
        assert pickle.loads(cloudpickle.dumps(recording)).listeners == ()


def test_a_trial_whose_process_dies_after_its_result_is_finished(tmp_path: Path) -> None:
    told: list[str] = []

    class Listener(SweepListener):
        def trial_finished(self, trial: TrialFolder) -> None:
            told.append("finished")

        def trial_failed(self, trial: TrialFolder, error: str) -> None:
            told.append("failed")

    recording = Recording([Listener()])
    trial = RunFolder.create(tmp_path / "run", Experiment(), {"name": "test"}).add_trial({"seed": 1})
    recording.reported(trial, {"epoch": 1, "best_epoch": 1, "train/loss": 0.5, "seconds/train": 2.0})
    recording.reported(trial, {"is_final": True, "epoch": 1, "best_epoch": 1, "train/clean_share": 1.0})
    recording.failed(trial, "the trial's process died")
    assert (trial.describe()["status"], trial.describe()["error"]) == ("finished", None)
    assert told == ["finished"]
    # As a kill may leave it.
    trial.update(status="failed", error="the trial's process died")
    assert (trial.describe()["status"], trial.describe()["error"]) == ("finished", None)


@pytest.mark.parametrize("search", SEARCHES)
def test_what_asks_for_the_next_trial_can_be_written_to_a_file(tmp_path: Path, search: str) -> None:
    """Tune pickles its searcher before the first trial; a search's proposals are a generator, which is in no file."""
    base = RECIPES["quickstart"]()
    run = RunFolder.create(tmp_path / "run", base, {"name": "sweep"})
    space, goals = Space.parse(["data.noise.ratio=grid(0,0.2,0.4)"], base), (Goal("text_to_audio/eng/recall_at_1"),)
    plan = SweepPlan(SEARCHES[search](space, goals, 0, ()), seeds=(0,), num_points=3)
    queue = TrialQueue(run, plan, lambda point: None)
    assert queue.next() is not None
    pickle.loads(cloudpickle.dumps(_asker(queue, lambda: False)))


def of_trial(number: int) -> SimpleNamespace:
    return SimpleNamespace(trial_id=f"trial{number}", is_finished=False, update=lambda **changes: None)


def common_failure(recording: Recording, *reasons: str) -> str | None:
    for number, reason in enumerate(reasons):
        recording.failed(of_trial(number), reason)
    return recording.common_failure


def test_three_trials_that_fail_alike_are_enough() -> None:
    assert common_failure(Recording(()), "no data", "no data") is None
    assert common_failure(Recording(()), "no data", "no data", "no data") == "no data"


def test_a_reason_may_name_the_trials_own_files() -> None:
    reasons = [f"KeyError: 3 (trials/trial{number}/traceback.txt)" for number in range(3)]
    assert common_failure(Recording(()), *reasons) == "KeyError: 3 (trials/TRIAL/traceback.txt)"


def test_another_reason_or_a_trial_that_works_keeps_the_sweep_going() -> None:
    assert common_failure(Recording(()), "no data", "no data", "out of memory") is None
    assert common_failure(Recording((), has_succeeded=True), "no data", "no data", "no data") is None
    recording = Recording(())
    recording.ended(SimpleNamespace(is_finished=True))
    assert common_failure(recording, "no data", "no data", "no data") is None


def test_a_trial_that_still_trains_keeps_the_sweep_going_until_it_fails_too() -> None:
    recording = Recording(())
    recording.reported(of_trial(9), {})
    assert common_failure(recording, "no data", "no data", "no data") is None
    recording.failed(of_trial(9), "no data")
    assert recording.common_failure == "no data"


def test_a_trial_needs_nothing_of_the_object_store_of_the_drivers_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray may have lost that node by the time a trial starts, while the driver goes on."""
    stored: list[object] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "put", stored.append)
    sent = cloudpickle.dumps(trainable_of(str(tmp_path / "run"), str(tmp_path), ["loss"]))
    assert not stored
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "run"))):
        pickle.loads(sent)({"trial_id": "one"})
