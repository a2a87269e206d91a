"""A saved retriever is the same one, bit for bit, in a fresh process; and a broken one says what is wrong with it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import tiny_checkpoints as tiny
import torch

from ray_atr.models.adaptation import Adaptation
from ray_atr.models.audio import Ast, Ced, Htsat, ResNet38, SmallCnn
from ray_atr.models.retriever import MetricSettings, ModelSettings, Retriever, build_retriever
from ray_atr.models.text import Bert, SmallTransformer, Sonar, XlmRoberta
from ray_atr.models.text.tokenizer import train_tokenizer

ROOT = Path(__file__).parents[2]
WAVEFORMS = [
    np.random.RandomState(seed).uniform(-0.5, 0.5, 9_000 + 2_000 * seed).astype(np.float32) for seed in range(3)
]

ENCODE = """
import sys
import numpy as np
import torch
from ray_atr.models.retriever import Retriever
torch.set_num_threads(1)
folder, out = sys.argv[1:]
given = np.load(out + ".in.npz", allow_pickle=False)
retriever = Retriever.from_pretrained(folder)
audio = retriever.encode_audio([given[name] for name in ("a", "b", "c")], 16000)
text = retriever.encode_text(list(given["texts"]), list(given["languages"]))
np.savez(out, audio=audio.numpy(), text=text.numpy())
"""


def scratch(**model: Any) -> Retriever:
    settings = ModelSettings(
        audio=SmallCnn(channels=4, width=24), text=SmallTransformer(width=32), embedding_width=16, **model
    )
    return build_retriever(settings, tokenizer=train_tokenizer(tiny.TEXTS, 400), seed=1)


def pair(name: str, home: Path) -> Retriever:
    lora = Adaptation(lora_rank=2)
    frozen = Adaptation(is_frozen=True)
    folders = {kind: str(home / kind) for kind in ("sonar", "bert", "xlm_roberta", "clap", "ast")}
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
        "ast_bert": lambda: ModelSettings(
            audio=Ast(checkpoint=str(tiny.ast(Path(folders["ast"])))),
            text=Bert(checkpoint=str(tiny.bert(Path(folders["bert"])))),
            learn_temperature=True,
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


@pytest.mark.parametrize("name", ["scratch", "ced_sonar", "resnet38_bert", "htsat_xlm_roberta", "ast_bert"])
def test_a_saved_retriever_encodes_the_same_bit_for_bit(name: str, tmp_path: Path) -> None:
    retriever = pair(name, tmp_path)
    disturb(retriever)
    retriever.save_pretrained(tmp_path / "saved")
    for checkpoint in ("sonar", "bert", "xlm_roberta", "clap", "ast"):
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


def test_a_fresh_process_encodes_the_same_bit_for_bit(tmp_path: Path) -> None:
    retriever = scratch()
    disturb(retriever)
    retriever.save_pretrained(tmp_path / "saved")
    out = str(tmp_path / "out.npz")
    np.savez(out + ".in.npz", **dict(zip("abc", WAVEFORMS, strict=True)), texts=tiny.TEXTS, languages=tiny.LANGUAGES)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", ENCODE, str(tmp_path / "saved"), out]
    subprocess.run(command, check=True, cwd=ROOT, env=environment)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        audio, text = retriever.encode_audio(WAVEFORMS, 16_000), retriever.encode_text(tiny.TEXTS, tiny.LANGUAGES)
    finally:
        torch.set_num_threads(threads)
    with np.load(out) as given:
        np.testing.assert_array_equal(given["audio"], audio.numpy())
        np.testing.assert_array_equal(given["text"], text.numpy())


def test_paths_bytes_and_arrays_are_the_same_clip(tmp_path: Path) -> None:
    retriever = scratch()
    soundfile.write(tmp_path / "a.wav", WAVEFORMS[0], 16_000, subtype="FLOAT")
    data = (tmp_path / "a.wav").read_bytes()
    embedded = retriever.encode_audio([str(tmp_path / "a.wav"), tmp_path / "a.wav", data, WAVEFORMS[0]], 16_000)
    torch.testing.assert_close(embedded, embedded[:1].expand(4, -1), atol=1e-6, rtol=0)


def test_an_embedding_is_the_same_alone_and_in_any_company() -> None:
    retriever = scratch().train()
    loud = [*WAVEFORMS, WAVEFORMS[2] * 100, np.zeros(300, np.float32)]
    together = retriever.encode_audio(loud, 16_000)
    alone = torch.cat([retriever.encode_audio([clip], 16_000) for clip in loud])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    texts = retriever.encode_text(tiny.TEXTS, tiny.LANGUAGES, batch_size=4)
    one_by_one = torch.cat([retriever.encode_text([text]) for text in tiny.TEXTS])
    torch.testing.assert_close(texts, one_by_one, atol=1e-5, rtol=0)
    assert retriever.training


def test_metric_and_projection_counter_come_back(tmp_path: Path) -> None:
    settings = ModelSettings(audio=SmallCnn(channels=4), embedding_width=8)
    metric = MetricSettings(kind="factored", rank=3)
    retriever = build_retriever(settings, tokenizer=train_tokenizer(tiny.TEXTS, 300), metric=metric, seed=0)
    for _ in range(4):
        retriever.after_step()
    retriever.save_pretrained(tmp_path / "saved")
    restored = Retriever.from_pretrained(tmp_path / "saved")
    assert restored.metric_settings == metric
    assert restored.metric.shape == (8, 3)
    assert int(restored.num_steps) == 4


def test_saving_again_replaces_the_folder_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    retriever = scratch()
    retriever.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "stale").touch()
    retriever.save_pretrained(tmp_path / "saved")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    assert not (tmp_path / "saved" / "stale").exists()


@pytest.mark.parametrize("missing", ["retriever.json", "model.safetensors", "text/tokenizer.json"])
def test_a_missing_file_is_named(missing: str, tmp_path: Path) -> None:
    scratch().save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / missing).unlink()
    with pytest.raises(ValueError, match=Path(missing).name):
        Retriever.from_pretrained(tmp_path / "saved")


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
