from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ray_atr.data.schema import Clip
from ray_atr.data.shards import Manifest, iterate_rows, write_clips
from ray_atr.workshop.importing.import_options import VectorImport
from ray_atr.workshop.importing.translation import (
    Translation,
    Translator,
    back_translate,
    back_translation_table,
    chrf,
    embedding_similarity,
    fill_languages,
)
from ray_atr.workshop.importing.vector_import import import_vectors
from tests.support.scripts import run_pipeline


def make_set(folder: Path, number: int = 8) -> Manifest:
    clips = [
        Clip(
            clip_id=f"clip-{index}",
            audio=b"audio",
            sample_rate=16_000,
            seconds=1.0,
            captions={
                "eng": (f"a dog barks {index}", "rain falls"),
                **({"fra": (f"un chien {index}", "il pleut")} if index % 2 else {}),
            },
            split="test" if index >= number - 3 else "train",
            source="test",
        )
        for index in range(number)
    ]
    return write_clips(folder, clips, name="toy", licence="CC0", clips_per_shard=2)


def shout(texts: Sequence[str], source: str, target: str) -> list[str]:
    return [f"{source}>{target}:{text}" for text in texts]


def test_missing_languages_are_filled_and_marked(tmp_path: Path) -> None:
    make_set(tmp_path / "set")
    options = Translation(model="toy", languages=("eng", "fra", "jpn"))
    filled = fill_languages(tmp_path / "set", tmp_path / "out", options, translate=shout)
    rows = {row["clip_id"]: row for split in filled.splits for row in iterate_rows(filled, split)}
    assert rows["clip-1"]["captions"] == {
        "eng": ["a dog barks 1", "rain falls"],
        "fra": ["un chien 1", "il pleut"],
        "jpn": ["eng>jpn:a dog barks 1", "eng>jpn:rain falls"],
    }
    assert rows["clip-1"]["translated"] == ["jpn"]
    assert rows["clip-2"]["captions"]["fra"] == ["eng>fra:a dog barks 2", "eng>fra:rain falls"]
    assert rows["clip-2"]["translated"] == ["fra", "jpn"]
    assert (filled.num_captions("fra"), filled.num_translated("fra"), filled.num_translated("eng")) == (16, 8, 0)
    assert filled.num_translated("jpn") == 16
    assert "languages filled from eng by toy" in filled.notes


def test_a_blank_translation_leaves_the_clip_without_the_language(tmp_path: Path) -> None:
    make_set(tmp_path / "set")

    def loses_rain(texts: Sequence[str], source: str, target: str) -> list[str]:
        return ["" if "rain" in text and target == "jpn" else text for text in texts]

    options = Translation(model="toy", languages=("fra", "jpn"))
    filled = fill_languages(tmp_path / "set", tmp_path / "out", options, translate=loses_rain)
    assert filled.languages == ("eng", "fra")
    assert "jpn: 8 clips stay without, a translation was blank" in filled.notes


def test_a_stopped_translation_goes_on(tmp_path: Path) -> None:
    manifest = make_set(tmp_path / "set")
    options = Translation(model="toy", languages=("fra",))
    calls: Counter[str] = Counter()

    def stops(texts: Sequence[str], source: str, target: str) -> list[str]:
        if len(calls) >= 2:
            raise KeyboardInterrupt
        calls.update(texts[:1])
        return shout(texts, source, target)

    with pytest.raises(KeyboardInterrupt, match="run the same command again"):
        fill_languages(tmp_path / "set", tmp_path / "out", options, translate=stops)
    assert not (tmp_path / "out").exists()
    again: list[str] = []

    def counts(texts: Sequence[str], source: str, target: str) -> list[str]:
        again.extend(texts[:1])
        return shout(texts, source, target)

    filled = fill_languages(tmp_path / "set", tmp_path / "out", options, translate=counts)
    assert not set(calls) & set(again)
    assert filled.num_captions("fra") == 2 * manifest.num_rows
    whole = fill_languages(tmp_path / "set", tmp_path / "whole", options, translate=shout)
    assert whole.hash == filled.hash


def test_an_encoder_that_is_not_there_is_not_called_the_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"embedder: got .*nowhere'; allowed a text encoder by folder or hub id"):
        embedding_similarity(str(tmp_path / "nowhere"))


def test_what_cannot_be_translated_is_refused(tmp_path: Path) -> None:
    make_set(tmp_path / "set")
    with pytest.raises(ValueError, match=r"model: got .*nowhere"):
        fill_languages(tmp_path / "set", tmp_path / "out", Translation(model=str(tmp_path / "nowhere")))
    with pytest.raises(ValueError, match="source_language: got 'deu'; allowed languages of the data: eng, fra"):
        fill_languages(
            tmp_path / "set", tmp_path / "out", Translation(model="x", source_language="deu"), translate=shout
        )
    with pytest.raises(ValueError, match="did you mean fra"):
        Translation(model="x", languages=("French",))
    files = {"audio": tmp_path / "clip.npy", "text": tmp_path / "text.npy", "table": tmp_path / "pairs.csv"}
    np.save(files["audio"], np.ones((1, 2), np.float32))
    np.save(files["text"], np.ones((1, 2), np.float32))
    files["table"].write_text("audio_row,caption\n0,rain\n")
    import_vectors(VectorImport(**{name: str(file) for name, file in files.items()}), tmp_path / "vectors")
    with pytest.raises(ValueError, match=r"data: got .*vectors'; allowed a data set of audio; in one of vectors, each"):
        fill_languages(
            tmp_path / "vectors", tmp_path / "out", Translation(model="x", languages=("deu",)), translate=shout
        )
    assert Translation(model="x", languages=("fr", "ko")).languages == ("fra", "kor")
    assert not (tmp_path / "out").exists()


def ngram_score(found: str, wanted: str) -> float:
    """chrF by the words of the paper, n = 1 ... 6, beta = 2, as loops over positions."""
    found, wanted = found.replace(" ", ""), wanted.replace(" ", "")
    precision, recall, orders = 0.0, 0.0, 0
    for n in range(1, 7):
        ours = [found[i : i + n] for i in range(len(found) - n + 1)]
        left = [wanted[i : i + n] for i in range(len(wanted) - n + 1)]
        if not ours or not left:
            continue
        total, matched = len(left), 0
        for gram in ours:
            if gram in left:
                left.remove(gram)
                matched += 1
        precision, recall, orders = precision + matched / len(ours), recall + matched / total, orders + 1
    precision, recall = precision / orders, recall / orders
    return 5 * precision * recall / (4 * precision + recall) if precision + recall else 0.0


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ("a dog barks", "a dog barked"),
        ("rain falls on it", "it rains"),
        ("ab", "abcabc"),
        ("aaaa", "aa"),
        ("犬が鳴く", "犬が吠える"),
    ],
)
def test_chrf_equals_the_formula_as_loops(found: str, wanted: str) -> None:
    assert chrf(found, wanted) == pytest.approx(ngram_score(found, wanted), abs=1e-12)


def test_chrf_bounds() -> None:
    assert chrf("rain falls", "rain falls") == pytest.approx(1.0)
    assert chrf("rain  falls", "rain falls") == pytest.approx(1.0)
    assert chrf("abc", "xyz") == 0.0
    assert chrf("", "xyz") == 0.0
    # Memory counts more than precision: a superset beats a subset.
    assert chrf("a dog barks loudly", "a dog barks") > chrf("a dog", "a dog barks")


def test_back_translation_compares_like_with_like(tmp_path: Path) -> None:
    make_set(tmp_path / "set")
    options = Translation(model="toy", languages=("fra", "jpn"))
    filled = fill_languages(tmp_path / "set", tmp_path / "out", options, translate=shout)
    seen: dict[str, list[str]] = {}

    def back(texts: Sequence[str], source: str, target: str) -> list[str]:
        assert target == "eng"
        seen[source] = list(texts)
        return [text.removeprefix(f"eng>{source}:") if source == "jpn" else "nothing" for text in texts]

    french, japanese = back_translate(filled, "train", back, ["eng", "fra", "jpn"], samples=6)
    assert japanese.mean == pytest.approx(1.0)
    assert french.mean < 0.3
    assert len(seen["fra"]) == len(seen["jpn"]) == 6
    assert japanese.is_machine_made
    table = back_translation_table([french, japanese])
    assert table[1].split()[:3] == ["fra", "machine", "6"]
    constant = back_translate(
        filled, "train", back, ["jpn"], samples=3, similarity=lambda found, wanted: np.full(len(found), 0.25)
    )
    assert constant[0].mean == 0.25
    with pytest.raises(ValueError, match="languages: got 'deu'"):
        back_translate(filled, "train", back, ["deu"])


def test_a_language_that_a_split_lacks_is_not_among_the_allowed_ones(tmp_path: Path) -> None:
    held: dict[str, dict[str, list[str]]] = {
        "train": {"eng": ["rain"], "fra": ["la pluie"]},
        "test": {"eng": ["rain", "wind"], "fra": ["la pluie"], "deu": ["Regen", "Wind"]},
    }
    clips = [
        Clip(clip_id=split, audio=b"x", sample_rate=9, seconds=1.0, captions=captions, split=split, source="toy")
        for split, captions in held.items()
    ]
    manifest = write_clips(tmp_path / "set", clips, name="toy", licence="CC0")
    as_many = "allowed languages with as many captions as in eng in a clip of split test: deu$"
    with pytest.raises(ValueError, match=f"languages: got 'fra'; {as_many}"):
        back_translate(manifest, "test", shout, ["fra", "deu"])


@pytest.fixture(scope="module")
def tiny_m2m100(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A randomly initialised M2M100 of one layer with a vocabulary of its own."""
    import sentencepiece
    import torch
    from transformers import M2M100Config, M2M100ForConditionalGeneration, M2M100Tokenizer

    folder = tmp_path_factory.mktemp("m2m100")
    texts = ["a dog barks in the rain", "rain falls on a roof", "un chien aboie", "ein Hund bellt"] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_prefix=str(folder / "spm"),
        vocab_size=50,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    for index in range(3, pieces.get_piece_size()):
        vocabulary[pieces.id_to_piece(index)] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    tokeniser = M2M100Tokenizer(str(folder / "vocab.json"), str(folder / "spm.model"))
    torch.manual_seed(0)
    config = M2M100Config(
        vocab_size=len(vocabulary) + 110,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=64,
        init_std=1.0,
        tie_word_embeddings=False,
    )
    model = M2M100ForConditionalGeneration(config)
    # It shall write pieces of words, as a trained model does, and no language tokens.
    with torch.no_grad():
        model.lm_head.weight[:4] = 0
        model.lm_head.weight[len(vocabulary) :] = 0
    model.save_pretrained(folder)
    tokeniser.save_pretrained(folder)
    return folder


def test_a_model_translates_in_order_whatever_the_batches(tiny_m2m100: Path) -> None:
    options = {"model": str(tiny_m2m100), "languages": ("fra", "deu"), "num_beams": 1, "max_new_tokens": 6}
    texts = ["rain falls on a roof", "rain", "a dog barks in the rain", "un chien"]
    one = Translator(Translation(batch_size=1, **options))
    all_at_once = Translator(Translation(batch_size=4, **options))
    singly = [one([text], "eng", "fra")[0] for text in texts]
    assert one(texts, "eng", "fra") == singly
    assert all_at_once(texts, "eng", "fra") == singly
    assert len(set(singly)) >= 3
    assert not any("__" in text for text in singly)
    # The target language is what the decoder starts from.
    assert one(texts, "eng", "deu") != singly


def test_the_script_fills_and_checks(
    tmp_path: Path, tiny_m2m100: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_set(tmp_path / "set")
    model = ["--model", str(tiny_m2m100), "--languages", "fra", "deu", "--num-beams", "1", "--max-new-tokens", "4"]
    data, out = ["--data", str(tmp_path / "set")], ["--out", str(tmp_path / "out")]
    run = partial(run_pipeline, monkeypatch, "translate_captions")
    assert run("fill", *data, *out, *model, "--ray", "never") == 0
    printed = capsys.readouterr()
    assert "deu: 16 captions, 16 made by machine" in printed.out
    assert printed.err == ""
    assert run("check", *data, "--samples", "4", *model) == 0
    assert re.search(r"^fra +human ", capsys.readouterr().out, re.MULTILINE)
    assert run("check", "--data", str(tmp_path / "nowhere"), *model) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.ray
def test_ray_actors_write_what_this_process_writes(tmp_path: Path, tiny_m2m100: Path, ray_session: None) -> None:
    make_set(tmp_path / "set")
    options = {"model": str(tiny_m2m100), "languages": ("fra", "deu"), "num_beams": 1, "max_new_tokens": 4}
    here = fill_languages(tmp_path / "set", tmp_path / "here", Translation(ray="never", **options))
    there = fill_languages(tmp_path / "set", tmp_path / "there", Translation(cpus_per_actor=0.5, **options))
    assert here.hash == there.hash
