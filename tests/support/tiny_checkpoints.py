"""Tiny random checkpoints in the published layouts, made by the tests that load them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import (
    ASTConfig,
    ASTFeatureExtractor,
    ASTForAudioClassification,
    AutoConfig,
    AutoModel,
    BertConfig,
    BertForPreTraining,
    BertModel,
    BertTokenizer,
    ClapAudioConfig,
    ClapConfig,
    ClapFeatureExtractor,
    ClapModel,
    ClapTextConfig,
    M2M100Config,
    NllbTokenizer,
    PreTrainedTokenizerFast,
    Wav2Vec2FeatureExtractor,
    XLMRobertaConfig,
    XLMRobertaModel,
)
from transformers.models.m2m_100.modeling_m2m_100 import M2M100Encoder

CAPTIONS = {
    "eng": ["A dog barks twice.", "Rain falls on a tin roof while a bell rings far away in the old town.", "A siren"],
    "deu": ["Ein Hund bellt zweimal.", "Regen fällt auf ein Blechdach.", "Eine Sirene heult in der Ferne."],
    "jpn": ["犬が二回吠える。", "トタン屋根に雨が降る。", "サイレンが鳴る。"],
}
TEXTS = [text for texts in CAPTIONS.values() for text in texts]
LANGUAGES = [language for language, texts in CAPTIONS.items() for _ in texts]


def sonar(folder: Path) -> Path:
    """An encoder of M2M100 with NLLB's tokeniser."""
    words = Tokenizer(models.BPE(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    words.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=200, special_tokens=special, show_progress=False))
    content = json.loads(words.to_str())["model"]
    merges = [tuple(pair) for pair in content["merges"]]
    tokenizer = NllbTokenizer(vocab=content["vocab"], merges=cast("list[str]", merges), src_lang="eng_Latn")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = M2M100Config(
        vocab_size=len(tokenizer),
        d_model=32,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_layers=1,
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
    )
    M2M100Encoder(config).save_pretrained(folder)
    return folder


def bert(folder: Path, with_heads: bool = False) -> Path:
    """BERT as it is published: with the heads of its pre-training, or the bare model with its pooler."""
    pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    )
    tokenizer = BertTokenizer(vocab=pieces.get_vocab())
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
    )
    (BertForPreTraining if with_heads else BertModel)(config).save_pretrained(folder)
    return folder


def xlm_roberta(folder: Path) -> Path:
    """XLM-R with a tokeniser of its special tokens."""
    words = Tokenizer(models.BPE(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    words.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=200, special_tokens=special, show_progress=False))
    words.post_processor = processors.TemplateProcessing(
        single=["<s>", "$A", "</s>"], special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = XLMRobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=66,
        pad_token_id=1,
    )
    XLMRobertaModel(config).save_pretrained(folder)
    return folder


def clap(folder: Path, whole: bool = True, is_fused: bool = False, has_words: bool = False) -> Path:
    """CLAP with HTS-AT, as it is published (both towers), or its audio encoder alone; with fusion; with a tokeniser."""
    audio = ClapAudioConfig(
        spec_size=64,
        num_mel_bins=16,
        patch_size=4,
        patch_stride=[4, 4],
        window_size=4,
        depths=[1, 1],
        num_attention_heads=[2, 4],
        patch_embeds_hidden_size=16,
        hidden_size=32,
        projection_dim=16,
        enable_fusion=is_fused,
    )
    text = ClapTextConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        projection_dim=16,
    )
    extractor = ClapFeatureExtractor(
        feature_size=16,
        sampling_rate=8_000,
        hop_length=64,
        max_length_s=2,
        fft_window_size=256,
        frequency_max=4_000,
        truncation="fusion" if is_fused else "rand_trunc",
    )
    torch.manual_seed(0)
    model = ClapModel(ClapConfig(audio_config=audio.to_dict(), text_config=text.to_dict(), projection_dim=16))
    (model if whole else model.audio_model).save_pretrained(folder)
    extractor.save_pretrained(folder)
    if has_words:
        roberta_words(folder)
    return folder


def roberta_words(folder: Path) -> None:
    """A tokeniser of twelve words with RoBERTa's special tokens, as CLAP's on the hub."""
    known = ["<s>", "<pad>", "</s>", "<unk>", "a", "dog", "barks", "twice", "rain", "falls", "tone", "number"]
    words = Tokenizer(models.WordLevel({word: place for place, word in enumerate(known)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)


def ast(folder: Path) -> Path:
    """The audio spectrogram transformer as it is published: with its classifier."""
    torch.manual_seed(0)
    config = ASTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_length=64,
        num_mel_bins=32,
    )
    config.num_labels = 5
    ASTForAudioClassification(config).save_pretrained(folder)
    ASTFeatureExtractor(num_mel_bins=32, max_length=64).save_pretrained(folder)
    return folder


WAVEFORM_MODELS = ("wav2vec2", "hubert", "wavlm", "data2vec-audio")


def wav2vec2(folder: Path, model: str = "wav2vec2") -> Path:
    """wav2vec 2.0, or another of WAVEFORM_MODELS: each takes the waveform."""
    torch.manual_seed(0)
    is_data2vec = model == "data2vec-audio"
    config = AutoConfig.for_model(
        model,
        vocab_size=20,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        conv_dim=(16, 16, 16),
        conv_stride=(5, 4, 4),
        conv_kernel=(10, 8, 8),
        # Of data2vec it is the number of layers, of the others the width of one.
        num_conv_pos_embeddings=2 if is_data2vec else 8,
        num_conv_pos_embedding_groups=4,
    )
    AutoModel.from_config(config).save_pretrained(folder)
    Wav2Vec2FeatureExtractor(do_normalize=True).save_pretrained(folder)
    return folder


OF_AUDIO: dict[str, Callable[[Path], Path]] = {"htsat": clap, "ast": ast, "transformers": wav2vec2}
OF_TEXT: dict[str, Callable[[Path], Path]] = {"sonar": sonar, "labse": bert, "bert": bert, "xlm_roberta": xlm_roberta}
"""Names of towers, and what makes a checkpoint of each."""
