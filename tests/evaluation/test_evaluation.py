"""From saved retrievers to a folder of results: numbers, comparison, files, and the mistakes a user can make."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
import soundfile
import torch

import ray_atr.evaluation.run as evaluation_run
from ray_atr.common.override import override
from ray_atr.common.ranking import RankingSettings
from ray_atr.common.storage import StorageError, read_json, write_json
from ray_atr.data.caption_sample import CaptionSample
from ray_atr.data.feature_cache import ensure_features, find_features
from ray_atr.data.schema import Clip
from ray_atr.data.shards import read_manifest, write_clips
from ray_atr.evaluation.checkpoints import find_checkpoint
from ray_atr.evaluation.encoding import TEXTS_IN_A_JOB, TEXTS_TOGETHER, EncodingSource, encode, token_similarities
from ray_atr.evaluation.eval_split import listen, playable, read_eval_split
from ray_atr.evaluation.options import Encoding, EvaluationOptions
from ray_atr.evaluation.report.evaluation_content import ZeroShot
from ray_atr.evaluation.report.evaluation_page import Page
from ray_atr.evaluation.run import Evaluated, evaluate, tracked_evaluation
from ray_atr.metrics import evaluate_languages
from ray_atr.metrics.metric import DIRECTIONS, of_part
from ray_atr.models.card import CARD_FILE
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.models.text import train_tokenizer
from ray_atr.objectives import LearnedSettings
from ray_atr.sweep.tracking.store import ARTIFACTS
from ray_atr.training.experiment import Experiment
from ray_atr.training.run_folder import RunFolder
from ray_atr.workshop.importing.import_options import Join
from ray_atr.workshop.importing.join import join_data_sets
from tests.support.caption_reads import counted_reads
from tests.support.commands import replace_work
from tests.support.denied import deny
from tests.support.scripts import run_pipeline
from tests.support.spies import spied
from tests.support.stores import watched_store
from tests.support.tiny import make_data, tiny, tone, tone_clip

pytestmark = pytest.mark.usefixtures("own_home")

HERE = Encoding(ray="never", batch_size=3)
CLASSES = ("dog", "cat", "rain", "siren")
quiet = {"encoding": HERE, "echo": lambda message: None}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A data set of tones, one of ESC-50's classes, and runs: two seeds, another learning rate, a sweep of two trials."""
    root = tmp_path_factory.mktemp("world")
    # Several shards a split, as real data sets have.
    tones = [Clip(**row) for row in _clips(make_data(root / "one_shard"))]
    data = Path(write_clips(root / "tones", tones, name="tones", licence="none", clips_per_shard=3).folder)
    clips = [
        tone_clip(split, index, {"eng": [f"This is a sound of a {CLASSES[index % 4]}."]}, CLASSES[index % 4])
        for split in ("train", "test")
        for index in range(12)
    ]
    write_clips(root / "classes", clips, name="classes", licence="none")
    experiment = tiny(data, data__test_split="test")
    seen = [clip for clip in tones if clip.split == "train"]
    seen_captions = CaptionSample.from_clips(
        [clip.clip_id for clip in seen], lambda rows: [seen[row].captions["eng"] for row in rows]
    )
    tokenizer = train_tokenizer(["a low tone, number 1", "un son grave, numéro 2"], 200)
    for name, points, seed in (
        ("seed0", [{"seed": 0}], 0),
        ("seed1", [{"seed": 1}], 1),
        ("rate", [{"train.learning_rate": 0.5}], 2),
        ("sweep", [{"seed": 0}, {"seed": 1}], 3),
        ("unfinished", [{"seed": 0}], None),
        ("removed", [{"seed": 0}], None),
    ):
        run = RunFolder.create(root / "runs" / name, experiment, {"name": name})
        for point in points:
            trial = run.add_trial(point)
            if seed is not None:
                model = build_retriever(experiment.model, tokenizer=tokenizer, seed=seed)
                model.trained_captions = seen_captions
                model.save_pretrained(Path(str(trial.folder)) / "best")
            elif name == "removed":
                write_json(trial.folder / "result.json", {})
    loose = next((root / "runs" / "seed0" / "trials").iterdir()) / "best"
    Retriever.from_pretrained(loose).save_pretrained(root / "loose")
    return {"root": root, "data": data, "classes": root / "classes", "runs": root / "runs", "loose": root / "loose"}


def options(**changes: Any) -> EvaluationOptions:
    """Without pictures, which take most of the time."""
    return dataclasses.replace(EvaluationOptions(draws=20, mlflow=False, figures=False), **changes)


@pytest.fixture(scope="module")
def alone(world: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Evaluated]:
    """The evaluations of three runs by themselves."""
    folder = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ATR_HOME", str(folder / "home"))
        return {
            name: evaluate([world["runs"] / name], options(), out=folder / name, **quiet)
            for name in ("seed0", "seed1", "rate")
        }


@pytest.mark.slow
def test_results_are_those_of_the_retriever_and_lie_in_one_folder(world: dict[str, Path], tmp_path: Path) -> None:
    got = evaluate([world["runs"] / "seed0"], options(figures=True), out=tmp_path / "out", **quiet)
    assert sorted(path.name for path in tmp_path.glob("out/*")) == [
        "evaluation.html",
        "evaluation.json",
        "evaluation.md",
        "scores-0.npz",
    ]
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == ["out"]
    content = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    retriever = Retriever.from_pretrained(world["loose"])
    rows = [clip for clip in _clips(world["data"]) if clip["split"] == "test"]
    audio = retriever.encode_audio([clip["audio"] for clip in rows])
    text = {code: retriever.encode_text([clip["captions"][code][0] for clip in rows], code) for code in ("eng", "fra")}
    expected = evaluate_languages(audio, text, range(len(rows)), beside=("plan",), trained=("eng",))
    # The cache's and this test's features differ by rounding.
    assert {name: content["metrics"][name] for name in expected} == pytest.approx(expected, abs=2e-3)
    # The labels are in none of the tables of names, so that only English asks for them.
    assert "classification/eng/accuracy" in content["metrics"]
    assert "classification/fra/accuracy" not in content["metrics"]
    assert any("no names in fra" in note for note in content["notes"])
    html = (tmp_path / "out" / "evaluation.html").read_text()
    assert html.count("<img") == 3
    assert html.count("<audio") == 8 * 5
    assert content["facts"]["trained on"] == "tones, the same data set, split train"
    assert content["facts"]["objective"] == "english x contrastive"
    assert got.mlflow_run is None


@pytest.mark.slow
def test_a_joined_set_is_evaluated_within_each_of_its_sets_too(
    world: dict[str, Path], alone: dict[str, Evaluated], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As each of them by itself; one has no French captions."""
    monkeypatch.setenv("RAY_ATR_HOME", str(tmp_path / "home"))
    others = [tone_clip("test", 50 + n, {"eng": [f"other {n}"]}) for n in range(6)]
    write_clips(tmp_path / "others", others, name="others", licence="none")
    sets = (str(world["data"]), str(tmp_path / "others"))
    join_data_sets(Join(sets=sets, ray="never", recordings="bytes", leaks="keep"), tmp_path / "joined")
    page = evaluate(
        [world["runs"] / "seed0"], options(data=str(tmp_path / "joined"), split="test"), out=tmp_path / "out", **quiet
    ).page
    by_itself = evaluate(
        [world["runs"] / "seed0"], options(data=sets[1], split="test"), out=tmp_path / "other", **quiet
    ).page
    for name, expected in (("tones", alone["seed0"].page), ("others", by_itself)):
        of_set = {
            of_part(metric, name): value for metric, value in expected.metrics.items() if metric.task in DIRECTIONS
        }
        assert {metric for metric in page.metrics if metric.task.endswith(f"_in_{name}")} == of_set.keys()
        assert {metric: page.metrics[metric] for metric in of_set} == pytest.approx(of_set, abs=2e-3)
        assert {metric for metric in of_set if metric.name == "recall_at_1"} <= page.intervals.keys()
    assert not any(metric.language == "fra" for metric in page.metrics if metric.task.endswith("_in_others"))
    markdown = (tmp_path / "out" / "evaluation.md").read_text()
    assert "Text to audio, within tones" in markdown
    assert "Audio to text, within others" in markdown
    assert not any("_in_" in metric.task for metric in by_itself.metrics)


@pytest.mark.slow
def test_seeds_and_baseline(world: dict[str, Path], alone: dict[str, Evaluated], tmp_path: Path) -> None:
    runs, rate = world["runs"], alone["rate"].folder
    assert alone["rate"].mlflow_run is None
    both = [runs / "seed0", runs / "seed1"]
    got = evaluate(both, options(), baseline=[runs / "rate"], out=tmp_path / "both", **quiet).page
    name = "text_to_audio/mean/map_at_10"
    values = [alone[run].page.metrics[name] for run in ("seed0", "seed1", "rate")]
    assert got.metrics[name] == pytest.approx(np.mean(values[:2]))
    assert got.spreads[name].deviation == pytest.approx(np.std(values[:2], ddof=1))
    assert got.comparison[name].value == pytest.approx(np.mean(values[:2]) - values[2])
    # An earlier evaluation serves as baseline as well as its checkpoint, several seeds of it too.
    stored = evaluate(both, options(), baseline=[rate], out=tmp_path / "stored", **quiet).page
    assert stored.comparison == got.comparison
    itself = evaluate(both, options(), baseline=[tmp_path / "both"], out=tmp_path / "itself", **quiet).page
    assert all(d.value == 0 for d in itself.comparison.values())
    with pytest.raises(ValueError, match=r"baseline: .*split train of tones"):
        evaluate(both, options(split="train"), baseline=[rate], **quiet)
    with pytest.raises(ValueError, match="baseline: got 'an evaluation in eng fra'; allowed one in fra"):
        evaluate([runs / "seed0"], options(languages=("fra",)), baseline=[rate], progress=_no_encoding, **quiet)


def test_a_baseline_that_reads_vectors_is_refused_before_anything_is_encoded(
    world: dict[str, Path], tmp_path: Path
) -> None:
    other = shutil.copytree(world["loose"], tmp_path / "of_vectors") / "retriever.json"
    write_json(other, {**read_json(other), "front_end": {"kind": "vector", "width": 16}})
    with pytest.raises(
        ValueError, match=r"of_vectors.*; allowed one that takes audio for .*tones, which holds no vectors"
    ):
        evaluate([world["runs"] / "seed0"], options(), baseline=[other.parent], progress=_no_encoding, **quiet)


def _no_encoding(*arguments: object) -> None:
    raise AssertionError("encoded before the baseline was refused")


def test_another_data_set_and_classes(world: dict[str, Path], tmp_path: Path) -> None:
    """Trained on the prompts' very words: no zero-shot. Trained on other data: zero-shot. Not known: says so."""

    def page_of(checkpoint: Path, name: str, **changes: Any) -> tuple[Page, str]:
        chosen = options(data=str(world["classes"]), **changes)
        page = evaluate([checkpoint], chosen, out=tmp_path / name, **quiet).page
        (title,) = (table.title for table in page.tables if "lassification" in table.title)
        return page, title

    got, title = page_of(world["loose"], "a")
    assert got.metrics["audio_to_text/eng/recall_at_1"] == got.metrics["classification/eng/accuracy"]
    assert got.facts["queries"].startswith("4 class captions")
    assert "not known" in got.facts["trained on"]
    assert "not known" in title
    crossed, title = page_of(world["runs"] / "seed0", "b")
    assert "trained on tones, evaluated on classes" in crossed.title
    assert any("recordings of both under other ids were not" in warning for warning in crossed.warnings)
    assert title == "Zero-shot classification"
    by_clip, _ = page_of(world["loose"], "c", relevance="clip")
    assert by_clip.facts["queries"].startswith("12 captions")
    own = RunFolder.create(
        tmp_path / "own", tiny(world["classes"], data__languages="eng", data__test_split="test"), {"name": "own"}
    ).add_trial({"seed": 0})
    shutil.copytree(world["loose"], Path(str(own.folder)) / "best")
    assert page_of(tmp_path / "own", "d")[1] == "Text-prompt classification, trained classes"
    assert ZeroShot({}, ["dog", "cat"], [], {"dog"}).title == "Text-prompt classification, 1 of 2 trained classes"


def test_a_retriever_that_learnt_nothing_says_so_first(world: dict[str, Path], tmp_path: Path) -> None:
    model = Retriever.from_pretrained(world["loose"])
    for parameter in (model.audio_projection.weight, model.text_projection.weight):
        parameter.data.zero_()
    model.save_pretrained(tmp_path / "collapsed")
    page = evaluate([tmp_path / "collapsed"], options(data=str(world["data"])), out=tmp_path / "out", **quiet).page
    assert any("learned nothing" in warning for warning in page.warnings)
    assert "learned nothing" in (tmp_path / "out" / "evaluation.md").read_text()


def test_features_are_the_same_from_cache_and_audio_at_any_batch_size(world: dict[str, Path], tmp_path: Path) -> None:
    manifest = read_manifest(world["data"])
    source = EncodingSource(str(world["loose"]), str(world["data"]), "test", str(tmp_path / "features"), batch_size=64)
    asked = [("eng", "a low tone"), ("fra", "un son grave"), ("eng", "a high tone")]
    done: list[tuple[int, int]] = []
    audio, texts = encode(source, asked, HERE, lambda *now: done.append(now))
    assert done[-1] == (11, 11)
    front_end = Retriever.from_pretrained(world["loose"]).audio_tower.front_end
    assert find_features(manifest, front_end, tmp_path / "features") is None
    ensure_features(world["data"], front_end, tmp_path / "features", use_ray=False)
    assert find_features(manifest, front_end, tmp_path / "features") is not None
    from_cache, _ = encode(source, asked, HERE)
    np.testing.assert_array_equal(from_cache, audio)
    in_small_batches, _ = encode(dataclasses.replace(source, batch_size=2), asked, HERE)
    np.testing.assert_allclose(in_small_batches, audio, atol=1e-6)
    of_files = Retriever.from_pretrained(world["loose"]).encode_audio(
        [clip["audio"] for clip in _clips(world["data"]) if clip["split"] == "test"]
    )
    np.testing.assert_allclose(audio, of_files.numpy(), atol=1e-4)  # the cache's float16
    alone = Retriever.from_pretrained(world["loose"]).encode_text(["un son grave"], "fra").numpy()
    np.testing.assert_allclose(texts[1:2], alone, atol=1e-6)


def test_equal_captions_tie_whatever_they_are_embedded_with(world: dict[str, Path], tmp_path: Path) -> None:
    """More of them than are embedded together, with an equal one after each seventh, the last alone; the others get longer."""
    source = EncodingSource(str(world["loose"]), str(world["data"]), "test", str(tmp_path / "features"), batch_size=3)
    longer = [", and again" * (index // TEXTS_TOGETHER) for index in range(4 * TEXTS_TOGETHER + 1)]
    asked = [("eng", f"a tone, number {n}{more}" if n % 8 else "a low tone") for n, more in enumerate(longer)]
    _, texts = encode(source, asked, HERE)
    for rows in (texts, token_similarities(source, asked)):
        assert len({row.tobytes() for row in rows[::8]}) == 1
        assert len({row.tobytes() for row in rows}) == 1 + 4 * TEXTS_TOGETHER * 7 // 8


@pytest.mark.ray
def test_ray_actors_encode_what_this_process_encodes(world: dict[str, Path], tmp_path: Path, ray_session: None) -> None:
    source = EncodingSource(str(world["loose"]), str(world["data"]), "train", str(tmp_path / "features"), batch_size=8)
    asked = [("eng", f"a low tone, number {index}") for index in range(TEXTS_IN_A_JOB + 1)]
    expected = encode(source, asked, HERE)
    got = encode(source, asked, Encoding(encoders=1, cpus_per_encoder=0.5))
    for mine, theirs in zip(expected, got, strict=True):
        np.testing.assert_allclose(theirs, mine, atol=1e-6)


@pytest.mark.slow
def test_a_baseline_and_its_metrics_reach_mlflow(world: dict[str, Path], tmp_path: Path) -> None:
    runs = world["runs"]
    got = evaluate([runs / "seed0"], options(mlflow=True), baseline=[runs / "rate"], **quiet)
    assert got.folder.parent == tmp_path / "home" / "runs"
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{got.folder.parent / 'mlflow.db'}")
    assert got.mlflow_run is not None
    run = client.get_run(got.mlflow_run)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["text_to_audio/fra/map_at_10"] == got.page.metrics["text_to_audio/fra/map_at_10"]
    assert "difference/text_to_audio/mean/map_at_10" in run.data.metrics
    assert run.data.params["split"] == "test"
    assert {file.path for file in client.list_artifacts(got.mlflow_run, "evaluation")} >= {"evaluation/evaluation.html"}


@pytest.mark.slow
def test_what_mlflow_is_told_of_an_evaluation_holds_no_secret(tmp_path: Path) -> None:
    folder = tmp_path / "evaluation"
    folder.mkdir()
    page = Page(title="Evaluation", facts={"data set": "s3://me:hush@store/clips"}, metrics={})
    experiment = override(Experiment(), {"tracking.experiment_name": "mine"})
    with tracked_evaluation(folder, folder, page, experiment, print) as run_id:
        pass
    from mlflow import MlflowClient

    assert run_id is not None
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    run = client.get_run(run_id)
    assert client.get_experiment(run.info.experiment_id).name == "mine"
    assert run.data.params == {"data_set": "s3://***@store/clips"}


@pytest.mark.slow
def test_a_run_whose_files_mlflow_could_not_take_has_failed(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    (tmp_path / ARTIFACTS).touch()
    page, said = Page(title="Evaluation", facts={}, metrics={}), list[str]()
    with tracked_evaluation(tmp_path / "evaluation", tmp_path, page, None, said.append) as run_id:
        assert run_id is None
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
    assert run.info.status == "FAILED"
    assert f"Not a directory: '{tmp_path / ARTIFACTS}" in said[0]
    assert said[0].endswith(f"; results are in {tmp_path / 'evaluation'}")


@pytest.mark.slow
def test_a_disk_that_is_full_at_the_trec_files_leaves_nothing_in_the_way(
    world: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    def evaluated() -> Evaluated:
        return evaluate([world["runs"] / "seed0"], options(mlflow=True, trec=True), out=tmp_path / "out", **quiet)

    with monkeypatch.context() as full:
        full.setattr("ray_atr.evaluation.trec._run", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(OSError, match="No space left"):
            evaluated()
    got = evaluated()
    assert {path.name for path in tmp_path.glob("out/*.trec")} == {
        f"{kind}-{language}.trec" for kind in ("run", "qrels") for language in ("eng", "fra")
    }
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
    assert (run.info.run_id, run.info.status) == (got.mlflow_run, "FINISHED")


def test_mlflow_away_loses_nothing(world: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    said: list[str] = []
    got = evaluate([world["runs"] / "seed0"], options(mlflow=True), encoding=HERE, echo=said.append)
    assert got.mlflow_run is None
    assert (got.folder / "evaluation.html").is_file()
    assert any("MLflow at http://127.0.0.1:9" in line for line in said)


@pytest.mark.parametrize(
    ("checkpoint", "changes", "says"),
    [
        ("runs/nowhere", {}, "checkpoint: got .*nowhere.*; allowed an existing folder"),
        ("tones", {}, "checkpoint: .*a folder with a retriever.json"),
        ("runs/sweep", {}, "one of its 2 trials: trials/seed=0-"),
        ("runs/unfinished", {}, "a trial with a saved retriever; best/ is not there yet"),
        ("runs/removed", {}, "a trial with a saved retriever; best/ was removed since it finished: train it again"),
        ("loose", {}, "data: got ''; allowed a data set's folder"),
        (
            "runs/seed0",
            {"split": "tset"},
            r"split: got 'tset'; allowed splits of tones: train, val, test \(did you mean test",
        ),
        ("runs/seed0", {"languages": ("eng", "jpn")}, "languages: got 'jpn'; allowed languages of tones.*: eng, fra"),
        ("runs/seed0", {"languages": ("eng", "English")}, "did you mean eng"),
        ("runs/seed0", {"data": "nowhere"}, "nowhere: no data set"),
        ("runs/seed0", {"out": "tones"}, "out: .*a new or empty folder"),
        ("runs/seed0", {"baseline": "runs/sweep"}, "baseline: .*one of its 2 trials"),
        ("runs/seed0", {"relevance": "label", "data": "unlabelled"}, "clip, for clips without labels"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(
    world: dict[str, Path], tmp_path: Path, checkpoint: str, changes: dict[str, Any], says: str
) -> None:
    if changes.get("data") == "unlabelled":
        rows = [tone_clip("test", index, {"eng": ["a"]}) for index in range(3)]
        write_clips(tmp_path / "unlabelled", rows, name="unlabelled", licence="none")
        changes = {**changes, "data": str(tmp_path / "unlabelled")}
    out = world["root"] / changes["out"] if "out" in changes else tmp_path / "out"
    baseline = [world["root"] / changes["baseline"]] if "baseline" in changes else []
    settings = {name: value for name, value in changes.items() if name not in ("out", "baseline")}
    with pytest.raises(ValueError, match=says):
        evaluate([world["root"] / checkpoint], options(**settings), baseline=baseline, out=out, **quiet)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "home" / "runs").exists()


@pytest.mark.parametrize("name", ["checkpoints", "baseline"])
def test_one_folder_is_no_list_of_folders(world: dict[str, Path], name: str) -> None:
    given: dict[str, Any] = {"checkpoints": [world["runs"] / "seed0"], name: str(world["runs"] / "rate")}
    with pytest.raises(ValueError, match=f"{name}: got '.*rate'; allowed a list of folders or URLs"):
        evaluate(options=options(), **given)


def test_the_script_says_what_it_found_and_what_was_wrong(
    world: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> object:
        return run_pipeline(
            monkeypatch, "evaluate", *arguments, "--ray", "never", "--no-mlflow", "--no-figures", "--draws", "5"
        )

    seed0, rate, out = str(world["runs"] / "seed0"), str(world["runs"] / "rate"), str(tmp_path / "out")
    assert run("--checkpoint") == 2
    assert capsys.readouterr().err == "error: --checkpoint: got 'nothing'; allowed one value or more\n"
    assert run("--checkpoint", seed0, "--split", "tset") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: split: got 'tset'; allowed splits of tones: train, val, test")
    assert error.count("\n") == 1
    assert run("--checkpoint", seed0, "--baseline", rate, "--trec", "--out", out) == 0
    said = capsys.readouterr().out
    for line in (
        "Text to audio, ranked by plan",
        "against rate: ",
        "†: the interval leaves out zero",
        f"results: {out}",
        f"TREC:    {out}/run-<language>.trec",
    ):
        assert line in said
    assert run("--checkpoint", seed0, "--out", out) == 2
    assert "allowed a new or empty folder; this one holds a finished evaluation" in capsys.readouterr().err
    # A run that was interrupted leaves no folder that looks like a result.
    replace_work(monkeypatch, {"evaluation.run.write_page": Mock(side_effect=KeyboardInterrupt)})
    assert run("--checkpoint", seed0, "--out", str(tmp_path / "cut")) == 130
    assert not [path for path in tmp_path.iterdir() if "cut" in path.name]
    assert "interrupted: the same command starts again" in capsys.readouterr().err


@pytest.mark.slow
def test_an_evaluation_whose_card_cannot_be_written_is_complete_and_says_so(
    world: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Path(shutil.copytree(world["loose"], tmp_path / "model"))
    (model / CARD_FILE).unlink()
    (model / CARD_FILE).mkdir()
    out = tmp_path / "out"
    given = ["--checkpoint", str(model), "--data", str(world["data"]), "--ray", "never", "--card"]
    assert run_pipeline(monkeypatch, "evaluate", *given, "--no-mlflow", "--out", str(out)) == 74
    told = f"the evaluation is complete in {out}; for --card run the command again with a new --out"
    assert told in capsys.readouterr().err
    assert (out / "evaluation.json").is_file()
    # What is refused after the evaluation, as are too few clips for a calibration.
    few = [tone_clip("test", index, {"eng": [f"tone {index}"]}) for index in range(3)]
    write_clips(tmp_path / "few", few, name="few", licence="none")
    given = ["--checkpoint", str(world["loose"]), "--data", str(tmp_path / "few"), "--ray", "never", "--calibrate"]
    assert run_pipeline(monkeypatch, "evaluate", *given, "--no-mlflow", "--out", str(tmp_path / "again")) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: --calibrate: got '3 clips with eng captions of 3 clips'")
    assert f"; the evaluation is complete in {tmp_path}/again; for --calibrate run the command again" in told


@pytest.mark.parametrize(
    ("written", "where"), [(["--out", "out"], ""), (["--card"], "loose"), (["--calibrate"], "loose")]
)
def test_what_cannot_be_written_is_told_before_anything_is_encoded(
    world: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    written: list[str], where: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    is_denied = world["loose"] if where else tmp_path
    # It is replaced from beside it.
    (tmp_path / "out").mkdir()
    deny(monkeypatch, is_denied)
    given = ["--checkpoint", str(world["loose"]), "--data", str(world["data"]), "--ray", "never", *written]
    assert run_pipeline(monkeypatch, "evaluate", *given) == 2
    assert capsys.readouterr().err == f"error: {is_denied}: cannot be written\n"


def test_a_data_set_without_a_test_split_is_evaluated_on_its_validation_split(
    world: dict[str, Path], tmp_path: Path
) -> None:
    clips = [Clip(**row) for row in _clips(world["data"]) if row["split"] != "test"]
    data = str(write_clips(tmp_path / "tones", clips, name="tones", licence="none").folder)
    page = evaluate([world["loose"]], options(data=data), out=tmp_path / "out", **quiet).page
    assert page.facts["split"] == "val"
    with pytest.raises(ValueError, match="split: got 'test'; allowed splits of tones: train, val"):
        evaluate([world["loose"]], options(data=data, split="test"), out=tmp_path / "asked", **quiet)


@pytest.mark.parametrize("is_in_store", [True, False])
def test_training_data_that_is_out_of_reach_is_other_data(
    world: dict[str, Path], tmp_path: Path, is_in_store: bool
) -> None:
    def refuse(request: str, path: str) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    manifest = read_manifest(world["data"])
    with watched_store(refuse) as store:
        source = str(store) if is_in_store else str(tmp_path / "gone")
        with pytest.raises(StorageError if is_in_store else ValueError):
            read_manifest(source)
        trial = RunFolder.create(tmp_path / "run", tiny(source), {"name": "test"}).add_trial({"seed": 0})
        shutil.copytree(world["loose"], Path(str(trial.folder)) / "best")
        checkpoint = find_checkpoint(tmp_path / "run")
        assert not checkpoint.is_trained_on(manifest)
        assert checkpoint.training_data(manifest) is None


def test_the_languages_of_a_warm_start_were_trained_on_too(world: dict[str, Path], tmp_path: Path) -> None:
    """The trial's own scheme may train on English alone."""
    for languages in (("eng", "fra"), ()):
        place = tmp_path / str(len(languages))
        run = RunFolder.create(place, tiny(world["data"], objective__scheme="english"), {"name": "train"})
        retriever = Retriever.from_pretrained(world["loose"])
        retriever.languages = languages
        retriever.save_pretrained(Path(str(run.add_trial({}).folder)) / "best")
        assert find_checkpoint(place).trained_languages == list(languages or ["eng"])


def test_a_data_set_in_the_place_of_the_training_data_is_another(world: dict[str, Path], tmp_path: Path) -> None:
    manifest = read_manifest(world["data"])
    run = RunFolder.create(tmp_path / "run", tiny(str(world["data"])), {"name": "test"})
    shutil.copytree(world["loose"], Path(str(run.add_trial({"seed": 0}).folder)) / "best")
    for digest, is_trained_on in ((manifest.hash, True), (64 * "0", False)):
        run.update_info(data={"name": "data", "hash": digest, "set": manifest.name})
        assert find_checkpoint(tmp_path / "run").is_trained_on(manifest) == is_trained_on


def test_soundscapes_that_a_search_drew_are_the_training_data(world: dict[str, Path], tmp_path: Path) -> None:
    """The run records the soundscapes of its base and of listed values."""
    manifest = dataclasses.replace(read_manifest(world["data"]), name="soundscapes")
    for overrides, is_trained_on in (({"seed": 0}, False), ({"data.soundscapes.num_train": 37}, True)):
        run = RunFolder.create(tmp_path / str(is_trained_on), tiny("soundscapes"), {"name": "search"})
        shutil.copytree(world["loose"], Path(str(run.add_trial(overrides).folder)) / "best")
        run.update_info(data={"name": "soundscapes", "hash": 64 * "0", "set": "soundscapes"})
        assert find_checkpoint(run.path).is_trained_on(manifest) == is_trained_on


def test_only_seeds_are_averaged(world: dict[str, Path]) -> None:
    runs = world["runs"]
    with pytest.raises(ValueError, match=r"checkpoint: got several that differ in train\.learning_rate; allowed"):
        evaluate([runs / "seed0", runs / "rate"], options(), **quiet)
    with pytest.raises(ValueError, match="each checkpoint once"):
        evaluate([runs / "seed0", runs / "seed0"], options(), **quiet)
    trials = sorted((runs / "sweep" / "trials").iterdir())
    assert [find_checkpoint(trial).name for trial in trials] == ["sweep: seed=0", "sweep: seed=1"]


def test_encoders_on_ray_compute_where_their_resources_are(world: dict[str, Path]) -> None:
    def device(**chosen: Any) -> str:
        return EncodingSource.from_retriever(
            Path("best"), read_manifest(world["data"]), "test", Encoding(**chosen)
        ).device

    assert device(gpus_per_encoder=0.5) == "cuda"
    assert device() == "cpu"
    assert device(ray="never", gpus_per_encoder=1) == ("cuda" if torch.cuda.is_available() else "cpu")


def test_a_split_in_which_a_language_is_missing_or_partial(tmp_path: Path) -> None:
    rows = [
        tone_clip(split, index, {"eng": ["a", "b"], **({"jpn": ["あ"]} if split == "test" and index else {})})
        for split in ("train", "test")
        for index in range(3)
    ]
    manifest = write_clips(tmp_path / "data", rows, name="partial", licence="none")
    got = read_eval_split(manifest, "test")
    assert got.languages == ["eng", "jpn"]
    assert got.captions.present["jpn"].tolist() == [False, False, True, False, True, False]
    assert read_eval_split(manifest, "train").languages == ["eng"]
    # As the setting data.languages has them too.
    assert read_eval_split(manifest, "test", ["ja,en"]).languages == ["jpn", "eng"]
    with pytest.raises(ValueError, match=r"languages: got 'jpn'; allowed languages of partial, split train: eng"):
        read_eval_split(manifest, "train", ["jpn"])
    assert listen(manifest, "test", 2) == rows[5].audio


def test_long_and_unplayable_audio_becomes_a_small_ogg() -> None:
    wave = tone(1, 0, seconds=40.0)
    assert playable(wave).startswith(b"OggS")
    assert len(playable(wave)) < len(wave) / 4
    short = tone(1, 0)
    assert playable(short) == short
    # An import takes it with --most-channels.
    buffer = io.BytesIO()
    soundfile.write(buffer, np.full((2**12, 65), 0.1), 16_000, format="WAV")
    assert playable(buffer.getvalue()).startswith(b"OggS")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["diagonal", "mahalanobis", "factored"])
def test_what_was_learnt_ranks_and_the_vectors_say_so(world: dict[str, Path], tmp_path: Path, kind: str) -> None:
    model = Retriever.from_pretrained(world["loose"])
    torch.manual_seed(0)
    learned = Retriever(
        model.audio_tower, model.text_tower, model.settings, learned=LearnedSettings(metric=kind, metric_rank=3)
    )
    assert learned.learned.metric is not None
    learned.learned.metric.data = torch.rand_like(learned.learned.metric)
    if kind == "mahalanobis":
        learned.learned.metric.data = learned.learned.metric.data @ learned.learned.metric.data.T
    learned.load_state_dict({**model.state_dict(), "learned.metric": learned.learned.metric.data})
    learned.save_pretrained(tmp_path / "learned")
    assert json.loads((tmp_path / "learned" / "retriever.json").read_text())["ranking"]["distance"] == "euclidean"
    data = str(world["data"])
    # How the rankings stand beside each other is the same for each metric.
    rankings = ("own", "cosine", "plan") if kind == "mahalanobis" else ("own",)
    pages = {
        ranking: evaluate(
            [tmp_path / "learned"], options(data=data, ranking=ranking), out=tmp_path / f"{kind}-{ranking}", **quiet
        ).page
        for ranking in rankings
    }
    rows = [clip for clip in _clips(world["data"]) if clip["split"] == "test"]
    restored = Retriever.from_pretrained(tmp_path / "learned")
    audio = restored.encode_audio([clip["audio"] for clip in rows])
    text = restored.encode_text([clip["captions"]["fra"][0] for clip in rows], "fra")
    distance = torch.cdist(text.double(), audio.double())
    nearest = (distance.argmin(1) == torch.arange(len(rows))).double().mean()
    name = "text_to_audio/fra/recall_at_1"
    assert pages["own"].metrics[name] == pytest.approx(float(nearest), abs=1e-9)
    for ranking in rankings:
        # The other two are beside it, each equal to what it is when it is the one that counts.
        for other in {*rankings} - {ranking}:
            by = "learned" if other == "own" else other
            found = pages[ranking].metrics[f"text_to_audio_by_{by}/fra/map_at_10"]
            assert found == pages[other].metrics["text_to_audio/fra/map_at_10"]


def _clips(data: Path) -> list[dict[str, Any]]:
    from ray_atr.data.shards import iterate_rows

    manifest = read_manifest(data)
    return [row for split in manifest.splits for row in iterate_rows(manifest, split)]


@pytest.mark.slow
def test_a_baseline_is_compared_over_the_languages_that_both_were_trained_on(
    world: dict[str, Path], alone: dict[str, Evaluated], tmp_path: Path
) -> None:
    """A mean over languages that one of the two never saw says how many it saw, not which of the two is better."""
    english, every = world["runs"] / "seed0", tmp_path / "kcl"
    run = RunFolder.create(
        every, tiny(world["data"], objective__scheme="kcl", data__test_split="test"), {"name": "kcl"}
    )
    trial = run.add_trial({"seed": 0})
    retriever = Retriever.from_pretrained(next((world["runs"] / "seed1" / "trials").iterdir()) / "best")
    retriever.languages = ("eng", "fra")
    retriever.save_pretrained(Path(str(trial.folder)) / "best")
    loose = Retriever.from_pretrained(world["loose"])
    loose.languages = ("eng",)
    loose.save_pretrained(tmp_path / "english")
    here = options(data=str(world["data"]))
    compared = [
        evaluate([every], options(), baseline=[english], out=tmp_path / "run", **quiet).page,
        evaluate([every], options(), baseline=[alone["seed0"].folder], out=tmp_path / "of_stored", **quiet).page,
        evaluate([every], here, baseline=[tmp_path / "english"], out=tmp_path / "loose", **quiet).page,
        evaluate([tmp_path / "english"], here, baseline=[every], out=tmp_path / "turned", **quiet).page,
    ]
    for page in compared:
        for measure in ("recall_at_1", "map_at_10"):
            of = {group: page.comparison[f"text_to_audio/{group}/{measure}"] for group in ("eng", "fra", "trained")}
            assert of["trained"] == of["eng"]
            assert page.comparison[f"text_to_audio/unseen/{measure}"] == of["fra"]
        assert page.comparison["text_to_audio/eng/map_at_10"] != page.comparison["text_to_audio/mean/map_at_10"]
        name = page.compared[0] if page is not compared[3] else page.compared[1]
        noted = [note for note in page.notes if "Means of differences" in note]
        assert noted == [f"In training, {name} had no captions in fra. Means of differences are over eng."]
        # A model's card, which has no comparison, repeats the warnings.
        assert not any("differences" in warning for warning in page.warnings)
        summary, first = page.comparisons[:2]
        assert summary.note.startswith("Mean of the languages that both were trained on.")
        assert [row[0].text for row in first.rows] == [
            "eng", "languages both trained on", f"fra (not in the training of {name})", "languages not both trained on",
            "mean",
        ]  # fmt: skip


@pytest.mark.slow
def test_a_split_that_was_used_in_training_is_said_to_be(
    world: dict[str, Path], alone: dict[str, Evaluated], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {
        split: evaluate([world["runs"] / "seed0"], options(split=split), out=tmp_path / split, **quiet).page.warnings
        for split in ("train", "val")
    } | {"test": alone["seed0"].page.warnings}
    trained, chosen = "These clips were trained on.", "The best epoch was chosen on this split"
    assert [any(one.startswith(trained) for one in said[split]) for split in said] == [True, False, False]
    assert [any(one.startswith(chosen) for one in said[split]) for split in said] == [False, True, False]
    assert all("Not trained on: fra." in of_split for of_split in said.values())
    # In no run, and other data with some of the clips.
    rows = [dataclasses.replace(Clip(**row), split="test") for row in _clips(world["data"])]
    write_clips(tmp_path / "mixed", rows, name="mixed", licence="none")
    share = sum(row["split"] == "train" for row in _clips(world["data"])) / len(rows)
    reads = counted_reads(monkeypatch)
    for place, out, warned in (
        (world["data"], "of copy", trained),
        (tmp_path / "mixed", "of mixed", f"Some {share:.0%} of these clips were trained on."),
    ):
        split = "train" if place == world["data"] else "test"
        page = evaluate([world["loose"]], options(data=str(place), split=split), out=tmp_path / out, **quiet).page
        assert warned in page.warnings
    assert reads == ["train", "test"]
    # By the second of two seeds.
    fresh = Retriever.from_pretrained(world["loose"])
    fresh.trained_captions = CaptionSample()
    fresh.save_pretrained(tmp_path / "fresh")
    seeds = [tmp_path / "fresh", world["loose"]]
    page = evaluate(seeds, options(data=str(world["data"]), split="train"), out=tmp_path / "of two", **quiet).page
    assert trained in page.warnings


def test_a_baseline_of_another_version_of_the_data_is_refused(world: dict[str, Path], tmp_path: Path) -> None:
    """Same name, split and languages, other captions: the paired differences would pair different queries."""
    rows = [Clip(**row) for row in _clips(world["data"])]
    other = [dataclasses.replace(row, captions={**row.captions, "eng": ("something else",)}) for row in rows]
    write_clips(tmp_path / "tones", other, name="tones", licence="none")
    evaluate([world["loose"]], options(data=str(world["data"])), out=tmp_path / "before", **quiet)
    changed = options(data=str(tmp_path / "tones"))
    with pytest.raises(ValueError, match=r"baseline: .*an evaluation of split test of tones, as it is now"):
        evaluate([world["loose"]], changed, baseline=[tmp_path / "before"], progress=_no_encoding, **quiet)
    # As is one of nothing, and one whose scores were left behind.
    same = options(data=str(world["data"]))
    (tmp_path / "before" / "evaluation.json").write_text("{}")
    with pytest.raises(ValueError, match="as it is now"):
        evaluate([world["loose"]], same, baseline=[tmp_path / "before"], progress=_no_encoding, **quiet)
    (tmp_path / "before" / "scores-0.npz").unlink()
    with pytest.raises(ValueError, match=r"baseline: .*its scores; scores-0\.npz is missing"):
        evaluate([world["loose"]], same, baseline=[tmp_path / "before"], progress=_no_encoding, **quiet)


def test_a_language_that_some_clips_lack_moves_no_other_language(world: dict[str, Path], tmp_path: Path) -> None:
    """Captions of all languages are encoded as one list: those of a partial language must not shift what follows them."""
    rows = [Clip(**row) for row in _clips(world["data"]) if row["split"] == "test"]
    partial = [
        dataclasses.replace(row, captions=row.captions if number % 2 else {"fra": row.captions["fra"]})
        for number, row in enumerate(rows)
    ]
    for name, clips in (("whole", rows), ("partial", partial)):
        write_clips(tmp_path / name, clips, name=name, licence="none")
    found = {
        name: evaluate([world["loose"]], options(data=str(tmp_path / name)), out=tmp_path / f"{name}-out", **quiet)
        for name in ("whole", "partial")
    }
    of = {name: one.page for name, one in found.items()}
    names = [
        name
        for name in of["whole"].metrics
        if name.language == "fra" and name.task in ("text_to_audio", "audio_to_text")
    ]
    names = [name for name in names if name.name != "mean_rank_variance"]
    assert len(names) > 10
    assert {name: of["partial"].metrics[name] for name in names} == {name: of["whole"].metrics[name] for name in names}
    assert of["partial"].metrics["text_to_audio/eng/queries"] == len(rows) / 2
    # A caption's vector stands in its own row, though those before it have none.
    there = found["partial"].eval_split.captions.present["eng"]
    assert 0 < there.sum() == len(there) / 2
    whole, partly = (np.asarray(one.embedded.text["eng"])[there] for one in found.values())
    np.testing.assert_allclose(partly, whole, atol=1e-6)
    # The prompts of the classes are encoded after all captions.
    accuracy = "classification/eng/accuracy"
    assert of["partial"].metrics[accuracy] == of["whole"].metrics[accuracy]


class ComposedError(Exception):
    """Ends an evaluation where its page would be made."""


def test_a_page_is_made_as_its_options_say(
    world: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def compose(*arguments: Any, **options: Any) -> None:
        given.update(options)
        raise ComposedError

    replace_work(monkeypatch, {"evaluation.run.compose_page": compose})
    spied(monkeypatch, evaluation_run, "read_eval_split", lambda _, *of, **options: given.update(options))
    chosen: dict[str, Any] = {"draws": 70, "level": 0.8, "seed": 5, "max_captions": 3, "relevance": "clip"}
    named = ("test-003", "test-001")
    with pytest.raises(ComposedError):
        evaluate([world["runs"] / "seed0"], options(**chosen, clips=named), out=tmp_path / "out", **quiet)
    assert {name: given[name] for name in chosen} == chosen
    assert given["figures"] is False
    assert [given["clip_ids"][row] for row in given["named"]] == list(named)


def test_a_ranking_is_the_retrievers_own_as_far_as_none_is_set() -> None:
    trained = SimpleNamespace(ranking=RankingSettings(ranking="cosine", plan_epsilon=0.1, plan_sweeps=9))

    def found(**settings: Any) -> tuple[str, float, int]:
        ranking = EvaluationOptions(**settings).ranking_of(cast("Any", trained))
        return ranking.ranking, ranking.plan.epsilon, ranking.plan.sweeps

    assert found() == ("cosine", 0.1, 9)
    assert found(ranking="plan", plan_epsilon=0.2) == ("plan", 0.2, 9)
    assert found(ranking="learned", plan_sweeps=0) == ("learned", 0.1, 0)
