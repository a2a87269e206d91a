"""Recordings longer than a window: heard whole, in bounded memory, the same by every way to an embedding."""

from __future__ import annotations

import io
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
import torch

from ray_atr.common.override import override
from ray_atr.data.audio import SLACK, FrontEnd, clip_windows, fit, log_mel, windows
from ray_atr.data.decoding import AudioBounds, decode, open_sound, resampled_blocks
from ray_atr.data.feature_cache import ensure_features, has_long_clips, long_audio
from ray_atr.data.features import open_features
from ray_atr.data.schema import Clip
from ray_atr.data.shards import iterate_rows, read_manifest, write_clips
from ray_atr.data.stream import stream, training_plan
from ray_atr.evaluation.encoding import EncodingSource, encode
from ray_atr.evaluation.options import Encoding
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.models.text import train_tokenizer
from ray_atr.training.encoding.encode import clip_batches, encode_clips
from ray_atr.training.loop import train_trial
from tests.support.one_window import clip_features
from tests.support.tiny import prepared_for, tiny

RATE = 16_000
FRONT_END = FrontEnd(num_mels=16, clip_seconds=1.0)


def wav(samples: np.ndarray, rate: int = RATE, kind: str = "WAV", subtype: str | None = None) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=kind, subtype=subtype)
    return buffer.getvalue()


def noise(seconds: float, seed: int = 0, rate: int = RATE) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(round(seconds * rate)) * 0.1).astype(np.float32)


def window_starts(num_samples: int, front_end: FrontEnd) -> list[int]:
    """The sample, at the front end's rate, that each window of a clip begins with."""
    length = front_end.clip_samples
    if num_samples <= length * (1 + SLACK):
        return [0]
    starts = list(range(0, num_samples - length + 1, length))
    rest = num_samples - length - starts[-1]
    return [*starts, num_samples - length] if rest > SLACK * length else starts


@pytest.mark.parametrize("seconds", [0.3, 1.0, 1.005, 1.02, 2.0, 2.5, 3.004, 7.9])
def test_windows_cover_a_clip_and_begin_where_is_said(seconds: float) -> None:
    samples = noise(seconds)
    blocks = [samples[start : start + 999] for start in range(0, len(samples), 999)]
    found = list(windows(blocks, FRONT_END))
    starts = window_starts(len(samples), FRONT_END)
    assert len(found) == len(starts)
    covered = np.zeros(len(samples), bool)
    for window, start in zip(found, starts, strict=True):
        assert np.array_equal(window, samples[start : start + RATE])
        covered[start : start + len(window)] = True
    assert (~covered).sum() <= 0.01 * RATE


def test_a_clip_in_blocks_is_the_clip_at_once() -> None:
    samples = noise(5.3, rate=44_100)
    blocks = (samples[start : start + 65_536] for start in range(0, len(samples), 65_536))
    assert np.array_equal(
        np.concatenate(list(resampled_blocks(blocks, 44_100, RATE))), soxr.resample(samples, 44_100, RATE)
    )


@pytest.mark.parametrize("cut", ["start", "centre"])
def test_a_cut_clip_is_what_it_was_when_all_of_it_was_decoded(cut: str) -> None:
    front_end = FrontEnd(num_mels=16, clip_seconds=1.0, cut=cut)
    data = wav(noise(4.7, rate=22_050), 22_050)
    samples, rate = decode(data)
    assert np.array_equal(
        clip_features(data, front_end), log_mel(fit(soxr.resample(samples, rate, RATE), front_end), front_end)
    )


def make_set(folder: Path, seconds: tuple[float, ...] = (0.5, 2.5, 1.0, 3.0)) -> Path:
    clips = [
        Clip(
            clip_id=f"{split}-{index}",
            audio=wav(noise(length, seed)),
            sample_rate=RATE,
            seconds=length,
            captions={"eng": [f"{split} sound number {index}"]},
            split=split,
            source="noise",
        )
        for seed, (split, index, length) in enumerate(
            (split, index, length) for split in ("train", "val", "test") for index, length in enumerate(seconds * 2)
        )
    ]
    write_clips(folder, clips, name="noise", licence="none", clips_per_shard=3)
    return folder


def test_cached_windows_are_those_of_the_audio(tmp_path: Path) -> None:
    data = make_set(tmp_path / "set")
    whole = open_features(ensure_features(data, FRONT_END, tmp_path, in_windows=True, use_ray=False), "train")
    cut = open_features(ensure_features(data, FRONT_END, tmp_path, use_ray=False), "train")
    assert whole.num_windows.tolist() == [1, 3, 1, 3, 1, 3, 1, 3]
    assert cut.num_windows.tolist() == [1] * 8
    assert whole.captions_in("eng") == cut.captions_in("eng")
    batch = next(clip_batches(whole, [np.array([3])]))
    expected = list(clip_windows(wav(noise(3.0, 3)), FRONT_END))
    assert np.allclose(batch.features[0, : len(expected[0])].numpy(), expected[0], atol=0.1)
    for window in range(3):
        array, frames = whole.features(np.array([3]), np.array([window]))
        assert np.array_equal(array[0, : frames[0]], expected[window].astype(np.float16))
    assert np.array_equal(whole.features(np.arange(8))[0], cut.features(np.arange(8))[0])


def test_a_set_without_long_clips_has_one_cache(tmp_path: Path) -> None:
    data = make_set(tmp_path / "set", (0.5, 1.0))
    assert ensure_features(data, FRONT_END, tmp_path, in_windows=True, use_ray=False) == ensure_features(
        data, FRONT_END, tmp_path, use_ray=False
    )
    assert long_audio(read_manifest(data), 1.0) == (0, 0.0)
    assert long_audio(read_manifest(make_set(tmp_path / "long")), 1.0)[1] == pytest.approx(3 * 2 * (1.5 + 2.0))


def test_the_manifest_says_whether_there_are_long_clips(tmp_path: Path) -> None:
    data = make_set(tmp_path / "set")
    assert max(shard.longest_seconds or 0.0 for shard in read_manifest(data).shards) == 3.0
    for shard in data.glob("*.parquet"):
        shard.unlink()
    assert has_long_clips(read_manifest(data), 1.0)
    assert not has_long_clips(read_manifest(data), 3.0)
    with pytest.raises(ValueError, match=r"train-00000.parquet: missing"):
        long_audio(read_manifest(data), 1.0)


def test_training_hears_a_window_drawn_from_seed_epoch_and_clip(tmp_path: Path) -> None:
    data = make_set(tmp_path / "set")
    features = open_features(ensure_features(data, FRONT_END, tmp_path, in_windows=True, use_ray=False), "train")
    rows = np.arange(8)
    drawn = {epoch: features.drawn_windows(rows, 1, epoch, 1)[:, 0].tolist() for epoch in range(30)}
    assert drawn[3] == features.drawn_windows(rows, 1, 3, 1)[:, 0].tolist()
    assert features.drawn_windows(rows[::-1], 1, 3, 1)[:, 0].tolist() == drawn[3][::-1]
    assert {windows[1] for windows in drawn.values()} == {0, 1, 2}
    assert all(windows[0] == 0 for windows in drawn.values())
    plans = [training_plan(features.clip_ids, seed=1, epoch=epoch, batch_size=4) for epoch in range(4)]
    for batch in stream(features, plans, use_ray=False, seed=1):
        array, _ = features.features(batch.rows, features.drawn_windows(batch.rows, 1, batch.epoch, 1)[:, 0])
        assert np.array_equal(batch.features.numpy(), array.astype(np.float32))


def retriever_of(windows: str, data: Path = Path("unused")) -> Retriever:
    settings = override(tiny(data).model, {"windows": windows, "audio.clip_seconds": 1.0})
    return build_retriever(settings, tokenizer=train_tokenizer(["a sound"], 100), seed=0).eval()


@pytest.mark.slow
@pytest.mark.parametrize("windows", ["mean", "max", "attention"])
def test_every_way_to_an_embedding_pools_the_windows_alike(tmp_path: Path, windows: str) -> None:
    data = make_set(tmp_path / "set")
    retriever = retriever_of(windows)
    clips = [wav(noise(length, 16 + index)) for index, length in enumerate((0.5, 2.5, 1.0, 3.0) * 2)]
    direct = retriever.encode_audio(clips)
    assert torch.allclose(direct, retriever.encode_audio(clips, batch_size=2), atol=1e-5)
    assert torch.allclose(direct[1:2], retriever.encode_audio(clips[1]), atol=1e-5)
    _, alone = retriever.encode_windows(clips[1])
    pooled = {
        "mean": alone.mean(0),
        "max": alone.max(0).values,
        "attention": torch.softmax(alone @ torch.nn.functional.normalize(alone.mean(0), dim=0) / 0.1, 0) @ alone,
    }[windows]
    assert torch.allclose(direct[1], torch.nn.functional.normalize(pooled, dim=0), atol=1e-5)
    features = open_features(
        ensure_features(data, retriever.audio_tower.front_end, tmp_path, in_windows=True, use_ray=False), "test"
    )
    cached = encode_clips(
        retriever.embed_audio,
        clip_batches(features, [np.arange(3), np.arange(3, 8)]),
        width=16,
        device=torch.device("cpu"),
        pool=retriever.pool_windows,
    )
    assert torch.allclose(cached, direct, atol=3e-3)
    retriever.save_pretrained(tmp_path / "model")
    for root in (tmp_path, tmp_path / "no_cache"):
        source = EncodingSource(str(tmp_path / "model"), str(data), "test", str(root), batch_size=4)
        evaluated, _ = encode(source, [("eng", "a sound")], Encoding(ray="never"))
        assert np.allclose(evaluated, direct.numpy(), atol=3e-3)


def test_a_step_hears_several_windows_evenly_from_the_drawn_one(tmp_path: Path) -> None:
    data = make_set(tmp_path / "set", (0.5, 2.5, 5.0))
    features = open_features(ensure_features(data, FRONT_END, tmp_path, in_windows=True, use_ray=False), "train")
    rows = np.arange(6)
    assert features.num_windows.tolist() == [1, 3, 5] * 2
    for most in (1, 2, 4):
        for epoch in range(20):
            heard, first = features.drawn_windows(rows, 1, epoch, most), features.drawn_windows(rows, 1, epoch, 1)[:, 0]
            for total, own, drawn in zip(features.num_windows, heard, first, strict=True):
                there = [window for window in own if window >= 0]
                assert len(set(there)) == len(there) == min(total, most)
                assert own[0] == drawn
                assert all(0 <= window < total for window in there)
    plans = [training_plan(features.clip_ids, seed=1, epoch=0, batch_size=6)]
    (batch,) = stream(features, plans, use_ray=False, seed=1, windows=2)
    assert batch.clips.tolist() == [
        place for place, row in enumerate(batch.rows) for _ in range(min(2, features.num_windows[row]))
    ]
    for place, row in enumerate(batch.rows):
        own = [w for w in features.drawn_windows(batch.rows, 1, 0, 2)[place] if w >= 0]
        array, _ = features.features(np.full(len(own), row), np.array(own))
        assert np.array_equal(
            batch.features[batch.clips == place].numpy()[:, : array.shape[1]], array.astype(np.float32)
        )


@pytest.mark.ray
def test_several_windows_come_through_ray_as_they_are(tmp_path: Path, ray_session: None) -> None:
    data = make_set(tmp_path / "set", (0.5, 2.5, 5.0))
    features = open_features(ensure_features(data, FRONT_END, tmp_path, in_windows=True, use_ray=False), "train")
    plans = [training_plan(features.clip_ids, seed=1, epoch=epoch, batch_size=2) for epoch in range(2)]
    here, there = (list(stream(features, plans, use_ray=use_ray, seed=1, windows=2)) for use_ray in (False, True))
    assert len(here) == len(there) == 6
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one.clips, other.clips)
        assert torch.equal(one.features, other.features)
        assert torch.equal(one.frames, other.frames)


def loud_in_one_window(data: Path) -> Path:
    """Clips of a tone in one second, at a random place among four, and noise in the others; the caption names the tone."""
    draw, clips = np.random.default_rng(0), []
    for split, number in (("train", 64), ("val", 16), ("test", 16)):
        for index in range(number):
            samples, pitch, place = noise(4.0, index) * 3, index % 4, draw.integers(4)
            time = np.arange(RATE) / RATE
            samples[place * RATE : (place + 1) * RATE] = 0.4 * np.sin(2 * np.pi * 300 * 2**pitch * time)
            clips.append(
                Clip(
                    clip_id=f"{split}-{index}",
                    audio=wav(samples),
                    sample_rate=RATE,
                    seconds=4.0,
                    captions={"eng": [f"tone {pitch}"]},
                    split=split,
                    source="tones",
                )
            )
    write_clips(data, clips, name="tones", licence="none")
    return data


@pytest.mark.slow
def test_attention_learns_which_windows_count_and_is_saved(tmp_path: Path) -> None:
    data = loud_in_one_window(tmp_path / "set")
    settings = {
        "data.languages": "eng",
        # A smaller tower hears nearly the same in all windows.
        "model.audio.channels": 16,
        "model.audio.width": 192,
        "model.audio.clip_seconds": 1.0,
        "model.windows": "attention",
        "model.windows_in_training": 4,
        "train.batch_size": 16,
        "train.epochs": 4,
        "train.learning_rate": 0.01,
    }
    experiment = override(tiny(data), settings)
    train_trial(
        experiment, prepared_for(experiment, tmp_path), tmp_path / "trial", lambda row: None, use_ray_data=False
    )
    retriever = Retriever.from_pretrained(tmp_path / "trial" / "best")
    assert retriever.window_query.norm() > 0
    clip = next(row for row in iterate_rows(read_manifest(data), "test"))["audio"]
    _, alone = retriever.encode_windows(clip)
    query = torch.nn.functional.normalize(alone.mean(0), dim=0) / 0.1 + retriever.window_query.detach()
    pooled = torch.nn.functional.normalize(torch.softmax(alone @ query, 0) @ alone, dim=0)
    assert torch.allclose(retriever.encode_audio(clip)[0], pooled, atol=1e-5)
    retriever.window_query.data.zero_()
    assert not torch.allclose(retriever.encode_audio(clip)[0], pooled, atol=1e-4)


def test_a_towers_outputs_are_pooled_without_the_query_of_the_shared_space() -> None:
    """Estimates of the pairs read them, and they are of another width."""
    retriever = retriever_of("attention")
    retriever.window_query.data.normal_()
    width = retriever.audio_tower.width = 24
    windows = torch.nn.functional.normalize(torch.randn(3, width), dim=1)
    found = retriever.of_tower("audio").pool_windows(windows, torch.tensor([0, 0, 1]))
    query = torch.nn.functional.normalize(windows[:2].mean(0), dim=0) / 0.1
    pooled = torch.nn.functional.normalize(torch.softmax(windows[:2] @ query, 0) @ windows[:2], dim=0)
    torch.testing.assert_close(found, torch.stack([pooled, windows[2]]))
    assert isinstance(retriever.window_query, torch.nn.Parameter)


def test_the_gradient_of_the_query_is_that_of_finite_differences() -> None:
    retriever = retriever_of("attention").double()
    draw = torch.Generator().manual_seed(0)
    windows = torch.nn.functional.normalize(torch.randn(7, 16, generator=draw, dtype=torch.double), dim=1)
    clips, wanted = torch.tensor([0, 0, 0, 1, 2, 2, 2]), torch.randn(3, 16, generator=draw, dtype=torch.double)
    retriever.window_query.data = torch.randn(16, generator=draw, dtype=torch.double)

    def value(query: torch.Tensor) -> torch.Tensor:
        retriever.window_query.data = query
        return (retriever.pool_windows(windows, clips) * wanted).sum()

    start = retriever.window_query.data.clone()
    (gradient,) = torch.autograd.grad(value(start), retriever.window_query)
    steps = 1e-6 * torch.eye(16, dtype=torch.double)
    differences = [(value(start + step) - value(start - step)).item() / 2e-6 for step in steps]
    assert torch.allclose(gradient, torch.tensor(differences, dtype=torch.double), atol=1e-7)
    retriever.window_query.data = 1e4 * torch.ones(16, dtype=torch.double)
    assert torch.isfinite(retriever.pool_windows(windows, clips)).all()


def test_a_long_recording_is_not_its_beginning() -> None:
    clips = [np.concatenate([noise(1.5), noise(5.0, seed) * 3]) for seed in (1, 2)]
    heard, cut = retriever_of("mean"), retriever_of("cut")
    first, second = cut.encode_audio(clips, RATE)
    assert torch.allclose(first, second, atol=1e-6)
    first, second = heard.encode_audio(clips, RATE)
    assert not torch.allclose(first, second, atol=1e-3)


def test_windows_say_where_they_begin() -> None:
    starts, vectors = retriever_of("cut").encode_windows(noise(3.4), RATE)
    assert starts == pytest.approx([0.0, 1.0, 2.0, 2.4])
    assert vectors.shape == (4, 16)


def test_a_zero_embedding_is_refused() -> None:
    retriever = retriever_of("mean")
    with torch.no_grad():
        for projection in (retriever.audio_projection, retriever.text_projection):
            for parameter in projection.parameters():
                parameter.zero_()
    with pytest.raises(ValueError, match="clip 0: got 'an embedding that is zero or not finite'"):
        retriever.encode_audio(noise(1.0), RATE)
    with pytest.raises(ValueError, match="text 0: got 'an embedding that is zero or not finite'"):
        retriever.encode_text(["a sound", "a sound"])
    with pytest.raises(ValueError, match="text 0: got 'an embedding that is zero or not finite'"):
        retriever.embed_sentences(np.ones((2, retriever.text_tower.width), np.float32))


def test_what_is_not_heard_is_said_at_the_start(tmp_path: Path) -> None:
    from ray_atr.training.inputs import prepare

    data = make_set(tmp_path / "set")
    said: list[str] = []
    settings = {"data__languages": "eng", "model__audio__clip_seconds": "1.0", "train__batch_size": 4}
    prepare(tiny(data, model__windows="cut", **settings), tmp_path, use_ray=False, echo=said.append)
    assert any(
        line.startswith("12 clips are longer than 1 s and cut: 50.0% of the audio is not heard") for line in said
    )
    said.clear()
    prepare(tiny(data, **settings), tmp_path, use_ray=False, echo=said.append)
    assert not any("not heard" in line for line in said)
    features = open_features(prepared_for(tiny(data, **settings), tmp_path).features, "train")
    assert features.num_windows.max() == 3


# --- small files that promise much


def wav_header(rate: int, samples: int, channels: int = 1) -> bytes:
    size = samples * channels * 2
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, channels, rate, rate * channels * 2, channels * 2, 16)
    return b"RIFF" + struct.pack("<I", 36 + size) + b"WAVE" + form + b"data" + struct.pack("<I", size) + bytes(size)


def test_a_rate_that_would_become_gigabytes_is_refused_by_the_header() -> None:
    with pytest.raises(ValueError, match="clip, sample rate: got 1; allowed 1000 to 1000000 Hz"):
        clip_features(wav_header(1, 20_000), FrontEnd())
    assert len(decode(wav_header(1, 100), bounds=AudioBounds(lowest_rate=1))[0]) == 100


def test_channels_and_length_are_bounded() -> None:
    with pytest.raises(ValueError, match="channels: got 100; allowed at most 64"):
        open_sound(wav_header(16_000, 10, channels=100))
    with pytest.raises(ValueError, match="length: got '2 s by its header'; allowed at most 1 s"):
        open_sound(wav(noise(2.0)), bounds=AudioBounds(longest_seconds=1.0))
    with pytest.raises(ValueError, match="channels: got 3; allowed at most 2"):
        open_sound(wav_header(16_000, 10, channels=3), bounds=AudioBounds(most_channels=2))
    with pytest.raises(ValueError, match="sample rate: got 16000; allowed 1000 to 8000 Hz"):
        open_sound(wav_header(16_000, 10), bounds=AudioBounds(highest_rate=8_000))
    loud = wav(np.float32([0, 1.5, 0]), subtype="FLOAT")
    assert decode(loud)[0].max() == 1.5
    with pytest.raises(ValueError, match=r"a sample of 1\.5.*at most 1 "):
        decode(loud, bounds=AudioBounds(largest_sample=1.0))


def test_a_flac_that_promises_half_a_terabyte_is_one_unreadable_clip() -> None:
    data = bytearray(wav(noise(0.5), kind="FLAC"))
    # STREAMINFO begins at byte 8: its 36-bit count of samples ends at byte 26.
    data[21] |= 0x0F
    data[22:26] = b"\xff\xff\xff\xff"
    with pytest.raises(ValueError, match=r"length: got '\d+ s by its header'|truncated file"):
        decode(bytes(data))


@pytest.mark.parametrize(("sample", "says"), [(3e38, "a sample of 3e"), (np.nan, "not a number"), (np.inf, "infinite")])
def test_samples_that_no_feature_survives_are_refused(sample: float, says: str) -> None:
    samples = noise(3.0)
    samples[40_000] = sample
    data = wav(samples, subtype="FLOAT")
    with pytest.raises(ValueError, match=says):
        list(clip_windows(data, FRONT_END))


@pytest.mark.slow
def test_memory_is_that_of_a_window_however_long_the_recording() -> None:
    data = wav(np.zeros((600 * RATE, 2), np.int16))
    tracemalloc.start()
    clip_features(data, FRONT_END)
    cut = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    assert sum(1 for _ in clip_windows(data, FRONT_END)) == 600
    whole = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Decoded at once it would be 600 s x 16,000 x (2 channels + their mean) x 4 bytes = 115 MB.
    assert cut < 5e6
    assert whole < 10e6
