"""R@1 language by language, a bar an objective: where the languages part."""

from __future__ import annotations

from pathlib import Path

from ray_atr.report.aggregate import aggregate
from ray_atr.report.read import NOISE, OBJECTIVE, Runs
from ray_atr.report.style import RC, looks
from ray_atr.report.tables import DIRECTIONS

MOST_BARS = 8


def draw_languages(runs: Runs, path: Path) -> Path | None:
    """A figure of R@1 by language at the lowest noise ratio, saved as PNG; None where there is one language only.

    Points that differ in more than objective and noise are averaged into their objective's bar by its best point.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    languages = runs.languages
    if len(languages) < 2:
        return None
    columns = [f"{direction}/{code}/recall_at_1" for direction in DIRECTIONS for code in languages]
    points = aggregate(runs, columns)
    lowest = points[NOISE].min() if NOISE in points else 0.0
    if NOISE in points:
        points = points[points[NOISE] == lowest]
    by = points[f"text_to_audio/{languages[0]}/recall_at_1"]
    best = points.loc[by.groupby(points[OBJECTIVE], sort=False).idxmax()].head(MOST_BARS)
    names = list(best[OBJECTIVE])
    look = looks(names)
    width = 0.82 / len(names)
    with plt.rc_context(RC):
        figure, grid = plt.subplots(len(DIRECTIONS), 1, figsize=(10.4, 5.4), sharex=True)
        figure.subplots_adjust(left=0.075, right=0.865, top=0.93, bottom=0.08, hspace=0.24)
        for axes, (direction, title) in zip(grid, DIRECTIONS.items(), strict=True):
            axes.set_title(title + (f", noise {lowest:.0%}" if NOISE in points else ""))
            axes.set_ylabel("R@1 (%)")
            for index, row in enumerate(best.to_dict("records")):
                places = [position + (index - (len(names) - 1) / 2) * width for position in range(len(languages))]
                heights = [100 * row[f"{direction}/{code}/recall_at_1"] for code in languages]
                errors = [100 * row[f"{direction}/{code}/recall_at_1 (sd)"] for code in languages]
                axes.bar(
                    places, heights, width * 0.92, color=look[row[OBJECTIVE]]["color"], label=row[OBJECTIVE],
                    yerr=errors if errors[0] == errors[0] else None,
                    error_kw={"elinewidth": 0.9, "capsize": 1.5, "ecolor": "#333333"},
                )  # fmt: skip
            axes.set_xticks(range(len(languages)), languages)
            axes.tick_params(axis="x", length=0)
            axes.set_ylim(bottom=0)
        grid[0].legend(loc="upper left", bbox_to_anchor=(1.005, 1.0), frameon=False, fontsize=9, handlelength=1.0)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
        plt.close(figure)
    return path
