"""A run is the one that its settings describe: its rates, updates, dropout, projections and the epoch that it keeps.

Each is compared with something that is not this package's training loop: a library's schedule, an optimiser written out by
hand, the weights as the run itself had them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import ray_atr.training.batch as training_batch
import ray_atr.training.loop as loop
from ray_atr.common.override import flatten, override
from ray_atr.data.captions import TrainingCaptions
from ray_atr.data.features import open_features
from ray_atr.data.stream import training_plan
from ray_atr.models.audio import SmallCnnTower
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.models.tower import pad_tokens
from ray_atr.objectives import Embeddings
from ray_atr.training import epoch_end, validation
from ray_atr.training.base_encoding import SourceEncoder
from ray_atr.training.batch import TrainingData
from ray_atr.training.checkpoint import load_checkpoint
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import Prepared
from ray_atr.training.loop import train_trial
from ray_atr.training.run_folder import BEST, LAST
from tests.support.modules import before_each
from tests.support.processes import run_processes
from tests.support.spies import spied
from tests.support.tiny import MEASURED, make_data, prepared_for, tiny
from tests.support.validations import measure_by

RATE = 0.003


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    make_data(folder / "tones", num_train=16, num_val=4, num_test=4)
    return folder


def run(experiment: Experiment, home: Path, folder: Path) -> list[dict[str, Any]]:
    """Trains to the end in this process; what was reported."""
    reports: list[dict[str, Any]] = []
    train_trial(experiment, prepared_for(experiment, home), folder, reports.append, use_ray_data=False)
    return reports


@contextmanager
def before_each_step(look: Any) -> Iterator[None]:
    """Calls `look(optimizer)` before each step of every optimiser."""
    handle = register_optimizer_step_pre_hook(lambda optimizer, inputs, options: look(optimizer))
    try:
        yield
    finally:
        handle.remove()


def library_rates(epochs: int, steps: int, warm: int) -> list[float]:
    """The rate at each step, by transformers."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=RATE)
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, warm, epochs * steps)
    rates = []
    for _ in range(epochs * steps):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.slow
@pytest.mark.parametrize(("fraction", "warm"), [(0.0, 0), (0.3, 3), (0.5, 5)])
def test_the_rate_rises_and_falls_as_the_library_says(home: Path, tmp_path: Path, fraction: float, warm: int) -> None:
    experiment = tiny(home / "tones", train__epochs=5, train__warmup_fraction=fraction, evaluation__every_epochs=5)
    rates: list[float] = []
    with before_each_step(lambda optimizer: rates.append(optimizer.param_groups[0]["lr"])):
        run(experiment, home, tmp_path)
    assert rates == pytest.approx(library_rates(5, 2, warm), abs=1e-12)


def gradients(experiment: Experiment, retriever: Retriever, prepared: Prepared, step: int) -> dict[str, Tensor]:
    """The gradient of a step's loss as a few lines outside of the training loop compute it."""
    features = open_features(prepared.features, "train")
    captions = TrainingCaptions(features, experiment.data.languages, experiment.data.noise, experiment.seed)
    rows = training_plan(features.clip_ids, seed=experiment.seed, epoch=0, batch_size=8).rows[step]
    array, frames = features.features(rows)
    sentences = [texts[0] for texts in captions.batch(rows, 0).texts]
    tokens, mask = pad_tokens(
        retriever.text_tower.tokenise(sentences, ["eng"] * len(rows)), retriever.text_tower.pad_token_id
    )
    audio = retriever.embed_audio(torch.from_numpy(array.astype(np.float32)), torch.from_numpy(frames.astype(np.int64)))
    text = retriever.embed_text(tokens, mask)
    loss = experiment.objective(Embeddings(audio=audio, text=text[:, None])).loss
    named = dict(retriever.named_parameters())
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def by_hand(experiment: Experiment, home: Path) -> tuple[dict[str, Tensor], list[float]]:
    """(weights after two updates, the norms of the gradients before clipping)."""
    settings, prepared = experiment.train, prepared_for(experiment, home)
    retriever = build_retriever(experiment.model, tokenizer=prepared.load_tokenizer(), seed=experiment.seed)
    weights: dict[str, Tensor] = dict(retriever.named_parameters())
    first = {name: torch.zeros_like(value) for name, value in weights.items()}
    second = {name: torch.zeros_like(value) for name, value in weights.items()}
    norms = []
    for step, rate in enumerate(library_rates(1, 2, 0)):
        gradient = gradients(experiment, retriever, prepared, step)
        norm = torch.cat([value.flatten() for value in gradient.values()]).norm()
        norms.append(float(norm))
        with torch.no_grad():
            for name, weight in weights.items():
                slope = gradient[name] * min(1.0, settings.clip_norm / (float(norm) + 1e-6))
                decay = settings.weight_decay if weight.ndim > 1 else 0.0
                if settings.optimizer == "adamw":
                    weight -= rate * decay * weight
                else:
                    slope = slope + decay * weight
                if settings.optimizer == "sgd":
                    first[name] = settings.momentum * first[name] + slope
                    weight -= rate * first[name]
                    continue
                first[name] = 0.9 * first[name] + 0.1 * slope
                second[name] = 0.999 * second[name] + 0.001 * slope**2
                mean, square = first[name] / (1 - 0.9 ** (step + 1)), second[name] / (1 - 0.999 ** (step + 1))
                weight -= rate * mean / (square.sqrt() + 1e-8)
    return {name: value.detach() for name, value in weights.items()}, norms


def relative_difference(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Of all weights together."""
    off = torch.cat([(found[name] - value).flatten() for name, value in expected.items()])
    return float(off.norm() / torch.cat([value.flatten() for value in expected.values()]).norm())


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_the_first_two_updates_are_those_of_the_optimiser_written_out(
    home: Path, tmp_path: Path, optimizer: str
) -> None:
    experiment = tiny(
        home / "tones",
        data__languages="eng",
        train__epochs=1,
        train__optimizer=optimizer,
        train__warmup_fraction=0.0,
        train__weight_decay=0.1,
        train__momentum=0.7,
        train__clip_norm=0.5,
        train__learning_rate=RATE,
        model__text__dropout=0.0,
    )
    expected, norms = by_hand(experiment, home)
    # The first gradient is clipped and the second is clipped by another factor, else Adam would not notice.
    assert min(norms) > 0.5
    assert abs(norms[0] - norms[1]) > 0.1
    prepared = prepared_for(experiment, home)
    start = build_retriever(experiment.model, tokenizer=prepared.load_tokenizer(), seed=experiment.seed).state_dict()
    run(experiment, home, tmp_path)
    found = load_checkpoint(tmp_path / LAST)["model"]
    # Of how far the weights moved, not of the weights: another beta of Adam changes little but the second update. Adam with its
    # decay in the gradient is less exact, because it divides gradients that are rounding by their own size.
    moved = ({name: weights[name] - start[name] for name in expected} for weights in (found, expected))
    assert relative_difference(*moved) < (1.4e-3 if optimizer == "adam" else 5e-4)


def dropped(rank: int, size: int, folder: Path, flat: dict[str, Any], prepared: Prepared) -> Tensor:
    """A worker that trains; which values of the audio tower its first dropout set to 0."""
    masks: list[Tensor] = []

    def look(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(module, nn.Dropout) and module.training:
            masks.append(output == 0)

    nn.modules.module.register_module_forward_hook(look)
    group = WorkerGroup(rank=rank, size=size)
    experiment = override(Experiment(), flat)
    train_trial(experiment, prepared, folder, lambda metrics: None, group, use_ray_data=False)
    return masks[0]


def test_each_worker_drops_values_of_its_own(home: Path, tmp_path: Path) -> None:
    experiment = tiny(
        home / "tones",
        train__epochs=1,
        model__audio="ced",
        model__audio__size="tiny",
        model__audio__num_blocks=1,
        model__audio__dropout=0.5,
    )
    mine, other = run_processes(dropped, 2, tmp_path, flatten(experiment), prepared_for(experiment, home))
    assert mine.shape == other.shape
    assert 0.3 < float(mine.float().mean()) < 0.7
    assert not torch.equal(mine, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "best"), [([0.1, 0.5, 0.3], 2), ([0.5, 0.4, 0.3], 1), ([0.1, 0.4, 0.4], 2), ([0.1, 0.2, 0.3], 3)]
)
def test_the_epoch_that_is_reported_is_the_one_that_is_kept(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[float], best: int
) -> None:
    experiment = tiny(home / "tones", train__epochs=3, **MEASURED)
    seen: list[dict[str, Tensor]] = []

    def validate(retriever: Retriever, *arguments: Any, **options: Any) -> dict[str, float]:
        """The given values, and the weights that were validated."""
        seen.append({name: value.clone() for name, value in retriever.state_dict().items()})
        return {experiment.evaluation.select_by: values[min(len(seen), 3) - 1]}

    measure_by(monkeypatch, validate)
    reports = run(experiment, home, tmp_path)
    # After the three validations the kept one is tested.
    assert len(seen) == 4
    kept = Retriever.from_pretrained(tmp_path / BEST).state_dict()
    for weights in (kept, seen[3]):
        assert all(torch.equal(weights[name], value) for name, value in seen[best - 1].items())
    assert not torch.equal(kept["audio_projection.weight"], seen[best % 3]["audio_projection.weight"])
    assert [report["best_epoch"] for report in reports][-2:] == [best, best]


@pytest.mark.parametrize("every", [1, 2])
def test_the_metric_is_projected_after_every_step_that_is_to(home: Path, tmp_path: Path, every: int) -> None:
    experiment = tiny(
        home / "tones",
        train__epochs=3,
        train__warmup_fraction=0.0,
        # Large enough that every step leaves the cone.
        train__learning_rate=3.0,
        objective__pair="learning_to_match",
        objective__pair__metric="mahalanobis",
        objective__pair__project_every=every,
    )
    lowest: list[float] = []

    def look(optimizer: torch.optim.Optimizer) -> None:
        """The metric as the step before left it; it is the last parameter."""
        metric = optimizer.param_groups[-1]["params"][-1]
        assert metric.shape == (16, 16)
        lowest.append(float(torch.linalg.eigvalsh(metric.detach().double()).min()))

    with before_each_step(look):
        run(experiment, home, tmp_path)
    is_projected = [value > -1e-4 for value in lowest]
    assert is_projected == [step % every == 0 for step in range(6)]


def measured(
    home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> tuple[list[str], list[tuple[list[str], int, int]]]:
    """The clips that a run of four epochs trains on, and of each of its measurements the clips, the epoch after which it was and
    the most captions of a clip.
    """
    experiment = tiny(home / "tones", train__epochs=4, train__batch_size=4, **changes)
    trained: list[list[str]] = []
    found: list[tuple[list[str], int, int]] = []

    def measure(retriever: Any, texts: Any, features: Any, *arguments: Any, **options: Any) -> dict[str, float]:
        found.append((features.clip_ids, len(trained), options.get("max_captions", 0)))
        return {experiment.evaluation.select_by: 0.5}

    spied(monkeypatch, loop, "begin_epoch", lambda _, state, data, epoch: trained.append(data.features.clip_ids))
    measure_by(monkeypatch, measure)
    run(experiment, home, folder)
    return trained[0], found


def test_each_split_is_used_for_what_it_is_set_to(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_split(split: str) -> list[str]:
        return open_features(prepared_for(tiny(home / "tones"), home).features, split).clip_ids

    splits = {"data__train_split": "val", "data__validation_split": "test", "data__test_split": "train"}
    trained, found = measured(home, tmp_path, monkeypatch, evaluation__every_epochs=4, **splits)
    assert trained == of_split("val")
    assert [clips for clips, *_ in found] == [of_split("test"), of_split("train")]


def test_validations_are_after_so_many_epochs_and_of_so_many_captions(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, found = measured(
        home,
        tmp_path,
        monkeypatch,
        evaluation__every_epochs=3,
        evaluation__validation_captions=2,
        data__test_split="test",
    )
    # After the last epoch too; the test has all captions.
    assert [rest for _, *rest in found] == [[3, 2], [4, 2], [4, 0]]


@pytest.mark.parametrize(("every", "times"), [(0, 1), (1, 4), (3, 2), (4, 1)])
def test_a_checkpoint_is_written_within_an_epoch_as_often_as_is_set(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, times: int
) -> None:
    """An epoch of four steps, at whose end there is one."""
    written: list[int] = []
    spied(monkeypatch, loop, "save_state", lambda _, state, *of: written.append(state.progress.step_in_epoch))
    experiment = tiny(home / "tones", train__epochs=1, train__batch_size=4, train__checkpoint_every_steps=every)
    run(experiment, home, tmp_path)
    assert len(written) == times


@pytest.mark.parametrize("chunk", [0, 3])
def test_a_step_embeds_so_many_clips_at_a_time(home: Path, tmp_path: Path, chunk: int) -> None:
    sizes: list[int] = []

    def look(tower: SmallCnnTower, inputs: tuple[Any, ...]) -> None:
        if tower.training:
            sizes.append(len(inputs[0]))

    with before_each(SmallCnnTower, look):
        run(tiny(home / "tones", train__epochs=1, train__embedding_chunk=chunk), home, tmp_path)
    assert max(sizes) == (chunk or 8)


@pytest.mark.parametrize("clips", [0, 5])
def test_drift_is_measured_with_so_many_clips(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clips: int
) -> None:
    probed: list[int] = []
    spied(monkeypatch, epoch_end, "DriftProbe", lambda _, source, seed, count: probed.append(count))
    ask = {"objective": "ask", "objective__knowledge__prototypes": 4, "objective__knowledge__refresh_lag": 0}
    reports = run(tiny(home / "tones", train__epochs=1, evaluation__probe_clips=clips, **ask), home, tmp_path)
    assert probed == [clips] * (clips > 0)
    assert any("drift" in name for name in reports[0]) is (clips > 0)


def test_what_is_relevant_in_a_validation_is_what_is_set(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    spied(monkeypatch, validation, "align_captions", lambda _, *of, relevance, **options: asked.append(relevance))
    run(tiny(home / "tones", train__epochs=1, evaluation__relevance="clip"), home, tmp_path)
    assert asked == ["clip"]


def test_features_are_kept_in_the_store_that_is_set(tmp_path: Path) -> None:
    make_data(tmp_path / "tones", num_train=8, num_val=4, num_test=4)
    store = tmp_path / "store"
    experiment = tiny(tmp_path / "tones", scaling__feature_store=str(store))
    prepared_for(experiment, tmp_path / "one")
    kept = {path: path.stat().st_mtime_ns for path in store.rglob("*") if path.is_file()}
    assert len(kept) > 3
    prepared_for(experiment, tmp_path / "other")
    assert kept == {path: path.stat().st_mtime_ns for path in store.rglob("*") if path.is_file()}


def test_a_setting_of_a_ranking_or_of_memory_is_passed_on() -> None:
    experiment = override(
        Experiment(),
        {
            "evaluation.ranking": "plan",
            "evaluation.plan_sweeps": 7,
            "evaluation.plan_epsilon": 0.2,
            "scaling.loss_memory": 3,
        },
    )
    assert (experiment.ranking.ranking, experiment.ranking.plan.sweeps, experiment.ranking.plan.epsilon) == (
        "plan",
        7,
        0.2,
    )
    assert experiment.scaling.loss_bytes == 3 * 2**30
    assert Experiment().scaling.loss_bytes is None
    objective = override(Experiment(), {"objective": "m_ltm", "objective.pair.epsilon": 0.3})
    assert objective.ranking.plan.epsilon == 0.3


@pytest.mark.parametrize(("positives", "groups"), [("identity", 16), ("captions", 16), ("labels", 4)])
def test_positives_of_a_batch_and_of_a_base_are_what_is_set(home: Path, positives: str, groups: int) -> None:
    """Of 16 clips of four pitches, each with a caption of its own."""
    experiment = tiny(home / "tones", data__positives=positives, objective="ask")
    prepared = prepared_for(experiment, home)
    batch = TrainingData(experiment, prepared, WorkerGroup()).captions.batch(np.arange(16), 0)
    for found in (batch.groups, SourceEncoder(experiment, prepared).source.groups):
        assert len(set(np.asarray(found).tolist())) == groups


def test_an_order_in_shards_has_the_parts_and_row_groups_that_are_set(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[tuple[int, int]] = []

    def note(_: Any, *of: Any, parts: int, mixed: int, **order: int) -> None:
        planned.append((parts, mixed))

    spied(monkeypatch, training_batch, "plan_in_shards", note)
    experiment = tiny(home / "tones", data__order="shards", data__order_parts=1, data__order_groups=3)
    next(TrainingData(experiment, prepared_for(experiment, home), WorkerGroup()).epochs(0, 0, use_ray=False))
    assert planned == [(1, 3)]
