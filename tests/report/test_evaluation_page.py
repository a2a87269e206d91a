"""The page an evaluation is read from: JSON, Markdown, HTML, pictures and players."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import math
import re
import shutil
import subprocess
import warnings
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import soundfile
from matplotlib.figure import Figure

from ray_atr.common.table import Cell, Table
from ray_atr.evaluation.report.evaluation_page import (
    Page,
    Query,
    RetrievedClip,
    as_html,
    as_json,
    as_markdown,
    write_page,
)
from ray_atr.evaluation.report.evaluation_pictures import embedding_map, rank_heat_map, similarity_and_plan
from ray_atr.evaluation.report.evaluation_tables import metric_tables
from ray_atr.metrics import evaluate_languages, retrieve_languages
from ray_atr.metrics.bootstrap import Difference, Interval, Spread, bootstrap_runs, compare_runs
from ray_atr.metrics.metric import MEAN, MEANS, Metric
from ray_atr.metrics.samples import from_arrays, retrieval_samples, to_arrays
from tests.support.browser import CHROMIUM, opened


@pytest.fixture(scope="module")
def page() -> Page:
    rng = np.random.default_rng(0)
    audio, clip = rng.normal(size=(20, 6)), np.repeat(np.arange(20), 2)
    first, second = ({k: audio[clip] + rng.normal(size=(40, 6)) for k in ("eng", "jpn")} for _ in range(2))
    a, b = ([retrieval_samples(retrieve_languages(audio, text, clip))] for text in (first, second))
    return Page(
        title="A & B <on> rain",
        facts={"checkpoint": "runs/kcl/<best>.pt"},
        metrics=evaluate_languages(audio, second, clip),
        intervals=bootstrap_runs(b, draws=20),
        comparison=compare_runs(a, b, draws=20),
        compared=("ml_clap", "kcl"),
        pictures={"Ranks": rank_heat_map(np.array([[0, 3.5]]), ["eng", "jpn"], ["rain"])},
        queries=[Query("雨 <b>", "jpn", [RetrievedClip("c1", b"RIFF", 0.5, True, "a < b")])],
        notes=["Synthetic."],
    )


def test_a_page_names_every_row_and_says_once_what_rows_have_in_common() -> None:
    def rows(*names: str) -> list[list[Cell]]:
        return [[Cell(name, is_number=False), Cell(str(number))] for number, name in enumerate(names)]

    table = Table("Blocks", "", ["language", "R@1"], [rows("eng", "trained"), rows("deu (never seen)", "spa", "spa")])
    page = as_html(Page(title="x", facts={}, metrics={}, printed=[table]))
    found = re.findall(r'<tr><td class="">([^<]*)</td><td class="n">(\d)</td>', page)
    assert found == [("eng", "0"), ("trained", "1"), ("deu (never seen)", "0"), ("spa", "1"), ("", "2")]


@pytest.mark.parametrize(("level", "said"), [(0.95, "95%"), (0.975, "97.5%"), (0.999, "99.9%")])
def test_a_level_has_all_of_its_digits(level: float, said: str) -> None:
    intervals = {Metric("text_to_audio", "eng", "recall_at_1"): Interval(0.5, 0.4, 0.6, level)}
    page = Page(title="x", facts={}, metrics={}, intervals=intervals)
    assert page.brackets == f"{said} bootstrap intervals over clips"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser")
def test_wide_differences_fit_a_window_of_1280_pixels(tmp_path: Path) -> None:
    languages = ["eng", "fra", "deu", *MEANS]
    names = ["recall_at_1", "recall_at_5", "recall_at_10", "map_at_10"]
    wide = {Metric("text_to_audio", language, name): WIDE for language in languages for name in names}
    wide |= {Metric("text_to_audio", language, "median_rank"): RANKS for language in languages}
    wide[Metric("text_to_audio", MEAN, "mean_rank_variance")] = RANKS
    page = as_html(Page(title="x", facts={}, metrics={}, comparison=wide, trained=["eng"]))
    boxes = "[...document.querySelectorAll('.scroll')].map(box => [box.scrollWidth, box.clientWidth])"
    measured = page.replace("</body>", f"<script>document.title = JSON.stringify({boxes})</script></body>")
    (tmp_path / "page.html").write_text(measured, encoding="utf-8")
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,2000", "--dump-dom"]
    found = subprocess.run(
        [*browser, f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "page.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    widths = json.loads(re.search(r"<title>(.*?)</title>", found.stdout).group(1))
    assert len(widths) == 2
    assert all(needed <= there for needed, there in widths), widths


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_language_s_row_has_three_lines_at_most_on_a_phone(tmp_path: Path) -> None:
    wide = {Metric("text_to_audio", code, f"recall_at_{k}"): WIDE for code in ("eng", "fra", "zho") for k in (1, 5, 10)}
    page = as_html(Page(title="x", facts={}, metrics={}, comparison=wide, trained=["eng"]))
    (tmp_path / "page.html").write_text(page, encoding="utf-8")

    async def look() -> list[tuple[str, float]]:
        async with opened((tmp_path / "page.html").as_uri()) as tab:
            await tab.size(390, 800)
            cells = "[...document.querySelectorAll('td:first-child')]"
            found = []
            # Of the page's own fonts each machine has others.
            for font in ("inherit", "sans-serif", "serif", "monospace"):
                await tab.run(f"document.querySelector('main').style.fontFamily = '{font}'")
                found += await tab.run(
                    f"{cells}.map((one) => {{ const text = document.createRange(); text.selectNodeContents(one);"
                    " return [one.textContent, new Set([...text.getClientRects()].map((line) => line.top)).size]; })"
                )
            return found

    lines = asyncio.run(look())
    assert any("not in the training" in label for label, _ in lines), lines
    assert all(count <= 3 for _, count in lines), lines


WIDE = Difference(0.1, 0.2, -0.111, -0.111, -0.111, 0.95, 0.01)
RANKS = Difference(100.0, 200.0, -111.1, -111.1, -111.1, 0.95, 0.01)


def test_json_holds_every_number(page: Page) -> None:
    content = json.loads(as_json(page))
    assert content["metrics"] == dict(page.metrics)
    key = "text_to_audio/jpn/recall_at_1"
    assert content["intervals"][key]["low"] == page.intervals[key].low
    assert content["comparison"][key]["first"] == page.comparison[key].first
    empty = Page(title="x", facts={}, metrics={"a/eng/b": math.nan}, spreads={"a/eng/b": Spread(1.0, math.nan, 1)})
    assert json.loads(as_json(empty))["metrics"] == {"a/eng/b": None}
    assert "–" in as_markdown(empty)


def test_tables_show_shares_in_percent_with_the_mean_last(page: Page) -> None:
    table = next(t for t in metric_tables(page.metrics) if t.title == "Text to audio")
    assert [row[0].text for row in table.rows] == ["eng", "jpn", "mean"]
    column = table.columns.index("R@1 %")
    for row in table.rows:
        label = row[0].text
        assert float(row[column].text) == pytest.approx(
            100 * page.metrics[f"text_to_audio/{label}/recall_at_1"], abs=0.05
        )
    alone = metric_tables({"text_to_audio/recall_at_1": 0.25, "text_to_audio/new_number": 2.0})[0]
    assert alone.columns == ["", "R@1 %", "new number"]
    assert [[cell.text for cell in row] for row in alone.rows] == [["", "25.0", "2.0000"]]


def test_languages_that_were_never_seen_stand_apart_and_are_marked(page: Page) -> None:
    metrics = {**page.metrics}
    for name in page.metrics:
        if name.language == "jpn":
            metrics[name.in_language("unseen")] = metrics[name]
    table = next(t for t in metric_tables(metrics, trained=["eng"]) if t.title == "Text to audio")
    labels = [[row[0].text for row in block] for block in table.blocks]
    assert labels == [
        ["eng", "trained languages"],
        ["jpn (not trained on)", "not trained on"],
        ["mean"],
    ]


def test_markdown_rows_have_one_cell_a_column(page: Page) -> None:
    lines = as_markdown(page).splitlines()
    widths = {}
    for above, line in itertools.pairwise(lines):
        if line.startswith("|:--"):
            widths[above] = above.count("|")
            assert line.count("|") == above.count("|")
    assert len(widths) >= 4
    rows = [line for line in lines if line.startswith("|")]
    assert {line.count("|") for line in rows} == set(widths.values())


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_well_formed_escaped_and_asks_for_nothing(page: Page) -> None:
    html = as_html(page)
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    assert all(source.startswith("data:") for source in tags.sources)
    assert len(tags.sources) == 2
    assert "A &amp; B &lt;on&gt; rain" in html
    assert "runs/kcl/&lt;best&gt;.pt" in html
    assert "雨 &lt;b&gt;" in html
    assert "a &lt; b" in html
    assert not re.search(r"<script|https?://", html)


def test_written_files(page: Page, tmp_path) -> None:
    write_page(page, tmp_path)
    paths = list(tmp_path.iterdir())
    assert {p.name for p in paths} == {"evaluation.json", "evaluation.md", "evaluation.html"}
    assert all(p.stat().st_size > 500 for p in paths)


def test_stored_scores_compare_as_the_fresh_ones(tmp_path) -> None:
    rng = np.random.default_rng(1)
    audio = rng.normal(size=(15, 4))
    text = {"fra": rng.normal(size=(15, 4)), "eng": rng.normal(size=(15, 4))}
    fresh = retrieval_samples(retrieve_languages(audio, text, range(15)))
    np.savez(tmp_path / "scores.npz", **to_arrays(fresh))
    with np.load(tmp_path / "scores.npz") as file:
        stored = from_arrays(file)
    assert list(stored) == list(fresh)
    assert all(d.value == 0 for d in compare_runs([fresh], [stored], draws=5).values())
    with pytest.raises(ValueError, match="no text_to_audio/fra:unit"):
        from_arrays({k: v for k, v in to_arrays(fresh).items() if k != "text_to_audio/fra:unit"})


@pytest.mark.parametrize(("kind", "mime"), [("WAV", "wav"), ("FLAC", "flac"), ("OGG", "ogg"), ("MP3", "mpeg")])
def test_players_name_the_encoding(kind: str, mime: str) -> None:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(1600), 16_000, format=kind)
    query = Query("rain", "eng", [RetrievedClip("c", buffer.getvalue(), 0.1, False)], rank=3.5)
    html = as_html(Page(title="x", facts={}, metrics={}, queries=[query]))
    assert f'src="data:audio/{mime};base64,' in html
    assert "right clip at rank 3.5" in html
    assert 'class="relevant"' not in html


def drawn(figure: Figure) -> int:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=40)
    return len(buffer.getvalue())


def test_embedding_map_draws_every_clip_in_every_language() -> None:
    rng = np.random.default_rng(3)
    audio = rng.normal(size=(12, 8))
    figure = embedding_map(audio, {k: audio + 0.1 * rng.normal(size=(12, 8)) for k in ("eng", "jpn", "zho")})
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["eng", "jpn", "zho", "audio"]
    assert [len(points.get_offsets()) for points in axes.collections] == [12] * 4
    # Neighbours stay neighbours: a clip's captions lie nearer to it than to any other clip.
    places = [np.asarray(points.get_offsets()) for points in axes.collections]
    nearest = np.linalg.norm(places[0][:, None] - places[3][None], axis=-1).argmin(1)
    assert (nearest == np.arange(12)).mean() > 0.8
    assert drawn(figure) > 1000


def test_a_map_of_33_languages_names_each_and_gives_none_the_look_of_another() -> None:
    rng = np.random.default_rng(3)
    codes = [f"l{n:02d}" for n in range(33)]
    figure = embedding_map(rng.normal(size=(2, 4)), {code: rng.normal(size=(2, 4)) for code in codes})
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*codes, "audio"]
    figure.draw_without_rendering()
    box, axes = legend.get_window_extent(), figure.axes[0].get_window_extent()
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0 < box.y1 <= axes.y0
    assert axes.height > figure.bbox.height / 2
    looks = {
        (points.get_facecolor().tobytes(), points.get_paths()[0].vertices.tobytes())
        for points in figure.axes[0].collections
    }
    assert len(looks) == 34


def test_ranks_in_33_languages_are_no_wider_than_a_page_can_show() -> None:
    figure = rank_heat_map(np.full((3, 33), 27.5), [f"l{n:02d}" for n in range(33)], ["rain", "wind", "a dog"])
    figure.draw_without_rendering()
    assert figure.get_figwidth() < 17
    texts = [text.get_window_extent() for text in figure.axes[0].texts[:33]]
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(texts))


def test_a_query_that_no_font_can_write_is_shown_by_its_name() -> None:
    queries = ["rain on a roof", "\ue000\ue001"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for names, expected in ((["clip-7", "clip-9"], "clip-9"), ([], "query 2")):
            figure = rank_heat_map(np.ones((2, 1)), ["kor"], queries, names=names)
            figure.savefig(io.BytesIO())
            shown = [label.get_text() for label in figure.axes[0].get_yticklabels()]
            assert shown == ["rain on a roof", expected]


def test_a_query_with_dollar_signs_is_shown_as_it_is() -> None:
    figure = rank_heat_map(np.ones((2, 1)), ["eng"], ["from $5 to $9", "a $_$ b"])
    # As a formula, the first would lose its dollar signs, and the second is none.
    figure.draw_without_rendering()
    assert not any(label.get_parse_math() for label in figure.axes[0].get_yticklabels())


@pytest.mark.parametrize("queries", [1, 2, 12])
def test_the_colour_bar_of_few_ranks_has_its_whole_label(queries: int) -> None:
    figure = rank_heat_map(np.ones((queries, 2)), ["eng", "fra"], ["rain"] * queries)
    figure.draw_without_rendering()
    label = figure.axes[1].yaxis.label.get_window_extent()
    assert figure.bbox.y0 <= label.y0 < label.y1 <= figure.bbox.y1


def test_heat_map_prints_ranks_from_one() -> None:
    figure = rank_heat_map(np.array([[0, 956], [4.5, 2]]), ["eng", "fra"], ["a", "b" * 99], num_candidates=957)
    assert [text.get_text() for text in figure.axes[0].texts] == ["1", "957", "5.5", "3"]
    assert len(figure.axes[0].get_yticklabels()[1].get_text()) == 48
    assert drawn(figure) > 1000


def test_plan_is_drawn_as_shares_of_its_rows() -> None:
    figure = similarity_and_plan(np.eye(3), np.diag([0.1, 0.2, 0.3]), title="three")
    np.testing.assert_allclose(figure.axes[1].images[0].get_array(), np.eye(3))
    assert drawn(figure) > 1000
