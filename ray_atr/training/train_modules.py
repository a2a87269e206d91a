"""Train any two modules on any data set object in this process: no Ray, no files, no settings tree.

Shapes: N clips, B of them in a batch, K languages, D embedding width.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from ray_atr.common.override import override
from ray_atr.common.positives import caption_groups
from ray_atr.common.settings import refuse
from ray_atr.data.stream import evaluation_plan, training_plan
from ray_atr.metrics import evaluate_languages
from ray_atr.objectives import Embeddings, Objective
from ray_atr.objectives.pairs.learned import LearnedParameters
from ray_atr.objectives.pairs.mahalanobis import Mahalanobis
from ray_atr.training.checkpoint import Progress
from ray_atr.training.checks import check_selection
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.step import check_finite

Captions = Sequence[Sequence[str | None]]
"""A caption of each clip in each language, [B][K]; None, or a blank one, if a clip has none in a language."""


class ClipSet(Protocol):
    """A data set: its languages (the first one is the anchor of schemes that have one), its size, and batches of it."""

    languages: Sequence[str]

    def __len__(self) -> int:
        """The number of clips N."""

    def batch(self, rows: NDArray[np.int64]) -> tuple[Any, Captions]:
        """(the audio module's input for the clips with these numbers, their captions)."""


@dataclass(frozen=True)
class Trained:
    """The result of `train`. The given modules have the weights of the best epoch."""

    history: list[dict[str, float]]
    """each epoch's loss (`train/loss`), scalars and validation metrics (`text_to_audio/eng/recall_at_1`)"""
    best_epoch: int
    """counted from 1; the last one without a validation set"""
    learned: LearnedParameters
    """what the objective learned besides the modules: a temperature, a metric, a bias"""


def train(
    audio: nn.Module,
    text: nn.Module,
    objective: Objective,
    data: ClipSet,
    *,
    validation: ClipSet | None = None,
    epochs: int = 10,
    batch_size: int = 32,
    learning_rate: float = 1e-3,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
    clip_norm: float = 1.0,
    patience: int = 0,
    select_by: str = "text_to_audio/mean/recall_at_1",
    seed: int = 0,
    report: Callable[[dict[str, float]], None] | None = None,
) -> Trained:
    """Train two modules and what the objective learns, and leave the weights of the best validation epoch in them.

    audio, text   modules: the clips of `data.batch` -> [B, D]; a list of n captions -> [n, D].
    objective     any without a knowledge base and without a correspondence, which need a prepared data set.
    data          N training clips and their captions in K languages (`ClipSet`).
    validation    clips that choose the best epoch; None: the last epoch is the best one.
    epochs        passes over the clips. The last clips of a pass that fill no batch are left out.
    batch_size    clips of a batch, B.
    select_by     the validation metric that chooses the epoch, the higher the better.
    seed          seed of the order of the clips and of the languages that a scheme draws.
    optimizer     makes the optimiser of all parameters; None: AdamW at `learning_rate`.
    clip_norm     largest norm of the gradient; 0: no limit.
    patience      epochs without a better `select_by` on the validation set after which it stops; 0: never.
    report        called with each epoch's metrics.

    Equal seeds and weights give equal results; torch's global generator is restored. ValueError for arguments that do not go
    together; NonFiniteError before an optimiser step with a loss or gradient that is not finite.

    When: the towers or the data are your own.
    Related: `ray-atr train` for prepared data, run folders, sweeps and knowledge bases.

    >>> import torch, ray_atr
    >>> class Tones:
    ...     languages = ("eng",)
    ...     def __len__(self):
    ...         return 8
    ...     def batch(self, rows):
    ...         return torch.eye(8)[rows], [[f"tone {row}"] for row in rows]
    >>> class Numbers(torch.nn.Embedding):
    ...     def forward(self, texts):
    ...         return super().forward(torch.tensor([int(text.split()[1]) for text in texts]))
    >>> objective = ray_atr.objectives.preset("contrastive")
    >>> trained = ray_atr.train(torch.nn.Linear(8, 4), Numbers(8, 4), objective, Tones(), epochs=2, batch_size=4)
    >>> len(trained.history), trained.best_epoch
    (2, 2)
    """
    for name, module in (("audio", audio), ("text", text)):
        if not isinstance(module, nn.Module):
            raise refuse(name, module, "a module of torch (torch.nn.Module)")
    _check(objective, data, validation, patience)
    # Within the bounds of the settings of the same names.
    numbers = {"train.epochs": epochs, "train.batch_size": batch_size, "train.patience": patience}
    override(Experiment(), {"seed": seed, **numbers})
    if not clip_norm >= 0:
        raise refuse("clip_norm", clip_norm, "0 (no limit) or more")
    if validation is not None:
        check_selection(select_by, "select_by", data.languages)
    ids = [str(row) for row in range(len(data))]
    progress, best = Progress(), None
    with torch.random.fork_rng():
        # Before the model is made: the first value of a learned metric is random.
        torch.manual_seed(seed)
        model = _Model(audio, text, objective, _example(audio, data))
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimiser = AdamW(parameters, learning_rate) if optimizer is None else optimizer(parameters)
        while progress.epoch < epochs and not progress.is_stuck(patience):
            model.train()
            epoch = progress.epoch
            for rows in training_plan(ids, seed=seed, epoch=epoch, batch_size=batch_size).rows:
                progress.add(model.step(optimiser, data, rows, seed, epoch, clip_norm or math.inf), seconds=0.0)
            if not model.has_compared:
                raise refuse(
                    "data", f"no caption that {objective.scheme.name} compares", f"captions in {data.languages}"
                )
            values = {f"train/{name}": value for name, value in progress.end_epoch().items()}
            if validation is not None:
                values |= model.evaluate(validation, batch_size)
                if select_by not in values:
                    raise refuse("select_by", select_by, "a metric of a language that the validation clips have")
            score = float(progress.epoch) if validation is None else values[select_by]
            if progress.is_best(score, progress.epoch) and validation is not None:
                best = copy.deepcopy(model.state_dict())
            progress.history.append(values)
            if report is not None:
                report({"epoch": float(progress.epoch), **values})
    if best is not None:
        model.load_state_dict(best)
    return Trained(progress.history, progress.best_epoch, model.learned)


class _Model(nn.Module):
    """The two modules, and the parameters that the objective learns, on the device of the embeddings (`example` [n, D])."""

    def __init__(self, audio: nn.Module, text: nn.Module, objective: Objective, example: Tensor) -> None:
        super().__init__()
        self.audio, self.text, self.objective, self.device = audio, text, objective, example.device
        self.width, self.has_compared = example.shape[1], False
        self.learned = LearnedParameters(objective.pair.learns(), self.width).to(self.device)

    def step(
        self, optimizer: Optimizer, data: ClipSet, rows: NDArray[np.int64], seed: int, epoch: int, clip_norm: float
    ) -> dict[str, float]:
        """One optimiser step on the clips with these numbers; the loss, its scalars and the gradient's norm."""
        names, alone, scheme = [str(row) for row in rows], WorkerGroup(), self.objective.scheme
        clips, captions = _batch(data, rows)
        available = _available(captions)
        draw = scheme.draw(seed, epoch, names, available)
        needed = scheme.needed(available, draw)
        optimizer.zero_grad(set_to_none=True)
        if not bool(needed.any()):
            scalars = {"loss": 0.0}
        else:
            self.has_compared = True
            masks = needed.to(self.device), _positives(captions, available).to(self.device)
            embeddings = Embeddings(_embedded(self.audio, clips, "audio"), self._texts(captions, needed), *masks)
            terms = self.objective(embeddings, learned=self.learned.values(), draw=draw)
            check_finite("loss", terms.loss, names, alone, terms.scalars)
            terms.loss.backward()
            scalars = {"loss": terms.loss.item(), **{name: float(value) for name, value in terms.scalars.items()}}
        norm = nn.utils.clip_grad_norm_(self.parameters(), clip_norm)
        check_finite("gradient norm", norm, names, alone)
        optimizer.step()
        self.learned.after_step()
        return {**scalars, "gradient_norm": float(norm)}

    @torch.no_grad()
    def evaluate(self, data: ClipSet, batch_size: int) -> dict[str, float]:
        """Every metric of both directions by language, without languages in which no clip has a caption; none if no language is
        left. A caption's own clip is relevant.
        """
        self.eval()
        audio, text, available = [], [], []
        for rows in evaluation_plan(len(data), batch_size=batch_size).rows:
            clips, captions = _batch(data, rows)
            available.append(_available(captions))
            audio.append(nn.functional.normalize(self.audio(clips).float(), dim=-1))
            text.append(nn.functional.normalize(self._texts(captions, available[-1]).float(), dim=-1))
        texts, present = torch.cat(text), torch.cat(available)
        places = {language: k for k, language in enumerate(data.languages) if bool(present[:, k].any())}
        if not places:
            return {}
        metric, kind = self.learned.metric, self.learned.settings.metric
        metrics = evaluate_languages(
            torch.cat(audio),
            {language: texts[:, k] for language, k in places.items()},
            np.arange(len(data)),
            present={language: present[:, k] for language, k in places.items()},
            metric=None if metric is None else Mahalanobis(kind, metric),
        )
        return {str(name): value for name, value in metrics.items()}

    def _texts(self, captions: Captions, needed: Tensor) -> Tensor:
        """[B, K, D] of the captions that are needed, bool [B, K]; zeros elsewhere."""
        where = needed.nonzero()
        if not len(where):
            return torch.zeros(*needed.shape, self.width, device=self.device)
        embedded = _embedded(self.text, [captions[b][k] for b, k in where.tolist()], "text")
        grid = embedded.new_zeros(*needed.shape, embedded.shape[1])
        return grid.index_put(tuple(where.to(embedded.device).T), embedded)


def _batch(data: ClipSet, rows: NDArray[np.int64]) -> tuple[Any, Captions]:
    clips, captions = data.batch(rows)
    for row, of_clip in zip(rows.tolist(), captions, strict=False):
        is_text = isinstance(of_clip, str)
        wrong = of_clip if is_text else next((text for text in of_clip if not isinstance(text, str | None)), None)
        if wrong is not None:
            raise refuse(
                f"data.batch, clip {row}", wrong, "a list of its captions by language: texts, or None for none"
            )
    shape = {len(of_clip) for of_clip in captions}
    if len(captions) != len(rows) or shape != {len(data.languages)}:
        got = f"captions of {len(captions)} clips in {', '.join(map(str, sorted(shape)))} languages"
        raise refuse("data.batch", got, f"of {len(rows)} clips in {len(data.languages)}")
    return clips, captions


def _available(captions: Captions) -> Tensor:
    """Which captions exist, bool [B, K]."""
    return torch.tensor([[bool(caption and caption.strip()) for caption in of_clip] for of_clip in captions])


def _positives(captions: Captions, available: Tensor) -> Tensor:
    """Which clips are no negatives of each other, bool [B, B]: two that have an equal caption in a language."""
    groups = torch.stack([caption_groups([text or "" for text in of_all]) for of_all in zip(*captions, strict=True)], 1)
    return ((groups[:, None] == groups) & available[:, None] & available).any(dim=-1)


@torch.no_grad()
def _example(audio: nn.Module, data: ClipSet) -> Tensor:
    """The embeddings of two clips, [2, D]."""
    was_training = audio.training
    embedded = _embedded(audio.eval(), data.batch(np.arange(min(2, len(data))))[0], "audio")
    audio.train(was_training)
    return embedded


def _embedded(module: nn.Module, given: Any, name: str) -> Tensor:
    """The module's embeddings [n, D]. ValueError if it gives something else."""
    embedded = module(given)
    if not isinstance(embedded, Tensor) or embedded.ndim != 2:
        got = list(embedded.shape) if isinstance(embedded, Tensor) else f"a {type(embedded).__name__}"
        raise refuse(name, f"a module that gives {got}", "one that gives a tensor [B, D]")
    return embedded


def _check(objective: Objective, data: ClipSet, validation: ClipSet | None, patience: int) -> None:
    if not isinstance(objective, Objective):
        raise refuse("objective", objective, "an Objective, such as ray_atr.objectives.preset('contrastive')")
    for name, clips in (("data", data), ("validation", validation)):
        lacking = [part for part in ("languages", "batch", "__len__") if not hasattr(clips, part)]
        if clips is not None and lacking:
            raise refuse(
                name, clips, f"an object with `languages`, a length and `batch(rows)`; it lacks {', '.join(lacking)}"
            )
    if objective.knowledge.needs_retrieval:
        raise refuse("objective.knowledge", objective.knowledge.name, "none without a prepared data set")
    if objective.correspondence.name != "none":
        raise refuse("objective.correspondence", objective.correspondence.name, "none without a prepared data set")
    if not data.languages:
        raise refuse("data.languages", list(data.languages), "one language or more")
    if patience and validation is None:
        raise refuse("patience", patience, "0 without a validation set")
    if validation is not None and not len(validation):
        raise refuse("validation", "no clips", "one clip or more")
    if validation is not None and list(validation.languages) != list(data.languages):
        raise refuse("validation.languages", list(validation.languages), f"{list(data.languages)}, as in training")
