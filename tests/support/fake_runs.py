"""Run folders as a sweep leaves them, with numbers from a formula: no training is needed to test what reads them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray_atr.common.formats import FORMATS
from ray_atr.training.run_folder import make_trial_id, trial_name

LANGUAGES = ("eng", "fra", "deu", "jpn")
STRENGTH = {
    "triplet": 0.14, "contrastive": 0.24, "m_ltm": 0.28, "m_ltm_pot": 0.30,
    "ml_clap": 0.24, "cacl": 0.26, "kcl": 0.29, "ask": 0.31,
}  # fmt: skip
BASE = {
    "data.source": "soundscapes",
    "data.validation_split": "val",
    "data.test_split": "test",
    "data.noise.ratio": 0.0,
    "data.languages": list(LANGUAGES),
    "objective.scheme": "english",
    "objective.pair": "contrastive",
    "objective.knowledge": "none",
    "evaluation.select_by": "text_to_audio/mean/recall_at_1",
    "train.epochs": 3,
    "train.learning_rate": 0.001,
    "seed": 0,
}


def accuracy(overrides: Mapping[str, Any], epoch: int, of_epochs: int = 3) -> float:
    """Recall at 1 in [0, 1] that the fake trial reaches for English, text to audio."""
    strength = STRENGTH.get(str(overrides.get("objective", "contrastive")), 0.2)
    fall = 0.35 if "ltm" in str(overrides.get("objective")) else 0.5
    chosen = overrides.get("objective.pair.transport_mass", 0.8)
    mass = 0.75 if chosen == "auto" else float(chosen)
    wobble = 0.01 * ((7 * int(overrides.get("seed", 0)) + 3) % 5 - 2)
    noise = float(overrides.get("data.noise.ratio", 0.0))
    return strength * (1 - fall * noise) * (1 - (mass - 0.8) ** 2) * (epoch / of_epochs) ** 0.5 + wobble


def metrics(overrides: Mapping[str, Any], epoch: int, languages: Sequence[str] = LANGUAGES) -> dict[str, float]:
    """What one validation of the fake trial measures."""
    result: dict[str, float] = {}
    top = accuracy(overrides, epoch)
    for direction, lift in (("text_to_audio", 0.0), ("audio_to_text", 0.06)):
        per_language = {code: top + lift - 0.012 * index for index, code in enumerate(languages)}
        per_language["mean"] = sum(per_language.values()) / len(languages)
        for code, value in per_language.items():
            result[f"{direction}/{code}/recall_at_1"] = value
            result[f"{direction}/{code}/recall_at_5"] = value + 0.25
            result[f"{direction}/{code}/recall_at_10"] = value + 0.4
            result[f"{direction}/{code}/map_at_10"] = value + 0.12
            if direction == "text_to_audio":
                result[f"{direction}/{code}/mean_rank_variance"] = 12 - 20 * value
    return result


def shares(overrides: Mapping[str, Any]) -> dict[str, float]:
    """What a trial that chooses its transport mass says of the clean share."""
    if overrides.get("objective.pair.transport_mass") != "auto":
        return {}
    clean = 1 - float(overrides.get("data.noise.ratio", 0.0))
    return {
        "train/clean_share": clean,
        "train/estimated_clean_share": clean + 0.04,
        "train/transport_mass": clean + 0.04,
    }


def write_run(
    folder: Path,
    space: Mapping[str, Sequence[Any]],
    *,
    name: str = "noise",
    epochs: int = 3,
    failed: Sequence[int] = (),
    running: Sequence[int] = (),
    has_test: bool = True,
    data: str = "soundscapes",
    languages: Sequence[str] = LANGUAGES,
) -> Path:
    """A run folder of the grid `space`; trials at the positions in `failed` and `running` are left unfinished."""
    folder.mkdir(parents=True)
    write(folder / "experiment.json", {**BASE, "data.languages": list(languages)})
    write(
        folder / "sweep.json",
        {
            "name": name,
            "format": FORMATS["run"],
            "space": {path: f"grid({','.join(map(str, values))})" for path, values in space.items()},
            "varied": list(space),
            "seeds": list(space.get("seed", [0])),
            "data": {"name": data, "hash": "3f6c9b1d", "set": data},
            "code": {"git_commit": "1234abcd", "torch": "2.11.0", "ray": "2.60.0"},
            "command": f"pipelines/sweep_{name}.py",
        },
    )
    for position, values in enumerate(itertools.product(*space.values())):
        overrides = dict(zip(space, values, strict=True))
        is_whole = position not in failed and position not in running
        write_trial(
            folder, overrides, epochs=epochs if is_whole else 1, is_finished=is_whole, has_test=has_test,
            error="step 12: loss is nan (worker 0)" if position in failed else None, languages=languages,
        )  # fmt: skip
    return folder


def write_trial(
    folder: Path,
    overrides: Mapping[str, Any],
    *,
    epochs: int = 3,
    is_finished: bool = True,
    has_test: bool = True,
    error: str | None = None,
    languages: Sequence[str] = LANGUAGES,
) -> str:
    """One trial's files; its id."""
    trial_id = make_trial_id(overrides)
    trial = folder / "trials" / trial_id
    trial.mkdir(parents=True, exist_ok=True)
    status = "failed" if error else "finished" if is_finished else "running"
    write(
        trial / "trial.json",
        {
            "trial_id": trial_id, "name": trial_name(overrides), "overrides": dict(overrides), "format": FORMATS["run"],
            "status": status, "error": error, "train_seconds": 20.0 * epochs if is_finished else None,
        },
    )  # fmt: skip
    cost = {"kcl": 3.0, "cacl": 1.3, "ask": 1.5}.get(str(overrides.get("objective")), 1.0)
    rows = [
        {
            "epoch": epoch, "step": 10 * epoch, "time": 1_700_000_000.0 + 20 * epoch, "train/loss": 3.0 / epoch,
            "seconds/train": 20.0 * epoch * cost**0.3, "memory/peak_allocated_bytes": cost * 2.0**30, "best_epoch": epoch,
            **metrics(overrides, epoch, languages),
            **shares(overrides),
        }
        for epoch in range(1, epochs + 1)
    ]  # fmt: skip
    (trial / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if is_finished:
        test = {name: value - 0.01 for name, value in metrics(overrides, epochs, languages).items()} if has_test else {}
        write(
            trial / "result.json",
            {
                "best_epoch": epochs,
                "clean_share": rows[-1].get("train/clean_share"),
                "val": metrics(overrides, epochs, languages),
                "last": metrics(overrides, epochs, languages),
                "test": test,
                "train_seconds": rows[-1]["seconds/train"],
            },
        )
    return trial_id


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1))
