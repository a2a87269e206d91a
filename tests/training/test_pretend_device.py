"""Trainings on a pretend GPU: every tensor is where a GPU needs it, and the losses are those of the CPU.

By default nearly each preset, each judge of pairs and each knowledge occurs. RAY_ATR_WHOLE_PRODUCT=1 has each preset meet
each pair of a judge and a knowledge that it allows.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from ray_atr.common.override import override
from ray_atr.objectives import KNOWLEDGE
from ray_atr.objectives.correspondence import CORRESPONDENCES, Estimator
from ray_atr.objectives.presets import PRESETS
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.loop import train_trial
from tests.support.agreement import computing_in_float64
from tests.support.pretend_device import pretend_device
from tests.support.stopped import killed_after
from tests.support.tiny import MEASURED, any_towers_will_do, make_data, prepared_for, require_weighed, tiny
from tests.support.whole_product import IS_WHOLE
from tests.training.test_validation_beside import LateValidator

CPU, GPU = torch.device("cpu"), torch.device("cuda")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="pretends a GPU, and there is a real one")
NEAR = 2e-7
"""Of losses. All of it is computed in float64: torch chooses other kernels by device, which round float32 otherwise, and
some losses and judges make up to 2e-6 of it.
"""
TEACHER = "teacher"
FEW, MANY = 8, 32
"""Clips of one batch. On few the regression of `leave_one_out` finds all or nothing, as rounding decides."""
ON_GPU = {"scaling__gpus_per_worker": 0.6, "scaling__gpus_per_encoder": 0.4}
BASE = {"objective__knowledge__prototypes": 4, "objective__knowledge__refresh_lag": 0}


TRIED = [
    name
    for name, preset in PRESETS.items()
    if preset.knowledge.name == "none" and name not in ("m_ltm_pot_euclidean", "m_ltm_pot_factored")
]
"""The others are one of these with a knowledge, which the cases choose, or have the metrics of `m_ltm` and `m_ltm_pot`'s plan."""


class Case(NamedTuple):
    preset: str
    correspondence: str
    knowledge: str


def allowed(case: Case) -> bool:
    """Whether the parts go together: two baselines are defined for one pair loss."""
    return case.knowledge not in ("moco", "ance") or PRESETS[case.preset].pair.name == "contrastive"


def settings(case: Case, **changes: Any) -> Experiment:
    """The case's experiment, on tones."""
    variant, correspondence = KNOWLEDGE[case.knowledge], CORRESPONDENCES[case.correspondence]
    own = {field.name for field in dataclasses.fields(variant)}
    more: dict[str, Any] = {path: value for path, value in BASE.items() if path.rpartition("__")[2] in own}
    if "warmup_epochs" in {field.name for field in dataclasses.fields(correspondence)}:
        more["objective__correspondence__warmup_epochs"] = 1
    if case.correspondence == "consensus" and PRESETS[case.preset].scheme.name == "english":
        # A clip has one caption in each language.
        more["objective__scheme"] = "kcl"
    return tiny(
        Path("tones"), objective=case.preset, objective__knowledge=case.knowledge, objective__correspondence=case.correspondence,
        **more, **changes,
    )  # fmt: skip


def covering() -> list[Case]:
    """Each preset, with the judges in turn and the knowledge that occurred least; or everything that goes together."""
    if IS_WHOLE:
        return [
            case
            for case in itertools.starmap(Case, itertools.product(PRESETS, CORRESPONDENCES, KNOWLEDGE))
            if allowed(case)
        ]
    cases: list[Case] = []
    for preset, correspondence in zip(TRIED, itertools.cycle(CORRESPONDENCES), strict=False):
        together = [case for knowledge in KNOWLEDGE if allowed(case := Case(preset, correspondence, knowledge))]
        cases.append(min(together, key=lambda case: [one.knowledge for one in cases].count(case.knowledge)))
    return cases


def test_every_part_occurs() -> None:
    cases = covering()
    assert {case.preset for case in cases} == {*(PRESETS if IS_WHOLE else TRIED)}
    assert {case.correspondence for case in cases} == {*CORRESPONDENCES}
    assert {case.knowledge for case in cases} == {*KNOWLEDGE}


@pytest.fixture(scope="module")
def tones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with few and many tones, and a teacher."""
    folder = tmp_path_factory.mktemp("home")
    for clips in (FEW, MANY):
        make_data(folder / str(clips), num_train=clips, num_val=4, num_test=0)
    trained(folder, folder / TEACHER, CPU)
    return folder


@pytest.fixture(autouse=True, scope="module")
def in_float64() -> Iterator[None]:
    with computing_in_float64():
        yield


def trained(home: Path, folder: Path, device: torch.device, case: Case | None = None, **changes: Any) -> list[float]:
    """The loss of each epoch, nearly always of one step, with half of the captions wrong.

    Plain descent: Adam would make of a gradient's last digit a step as long as any other.
    """
    is_of_many = case is not None and case.correspondence == "leave_one_out"
    # Of `ml_clap`, which draws a language a clip, all languages have scores after an epoch of several steps.
    clips = MANY if is_of_many or (case is not None and case.preset == "ml_clap") else FEW
    usual: dict[str, Any] = {
        "data__source": str(home / str(clips)), "data__noise__ratio": 0.5, "train__epochs": 2,
        "train__batch_size": MANY if is_of_many else FEW, "train__optimizer": "sgd", "train__learning_rate": 0.05,
        "train__warmup_fraction": 0.0, "evaluation__every_epochs": 2, "evaluation__probe_clips": 0,
    }  # fmt: skip
    if case is not None and case.correspondence == "neighbours":
        # Its anchors are seen in the first epoch, and pairs are compared with them in the second.
        usual["train__epochs"] = 3
    if case is not None and case.correspondence == "teacher":
        usual["objective__correspondence__teachers"] = (str(home / TEACHER),)
    experiment = settings(case or Case("contrastive", "none", "none"))
    experiment = override(experiment, {path.replace("__", "."): value for path, value in {**usual, **changes}.items()})
    rows: list[Any] = []
    prepared = prepared_for(experiment, home)

    with any_towers_will_do():
        train_trial(experiment, prepared, folder, rows.append, WorkerGroup(device=device), use_ray_data=False)
    if case is not None and case.correspondence != "none":
        require_weighed(folder)
    return [row["train/loss"] for row in rows if "train/loss" in row]


def near(losses: list[float]) -> Any:
    return pytest.approx(losses, rel=NEAR, abs=NEAR)


def require_same(home: Path, folder: Path, case: Case | None = None, **changes: Any) -> None:
    expected = trained(home, folder / "cpu", CPU, case, **changes)
    with pretend_device():
        found = trained(home, folder / "gpu", GPU, case, **{**changes, **ON_GPU})
    assert found == near(expected)


@pytest.mark.slow
@pytest.mark.parametrize("case", covering(), ids="-".join)
def test_a_training_leaves_nothing_on_the_cpu_and_has_its_losses(case: Case, tones: Path, tmp_path: Path) -> None:
    require_same(tones, tmp_path, case)


@pytest.mark.slow
@pytest.mark.parametrize("first", [CPU, GPU], ids=str)
def test_a_checkpoint_of_one_device_is_resumed_on_the_other(first: torch.device, tones: Path, tmp_path: Path) -> None:
    case = Case("contrastive", "small_loss", "moco")
    expected = trained(tones, tmp_path / "whole", CPU, case)
    stopped: list[float] = []

    def train(device: torch.device) -> None:
        with pretend_device() if device == GPU else nullcontext():
            stopped[:] = trained(tones, tmp_path / "run", device, case)

    # An epoch has one step.
    with killed_after(1):
        train(first)
    train(GPU if first == CPU else CPU)
    assert stopped == near(expected)


def test_weights_that_are_validated_beside_training_are_on_the_cpu_also_when_it_is_resumed(
    tones: Path, tmp_path: Path
) -> None:
    devices: list[set[str]] = []

    class Watched(LateValidator):
        def begin(self, weights: Mapping[str, torch.Tensor]) -> None:
            devices.append({one.device.type for one in weights.values()})
            super().begin({name: one.cpu() for name, one in weights.items()})

    experiment = tiny(tones / str(FEW), train__batch_size=FEW // 2, **MEASURED, **ON_GPU)
    prepared = prepared_for(experiment, tones)

    def train() -> None:
        group, rows = WorkerGroup(device=GPU), list[Any]()
        train_trial(experiment, prepared, tmp_path, rows.append, group, use_ray_data=False, make_validator=Watched)

    # In the second of two epochs of two steps each.
    with pretend_device():
        with killed_after(3):
            train()
        train()
    assert devices == [{"cpu"}] * 3


def test_a_tensor_made_without_its_device_is_refused(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def table(self: Estimator, name: str, value: float, *more: int) -> torch.Tensor:
        shape = len(self.pairs.clip_ids), self.pairs.slots, self.pairs.languages, *more
        self.tables[name] = torch.full(shape, value)
        return self.tables[name]

    monkeypatch.setattr(Estimator, "table", table)
    case = Case("contrastive", "small_loss", "none")
    trained(tones, tmp_path / "cpu", CPU, case)
    with pretend_device(), pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        trained(tones, tmp_path / "gpu", GPU, case)
