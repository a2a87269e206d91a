"""A run folder: the record of what was run and of its results, readable without Ray or MLflow.

    RUN/experiment.json                  the base experiment, flattened
    RUN/sweep.json                       name, space, seeds, data manifest hash, code version, command
    RUN/trials/<trial_id>/trial.json     name, overrides, status, error, training seconds
    RUN/trials/<trial_id>/metrics.jsonl  one line an epoch
    RUN/trials/<trial_id>/result.json    best epoch, its validation and test metrics; written when the trial is finished
    RUN/trials/<trial_id>/last, best     checkpoints
    RUN/trials/<trial_id>/test/scores.npz    R@1 of each test query, for paired differences
    RUN/report/                          tables, figures, page

It is on a file system or in an object store (`s3://bucket/runs/x`); there `objects/` and `checkpoint.json` take the place of
`last` (common/transfer.py). Every file appears complete, and the one that refers to the others is written last. Every JSON
object ends with a digest, which reveals damaged bytes. One process at a time writes it. A trial with a `result.json` is finished
and is never run again.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ray_atr.common import storage
from ray_atr.common.atomic import remove_leftovers_among
from ray_atr.common.digests import first_cut_short
from ray_atr.common.formats import FORMATS, require_format
from ray_atr.common.lock import HOLDER_FILE, LOCK_FILE
from ray_atr.common.override import flatten, override
from ray_atr.common.redaction import redact_values, refuse_secrets
from ray_atr.common.settings import refuse, shortened
from ray_atr.common.storage import Location, StorageError
from ray_atr.data.caption_sample import CaptionSample
from ray_atr.data.shards import MANIFEST_FILE
from ray_atr.metrics.epoch_report import EpochReport, FinalReport
from ray_atr.models.laion_clap import BESIDE
from ray_atr.models.ml_clap import NLLB_BESIDE
from ray_atr.models.weights import SETTINGS_FILE, is_clap, lone_file, trained_captions_of
from ray_atr.objectives import PRESETS
from ray_atr.training.experiment import Experiment, load_experiment, resolved
from ray_atr.training.objective_label import joint_name, objective_label

STATUSES = PENDING, RUNNING, FINISHED, FAILED, STOPPED = "pending", "running", "finished", "failed", "stopped"
METRICS_FILE, RESULT_FILE, TEST_SCORES = "metrics.jsonl", "result.json", "test/scores.npz"
DROPPED = "dropped"
"""The key, in a trial.json, of the evidence by which a race dropped the trial's point."""
LAST, BEST = "last", "best"
"""A trial's checkpoints: everything needed to resume, and the retriever of the best validation epoch."""
KINDS: Mapping[type, tuple[str, ...]] = {
    str: ("name", "command"),
    list: ("varied", "seeds", "points", "maximize", "minimize", "earlier", "granted_seeds", "race_seeds"),
    dict: ("data", "code", "fixed", "scaling"),
}
"""What entries of `sweep.json` are, which someone may have changed."""
KIND_NAMES: Mapping[type, str] = {str: "a text", list: "a list", dict: "an object"}


@dataclass(frozen=True)
class RaceEvidence:
    """Why a race dropped a point: the better point, its lead, and the number of seeds compared."""

    rival: str
    seeds: int
    ahead: float
    """Mean of the rival minus that of the point, over the seeds and clips that both have."""
    at_least: float
    """The lower end of the joint interval, above 0."""
    level: float
    """The error probability of this comparison: that the joint interval misses some pair's difference."""

    @classmethod
    def read(cls, content: Any, path: str) -> RaceEvidence:
        """The evidence that a run folder holds. ValueError, naming the path, for anything else."""
        try:
            return TypeAdapter(cls).validate_python(content)
        except ValidationError:
            names = ", ".join(entry.name for entry in fields(cls))
            raise refuse(path, content, f"the evidence by which a race dropped a point: {names}") from None


LONGEST_NAME = 60
"""Most characters of the readable part of a trial's id."""


def make_trial_id(overrides: Mapping[str, Any]) -> str:
    """An id of what the trial varies, with a hash that makes it unique: the same point has the same id in every run."""
    words = [re.sub(r"[^A-Za-z0-9.=-]+", "-", word).strip("-") for word in trial_name(overrides).split(" ")]
    # Only complete words: a number that is cut would be another number.
    fitting = [word for number, word in enumerate(words) if len("-".join(words[: number + 1])) <= LONGEST_NAME]
    readable = "-".join(filter(None, fitting)) or words[0][:LONGEST_NAME]
    digest = hashlib.sha256(json.dumps(dict(overrides), sort_keys=True, default=str).encode()).hexdigest()[:8]
    return f"{readable}-{digest}" if readable else digest


SHORT_NAMES = {"data.noise.ratio": "noise", "objective.pair.transport_mass": "mass", "train.learning_rate": "lr"}
METRIC = "objective.pair.metric"
CHOICES = ("objective", "objective.scheme", "objective.pair", "objective.knowledge")


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Each setting's name in tables and trials: `noise` for `data.noise.ratio`, else its last part, after as many parts as
    distinguish it from the others: `audio.dropout` and `text.dropout`.
    """
    names = {path: SHORT_NAMES.get(path, path.rsplit(".", 1)[-1]) for path in paths}
    parts = 1
    while alike := [path for path, name in names.items() if name != path and list(names.values()).count(name) > 1]:
        parts += 1
        names |= {path: ".".join(path.split(".")[-parts:]) for path in alike}
    return names


def includes_metric(label: str, settings: Mapping[str, Any]) -> bool:
    """Whether an objective's name in reports ends with the metric of its pair loss (`m_ltm_euclidean`)."""
    return label.endswith(f"_{settings.get(METRIC)}")


def trial_name(overrides: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> str:
    """A readable name of the trial: `m_ltm noise=0.4 seed=1`, `kcl+pot mass=0.7 noise=0.4 seed=1`.

    With all of its `settings`, the objective has its name in reports, which may include the metric.
    """
    chosen = [str(overrides[path]) for path in CHOICES if path in overrides]
    words = [joint_name(chosen)] if chosen else []
    named = set(CHOICES)
    if settings is not None and any(path.startswith("objective") for path in overrides):
        words = [objective_label(settings, overrides)]
        if includes_metric(words[0], overrides):
            named.add(METRIC)
    names = short_names([path for path in overrides if path not in named])
    for path in sorted(names, key=lambda path: path == "seed"):
        value = overrides[path]
        text = f"{value:g}" if isinstance(value, float) else str(value)
        words.append(f"{names[path]}={text}")
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
        return storage.file_exists(self.folder / RESULT_FILE)

    def describe(self) -> dict[str, Any]:
        """The content of `trial.json`, with the status corrected by `result.json`: a kill can come between writing the two."""
        content = _described(self.folder / "trial.json", self.trial_id)
        if content["status"] in (RUNNING, FAILED) and self.is_finished:
            content |= {"status": FINISHED, "error": None, "train_seconds": train_seconds(self.epochs())}
        elif content["status"] == FINISHED and not self.is_finished:
            content["status"] = PENDING
        return content

    def problem(self) -> str | None:
        """A file that was damaged since it was written, and how; None if there is none.

        A kill damages nothing: the result is written before the status, and a resumed run reports epochs again that were not
        recorded.
        """
        if not storage.file_exists(self.folder / "trial.json"):
            # A kill between making the folder and writing the file leaves an empty folder.
            return f"{self.folder / 'trial.json'}: missing" if storage.entries_in(self.folder) else None
        # In the order from what is written last: a trial may go on meanwhile, and what is read later holds no less.
        described, is_finished = _described(self.folder / "trial.json", self.trial_id), self.is_finished
        if described["status"] == FINISHED and not is_finished:
            return f"{self.folder / RESULT_FILE}: missing, though the trial finished"
        result = self.result() if is_finished else {}
        rows = self.epochs()
        parts: dict[str, Sequence[Mapping[str, Any]]] = {
            "trial.json": [described],
            METRICS_FILE: rows,
            RESULT_FILE: [result],
        }
        for name, records in parts.items():
            if others := {record.get("trial_id", self.trial_id) for record in records} - {self.trial_id}:
                return f"{self.folder / name}: of another trial, {shortened(str(min(others, key=str)))}"
        # A folder that another program wrote has no digest at all.
        files = [self.folder / name for name in parts if storage.file_exists(self.folder / name)]
        lost = [storage.missing_digest(file, is_lines=file.name == METRICS_FILE) for file in files]
        if not all(lost):
            for problem in filter(None, lost):
                return problem
        if is_finished and storage.is_local(self.folder):
            cut = first_cut_short(self.folder / BEST)
            if cut is not None:
                return f"{cut}: missing or cut short, not the complete file as it was written"
        recorded = [row.epoch for row in rows]
        least = result.get("epochs", result.get("best_epoch", 0)) if result else described.get("epochs", 0)
        expected = list(range(1, max(len(recorded), int(least or 0)) + 1))
        if recorded == expected:
            return None
        written = ", ".join(map(str, recorded)) or "none"
        return f"{self.folder / METRICS_FILE}: epochs {written} instead of 1 to {max([*expected, *recorded])}"

    def update(self, **changes: Any) -> None:
        """Change entries of `trial.json`. StorageError if the file is missing."""
        storage.write_json(self.folder / "trial.json", {**self.describe(), **changes})

    def result(self) -> dict[str, Any]:
        """The content of `result.json` of a finished trial. ValueError, naming the file, if it is something else."""
        content = _object(self.folder / RESULT_FILE)
        parts = [content.get(part, {}) for part in ("val", "last", "test")]
        if type(content.get("best_epoch")) is not int or not all(isinstance(part, dict) for part in parts):
            raise refuse(str(self.folder / RESULT_FILE), content, "the best epoch and the metrics of a finished trial")
        return content

    def epochs(self) -> list[EpochReport]:
        """The recorded epochs in order, without a last line that a kill cut off: its epoch will be recorded again."""
        return [EpochReport(row) for row in storage.read_appended(self.folder / METRICS_FILE)]

    def epochs_after(self, epoch: int) -> list[EpochReport]:
        """The recorded epochs after this one, in order; earlier lines are not read."""
        rows = itertools.takewhile(lambda row: row["epoch"] > epoch, storage.newest_lines(self.folder / METRICS_FILE))
        return [EpochReport(row) for row in rows][::-1]

    def add_epoch(self, metrics: Mapping[str, Any]) -> bool:
        """Record an epoch's metrics; False if that epoch is recorded already (a resumed run reports it again)."""
        newest = next(storage.newest_lines(self.folder / METRICS_FILE), None)
        if newest is not None and newest["epoch"] >= metrics["epoch"]:
            return False
        row = EpochReport(metrics, time=time.time(), trial_id=self.trial_id)
        storage.append_line(self.folder / METRICS_FILE, row)
        return True

    def finish(self, final: Mapping[str, Any]) -> None:
        """Write the result: the best epoch's validation and test metrics, and the last epoch's validation metrics."""
        rows, final = self.epochs(), FinalReport(final)
        best = next((row for row in rows if row.epoch == final["best_epoch"]), EpochReport())
        result = {
            "trial_id": self.trial_id,
            "best_epoch": final["best_epoch"],
            "epochs": len(rows),
            "out_of_patience": final.out_of_patience,
            "clean_share": final.clean_share,
            "val": best.validation,
            "last": rows[-1].validation if rows else {},
            "test": final.test,
            "train_seconds": train_seconds(rows),
        }
        storage.write_json(self.folder / RESULT_FILE, result)
        self.update(status=FINISHED, error=None, train_seconds=train_seconds(rows))

    def stop(self) -> None:
        """Record that a scheduler ended the trial, after the epochs that are recorded."""
        rows = self.epochs()
        self.update(status=STOPPED, train_seconds=train_seconds(rows), epochs=len(rows))


def train_seconds(rows: Sequence[EpochReport]) -> float | None:
    """Seconds of training by the end of the last recorded epoch; None if there is none."""
    return rows[-1].group("seconds").get("train") if rows else None


@dataclass(frozen=True)
class RunFolder:
    """A run folder, on a file system or in an object store."""

    path: Location

    @property
    def resuming(self) -> str:
        """The option that continues the run, ready to be pasted into a shell."""
        return shlex.join(["--resume", str(self.path)])

    @staticmethod
    def create(path: str | Location, experiment: Experiment, info: Mapping[str, Any]) -> RunFolder:
        """Make a new run folder. ValueError if it cannot be written, is a run folder already or is just being made one, holds a
        data set or a retriever, or a setting holds a secret.
        """
        folder = storage.locate(path)
        _require_no_run(folder)
        for file, kind in ((MANIFEST_FILE, "data set"), (SETTINGS_FILE, "retriever")):
            if storage.file_exists(folder / file):
                raise ValueError(f"{folder}: holds a {kind} ({file}); choose another folder for the run")
        settings = flatten(experiment)
        refuse_secrets(settings)
        try:
            storage.make_folder(folder / "trials")
            # If two start at once, one would train with the settings of the other.
            with storage.hold(folder, "this run"):
                _require_no_run(folder)
                storage.write_json(folder / "experiment.json", settings)
                storage.write_json(folder / "sweep.json", {**redact_values(info), "format": FORMATS["run"]})
        except StorageError as error:
            raise ValueError(str(error)) from None
        except OSError as error:
            raise ValueError(f"{folder}: the run folder cannot be written ({error.strerror})") from None
        return RunFolder(folder)

    @staticmethod
    def open(path: str | Location) -> RunFolder:
        """Open an existing run folder. ValueError if it is none; StorageError if its storage cannot be reached."""
        folder = storage.locate(path)
        for name in ("sweep.json", "experiment.json"):
            if not storage.file_exists(folder / name):
                raise ValueError(f"{folder}: not a run folder ({name} is missing)")
        return RunFolder(folder)

    @property
    def experiment(self) -> Experiment:
        return load_experiment(self.path / "experiment.json")

    @property
    def settings(self) -> dict[str, Any]:
        """All settings of the run, flattened, as in `experiment.json`, also settings of another version."""
        return _object(self.path / "experiment.json")

    @property
    def select_by(self) -> str:
        """The validation metric that chooses among epochs and trials."""
        return metric_chosen_by(self.settings)

    def update_experiment(self, experiment: Experiment) -> None:
        """Replace the run's experiment, if it differs."""
        if (settings := flatten(experiment)) != self.settings:
            storage.write_json(self.path / "experiment.json", settings)

    def settings_of(self, overrides: Mapping[str, Any], experiment: Experiment | None = None) -> dict[str, Any]:
        """All settings of a trial, flattened: the run's (`experiment`, if it was read before) with the trial's overrides.

        If a run of another version has settings that are unknown here, all are returned as they are stored, without those of
        parts that the overrides replace.
        """
        try:
            return flatten(resolved(override(experiment or self.experiment, overrides)))
        except ValueError:
            replaced = tuple(f"{path}." for path in overrides)
            unchanged = {path: value for path, value in self.settings.items() if not path.startswith(replaced)}
            preset = PRESETS.get(str(overrides.get("objective")))
            parts = {} if preset is None else {f"objective.{path}": value for path, value in flatten(preset).items()}
            return unchanged | parts | dict(overrides)

    def experiment_of(self, trial: TrialFolder) -> Experiment:
        """A trial's experiment: the run's, with the trial's overrides."""
        return resolved(override(self.experiment, trial.describe()["overrides"]))

    @property
    def info(self) -> dict[str, Any]:
        """The content of `sweep.json`, without secrets that someone may have put there."""
        file = self.path / "sweep.json"
        content = {"name": self.path.name, **require_format("run", _object(file), file)}
        space = content.get("space") or {}
        if not isinstance(space, dict) or not isinstance(space.get("objective", ""), str | list):
            raise refuse(f"{file}: space", space, "what each varied setting takes, by its path")
        for kind, parts in KINDS.items():
            for part in parts:
                if not isinstance(content.get(part, kind()), kind):
                    raise refuse(f"{file}: {part}", content[part], KIND_NAMES[kind])
        return dict(redact_values(content))

    def update_info(self, **changes: Any) -> None:
        """Change entries of `sweep.json`."""
        storage.write_json(self.path / "sweep.json", {**self.info, **redact_values(changes)})

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock this run for writing. ValueError, with the other process, if it is locked.

        Removes incomplete files of writers that were killed.
        """
        with storage.hold(self.path, "this run"):
            if storage.is_local(self.path):
                for pattern in (".*", "trials/*/.*"):
                    remove_leftovers_among(self.path.glob(pattern))
            yield

    def remove(self) -> None:
        """Remove a run of which no trial has started, if it is on a file system. Other files in its folder stay."""
        if not storage.is_local(self.path):
            return
        for file in list((self.path / "trials").glob("*/trial.json")):
            # One that has started is of an earlier run whose other files are gone.
            if len(list(file.parent.iterdir())) == 1:
                storage.remove_folder(file.parent)
        for name in ("sweep.json", "experiment.json", "tracking.json"):
            (self.path / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (self.path / "trials").rmdir()
        if {entry.name for entry in self.path.iterdir()} <= {LOCK_FILE, HOLDER_FILE}:
            # It may be a mount, or in a folder that this user may not write.
            with contextlib.suppress(OSError):
                storage.remove_folder(self.path)

    def trial(self, trial_id: str) -> TrialFolder:
        """The folder of a trial, which need not exist. ValueError for an id that cannot name a folder."""
        return TrialFolder(self.path / "trials" / storage.safe_name(trial_id, "trial"))

    def trials(self) -> Iterator[TrialFolder]:
        for folder in storage.entries_in(self.path / "trials"):
            if storage.file_exists(folder / "trial.json"):
                yield TrialFolder(folder)

    def problems(self) -> list[str]:
        """The damaged files of the run and of its trials, and how each is damaged."""
        problems = [storage.missing_digest(self.path / name) for name in ("experiment.json", "sweep.json")]
        if all(problems):
            # Another program wrote the folder.
            problems = []
        trials = (TrialFolder(folder).problem() for folder in storage.entries_in(self.path / "trials"))
        return [problem for problem in (*problems, *trials) if problem is not None]

    def add_trial(self, overrides: Mapping[str, Any]) -> TrialFolder:
        """The folder of a trial; its `trial.json` is written if it does not exist."""
        trial = self.trial(make_trial_id(overrides))
        if not storage.file_exists(trial.folder / "trial.json"):
            refuse_secrets(overrides)
            storage.make_folder(trial.folder)
            described = {
                "trial_id": trial.trial_id,
                "name": trial_name(overrides) if overrides else objective_label(self.settings),
                "overrides": dict(overrides),
                "format": FORMATS["run"],
                "status": PENDING,
                "error": None,
                "train_seconds": None,
            }
            storage.write_json(trial.folder / "trial.json", described)
        return trial


def _require_no_run(folder: Location) -> None:
    """ValueError if a folder is a run folder."""
    if storage.file_exists(folder / "sweep.json"):
        resuming = RunFolder(folder).resuming
        raise ValueError(f"{folder}: a run folder already; continue it with {resuming}, or choose another")


def metric_chosen_by(settings: Mapping[str, Any]) -> str:
    """The validation metric that chooses among epochs and trials, from flattened settings; the default if they lack it."""
    return str(settings.get("evaluation.select_by", Experiment().evaluation.select_by))


def hashes_of(info: Mapping[str, Any]) -> dict[str, str]:
    """The manifest hash by data set, from a sweep.json."""
    data = info.get("data") or {"name": "", "hash": ""}
    pairs = zip(data["name"].split(", "), data["hash"].split(", "), strict=True)
    return {name: digest for name, digest in pairs if name}


def sets_of(info: Mapping[str, Any]) -> list[str]:
    """The names of a sweep.json's data sets in their manifests."""
    return [name for name in (info.get("data") or {}).get("set", "").split(", ") if name]


def trial_place(folder: Location, path: str) -> Location:
    """The folder, or that of the only trial if it is a run folder. ValueError names the trials if there are several."""
    if not storage.file_exists(folder / "sweep.json"):
        return folder
    trials = [trial.trial_id for trial in RunFolder.open(folder).trials()]
    if len(trials) != 1:
        names = ", ".join(f"trials/{trial}" for trial in trials[:4]) + (", ..." if len(trials) > 4 else "")
        allowed = f"one of its {len(trials)} trials: {names}" if trials else "a run with a trial; this one has none yet"
        raise refuse(path, str(folder), allowed)
    return folder / "trials" / trials[0]


def saved_retriever(folder: str | Location, path: str) -> Location:
    """The saved retriever in a folder (or URL): its own, a trial's, or that of a run with one trial.

    A published one is a folder on this machine, or the `.pt` in it. ValueError, with the setting `path`, if there is none.
    """
    place = storage.locate(folder)
    if storage.is_local(place) and place.suffix == ".pt" and place.is_file():
        # A folder with several files of weights is ambiguous.
        if lone_file(place.parent) is None:
            raise refuse(
                path, str(folder), f"LAION-CLAP's .pt alone in a folder with {BESIDE}; or ML-CLAP's, with {NLLB_BESIDE}"
            )
        place = place.parent
    if storage.is_local(place) and not place.is_dir():
        raise refuse(path, str(folder), "an existing folder: a saved retriever, or a trial of a run")
    if storage.file_exists(place / SETTINGS_FILE) or (storage.is_local(place) and is_clap(place)):
        return place
    place = trial_place(place, path)
    if storage.file_exists(place / BEST / SETTINGS_FILE):
        return place / BEST
    if storage.file_exists(place / "trial.json"):
        lacks = (
            "was removed since it finished: train it again" if TrialFolder(place).is_finished else "is not there yet"
        )
        raise refuse(path, str(folder), f"a trial with a saved retriever; {BEST}/ {lacks}")
    if storage.is_local(place) and lone_file(place) is not None:
        return place
    raise refuse(
        path,
        str(folder),
        f"a folder with a {SETTINGS_FILE}, transformers' ClapModel, or the folder of a trial or run; or LAION-CLAP's .pt, "
        f"with {BESIDE}; or ML-CLAP's, with {NLLB_BESIDE}",
    )


def trial_of(retriever: Location) -> TrialFolder | None:
    """The trial of a saved retriever, RUN/trials/TRIAL/best; None for one in no run."""
    folder = retriever.parent
    is_in_run = storage.file_exists(folder / "trial.json") and storage.file_exists(folder.parent.parent / "sweep.json")
    return TrialFolder(folder) if retriever.name == BEST and is_in_run else None


def captions_trained_on(retriever: Location) -> CaptionSample:
    """The sample of what a saved retriever was trained on, wherever its folder is; an empty one for another tool's."""
    file = retriever / SETTINGS_FILE
    return trained_captions_of(storage.read_json(file) if storage.file_exists(file) else {}, retriever)


def captions_of_towers(retriever: Location) -> CaptionSample:
    """The sample of what a saved retriever's towers were trained on. Frozen ones are those of the retriever that its training
    started from, as far as its run says so.
    """
    file = retriever / SETTINGS_FILE
    model = storage.read_json(file).get("model", {}) if storage.file_exists(file) else {}
    if not all(model.get(f"{kind}.adapt.is_frozen") is True for kind in ("audio", "text")):
        return captions_trained_on(retriever)
    if (trial := trial_of(retriever)) is None:
        return CaptionSample()
    # As settings: the run may be of another version.
    settings = RunFolder.open(retriever.parents[2]).settings_of(trial.describe()["overrides"])
    if (start := settings.get("train.start_from")) is None:
        return CaptionSample()
    try:
        return captions_of_towers(saved_retriever(start, "train.start_from"))
    except (ValueError, StorageError):
        # It is gone. What it was trained on is a part of this one's sample.
        return captions_trained_on(retriever)


def _object(file: Location) -> dict[str, Any]:
    content = storage.read_json(file)
    if not isinstance(content, dict):
        raise refuse(str(file), content, "a JSON object, as a run writes it")
    return content


def _described(file: Location, trial_id: str) -> dict[str, Any]:
    """The content of a `trial.json`. ValueError, naming the file, if its overrides or status are missing."""
    content = {"name": trial_id, "error": None, "train_seconds": None, **require_format("run", _object(file), file)}
    if not isinstance(content.get("overrides"), dict):
        raise refuse(f"{file}: overrides", content.get("overrides"), "an object of settings by their paths")
    if content.get("status") not in STATUSES:
        raise refuse(f"{file}: status", content.get("status"), ", ".join(STATUSES))
    return content
