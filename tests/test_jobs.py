"""Jobs here and on Ray: every job once, as long as each takes, and no waiting for what never comes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ray_atr.common import runtime
from ray_atr.common.digests import DamagedFileError
from ray_atr.common.jobs import Resources, num_processes, run_jobs
from ray_atr.data.feature_cache import FolderHere
from tests.support import doubler
from tests.support.doubler import Doubler

LIMIT = 0.5
"""Seconds without progress after which Ray Data would give up, in these tests."""


def test_jobs_here_are_done_in_their_order_by_one_worker(tmp_path: Path) -> None:
    done = list(run_jobs([3, 1, 2], partial(Doubler, tmp_path)))
    assert [(number, result["twice"]) for number, result in done] == [(0, 6), (1, 2), (2, 4)]
    assert len(list(tmp_path.iterdir())) == 1
    assert list(run_jobs([], partial(Doubler, tmp_path))) == []
    assert len(list(tmp_path.iterdir())) == 1


def test_processes_that_fit_nowhere_are_refused_and_not_waited_for() -> None:
    machine = {"CPU": 4.0, "GPU": 1.0}
    assert num_processes(Resources(), machine) == 4
    assert num_processes(Resources(cpus=1.5), machine) == 2
    assert num_processes(Resources(gpus=0.5), machine) == 2
    assert num_processes(Resources(processes=3), machine) == 3
    assert num_processes(Resources(processes=25, cpus=0.28), {"CPU": 7.0}) == 25
    assert num_processes(Resources(cpus=0.28), {"CPU": 7.0}) == 25
    too_many = r"encoders: got '1 of 1 CPUs and 2 GPUs each'; allowed what fits into 4 CPUs"
    with pytest.raises(ValueError, match=too_many):
        num_processes(Resources(gpus=2, setting="encoders"), machine)
    with pytest.raises(ValueError, match="encoders: got '5 of 1 CPUs"):
        num_processes(Resources(processes=5, setting="encoders"), machine)
    assert num_processes(Resources(processes=5), machine, grows=True) == 5
    assert num_processes(Resources(gpus=1), {"CPU": 4.0}, grows=True) == 1


def test_ray_data_takes_no_silence_for_a_hang_in_a_process_of_ours() -> None:
    from ray.data import DataContext

    runtime.quiet_ray_data()
    assert DataContext.get_current().execution_no_progress_timeout_s == -1


@pytest.fixture
def impatient(ray_session: None) -> Iterator[None]:
    """Ray Data gives up after LIMIT seconds in this process, unless whoever runs something says otherwise."""
    from ray import cloudpickle
    from ray.data import DataContext

    cloudpickle.register_pickle_by_value(doubler)

    runtime.quiet_ray_data()
    context = DataContext.get_current().copy()
    context.execution_no_progress_timeout_s = LIMIT
    with DataContext.current(context):
        yield


@pytest.mark.ray
@pytest.mark.usefixtures("impatient")
def test_jobs_on_ray_are_done_once_each_and_may_be_silent_for_longer_than_the_limit(tmp_path: Path) -> None:
    jobs = list(range(4))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        done = dict(run_jobs(jobs, partial(Doubler, tmp_path, 2.0 * LIMIT), ray=Resources(cpus=0.5, processes=2)))
    assert not [warning for warning in told if "Ray 2.64" in str(warning.message)]
    assert {number: result["twice"] for number, result in done.items()} == {job: 2 * job for job in jobs}
    assert os.getpid() not in {result["process"] for result in done.values()}
    assert len(list(tmp_path.iterdir())) == len({result["process"] for result in done.values()})


@pytest.mark.ray
@pytest.mark.usefixtures("impatient")
def test_resources_that_never_come_free_are_an_error_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    class Everything:
        def is_there(self) -> bool:
            return True

    everything: Any = ray.remote(num_cpus=2)(Everything).remote()
    assert ray.get(everything.is_there.remote())
    monkeypatch.setattr(runtime, "ROOM_SECONDS", 1)
    try:
        with pytest.raises(TimeoutError, match="encoders: 1 CPUs and 0 GPUs did not become free within 1 s"):
            list(run_jobs([1], partial(Doubler, tmp_path), ray=Resources(setting="encoders")))
    finally:
        ray.kill(everything)


@pytest.mark.ray
@pytest.mark.usefixtures("impatient")
@pytest.mark.timeout(60)
def test_a_process_that_dies_of_its_job_does_not_begin_again_for_ever(tmp_path: Path) -> None:
    with pytest.raises(ChildProcessError, match="encoders: a process died; the system ends one that takes too much"):
        list(run_jobs([1], partial(Doubler, tmp_path, dies=True), ray=Resources(setting="encoders")))


@pytest.mark.ray
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("ray", [None, Resources(cpus=0.5)])
def test_the_error_of_a_job_is_raised_as_the_job_raised_it(tmp_path: Path, ray: Resources | None) -> None:
    """A command ends with one line for a ValueError, and with a traceback for an error of Ray."""
    with pytest.raises(DamagedFileError) as raised:
        list(run_jobs([1, -1], partial(Doubler, tmp_path), ray=ray))
    assert str(raised.value) == "job -1: damaged, not the whole file as it was written; give a number"


def test_nothing_else_runs_jobs_on_ray_data() -> None:
    package = runtime.PACKAGE
    uses = {
        str(path.relative_to(package)) for path in package.rglob("*.py") if "ray.data.from_items" in path.read_text()
    }
    assert uses == {"common/jobs.py", "data/stream.py"}


def test_a_file_made_on_another_node_is_sent_to_where_it_was_asked_for(tmp_path: Path) -> None:
    here = FolderHere(tmp_path)
    assert here.make("near", lambda file: _write(file, b"near")) is None
    sent = FolderHere(tmp_path, node="another").make("far", lambda file: _write(file, b"far"))
    assert sent == b"far"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["near"]
    here.receive("far", sent)
    here.receive("near", None)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"near": b"near", "far": b"far"}


def _write(file: Path, content: bytes) -> None:
    file.write_bytes(content)
