"""The papers' printed numbers: copied without slips, in a layout each, and beside runs on the same data and split alone."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from ray_atr.common.language_codes import DEFAULT_LANGUAGES
from ray_atr.evaluation.report import read_runs
from ray_atr.metrics.metric import Metric
from ray_atr.objectives import PRESETS
from ray_atr.papers.layouts import LAYOUTS, paper_layouts
from ray_atr.papers.printed_tables import PAPERS, PaperTable, printed_beside, printed_in, printed_tables
from ray_atr.training.recipes import RECIPES
from tests.support.fake_runs import LANGUAGES, write_run, write_trial

ALL = [table for paper in PAPERS for table in printed_tables(paper)]
MISPRINTED = {
    ("clotho", "ml_clap", "text_to_audio/mean/recall_at_1"),
    ("clotho", "cacl", "text_to_audio/mean/map_at_10"),
}
"""Means that differ from the mean of their own rows in the paper."""

BY_EVALUATION = [*printed_in("m_ltm", "Table 3", "Table 9"), *(table for table in ALL if table.is_gain)]
"""Tables of models that are tested on another set than they were trained on, and gains: they stand beside an evaluation."""
ABLATION = printed_in("ask", "Table 2 (its text)")


def cut_mean(numbers: list[float], decimals: int) -> float:
    return math.floor(sum(numbers) / len(numbers) * 10**decimals + 1e-6) / 10**decimals


@pytest.mark.parametrize(
    "table", printed_in("atri", "Table 1", "Table 2"), ids=lambda table: f"{table.place} {table.data}"
)
def test_atris_means_are_those_of_the_copied_rows(table: PaperTable) -> None:
    """The paper cuts its means, so a number copied wrongly by a digit or two shows in them."""
    checked = 0
    for row in table.rows:
        for metric, mean in row.numbers.items():
            if "/mean/" not in metric or (table.data, row.objective, metric) in MISPRINTED:
                continue
            group, _, name = metric.split("/")
            keys = (f"{group}/{code}/{name}" for code in DEFAULT_LANGUAGES)
            others = [float(row.numbers[key]) for key in keys if key in row.numbers]
            decimals = 3 if group == "embedding" else 2
            assert len(others) == (7 if group == "embedding" else 8)
            assert cut_mean(others, decimals) == pytest.approx(float(mean), abs=10**-decimals), (
                f"{row.objective} {metric}"
            )
            checked += 1
    assert checked >= 6


def test_recalls_rise_with_k() -> None:
    """In every printed row: a slip between columns shows."""
    for table in ALL:
        for row in table.rows:
            for direction in {metric.split("/recall_at_")[0] for metric in row.numbers if "recall_at" in metric}:
                found = [row.numbers.get(Metric.parse(f"{direction}/recall_at_{k}")) for k in (1, 5, 10)]
                recalls = [number for number in found if number is not None]
                assert recalls == sorted(recalls), f"{table.source}: {row.objective}"
                assert all(0 <= number <= 100 for number in recalls)


def test_numbers_that_are_printed_twice_are_the_same() -> None:
    (losses, losses_of_htsat), (entropic, entropic_of_htsat) = (printed_in("m_ltm", f"Table {n}") for n in (2, 7))
    m_ltm = printed_in("m_ltm", "Table 1")[0].rows[-1]
    for table in (losses, entropic, *printed_in("m_ltm", "Table 6", "Table 8")):
        assert m_ltm.numbers in [row.numbers for row in table.rows], table.place
    of_htsat = [row.numbers for row in entropic_of_htsat.rows]
    assert [row.numbers for row in losses_of_htsat.rows[1:]] == [of_htsat[0], of_htsat[-1]]
    assert printed_in("ask", "Table 5 (its text)")[0].rows[-1].numbers == ABLATION[0].rows[-1].numbers


def test_every_printed_table_has_its_layout() -> None:
    placed = [*(paper for layout in LAYOUTS for paper in layout.papers), *BY_EVALUATION, *ABLATION]
    assert [paper.source for paper in ALL if paper not in placed] == []


def test_every_layout_names_its_papers_table() -> None:
    for layout in LAYOUTS:
        for paper in layout.papers:
            (year,) = re.findall(r"\d{4}", paper.paper)
            assert f"{paper.paper.split()[0]} et al. {year}" in layout.title
            # The same layout serves the appendix, which has another text encoder.
            if paper.towers != "CED-Base + LaBSE":
                (number,) = re.findall(r"\d+", paper.place)
                assert re.search(rf"Tables? (\d and )?{number}\b", layout.title), (layout.title, paper.place)


def test_rows_are_named_by_presets_or_by_systems_of_others() -> None:
    others = {row.objective for table in ALL for row in table.rows} - set(PRESETS)
    assert others == {
        "Oncescu et al. 2021", "Mei et al. 2022", "Deshmukh et al. 2022", "Wu et al. 2022", "GLAP",
        "ask+ on GPA", "ask* on GPA", "ask+ on FLAM", "ask* on FLAM", "ask† on its baseline",
    }  # fmt: skip


def references(run: Path) -> dict[str, list[list[str]]]:
    tables = paper_layouts(read_runs([run]))
    return {table.title: [[cell.text for cell in row] for row in table.references] for table in tables}


SPACE = {"objective": ["ml_clap", "cacl", "kcl", "contrastive"]}


def test_printed_numbers_stand_beside_runs_of_their_own_data_and_split_alone(tmp_path: Path) -> None:
    assert any(references(write_run(tmp_path / "same", SPACE, data="audiocaps")).values())
    for name, options in {
        "soundscapes": {},
        "esc50": {"data": "esc50"},
        "of before the name was noted": {"data": ""},
        "two sets": {"data": "audiocaps, clotho"},
        "validation": {"data": "audiocaps", "has_test": False},
    }.items():
        assert not any(references(write_run(tmp_path / name, SPACE, **options)).values()), name


def test_each_data_set_has_its_own_printed_numbers(tmp_path: Path) -> None:
    for data, value in (("audiocaps", "46.81"), ("clotho", "24.42")):
        found = references(write_run(tmp_path / data, SPACE, data=data))
        (languages,) = (table for title, table in found.items() if "Table 1)" in title and "Languages" in title)
        (row,) = (row for row in languages if row[0] == "kcl (paper, CED-Base + SONAR)" and row[1] == "mean")
        assert row[2] == value
        # R@1, R@5 and mAP10 of both directions, in each of the eight languages and their mean, for three schemes.
        assert len([row for row in languages if row[0].endswith("SONAR)")]) == 27
        assert all(cell != "–" for row in languages if row[0].endswith("SONAR)") for cell in row[2:8])


def test_the_languages_layout_holds_our_numbers_by_language(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"objective": ["ml_clap", "kcl"], "seed": [0, 1]})
    runs = read_runs([run])
    (table,) = (table for table in paper_layouts(runs) if table.title.startswith("Languages (layout"))
    assert table.columns == ["objective", "language", *("R@1", "R@5", "mAP10") * 2, "seeds"]
    rows_of_table = [[cell.text for cell in row] for block in table.blocks for row in block]
    assert [row[:2] for row in rows_of_table] == [
        [objective, code] for objective in ("ml_clap", "kcl") for code in (*LANGUAGES, "mean")
    ]
    kcl = runs.finished[runs.finished["objective"] == "kcl"]["text_to_audio/jpn/recall_at_5"]
    (row,) = (row for row in rows_of_table if row[:2] == ["kcl", "jpn"])
    assert row[3] == f"{100 * kcl.mean():.1f} ±{100 * kcl.std(ddof=1):.1f}"


def test_the_ablations_printed_rows_tick_the_parts_that_are_on(tmp_path: Path) -> None:
    knowledge = "objective.knowledge"
    run = write_run(tmp_path / "run", {knowledge: ["none"]}, data="audiocaps")
    for off in ({}, {f"{knowledge}.coarse": False}):
        write_trial(run, {knowledge: "ask", **off})
    (rows_of_paper,) = (found for title, found in references(run).items() if "without each of its parts" in title)
    ticks = {"".join(row[1:7]): row[7] for row in rows_of_paper}
    assert ticks["✓✓✓✓✓✓"] == "35.4"
    assert [row[10] for row in rows_of_paper if row[7] == "35.4"] == ["42.0"]
    assert ticks["✓✓✓✓–✓"] == "33.9"
    assert {"–✓✓✓✓✓", "✓–✓✓✓✓", "✓✓–✓✓✓", "✓✓✓✓✓–"} < set(ticks)


def test_the_mass_layout_averages_both_directions(tmp_path: Path) -> None:
    space = {"objective": ["m_ltm_pot"], "objective.pair.transport_mass": [0.6, 1.0]}
    (table,) = (
        table for table in paper_layouts(read_runs([write_run(tmp_path / "run", space)])) if "Figure 2" in table.title
    )
    for block in table.blocks:
        for row in block:
            mean, t2a, a2t = (float(row[index].text) for index in (1, 2, 5))
            assert mean == pytest.approx((t2a + a2t) / 2, abs=0.1)


def test_a_mass_that_one_method_alone_has_is_no_figure(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"objective": ["m_ltm_pot"], "objective.pair.transport_mass": [0.6]})
    write_trial(run, {"objective": "contrastive"})
    runs = read_runs([run])
    assert "objective.pair.transport_mass" in runs.varied
    assert not [table for table in paper_layouts(runs) if "Figure 2" in table.title]


@pytest.mark.parametrize("line", ["kcl,1,2", "kcl"])
def test_a_line_with_another_number_of_cells_is_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text(f"# Of no paper.\nobjective,a/b\n{line}\n")
    with pytest.raises(ValueError, match="zip"):
        printed_tables("other", tmp_path)


def test_recipes_of_every_table_with_towers_exist() -> None:
    """Each printed row of ours on AudioCaps or Clotho can be trained by a recipe, or by a setting of one."""
    towers = {
        "ResNet38 + BERT": "resnet38_bert", "HTS-AT + BERT": "htsat_bert", "CED-Base + SONAR": "ced_sonar",
        "CED-Base + LaBSE": "ced_labse",
    }  # fmt: skip
    for table in ALL:
        data = table.trained_on or table.data
        if data in ("audiocaps", "clotho") and not table.is_gain:
            assert any(name.startswith(f"{data}_{towers[table.towers]}_") for name in RECIPES), table.source


def evaluated(data: str, split: str, trained_on: str) -> dict[str, list[tuple[str, list[str]]]]:
    metrics = {f"{direction}/{code}/recall_at_{k}": 0.0313 * k for direction in ("text_to_audio", "audio_to_text")
               for code in ("eng", "mean") for k in (1, 5, 10)} | {"audio_to_text/eng/map_at_10": 0.25}  # fmt: skip
    tables = printed_beside({Metric.parse(name): value for name, value in metrics.items()}, data, split, trained_on)
    return {table.title: [(row[0].text, [cell.text for cell in row[1:]]) for row in table.rows] for table in tables}


def test_an_evaluation_stands_beside_what_is_printed_of_the_same_training_and_test_sets() -> None:
    (title,) = (title for title in evaluated("clotho", "test", "audiocaps") if "Table 9" in title)
    own, triplet, *_ = evaluated("clotho", "test", "audiocaps")[title]
    assert own == ("this evaluation", ["3.1", "15.7", "31.3"] * 2)
    assert triplet == ("triplet (paper)", ["10.41", "27.38", "38.04", "11.39", "28.42", "39.80"])
    assert [title for title in evaluated("esc50", "test", "audiocaps") if "Table 3" in title]
    assert any("Table 5" in title for title in evaluated("audiocaps", "test", "audiocaps"))
    for other in (
        ("esc50", "test", "esc50"),
        ("clotho", "val", "audiocaps"),
        ("clotho", "test", ""),
        ("soundscapes",) * 3,
    ):
        assert evaluated(*other) == {}, other


def test_gains_are_signed_and_beside_no_number_of_the_evaluations_own() -> None:
    found = {title: rows for title, rows in evaluated("audiocaps", "test", "audiocaps").items() if "Gain" in title}
    assert found == {
        "Gain in points: beside Fu et al. 2025 (ASK), 5.2 and Appendix D": [
            ("ask+ on GPA (paper)", ["+1.0", "–"]),
            ("ask* on GPA (paper)", ["–", "+2.6"]),
            ("ask+ on FLAM (paper)", ["+2.0", "–"]),
        ]
    }
    for data, trained_on, gain in (("clotho", "audiocaps", "+1.3"), ("audiocaps", "clotho", "+2.6")):
        (rows_of_gain,) = (rows for title, rows in evaluated(data, "test", trained_on).items() if "Gain" in title)
        assert rows_of_gain == [("ask† on its baseline (paper)", [gain])]


def test_a_modality_gap_on_esc50_is_that_of_a_model_trained_on_audiocaps() -> None:
    gap = {Metric.parse("embedding/eng/modality_gap"): 0.5}
    (table,) = printed_beside(gap, "esc50", "test", "audiocaps")
    assert "Table 4" in table.title
    assert printed_beside(gap, "esc50", "test", "esc50") == []


def test_rows_with_settings_name_them_beside_an_evaluation() -> None:
    labels = [label for label, _ in evaluated("audiocaps", "test", "audiocaps")[
        "Noisy training pairs: beside Luong et al. 2024 (m-LTM), Table 5"]]  # fmt: skip
    assert labels[1] == "triplet (paper, ratio 0.2)"
