"""What `auto` stands for on a laptop, a machine with GPUs, several nodes, and with data in a store; what it says and keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ray_atr.cli.running import forget_decided, without_ray
from ray_atr.common.override import flatten, override
from ray_atr.common.progress import silent
from ray_atr.sweep import SEARCHES, Goal, SweepPlan, sweep
from ray_atr.sweep.placement import Placed, num_trials_that_fit, processes_of
from ray_atr.sweep.scaling import OPEN, ScalingChoice, decide, decide_scaling
from ray_atr.sweep.search import FixedPoints
from ray_atr.sweep.space import Space
from ray_atr.sweep.trial_queue import TrialQueue
from ray_atr.training.experiment import Experiment
from ray_atr.training.recipes import RECIPES
from ray_atr.training.run_folder import RunFolder
from tests.support.tiny import make_data, tiny

LAPTOP = [Placed({"CPU": 2})]
ONE_GPU = [Placed({"CPU": 16, "GPU": 1})]
GPU_NODE = [Placed({"CPU": 16, "GPU": 4})]
TWO_CPU_NODES = [Placed({"CPU": 2}), Placed({"CPU": 2})]
GROWING = [Placed({"CPU": 64, "GPU": 8}, None)]
AUTO = {path: value for path, value in OPEN.items() if value == "auto"}


@pytest.mark.parametrize(
    ("nodes", "num_trials", "changes", "workers", "streams", "reason"),
    [
        (LAPTOP, 1, {}, 0, False, "auto: one node without GPUs"),
        (LAPTOP, 1, {"scaling.workers": 2}, 2, True, "auto: there are workers"),
        (LAPTOP, 1, {"scaling.ray_data": True}, 0, True, "auto: one node without GPUs"),
        (LAPTOP, 1, {"scaling.validate_beside": True}, 1, True, "auto: validation beside training"),
        (LAPTOP, 1, {"scaling.worker_labels": "disk=fast"}, 1, True, "auto: labels of nodes"),
        (GPU_NODE, 1, {}, 4, True, "auto: 4 GPUs"),
        # A batch of 6 is no multiple of 4, but of 3.
        (GPU_NODE, 1, {"train.batch_size": 6}, 3, True, "auto: 4 GPUs"),
        (GPU_NODE, 2, {}, 2, True, "auto: 4 GPUs"),
        (GPU_NODE, 9, {}, 1, True, "auto: 4 GPUs"),
        (GPU_NODE, None, {}, 1, True, "auto: 4 GPUs"),
        (GPU_NODE, 1, {"scaling.cpus_per_worker": 8.0}, 2, True, "auto: 4 GPUs"),
        (TWO_CPU_NODES, 1, {}, 2, True, "auto: 2 nodes"),
        (TWO_CPU_NODES, 6, {}, 1, True, "auto: 2 nodes"),
        (TWO_CPU_NODES, 1, {"scaling.cpus_per_worker": 2.0}, 2, True, "auto: 2 nodes"),
        (GROWING, 1, {}, 8, True, "auto: 8 GPUs, a cluster that grows"),
    ],
)
def test_what_a_trial_runs_on(
    nodes: list[Placed], num_trials: int | None, changes: dict[str, Any], workers: int, streams: bool, reason: str
) -> None:
    experiment = override(Experiment(), {"train.batch_size": 64, **changes})
    decision = decide(experiment, nodes, num_trials)
    assert decision is not None
    chosen = override(experiment, decision.settings).scaling
    assert (chosen.workers, chosen.ray_data, decision.reason) == (workers, streams, reason)
    is_on_gpus = "GPUs" in reason and "without" not in reason
    assert chosen.gpus_per_worker == (1.0 if is_on_gpus else 0.0)


def test_many_trials_of_heads_on_frozen_towers_share_the_gpus_of_a_node() -> None:
    heads = override(RECIPES["quickstart"](), AUTO)
    decision = decide(heads, GPU_NODE, 48)
    assert decision is not None
    # 16 cores and 4 GPUs.
    assert decision.settings == {"scaling.workers": 0, "scaling.gpus_per_worker": 0.25, "scaling.ray_data": False}
    assert decision.line(override(heads, decision.settings)) == (
        "scaling: a trial is trained by its own process with 0.25 GPU, without Ray Data "
        "(auto: 4 GPUs; its towers are frozen and encode once)"
    )
    for num_trials, share in ((5, 1 / 2), (9, 1 / 3), (None, 1 / 4)):
        few = decide(heads, GPU_NODE, num_trials)
        assert few is not None
        assert few.settings["scaling.gpus_per_worker"] == share
    one_gpu = decide(heads, [Placed({"CPU": 64, "GPU": 1})], 48)
    assert one_gpu is not None
    assert one_gpu.settings["scaling.gpus_per_worker"] == 1 / 8
    # No more trials than GPUs, towers that train, several nodes, or a share that the user chose: Ray Train.
    for nodes, trials, changes in (
        (GPU_NODE, 4, {}),
        (GPU_NODE, 48, {"model.audio.adapt.is_frozen": False}),
        (GPU_NODE * 2, 48, {}),
        (GROWING, 48, {}),
        (GPU_NODE, 48, {"scaling.gpus_per_worker": 0.5}),
    ):
        other = decide(override(heads, changes), nodes, trials)
        assert other is not None
        assert other.settings["scaling.workers"] > 0


@pytest.mark.parametrize(
    ("entry", "workers", "gpus"),
    [
        ("train.learning_rate=grid(0.1,0.01)", 0, 1 / 4),
        ("model.audio.adapt.is_frozen=grid(true,false)", 1, 1.0),
        ("model.audio.adapt.is_frozen=choice(true,false)", 1, 1.0),
    ],
)
def test_trials_share_a_gpu_only_if_all_of_a_sweep_are_of_frozen_towers(
    tmp_path: Path, entry: str, workers: int, gpus: float
) -> None:
    base = override(RECIPES["quickstart"](), AUTO)
    run = RunFolder.create(tmp_path / "run", base, {"name": "sweep"})
    space = Space.parse([entry], base)
    search = SEARCHES["grid" if "grid" in entry else "optuna"](space, (Goal("text_to_audio/eng/recall_at_1"),))
    queue = TrialQueue(run, SweepPlan(search, (0, 1), hours=1), lambda experiment: None)
    decided = decide_scaling(run, base, queue, None, ONE_GPU, silent).scaling
    assert (decided.workers, decided.gpus_per_worker) == (workers, gpus)


def test_workers_divide_the_batch_of_every_trial() -> None:
    batches = [override(Experiment(), {"train.batch_size": size}) for size in (64, 6)]
    for points, workers in ((batches[:1], 4), (batches[1:], 3), (batches, 2)):
        decision = decide(batches[0], GPU_NODE, 1, points=points)
        assert decision is not None
        assert decision.settings["scaling.workers"] == workers


def test_data_in_a_store_is_streamed_to_a_worker_and_what_is_set_is_left_alone() -> None:
    decision = decide(Experiment(), LAPTOP, 1, is_in_store=True)
    assert decision is not None
    assert decision.settings == {"scaling.workers": 1, "scaling.ray_data": True}
    assert decision.reason == "auto: data in a store"
    assert decide(override(Experiment(), {"scaling.workers": 1, "scaling.ray_data": False}), GPU_NODE, 1) is None


def test_the_encoder_of_a_base_gets_a_share_of_a_workers_gpu() -> None:
    ask = override(Experiment(), {"objective": "ask"})
    decision = decide(ask, GPU_NODE, 1)
    assert decision is not None
    # The encoder has room beside one of the four.
    assert decision.settings["scaling.workers"] == 4
    scaling = override(ask, decision.settings).scaling
    assert (scaling.gpus_per_worker, scaling.gpus_per_encoder) == (0.6, 0.4)
    written = decide(override(ask, {"objective.knowledge.refresh": "write_through"}), GPU_NODE, 1)
    assert written is not None
    assert written.settings["scaling.gpus_per_worker"] == 1.0


@pytest.mark.parametrize(
    "changes",
    [
        {"scaling.validate_beside": True},
        {"scaling.worker_labels": "a=b"},
        {"scaling.encoder_labels": "a=b"},
        {"data.source": "memory://tones"},
    ],
)
def test_there_are_workers_if_a_point_of_a_sweep_needs_them(tmp_path: Path, changes: dict[str, Any]) -> None:
    run = RunFolder.create(tmp_path / "run", Experiment(), {"name": "sweep"})
    queue = TrialQueue(run, SweepPlan(FixedPoints([{}, changes])), lambda experiment: None)
    decided = decide_scaling(run, Experiment(), queue, None, LAPTOP, silent)
    assert decided.scaling.workers == 1


def test_without_ray_nothing_is_streamed_though_data_in_a_store_would_be(tmp_path: Path) -> None:
    base = override(Experiment(), {"data.source": "memory://tones"})
    run = RunFolder.create(tmp_path / "run", base, {"name": "sweep"})
    queue = TrialQueue(run, SweepPlan(FixedPoints([{}])), lambda experiment: None)
    decided = decide_scaling(run, base, queue, None, [], silent).scaling
    assert (decided.workers, decided.ray_data) == (0, False)


@pytest.mark.parametrize("given", [{}, {"scaling.gpus_per_encoder": 0.3}])
@pytest.mark.parametrize("path", ["objective", "objective.knowledge"])
def test_it_leaves_room_for_a_base_that_only_some_points_have(tmp_path: Path, path: str, given: dict[str, Any]) -> None:
    base = override(Experiment(), given)
    run = RunFolder.create(tmp_path / "run", base, {"name": "sweep"})
    points = [{path: "contrastive" if path == "objective" else "none"}, {path: "ask"}]
    queue = TrialQueue(run, SweepPlan(FixedPoints(points)), lambda experiment: None)
    decided = decide_scaling(run, base, queue, None, ONE_GPU, silent)
    encoder = given.get("scaling.gpus_per_encoder", 0.4)
    assert (decided.scaling.gpus_per_worker, decided.scaling.gpus_per_encoder) == (1 - encoder, encoder)
    assert all(num_trials_that_fit(processes_of(override(decided, point)), ONE_GPU) == 1 for point in points)


@pytest.mark.parametrize(
    ("changes", "gpus", "worker"),
    [
        ({"objective": "ask", "scaling.gpus_per_encoder": 0.3}, 1, 0.7),
        ({"objective": "ask", "scaling.gpus_per_encoder": 0.3}, 2, 1.0),
        ({"scaling.validate_beside": True, "scaling.gpus_per_validation": 0.25}, 1, 0.75),
    ],
)
def test_the_only_gpu_is_shared_with_what_was_given_a_part_of_it(
    changes: dict[str, Any], gpus: int, worker: float
) -> None:
    experiment = override(Experiment(), changes)
    nodes = [Placed({"CPU": 16, "GPU": gpus})]
    decision = decide(experiment, nodes, 1)
    assert decision is not None
    assert decision.settings["scaling.gpus_per_worker"] == worker
    assert num_trials_that_fit(processes_of(override(experiment, decision.settings)), nodes) >= 1


def test_trials_that_pause_train_in_their_own_process_but_on_a_gpu() -> None:
    decision = decide(Experiment(), GPU_NODE, 4, alone="Ray is not used")
    assert decision is not None
    assert decision.settings == {"scaling.workers": 0, "scaling.gpus_per_worker": 1.0, "scaling.ray_data": True}
    assert decision.reason == "auto: 4 GPUs; Ray is not used"


def test_it_is_the_default_of_every_recipe_and_gives_way_to_a_run_without_ray() -> None:
    for recipe in (Experiment, *RECIPES.values()):
        assert AUTO.items() <= flatten(recipe()).items()
    alone = without_ray(Experiment(), {"scaling.workers": "auto"})
    assert (alone.scaling.workers, alone.scaling.ray_data) == (0, False)


def test_the_first_lines_and_the_run_folder_say_what_was_decided_and_it_is_decided_again(tmp_path: Path) -> None:
    experiment = tiny(make_data(tmp_path / "tones"), train__epochs=1, **AUTO)
    run = RunFolder.create(str(tmp_path / "run"), experiment, {"name": "train"})
    said: list[str] = []
    sweep(run, [{}], tmp_path, use_ray=False, echo=said.append)
    line = "scaling: a trial is trained by its own process, without Ray Data (auto: one node without GPUs; Ray is not used)"
    assert line in said
    kept = json.loads((tmp_path / "run" / "sweep.json").read_text())["scaling"]
    assert kept["settings"] == {"scaling.workers": 0, "scaling.ray_data": False}
    assert kept["reason"] in line
    assert run.experiment.scaling.workers == 0
    # A second trial, started elsewhere: what `auto` was is no setting of the user's.
    said.clear()
    sweep(RunFolder.open(run.path), [{}, {"seed": 1}], tmp_path, use_ray=False, echo=said.append)
    assert line in said


def test_workers_that_are_typed_with_resume_are_not_decided_again_and_keep_their_gpus(tmp_path: Path) -> None:
    decided = {"scaling.workers": 1, "scaling.ray_data": True, "scaling.gpus_per_worker": 1.0}
    before = override(tiny(make_data(tmp_path / "tones")), decided)
    run = RunFolder.create(str(tmp_path / "run"), before, {"name": "train"})
    queue = TrialQueue(run, SweepPlan(FixedPoints([{}])), lambda point: None)

    def resumed(typed: Mapping[str, Any]) -> tuple[int | str, float]:
        run.update_info(scaling={"settings": decided})
        forget_decided(run, typed)
        experiment = decide_scaling(run, override(before, typed), queue, None, GPU_NODE, silent)
        return experiment.scaling.workers, experiment.scaling.gpus_per_worker

    assert resumed({}) == (4, 1.0)
    # Also if it is what was decided on the machine of before.
    assert resumed({"scaling.workers": 1}) == (1, 1.0)
    assert resumed({"scaling.workers": 2}) == (2, 1.0)


def test_parts_of_a_base_that_no_worker_is_left_for_are_refused_before_any_work(tmp_path: Path) -> None:
    base = tiny(make_data(tmp_path / "tones"), **AUTO)
    run = RunFolder.create(str(tmp_path / "run"), base, {"name": "sweep"})
    points = [{}, {"objective": "ask", "scaling.base_shards": 2}]
    said: list[str] = []
    with pytest.raises(ValueError, match=r"scaling\.base_shards: got 2; allowed at most scaling\.workers \(0\)"):
        sweep(run, points, tmp_path, use_ray=False, echo=said.append)
    # The last that is said is what it was decided on; no features were made.
    assert [line.partition(":")[0] for line in said] == ["scaling"]
    assert not list(tmp_path.glob("features*"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "texts' embeddings go around"),
        ({"objective": "kcl", "objective.correspondence": "oracle"}, "texts' embeddings go around"),
        ({"objective.pair": "sigmoid"}, "texts' embeddings go around"),
        ({"objective.pair": "triplet"}, "each worker gathers all embeddings (objective.pair=triplet)"),
        ({"objective.knowledge": "moco"}, "each worker gathers all embeddings (objective.knowledge=moco)"),
        ({"objective.correspondence": "transport"}, "all embeddings (objective.correspondence=transport)"),
        ({"model.interaction": "late"}, "all embeddings (model.interaction=late)"),
        ({"train.batch_size": 64}, "all embeddings (train.batch_size=64)"),
        ({"scaling.share_losses_from": 0}, "all embeddings (scaling.share_losses_from=0)"),
    ],
)
def test_it_says_whether_workers_gather_embeddings(changes: dict[str, Any], said: str) -> None:
    first = {"objective": changes["objective"]} if "objective" in changes else {}
    experiment = override(override(Experiment(), first), {"train.batch_size": 2048, "scaling.workers": 2, **changes})
    assert ScalingChoice({}, "auto: 2 nodes").line(experiment).endswith(said)
