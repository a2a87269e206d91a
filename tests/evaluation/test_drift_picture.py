"""The picture of drift: clips embedded by the weights that a run kept of its epochs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from ray_atr.data.shards import write_clips
from ray_atr.evaluation.encoding import Encoding, EncodingSource, encode
from ray_atr.evaluation.report.evaluation_pictures import drift_map
from ray_atr.evaluation.training_traces import drift_pictures, embedded_along
from ray_atr.training.loop import train_trial
from ray_atr.training.run_folder import BEST
from ray_atr.training.trajectory import saved_steps
from tests.support.tiny import make_data, prepared_for, tiny, tone_clip


def test_clips_are_embedded_by_the_weights_of_each_kept_epoch(tmp_path: Path) -> None:
    data = make_data(tmp_path / "tones")
    experiment = tiny(data, objective="contrastive", train__epochs=2, train__keep_trajectory=True)
    trial = tmp_path / "trial"
    reports: list[dict[str, object]] = []
    train_trial(experiment, prepared_for(experiment, tmp_path), trial, reports.append, use_ray_data=False)
    assert saved_steps(trial) == [3, 6]
    source = EncodingSource(
        str(trial / BEST), str(data), "test", str(tmp_path / "data" / "cache" / "features"), batch_size=3
    )
    ways = embedded_along(trial, [3, 6], source)
    assert ways.shape == (2, 8, 16)
    assert not np.allclose(ways[0], ways[1])
    best = int(reports[-1]["best_epoch"])  # type: ignore[call-overload]
    clips, _ = encode(source, [("eng", "a low tone")], Encoding(ray="never"))
    np.testing.assert_allclose(ways[best - 1], clips, atol=1e-5)
    checkpoint = SimpleNamespace(folder=trial / BEST, trial=SimpleNamespace(folder=trial))
    assert list(drift_pictures(checkpoint, source)) == ["Drift over training"]
    elsewhere = SimpleNamespace(folder=trial / BEST, trial=SimpleNamespace(folder=tmp_path))
    assert drift_pictures(elsewhere, source) == {}
    write_clips(tmp_path / "single", [tone_clip("test", 0, {"eng": ["a low tone"]})], name="single", licence="none")
    assert drift_pictures(checkpoint, replace(source, data=str(tmp_path / "single"))) == {}


def test_the_map_of_drift_is_one_for_all_labels() -> None:
    rows = np.random.default_rng(0).normal(size=(6, 5))
    figure = drift_map(np.stack([rows, rows + 1.0, rows]), ["a", "b", "c"])
    first, second, third = (points.get_offsets() for points in figure.axes[0].collections)
    assert np.allclose(first, third)
    moved = np.asarray(second) - np.asarray(first)
    # The same shift for every clip, for the map is linear.
    assert np.allclose(moved, moved[0])
