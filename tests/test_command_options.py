"""Each option of a command reaches the function that does its work. What that function does with it, the tests of its package
say.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from ray_atr.cli import audit, cache, evaluate, export, index, main, pack, prepare, report, serve, sweep, translate
from ray_atr.cli.comparisons import CorrespondenceSweep, KnowledgeSweep, ObjectivesSweep, TransportSweep
from ray_atr.cli.experiment_options import SpaceOptions, SweepOptions
from ray_atr.cli.running import plan_search, planned, run_plan
from ray_atr.deploy.export.exporting import Exported
from ray_atr.deploy.index.search import Match
from ray_atr.training.experiment import Experiment
from tests.support.commands import CalledError, called, replace_work


def test_an_index_is_built_of_a_part_and_updated_with_what_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["build", "--checkpoint", "c", "--audio", "a", "--out", "i", "--part", "2/3", "--encoders", "4"]
    built = called(monkeypatch, "deploy.index.build.build_index", index, [*arguments, "--batch-size", "5"])
    assert built.args == ("c", "a", "i")
    assert built.kwargs["part"] == "2/3"
    assert (built.kwargs["encoding"].encoders, built.kwargs["encoding"].batch_size) == (4, 5)
    arguments = ["update", "i", "--checkpoint", "c", "--audio", "a", "--ray", "never"]
    updated = called(monkeypatch, "deploy.index.build.update_index", index, arguments)
    assert updated.args == ("i", "c", "a")
    assert updated.kwargs["encoding"].ray == "never"


@pytest.mark.parametrize(
    ("command", "words", "unread"),
    [
        (evaluate, ["--checkpoint", "c"], ["--encoders", "4"]),
        (evaluate, ["--checkpoint", "c"], ["--gpus-per-encoder", "1.0"]),
        (audit, ["d", "--out", "o"], ["--cpus-per-encoder", "2.0"]),
        (index, ["build", "--checkpoint", "c", "--audio", "a", "--out", "i"], ["--encoders", "4"]),
    ],
)
def test_options_of_actors_are_refused_where_there_are_none(command: Any, words: list[str], unread: list[str]) -> None:
    with pytest.raises(ValueError, match=f"{unread[0]}: got {unread[1]}; allowed nothing with --ray never"):
        command.run([*words, *unread, "--ray", "never"], "command")


def test_an_index_is_asked_as_it_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    opened = MagicMock()
    opened.return_value.warning_of.return_value = ""
    opened.return_value.search_many.return_value = [[]]
    replace_work(monkeypatch, {"deploy.index.opened.Index.open": opened})
    arguments = ["query", "i", "a", "dog", "--checkpoint", "c", "--top", "3", "--language", "en", "--at-least", "0.5"]
    index.run([*arguments, "--or-nothing"], "command")
    assert (opened.call_args.args, opened.call_args.kwargs) == (("i",), {"checkpoint": "c"})
    asked = opened.return_value.search_many.call_args
    assert asked.args == (["a dog"], "en")
    assert asked.kwargs == {"top": 3, "at_least": 0.5, "or_nothing": True}
    assert capsys.readouterr().out == "nothing found of probability 0.5 or more\n"


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_answers_as_json_keep_every_letter_in_any_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    """The letters that an encoding lacks were question marks, so that the path named no file."""
    opened = MagicMock()
    opened.return_value.warning_of.return_value = ""
    opened.return_value.search_many.return_value = [[Match("日本.wav", 0.0, 1.0, 0.5, None, "日本", {})]]
    replace_work(monkeypatch, {"deploy.index.opened.Index.open": opened})
    written = io.BytesIO()
    with contextlib.redirect_stdout(io.TextIOWrapper(written, encoding, errors="replace", line_buffering=True)):
        index.run(["query", "i", "a dog", "--json"], "command")
        assert json.loads(written.getvalue().decode(encoding))["matches"][0]["path"] == "日本.wav"


def test_texts_from_the_standard_input_are_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python runs in a locale of UTF-8, it refuses other bytes there."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a dog\n\xff"), encoding="utf-8"))
    # Before the index is opened.
    with pytest.raises(ValueError, match=r"^--from: got '-'; allowed a text file in UTF-8$"):
        index.run(["query", "absent", "--from", "-"], "command")


def test_an_export_prints_how_near_its_vectors_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Exported(Path("out"), "onnx", 1.25e-7, 0.995, 1, 6, 1.5, 0.25)
    replace_work(monkeypatch, {"deploy.export.exporting.export": lambda *_, **__: report})
    export.run(["runs/x", "--to", "onnx", "--int8-text"], "command")
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "largest difference from encode_*: 1.2e-07, over 1 clip and 6 texts",
        "equal top-10 lists: 99.50%",
        "text graph of 8 bits: 0.25 points of R@10 lost",
        "exported: out (1.5 MB)",
    ]


def test_a_pack_is_measured_on_the_split_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--space", "v", "--captions", "t", "--text", "e", "--space-text", "w", "--out", "o", "--split", "val"]
    made = called(monkeypatch, "deploy.pack.making.make_pack", pack, [*arguments, "--seed", "7"])
    assert made.args == ("v", "t", "e", "o")
    assert (made.kwargs["space_text"], made.kwargs["split"], made.kwargs["options"].seed) == ("w", "val", 7)


def test_what_is_served_may_have_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("app", "connections", "on_ray"):
        monkeypatch.setitem(sys.modules, f"ray_atr.deploy.serve.{module}", MagicMock())
    opened, listening = MagicMock(), MagicMock()
    replace_work(monkeypatch, {"deploy.index.current.open_current": opened, "cli.serve.listening": listening})
    arguments = ["i", "j", "--checkpoint", "c", "--audio", "a", "--port", "8123", "--host", "::1"]
    serve.run([*arguments, "--most-waiting", "9"], "command")
    assert opened.call_args.args == (("i", "j"),)
    assert opened.call_args.kwargs == {"checkpoint": "c", "audio": "a"}
    assert listening.call_args.args == ("::1", 8123)
    app = sys.modules["ray_atr.deploy.serve.app"]
    assert app.create_app.call_args.kwargs["limits"].most_waiting == 9
    serve.run([*arguments, "--ray", "--replicas", "2"], "command")
    on_ray = sys.modules["ray_atr.deploy.serve.on_ray"]
    asked = on_ray.RayServer.call_args.kwargs
    assert (asked["checkpoint"], asked["audio"], asked["port"], asked["replicas"]) == ("c", "a", 8123, 2)


def test_a_sample_of_a_split_is_translated_back_and_compared_by_an_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = SimpleNamespace(languages=["eng", "fra"], name="set")
    package, similarity = "workshop.importing.translation", Mock()
    work = {"cli.translate.read_manifest": lambda folder: manifest, f"{package}.Translator": Mock()}
    replace_work(monkeypatch, {**work, f"{package}.embedding_similarity": similarity})
    arguments = ["check", "--data", "d", "--model", "m", "--split", "val", "--samples", "9", "--embedder", "e"]
    checked = called(monkeypatch, f"{package}.back_translate", translate, arguments)
    assert similarity.call_args.args == ("e",)
    assert (checked.args[0], checked.args[1], checked.args[3]) == (manifest, "val", ["fra"])
    assert (checked.kwargs["samples"], checked.kwargs["similarity"]) == (9, similarity.return_value)
    with pytest.raises(ValueError, match="--samples: got 0; allowed 1 or more"):
        translate.run(["check", "--data", "d", "--model", "m", "--samples", "0"], "command")


def test_an_import_takes_captions_of_further_languages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments = ["folder", "--source", str(tmp_path), "--table", "t.csv", "--out", "o", "--captions", "fra=f.csv"]
    imported = called(monkeypatch, "cli.prepare.import_data_set", prepare, arguments)
    assert imported.args[1] == "o"
    assert imported.kwargs["captions"] == ("fra=f.csv",)


def test_what_is_written_beside_an_evaluation_is_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated, task = Mock(), object()
    ran, card, calibrate = Mock(return_value=evaluated), Mock(), Mock()
    find, score = Mock(return_value=[task]), Mock()
    work = {
        "common.storage.require_writable": Mock(),
        "evaluation.checkpoints.find_checkpoint": Mock(),
        "evaluation.run.evaluate": ran,
        "evaluation.card.write_card": card,
        "evaluation.calibrate.calibrate": calibrate,
        "evaluation.mteb_scoring.find_tasks": find,
        "evaluation.mteb_scoring.score_tasks": score,
        "cli.evaluate.print_evaluation": Mock(),
        "cli.evaluate.print_calibration": Mock(),
        "cli.evaluate.print_tasks": Mock(),
    }
    replace_work(monkeypatch, work)
    given = ["--checkpoint", "c", "d", "--baseline", "b", "--level", "0.9", "--encoders", "3"]
    evaluate.run(given, "command")
    assert ran.call_args.args[0] == ("c", "d")
    assert (ran.call_args.kwargs["baseline"], ran.call_args.kwargs["out"]) == (("b",), None)
    assert (ran.call_args.args[1].level, ran.call_args.kwargs["encoding"].encoders) == (0.9, 3)
    assert not any(written.called for written in (card, calibrate, find, score))
    shares = ["--calibrate", "--prior", "0.2", "--false-nothing", "0.1"]
    evaluate.run([*given, "--trec", "--card", *shares, "--mteb", "ESC50", "--out", "o"], "command")
    assert ran.call_args.kwargs["out"] == "o"
    assert ran.call_args.args[1].trec
    assert card.call_args.args == (evaluated,)
    assert calibrate.call_args.kwargs == {"prior": 0.2, "false_nothing": 0.1}
    assert find.call_args.args[0] == ("ESC50",)
    assert score.call_args.args == (evaluated, [task])


def test_an_export_and_a_report_are_where_and_what_they_are_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["c", "--to", "clap", "--out", "o", "--most-clips", "9"]
    exported = called(monkeypatch, "deploy.export.exporting.export", export, arguments)
    assert exported.args[:3] == ("c", "clap", "o")
    assert exported.args[3].most_clips == 9
    for option, figures in (("--no-figures", False), ("--figures", True)):
        made = called(monkeypatch, "evaluation.report.write_report", report, ["r", "--out", "o", option])
        assert (made.kwargs["out"], made.kwargs["figures"]) == ("o", figures)


@pytest.mark.parametrize(
    ("command", "words", "option"),
    [
        (evaluate, ["--checkpoint"], "--checkpoint"),
        (evaluate, ["--checkpoint", "--card"], "--checkpoint"),
        (evaluate, ["--checkpoint", "c", "--baseline"], "--baseline"),
        (evaluate, ["--checkpoint", "c", "--mteb", "--card"], "--mteb"),
        (evaluate, ["--checkpoint", "c", "--clips", "--card"], "--clips"),
        (prepare, ["join", "--sets", "a", "b", "--out", "o", "--leave-out"], "--leave-out"),
        (sweep, ["--space", "seed=grid(0)", "--maximize"], "--maximize"),
        (prepare, ["folder", "--source", "s", "--out", "o", "--captions"], "--captions"),
    ],
)
def test_an_option_without_its_values_is_refused(command: Any, words: list[str], option: str) -> None:
    """`--baseline $RUNS` compared with nothing if the variable was not set."""
    with pytest.raises(ValueError, match=f"^{option}: got 'nothing'; allowed one value or more$"):
        command.run(words, "command")


@pytest.mark.parametrize("option", ["--prior", "--false-nothing"])
@pytest.mark.parametrize("more", [["0.2"], ["0", "--calibrate"], ["1", "--calibrate"]])
def test_a_share_of_a_calibration_needs_one_and_is_neither_0_nor_1(option: str, more: list[str]) -> None:
    with pytest.raises(ValueError, match=f"{option}: got .*with --calibrate"):
        evaluate.run(["--checkpoint", "c", option, *more], "command")


def test_an_audit_is_made_as_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["d", "--out", "o", "--checkpoint", "c", "--rate", "0.3", "--listen", "20", "--cross-fit.seed", "4"]
    made = called(monkeypatch, "workshop.audit.run.audit_data_set", audit, arguments)
    assert made.args[:3] == ("d", "c", "o")
    assert (made.args[3].rate, made.args[3].listen, made.kwargs["cross_fit"].seed) == (0.3, 20, 4)


@pytest.mark.parametrize("option", ["apply", "keep", "estimate"])
def test_a_finished_audit_is_used_as_it_is_said(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    package = "workshop.audit"
    function = {
        "apply": "decisions.apply_decisions",
        "keep": "decisions.keep_certified",
        "estimate": "answers.estimate",
    }
    value = "0.2" if option == "keep" else "file"
    used = called(monkeypatch, f"{package}.{function[option]}", audit, ["a", "--out", "o", f"--{option}", value])
    assert [str(given) for given in used.args] == ["a", value, "o"]
    for more in (["--checkpoint", "c"], ["--rate", "0.2"], ["--cross-fit.seed", "3"], ["--encoders", "2"]):
        with pytest.raises(ValueError, match=f"--{option}: got .*allowed --out alone beside it"):
            audit.run(["a", "--out", "o", f"--{option}", value, *more], "command")
    with pytest.raises(ValueError, match="one of them at a time"):
        audit.run(["a", "--out", "o", "--apply", "file", "--estimate", "file", "--keep", "0.1"], "command")


@pytest.mark.parametrize(
    ("command", "words", "work"),
    [
        (audit, ["d", "--out", "o"], "workshop.audit.run.audit_data_set"),
        (evaluate, ["--checkpoint", "c"], "evaluation.run.evaluate"),
    ],
)
def test_a_long_line_is_not_broken_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: Any, words: list[str], work: str
) -> None:
    line = "warning: " + "word " * 60 + "end"

    def worked(*_: object, echo: Callable[[str], None], **__: object) -> None:
        echo(line)
        raise CalledError

    replace_work(monkeypatch, {work: worked})
    with pytest.raises(CalledError):
        command.run(words, "command")
    assert line in capsys.readouterr().out.splitlines()


def values(points: list[Any], path: str) -> list[Any]:
    return list(dict.fromkeys(point[path] for point in points if path in point))


def test_a_comparison_varies_what_it_is_given() -> None:
    given: dict[str, Any] = {
        "neighbours": (2, 3),
        "injection_ratio": (0.1,),
        "prototypes": (8, 16),
        "refresh_every_epochs": (0, 2),
        "refresh_lag": (1,),
        "lambda_fine": (0.3,),
        "lambda_coarse": (0.0, 0.4),
    }
    points = KnowledgeSweep(**given).points()
    assert {name: tuple(values(points, f"objective.knowledge.{name}")) for name in given} == given
    assert len(points) == 1 + 16
    assert values(ObjectivesSweep(noise=(0.1, 0.3)).points(), "data.noise.ratio") == [0.1, 0.3]
    transport = TransportSweep(masses=("0.3", "auto"), epsilons=(0.1, 0.2), noise=(0.5,)).points()
    assert values(transport, "objective.pair.transport_mass") == [0.3, "auto"]
    assert values(transport, "objective.pair.epsilon") == [0.1, 0.2]
    assert values(transport, "data.noise.ratio") == [0.5]


def test_a_search_draws_by_its_seed_and_a_sweep_resumes_with_the_same_code_where_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space = ("train.learning_rate=uniform(0.1,0.2)",)
    options = SpaceOptions(space=space, search="random", trials=2, search_seed=5)
    plan = plan_search(options, Experiment())
    assert (plan.search.seed, plan.num_points, plan.hours, plan.scheduler) == (5, 2, None, "none")
    raced = SpaceOptions(
        space=("train.learning_rate=grid(0.1,0.2)",), seeds=(0, 1), hours=1.5, scheduler="race", spend_spared=True
    )
    plan = plan_search(raced, Experiment())
    assert (plan.num_points, plan.hours, plan.scheduler, plan.spends_spared) == (None, 1.5, "race", True)
    opened = Mock(side_effect=CalledError)
    replace_work(monkeypatch, {"cli.running.open_run": opened})
    for same_code in (True, False):
        with pytest.raises(CalledError):
            run_plan("sweep", SweepOptions(resume="r", same_code=same_code), {}, Mock(), {}, echo=print)
        assert opened.call_args == (("r", "sweep"), {"same_code": same_code})


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (index, ["query", "i", "--like", "f.wav", "--or-nothing"], "--like: .*allowed no --at-least"),
        (index, ["query", "i", "--like", "f.wav", "--at-least", "0.5"], "--like: .*allowed no --at-least"),
        (index, ["query", "i", "--like", "f.wav", "--language", "en"], "--like: .*allowed no --at-least"),
        (serve, ["i", "--port", "0"], "--port: got 0; allowed 1 to 65535"),
        (serve, ["i", "--port", "65536"], "--port: got 65536; allowed 1 to 65535"),
        (serve, ["i", "--replicas", "2"], "--replicas: got 2; allowed 1 without --ray"),
        (serve, ["i", "--ray", "--replicas", "0"], "--replicas: got 0; allowed at least 1"),
        (cache, ["--unused-days", "3"], "--unused-days: got 3.0; allowed nothing without --prune"),
        (sweep, ["noise", "--retry-failed"], "--retry-failed: got 'true'; allowed only with --resume"),
        (sweep, ["noise", "--same-code"], "--same-code: got 'true'; allowed only with --resume"),
        (sweep, ["noise", "--estimate", "--resume", "r"], "--estimate: got 'true'; allowed only without --resume"),
        (export, ["c", "--to", "clap", "--int8-text"], "--int8-text: got '--to clap'; allowed --to onnx"),
    ],
)
def test_options_that_do_not_go_together_are_refused(command: Any, arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        command.run(arguments, "command")


def test_a_goal_is_given_once_and_what_a_run_folder_holds_is_not_given_again() -> None:
    metric, space = "text_to_audio/trained/recall_at_1", ("train.learning_rate=uniform(0.1,0.2)",)
    twice = SpaceOptions(space=space, search="random", trials=2, maximize=(metric,), minimize=(metric,))
    with pytest.raises(ValueError, match=r"--maximize/--minimize: got .*allowed each metric once"):
        plan_search(twice, Experiment())
    for given in ({"config": "c.yaml"}, {"recipe": "atri"}):
        resumed = Mock(info={"recipe": "quickstart"}, path="r")
        with pytest.raises(ValueError, match=f"--{next(iter(given))}: got .*with --resume"):
            planned(SweepOptions(resume="r", **given), {}, Mock(), {}, resumed)
    with pytest.raises(ValueError, match="--out: got None; allowed a folder, with --tune"):
        CorrespondenceSweep(tune=2).before({})
    with pytest.raises(ValueError, match="--tune: got -1; allowed 0 or more trials"):
        CorrespondenceSweep(tune=-1).before({})


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train", ["--out"]),
        ("train", ["--resume"]),
        ("sweep noise", ["--out"]),
        ("sweep noise", ["--resume"]),
        ("evaluate", ["--checkpoint", "c", "--out"]),
        ("index", ["build", "--checkpoint", "c", "--audio", "a", "--out"]),
        ("prepare", ["folder", "--source", "s", "--out"]),
        ("report", ["runs/one", "--out"]),
    ],
)
def test_a_submitted_job_does_not_write_where_ray_deletes(
    command: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "working_dir_files" / "_ray_pkg_0"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("RAY_JOB_ID", "01000000")
    with pytest.raises(SystemExit):
        main(*command.split(), arguments=[*words, "results"])
    allowed = "an absolute path or a URL in a submitted job, whose working directory"
    assert f"error: {words[-1]}: got 'results'; allowed {allowed}" in capsys.readouterr().err
    assert not list(copy.iterdir())


@pytest.mark.parametrize("out", ["/results", "~/results", "s3://bucket/results"])
def test_a_submitted_job_writes_where_it_stays(out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "working_dir_files" / "_ray_pkg_0"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("RAY_JOB_ID", "01000000")
    assert called(monkeypatch, "evaluation.run.evaluate", evaluate, ["--checkpoint", "c", "--out", out]).kwargs


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--out="], "--out: got ''; allowed a folder or a URL"),
        (["--resume", ""], "--resume: got ''; allowed a folder or a URL"),
        (["--recipe="], "--recipe: got ''; allowed a recipe that --help-settings lists"),
        (["--out", "~nobody-of-this-name/x"], "~nobody-of-this-name/x: no home folder is known for its ~"),
        (["--config", "~nobody-of-this-name/x"], "~nobody-of-this-name/x: no home folder is known for its ~"),
    ],
)
def test_a_variable_that_is_unset_and_a_home_that_is_not_there_are_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main("train", arguments=arguments)
    assert exit_.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")
