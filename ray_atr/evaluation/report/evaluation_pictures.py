"""Pictures of an evaluation: embedding map, ranks by language, similarity beside plan. Each returns a Figure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import font_manager
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from sklearn.manifold import TSNE

from ray_atr.evaluation.report.style import SPARE_COLOURS, SPARE_MARKERS
from ray_atr.metrics.relevance import Array, as_floats, as_matrix

CJK_FONTS = (
    "Noto Sans CJK JP", "Noto Sans CJK SC", "Source Han Sans", "IPAexGothic", "Hiragino Sans",
    "Yu Gothic", "SimHei", "Malgun Gothic", "NanumGothic", "Apple SD Gothic Neo",
)  # fmt: skip
PERPLEXITY = 15.0
LONGEST_QUERY = 48
MOST_BESIDE = 16
"""Most groups of points that are named beside a map (more are named below it), and most languages with wide columns."""


def embedding_map(audio: Array, text: Mapping[str, Array], *, seed: int = 0) -> Figure:
    """t-SNE, by cosine, of clips [n, D] and one caption of each in every language {language: [n, D]}.

    Thin lines join a clip to its captions: where languages agree, a clip and its captions form one small star (Yin et al.
    2025, Figures 3 and 4, have 50 clips and eight languages). t-SNE keeps neighbours, not distances.
    """
    clips = as_matrix("audio", audio)
    parts = [clips] + [as_matrix(f"text[{language!r}]", rows, clips.shape[1]) for language, rows in text.items()]
    points = np.concatenate([part.cpu().double().numpy() for part in parts])
    tsne = TSNE(metric="cosine", init="random", perplexity=min(PERPLEXITY, (len(points) - 1) / 3), random_state=seed)
    placed = tsne.fit_transform(points).reshape(len(parts), len(clips), 2)
    # The second eight have other pairs of colour and marker than the first.
    markers = (SPARE_MARKERS[(n + n // len(SPARE_COLOURS)) % len(SPARE_MARKERS)] for n in itertools.count())
    looks = zip(text, placed[1:], itertools.cycle(SPARE_COLOURS), markers, strict=False)
    groups = [
        (language, positions, {"s": 16, "c": colour, "marker": marker}) for language, positions, colour, marker in looks
    ]
    return _map(
        [np.stack([placed[0], captions]) for captions in placed[1:]],
        [*groups, ("audio", placed[0], {"s": 42, "c": "black", "marker": "*", "zorder": 3})],
        title=f"{len(clips)} clips and their captions",
        about="t-SNE by cosine; grey lines join a clip to its captions",
    )


def _map(
    lines: Sequence[np.ndarray], groups: Sequence[tuple[str, np.ndarray, dict[str, Any]]], *, title: str, about: str
) -> Figure:
    """Named groups of points [n, 2] over thin grey lines, each through the places [points, n, 2] of n clips."""
    figure = Figure(figsize=(7.5, 6.2), layout="constrained")
    axes = figure.add_subplot()
    for line in lines:
        axes.plot(*line.transpose(2, 0, 1), color="0.82", linewidth=0.5, zorder=1)
    for label, points, style in groups:
        axes.scatter(points[:, 0], points[:, 1], linewidths=0, label=label, **{"zorder": 2, **style})
    axes.set(xticks=[], yticks=[], title=title, xlabel=about)
    if len(groups) > MOST_BESIDE:
        figure.legend(loc="outside lower center", ncols=MOST_BESIDE // 2, frameon=False)
    else:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def drift_map(ways: Array, labels: Sequence[str]) -> Figure:
    """The ways of n clips through the embedding space, [E, n, D], on the two directions in which they differ most.

    A point for each clip and label, joined by a line in the labels' order (Fu et al. 2025, Figure 6). The map is linear, so
    that lengths can be compared; it is the same for all labels.
    """
    points = np.asarray(ways, dtype=np.float64)
    E, n, D = points.shape
    flat = points.reshape(-1, D)
    _, _, directions = np.linalg.svd(flat - flat.mean(axis=0), full_matrices=False)
    placed = ((flat - flat.mean(axis=0)) @ directions[:2].T).reshape(E, n, 2)
    looks = zip(labels, placed, itertools.cycle(SPARE_COLOURS), strict=False)
    groups = [(label, positions, {"s": 18, "c": colour}) for label, positions, colour in looks]
    about = "first two principal directions; grey lines join a clip's places"
    figure = _map([placed], groups, title=f"{n} clips while training", about=about)
    figure.axes[0].set_aspect("equal")
    return figure


def rank_heat_map(
    ranks: Array,
    languages: Sequence[str],
    queries: Sequence[str],
    *,
    names: Sequence[str] = (),
    num_candidates: int | None = None,
) -> Figure:
    """Ranks [n, K], 0-based as counted, of chosen queries in K languages; drawn and printed 1-based.

    The case tables of Yin et al. 2025: a row of one colour is a clip that every language finds alike. A query in letters that
    no font here has is shown by its name (default: its number).
    """
    values = as_floats("ranks", ranks).cpu().double().numpy() + 1
    # The label of the colour bar needs as much, however few queries there are.
    height = max(2.9, 1.3 + 0.34 * len(queries))
    column = 0.62 if len(languages) <= MOST_BESIDE else 0.36
    figure = Figure(figsize=(4.2 + column * len(languages), height), layout="constrained")
    axes = figure.add_subplot()
    top = max(num_candidates or 0, values.max(), 10)
    image = axes.imshow(values, norm=LogNorm(1, top), cmap="Blues", aspect="auto")
    for (row, column), rank in np.ndenumerate(values):
        dark = np.log(rank) > 0.5 * np.log(top)
        label = f"{rank:.0f}" if rank == round(rank) else f"{rank:.1f}"
        axes.text(column, row, label, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set_xticks(range(len(languages)), languages)
    # DejaVu Sans has no Chinese or Japanese: after it come those fonts installed here that do.
    installed = {font.name for font in font_manager.fontManager.ttflist}
    fonts = ["DejaVu Sans", *(name for name in CJK_FONTS if name in installed)]
    characters: set[int] = set()
    for font in fonts:
        characters |= font_manager.get_font(font_manager.findfont(font)).get_charmap().keys()
    labels = [
        query if characters.issuperset(map(ord, query)) else (names[n] if names else f"query {n + 1}")
        for n, query in enumerate(queries)
    ]
    shown = [text if len(text) <= LONGEST_QUERY else text[: LONGEST_QUERY - 1].rstrip() + "…" for text in labels]
    # A caption with two dollar signs is no formula.
    axes.set_yticks(range(len(queries)), shown, fontsize=8, fontfamily=fonts, parse_math=False)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    figure.colorbar(image, ax=axes, label="rank of the right clip (1 = first)", pad=0.02, format="%d")
    return figure


def similarity_and_plan(similarity: Array, plan: Array, *, title: str = "") -> Figure:
    """The same queries (rows) and candidates (columns) by similarity and by transport plan, side by side.

    As Luong et al. 2024, Figure 3. Both are [n, m]; with a query's own clip at its own index the diagonal is what should
    light up. The plan is drawn as a row's share, so that rows compare.
    """
    similarities = as_floats("similarity", similarity).cpu().double().numpy()
    right = as_floats("plan", plan).cpu().double().numpy()
    share = right / np.maximum(right.sum(1, keepdims=True), np.finfo(float).tiny)
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    panels = ((similarities, "cosine similarity", "viridis", None), (share, "plan, share of each row", "magma", 0.0))
    for axes, (values, name, colours, low) in zip(figure.subplots(1, 2), panels, strict=True):
        image = axes.imshow(values, cmap=colours, vmin=low, interpolation="nearest", aspect="auto")
        axes.set(title=name, xlabel="clip", ylabel="caption")
        figure.colorbar(image, ax=axes, pad=0.02)
    if title:
        figure.suptitle(title)
    return figure
