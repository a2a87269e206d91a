"""Cards, the upload of a folder, TREC files and the calibration of a real evaluation."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ray_atr.deploy.export.options import TARGET_NAMES
from ray_atr.evaluation.calibrate import calibrate
from ray_atr.evaluation.card import evaluated_card, score_table, write_card
from ray_atr.evaluation.checkpoints import Checkpoint
from ray_atr.evaluation.options import Encoding, EvaluationOptions
from ray_atr.evaluation.run import Evaluated, evaluate
from ray_atr.evaluation.trec import write_trec
from ray_atr.metrics.bootstrap import Spread
from ray_atr.metrics.calibration import Calibration
from ray_atr.models.audio import SmallCnn
from ray_atr.models.fingerprint import model_fingerprint
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.models.text import SmallTransformer, train_tokenizer
from ray_atr.models.vectors import AudioVectors, TextVectors, TextVectorsTower
from ray_atr.training.run_folder import RunFolder
from tests.support import tiny
from tests.support.archives import save_retriever


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    """A retriever in a folder of its own, evaluated on tones in two languages."""
    home = tmp_path_factory.mktemp("card")
    data = tiny.make_data(home / "tones", num_test=24)
    settings = ModelSettings(audio=SmallCnn(width=32), text=SmallTransformer(width=32), embedding_width=16)
    build_retriever(settings, tokenizer=train_tokenizer(["a low tone"] * 9, 300), seed=0).save_pretrained(home / "R")
    options = EvaluationOptions(data=str(data), draws=20, mlflow=False)
    never = Encoding(ray="never")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray_atr.evaluation.report.evaluation_content._pictures", lambda *arguments: {})
        return evaluate([str(home / "R")], options, encoding=never, out=home / "E", echo=lambda _: None)


def header(card: str) -> dict[str, Any]:
    return yaml.safe_load(card.split("---")[1])


def trec_files(evaluated: Evaluated, folder: Path) -> dict[str, Path]:
    folder.mkdir(exist_ok=True)
    write_trec(evaluated.embedded, evaluated.eval_split, folder)
    return {file.name: file for file in folder.iterdir()}


def test_a_saved_retriever_has_a_card_and_an_evaluation_fills_it(evaluated):
    file = Path(evaluated.checkpoint.folder) / "README.md"
    before = file.read_text()
    assert header(before)["library_name"] == "ray_atr"
    assert "32,000 Hz" in before
    assert "windows of 10 s" in before
    assert "Not evaluated yet" in before
    assert write_card(evaluated) == file
    card = file.read_text()
    assert header(card)["language"] == ["eng", "fra"]
    assert evaluated.eval_split.manifest.hash in card
    recall = evaluated.page.metrics["text_to_audio/fra/recall_at_10"]
    interval = evaluated.page.intervals["text_to_audio/fra/recall_at_10"]
    of_texts = card.partition("### Text to audio")[2].partition("### Audio to text")[0]
    (row,) = (line for line in of_texts.splitlines() if line.startswith("| fra"))
    assert f"{100 * recall:.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]" in row
    assert "Not evaluated yet" not in card
    assert "Percent, ranked by cosine; in brackets 95% bootstrap intervals over clips." in card
    # Its digests do not speak of the card: the folder is whole still.
    retriever = Retriever.from_pretrained(evaluated.checkpoint.folder)
    # The hub lists a model by the languages of its header: not by those that it was only tried in.
    retriever.languages = ("eng",)
    assert header(evaluated_card(evaluated, retriever))["language"] == ["eng"]


def test_a_card_names_the_languages_of_the_training_that_a_run_started_from(evaluated, tmp_path):
    trial = RunFolder.create(tmp_path / "run", tiny.tiny(tmp_path, data__languages="eng"), {"name": "t"}).add_trial({})
    retriever = Retriever.from_pretrained(evaluated.checkpoint.folder)
    for languages, named in ((("eng", "fra"), "eng, fra"), ((), "eng")):
        retriever.languages = languages
        checkpoint = Checkpoint(trial.folder / "best", trial)
        assert f"languages of training: {named}\n" in evaluated_card(
            replace(evaluated, checkpoint=checkpoint), retriever
        )


def test_a_card_says_that_its_scores_are_of_several_seeds(evaluated):
    spreads = {metric: Spread(0.123, 0.045, 3) for metric in evaluated.page.metrics}
    table = score_table(replace(evaluated, page=replace(evaluated.page, spreads=spreads)))
    assert "12.3 ± 4.5" in table
    assert "over 3 runs that differ in their seed" in table
    assert "in brackets 95% intervals over clips and seeds." in table
    assert "±" not in score_table(evaluated)


def test_a_card_says_what_vectors_are_worth_and_which_exports_there_are(tmp_path):
    card = save_retriever(tmp_path / "global").card()
    assert "--to FORMAT" in card
    assert all(target in card for target in TARGET_NAMES)
    late = save_retriever(tmp_path / "late", interaction="late").card()
    assert "its pooled vectors are compared here" in late
    assert "--to" not in late


@pytest.mark.parametrize("audio", ["small_cnn", "vectors"])
def test_the_example_of_a_card_runs(tmp_path, monkeypatch, audio):
    """Of a model of vectors, as a language pack is, with vectors in the place of a file of audio."""
    width = {"audio.width": 8} if audio == "vectors" else {}
    retriever = save_retriever(tmp_path / "FOLDER", audio=audio, **width)
    monkeypatch.chdir(tmp_path)
    np.save("clips.npy", np.ones((2, retriever.audio_tower.front_end.num_mels), np.float32))
    (tmp_path / "clip.wav").write_bytes(tiny.tone(1, 1))
    found: dict[str, Any] = {}
    exec(re.search("```python\n(.*?)```", (tmp_path / "FOLDER" / "README.md").read_text(), re.DOTALL)[1], found)
    assert found["scores"].shape == (1, 2 if audio == "vectors" else 1)


def test_the_example_of_a_card_whose_texts_are_vectors_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ModelSettings(audio=AudioVectors(width=8), text=TextVectors())
    retriever = Retriever(settings.audio.build(), TextVectorsTower(None, 6), settings)
    retriever.save_pretrained(tmp_path / "FOLDER")
    monkeypatch.chdir(tmp_path)
    for name, width in (("clips", 8), ("texts", 6)):
        np.save(f"{name}.npy", np.ones((2, width), np.float32))
    found: dict[str, Any] = {}
    exec(re.search("```python\n(.*?)```", retriever.card(), re.DOTALL)[1], found)
    assert found["scores"].shape == (2, 2)


def test_calibration_is_beside_the_retriever_and_measured_on_other_clips(evaluated):
    worth = calibrate(evaluated)
    assert set(worth) == {"eng", "fra"}
    assert all(0 <= one.error <= 1 and 0 <= one.coverage <= 1 for one in worth.values())
    found = Calibration.read(str(evaluated.checkpoint.folder))
    assert found is not None
    assert found.fitted_on["hash"] == evaluated.eval_split.manifest.hash
    assert found.fitted_on["model"] == model_fingerprint(Retriever.from_pretrained(evaluated.checkpoint.folder))
    assert found.by_language["fra"].pairs == 24
    assert found.clips == 24
    Retriever.from_pretrained(evaluated.checkpoint.folder)
    assert found.levels is not None
    assert found.levels.vectors.shape[1] == evaluated.embedded.audio.shape[1]


@pytest.mark.parametrize(
    ("metric", "interaction", "ranking"),
    [
        ("euclidean", "global", "own"),
        ("euclidean", "late", "own"),
        ("mahalanobis", "global", "own"),
        ("mahalanobis", "global", "cosine"),
        ("mahalanobis", "global", "plan"),
    ],
)
def test_trec_files_give_the_recall_of_the_evaluation(evaluated, tmp_path, metric, interaction, ranking):
    if (metric, interaction) != ("euclidean", "global"):
        save_retriever(tmp_path / "R", metric=metric, clip_seconds=1.0, interaction=interaction)
        data = evaluated.eval_split.manifest.folder
        options = EvaluationOptions(data=data, draws=20, mlflow=False, figures=False, ranking=ranking)
        never = Encoding(ray="never")
        evaluated = evaluate([tmp_path / "R"], options, encoding=never, out=tmp_path / "E", echo=lambda _: None)
    files = trec_files(evaluated, tmp_path / "trec")
    assert set(files) == {"run-eng.trec", "qrels-eng.trec", "run-fra.trec", "qrels-fra.trec"}
    for language in ("eng", "fra"):
        relevant = {tuple(line.split()[::2][:2]) for line in files[f"qrels-{language}.trec"].read_text().splitlines()}
        top: dict[str, set[str]] = {}
        scores: dict[str, list[float]] = {}
        for line in files[f"run-{language}.trec"].read_text().splitlines():
            query, q0, document, rank, score, tag = line.split()
            assert (q0, tag) == ("Q0", "ray_atr")
            scores.setdefault(query, []).append(float(score))
            if int(rank) <= 10:
                top.setdefault(query, set()).add(document)
        assert all(values == sorted(values, reverse=True) for values in scores.values())
        found = np.mean([any((query, one) in relevant for one in own) for query, own in top.items()])
        assert found == pytest.approx(evaluated.page.metrics[f"text_to_audio/{language}/recall_at_10"], abs=1e-9)


@pytest.mark.skipif(importlib.util.find_spec("pytrec_eval") is None, reason="no pytrec_eval")
def test_trec_files_are_read_by_pytrec_eval(evaluated, tmp_path):
    import pytrec_eval

    files = trec_files(evaluated, tmp_path)
    with files["qrels-eng.trec"].open() as qrels, files["run-eng.trec"].open() as run:
        scorer = pytrec_eval.RelevanceEvaluator(pytrec_eval.parse_qrel(qrels), {"success_1,5,10"})
        found = scorer.evaluate(pytrec_eval.parse_run(run))
    for k in (1, 5, 10):
        recall = np.mean([one[f"success_{k}"] for one in found.values()])
        assert recall == pytest.approx(evaluated.page.metrics[f"text_to_audio/eng/recall_at_{k}"], abs=1e-9)


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as an upload asks: a repository is made, each file is sent with the commit."""

    kept: dict[str, bytes]
    asked: list[str]
    made: list[dict[str, Any]]

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked.append(self.path)
        answer: Any = {}
        here = f"http://127.0.0.1:{self.server.server_address[1]}/me/model"
        if self.path.endswith("/repos/create"):
            self.made.append(json.loads(body))
            answer = {"url": here, **self.made[-1]}
        elif "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            answer = {"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]}
        elif "/commit/" in self.path:
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    self.kept[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            answer = {"commitUrl": f"{here}/commit/1", "commitOid": "1", "success": True}
        self.answer(answer)

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.answer({"id": "me/model", "sha": "0", "siblings": [], "private": True})

    def answer(self, content: Any) -> None:
        text = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def hub(monkeypatch):
    """A hub on this machine."""
    kept: dict[str, bytes] = {}
    handler = type("KeepingHub", (Hub,), {"kept": kept, "asked": [], "made": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("huggingface_hub.hf_api.HfApi.__init__", _at(f"http://127.0.0.1:{server.server_port}"))
    yield handler
    server.shutdown()
    server.server_close()


def _at(address: str) -> Any:
    from huggingface_hub import HfApi

    given = HfApi.__init__

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        given(self, *arguments, **{**options, "endpoint": address, "token": "of-a-test"})

    return init


def test_a_retriever_is_pushed_with_its_card(evaluated, hub, tmp_path):
    folder = Path(evaluated.checkpoint.folder)
    write_card(evaluated)
    retriever = Retriever.from_pretrained(folder)
    url = retriever.push_to_hub("me/model", folder=folder)
    assert url.endswith("/me/model/commit/1")
    for name, content in hub.kept.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert (tmp_path / "README.md").read_text() == (folder / "README.md").read_text()
    texts = ["a low tone", "un son grave"]
    assert (Retriever.from_pretrained(tmp_path).encode_text(texts) == retriever.encode_text(texts)).all()
    hub.kept.clear()
    retriever.push_to_hub("me/model", private=False)
    # Before huggingface_hub 1 it was called `private`.
    assert [one.get("visibility", one.get("private")) in ("private", True) for one in hub.made] == [True, False]
    assert b"Not evaluated yet" in hub.kept["README.md"]
    with pytest.raises(ValueError, match="repository: got 'model'; allowed owner/name"):
        retriever.push_to_hub("model")
