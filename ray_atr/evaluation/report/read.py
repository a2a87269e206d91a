"""Run folders as one table with a row for each trial, in any state."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_atr.common.language_codes import ENGLISH
from ray_atr.common.override import as_typed
from ray_atr.common.settings import counted
from ray_atr.common.storage import DamagedFileError, Location
from ray_atr.metrics.epoch_report import TIMED_PARTS, EpochReport
from ray_atr.metrics.metric import DIRECTIONS, MEANS, TRAINED, UNSEEN, Metric
from ray_atr.objectives.schemes import SCHEMES
from ray_atr.training.experiment import NOT_DECIDING
from ray_atr.training.objective_label import objective_label
from ray_atr.training.run_folder import (
    CHOICES,
    DROPPED,
    FINISHED,
    RaceEvidence,
    RunFolder,
    TrialFolder,
    sets_of,
    train_seconds,
    trial_name,
)

NOISE, SEED = "data.noise.ratio", "seed"
DATA, DATA_SOURCE, TEST_SPLIT = "data", "data.source", "data.test_split"
TRAINED_LANGUAGES = "trained_languages"
MEASURED = "measured on"
OBJECTIVE = "objective"
TRUE_SHARE, ESTIMATED_SHARE = "train/clean_share", "train/estimated_clean_share"
LAST_OF_TRAINING = (TRUE_SHARE, ESTIMATED_SHARE, "train/transport_mass")
"""Numbers of the last epoch's training in a row, means over its steps."""
MEMORY, SECONDS = "cost/memory_mb", "cost/seconds_per_epoch"
REFRESHES = "knowledge/failed_refreshes"
"""A number of each epoch; a trial's row has the sum over its epochs."""
TEST, VALIDATION, SO_FAR = "test", "validation", "validation so far"


@dataclass(frozen=True)
class Runs:
    """Trials of one or several run folders.

    `trials` has a row a trial: `run`, `trial_id`, `name`, `status`, `error`, `train_seconds`, `epochs`, `measured_on`,
    `objective` (a name), `data.noise.ratio`, `seed`, `trained_languages`, each varied path, the metrics by their names (of the
    test split if there is one, at the epoch chosen on validation, else of the validation split after the last epoch; so far
    for a trial that has not finished), and `val/` + the validation metrics at the best epoch.
    """

    trials: pd.DataFrame
    varied: list[str]
    """Paths that differ between trials, the objective first, the seed left out."""
    infos: list[Mapping[str, Any]]
    experiments: list[Mapping[str, Any]]
    folders: list[Location]
    names: list[str]
    """The folders' names in tables: the last part, or the full path if two have the same last part."""
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Trial id -> what it varies, as written in its folder."""
    shared: dict[str, Any] = field(default_factory=dict)
    """The settings that have one value in all trials."""
    dropped: dict[str, RaceEvidence] = field(default_factory=dict)
    """Why a race dropped a point, by the point's name."""
    problems: list[str] = field(default_factory=list)
    """Damaged files of the folders, and problems in training."""
    points: list[pd.DataFrame] = field(default_factory=list, init=False, repr=False)
    """Cache of `aggregate`, which a report uses ten times."""

    @cached_property
    def finished(self) -> pd.DataFrame:
        return self.trials[self.trials["status"] == FINISHED]

    @property
    def unfinished(self) -> pd.DataFrame:
        return self.trials[self.trials["status"] != FINISHED]

    @property
    def trained(self) -> list[str]:
        """Codes of the measured languages that every trial was trained on."""
        return self._languages[0]

    @property
    def others(self) -> list[str]:
        """The measured languages that some or all trials were not trained on."""
        return self._languages[1]

    @cached_property
    def _languages(self) -> tuple[list[str], list[str]]:
        return split_languages(self.trials)

    @property
    def languages(self) -> list[str]:
        """All languages that were measured, those that every trial was trained on first."""
        return self.trained + self.others

    @property
    def is_unseen(self) -> bool:
        """Whether no trial at all was trained on any of the others."""
        return not any(set(row) & set(self.others) for row in self.trials[TRAINED_LANGUAGES])

    @property
    def measured_on(self) -> list[str]:
        """The splits of the finished trials' numbers."""
        return sorted(self.finished["measured_on"].unique())

    @property
    def measured_sets(self) -> list[tuple[str, str]]:
        """(data set by its name in the manifest, split) of the finished trials' numbers."""
        paths = {TEST: TEST_SPLIT, VALIDATION: "data.validation_split"}
        splits_of_sets = {
            (name, str(split))
            for info, experiment in zip(self.infos, self.experiments, strict=True)
            for name in sets_of(info) or ["unknown"]
            for path in map(paths.__getitem__, self.measured_on)
            for split in (self.finished[path].unique() if path in self.finished else [experiment.get(path, path)])
        }
        return sorted(splits_of_sets)


def _read_trials(
    runs: Sequence[RunFolder], names: Sequence[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, dict[str, Any]], dict[str, RaceEvidence]]:
    """(rows, all settings, what a trial overrides by its id, evidence of a race by the point's name), the trials in order.
    ValueError, with the remedy, for a trial's record that cannot be read.
    """
    rows, settings = list[dict[str, Any]](), list[dict[str, Any]]()
    overrides, dropped = dict[str, dict[str, Any]](), dict[str, RaceEvidence]()
    for run, name, data_name in zip(runs, names, _data_names(runs), strict=True):
        experiment = None
        with suppress(ValueError):  # of a version whose settings are not known
            experiment = run.experiment
        data = {DATA: data_name} if data_name else {}
        for trial in run.trials():
            try:
                content = trial.describe()
                of_trial = {**run.settings_of(content["overrides"], experiment), **data}
                rows.append(_row(name, of_trial, trial, content))
            except DamagedFileError:
                raise  # it says the remedy
            except ValueError as error:  # a record that cannot be read
                remedy = "restore it from a copy, or remove the trial's folder: the report is then of the others"
                raise ValueError(f"{error}; {remedy}") from None
            settings.append(of_trial)
            overrides[trial.trial_id] = content["overrides"]
            if DROPPED in content:
                point = trial_name({path: value for path, value in content["overrides"].items() if path != SEED})
                dropped[point] = RaceEvidence.read(content[DROPPED], f"{trial.folder / 'trial.json'}: {DROPPED}")
    return rows, settings, overrides, dropped


def _data_names(runs: Sequence[RunFolder]) -> list[str]:
    """What each run's data set is called; empty if it does not say. Data sets are told apart by hash, as one may have been moved,
    or made again under its old name: names that several have are followed by it.
    """
    about = [run.info.get("data") or {} for run in runs]
    hashes = [str(data.get("hash") or "") for data in about]
    names: dict[str, str] = {}
    for data, digest in zip(about, hashes, strict=True):
        names.setdefault(digest, str(data.get("name") or digest))
    repeated = Counter(names.values())
    for digest, name in names.items():
        if repeated[name] > 1:
            names[digest] = f"{name} {shortened_hashes(digest)}"
    return [names[digest] if digest else "" for digest in hashes]


def shortened_hashes(hashes: str) -> str:
    """The first digits of the manifests' hashes that a run has noted."""
    return ", ".join(entry[:12] for entry in hashes.split(", ") if entry)


def read_runs(folders: Sequence[Location | str]) -> Runs:
    """Read run folders. Raises ValueError for a folder that is none, and for folders that hold no trial."""
    runs = [RunFolder.open(folder) for folder in folders]
    last = [run.path.name for run in runs]
    names = [str(run.path) if last.count(run.path.name) > 1 else run.path.name for run in runs]
    rows, settings, overrides, dropped = _read_trials(runs, names)
    if not rows:
        lost = [problem for run in runs for problem in run.problems()]
        raise ValueError("; ".join(lost) or f"{', '.join(str(run.path) for run in runs)}: no trials yet")
    first, *others = settings
    shared = {
        path: value
        for path, value in first.items()
        if path != DATA and all(path in other and other[path] == value for other in others)
    }
    named = list(dict.fromkeys(path for changed in overrides.values() for path in changed))
    # Numbers of the test split and of the validation split are not averaged.
    if len({row["measured_on"] for row in rows if row["status"] == FINISHED}) > 1:
        settings = [{**changed, MEASURED: row["measured_on"]} for changed, row in zip(settings, rows, strict=True)]
    varied = varied_paths(settings, [row[OBJECTIVE] for row in rows], named)
    if NOISE not in varied and len({row[NOISE] for row in rows}) > 1:
        varied.append(NOISE)
    columns = [path for path in dict.fromkeys((*named, *varied)) if path not in (SEED, OBJECTIVE)]
    rows = [
        {**row, **{path: as_typed(changed.get(path)) for path in columns if path != NOISE}}
        for row, changed in zip(rows, settings, strict=True)
    ]
    return Runs(
        trials=with_language_groups(pd.DataFrame(rows)),
        varied=[OBJECTIVE, *sorted(varied, key=lambda path: path != NOISE)],
        infos=[run.info for run in runs],
        experiments=[run.settings for run in runs],
        folders=[run.path for run in runs],
        names=names,
        overrides=overrides,
        shared=shared,
        dropped=dropped,
        # Once for a folder that is given twice.
        problems=list(
            dict.fromkeys([problem for run in runs for problem in run.problems()] + _repeated_refreshes(rows))
        ),
    )


def _repeated_refreshes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Trials whose knowledge base was built again after a failure."""
    has_several_runs = len({row["run"] for row in rows}) > 1
    return [
        f"{row['run']}, " * has_several_runs
        + f"{row['name']}: {counted(count, 'refresh', 'refreshes')} of the knowledge base failed, built again"
        for row in rows
        if (count := int(row.get(REFRESHES, 0)))
    ]


def varied_paths(trials: Sequence[Mapping[str, Any]], labels: Sequence[str], named: Sequence[str]) -> list[str]:
    """Paths by which the trials' settings differ, apart from the seed and the objective's label; together they tell all apart.

    `named` are the paths that sweeps vary, which come first and are kept whenever they differ. Of the others a path is left
    out if those before it tell the same trials apart: the settings of a tower by the tower's name, those of an objective by
    its label.
    """
    paths = dict.fromkeys((*named, *sorted({path for trial in trials for path in trial})))
    keys = {path: [json.dumps(trial.get(path), sort_keys=True, default=str) for trial in trials] for path in paths}
    differing = [
        path
        for path, values in keys.items()
        if path not in (SEED, *CHOICES) and not path.startswith(NOT_DECIDING) and len(set(values)) > 1
    ]
    chosen: list[str] = []
    for of_objective in (False, True):
        groups: list[tuple[str, ...]] = [(label,) if of_objective else () for label in labels]
        for path in [*chosen, *(path for path in differing if path.startswith("objective.") == of_objective)]:
            finer = [(*group, key) for group, key in zip(groups, keys[path], strict=True)]
            if path in chosen or path in named or len(set(finer)) > len(set(groups)):
                chosen.append(path)
                groups = finer
    return list(dict.fromkeys(chosen))


def with_language_groups(trials: pd.DataFrame) -> pd.DataFrame:
    """The trials with means over the languages that all of them were trained on, and over the others that were measured.

    A trial's own mean over what it was trained on would compare one trial's English with another's eight languages.
    """
    trained, others = split_languages(trials)
    means: dict[str, NDArray[np.float64]] = {}
    columns = _measured(trials)
    # By pandas each mean makes a frame of its languages: a third of what reading a run takes.
    values = dict(zip(columns, trials[columns].to_numpy(dtype=np.float64).T, strict=True))
    for group, languages in ((TRAINED, trained), (UNSEEN, others)):
        for first in columns:
            of_languages = [first.in_language(language) for language in languages]
            if languages and first.language == languages[0] and all(name in values for name in of_languages):
                means[first.in_language(group)] = np.mean([values[name] for name in of_languages], axis=0)
    without_means = trials.drop(columns=[name for name in columns if name.language in (TRAINED, UNSEEN)])
    # Copied into one block: pandas warns about frames in a hundred blocks.
    return pd.concat([without_means, pd.DataFrame(means, index=trials.index)], axis=1).copy()


def _measured(trials: pd.DataFrame) -> list[Metric]:
    """The metrics of retrieval among the columns."""
    return [Metric.parse(name) for name in trials.columns if name.startswith(DIRECTIONS) and "/" in name]


def split_languages(trials: pd.DataFrame) -> tuple[list[str], list[str]]:
    """The measured languages that every (finished) trial was trained on, and the others, in the experiment's order."""
    is_finished = trials["status"] == FINISHED
    shown = trials[is_finished] if is_finished.any() else trials
    measured = {name.language for name in _measured(shown) if name.task == DIRECTIONS[0]} - set(MEANS)
    declared = list(dict.fromkeys(language for row in shown["data_languages"] for language in row))
    ordered = [language for language in declared if language in measured] + sorted(measured - set(declared))
    trained = [language for language in ordered if all(language in row for row in shown[TRAINED_LANGUAGES])]
    return trained, [language for language in ordered if language not in trained]


def _row(run: str, settings: Mapping[str, Any], trial: TrialFolder, content: Mapping[str, Any]) -> dict[str, Any]:
    # The epochs are read last: if the trial ends meanwhile, they include those of its result.
    result = trial.result() if trial.is_finished else None
    epochs = trial.epochs()
    row = {
        "run": run,
        "trial_id": trial.trial_id,
        "name": content["name"],
        "status": content["status"],
        "error": content.get("error"),
        "epochs": len(epochs),
        OBJECTIVE: objective_label(settings, content["overrides"]),
        NOISE: float(settings.get(NOISE, 0.0)),
        SEED: int(settings.get(SEED, 0)),
    }
    if result is not None:
        # Without a test split, the last epoch: the best validation epoch would be chosen on the reported numbers.
        metrics = result.get("test") or result.get("last") or result.get("val") or {}
        row["status"] = FINISHED
        row["best_epoch"] = result["best_epoch"]
        row["measured_on"] = TEST if result.get("test") else VALIDATION
        row["train_seconds"] = result.get("train_seconds", content.get("train_seconds"))
        row |= {f"val/{name}": value for name, value in (result.get("val") or {}).items()}
    else:
        metrics = next((epoch.validation for epoch in reversed(epochs) if epoch.validation), {})
        row["measured_on"] = SO_FAR
        row["train_seconds"] = train_seconds(epochs)
    measured = {Metric.parse(name): float(value) for name, value in metrics.items()}
    languages = _languages(settings, measured)
    row |= {str(name): value for name, value in measured.items()}
    # The trained languages; with an unknown scheme, all languages of the data.
    scheme = SCHEMES.get(str(settings.get("objective.scheme")))
    trained = languages if scheme is None else tuple(scheme().trained_languages(languages))
    row |= {"data_languages": languages, TRAINED_LANGUAGES: trained} | _cost(epochs)
    for epoch in epochs:
        for group in ("memory", "knowledge"):
            row |= {f"{group}/{name}": value for name, value in epoch.group(group).items()}
        row |= {name: epoch[name] for name in LAST_OF_TRAINING if name in epoch}
    if epochs and REFRESHES in epochs[-1]:
        row[REFRESHES] = sum(epoch.get(REFRESHES, 0.0) for epoch in epochs)
    return row


def _languages(settings: Mapping[str, Any], measured: Iterable[Metric]) -> tuple[str, ...]:
    """A trial's languages; if its settings leave them to the data set, those that were measured, English first."""
    in_metrics = {metric.language for metric in measured} - {*MEANS, ""}
    languages = settings.get("data.languages") or sorted(in_metrics, key=lambda code: (code != ENGLISH, code))
    return tuple(languages.split(",") if isinstance(languages, str) else languages)


def _cost(epochs: Sequence[EpochReport]) -> dict[str, float]:
    """A trial's cost: `cost/seconds_per_epoch` of training, of its parts, and `cost/memory_mb`, its peak on the device."""
    cost, times = {}, [epoch.group("seconds") for epoch in epochs]
    if (seconds := train_seconds(epochs)) is not None:
        cost[SECONDS] = float(seconds) / len(epochs)
    for part in TIMED_PARTS:
        # An epoch without validation has none of its seconds.
        if part_seconds := [spent[part] for spent in times if part in spent]:
            cost[f"cost/{part}_seconds"] = sum(part_seconds) / len(epochs)
    peaks = [float(peak) for epoch in epochs if (peak := epoch.group("memory").get("peak_allocated_bytes")) is not None]
    if peaks:
        cost[MEMORY] = max(peaks) / 2**20
    return cost
