"""On a pretend GPU: several workers, frozen towers, windows, evaluation and audit give what the CPU gives."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ray_atr.common.ranks import Ranks
from ray_atr.data.features import open_features
from ray_atr.data.shards import write_clips
from ray_atr.evaluation.options import Encoding, EvaluationOptions
from ray_atr.evaluation.run import evaluate
from ray_atr.models.audio import SmallCnnTower
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.models.vectors import TextVectorsTower
from ray_atr.objectives import preset
from ray_atr.objectives.pairs.ring import Ring
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import Prepared
from ray_atr.training.loop import train_trial
from ray_atr.training.train_modules import train
from ray_atr.workshop.audit.options import AuditOptions, CrossFit
from ray_atr.workshop.audit.run import TABLE_FILE, audit_data_set
from tests.support.agreement import computing_in_float64
from tests.support.modules import before_each
from tests.support.pretend_device import PretendTensor, pretend_device
from tests.support.processes import run_processes
from tests.support.tiny import (
    any_towers_will_do,
    make_data,
    prepared_for,
    require_weighed,
    short_resnets,
    tiny,
    tone_clip,
)
from tests.support.whole_product import IS_WHOLE

CPU, GPU = torch.device("cpu"), torch.device("cuda")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="pretends a GPU, and there is a real one")
NEAR = 2e-7
"""Of losses in float64, since torch chooses kernels by device, which round float32 otherwise."""
WORKERS = 2
HERE = Encoding(ray="never", batch_size=3)
SHARED: dict[str, Any] = {"scaling__share_losses_from": 2}
ALONE: dict[str, dict[str, Any]] = {
    "contrastive": {"objective": "contrastive"},
    "kcl, shared": {"objective": "kcl", **SHARED},
    "cacl, chunks": {"objective": "cacl", "train__embedding_chunk": 3},
    "sigmoid": {"objective__pair": "sigmoid"},
    "triplet": {"objective": "triplet", "train__epochs": 1},
    "m_ltm": {"objective": "m_ltm"},
    "m_ltm, shared": {"objective": "m_ltm", **SHARED},
    "m_ltm_pot, shared": {"objective": "m_ltm_pot", "train__epochs": 1, **SHARED},
    "moco": {"objective__knowledge": "moco"},
    "small_loss": {"objective__correspondence": "small_loss", "objective__correspondence__warmup_epochs": 1},
    "rematch": {"objective__correspondence": "rematch", "objective__correspondence__warmup_epochs": 1},
    "leave_one_out": {"objective__correspondence": "leave_one_out"},
    "oracle": {"objective__correspondence": "oracle"},
    "late interaction": {"model__interaction": "late"},
    "accumulation": {"train__batches_per_step": 2, "train__batch_size": 4},
    # `test_batch_norm.py` has their gradients.
    "batch norms": {"model__audio": "resnet38", "model__audio__width_divisor": 16, "model__audio__trains_batch_norms": True,
                    "train__epochs": 1, "train__learning_rate": 0.001, "model__augment__time_bands": 1,
                    "model__augment__fill": "zero_after_norm"},
}  # fmt: skip
TOGETHER = (
    ("kcl, shared", "small_loss"),
    ("cacl, chunks", "rematch"),
    ("sigmoid", "batch norms"),
    ("triplet", "late interaction"),
    ("m_ltm_pot, shared",),
    ("moco", "leave_one_out"),
)
"""What travels: rows around a ring, gathered embeddings and tokens, sums of a plan, keys, statistics; each part in one run but
those that ask others as another one does."""
CASES = (
    ALONE
    if IS_WHOLE
    else {" with ".join(names): {k: v for one in names for k, v in ALONE[one].items()} for names in TOGETHER}
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    make_data(folder / "tones", num_train=16, num_val=8, num_test=8)
    return folder


def experiment_of(home: Path, **changes: Any) -> Experiment:
    """Plain descent: Adam would make of a gradient's last digit a step as long as any other."""
    usual: dict[str, Any] = {
        "train__epochs": 2, "train__optimizer": "sgd", "train__learning_rate": 0.05, "train__warmup_fraction": 0.0,
        "train__precision": "float32", "data__noise__ratio": 0.5, "evaluation__every_epochs": 2, "model__text__dropout": 0.0,
    }  # fmt: skip
    return tiny(home / "tones", **{**usual, **changes})


@any_towers_will_do()
def losses(
    experiment: Experiment, prepared: Prepared, folder: Path, device: torch.device, rank: int = 0, size: int = 1
) -> list[float]:
    rows: list[Any] = []
    group = WorkerGroup(rank=rank, size=size, device=device, share_losses_from=experiment.scaling.losses_shared_from)
    train_trial(experiment, prepared, folder, rows.append, group, use_ray_data=False)
    if experiment.objective.correspondence.name != "none":
        require_weighed(folder)
    return [row["train/loss"] for row in rows if "train/loss" in row]


def worker(
    rank: int, size: int, folder: Path, cases: list[tuple[Experiment, Prepared]], is_pretended: bool
) -> list[list[float]]:
    with computing_in_float64(), short_resnets(), pretend_device() if is_pretended else nullcontext():
        return [
            losses(experiment, prepared, folder / f"case-{number}", GPU if is_pretended else CPU, rank, size)
            for number, (experiment, prepared) in enumerate(cases)
        ]


@pytest.mark.slow
def test_two_workers_send_each_other_nothing_of_the_cpu(tmp_path: Path) -> None:
    """In one or two epochs of one step. One case is tested at its end too: an evaluation is the slowest part."""
    cases = []
    for name, changes in CASES.items():
        is_tested = name.startswith("kcl, shared")
        # On few clips the regression of `leave_one_out` finds all or nothing.
        clips = 32 if "leave_one_out" in name else 8
        home = tmp_path / f"{clips}-{is_tested}"
        if not home.exists():
            make_data(home / "tones", num_train=clips, num_val=4, num_test=4 if is_tested else 0)
        made = experiment_of(home, **{"train__batch_size": clips, **changes})
        cases.append((made, prepared_for(made, home)))
    found, _ = run_processes(worker, WORKERS, tmp_path / "gpus", cases, True)
    # What two workers compute is what one computes: `test_exactness.py`.
    (expected,) = run_processes(worker, 1, tmp_path / "cpu", cases, False)
    for name, (made, _), there, here in zip(CASES, cases, found, expected, strict=True):
        assert len(here) == made.train.epochs
        assert there == pytest.approx(here, rel=NEAR, abs=NEAR), name


def sent(rank: int, size: int, folder: Path) -> tuple[list[str], list[tuple[bool, list[float]]]]:
    """What is said to a sum, to blocks that pass around, and to messages, of the CPU's tensors; then the GPU's blocks."""
    ring = Ring(Ranks.here(), (slice(0, 1), slice(1, 2)))
    attempts: list[Callable[[], Any]] = [
        lambda: torch.distributed.all_reduce(torch.zeros(1)),
        lambda: list(ring.around(torch.zeros(1))),
        lambda: (torch.distributed.isend if rank else torch.distributed.irecv)(torch.zeros(1), 1 - rank),
        lambda: (torch.distributed.send if rank else torch.distributed.recv)(torch.zeros(1), 1 - rank),
    ]
    said = []
    with pretend_device():
        for attempt in attempts:
            try:
                attempt()
            except RuntimeError as error:
                said.append(str(error))
            else:
                said.append("sent")
        blocks = list(ring.around(torch.full((1,), float(rank), device="cuda")))
    return said, [(isinstance(block, PretendTensor), block.tolist()) for _, block in blocks]


def test_what_the_cpu_holds_is_sent_to_nobody_and_what_the_gpu_holds_is(tmp_path: Path) -> None:
    for rank, (said, blocks) in enumerate(run_processes(sent, WORKERS, tmp_path)):
        assert len(said) == 4
        assert all("No backend type associated with device type cpu" in one for one in said), said
        assert blocks == [(True, [float(rank)]), (True, [float(1 - rank)])]


@pytest.mark.slow
def test_clips_of_several_windows_are_heard_there(tmp_path: Path) -> None:
    clips = [
        tone_clip(split, n, {"eng": [f"tone {n}"], "fra": [f"son {n}"]}, seconds=0.4 + 0.5 * (n % 3))
        for split, count in (("train", 16), ("val", 8))
        for n in range(count)
    ]
    write_clips(tmp_path / "tones", clips, name="tones", licence="none")
    experiment = experiment_of(tmp_path, model__windows="mean", model__audio__clip_seconds=0.5)
    prepared = prepared_for(experiment, tmp_path)
    assert open_features(prepared.features, "train").num_windows.max() > 1
    with computing_in_float64():
        expected = losses(experiment, prepared, tmp_path / "cpu", CPU)
        with pretend_device():
            found = losses(experiment, prepared, tmp_path / "gpu", GPU)
    assert found == pytest.approx(expected, rel=NEAR, abs=NEAR)


def test_frozen_towers_encode_there_what_they_encode_here(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = TextVectorsTower.looked_up
    # Towers are float64 here, and what they encode, and the vectors that they made, are kept in fewer digits.
    monkeypatch.setattr(TextVectorsTower, "looked_up", lambda tower, rows: looked_up(tower, rows).double())
    read_in_full = before_each(SmallCnnTower, lambda _, inputs: (inputs[0].double(), *inputs[1:]))
    changes = {"model__audio__adapt__is_frozen": True, "model__text__adapt__is_frozen": True}
    experiment = experiment_of(home, **changes, scaling__gpus_per_worker=0.5)
    seen: list[bool] = []
    with computing_in_float64(), read_in_full:
        here = prepared_for(experiment, tmp_path / "cpu")
        expected = losses(experiment, here, tmp_path / "trial", CPU)
        look = before_each(torch.nn.Linear, lambda _, inputs: seen.append(isinstance(inputs[0], PretendTensor)))
        with pretend_device(), look:
            there = prepared_for(experiment, tmp_path / "gpu")
            assert seen
            assert all(seen)
            found = losses(experiment, there, tmp_path / "other", GPU)
    assert here.is_audio_encoded
    assert here.captions is not None
    for split in ("train", "val"):
        one, other = (open_features(ready.features, split) for ready in (here, there))
        rows = np.arange(len(one))
        np.testing.assert_allclose(one.features(rows)[0], other.features(rows)[0], atol=NEAR)
    assert found == pytest.approx(expected, rel=NEAR, abs=NEAR)


@pytest.fixture(scope="module")
def saved(home: Path) -> dict[str, Path]:
    """Retrievers that compare pooled embeddings, and frames with tokens."""
    folders = {}
    for name, changes in (("pooled", {}), ("late", {"model__interaction": "late"})):
        experiment = experiment_of(home, **changes)
        tokenizer = prepared_for(experiment, home).load_tokenizer()
        retriever = build_retriever(
            experiment.model, tokenizer=tokenizer, seed=0, learned=experiment.learned, ranking=experiment.ranking
        )
        retriever.languages = ("eng", "fra")
        retriever.save_pretrained(home / name)
        folders[name] = home / name
    return folders


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pooled", "late"])
def test_an_evaluation_there_is_one_here(home: Path, saved: dict[str, Path], tmp_path: Path, name: str) -> None:
    options = EvaluationOptions(data=str(home / "tones"), split="test", draws=200, mlflow=False, figures=False)
    quiet: dict[str, Any] = {"encoding": HERE, "echo": lambda message: None}
    expected = evaluate([str(saved[name])], options, out=tmp_path / "cpu", **quiet)
    with pretend_device():
        found = evaluate([str(saved[name])], options, out=tmp_path / "gpu", **quiet)
    numbers = {key: value for key, value in expected.page.metrics.items() if isinstance(value, float)}
    assert len(numbers) > 10
    assert {key: found.page.metrics[key] for key in numbers} == pytest.approx(numbers, abs=2e-5, nan_ok=True)


def test_an_audit_there_is_one_here(home: Path, saved: dict[str, Path], tmp_path: Path) -> None:
    def posteriors(out: Path) -> dict[tuple[str, ...], float]:
        folder = audit_data_set(
            str(home / "tones"), str(saved["pooled"]), out, AuditOptions(split="train"), encoding=HERE,
            cross_fit=CrossFit(folds=4), echo=lambda message: None,
        )  # fmt: skip
        with (folder / TABLE_FILE).open(newline="") as file:
            rows = list(csv.DictReader(file))
        return {(row["clip_id"], row["language"], row["caption_number"]): float(row["wrong"]) for row in rows}

    expected = posteriors(tmp_path / "cpu")
    devices: list[str] = []
    own = Retriever.embed_audio

    def look(retriever: Retriever, *arguments: Any) -> Any:
        devices.append(retriever.device.type)
        return own(retriever, *arguments)

    with pretend_device(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Retriever, "embed_audio", look)
        found = posteriors(tmp_path / "gpu")
    assert set(devices) == {"cuda"}
    assert found.keys() == expected.keys()
    for pair, wrong in expected.items():
        assert found[pair] == pytest.approx(wrong, abs=0.02)


class TonesThere:
    """Twelve clips as rows of the identity on the device, half of them with a caption in a second language."""

    languages = ("eng", "fra")

    def __len__(self) -> int:
        return 12

    def batch(self, rows: NDArray[np.int64]) -> tuple[torch.Tensor, list[list[str | None]]]:
        return torch.eye(12)[rows].to("cuda"), [[f"tone {row}", f"son {row}" if row % 2 else None] for row in rows]


class ToneNames(torch.nn.Embedding):
    def forward(self, texts: list[str]) -> torch.Tensor:  # type: ignore[override]
        return super().forward(torch.tensor([int(text.split()[1]) for text in texts], device=self.weight.device))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["contrastive", "m_ltm", "cacl", "kcl"])
def test_modules_of_ones_own_train_where_they_are(name: str) -> None:
    with pretend_device():
        audio, text = torch.nn.Linear(12, 4).to("cuda"), ToneNames(12, 4).to("cuda")
        trained = train(audio, text, preset(name), TonesThere(), validation=TonesThere(), epochs=2, batch_size=4)
    assert math.isfinite(trained.history[-1]["train/loss"])
