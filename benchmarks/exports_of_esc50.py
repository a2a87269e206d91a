"""One retriever in three formats: ESC-50's fold 4 asked in eight languages by a script that never imports ray_atr.

    uv run --extra onnx --extra sentence-transformers python benchmarks/exports_of_esc50.py ESC-50-master OUT [--epochs 50]

Small towers in the shapes of HTS-AT and XLM-R begin at random, and the recipe `clap` trains them on folds 1 and 2 (fold 3
chooses the epoch). The winner goes out by `ray-atr export` as a ClapModel, a SentenceTransformer and two ONNX graphs.
`ask_exports.py` opens them in a process of its own and asks. Ten minutes on a core.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ask_exports import FILES, read_clips
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import (
    ClapAudioConfig,
    ClapAudioModel,
    ClapFeatureExtractor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from ray_atr.common.language_codes import DEFAULT_LANGUAGES as LANGUAGES
from ray_atr.data.audio import fit, log_mel
from ray_atr.deploy.export.exporting import plain
from ray_atr.models.retriever import Retriever
from ray_atr.models.transformers import front_end_of
from ray_atr.training.run_folder import saved_retriever
from ray_atr.workshop.languages.templates import ESC50_CLASSES, class_sentences

FORMATS = ("clap", "sentence-transformers", "onnx")
ASK = Path(__file__).with_name("ask_exports.py")


def main() -> None:
    """Makes or continues what is not finished yet: data, towers, run, exports, questions; then asks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("esc50", type=Path, help="ESC-50's folder, with audio/ and meta/")
    parser.add_argument("out", type=Path, help="folder for all that is made")
    parser.add_argument("--epochs", type=int, default=50)
    given = parser.parse_args()
    data, towers = given.out / "data", given.out / "towers"
    run, exports = (given.out / f"{name}-{given.epochs}" for name in ("run", "exports"))
    if not (data / "manifest.json").exists():
        folds = ["train=1,2", "val=3", "test=4"]
        command("prepare", "esc50", "--source", given.esc50, "--folds", *folds, "--out", data)
    if not (towers / "text" / "model.safetensors").exists():
        make_towers(towers, read_clips(given.esc50, "12")[1])
    place = "--resume" if (run / "sweep.json").exists() else "--out"
    command("train", "--recipe", "clap", *settings(data, towers, given.epochs), place, run)
    for target in FORMATS:
        if not (exports / target).exists():
            small = ["--int8-text"] if target == "onnx" else []
            command("export", run, "--to", target, "--out", exports / target, *small)
    ask_for(run, given.esc50, exports)
    subprocess.run([sys.executable, "-I", ASK, given.esc50, exports], check=True)


def command(*arguments: object) -> None:
    """One command of this package, as a person would type it."""
    subprocess.run([sys.executable, "-m", "ray_atr", *map(str, arguments)], check=True)


def settings(data: Path, towers: Path, epochs: int) -> list[str]:
    """What differs from the recipe: small towers that begin at random, and their rate."""
    values = {
        "data.source": data,
        "model.audio.checkpoint": towers / "audio",
        "model.text.checkpoint": towers / "text",
        "model.embedding_width": 128,
        "model.augment.time_bands": 2,
        "model.augment.frequency_bands": 1,
        "train.batch_size": 32,
        "train.learning_rate": 1e-3,
        "train.epochs": epochs,
        "scaling.gpus_per_worker": int(torch.cuda.is_available()),
    }
    return [part for name, value in values.items() for part in (f"--{name}", *str(value).split())]


def make_towers(folder: Path, waveforms: list[np.ndarray]) -> None:
    """A HTS-AT of 32 mel bands for five seconds at 16 kHz, and an XLM-R of two layers with a tokeniser for the captions."""
    torch.manual_seed(0)
    config = ClapAudioConfig(
        spec_size=128,
        num_mel_bins=32,
        patch_size=8,
        patch_stride=[8, 8],
        window_size=4,
        depths=[2, 2, 2],
        num_attention_heads=[2, 4, 8],
        patch_embeds_hidden_size=48,
        hidden_size=192,
    )
    extractor = ClapFeatureExtractor(
        feature_size=32,
        sampling_rate=16_000,
        hop_length=160,
        max_length_s=5,
        fft_window_size=512,
        frequency_max=8_000,
        truncation="rand_trunc",
    )
    audio: Any = begin(ClapAudioModel(config))
    # A published tower brings the mean and spread of each band. Without them the first layers get decibels around -40, and
    # nothing is learned from there.
    front_end = front_end_of(extractor, None)
    frames = np.concatenate([log_mel(fit(waveform, front_end), front_end) for waveform in waveforms])
    bands = audio.audio_encoder.batch_norm
    bands.running_mean.copy_(torch.from_numpy(frames.mean(axis=0)))
    bands.running_var.copy_(torch.from_numpy(frames.var(axis=0)))
    audio.save_pretrained(folder / "audio")
    extractor.save_pretrained(folder / "audio")
    tokenizer = make_tokenizer([text for texts in class_sentences(ESC50_CLASSES, LANGUAGES).values() for text in texts])
    tokenizer.save_pretrained(folder / "text")
    text = XLMRobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=192,
        max_position_embeddings=82,
        type_vocab_size=1,
        pad_token_id=1,
    )
    begin(XLMRobertaModel(text)).save_pretrained(folder / "text")


def begin(model: PreTrainedModel) -> PreTrainedModel:
    """The model with matrices that keep the scale of what they are given.

    With the library's deviation of .02, which is made for wide layers, every text begins at the same vector (cosine .9999).
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            deviation = 1.0 if "embeddings." in name else parameter[0].numel() ** -0.5
            torch.nn.init.normal_(parameter, 0.0, deviation)
    return model


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Pieces of words, with XLM-R's special tokens."""
    pieces = Tokenizer(models.BPE(unk_token="<unk>"))
    pieces.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=1500, special_tokens=special, show_progress=False))
    pieces.post_processor = processors.TemplateProcessing(
        single=["<s>", "$A", "</s>"], special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
    return PreTrainedTokenizerFast(tokenizer_object=pieces, **{f"{name}_token": token for name, token in names.items()})


def ask_for(run: Path, esc50: Path, exports: Path) -> None:
    """Writes the questions, and what `encode_*` makes of them and of the clips, for the script that knows no ray_atr."""
    retriever = plain(Retriever.from_pretrained(str(saved_retriever(str(run), "out"))))
    _, waveforms = read_clips(esc50)
    texts = class_sentences(ESC50_CLASSES, LANGUAGES)
    (exports / FILES[0]).write_text(
        json.dumps({"classes": [*ESC50_CLASSES], "texts": texts}, ensure_ascii=False), "utf-8"
    )
    ours = {language: retriever.encode_text(own, language).numpy() for language, own in texts.items()}
    np.savez(exports / FILES[1], audio=retriever.encode_audio(waveforms, 16_000).numpy(), **ours)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
