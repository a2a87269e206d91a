"""What trials' files have lost is named by the report and refused by --resume; what a kill leaves is neither."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ray_atr.cli.running import open_run
from ray_atr.common.atomic import remove_leftovers
from ray_atr.common.digests import seal_folder
from ray_atr.common.storage import atomic_file, write_json, write_lines
from ray_atr.evaluation.report import write_report
from ray_atr.metrics.epoch_report import EpochReport
from ray_atr.training.experiment import Experiment
from ray_atr.training.run_folder import RunFolder, TrialFolder, make_trial_id
from tests.support.fake_runs import write_run

SPACE = {"objective": ["contrastive", "kcl"]}


def written(folder: Path, *args: Any, **options: Any) -> Path:
    """A run folder whose records have digests and say what trial they are of, as a run writes them."""
    run = write_run(folder, *args, **options)
    for trial in (run / "trials").iterdir():
        for name in ("result.json", "metrics.jsonl"):
            records = json_lines(trial / name)
            if records:
                write_lines(trial / name, ({**record, "trial_id": trial.name} for record in records))
    for file in (*run.glob("*.json"), *run.glob("trials/*/trial.json")):
        write_json(file, json.loads(file.read_text()))
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder that has lost nothing, with its report; for tests that change a copy of it."""
    run = written(tmp_path_factory.mktemp("whole") / "run", SPACE, languages=("eng", "fra"))
    found = write_report(run, figures=False)
    assert "problems:" not in found.summary
    assert "Not whole" not in found.page.read_text()
    assert open_run(str(run), "noise").path == run
    return run


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of `whole`."""
    return shutil.copytree(whole, tmp_path / "run")


def json_lines(file: Path) -> list[dict[str, Any]]:
    """What a file of one object, or of one a line, holds."""
    if not file.is_file():
        return []
    text = file.read_text()
    return [json.loads(line) for line in text.splitlines()] if file.suffix == ".jsonl" else [json.loads(text)]


def lines(change: Callable[[list[str]], list[str]]) -> Callable[[Path], None]:
    def act(trial: Path) -> None:
        file = trial / "metrics.jsonl"
        file.write_text("".join(line + "\n" for line in change(file.read_text().splitlines())))

    return act


def removed(name: str) -> Callable[[Path], None]:
    return lambda trial: (trial / name).unlink()


def first_trial(run: Path) -> Path:
    return sorted((run / "trials").iterdir())[0]


def swapped(name: str) -> Callable[[Path], None]:
    """With the trial behind it."""

    def act(trial: Path) -> None:
        other = sorted(trial.parent.iterdir())[1] / name
        (trial / name).rename(trial.parent.parent / name)
        other.rename(trial / name)
        (trial.parent.parent / name).rename(other)

    return act


def edited(name: str) -> Callable[[Path], None]:
    """By hand: a value is another, and the digest, which no longer fits, is removed."""

    def act(folder: Path) -> None:
        text = (folder / name).read_text()
        (folder / name).write_text(re.sub(r',\s*"digest": "[^"]*"', "", text, count=1))

    return act


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "file", "says"),
    [
        (removed("trial.json"), "trial.json", "missing"),
        (removed("result.json"), "result.json", "missing, though the trial finished"),
        (removed("metrics.jsonl"), "metrics.jsonl", "epochs none instead of 1 to 3"),
        (lines(lambda rows: []), "metrics.jsonl", "epochs none instead of 1 to 3"),
        (lines(lambda rows: rows[:2]), "metrics.jsonl", "epochs 1, 2 instead of 1 to 3"),
        (lines(lambda rows: [rows[0], rows[2]]), "metrics.jsonl", "epochs 1, 3 instead of 1 to 3"),
        (lines(lambda rows: [*rows, rows[1]]), "metrics.jsonl", "epochs 1, 2, 3, 2 instead of 1 to 4"),
        (lines(lambda rows: [rows[1], rows[0], rows[2]]), "metrics.jsonl", "epochs 2, 1, 3 instead of 1 to 3"),
        (swapped("metrics.jsonl"), "metrics.jsonl", "of another trial, "),
        (swapped("result.json"), "result.json", "of another trial, "),
        (swapped("trial.json"), "trial.json", "of another trial, "),
        (edited("metrics.jsonl"), "metrics.jsonl", "its digest is gone"),
        (edited("result.json"), "result.json", "its digest is gone"),
        (edited("trial.json"), "trial.json", "its digest is gone"),
    ],
)
def test_a_trial_that_lost_something_is_named(run: Path, damage: Callable[[Path], None], file: str, says: str) -> None:
    trial = first_trial(run)
    damage(trial)
    named = f"{trial / file}: {says}"
    found = write_report(run, figures=False)
    assert f"problems:\n  {named}" in found.summary
    assert f"Not whole: {named}" in found.page.read_text()
    with pytest.raises(ValueError, match="restore it from a copy, or remove the trial's folder") as error:
        open_run(str(run), "noise")
    assert str(error.value).startswith(named)


@pytest.mark.parametrize("name", ["trial.json", "result.json"])
def test_a_trial_whose_record_cannot_be_read_is_named_with_the_remedy(run: Path, name: str) -> None:
    (first_trial(run) / name).write_text("")
    named = rf"{name}: not JSON .*; restore it from a copy, or remove the trial's folder"
    with pytest.raises(ValueError, match=f"{named}: it is then trained anew"):
        open_run(str(run), "noise")
    with pytest.raises(ValueError, match=f"{named}: the report is then of the others"):
        write_report(run, figures=False)


@pytest.mark.parametrize("content", ["trial.json", '["a"]', '{"best_epoch": 1, "val": [], "last": {}, "test": {}}'])
def test_a_result_that_is_something_else_is_named_with_the_remedy(run: Path, content: str) -> None:
    """Another file of the trial has a right digest."""
    file = first_trial(run) / "result.json"
    file.write_text((file.parent / content).read_text() if content.endswith(".json") else content)
    with pytest.raises(ValueError, match=rf"{file}: got .*; restore it from a copy, or remove the trial's folder"):
        write_report(run, figures=False)


def test_a_retriever_that_was_cut_short_is_named_before_it_is_wanted(run: Path) -> None:
    best = first_trial(run) / "best"
    best.mkdir()
    save_file({"weight": np.zeros(100, np.float32)}, best / "model.safetensors")
    (best / "retriever.json").write_text("{}")
    seal_folder(best)
    assert open_run(str(run), "noise").path == run
    for name in ("model.safetensors", "retriever.json", "digests.json"):
        whole = (best / name).read_bytes()
        for content in (whole[:-3], b""):
            (best / name).write_bytes(content)
            with pytest.raises(
                ValueError, match=f"best/{name}: missing or cut short.*restore it from a copy, or remove"
            ):
                open_run(str(run), "noise")
        assert f"problems:\n  {best / name}: missing or cut short" in write_report(run, figures=False).summary
        (best / name).write_bytes(whole)
    assert open_run(str(run), "noise").path == run
    (best / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"best/model\.safetensors: missing or cut short"):
        open_run(str(run), "noise")


@pytest.mark.parametrize("status", ["pending", "running", "stopped"])
def test_what_a_kill_leaves_is_whole(tmp_path: Path, status: str) -> None:
    """A folder before its description, a result before its status, and epochs that the checkpoint reports again."""
    run = written(tmp_path / "run", SPACE, running=(0,), languages=("eng", "fra"))
    (run / "trials" / "made-0123abcd").mkdir()
    for trial in RunFolder.open(run).trials():
        described = {**json.loads((Path(str(trial.folder)) / "trial.json").read_text()), "status": status}
        write_json(trial.folder / "trial.json", {name: value for name, value in described.items() if name != "digest"})
    assert RunFolder.open(run).problems() == []


@pytest.mark.parametrize("part", ["command", "seeds", "points", "maximize", "data", "code", "fixed", "scaling"])
def test_an_entry_of_another_kind_is_named(tmp_path: Path, part: str) -> None:
    """As a hand writes it that takes the digest away too."""
    run = RunFolder.create(tmp_path / "run", Experiment(), {"name": "sweep"})
    content = {**json.loads((run.path / "sweep.json").read_text()), part: 3}
    content.pop("digest")
    (run.path / "sweep.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"sweep\.json: {part}: got 3; allowed an? (text|list|object)$"):
        run.info  # noqa: B018


@pytest.mark.parametrize("name", ["experiment.json", "sweep.json"])
def test_a_run_s_record_that_lost_its_digest_is_named(run: Path, name: str) -> None:
    edited(name)(run)
    named = f"{run / name}: its digest is gone"
    assert named in write_report(run, figures=False).summary
    with pytest.raises(ValueError, match=r"restore it from a copy$") as error:
        open_run(str(run), "noise")
    assert str(error.value).startswith(named)


def test_metrics_of_zeros_are_refused(run: Path) -> None:
    file = first_trial(run) / "metrics.jsonl"
    for zeros in (file.stat().st_size, 100):
        file.write_bytes(bytes(zeros))
        with pytest.raises(ValueError, match=r"metrics\.jsonl"):
            open_run(str(run), "noise")


def test_a_finished_trial_knows_its_epochs_and_not_only_its_best(tmp_path: Path) -> None:
    """The best epoch was the first: a history cut off behind it is a loss all the same."""
    run = RunFolder.open(written(tmp_path / "run", {"objective": ["kcl"]}, running=(0,), languages=("eng", "fra")))
    (trial,) = run.trials()
    rows: list[dict[str, Any]] = [dict(row) for row in trial.epochs()]
    for epoch in (2, 3):
        assert trial.add_epoch({**rows[0], "epoch": epoch})
    trial.finish({"best_epoch": 1, "out_of_patience": False, "clean_share": None})
    assert trial.problem() is None
    lines(lambda rows: rows[:2])(Path(str(trial.folder)))
    assert trial.problem() == f"{trial.folder / 'metrics.jsonl'}: epochs 1, 2 instead of 1 to 3"


class EndsMeanwhile(TrialFolder):
    """A trial whose last epoch and result are written just after its epochs were read."""

    def epochs(self) -> list[EpochReport]:
        rows = super().epochs()
        if len(rows) == 1:
            self.add_epoch({**rows[0], "epoch": 2})
            self.finish({"best_epoch": 2, "out_of_patience": False, "clean_share": None})
        return rows


def test_a_trial_that_ends_while_it_is_looked_at_lost_nothing(tmp_path: Path) -> None:
    run = RunFolder.open(written(tmp_path / "run", {"objective": ["kcl"]}, running=(0,), languages=("eng", "fra")))
    (trial,) = run.trials()
    assert EndsMeanwhile(trial.folder).problem() is None
    assert (trial.is_finished, trial.problem()) == (True, None)


def test_refreshes_that_had_to_be_built_again_are_named(run: Path) -> None:
    trial = first_trial(run)
    rows = [json.loads(line) for line in (trial / "metrics.jsonl").read_text().splitlines()]
    rows = [{**row, "knowledge/failed_refreshes": float(row["epoch"] == 2)} for row in rows]
    write_lines(trial / "metrics.jsonl", rows)
    assert (
        "contrastive: 1 refresh of the knowledge base failed, built again" in write_report(run, figures=False).summary
    )
    other = written(run.with_name("other"), {"objective": ["contrastive"]}, languages=("eng", "fra"))
    summary = write_report(run, other, run, figures=False).summary
    told = f"{run}, contrastive: 1 refresh of the knowledge base failed, built again"
    assert summary.count("built again") == summary.count(told) == 1, (
        "of two trials of one name; of a run given twice once"
    )


def test_what_killed_writers_left_goes_at_the_next_start(run: Path) -> None:
    trial = first_trial(run)
    left = [
        trial / ".trial.json.0123456789ab",
        trial / ".result.json.ba9876543210",
        run / ".sweep.json.0123456789ab",
        run / ".mlflow.db.0123456789ab",
        run / ".mlflow.db.0123456789ab-journal",
    ]
    kept = [run / ".mine", trial / ".note.txt", run / ".mlflow.db.lock"]
    for file in (*left, *kept):
        file.write_text("half")
    with RunFolder.open(run).locked():
        assert not [file for file in left if file.exists()]
        assert all(file.exists() for file in kept)


def test_the_journal_of_a_database_that_is_being_written_stays(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "mlflow.db") as aside:
        journal = Path(f"{aside.name}-journal")
        journal.write_text("of a writer that lives")
        remove_leftovers(tmp_path / "mlflow.db")
        assert journal.exists()
    remove_leftovers(tmp_path / "mlflow.db")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mlflow.db"]


def test_a_trials_folder_states_no_value_that_was_cut() -> None:
    """`noise=0` stood for noise 0, 0.4 and 0.6."""
    many = {"objective.scheme": "complementary", "objective.correspondence": "self_refining", "data.noise.kind": "pair"}
    for noise in (0.0, 0.4, 0.6):
        point = {**many, "data.noise.ratio": noise, "objective.pair.transport_mass": 0.75, "seed": 12}
        name = make_trial_id(point)
        words = name.rsplit("-", 1)[0]
        assert len(words) <= 60
        assert not re.search(r"noise=(?!" + re.escape(f"{noise:g}") + r"(-|$))", words)
        assert make_trial_id({**point, "seed": 1}) != name
    assert make_trial_id({"train.start_from": "x" * 100})[:60] == f"start-from={'x' * 49}"
