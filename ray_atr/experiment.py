"""The whole of an experiment: one frozen tree of settings, and the only carrier of them.

Each part declares its own settings beside its code; this composes them. `override` changes any of them by dotted path,
for the command line, a sweep and a test alike, and the flattened tree is what is stored with a run and sent to MLflow.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_atr.data.captions import POSITIVES
from ray_atr.data.languages import LANGUAGES, require_languages
from ray_atr.data.noise import Noise
from ray_atr.data.soundscapes import SoundscapesSettings
from ray_atr.models.retriever import ModelSettings
from ray_atr.objectives import PRESETS, Objective
from ray_atr.override import flatten, override
from ray_atr.settings import Settings, refuse, setting
from ray_atr.storage import Location

PRECISIONS = ("auto", "float32", "bfloat16")
OPTIMIZERS = ("adamw", "adam")


@dataclass(frozen=True, kw_only=True)
class DataSettings(Settings):
    """Which clips, which captions, which noise."""

    source: str = setting(
        "soundscapes", "`soundscapes`, or folder or URL of a prepared data set (one with a manifest.json)"
    )
    soundscapes: SoundscapesSettings = setting(default_factory=SoundscapesSettings, help="the synthetic default set")
    languages: tuple[str, ...] = setting(
        default=tuple(LANGUAGES), help="languages of training and evaluation, ISO 639-3, English first"
    )
    noise: Noise = setting(default_factory=Noise, help="noisy correspondence of the training captions")
    positives: str = setting(
        "captions",
        "which clips of a batch are not negatives of each other: same English caption text, same labels, or only itself",
        choices=POSITIVES,
    )
    train_split: str = setting("train", "split to train on")
    validation_split: str = setting("val", "split that chooses the best epoch")
    test_split: str = setting("test", "split that the best epoch is reported on, once, where the data set has it")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_languages(self.languages, "data.languages")
        if self.languages[0] != "eng":
            raise refuse("data.languages", ",".join(self.languages), "English (eng) first: it anchors the schemes")


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Settings):
    """How the objective is minimised."""

    epochs: int = setting(10, "passes over the training clips", at_least=1)
    batch_size: int = setting(64, "clips in the global batch, over all workers", at_least=2)
    optimizer: str = setting("adamw", "optimiser", choices=OPTIMIZERS)
    learning_rate: float = setting(1e-3, "peak learning rate", above=0)
    weight_decay: float = setting(0.01, "weight decay of matrices (not of biases and norms)", at_least=0)
    warmup_fraction: float = setting(0.1, "share of all steps in which the rate rises from 0", at_least=0, at_most=1)
    clip_norm: float = setting(1.0, "largest norm of the gradient; 0 switches clipping off", at_least=0)
    precision: str = setting(
        "auto", "bfloat16 autocast in the towers, or float32; auto: bfloat16 on a GPU", choices=PRECISIONS
    )
    language_chunk: int = setting(
        0,
        "languages whose texts are embedded and back-propagated at a time (schemes one_to_k and random_mixture): the same "
        "gradient in less memory; 0: all",
        at_least=0,
    )
    embedding_chunk: int = setting(
        0,
        "clips, and texts, embedded at a time without keeping activations, and again for the gradient, which stays the same: "
        "any batch fits, for one more forward pass; 0: all at once",
        at_least=0,
    )
    distance_to: str | None = setting(
        None,
        "folder of another trial, that of one_to_k with the same seed say: after each epoch the distance of this run's weights "
        "from its last ones is logged; none: not measured",
    )
    checkpoint_every_steps: int = setting(
        0, "steps between checkpoints within an epoch; 0: at the end of each epoch only", at_least=0
    )


@dataclass(frozen=True, kw_only=True)
class ScalingSettings(Settings):
    """What one trial's training takes."""

    workers: int = setting(1, "training workers of one trial; 0: train in the trial's own process", at_least=0)
    cpus_per_worker: float = setting(1.0, "CPUs of one worker", above=0)
    gpus_per_worker: float = setting(0.0, "GPUs of one worker, may be a share of one", at_least=0)
    ray_data: bool = setting(
        True, "stream cached features through Ray Data's tasks; false: the trainer reads them, for trials of seconds"
    )
    max_failures: int = setting(1, "times a trial's workers are restarted from the last checkpoint", at_least=0)
    encoders: int = setting(
        0,
        "processes that encode a knowledge base's source, through Ray Data; 0: the base's own process does. They start anew "
        "at each refresh, so they pay where encoding takes minutes",
        at_least=0,
    )
    cpus_per_encoder: float = setting(
        0.0, "CPUs kept for one encoder of a knowledge base; 0: it runs on what the others leave", at_least=0
    )
    gpus_per_encoder: float = setting(
        0.0, "GPUs of one encoder of a knowledge base, may be a share of one; 0: it encodes on the CPU", at_least=0
    )


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings(Settings):
    """How retrieval is measured while training and at its end."""

    every_epochs: int = setting(1, "epochs between validations", at_least=1)
    batch_size: int = setting(64, "clips or captions embedded at a time", at_least=1)
    validation_captions: int = setting(
        0, "captions a clip and language that a validation during training asks for; 0: all of them", at_least=0
    )
    probe_clips: int = setting(
        64, "clips of a knowledge base's source whose drift is measured at the end of each epoch; 0: none", at_least=0
    )
    select_by: str = setting(
        "text_to_audio/eng/recall_at_1", "validation metric whose best epoch is kept; higher is better"
    )
    relevance: str = setting(
        "auto",
        "clip: a caption's own clip is relevant; label: every clip of its class; auto: label where each class has one caption",
        choices=("auto", "clip", "label"),
    )


@dataclass(frozen=True, kw_only=True)
class TrackingSettings(Settings):
    """Where results are logged beside the run folder."""

    mlflow: bool = setting(True, "log to MLflow (MLFLOW_TRACKING_URI, else a SQLite file beside the runs)")
    experiment_name: str = setting("ray_atr", "MLflow experiment")


@dataclass(frozen=True, kw_only=True)
class Experiment(Settings):
    """Everything that decides the result of a training run."""

    data: DataSettings = setting(default_factory=DataSettings, help="data")
    model: ModelSettings = setting(default_factory=ModelSettings, help="towers")
    objective: Objective = setting(
        default_factory=lambda: PRESETS["contrastive"],
        help="what is minimised: a preset's name, or scheme x pair x knowledge one by one",
        variants=PRESETS,
    )
    train: TrainSettings = setting(default_factory=TrainSettings, help="optimisation")
    scaling: ScalingSettings = setting(default_factory=ScalingSettings, help="resources")
    evaluation: EvaluationSettings = setting(default_factory=EvaluationSettings, help="evaluation")
    tracking: TrackingSettings = setting(default_factory=TrackingSettings, help="tracking")
    seed: int = setting(0, "seed of weights, order, noise and language draws", at_least=0)


def save_experiment(experiment: Experiment, path: Path) -> None:
    """Write the flattened tree as JSON."""
    path.write_text(json.dumps(flatten(experiment), indent=1, ensure_ascii=False) + "\n")


def load_experiment(path: Location) -> Experiment:
    """Read what `save_experiment` wrote. ValueError names the file and the setting that is not understood."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        return override(Experiment(), content)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; a run folder has an experiment.json") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
