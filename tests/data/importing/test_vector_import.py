"""Vectors as data: imported with every mistake named by its row, trained, evaluated, and given to a saved retriever."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import save_file

from ray_atr.cli.prepare import run, summary
from ray_atr.common.digests import DamagedFileError
from ray_atr.common.override import override
from ray_atr.data.caption_vectors import GIVEN, open_caption_vectors, read_given
from ray_atr.data.features import MANIFEST_FILE
from ray_atr.data.shards import read_captions, read_manifest
from ray_atr.deploy.index.build import build_index
from ray_atr.evaluation.encoding import EncodingSource
from ray_atr.evaluation.options import Encoding, EvaluationOptions
from ray_atr.evaluation.run import evaluate
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.models.text import train_tokenizer
from ray_atr.models.vectors import AudioVectors, TextVectors
from ray_atr.training.checks import check_experiment
from ray_atr.training.inputs import prepare
from ray_atr.training.loop import train_trial
from ray_atr.workshop.importing.check import check_data_set, page
from ray_atr.workshop.importing.import_options import Check, VectorImport
from ray_atr.workshop.importing.vector_import import import_vectors, read_vectors
from tests.support.tiny import make_data, tiny
from tests.support.vectors import CAPTIONS, CLIPS, on_vectors, vector_files


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    return vector_files(tmp_path / "files")


def test_a_set_of_vectors_is_kept_bit_for_bit_and_passes_the_check(files: dict[str, str], tmp_path: Path) -> None:
    manifest = import_vectors(VectorImport(**files), tmp_path / "data")
    assert [manifest.num_rows_of(split) for split in ("train", "val", "test")] == [32, 8, 8]
    assert manifest.languages == ("eng", "fra")
    assert check_data_set(manifest.folder).is_fit
    vectors = open_caption_vectors(tmp_path / "data" / GIVEN)
    rows = vectors.rows([("son 7", "fra"), ("sound 47", "eng"), ("sound 7", "fra")])
    assert rows[2] == -1
    np.testing.assert_array_equal(vectors.vectors(rows[:2]), np.load(files["text"])[[15, 94]])


def test_the_command_that_trains_can_be_pasted(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for name, file in files.items() for word in (f"--{name}", file)]
    run(["vectors", *words, "--out", str(tmp_path / "my vectors")], "prepare")
    said = capsys.readouterr().out
    assert said.startswith("importing\n"), "after a line, one each ten seconds says that it goes on"
    assert f"train on it: ray-atr train --recipe vectors --data.source '{tmp_path}/my vectors'" in said
    Path(files["table"]).write_text("audio_row,caption\n0,a dog\n1,rain\n", encoding="utf-8")
    run(["vectors", *words, "--out", str(tmp_path / "train alone")], "prepare")
    said = capsys.readouterr().out
    assert "to train on it, it needs clips in train and in val" in said
    assert "ray-atr train" not in said


def test_a_blank_id_contradicts_nothing(files: dict[str, str], tmp_path: Path) -> None:
    Path(files["table"]).write_text("audio_row,caption,clip_id\n3,a dog,d\n3,rain,\n4,wind,\n")
    manifest = import_vectors(VectorImport(**files), tmp_path / "data")
    assert [clip.clip_id for clip in read_captions(manifest, "train")] == ["d", "clip-00000004"]


def test_rows_that_pandas_writes_with_a_point_are_whole_numbers(files: dict[str, str], tmp_path: Path) -> None:
    Path(files["table"]).write_text("audio_row,text_row,caption\n3.0,1.0,a dog\n4.0,0.0,wind\n")
    manifest = import_vectors(VectorImport(**files), tmp_path / "data")
    assert [clip.clip_id for clip in read_captions(manifest, "train")] == ["clip-00000003", "clip-00000004"]
    _, vectors = read_given(manifest, "train", [("wind", "eng"), ("a dog", "eng")])
    np.testing.assert_array_equal(vectors, np.load(files["text"])[:2])


def test_blank_splits_of_vectors_are_counted(files: dict[str, str], tmp_path: Path) -> None:
    Path(files["table"]).write_text("audio_row,caption,split\n3,a dog,\n4,wind,val\n")
    manifest = import_vectors(VectorImport(**files), tmp_path / "data")
    assert manifest.notes[1] == "blank splits: 1 row, taken to be in train (--split)"


def test_a_vector_lasts_no_time(files: dict[str, str], tmp_path: Path) -> None:
    manifest = import_vectors(VectorImport(**files), tmp_path / "data")
    assert manifest.seconds == 0
    report = check_data_set(manifest.folder)
    assert report.seconds == 0
    assert not any("hours" in line for line in (*page(report), *summary(manifest)))
    # Its rows say one second, which is no length to compare with a window's.
    short = check_data_set(manifest.folder, Check(clip_seconds=0.5))
    assert short.long_clips == 0
    assert page(short)[-1] == "fit for use"


def test_a_column_of_numbers_and_a_store_to_write_to_are_refused(files: dict[str, str], tmp_path: Path) -> None:
    pq.write_table(pa.table({"clip": list(range(CLIPS))}), tmp_path / "clips.parquet")
    with pytest.raises(ValueError, match=r"audio: got .*clips.parquet::clip: a column of int64'"):
        import_vectors(VectorImport(**{**files, "audio": f"{tmp_path}/clips.parquet::clip"}), tmp_path / "data")
    with pytest.raises(ValueError, match=r"out: got 's3://bucket/set'; allowed a folder on this machine"):
        import_vectors(VectorImport(**files), "s3://bucket/set")


def test_the_data_set_says_where_its_vectors_are_and_how_wide(files: dict[str, str], tmp_path: Path) -> None:
    folder = Path(import_vectors(VectorImport(**files), tmp_path / "data").folder)
    found = on_vectors(folder)
    assert isinstance(found.model.audio, AudioVectors)
    assert isinstance(found.model.text, TextVectors)
    assert (found.model.audio.width, found.model.text.data) == (12, str(folder))
    assert found.data.languages == ("eng", "fra")
    given = on_vectors(folder, model__audio__width=13, model__text__data=str(tmp_path / "other"))
    assert isinstance(given.model.audio, AudioVectors)
    assert given.model.audio.width == 13
    (folder / GIVEN / MANIFEST_FILE).unlink()
    with pytest.raises(
        ValueError, match=r"model.audio: got 'vectors'; allowed with a data set that `ray-atr prepare vec"
    ):
        on_vectors(folder)


@pytest.mark.parametrize("file", ["keys.npy", "part-00000.npy"])
def test_a_damaged_vector_of_a_data_set_is_named_and_never_removed(
    file: str, files: dict[str, str], tmp_path: Path
) -> None:
    folder = Path(import_vectors(VectorImport(**files), tmp_path / "data").folder)
    damaged = folder / GIVEN / file
    content = bytearray(damaged.read_bytes())
    content[-2] ^= 1
    damaged.write_bytes(content)
    tower = TextVectors(data=str(folder))
    with pytest.raises(DamagedFileError, match="import the vectors again"):
        tower.build().vectors.vectors(np.zeros(1, np.int64))
    assert damaged.read_bytes() == bytes(content)
    assert (folder / GIVEN / MANIFEST_FILE).is_file()


def test_a_head_on_vectors_learns_is_saved_and_takes_vectors(files: dict[str, str], tmp_path: Path) -> None:
    import_vectors(VectorImport(**files), tmp_path / "data")
    experiment = on_vectors(tmp_path / "data", objective__scheme="kcl")
    said: list[str] = []
    prepared = prepare(experiment, tmp_path / "home", use_ray=False, echo=said.append)
    assert said[-1] == f"vectors: {CLIPS} of {CLIPS} clips"
    reported: list[dict[str, Any]] = []
    train_trial(experiment, prepared, tmp_path / "run", reported.append, use_ray_data=False)
    assert reported[-2]["train/loss"] < 0.7 * reported[0]["train/loss"]
    retriever = Retriever.from_pretrained(tmp_path / "run" / "best")
    audio, text = np.load(files["audio"]), np.load(files["text"])
    clips = retriever.encode_audio(list(audio))
    by_words = retriever.encode_text([f"sound {row}" for row in range(CLIPS)])
    by_vector = retriever.encode_text(text[::2])
    torch.testing.assert_close(by_words, by_vector)
    of_kind = (clips @ by_vector.T)[:, :6].argmax(dim=1) == torch.arange(CLIPS) % 6
    assert float(of_kind.float().mean()) > 0.8
    hidden = torch.relu(
        torch.from_numpy(audio) @ retriever.audio_projection[0].weight.T + retriever.audio_projection[0].bias
    )
    by_hand = hidden @ retriever.audio_projection[2].weight.T + retriever.audio_projection[2].bias
    torch.testing.assert_close(clips, torch.nn.functional.normalize(by_hand.detach(), dim=1), rtol=1e-4, atol=1e-5)


def test_vectors_and_audio_are_not_taken_for_each_other(files: dict[str, str], tmp_path: Path) -> None:
    vectors, tones = tmp_path / "data", make_data(tmp_path / "tones")
    import_vectors(VectorImport(**files), vectors)
    build_retriever(on_vectors(vectors).model, seed=0).save_pretrained(tmp_path / "head")
    of_audio = tiny(tones)
    words = train_tokenizer(["a tone"], 300)
    build_retriever(of_audio.model, tokenizer=words, seed=0).save_pretrained(tmp_path / "hears")
    holds_vectors, holds_audio = "which holds vectors and no audio", "which holds no vectors"
    with pytest.raises(ValueError, match=rf"model\.audio: got 'small_cnn'; allowed one of vectors .*{holds_vectors}"):
        check_experiment(tiny(vectors, data__languages="eng", train__batch_size=8))
    for folder, data, why in (("head", tones, holds_audio), ("hears", vectors, holds_vectors)):
        with pytest.raises(ValueError, match=f"checkpoint: got '.*{folder}'; allowed .*{why}"):
            EncodingSource.from_retriever(tmp_path / folder, read_manifest(str(data)), "test", Encoding(ray="never"))
        with pytest.raises(ValueError, match=f"--checkpoint: got '.*{folder}'; allowed .*{why}"):
            build_index(str(tmp_path / folder), str(data), str(tmp_path / "index"))
    taught = {"objective__correspondence": "teacher", "objective__correspondence__teachers": str(tmp_path / "head")}
    with pytest.raises(ValueError, match=f"correspondence.teachers: got .*{holds_audio}"):
        check_experiment(tiny(tones, **taught))
    with pytest.raises(ValueError, match=f"objective.knowledge.source: got .*{holds_vectors}"):
        check_experiment(tiny(tones, objective="ask", objective__knowledge__source=str(vectors)))
    check_experiment(tiny(tones, **{**taught, "objective__correspondence__teachers": str(tmp_path / "hears")}))


@pytest.mark.usefixtures("own_home")
def test_an_evaluation_of_a_head_has_a_page_with_what_queries_find(files: dict[str, str], tmp_path: Path) -> None:
    import_vectors(VectorImport(**files), tmp_path / "data")
    retriever = build_retriever(on_vectors(tmp_path / "data").model, seed=0)
    retriever.save_pretrained(tmp_path / "saved")
    options = EvaluationOptions(data=str(tmp_path / "data"), draws=5, mlflow=False, figures=False)
    found = evaluate(
        [tmp_path / "saved"], options, encoding=Encoding(ray="never"), out=tmp_path / "out", echo=lambda message: None
    )
    page = Path(str(found.folder), "evaluation.html").read_text()
    assert "What queries find" in page
    assert re.search(r'<span class="score">.*cosine', page)
    assert "<audio" not in page


@pytest.mark.usefixtures("own_home")
@pytest.mark.parametrize("words", ["{} ({})", "This is a sound of {}."], ids=["captions", "prompts"])
def test_a_head_that_knows_its_captions_alone_is_not_asked_prompts(
    files: dict[str, str], tmp_path: Path, words: str
) -> None:
    """Labelled vectors are retrieved; classified too only if the prompts happen to be captions."""
    lines = ["audio_row,caption,text_row,language,split,clip_id,label"]
    for row in range(CLIPS):
        kind = f"kind {row % 6}"
        lines += [
            f"{row},{words.format(kind, 'eng')},{row % 6},eng,{'train' if row < 32 else 'test'},clip {row},{kind}"
        ]
    Path(files["table"]).write_text("\n".join(lines) + "\n")
    import_vectors(VectorImport(**files), tmp_path / "data")
    build_retriever(on_vectors(tmp_path / "data").model, seed=0).save_pretrained(tmp_path / "saved")
    options = EvaluationOptions(data=str(tmp_path / "data"), draws=5, mlflow=False, figures=False)
    found = evaluate(
        [tmp_path / "saved"], options, encoding=Encoding(ray="never"), out=tmp_path / "out", echo=lambda message: None
    )
    notes = [note for note in found.page.notes if note.startswith("No classification by text prompts in eng: ")]
    assert "text_to_audio/eng/recall_at_1" in found.page.metrics
    assert ("classification/eng/accuracy" in found.page.metrics) == (not notes) == words.startswith("This")


def test_a_saved_head_takes_vectors_after_its_data_set_is_gone(files: dict[str, str], tmp_path: Path) -> None:
    import_vectors(VectorImport(**files), tmp_path / "data")
    retriever = build_retriever(on_vectors(tmp_path / "data").model, seed=0)
    retriever.save_pretrained(tmp_path / "saved")
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    again = Retriever.from_pretrained(tmp_path / "saved")
    text = np.load(files["text"])
    torch.testing.assert_close(again.encode_text(text), retriever.encode_text(text), rtol=0, atol=0)
    with pytest.raises(ValueError, match="data"):
        again.encode_text(["sound 1"])


def test_what_is_no_vector_of_the_width_is_refused(files: dict[str, str], tmp_path: Path) -> None:
    import_vectors(VectorImport(**files), tmp_path / "data")
    retriever = build_retriever(on_vectors(tmp_path / "data").model, seed=0)
    with pytest.raises(ValueError, match=r"clip 1: got .*shape \[11\]'; allowed a vector of 12 numbers"):
        retriever.encode_audio([np.zeros(12, np.float32), np.zeros(11, np.float32)])
    with pytest.raises(ValueError, match="clip 0: got 'a vector with NaN"):
        retriever.encode_audio([np.full(12, np.nan, np.float32)])
    with pytest.raises(ValueError, match=r"texts: got \(2, 9\); allowed texts, or finite vectors \[N, 10\]"):
        retriever.encode_text(np.zeros((2, 9), np.float32))
    with pytest.raises(ValueError, match="caption in eng: got 'a stranger'; allowed captions of"):
        retriever.encode_text(["a stranger"])
    wide = on_vectors(tmp_path / "data", model__audio__width=13)
    with pytest.raises(ValueError, match=r"model\.audio\.width: got 13; allowed 12, the numbers of a clip's vector in"):
        prepare(wide, tmp_path / "home", use_ray=False, echo=lambda message: None)
    heard = override(on_vectors(tmp_path / "data"), {"model.audio": "small_cnn"})
    with pytest.raises(ValueError, match=r"model\.audio: got 'small_cnn'; allowed one of vectors"):
        prepare(heard, tmp_path / "home", use_ray=False, echo=lambda message: None)


def test_parquet_columns_and_safetensors_are_the_same_set(files: dict[str, str], tmp_path: Path) -> None:
    audio, text = np.load(files["audio"]), np.load(files["text"])
    save_file({"clap": audio, "other": audio[:3]}, tmp_path / "audio.safetensors")
    pq.write_table(pa.table({"e5": list(text)}), tmp_path / "text.parquet")
    first = import_vectors(VectorImport(**files), tmp_path / "first")
    given = {"audio": f"{tmp_path}/audio.safetensors::clap", "text": f"{tmp_path}/text.parquet::e5"}
    again = import_vectors(VectorImport(**{**files, **given}), tmp_path / "again")
    assert (again.hash, again.origin) == (first.hash, first.origin)
    with pytest.raises(ValueError, match=r"audio: got .*safetensors::'; allowed one of its tensors: .*::clap"):
        import_vectors(VectorImport(**{**files, "audio": f"{tmp_path}/audio.safetensors"}), tmp_path / "none")
    with pytest.raises(ValueError, match=r"text: got .*parquet::e6'; allowed one of its columns: .*::e5"):
        import_vectors(VectorImport(**{**files, "text": f"{tmp_path}/text.parquet::e6"}), tmp_path / "none")


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (["ab", "cd"], r"audio: got '.*::v: a column of string'; allowed a column of lists"),
        ([[1.0, 2.0], [1.0]], r"^audio: \S*, row 1: got '1 numbers'; allowed 2 numbers"),
        ([[1.0, 2.0], None], r"^audio: \S*, row 1: got 'nothing'; allowed 2 numbers"),
        ([[1.0, 2.0], [1.0, None]], r"^audio: \S*, row 1: got 'NaN or infinity'"),
        ([[1, 2]], "int64 of shape .*allowed floating-point"),
    ],
)
def test_a_column_that_is_no_vectors_is_told_as_what_it_is(rows: list[Any], named: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": rows}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=named):
        read_vectors(f"{tmp_path}/x.parquet::v", "audio")


def test_vectors_without_a_row_of_the_table_are_told(files: dict[str, str], tmp_path: Path) -> None:
    """A table of which rows were removed would give the others a wrong vector."""
    table, count = Path(files["table"]), len(np.load(files["text"]))
    table.write_text("audio_row,caption\n0,a dog\n1,rain\n")
    assert f"vectors 2 to {count - 1} of --text" in import_vectors(VectorImport(**files), tmp_path / "data").notes[1]
    lines = ['{"audio_row": 0, "caption": "a dog", "text_row": 5}', '{"audio_row": 1, "caption": "rain"}']
    (jsonl := table.with_suffix(".jsonl")).write_text("\n".join(lines))
    with pytest.raises(ValueError, match="line 2, text_row: got None; allowed one in each row"):
        import_vectors(VectorImport(**{**files, "table": str(jsonl)}), tmp_path / "none")


def test_captions_with_decomposed_letters_have_their_vectors(files: dict[str, str], tmp_path: Path) -> None:
    table = Path(files["table"])
    table.write_text(unicodedata.normalize("NFD", table.read_text().replace("son ", "bruit de café ")))
    manifest = import_vectors(VectorImport(**files), tmp_path / "data")
    captions = [(clip.captions["fra"][0], "fra") for clip in read_captions(manifest, "train")]
    _, text = read_given(manifest, "train", captions)
    np.testing.assert_array_equal(text, np.load(files["text"])[1:64:2])


def with_nan(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array[17, 3] = np.nan
    return array


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (
            lambda folder, audio: np.save(folder / "audio.npy", with_nan(audio)),
            r"audio.npy, row 17: got 'NaN or infinity'",
        ),
        (
            lambda folder, audio: np.save(folder / "audio.npy", audio.astype(np.float64) * 1e300),
            r"audio.npy, row 0: got 'NaN or infinity'",
        ),
        (
            lambda folder, audio: np.save(folder / "audio.npy", audio[:40]),
            r"line 82, audio_row: got '40'; allowed a row of",
        ),
        (
            lambda folder, audio: np.save(folder / "audio.npy", audio[0]),
            r"of shape \[12\]'; allowed floating-point vectors",
        ),
        (lambda folder, audio: np.save(folder / "text.npy", audio[:20]), r"line 22 .*got 20; allowed a row of"),
        (lambda folder, audio: (folder / "text.npy").unlink(), "text: got .*text.npy'; allowed a file of vectors"),
        (lambda folder, audio: (folder / "audio.npy").write_bytes(b"no array"), "audio: got .*a file of vectors"),
        (
            lambda folder, audio: (folder / "pairs.csv").write_text("audio_row,caption\nzero,a dog\n"),
            "line 2, audio_row: got 'zero'",
        ),
        (
            lambda folder, audio: (folder / "pairs.csv").write_text("audio_row,text_row,caption\n0,,a dog\n"),
            "line 2, text_row: got ''; allowed a row of",
        ),
        (
            lambda folder, audio: (folder / "pairs.csv").write_text("audio_row,caption\n0,a dog\n1,a dog\n"),
            "line 3, text_row: got 1; allowed the vector that 'a dog' has already, row 0",
        ),
        (
            lambda folder, audio: (folder / "pairs.csv").write_text(
                "audio_row,caption,clip_id\n0,a dog,a\n3,rain,d\n3,wind,a\n"
            ),
            r"line 4, clip_id: got 'a'; allowed 'd', the id of audio_row 3 in an earlier row \(.*line 3\)",
        ),
        (
            lambda folder, audio: (folder / "pairs.csv").write_text("audio_row,caption,clip_id\n0,a dog,a\n3,rain,a\n"),
            r"line 3, clip_id: got 'a'; allowed an id of one clip alone: audio_row 0 has it already \(.*line 2\)",
        ),
    ],
)
def test_a_mistake_is_named_with_its_row_and_leaves_nothing_behind(
    broken: Any, named: str, files: dict[str, str], tmp_path: Path
) -> None:
    broken(tmp_path / "files", np.load(files["audio"]))
    with pytest.raises(ValueError, match=named):
        import_vectors(VectorImport(**files), tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "x" * 300])
def test_a_set_of_vectors_has_a_name_that_can_be_read_again(files: dict[str, str], name: str) -> None:
    with pytest.raises(ValueError, match=r"name: got .* letters, digits"):
        VectorImport(**files, name=name)


def test_what_the_table_does_not_say_is_what_is_set(files: dict[str, str], tmp_path: Path) -> None:
    lines = ["audio_row,caption", *(f"{row},son {row}" for row in range(CAPTIONS // 2))]
    Path(files["table"]).write_text("\n".join(lines) + "\n")
    about = {"language": "fra", "split": "test", "name": "mine", "licence": "CC0"}
    manifest = import_vectors(VectorImport(**files, **about), tmp_path / "set")
    assert (manifest.name, manifest.licence) == ("mine", "CC0")
    assert (manifest.languages, manifest.splits) == (("fra",), ("test",))
