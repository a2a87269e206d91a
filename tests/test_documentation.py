"""The documentation site: what it renders from docstrings, and that its pages and the repository's links hold together."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

from ray_atr.models.retriever import build_retriever
from ray_atr.models.text import train_tokenizer
from ray_atr.objectives import LearnedSettings
from tests.support.scripts import load_script
from tests.support.tiny import tiny, tone

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "cluster" / "README.md"]


@pytest.fixture(scope="module")
def argument_lists() -> ModuleType:
    pytest.importorskip("griffe")
    return load_script("docs/argument_lists.py")


def test_lines_of_names_are_rendered_as_a_list(argument_lists: ModuleType) -> None:
    text = "Retrieval.\n\nu, v     [N, D].\nrows     int64:\n         all of them.\n\nRaises ValueError."
    assert argument_lists.as_list(text).splitlines() == [
        "Retrieval.", "", "", "- `u, v`: [N, D].", "- `rows`: int64:", "  all of them.", "", "Raises ValueError.",
    ]  # fmt: skip
    prose = "One line.\n\nA paragraph that\ngoes over two lines."
    assert argument_lists.as_list(prose) == prose


def test_an_example_is_rendered_as_code_and_its_leads_as_paragraphs(argument_lists: ModuleType) -> None:
    example = ">>> sounds = open()  # doctest: +SKIP\n>>> class Two:\n...     size = 2\n>>> Two.size\n2"
    rendered = argument_lists.as_list(f"Sounds.\n\nWhen: always.\nRelated: `open`.\n\n{example}\n\nThe end.")
    code = ["```pycon", ">>> sounds = open()", *example.splitlines()[1:], "```"]
    assert [line for line in rendered.splitlines() if line] == [
        "Sounds.", "**When:** always.", "**Related:** `open`.", *code, "The end.",
    ]  # fmt: skip
    assert argument_lists.as_list(example).splitlines()[-2:] == ["2", "```"]


def test_the_fields_of_a_class_are_rendered_unless_its_docstring_lists_them(argument_lists: ModuleType) -> None:
    griffe = pytest.importorskip("griffe")
    code = '''
from dataclasses import dataclass

@dataclass
class Pair:
    """Two numbers.{}"""
    first: int
    second: float = 0.0
'''

    def fields_of(listed: str) -> list[str]:
        with griffe.temporary_visited_module(code.format(listed)) as module:
            return [line for line in argument_lists.fields_list(module["Pair"]).splitlines() if line]

    assert fields_of("") == ["**Fields:**", "- `first: int`", "- `second: float`"]
    assert fields_of("\\n\\n- `first`: one.") == ["**Fields:**", "- `second: float`"]


def test_a_product_in_prose_is_no_tag(argument_lists: ModuleType) -> None:
    assert argument_lists.as_list("s = <u, v>, in `a < b`:\n\n    <x>") == "s = &lt;u, v>, in `a < b`:\n\n    <x>"


def test_the_settings_of_a_class_are_rendered_as_a_list(argument_lists: ModuleType) -> None:
    lines = argument_lists.settings_list(LearnedSettings).splitlines()
    assert "- `temperature` (0.07): first value of the temperature, if it is learned; (0, inf)" in lines
    assert argument_lists.settings_list(str) == ""


def test_an_option_is_broken_neither_after_its_hyphens_nor_a_name_in_a_table_but_after_a_dot() -> None:
    breaks = load_script("docs/line_breaks.py").on_page_content
    assert breaks("<p>a--b <code>run --no-ray.x</code></p>") == (
        '<p>a--b <code>run <span class="option">--no-ray</span>.x</code></p>'
    )
    assert breaks("<td><code>train.rate</code> a.b <code>a.json</code></td><p><code>a.b</code></p>") == (
        "<td><code>train.<wbr>rate</code> a.b <code>a.json</code></td><p><code>a.b</code></p>"
    )
    assert breaks("<pre><span></span><code>run \\\n    it\n</code></pre>") == (
        '<pre><span></span><code><span class="line">run \\</span>\n<span class="line">    it</span>\n</code></pre>'
    )


def test_the_site_has_every_page() -> None:
    site = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=yaml.BaseLoader)

    def files(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        parts = entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else []
        return [file for part in parts for file in files(part)]

    listed = set(files(site["nav"]))
    # A script is a page too, as the notebooks' plugin reads it, unless it is left out.
    held = {
        str(path.relative_to(ROOT / "docs"))
        for path in (ROOT / "docs").rglob("*")
        if path.suffix in (".md", ".ipynb", ".py")
        and not any(path.match(pattern) for pattern in site["exclude_docs"].split())
    }
    assert listed == held


def test_the_page_of_settings_is_current() -> None:
    made = load_script("docs/settings_page.py").page()
    assert (ROOT / "docs" / "settings.md").read_text() == made, "run: uv run python docs/settings_page.py"


def test_the_page_of_settings_has_the_defaults_of_every_kind() -> None:
    """A kind's table lacked the settings that other kinds have too, with another default."""
    tables = load_script("docs/settings_page.py").page().split("\n##")
    of_kind = {table.split("\n")[0].lstrip("# "): table for table in tables}
    for kind, path, default in (
        ("model", "model.audio.clip_seconds", "10.0"),
        ("model.audio ced", "model.audio.clip_seconds", "30.0"),
        ("model.text sonar", "model.text.max_tokens", "128"),
        ("objective.pair complementary", "objective.pair.temperature", "0.05"),
    ):
        assert f"| `{path}` | `{default}` |" in of_kind[kind]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_pictures_of_a_page_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), target


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = json.loads((ROOT / "docs" / "own.ipynb").read_text())["cells"]
    notebook = ModuleType("notebook")
    monkeypatch.setitem(sys.modules, "notebook", notebook)
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            code = compile("".join(cell["source"]), f"cell {number}", "exec", dont_inherit=True)
            exec(code, vars(notebook))  # the file is this repository's own
    found = notebook.found
    # Towers and loss of one's own find most of a hundred chords.
    assert found["text_to_audio/eng/recall_at_1"] > 0.5
    assert found["text_to_audio/fra/recall_at_1"] > 0.5
    assert notebook.trained.best_epoch + 5 == len(notebook.trained.history) < 30
    assert f"the best of {len(notebook.trained.history)} epochs is" in capsys.readouterr().out


@pytest.mark.parametrize("metric", ["euclidean", "mahalanobis"])
@pytest.mark.parametrize("page", ["README.md", "docs/evaluation.md"])
def test_the_lines_that_load_a_retriever_run(
    page: str, metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = tiny(tmp_path).model
    tokenizer = train_tokenizer(["Ein Hund bellt.", "Es regnet."], 200)
    learned = LearnedSettings(metric=metric)
    build_retriever(settings, tokenizer=tokenizer, learned=learned, seed=0).save_pretrained("runs/.../best")
    for index, name in enumerate(("rain.wav", "dog.flac")):
        Path(name).write_bytes(tone(index, index))
    lines = re.findall(r"```python\n(from ray_atr import Retriever\n.*?)```", (ROOT / page).read_text(), re.DOTALL)
    made: dict[str, Any] = {}
    exec(lines[0], made)  # the file is this repository's own
    assert made["retriever"].distance == ("euclidean" if metric == "mahalanobis" else "cosine")
    shown = made["retriever"].similarity(made["text"], made["audio"])
    assert shown.shape == (1, 2)
    assert capsys.readouterr().out == f"{shown}\n"


@pytest.mark.parametrize("page", ["README.md", "docs/objectives.md"])
def test_the_lines_of_a_loop_of_ones_own_run(page: str) -> None:
    (lines,) = re.findall(r"```python\n(from ray_atr import objectives\n.*?)```", (ROOT / page).read_text(), re.DOTALL)
    audio = torch.randn(6, 8, requires_grad=True)
    exec(lines, {"a": audio, "t": torch.randn(6, 2, 8), "m": torch.ones(8)})  # the file is this repository's own
    assert audio.grad is not None
    assert audio.grad.abs().sum() > 0
