"""One flipped byte in any kind of file that is kept: the next command names it, or makes it again; it never goes unseen.

`-s` prints how many flips of each kind of file ended how; with RAY_ATR_ALL_POINTS=1 there are ten times as many.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ray_atr.common.digests import DamagedCacheError, DamagedFileError, seal
from ray_atr.common.storage import read_json
from ray_atr.data.audio import FrontEnd
from ray_atr.data.feature_cache import ensure_features
from ray_atr.data.features import open_features
from ray_atr.models.retriever import Retriever
from ray_atr.objectives.knowledge.knowledge import SnapshotSettings
from ray_atr.training.checkpoint import load_checkpoint, save_checkpoint
from ray_atr.training.experiment import Experiment
from ray_atr.training.knowledge_base import snapshot
from ray_atr.training.knowledge_base.building import build
from ray_atr.training.loop import train_trial
from ray_atr.training.run_folder import RunFolder
from tests.support.crash_points import ALL_POINTS
from tests.support.tiny import make_data, prepared_for, tiny

ended: Counter[tuple[str, str]] = Counter()
"""(kind of file, how it ended) -> flips."""


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    yield
    print(*(f"{kind}: {count} {how}" for (kind, how), count in sorted(ended.items())), sep="\n")


def flips(file: Path, count: int, seed: int = 0) -> Sequence[int]:
    """Positions spread over a file, its first and last byte among them."""
    size, count = file.stat().st_size, 10 * count if ALL_POINTS else count
    drawn = np.random.default_rng(seed).integers(0, size, max(count - 2, 0)).tolist()
    return sorted({0, size - 1, *drawn})


def flip(file: Path, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 1 << (position % 8)
    # As a disk does it: another inode, so that nothing mapped changes under a reader.
    file.unlink()
    file.write_bytes(content)


def assert_seen(file: Path, read: Callable[[], Any], count: int = 24) -> None:
    """Whatever byte is flipped, reading raises a ValueError that names the file, or is as it was."""
    whole, expected = file.read_bytes(), read()
    for position in flips(file, count):
        flip(file, position)
        found, problem = expected, None
        try:
            found = read()
        except ValueError as error:
            problem = str(error)
        assert repr(found) == repr(expected), f"{file.name}: byte {position} changed what is read without a word"
        assert problem is None or (file.name in problem and len(problem) < 500), (position, problem)
        ended[file.name, "read as it was" if problem is None else "named and refused"] += 1
        file.write_bytes(whole)


def test_checkpoints(tmp_path: Path) -> None:
    state = {"weights": torch.arange(300.0), "progress": {"epoch": 1}}
    save_checkpoint(tmp_path, state)
    file = tmp_path / "state.pt"
    whole = file.read_bytes()
    for position in {*range(0, len(whole), 29), *range(len(whole) - 60, len(whole))}:
        flip(file, position)
        with pytest.raises(ValueError, match=r"state\.pt"):
            load_checkpoint(tmp_path)
        ended[file.name, "named and refused"] += 1
        file.write_bytes(whole)
    assert load_checkpoint(tmp_path)["weights"].equal(state["weights"])


def test_a_loaded_checkpoint_is_its_own(tmp_path: Path) -> None:
    """What was loaded outlives the file, and changing it changes no file."""
    save_checkpoint(tmp_path, {"weights": torch.arange(300.0)})
    loaded = load_checkpoint(tmp_path)["weights"]
    loaded += 1
    assert load_checkpoint(tmp_path)["weights"].equal(torch.arange(300.0))
    save_checkpoint(tmp_path, {"weights": torch.zeros(300)})
    assert loaded.equal(torch.arange(300.0) + 1)


def test_records_of_a_run(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", Experiment(), {"name": "test", "command": "x"})
    trial = run.add_trial({"seed": 1})
    for epoch in (1, 2):
        trial.add_epoch({"epoch": epoch, "text_to_audio/eng/recall_at_1": 0.5 + epoch / 100})
    trial.finish({"best_epoch": 2, "test/text_to_audio/eng/recall_at_1": 0.125})
    assert_seen(trial.folder / "result.json", lambda: read_json(trial.folder / "result.json"), 200)
    assert_seen(trial.folder / "metrics.jsonl", trial.epochs, 200)
    assert_seen(trial.folder / "trial.json", trial.describe, 200)
    assert_seen(run.path / "sweep.json", lambda: run.info, 60)
    assert_seen(run.path / "experiment.json", lambda: run.experiment, 100)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "tones", num_train=8, num_val=4, num_test=2)


FRONT_END = FrontEnd(num_mels=20, clip_seconds=0.5)


def contents(folder: Path) -> tuple[Any, ...]:
    open_features.cache_clear()
    features = open_features(folder, "train")
    return (features.features(np.arange(len(features)))[0].tobytes(), features.clip_ids, features.captions.to_pylist())


def test_a_record_whose_digest_is_no_longer_recognised_is_damaged_not_old(tmp_path: Path) -> None:
    for written in (seal({"epoch": 1, "loss": 0.5}) + "\n", seal({"epoch": 1, "loss": 0.5}, indent=1) + "\n"):
        name, value = written.index('"digest"'), written.index("xxh3:")
        for of_name in range(1, 7):
            for of_value in range(5):
                changed = bytearray(written.encode())
                changed[name + of_name] = changed[value + of_value] = ord("0")
                (tmp_path / "record").write_bytes(changed)
                with pytest.raises(DamagedFileError):
                    read_json(tmp_path / "record")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train-00000.arrow", "train.captions.arrow", "manifest.json", "digests.json"])
def test_a_feature_cache_is_made_again(data: Path, tmp_path: Path, name: str) -> None:
    def read() -> tuple[Any, ...]:
        """What the next command and, if that one was told of damage, the one after it do."""
        try:
            return contents(ensure_features(data, FRONT_END, tmp_path / "cache", use_ray=False))
        except DamagedCacheError as error:
            problem = str(error)
        assert name in problem
        return contents(ensure_features(data, FRONT_END, tmp_path / "cache", use_ray=False))

    expected = read()
    (folder,) = (path for path in (tmp_path / "cache").iterdir() if path.is_dir())
    kept = shutil.copytree(folder, tmp_path / "kept")
    for position in flips(folder / name, 20):
        flip(folder / name, position)
        assert read() == expected, position
        ended[f"feature cache, {name}", "as before, or made again"] += 1
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)


def test_a_second_damaged_file_of_a_cache_is_made_again_with_the_first(data: Path, tmp_path: Path) -> None:
    """What remains when a file is made again gets new digests: as damaged as it was, it would count as intact."""
    folder = ensure_features(data, FRONT_END, tmp_path, use_ray=False)
    files = [next(folder.glob(f"{split}-*.arrow")) for split in ("train", "val")]
    intact = [file.read_bytes() for file in files]
    for file in files:
        flip(file, file.stat().st_size // 2)
    with pytest.raises(DamagedCacheError, match=files[0].name):
        contents(folder)
    assert ensure_features(data, FRONT_END, tmp_path, use_ray=False) == folder
    assert [file.read_bytes() for file in files] == intact


def test_a_data_shard_is_refused_when_the_cache_is_built(data: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(data, tmp_path / "data")
    shard = copied / "train-00000.parquet"
    whole = shard.read_bytes()
    for number, position in enumerate(flips(shard, 20)):
        flip(shard, position)
        with pytest.raises(DamagedFileError, match=r"train-00000.parquet: damaged.*import the data set again"):
            ensure_features(copied, FRONT_END, tmp_path / f"cache-{number}", use_ray=False)
        ended[shard.name, "named and refused"] += 1
        shard.write_bytes(whole)


def test_best_models_tokenisers_and_snapshots(data: Path, tmp_path: Path) -> None:
    experiment = tiny(data, train__epochs=1, train__batch_size=4, scaling__workers=0)
    prepared = prepared_for(experiment, tmp_path)
    train_trial(experiment, prepared, tmp_path / "trial", lambda metrics: None, use_ray_data=False)
    best = tmp_path / "trial" / "best"
    for file in sorted(path for path in best.rglob("*") if path.is_file()):
        assert_seen(file, lambda: weights_of(best), 8)
    assert prepared.tokenizer is not None
    text, found = prepared.tokenizer.read_bytes(), []
    for position in flips(prepared.tokenizer, 12):
        flip(prepared.tokenizer, position)
        found.append(prepared_for(experiment, tmp_path).tokenizer)
        assert prepared.tokenizer.read_bytes() == text, "trained again"
        ended["tokeniser", "made again"] += 1
    rows = np.random.default_rng(0).standard_normal((30, 8)).astype(np.float32)
    entries = snapshot.Entries(rows, -rows, [str(row) for row in range(30)])
    made = build(entries, SnapshotSettings(prototypes=3))
    snapshot.save(made, tmp_path / "base")
    for name in ("audio.npy", "centroids.npy", "ids.npy", "manifest.json", "digests.json"):
        assert_seen(tmp_path / "base" / name, lambda: snapshot.load(tmp_path / "base").audio.tobytes(), 12)


def test_which_of_two_swapped_lists_of_digests_is_wrong_is_said(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((30, 8)).astype(np.float32)
    folders = [tmp_path / f"v{number}" for number in (1, 2)]
    for number, folder in enumerate(folders):
        entries = snapshot.Entries(rows + number, number - rows, [f"{number}-{row}" for row in range(30)])
        snapshot.save(build(entries, SnapshotSettings(prototypes=3)), folder)
    lists = [(folder / "digests.json").read_bytes() for folder in folders]
    for folder, other in zip(folders, reversed(lists), strict=True):
        (folder / "digests.json").write_bytes(other)
        with pytest.raises(DamagedFileError, match=rf"{folder}/digests.json: damaged.*it may be of another folder"):
            snapshot.load(folder)
    for folder, own in zip(folders, lists, strict=True):
        (folder / "digests.json").write_bytes(own)
        flip(folder / "audio.npy", 200)
        with pytest.raises(DamagedFileError, match=rf"{folder}/audio.npy: damaged"):
            snapshot.load(folder)


def weights_of(folder: Path) -> Any:
    return {name: value.numpy().tobytes() for name, value in Retriever.from_pretrained(folder).state_dict().items()}
