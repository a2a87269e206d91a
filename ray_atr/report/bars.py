"""R@1 language by language, a bar an objective: where the languages part."""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from ray_atr.report.aggregate import aggregate, differing, lowest_noise, point_name
from ray_atr.report.read import OBJECTIVE, Runs
from ray_atr.report.style import QUIET, RC, looks
from ray_atr.report.tables import ARROWS

MOST_BARS = 8
UNTRAINED = "*"


def draw_languages(runs: Runs, path: Path) -> Path | None:
    """A figure of R@1 by language at the lowest noise ratio, saved as PNG; None if there is one language only.

    A bar is one point, named by all that it differs in; of more points than fit, the best of each objective. A language that
    some trials were not trained on is marked.
    """
    languages = runs.languages
    if len(languages) < 2:
        return None
    columns = [f"{direction}/{code}/recall_at_1" for direction in ARROWS for code in languages]
    points, noise = lowest_noise(aggregate(runs, columns))
    if len(points) > MOST_BARS:
        by = points[f"text_to_audio/{languages[0]}/recall_at_1"]
        points = points.loc[by.groupby(points[OBJECTIVE], sort=False).idxmax()].head(MOST_BARS)
    rows = points.to_dict("records")
    paths = differing(points, runs.varied)
    names = [point_name(row, paths) for row in rows]
    look = looks(names)
    width = 0.82 / len(names)
    ticks = [code if code in runs.trained else f"{code}{UNTRAINED}" for code in languages]
    with rc_context(RC):
        figure = Figure(figsize=(10.4, 5.4))
        grid = figure.subplots(len(ARROWS), 1, sharex=True)
        figure.subplots_adjust(left=0.075, right=0.865, top=0.93, bottom=0.08, hspace=0.24)
        for axes, (direction, title) in zip(grid, ARROWS.items(), strict=True):
            axes.set_title(title + (f", {noise}" if noise else ""))
            axes.set_ylabel("R@1 (%)")
            for index, row in enumerate(rows):
                places = [position + (index - (len(names) - 1) / 2) * width for position in range(len(languages))]
                heights = [100 * row[f"{direction}/{code}/recall_at_1"] for code in languages]
                errors = [100 * row[f"{direction}/{code}/recall_at_1 (sd)"] for code in languages]
                axes.bar(
                    places, heights, width * 0.92, color=look[names[index]]["color"], label=names[index],
                    yerr=errors if errors[0] == errors[0] else None,
                    error_kw={"elinewidth": 0.9, "capsize": 1.5, "ecolor": "#333333"},
                )  # fmt: skip
            axes.set_xticks(range(len(languages)), ticks)
            axes.tick_params(axis="x", length=0)
            axes.set_ylim(bottom=0)
        grid[0].legend(loc="upper left", bbox_to_anchor=(1.005, 1.0), frameon=False, fontsize=9, handlelength=1.0)
        if runs.others:
            trials = "no trial" if runs.is_unseen else "not every trial"
            figure.text(
                0.995, 0.015, f"{UNTRAINED} {trials} was trained on its captions", ha="right", fontsize=8, color=QUIET
            )
        figure.savefig(path)
    return path
