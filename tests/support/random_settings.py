"""Experiments with random values of any of their settings."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ray_atr.common.override import Setting, describe, override
from ray_atr.data.shards import write_clips
from ray_atr.training.checks import check_experiment
from ray_atr.training.experiment import Experiment
from tests.support import tiny_checkpoints
from tests.support.tiny import MEASURED, prepared_for, tiny, tone_clip
from tests.support.vectors import on_vectors

LEFT_AS_THEY_ARE = re.compile(
    # Files and folders of one's own; how much is computed; what another part of the machine does.
    r"data\.(source|soundscapes|noise\.index|noise\.parts|weights|\w+_split)|tracking\.|scaling\.(?!share_losses|shard_towers|loss_memory)"
    r"|.*\.(checkpoint|allow_mismatch|lora_targets|data|teachers|source|captions|compile|is_frozen|width_divisor|audio\.size|num_blocks)$"
    r"|train\.(epochs|precision|distance_to|start_from|keep_trajectory)|objective$|model\.(audio|text)$"
)
TEACHER = "teacher"
BASE: dict[str, Any] = {**MEASURED, "data__noise__ratio": 0.4, "train__checkpoint_every_steps": 1}
KINDS_CHANGED, OTHERS_CHANGED = 0.6, 14
"""The chance that a part is of another kind, and how many of the other settings are changed at most."""
MAKERS = {**tiny_checkpoints.OF_AUDIO, **tiny_checkpoints.OF_TEXT}
AUDIO = ("", "resnet38", "htsat", "ast", "ced", "transformers")
TEXT = ("", "sonar", "bert", "xlm_roberta", "labse")
"""Names of towers; the empty one is that of `tiny`."""


def write_uneven(folder: Path, seed: int) -> None:
    """Recordings of three lengths with one to three captions a language; French and labels are of some, and English of most."""
    generator, clips = np.random.default_rng(seed), []
    for split, count in (("train", 24), ("val", 8), ("test", 8)):
        for index in range(count):
            english = [f"a tone {index % 9}", f"sound {index % 5}", f"noise {index}"]
            french = [f"un son {index}", f"bruit {index % 4}"]
            captions = {"eng": english[: generator.integers(1, 4)]}
            if generator.random() < 0.6:
                captions["fra"] = french[: generator.integers(1, 3)]
            if len(captions) > 1 and generator.random() < 0.1:
                del captions["eng"]
            label = "abc"[index % 3] if generator.random() < 0.8 else ""
            clips.append(tone_clip(split, index, captions, label, seconds=float(generator.choice([0.4, 0.6, 1.2]))))
    write_clips(folder, clips, name="uneven", licence="none", clips_per_shard=7)


def random_experiments(home: Path, seed: int) -> Iterator[dict[str, Any]]:
    """What is changed in tiny experiments on recordings in `home`: parts of random kinds, and random values of random settings.

    What an experiment refuses is not changed. The inputs of each experiment are made.
    """
    generator = np.random.default_rng(seed)
    while True:
        yield from _drawn(partial(tiny, home / "uneven"), home, random_towers(home / "towers", generator), generator)


def random_experiments_on_vectors(home: Path, seed: int) -> Iterator[dict[str, Any]]:
    """The same on the data set of vectors in `home`."""
    generator = np.random.default_rng(seed)
    while True:
        yield from _drawn(partial(on_vectors, home / "vectors"), home, {"train__epochs": 2}, generator)


def _drawn(
    made: Callable[..., Experiment], home: Path, first: dict[str, Any], generator: np.random.Generator
) -> Iterator[dict[str, Any]]:
    """Changes of one experiment, after these; none if its inputs cannot be made."""
    changes: dict[str, Any] = {**BASE, **first}
    for setting in list(_open(made())):
        if setting.type == "name" and generator.random() < KINDS_CHANGED:
            _change(made, changes, setting, generator)
    others = [setting for setting in _open(made(**changes)) if setting.type != "name"]
    for number in generator.permutation(len(others))[: generator.integers(1, OTHERS_CHANGED + 1)]:
        _change(made, changes, others[number], generator)
    for path, value in (("objective.knowledge.prototypes", 4), ("objective.correspondence.warmup_epochs", 1)):
        if path in {setting.path for setting in describe(made(**changes))}:
            changes[path] = value
    # Some orders of an epoch do not fit so small a set.
    with contextlib.suppress(ValueError):
        prepared_for(made(**changes), home)
        yield changes


def random_towers(folder: Path, generator: np.random.Generator) -> dict[str, Any]:
    """Other towers than those of `tiny`, or not."""
    changes: dict[str, Any] = {}
    for kind, names in (("audio", AUDIO), ("text", TEXT)):
        if not (name := str(generator.choice(names))):
            continue
        changes[f"model.{kind}"] = name
        if name == "resnet38":
            changes[f"model.{kind}.width_divisor"] = 16
            continue
        if name == "ced":
            # Most clips are longer than a chunk.
            changes |= {"model.audio.size": "tiny", "model.audio.num_blocks": 1, "model.audio.chunk_frames": 48}
            changes["model.audio.dropout"] = float(generator.choice([0, 0.1]))
            continue
        checkpoint, make = folder / name, MAKERS[name]
        if name == "transformers":
            of_kind = str(generator.choice(tiny_checkpoints.WAVEFORM_MODELS))
            checkpoint, make = folder / of_kind, partial(tiny_checkpoints.wav2vec2, model=of_kind)
        if not checkpoint.is_dir():
            checkpoint.mkdir(parents=True)
            make(checkpoint)
        # Of its own each drops out a tenth.
        changes |= {
            f"model.{kind}.checkpoint": str(checkpoint),
            f"model.{kind}.dropout": float(generator.choice([0, 0.1])),
        }
    return changes


def drops_out(changes: Mapping[str, Any]) -> bool:
    """Whether the towers of such an experiment drop something out: each worker draws numbers of its own."""
    return any(value for path, value in changes.items() if path.endswith("dropout"))


def _open(experiment: Experiment) -> Iterator[Setting]:
    return (setting for setting in describe(experiment) if not LEFT_AS_THEY_ARE.match(setting.path))


def _change(
    made: Callable[..., Experiment], changes: dict[str, Any], setting: Setting, generator: np.random.Generator
) -> None:
    """Give a setting a random value, unless it is refused."""
    if (value := _value(setting, generator)) is not None:
        try:
            check_experiment(override(made(**changes), {setting.path: value}))
        except ValueError:
            return
        changes[setting.path] = value


def _value(setting: Setting, generator: np.random.Generator) -> Any:
    """A value near the default, or one of a few; None for a setting that is neither a number nor one of some names."""
    default = setting.default
    if setting.allowed.startswith("one of "):
        names = [name for name in setting.allowed.removeprefix("one of ").split(", ") if name != TEACHER]
        return str(generator.choice(names))
    if isinstance(default, bool):
        return bool(generator.integers(2))
    if setting.type.startswith("int"):
        return int(
            generator.choice([1, 2, 3, 5]) if not isinstance(default, int) else default + generator.integers(-2, 4)
        )
    if isinstance(default, float):
        return float((default or 0.3) * generator.choice([0.5, 0.8, 1.25, 2]))
    return None
