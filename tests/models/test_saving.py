"""A saved retriever is the same one, bit for bit, in a fresh process; and a broken one says what is wrong with it."""

from __future__ import annotations

import io
import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from ray_atr.common.ranking import RankingSettings
from ray_atr.models.adaptation import Adaptation
from ray_atr.models.audio import Ast, Ced, Htsat, ResNet38, SmallCnn, TransformersAudio
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.models.text import Bert, Labse, SmallTransformer, Sonar, TransformersText, XlmRoberta, train_tokenizer
from ray_atr.models.weights import FROZEN_FILE, shapes_of_weights, write_weights
from ray_atr.objectives import LearnedSettings
from tests.support import tiny_checkpoints as tiny
from tests.support.fork_server import run_program

ROOT = Path(__file__).parents[2]
CHECKPOINTS = ("sonar", "bert", "xlm_roberta", "clap", "ast", "wav2vec2")
WAVEFORMS = [
    np.random.RandomState(seed).uniform(-0.5, 0.5, 9_000 + 2_000 * seed).astype(np.float32) for seed in range(3)
]

ENCODE = """
import sys
import numpy as np
import torch
from ray_atr.models.retriever import Retriever
torch.set_num_threads(1)
out, *folders = sys.argv[1:]
given = np.load(out + ".in.npz", allow_pickle=False)
encoded = {}
for number, folder in enumerate(folders):
    retriever = Retriever.from_pretrained(folder)
    encoded[f"audio {number}"] = retriever.encode_audio([given[name] for name in ("a", "b", "c")], 16000).numpy()
    encoded[f"text {number}"] = retriever.encode_text(list(given["texts"]), list(given["languages"])).numpy()
np.savez(out, **encoded)
"""

PAIRS = ("scratch", "ced_sonar", "resnet38_bert", "htsat_xlm_roberta", "ast_labse", "wav2vec2_transformers")


def scratch(**model: Any) -> Retriever:
    settings = ModelSettings(
        audio=SmallCnn(channels=4, width=24), text=SmallTransformer(width=32), embedding_width=16, **model
    )
    return build_retriever(settings, tokenizer=train_tokenizer(tiny.TEXTS, 400), seed=1)


def test_who_may_read_the_folder_may_read_its_weights(tmp_path: Path) -> None:
    scratch().save_pretrained(tmp_path / "saved")
    files = [file for file in (tmp_path / "saved").rglob("*") if file.is_file()]
    assert {file.stat().st_mode & 0o666 for file in files} == {(tmp_path / "saved").stat().st_mode & 0o666}


def test_a_frozen_tower_that_an_earlier_model_left_in_the_folder_is_not_read(tmp_path: Path) -> None:
    """As in a repository of the hub to which both models were uploaded."""
    retriever = scratch()
    of_another_kind = {**retriever.audio_tower.state_dict(), "another": torch.zeros(1)}
    write_weights(tmp_path / "tower", of_another_kind, prefix="audio_tower.")
    retriever.save_pretrained(tmp_path / "hub", frozen={"audio": tmp_path / "tower"})
    disturb(retriever)
    retriever.save_pretrained(tmp_path / "later")
    shutil.copytree(tmp_path / "later", tmp_path / "hub", dirs_exist_ok=True)
    assert (tmp_path / "hub" / "audio" / FROZEN_FILE).is_file()
    found = Retriever.from_pretrained(tmp_path / "hub").state_dict()
    assert all(torch.equal(found[name], value) for name, value in retriever.state_dict().items())
    assert "audio_tower.another" not in shapes_of_weights(tmp_path / "hub")


@pytest.mark.parametrize("pooling", ["mean", "pooler"])
def test_a_text_encoder_out_of_a_whole_clap_is_opened_again(tmp_path: Path, pooling: str) -> None:
    text = TransformersText(checkpoint=str(tiny.clap(tmp_path / "clap", has_words=True)), pooling=pooling)
    retriever = build_retriever(ModelSettings(audio=SmallCnn(width=16), text=text))
    retriever.save_pretrained(tmp_path / "saved")
    found = Retriever.from_pretrained(tmp_path / "saved").encode_text(["a dog barks"])
    assert torch.equal(found, retriever.eval().encode_text(["a dog barks"]))


def pair(name: str, home: Path) -> Retriever:
    lora = Adaptation(lora_rank=2)
    frozen = Adaptation(is_frozen=True)
    folders = {kind: str(home / kind) for kind in CHECKPOINTS}
    models = {
        "ced_sonar": lambda: ModelSettings(
            audio=Ced(size="tiny", num_blocks=1, chunk_frames=64, adapt=lora),
            text=Sonar(checkpoint=str(tiny.sonar(Path(folders["sonar"]))), adapt=lora),
            projection="mlp",
            embedding_width=24,
        ),
        "resnet38_bert": lambda: ModelSettings(
            audio=ResNet38(width_divisor=16, adapt=frozen), text=Bert(checkpoint=str(tiny.bert(Path(folders["bert"]))))
        ),
        "htsat_xlm_roberta": lambda: ModelSettings(
            audio=Htsat(checkpoint=str(tiny.clap(Path(folders["clap"])))),
            text=XlmRoberta(checkpoint=str(tiny.xlm_roberta(Path(folders["xlm_roberta"])))),
        ),
        "ast_labse": lambda: ModelSettings(
            audio=Ast(checkpoint=str(tiny.ast(Path(folders["ast"])))),
            text=Labse(checkpoint=str(tiny.bert(Path(folders["bert"])))),
            learn_temperature=True,
        ),
        "wav2vec2_transformers": lambda: ModelSettings(
            audio=TransformersAudio(checkpoint=str(tiny.wav2vec2(Path(folders["wav2vec2"])))),
            text=TransformersText(checkpoint=str(tiny.xlm_roberta(Path(folders["xlm_roberta"])))),
        ),
    }
    if name == "scratch":
        return scratch(learn_temperature=True)
    return build_retriever(models[name](), seed=2)


def disturb(retriever: Retriever) -> None:
    """Moves every weight a little, so that nothing equals what building again would give."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in retriever.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_a_saved_retriever_encodes_the_same_bit_for_bit(name: str, tmp_path: Path) -> None:
    retriever = pair(name, tmp_path)
    disturb(retriever)
    retriever.save_pretrained(tmp_path / "saved")
    for checkpoint in CHECKPOINTS:
        if (tmp_path / checkpoint).exists():
            # What is saved stands alone.
            (tmp_path / checkpoint).rename(tmp_path / f"{checkpoint}.gone")
    restored = Retriever.from_pretrained(tmp_path / "saved")
    assert restored.settings == retriever.settings
    assert not restored.training
    for key, value in retriever.state_dict().items():
        assert torch.equal(restored.state_dict()[key], value), key
    assert torch.equal(restored.encode_audio(WAVEFORMS, 16_000), retriever.encode_audio(WAVEFORMS, 16_000))
    expected = retriever.encode_text(tiny.TEXTS, tiny.LANGUAGES)
    assert torch.equal(restored.encode_text(tiny.TEXTS, tiny.LANGUAGES), expected)
    torch.testing.assert_close(expected.norm(dim=1), torch.ones(len(expected)))


@pytest.mark.slow
def test_every_pair_of_towers_encodes_the_same_bit_for_bit_in_a_fresh_process(tmp_path: Path) -> None:
    retrievers, saved = [], []
    for name in PAIRS:
        (tmp_path / name).mkdir()
        retrievers.append(pair(name, tmp_path / name))
        disturb(retrievers[-1])
        saved.append(str(tmp_path / name / "saved"))
        retrievers[-1].save_pretrained(saved[-1])
    out = str(tmp_path / "out.npz")
    np.savez(out + ".in.npz", **dict(zip("abc", WAVEFORMS, strict=True)), texts=tiny.TEXTS, languages=tiny.LANGUAGES)
    done = run_program(ENCODE, out, *saved)
    assert done.returncode == 0, done.stderr
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        here = [(r.encode_audio(WAVEFORMS, 16_000), r.encode_text(tiny.TEXTS, tiny.LANGUAGES)) for r in retrievers]
    finally:
        torch.set_num_threads(threads)
    with np.load(out) as given:
        for number, (audio, text) in enumerate(here):
            np.testing.assert_array_equal(given[f"audio {number}"], audio.numpy(), err_msg=PAIRS[number])
            np.testing.assert_array_equal(given[f"text {number}"], text.numpy(), err_msg=PAIRS[number])


def test_the_readmes_lines_run_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (lines,) = [block for block in blocks if "from_pretrained" in block]
    assert len(lines.splitlines()) <= 10
    (folder,) = re.findall(r'from_pretrained\("(.*?)"\)', lines)
    monkeypatch.chdir(tmp_path)
    scratch().save_pretrained(folder)
    for name, waveform in zip(("rain.wav", "dog.flac"), WAVEFORMS, strict=False):
        soundfile.write(name, waveform, 16_000)
    exec(lines, {})  # the file is this repository's own
    assert capsys.readouterr().out.startswith("tensor([[")


def test_paths_bytes_and_arrays_are_the_same_clip(tmp_path: Path) -> None:
    retriever = scratch()
    soundfile.write(tmp_path / "a.wav", WAVEFORMS[0], 16_000, subtype="FLOAT")
    data = (tmp_path / "a.wav").read_bytes()
    embedded = retriever.encode_audio([str(tmp_path / "a.wav"), tmp_path / "a.wav", data, WAVEFORMS[0]], 16_000)
    torch.testing.assert_close(embedded, embedded[:1].expand(4, -1), atol=1e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_an_embedding_is_the_same_alone_and_in_any_company(name: str, tmp_path: Path) -> None:
    retriever = pair(name, tmp_path).train()
    # Longer, louder and silent neighbours, in two orders; for text, all languages mixed.
    clips = [*WAVEFORMS, np.tile(WAVEFORMS[2] * 100, 4), np.zeros(300, np.float32)]
    alone = torch.cat([retriever.encode_audio([clip], 16_000) for clip in clips])
    together = retriever.encode_audio(clips, 16_000)
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    order = [3, 0, 4, 2, 1]
    turned = retriever.encode_audio([clips[place] for place in order], 16_000)
    torch.testing.assert_close(turned, alone[order], atol=1e-5, rtol=0)
    texts = list(zip(tiny.TEXTS, tiny.LANGUAGES, strict=True))
    one_by_one = torch.cat([retriever.encode_text([text], language) for text, language in texts])
    order = list(range(len(texts)))[::-2] + list(range(len(texts)))[-2::-2]
    for batch_size in (4, 128):
        found = retriever.encode_text(*zip(*(texts[place] for place in order), strict=True), batch_size=batch_size)
        torch.testing.assert_close(found, one_by_one[order], atol=1e-5, rtol=0)
    assert retriever.training


def test_metric_and_projection_counter_come_back(tmp_path: Path) -> None:
    settings = ModelSettings(audio=SmallCnn(channels=4), embedding_width=8)
    learned = LearnedSettings(metric="factored", metric_rank=3)
    retriever = build_retriever(settings, tokenizer=train_tokenizer(tiny.TEXTS, 300), learned=learned, seed=0)
    for _ in range(4):
        retriever.learned.after_step()
    retriever.save_pretrained(tmp_path / "saved")
    restored = Retriever.from_pretrained(tmp_path / "saved")
    assert restored.learned.settings == learned
    assert restored.learned.metric.shape == (8, 3)
    assert int(restored.learned.num_steps) == 4


KINDS = ("diagonal", "mahalanobis", "factored")


def with_metric(kind: str, ranking: str = "learned") -> Retriever:
    """A retriever whose learned metric is far from the identity."""
    made = scratch()
    retriever = Retriever(
        made.audio_tower,
        made.text_tower,
        made.settings,
        learned=LearnedSettings(metric=kind, metric_rank=5),
        ranking=RankingSettings(ranking=ranking),
    )
    assert retriever.learned.metric is not None
    generator = torch.Generator().manual_seed(3)
    metric = torch.rand(retriever.learned.metric.shape, generator=generator)
    retriever.learned.metric.data = metric @ metric.T if kind == "mahalanobis" else metric
    return retriever.eval()


def matrix_of(retriever: Retriever, kind: str) -> torch.Tensor:
    """M [D, D], written out."""
    metric = retriever.learned.metric.detach().double()
    return {"diagonal": metric.diag, "mahalanobis": lambda: metric, "factored": lambda: metric @ metric.T}[kind]()


@pytest.mark.parametrize("kind", KINDS)
def test_the_nearest_vectors_are_the_nearest_under_the_learnt_metric(kind: str) -> None:
    retriever = with_metric(kind)
    generator = torch.Generator().manual_seed(4)
    text, audio = (torch.nn.functional.normalize(torch.randn(n, 16, generator=generator), dim=1) for n in (40, 30))
    difference = text.double()[:, None] - audio.double()
    distances = torch.einsum("mnd,de,mne->mn", difference, matrix_of(retriever, kind), difference)
    found = torch.cdist(retriever.vectors(text).double(), retriever.vectors(audio).double())
    assert retriever.distance == "euclidean"
    similarity = retriever.similarity(retriever.vectors(text), retriever.vectors(audio))
    torch.testing.assert_close(similarity.double(), -distances.sqrt(), rtol=1e-5, atol=1e-5)
    assert torch.equal(found.argsort(dim=1), distances.argsort(dim=1))
    assert torch.equal(found.argsort(dim=0), distances.argsort(dim=0))
    assert not torch.equal((text @ audio.T).argsort(dim=1, descending=True), distances.argsort(dim=1))


@pytest.mark.parametrize(
    ("text", "allowed"),
    [(None, "a string"), (3, "a string"), (b"a low tone", "a string"), ("half a pair \ud800", "a text in UTF-8")],
)
def test_what_is_no_text_is_refused_by_its_number(text: object, allowed: str) -> None:
    with pytest.raises(ValueError, match=rf"text 1: got .*; allowed {allowed}"):
        with_metric("mahalanobis").encode_text(["a low tone", text])  # type: ignore[list-item]


def test_what_is_encoded_is_under_the_learnt_metric() -> None:
    retriever = with_metric("mahalanobis")
    texts = ["a low tone", "a high tone"]
    embedded = retriever.embed_sentences(texts)
    torch.testing.assert_close(retriever.encode_text(texts), retriever.vectors(embedded))
    assert not torch.allclose(retriever.encode_text(texts), embedded)
    (norm,) = retriever.encode_audio(WAVEFORMS[:1], 16_000).norm(dim=1)
    assert abs(float(norm) - 1) > 1e-3, "no unit row"


@pytest.mark.parametrize("audio", [torch.ones(3, 5), torch.ones(4)])
def test_vectors_of_other_shapes_are_not_compared(audio: torch.Tensor) -> None:
    with pytest.raises(
        ValueError, match=r"shapes of text and audio: got '\(2, 4\) and \(.*\)'; allowed \[M, r\] and \[N, r\]"
    ):
        with_metric("diagonal").similarity(torch.ones(2, 4), audio)


def test_without_a_metric_or_by_cosine_the_vectors_are_the_unit_rows() -> None:
    rows = torch.nn.functional.normalize(torch.randn(6, 16, generator=torch.Generator().manual_seed(5)), dim=1)
    for retriever in (scratch(), *(with_metric(kind, "cosine") for kind in KINDS)):
        assert retriever.distance == "cosine"
        assert torch.equal(retriever.vectors(rows), rows)
        cosine = torch.nn.functional.cosine_similarity(rows[:2, None], rows, dim=2)
        torch.testing.assert_close(retriever.similarity(rows[:2], rows), cosine)


def test_saving_again_replaces_the_folder_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    retriever = scratch()
    retriever.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "stale").touch()
    retriever.save_pretrained(tmp_path / "saved")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    assert not (tmp_path / "saved" / "stale").exists()


@pytest.mark.parametrize("place", ["file", "project", "s3://bucket/x"])
def test_saving_replaces_nothing_but_a_retriever(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project").mkdir()
    for file in ("file", "project/notes"):
        (tmp_path / file).write_text("kept")
    with pytest.raises(ValueError, match=f"folder: got '{place}'; allowed a new or empty folder"):
        scratch().save_pretrained(place)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "notes", "project"]


def test_a_folder_in_the_home_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    scratch().save_pretrained("~/saved")
    assert Retriever.from_pretrained("~/saved").vector_width == scratch().vector_width


def test_a_folder_of_a_store_that_holds_no_retriever_is_named_by_its_url() -> None:
    with pytest.raises(ValueError, match=r"model folder: got 'memory://bucket/none'"):
        Retriever.from_pretrained("memory://bucket/none")


@pytest.mark.parametrize("missing", ["retriever.json", "model.safetensors", "text/tokenizer.json"])
def test_a_missing_file_is_named(missing: str, tmp_path: Path) -> None:
    scratch().save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / missing).unlink()
    with pytest.raises(ValueError, match=Path(missing).name):
        Retriever.from_pretrained(tmp_path / "saved")


@pytest.mark.parametrize("best", ["best", "trials/base-44136fa3/best"])
def test_a_run_in_the_place_of_its_retriever_is_refused_with_what_is_meant(best: str, tmp_path: Path) -> None:
    (tmp_path / best).mkdir(parents=True)
    (tmp_path / best / "retriever.json").touch()
    with pytest.raises(ValueError, match=f"did you mean {tmp_path / best}"):
        Retriever.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["retriever.json", "model.safetensors", "text/tokenizer.json"])
def test_half_a_file_is_named(name: str, tmp_path: Path) -> None:
    scratch().save_pretrained(tmp_path / "saved")
    file = tmp_path / "saved" / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(ValueError, match="whole"):
        Retriever.from_pretrained(tmp_path / "saved")


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    scratch().save_pretrained(tmp_path / "saved")
    content = json.loads((tmp_path / "saved" / "retriever.json").read_text())
    content["model"]["audio.channels"] = 8
    (tmp_path / "saved" / "retriever.json").write_text(json.dumps(content))
    # Without its list of digests: else it is refused as damaged.
    (tmp_path / "saved" / "digests.json").unlink()
    with pytest.raises(
        ValueError, match=r"shape of audio_tower\.convolutions\.0\.weight is \[4, 1, 5, 5\], not \[8, 1, 5, 5\]"
    ):
        Retriever.from_pretrained(tmp_path / "saved")


def test_what_cannot_be_encoded_is_named(tmp_path: Path) -> None:
    retriever = scratch()
    with pytest.raises(ValueError, match=r"absent\.wav"):
        retriever.encode_audio([tmp_path / "absent.wav"])
    (tmp_path / "text.wav").write_text("no audio")
    with pytest.raises(ValueError, match=r"text\.wav"):
        retriever.encode_audio([str(tmp_path / "text.wav")])
    with pytest.raises(ValueError, match="clip 1"):
        retriever.encode_audio([WAVEFORMS[0], np.zeros((2, 5), np.float32)])
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(0), 16_000, format="WAV")
    with pytest.raises(ValueError, match="clip 0: got 'a clip of zero length'"):
        retriever.encode_audio([buffer.getvalue()])
    with pytest.raises(ValueError, match="did you mean deu"):
        retriever.encode_text(["Hund"], "German")
    with pytest.raises(ValueError, match="2 languages"):
        retriever.encode_text(["Hund"], ["deu", "eng"])
    assert retriever.encode_text([]).shape == (0, 16)


def test_waveforms_are_mono_and_one_a_clip() -> None:
    """The frames of a file with five channels, [S, 5], were taken for S clips of five samples."""
    retriever = scratch()
    for channels in (np.zeros((8_000, 5), np.float32), np.zeros((2, 8_000), np.float32), torch.zeros(2, 8_000)):
        with pytest.raises(ValueError, match=r"clips: got 'an array of shape .*average the channels first"):
            retriever.encode_audio(channels, 16_000)
    expected = retriever.encode_audio(WAVEFORMS[:2], 16_000)
    assert torch.equal(retriever.encode_audio([torch.from_numpy(one) for one in WAVEFORMS[:2]], 16_000), expected)
    alone = retriever.encode_audio(torch.from_numpy(WAVEFORMS[0]), 16_000)
    assert alone.shape == (1, 16)
    torch.testing.assert_close(alone, expected[:1])


@pytest.mark.parametrize("kind", ["int16", "int32", "uint8"])
def test_integers_are_no_waveform_as_their_full_scale_is_another(kind: str) -> None:
    whole = (WAVEFORMS[0] * 100 + 100).astype(kind)
    for clip in (whole, torch.from_numpy(whole)):
        with pytest.raises(ValueError, match=f"clip 0: got 'samples of type {kind}'; allowed floats with full scale 1"):
            scratch().encode_audio(clip, 16_000)


def test_a_waveform_with_its_rate_is_told_where_the_rate_goes() -> None:
    """What soundfile.read and torchaudio.load return."""
    pairs: list[Any] = [(WAVEFORMS[0], 16_000), (torch.from_numpy(WAVEFORMS[0])[None], 16_000)]
    for read in pairs:
        with pytest.raises(ValueError, match=r"clip 0: got 'a tuple'; .* the argument `sample_rate`"):
            scratch().encode_audio([read])


def test_a_list_of_paths_is_not_one_clip() -> None:
    with pytest.raises(ValueError, match="clip 0: got 'a list'; allowed a path"):
        scratch().encode_windows(["a.wav"])


def test_columns_of_tables_and_tensors_of_any_float_are_taken(tmp_path: Path) -> None:
    retriever = scratch()
    soundfile.write(tmp_path / "a.wav", WAVEFORMS[0], 16_000, subtype="FLOAT")
    expected, texts = retriever.encode_audio([WAVEFORMS[0]] * 2, 16_000), ["a low tone", "a high tone"]
    for kind in (object, np.str_):
        torch.testing.assert_close(retriever.encode_audio(np.array([str(tmp_path / "a.wav")] * 2, kind)), expected)
        assert torch.equal(retriever.encode_text(np.array(texts, kind)), retriever.encode_text(texts))
    of_iterators = retriever.encode_text(iter(texts), iter(["eng", "fra"]))
    assert torch.equal(of_iterators, retriever.encode_text(texts))
    rounded = retriever.encode_audio(torch.from_numpy(WAVEFORMS[0]).bfloat16().requires_grad_(), 16_000)
    torch.testing.assert_close(rounded, expected[:1], atol=0.02, rtol=0)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_of_another_precision_embeds_nearly_the_same(kind: torch.dtype) -> None:
    expected = scratch().encode_audio(WAVEFORMS, 16_000), scratch().encode_text(["a low tone"])
    retriever = scratch().to(kind)
    for found, wanted in zip(
        (retriever.encode_audio(WAVEFORMS, 16_000), retriever.encode_text(["a low tone"])), expected, strict=True
    ):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, wanted, atol=0.02, rtol=0)


@pytest.mark.parametrize(("name", "value"), [("batch_size", 0), ("batch_size", -1), ("sample_rate", 0)])
def test_numbers_that_would_encode_nothing_or_something_else_are_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name}: got {value}; allowed 1"):
        scratch().encode_audio(WAVEFORMS, **{name: value})
    if name == "batch_size":
        with pytest.raises(ValueError, match=f"{name}: got {value}; allowed 1 or more"):
            scratch().encode_text(["a low tone"], batch_size=value)


@pytest.mark.parametrize("metric", ["euclidean", "mahalanobis"])
def test_vectors_in_16_bits_or_of_numpy_are_compared_in_32(metric: str) -> None:
    retriever = with_metric("mahalanobis") if metric == "mahalanobis" else scratch()
    text, audio = retriever.encode_text(["a low tone", "a high tone"]), retriever.encode_audio(WAVEFORMS, 16_000)
    expected = retriever.similarity(text, audio.half().float())
    for given in (audio.half(), audio.half().numpy()):
        found = retriever.similarity(text, given)
        assert found.dtype == torch.float32
        assert torch.equal(found, expected)


def test_a_language_that_was_never_trained_on_is_warned_of(tmp_path: Path) -> None:
    retriever = scratch()
    assert retriever.languages == ()
    retriever.encode_text(["Ein Hund bellt."], "deu")
    retriever.languages = ("eng", "swa")
    retriever.save_pretrained(tmp_path / "saved")
    saved = Retriever.from_pretrained(tmp_path / "saved")
    assert saved.languages == ("eng", "swa")
    with pytest.warns(UserWarning, match="no captions in deu, jpn in training, which had eng, swa") as told:
        saved.encode_text(["Ein Hund bellt.", "犬", "a dog"], ["de", "ja", "en"])
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        saved.encode_text(["a dog", "mbwa"], ["eng", "sw"])
        saved.embed_sentences(["Ein Hund bellt."], "deu")
    with pytest.raises(ValueError, match="text 1: got ' '; allowed a text with words"):
        saved.encode_text(["a dog", " "])
