"""Every command of the README and the documentation is understood: its options, its settings, and its points as a plan."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from ray_atr.cli.commands import _run as run_command
from ray_atr.common.override import override
from ray_atr.training.experiment import Experiment
from tests.support.commands import replace_work

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "cluster" / "README.md",
    *sorted((ROOT / "pipelines").glob("*.py")),
]
BLOCK = re.compile(r"^(?:    )?((?:.*-- )?(?:uv run )?(?:python pipelines/|ray-atr ).*(?:(?<=\\)\n.*)*)$", re.MULTILINE)
CONTINUED = re.compile(r"^    (uv run ray job submit .*(?:(?<=\\)\n.*)*)$", re.MULTILINE)
INLINE = re.compile(r"`((?:\w+\.py|ray-atr) [^`]+)`")
OF_MANY = "…"


class Understood(BaseException):
    """Raised in the place of the work, when all that was typed has been checked."""


def commands() -> list[tuple[str, list[str]]]:
    """Page and words of each command: blocks of every page but the log, and the inline ones of docs/papers.md."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\\\n", "\\\n")  # as a docstring writes the end of a line
        if page.name == "NOTEBOOK.md":  # what was run then, by the names of then
            continue
        lines = [*BLOCK.findall(text), *CONTINUED.findall(text)]
        lines += INLINE.findall(text) if page.name == "papers.md" else []
        for line in dict.fromkeys(lines):
            words = shlex.split(line.replace("\\\n", " "), comments=True)
            if words := command_of(words):
                found.append((str(page.relative_to(ROOT)), words))
    return found


def command_of(words: list[str]) -> list[str]:
    """What follows `ray-atr`, of a script of pipelines/ what it stands for; placeholders in brackets are left out."""
    scripts = [place for place, word in enumerate(words) if word.endswith(".py")]
    if "ray-atr" in words:
        return words[words.index("ray-atr") + 1 :]
    if not scripts:
        return []
    script = (ROOT / "pipelines" / Path(words[scripts[0]]).name).read_text()
    (stands_for,) = re.findall(r"main\((.*)\)", script)
    rest = words[scripts[0] + 1 :]
    kept = [word for word in rest if not word.startswith("[") and not word.endswith("]") and word not in (OF_MANY, "&")]
    return [*re.findall(r'"(\w+)"', stands_for), *kept]


COMMANDS = commands()


def understood(*_: Any, **__: Any) -> None:
    raise Understood


def same(first: Any, *_: Any, **__: Any) -> Any:
    return first


def in_english(experiment: Experiment) -> Experiment:
    """The experiment with a language, for one whose data set is not there to be asked."""
    return override(experiment, {"data.languages": experiment.data.languages or ("eng",)})


@pytest.fixture
def without_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of each command replaced, after all checks that need no data. `queries.txt` is there to be read."""
    (tmp_path / "queries.txt").write_text("a dog barks\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    work: dict[str, Callable[..., Any]] = {
        "cli.experiment_options.ExperimentOptions.require_data": Mock(),
        "cli.running.open_run": understood,
        "cli.running._create": understood,
        "cli.running.estimate": understood,
        "cli.running.with_languages": in_english,
        "training.languages.with_languages": in_english,
        "sweep.describe.describe_plan": understood,
        "sweep.describe.check_experiment": same,
        "evaluation.run.evaluate": understood,
        "evaluation.checkpoints.find_checkpoint": Mock(),
        "evaluation.mteb_scoring.find_tasks": same,
        "deploy.export.exporting.export": understood,
        "cli.report.report_script": understood,
        "cli.prepare.CheckCommand.run": understood,
        "cli.prepare.ImportCommand.run": understood,
        "cli.prepare.VectorsCommand.run": understood,
        "cli.prepare.JoinCommand.run": understood,
        "workshop.audit.run.audit_data_set": understood,
        "cli.audit.run_on_audit": understood,
        "cli.translate.Fill.run": understood,
        "deploy.index.build.build_index": understood,
        "deploy.index.build.update_index": understood,
        "deploy.index.opened.Index.open": understood,
        "deploy.index.current.open_current": understood,
        "deploy.pack.making.make_pack": understood,
        "cli.translate.BackTranslate.run": understood,
    }
    replace_work(monkeypatch, work)
    # Ray Serve is an extra.
    monkeypatch.setitem(sys.modules, "ray_atr.deploy.serve.on_ray", Mock(RayServer=understood))


@pytest.mark.parametrize(
    ("page", "words"), COMMANDS, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
@pytest.mark.usefixtures("without_work")
def test_a_documented_command_is_understood(page: str, words: list[str]) -> None:
    with pytest.raises((Understood, SystemExit)) as ended:
        run_command(words)
    if isinstance(ended.value, SystemExit):
        assert {"--help", "--help-settings"} & set(words)
        assert not ended.value.code


@pytest.mark.usefixtures("without_work")
def test_a_command_with_a_mistake_is_not_understood() -> None:
    for words in (
        ["train", "--objectiv", "kcl"],
        ["train", "--objective", "kc"],
        ["sweep", "--space", "objective.pair.epsilon=grid(0)"],
    ):
        with pytest.raises((ValueError, SystemExit)):
            run_command(words)


def test_commands_are_found_on_every_page_that_shows_some() -> None:
    pages = [page for page, _ in COMMANDS]
    assert pages.count("README.md") >= 4
    assert pages.count("docs/papers.md") >= 20
    assert {"docs/sweeps.md", "docs/cluster.md", "docs/evaluation.md", "cluster/README.md"} <= set(pages)
    assert {words[0] for _, words in COMMANDS} == {
        "train",
        "sweep",
        "evaluate",
        "export",
        "prepare",
        "audit",
        "report",
        "translate",
        "index",
        "pack",
        "serve",
    }
