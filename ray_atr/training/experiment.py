"""All settings of an experiment, as one frozen tree.

Each part declares its own settings beside its code; `Experiment` composes them. `override` changes any of them by dotted path,
for the command line, a sweep and a test alike; the flattened tree is stored with a run and sent to MLflow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ray_atr.common.language_codes import ENGLISH, language_codes
from ray_atr.common.override import override
from ray_atr.common.positives import POSITIVES
from ray_atr.common.ranking import EPSILON, RELEVANCE, RELEVANCE_HELP, RankingSettings
from ray_atr.common.sampling import ORDERS
from ray_atr.common.settings import Settings, inherited, refuse, setting
from ray_atr.common.storage import Location, file_exists, read_json
from ray_atr.data.noise import Noise
from ray_atr.data.soundscapes import SoundscapesSettings
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.tower import checkpoint_of
from ray_atr.objectives import PRESETS, LearnedSettings, Objective

PRECISIONS = ("auto", "float32", "bfloat16")
OPTIMIZERS = ("adamw", "adam", "sgd")
SCHEDULES = ("cosine", "step", "constant")
MOST_TIMES = 1000
"""Largest weight of a part of a data set: beyond it, more epochs do the same."""
NOT_DECIDING = ("tracking.", "scaling.", "train.checkpoint_every_steps", "train.keep_trajectory")
"""Prefixes of the settings that change no weight: trials that differ only in these are averaged, and can be resumed."""


@dataclass(frozen=True, kw_only=True)
class DataSettings(Settings):
    """Which clips, which captions, which noise."""

    source: str = setting(
        "soundscapes",
        "`soundscapes`, or folder or URL of a prepared data set (one with a manifest.json)",
        path="always",
        words=("soundscapes",),
    )
    soundscapes: SoundscapesSettings = setting(default_factory=SoundscapesSettings, help="the synthetic default set")
    languages: tuple[str, ...] = setting(
        (), "languages of training and evaluation, by codes of ISO 639 (en, eng, swe); unset: all that the data set has"
    )
    noise: Noise = setting(default_factory=Noise, help="noisy correspondence of the training captions")
    wrong_share: float | str = setting(
        "auto",
        "share of wrong captions, which transport_mass auto, prior estimate and leave_one_out read: auto, estimated before the "
        "first epoch; a number; the folder of an audit, which has a share for each language, or the file that audit --estimate "
        "wrote; it must be of the captions that are trained",
        at_least=0,
        below=1,
        path="always",
        words=("auto",),
    )
    positives: str = setting(
        "captions",
        "which clips of a batch are not negatives of each other: captions, those with the same caption in English (without "
        "English, in the first of data.languages), while a clip without one is alone; labels, those with the same labels; "
        "identity, only a clip and itself",
        choices=POSITIVES,
    )
    captions_per_epoch: str = setting(
        "one",
        "one: an epoch goes through the clips, each with one of its captions; each: through all pairs of clip and caption",
        choices=("one", "each"),
    )
    order: str = setting(
        "exact",
        "order of an epoch's clips: exact, a permutation of all of them, read from stored features; shards, mixed within some "
        "row groups of the shards, from which each clip is read and decoded once per epoch: for sets whose features fit "
        "nowhere",
        choices=ORDERS,
    )
    order_parts: int = setting(
        8,
        "with order=shards: number of parts of a batch, each from row groups of its own; it must divide the batch, and the "
        "number of workers must divide it",
        at_least=1,
    )
    order_groups: int = setting(
        8, "with order=shards: row groups whose clips are mixed with each other, for each part of a batch", at_least=1
    )
    weights: tuple[str, ...] = setting(
        (),
        "of a joined data set, PART=WEIGHT,...: how often an epoch has each clip of a part, on average (0: never, .1: a tenth of "
        "its clips, different ones in each epoch; 2: each clip twice); parts that are not listed: 1",
    )
    train_split: str = setting("train", "split to train on")
    validation_split: str = setting("val", "split that chooses the best epoch")
    test_split: str = setting("test", "split that the best epoch is reported on, once, if the data set has it")

    def __post_init__(self) -> None:
        with contextlib.suppress(ValueError):
            object.__setattr__(self, "wrong_share", float(self.wrong_share))
        super().__post_init__()
        parse_weights(self.weights)
        codes = language_codes(self.languages, "data.languages") if self.languages else ()
        # English first: it is the anchor of the schemes that have one.
        object.__setattr__(self, "languages", tuple(sorted(codes, key=lambda code: code != ENGLISH)))


def parse_weights(entries: Sequence[str]) -> dict[str, float]:
    """Weights by part, from entries `PART=WEIGHT`. ValueError for anything else."""
    weights: dict[str, float] = {}
    for entry in entries:
        part, _, value = entry.rpartition("=")
        with contextlib.suppress(ValueError):
            if part and part not in weights and 0 <= (weight := float(value)) <= MOST_TIMES:
                weights[part] = weight
                continue
        raise refuse("data.weights", entry, f"PART=WEIGHT, each part once, a weight from 0 to {MOST_TIMES}")
    return weights


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Settings):
    """How the objective is minimised."""

    epochs: int = setting(10, "passes over the training clips", at_least=1)
    batch_size: int = setting(64, "clips in the global batch, over all workers", at_least=2)
    batches_per_step: int = setting(
        1,
        "global batches whose gradients are averaged for one step of the optimiser (B of m-LTM Eq. 8); each has a loss of its "
        "own, so this differs from a larger batch; an epoch's last step averages those that are left",
        at_least=1,
    )
    optimizer: str = setting("adamw", "optimiser", choices=OPTIMIZERS)
    momentum: float = setting(0.0, "momentum of sgd", at_least=0, below=1)
    learning_rate: float | Literal["auto"] = setting(
        "auto",
        "peak learning rate; auto: 1e-3 if no pretrained tower is trained, else 5e-5 if a convolutional audio tower is "
        "trained, else 2e-5",
        above=0,
    )
    metric_rate_scale: float = setting(1.0, "factor of the learning rate for a learned transport metric", above=0)
    schedule: str = setting(
        "cosine",
        "rate after the warm-up: a half cosine down to 0, a drop every few epochs, or constant",
        choices=SCHEDULES,
    )
    step_epochs: int = setting(20, "epochs between two drops of the rate with schedule=step", at_least=1)
    step_factor: float = setting(0.1, "factor by which a drop multiplies the rate", above=0, at_most=1)
    weight_decay: float = setting(0.01, "weight decay of matrices (not of biases and norms)", at_least=0)
    warmup_fraction: float = setting(0.1, "share of all steps in which the rate rises from 0", at_least=0, at_most=1)
    clip_norm: float = setting(1.0, "largest norm of the gradient; 0 switches clipping off", at_least=0)
    precision: str = setting(
        "auto", "bfloat16 autocast in the towers, or float32; auto: bfloat16 on a GPU", choices=PRECISIONS
    )
    language_chunk: int = setting(
        0,
        "languages whose texts are embedded and back-propagated at a time (schemes kcl and random_mixture): the same "
        "gradient in less memory; 0: all",
        at_least=0,
    )
    embedding_chunk: int = setting(
        0,
        "clips, and texts, embedded at a time without keeping activations, which are computed again for the "
        "gradient: any batch fits, the gradient is the same, and each step costs one more forward pass; 0: all at "
        "once",
        at_least=0,
    )
    distance_to: str | None = setting(
        None,
        "folder of another trial, or of a run of one trial, trained with keep_trajectory (for example kcl with the "
        "same seed): each epoch logs the distance between the weights of both runs at the same step, and ATRI's bound "
        "on it; none: not measured",
        path="always",
    )
    keep_trajectory: bool = setting(
        False, "keep the weights of every epoch in the trial's folder, for distance_to and for pictures of drift"
    )
    start_from: str | None = setting(
        None,
        "retriever whose weights training starts from: the folder or URL of a saved one, of a trial or of a run of one trial, or "
        "LAION-CLAP or ML-CLAP; none: the towers' own weights",
        path="always",
    )
    patience: int = setting(
        0, "epochs without a better validation after which the run ends; 0: it trains all epochs", at_least=0
    )
    checkpoint_every_steps: int = setting(
        0, "steps between checkpoints within an epoch; 0: at the end of each epoch only", at_least=0
    )

    def precision_on(self, device: str) -> str:
        """The precision of the towers on a type of device: float32 or bfloat16."""
        return ("bfloat16" if device == "cuda" else "float32") if self.precision == AUTO else self.precision


AUTO: Literal["auto"] = "auto"
"""A sweep decides it when it knows the cluster (`sweep.scaling`)."""


@dataclass(frozen=True, kw_only=True)
class ScalingSettings(Settings):
    """Resources of one trial's training."""

    workers: int | str = setting(
        AUTO,
        "training workers of one trial; auto: its own process on one node without GPUs, else Ray Train's workers, one for each "
        "GPU (without GPUs: for each node) that other trials leave free; FEWEST:MOST (2:8): as many of them as the cluster has "
        "room for, which may change while the trial trains, with the same result; 0: train in the trial's own process",
        at_least=0,
        words=(AUTO, "FEWEST:MOST"),
    )
    cpus_per_worker: float = setting(1.0, "CPUs of one worker", above=0)
    gpus_per_worker: float = setting(0.0, "GPUs of one worker, may be a share of one", at_least=0)
    ray_data: bool | Literal["auto"] = setting(
        AUTO,
        "stream cached features through Ray Data's tasks; false: the trainer reads them, which suits short trials; auto: "
        "where there are workers, GPUs, several nodes, or data in a store",
    )
    share_losses_from: int | Literal["auto"] = setting(
        AUTO,
        "number of pairs in a comparison from which a trial's workers share its loss: each computes its own rows of the "
        "similarities or of the plan, so the same loss takes less time and memory; auto: 1,024 for contrastive losses, 4,096 for "
        "learning to match; 0: never",
        at_least=0,
    )
    shard_towers: bool = setting(
        False,
        "spread the towers' weights, gradients and optimiser state over the workers, which gather one layer at a time "
        "(fully_shard): the same training for towers that do not fit on one device, with more exchange",
    )
    loss_memory: float | Literal["auto"] = setting(
        AUTO,
        "GiB that a worker's part of a shared loss may take; a larger one is computed again, some rows at a time, wherever it is "
        "needed: the same loss in more time; 0: always; auto: a quarter of a GPU's memory, 1 without GPUs",
        at_least=0,
    )
    feature_store: str = setting(
        "",
        "folder or URL that keeps log-mel features and vectors of frozen towers for all nodes; rows of features are read as they "
        "are needed: for sets that do not fit on a node's disk; unset: each node's disk",
        path="always",
        words=("",),
    )
    max_failures: int = setting(
        1,
        "times that a trial's workers are restarted from the last checkpoint, and times that a trial is started again after "
        "its own process was lost with its node",
        at_least=0,
    )
    encoders: int = setting(
        0,
        "processes that encode a knowledge base's source, through Ray Data; 0: the base's own process does it. "
        "They start again at each refresh, so they pay off if encoding takes minutes",
        at_least=0,
    )
    base_shards: int | Literal["auto"] = setting(
        AUTO,
        "parts of a knowledge base, at most one for each worker. Each has a process that encodes it and workers that search it; "
        "their results are merged: the same neighbours in a part of the memory; 1: each node has the whole base; auto: one part "
        "for each node if the embeddings take 1 GiB or more",
        at_least=1,
    )
    worker_labels: str = setting(
        "", "labels of the nodes that training workers may run on, as KEY=VALUE,KEY=VALUE (`ray start --labels`)"
    )
    encoder_labels: str = setting(
        "", "labels of the nodes that a knowledge base and its encoders may run on; unset: on the first worker's node"
    )
    cpus_per_encoder: float = setting(
        0.0, "CPUs reserved for one encoder of a knowledge base; 0: none, it shares those of its node", at_least=0
    )
    gpus_per_encoder: float = setting(
        0.0, "GPUs of one encoder of a knowledge base, may be a share of one; 0: it encodes on the CPU", at_least=0
    )
    validate_beside: bool = setting(
        False,
        "validate an epoch in a process of its own while the next one trains; its metrics are reported one epoch later. "
        "Pays off if validation takes a large share of the time and a CPU or GPU is free for it",
    )
    cpus_per_validation: float = setting(
        1.0,
        "CPUs reserved for the process that validates beside training; 0: none, it shares those of its node",
        at_least=0,
    )
    gpus_per_validation: float = setting(
        0.0, "GPUs of the process that validates beside training, may be a share of one; 0: on the CPU", at_least=0
    )

    def __post_init__(self) -> None:
        if isinstance(self.workers, str) and self.workers.strip().isdecimal():
            object.__setattr__(self, "workers", int(self.workers))
        super().__post_init__()
        if isinstance(self.workers, str) and self.is_elastic:
            fewest, _, most = self.workers.partition(":")
            if not (fewest.isdecimal() and most.isdecimal() and 1 <= int(fewest) <= int(most)):
                raise refuse("workers", self.workers, "auto, a number, or FEWEST:MOST with 1 <= FEWEST <= MOST")
        for name in ("worker_labels", "encoder_labels"):
            parse_labels(name, getattr(self, name))

    @property
    def losses_shared_from(self) -> int | None:
        """`share_losses_from`, None for auto."""
        return None if self.share_losses_from == AUTO else self.share_losses_from

    @property
    def least_shards(self) -> int:
        """The set number of parts of a knowledge base; 1 while that is not decided."""
        return 1 if self.base_shards == AUTO else int(self.base_shards)

    @property
    def loss_bytes(self) -> float | None:
        """`loss_memory` in bytes, None for auto."""
        return None if isinstance(self.loss_memory, str) else self.loss_memory * 2**30

    @property
    def is_elastic(self) -> bool:
        """Whether the number of workers may change while a trial trains."""
        return isinstance(self.workers, str) and self.workers != AUTO

    @property
    def has_workers(self) -> bool:
        """Whether Ray Train's workers train a trial, and not its own process; False while that is not decided."""
        return self.workers not in (0, AUTO)

    @property
    def fewest_workers(self) -> int:
        """The least workers that a trial trains with; 1 while that is not decided."""
        return 1 if self.workers == AUTO else int(str(self.workers).partition(":")[0])

    @property
    def most_workers(self) -> int:
        """The most workers that a trial trains with; 1 while that is not decided."""
        return 1 if self.workers == AUTO else int(str(self.workers).rpartition(":")[2])


def parse_labels(name: str, text: str) -> dict[str, str]:
    """Node labels by key, from `KEY=VALUE,KEY=VALUE`. ValueError for anything else."""
    labels: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = (part.strip() for part in entry.partition("="))
        if not key or not value or key in labels:
            raise refuse(name, text, "KEY=VALUE,KEY=VALUE, each key once")
        labels[key] = value
    return labels


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings(Settings):
    """How retrieval is measured while training and at its end."""

    every_epochs: int = setting(
        1, "epochs between validations; after the last epoch, whichever it is, there is one too", at_least=1
    )
    batch_size: int = setting(64, "clips or captions embedded at a time", at_least=1)
    validation_captions: int = setting(
        0, "captions per clip and language that are queries in a validation during training; 0: all of them", at_least=0
    )
    probe_clips: int = setting(
        64,
        "clips, encoded by the current weights, with which the drift of a knowledge base is measured at the end of "
        "each epoch; this encodes the base's source again; 0: not measured",
        at_least=0,
    )
    select_by: str = setting(
        "text_to_audio/trained/recall_at_1",
        "validation metric whose best epoch is kept, higher is better: TASK/LANGUAGE/MEASURE; a language may also be "
        "trained (the mean over those that the scheme trains), unseen or mean",
    )
    ranking: str = inherited(RankingSettings, "ranking")
    plan_epsilon: float | None = setting(
        None, "entropic regularisation of a ranking by plan; none: the objective's own, else .05", above=0
    )
    plan_sweeps: int = inherited(RankingSettings, "plan_sweeps")
    relevance: str = setting("auto", RELEVANCE_HELP, choices=RELEVANCE)


@dataclass(frozen=True, kw_only=True)
class TrackingSettings(Settings):
    """Where results are logged, apart from the run folder."""

    mlflow: bool = setting(True, "log to MLflow (MLFLOW_TRACKING_URI, else a SQLite file next to the runs)")
    experiment_name: str = setting("ray_atr", "MLflow experiment")


@dataclass(frozen=True, kw_only=True)
class Experiment(Settings):
    """Everything that decides the result of a training run."""

    data: DataSettings = setting(default_factory=DataSettings, help="data")
    model: ModelSettings = setting(default_factory=ModelSettings, help="towers")
    objective: Objective = setting(
        default_factory=lambda: PRESETS["contrastive"],
        help="what is minimised: a preset's name, or scheme, pair, knowledge and correspondence one by one",
        variants=PRESETS,
    )
    train: TrainSettings = setting(default_factory=TrainSettings, help="optimisation")
    scaling: ScalingSettings = setting(default_factory=ScalingSettings, help="resources")
    evaluation: EvaluationSettings = setting(default_factory=EvaluationSettings, help="evaluation")
    tracking: TrackingSettings = setting(default_factory=TrackingSettings, help="tracking")
    seed: int = setting(0, "seed of weights, order, noise and language draws", at_least=0, at_most=2**40)

    @property
    def gathers(self) -> str:
        """The setting because of which each worker gathers all embeddings of a batch; empty if none does."""
        usual, chosen = self.objective.pair.shared_from, self.scaling.losses_shared_from
        if self.objective.gathers or self.model.is_late:
            return self.objective.gathers or "model.interaction=late"
        shared_from = usual if chosen is None else chosen
        if shared_from == 0:
            return "scaling.share_losses_from=0"
        return "" if shared_from <= self.train.batch_size else f"train.batch_size={self.train.batch_size}"

    @property
    def trained_languages(self) -> list[str]:
        """The languages that its scheme trains on."""
        return self.objective.scheme.trained_languages(self.data.languages)

    @property
    def ranking(self) -> RankingSettings:
        """How its retriever ranks: a plan has the objective's own epsilon unless one is set."""
        chosen, epsilon = self.evaluation, self.evaluation.plan_epsilon
        epsilon = getattr(self.objective.pair, "epsilon", EPSILON) if epsilon is None else epsilon
        return RankingSettings(ranking=chosen.ranking, plan_epsilon=epsilon, plan_sweeps=chosen.plan_sweeps)

    @property
    def learning_rate(self) -> float:
        """The peak learning rate, as a number."""
        rate = self.train.learning_rate
        return automatic_rate(self.model)[0] if isinstance(rate, str) else rate

    @property
    def learned(self) -> LearnedSettings:
        """The settings of what the objective learns besides the towers, to build a retriever with."""
        return self.objective.pair.learns()


def resolved(experiment: Experiment) -> Experiment:
    """The experiment with the learning rate that `auto` stands for."""
    return replace(experiment, train=replace(experiment.train, learning_rate=experiment.learning_rate))


def automatic_rate(model: ModelSettings) -> tuple[float, str]:
    """(the learning rate for what the model trains, the reason)."""
    if all(checkpoint_of(tower) is None or tower.adapt.is_frozen for tower in (model.audio, model.text)):
        return 1e-3, "no pretrained tower is trained"
    if model.audio.is_convolutional and not model.audio.adapt.is_frozen:
        return 5e-5, "a convolutional audio tower is trained with a pretrained one"
    return 2e-5, "a pretrained transformer is trained"


def stored_experiment(content: Mapping[str, Any]) -> Experiment:
    """The experiment of a stored flattened tree; settings that it lacks have their defaults."""
    return override(Experiment(), content)


def load_experiment(path: Location) -> Experiment:
    """The experiment of a flattened tree in a JSON file. ValueError names the file and the setting that is not understood."""
    if not file_exists(path):
        raise ValueError(f"{path}: no such file; a run folder has an experiment.json")
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path}: got {type(content).__name__}; allowed an object of settings by their paths")
    try:
        return stored_experiment(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
