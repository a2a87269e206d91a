"""Saved retrievers, found by their own folder, trial or run, and the data that they were trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ray_atr.common.language_codes import normalise
from ray_atr.common.override import flatten
from ray_atr.common.storage import Location, file_exists, read_json
from ray_atr.data.caption_sample import CaptionSample
from ray_atr.data.shards import ClipCaptions, Manifest, read_captions, read_manifest
from ray_atr.models.weights import SETTINGS_FILE
from ray_atr.training.experiment import NOT_DECIDING, Experiment
from ray_atr.training.run_folder import (
    RunFolder,
    TrialFolder,
    captions_trained_on,
    hashes_of,
    saved_retriever,
    sets_of,
    trial_of,
)


@dataclass(frozen=True)
class Checkpoint:
    """A retriever's folder, and its trial, if it is one's best epoch."""

    folder: Location
    trial: TrialFolder | None = None

    @property
    def name(self) -> str:
        """A readable name: the run and what the trial varies; or the folder's name."""
        if self.trial is None:
            return self.folder.name
        content = self.trial.describe()
        return f"{self.run_folder.name}: {content['name']}" if content["overrides"] else self.run_folder.name

    @property
    def run_folder(self) -> Location:
        """The run folder of its trial: RUN/trials/TRIAL/best."""
        return self.folder.parents[2]

    @cached_property
    def experiment(self) -> Experiment | None:
        """The settings of its training; None for a folder outside of a run."""
        if self.trial is None:
            return None
        return RunFolder.open(self.run_folder).experiment_of(self.trial)

    def trained_on(self, manifest: Manifest) -> str:
        """A description of its training data."""
        if self.experiment is None:
            return "not known: the folder is in no run"
        data = self.experiment.data
        where = f"{manifest.title}, the same data set" if self.is_trained_on(manifest) else data.source
        noise = f", noise {data.noise.ratio:g}" if data.noise.ratio else ""
        return f"{where}, split {data.train_split}{noise}"

    @cached_property
    def trained_languages(self) -> list[str] | None:
        """The languages of its training captions, also of the training that it started from; None if unknown."""
        file = self.folder / SETTINGS_FILE
        # A published model of others has none, nor has one that started from such a model.
        saved = read_json(file).get("languages") if file_exists(file) else None
        return saved or (None if self.experiment is None else self.experiment.trained_languages) or None

    @property
    def data_name(self) -> str:
        """The name of its training data in their manifest; empty if unknown."""
        names = [] if self.trial is None else sets_of(RunFolder.open(self.run_folder).info)
        return names[0] if len(names) == 1 else ""

    @property
    def objective(self) -> str:
        """The names of scheme, pair loss and knowledge; empty if unknown."""
        if self.experiment is None:
            return ""
        objective = self.experiment.objective
        parts = (objective.scheme.name, objective.pair.name, objective.knowledge.name)
        return " x ".join(part for part in parts if part != "none")

    def trained_classes(
        self, manifest: Manifest, classes: Sequence[str], sentences: Mapping[str, Sequence[str]]
    ) -> set[str] | None:
        """Classes whose labels or prompts (`sentences`: by language, one for each class) it was trained on; None if unknown."""
        training = self.training_data(manifest)
        if self.experiment is None or training is None:
            return None
        try:
            rows = list(read_captions(training, self.experiment.data.train_split))
        except (ValueError, OSError):
            return None
        labels = {label for row in rows for label in row.labels or ()}
        texts = {text for row in rows for texts_of in row.captions.values() for text in texts_of or ()}
        captions = {normalise(text).casefold() for text in texts}
        prompts = zip(*sentences.values(), strict=True)
        return labels.intersection(classes) | {
            name
            for name, of_class in zip(classes, prompts, strict=True)
            if any(normalise(prompt).casefold() in captions for prompt in of_class)
        }

    def training_data(self, manifest: Manifest) -> Manifest | None:
        """The data set that it was trained on, maybe this one; None if it is unknown, missing or replaced by another."""
        if self.experiment is None:
            return None
        source = self.experiment.data.source
        if source == "soundscapes" != manifest.name:
            return None
        try:
            found = manifest if source == "soundscapes" else read_manifest(source)
        except (ValueError, OSError):
            # The training data may have been moved since, or be in a store that cannot be reached.
            return None
        recorded = hashes_of(RunFolder.open(self.run_folder).info).values()
        # A search does not record soundscapes whose settings it draws from a range.
        assert self.trial is not None
        is_varied = any(path.startswith("data.soundscapes.") for path in self.trial.describe()["overrides"])
        return found if is_varied or found.hash in recorded or not recorded else None

    def share_trained_on(self, manifest: Manifest, rows: Sequence[ClipCaptions]) -> float:
        """The share of a data set's clips that it was trained on with their captions, as far as it is known; 0 if it is not."""
        trained = captions_trained_on(self.folder)
        if not len(trained.numbers):
            return 0.0

        def captions_of(some: NDArray[np.int64]) -> list[list[str]]:
            return [
                [text for captions in rows[row].captions.values() for text in captions or () if text] for row in some
            ]

        # Parts of a joined set may be made of joined ones, so that an id has several names in front.
        names = max((row.clip_id.count("/") for row in rows), default=0) if manifest.is_joined else 0
        ids = ([row.clip_id.split("/", cut)[-1] for row in rows] for cut in range(names + 1))
        return max(CaptionSample.from_clips(one, captions_of).share_in(trained) for one in ids)

    def is_trained_on(self, manifest: Manifest) -> bool:
        """Whether the data set is the one it was trained on."""
        training_set = self.training_data(manifest)
        return training_set is not None and training_set.hash == manifest.hash


def find_checkpoint(path: str | Location, option: str = "checkpoint") -> Checkpoint:
    """The checkpoint in a folder or URL of a retriever, a trial, or a run with one trial. ValueError, with `option`, if none."""
    folder = saved_retriever(path, option)
    return Checkpoint(folder, trial_of(folder))


def check_seeds(checkpoints: Sequence[Checkpoint], path: str) -> None:
    """ValueError if several checkpoints differ in more than their seed: their mean would have no meaning."""
    if len({checkpoint.folder for checkpoint in checkpoints}) < len(checkpoints):
        raise ValueError(f"{path}: got one folder twice; allowed each checkpoint once")
    may_differ = ("seed", "evaluation.", *NOT_DECIDING)
    trained = [flatten(checkpoint.experiment) for checkpoint in checkpoints if checkpoint.experiment is not None]
    settings = [{key: value for key, value in flat.items() if not key.startswith(may_differ)} for flat in trained]
    for other in settings[1:]:
        different = sorted(key for key in {*settings[0], *other} if settings[0].get(key) != other.get(key))
        if different:
            differ = ", ".join(different[:3])
            raise ValueError(f"{path}: got several that differ in {differ}; allowed seeds of one experiment")
