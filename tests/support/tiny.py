"""A tiny data set, model and experiment that train in a second: what the training tests share."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import soundfile
from torch import Tensor

from ray_atr.common.override import override
from ray_atr.data.schema import Clip
from ray_atr.data.shards import write_clips
from ray_atr.models import resnet38
from ray_atr.objectives.correspondence import clean_share, leave_one_out, left_out
from ray_atr.objectives.correspondence.clean_share import true_share
from ray_atr.objectives.correspondence.cross_fit import Pairs
from ray_atr.training.checkpoint import load_checkpoint
from ray_atr.training.experiment import Experiment
from ray_atr.training.inputs import Prepared, prepare
from ray_atr.training.run_folder import LAST, RunFolder

SAMPLE_RATE = 16_000
NOTES = ("a low", "a middle", "a high", "a very high")
SMALL_AUDIO = {"model.audio.channels": 4, "model.audio.width": 16}
"""Of its own size the default audio tower has a quarter of a million weights, a fifth of what such a training computes."""
SMALL_TEXT = {"model.text.width": 16, "model.text.num_layers": 1, "model.text.vocab_size": 300}
MEASURED: dict[str, Any] = {"data__test_split": "test", "evaluation__every_epochs": 1}
"""Each epoch is validated, and the best one is tested: a third of what such a training computes, for tests of either."""
SHARE = 0.6
"""Of true pairs, in the place of an estimate, which rounding decides on so few clips."""
TONES_FRA = ("un son grave", "un son moyen", "un son aigu", "un son très aigu")


def tone(pitch: int, index: int, seconds: float = 0.6) -> bytes:
    """A WAV file of a steady tone with a little noise."""
    time = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    noise = np.random.default_rng(index).standard_normal(len(time)) * 0.02
    buffer = io.BytesIO()
    soundfile.write(buffer, 0.4 * np.sin(2 * np.pi * 200 * 2**pitch * time) + noise, SAMPLE_RATE, format="WAV")
    return buffer.getvalue()


def tone_clip(
    split: str, index: int, captions: Mapping[str, Sequence[str]], label: str = "", seconds: float = 0.6
) -> Clip:
    """A clip of one of four pitches, in turn; its id is `split-index`."""
    return Clip(
        clip_id=f"{split}-{index:03d}",
        audio=tone(index % 4, index, seconds),
        sample_rate=SAMPLE_RATE,
        seconds=seconds,
        captions={code: tuple(texts) for code, texts in captions.items()},
        labels=(label,) if label else (),
        split=split,
        source="tones",
    )


Files = dict[Path, bytes]
"""What a folder holds, by path within it."""
_made: dict[tuple[int, ...], Files] = {}


def files_in(folder: Path) -> Files:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_files(folder: Path, files: Files) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def make_data(folder: Path, num_train: int = 24, num_val: int = 8, num_test: int = 8, languages: int = 2) -> Path:
    """The data set of `write_tones`, written once in a process and then copied."""
    asked = num_train, num_val, num_test, languages
    if not isinstance(folder, Path) or folder.exists():
        return write_tones(folder, *asked)
    if asked in _made:
        write_files(folder, _made[asked])
    else:
        _made[asked] = files_in(write_tones(folder, *asked))
    return folder


def write_tones(folder: Path, num_train: int, num_val: int, num_test: int, languages: int = 2) -> Path:
    """Tones of four pitches, each clip with captions of its own in English and French."""
    clips = []
    for split, count in (("train", num_train), ("val", num_val), ("test", num_test)):
        for index in range(count):
            pitch = index % 4
            captions = {"eng": [f"{NOTES[pitch]} tone, number {index}"], "fra": [f"{TONES_FRA[pitch]}, numéro {index}"]}
            clips.append(tone_clip(split, index, dict(list(captions.items())[:languages]), NOTES[pitch]))
    write_clips(folder, clips, name="tones", licence="none")
    return folder


def tiny(data: Path, **changes: Any) -> Experiment:
    """An experiment on `make_data` with towers of a few thousand weights; two epochs, the last of which is validated."""
    changed = {path.replace("__", "."): value for path, value in changes.items()}
    return override(
        Experiment(),
        {
            **({} if "model.audio" in changed else SMALL_AUDIO),
            **({} if "model.text" in changed else SMALL_TEXT),
            "data.source": str(data),
            "data.languages": "eng,fra",
            "model.embedding_width": 16,
            "train.epochs": 2,
            "train.batch_size": 8,
            "train.learning_rate": 0.003,
            "tracking.mlflow": False,
            "data.test_split": "none",
            "evaluation.every_epochs": 2,
            # What `auto` is on one node is not what most tests on a Ray are about.
            "scaling.workers": 1,
            "scaling.ray_data": True,
            **changed,
        },
    )


@contextmanager
def any_towers_will_do() -> Iterator[None]:
    """Within, `leave_one_out` relies on its regression, however little that finds, and `transport_mass` auto on its share of true
    pairs. On so few clips small loss would always take the place of the one, and all mass be transported for the other, and two
    workers would agree on something else. To be checked by `require_weighed`.
    """
    with ExitStack() as stack:
        for module in (leave_one_out, clean_share):
            stack.enter_context(mock.patch.object(module, "true_share", _true_share_that_is_relied_on))
        stack.enter_context(mock.patch.object(left_out, "random_share", return_value=1.0))
        yield


def _true_share_that_is_relied_on(
    readings: Sequence[Pairs], seed: int, known_share: float | None = None
) -> clean_share.TrueShare:
    share = SHARE if known_share is None else known_share
    return true_share(readings, seed, known_share)._replace(share=share, found_share=1.0, is_certain=True)


def require_weighed(folder: Path) -> None:
    """AssertionError if the correspondence of a training that ended in this folder gave every pair a probability of 1."""
    tables = load_checkpoint(folder / LAST)["correspondence"]["tables"]
    assert (tables["epoch_probabilities"] < 1 - 1e-6).any(), "every pair has a clean probability of 1"
    require_regression(tables)


def require_regression(tables: Mapping[str, Tensor]) -> None:
    """AssertionError if these are the tables of `leave_one_out` and it has a regression of no language."""
    if (known := tables.get("left_out")) is not None:
        assert ((known > 0) & (known < 1)).any(), "no regression was relied on"


@contextmanager
def short_resnets() -> Iterator[None]:
    """Within, a `resnet38` has five of its sixteen blocks, for tests of what each block does alike."""
    with mock.patch.object(resnet38, "STAGES", (2, 1, 1, 1)):
        yield


def prepared_for(experiment: Experiment, home: Path) -> Prepared:
    """The experiment's inputs, made in this process without a word."""
    return prepare(experiment, home, use_ray=False, echo=lambda message: None)


def new_run(home: Path, name: str, info: Mapping[str, Any] | None = None, **changes: Any) -> RunFolder:
    """A run folder of a tiny experiment on `home`'s tones, whose inputs are made: on Ray they would take three processes."""
    experiment = tiny(home / "tones", **{**MEASURED, **changes})
    prepared_for(experiment, home)
    return RunFolder.create(home / "runs" / name, experiment, {"name": "test", **(info or {})})


def typed_settings(data: Path, cpus: str) -> list[str]:
    """A small training in two languages as options of a command; `cpus` are those of a worker."""
    settings = {
        "data.source": data, "data.languages": "eng,fra", "model.embedding_width": 16, "train.epochs": 2, "train.batch_size": 8,
        "scaling.cpus_per_worker": cpus, "tracking.mlflow": "false", **SMALL_AUDIO, **SMALL_TEXT,
    }  # fmt: skip
    return [f"--{path}={value}" for path, value in settings.items()]
