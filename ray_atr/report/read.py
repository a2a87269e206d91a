"""Run folders as one table with a row a trial, whatever state the trials are in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ray_atr.report import cells
from ray_atr.run_folder import CHOICES, FINISHED, SHORT_NAMES, RunFolder, TrialFolder, joined, read_json, train_seconds
from ray_atr.storage import Location
from ray_atr.sweep.inheritance import perturbations

NOISE = "data.noise.ratio"
SEED = "seed"
OBJECTIVE = "objective"
PEAK = "memory/peak_allocated_bytes"
TRUE_SHARE, ESTIMATED_SHARE = "train/clean_share", "train/estimated_clean_share"
LAST_OF_TRAINING = (TRUE_SHARE, ESTIMATED_SHARE, "train/transport_mass")
"""What a row has from the last epoch's training, as means over its steps."""
TEST, VALIDATION, SO_FAR = "test", "validation", "validation so far"


@dataclass(frozen=True)
class Runs:
    """Trials of one or several run folders.

    `trials` has a row a trial: `run`, `trial_id`, `name`, `status`, `error`, `train_seconds`, `epochs`, `measured_on`,
    `objective` (a name), `data.noise.ratio`, `seed`, each other varied path, the metrics by their names (of the test split
    where there is one, at the epoch chosen on validation, else of the validation split after the last epoch; so far for a
    trial that has not finished), and `val/` + the validation metrics at the best epoch.
    """

    trials: pd.DataFrame
    varied: list[str]
    """Paths that differ between trials, the objective first, the seed left out."""
    infos: list[Mapping[str, Any]]
    experiments: list[Mapping[str, Any]]
    folders: list[Location]
    histories: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Trial id -> its epochs."""
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Trial id -> what it varies, as written in its folder."""

    @property
    def finished(self) -> pd.DataFrame:
        return self.trials[self.trials["status"] == FINISHED]

    @property
    def unfinished(self) -> pd.DataFrame:
        return self.trials[self.trials["status"] != FINISHED]

    @property
    def languages(self) -> list[str]:
        """Codes of the languages that were measured, in the experiment's order."""
        measured = {column.split("/")[1] for column in self.trials.columns if column.startswith("text_to_audio/")} - {
            "mean"
        }
        declared = [code for experiment in self.experiments for code in experiment.get("data.languages", [])]
        ordered = [code for code in dict.fromkeys(declared) if code in measured]
        return ordered + sorted(measured - set(ordered))

    @property
    def measured_on(self) -> list[str]:
        """Which splits the finished trials' numbers are of."""
        return sorted(self.finished["measured_on"].unique())


def read_runs(folders: Sequence[Location | str]) -> Runs:
    """Read run folders. Raises ValueError for a folder that is none, and for folders that hold no trial."""
    runs = [RunFolder.open(folder) for folder in folders]
    rows: list[dict[str, Any]] = []
    histories: dict[str, list[dict[str, Any]]] = {}
    overrides: dict[str, dict[str, Any]] = {}
    experiments = [read_json(run.path / "experiment.json") for run in runs]
    apart = _differences(experiments)
    varied: dict[str, None] = dict.fromkeys(apart)
    for run, experiment in zip(runs, experiments, strict=True):
        for trial in run.trials():
            row, epochs = _row(run, experiment, trial, apart)
            rows.append(row)
            histories[trial.trial_id] = epochs
            overrides[trial.trial_id] = trial.describe()["overrides"]
            varied.update(dict.fromkeys(overrides[trial.trial_id]))
    if not rows:
        raise ValueError(f"{', '.join(str(run.path) for run in runs)}: no trials yet")
    trials = pd.DataFrame(rows)
    # The objective's name says its scheme, pair loss and knowledge.
    names = [path for path in varied if path not in (SEED, *CHOICES) and trials[path].nunique(dropna=False) > 1]
    if NOISE not in names and trials[NOISE].nunique() > 1:
        names.append(NOISE)
    return Runs(
        trials=trials,
        varied=[OBJECTIVE, *sorted(names, key=lambda path: path != NOISE)],
        infos=[run.info for run in runs],
        experiments=experiments,
        folders=[run.path for run in runs],
        histories=histories,
        overrides=overrides,
    )


def short_name(path: str) -> str:
    """What a table calls a setting: `noise` for `data.noise.ratio`, else its last word."""
    return SHORT_NAMES.get(path, path.rsplit(".", 1)[-1])


def _differences(experiments: Sequence[Mapping[str, Any]]) -> list[str]:
    """Paths in which the folders' base experiments differ, so that their trials are never averaged together."""
    paths = dict.fromkeys(path for experiment in experiments for path in experiment)
    return [
        path
        for path in paths
        if path != SEED
        and not path.startswith(("objective.", "scaling.", "tracking."))
        and any(experiment.get(path) != experiments[0].get(path) for experiment in experiments)
    ]


def _row(
    run: RunFolder, experiment: Mapping[str, Any], trial: TrialFolder, apart: Sequence[str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    content = trial.describe()
    overrides = content["overrides"]
    settings = {**experiment, **overrides}
    epochs = trial.epochs()
    row = {
        "run": run.path.name,
        "trial_id": trial.trial_id,
        "name": content["name"],
        "status": content["status"],
        "error": content.get("error"),
        "epochs": len(epochs),
        "changed": _changed(trial, content["name"]),
        **{path: _plain(settings.get(path)) for path in (*apart, *overrides)},
        OBJECTIVE: objective_label(settings, overrides),
        NOISE: float(settings.get(NOISE, 0.0)),
        SEED: int(settings.get(SEED, 0)),
    }
    if trial.is_finished:
        result = read_json(trial.folder / "result.json")
        # Without a test split, the last epoch: the best validation epoch's score would be chosen on what it reports.
        metrics = result.get("test") or result.get("last") or result.get("val") or {}
        row["status"] = FINISHED
        row["best_epoch"] = result["best_epoch"]
        row["measured_on"] = TEST if result.get("test") else VALIDATION
        row["train_seconds"] = result.get("train_seconds", content.get("train_seconds"))
        row |= {f"val/{name}": value for name, value in (result.get("val") or {}).items()}
    else:
        metrics = next((epoch for epoch in reversed(epochs) if any("recall" in name for name in epoch)), {})
        row["measured_on"] = SO_FAR
        row["train_seconds"] = train_seconds(epochs)
    row |= dict(_metrics(metrics))
    row |= _cost(epochs)
    row |= {
        name: value
        for epoch in epochs
        for name, value in epoch.items()
        if name.startswith(("memory/", "knowledge/")) or name in LAST_OF_TRAINING
    }
    return row, epochs


def _changed(trial: TrialFolder, name: str) -> str | None:
    """What population-based training changed on the way, in words; the trial's name tells what it began with."""
    words = [
        f"after epoch {one['epoch']}: weights of {one['from']}, "
        + ", ".join(f"{short_name(path)}={cells.value(value)}" for path, value in one["settings"].items())
        for one in perturbations(trial)
    ]
    return f"{name}: {'; '.join(words)}" if words else None


def objective_label(settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> str:
    """The name of a trial's objective: the preset it chose, or the one that its choices add up to, or the choices: `kcl+pot`."""
    from ray_atr.objectives import PRESETS

    chosen = str(overrides.get(OBJECTIVE))
    parts = {part: settings.get(f"objective.{part}") for part in ("scheme", "pair", "knowledge")}
    if chosen in PRESETS:
        changed = {part: overrides.get(f"objective.{part}") for part in parts}
        parts = {part: changed[part] or getattr(PRESETS[chosen], part).name for part in parts}
    for name in (chosen, *PRESETS):
        if name in PRESETS and all(getattr(PRESETS[name], part).name == choice for part, choice in parts.items()):
            return name
    return joined(str(choice) for choice in parts.values() if choice not in (None, "none")) or chosen


def _metrics(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if "/" in name and isinstance(value, int | float) and not isinstance(value, bool):
            yield name, float(value)


def _cost(epochs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What a trial took: `cost/seconds_per_epoch` of training, and `cost/memory_mb`, its peak on the device."""
    cost = {}
    if epochs and epochs[-1].get("seconds/train") is not None:
        cost["cost/seconds_per_epoch"] = float(epochs[-1]["seconds/train"]) / len(epochs)
    peaks = [float(epoch[PEAK]) for epoch in epochs if epoch.get(PEAK) is not None]
    if peaks:
        cost["cost/memory_mb"] = max(peaks) / 2**20
    return cost


def _plain(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value
