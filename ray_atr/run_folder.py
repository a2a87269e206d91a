"""A run folder: the local truth of what was run and what came out, readable without Ray or MLflow.

    RUN/experiment.json                  the base experiment, flattened
    RUN/sweep.json                       name, space, seeds, data manifest hash, code version, command
    RUN/trials/<trial_id>/trial.json     name, overrides, status, error, training seconds
    RUN/trials/<trial_id>/metrics.jsonl  one line an epoch
    RUN/trials/<trial_id>/result.json    best epoch, its validation and test metrics; written when the trial is finished
    RUN/trials/<trial_id>/last, best     checkpoints
    RUN/report/                          tables, figures, page

It lies on a file system or in an object store (`s3://bucket/runs/x`); there `objects/` and `checkpoint.json` stand in the
place of `last` (training/mirror.py). Every file appears whole, and the one that says that the others are there is written
last. A trial with a `result.json` is finished and is never run again.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray_atr.experiment import Experiment, load_experiment
from ray_atr.override import flatten
from ray_atr.storage import Location, StorageError, folders_in, is_there, locate, make_folder, reaching, write_text

Status = str
PENDING, RUNNING, FINISHED, FAILED, STOPPED = "pending", "running", "finished", "failed", "stopped"

LAST, BEST = "last", "best"
"""A trial's checkpoints: all that it takes to go on, and the retriever of the best validation epoch."""


def write_json(path: Location, content: Any) -> None:
    """Write JSON, whole, into a folder that exists."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Location) -> Any:
    """The content of a JSON file; ValueError names the file where it is not JSON, StorageError where it is gone."""
    try:
        with reaching(path):
            return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON ({error})") from None


def make_trial_id(overrides: Mapping[str, Any]) -> str:
    """A name that says what the trial varies, made unique by a hash: the same point has the same id in every run."""
    readable = re.sub(r"[^A-Za-z0-9.=-]+", "-", trial_name(overrides)).strip("-")[:60]
    digest = hashlib.sha256(json.dumps(dict(overrides), sort_keys=True, default=str).encode()).hexdigest()[:8]
    return f"{readable}-{digest}" if readable else digest


SHORT_NAMES = {"data.noise.ratio": "noise", "objective.pair.transport_mass": "mass", "train.learning_rate": "lr"}


CHOICES = ("objective", "objective.scheme", "objective.pair", "objective.knowledge")
SHORT_CHOICES = {
    "random": "ml_clap", "co_anchor": "cacl", "one_to_k": "kcl",
    "learning_to_match": "ltm", "partial_learning_to_match": "pot",
}  # fmt: skip
"""What a scheme or pair loss is called after the system that made it known, where its own name is long."""


def joined(choices: Iterable[str]) -> str:
    """What a scheme, a pair loss and a knowledge are called together: `kcl+pot`."""
    return "+".join(SHORT_CHOICES.get(choice, choice) for choice in choices)


def trial_name(overrides: Mapping[str, Any]) -> str:
    """What a person calls the trial: `m_ltm noise=0.4 seed=1`, `kcl+pot mass=0.7 noise=0.4 seed=1`."""
    chosen = [str(overrides[path]) for path in CHOICES if path in overrides]
    words = [joined(chosen)] if chosen else []
    for path in sorted(overrides, key=lambda path: path == "seed"):
        if path in CHOICES:
            continue
        value = overrides[path]
        text = f"{value:g}" if isinstance(value, float) else str(value)
        words.append(f"{SHORT_NAMES.get(path, path.rsplit('.', 1)[-1])}={text}")
    return " ".join(words) or "base"


@dataclass(frozen=True)
class TrialFolder:
    """The files of one trial."""

    folder: Location

    @property
    def trial_id(self) -> str:
        return self.folder.name

    @property
    def is_finished(self) -> bool:
        return is_there(self.folder / "result.json")

    def describe(self) -> dict[str, Any]:
        return read_json(self.folder / "trial.json")  # type: ignore[no-any-return]

    def update(self, **changes: Any) -> None:
        """Change entries of `trial.json`. StorageError where it is gone: it is never made anew from the changes alone."""
        write_json(self.folder / "trial.json", {**self.describe(), **changes})

    def epochs(self) -> list[dict[str, Any]]:
        """The recorded epochs in order. A last line cut off by a kill is left out: its epoch will be recorded again."""
        path = self.folder / "metrics.jsonl"
        if not is_there(path):
            return []
        with reaching(path):
            lines = path.read_text(encoding="utf-8").splitlines()
        rows = []
        for line in lines:
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return rows

    def add_epoch(self, metrics: Mapping[str, Any]) -> bool:
        """Record an epoch's metrics; False where that epoch is there already (a resumed run reports it again)."""
        rows = self.epochs()
        if any(row["epoch"] == metrics["epoch"] for row in rows):
            return False
        rows.append({**metrics, "time": time.time()})
        write_text(self.folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        return True

    def finish(self, final: Mapping[str, Any]) -> None:
        """Write the result: the best epoch's validation and test metrics, and the last epoch's validation metrics."""
        rows = self.epochs()
        best = next((row for row in rows if row["epoch"] == final["best_epoch"]), {})
        write_json(
            self.folder / "result.json",
            {
                "best_epoch": final["best_epoch"],
                "clean_share": final.get("train/clean_share"),
                "val": evaluation_metrics(best),
                "last": evaluation_metrics(rows[-1] if rows else {}),
                "test": {name[len("test/") :]: value for name, value in final.items() if name.startswith("test/")},
                "train_seconds": train_seconds(rows),
            },
        )
        self.update(status=FINISHED, error=None, train_seconds=train_seconds(rows))


def train_seconds(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Seconds of training by the end of the last recorded epoch; None where there is none."""
    return rows[-1].get("seconds/train") if rows else None


def evaluation_metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a validation measured, of all that an epoch recorded."""
    others = ("train/", "seconds/", "memory/", "knowledge/")
    return {name: value for name, value in row.items() if "/" in name and not name.startswith(others)}


@dataclass(frozen=True)
class RunFolder:
    """A run folder, on a file system or in an object store."""

    path: Location

    @staticmethod
    def create(path: str | Location, experiment: Experiment, info: Mapping[str, Any]) -> RunFolder:
        """Make a new run folder. ValueError where it cannot be written or holds a run already."""
        folder = locate(path)
        if is_there(folder / "sweep.json"):
            raise ValueError(f"{folder}: a run folder already; go on with --resume {folder}, or choose another")
        try:
            make_folder(folder / "trials")
            write_json(folder / "experiment.json", flatten(experiment))
            write_json(folder / "sweep.json", dict(info))
        except StorageError as error:
            raise ValueError(str(error)) from None
        except OSError as error:
            raise ValueError(f"{folder}: the run folder cannot be written ({error.strerror})") from None
        return RunFolder(folder)

    @staticmethod
    def open(path: str | Location) -> RunFolder:
        """Open an existing run folder. ValueError where it is none; StorageError where its storage is away."""
        folder = locate(path)
        if not is_there(folder / "sweep.json"):
            raise ValueError(f"{folder}: not a run folder (sweep.json is missing)")
        return RunFolder(folder)

    @property
    def experiment(self) -> Experiment:
        return load_experiment(self.path / "experiment.json")

    @property
    def info(self) -> dict[str, Any]:
        return read_json(self.path / "sweep.json")  # type: ignore[no-any-return]

    def trial(self, trial_id: str) -> TrialFolder:
        return TrialFolder(self.path / "trials" / trial_id)

    def trials(self) -> Iterator[TrialFolder]:
        for folder in folders_in(self.path / "trials"):
            if is_there(folder / "trial.json"):
                yield TrialFolder(folder)

    def add_trial(self, overrides: Mapping[str, Any]) -> TrialFolder:
        """The folder of a trial, with its `trial.json` where that is not there yet."""
        trial = self.trial(make_trial_id(overrides))
        if not is_there(trial.folder / "trial.json"):
            make_folder(trial.folder)
            described = {
                "trial_id": trial.trial_id,
                "name": trial_name(overrides),
                "overrides": dict(overrides),
                "status": PENDING,
                "error": None,
                "train_seconds": None,
            }
            write_json(trial.folder / "trial.json", described)
        return trial
