"""Tables and figures for what is no plain grid: parts switched off, a mass chosen by the loss, objectives put together."""

from __future__ import annotations

import pytest

from ray_atr.common.override import flatten, override
from ray_atr.evaluation.report import read_runs, write_report
from ray_atr.evaluation.report.curves import curves_of, draw_curve
from ray_atr.evaluation.report.read import objective_label
from ray_atr.evaluation.report.write import main_tables
from ray_atr.papers.layouts import paper_layouts
from ray_atr.training.experiment import Experiment
from tests.support.fake_runs import write_run, write_trial

KNOWLEDGE = "objective.knowledge"
PRESET = {"objective.scheme": "english", "objective.pair": "contrastive", "objective.knowledge": "none"}


def titled(tables, words):
    (table,) = (table for table in tables if words in table.title)
    return table


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ({}, "contrastive"),
        ({"objective": "m_ltm_pot"}, "m_ltm_pot"),
        ({"objective": "m_ltm", "objective.scheme": "kcl"}, "kcl+ltm"),
        ({"objective": "m_ltm", "objective.pair": "contrastive"}, "contrastive"),
        ({"objective.scheme": "kcl", "objective.pair": "contrastive"}, "kcl"),
        ({"objective.scheme": "ml_clap", "objective.pair": "partial_learning_to_match"}, "ml_clap+pot"),
        ({"objective": "m_ltm_pot_euclidean", "objective.scheme": "kcl"}, "kcl+pot_euclidean"),
        ({"objective.knowledge": "ask"}, "ask"),
        ({"objective": "kcl", "objective.knowledge": "ask"}, "kcl+contrastive+ask"),
    ],
)
def test_an_objective_is_called_by_what_it_is_made_of(overrides, name):
    settings = flatten(override(override(Experiment(), PRESET), overrides))
    assert objective_label(settings, overrides) == name


def test_the_ablation_ticks_the_parts_that_are_on(tmp_path):
    run = write_run(tmp_path / "run", {KNOWLEDGE: ["none"], "seed": [0, 1]})
    for off in ({}, {f"{KNOWLEDGE}.coarse": False}, {f"{KNOWLEDGE}.refresh_every_epochs": 0}):
        for seed in (0, 1):
            write_trial(run, {KNOWLEDGE: "ask", **off, "seed": seed})
    runs = read_runs([run])
    for table in (titled(paper_layouts(runs), "Fu et al. 2025, Table 2"), titled(main_tables(runs), "English")):
        assert table.columns[:7] == ["objective", "fine", "coarse", "injection", "transport", "reliability", "refresh"]
        ticks = {"".join(cell.text for cell in row[:7]) for block in table.blocks for row in block}
        assert ticks == {"contrastive––––––", "ask✓✓✓✓✓✓", "ask✓–✓✓✓✓", "ask✓✓✓✓✓–"}
        assert [row[0].text for row in table.blocks[0]] == ["contrastive", "ask", "ask", "ask"]
        assert {row[-1].text for row in table.blocks[0]} == {"2"}
    assert not [table for table in paper_layouts(runs) if "Table 2)" in table.title and "Luong" in table.title]


def test_a_mass_that_the_loss_chooses_is_a_level_of_the_figure_and_beside_the_true_share(tmp_path):
    space = {
        "objective": ["m_ltm_pot"],
        "objective.pair.transport_mass": [0.6, 0.8, "auto"],
        "data.noise.ratio": [0.2, 0.4],
    }
    run = write_run(tmp_path / "run", space)
    runs = read_runs([run])
    table = titled(paper_layouts(runs), "clean pairs")
    rows = [[cell.text for cell in row] for block in table.blocks for row in block]
    assert rows == [["0.2", "80.0", "84.0", "84.0", "1"], ["0.4", "60.0", "64.0", "64.0", "1"]]
    assert "best" not in table.note
    (curve,) = (curve for curve in curves_of(runs) if curve.file == "transport_mass")
    assert draw_curve(runs, curve, tmp_path / "transport_mass.png").read_bytes().startswith(b"\x89PNG")


def test_printed_costs_are_ratios_to_the_printed_baseline(tmp_path):
    run = write_run(tmp_path / "run", {"objective": ["ml_clap", "cacl", "kcl"]}, data="audiocaps")
    table = titled(paper_layouts(read_runs([run])), "what a language scheme costs".capitalize())
    ratios = [[row[index].text for index in (3, 5)] for row in table.references]
    assert ratios == [["1", "1"], ["1.21", "1.12"], ["3.08", "1.26"]]


def test_a_trial_that_was_stopped_early_is_named_and_kept_out_of_the_means(tmp_path):
    run = write_run(tmp_path / "run", {"objective": ["kcl"], "seed": [0, 1]}, running=[1])
    described = next((run / "trials").glob("*seed-1*/trial.json"), None) or next(
        (run / "trials").glob("*seed=1*/trial.json")
    )
    described.write_text(described.read_text().replace('"running"', '"stopped"'))
    page = write_report(run, figures=False).page.read_text()
    assert "1 of 2 trials finished; 1 stopped" in page
    assert '<span class="status stopped">stopped</span>' in page
