"""`ray-atr`: its commands, their help, configuration files, and the installed package."""

from __future__ import annotations

import contextlib
import re
import resource
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock, Mock

import pytest

import ray_atr
from ray_atr.cli import main
from ray_atr.cli.commands import COMMANDS
from ray_atr.cli.experiment_options import ExperimentOptions, SweepOptions
from ray_atr.cli.pack import PackCommand
from ray_atr.cli.parse import declared_settings, parse_with_settings, read_config
from ray_atr.cli.running import _folder_of, _run, command_line, run_plan, start_of
from ray_atr.cli.sweep import COMMAND_OF, COMPARISONS
from ray_atr.cli.train import TrainOptions
from ray_atr.common.override import flatten, override
from ray_atr.common.progress import silent
from ray_atr.common.storage import write_json
from ray_atr.training.recipes import RECIPES
from ray_atr.workshop.importing.sources import SOURCES
from tests.support.commands import replace_work
from tests.support.every_setting import every_setting

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "ray", "transformers", "mlflow", "pandas", "matplotlib")
HELPS = [[], *([name] for name in COMMANDS), ["sweep", "noise"], ["sweep", "knowledge"], ["prepare", "esc50"]]


def test_help_is_printed_at_once() -> None:
    """All of them in one process, in the time that each may take: what it imports for one is no more than for all."""
    program = f"""
import contextlib, io, sys
from ray_atr.cli import main
for words in {HELPS}:
    said = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(said):
        main(*words, arguments=["--help"])
    assert "usage: ray-atr" in said.getvalue(), words
    loaded = [name for name in {HEAVY} if name in sys.modules]
    assert not loaded, (words, loaded)
"""
    nothing, _ = computed("")
    seconds, done = computed(program)
    assert done.returncode == 0, done.stderr
    # Seconds of computing, which is what a quiet machine waits; a slow one, which starts Python slowly too, has more.
    assert seconds < max(2, 60 * nothing)


def test_ctrl_c_is_answered_before_anything_is_imported() -> None:
    """`main` answers it: what its own module and `ray_atr` import comes before, as a tenth of a second once did."""
    program = "import sys, ray_atr.cli; print(*{'importlib.metadata', 'pathlib'} & {*sys.modules})"
    _, done = computed(program)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr


@pytest.mark.slow
def test_the_module_is_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ray_atr", "train", "--data.source", "nowhere"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 2
    assert "nowhere: no data set" in done.stderr


def test_a_run_says_how_it_was_started() -> None:
    python = Path(sys.executable).name
    assert command_line(["/env/bin/ray-atr", "train"]) == "ray-atr train"
    assert command_line(["pipelines/train.py", "--seed", "1"]) == f"{python} pipelines/train.py --seed 1"
    assert command_line(["/env/ray_atr/__main__.py", "train"]) == f"{python} -m ray_atr train"
    assert command_line(["mine/__main__.py", "train"]) == f"{python} mine/__main__.py train"


def computed(program: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    """The seconds that a program computes, and what it said."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=240)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done


MISTAKES = {
    "train --train.lerning_rate 1": r"train.lerning_rate: no such setting.*did you mean learning_rate\?",
    "train --data.source nowhere": "nowhere: no data set",
    "sweep noise --recipe audiocaps_resnet38_bert_m_ltm": "data/audiocaps: no data set",
    "sweep --space data.noise.ratio=grid(0,.2) --data.source nowhere": "nowhere: no data set",
}


@pytest.mark.slow
def test_a_mistake_is_named_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    """All of them in one process."""
    program = f"""
import sys
from ray_atr.cli import main
for words in {list(MISTAKES)}:
    try:
        main(arguments=words.split())
    except SystemExit as end:
        assert end.code == 2, words
    loaded = [name for name in {HEAVY} if name in sys.modules]
    assert not loaded, (words, loaded)
    print("end of what is said", file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    for expected, said in zip(MISTAKES.values(), done.stderr.split("end of what is said"), strict=False):
        assert re.search(f"error: .*{expected}", said), said
    assert not done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--objectiv", "--objectiv: no such option here.*did you mean --objective?"),
        ("--noise", "--noise: no such option here.*it is an option of ray-atr sweep noise"),
        ("--seeds 0 1", "--seeds: no such option here.*did you mean --seed?"),
        ("--retry_failed", "--retry-failed: no such option here; allowed --recipe, .*option of ray-atr sweep"),
        # Like no option and no setting.
        ("--colours 0 1", "--colours: no such option here; allowed --recipe, .* and settings"),
    ],
)
def test_a_misspelt_option_is_named(typed: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_with_settings(ExperimentOptions, [*typed.split(), "1"], "ray-atr train", COMMAND_OF)


def test_a_misspelt_option_of_a_part_is_named() -> None:
    """It was taken for a setting of the training, which `--method both` has none of."""
    given = ["--space", "a", "--captions", "b", "--text", "c", "--out", "d", "--metod", "audio"]
    with pytest.raises(ValueError, match=r"--metod: no such option here.*did you mean --method"):
        parse_with_settings(PackCommand, given, "ray-atr pack")


def test_every_setting_is_found_in_the_source() -> None:
    names, whole = declared_settings()
    paths = {one.path for _, one in every_setting(RECIPES["quickstart"]())}
    assert len(paths) > 100
    assert {part for path in paths for part in path.split(".")} <= names
    assert set(whole) == {path.partition(".")[0] for path in paths}


def test_ctrl_c_while_the_command_is_imported_is_one_line() -> None:
    program = """
import sys
class Interrupted:
    def find_spec(self, name, *rest):
        if name == "tyro":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from ray_atr.cli import main
main("train")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=240)
    assert (done.returncode, done.stderr) == (130, "\ninterrupted\n")


SUBCOMMANDS = [
    [],
    *([name] for name in COMMANDS),
    *(["prepare", name] for name in (*SOURCES, "vectors", "join", "check")),
    *(["sweep", name] for name in COMPARISONS),
    *(["translate", name] for name in ("fill", "check")),
]


@pytest.mark.parametrize("words", SUBCOMMANDS, ids=" ".join)
def test_help_shows_no_empty_default(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        main(*words, arguments=["--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "usage: ray-atr" in shown
    assert not re.search(r"\(default: ?(None|''|\(\))? ?\)", shown)
    assert "{None}" not in shown


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_help_tells_how_settings_are_given(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(command, arguments=["--help"])
    shown = capsys.readouterr().out
    assert "--dotted.path VALUE" in shown
    assert "--help-settings" in shown


def test_help_settings_lists_settings_and_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main("train", arguments=["--help-settings"])
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    assert "--train.epochs" in shown
    assert "()" not in shown, "an empty default is shown as nothing, a list as it is typed"
    assert all(name in shown for name in RECIPES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["swep"], "error: command: got 'swep'; allowed one of prepare, .*did you mean sweep\\?"),
        (["index", "buidl"], "error: command: got 'buidl'; allowed one of build, update, query .did you mean build\\?"),
        (["index", "--source", "x"], "error: command: got none; allowed one of build, update, query$"),
        (["index"], "error: command: got none; allowed one of build, update, query$"),
    ],
)
def test_an_unknown_command_names_those_that_there_are(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments=arguments)
    assert exit_.value.code == 2
    assert re.match(message, capsys.readouterr().err.strip())


@pytest.mark.parametrize("figures", [True, False])
def test_a_training_draws_figures_as_it_is_asked(monkeypatch: pytest.MonkeyPatch, figures: bool) -> None:
    taken = Mock()
    replace_work(monkeypatch, {f"cli.running.{name}": getattr(taken, name) for name in ("planned", "_create", "_run")})
    taken.planned.return_value = (None, None)
    taken._create.return_value = MagicMock()
    run_plan("train", TrainOptions(figures=figures), {}, Mock(), {}, echo=print)
    assert taken._run.call_args.args[3].figures is figures


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_run_is_sent_to_mlflow_where_it_is_set_to_be(monkeypatch: pytest.MonkeyPatch, is_sent: bool) -> None:
    taken = MagicMock()
    names = "Tracker", "sweep", "_finish", "describe_plan", "conditions_of"
    replace_work(monkeypatch, {f"cli.running.{name}": getattr(taken, name) for name in names})
    experiment = override(RECIPES["quickstart"](), {"tracking.mlflow": is_sent})
    options = SweepOptions(quiet=True, figures=False, concurrency=3, retry_failed=is_sent, ray="never")
    _run(MagicMock(), experiment, Mock(), options, is_new=True, echo=print)
    assert taken.Tracker.called is is_sent
    assert (taken._finish.call_args.args[-1] is not None) is is_sent
    asked = taken.sweep.call_args.kwargs
    assert (asked["concurrency"], asked["retry_failed"], asked["use_ray"]) == (3, is_sent, False)


def test_a_new_run_is_in_the_folder_that_is_given() -> None:
    assert _folder_of("train", TrainOptions(out="here")) == "here"
    assert "train-" in str(_folder_of("train", TrainOptions()))
    assert TrainOptions(quiet=True).write is silent
    assert TrainOptions().write is print


def test_a_shell_completes_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments=["--tyro-print-completion", "bash"])
    assert exit_.value.code in (0, None)
    script = capsys.readouterr().out
    assert all(word in script for word in (*COMMANDS, "--retry-failed", "noise", "esc50"))
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    with pytest.raises(SystemExit) as exit_:
        main(arguments=["--tyro-print-completion", "zsh"])
    assert exit_.value.code in (0, None)
    assert "--retry-failed" in capsys.readouterr().out


CONFIGS = {
    "nested.yaml": "objective: m_ltm_pot\ntrain:\n  epochs: 3\n  learning_rate: 1e-3\ndata:\n  languages: [eng, fra]\n",
    "flat.yml": "objective: m_ltm_pot\ntrain.epochs: 3\ntrain.learning_rate: 0.001\ndata.languages: eng,fra\n",
    "nested.json": '{"objective": "m_ltm_pot", "train": {"epochs": 3, "learning_rate": 1e-3}, "data.languages": ["eng", "fra"]}',
}
CONFIGS["of_windows.json"] = "\ufeff" + CONFIGS["nested.json"]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_is_yaml_or_json(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(CONFIGS[name], encoding="utf-8")
    values = {
        "objective": "m_ltm_pot",
        "train.epochs": 3,
        "train.learning_rate": 1e-3,
        "data.languages": ("eng", "fra"),
    }
    found = start_of(ExperimentOptions(config=str(tmp_path / name)))
    assert found == override(RECIPES["quickstart"](), values)


def test_a_run_folders_experiment_is_a_configuration(tmp_path: Path) -> None:
    experiment = override(RECIPES["clotho_ced_sonar_kcl"](), {"train.epochs": 3})
    write_json(tmp_path / "experiment.json", flatten(experiment))
    assert "xxh3:" in (tmp_path / "experiment.json").read_text()
    assert start_of(ExperimentOptions(config=str(tmp_path / "experiment.json"))) == experiment


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("train:\n  epoch: 3\n", "train.epoch: no such setting"),
        ("train: {epochs: 0}\n", "train.epochs: got 0; allowed [1, inf)"),
        ("train: [1\n", "not YAML or JSON"),
        ("- 1\n", "allowed settings by name"),
        ("train.epochs: 3\ntrain: {epochs: 4}\n", "train.epochs occurs twice"),
        ("train.epochs: 3\ntrain.epochs: 4\n", "train.epochs occurs twice"),
        ("train:\n  epochs: 3\ntrain:\n  batch_size: 8\n", "train occurs twice"),
        ("train:\n  epochs: 3\n  epochs: 4\n", "epochs occurs twice"),
        ("\udce9: 1\n", "not UTF-8 (byte 0xe9 at position 0)"),
    ],
)
def test_a_mistake_in_a_configuration_names_the_file(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "config.yaml").write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ValueError, match=r"--config: .*config\.yaml: ") as error:
        start_of(ExperimentOptions(config=str(tmp_path / "config.yaml")))
    assert words in str(error.value)


def test_a_repeated_name_in_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"train": {"epochs": 3}, "train": {"batch_size": 8}}')
    with pytest.raises(ValueError, match=r"--config: .*config\.json: train occurs twice"):
        read_config(str(tmp_path / "config.json"))


def test_a_yaml_name_beside_a_merge_takes_its_place(tmp_path: Path) -> None:
    content = "a: {b: &b {x: 1, y: 2}, c: &c {<<: *b, x: 3}}\nd: {<<: *c, x: 4}\n"
    (tmp_path / "config.yaml").write_text(content)
    found = read_config(str(tmp_path / "config.yaml"))
    assert found == {"a.b.x": 1, "a.b.y": 2, "a.c.x": 3, "a.c.y": 2, "d.x": 4, "d.y": 2}


def test_a_configuration_that_is_absent_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.yaml: no such file"):
        read_config(str(tmp_path / "none.yaml"))


def test_a_setting_given_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main("train", arguments=["--train.epochs", "3", "--train.epochs=4"])
    assert "--train.epochs: given twice, '3' and '4'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("sweep", ["--space", "train.epochs=grid(1,2)", "--space", "train.learning_rate=grid(.1)"]),
        ("sweep noise", ["--seeds", "0", "--seeds=1"]),
        ("report", ["runs/x", "--figures", "--no-figures"]),
    ],
)
def test_an_option_given_twice_is_refused(command: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Its first values would be lost without a word."""
    with pytest.raises(SystemExit):
        main(*command.split(), arguments=words)
    assert re.fullmatch(
        r"error: --(space|seeds|figures): given 2 times; allowed once, with all its values behind it\n",
        capsys.readouterr().err,
    )


def test_the_package_offers_its_public_names() -> None:
    assert all(getattr(ray_atr, name) is not None for name in ray_atr.__all__)
    assert ray_atr.__version__.count(".") == 2
    assert ray_atr.objectives.preset("contrastive") is not None
    with pytest.raises(AttributeError, match=r"'recall_at_k'; recalls are in what ray_atr\.retrieval_metrics"):
        _ = ray_atr.recall_at_k
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = ray_atr.nothing
    with pytest.raises(AttributeError, match=r"'trian' \(did you mean train\?\)"):
        _ = ray_atr.trian
