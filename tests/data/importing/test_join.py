"""Several data sets as one: what is left out, what a training, an evaluation and other readers have of it."""

from __future__ import annotations

import io
import json
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.signal
import soundfile
import torch

from ray_atr.common import storage
from ray_atr.common.override import override
from ray_atr.common.storage import write_json
from ray_atr.data.audio import FrontEnd
from ray_atr.data.captions import TrainingCaptions
from ray_atr.data.feature_cache import ensure_features
from ray_atr.data.features import open_features
from ray_atr.data.noise import Noise, part_of
from ray_atr.data.schema import Clip
from ray_atr.data.shards import Manifest, iterate_rows, read_manifest, write_clips
from ray_atr.deploy.index.archive import DataSetArchive
from ray_atr.training.batch import TrainingData
from ray_atr.training.checks import check_experiment
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.loop import train_trial
from ray_atr.workshop.audit.decisions import apply_decisions
from ray_atr.workshop.importing import join, recordings
from ray_atr.workshop.importing.check import check_data_set
from ray_atr.workshop.importing.import_options import Join, Translation
from ray_atr.workshop.importing.join import groups_of, join_data_sets, left_out_by_lists, read_sets
from ray_atr.workshop.importing.recordings import SAME, RecordingKey, fingerprint, recording_key, same_sound
from ray_atr.workshop.importing.translation import fill_languages
from tests.support.spies import spied
from tests.support.tiny import prepared_for, tiny

RATE = 16_000


def burst(seed: int, seconds: float = 1.2) -> np.ndarray:
    """Noise that swells and changes its colour, unlike that of any other seed."""
    random = np.random.default_rng(seed)
    noise = random.standard_normal(int(seconds * RATE))
    envelope = np.interp(np.arange(len(noise)), np.linspace(0, len(noise), 12), random.uniform(0.05, 1, 12))
    return 0.2 * scipy.signal.lfilter([1, random.uniform(-0.9, 0.9)], [1], noise) * envelope


def encoded(samples: np.ndarray, rate: int = RATE, form: str = "WAV") -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=form)
    return buffer.getvalue()


def clip(name: str, split: str, audio: bytes, source: str, rate: int = RATE) -> Clip:
    captions = {"eng": (f"{name} sounds",), "fra": (f"{name} sonne",)}
    about = {"sample_rate": rate, "seconds": 1.2, "captions": captions, "split": split, "source": source}
    return Clip(clip_id=name, audio=audio, translated=("fra",) if source == "wood" else (), **about)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`sea` and `wood`. Recordings of `wood`'s train are in `sea`'s test: 100 as it is, 101 as MP3, 102 at half the rate and
    softer. 103 is in the train of both, and 104 in `wood`'s train and val.
    """
    folder = tmp_path_factory.mktemp("sets")
    sea = [clip(f"s{n}", "train", encoded(burst(n)), "sea") for n in range(20)]
    sea += [clip(f"v{n}", "val", encoded(burst(20 + n)), "sea") for n in range(6)]
    sea += [clip(f"t{n}", "test", encoded(burst(100 + n)), "sea") for n in range(6)]
    sea.append(clip("both", "train", encoded(burst(103)), "sea"))
    softer = 0.5 * scipy.signal.resample_poly(burst(102), 1, 2)
    wood = [clip(f"w{n}", "train", encoded(burst(200 + n)), "wood") for n in range(12)]
    wood += [
        clip("bytes", "train", encoded(burst(100)), "wood"),
        clip("mp3", "train", encoded(burst(101), form="MP3"), "wood"),
        clip("softer", "train", encoded(softer, RATE // 2), "wood", RATE // 2),
        clip("both", "train", encoded(burst(104)), "wood"),
    ]
    wood += [clip(f"x{n}", "val", encoded(burst(104 if n == 0 else 220 + n)), "wood") for n in range(6)]
    wood += [clip(f"y{n}", "test", encoded(burst(240 + n)), "wood") for n in range(6)]
    for name, clips in (("sea", sea), ("wood", wood)):
        write_clips(folder / name, clips, name=name, licence=f"licence of {name}", clips_per_shard=8)
    return folder


@pytest.fixture(scope="module")
def joined(sets: Path) -> Manifest:
    (sets / "list.txt").write_text("w3.wav\nw4\nelsewhere\n")
    options = Join(sets=(f"{sets}/sea", f"forest={sets}/wood"), leave_out=(f"forest={sets}/list.txt",), ray="never")
    return join_data_sets(options, sets / "joined")


LEAKS = {
    "forest/bytes": "sea/t0",
    "forest/mp3": "sea/t1",
    "forest/softer": "sea/t2",
    "sea/both": "sea/t3",
    "forest/both": "sea/t4",
}


def test_what_would_leak_or_is_listed_is_left_out_and_said(joined: Manifest) -> None:
    reasons = {entry.clip_id: entry.reason for entry in joined.skipped}
    expected = {clip_id: f"the recording of {other} (test)" for clip_id, other in LEAKS.items()}
    # Of the three copies of 104, those in train and in val go.
    expected["forest/x0"] = "the recording of sea/t4 (test)"
    assert reasons == {**expected, "forest/w3": "named by list.txt", "forest/w4": "named by list.txt"}
    assert "list.txt: 2 clips of forest left out, of 3 ids" in joined.notes
    (leak,) = [note for note in joined.notes if note.startswith("4 recordings of forest (train)")]
    assert leak == "4 recordings of forest (train) also in sea (test): forest/bytes = sea/t0; forest/mp3 = sea/t1, ..."


def test_its_rows_are_those_of_its_sets_under_their_names(sets: Path, joined: Manifest) -> None:
    left_out = {entry.clip_id for entry in joined.skipped}
    for split in ("train", "val", "test"):
        expected = [
            {**row, "clip_id": f"{name}/{row['clip_id']}"}
            for name, folder in (("sea", "sea"), ("forest", "wood"))
            for row in iterate_rows(read_manifest(sets / folder), split)
            if f"{name}/{row['clip_id']}" not in left_out
        ]
        assert list(iterate_rows(joined, split)) == expected
        assert joined.num_rows_of(split) == len(expected)
        assert [row["clip_id"] for row in iterate_rows(joined, split, ["clip_id"])] == [r["clip_id"] for r in expected]
        assert [set(row) for row in iterate_rows(joined, split, ["seconds"])] == [{"seconds"}] * len(expected)
    assert joined.num_captions("fra") == joined.num_rows
    rows = [row for split in ("train", "val", "test") for row in iterate_rows(joined, split, ["clip_id", "translated"])]
    translated = [row["clip_id"] for row in rows if row["translated"]]
    assert joined.num_translated("fra") == len(translated)
    assert all(clip_id.startswith("forest/") for clip_id in translated)
    assert joined.name == "sea+forest"
    # Nothing of the audio is copied.
    assert [file.name for file in (sets / "joined").iterdir()] == ["manifest.json"]
    report = check_data_set(joined.folder)
    assert report.is_fit, report.problems


def test_its_hash_tells_what_is_left_out(sets: Path, joined: Manifest, tmp_path: Path) -> None:
    (sets / "other.txt").write_text("w5\nw6\n")
    hashes = {joined.hash}
    for number, entries in enumerate(((f"forest={sets}/other.txt",), ())):
        options = Join(sets=(f"{sets}/sea", f"forest={sets}/wood"), leave_out=entries, ray="never")
        hashes.add(join_data_sets(options, tmp_path / str(number)).hash)
    assert len(hashes) == 3


def test_leaks_may_be_kept_and_bytes_alone_compared(sets: Path, tmp_path: Path) -> None:
    both = (f"{sets}/sea", f"{sets}/wood")
    kept = join_data_sets(Join(sets=both, leaks="keep", ray="never"), tmp_path / "kept")
    assert not kept.skipped
    assert any("also in sea (test)" in note for note in kept.notes)
    by_bytes = join_data_sets(Join(sets=both, recordings="bytes", ray="never"), tmp_path / "bytes")
    assert {entry.clip_id for entry in by_bytes.skipped} == {"wood/bytes", "sea/both", "wood/both", "wood/x0"}


def test_clips_of_one_split_that_are_one_recording_stay(tmp_path: Path) -> None:
    for name in ("one", "two"):
        clips = [clip(f"{name}{n}", "train", encoded(burst(n)), name) for n in range(4)]
        write_clips(tmp_path / name, clips, name=name, licence="none")
    joined = join_data_sets(Join(sets=(f"{tmp_path}/one", f"{tmp_path}/two"), ray="never"), tmp_path / "joined")
    assert not joined.skipped
    assert joined.notes == ("4 clips of train with a recording that train has already",)


def test_different_short_sounds_are_no_copies_of_each_other() -> None:
    prints = np.stack(
        [fingerprint(encoded(burst(seed, seconds)), "clip") for seconds in (0.4, 0.6) for seed in range(40)]
    )
    assert not list(same_sound(prints))
    copies = [fingerprint(encoded(burst(7), form=form), "clip") for form in ("WAV", "FLAC", "MP3")]
    assert list(same_sound(np.stack([*copies, *(fingerprint(encoded(burst(n)), "clip") for n in (8, 9))]))) == [
        (0, 1),
        (0, 2),
        (1, 2),
    ]


def test_reading_and_comparing_show_progress_and_a_clip_is_decoded_in_one_thread(
    sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, seen = set[int](), defaultdict[str, list[tuple[int, int]]](list)

    spied(monkeypatch, join, "recording_key", lambda *_, **__: threads.add(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        both = (f"{sets}/sea", f"{sets}/wood")
        join_data_sets(Join(sets=both, ray="never"), tmp_path / "out", lambda name, *count: seen[name].append(count))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert threads == {1}
    assert {name: counts[-1] for name, counts in seen.items()} == {"reading": (61, 61), "comparing": (61, 61)}


def test_a_join_that_was_stopped_goes_on_and_a_finished_one_is_returned(
    sets: Path, joined: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its sounds, only those that it had not come to are decoded."""
    decoded: list[str] = []

    def key_of(audio: bytes, clip_id: str, *, is_decoded: bool) -> RecordingKey:
        if len(decoded) == 30:
            decoded.append("stopped")
            raise KeyboardInterrupt
        decoded.append(clip_id)
        return recording_key(audio, clip_id, is_decoded=is_decoded)

    monkeypatch.setattr("ray_atr.workshop.importing.join.recording_key", key_of)
    options = Join(sets=(f"{sets}/sea", f"forest={sets}/wood"), leave_out=(f"forest={sets}/list.txt",), ray="never")
    with pytest.raises(KeyboardInterrupt, match="run the same command again to continue"):
        join_data_sets(options, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    again = join_data_sets(options, tmp_path / "out")
    # The stopped one had finished the shards of `sea`'s train and val, of 27 clips.
    assert len(decoded) == 30 + 1 + 61 - 27
    assert again.skipped == joined.skipped
    assert again.shards == joined.shards
    assert again.notes == joined.notes
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["manifest.json"]
    decoded.clear()
    assert join_data_sets(options, tmp_path / "out") == again
    assert not decoded
    for changes in ({"leaks": "keep"}, {"leave_out": ()}, {"recordings": "bytes"}):
        with pytest.raises(ValueError, match="already holds the data set"):
            join_data_sets(replace(options, **changes), tmp_path / "out")


def data_of(folder: Path, joined: Manifest, **changes: object) -> TrainingData:
    experiment = tiny(Path(joined.folder), train__batch_size=4, **changes)
    check_experiment(experiment)
    return TrainingData(experiment, prepared_for(experiment, folder), WorkerGroup())


def test_weights_say_how_often_an_epoch_has_a_part(sets: Path, joined: Manifest) -> None:
    data = data_of(sets / "home", joined, data__weights="sea=0.5,forest=2", train__epochs=3)
    num = Counter(part_of(name) for name in data.features.clip_ids)
    assert data.steps_per_epoch == (round(0.5 * num["sea"]) + 2 * num["forest"]) // 4
    seen = []
    for _, batches in data.epochs(0, 0, use_ray=False):
        ids = Counter(name for batch in batches for name in batch.clip_ids)
        assert max(number for name, number in ids.items() if part_of(name) == "sea") == 1
        assert max(number for name, number in ids.items() if part_of(name) == "forest") == 2
        seen.append(frozenset(name for name in ids if part_of(name) == "sea"))
    # Not the same half, of which the batches leave out others.
    assert len(frozenset.union(*seen)) > round(0.5 * num["sea"]), (
        "an epoch that has a half of a part has another half each time"
    )
    # And every seed has one of its own.
    by_seed = [data_of(sets / "home", joined, data__weights="sea=0.5,forest=2", seed=seed) for seed in range(1, 5)]
    drawn = {data.features.clip_ids[row] for data in by_seed for rows in data._order(0).rows for row in rows}
    assert sum(part_of(name) == "sea" for name in drawn) > round(0.5 * num["sea"])


@pytest.mark.parametrize(
    "hears", [{"model__augment__time_bands": 1}, {"model__windows": "mean", "model__audio__clip_seconds": 1.0}]
)
def test_a_clip_that_an_epoch_has_twice_is_drawn_anew(tmp_path: Path, hears: dict[str, object]) -> None:
    """Another caption, another language, and bands or a window of its own."""
    for name in ("one", "two"):
        clips = [clip(f"{name}{n}", "train", encoded(burst(n, 3.0)), name) for n in range(8)]
        clips.append(clip(f"{name}8", "val", encoded(burst(len(name), 3.0)), name))
        texts = {code: tuple(f"{code} {number}" for number in range(4)) for code in ("eng", "fra")}
        write_clips(tmp_path / name, [replace(one, captions=texts) for one in clips], name=name, licence="none")
    joined = join_data_sets(Join(sets=(f"{tmp_path}/one", f"{tmp_path}/two"), ray="never"), tmp_path / "joined")
    data = data_of(tmp_path / "home", joined, data__weights="one=2,two=1", objective="ml_clap", **hears)
    _, batches = next(data.epochs(0, 0, use_ray=False))
    drawn: dict[str, list[tuple[object, ...]]] = {}
    for batch in batches:
        for place, name in enumerate(batch.clip_ids):
            captions = batch.captions.texts[place][0]
            drawn.setdefault(name, []).append((captions, int(batch.draw[place]), batch.features[place].tolist()))
    twice = [of for of in drawn.values() if len(of) == 2]
    assert len(twice) >= 6
    for part in range(3):
        assert sum(first[part] != second[part] for first, second in twice) >= 2, part


@pytest.mark.parametrize("workers", [2, 4])
def test_weighted_batches_are_the_same_for_any_number_of_workers(sets: Path, joined: Manifest, workers: int) -> None:
    changes = {"data__weights": "sea=0.7,forest=1.3", "train__batch_size": 4}
    experiment = tiny(Path(joined.folder), **changes)
    prepared = prepared_for(experiment, sets / "home")
    alone = TrainingData(experiment, prepared, WorkerGroup())._order(1)
    shares = []
    for rank in range(workers):
        data = TrainingData(experiment, prepared, WorkerGroup())
        data.group = type("Share", (), {"rank": rank, "size": workers})()
        shares.append(data._order(1))
    assert alone.names is not None
    for step, rows in enumerate(alone.rows):
        assert rows.tolist() == [row for share in shares for row in share.rows[step].tolist()]
        assert alone.names[step] == [name for share in shares for name in (share.names or [])[step]]


def test_noise_may_be_of_some_parts_alone(sets: Path, joined: Manifest) -> None:
    experiment = tiny(Path(joined.folder))
    features = open_features(prepared_for(experiment, sets / "home").features, "train")
    parts = np.array([part_of(name) for name in features.clip_ids])
    for unit in ("clip", "caption"):
        captions = TrainingCaptions(features, ("eng", "fra"), Noise(ratio=0.9, parts=("forest",), unit=unit), 0)
        is_own = captions.assigned.is_own.all(axis=(1, 2))
        assert is_own[parts == "sea"].all()
        assert (~is_own[parts == "forest"]).mean() > 0.5


def test_a_training_reports_the_test_split_of_each_part(tmp_path: Path, joined: Manifest) -> None:
    experiment = tiny(Path(joined.folder), train__epochs=1, train__batch_size=6, data__test_split="test")
    reports: list[dict[str, float]] = []
    prepared = prepared_for(experiment, tmp_path)
    train_trial(experiment, prepared, tmp_path / "run", reports.append, use_ray_data=False)
    report = reports[-1]
    for part, others in (("sea", 6), ("forest", 6)):
        assert 0 <= report[f"test/text_to_audio_in_{part}/eng/recall_at_1"] <= 1
        assert report[f"test/text_to_audio_in_{part}/eng/queries"] == others
    assert report["test/text_to_audio/eng/queries"] == 12


@pytest.mark.slow
@pytest.mark.parametrize("made_by", ["translate", "apply"])
def test_what_is_made_of_it_has_all_its_clips_and_parts(
    sets: Path, joined: Manifest, tmp_path: Path, made_by: str
) -> None:
    if made_by == "translate":
        options = Translation(model="x", languages=("eng", "deu"), ray="never")
        fill_languages(joined.folder, tmp_path / "made", options, translate=lambda texts, *_: [f"{t}!" for t in texts])
    else:
        facts = {"data": joined.folder, "data_hash": joined.hash, "split": "train", "languages": ["eng", "fra"]}
        write_json(tmp_path / "audit.json", facts)
        decided = {"forest/w0\teng\t0": {"decision": "fix", "text": "a fixed one"}}
        write_json(tmp_path / "decided.json", {"data_hash": joined.hash, "decisions": decided})
        apply_decisions(tmp_path, tmp_path / "decided.json", tmp_path / "made")
    made = read_manifest(tmp_path / "made")
    for split in joined.splits:
        assert [(row["clip_id"], row["audio"]) for row in iterate_rows(made, split)] == [
            (row["clip_id"], row["audio"]) for row in iterate_rows(joined, split)
        ]
    report = check_data_set(made.folder)
    assert report.is_fit, report.problems
    # It is read by part, and its clips are known as those of its sets.
    data = data_of(tmp_path, made, data__weights="sea=0,forest=1")
    before = data_of(sets / "home", joined).features
    assert data.features.parts == before.parts
    assert {part_of(data.features.clip_ids[row]) for rows in data._order(0).rows for row in rows} == {"forest"}
    assert data.features.caption_sample.share_in(before.caption_sample) == 1
    # And joined again as any other set.
    again = join_data_sets(Join(sets=(f"a={made.folder}", f"b={sets}/wood"), leaks="keep", ray="never"), tmp_path / "b")
    assert next(iterate_rows(again, "train"))["clip_id"] == "a/sea/s0"
    assert again.num_rows == made.num_rows + read_manifest(sets / "wood").num_rows


def test_shards_are_read_in_their_order_without_what_is_left_out(tmp_path: Path, joined: Manifest) -> None:
    front_end = FrontEnd(num_mels=16)
    kept = open_features(ensure_features(joined.folder, front_end, tmp_path, use_ray=False), "train")
    streamed = open_features(
        ensure_features(joined.folder, front_end, tmp_path, use_ray=False, streamed="train"), "train"
    )
    assert streamed.clip_ids == kept.clip_ids
    rows = np.arange(len(kept))[::-1].copy()
    for found, expected in zip(streamed.features(rows), kept.features(rows), strict=True):
        np.testing.assert_array_equal(found, expected)
    part = open_features(kept.folder, "train", "forest")
    assert part.clip_ids == [name for name in kept.clip_ids if part_of(name) == "forest"]
    first = kept.clip_ids.index(part.clip_ids[0])
    np.testing.assert_array_equal(part.features(np.array([0]))[0], kept.features(np.array([first]))[0])


def test_an_index_reads_its_sounds(sets: Path, joined: Manifest) -> None:
    archive = DataSetArchive(joined)
    audio = {f"sea/{row['clip_id']}": row["audio"] for row in iterate_rows(read_manifest(sets / "sea"), "train")}
    sounds = [sound for sound in archive.sounds() if sound.path.startswith("train/sea/")]
    assert {archive.read(sound.without_data()) for sound in sounds} == {audio[sound.clip_id] for sound in sounds}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data__weights": "see=0.5"},
            r"data.weights: got 'see'; allowed one of its parts with clips in train: sea, forest \(did you mean sea\?\)",
        ),
        ({"data__noise__parts": "lake"}, "got 'lake'; allowed one of its parts with clips in train: sea, forest"),
        (
            {"data__weights": "sea=0,forest=0.5"},
            r"data.weights: got \('sea=0', 'forest=0.5'\); allowed weights that give an epoch a batch of "
            r"train.batch_size = 8 clips or more; these give it 5",
        ),
        (
            {"data__weights": "sea=2", "data__order": "shards"},
            "data.weights: got .* allowed unset with data.order=shards",
        ),
        ({"data__noise__parts": "sea", "data__noise__kind": "shift"}, "allowed unset with data.noise.kind=shift"),
    ],
)
def test_what_is_no_part_is_refused(joined: Manifest, changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_experiment(tiny(Path(joined.folder), train__batch_size=8, **changes))


def test_a_part_without_training_clips_is_refused(sets: Path, tmp_path: Path) -> None:
    (tmp_path / "all.txt").write_text("\n".join(["bytes", "mp3", "softer", "both", *(f"w{n}" for n in range(12))]))
    options = Join(
        sets=(f"{sets}/sea", f"{sets}/wood"), leave_out=(f"wood={tmp_path}/all.txt",), recordings="bytes", ray="never"
    )
    joined = join_data_sets(options, tmp_path / "joined")
    for path in ("data__weights", "data__noise__parts"):
        changes = {path: "wood=2" if "weights" in path else "wood"}
        with pytest.raises(ValueError, match=r"got 'wood'; allowed one of its parts with clips in train: sea$"):
            check_experiment(tiny(Path(joined.folder), **changes))


@pytest.mark.parametrize("weights", ["sea", "sea=x", "sea=-1", "sea=nan", "sea=1,sea=2", "=1", "sea=1e9"])
def test_weights_that_are_none_are_refused(weights: str) -> None:
    with pytest.raises(ValueError, match=r"data.weights: got .*; allowed PART=WEIGHT"):
        override(Experiment(), {"data.weights": weights})


def test_weights_of_a_set_that_was_not_joined_are_refused(sets: Path) -> None:
    with pytest.raises(ValueError, match="allowed unset: the data set was not joined of several"):
        check_experiment(tiny(sets / "sea", data__weights="sea=2"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sets": ("{}/sea",)}, "sets: got .* allowed two or more data sets"),
        ({"sets": ("{}/sea", "{}/sea")}, "allowed names that differ; give one as NAME="),
        ({"sets": ("{}/sea", "{}/joined")}, "allowed the sets that it was joined from: "),
        ({"sets": ("{}/sea", "{}/nothing")}, "no data set"),
        ({"leave_out": ("{}/list.txt",)}, "leave_out: got .*; allowed NAME=FILE with one of sea, wood"),
        ({"leave_out": ("sea={}/list.txt",)}, "allowed a list with ids of sea; none of its 3 ids is one"),
    ],
)
def test_what_cannot_be_joined_is_refused(
    sets: Path, joined: Manifest, tmp_path: Path, changes: dict[str, tuple[str, ...]], message: str
) -> None:
    options = {"sets": ("{}/sea", "{}/wood"), "ray": "never", **changes}
    filled = {k: tuple(text.format(sets) for text in v) if isinstance(v, tuple) else v for k, v in options.items()}
    with pytest.raises(ValueError, match=message):
        join_data_sets(Join(**filled), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["a/b=", "=", f"{'x' * 120}=", "ä="])
def test_a_name_that_could_not_be_read_again_is_refused(sets: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"sets: |name: got .*; allowed at most 200 letters|no data set"):
        join_data_sets(Join(sets=(f"{name}{sets}/sea", f"{'y' * 120}={sets}/wood"), ray="never"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_may_have_an_equals_sign_in_its_path(sets: Path, tmp_path: Path) -> None:
    (tmp_path / "year=2026").mkdir()
    (tmp_path / "year=2026" / "sea").symlink_to(sets / "sea")
    assert list(read_sets([f"{tmp_path}/year=2026/sea", f"x={sets}/wood"])) == ["sea", "x"]


def test_a_part_that_changed_since_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_clips(
            tmp_path / name,
            [clip(f"{name}{n}", "train", encoded(burst(n)), name) for n in range(3)],
            name=name,
            licence="",
        )
    joined = join_data_sets(Join(sets=(f"{tmp_path}/one", f"{tmp_path}/two"), ray="never"), tmp_path / "joined")
    file = tmp_path / "two" / "train-00000.parquet"
    content = bytearray(file.read_bytes())
    content[200] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"two/train-00000\.parquet"):
        ensure_features(joined.folder, FrontEnd(num_mels=8), tmp_path / "cache", use_ray=False)


def test_a_manifest_of_parts_that_are_none_is_refused(joined: Manifest, tmp_path: Path) -> None:
    content = json.loads((Path(joined.folder) / "manifest.json").read_text())
    for parts in ([], [{"name": "../x", "folder": "y", "hash": ""}], [{"name": "sea"}]):
        (tmp_path / "manifest.json").write_text(json.dumps({**content, "parts": parts}))
        with pytest.raises(ValueError, match=r"manifest\.json"):
            read_manifest(tmp_path)


def test_a_list_of_wavcaps_is_read(sets: Path, tmp_path: Path) -> None:
    (tmp_path / "blacklist.json").write_text(
        json.dumps({"FreeSound": ["w1.wav"], "AudioSet": ["w2.flac", "other.wav"]})
    )
    options = Join(
        sets=(f"{sets}/sea", f"{sets}/wood"), leave_out=(f"wood={tmp_path}/blacklist.json",), leaks="keep", ray="never"
    )
    assert [entry.clip_id for entry in join_data_sets(options, tmp_path / "out").skipped] == ["wood/w1", "wood/w2"]


def test_the_number_of_a_recording_names_it_in_its_folder(tmp_path: Path) -> None:
    for name, clip_id in (("one", "freesound/12345"), ("two", "t")):
        write_clips(tmp_path / name, [clip(clip_id, "train", encoded(burst(1)), name)], name=name, licence="none")
    (tmp_path / "ids.txt").write_text("12345.flac\n")
    (found,), _ = left_out_by_lists([f"one={tmp_path}/ids.txt"], read_sets([f"{tmp_path}/one", f"{tmp_path}/two"]))
    assert found == "one/freesound/12345"


def test_groups_are_connected_components() -> None:
    assert groups_of([(3, 1), (5, 6), (1, 9)]) == [[1, 3, 9], [5, 6]]


def test_silence_is_like_nothing() -> None:
    silence = fingerprint(encoded(np.zeros(RATE)), "silence")
    assert not silence.any()
    assert not list(same_sound(np.stack([silence, silence])))


@pytest.mark.parametrize("is_fast", [False, True])
def test_pairs_are_those_of_a_plain_comparison(is_fast: bool) -> None:
    """Of whole and of short clips, in blocks, the last one of a single clip; agreement of exactly `SAME` counts."""
    random = np.random.default_rng(0)
    prints = random.choice(np.array([-1, 1], np.int8), (49, 800))
    for number in range(20, 40):
        # A copy of which a share of the signs differs, around the quarter at which it is no copy any more.
        prints[number] = np.where(np.arange(800) < 10 * number - 100, -1, 1) * prints[number - 20]
    for number in range(0, 49, 3):
        prints[number, random.integers(100, 800) :] = 0
    # The one of the last block.
    prints[48] = prints[2]

    def agrees(a: np.ndarray, b: np.ndarray) -> bool:
        num_signs = [max(np.count_nonzero(signs), recordings.FEWEST_SIGNS) for signs in (a, b)]
        product = int(a.astype(int) @ b.astype(int))
        return product > 0 and 4 * product**2 >= num_signs[0] * num_signs[1]

    expected = [(i, j) for i in range(49) for j in range(i + 1, 49) if agrees(prints[i], prints[j])]
    assert 4 < len(expected) < 40
    assert sorted(same_sound(prints, block=16, by_eight_bits=is_fast)) == expected


def test_a_manifest_is_read_once(sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of 400,000 clips has 3,000 shards, and its manifest takes 17 ms."""
    opened = Counter[str]()
    spied(monkeypatch, storage, "read_bytes", lambda _, file: opened.update([str(file)]))
    join_data_sets(Join(sets=(f"{sets}/sea", f"{sets}/wood"), ray="never"), tmp_path / "out")
    assert opened[f"{sets}/sea/manifest.json"] == opened[f"{sets}/wood/manifest.json"] == 1


@pytest.mark.slow
def test_fingerprints_of_real_recordings(shared_data: Path) -> None:
    """No two of different recordings of ESC-50 agree; a clip and what a phone, an MP3 or another rate make of it do."""
    files = sorted((shared_data / "esc50" / "audio").glob("1-*.ogg"))[:30]
    # The second part of a name is the recording's.
    recordings = [file.name.split("-")[1] for file in files]
    prints = np.stack([fingerprint(file.read_bytes(), file.name) for file in files])
    assert not [(i, j) for i, j in same_sound(prints) if recordings[i] != recordings[j]]
    copies = []
    for file in files[::3]:
        samples, rate = soundfile.read(file)
        for form, changed, at in (
            ("MP3", samples, rate),
            ("WAV", 0.5 * samples, rate),
            ("WAV", scipy.signal.resample_poly(samples, 1, 2), rate // 2),
        ):
            copies.append((fingerprint(file.read_bytes(), "a"), fingerprint(encoded(changed, at, form), "b")))
    agreement = [
        float(a @ b.astype(int)) / np.sqrt(np.count_nonzero(a) * np.count_nonzero(b))
        for a, b in ((a.astype(int), b) for a, b in copies)
    ]
    assert np.mean(np.array(agreement) >= SAME) >= 0.95


def test_a_joined_set_has_the_name_and_licence_that_are_set(sets: Path, tmp_path: Path) -> None:
    both = (str(sets / "sea"), str(sets / "wood"))
    manifest = join_data_sets(Join(sets=both, recordings="bytes", name="shore", licence="CC0"), tmp_path / "set")
    assert (manifest.name, manifest.licence) == ("shore", "CC0")
