"""Towers that are sharded over the workers train as whole ones do, and their checkpoints are resumed by any number of workers."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from test_elastic import base_of, distances_in_loops, leave_group
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from upath import UPath

import ray_atr.training.shards as shards_module
from ray_atr.common.override import flatten, override
from ray_atr.common.transfer import CheckpointSync
from ray_atr.data.shards import write_clips
from ray_atr.models.audio import SmallCnn
from ray_atr.models.sharding import EqualCalls, local, shard_tower
from ray_atr.training import checks, loop, ray_train
from ray_atr.training.batch import Batch, TrainingData
from ray_atr.training.checkpoint import TrainState, load_checkpoint, save_checkpoint, save_state
from ray_atr.training.checks import check_experiment, check_sharding
from ray_atr.training.clock import Clock
from ray_atr.training.correspondence import read_first
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import Prepared
from ray_atr.training.loop import step, train_trial
from ray_atr.training.ray_train import run_trial
from ray_atr.training.run_folder import LAST
from ray_atr.training.setup import first_state
from ray_atr.training.shards import ShardWriter
from tests.support import tiny_checkpoints
from tests.support.agreement import computing_in_float64
from tests.support.lost_workers import LostError, train, train_until_lost, until_lost
from tests.support.processes import run_processes
from tests.support.random_settings import write_uneven
from tests.support.tiny import (
    MEASURED,
    any_towers_will_do,
    prepared_for,
    require_regression,
    short_resnets,
    tiny,
    tone_clip,
)
from tests.support.whole_product import IS_WHOLE

SHARDED = {"scaling__shard_towers": True, "scaling__workers": 2, "data__noise__ratio": 0.2}
CED = {
    "model__audio": "ced",
    "model__audio__size": "tiny",
    "model__audio__num_blocks": 2,
    "model__audio__adapt__activation_checkpointing": True,
}
CASES: dict[str, dict[str, Any]] = {
    # A worker's share may have no text of a language.
    "ml_clap in several batches": {
        "objective__scheme": "ml_clap",
        # Read by the first worker alone, with towers of which it holds a part.
        "objective__correspondence": "leave_one_out",
        "objective__correspondence__reads": "towers",
        "train__batches_per_step": 2,
        "train__clip_norm": 0.01,
    },
    # The workers have two and three chunks of texts, so that one makes an empty call, and each tower has two layers: what is
    # computed again asks for both layers' weights, in the same order on both.
    "embedding chunks, around, rates by layer": {
        "objective": "kcl",
        **CED,
        "train__embedding_chunk": 3,
        "model__text__num_layers": 2,
        "scaling__share_losses_from": 2,
        "model__audio__adapt__layer_decay": 0.5,
    },
    "batch norms, language chunks and a learned temperature": {
        "objective": "kcl",
        "model__learn_temperature": True,
        "train__language_chunk": 1,
        "model__audio": "resnet38",
        "model__audio__width_divisor": 16,
        "model__audio__trains_batch_norms": True,
    },
    "lora, late interaction and sgd": {
        "objective": "cacl",
        "model__text__adapt__lora_rank": 2,
        "model__interaction": "late",
        "train__optimizer": "sgd",
        "train__momentum": 0.9,
    },
}
if IS_WHOLE:
    CASES |= {
        "ml_clap": {"objective__scheme": "ml_clap"},
        "several batches": {"objective": "cacl", "train__batches_per_step": 2, "train__clip_norm": 0.01},
        "chunks and a learned temperature": {
            "objective": "kcl",
            "model__learn_temperature": True,
            "train__language_chunk": 1,
            "model__text__num_layers": 2,
        },
        "embedding chunks": {
            "objective": "kcl",
            **CED,
            "train__embedding_chunk": 3,
            "model__text__num_layers": 2,
        },
        "around": {**CED, "objective": "cacl", "train__embedding_chunk": 3, "scaling__share_losses_from": 2},
        "checkpointed layers": {"objective": "cacl", **CED, "model__audio__adapt__layer_decay": 0.5},
        "kcl": {"objective": "kcl", "model__learn_temperature": True},
        "batch norms": {
            "model__audio": "resnet38",
            "model__audio__width_divisor": 16,
            "model__audio__trains_batch_norms": True,
        },
        "lora": {"objective": "cacl", "model__text__adapt__lora_rank": 2},
        "late": {"objective": "cacl", "model__interaction": "late"},
        "sgd": {"objective": "m_ltm", "train__optimizer": "sgd", "train__momentum": 0.9},
    }


def two_steps(experiment: Experiment, prepared: Prepared, group: WorkerGroup, folder: Path) -> dict[str, Any]:
    """Loss and norm of two steps of the optimiser, the gradients of the last, and the weights after it."""
    folder.mkdir(parents=True)
    data = TrainingData(experiment, prepared, replace(group, share_losses_from=experiment.scaling.losses_shared_from))
    state = first_state(data, folder, base_of)
    read_first(state.estimator, state.retriever, data.captions, data.experiment, group)
    require_regression(state.estimator.tables)
    texts, scalars = TextBatcher(state.retriever), []
    state.retriever.train()
    _, batches = next(data.epochs(0, 0, use_ray=False))
    batch: Batch
    for batch in list(batches)[: 2 * experiment.train.batches_per_step]:
        scalars.append(step(state, data, texts, batch, Clock()).scalars)
    towers = state.retriever.divisible_parameters().values()
    held = sum(local(one).numel() for one in towers) / sum(one.numel() for one in towers)
    gradients = {n: whole_of(p.grad) for n, p in state.retriever.named_parameters() if p.grad is not None}
    weights = {name: whole_of(value) for name, value in state.retriever.state_dict().items()}
    return {"scalars": scalars, "gradients": gradients, "weights": weights, "held": held}


def whole_of(value: Tensor) -> Tensor:
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach()


def worker(
    rank: int, size: int, folder: Path, flats: dict[str, dict[str, Any]], prepared: dict[str, Prepared]
) -> dict[str, dict[str, Any]]:
    group, found = WorkerGroup(rank, size), {}
    with computing_in_float64(), short_resnets(), any_towers_will_do():
        for name, flat in flats.items():
            found[name] = two_steps(override(Experiment(), flat), prepared[name], group, folder / f"{rank}-{name}")
    return found


Flat = dict[str, dict[str, Any]]


def sharded_and_whole(experiments: Mapping[str, Experiment], home: Path) -> tuple[Flat, Flat, dict[str, Prepared]]:
    """By name: the settings as given, the same with whole towers, and what is prepared for either."""
    flats = {name: flatten(experiment) for name, experiment in experiments.items()}
    plain = {name: {**flat, "scaling.shard_towers": False} for name, flat in flats.items()}
    return flats, plain, {name: prepared_for(experiment, home) for name, experiment in experiments.items()}


@pytest.mark.slow
def test_two_workers_train_sharded_towers_as_one_trains_whole_ones(home: Path, tmp_path: Path) -> None:
    experiments = {name: tiny(home / "tones", **SHARDED, **settings) for name, settings in CASES.items()}
    require_equal(experiments, home, tmp_path)


@pytest.mark.slow
def test_workers_encode_as_many_groups_of_one_length(tmp_path: Path) -> None:
    """Encoders of transformers encode texts in groups of similar length, and waveforms of each length by themselves."""
    write_uneven(tmp_path / "uneven", seed=6)
    # Adam would take steps by the sign of gradients that are zero but for rounding, as those of an attention's keys are.
    settings: dict[str, Any] = {"objective": "kcl", "train__optimizer": "sgd"}
    for tower, make in (("audio", tiny_checkpoints.wav2vec2), ("text", tiny_checkpoints.xlm_roberta)):
        (folder := tmp_path / tower).mkdir()
        kind = "transformers" if tower == "audio" else "xlm_roberta"
        checkpoint, dropout = f"model__{tower}__checkpoint", f"model__{tower}__dropout"
        settings |= {f"model__{tower}": kind, checkpoint: str(make(folder)), dropout: 0.0}
    # One worker has 16 texts, in two groups; the other has 12. Each computes them again in the backward pass.
    clips = [
        tone_clip(split, i, {"eng": [f"tone {i}"], **({"fra": [f"son {i}"]} if i % 2 else {})})
        for split, count in (("train", 24), ("val", 4))
        for i in range(count)
    ]
    write_clips(tmp_path / "in some", clips, name="tones", licence="none")
    of_texts = {"train__batch_size": 20, "train__embedding_chunk": 18}
    of_clips = {"train__batch_size": 6, "train__batches_per_step": 2}
    experiments = {
        "groups of texts": tiny(tmp_path / "in some", **SHARDED, **settings, **of_texts),
        "lengths of clips": tiny(tmp_path / "uneven", **SHARDED, **settings, **of_clips),
    }
    require_equal(experiments, tmp_path, tmp_path)


def require_equal(experiments: Mapping[str, Experiment], home: Path, folder: Path) -> None:
    """AssertionError unless two workers with sharded towers take the steps of one with whole towers."""
    flats, plain, prepared = sharded_and_whole(experiments, home)
    by_two = run_processes(worker, 2, folder / "two", flats, prepared)
    (by_one,) = run_processes(worker, 1, folder / "one", plain, prepared)
    for name, expected in by_one.items():
        for found in (workers[name] for workers in by_two):
            # The rows of a weight of odd height are not divided evenly.
            assert found["held"] == pytest.approx(1 / 2, abs=0.02), name
            for ours, theirs in zip(found["scalars"], expected["scalars"], strict=True):
                assert ours == pytest.approx(theirs, rel=1e-9), name
            for kind in ("gradients", "weights"):
                assert found[kind].keys() == expected[kind].keys(), name
                for key, value in expected[kind].items():
                    difference = (found[kind][key] - value).double().norm() / value.double().norm().clamp(min=1e-12)
                    assert difference < 1e-6, (name, kind, key, difference)


PHASES = ((1, 1), (3, 2), (2, 1000))
"""Workers, and steps after which a notice makes a checkpoint and all are lost; 3 workers share a batch of 8 unevenly. The test
on Ray has two, one and three.
"""
OF_PLANS: dict[str, Any] = {
    "objective": "kcl",
    "objective__correspondence": "transport",
    "train__keep_trajectory": True,
    "train__optimizer": "adam",
}
OF_A_BASE: dict[str, Any] = {
    "objective": "ask",
    "objective__scheme": "cacl",
    "objective__knowledge__prototypes": 4,
    "objective__knowledge__neighbours": 2,
    "objective__knowledge__refresh_lag": 1,
    "evaluation__batch_size": 3,
}
RUNS = {"both": {**OF_PLANS, **OF_A_BASE}}
if IS_WHOLE:
    RUNS |= {"plans": OF_PLANS, "base": OF_A_BASE}


@computing_in_float64()
def through_phases(
    rank: int, most: int, folder: Path, flats: dict[str, dict[str, Any]], prepared: dict[str, Prepared]
) -> dict[str, list[dict[str, Any]]]:
    # Each phase has a group of its own.
    leave_group()
    ended: dict[str, list[dict[str, Any]]] = {}
    for name, flat in flats.items():
        for phase, (size, steps) in enumerate(PHASES):
            if rank >= size:
                continue
            if size > 1:
                meet = f"file://{folder}/meet-{name}-{phase}"
                dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=size)
            ended[name] = []
            arguments = override(Experiment(), flat), prepared[name], folder / name, ended[name].append
            options = {"use_ray_data": False, "make_refresher": base_of, "is_preempted": until_lost(steps)}
            with suppress(LostError), distances_in_loops(), any_towers_will_do():
                train_trial(*arguments, WorkerGroup(rank, size), **options)
            if size > 1:
                leave_group()
    return {name: [dict(report) for report in reports] for name, reports in ended.items()}


@computing_in_float64()
def alone(
    rank: int, size: int, folder: Path, flats: dict[str, dict[str, Any]], prepared: dict[str, Prepared]
) -> dict[str, list[dict[str, Any]]]:
    ended: dict[str, list[dict[str, Any]]] = {name: [] for name in flats}
    for name, flat in flats.items():
        with distances_in_loops(), any_towers_will_do():
            train_trial(
                override(Experiment(), flat), prepared[name], folder / name, ended[name].append, use_ray_data=False
            )
    return {name: [dict(report) for report in reports] for name, reports in ended.items()}


@pytest.mark.slow
def test_one_then_three_then_two_workers_give_the_run_of_whole_towers(home: Path, tmp_path: Path) -> None:
    settings = {**SHARDED, **MEASURED, "scaling__workers": "1:3"}
    experiments = {name: tiny(home / "tones", **settings, **changes) for name, changes in RUNS.items()}
    flats, plain, prepared = sharded_and_whole(experiments, home)
    of_workers = run_processes(through_phases, 3, tmp_path / "several", flats, prepared)
    (of_one,) = run_processes(alone, 1, tmp_path / "one", plain, prepared)
    for name, expected in of_one.items():
        for reports in (found[name] for found in of_workers[: PHASES[-1][0]]):
            assert len(reports) == len(expected), name
            for ours, theirs in zip(reports, expected, strict=True):
                kept = {key: value for key, value in theirs.items() if not key.startswith(("seconds/", "knowledge/"))}
                assert {key: ours[key] for key in kept} == pytest.approx(kept, rel=1e-7, abs=1e-9), name
        several, one = (tmp_path / which / name for which in ("several", "one"))
        files = [Path("best") / "model.safetensors"]
        if "train__keep_trajectory" in RUNS[name]:
            files += [path.relative_to(one) for path in (one / "trajectory").iterdir()]
            assert len(files) == 3
        for file in files:
            for key, value in load_file(one / file).items():
                difference = (load_file(several / file)[key] - value).double().norm()
                assert difference <= 1e-6 * value.double().norm(), (name, file, key)
        assert sorted(os.listdir(several / LAST)) in (["shards-0", "state.pt"], ["shards-1", "state.pt"])


def trained(experiment: Experiment, home: Path, folder: Path, **options: Any) -> None:
    train_trial(experiment, prepared_for(experiment, home), folder, lambda row: None, use_ray_data=False, **options)


def test_a_checkpoint_is_written_while_the_next_steps_are_computed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With whole towers, in one process: the write ends when two more steps are done, and holds the weights before them."""
    experiment = tiny(home / "tones", scaling__shard_towers=True, train__epochs=1, train__keep_trajectory=True)
    later, write = Event(), shards_module.torch_checkpoint.save
    kept: dict[str, Tensor] = {}
    before: dict[str, Tensor] = {}

    def slow(tensors: dict[str, Tensor], **options: Any) -> None:
        if not kept:
            assert later.wait(60), "the steps wait for the checkpoint"
            kept.update({name: value.clone() for name, value in tensors.items()})
        write(tensors, **options)

    steps = 0

    def is_preempted(group: WorkerGroup) -> bool:
        nonlocal steps
        steps += 1
        if steps == 3:
            later.set()
        return steps == 1

    def noted(state: TrainState, *arguments: Any) -> None:
        if not before:
            found = state.retriever.divisible_parameters()
            before.update({f"model/{name}": value.detach().clone() for name, value in found.items()})
        save_state(state, *arguments)

    monkeypatch.setattr(shards_module.torch_checkpoint, "save", slow)
    monkeypatch.setattr(loop, "save_state", noted)
    trained(experiment, home, tmp_path, is_preempted=is_preempted)
    assert before
    for name, value in before.items():
        assert torch.equal(kept[name], value), name


def saved_by(folder: Path, number: float) -> None:
    """A checkpoint as a run makes it, of one process."""
    writer = ShardWriter(folder, WorkerGroup())
    if (folder / LAST).is_dir():
        writer.slot = load_checkpoint(folder / LAST)["shards"]
    content = {"step": number}
    writer.save(
        {"model/weights": torch.full((300, 3), number)},
        lambda slot: save_checkpoint(folder / LAST, {**content, "shards": slot}) and None,
    )
    writer.wait()
    writer.close()


def read_by(folder: Path) -> tuple[float, Tensor]:
    saved, writer = load_checkpoint(folder / LAST), ShardWriter(folder, WorkerGroup())
    found = {name: torch.empty(shape) for name, (shape, _) in writer.listed(saved["shards"]).items()}
    writer.load(saved["shards"], found)
    return saved["step"], found["model/weights"]


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    saved_by(tmp_path, 1)
    (part,) = (tmp_path / LAST).glob("shards-*/*.safetensors")
    content = bytearray(part.read_bytes())
    content[-5] ^= 1
    part.write_bytes(content)
    with pytest.raises(ValueError, match=r"shard-00001-model.*damaged"):
        read_by(tmp_path)
    part.unlink()
    with pytest.raises(ValueError, match=r"shard-00001-model.*damaged"):
        read_by(tmp_path)
    next((tmp_path / LAST).glob("shards-*/digests.json")).unlink()
    with pytest.raises(ValueError, match="the list of its files is missing"):
        read_by(tmp_path)


@pytest.mark.parametrize("was_sharded", [True, False])
def test_a_checkpoint_of_the_other_kind_is_refused(home: Path, tmp_path: Path, was_sharded: bool) -> None:
    experiment = tiny(home / "tones", scaling__shard_towers=was_sharded, train__epochs=1)
    trained(experiment, home, tmp_path)
    said = "got 'false'; allowed true" if was_sharded else "got 'true'; allowed false"
    with pytest.raises(ValueError, match=rf"scaling\.shard_towers: {said} with a checkpoint in"):
        trained(override(experiment, {"scaling.shard_towers": not was_sharded}), home, tmp_path)


def one_fails(rank: int, size: int, folder: Path, broken: int) -> tuple[str, float, bool]:
    """Both write a second checkpoint, for which one worker has no room; what that raised, and what is there."""
    group = WorkerGroup(rank, size)
    writer, whole = ShardWriter(folder / "run", group), torch.arange(12.0).reshape(6, 2)
    mesh = init_device_mesh("cpu", (size,))

    def save(number: int) -> None:
        writer.save(
            {"model/weights": distribute_tensor(whole * number, mesh, [Shard(0)])},
            lambda slot: save_checkpoint(folder / "run" / LAST, {"step": number, "shards": slot}) and None,
        )
        writer.wait()

    save(1)
    error = ""
    with pytest.MonkeyPatch.context() as patch:
        if rank == broken:

            def full(*arguments: Any, **options: Any) -> None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a file")

            # A part of the towers, or what is written last.
            name = "write_data" if broken else "prepare_global_plan"
            patch.setattr(HuggingFaceStorageWriter, name, full)
        try:
            save(2)
        except OSError as failure:
            error = str(failure)
    found = {"model/weights": distribute_tensor(torch.zeros(6, 2), mesh, [Shard(0)])}
    slot = load_checkpoint(folder / "run" / LAST)["shards"]
    assert writer.listed(slot)["model/weights"][0] == whole.shape
    writer.load(slot, found)
    first = torch.equal(found["model/weights"].full_tensor(), whole)
    save(3)
    return error, load_checkpoint(folder / "run" / LAST)["step"], first


@pytest.mark.slow
@pytest.mark.parametrize("broken", [0, 1])
def test_where_one_worker_cannot_write_all_keep_the_checkpoint_before(tmp_path: Path, broken: int) -> None:
    for error, step_of, is_first in run_processes(one_fails, 2, tmp_path, broken):
        assert "No space left" in error
        assert (step_of, is_first) == (3, True)
    assert len(os.listdir(tmp_path / "run" / LAST)) == 2


def one_dies(rank: int, size: int, folder: Path) -> None:
    """One of two workers is gone while both write a second checkpoint: what the other raises, and what one process then reads."""
    group, mesh, whole = WorkerGroup(rank, size), init_device_mesh("cpu", (size,)), torch.arange(12.0).reshape(6, 2)
    writer, raised = ShardWriter(folder / "run", group), False

    def save(number: int) -> None:
        writer.save(
            {"model/weights": distribute_tensor(whole * number, mesh, [Shard(0)])},
            lambda slot: save_checkpoint(folder / "run" / LAST, {"step": number, "shards": slot}) and None,
        )
        writer.wait()

    def leave(found: Any) -> None:
        # Nobody waits for the other one at the end.
        torch.save(found, folder / f"{rank}.pt")
        os._exit(0)

    save(1)
    if rank == 1:
        pytest.MonkeyPatch().setattr(HuggingFaceStorageWriter, "write_data", lambda *arguments: leave(None))
    try:
        save(2)
    except RuntimeError:
        raised = True
    step_of, found = read_by(folder / "run")
    leave((raised, step_of, torch.equal(found, whole)))


def test_where_one_worker_dies_the_checkpoint_before_is_there(tmp_path: Path) -> None:
    assert run_processes(one_dies, 2, tmp_path)[0] == (True, 1, True)


def through_store(rank: int, size: int, folder: Path) -> tuple[int, bool, int]:
    """Both write three checkpoints, each on a disk of its own; what new nodes then find."""
    group, mesh, weights = WorkerGroup(rank, size), init_device_mesh("cpu", (size,)), torch.arange(12.0).reshape(6, 2)
    remote = UPath(f"file://{folder}/remote", auto_mkdir=True)
    here = CheckpointSync(folder / f"node-{rank}", remote)
    writer = ShardWriter(here.local, group, here)
    for number in (1, 2, 3):

        def finish(slot: str, number: int = number) -> None:
            save_checkpoint(here.local / LAST, {"step": number, "shards": slot})

        # The second worker has nothing of the row.
        tensors = {"model/weights": weights * number, "model/row": weights[:1] * number}
        writer.save({name: distribute_tensor(value, mesh, [Shard(0)]) for name, value in tensors.items()}, finish)
    writer.wait()
    there = CheckpointSync(folder / f"new-{rank}", remote)
    there.fetch("" if group.is_first else f"{LAST}/")
    saved, reader = load_checkpoint(there.local / LAST), ShardWriter(there.local, group, there)
    shapes = {name: shape for name, (shape, _) in reader.listed(saved["shards"]).items()}
    assert shapes == {"model/weights": (6, 2), "model/row": (1, 2)}
    found = {name: distribute_tensor(torch.zeros(shape), mesh, [Shard(0)]) for name, shape in shapes.items()}
    reader.load(saved["shards"], found)
    assert torch.equal(found["model/row"].full_tensor(), 3 * weights[:1])
    objects = len(list((folder / "remote" / "objects").iterdir()))
    return saved["step"], torch.equal(found["model/weights"].full_tensor(), 3 * weights), objects


def test_a_store_holds_the_parts_of_all_workers(tmp_path: Path) -> None:
    # The state, the list of the parts, and two parts.
    assert run_processes(through_store, 2, tmp_path) == [(3, True, 4)] * 2


def test_a_call_that_other_workers_do_not_make_is_refused(tmp_path: Path) -> None:
    for said in run_processes(calls_alone, 2, tmp_path):
        assert "outside of `together`" in said


def calls_alone(rank: int, size: int, folder: Path) -> str:
    tower = SmallCnn(width=8).build()
    shard_tower(tower, torch.device("cpu"))
    EqualCalls([tower], torch.device("cpu"))
    with pytest.raises(RuntimeError) as failure:
        tower(torch.zeros(1, 100, 64), torch.tensor([100]))
    return str(failure.value)


@pytest.mark.parametrize(
    ("path", "value", "allowed"),
    [
        ("objective.knowledge", "moco", "nnclr.* MoCo's momentum encoders are a copy of the towers"),
        ("train.distance_to", "run", "none with scaling.shard_towers"),
        ("scaling.validate_beside", True, "false with scaling.shard_towers"),
        ("scaling.gpus_per_worker", 0.5, "0, or more than 0.5"),
        ("model.text.adapt.compile", True, "false with scaling.shard_towers"),
    ],
)
def test_what_needs_whole_towers_is_refused_before_the_start(
    home: Path, monkeypatch: pytest.MonkeyPatch, path: str, value: Any, allowed: str
) -> None:
    monkeypatch.setattr(checks, "check_other_run", lambda folder: None)
    experiment = override(tiny(home / "tones", scaling__shard_towers=True), {path: value})
    with pytest.raises(ValueError, match=rf"{path}: got .*; allowed .*{allowed}"):
        check_experiment(experiment)
    check_experiment(override(experiment, {"scaling.shard_towers": False}))


def test_a_tower_of_sentence_transformers_is_sharded_beside_only_if_it_is_read_as_vectors() -> None:
    tower = {"model.audio": "sentence_transformers", "model.audio.checkpoint": "x", "scaling.shard_towers": True}
    experiment = override(Experiment(), tower)
    check_sharding(experiment)
    for path, value in (("model.augment.time_bands", 1), ("model.interaction", "late")):
        with pytest.raises(ValueError, match=r"model\.audio: got 'sentence_transformers'; .*without late interaction"):
            check_sharding(override(experiment, {path: value}))


def test_towers_that_are_read_as_vectors_leave_nothing_to_shard(home: Path) -> None:
    """Their checkpoints would have a folder without files, which no run can read again."""
    frozen = {f"model__{kind}__adapt__is_frozen": True for kind in ("audio", "text")}
    with pytest.raises(
        ValueError, match=r"scaling\.shard_towers: got 'true'; allowed false where both towers are read"
    ):
        check_experiment(tiny(home / "tones", **frozen, scaling__shard_towers=True))
    of_vectors = override(tiny(home / "tones"), {"model.audio": "vectors", "model.text": "vectors"})
    with pytest.raises(ValueError, match=r"scaling\.shard_towers: got 'true'; .*or a data set of vectors"):
        check_sharding(override(of_vectors, {"scaling.shard_towers": True}))
    # In late interaction a frozen tower is computed in each batch.
    check_experiment(tiny(home / "tones", **frozen, scaling__shard_towers=True, model__interaction="late"))
    check_experiment(tiny(home / "tones", **frozen))


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_two_then_one_then_three_workers_on_ray_give_the_losses_of_a_run_that_was_never_stopped(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"scaling__cpus_per_worker": 0.5, "scaling__ray_data": False, "scaling__max_failures": 0}
    base = tiny(home / "tones", scaling__shard_towers=True, train__batch_size=6, train__epochs=3, **settings)
    prepared, reports = prepared_for(base, home), list[Mapping[str, Any]]()
    whole = override(base, {"scaling.shard_towers": False})
    train_trial(whole, prepared, tmp_path / "whole", reports.append, use_ray_data=False)
    run, done = tmp_path / "run", []
    for workers, lost_after in ((2, 3), (1, 6)):
        monkeypatch.setattr(ray_train, "worker", partial(train_until_lost, lost_after))
        with pytest.raises(Exception, match="LostError"):
            run_trial(override(base, {"scaling.workers": workers}), run, home, [], None)
        progress = load_checkpoint(run / LAST)["progress"]
        done.append((progress["epoch"], progress["step_in_epoch"]))
    monkeypatch.setattr(ray_train, "worker", train)
    run_trial(override(base, {"scaling.workers": 3}), run, home, [], None)
    # Of four steps an epoch.
    assert done == [(0, 3), (2, 1)]
    rows = load_checkpoint(run / LAST)["progress"]["history"]
    expected = [report["train/loss"] for report in reports if "train/loss" in report]
    assert [row["train/loss"] for row in rows] == pytest.approx(expected, rel=1e-6)
