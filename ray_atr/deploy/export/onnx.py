"""Export of a retriever as two ONNX graphs: waveforms to vectors, with the log-mel front end inside, and token ids to vectors.

Shapes: N clips or texts, S samples, T frames, F mel bands, L tokens, D embedding width, r vector width.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn

from ray_atr.common.language_codes import tags_by_code
from ray_atr.common.settings import refuse
from ray_atr.data.audio import PRE_EMPHASIS, FrontEnd, fft_size, mel_filters
from ray_atr.deploy.export.sentence_transformers import metric_root
from ray_atr.models.ced import CedTower
from ray_atr.models.onnx_graph import errors_alone, require_onnx, write_graph
from ray_atr.models.retriever import Retriever
from ray_atr.models.tower import TextTower
from ray_atr.models.transformers import TransformersAudioTower, TransformersTextTower

AUDIO_FILE, TEXT_FILE, SMALL_TEXT_FILE = "audio.onnx", "text.onnx", "text.int8.onnx"
TOKENISER_FILE = "tokenizer.json"


def require(retriever: Retriever) -> None:
    """ValueError for a retriever that cannot be a graph, naming what can."""
    require_onnx("--to onnx")
    for part, settings in (("audio", retriever.settings.audio), ("text", retriever.settings.text)):
        if settings.name == "vectors":
            raise refuse(
                "--to onnx", f"model.{part} vectors, which encodes nothing itself", "encoders of audio and text"
            )
        if settings.name == "sentence_transformers":
            raise refuse(
                "--to onnx", f"model.{part} {settings.name}, a model of that library", "other towers; mlflow takes any"
            )
    audio = retriever.audio_tower
    if isinstance(audio, CedTower) and audio.chunk_frames * audio.front_end.hop_size <= audio.front_end.clip_samples:
        fits = "a window of one chunk: model.audio.clip_seconds below that of model.audio.chunk_frames"
        raise refuse("--to onnx", f"model.audio.clip_seconds {audio.front_end.clip_seconds}", fits)
    if not isinstance(_tokenizer_of(retriever.text_tower), Tokenizer):
        raise refuse("--to onnx", "a tokeniser without tokenizer.json", "one of the tokenizers library")


def write(retriever: Retriever, folder: Path, *, int8_text: bool = False) -> dict[str, Any]:
    """Write the graphs and the tokeniser into a folder; returns further entries of export.json."""
    front_end = retriever.audio_tower.front_end
    longest = min(front_end.clip_samples - 1, front_end.clip_samples * 5 // 7)
    samples = torch.randn(2, max(front_end.minimum_samples, front_end.window_size, longest) + 1) * 0.1
    audio = AudioGraph(retriever).eval()
    write_graph(audio, (samples,), folder / AUDIO_FILE, {"waveforms": {0: "clips", 1: "samples"}})
    text = TextGraph(retriever).eval()
    tokenizer = _tokenizer_of(retriever.text_tower)
    assert isinstance(tokenizer, Tokenizer)
    token_ids = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 0, 0]]).clamp(max=tokenizer.get_vocab_size() - 1)
    token_mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    token_ids[~token_mask] = retriever.text_tower.pad_token_id
    axes = {0: "texts", 1: "tokens"}
    write_graph(text, (token_ids, token_mask), folder / TEXT_FILE, {"token_ids": axes, "token_mask": dict(axes)})
    if int8_text:
        _quantise(folder / TEXT_FILE, folder / SMALL_TEXT_FILE)
    tokenizer.save(str(folder / TOKENISER_FILE))
    return {"tokeniser": _tokenising(retriever.text_tower)}


class AudioGraph(nn.Module):
    """Waveforms [N, S] of equal length to vectors [N, r]."""

    def __init__(self, retriever: Retriever) -> None:
        super().__init__()
        self.front_end = LogMel(retriever.audio_tower.front_end)
        self.tower, self.projection = retriever.audio_tower, retriever.audio_projection
        self.root = metric_root(retriever)

    def forward(self, waveforms: Tensor) -> Tensor:
        features = self.front_end(waveforms)
        if isinstance(self.tower, TransformersAudioTower):
            pooled = self.tower._encode(features).pooled
        else:
            # Counted in the graph: len() would be a constant of the example.
            frames = torch.ones_like(features[:, :, 0], dtype=torch.int64).sum(dim=1)
            pooled = self.tower(features, frames).pooled
        return _ranked(nn.functional.normalize(self.projection(pooled), dim=-1), self.root)


class TextGraph(nn.Module):
    """Token ids [N, L] and their mask [N, L] to vectors [N, r]."""

    def __init__(self, retriever: Retriever) -> None:
        super().__init__()
        self.tower, self.projection = retriever.text_tower, retriever.text_projection
        self.root = metric_root(retriever)

    def forward(self, token_ids: Tensor, token_mask: Tensor) -> Tensor:
        # `_encode` skips the sorting by length, which only speeds up large batches.
        encode = self.tower._encode if isinstance(self.tower, TransformersTextTower) else self.tower
        pooled = encode(token_ids, token_mask).pooled
        return _ranked(nn.functional.normalize(self.projection(pooled), dim=-1), self.root)


def _ranked(embeddings: Tensor, root: Tensor | None) -> Tensor:
    return embeddings if root is None else embeddings @ root


class LogMel(nn.Module):
    """`fit` and `log_mel` of a front end for waveforms [N, S] of equal length: [N, T, F], as products with the DFT's basis.

    In float64, like `log_mel`: in float32, quiet bands beside loud ones were off by up to 0.3 dB in real clips. ONNX Runtime's
    STFT operator takes three times as long.
    """

    def __init__(self, front_end: FrontEnd) -> None:
        super().__init__()
        self.settings = front_end
        if front_end.kind in ("power_db", "kaldi"):
            basis = _kaldi_basis(front_end) if front_end.kind == "kaldi" else _power_basis(front_end)
            self.register_buffer("basis", torch.from_numpy(basis), persistent=False)
            self.register_buffer("filters", torch.from_numpy(mel_filters(front_end)), persistent=False)

    def forward(self, waveforms: Tensor) -> Tensor:
        settings = self.settings
        samples = self._fit(waveforms)
        if settings.kind == "waveform":
            if settings.normalises_clip:
                centred = samples - samples.mean(dim=1, keepdim=True)
                samples = centred / torch.sqrt(centred.square().mean(dim=1, keepdim=True) + 1e-7)
            return samples[..., None]
        frames = self._log_power(samples)
        if settings.pad_frames is not None:
            frames = nn.functional.pad(frames, (0, 0, 0, settings.pad_frames))[:, : settings.pad_frames]
        return (frames - settings.mean) / settings.std

    def _fit(self, waveforms: Tensor) -> Tensor:
        length = self.settings.clip_samples
        if self.settings.pad == "zeros":
            return nn.functional.pad(waveforms, (0, length))[:, :length]
        if self.settings.pad == "repeat":
            # As a tensor, since ONNX has no remainder by a size known only at run time.
            size = torch.ones_like(waveforms[0], dtype=torch.int64).sum()
            place = torch.arange(length, device=waveforms.device)
            repeated = torch.div(torch.full_like(size, length), size, rounding_mode="floor") * size
            return waveforms[:, torch.remainder(place, size)] * (place < repeated).to(waveforms.dtype)
        return _filled(waveforms, self.settings.minimum_samples)

    def _log_power(self, samples: Tensor) -> Tensor:
        settings = self.settings
        assert isinstance(self.basis, Tensor)
        assert isinstance(self.filters, Tensor)
        if settings.kind == "power_db":
            half, count = settings.window_size // 2, 1 + samples.shape[1] // settings.hop_size
            samples = _filled(samples, half + 1)
            samples = nn.functional.pad(samples[:, None], (half, half), mode="reflect")[:, 0]
            frames = samples.unfold(1, settings.window_size, settings.hop_size)[:, :count].double()
        else:
            samples = _filled(samples, settings.window_size)
            frames = samples.unfold(1, settings.window_size, settings.hop_size).double()
        real, imaginary = (frames @ self.basis).chunk(2, dim=2)
        power = (real.square() + imaginary.square()).float() @ self.filters
        if settings.kind == "kaldi":
            return torch.log(power.clamp(min=torch.finfo(torch.float32).eps))
        decibels = 10.0 * torch.log10(power.clamp(min=settings.floor))
        if settings.top_db is None:
            return decibels
        return torch.maximum(decibels, decibels.amax(dim=(1, 2), keepdim=True) - settings.top_db)


def _filled(samples: Tensor, least: int) -> Tensor:
    """Samples [N, S] with zeros behind them up to at least this many, whatever S is at run time."""
    return nn.functional.pad(samples, (0, least))[:, : torch.sym_max(samples.shape[1], least)]


def _power_basis(front_end: FrontEnd) -> NDArray[np.float64]:
    """The Hann-windowed DFT of a frame as one matrix [size, 2 (size // 2 + 1)], real and imaginary columns."""
    size = front_end.window_size
    return _columns(np.fft.rfft(np.eye(size) * torch.hann_window(size, dtype=torch.float64).numpy()))


def _kaldi_basis(front_end: FrontEnd) -> NDArray[np.float64]:
    """The same for Kaldi's filter bank: subtraction of the mean, pre-emphasis, a symmetric Hann window, padding to a power of
    two. All steps before the power are linear in a frame's samples.
    """
    size = front_end.window_size
    frames = np.eye(size) - 1 / size
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    window = torch.hann_window(size, periodic=False, dtype=torch.float64).numpy()
    return _columns(np.fft.rfft((frames - PRE_EMPHASIS * before) * window, fft_size(front_end)))


def _columns(spectrum: NDArray[np.complex128]) -> NDArray[np.float64]:
    return np.concatenate([spectrum.real, spectrum.imag], axis=1)


def _quantise(file: Path, small: Path) -> None:
    """Write the graph with weights of matrix products and tables in 8 bits, with one scale per column of a matrix.

    With one scale per matrix, vectors of a trained tower were off by 40% more, and the file is no smaller.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    options = {"weight_type": QuantType.QInt8, "extra_options": {"DefaultTensorType": 1}}
    # Silences the advice that it logs to the root logger.
    with errors_alone(""):
        quantize_dynamic(file, small, per_channel=True, **options)


def _tokenizer_of(tower: TextTower) -> Any:
    tokenizer = getattr(tower, "tokenizer", None)
    return getattr(tokenizer, "backend_tokenizer", tokenizer)


def _tokenising(tower: TextTower) -> dict[str, Any]:
    """Settings by which a loader makes token ids with tokenizer.json."""
    how = {"pad": tower.pad_token_id, "prefix": [], "prefix_of": {}, "suffix": [], "add_special_tokens": True}
    if not isinstance(tower, TransformersTextTower):
        start = tower.tokenise([""], ["eng"])[0]
        most = int(getattr(tower, "max_tokens", 0)) - len(start)
        return {**how, "prefix": start, "max_tokens": most, "add_special_tokens": False}
    if not tower.language_tags:
        return {**how, "max_tokens": tower.max_tokens}
    vocabulary = tower.tokenizer.get_vocab()
    tags = tags_by_code(vocabulary)
    first = next(iter(tags))
    empty_text = tower.tokenise([""], [first])[0]
    place = empty_text.index(vocabulary[tags[first]])
    how |= {"prefix": empty_text[:place], "suffix": empty_text[place + 1 :], "add_special_tokens": False}
    prefix_of = {code: [vocabulary[tag]] for code, tag in tags.items()}
    return {**how, "prefix_of": prefix_of, "max_tokens": tower.max_tokens - len(empty_text)}
