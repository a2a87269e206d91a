"""Exports embed as the retriever does, opened by their own libraries in a process that never imports this package."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ray_atr.data.audio import FrontEnd, fit, log_mel
from ray_atr.data.shards import write_clips
from ray_atr.deploy.export import exporting
from ray_atr.deploy.export.clap import stock_tokeniser
from ray_atr.deploy.export.exporting import TARGETS, Exported, ExportInputs, export, loaded_vectors, plain, same_lists
from ray_atr.deploy.export.options import TARGET_NAMES, ExportOptions
from ray_atr.evaluation.checkpoints import Checkpoint
from ray_atr.models.adaptation import Adaptation
from ray_atr.models.audio import Ast, Ced, Htsat, ResNet38, SmallCnn, TransformersAudio
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.models.sentence_transformers import SentenceTransformersAudio
from ray_atr.models.text import Bert, SmallTransformer, Sonar, TransformersText, XlmRoberta, train_tokenizer
from ray_atr.objectives.pairs.learned import LearnedSettings
from tests.support import tiny_checkpoints as tiny
from tests.support.denied import deny
from tests.support.fork_server import run_program
from tests.support.tiny import tone_clip
from tests.support.whole_product import IS_WHOLE, ONLY_IN_WHOLE

TEXTS, LANGUAGES = tiny.TEXTS, tiny.LANGUAGES
UNTIDY = [
    ("A  dog，(barks): LOUDLY!", "eng"),
    ("a dog barks loudly", "eng"),
    ("Der HUND：bellt; laut?", "deu"),
    ('Rain|falls "on" a *roof*\nİstanbul ', "eng"),
    ("猫が、鳴く。", "jpn"),
]


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"no {module}: an optional extra")


ONNX, SENTENCE_TRANSFORMERS = needs("onnxscript"), needs("sentence_transformers")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A function: a saved retriever of named towers."""
    home = tmp_path_factory.mktemp("towers")

    @functools.cache
    def checkpoint(kind: str, **options: bool) -> str:
        return str(getattr(tiny, kind)(home / "-".join([kind, *options]), **options))

    towers: dict[str, Any] = {
        "htsat": lambda: Htsat(checkpoint=checkpoint("clap")),
        "htsat_1s": lambda: Htsat(checkpoint=checkpoint("clap"), clip_seconds=1.0),
        "htsat_fused": lambda: Htsat(checkpoint=checkpoint("clap", is_fused=True)),
        "htsat_half_s": lambda: Htsat(checkpoint=checkpoint("clap"), clip_seconds=0.5),
        "ast": lambda: Ast(checkpoint=checkpoint("ast")),
        "wav2vec2": lambda: TransformersAudio(checkpoint=checkpoint("wav2vec2")),
        "small_cnn": lambda: SmallCnn(width=32),
        "ced": lambda: Ced(size="tiny", num_blocks=1, checkpoint=None, clip_seconds=10.0),
        "resnet38": lambda: ResNet38(width_divisor=16, checkpoint=None),
        "xlm_roberta": lambda: XlmRoberta(checkpoint=checkpoint("xlm_roberta"), pooling="pooler"),
        "xlm_roberta_mean": lambda: XlmRoberta(checkpoint=checkpoint("xlm_roberta")),
        "roberta": lambda: TransformersText(checkpoint=checkpoint("clap", has_words=True)),
        "bert": lambda: Bert(checkpoint=checkpoint("bert")),
        "sonar": lambda: Sonar(checkpoint=checkpoint("sonar")),
        "plain_xlm_roberta": lambda: XlmRoberta(
            checkpoint=checkpoint("xlm_roberta"), pooling="pooler", plain_words=True
        ),
        "plain_bert": lambda: Bert(checkpoint=checkpoint("bert"), plain_words=True),
        "plain_sonar": lambda: Sonar(checkpoint=checkpoint("sonar"), plain_words=True),
        "small_transformer": lambda: SmallTransformer(width=32),
        "wide_transformer": lambda: SmallTransformer(width=256),
    }

    @functools.cache
    def saved(audio: str, text: str, metric: str = "euclidean", lora: int = 0, **settings: Any) -> Path:
        chosen = towers[text]()
        if lora:
            chosen = type(chosen)(
                checkpoint=chosen.checkpoint, pooling=chosen.pooling, adapt=Adaptation(lora_rank=lora)
            )
        retriever = build_retriever(
            ModelSettings(audio=towers[audio](), text=chosen, **{"embedding_width": 24, **settings}),
            tokenizer=train_tokenizer(TEXTS * 20, 300),
            learned=LearnedSettings(metric=metric),
            seed=0,
        )
        random = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, parameter in retriever.named_parameters():
                # A metric and updates that training has moved; the rest stays where it begins.
                if "lora" in name or name == "learned.metric":
                    parameter.add_(0.3 * torch.randn(parameter.shape, generator=random))
        folder = home / f"{audio}-{text}-{metric}-{lora}-{len(settings)}"
        retriever.save_pretrained(folder)
        return folder

    return saved


NOT_THERE = ("ray_atr", "transformers", "peft", "accelerate")
IN_FORKS = ("clap", "mlflow")
"""Formats whose loaders need nothing that holds on to what a fork has forgotten."""


@pytest.fixture(autouse=True)
def _in_forks(request, monkeypatch):
    """Loaders run in forks that know neither this package nor what may know it: a process takes seconds to import torch."""

    def run(command: list[str], *, cwd: str, **options: Any) -> subprocess.CompletedProcess[str]:
        _, isolated, check, *arguments = command
        assert isolated == "-I"
        program = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
        return run_program(program, check, *arguments, cwd=Path(cwd), forgets=NOT_THERE)

    chosen = getattr(request.node, "callspec", None)
    if not IS_WHOLE and chosen is not None and chosen.params.get("target") in IN_FORKS:
        monkeypatch.setattr(exporting, "subprocess", SimpleNamespace(run=run))


def asked_of(folder: Path, seconds=(0.4, 0.75, 0.75, 1.1, 1.9)) -> ExportInputs:
    front_end = Retriever.from_pretrained(folder).audio_tower.front_end
    random = np.random.default_rng(0)
    waveforms = [random.normal(0, 0.1, int(length * front_end.sample_rate)).astype(np.float32) for length in seconds]
    waveforms = [one[: front_end.clip_samples] for one in waveforms]
    return ExportInputs(waveforms, TEXTS, LANGUAGES, np.arange(len(TEXTS)) % len(waveforms))


def require_same_and_whole(found: Exported) -> None:
    assert found.difference <= 1e-5
    assert found.same_top_10 == 1
    assert not (found.folder / "__pycache__").exists()
    assert {"load.py", "export.json", "digests.json"} <= {file.name for file in found.folder.iterdir()}
    rights = {file.stat().st_mode & 0o666 for file in found.folder.rglob("*") if file.is_file()}
    assert rights == {found.folder.stat().st_mode & 0o666}


def test_the_command_and_the_targets_name_the_same_formats():
    assert set(TARGET_NAMES) == set(TARGETS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "audio", "text", "settings"),
    [
        # It is below, read as plain words.
        pytest.param("clap", "htsat", "xlm_roberta", {"projection": "mlp"}, marks=ONLY_IN_WHOLE),
        pytest.param("clap", "htsat", "xlm_roberta", {}, marks=ONLY_IN_WHOLE),
        # Another window than the checkpoint's.
        ("clap", "htsat_1s", "xlm_roberta", {}),
        # No wider inside than a ClapModel's projection.
        pytest.param(
            "clap", "htsat", "xlm_roberta", {"projection": "wide_mlp", "embedding_width": 512}, marks=ONLY_IN_WHOLE
        ),
        pytest.param("sentence-transformers", "ast", "bert", {"projection": "mlp"}, marks=SENTENCE_TRANSFORMERS),
        pytest.param("sentence-transformers", "htsat", "xlm_roberta", {}, marks=SENTENCE_TRANSFORMERS),
        pytest.param("sentence-transformers", "ast", "bert", {"metric": "mahalanobis"}, marks=SENTENCE_TRANSFORMERS),
        pytest.param(
            "sentence-transformers",
            "htsat",
            "bert",
            {"audio_projection": "none", "embedding_width": 32},
            marks=SENTENCE_TRANSFORMERS,
        ),
        pytest.param("onnx", "small_cnn", "small_transformer", {"projection": "mlp"}, marks=ONNX),
        pytest.param("onnx", "small_cnn", "bert", {"metric": "mahalanobis"}, marks=ONNX),
        pytest.param("onnx", "ast", "sonar", {}, marks=ONNX),
        pytest.param("onnx", "htsat", "xlm_roberta", {"lora": 2}, marks=ONNX),
        pytest.param("onnx", "htsat_fused", "small_transformer", {}, marks=ONNX),
        pytest.param("onnx", "resnet38", "small_transformer", {}, marks=ONNX),
        pytest.param("onnx", "ced", "small_transformer", {}, marks=ONNX),
        pytest.param("onnx", "wav2vec2", "small_transformer", {}, marks=ONNX),
        # `test_tracking_model.py` has these towers in MLflow.
        pytest.param("mlflow", "small_cnn", "small_transformer", {}, marks=ONLY_IN_WHOLE),
    ],
)
def test_an_export_embeds_as_the_retriever(made, tmp_path, target, audio, text, settings):
    folder = made(audio, text, **settings)
    asked = asked_of(folder)
    if target == "onnx":
        # Clips shorter than a frame, or than half of one, and languages by two letters or without a name here.
        asked = asked_of(folder, (3e-4, 0.008, 0.018, 0.03, 0.4, 1.1, 1.9))
        asked = replace(asked, languages=[{"eng": "en", "jpn": "swe"}.get(code, code) for code in LANGUAGES])
    found = export(folder, target, tmp_path / "out", asked=asked, echo=lambda _: None)
    require_same_and_whole(found)
    loader = loader_of(found.folder)
    width = Retriever.from_pretrained(folder).vector_width
    assert loader.encode_audio([]).shape == loader.encode_text([], []).shape == (0, width)


def loader_of(folder: Path) -> Any:
    """The loader of an export, in this process."""
    spec = importlib.util.spec_from_file_location("load", folder / "load.py")
    loader: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loader)
    return loader


@pytest.mark.slow
@pytest.mark.filterwarnings("error:overflow:RuntimeWarning")
@pytest.mark.parametrize(
    ("target", "audio", "text"),
    [
        ("clap", "htsat", "xlm_roberta"),
        pytest.param("sentence-transformers", "ast", "bert", marks=SENTENCE_TRANSFORMERS),
        pytest.param("onnx", "ast", "sonar", marks=ONNX),
    ],
)
def test_a_loader_refuses_what_the_retriever_refuses(made, tmp_path, target, audio, text):
    folder = made(audio, text, windows="max")
    loader = loader_of(export(folder, target, tmp_path / "out", asked=asked_of(folder), echo=lambda _: None).folder)
    sound = np.ones(8_000, np.float32)
    wrongs = [sound.astype(np.int16), sound[None], sound[:0], np.where(sound > 0, np.nan, sound), np.full(9, 1e60)]
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"clip 1: got .*; allowed a mono waveform \[S\] of finite floats"):
            loader.encode_audio([sound, wrong])
    with pytest.raises(ValueError, match="this model's graph takes one window" if target == "onnx" else "S at most"):
        loader.encode_audio([np.ones(160_000, np.float32)])
    for texts in ("a dog barks", ["a dog", " "]):
        with pytest.raises(ValueError, match=r"texts: got '(a dog barks| )'; allowed a list of texts with words"):
            loader.encode_text(texts)


@ONNX
def test_a_graph_takes_the_languages_that_the_retriever_takes(made, tmp_path):
    folder = made("ast", "sonar")
    loader = loader_of(export(folder, "onnx", tmp_path / "out", asked=asked_of(folder), echo=lambda _: None).folder)
    # Egyptian Arabic, Cantonese and a dialect of Serbo-Croatian have no tag there, but other members of their macrolanguages do.
    codes = ["arz", "yue", "cnr", "EN", "zh-TW", " ger "]
    texts = ["a dog barks"] * len(codes)
    wanted = Retriever.from_pretrained(folder).encode_text(texts, codes).numpy()
    np.testing.assert_allclose(loader.encode_text(texts, codes), wanted, atol=1e-5)
    with pytest.raises(ValueError, match=r"languages: got \['tlh'\]; allowed codes"):
        loader.encode_text(["qul", "a dog"], ["tlh", "eng"])


def test_mlflow_says_nothing_of_the_files_it_copies(made, tmp_path, capfd, recwarn):
    folder = made("small_cnn", "small_transformer")
    TARGETS["mlflow"].write(Retriever.from_pretrained(folder), tmp_path, checkpoint=folder)
    assert (tmp_path / "model" / "MLmodel").is_file()
    assert capfd.readouterr() == ("", "")
    assert not [one for one in recwarn if "input example" in str(one.message)]


@pytest.mark.parametrize("name", ["sounds%20of rain", "what?", "#1"])
def test_a_folder_in_which_mlflow_finds_no_model_is_refused(made, tmp_path, name):
    folder = made("small_cnn", "small_transformer")
    copied = shutil.copytree(folder, tmp_path / name / "retriever")
    for out, checkpoint in ((copied, folder), (tmp_path / "out", copied)):
        with pytest.raises(ValueError, match="allowed a path without %, # and "):
            TARGETS["mlflow"].write(Retriever.from_pretrained(folder), out, checkpoint=checkpoint)
        assert not (out / "model").exists()


@pytest.mark.parametrize("of_code", [True, False])
def test_a_disk_that_is_full_is_told_as_one_where_mlflow_blames_the_code(made, tmp_path, monkeypatch, of_code):
    folder, original = made("small_cnn", "small_transformer"), shutil.copytree

    def copytree(src, dst, *more, **options):
        if of_code != (Path(src).name == "ray_atr"):
            return original(src, dst, *more, **options)
        raise shutil.Error([(src, dst, f"[Errno 28] No space left on device: '{dst}'")])

    monkeypatch.setattr(shutil, "copytree", copytree)
    with pytest.raises(OSError, match=r"model could not be written: \[Errno 28\] No space left on device"):
        TARGETS["mlflow"].write(Retriever.from_pretrained(folder), tmp_path, checkpoint=folder)


@pytest.mark.parametrize("text", ["bert", "plain_bert", "plain_xlm_roberta"])
def test_the_tokeniser_of_an_export_reads_as_the_tower_does(made, tmp_path, text):
    from transformers import AutoTokenizer

    retriever = Retriever.from_pretrained(made("small_cnn", text))
    tower = retriever.text_tower
    stock_tokeniser(retriever).save_pretrained(tmp_path)
    # The type of the model chooses the class.
    tower.model.config.save_pretrained(tmp_path)
    texts, languages = zip(*UNTIDY, ("a dog " * 100, "eng"), strict=True)
    read = AutoTokenizer.from_pretrained(tmp_path)(list(texts), truncation=True)
    assert read["input_ids"] == tower.tokenise(texts, languages)
    assert (read["input_ids"][0] == read["input_ids"][1]) == text.startswith("plain")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "audio", "text", "settings"),
    [
        ("clap", "htsat", "plain_xlm_roberta", {"projection": "mlp"}),
        pytest.param("sentence-transformers", "ast", "plain_bert", {}, marks=SENTENCE_TRANSFORMERS),
        pytest.param("sentence-transformers", "htsat", "plain_xlm_roberta", {}, marks=SENTENCE_TRANSFORMERS),
        pytest.param("onnx", "small_cnn", "plain_sonar", {}, marks=ONNX),
        ("mlflow", "small_cnn", "plain_bert", {}),
    ],
)
def test_an_export_reads_plain_words_as_the_retriever_does(made, tmp_path, target, audio, text, settings):
    """Marks and capitals as people write them, read by the format's own library."""
    folder = made(audio, text, **settings)
    waveforms = asked_of(folder).waveforms
    texts, languages = zip(*UNTIDY, strict=True)
    asked = ExportInputs(waveforms, list(texts), list(languages), np.arange(len(texts)) % 2)
    # The vectors of a text do not depend on its marks, and those of the export are these.
    vectors = Retriever.from_pretrained(folder).encode_text(texts, languages)
    torch.testing.assert_close(vectors[0], vectors[1], atol=1e-6, rtol=0)
    assert (vectors[0] - vectors[2]).abs().max() > 1e-4
    found = export(folder, target, tmp_path / "out", asked=asked, echo=lambda _: None)
    require_same_and_whole(found)


@ONNX
def test_long_clips_batches_and_eight_bits_of_a_graph(made, tmp_path):
    """A clip of two and a half windows, as the loader pools them; the same clip in a batch; the smaller text graph."""
    folder = made("small_cnn", "wide_transformer", projection="mlp")
    options = ExportOptions(int8_text=True)
    found = export(folder, "onnx", tmp_path / "out", options, asked=asked_of(folder, (0.5, 25.0)), echo=lambda _: None)
    # Weights are nearly all of the file, as of any tower that one would make smaller.
    assert (found.folder / "text.int8.onnx").stat().st_size < 0.35 * (found.folder / "text.onnx").stat().st_size
    import onnx

    small = onnx.load(found.folder / "text.int8.onnx").graph
    scales = {one.name: int(np.prod(one.dims)) for one in small.initializer if one.name.endswith("_scale")}
    # A scale for each column: 256 of a matrix, 768 of queries, keys and values together.
    assert max(scales.values()) >= 256
    loader = loader_of(found.folder)
    retriever = Retriever.from_pretrained(folder)
    clip = np.random.default_rng(3).normal(0, 0.1, 25 * 32_000).astype(np.float32)
    for windows_together in (16, 2):
        found_alone = loader.encode_audio([clip], batch_size=windows_together)[0]
        np.testing.assert_allclose(found_alone, retriever.encode_audio(clip)[0], atol=1e-5)
    batch = clip[: 3 * 32_000].reshape(3, -1)
    together = loader.session("audio.onnx").run(None, {"waveforms": batch})[0]
    np.testing.assert_allclose(together, loader.encode_audio(list(batch)), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "audio", "text", "settings", "message"),
    [
        ("clap", "small_cnn", "xlm_roberta", {}, "model.audio small_cnn'; allowed model.audio htsat"),
        ("clap", "htsat", "bert", {}, "model.text bert"),
        ("clap", "htsat", "xlm_roberta_mean", {}, "model.text.pooling mean"),
        ("clap", "htsat", "xlm_roberta", {"metric": "mahalanobis"}, "learned metric.*sentence-transformers and onnx"),
        pytest.param(
            "sentence-transformers", "small_cnn", "bert", {}, "small_cnn.*as_sentence_tran", marks=SENTENCE_TRANSFORMERS
        ),
        pytest.param("sentence-transformers", "ast", "sonar", {}, "language tags", marks=SENTENCE_TRANSFORMERS),
        (
            "clap",
            "htsat",
            "xlm_roberta",
            {"projection": "wide_mlp"},
            "projection wide_mlp'; allowed linear, two_linear or",
        ),
        pytest.param(
            "sentence-transformers",
            "htsat",
            "bert",
            {"projection": "wide_mlp"},
            "--to sentence-.*projection wide_mlp",
            marks=SENTENCE_TRANSFORMERS,
        ),
        ("clap", "htsat_half_s", "xlm_roberta", {}, "clip_seconds 0.5'; allowed whole seconds"),
        ("clap", "htsat_fused", "xlm_roberta", {}, "a CLAP with fusion, .*; allowed a CLAP without fusion; onnx and"),
        pytest.param(
            "sentence-transformers", "ast", "roberta", {}, "CLAP's text .*--to clap", marks=SENTENCE_TRANSFORMERS
        ),
        pytest.param("onnx", "ast", "bert", {"interaction": "late"}, "interaction late.*global", marks=ONNX),
        ("clap", "htsat", "xlm_roberta", {"interaction": "late"}, "interaction late'; allowed .*global; mlflow takes"),
        pytest.param(
            "sentence-transformers",
            "ast",
            "bert",
            {"interaction": "late"},
            "interaction late'; allowed .*global; mlflow takes",
            marks=SENTENCE_TRANSFORMERS,
        ),
        ("coreml", "ast", "bert", {}, "--to: got 'coreml'; allowed one of clap"),
    ],
)
def test_what_cannot_be_exact_is_refused_and_what_can_is_named(made, tmp_path, target, audio, text, settings, message):
    with pytest.raises(ValueError, match=message):
        export(
            made(audio, text, **settings), target, tmp_path / "out", asked=ExportInputs([], [], []), echo=lambda _: None
        )
    assert not (tmp_path / "out").exists()


@ONNX
@SENTENCE_TRANSFORMERS
def test_towers_of_sentence_transformers_are_no_graphs(made, tmp_path):
    retriever = Retriever.from_pretrained(made("ast", "bert"))
    TARGETS["sentence-transformers"].write(retriever, tmp_path / "model")
    settings = replace(retriever.settings, audio=SentenceTransformersAudio(checkpoint=str(tmp_path / "model")))
    with pytest.raises(
        ValueError, match=r"model\.audio sentence_transformers.*; allowed other towers; mlflow takes any"
    ):
        TARGETS["onnx"].require(build_retriever(settings))


def test_a_folder_named_best_outside_of_a_run_is_exported_under_its_own_name(made, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ATR_HOME", str(tmp_path))
    # As in `/models/best`, which has no third folder above it.
    shallow = Path("/") / f"{tmp_path.name}-best"
    monkeypatch.setattr(exporting, "find_checkpoint", lambda _: Checkpoint(shallow / "best"))
    (tmp_path / "exports" / "best-clap").mkdir(parents=True)
    (tmp_path / "exports" / "best-clap" / "file").touch()
    with pytest.raises(ValueError, match=r"out: got '.*/exports/best-clap'; allowed a new or empty folder"):
        export(shallow, "clap")


def test_a_place_that_cannot_be_written_is_told_before_the_work(made, tmp_path, monkeypatch):
    deny(monkeypatch)
    with pytest.raises(PermissionError, match=f"cannot be written: '{tmp_path}'"):
        # Without a run there are no clips to compare it on, which is told later.
        export(made("small_cnn", "bert"), "mlflow", tmp_path / "out", echo=lambda _: None)


def test_clips_without_captions_to_compare_are_told(made, tmp_path, monkeypatch):
    labelled = replace(tone_clip("test", 0, {}), labels=("tone",))
    write_clips(tmp_path / "data", [labelled, tone_clip("test", 1, {"eng": ["a tone"]})], name="d", licence="none")
    options, said = ExportOptions(data=str(tmp_path / "data"), most_clips=1), list[str]()
    monkeypatch.setattr(exporting, "data_folder", lambda data, _, echo: echo("synthetic clips") or data)
    with pytest.raises(ValueError, match=r"--most-clips: got 1; .*of its first 1 clip none has"):
        export(made("small_cnn", "small_transformer"), "mlflow", tmp_path / "out", options, echo=said.append)
    # Soundscapes that are made for it are told to whom the rest is told.
    assert said == ["clips and captions of the comparison", "synthetic clips"]


def test_an_export_that_differs_is_not_kept(made, tmp_path, monkeypatch, recwarn):
    folder = tmp_path / "retriever"
    asked = asked_of(made("htsat", "xlm_roberta"))
    retriever = Retriever.from_pretrained(made("htsat", "xlm_roberta"))
    ours = retriever.encode_audio(asked.waveforms).numpy(), retriever.encode_text(asked.texts, asked.languages).numpy()
    retriever.languages = ("eng",)
    retriever.save_pretrained(folder)
    monkeypatch.setattr(exporting, "loaded_vectors", lambda *_: (ours[0], ours[1] + 1e-3))
    with pytest.raises(ValueError, match=r"difference from encode_\*: got '0.001'; allowed at most 1e-05"):
        export(folder, "clap", tmp_path / "out", asked=asked, echo=lambda _: None)
    assert list(tmp_path.iterdir()) == [folder]
    # Numbers are compared: which languages were trained on is beside the point.
    assert not [one for one in recwarn if "no captions" in str(one.message)]
    allowed = ExportOptions(tolerance=2e-3)
    exported = export(folder, "clap", tmp_path / "out", allowed, asked=asked, echo=lambda _: None)
    assert exported.difference == pytest.approx(1e-3, rel=1e-3)


def test_the_check_is_in_an_isolated_process_and_fails_if_the_package_is_imported(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "not_of_the_export.py").touch()
    body = """import importlib.util, os
import ray_atr
import numpy

TEXT = 1.0
assert importlib.util.find_spec("not_of_the_export") is None

def encode_audio(waveforms):
    return numpy.array([[os.getpid(), len(waveforms), len(waveforms[1])]])

def encode_text(texts, languages):
    return numpy.array([[float(TEXT), *map(len, [*texts, *languages])]])
"""
    load = tmp_path / "load.py"
    load.write_text(body)
    asked = ExportInputs([np.zeros(1, np.float32), np.zeros(3, np.float32)], ["a", "four"], ["eng", "fr"])
    with pytest.raises(ValueError, match=r"a failure of load\.py.*ray_atr was imported"):
        loaded_vectors(tmp_path, asked)
    load.write_text(body.replace("import ray_atr\n", ""))
    audio, text = loaded_vectors(tmp_path, asked, "TEXT=2")
    assert audio[0, 0] != os.getpid()
    assert audio[0, 1:].tolist() == [2, 3]
    assert text.tolist() == [[2, 1, 4, 3, 2]]


def test_low_rank_updates_are_merged_without_moving_an_embedding(made):
    retriever = Retriever.from_pretrained(made("htsat", "xlm_roberta", lora=2))
    merged = plain(retriever)
    assert not [name for name, _ in merged.named_parameters() if "lora" in name]
    torch.testing.assert_close(merged.encode_text(TEXTS), retriever.encode_text(TEXTS), atol=1e-6, rtol=0)
    without = Retriever.from_pretrained(made("htsat", "xlm_roberta"))
    assert (merged.encode_text(TEXTS) - without.encode_text(TEXTS)).abs().max() > 1e-3


FRONT_ENDS = {
    "decibels": FrontEnd(),
    "top_db and repeats": FrontEnd(top_db=40.0, pad="repeat", clip_seconds=2.0, mel_scale="slaney", mel_norm="slaney"),
    "zeros": FrontEnd(pad="zeros", clip_seconds=2.0, mean=-20.0, std=25.0),
    "waveform": FrontEnd(kind="waveform", num_mels=1, normalises_clip=True, minimum_samples=400),
    "kaldi": FrontEnd(kind="kaldi", window_size=400, hop_size=160, num_mels=32, low_hz=20.0, pad_frames=128),
}


@ONNX
@pytest.mark.parametrize("length", [1, 320, 321, 400, 639, 12_345])
@pytest.mark.parametrize("name", FRONT_ENDS)
def test_the_front_end_of_a_graph_is_the_front_end(name, length):
    from ray_atr.deploy.export.onnx import LogMel

    front_end = FRONT_ENDS[name]
    clips = np.random.default_rng(0).normal(0, 0.1, (2, length)).astype(np.float32)
    # A loud tone beside silence, which rounding of the samples' size would fill.
    clips[1] = np.sin(2 * np.pi * 440 / front_end.sample_rate * np.arange(length)) * np.hanning(length)
    found = LogMel(front_end)(torch.from_numpy(clips))
    expected = np.stack([log_mel(fit(clip, front_end), front_end) for clip in clips])
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_equal_lists_are_counted():
    random = np.random.default_rng(0)
    ours = random.normal(size=(50, 40))
    assert same_lists(ours, ours + 1e-9) == 1
    theirs = ours.copy()
    theirs[:5] = random.normal(size=(5, 40))
    assert same_lists(ours, theirs) == 0.9
