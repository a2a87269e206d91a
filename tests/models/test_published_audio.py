"""CED-Base and PANNs ResNet38 against the published classes: names, shapes, log-mel, embeddings; and their defects mended."""

from __future__ import annotations

import json
import zlib
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from ray_atr.data.audio import log_mel, mel_filters
from ray_atr.models.audio import Ced, ResNet38
from ray_atr.models.tower import AudioTower
from ray_atr.models.weights import load_weights
from tests.support.shared_folder import SHARED
from tests.support.whole_product import ONLY_IN_WHOLE

FILES = {"ced": SHARED / "reference/ced_base_given.json", "resnet38": SHARED / "reference/panns_resnet38_given.json"}
needs_reference = pytest.mark.skipif(not FILES["ced"].is_file(), reason=f"no reference outputs in {SHARED}")

SETTINGS = {
    "ced": Ced(clip_seconds=40.0),
    "resnet38": ResNet38(clip_seconds=40.0),
}


def reference(model: str) -> dict[str, Any]:
    return json.loads(FILES[model].read_text())


def fill(table: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """The state dict that the reference's fill rule describes."""
    state = {}
    for row in table:
        name, shape = row["name"], row["shape"]
        if row["fill"] == "left_alone":
            state[name] = torch.zeros(shape, dtype=getattr(torch, row["dtype"]))
            continue
        random = np.random.RandomState(zlib.crc32(name.encode()) & 0x7FFFFFFF)
        value = (random.standard_normal(shape) * 0.02).astype(np.float32)
        value = {"rule": value, "one_plus_rule": 1 + value, "one_plus_abs_rule": 1 + np.abs(value)}[row["fill"]]
        state[name] = torch.from_numpy(value)
    return state


def waveform(signal: str, num_samples: int, sample_rate: int) -> np.ndarray:
    t = np.arange(num_samples, dtype=np.float64)
    noise = np.random.RandomState(0).uniform(-0.5, 0.5, num_samples)
    sine = 0.5 * np.sin(2 * np.pi * 440 * t / sample_rate)
    signals = {
        "noise": noise,
        "sine": sine,
        "ramp": noise.astype(np.float32).astype(np.float64) * t / num_samples,
        "sine_then_silence": np.where(t < num_samples // 2, sine, 0.0),
    }
    return signals[signal].astype(np.float32)


@pytest.fixture(scope="module", params=["ced", "resnet38"])
def filled(request: pytest.FixtureRequest) -> tuple[str, AudioTower]:
    if not FILES[request.param].is_file():
        pytest.skip(f"no reference outputs in {SHARED}")
    # All of its weights are replaced: to draw 150 million others takes a second.
    with mock.patch.multiple(torch.nn.init, kaiming_uniform_=mock.DEFAULT, xavier_uniform_=mock.DEFAULT):
        tower = SETTINGS[request.param].build()
    skip = ("front_end.", "outputlayer.", "spectrogram_extractor.", "logmel_extractor.", "fc")
    report = load_weights(tower, fill(reference(request.param)["state_dict"]), source="fill rule", skip=skip)
    assert not report.mismatches()
    return request.param, tower.eval()


@pytest.mark.slow
@needs_reference
def test_parameter_names_and_shapes_are_the_published_ones(filled: tuple[str, AudioTower]) -> None:
    model, tower = filled
    wanted = {row["name"]: tuple(row["shape"]) for row in reference(model)["state_dict"] if row["group"] == "encoder"}
    assert {name: tuple(value.shape) for name, value in tower.state_dict().items()} == wanted


@needs_reference
def test_mel_filters_are_the_published_ones(filled: tuple[str, AudioTower]) -> None:
    model, tower = filled
    filters, published = mel_filters(tower.front_end), reference(model)["filterbank"]
    assert list(filters.shape) == published["shape"]
    for band, total in published["column_sums"].items():
        assert filters[:, int(band)].sum() == pytest.approx(total, rel=1e-5)


@needs_reference
@pytest.mark.parametrize("number", [0, 1])
def test_log_mel_is_the_published_one(filled: tuple[str, AudioTower], number: int) -> None:
    model, tower = filled
    given = reference(model)["inputs"][number]
    frames = log_mel(waveform(given["signal"], given["n_samples"], tower.front_end.sample_rate), tower.front_end)
    published = given["logmel"]
    assert frames.shape == (published["frames"], 64)
    at = frames[published["sample_frame"], published["sample_mel"]]
    np.testing.assert_allclose(at, published["samples"], atol=1e-4)
    summary = [frames.mean(), frames.std(), frames.min(), frames.max()]
    np.testing.assert_allclose(summary, [published[key] for key in ("mean", "std", "min", "max")], atol=1e-4)


@pytest.mark.slow
@needs_reference
@pytest.mark.parametrize("number", [0, pytest.param(1, marks=ONLY_IN_WHOLE)])
def test_embeddings_are_the_published_ones(filled: tuple[str, AudioTower], number: int) -> None:
    model, tower = filled
    given = reference(model)["inputs"][number]
    samples = waveform(given["signal"], given["n_samples"], tower.front_end.sample_rate)
    frames = torch.from_numpy(log_mel(samples, tower.front_end))
    with torch.inference_mode():
        pooled = tower(frames[None], torch.tensor([len(frames)])).pooled
        if model == "resnet38":
            assert_published(pooled[0].numpy(), given["pooled"])
            pooled = torch.relu(fc1(tower, pooled))
        assert_published(pooled[0].numpy(), given["embedding"])


def fc1(tower: AudioTower, pooled: torch.Tensor) -> torch.Tensor:
    state = fill([row for row in reference("resnet38")["state_dict"] if row["group"] == "fc1"])
    return torch.nn.functional.linear(pooled, state["fc1.weight"], state["fc1.bias"])


def assert_published(actual: np.ndarray, published: dict[str, Any]) -> None:
    wanted = np.array(published["first16"] + published["at_indices"])
    got = np.concatenate([actual[:16], actual[published["indices"]]])
    assert np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < 1e-5
    assert np.linalg.norm(actual) == pytest.approx(published["l2"], rel=1e-5)
    assert actual.mean() == pytest.approx(published["mean"], abs=1e-5 * published["l2"])


TINY = {"ced": Ced(size="tiny", num_blocks=2, chunk_frames=64), "resnet38": ResNet38(width_divisor=16, output="fc1")}


def tiny(model: str) -> AudioTower:
    torch.manual_seed(0)
    tower = TINY[model].build().eval()
    for module in tower.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            # Statistics that turn the zeros of padding into something else, as published ones do.
            torch.nn.init.normal_(module.running_mean)
            torch.nn.init.normal_(module.bias)
    return tower


@pytest.mark.parametrize("model", list(TINY))
@pytest.mark.parametrize("garbage", [0.0, 50.0])
def test_an_embedding_depends_on_its_own_clip_alone(model: str, garbage: float) -> None:
    tower = tiny(model)
    lengths = [64, 200, 33, 128, 47, 65] if model == "ced" else [64, 200, 33, 128, 47, 65, 32]
    clips = [torch.randn(length, 64, generator=torch.Generator().manual_seed(length)) for length in lengths]
    batch = torch.full((len(clips), max(lengths) + 5, 64), garbage)
    for row, clip in zip(batch, clips, strict=True):
        row[: len(clip)] = clip
    with torch.inference_mode():
        together = tower(batch, torch.tensor(lengths)).pooled
        for row, clip in zip(together, clips, strict=True):
            alone = tower(clip[None], torch.tensor([len(clip)])).pooled[0]
            assert ((row - alone).norm() / alone.norm()).item() < 1e-5
        order = torch.tensor([3, 0, 5, 1, 4, 2])
        turned = tower(batch[order], torch.tensor(lengths)[order]).pooled
        torch.testing.assert_close(turned, together[order], atol=1e-5, rtol=1e-5)


def test_ced_keeps_the_last_chunk_of_an_exact_multiple() -> None:
    tower = tiny("ced")
    clip = torch.randn(1, 128, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        whole = tower(clip, torch.tensor([128])).pooled
        halves = [tower(part, torch.tensor([64])).pooled for part in clip.split(64, dim=1)]
    torch.testing.assert_close(whole, (halves[0] + halves[1]) / 2, atol=1e-5, rtol=1e-5)
    assert (whole - halves[0]).norm() > 0.01


def test_ced_fills_the_last_part_of_a_clip_after_the_input_norm() -> None:
    tower = tiny("ced")
    clip = torch.randn(1, 100, 64, generator=torch.Generator().manual_seed(1))
    norm = tower.init_bn[1]
    # What the input norm turns into zero.
    filler = norm.running_mean - norm.bias / norm.weight * (norm.running_var + norm.eps).sqrt()
    filled_up = torch.cat([clip, filler.expand(1, 28, 64)], dim=1)
    with torch.inference_mode():
        actual = tower(clip, torch.tensor([100])).pooled
        expected = tower(filled_up, torch.tensor([128])).pooled
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model", list(TINY))
def test_a_silent_clip_has_its_own_floor_beside_a_loud_one(model: str) -> None:
    front_end = TINY[model].front_end
    silent = log_mel(np.zeros(front_end.sample_rate, np.float32), front_end)
    assert silent.max() == pytest.approx(-100.0)


@pytest.mark.parametrize("model", list(TINY))
def test_the_shortest_clip_is_encoded(model: str) -> None:
    tower = tiny(model)
    front_end = tower.front_end
    frames = torch.from_numpy(log_mel(np.zeros(front_end.minimum_samples, np.float32), front_end))
    assert torch.isfinite(tower(frames[None], torch.tensor([len(frames)])).pooled).all()


@pytest.mark.parametrize("model", list(TINY))
def test_training_mode_leaves_the_statistics_alone(model: str) -> None:
    tower = tiny(model).train()
    before = {name: value.clone() for name, value in tower.named_buffers()}
    tower(torch.randn(2, 64, 64), torch.tensor([64, 64])).pooled.sum().backward()
    for name, value in tower.named_buffers():
        torch.testing.assert_close(value, before[name], atol=0, rtol=0)
    assert all(parameter.grad is not None for parameter in tower.parameters())


def test_ced_cuts_or_stretches_a_position_table_of_another_length() -> None:
    tower = tiny("ced")
    longer = torch.arange(10.0).expand(1, tower.width, 1, 10)
    shorter = torch.zeros(1, tower.width, 1, 2)
    assert tower.fitted({"time_pos_embed": longer})["time_pos_embed"][0, 0, 0].tolist() == [0, 1, 2, 3]
    assert tower.fitted({"time_pos_embed": shorter})["time_pos_embed"].shape == tower.time_pos_embed.shape


@pytest.mark.parametrize(("size", "millions"), [("tiny", 5.5), ("mini", 9.6), ("small", 21.5), ("base", 85.3)])
def test_ced_sizes_have_the_published_number_of_parameters(size: str, millions: float) -> None:
    with torch.device("meta"):
        tower = Ced(size=size).build()
    assert sum(parameter.numel() for parameter in tower.parameters()) / 1e6 == pytest.approx(millions, rel=0.03)
