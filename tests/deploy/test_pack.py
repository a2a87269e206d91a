"""A language pack: its inputs, what each method trains on, and the folder as an index and its queries use it."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import shutil
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from starlette.testclient import TestClient

from ray_atr.cli.pack import _table
from ray_atr.common.storage import DamagedFileError
from ray_atr.deploy.export.exporting import export
from ray_atr.deploy.index.build import build_index
from ray_atr.deploy.index.opened import Index
from ray_atr.deploy.pack import making
from ray_atr.deploy.pack.fitting import AUDIO_PART, fit_projection, most_words, target_vectors
from ray_atr.deploy.pack.making import Pack, make_pack, training_rows
from ray_atr.deploy.pack.pack_options import PackOptions
from ray_atr.deploy.pack.space import ForeignSpace, read_space
from ray_atr.deploy.pack.text_side import TOGETHER, encode_table
from ray_atr.deploy.serve.app import create_app
from ray_atr.metrics.calibration import Calibration
from ray_atr.models.card import CARD_FILE
from ray_atr.models.fingerprint import model_fingerprint
from ray_atr.models.retriever import Retriever
from ray_atr.models.vectors import TextVectorsTower, encode_captions
from ray_atr.models.words import WithWords, vector_and_words
from ray_atr.workshop.importing.import_options import VectorImport
from ray_atr.workshop.importing.vector_import import import_vectors
from tests.support.archives import make_tones, save_retriever
from tests.support.denied import deny
from tests.support.spies import spied

D, CLIPS = 6, 40
HAS_ONNX = importlib.util.find_spec("onnxruntime") is not None
SPLITS = ["train"] * 24 + ["val"] * 8 + ["test"] * 8
QUICK = {"train.epochs": "2", "train.batch_size": "8"}


def random_rows(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, D)).astype(np.float32)


def write_inputs(folder: Path, *, split: bool = True) -> dict[str, str]:
    """A space, its captions in two languages, and its English text vectors; the paths as `make_pack` names them."""
    folder.mkdir(exist_ok=True)
    np.save(folder / "audio.npy", random_rows(CLIPS, 0) * 3)
    with (folder / "pairs.csv").open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(["audio_row", "caption", "language", *(["split"] if split else [])])
        for row in range(CLIPS):
            for language, words in (("deu", "ein tiefer Ton"), ("eng", "a low tone")):
                writer.writerow([row, f"{words}, number {row}", language, *([SPLITS[row]] if split else [])])
    np.save(folder / "english.npy", random_rows(CLIPS, 1))
    return {"space": str(folder / "audio.npy"), "captions": str(folder / "pairs.csv")}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pack")
    write_inputs(folder)
    save_retriever(folder / "model")
    return folder


def packed(inputs: Path, out: Path, method: str = "both", **options: object) -> Pack:
    options = {"onnx": HAS_ONNX, **options}
    return make_pack(
        str(inputs / "audio.npy"),
        str(inputs / "pairs.csv"),
        str(inputs / "model"),
        out,
        space_text=str(inputs / "english.npy"),
        options=PackOptions(method=method, **options),
        settings=None if method == "both" else QUICK,
        echo=lambda message: None,
    )


@pytest.fixture(scope="module")
def pack(inputs: Path) -> Pack:
    return packed(inputs, inputs / "pack")


def test_the_space_is_of_unit_rows_and_english_vectors_find_their_captions(inputs: Path) -> None:
    space = read_space(str(inputs / "audio.npy"), str(inputs / "pairs.csv"), str(inputs / "english.npy"))
    given = np.load(inputs / "english.npy")
    np.testing.assert_allclose(np.linalg.norm(space.audio, axis=1), 1, atol=1e-6)
    own = space.text_of()
    assert {language for _, language in own} == {"eng"}
    for row in range(CLIPS):
        expected = given[row] / np.linalg.norm(given[row])
        np.testing.assert_allclose(own[f"a low tone, number {row}", "eng"], expected, atol=1e-6)


def test_splits_are_drawn_by_clip_where_the_table_has_none(tmp_path: Path) -> None:
    files = write_inputs(tmp_path, split=False)
    first, second = (read_space(**files, seed=1).pairs for _ in range(2))
    assert first == second
    assert {pair.split for pair in first} <= {"train", "val", "test"}
    by_clip = {(pair.audio_row, pair.split) for pair in first}
    assert len(by_clip) == CLIPS


def test_captions_whose_accents_are_characters_of_their_own_are_those_of_the_data_set(
    inputs: Path, tmp_path: Path
) -> None:
    shutil.copytree(inputs, tmp_path, dirs_exist_ok=True)
    table = (tmp_path / "pairs.csv").read_text(encoding="utf-8").replace("number", "nume\u0301ro")
    (tmp_path / "pairs.csv").write_text(table, encoding="utf-8")
    made = packed(tmp_path, tmp_path / "out", onnx=False)
    assert made.before is not None
    assert made.after.metrics.keys() >= made.before.metrics.keys()


def test_a_text_vector_stands_in_the_place_of_a_clip(inputs: Path) -> None:
    space = read_space(str(inputs / "audio.npy"), str(inputs / "pairs.csv"), str(inputs / "english.npy"))
    text = np.arange(2 * CLIPS, dtype=np.float32)[:, None]
    audio, _, pairs = training_rows(space, text, "m2m")
    own = [pair for pair in pairs if pair.clip_id.startswith("text-")]
    assert {pair.language for pair in own} == {"eng"}
    assert len(own) == 24
    for pair in own:
        number = pair.caption.rpartition(" ")[2]
        np.testing.assert_array_equal(audio[pair.audio_row], space.text_of()[f"a low tone, number {number}", "eng"])
        assert space.pairs[pair.text_row].caption == pair.caption
    assert {pair.clip_id for pair in pairs if pair.split == "train"} == {pair.clip_id for pair in own}


def test_a_caption_belongs_where_its_english_version_is_moved_towards_its_clip(inputs: Path) -> None:
    space = read_space(str(inputs / "audio.npy"), str(inputs / "pairs.csv"), str(inputs / "english.npy"))
    rows, wanted = target_vectors(space)
    assert [space.pairs[row].split for row in rows] == ["train"] * 48
    own = space.text_of()
    clips, english = space.audio[:24], np.stack([own[f"a low tone, number {clip}", "eng"] for clip in range(24)])
    for row, found in zip(rows, wanted, strict=True):
        clip = space.pairs[row].audio_row
        expected = english[clip] + AUDIO_PART * (clips[clip] - clips.mean(axis=0))
        np.testing.assert_allclose(found, expected / np.linalg.norm(expected), atol=1e-5)
    # Without an English version a caption belongs near its clip alone.
    alone = replace(space, pairs=[one for one in space.pairs if (one.audio_row, one.language) != (3, "eng")])
    rows, wanted = target_vectors(alone)
    (place,) = [n for n, row in enumerate(rows) if alone.pairs[row].audio_row == 3]
    kept = np.delete(english, 3, axis=0).mean(axis=0)
    others = np.array([alone.pairs[row].audio_row for row in rows])
    expected = kept + AUDIO_PART * (clips[3] - clips[others].mean(axis=0))
    middle = np.repeat(np.delete(english, 3, axis=0), 2, axis=0).mean(axis=0)
    np.testing.assert_allclose(middle, kept, atol=1e-6)
    np.testing.assert_allclose(wanted[place], expected / np.linalg.norm(expected), atol=1e-5)


def test_a_projection_knows_vectors_alone_and_with_words() -> None:
    random = np.random.default_rng(0)
    M, W, words = 512, 12, ["once", "twice", "dog"]
    vectors = random.standard_normal((M, W)).astype(np.float32) * 40 + 7
    says = random.choice(["once", "twice"], M)
    wanted = (vectors[:, :D] - 7) / 40
    vectors[:, -2:] = [5, 3] + 1e-6 * vectors[:, -2:]  # hardly varies
    wanted[:, 0] = np.where(says == "twice", 3, -3)
    tower = WithWords(TextVectorsTower(None, W), words)
    projection = fit_projection(tower, vectors, [f"dog {word}" for word in says], wanted)

    def closeness(texts: list[str], wanted: np.ndarray) -> float:
        given = vector_and_words(torch.from_numpy(vectors), tower.bag(texts))
        found = projection(given).detach()
        return float(torch.nn.functional.cosine_similarity(found, torch.from_numpy(wanted)).mean())

    assert closeness([f"dog {word}" for word in says], wanted) > 0.99
    assert closeness(["dog twice"] * M, wanted) < 0.6
    # Of unknown words it says what the vector says, in which how often is not.
    middle = wanted.copy()
    middle[:, 0] = wanted[:, 0].mean()
    assert closeness(["deux fois"] * M, middle) > 0.97


def test_there_are_as_many_words_as_the_size_of_a_pack_allows() -> None:
    for W, D, words in ((384, 128, 2048), (384, 512, 1672), (768, 512, 904), (1024, 1024, 0)):
        assert most_words(W, D) == words
        assert words == 0 or 2 * D * (2 * W + words + 1) <= 2_500_000


def test_a_pack_is_a_retriever_whose_graph_and_folder_are_checked(inputs: Path, pack: Pack) -> None:
    retriever = Retriever.from_pretrained(pack.folder)
    vectors = torch.from_numpy(np.load(inputs / "audio.npy")[:3])
    torch.testing.assert_close(retriever.encode_audio(list(vectors)), torch.nn.functional.normalize(vectors, dim=1))
    about = json.loads((pack.folder / "pack.json").read_text())
    assert set(about["before"]) < set(about["after"])
    assert "text_to_audio/deu/mean_rank_variance" in about["after"]
    with (pack.folder / CARD_FILE).open("a") as card:  # as `evaluate --card` does
        card.write("More of it.")
    Retriever.from_pretrained(pack.folder)
    (pack.folder / "extra").mkdir()
    content = (pack.folder / "pack.json").read_bytes()
    (pack.folder / "pack.json").write_bytes(content.replace(b"both", b"m2mm"))
    with pytest.raises(DamagedFileError):
        Retriever.from_pretrained(pack.folder)
    (pack.folder / "pack.json").write_bytes(content)


def test_a_mean_stands_only_beside_one_of_the_same_languages(pack: Pack) -> None:
    def before_and_after(shown: Pack) -> dict[str, tuple[str, str]]:
        names, *numbers = (list(column.cells) for column in _table(shown).columns)
        return {str(name): (str(one), str(two)) for name, one, two in zip(names, *numbers[:2], strict=True)}

    rows = before_and_after(pack)
    assert list(rows) == ["eng", "deu", "mean"]
    # The space has vectors of the English captions alone.
    assert rows["eng"][0] != ""
    assert [rows[name][0] for name in ("deu", "mean")] == ["", ""]
    assert all(after for _, after in rows.values())
    assert before_and_after(replace(pack, before=pack.after))["mean"][0] != ""


def test_words_decide_where_a_query_is(inputs: Path, pack: Pack) -> None:
    space = read_space(str(inputs / "audio.npy"), str(inputs / "pairs.csv"), str(inputs / "english.npy"))
    rows, wanted = target_vectors(space)
    retriever = Retriever.from_pretrained(pack.folder)
    texts, codes = [space.pairs[row].caption for row in rows], [space.pairs[row].language for row in rows]
    close = (retriever.encode_text(texts, codes).numpy() * wanted).sum(axis=1).mean()
    assert isinstance(retriever.text_tower, WithWords)
    retriever.text_tower = WithWords(retriever.text_tower.encoder, [f"none{n}" for n in retriever.text_tower.words])
    # The numbers in the captions decide, and the encoder's random weights say little of them.
    assert close > (retriever.encode_text(texts, codes).numpy() * wanted).sum(axis=1).mean() + 0.1


@pytest.mark.skipif(not HAS_ONNX, reason="needs the extra onnx")
@pytest.mark.parametrize(
    ("text", "code"), [("ein tiefer Ton, number 3", "deu"), ("un son", "fra"), ("a low 犬 🐕", "eng")]
)
def test_python_the_server_and_the_graph_alone_answer_the_same(
    inputs: Path, pack: Pack, tmp_path: Path, text: str, code: str
) -> None:
    build_index(str(pack.folder), str(inputs / "audio.npy"), str(tmp_path / "index"))
    index = Index.open(tmp_path / "index")
    with TestClient(create_app(index)) as client, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = client.get("/search", params={"text": text, "language": code, "top": 5}).json()
        matches = index.search(text, code, top=5)
    assert [(one["path"], one["score"]) for one in answer["matches"]] == [(one.path, one.score) for one in matches]
    # From the files of the pack, without a line of this package but the encoder.
    vocabulary = json.loads((pack.folder / "text" / "words.json").read_text())["words"]
    own = re.findall(r"[一-鿿]|[a-z]+|[0-9]+", text.lower())
    known = sum(word in vocabulary for word in own)
    words = [float(word in own) for word in vocabulary] + [max(0, 2 * known - len(own)) / len(own)]
    encoder = Retriever.from_pretrained(inputs / "model").text_tower
    vector = encode_captions(encoder, [(text, code)]).numpy()
    session = importlib.import_module("onnxruntime").InferenceSession(pack.folder / "projection.onnx")
    (found,) = session.run(None, {"text": vector, "words": np.array([words], np.float32)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = Retriever.from_pretrained(pack.folder).encode_text([text], code).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    scores = np.sort(found @ read_space(str(inputs / "audio.npy"), str(inputs / "pairs.csv")).audio.T)[0, ::-1]
    np.testing.assert_allclose([one.score for one in matches], scores[:5], atol=2e-3)


def test_an_index_of_foreign_vectors_is_built_and_asked_with_a_pack(inputs: Path, pack: Pack, tmp_path: Path) -> None:
    build_index(str(pack.folder), str(inputs / "audio.npy"), str(tmp_path / "index"))
    index = Index.open(tmp_path / "index")
    retriever = Retriever.from_pretrained(pack.folder)
    score = (
        retriever.encode_text(["ein tiefer Ton"], "deu").numpy()
        @ read_space(str(inputs / "audio.npy"), str(inputs / "pairs.csv")).audio.T
    )
    (best,) = index.search("ein tiefer Ton", "deu", top=1)
    assert int(best.path) == score.argmax()
    assert best.score == pytest.approx(score.max(), abs=2e-3)


def test_a_pack_made_of_vectors_says_that_it_reads_no_text(inputs: Path, tmp_path: Path) -> None:
    """Without asking for a language first."""
    np.save(tmp_path / "text.npy", random_rows(2 * CLIPS, 2))
    made = make_pack(
        str(inputs / "audio.npy"),
        str(inputs / "pairs.csv"),
        str(tmp_path / "text.npy"),
        tmp_path / "pack",
        space_text=str(inputs / "english.npy"),
        options=PackOptions(onnx=False),
        echo=lambda message: None,
    )
    assert build_index(str(made.folder), str(inputs / "audio.npy"), str(tmp_path / "index")).query == ""
    index = Index.open(tmp_path / "index")
    for language in (None, "eng"):
        with pytest.raises(ValueError, match=r"allowed its vector, .* no encoder of texts"):
            index.search("a low tone", language)


@pytest.mark.slow
def test_captions_have_the_same_vectors_in_parts_and_the_parts_are_said(inputs: Path) -> None:
    pair = read_space(str(inputs / "audio.npy"), str(inputs / "pairs.csv")).pairs[0]
    pairs, said = [replace(pair, caption=f"tone {n}") for n in range(TOGETHER + 1)], list[str]()
    found = encode_table(str(inputs / "model"), pairs, echo=said.append)
    edges = [0, TOGETHER - 1, TOGETHER]
    alone = encode_captions(found.tower, [(pairs[n].caption, pairs[n].language) for n in edges]).numpy()
    np.testing.assert_allclose(found.vectors[edges], alone, atol=1e-6)
    assert said == ["2,048 of 2,049 captions encoded", "2,049 of 2,049 captions encoded"]


def test_a_pack_of_an_encoder_with_low_rank_updates_is_opened_again(inputs: Path, tmp_path: Path) -> None:
    model = save_retriever(tmp_path / "model", **{"text.adapt.lora_rank": 2})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora" in name:
                parameter.add_(0.3)
    model.save_pretrained(tmp_path / "model")
    shutil.copytree(inputs, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("model", "pack"))
    encoder = Retriever.from_pretrained(packed(tmp_path, tmp_path / "out", onnx=False).folder).text_tower
    assert isinstance(encoder, WithWords)
    expected = encode_captions(model.text_tower, [("a low tone", "eng")])
    torch.testing.assert_close(encode_captions(encoder.encoder, [("a low tone", "eng")]), expected)


@pytest.mark.parametrize("method", ["both", "audio", "m2m"])
def test_a_pack_names_the_languages_that_it_was_trained_on(inputs: Path, tmp_path: Path, method: str) -> None:
    shutil.copytree(inputs, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("pack"))
    table = pd.read_csv(inputs / "pairs.csv")
    of_test = table[(table["split"] == "test") & (table["language"] == "eng")].assign(language="pol")
    pd.concat([table, of_test]).to_csv(tmp_path / "pairs.csv", index=False)
    settings = None if method == "both" else {**QUICK, "data.languages": "eng,deu"}
    given = str(inputs / "audio.npy"), str(tmp_path / "pairs.csv"), str(inputs / "model"), tmp_path / "out"
    options, text = PackOptions(method=method, onnx=False), str(inputs / "english.npy")
    made = make_pack(*given, space_text=text, options=options, settings=settings, echo=lambda message: None)
    # Which languages the encoder of `m2m` has learned is not known.
    assert Retriever.from_pretrained(made.folder).languages == (() if method == "m2m" else ("eng", "deu"))


def test_a_pack_hears_nothing_and_says_so_before_it_reads_a_sound(inputs: Path, pack: Pack, tmp_path: Path) -> None:
    make_tones(tmp_path / "audio", 1)
    with pytest.raises(ValueError, match=r"--audio: got '.*audio'; allowed a \.npy file or a data set of vectors"):
        build_index(str(pack.folder), str(tmp_path / "audio"), str(tmp_path / "index"))
    assert not (tmp_path / "index").exists()
    with pytest.raises(ValueError, match=r"--to mlflow: got 'model\.audio vectors.*'; allowed an encoder of audio"):
        export(pack.folder, "mlflow", tmp_path / "export", echo=lambda _: None)


def test_a_pack_for_an_index_answers_for_it_alone(inputs: Path, pack: Pack, tmp_path: Path) -> None:
    own = Retriever.from_pretrained(pack.folder)
    build_index(str(pack.folder), str(inputs / "audio.npy"), str(tmp_path / "index"))
    said: list[str] = []
    made = make_pack(
        str(tmp_path / "index"),
        str(inputs / "pairs.csv"),
        str(inputs / "model"),
        tmp_path / "other",
        options=PackOptions(method="audio", onnx=False, seed=3),
        settings={"train.epochs": "3", "evaluation.every_epochs": "3"},
        echo=said.append,
    )
    estimated = "before the first epoch, leave_one_out estimates which captions of 24 clips in 2 languages are right"
    assert said[:3] == ["encoding the captions", "80 of 80 captions encoded", estimated]
    # An epoch that is not validated has its line too; lines are seconds apart.
    assert said[3] == "epoch 1 of 3"
    assert said[-1].startswith("epoch 3 of 3: text_to_audio/mean/recall_at_1 ")
    assert not torch.equal(
        Retriever.from_pretrained(made.folder).encode_text(["a low tone"]), own.encode_text(["a low tone"])
    )
    index, of_own = Index.open(tmp_path / "index", checkpoint=str(made.folder)), Index.open(tmp_path / "index")
    english, german = ("a low tone", "eng"), ("ein tiefer Ton", "deu")
    # English is the own model's if it is at hand, and the other languages are the pack's.
    assert index.search(*english) == of_own.search(*english)
    assert index.search(*german) != of_own.search(*german)
    shutil.move(pack.folder, tmp_path / "moved")
    try:
        alone = Index.open(tmp_path / "index", checkpoint=str(made.folder))
        assert alone.search(*german) == index.search(*german)
        assert alone.search(*english) != index.search(*english)
    finally:
        shutil.move(tmp_path / "moved", pack.folder)
    unfitted = packed(inputs, tmp_path / "unfitted", "audio", onnx=False, seed=4)
    with pytest.raises(ValueError, match="the model that made the index's vectors"):
        Index.open(tmp_path / "index", checkpoint=str(unfitted.folder)).search("a low tone", "eng")


def small_pack(inputs: Path, folder: Path, pairs: Path) -> Pack:
    """A pack for the index in the folder, trained for one epoch."""
    return make_pack(
        str(folder / "index"),
        str(pairs),
        str(inputs / "model"),
        folder / "pack",
        options=PackOptions(method="audio", onnx=False),
        settings={"train.epochs": "1", "train.batch_size": "4"},
        echo=lambda message: None,
    )


def test_sounds_go_to_the_own_model_and_are_refused_without_it(inputs: Path, pack: Pack, tmp_path: Path) -> None:
    model, sound = save_retriever(tmp_path / "model", seed=3), make_tones(tmp_path / "audio") / "tone 2.wav"
    build_index(str(tmp_path / "model"), str(tmp_path / "audio"), str(tmp_path / "index"))
    rows = [[row, f"Ton {row}", "deu", ("train", "train", "val", "test")[row % 4]] for row in range(12)]
    with (tmp_path / "pairs.csv").open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([["audio_row", "caption", "language", "split"], *rows])
    made = small_pack(inputs, tmp_path, tmp_path / "pairs.csv")

    def asked() -> Index:
        return Index.open(tmp_path / "index", checkpoint=str(made.folder))

    assert [one.path for one in asked().like(sound, top=1)] == ["tone 2.wav"]
    labels = ["ein tiefer Ton", "ein Hund"]
    text = Retriever.from_pretrained(made.folder).encode_text(labels, "deu")
    expected = dict(zip(labels, model.similarity(text, model.encode_audio([sound]))[:, 0].tolist(), strict=True))
    assert {one["label"]: one["score"] for one in asked().tag(sound, None, labels, "deu")} == pytest.approx(expected)
    assert TestClient(create_app(asked()), base_url="http://127.0.0.1").get("/health").json()["has_pack"]
    # The server opens both models before it answers.
    Calibration({}, {"model": "another"}).write(tmp_path / "model")
    with pytest.raises(ValueError, match=r"calibration: got .*model.*it was fitted on the scores of another"):
        create_app(asked())
    (tmp_path / "model").rename(tmp_path / "gone")
    build_index(str(pack.folder), str(inputs / "audio.npy"), str(tmp_path / "foreign"))
    for index, reason in (
        (asked(), "with .*model where it was, sounds too"),
        (Index.open(tmp_path / "foreign"), "its model hears nothing"),
    ):
        with pytest.raises(ValueError, match=f"sound: got 'audio'; allowed a text, .*{reason}"):
            index.like(sound)
        with pytest.raises(ValueError, match="sound: got 'audio'"):
            index.tag(np.zeros(8_000, np.float32), 16_000, labels, "deu")
        assert index.like_window(index.search("ein Ton", "deu", top=1)[0].path, top=1)
    vector = np.load(inputs / "audio.npy")[3]
    assert Index.open(tmp_path / "foreign").like(vector, top=1)[0].path == "3"


def test_english_texts_go_to_the_pack_if_the_own_model_has_only_its_captions(inputs: Path, tmp_path: Path) -> None:
    given = VectorImport(
        audio=str(inputs / "audio.npy"), text=str(inputs / "english.npy"), table=str(tmp_path / "english.csv")
    )
    rows = "".join(f"{row},a low tone {row}\n" for row in range(CLIPS))
    (tmp_path / "english.csv").write_text(f"audio_row,caption\n{rows}", encoding="utf-8")
    data = str(import_vectors(given, tmp_path / "data").folder)
    save_retriever(tmp_path / "model", **{"audio": "vectors", "audio.width": D, "text": "vectors", "text.data": data})
    build_index(str(tmp_path / "model"), data, str(tmp_path / "index"))
    made = small_pack(inputs, tmp_path, inputs / "pairs.csv")
    index = Index.open(tmp_path / "index", checkpoint=str(made.folder))
    pack = Index.open(tmp_path / "index", retriever=index.retriever)
    pack.manifest = replace(pack.manifest, model=model_fingerprint(index.retriever))
    assert index.search("a dog barks", "eng", top=3) == pack.search("a dog barks", "eng", top=3)
    # That model is here, and would hear nothing at any place.
    with pytest.raises(ValueError, match=r"sound: got 'audio'; allowed .*: this index was made of vectors"):
        index.like(b"a sound")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": "bertt"}, "--text: got 'bertt'"),
        ({"text": "small_transformer"}, "allowed weights that were trained"),
        ({"space_text": None}, "--method: got 'both'; allowed with --space-text"),
        ({"split": "dev"}, "allowed clips in train, val and dev"),
        (
            {"split": "train", "options": PackOptions(method="m2m", onnx=False)},
            "--split: got 'train'; allowed val, test or another split",
        ),
        ({"settings": {"model.embedding_width": "4"}}, "--model.embedding_width: got '4'"),
        ({"settings": {"train.epochs": "4"}}, "--train.epochs: got '4'; allowed nothing: method both is solved"),
        (
            {"settings": {"model.text.max_tokens": "4"}},
            r"--model\.text\.max_tokens: got '4'; allowed nothing: the encoder of .*/model is used as it was saved",
        ),
        (
            {"settings": {"model.text.max_tokens": "4"}, "text": "SPACE"},
            r"--model\.text\.max_tokens: got '4'; allowed nothing: the encoder of .*\.npy is used as it was saved",
        ),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(
    inputs: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    given = {"space_text": str(inputs / "english.npy"), "text": str(inputs / "model"), **changes}
    given.setdefault("options", PackOptions(onnx=False))
    if given["text"] == "SPACE":
        given["text"] = str(inputs / "audio.npy")
    with pytest.raises(ValueError, match=message):
        make_pack(
            str(inputs / "audio.npy"),
            str(inputs / "pairs.csv"),
            out=tmp_path / "out",
            **given,
        )
    assert not (tmp_path / "out").exists()


def test_a_column_text_row_without_the_spaces_text_vectors_is_no_vector(inputs: Path, tmp_path: Path) -> None:
    table = pd.read_csv(inputs / "pairs.csv")
    table.assign(text_row=range(len(table))).to_csv(tmp_path / "pairs.csv", index=False)
    given = str(inputs / "audio.npy"), str(tmp_path / "pairs.csv"), str(inputs / "model"), tmp_path / "out"
    with pytest.raises(ValueError, match="--method: got 'both'; allowed with --space-text"):
        make_pack(*given, options=PackOptions(onnx=False))
    assert read_space(*given[:2]).text_of() == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train.epochs": "0"}, r"train\.epochs: got 0"),
        ({"model.interaction": "late"}, r"model\.interaction: got 'late'; allowed nothing: a pack sets it itself"),
        ({"objective": "m_ltm"}, r"objective\.pair\.metric: got 'mahalanobis'; allowed euclidean"),
        ({"data.languages": "jpn"}, r"data\.languages: got 'jpn'; allowed languages of .*pairs\.csv: eng"),
    ],
)
def test_a_wrong_setting_is_told_before_the_captions_are_encoded(
    inputs: Path, tmp_path: Path, settings: dict[str, str], message: str
) -> None:
    """They could not be: there is no such encoder."""
    options = PackOptions(onnx=False, method="audio")
    given = str(inputs / "audio.npy"), str(inputs / "pairs.csv"), str(inputs / "none"), tmp_path / "out"
    with pytest.raises(ValueError, match=message):
        make_pack(*given, options=options, settings=settings)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("29,x,eng,Dev,", r"split: got 'Dev'"),
        ("0,x,eng,val,", r"clip 0 is in split train in an earlier row and in val here"),
        ("0,x,eng,train,b", r"clip_id: got 'b'; allowed 'a', the id of audio_row 0 in an earlier row \(.*line 2\)"),
        ("29,x,eng,train,a", r"clip_id: got 'a'; allowed an id of one clip alone"),
    ],
)
def test_a_wrong_row_of_captions_is_told_by_its_line_before_they_are_encoded(
    tmp_path: Path, row: str, message: str
) -> None:
    np.save(tmp_path / "audio.npy", random_rows(30, 0))
    rows = ["audio_row,caption,language,split,clip_id", "0,x,eng,train,a", "0,x,deu,train,", row]
    (tmp_path / "pairs.csv").write_text("\n".join(rows))
    with pytest.raises(ValueError, match=rf"^{tmp_path}/pairs\.csv, line 4(, |: ){message}"):
        read_space(str(tmp_path / "audio.npy"), str(tmp_path / "pairs.csv"))


def test_a_place_that_cannot_be_written_is_told_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deny(monkeypatch)
    with pytest.raises(PermissionError, match=f"cannot be written: '{tmp_path}'"):
        make_pack("space.npy", "pairs.csv", "text.npy", tmp_path / "pack")


def test_a_missing_extra_is_named_with_the_way_around_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ValueError, match=r"no onnxscript installed.*\[onnx\].*; --no-onnx makes the pack without"):
        make_pack("space.npy", "pairs.csv", "text.npy", tmp_path / "pack")


def test_text_vectors_of_another_count_or_width_are_refused(inputs: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "few.npy", random_rows(7, 2))
    np.save(tmp_path / "wide.npy", np.ones((CLIPS, D + 1), np.float32))
    for name, message in (("few", "got '7 rows'"), ("wide", f"got 'vectors of {D + 1} numbers'")):
        with pytest.raises(ValueError, match=message):
            read_space(str(inputs / "audio.npy"), str(inputs / "pairs.csv"), str(tmp_path / f"{name}.npy"))
    assert ForeignSpace(np.ones((1, D), np.float32), []).text_of() == {}


def test_splits_and_weights_are_drawn_by_the_seed_that_is_set(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    spied(monkeypatch, making, "read_space", lambda _, *of, seed, **options: drawn.append(seed))
    made = packed(inputs, tmp_path / "pack", "audio", seed=7, onnx=False)
    assert drawn == [7]
    other = packed(inputs, tmp_path / "other", "audio", seed=8, onnx=False)
    assert made.after.metrics != other.after.metrics


def test_captions_without_a_language_are_of_the_one_that_is_set(inputs: Path, tmp_path: Path) -> None:
    lines = (inputs / "pairs.csv").read_text().splitlines()
    rows = [line.split(",") for line in lines if ",deu," in line or line.startswith("audio_row")]
    (tmp_path / "pairs.csv").write_text("\n".join(",".join([*row[:-2], row[-1]]) for row in rows) + "\n")
    made = make_pack(
        str(inputs / "audio.npy"),
        str(tmp_path / "pairs.csv"),
        str(inputs / "model"),
        tmp_path / "pack",
        options=PackOptions(method="audio", language="fra", onnx=False),
        settings=QUICK,
        echo=lambda message: None,
    )
    assert {metric.language for metric in made.after.metrics} >= {"fra"}
    assert not {metric.language for metric in made.after.metrics} & {"eng", "deu"}
