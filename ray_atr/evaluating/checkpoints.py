"""A saved retriever, found by its own folder or by the trial or run that made it, and what it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from ray_atr.data.shards import Manifest, read_manifest
from ray_atr.experiment import Experiment
from ray_atr.models.retriever import Retriever
from ray_atr.models.saved import SETTINGS_FILE
from ray_atr.override import flatten, override
from ray_atr.run_folder import BEST, RunFolder, TrialFolder
from ray_atr.settings import refuse
from ray_atr.storage import Location, is_local, is_there, locate

NOT_DECIDING = ("seed", "scaling.", "tracking.", "evaluation.", "train.checkpoint_every_steps")


@dataclass(frozen=True)
class Checkpoint:
    """A retriever's folder, and the trial it is the best epoch of where it lies in one."""

    folder: Location
    trial: TrialFolder | None = None

    @property
    def name(self) -> str:
        """What a person calls it: the run, with what the trial varies; or the folder's name."""
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
        """The settings it was trained with; None for a folder that lies in no run."""
        if self.trial is None:
            return None
        return override(RunFolder.open(self.run_folder).experiment, self.trial.describe()["overrides"])

    def trained_on(self, manifest: Manifest) -> str:
        """The data set it was trained on, in words."""
        if self.experiment is None:
            return "not known: the folder lies in no run"
        data = self.experiment.data
        where = f"{manifest.name}, the same data set" if self.is_trained_on(manifest) else data.source
        noise = f", noise {data.noise.ratio:g}" if data.noise.ratio else ""
        return f"{where}, split {data.train_split}{noise}"

    @property
    def objective(self) -> str:
        """Scheme, pair loss and knowledge by their names; nothing where they are not known."""
        if self.experiment is None:
            return ""
        chosen = flatten(self.experiment)
        parts = [str(chosen[f"objective.{part}"]) for part in ("scheme", "pair", "knowledge")]
        return " x ".join(part for part in parts if part != "none")

    def is_trained_on(self, manifest: Manifest) -> bool:
        """Whether the data set is the one it was trained on."""
        if self.experiment is None:
            return False
        source = self.experiment.data.source
        if source == "soundscapes":
            return manifest.name == "soundscapes"
        try:
            return read_manifest(source).hash == manifest.hash
        except ValueError:
            # The training data may have been moved away since.
            return False


def find_checkpoint(path: str | Location) -> Checkpoint:
    """The checkpoint of a retriever's folder, a trial's folder, or the folder of a run with one trial; each may be a URL.

    Raises ValueError where there is none, naming the trials of a run that has several.
    """
    folder = locate(path)
    if is_local(folder) and not folder.is_dir():
        raise refuse("checkpoint", str(path), "an existing folder: a saved retriever, or a trial of a run")
    if is_there(folder / SETTINGS_FILE):
        return Checkpoint(folder, _trial_at(folder.parent) if folder.name == BEST else None)
    if is_there(folder / "sweep.json"):
        trials = [trial.trial_id for trial in RunFolder.open(folder).trials()]
        if len(trials) != 1:
            names = ", ".join(f"trials/{trial}" for trial in trials[:4]) + (", ..." if len(trials) > 4 else "")
            raise refuse("checkpoint", str(path), f"one of its {len(trials)} trials: {names}")
        folder = folder / "trials" / trials[0]
    trial = _trial_at(folder)
    if trial is None:
        raise refuse("checkpoint", str(path), f"a folder with a {SETTINGS_FILE}, or the folder of a trial or run")
    if not is_there(folder / BEST / SETTINGS_FILE):
        raise refuse("checkpoint", str(path), f"a trial with a saved retriever; {BEST}/ is not there yet")
    return Checkpoint(folder / BEST, trial)


def _trial_at(folder: Location) -> TrialFolder | None:
    is_trial = is_there(folder / "trial.json") and is_there(folder.parent.parent / "sweep.json")
    return TrialFolder(folder) if is_trial else None


def check_seeds(checkpoints: Sequence[Checkpoint], path: str) -> None:
    """ValueError where several checkpoints differ in more than their seed: their mean would mean nothing."""
    if len({checkpoint.folder for checkpoint in checkpoints}) < len(checkpoints):
        raise refuse(path, "a folder twice", "each checkpoint once")
    settings = [_deciding(checkpoint.experiment) for checkpoint in checkpoints if checkpoint.experiment is not None]
    for other in settings[1:]:
        different = sorted(key for key in {*settings[0], *other} if settings[0].get(key) != other.get(key))
        if different:
            raise refuse(path, f"checkpoints that differ in {', '.join(different[:3])}", "seeds of one experiment")


def _deciding(experiment: Experiment) -> dict[str, object]:
    return {key: value for key, value in flatten(experiment).items() if not key.startswith(NOT_DECIDING)}


def plan_metric(retriever: Retriever) -> Tensor | None:
    """The learnt transport metric as `plan_scores` takes it: M [D, D], its diagonal [D], or None where none was learnt."""
    if retriever.metric is None:
        return None
    metric = retriever.metric.detach()
    return metric @ metric.T if retriever.metric_settings.kind == "factored" else metric
