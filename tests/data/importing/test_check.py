from __future__ import annotations

import csv
import dataclasses
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile

from ray_atr.cli.prepare import summary
from ray_atr.common.storage import locate
from ray_atr.data.schema import Clip
from ray_atr.data.shards import Manifest, Skipped, write_clips, write_manifest, write_shard
from ray_atr.workshop.importing.check import (
    Check,
    Report,
    check_data_set,
    lines_left_out,
    num_clips_sharing,
    page,
    texts_of_clips,
)
from tests.support.clips_on_disk import tone
from tests.support.tiny import tone_clip


def clip(index: int, split: str = "train", **changes: object) -> Clip:
    fields: dict[str, object] = {
        "clip_id": f"clip-{index}",
        "audio": tone(0.2, pitch=200 + 7 * index),
        "sample_rate": 16_000,
        "seconds": 0.2,
        "captions": {"eng": [f"caption {index}"], "fra": [f"légende {index}"]},
        "split": split,
        "source": "test",
    }
    return Clip(**{**fields, **changes})


def waveform(samples: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples.astype(np.float32), 16_000, format="WAV", subtype="FLOAT")
    return buffer.getvalue()


def check(tmp_path: Path, clips: list[Clip], **options: float) -> Report:
    write_clips(tmp_path / "set", clips, name="toy", licence="CC0", clips_per_shard=4)
    return check_data_set(str(tmp_path / "set"), Check(**options))


@pytest.mark.slow
def test_a_sound_set_has_no_problem_and_one_page(tmp_path: Path) -> None:
    report = check(tmp_path, [clip(index, "val" if index > 5 else "train") for index in range(9)])
    assert report.is_fit
    assert report.remarks == {}
    assert report.num_decoded == 9
    lines = page(report)
    assert lines[-1] == "fit for use"
    assert len(lines) < 60
    assert any(line.split() == ["eng", "9", "0", "6", "of", "6", "0", "3", "of", "3", "0"] for line in lines)


@pytest.mark.parametrize(
    ("split", "says"),
    [
        ("trian", "trian (did you mean train?)"),
        ("development", "development"),
        ("evaluation", "evaluation (did you mean test?)"),
    ],
)
def test_a_split_that_training_does_not_look_for_is_remarked(tmp_path: Path, split: str, says: str) -> None:
    report = check(tmp_path, [clip(0, split), clip(1, "val")])
    (finding,) = report.remarks.values()
    assert finding.examples == [says]
    assert page(report)[-1].startswith("fit for evaluation; to train on it, name a split")
    assert any(line.endswith(f": {says}") for line in summary(report.manifest))


def test_a_set_without_a_validation_split_is_not_trained_on_as_it_is(tmp_path: Path) -> None:
    report = check(tmp_path, [clip(0), clip(1, "test")])
    wanted = "fit for use; to train on it, name a split with --data.validation_split: none is called val"
    assert page(report)[-1] == wanted


def test_a_changed_or_missing_shard_is_a_problem(tmp_path: Path) -> None:
    write_clips(tmp_path / "set", [clip(index) for index in range(9)], name="toy", licence="CC0", clips_per_shard=3)
    changed = tmp_path / "set" / "train-00001.parquet"
    content = bytearray(changed.read_bytes())
    content[content.index(b"caption 4") + 8] = ord("x")
    changed.write_bytes(content)
    (tmp_path / "set" / "train-00002.parquet").unlink()
    report = check_data_set(str(tmp_path / "set"))
    assert set(report.problems) == {"shard has another SHA-256 than the manifest says", "shard is missing"}
    assert page(report)[-1] == "NOT fit for use"
    changed.write_bytes(bytes(content[: len(content) // 2]))
    assert "shard cannot be read" in check_data_set(str(tmp_path / "set")).problems


@pytest.mark.parametrize(
    ("second", "kind", "is_fit"),
    [
        ({"split": "val"}, "the same audio is in two splits", False),
        ({"split": "train"}, "two clips of a split have the same audio", True),
    ],
)
def test_the_same_audio_twice(tmp_path: Path, second: dict[str, str], kind: str, is_fit: bool) -> None:
    twin = dataclasses.replace(clip(1), audio=clip(0).audio, **second)
    report = check(tmp_path, [clip(0), twin, clip(2)])
    assert {**report.problems, **report.remarks}[kind].count == 1
    assert report.is_fit is is_fit


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ({"language": "eng", "texts": ["rain", None]}, "captions[eng]: got ('rain', None)"),
        ({"language": "eng", "texts": None}, "captions[eng]: got ()"),
        ({"language": None, "texts": ["rain"]}, "captions: got None"),
        ({"language": "eng", "texts": [""]}, "captions[eng]: got ('',)"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_no_text_in_a_shard_of_another_program_is_a_problem(
    tmp_path: Path, written: dict[str, Any], says: str
) -> None:
    clips = [clip(index) for index in range(30)]
    (shard,) = write_clips(tmp_path / "set", clips, name="toy", licence="CC0", clips_per_shard=99).shards
    table = pq.read_table(tmp_path / "set" / shard.file)
    rows = table.to_pylist()
    rows[3]["captions"][0] = written
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), tmp_path / "set" / shard.file)
    report = check_data_set(str(tmp_path / "set"))
    assert says in report.problems["clip breaks the schema"].examples[0]
    assert "shard has another SHA-256 than the manifest says" in "\n".join(page(report))


def test_an_id_that_stands_twice(tmp_path: Path) -> None:
    clips = {"train": [clip(0), clip(1), dataclasses.replace(clip(2), clip_id="clip-1")], "val": [clip(0, "val")]}
    folder = locate(tmp_path / "set")
    shards = [write_shard(folder, f"{split}-00000.parquet", split, clips[split]) for split in clips]
    write_manifest(folder, Manifest(name="toy", licence="CC0", shards=tuple(filter(None, shards))))
    problems = check_data_set(folder).problems
    assert problems["id occurs twice"].examples == ["clip-1 (train, train)"]
    assert problems["id occurs in two splits"].examples == ["clip-0 (train, val)"]
    assert problems["the same audio is in two splits"].count == 1


def test_caption_texts_shared_within_and_between_splits(tmp_path: Path) -> None:
    texts = {"eng": ["A dog barks"], "fra": ["un"]}
    clips = [clip(0, captions=texts), clip(1, captions={"eng": ["a DOG barks"], "fra": ["deux"]}), clip(2)]
    clips += [clip(3, "val", captions=texts), clip(4, "val")]
    report = check(tmp_path, clips)
    assert report.shared_text[("train", "eng")] == 2
    assert report.shared_text[("train", "fra")] == report.shared_text[("val", "eng")] == 0
    assert report.leaked_text == {("train", "val", "eng"): 1, ("train", "val", "fra"): 1}


def test_sharing_is_counted_once_a_clip() -> None:
    # Texts a, a of clip 0 alone; b of clips 1 and 2; c of clips 2 and 3.
    hashes = np.array([1, 1, 2, 2, 3, 3], np.uint64)
    clips = np.array([0, 0, 1, 2, 2, 3], np.uint64)
    assert num_clips_sharing(texts_of_clips(hashes, clips)) == 3


def test_sharing_in_the_audiocaps_test_split_equals_plain_loops(shared_data: Path) -> None:
    path = shared_data / "captions" / "audiocaps" / "retrieval_split" / "test.csv"
    with open(path, newline="", encoding="utf-8") as file:
        rows = [[row[f"caption_{number}"] for number in range(1, 6)] for row in csv.DictReader(file)]
    wearers: dict[str, set[int]] = {}
    for index, row in enumerate(rows):
        for text in row:
            wearers.setdefault(text, set()).add(index)
    sharing = {index for clips in wearers.values() if len(clips) > 1 for index in clips}
    hashes = np.array([hash(text) % 2**63 for row in rows for text in row], np.uint64)
    clips = np.array([index for index, row in enumerate(rows) for _ in row], np.uint64)
    assert num_clips_sharing(texts_of_clips(hashes, clips)) == len(sharing) == 138


def test_remarks_on_audio_and_languages(tmp_path: Path) -> None:
    loud = np.clip(3 * np.sin(np.arange(3200) * 0.1), -1, 1)
    clips = [
        clip(0, audio=waveform(np.zeros(3200))),
        clip(1, audio=waveform(loud)),
        clip(2, audio=waveform(0.1 * loud[:160]), seconds=0.01),
        clip(3, captions={"eng": ["one", "one"], "fra": ["un"]}),
        clip(4, captions={"eng": ["x"]}),
    ]
    report = check(tmp_path, clips)
    assert report.is_fit
    assert {kind: finding.count for kind, finding in report.remarks.items()} == {
        "clip is silent": 1,
        "clip is clipped": 1,
        "clip is shorter than one analysis window": 1,
        "clip has the same eng caption twice": 1,
        "clip has another number of fra captions than of English ones": 1,
        "language is missing": 1,
    }
    assert report.remarks["language is missing"].examples == ["fra in 1 of 5 train clips"]


def test_audio_that_is_none_or_of_another_length_is_a_problem(tmp_path: Path) -> None:
    report = check(tmp_path, [clip(0, audio=b"no audio"), clip(1, seconds=9.0), clip(2)])
    assert {kind: finding.count for kind, finding in report.problems.items()} == {
        "audio cannot be decoded": 1,
        "clip has another duration than its row says": 1,
    }


def test_a_share_of_the_audio_can_be_enough(tmp_path: Path) -> None:
    report = check(tmp_path, [clip(index) for index in range(60)], audio_share=0.3)
    assert 5 <= report.num_decoded <= 35


def test_no_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"manifest\.json is missing"):
        check_data_set(str(tmp_path))


def test_equal_reasons_count_together(tmp_path: Path) -> None:
    skipped = [
        Skipped("a", "/x/a.wav: got '3 bytes that are not audio'; allowed a WAV file"),
        Skipped("b", "/x/b.wav: got '77 bytes that are not audio'; allowed a WAV file"),
        Skipped("c", "its audio is absent"),
        Skipped("d", "its audio is absent"),
        Skipped("e", "its audio is absent"),
        Skipped("f", "audio/f.wav is not there"),
        Skipped("empty", "/x/empty.wav: got 'an empty file (0 bytes), not audio'; allowed a WAV file"),
        Skipped("lost", "/x: y/lost.flac: got '9 bytes that are not audio (Error : lost sync.)'; allowed a WAV file"),
    ]
    manifest = write_clips(tmp_path / "set", [clip(0)], name="toy", licence="CC0", skipped=skipped)
    assert lines_left_out(manifest) == [
        "  3 x its audio is absent: c, d, e",
        "  2 x got 'N bytes that are not audio' (N: 3, 77): a, b",
        "  1 x its file is not there: f",
        "  1 x got 'an empty file (0 bytes), not audio': empty",
        "  1 x got '9 bytes that are not audio (Error : lost sync.)': lost",
    ]
    assert lines_left_out(manifest, most=1) == ["  3 x its audio is absent: c, d, e", "  5 for 4 other reasons"]


def words_of(report: Report) -> str:
    return "\n".join(f"{kind}: {'; '.join(finding.examples)}" for kind, finding in report.remarks.items())


@pytest.mark.parametrize(
    ("captions", "says"),
    [
        ({"eng": ["['A dog barks', 'A cat meows']"]}, "eng caption looks like a list or an object"),
        ({"eng": ["<b>A dog</b> barks"]}, "eng caption looks like markup"),
        ({"eng": ["A dog &amp; a cat"]}, "eng caption looks like markup"),
        ({"eng": ["Dog (0.87), rain (0.10)"]}, "eng caption looks like a probability"),
        ({"eng": ["nan"]}, "eng caption looks like a word for nothing"),
        ({"fra": ["Un cafÃ© bruyant"]}, "fra caption looks like bytes of another encoding"),
        ({"swe": ["A dog barks loudly in the rain"]}, "swe caption is in another language: .*: en: A dog"),
        ({"eng": ["개가 크게 짖는다"]}, "eng caption is in another language: .*: ko:"),
    ],
)
def test_what_slipped_through_an_import_is_remarked(tmp_path: Path, captions: dict[str, list[str]], says: str) -> None:
    report = check(tmp_path, [clip(0, captions=captions)])
    assert report.is_fit
    assert re.search(says, words_of(report))


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("eng", "Rain"), ("eng", "A car passes at 50 km/h, then 3 dogs bark (far away)"), ("swe", "En hund skäller högt"),
        ("kor", "개가 크게 짖는다"), ("cat", "Un gos borda"), ("jpn", "犬が吠えている。"),
        ("nob", "En hund bjeffer høyt i regnet"),
    ],
)  # fmt: skip
def test_a_caption_is_left_alone(tmp_path: Path, language: str, text: str) -> None:
    assert not check(tmp_path, [clip(0, captions={language: [text]})]).remarks


def test_one_caption_on_many_clips_is_remarked(tmp_path: Path) -> None:
    same = [
        clip(index, captions={"eng": ["Some sound" if index < 12 else f"sound number {index}"]}) for index in range(20)
    ]
    assert "one eng caption is on many clips: 12 as " in words_of(check(tmp_path, same))
    often = [clip(0, captions={"eng": 12 * ["Some sound"]}), clip(1, captions={"eng": ["Another"]})]
    assert "many clips" not in words_of(check(tmp_path / "often", often))


def test_a_block_that_was_moved_by_one_row_is_found(tmp_path: Path) -> None:
    kinds = ("dog", "rain", "siren", "engine", "piano")
    order = [kinds[(index * index + index // 3) % 5] for index in range(80)]

    def clips(moved: range) -> list[Clip]:
        texts = [f"A sound of a {order[index + 1 if index in moved else index]}" for index in range(79)]
        return [
            dataclasses.replace(clip(index, captions={"eng": [text]}), labels=(order[index],))
            for index, text in enumerate(texts)
        ]

    assert "moved by one row" not in words_of(check(tmp_path / "right", clips(range(0))))
    assert "captions look moved by one row (eng)" in words_of(check(tmp_path / "wrong", clips(range(20, 70))))


def test_audio_beyond_the_window_is_counted(tmp_path: Path) -> None:
    report = check(tmp_path, [clip(index) for index in range(3)], clip_seconds=0.05)
    assert report.long_clips == 3
    assert any("longer than one window: 3 clips" in line for line in page(report))


def test_a_language_of_which_most_captions_are_in_another_is_a_problem(tmp_path: Path) -> None:
    """Columns of five languages were imported as English: the check called the set fit for use."""
    german = "Ein Hund bellt sehr laut, während viele Autos durch den Regen fahren"
    english = "A dog barks very loudly while many cars are driving by in the rain"
    for share, is_fit in ((8, False), (4, True)):
        clips = [
            tone_clip("train", row, {"eng": [f"{german if row < share else english}, {row}"]}) for row in range(12)
        ]
        write_clips(tmp_path / str(share), clips, name="mixed", licence="none")
        report = check_data_set(str(tmp_path / str(share)))
        assert report.is_fit == is_fit
        assert (list(report.problems) == ["most eng caption is in another language"]) == (not is_fit)
        assert "eng caption is in another language" in {**report.remarks, **report.problems} or not is_fit


def test_a_caption_that_no_tower_reads_to_its_end_is_named(tmp_path: Path) -> None:
    clips = [tone_clip("train", row, {"eng": ["a dog barks " * (30 if row else 2)]}) for row in range(2)]
    write_clips(tmp_path / "long", clips, name="long", licence="none")
    report = check_data_set(str(tmp_path / "long"))
    (kind,) = (kind for kind in report.remarks if "longer than" in kind)
    assert kind == "eng caption is longer than 300 characters, more than towers read"
    assert report.remarks[kind].count == 1
    (named,) = report.remarks[kind].examples
    assert named == "train-001 (train): 359: a dog barks a d … og barks a dog barks"


def test_the_clips_that_are_left_out_are_named(tmp_path: Path) -> None:
    clips = [tone_clip("train", 0, {"eng": ["a"]})]
    skipped = [Skipped(f"c{number}", f"/x/c{number}.wav: got '{number} bytes'; allowed more") for number in range(5)]
    manifest = write_clips(tmp_path / "set", clips, name="set", licence="none", skipped=skipped)
    assert lines_left_out(manifest) == ["  5 x got 'N bytes' (N: 0, 1, 2, ...): c0, c1, c2, ..."]


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("silent_peak", 0.7, "clip is silent"),
        ("clipped_level", 0.5, "clip is clipped"),
        ("clipped_share", 0.2, ""),
        ("min_seconds", 0.3, "clip is shorter than one analysis window"),
        ("caption_characters", 8, "eng caption is longer than 8 characters, more than towers read"),
    ],
)
def test_a_clip_is_named_from_the_threshold_on_that_is_set(
    tmp_path: Path, setting: str, value: float, says: str
) -> None:
    """A tone with a peak of .6, or, for what takes a remark away, one of which a tenth is at full scale."""
    samples = 0.6 * np.sin(np.arange(3200) * 0.1)
    if not says:
        samples[::10] = 1.0
    clips = [clip(0, audio=waveform(samples), captions={"eng": ["a caption"]})]
    plain = check(tmp_path / "plain", clips)
    assert set(plain.remarks) == (set() if says else {"clip is clipped"})
    assert set(check(tmp_path / "set", clips, **{setting: value}).remarks) == ({says} if says else set())


def test_languages_are_identified_in_the_share_of_clips_that_is_set(tmp_path: Path) -> None:
    clips = [clip(index) for index in range(40)]
    assert check(tmp_path / "all", clips).num_identified["eng"] == 40
    assert 5 <= check(tmp_path / "some", clips, language_share=0.4).num_identified["eng"] <= 30
    assert check(tmp_path / "none", clips, language_share=0.0).num_identified["eng"] == 0
