"""One self-contained HTML page: tables, figures as data, what failed, how to run the best again."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_atr.report import formatting
from ray_atr.report.best import best_points
from ray_atr.report.html import data_url, render_template
from ray_atr.report.read import NOISE, OBJECTIVE, SEED, Runs, short_name
from ray_atr.report.style import DPI
from ray_atr.report.tables import learnt_nothing
from ray_atr.table import Table


@dataclass(frozen=True)
class Picture:
    """A picture on disk and what it shows, in words for those who cannot see it."""

    path: Path
    title: str

    @property
    def data_url(self) -> str:
        return data_url(self.path.read_bytes())

    @property
    def width(self) -> int:
        """Width in CSS pixels at which its text is as large as the page's."""
        # A PNG's width is in bytes 16 to 19, big-endian.
        return round(int.from_bytes(self.path.read_bytes()[16:20], "big") / DPI * 98)


def sweep_page(runs: Runs, tables: Sequence[Table], layouts: Sequence[Table], figures: Sequence[Picture]) -> str:
    """The page's HTML."""
    return render_template(
        "sweep.html.j2",
        title=", ".join(dict.fromkeys(str(info.get("name", "run")) for info in runs.infos)),
        summary=_summary(runs),
        facts=_facts(runs),
        tables=tables,
        layouts=layouts,
        figures=figures,
        best=best_points(runs),
        learnt_nothing=learnt_nothing(runs) if not runs.finished.empty else [],
        changed=list(runs.trials["changed"].dropna()),
        unfinished=[_unfinished(row) for row in runs.unfinished.to_dict("records")],
        settings=_settings(runs),
        commands=[str(info.get("command", "")) for info in runs.infos],
        written=time.strftime("%Y-%m-%d %H:%M"),
        cells=formatting,
        is_synthetic=any(experiment.get("data.source") == "soundscapes" for experiment in runs.experiments),
    )


def _summary(runs: Runs) -> str:
    counts = runs.trials["status"].value_counts()
    words = [f"{counts.get('finished', 0)} of {len(runs.trials)} trials finished"]
    words += [
        f"{counts[status]} {status}" for status in ("failed", "stopped", "running", "pending") if counts.get(status)
    ]
    dimensions = [path for path in runs.varied if runs.trials[path].nunique(dropna=False) > 1]
    if runs.trials[SEED].nunique() > 1:
        dimensions.append(SEED)
    if dimensions:
        sizes = [runs.trials[path].nunique(dropna=False) for path in dimensions]
        # Where not every combination was run, a product would promise it.
        joint = " × " if math.prod(sizes) == len(runs.trials) else ", "
        words.append(joint.join(f"{size} {_plural(path)}" for size, path in zip(sizes, dimensions, strict=True)))
    return "; ".join(words)


def _plural(path: str) -> str:
    known = {OBJECTIVE: "objectives", NOISE: "noise ratios", SEED: "seeds"}
    return known.get(path, f"values of {short_name(path)}")


def _facts(runs: Runs) -> list[tuple[str, str]]:
    info = runs.infos[0]
    code = dict(info.get("code") or {})
    commit = code.pop("git_commit", "unknown")
    data = info.get("data") or {}
    name = data.get("name") or ", ".join(dict.fromkeys(str(e.get("data.source")) for e in runs.experiments))
    hashes = ", ".join(one[:12] for one in str(data.get("hash", "")).split(", ") if one)
    manifest = f" (manifest {hashes})" if hashes else ""
    seconds = float(runs.trials["train_seconds"].fillna(0).sum())
    return [
        ("Data", f"{name}{manifest}"),
        ("Trained languages", ", ".join(runs.trained) or "–"),
        ("No captions in training" if runs.is_unseen else "Trained on by some", ", ".join(runs.others)),
        ("Measured on", " and ".join(runs.measured_on) or "nothing yet"),
        ("Training time", f"{formatting.minutes(seconds)} over all trials"),
        ("Code", commit[:12] + ("-dirty" if commit.endswith("-dirty") and len(commit) > 12 else "")),
        ("Versions", ", ".join(f"{package} {version}" for package, version in code.items() if version != "absent")),
        ("Run folder", ", ".join(str(folder) for folder in runs.folders)),
    ]


def _unfinished(row: Mapping[Any, Any]) -> dict[str, str]:
    so_far = row.get("text_to_audio/trained/recall_at_1")
    return {
        "name": str(row["name"]),
        "status": str(row["status"]),
        "epochs": str(row["epochs"]),
        "so_far": formatting.percent(so_far if isinstance(so_far, float) else None),
        "error": row["error"] if isinstance(row["error"], str) else "",
        "trial_id": str(row["trial_id"]),
    }


def _settings(runs: Runs) -> list[tuple[str, str]]:
    experiment = runs.experiments[0]
    return [
        (path, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        for path, value in experiment.items()
    ]
