"""The same training by one worker and by several: how far they are apart, for choices of parts of an objective."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch

from ray_atr.models import retriever
from ray_atr.models.retriever import build_retriever
from ray_atr.objectives import KNOWLEDGE, PAIRS
from ray_atr.objectives.correspondence import CORRESPONDENCES
from ray_atr.objectives.knowledge.knowledge import KnowledgeBaseObjective
from ray_atr.objectives.schemes import SCHEMES
from ray_atr.training import inputs
from ray_atr.training.checkpoint import load_checkpoint
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.knowledge_base.refresher import InProcessRefresher
from ray_atr.training.loop import train_trial
from ray_atr.training.run_folder import LAST
from tests.support.processes import run_processes
from tests.support.tiny import any_towers_will_do, make_data, prepared_for, require_weighed, tiny

Part = tuple[tuple[str, str], ...]
"""Parts of an objective, each with the name of one choice of it."""

AXES: dict[str, Any] = {
    "objective.scheme": SCHEMES, "objective.pair": PAIRS, "objective.knowledge": KNOWLEDGE,
    "objective.correspondence": CORRESPONDENCES, "model.interaction": ("global", "late"),
}  # fmt: skip
STEPS_PER_EPOCH = 3
NUDGED = 0
TEACHER = "teacher"


class Trained(NamedTuple):
    """What a training ends with: all weights as one vector, and the mean loss of each epoch; float64."""

    weights: torch.Tensor
    losses: torch.Tensor


class Apart(NamedTuple):
    """The norm of the difference of two trainings over the norm of the first: of their weights, and of their epochs' losses."""

    weights: float
    losses: float


def differences(
    parts: Sequence[Part], folder: Path, *, sizes: Sequence[int], epochs: int, dtype: str = "float32"
) -> dict[Part, list[Apart]]:
    """Part -> for each number of workers how far its training is from one worker's.

    A size of 1 is one worker a second time, `NUDGED` one worker whose first weights are off by one unit in the last place.
    `dtype` is what all of it is computed in; the base's snapshots stay float32.
    """
    make_data(folder / "tones")
    experiment = tiny(folder / "tones")
    tokenizer = prepared_for(experiment, folder).load_tokenizer()
    build_retriever(experiment.model, tokenizer=tokenizer, seed=1).save_pretrained(folder / TEACHER)
    one, *others = (
        run_processes(work, max(1, size), folder / f"{number}-of-{size}", folder, epochs, dtype, parts, size == NUDGED)[
            0
        ]
        for number, size in enumerate((1, *sizes))
    )
    return {part: [apart(found[part], one[part]) for found in others] for part in parts}


def apart(found: Trained, expected: Trained) -> Apart:
    """How far one training is from another."""
    return Apart(*(float((a - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True)))


def trained(home: Path, folder: Path, part: Part, epochs: int, group: WorkerGroup) -> Trained:
    """`STEPS_PER_EPOCH` steps an epoch."""
    changes: dict[str, Any] = dict(part)
    knowledge = changes.get("objective.knowledge", "none")
    if "prototypes" in {one.name for one in dataclasses.fields(KNOWLEDGE[knowledge])}:
        changes["objective__knowledge__prototypes"] = 4
    correspondence = changes.get("objective.correspondence", "none")
    if "warmup_epochs" in {one.name for one in dataclasses.fields(CORRESPONDENCES[correspondence])}:
        changes["objective__correspondence__warmup_epochs"] = 1
    if correspondence == "teacher":
        changes["objective__correspondence__teachers"] = (str(home / TEACHER),)
    if correspondence == "consensus" and changes.get("objective.scheme", "english") == "english":
        # A clip has one caption in each language.
        changes["objective.scheme"] = "kcl"
    if changes.get("objective.pair") == "partial_learning_to_match":
        changes["objective__pair__transport_mass"] = "auto"
    experiment = tiny(home / "tones", train__epochs=epochs, data__noise__ratio=0.2, **changes)
    found = train(experiment, home, folder, group)
    if correspondence != "none":
        require_weighed(folder)
    return found


def train(experiment: Experiment, home: Path, folder: Path, group: WorkerGroup) -> Trained:
    """Train to the end, from where the folder is."""
    rows: list[Any] = []
    with any_towers_will_do():
        train_trial(
            experiment,
            prepared_for(experiment, home),
            folder,
            rows.append,
            group,
            use_ray_data=False,
            make_refresher=refresher,
        )
    weights = load_checkpoint(folder / LAST)["model"]
    return Trained(
        torch.cat([value.flatten().double() for _, value in sorted(weights.items()) if value.is_floating_point()]),
        torch.tensor([row["train/loss"] for row in rows if "train/loss" in row], dtype=torch.float64),
    )


def refresher(knowledge: KnowledgeBaseObjective, encode: Any, folder: Path, group: WorkerGroup) -> InProcessRefresher:
    """The first worker builds the versions of a base; the others find them in the same folder."""
    # As in a training: the thread of the base must not draw its weights from the generator that training uses.
    _ = encode.retriever
    return InProcessRefresher(encode, knowledge.snapshot_settings(0), folder)


@contextmanager
def computing_in_float64() -> Iterator[None]:
    """Within, whatever this process computes in float32 it computes in float64."""
    from_pretrained = retriever.Retriever.from_pretrained

    def of_float64(own: Any) -> Any:
        def embed(self: retriever.Retriever, features: torch.Tensor, *rest: torch.Tensor) -> Any:
            return own(self, features.double(), *rest)

        return embed

    def build(*arguments: Any, **options: Any) -> retriever.Retriever:
        return retriever.build_retriever(*arguments, **options).double()

    def load(*arguments: Any, **options: Any) -> retriever.Retriever:
        return from_pretrained(*arguments, **options).double()

    usual = torch.get_default_dtype()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.Tensor, "float", torch.Tensor.double))
        for name in ("embed_audio", "audio_tokens"):
            own = getattr(retriever.Retriever, name)
            stack.enter_context(mock.patch.object(retriever.Retriever, name, of_float64(own)))
        stack.enter_context(mock.patch.object(retriever.Retriever, "from_pretrained", load))
        stack.enter_context(mock.patch.object(inputs, "build_retriever", build))
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(usual)


def round_first_weights_otherwise() -> None:
    """From now on the retrievers of this process start with weights that are off by one unit in the last place."""
    build_as_usual = inputs.build_retriever

    def build(*arguments: Any, **options: Any) -> retriever.Retriever:
        built = build_as_usual(*arguments, **options)
        with torch.no_grad():
            for weights in built.parameters():
                weights.copy_(torch.nextafter(weights, torch.full_like(weights, torch.inf)))
        return built

    inputs.build_retriever = build


def work(
    rank: int, size: int, own: Path, home: Path, epochs: int, dtype: str, parts: Sequence[Part], is_nudged: bool
) -> dict[Part, Trained]:
    """One of the workers: what each part's training ends with."""
    with computing_in_float64() if dtype == "float64" else nullcontext():
        if is_nudged:
            round_first_weights_otherwise()
        group = WorkerGroup(rank=rank, size=size)
        return {part: trained(home, own / "-".join(name for _, name in part), part, epochs, group) for part in parts}
