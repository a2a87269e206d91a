"""How many trials fit, on clusters written down."""

from __future__ import annotations

import pytest

from ray_atr.experiment import Experiment
from ray_atr.override import override
from ray_atr.sweep import placement
from ray_atr.sweep.placement import Resources, concurrent_trials, num_trials_that_fit, processes_of

LAPTOP: list[Resources] = [{"CPU": 2.0}]
FOUR_GPU_NODES: list[Resources] = [{"CPU": 16.0}, *({"CPU": 32.0, "GPU": 8.0} for _ in range(4))]


def fitting(nodes: list[Resources], **scaling: float) -> int:
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
    ],
)
def test_as_many_trials_as_fit(nodes: list[Resources], scaling: dict[str, float], expected: int) -> None:
    assert fitting(nodes, **scaling) == expected


def test_a_knowledge_base_has_an_encoder_of_its_own() -> None:
    scaling = {"scaling.workers": 1, "scaling.cpus_per_encoder": 1.0}
    plain, ask = (override(Experiment(), {"objective": name, **scaling}) for name in ("contrastive", "ask"))
    assert num_trials_that_fit(processes_of(plain), LAPTOP) == 2
    assert num_trials_that_fit(processes_of(ask), LAPTOP) == 1


def test_the_largest_trial_and_the_limit_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "cluster_nodes", lambda: [{"CPU": 8.0}])
    small, large = (override(Experiment(), {"scaling.workers": number}) for number in (1, 4))
    assert concurrent_trials([small]) == 8
    assert concurrent_trials([small, large]) == 2
    assert concurrent_trials([small], limit=3) == 3


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ({"scaling.gpus_per_worker": 1.0}, r"scaling\.gpus_per_worker: got 1\.0; allowed 1 x that within the 0 GPUs"),
        ({"scaling.workers": 3}, r"scaling\.cpus_per_worker: got 1\.0; allowed 3 x that within the 2 CPUs"),
    ],
)
def test_what_the_cluster_never_holds_is_refused(
    scaling: dict[str, float], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "cluster_nodes", lambda: LAPTOP)
    with pytest.raises(ValueError, match=words):
        concurrent_trials([override(Experiment(), scaling)])


def test_a_worker_larger_than_each_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "cluster_nodes", lambda: [{"CPU": 4.0}, {"CPU": 4.0}])
    with pytest.raises(ValueError, match="workers that each fit on one node"):
        concurrent_trials([override(Experiment(), {"scaling.cpus_per_worker": 6.0})])
