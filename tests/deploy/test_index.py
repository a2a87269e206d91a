"""An index holds what the one encoder makes, follows its archive, refuses what is not its own, and survives any kill."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import ray_atr.deploy.index.opened as opened_index
from ray_atr.cli import main
from ray_atr.common.caches import list_caches
from ray_atr.common.storage import DamagedFileError, read_json, write_json
from ray_atr.common.transfer import put_folder
from ray_atr.data.shards import write_clips
from ray_atr.deploy.index import layout, opened
from ray_atr.deploy.index import windows as encoders
from ray_atr.deploy.index.archive import ArchivedSound, DataSetArchive, open_archive
from ray_atr.deploy.index.build import Changes, build_index, update_index
from ray_atr.deploy.index.coarse import CoarseRows
from ray_atr.deploy.index.layout import number_array, numbers_of
from ray_atr.deploy.index.opened import Index
from ray_atr.deploy.index.options import IndexEncoding
from ray_atr.deploy.index.search import best_of_sounds
from ray_atr.deploy.index.shards import open_shards
from ray_atr.deploy.index.structure import build_structure, nearest_rows, read_structure, write_structure
from ray_atr.models.retriever import Retriever
from ray_atr.workshop.importing.import_options import VectorImport
from ray_atr.workshop.importing.vector_import import import_vectors
from tests.support.archives import make_tones, save_retriever
from tests.support.crash_points import every_crash
from tests.support.fork_server import run_program
from tests.support.stores import watched_store
from tests.support.tiny import make_data, prepared_for, tiny, tone, tone_clip, write_tones


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    save_retriever(folder / "model")
    make_tones(folder / "audio")
    build_index(str(folder / "model"), str(folder / "audio"), str(folder / "index"))
    return folder


def test_an_index_of_a_model_of_late_interaction_says_that_it_compares_vectors(place: Path, tmp_path: Path) -> None:
    save_retriever(tmp_path / "late", interaction="late")
    for model, is_late in ((tmp_path / "late", True), (place / "model", False)):
        said: list[str] = []
        build_index(str(model), str(place / "audio"), str(tmp_path / f"index {is_late}"), echo=said.append)
        assert any("evaluate --ranking cosine" in one for one in said) == is_late
        assert ("pooled vectors" in Index.open(tmp_path / f"index {is_late}").warning_of(None)) == is_late


def copied(place: Path, to: Path) -> Path:
    shutil.copytree(place, to, dirs_exist_ok=True)
    return to


def rows_of(folder: Path) -> list[dict[str, Any]]:
    (file,) = folder.glob("*/vectors.parquet")
    return pq.read_table(file).to_pylist()


@pytest.mark.parametrize("metric", ["euclidean", "mahalanobis"])
def test_an_index_holds_the_windows_of_the_one_encoder(tmp_path: Path, metric: str) -> None:
    retriever = save_retriever(tmp_path / "model", metric=metric)
    make_tones(tmp_path / "audio", count=3)
    build_index(
        str(tmp_path / "model"), str(tmp_path / "audio"), str(tmp_path / "index"), encoding=IndexEncoding(batch_size=2)
    )
    rows = rows_of(tmp_path / "index")
    for number in range(3):
        starts, vectors = retriever.encode_windows(tmp_path / "audio" / f"tone {number}.wav")
        own = [row for row in rows if row["path"] == f"tone {number}.wav"]
        assert [row["start"] for row in own] == pytest.approx(starts)
        assert own[-1]["end"] == pytest.approx(0.6)
        assert np.allclose([row["vector"] for row in own], vectors, atol=2e-3)
    index = Index.open(tmp_path / "index")
    found = index.search("a low tone", top=5)
    text = retriever.encode_text(["a low tone"])
    stored = np.array([row["vector"] for row in rows], np.float32)
    expected = retriever.similarity(text, retriever.encode_text(["a low tone"]).new_tensor(stored))[0]
    best = expected.argsort(descending=True)[:5].tolist()
    assert [(one.path, one.start) for one in found] == [(rows[row]["path"], rows[row]["start"]) for row in best]
    assert [one.score for one in found] == pytest.approx(expected[best].tolist(), abs=1e-5)


def test_a_sound_is_most_like_itself_and_many_texts_are_answered_like_one(place: Path) -> None:
    index = Index.open(place / "index")
    sound = place / "audio" / "tone 2.wav"
    assert index.like(sound, top=1)[0].path == "tone 2.wav"
    assert index.sound("tone 2.wav") == sound.read_bytes()
    texts = [f"a tone, number {number}" for number in range(12)]
    together = index.search_many(texts, top=4)
    for text, found in zip(texts, together, strict=True):
        alone = index.search(text, top=4)
        assert [(one.path, one.start) for one in alone] == [(one.path, one.start) for one in found]


def test_numbers_of_numpy_and_iterators_are_taken_and_one_text_is_no_list(place: Path) -> None:
    index = Index.open(place / "index")
    assert len(index.search("a low tone", top=np.int64(2))) == 2
    for ask in (index.search_many, lambda texts: index.tag(place / "audio" / "tone 0.wav", None, texts)):
        with pytest.raises(ValueError, match="texts: got 'rain'; allowed a list of texts"):
            ask("rain")
        assert len(ask(iter(["rain", "a dog"]))) == 2


def test_an_open_index_is_not_changed_by_one_that_is_copied_over_it(place: Path, tmp_path: Path) -> None:
    """Both have the state 1, and their tables have one size: paths would be the other's, with no error."""
    copied(place, tmp_path)
    for file in (tmp_path / "audio").glob("tone *"):
        file.rename(file.with_name(file.name.replace("tone", "note")))
    build_index(str(tmp_path / "model"), str(tmp_path / "audio"), str(tmp_path / "other"))
    index = Index.open(tmp_path / "index")
    before = index.search("a low tone", top=3)
    shutil.copytree(tmp_path / "other", tmp_path / "index", dirs_exist_ok=True)
    assert index.search("a low tone", top=3) == before
    assert {one.path[:4] for one in Index.open(tmp_path / "index").search("a low tone")} == {"note"}


def test_a_sound_that_was_removed_since_is_told_with_the_remedy(place: Path, tmp_path: Path) -> None:
    copied(place, tmp_path)
    (tmp_path / "audio" / "tone 1.wav").unlink()
    index = Index.open(tmp_path / "index", audio=str(tmp_path / "audio"))
    with pytest.raises(ValueError, match=r"tone 1\.wav: no such file any more.*`ray-atr index update`"):
        index.sound("tone 1.wav")


def test_files_of_one_name_in_two_folders_are_told_apart(place: Path, tmp_path: Path) -> None:
    for name in ("rain.wav", "b/rain.wav", "b/c.d/rain.1.wav", "b/rain.flac"):
        (tmp_path / "audio" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(place / "audio" / "tone 0.wav", tmp_path / "audio" / name)
    build_index(str(place / "model"), str(tmp_path / "audio"), str(tmp_path / "index"))
    assert {row["path"]: row["clip_id"] for row in rows_of(tmp_path / "index")} == {
        "rain.wav": "rain",
        "b/rain.wav": "b/rain.wav",
        "b/c.d/rain.1.wav": "b/c.d/rain.1",
        "b/rain.flac": "b/rain.flac",
    }


def test_equal_sounds_are_in_one_order_in_an_index_and_in_its_parts(place: Path, tmp_path: Path) -> None:
    for name in ("a/x.wav", "a/y.wav", "a b.wav", "a-b.wav", "b.wav"):
        (tmp_path / "audio" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "audio" / name).write_bytes(tone(1, 1, 0.25))
    for name in ("", "1/2", "2/2"):
        out, alone = str(tmp_path / f"index{name[:1]}"), IndexEncoding(batch_size=1)
        build_index(str(place / "model"), str(tmp_path / "audio"), out, part=name, encoding=alone)
    whole, parts = Index.open(tmp_path / "index"), open_shards([str(tmp_path / f"index{number}") for number in (1, 2)])
    for top in (1, 2, 3, 5):
        assert parts.search("a low tone", top=top) == whole.search("a low tone", top=top)


def test_a_part_has_the_same_sounds_in_every_locale() -> None:
    program = """
from types import SimpleNamespace
from ray_atr.deploy.index.archive import ArchivedSound, sounds_of_part
names = ["caf\\xe9", "\\u65e5\\u672c", "\\udcff", *"abcdef"]
archive = SimpleNamespace(sounds=lambda: [ArchivedSound(name) for name in names])
print([[names.index(sound.path) for sound in sounds_of_part(archive, part)] for part in ("", "1/2", "2/2")])
"""
    ascii_alone = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", program]
    told = subprocess.run(command, env=os.environ | ascii_alone, capture_output=True, text=True, check=True).stdout
    assert told == "[[0, 1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 6, 7, 8], [0, 3, 4, 5]]\n"


def test_a_second_is_in_the_window_that_begins_with_it(place: Path) -> None:
    index = Index.open(place / "index")
    own = [row for row in rows_of(place / "index") if row["path"] == "tone 1.wav"]
    assert len(own) > 1
    for row in own:
        assert np.array_equal(index.window("tone 1.wav", row["start"]), np.float32(row["vector"]))
    for before, row in itertools.pairwise(own):
        just_before = float(np.nextafter(row["start"], 0))
        assert np.array_equal(index.window("tone 1.wav", just_before), np.float32(before["vector"]))
    assert np.array_equal(index.window("tone 1.wav", 0.6), np.float32(own[-1]["vector"]))
    for outside in (-1.0, -5e-324, 0.6001, float("nan")):
        with pytest.raises(ValueError, match=r"start: got .*; allowed a second of the sound, 0 to 0\.6"):
            index.like_window("tone 1.wav", outside)


def test_a_score_is_no_more_than_a_cosine(place: Path) -> None:
    """In 16 bits, a unit vector is a little longer or shorter."""
    index = Index.open(place / "index")
    assert index.nearest(index.rows.astype(np.float32), 1)[0].max() > 1
    best = [index.like_window(row["path"], row["start"], top=1)[0] for row in rows_of(place / "index")]
    assert max(one.score for one in best) == 1


@pytest.mark.parametrize(
    ("audio", "text", "query"),
    [
        ("sound", {}, '"a dog barks"'),
        ("sound", {"text": "vectors"}, "--like FILE"),
        ("vectors", {"text": "vectors"}, '"A CAPTION OF ITS DATA" --language eng'),
    ],
)
def test_what_an_index_can_be_asked_is_told(place, tmp_path, capsys, audio, text, query) -> None:
    for name in ("audio", "text"):
        np.save(tmp_path / f"{name}.npy", np.eye(2, 8, dtype=np.float32))
    (tmp_path / "pairs.csv").write_text("audio_row,caption\n0,a low tone\n1,a high tone\n")
    given = VectorImport(
        **{name: str(tmp_path / f"{name}.npy") for name in ("audio", "text")}, table=str(tmp_path / "pairs.csv")
    )
    data = import_vectors(given, tmp_path / "data").folder
    model = {**text, **({"text.data": data} if text else {})}
    archive = str(make_tones(tmp_path / "tones", 1))
    if audio == "vectors":
        model, archive = {**model, "audio": "vectors", "audio.width": 8}, str(data)
    save_retriever(tmp_path / "model", **model)
    main(
        "index",
        arguments=[
            "build",
            "--checkpoint",
            str(tmp_path / "model"),
            "--audio",
            archive,
            "--out",
            str(tmp_path / "index"),
        ],
    )
    asked = f"ask it:   ray-atr index query {tmp_path / 'index'} {query}\n"
    assert asked in capsys.readouterr().out
    if query.startswith('"A'):
        main("index", arguments=["query", str(tmp_path / "index"), "a low tone", "--language", "eng"])


@pytest.mark.slow
def test_many_texts_go_by_way_of_eight_bits_in_a_large_index(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(0).standard_normal((opened_index.COARSE_ROWS, 16))
    np.save(tmp_path / "rows.npy", rows.astype(np.float32))
    build_index(str(place / "model"), str(tmp_path / "rows.npy"), str(tmp_path / "index"))
    monkeypatch.setattr(opened_index, "eight_bits_are_fast", lambda: True)
    index = Index.open(tmp_path / "index")
    texts = [f"a tone, number {number}" for number in range(12)]
    found = [[(one.path, one.start) for one in row] for row in index.search_many(texts, top=4)]
    assert "_coarse" in vars(index)
    assert found == [[(one.path, one.start) for one in index.search(text, top=4)] for text in texts]


def test_an_update_encodes_what_is_new_or_changed_alone(place: Path, tmp_path: Path) -> None:
    copied(place, tmp_path)
    audio = tmp_path / "audio"
    (audio / "tone 0.wav").unlink()
    (audio / "tone 1.wav").write_bytes(tone(3, 77))
    (audio / "new.wav").write_bytes(tone(2, 78))
    os.utime(audio / "tone 2.wav")  # touched, not changed
    changes = update_index(str(tmp_path / "index"), str(tmp_path / "model"), str(audio))
    assert (changes.encoded, changes.taken_over, changes.removed) == (2, 2, 1)
    build_index(str(tmp_path / "model"), str(audio), str(tmp_path / "fresh"))
    assert rows_of(tmp_path / "index") == rows_of(tmp_path / "fresh")
    assert len(list((tmp_path / "index").glob("*/search.faiss"))) == 1
    counts: list[tuple[str, int, int]] = []
    again = update_index(
        str(tmp_path / "index"), str(tmp_path / "model"), str(audio), progress=lambda *count: counts.append(count)
    )
    assert again.manifest == changes.manifest
    # A bar that nothing is counted on would stand at "0/?".
    assert counts == [("sounds", 4, 4)]
    moved = Path(shutil.move(audio, tmp_path / "moved"))
    update_index(str(tmp_path / "index"), audio=str(moved))
    assert Index.open(tmp_path / "index").sound("new.wav") == (moved / "new.wav").read_bytes()
    # Another size is a change, whatever the time says.
    times = (moved / "new.wav").stat()
    (moved / "new.wav").write_bytes(tone(2, 78, 0.7))
    os.utime(moved / "new.wav", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert update_index(str(tmp_path / "index")).encoded == 1


def test_an_update_from_another_archive_is_refused(place: Path, tmp_path: Path) -> None:
    copied(place, tmp_path)
    index, before = str(tmp_path / "index"), rows_of(tmp_path / "index")
    # Files of the same names, which are others.
    other = make_tones(tmp_path / "other", count=12, seconds=0.7)
    said = r"--audio: got '.*other'; allowed .*audio at its new place: this one has 0 of its 4 sounds; .*`ray-atr index build`"
    with pytest.raises(ValueError, match=said):
        update_index(index, audio=str(other))
    assert rows_of(tmp_path / "index") == before
    # The archive itself with another folder around it, and most of it new.
    shutil.copytree(place / "audio", other / "deeper")
    changes = update_index(index, audio=str(other))
    assert (changes.encoded, changes.taken_over, changes.removed) == (12, 4, 0)
    # Other vectors, whose rows are called the same.
    rows = np.random.default_rng(0).standard_normal((30, 16))
    for name, some in {"some": rows[:10], "more": rows[:20], "others": rows[20:]}.items():
        np.save(tmp_path / f"{name}.npy", some)
    build_index(str(place / "model"), str(tmp_path / "some.npy"), str(tmp_path / "of vectors"))
    with pytest.raises(ValueError, match="this one has 0 of its 10 sounds"):
        update_index(str(tmp_path / "of vectors"), audio=str(tmp_path / "others.npy"))
    changes = update_index(str(tmp_path / "of vectors"), audio=str(tmp_path / "more.npy"))
    assert (changes.encoded, changes.taken_over) == (10, 10)
    # A tenth is enough.
    for kept in (1, 2):
        np.save(tmp_path / f"{kept}.npy", np.concatenate([rows[:kept], rows[20:]]))
    with pytest.raises(ValueError, match="this one has 1 of its 20 sounds"):
        update_index(str(tmp_path / "of vectors"), audio=str(tmp_path / "1.npy"))
    changes = update_index(str(tmp_path / "of vectors"), audio=str(tmp_path / "2.npy"))
    assert (changes.encoded, changes.taken_over) == (10, 2)


def test_an_update_from_another_data_set_of_the_same_names_and_sizes_is_refused(place: Path, tmp_path: Path) -> None:
    for name, audio in {"data": (0, 1), "moved": (0, 1, 2), "other": (4, 5)}.items():
        clips = [tone_clip("train", number, {"eng": ["a tone"]}) for number in range(len(audio))]
        clips = [dataclasses.replace(clip, audio=tone(2, n)) for clip, n in zip(clips, audio, strict=True)]
        write_clips(tmp_path / name, clips, name="tones", licence="none")
    build_index(str(place / "model"), str(tmp_path / "data"), str(tmp_path / "index"))
    with pytest.raises(ValueError, match="this one has 0 of its 2 sounds"):
        update_index(str(tmp_path / "index"), audio=str(tmp_path / "other"))
    assert update_index(str(tmp_path / "index"), audio=str(tmp_path / "moved")).taken_over == 2


def test_a_file_that_was_moved_or_copied_is_not_encoded_again(place: Path, tmp_path: Path) -> None:
    copied(place, tmp_path)
    audio = tmp_path / "audio"
    (audio / "deep").mkdir()
    (audio / "tone 0.wav").rename(audio / "deep" / "moved.wav")
    shutil.copyfile(audio / "tone 1.wav", audio / "copy.wav")  # of another time of change
    (audio / "tone 2.wav").rename(audio / "tone 4.wav")
    (audio / "tone 3.wav").rename(audio / "tone 2.wav")  # by a name that was another's
    changed = bytearray((audio / "tone 2.wav").read_bytes())
    changed[-2] ^= 1
    (audio / "as long.wav").write_bytes(changed)
    changes = update_index(str(tmp_path / "index"), str(tmp_path / "model"), str(audio))
    assert (changes.encoded, changes.taken_over, changes.removed) == (1, 5, 2)
    build_index(str(tmp_path / "model"), str(audio), str(tmp_path / "fresh"))
    assert_same_rows(rows_of(tmp_path / "index"), rows_of(tmp_path / "fresh"))


@pytest.mark.ray
def test_encoders_on_ray_make_the_same_rows(tmp_path: Path, ray_session: object) -> None:
    save_retriever(tmp_path / "model")
    audio = make_tones(tmp_path / "audio", count=encoders.SOUNDS_IN_A_JOB + 1)
    (audio / "broken.wav").write_bytes(b"no sound")
    for ray in ("never", "always"):
        chosen = IndexEncoding(ray=ray, encoders=1)
        changes = build_index(str(tmp_path / "model"), str(audio), str(tmp_path / ray), encoding=chosen)
        assert list(changes.broken) == ["broken.wav"]
    assert_same_rows(rows_of(tmp_path / "never"), rows_of(tmp_path / "always"))


def test_an_encoder_reads_the_clips_of_a_data_set_by_name(tmp_path: Path) -> None:
    save_retriever(tmp_path / "model")
    data = str(make_data(tmp_path / "tones", num_train=3, num_val=1, num_test=1))
    build_index(str(tmp_path / "model"), data, str(tmp_path / "index"))
    model = Index.open(tmp_path / "index").manifest.model
    encoder = encoders.sound_encoder(str(tmp_path / "model"), model, data, 2)
    found = encoder([sound.without_data() for sound in open_archive(data).sounds()])
    rows = [{"path": one.sound.path, "vector": vector} for one in found for vector in one.vectors]
    own = [{"path": row["path"], "vector": row["vector"]} for row in rows_of(tmp_path / "index")]
    assert_same_rows(sorted(own, key=lambda row: row["path"]), sorted(rows, key=lambda row: row["path"]))
    save_retriever(tmp_path / "model", seed=1)
    with pytest.raises(ValueError, match=r"checkpoint: got .*; allowed the same model on every node"):
        encoders.sound_encoder(str(tmp_path / "model"), model, data, 2)


def assert_same_rows(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> None:
    """Equal but for the vectors' last digit: another batch may round it otherwise."""
    own, other = (np.array([row.pop("vector") for row in rows], np.float32) for rows in (first, second))
    assert first == second
    assert np.allclose(own, other, atol=1e-3)


def test_a_cluster_encodes_with_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not encoders.uses_ray(IndexEncoding())
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert encoders.uses_ray(IndexEncoding())
    assert not encoders.uses_ray(IndexEncoding(ray="never"))


@pytest.mark.slow
def test_broken_files_are_named_and_left_out(tmp_path: Path) -> None:
    save_retriever(tmp_path / "model")
    audio = make_tones(tmp_path / "audio", count=2)
    whole = tone(0, 5)
    broken = {
        "text.wav": b"not a sound",
        "empty.flac": b"",
        "cut.wav": whole[: len(whole) // 2],
        "phone.m4a": b"\0\0\0\x18ftypM4A ",
        "nan.wav": whole[:44] + b"\xff" * 100,
    }
    for name, content in broken.items():
        (audio / name).write_bytes(content)
    (audio / "loop").symlink_to(audio)
    (audio / "away.wav").symlink_to(tmp_path / "not mounted" / "a.wav")
    (audio / "readme.txt").write_text("no audio")
    said: list[str] = []
    options = {"echo": said.append}
    changes = build_index(str(tmp_path / "model"), str(audio), str(tmp_path / "index"), **options)
    assert set(changes.broken) == {*broken, "away.wav"}
    assert changes.broken["away.wav"] == "No such file or directory"
    assert changes.encoded == changes.manifest.num_sounds == 2
    assert all(any(name in line for line in said) for name in broken)
    assert "ffmpeg" in changes.broken["phone.m4a"]
    counts: list[tuple[int, int]] = []
    make_tones(audio, count=300, seconds=0.05)
    options = {"encoding": IndexEncoding(batch_size=1)}
    assert update_index(str(tmp_path / "index"), **options).broken == changes.broken
    update_index(str(tmp_path / "index"), progress=lambda what, done, total: counts.append((done, total)), **options)
    assert counts[-1] == (306, 306)
    shutil.rmtree(audio)
    audio.mkdir()
    with pytest.raises(ValueError, match=r"--audio: got .*; allowed one with sounds: \.wav"):
        build_index(str(tmp_path / "model"), str(audio), str(tmp_path / "other"))
    (audio / "text.wav").write_bytes(b"no")
    with pytest.raises(ValueError, match="nothing to index"):
        build_index(str(tmp_path / "model"), str(audio), str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


def test_folders_and_links_that_cannot_be_read_are_named(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sounds of such a folder would leave an index at its update without a word; such a link ended a build."""
    audio = copied(place / "audio", tmp_path / "audio")
    for name in ("closed", "locked"):
        (audio / name).mkdir()
    (audio / "locked" / "in.wav").write_bytes(b"")
    (audio / "far.wav").symlink_to("x" * 300)  # longer than a name may be
    listed, looked_up = os.scandir, os.stat

    def refusing(folder: Any = ".") -> Any:
        if Path(folder).name == "closed":
            raise PermissionError(13, "Permission denied", str(folder))
        return listed(folder)

    def only_listed(path: Any, **options: Any) -> os.stat_result:
        """A folder that may be listed, but not entered."""
        if Path(str(path)).parent.name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return looked_up(path, **options)

    monkeypatch.setattr(os, "scandir", refusing)
    monkeypatch.setattr(os, "stat", only_listed)
    changes = build_index(str(place / "model"), str(audio), str(tmp_path / "index"))
    assert (set(changes.broken), changes.encoded) == ({"closed", "far.wav", "locked/in.wav"}, 4)


@pytest.mark.parametrize("reader", ["check_files", "stored_table", "read_structure"])
def test_an_index_that_is_updated_while_it_is_opened_is_opened_as_the_new_one(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    """The update ends, and removes the older files, before each of the readers first reads one."""
    copied(place, tmp_path)
    (tmp_path / "audio" / "tone 0.wav").unlink()
    module = opened if reader == "read_structure" else layout
    original = getattr(module, reader)

    def after_update(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        update_index(str(tmp_path / "index"), str(tmp_path / "model"), str(tmp_path / "audio"))
        return original(*arguments, **options)

    before = len(Index.open(tmp_path / "index"))
    monkeypatch.setattr(module, reader, after_update)
    assert 0 < len(Index.open(tmp_path / "index")) < before


def test_an_index_that_another_replaces_while_it_is_opened_is_opened_as_the_new_one(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are of state 1."""
    copied(place / "index", tmp_path / "index")
    build_index(str(place / "model"), str(make_tones(tmp_path / "audio", 1)), str(tmp_path / "other"))
    original = layout.check_files

    def after_replacement(*arguments: Any) -> None:
        monkeypatch.undo()
        (tmp_path / "index").rename(tmp_path / "older")
        (tmp_path / "other").rename(tmp_path / "index")
        original(*arguments)

    monkeypatch.setattr(layout, "check_files", after_replacement)
    assert len(Index.open(tmp_path / "index")) == 3


@pytest.mark.slow
def test_a_build_that_is_killed_anywhere_is_taken_up(tmp_path: Path) -> None:
    save_retriever(tmp_path / "model")
    audio = make_tones(tmp_path / "audio", count=2, seconds=0.2)
    said: list[str] = []

    def build(folder: Path) -> None:
        # One thread and one sound a part, so that operations come in one order.
        options = {"part_seconds": 0.0, "encoding": IndexEncoding(batch_size=1), "echo": said.append}
        if (folder / "index" / "index.json").exists():
            update_index(str(folder / "index"), **options)
        else:
            build_index(str(tmp_path / "model"), str(audio), str(folder / "index"), **options)

    build(tmp_path / "expected")
    expected = rows_of(tmp_path / "expected" / "index")
    for folder, where in every_crash(lambda folder: lambda: build(folder), tmp_path / "crashes", most=6):
        if (folder / "index" / "index.json").exists():
            assert len(Index.open(folder / "index")) == 2, where
        build(folder)
        assert rows_of(folder / "index") == expected, where
        assert {path.name for path in (folder / "index").iterdir()} == {"1", "index.json"}, where
    # What was encoded before is not encoded again.
    assert {"taken up: 1 sound of an interrupted build", "taken up: 2 sounds of an interrupted build"} & set(said)


@pytest.mark.slow
def test_an_update_that_is_killed_leaves_the_old_index_or_the_new_one(place: Path, tmp_path: Path) -> None:
    audio = make_tones(tmp_path / "audio", count=4)
    (audio / "tone 3.wav").unlink()

    def prepare(folder: Path) -> Callable[[], object]:
        copied(place / "index", folder / "index")
        return lambda: update_index(str(folder / "index"), audio=str(audio), part_seconds=0.0)

    for folder, where in every_crash(prepare, tmp_path / "crashes", most=6):
        assert len(Index.open(folder / "index")) in (9, 12), where
        update_index(str(folder / "index"), audio=str(audio))
        assert len(Index.open(folder / "index")) == 9, where
        assert [path.name for path in (folder / "index").iterdir() if path.is_dir()] != [], where
        assert len([path for path in (folder / "index").iterdir() if path.is_dir()]) == 1, where


@pytest.mark.parametrize("name", ["search.faiss", "files.arrow", "windows.arrow", "vectors.parquet", "index.json"])
def test_a_flipped_byte_is_found_before_anything_reads_it(place: Path, tmp_path: Path, name: str) -> None:
    copied(place / "index", tmp_path)
    (file,) = tmp_path.rglob(name)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedFileError, match=name):
        Index.open(tmp_path).check_vectors()


def test_another_models_queries_are_refused(place: Path, tmp_path: Path) -> None:
    save_retriever(tmp_path / "other", seed=1)
    index = Index.open(place / "index", checkpoint=str(tmp_path / "other"))
    with pytest.raises(ValueError, match="allowed the model that made the index's vectors"):
        index.search("a low tone")
    with pytest.raises(ValueError, match="allowed the model of the index"):
        update_index(str(place / "index"), str(tmp_path / "other"))
    longer = save_retriever(tmp_path / "longer", clip_seconds=0.5)
    with pytest.raises(ValueError, match="allowed the model"):
        Index.open(place / "index", retriever=longer).search("a low tone")


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("k", [1, 5, 37, 1000])
def test_of_equal_rows_the_earlier_comes_first(k: int, distance: str) -> None:
    """Of a few copies or many, also where only some of them are wanted, and however many queries there are."""
    random = np.random.default_rng(0)
    rows = random.standard_normal((300, 100)).astype(np.float16)[random.integers(0, 300, 4000)]
    queries = random.standard_normal((10, 100)).astype(np.float32)
    wide, asked = rows.astype(np.float64), queries.astype(np.float64)
    exact = asked @ wide.T if distance == "cosine" else -np.linalg.norm(asked[:, None] - wide, axis=-1)
    # Products of matrices may round copies differently.
    order = np.argsort(-exact.round(9), axis=1, kind="stable")[:, :k]
    index = build_structure(rows, distance)
    for number in (1, len(queries)):
        _, found = nearest_rows(index, rows, queries[:number], k, distance)
        assert np.array_equal(found, order[:number])
    if distance == "cosine":
        assert np.array_equal(CoarseRows(rows).nearest(queries, k)[1], order)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_lists_with_codes_find_what_an_exact_search_finds(tmp_path: Path, distance: str) -> None:
    random = np.random.default_rng(0)
    centres = random.standard_normal((60, 24))
    drawn = centres[random.integers(0, 60, 6000)] + 0.3 * random.standard_normal((6000, 24))
    rows = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float16)
    queries = rows[:50].astype(np.float32) + 0.02
    index = build_structure(rows, distance, exact_rows=1000)
    write_structure(index, tmp_path / "x.faiss")
    np.save(tmp_path / "rows.npy", rows)
    index, rows = read_structure(tmp_path / "x.faiss", tmp_path / "rows.npy")
    scores, found = nearest_rows(index, rows, queries, 10, distance)
    wide = rows.astype(np.float32)
    exact = queries @ wide.T if distance == "cosine" else -np.linalg.norm(queries[:, None] - wide[None], axis=-1)
    best = np.argsort(-exact, axis=1)[:, :10]
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, best, strict=True)])
    assert recall > 0.99
    assert np.allclose(scores, np.take_along_axis(exact, found, 1), atol=1e-4)


def test_a_full_disk_is_named_where_faiss_writes() -> None:
    index = build_structure(np.ones((4096, 24), np.float16), "cosine")
    with pytest.raises(OSError, match="No space left on device") as refused:
        write_structure(index, Path("/dev/full"))
    assert refused.value.filename == "/dev/full"


def test_vectors_open_in_a_process_without_this_package(place: Path) -> None:
    (file,) = (place / "index").glob("*/vectors.parquet")
    code = (
        "import sys, pyarrow.parquet as pq; t = pq.read_table(sys.argv[1]);"
        "v = t['vector'].combine_chunks().flatten().to_numpy().reshape(len(t), -1);"
        "assert v.dtype == 'float16' and t['path'][0].as_py() == 'tone 0.wav' and 'ray_atr' not in sys.modules;"
        "print(v.shape)"
    )
    said = subprocess.run([sys.executable, "-c", code, str(file)], check=True, capture_output=True, text=True)
    assert said.stdout.strip() == "(12, 16)"


@pytest.mark.parametrize("kind", [np.int64, np.float64, np.float16])
def test_numbers_there_and_back(kind: type[np.generic]) -> None:
    values = np.arange(12).astype(kind)
    assert number_array(values[::3]).equals(pa.array(values[::3]))
    column = pa.chunked_array([number_array(values), number_array(values)])
    assert numbers_of(column.slice(3, 15)).tolist() == [*values, *values][3:18]
    assert numbers_of(column.slice(0, 0)).tolist() == []


def test_pandas_is_not_imported_for_a_query(place: Path, tmp_path: Path) -> None:
    """pyarrow would import it for the first list or NumPy array: a third of a second of each command."""
    copied(place, tmp_path)
    code = (
        "import sys; from ray_atr.deploy.index.opened import Index;"
        "assert Index.open('index').search('a tone', top=2) and 'pandas' not in sys.modules"
    )
    asked = run_program(code, cwd=tmp_path, forgets=("ray_atr", "pandas"))
    assert asked.returncode == 0, asked.stderr


def test_a_data_set_is_indexed_with_its_captions_and_vectors_as_they_are(tmp_path: Path) -> None:
    retriever = save_retriever(tmp_path / "model")
    data = make_data(tmp_path / "tones", num_train=3, num_val=1, num_test=1)
    build_index(str(tmp_path / "model"), str(data), str(tmp_path / "index"))
    index = Index.open(tmp_path / "index")
    found = index.search("a low tone", top=1)[0]
    assert set(found.captions) == {"eng", "fra"}
    assert index.sound(found.path)[:4] == b"RIFF"
    assert update_index(str(tmp_path / "index")).taken_over == 5
    vectors = retriever.encode_text(["a low tone", "a high tone"]).numpy()
    np.save(tmp_path / "ready.npy", vectors)
    build_index(str(tmp_path / "model"), str(tmp_path / "ready.npy"), str(tmp_path / "ready"))
    best = Index.open(tmp_path / "ready").search("a high tone", top=1)[0]
    assert (best.path, round(best.score, 2)) == ("1", 1.0)
    np.save(tmp_path / "ready.npy", vectors[:, :5])
    with pytest.raises(ValueError, match="width 5"):
        build_index(str(tmp_path / "model"), str(tmp_path / "ready.npy"), str(tmp_path / "narrow"))
    (tmp_path / "ready.npy").write_bytes(b"\x93NUMPY junk")
    with pytest.raises(ValueError, match=r"--audio: got '.*ready\.npy'; allowed a NumPy file of vectors"):
        build_index(str(tmp_path / "model"), str(tmp_path / "ready.npy"), str(tmp_path / "broken"))


def test_a_clip_of_a_data_set_that_was_made_again_is_not_taken_for_another(tmp_path: Path) -> None:
    """The new shards have the old names, and other clips at the old places, or none."""
    save_retriever(tmp_path / "model")
    data = write_tones(tmp_path / "tones", num_train=3, num_val=1, num_test=1)
    build_index(str(tmp_path / "model"), str(data), str(tmp_path / "index"))
    index = Index.open(tmp_path / "index")
    assert index.sound("train/train-001") == tone(1, 1, 0.6)
    shutil.rmtree(data)
    clips = [tone_clip("train", number, {"eng": ["a tone"]}) for number in (1, 5)]
    write_clips(data, [*clips, tone_clip("test", 0, {"eng": ["a tone"]})], name="tones", licence="none")
    assert isinstance(index.archive, DataSetArchive)
    index.archive._audio.cache_clear()
    for path in ("train/train-001", "train/train-002"):
        with pytest.raises(
            ValueError, match=f"path: got '{path}'; allowed a clip of the data set, which was made again"
        ):
            index.sound(path)
    assert index.sound("test/test-000") == tone(0, 0, 0.6)


def test_a_vector_beyond_16_bits_is_left_out(tmp_path: Path) -> None:
    retriever = save_retriever(tmp_path / "model", metric="mahalanobis")
    vectors = retriever.encode_text(["a low tone", "a high tone"]).numpy()
    np.save(tmp_path / "ready.npy", vectors * np.array([[1.0], [1e6]], np.float32))
    changes = build_index(str(tmp_path / "model"), str(tmp_path / "ready.npy"), str(tmp_path / "index"))
    assert changes.broken == {"1": "its vector is beyond what 16 bits hold"}
    assert [one.path for one in Index.open(tmp_path / "index").search("a high tone")] == ["0"]


def test_a_language_that_was_never_trained_on_is_noted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    retriever = save_retriever(tmp_path / "model")
    retriever.languages = ("eng", "fra")
    retriever.save_pretrained(tmp_path / "model")
    build_index(str(tmp_path / "model"), str(make_tones(tmp_path / "audio", 2)), str(tmp_path / "index"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        main("index", arguments=["query", str(tmp_path / "index"), "ein Ton", "--language", "deu"])
        # Nothing is known of the language, and this text tower need not know it.
        retriever.languages = ("fra",)
        Index.open(tmp_path / "index", retriever=retriever).search("un son")
    assert (
        capsys.readouterr().err
        == "note: no captions in deu in training, which had eng, fra: the vectors may mean little\n"
    )
    assert not [warning for warning in told if "no captions" in str(warning.message)]


def test_a_build_that_was_killed_as_it_cleared_up_is_ended_by_the_same_call(place: Path, tmp_path: Path) -> None:
    """The index was there, so the call was refused, and a copy of all vectors lay beside it for good."""
    folder = tmp_path / "index"
    shutil.copytree(place / "index", folder)
    whole = {path.name for path in folder.iterdir()}
    (folder / ".unfinished.0123456789ab").mkdir()
    (folder / ".unfinished.0123456789ab" / "part-000000.parquet").touch()
    with pytest.raises(ValueError, match="index update"):
        build_index(str(place / "model"), str(make_tones(tmp_path / "other", 2)), str(folder))
    with pytest.raises(ValueError, match="index update"):
        build_index(str(place / "model"), str(place / "audio"), str(folder), part="1/2")
    changes = build_index(str(place / "model"), str(place / "audio"), str(folder))
    assert (changes.encoded, {path.name for path in folder.iterdir()}) == (0, whole)


def test_a_build_that_is_stopped_keeps_what_it_encoded_for_the_same_model_alone(place: Path, tmp_path: Path) -> None:
    audio, folder = str(place / "audio"), str(tmp_path / "index")
    save_retriever(tmp_path / "other", seed=5)

    def build(model: Path, stops_at: int = 0) -> Changes:
        def stop(what: str, done: int, total: int) -> None:
            if done == stops_at:
                raise KeyboardInterrupt

        encoding = IndexEncoding(batch_size=1)
        return build_index(str(model), audio, folder, encoding=encoding, part_seconds=1e9, progress=stop)

    for taken_over in (0, 3):
        model = place / "model" if taken_over else tmp_path / "other"
        for stops_at in (2, 3):
            with pytest.raises(KeyboardInterrupt):
                build(place / "model", stops_at)
        changes = build(model)
        assert (changes.encoded, changes.taken_over) == (4 - taken_over, taken_over)
        shutil.rmtree(folder)


def test_the_command_answers_and_refuses(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = str(place / "index")
    main("index", arguments=["query", index, "a low tone", "--json", "--top", "2"])
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["matches"]) == 2
    assert answer["matches"][0]["score"] >= answer["matches"][1]["score"]
    (tmp_path / "texts").write_text("a low tone\n\nun son aigu\n")
    main("index", arguments=["query", index, "--from", str(tmp_path / "texts"), "--top", "1"])
    shown = capsys.readouterr()
    assert "un son aigu" in shown.out
    # The first line of those that say that it is alive: not among the answers.
    assert "2 texts" in shown.err
    assert "2 texts" not in shown.out
    main("index", arguments=["query", index, "--like", str(place / "audio" / "tone 1.wav"), "--top", "1"])
    assert "tone 1.wav" in capsys.readouterr().out
    main("index", arguments=["query", index, "a", "low", "tone", "--json", "--top", "2"])
    assert json.loads(capsys.readouterr().out) == answer
    (tmp_path / "with a mark").write_text("a low tone\n", encoding="utf-8-sig")
    main("index", arguments=["query", index, "--from", str(tmp_path / "with a mark"), "--json", "--top", "2"])
    assert json.loads(capsys.readouterr().out) == answer
    (tmp_path / "long texts").write_text("a low tone\n\n" + 2_001 * "x")
    refused = {
        "nothing to look for": [index],
        "TEXT and --like": [index, "a low tone", "--like", str(place / "audio" / "tone 1.wav")],
        "not blank": [index, "  "],
        "text: got ''": [index, ""],
        "--from: line 3": [index, "--from", str(tmp_path / "long texts")],
        "UTF-8": [index, "a \udcff"],
        "a text on a line": [index, "--from", os.devnull],
        "a text file": [index, "--from", str(tmp_path)],
        "1 to 1,000": [index, "x", "--top", "0"],
        "calibrated": [index, "x", "--at-least", "0.5"],
        "language": [index, "x", "--language", "qqqq"],
        "index.json": [str(tmp_path), "x"],
    }
    for expected, words in refused.items():
        with pytest.raises(SystemExit):
            main("index", arguments=["query", *words])
        assert expected in capsys.readouterr().err
    (tmp_path / "my index").mkdir()
    shutil.copy(place / "index" / "index.json", tmp_path / "my index")
    out = str(tmp_path / "my index")
    with pytest.raises(SystemExit):
        main(
            "index",
            arguments=["build", "--checkpoint", str(place / "model"), "--audio", str(place / "audio"), "--out", out],
        )
    assert f"`ray-atr index update '{out}'`" in capsys.readouterr().err


def test_a_build_that_is_stopped_at_any_time_says_how_to_go_on(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    words = ["--checkpoint", str(place / "model"), "--audio", str(place / "audio"), "--out", str(tmp_path / "index")]
    for where in ("deploy.index.build.open_archive", "models.retriever.Retriever.from_pretrained"):
        with monkeypatch.context() as patched:
            patched.setattr(f"ray_atr.{where}", stop)
            with pytest.raises(SystemExit):
                main("index", arguments=["build", *words])
        assert "interrupted: the same command goes on" in capsys.readouterr().err


def test_an_index_in_a_store_is_fetched_once_and_again_if_its_copy_is_damaged(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ATR_HOME", str(tmp_path))
    names = ["files.arrow", "search.faiss", "vectors.parquet", "windows.arrow"]
    fetched: list[str] = []

    def note(request: str, path: str) -> None:
        fetched.extend(name for name in names if request == "read" and path.endswith(f"/{name}"))

    with watched_store(note) as target:
        put_folder(place / "index", target)
        for _ in range(2):
            index = Index.open(str(target))
            assert len(index.search("a low tone", top=3)) == 3
            index.check_vectors()
            assert sorted(fetched) == names
        assert [(cache.kind, cache.is_complete) for cache in list_caches(tmp_path)] == [("indexes", True)]
        (copy,) = tmp_path.rglob("search.faiss")
        copy.write_bytes(copy.read_bytes()[:-1] + b"!")
        assert len(Index.open(str(target)).search("a low tone", top=3)) == 3
        assert fetched.count("search.faiss") == 2
        for part in target.rglob("search.faiss"):
            part.write_bytes(b"not what was written")
        copy.unlink()
        with pytest.raises(DamagedFileError) as damaged:
            Index.open(str(target))
        assert damaged.value.file == str(target / "1" / "search.faiss")


def test_an_index_in_a_store_that_is_updated_while_it_is_fetched_is_opened_as_the_new_one(
    place: Path, tmp_path: Path, own_home: Path
) -> None:
    copied(place, tmp_path)
    (tmp_path / "audio" / "tone 0.wav").unlink()
    update_index(str(tmp_path / "index"), audio=str(tmp_path / "audio"))
    is_updated = False

    def update(request: str, path: str) -> None:
        nonlocal is_updated
        if not is_updated and request == "read" and path.endswith("/1/search.faiss"):
            is_updated = True
            put_folder(tmp_path / "index", target, last="index.json")
            target.fs.rm(f"{target.path}/1", recursive=True)

    with watched_store(update) as target:
        put_folder(place / "index", target)
        assert len(Index.open(str(target))) == 9
    assert is_updated


def test_names_of_all_kinds_are_indexed_and_shown_as_one_line(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [
        "ünï 犬.wav",
        "UP.WAV",
        "-x.wav",
        "[bold]x.wav",
        "line\nfeed.wav",
        "escape \x1b[31m.wav",
        "e\u0301.wav",
        "é.wav",
    ]
    folder = tmp_path / "föld er"
    folder.mkdir()
    for number, name in enumerate(names):
        (folder / name).write_bytes(tone(number % 4, number, 0.2))
    for number in range(23):
        Path(os.fsdecode(os.fsencode(folder) + b"/\xff%d.wav" % number)).write_bytes(b"")
    os.mkfifo(folder / "pipe.wav")
    (folder / "nowhere.wav").symlink_to(tmp_path / "nowhere")
    said, counts = list[str](), list[tuple[int, int]]()
    changes = build_index(
        str(place / "model"),
        str(folder),
        str(tmp_path / "index 犬"),
        echo=said.append,
        progress=lambda what, done, total: counts.append((done, total)),
    )
    # The broken link is one, and names that are not UTF-8 are none.
    assert counts[-1] == (len(names) + 1, len(names) + 1)
    assert sum(line.endswith("a name that is not UTF-8") for line in said) == 20
    assert "left out: 3 more" in said
    assert changes.manifest.num_sounds == len(names)
    main("index", arguments=["query", str(tmp_path / "index 犬"), "a low tone"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(names)
    assert any("line\\nfeed.wav" in line for line in lines)
    assert all("\x1b" not in line for line in lines)
    assert any("[bold]x.wav" in line for line in lines)
    index = Index.open(tmp_path / "index 犬")
    for number, name in enumerate(names):
        assert index.sound(name) == tone(number % 4, number, 0.2)


def test_an_index_from_elsewhere_reads_nothing_beyond_its_archive(place: Path) -> None:
    archive = open_archive(str(place / "audio"))
    for path in ("../model/retriever.json", str(place / "model" / "retriever.json"), "a/../../x", "tone 1.wav\0"):
        with pytest.raises(ValueError, match="below the archive's folder"):
            archive.read(ArchivedSound(path))


@pytest.mark.parametrize(
    "change", [{"model": ""}, {"state": -1}, {"state": True}, {"width": 3}, {"num_windows": 10**9}]
)
def test_a_manifest_that_does_not_fit_is_refused(place: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    copied(place / "index", tmp_path)
    write_json(tmp_path / "index.json", {**read_json(tmp_path / "index.json"), **change})
    with pytest.raises(ValueError, match=r"index\.json: got|damaged"):
        Index.open(tmp_path)


def test_an_index_is_written_on_this_machine(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match="--out: got 's3://bucket/x'; allowed a folder of this machine; copy it to the store"
    ):
        build_index(str(place / "model"), str(place / "audio"), "s3://bucket/x")
    with pytest.raises(ValueError, match="index: got 's3://bucket/x'; allowed a folder of this machine"):
        update_index("s3://bucket/x")
    assert not list(tmp_path.iterdir())


def test_a_place_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--audio"):
        open_archive("")
    with pytest.raises(ValueError, match="--audio"):
        open_archive(str(tmp_path / "absent"))


def test_an_index_is_asked_by_the_public_names(place: Path) -> None:
    from ray_atr import Index as PublicIndex
    from ray_atr import Retriever as PublicRetriever

    retriever = PublicRetriever.from_pretrained(place / "model")
    index = PublicIndex.open(place / "index", retriever=retriever)
    assert len(index.search("a low tone", top=2)) == 2


def test_probability_is_the_calibrations_and_nothing_is_an_answer(place: Path, tmp_path: Path) -> None:
    calibrations = pytest.importorskip("ray_atr.metrics.calibration")
    from ray_atr.metrics.relevance import Relevance

    copied(place, tmp_path)
    scores = {"eng": np.array([[0.9, -0.5, 0.1], [-0.9, 0.8, 0.2]])}
    rows = torch.tensor([0, 1])
    relevance = Relevance(text=rows, clip=rows, num_texts=2, num_clips=3)
    calibration = calibrations.fit_calibration(scores, {"eng": relevance})
    calibration.write(tmp_path / "model")
    index = Index.open(tmp_path / "index", checkpoint=str(tmp_path / "model"))
    found = index.search("a low tone", "eng", top=12)
    assert [one.probability for one in found] == pytest.approx(
        calibration.probability([one.score for one in found], "eng").tolist()
    )
    # A language that it was not fitted on has the probabilities over all.
    other = index.search("a low tone", "deu", top=3)
    expected = calibration.probability([one.score for one in other])
    assert [one.probability for one in other] == pytest.approx(expected.tolist())
    assert index.warning_of("eng") == "the calibration was fitted on 3 clips, fewer than 100: it is rough"
    dataclasses.replace(calibration, fitted_on={"model": index.manifest.model}).write(tmp_path / "model")
    assert Index.open(tmp_path / "index", checkpoint=str(tmp_path / "model")).calibration is not None
    # One that was copied from beside another retriever.
    dataclasses.replace(calibration, fitted_on={"model": "xxh3:other"}).write(tmp_path / "model")
    with pytest.raises(ValueError, match=r"calibration: .*fitted on the scores of another; make it with evaluate"):
        Index.open(tmp_path / "index", checkpoint=str(tmp_path / "model")).search("a low tone", "eng")
    likely = max(one.probability or 0.0 for one in found)
    assert index.search("a low tone", "eng", at_least=min(1.0, likely + 1e-6)) == [] or likely == 1.0
    assert {one.probability for one in index.search("a low tone", "eng", at_least=likely)} == {likely}


def test_nothing_is_found_if_the_best_sounds_together_are_too_far(place: Path, tmp_path: Path) -> None:
    from ray_atr.metrics.calibration import Calibration, LanguageCalibration
    from ray_atr.metrics.nothing import Levels

    copied(place, tmp_path)
    best: dict[str, float] = {}
    for one in Index.open(tmp_path / "index").search("a low tone", top=12):
        best.setdefault(one.path, one.score)
    mean = float(np.mean(list(best.values())[:3]))
    for below, is_there in ((mean - 1e-6, True), (mean + 1e-6, False)):
        own = LanguageCalibration((-1, 1), (0, 1), (0.0,), (0.0,), 0.5, 2, (-1, 1), (0, 1), 2, 3, below)
        Calibration({"any": own}).write(tmp_path / "model")
        index = Index.open(tmp_path / "index", checkpoint=str(tmp_path / "model"))
        found = index.search("a low tone", top=2, or_nothing=True)
        assert len(found) == (2 if is_there else 0)
        assert len(index.search("a low tone", top=2)) == 2
    # What the text's own vector leads one to expect counts too, here 1 where other texts would have -1.
    vector = index.retriever.encode_text(["a low tone"]).numpy()
    levels = Levels(np.concatenate([vector, -vector]), np.array([[1.0, -1.0]] * 3))
    expected = levels.expected(vector)[1, 0]
    for below, is_there in ((mean - expected - 1e-3, True), (mean - expected + 1e-3, False)):
        own = LanguageCalibration((-1, 1), (0, 1), (0.0,), (0.0,), 0.5, 2, (-1, 1), (0, 1), 2, 3, below)
        Calibration({"any": own}, levels=levels).write(tmp_path / "model")
        index = Index.open(tmp_path / "index", checkpoint=str(tmp_path / "model"))
        assert bool(index.search("a low tone", top=2, or_nothing=True)) == is_there
    with pytest.raises(ValueError, match="or_nothing: got True; allowed a calibrated retriever"):
        Index.open(place / "index").search("a low tone", or_nothing=True)


def test_whether_nothing_is_found_does_not_depend_on_how_many_answers_are_asked_for(
    place: Path, tmp_path: Path
) -> None:
    from ray_atr.metrics.calibration import Calibration, LanguageCalibration

    copied(place / "model", tmp_path / "model")
    copied(place / "audio", tmp_path / "audio")
    best = Index.open(place / "index").search("a low tone", top=1)[0]
    # The best sound alone has more windows than are counted.
    number = int(best.path.removeprefix("tone ").removesuffix(".wav"))
    (tmp_path / "audio" / best.path).write_bytes(tone(number, number, 15.0))
    build_index(str(tmp_path / "model"), str(tmp_path / "audio"), str(tmp_path / "index"))
    matches = Index.open(tmp_path / "index").search("a low tone", top=100)
    assert {one.path for one in matches[:50]} == {best.path}
    below = (matches[0].score + float(np.mean(best_of_sounds(matches)))) / 2
    own = LanguageCalibration((-1, 1), (0, 1), (0.0,), (0.0,), 0.5, 2, (-1, 1), (0, 1), 2, 5, below)
    Calibration({"any": own}).write(tmp_path / "model")
    index = Index.open(tmp_path / "index")
    assert len(index.search("a low tone", top=1, or_nothing=True)) == 1
    assert len(index.search("a low tone", top=100, or_nothing=True)) == len(matches)


def test_the_best_tag_has_the_probability_of_an_answer(place: Path, tmp_path: Path) -> None:
    from ray_atr.metrics.calibration import Calibration, LanguageCalibration

    copied(place, tmp_path)
    own = LanguageCalibration((-1, 1), (0.1, 0.2), (0.0,), (0.0,), 0.5, 2, (-1, 1), (0.7, 0.8), 2, 3, 0)
    Calibration({"any": own}).write(tmp_path / "model")
    index = Index.open(tmp_path / "index", checkpoint=str(tmp_path / "model"))
    sound = np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32)
    labels = ["a low tone", "a high tone", "noise", "a bell", "rain"]
    best, *others = index.tag(sound, 16_000, labels[:3])
    assert best["probability"] == pytest.approx(own.probability_of_best(best["score"]))
    assert [one["probability"] for one in others] == pytest.approx([own.probability(one["score"]) for one in others])
    # Of five labels the best one is another thing than of two.
    best = index.tag(sound, 16_000, labels)[0]
    assert best["probability"] == pytest.approx(own.probability(best["score"]))


@pytest.mark.parametrize(("scheme", "expected"), [("kcl", ("eng", "fra")), ("english", ("eng",))])
def test_a_retriever_knows_the_languages_that_it_was_trained_in(
    tmp_path: Path, scheme: str, expected: tuple[str, ...]
) -> None:
    experiment = tiny(make_data(tmp_path / "tones", num_train=8, num_val=2, num_test=2), objective__scheme=scheme)
    retriever = prepared_for(experiment, tmp_path).first_retriever(experiment)
    retriever.save_pretrained(tmp_path / "model")
    assert Retriever.from_pretrained(tmp_path / "model").languages == expected
