"""How many trials fit, on clusters written down."""

from __future__ import annotations

import contextlib

import pytest

from ray_atr.common.override import override
from ray_atr.common.runtime import WORKER_CPU_SHARE
from ray_atr.data.stream import READER_CPUS
from ray_atr.sweep.placement import Placed, concurrent_trials, num_trials_that_fit, processes_of
from ray_atr.sweep.tune_bridge import TRIAL_PROCESS_CPUS
from ray_atr.training.experiment import Experiment

LAPTOP = [Placed({"CPU": 2.0})]
FOUR_GPU_NODES = [Placed({"CPU": 16.0}), *(Placed({"CPU": 32.0, "GPU": 8.0}) for _ in range(4))]
SPOT = Placed({"CPU": 2.0}, {"market": "spot"})
"""A node that may be taken away; training is to run on such nodes alone in the tests of labels."""


def fitting(nodes: list[Placed], **scaling: float | str) -> int:
    experiment = override(Experiment(), {f"scaling.{name}": value for name, value in scaling.items()})
    return num_trials_that_fit(processes_of(experiment), nodes)


@pytest.mark.parametrize(
    ("nodes", "scaling", "expected"),
    [
        (LAPTOP, {"workers": 0}, 2),
        (LAPTOP, {"workers": 2}, 1),
        (LAPTOP, {"workers": 3}, 0),
        (LAPTOP, {"workers": 1, "gpus_per_worker": 1}, 0),
        # The two settings of the README: many one-GPU trials at once, or one trial over several nodes.
        (FOUR_GPU_NODES, {"workers": 1, "gpus_per_worker": 1}, 32),
        (FOUR_GPU_NODES, {"workers": 32, "gpus_per_worker": 1}, 1),
        (FOUR_GPU_NODES, {"workers": 16, "gpus_per_worker": 1}, 2),
        (FOUR_GPU_NODES, {"workers": 1, "gpus_per_worker": 0.5}, 64),
        # A share is a share of one GPU: two of 0.4 lie on each, however many fifths are left over.
        (FOUR_GPU_NODES, {"workers": 1, "gpus_per_worker": 0.4}, 64),
        (FOUR_GPU_NODES, {"workers": 1, "gpus_per_worker": 4, "cpus_per_worker": 4}, 8),
        # CPUs are short before GPUs are.
        (FOUR_GPU_NODES, {"workers": 1, "gpus_per_worker": 1, "cpus_per_worker": 8}, 16),
        # A worker lies on one node: 40 CPUs are in the cluster many times over, and on none of its nodes.
        (FOUR_GPU_NODES, {"workers": 1, "cpus_per_worker": 40}, 0),
        # Labels keep workers off the other nodes; what nodes to come will be labelled is not known.
        ([*LAPTOP, SPOT], {"workers": 1, "worker_labels": "market=spot"}, 2),
        ([*LAPTOP, SPOT], {"workers": 1, "worker_labels": "market=spot,disk=nvme"}, 0),
        ([*LAPTOP, SPOT], {"workers": 0, "worker_labels": "market=spot"}, 4),
        ([Placed({"CPU": 8.0}, None)], {"workers": 1, "worker_labels": "market=spot"}, 8),
    ],
)
def test_as_many_trials_as_fit(nodes: list[Placed], scaling: dict[str, float], expected: int) -> None:
    assert fitting(nodes, **scaling) == expected


def test_one_cpu_holds_a_trial_its_worker_and_its_reader() -> None:
    # A trainer would wait a minute for room for its reader.
    assert TRIAL_PROCESS_CPUS + WORKER_CPU_SHARE + READER_CPUS <= 1


def test_a_knowledge_base_has_an_encoder_of_its_own() -> None:
    scaling = {"scaling.workers": 1, "scaling.cpus_per_encoder": 1.0}
    plain, ask = (override(Experiment(), {"objective": name, **scaling}) for name in ("contrastive", "ask"))
    assert num_trials_that_fit(processes_of(plain), LAPTOP) == 2
    assert num_trials_that_fit(processes_of(ask), LAPTOP) == 1


def test_the_largest_trial_and_the_limit_decide() -> None:
    small, large = (override(Experiment(), {"scaling.workers": number}) for number in (1, 4))
    assert concurrent_trials([small], nodes=[Placed({"CPU": 8.0})]) == 8
    assert concurrent_trials([small, large], nodes=[Placed({"CPU": 8.0})]) == 2
    assert concurrent_trials([small], limit=3, nodes=[Placed({"CPU": 8.0})]) == 3


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ({"scaling.gpus_per_worker": 1.0}, r"scaling\.gpus_per_worker: got 1\.0; allowed 1 x that within the 0 GPUs"),
        ({"scaling.workers": 3}, r"scaling\.cpus_per_worker: got 1\.0; allowed 3 x that within the 2 CPUs"),
        ({"scaling.worker_labels": "a=b"}, r"scaling\.worker_labels: got 'a=b'; .* none has them"),
        (
            {"objective": "ask", "scaling.encoder_labels": "a=b"},
            r"scaling\.encoder_labels: got 'a=b'; .* none has them",
        ),
    ],
)
def test_what_the_cluster_never_holds_is_refused(scaling: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        concurrent_trials([override(Experiment(), scaling)], nodes=LAPTOP)


def test_a_worker_larger_than_each_node_is_refused() -> None:
    with pytest.raises(ValueError, match="workers that each fit on one node"):
        concurrent_trials([override(Experiment(), {"scaling.cpus_per_worker": 6.0})], nodes=[Placed({"CPU": 4.0})] * 2)


def test_the_room_that_labels_leave_is_told() -> None:
    scaling = {"scaling.workers": 2, "scaling.cpus_per_worker": 2.0, "scaling.worker_labels": "market=spot"}
    spot = Placed({"CPU": 2.0}, {"market": "spot"})
    with pytest.raises(ValueError, match=r"2 CPUs, 0 GPUs; 2 CPUs, 0 GPUs; 1 of them with scaling\.worker_labels\)"):
        concurrent_trials([override(Experiment(), scaling)], nodes=[Placed({"CPU": 2.0}), spot])


@pytest.mark.parametrize(
    ("cpus", "workers", "is_refused"), [(0, "2:4", False), (0.5, "2:4", False), (1, "2:4", True), (1, 2, False)]
)
def test_room_that_labels_forbid_is_refused_where_ray_would_count_it(
    cpus: float, workers: int | str, is_refused: bool
) -> None:
    experiment = override(Experiment(), {"scaling.workers": workers, "scaling.worker_labels": "market=spot"})
    with pytest.raises(ValueError, match="1 of those nodes lack them") if is_refused else contextlib.nullcontext():
        concurrent_trials([experiment], nodes=[Placed({"CPU": cpus}), SPOT, SPOT])


def test_a_trial_of_a_fixed_number_of_workers_hides_no_elastic_one() -> None:
    labels = {"scaling.worker_labels": "market=spot"}
    elastic, fixed = (override(Experiment(), {"scaling.workers": workers, **labels}) for workers in ("2:2", 2))
    for trials in ([elastic, fixed], [fixed, elastic]):
        with pytest.raises(ValueError, match="1 of those nodes lack them"):
            concurrent_trials(trials, nodes=[Placed({"CPU": 1.0}), SPOT, SPOT])
