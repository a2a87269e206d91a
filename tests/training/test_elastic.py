"""A run whose number of workers changes, as nodes come and go, is the run of one worker; a notice makes a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ray_atr.common.override import flatten, override
from ray_atr.data.stream import share_sizes, training_plan
from ray_atr.metrics.epoch_report import EpochReport
from ray_atr.sweep.placement import Placed, concurrent_trials
from ray_atr.training.batch import TrainingData
from ray_atr.training.checkpoint import STATE_FILE, load_checkpoint
from ray_atr.training.checks import check_experiment
from ray_atr.training.epoch_validation import EpochValidation
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import Prepared
from ray_atr.training.knowledge_base import faiss_library
from ray_atr.training.knowledge_base.refresher import InProcessRefresher
from ray_atr.training.loop import train_trial
from ray_atr.training.ray_train import PreemptionNotices, num_workers
from ray_atr.training.run_folder import LAST
from ray_atr.training.setup import first_state
from tests.support.agreement import computing_in_float64
from tests.support.lost_workers import LostError, until_lost
from tests.support.processes import run_processes
from tests.support.tiny import MEASURED, prepared_for, tiny
from tests.support.whole_product import IS_WHOLE

PHASES = ((4, 1), (2, 2), (3, 1000))
"""Workers, and steps after which the notice comes, within an epoch each time; 3 workers share a batch of 8 unevenly."""
CASES: dict[str, dict[str, Any]] = {
    "shared plan": {"objective": "m_ltm", "scaling__share_losses_from": 2},
}
if IS_WHOLE:
    # In each run `test_sharded_towers.py` has such a base through a run of changing workers.
    CASES["knowledge base"] = {
        "objective": "ask",
        "objective.scheme": "cacl",
        "objective__knowledge__prototypes": 4,
        "objective__knowledge__neighbours": 2,
        "objective__knowledge__refresh_lag": 1,
    }


@contextmanager
def distances_in_loops() -> Iterator[None]:
    """FAISS computes each distance by itself. Its matrix products round more, and then rounding decides between prototypes of
    tones that are almost equal, whose loss differs in the fifth digit.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faiss_library, "BLAS_FROM", 10**6)
        yield


def base_of(knowledge: Any, encode: Any, folder: Path, group: WorkerGroup) -> InProcessRefresher:
    """A base in each process over one folder: the first worker's builds, the others see what is there."""
    base = InProcessRefresher(encode, knowledge.snapshot_settings(0), folder)
    group.barrier()
    return base


def leave_group() -> None:
    dist.barrier()
    dist.destroy_process_group()


def worker(
    rank: int, most: int, folder: Path, flats: list[dict[str, Any]], prepared: list[Prepared]
) -> dict[int, list[dict[str, Any]]]:
    # Each phase has a group of its own. Nobody leaves one while another worker still connects to it.
    leave_group()
    ended: dict[int, list[dict[str, Any]]] = {}
    for case, (flat, ready) in enumerate(zip(flats, prepared, strict=True)):
        for phase, (size, steps) in enumerate(PHASES):
            if rank >= size:
                continue
            meet = f"file://{folder}/meet-{case}-{phase}"
            dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=size)
            ended[case] = []
            arguments = override(Experiment(), flat), ready, folder / f"case-{case}", ended[case].append
            options = {"use_ray_data": False, "make_refresher": base_of, "is_preempted": until_lost(steps)}
            # A plan's gradient magnifies what float32 rounds, by 1/epsilon a step.
            with suppress(LostError), distances_in_loops(), computing_in_float64():
                train_trial(*arguments, WorkerGroup(rank, size), **options)
            leave_group()
    return {case: [dict(report) for report in reports] for case, reports in ended.items()}


def losses(reports: list[dict[str, Any]]) -> list[float]:
    return [report["train/loss"] for report in reports if "train/loss" in report]


def alone(
    rank: int, size: int, folder: Path, flats: list[dict[str, Any]], prepared: list[Prepared]
) -> list[list[dict[str, Any]]]:
    """What one process reports that trains from the first step to the last."""
    ended: list[list[dict[str, Any]]] = []
    for case, (flat, ready) in enumerate(zip(flats, prepared, strict=True)):
        reports: list[dict[str, Any]] = []
        with distances_in_loops(), computing_in_float64():
            train_trial(
                override(Experiment(), flat), ready, folder / f"case-{case}", reports.append, use_ray_data=False
            )
        ended.append([dict(report) for report in reports])
    return ended


@pytest.mark.slow
def test_four_then_two_then_three_workers_give_the_losses_of_one(home: Path, tmp_path: Path) -> None:
    experiments = [tiny(home / "tones", **settings, **MEASURED, data__noise__ratio=0.2) for settings in CASES.values()]
    prepared = [prepared_for(experiment, home) for experiment in experiments]
    flats = [flatten(experiment) for experiment in experiments]
    of_workers = run_processes(worker, 4, tmp_path / "several", flats, prepared)[:3]
    (of_one,) = run_processes(alone, 1, tmp_path / "one", flats, prepared)
    for case, name in enumerate(CASES):
        for reports in of_workers:
            assert losses(reports[case]) == pytest.approx(losses(of_one[case]), rel=1e-9), name
        assert reports[case][-2].keys() >= {key for key in of_one[case][-2] if key.startswith("text_to_audio")}
        whole, found = (weights(tmp_path / run / f"case-{case}") for run in ("one", "several"))
        # As one vector: Adam makes steps of rounding where a gradient is 0, as that of an attention key's bias is.
        assert (found - whole).norm() < 1e-6 * whole.norm(), name


def weights(folder: Path) -> torch.Tensor:
    return torch.cat([value.flatten().float() for value in load_checkpoint(folder / LAST)["model"].values()])


def test_a_notice_makes_a_checkpoint_within_an_epoch(home: Path, tmp_path: Path) -> None:
    experiment = tiny(home / "tones")
    prepared = prepared_for(experiment, home)
    with pytest.raises(LostError):
        train_trial(experiment, prepared, tmp_path, lambda _: None, use_ray_data=False, is_preempted=until_lost(2))
    assert load_checkpoint(tmp_path / LAST)["progress"]["step_in_epoch"] == 2
    with pytest.raises(LostError):
        train_trial(
            experiment, prepared, tmp_path / "none", lambda _: None, use_ray_data=False, is_preempted=until_lost(0)
        )
    assert not (tmp_path / "none" / LAST / STATE_FILE).exists()


@pytest.mark.slow
@pytest.mark.parametrize("epoch", [1, 2])
def test_a_notice_at_the_last_step_of_an_epoch_loses_nothing_of_it(home: Path, tmp_path: Path, epoch: int) -> None:
    experiment = tiny(home / "tones", **MEASURED)
    prepared = prepared_for(experiment, home)
    alone: list[dict[str, Any]] = []
    train_trial(experiment, prepared, tmp_path / "alone", alone.append, use_ray_data=False)
    reports: list[dict[str, Any]] = []
    notices = iter([number == epoch * alone[0]["step"] for number in range(1, 1000)])

    def lost(validation: EpochValidation, row: EpochReport) -> list[EpochReport]:
        # The node goes before the epoch is validated.
        if row.epoch == epoch:
            raise LostError
        return after_epoch(validation, row)

    after_epoch = EpochValidation.after_epoch

    options = {"use_ray_data": False, "is_preempted": lambda group: next(notices)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EpochValidation, "after_epoch", lost)
        with pytest.raises(LostError):
            train_trial(experiment, prepared, tmp_path / "run", lambda _: None, **options)
    train_trial(experiment, prepared, tmp_path / "run", reports.append, use_ray_data=False)
    assert losses(reports) == losses(alone)
    for found, whole in zip(reports, alone, strict=True):
        assert {key for key in whole if key.startswith("text_to_audio")} <= found.keys()


def test_each_node_that_goes_is_told_of_once_and_asked_for_now_and_then() -> None:
    now, answers = [0.0], iter([None, {"a": [0]}, {"a": [0]}, {"a": [0], "b": [1]}])
    asked = 0

    def ask() -> Any:
        nonlocal asked
        asked += 1
        nodes = next(answers)
        return None if nodes is None else SimpleNamespace(preempted_node_to_ranks=nodes)

    notices = PreemptionNotices(ask, every=5.0, clock=lambda: now[0])
    heard = []
    for _ in range(40):
        now[0] += 0.5
        heard.append(notices(WorkerGroup()))
    assert asked == 4
    assert [number for number, is_new in enumerate(heard, start=1) if is_new] == [20, 40]


def test_a_batch_is_divided_evenly_among_a_fixed_number_of_workers_alone(home: Path) -> None:
    check_experiment(tiny(home / "tones", scaling__workers="2:3"))
    with pytest.raises(ValueError, match=r"train\.batch_size: got 8; allowed a multiple of scaling\.workers = 3"):
        check_experiment(tiny(home / "tones", scaling__workers=3))


def test_workers_have_the_same_weights_and_their_own_seeds_of_dropout(home: Path, tmp_path: Path) -> None:
    experiment = tiny(home / "tones")
    prepared, weights, seeds = prepared_for(experiment, home), list[Any](), set[int]()
    for rank in range(2):
        state = first_state(TrainingData(experiment, prepared, WorkerGroup(rank, 2)), tmp_path / str(rank))
        weights.append(state.retriever.state_dict())
        seeds.add(torch.initial_seed())
    assert len(seeds) == 2
    torch.testing.assert_close(*weights, rtol=0, atol=0)


def test_shares_differ_by_at_most_one_clip_and_make_up_the_batch() -> None:
    assert share_sizes(8, 3) == [3, 3, 2]
    ids = [f"clip {number}" for number in range(17)]
    alone = training_plan(ids, seed=0, epoch=0, batch_size=8)
    shares = [training_plan(ids, seed=0, epoch=0, batch_size=8, rank=rank, num_workers=3) for rank in range(3)]
    for step, rows in enumerate(alone.rows):
        assert [len(share.rows[step]) for share in shares] == [3, 3, 2]
        assert [row for share in shares for row in share.rows[step]] == rows.tolist()
    with pytest.raises(ValueError, match=r"train\.batch_size: got 2; allowed at least scaling\.workers = 3"):
        training_plan(ids, seed=0, epoch=0, batch_size=2, num_workers=3)


@pytest.mark.parametrize(("given", "expected"), [("4", 4), (3, 3), ("2:8", (2, 8)), ("2:2", (2, 2))])
def test_workers_are_a_number_or_the_least_and_the_most(given: Any, expected: Any) -> None:
    experiment = override(Experiment(), {"scaling.workers": given})
    assert num_workers(experiment.scaling) == expected
    assert override(Experiment(), flatten(experiment)) == experiment


@pytest.mark.parametrize("given", ["8:2", "0:3", "2:", "two", "2:4:6", "-1"])
def test_workers_that_are_neither_are_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"scaling\.workers: got .*; allowed"):
        override(Experiment(), {"scaling.workers": given})


def test_an_elastic_trial_runs_on_what_there_is() -> None:
    def at_once(workers: str) -> int:
        return concurrent_trials([override(Experiment(), {"scaling.workers": workers})], nodes=[Placed({"CPU": 4.0})])

    assert at_once("2:8") == 1
    assert at_once("1:2") == 2
    with pytest.raises(ValueError, match="allowed 5 x that within the 4 CPUs"):
        at_once("5:8")


def test_labels_are_pairs_of_key_and_value() -> None:
    experiment = override(Experiment(), {"scaling.encoder_labels": "disk=nvme, zone=a"})
    assert experiment.scaling.encoder_labels == "disk=nvme, zone=a"
    for wrong in ("nvme", "disk=", "=a", "a=1,a=2"):
        with pytest.raises(ValueError, match=r"scaling\.worker_labels: got .*; allowed KEY=VALUE"):
            override(Experiment(), {"scaling.worker_labels": wrong})
