"""From a data set with swapped captions to the page, and from decisions to the data set that they make."""

from __future__ import annotations

import asyncio
import csv
import dataclasses
import errno
import json
import re
import resource
import shutil
import subprocess
from functools import partial
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from ray_atr.cli.audit import audit_lines, print_applied
from ray_atr.common.locations import MAX_NAME_BYTES
from ray_atr.common.storage import DamagedFileError, locate, read_json, write_json
from ray_atr.data.caption_sample import CaptionSample
from ray_atr.data.caption_vectors import read_given
from ray_atr.data.schema import Clip, aligned_captions, to_clips
from ray_atr.data.shards import hash_of_file, read_captions, read_manifest, read_shard, write_clips, write_manifest
from ray_atr.evaluation.checkpoints import find_checkpoint
from ray_atr.evaluation.options import Encoding
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.objectives.correspondence.cross_fit import Pairs
from ray_atr.objectives.correspondence.noise_rate import wrong_share
from ray_atr.training.checks import check_experiment
from ray_atr.workshop.audit import run
from ray_atr.workshop.audit.answers import estimate, read_facts
from ray_atr.workshop.audit.certify import certified
from ray_atr.workshop.audit.decisions import apply_decisions, check_of, keep_certified, read_decisions
from ray_atr.workshop.audit.options import RATE_CAVEAT, AuditOptions, CrossFit
from ray_atr.workshop.audit.posteriors import posteriors_of
from ray_atr.workshop.audit.run import TABLE_FILE, TABLE_HASH, audit_data_set
from ray_atr.workshop.importing.import_options import VectorImport
from ray_atr.workshop.importing.vector_import import import_vectors
from tests.support.browser import CHROMIUM, opened
from tests.support.caption_reads import counted_reads
from tests.support.commands import replace_work
from tests.support.crash_points import in_fork
from tests.support.denied import deny
from tests.support.spies import spied
from tests.support.tiny import make_data, prepared_for, tiny, tone

JUDGES = CrossFit()
HERE = Encoding(ray="never")


def clips_of(folder: Path) -> dict[str, Clip]:
    manifest = read_manifest(folder)
    shards = [shard for split in manifest.splits for shard in manifest.shards_of(split)]
    return {c.clip_id: c for shard in shards for batch in read_shard(manifest, shard) for c in to_clips(batch)}


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, set[str]]:
    """(data set, audit, clips with swapped captions): every fifth training clip has the captions of another pitch."""
    home = tmp_path_factory.mktemp("audit")
    make_data(home / "clean", num_train=160, num_val=8, num_test=8)
    clips = list(clips_of(home / "clean").values())
    train = [clip for clip in clips if clip.split == "train"]
    swapped = {}
    for index in range(0, len(train), 5):
        swapped[train[index].clip_id] = train[(index + 2) % len(train)].captions
    first = train[0].clip_id
    swapped[first] = {**swapped[first], "eng": ["<script>alert(1)</script> a low tone"]}
    noisy = [dataclasses.replace(c, captions=swapped.get(c.clip_id, c.captions)) for c in clips]
    write_clips(home / "noisy", noisy, name="noisy", licence="none")
    experiment = tiny(home / "noisy")
    prepared = prepared_for(experiment, home)
    retriever = build_retriever(experiment.model, tokenizer=prepared.load_tokenizer(), seed=0)
    retriever.save_pretrained(home / "untrained")
    audit_data_set(
        str(home / "noisy"),
        str(home / "untrained"),
        home / "audit",
        AuditOptions(worst=60),
        cross_fit=JUDGES,
        encoding=HERE,
    )
    return home / "noisy", home / "audit", set(swapped)


def rows(audit: Path) -> list[dict[str, str]]:
    with (audit / "pairs.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_table_and_page_say_the_same(audited: tuple[Path, Path, set[str]]) -> None:
    data, audit, _ = audited
    table = rows(audit)
    assert len(table) == 2 * 160
    assert [float(row["wrong"]) for row in table] == sorted((float(row["wrong"]) for row in table), reverse=True)
    facts = json.loads((audit / "audit.json").read_text())
    called = [row for row in table if row["called_wrong"] == "1"]
    assert facts["called_wrong"] == len(called) == sum(facts["called_wrong_by_language"].values())
    assert facts["data_hash"] == read_manifest(data).hash
    shares = {}
    for language, found in facts["wrong_share_by_language"].items():
        p_values = np.array([float(row["p_value"]) for row in table if row["language"] == language])
        shares[language] = found["share"]
        assert found["share"] == pytest.approx(min(1, 2 * (p_values > 0.5).mean()), abs=1e-4)
        assert found["share"] < found["at_most"] <= 1
    assert shares.keys() == {"eng", "fra"}
    assert shares["eng"] != shares["fra"]
    # A noise index is what `data.noise.index` reads, caption -> clip; decisions are applied with --apply.
    assert sorted(path.name for path in audit.iterdir()) == [
        "audit.html",
        "audit.json",
        "listen.csv",
        "listen.html",
        "pairs.csv",
    ]


def test_the_page_shows_the_worst_and_runs_nothing_of_the_data(audited: tuple[Path, Path, set[str]]) -> None:
    _, audit, _ = audited
    page = (audit / "audit.html").read_text(encoding="utf-8")
    assert page.count("<article ") == 60
    called = [int(row["called_wrong"]) for row in rows(audit)[:60]]
    assert 0 < sum(called) < 60
    # The pairs that are called wrong come first, on the page as in the table.
    assert called == sorted(called, reverse=True)
    assert page.count("likely to be wrong, called wrong") == sum(called)
    assert page.count("likely to be wrong, not called wrong") == 60 - sum(called)
    assert "whose sound the vectors do not represent scores like a wrong one" in page
    assert "<script>alert" not in page
    assert "http://" not in page
    assert "https://" not in page


def test_the_list_to_listen_to_is_a_drawn_one_only_where_pairs_are_left_out(
    audited: tuple[Path, Path, set[str]], tmp_path: Path
) -> None:
    _, audit, _ = audited
    assert "60 pairs of 320, drawn at random." in (audit / "listen.html").read_text(encoding="utf-8")
    facts = json.loads((audit / "audit.json").read_text())
    pairs = [
        dict(zip(("clip_id", "language", "slot"), one, strict=False), row=0, text="a")
        for one in facts["listen"]["pairs"]
    ]
    run._write_page(tmp_path / "listen.html", {**facts, "captions": 60}, pairs, lambda _: None)
    assert "All 60 pairs, in random order." in (tmp_path / "listen.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize(("name", "first"), [("audit.html", "keep"), ("listen.html", "right")])
def test_the_pages_are_used_by_keyboard_and_on_a_phone(
    audited: tuple[Path, Path, set[str]], name: str, first: str
) -> None:
    async def use() -> None:
        async with opened((audited[1] / name).as_uri()) as page:
            await page.call("Emulation.setFocusEmulationEnabled", enabled=True)
            await page.size(390, 800)
            # What stays in view is the keys, and not the explanations, which hid half of a phone.
            stays = (
                "[...document.querySelectorAll('body *')].filter((one) => getComputedStyle(one).position === 'sticky')"
            )
            assert await page.run(f"{stays}.map((one) => one.clientHeight < 200)") == [True]
            # The keys are for the pair that has the focus; a button's own Space presses it.
            await page.run(f"articles[2].querySelector('.{first}').focus(); 0")
            assert await page.run("current") == 2
            await page.press(" ", " ")
            await page.until(f"articles[2].querySelector('.{first}').getAttribute('aria-pressed') === 'true'")
            await page.press("ArrowDown")
            assert await page.run("[current, document.activeElement === articles[3]]") == [3, True]
            players = "[...document.querySelectorAll('audio')].map((one) => one.getAttribute('aria-label'))"
            assert all(await page.run(players))

    asyncio.run(use())


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_page_keeps_the_decisions_of_its_own_split(audited: tuple[Path, Path, set[str]], tmp_path: Path) -> None:
    facts = json.loads((audited[1] / "audit.json").read_text())
    pair = {"row": 0, "clip_id": "a", "language": "eng", "slot": 0, "text": "a dog", "preferred": "rain"}
    pairs = [{**pair, "key": "a\teng\t0", "wrong": 1.0, "is_flagged": True, "repeats": 1}]
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        run._write_page(tmp_path / split / "audit.html", {**facts, "split": split}, pairs, lambda _: None)
    said = "document.getElementById('count').textContent"

    async def use() -> None:
        async with opened((tmp_path / "train" / "audit.html").as_uri()) as page:
            await page.run("decide(articles[0], 'drop'); 0")
            # Of an earlier audit, which showed other pairs.
            await page.run("decisions['b\\teng\\t0'] = {decision: 'keep'}; count(); 0")
            assert await page.run(said) == "1 of 1 decided, 1 more on an earlier page"
            await page.call("Page.navigate", url=(tmp_path / "val" / "audit.html").as_uri())
            await page.until(f"document.readyState === 'complete' && location.href.includes('/val/') && {said} !== ''")
            assert await page.run(said) == "0 of 1 decided"

    asyncio.run(use())


def test_a_training_takes_the_share_of_an_audit_of_its_own_captions_alone(
    audited: tuple[Path, Path, set[str]], tmp_path: Path
) -> None:
    data, audit, swapped = audited
    answers = write_answers(tmp_path / "answers.csv", answers_of(audit, swapped))
    heard = tmp_path / "heard.json"
    estimate(audit, answers, heard)
    clips = list(clips_of(data).values())
    # Other shards, another order, captions in one more language.
    more = [dataclasses.replace(c, captions={**c.captions, "deu": ("ein Ton",)}) for c in clips[::-1]]
    write_clips(tmp_path / "more", more, name="noisy", licence="none", clips_per_shard=50)
    fewer = [clip for clip in clips if clip.split != "train" or clip is not clips[0]]
    write_clips(tmp_path / "fewer", fewer, name="noisy", licence="none")

    def require(source: Path, **changes: Any) -> None:
        for share in (audit, heard):
            check_experiment(tiny(source, data__wrong_share=str(share), **changes))

    index = tmp_path / "index.npy"
    np.save(index, np.arange(read_manifest(data).num_rows_of("train")))
    require(data)
    require(data, data__languages="fra", objective__scheme="kcl")
    require(tmp_path / "more")
    require(tmp_path / "more", data__languages="eng,deu")
    for source, changes, words in (
        (data.parent / "clean", {}, r"an audit of other captions \(eng\) than those of .*clean, split train"),
        (tmp_path / "fewer", {"objective__scheme": "kcl"}, r"an audit of other captions \(eng, fra\)"),
        (data, {"data__train_split": "val"}, "other captions .* split val'; allowed an audit of the captions that"),
        (data, {"data__noise__ratio": 0.2}, "got 'an audit'; allowed no data.noise, .* or the share as a number"),
        (data, {"data__noise__index": str(index)}, "got 'an audit'; allowed no data.noise"),
        (tmp_path / "more", {"data__languages": "eng,deu", "objective__scheme": "kcl"}, "no share of deu"),
    ):
        for share in (audit, heard):
            with pytest.raises(ValueError, match=rf"data\.wrong_share: .*\.json: .*{words}"):
                check_experiment(tiny(source, data__wrong_share=str(share), **changes))
    # A file of before digests were written is known by the whole data set.
    facts = read_json(audit / "audit.json")
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "audit.json").write_text(json.dumps({**facts, "caption_digests": {}}))
    check_experiment(tiny(data, data__wrong_share=str(tmp_path / "before")))
    with pytest.raises(ValueError, match="an audit of other captions"):
        check_experiment(tiny(tmp_path / "more", data__wrong_share=str(tmp_path / "before")))
    # One digit of what an audit wrote.
    text = (audit / "audit.json").read_text()
    (tmp_path / "flipped").mkdir()
    (tmp_path / "flipped" / "audit.json").write_text(re.sub(r'("share": 0\.)\d', r"\g<1>9", text, count=1))
    for read in (
        lambda: estimate(tmp_path / "flipped", answers, tmp_path / "again.json"),
        lambda: read_facts(tmp_path / "flipped"),
    ):
        with pytest.raises(DamagedFileError, match=r"audit\.json: damaged"):
            read()


def test_an_audit_that_can_call_nothing_wrong_says_what_to_do(
    audited: tuple[Path, Path, set[str]], tmp_path: Path
) -> None:
    """It said that 0 were called wrong, at most 10% of these right, of 120 wrong ones."""
    facts = read_json(audited[1] / "audit.json")
    none = {"called_wrong": 0, "wrong_share": 0.2, "wrong_share_at_most": 0.3, "wrong_but_not_called": 64, "rate": 0.1}
    (tmp_path / "audit.json").write_text(json.dumps({**facts, **none}))
    said = audit_lines(tmp_path)[0]
    assert "an estimated 20% wrong (at most 30%), none can be called wrong with at most 10% of them right" in said
    assert said.endswith("a higher --rate calls more of them; an estimated 64 are wrong and cannot be named")
    (tmp_path / "audit.json").write_text(json.dumps({**facts, **none, "rate": 0.005}))
    assert "with at most 0.5% of them right" in audit_lines(tmp_path)[0]


def answers_of(audit: Path, swapped: set[str]) -> list[dict[str, str]]:
    """The list to listen to, answered as the truth is."""
    with (audit / "listen.csv").open(newline="", encoding="utf-8") as file:
        return [{**row, "wrong": str(int(row["clip_id"] in swapped))} for row in csv.DictReader(file)]


def write_answers(path: Path, answers: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["clip_id", "language", "caption_number", "wrong"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(answers)
    return path


def test_sixty_answers_give_an_interval_that_holds_the_truth(
    audited: tuple[Path, Path, set[str]], tmp_path: Path
) -> None:
    _, audit, swapped = audited
    answers = answers_of(audit, swapped)
    assert len(answers) == 60
    found = estimate(audit, write_answers(tmp_path / "answers.csv", answers), tmp_path / "estimate.json")
    truth = np.mean([row["clip_id"] in swapped for row in rows(audit)])
    assert found.low <= truth <= found.high < found.low + 0.25
    assert found.low <= found.share <= found.high
    written = json.loads((tmp_path / "estimate.json").read_text())
    assert (written["heard"], written["unanswered"]) == (60, 0)
    # As a spreadsheet writes it where the comma is the decimal point.
    semicolons = tmp_path / "semicolons.csv"
    semicolons.write_text((tmp_path / "answers.csv").read_text().replace(",", ";"))
    assert estimate(audit, semicolons, tmp_path / "same.json") == found
    # As pandas writes it: numbers in JSON or Parquet, and decimal ones where a cell is empty.
    typed = [{**row, "caption_number": int(row["caption_number"]), "wrong": int(row["wrong"])} for row in answers]
    pq.write_table(pa.Table.from_pylist(typed), tmp_path / "typed.parquet")
    (tmp_path / "truth.jsonl").write_text("\n".join(json.dumps({**row, "wrong": row["wrong"] == 1}) for row in typed))
    decimals = write_answers(tmp_path / "decimals.csv", [{**row, "wrong": f"{row['wrong']}.0"} for row in answers])
    for number, file in enumerate((tmp_path / "typed.parquet", tmp_path / "truth.jsonl", decimals)):
        assert estimate(audit, file, tmp_path / f"{number}.json") == found
    # What cannot be told is left out, and costs width.
    fewer = write_answers(tmp_path / "fewer.csv", [{**row, "wrong": ""} for row in answers[:30]] + answers[30:])
    wider = estimate(audit, fewer, tmp_path / "fewer.json")
    assert wider.high - wider.low > found.high - found.low


def test_answers_that_are_not_of_the_list_are_refused(audited: tuple[Path, Path, set[str]], tmp_path: Path) -> None:
    _, audit, swapped = audited
    answers = answers_of(audit, swapped)
    cases = [
        ([{**answers[0], "clip_id": "nobody"}], "line 2: got 'nobody eng 0|a pair that this audit asks for"),
        ([answers[0], answers[0]], "line 3.*each pair once"),
        ([{**answers[0], "wrong": "perhaps"}], "line 2, wrong: got 'perhaps'"),
        ([{**answers[0], "wrong": ""}], "at least one pair that was heard"),
    ]
    for given, message in cases:
        with pytest.raises(ValueError, match=message):
            estimate(audit, write_answers(tmp_path / "answers.csv", given), tmp_path / "estimate.json")
    assert not (tmp_path / "estimate.json").exists()


def accept_table(audit: Path) -> None:
    """As if the audit had written its table as it is now."""
    facts = read_json(audit / "audit.json")
    write_json(audit / "audit.json", {**facts, TABLE_HASH: hash_of_file(audit / TABLE_FILE)})


def test_the_certified_captions_make_a_data_set(vectors: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(vectors, tmp_path / "data"))
    longest = "é" * (MAX_NAME_BYTES // 2)
    write_manifest(data, dataclasses.replace(read_manifest(data), name=longest))
    audit = audit_data_set(str(data), None, tmp_path / "audit", cross_fit=JUDGES)
    applied = keep_certified(audit, 0.05, tmp_path / "kept")
    kept = set(clips_of(tmp_path / "kept"))
    # The longest name that can be read.
    assert read_manifest(tmp_path / "kept").name == longest[:-3] + "_kept"
    assert "clip-00000000" not in kept
    assert len(kept) > 50
    assert applied.dropped == applied.clips_without_captions == 64 - len(kept)
    table = audit / "pairs.csv"
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "p_value": str((n + 1) / len(rows))} for n, row in enumerate(rows))
    with pytest.raises(DamagedFileError, match=r"pairs\.csv: damaged.*make the audit again"):
        keep_certified(audit, 0.05, tmp_path / "none")
    accept_table(audit)
    with pytest.raises(ValueError, match=r"--keep: got 0\.05; allowed a larger share"):
        keep_certified(audit, 0.05, tmp_path / "none")


def test_captions_of_one_clip_are_certified_as_one_observation(
    audited: tuple[Path, Path, set[str]], tmp_path: Path
) -> None:
    """All captions of a clip are right, or all are wrong: of that many pairs less can be promised than of separate ones."""
    _, audit, _ = audited
    shutil.copytree(audit, tmp_path / "audit")
    table, names = rows(audit), sorted({row["clip_id"] for row in rows(audit)})
    # Of 130 right clips none is above a half; of 30 wrong ones half are.
    p_of = dict(zip(names, [*np.linspace(1e-6, 0.02, 130), *(np.arange(30) + 0.5) / 30], strict=True))
    with (tmp_path / "audit" / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows({**row, "p_value": f"{p_of[row['clip_id']]:.9f}"} for row in table)
    accept_table(tmp_path / "audit")
    keep_certified(tmp_path / "audit", 0.02, tmp_path / "kept")
    p_value, clip = (np.repeat(values, 2) for values in ([*p_of.values()], np.arange(160)))
    together, apart = (certified(p_value, 0.02, wrong_share(p_value, of)).sum() for of in (clip, None))
    kept = {name for name, one in clips_of(tmp_path / "kept").items() if one.split == "train"}
    assert 0 < 2 * len(kept) == together < apart
    assert kept == {name for name in names if p_of[name] <= sorted(p_of.values())[len(kept) - 1]}


def test_the_share_of_a_language_counts_captions_of_one_clip_as_one_observation() -> None:
    clip = np.repeat(np.arange(100), 3)
    p_value = np.where(clip < 30, (clip + 0.5) / 30, 0.01)

    def shares(chosen: slice) -> Any:
        of = Pairs(np.ones((100, 2)), np.ones((300, 2)), clip, np.full(300, "eng"), clip.astype(str)).subset(
            np.arange(300)[chosen]
        )
        told = SimpleNamespace(
            posteriors=posteriors_of(p_value[chosen], of.clip), found_share=0.0, shifts=[], is_something_found=True
        )
        return run._findings(of, [], told, np.zeros(len(of.clip), bool), 0.1)["wrong_share_by_language"]["eng"]

    assert shares(slice(None)) == shares(slice(None, None, 3))


def test_the_terminal_says_what_the_rate_leaves_out(audited: tuple[Path, Path, set[str]]) -> None:
    said = audit_lines(audited[1])
    assert "at most 10% of these are right" in said[0]
    assert said[1] == RATE_CAVEAT
    assert RATE_CAVEAT in (audited[1] / "audit.html").read_text(encoding="utf-8")


def test_an_audit_that_found_nothing_calls_nothing(audited: tuple[Path, Path, set[str]], tmp_path: Path) -> None:
    facts = json.loads((audited[1] / "audit.json").read_text())
    assert facts["is_something_found"]
    facts |= {"is_something_found": False, "called_wrong": 0, "wrong_share": 0.97, "wrong_but_not_called": 300}
    write_json(locate(tmp_path) / "audit.json", facts)
    assert "none is called wrong: the vectors say no more" in audit_lines(tmp_path)[0]
    run._write_page(tmp_path / "audit.html", facts, [], lambda _: None)
    page = (tmp_path / "audit.html").read_text(encoding="utf-8")
    assert "None is called wrong: the vectors say no more" in page
    for text in (audit_lines(tmp_path)[0], page):
        assert "are called wrong" not in text
        assert "cannot be named" not in text


def test_decisions_make_a_data_set(audited: tuple[Path, Path, set[str]], tmp_path: Path) -> None:
    data, audit, _ = audited
    before = clips_of(data)
    entries = {
        "train-001\teng\t0": {"decision": "fix", "text": "a middle tone, mended"},
        "train-002\tfra\t0": {"decision": "drop"},
        "train-003\teng\t0": {"decision": "drop"},
        "train-003\tfra\t0": {"decision": "drop"},
        "train-004\teng\t0": {"decision": "keep"},
    }
    file = tmp_path / "decisions.json"
    # With a byte order mark, as some editors save it.
    file.write_text(json.dumps({"data_hash": read_manifest(data).hash, "decisions": entries}), encoding="utf-8-sig")
    applied = apply_decisions(audit, file, tmp_path / "cleaned")
    after = clips_of(tmp_path / "cleaned")
    assert (applied.dropped, applied.fixed, applied.clips_without_captions) == (3, 1, 1)
    assert set(before) - set(after) == {"train-003"}
    assert list(after["train-001"].captions["eng"]) == ["a middle tone, mended"]
    assert list(after["train-002"].captions) == ["eng"]
    others = [name for name in after if name not in ("train-001", "train-002")]
    assert all(after[name].captions == before[name].captions for name in others)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a file of decisions"),
        (json.dumps({"data_hash": "other", "decisions": {}}), "data_hash: got 'other'"),
        (json.dumps({"data_hash": "HASH", "decisions": {"train-001": {"decision": "drop"}}}), "caption number"),
        (json.dumps({"data_hash": "HASH", "decisions": {"a\tb\t0": {"decision": "burn"}}}), "keep, drop, fix"),
        (
            json.dumps({"data_hash": "HASH", "decisions": {"nobody\teng\t0": {"decision": "drop"}}}),
            "captions of the audited",
        ),
        (json.dumps({"data_hash": "HASH", "decisions": {"train-001\teng\t0": {"decision": "fix"}}}), "the new caption"),
    ],
)
def test_decisions_that_do_not_fit_are_refused_and_nothing_is_written(
    audited: tuple[Path, Path, set[str]], tmp_path: Path, content: str, message: str
) -> None:
    data, audit, _ = audited
    file = tmp_path / "decisions.json"
    file.write_text(content.replace("HASH", read_manifest(data).hash))
    with pytest.raises(ValueError, match=message):
        apply_decisions(audit, file, tmp_path / "cleaned")
    assert not (tmp_path / "cleaned").exists()
    # The folder in the place of the file that its page saved.
    with pytest.raises(ValueError, match="not a file of decisions"):
        apply_decisions(audit, audit, tmp_path / "cleaned")


def of_languages(**texts: str) -> dict[str, dict[int, str]]:
    """Captions by language and slot; a blank is a slot whose caption was dropped."""
    return {language: {slot: one for slot, one in enumerate(of) if one != " "} for language, of in texts.items()}


def test_a_dropped_caption_keeps_the_others_aligned() -> None:
    assert aligned_captions(of_languages(eng="a c", fra="ABC")) == {"eng": ("a", "c"), "fra": ("A", "C", "B")}
    assert aligned_captions(of_languages(eng="a ", fra=" B")) == {"eng": ("a",)}
    # Not all of English for the sake of one caption in German.
    assert aligned_captions(of_languages(deu="A", eng=" bcd")) == {"eng": ("b", "c", "d")}
    # Those that still have all slots go on, though another language would have a gap.
    three = of_languages(eng="a cd", fra=" BCD", deu="A CD")
    assert aligned_captions(three) == {"eng": ("c", "d", "a"), "fra": ("C", "D"), "deu": ("C", "D", "A")}


def clip_of(clip_id: str, split: str, **captions: str) -> Clip:
    about: dict[str, Any] = {
        "sample_rate": 16_000,
        "seconds": 0.6,
        "labels": ("tone",),
        "split": split,
        "source": "tones",
    }
    about |= {"translated": tuple(captions)}
    return Clip(clip_id=clip_id, audio=tone(0, 0), captions={code: tuple(of) for code, of in captions.items()}, **about)


def test_what_is_left_out_besides_or_was_not_judged_is_counted_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clips = [
        clip_of("a", "train", eng="abc", fra="ABC", deu="xyz"),
        clip_of("b", "train", eng="d"),
        clip_of("no caption", "train"),
        clip_of("of the test", "test"),
    ]
    manifest = write_clips(tmp_path / "data", clips, name="tones", licence="none", notes=["filled by a machine"])
    (tmp_path / "audit").mkdir()
    facts = {"data": str(manifest.folder), "data_hash": manifest.hash, "split": "train", "languages": ["eng", "fra"]}
    (tmp_path / "audit" / "audit.json").write_text(json.dumps(facts))
    dropped = {name: {"decision": "drop"} for name in ("a\teng\t0", "a\tfra\t1", "b\teng\t0")}
    file = tmp_path / "decisions.json"
    file.write_text(json.dumps({"data_hash": manifest.hash, "decisions": dropped}))
    applied = apply_decisions(tmp_path / "audit", file, tmp_path / "cleaned")
    after = clips_of(tmp_path / "cleaned")
    assert list(after) == ["a", "no caption", "of the test"]
    assert {code: "".join(of) for code, of in after["a"].captions.items()} == {"eng": "c", "fra": "CA", "deu": "zxy"}
    assert after["a"].translated == ("eng", "fra", "deu")
    assert (applied.dropped, applied.clips_without_captions, applied.unaligned) == (3, 1, 1)
    assert applied.unaudited == ("deu",)
    assert applied.manifest.notes == manifest.notes == ("filled by a machine",)
    print_applied(applied, Console())
    said = " ".join(capsys.readouterr().out.split())
    assert "1 further caption is left out" in said
    assert "not audited, and kept as they are: captions in deu" in said


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of vectors: 64 clips of eight kinds, a sentence for each kind; the first clip has another kind's."""
    folder = tmp_path_factory.mktemp("vectors")
    random = np.random.default_rng(0)
    kinds = random.normal(size=(8, 24)).astype(np.float32)
    np.save(folder / "text.npy", kinds)
    np.save(folder / "audio.npy", kinds[np.arange(64) % 8] + 0.1 * random.normal(size=(64, 24)).astype(np.float32))
    worn = [(1 if row == 0 else row) % 8 for row in range(64)]
    lines = [f"{row},{kind},a sound of kind {kind}" for row, kind in enumerate(worn)]
    (folder / "pairs.csv").write_text("\n".join(["audio_row,text_row,caption", *lines]) + "\n")
    files = {name: str(folder / f"{name}.npy") for name in ("audio", "text")}
    import_vectors(VectorImport(**files, table=str(folder / "pairs.csv")), folder / "data")
    return folder / "data"


def test_a_language_of_too_few_clips_is_not_audited(vectors: Path, tmp_path: Path) -> None:
    files = {name: str(vectors.parent / f"{name}.npy") for name in ("audio", "text")}
    lines = (vectors.parent / "pairs.csv").read_text().splitlines()
    rows = [f"{line},{'eng' if row < 40 else 'deu'}" for row, line in enumerate(lines[1:])]
    rows += [f"{row},{row % 8},un bruit du genre {row % 8},fra" for row in range(8, 11)]
    (tmp_path / "pairs.csv").write_text("\n".join([f"{lines[0]},language", *rows]))
    import_vectors(VectorImport(**files, table=str(tmp_path / "pairs.csv")), tmp_path / "data")
    said: list[str] = []
    ten = CrossFit(folds=10, mispairs=2000)
    audit = audit_data_set(str(tmp_path / "data"), None, tmp_path / "audit", cross_fit=ten, echo=said.append)
    assert said == [
        "warning: 40 clips at most in a language; below 200 the stated rate may not hold",
        "not audited: captions in fra (3 clips); 20 clips or more are needed",
    ]
    facts = read_facts(audit)
    assert facts["languages"] == ["deu", "eng"]
    assert facts["captions"] == 64 == sum(facts["listen"]["sizes"])
    applied = keep_certified(audit, 0.3, tmp_path / "kept")
    assert applied.unaudited == ("fra",)
    assert read_manifest(tmp_path / "kept").num_captions("fra") == 3
    allowed = "folds: got 13; allowed at most 12, half of the 24 clips with captions in deu"
    with pytest.raises(ValueError, match=allowed):
        audit_data_set(
            str(tmp_path / "data"),
            None,
            tmp_path / "other",
            AuditOptions(languages=("deu", "fra")),
            cross_fit=dataclasses.replace(ten, folds=13),
        )
    # Two languages without clips enough for any folds.
    few = [*rows[:3], *(row.replace(",eng", ",deu") for row in rows[:2])]
    (tmp_path / "few.csv").write_text("\n".join([f"{lines[0]},language", *few]))
    import_vectors(VectorImport(**files, table=str(tmp_path / "few.csv")), tmp_path / "few")
    with pytest.raises(ValueError, match="split: got '3 clips with captions in eng'; allowed 4 or more, for two folds"):
        audit_data_set(str(tmp_path / "few"), None, tmp_path / "other", cross_fit=CrossFit(folds=2))


@pytest.mark.parametrize(
    ("clips", "folds", "audited", "says"),
    [
        ({"eng": 200, "fra": 200, "deu": 199}, 10, {"eng", "fra"}, ["captions in deu (199 clips); 200 clips or more"]),
        ({"eng": 320, "fra": 250}, 150, {"eng"}, ["captions in fra (250 clips); 300 clips or more"]),
        ({"eng": 199, "fra": 20, "deu": 19}, 10, {"eng", "fra"}, ["warning: 199 clips at", "deu (19 clips); 20 clips"]),
        ({"eng": 200}, 10, {"eng"}, []),
        ({"eng": 6}, 10, {"eng"}, ["warning: 6 clips at most in a language"]),
    ],
)
def test_a_language_is_audited_from_a_number_of_clips(
    clips: dict[str, int], folds: int, audited: set[str], says: list[str]
) -> None:
    captions = [
        run.Caption(row, str(row), code, slot, "x")
        for code, number in clips.items()
        for row in range(number)
        for slot in (0, 1)
    ]
    said: list[str] = []
    kept = run.in_common_languages(captions, folds, said.append)
    assert {one.language for one in kept} == audited
    assert len(kept) == 2 * sum(clips[code] for code in audited)
    assert len(said) == len(says)
    assert all(part in line for part, line in zip(says, said, strict=True))


def test_an_audit_names_its_folder_on_a_full_disk(vectors: Path, tmp_path: Path) -> None:
    """A write to an open file names none."""
    raised: list[object] = []

    def audit_on_a_full_disk() -> list[object]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            audit_data_set(str(vectors), None, tmp_path / "audit", cross_fit=JUDGES)
        except OSError as error:
            return [error.errno, error.filename]
        return []

    assert in_fork(audit_on_a_full_disk, raised) == 0
    assert raised == [errno.EFBIG, str(tmp_path / "audit")]
    assert not list(tmp_path.iterdir())


def test_vectors_are_judged_as_they_are_and_keep_theirs_in_what_the_decisions_make(
    vectors: Path, tmp_path: Path
) -> None:
    audit = audit_data_set(str(vectors), None, tmp_path / "audit", cross_fit=JUDGES)
    assert rows(audit)[0]["clip_id"] == "clip-00000000"
    assert "<audio" not in (audit / "audit.html").read_text(encoding="utf-8")
    file = tmp_path / "decisions.json"
    fix = {"decision": "fix", "text": "a sound of kind 0"}
    content = {"data_hash": read_manifest(vectors).hash, "decisions": {"clip-00000000\teng\t0": fix}}
    file.write_text(json.dumps(content))
    apply_decisions(audit, file, tmp_path / "cleaned")
    captions = [
        (texts[0], "eng") for texts in (clip.captions["eng"] for clip in clips_of(tmp_path / "cleaned").values())
    ]
    _, text = read_given(read_manifest(tmp_path / "cleaned"), "train", captions)
    np.testing.assert_array_equal(text, np.load(vectors.parent / "text.npy")[np.arange(64) % 8])
    fix["text"] = "a sound that nobody made a vector of"
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="a caption of the data set, since others have no vector"):
        apply_decisions(audit, file, tmp_path / "other")


def map_rows(texts: dict[int, Any], rows: np.ndarray) -> list[Any]:
    return [texts[row] for row in rows.tolist()]


def test_a_retriever_that_was_trained_on_the_clips_is_named_wherever_it_is_saved(
    audited: tuple[Path, Path, set[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, audit, _ = audited
    clips = [clip for clip in clips_of(data).values() if clip.split == "train"]
    retriever, said = Retriever.from_pretrained(audit.parent / "untrained"), list[str]()

    replace_work(monkeypatch, {"workshop.audit.run.encode": Mock(side_effect=KeyboardInterrupt)})
    reads = counted_reads(monkeypatch)
    for part, expected in (
        (clips[:0], ""),
        (clips[:40], "copy was trained on some 25% of these clips and takes their captions for right, so fewer"),
        (clips, "copy was trained on these clips and takes"),
    ):
        # As if in English alone.
        texts = dict(enumerate(clip.captions["eng"] for clip in part))
        retriever.trained_captions = CaptionSample.from_clips([clip.clip_id for clip in part], partial(map_rows, texts))
        retriever.save_pretrained(tmp_path / "copy")
        said.clear()
        with pytest.raises(KeyboardInterrupt):
            audit_data_set(str(data), str(tmp_path / "copy"), tmp_path / "x", encoding=HERE, echo=said.append)
        assert ("was trained on" in "".join(said)) == bool(expected)
        assert expected in "".join(said)
    assert reads == ["train"] * 3


def test_clips_are_known_in_a_joined_set_of_a_joined_set_and_in_the_inner_one(
    audited: tuple[Path, Path, set[str]], tmp_path: Path
) -> None:
    """A retriever that was trained on a set itself, on one joined of it, or on one joined of that, by its clips' ids there."""
    clips = [clip for clip in clips_of(audited[0]).values() if clip.split == "train"][:40]
    retriever = Retriever.from_pretrained(audited[1].parent / "untrained")
    texts = {row: [text for own in clip.captions.values() for text in own] for row, clip in enumerate(clips)}
    fronts = ("", "inner/", "outer/inner/")
    for front in fronts:
        ids = [front + clip.clip_id for clip in clips]
        retriever.trained_captions = CaptionSample.from_clips(ids, partial(map_rows, texts), are_joined=bool(front))
        retriever.save_pretrained(tmp_path / "copy")
        known = set()
        for other in fronts:
            named = [dataclasses.replace(clip, clip_id=other + clip.clip_id) for clip in clips]
            folder = tmp_path / f"{len(front)}-{len(other)}"
            manifest = write_clips(folder, named, name="noisy", licence="none", are_joined=bool(other))
            share = find_checkpoint(str(tmp_path / "copy")).share_trained_on(
                manifest, list(read_captions(manifest, "train"))
            )
            assert share in (0, 1)
            known |= {other} if share else set()
        # Of the outermost set the sample has ids with the inner name, which the innermost set has not.
        assert known == (set(fronts[1:]) if front == "outer/inner/" else set(fronts)), front


def test_bad_input_is_refused_before_anything_is_encoded(audited: tuple[Path, Path, set[str]], tmp_path: Path) -> None:
    data, audit, _ = audited
    retriever = str(audit.parent / "untrained")
    with pytest.raises(ValueError, match="out: got"):
        audit_data_set(str(data), retriever, audit, encoding=HERE)
    with pytest.raises(ValueError, match="--checkpoint: got None; allowed a saved retriever"):
        audit_data_set(str(data), None, tmp_path / "x", encoding=HERE)
    with pytest.raises(ValueError, match=r"split: got 'trian'.*did you mean train"):
        audit_data_set(str(data), retriever, tmp_path / "x", AuditOptions(split="trian"), encoding=HERE)
    with pytest.raises(ValueError, match=r"data: got .*; allowed the folder of an audit"):
        keep_certified(data, 0.05, tmp_path / "x")


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deny(monkeypatch)
    with pytest.raises(PermissionError, match=f"cannot be written: '{tmp_path}'"):
        audit_data_set(str(tmp_path / "none"), None, tmp_path / "audit")


def test_a_saved_file_of_decisions_with_another_byte_is_refused(tmp_path: Path) -> None:
    entries = {"train-001\teng\t0": {"decision": "fix", "text": "un été “sonore”\n"}, "b\tfra\t1": {"decision": "drop"}}
    file = tmp_path / "decisions.json"
    content = {"data_hash": "hash", "decisions": entries, "check": check_of("hash", entries)}
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
    whole = file.read_bytes()
    assert set(read_decisions(file, "hash")) == {("train-001", "eng", 0), ("b", "fra", 1)}
    for old, new in ((b"sonore", b"sonare"), (b"train-001", b"train-002"), (b'"drop"', b'"keep"')):
        file.write_bytes(whole.replace(old, new))
        with pytest.raises(DamagedFileError, match="save it again from the audit's page"):
            read_decisions(file, "hash")
    del content["check"]
    file.write_text(json.dumps(content), encoding="utf-8")
    assert read_decisions(file, "hash")["b", "fra", 1].decision == "drop"


@pytest.mark.skipif(
    shutil.which("node") is None, reason="runs the page's JavaScript in Node.js, which is not installed"
)
def test_the_page_computes_the_check_that_is_asked_for() -> None:
    template = resources.files("ray_atr.workshop.audit").joinpath("templates/audit.html.j2").read_text(encoding="utf-8")
    (line,) = (line for line in template.splitlines() if line.startswith("const checkOf"))
    decisions = {"train-001\teng\t0": {"decision": "fix", "text": 'un été “sonore” \u2028 " \x01 日本'}}
    script = f"{line}; console.log(checkOf(JSON.parse(process.argv[1])))"
    given = json.dumps({"data_hash": "hash", "decisions": decisions})
    found = subprocess.run(["node", "-e", script, given], capture_output=True, text=True, check=True).stdout
    assert int(found) == check_of("hash", decisions)


def test_an_audit_has_the_rate_the_lists_and_the_draws_that_are_set(
    vectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[int] = []
    spied(monkeypatch, run, "_write_page", lambda _, place, facts, rows, player: shown.append(len(rows)))

    def made(name: str, **cross_fit: int) -> tuple[dict[str, Any], str]:
        chosen = AuditOptions(rate=0.3, listen=11, worst=3)
        fit = CrossFit(**{"mispairs": 500, **cross_fit})
        folder = audit_data_set(str(vectors), None, tmp_path / name, chosen, cross_fit=fit, echo=lambda _: None)
        return read_json(folder / "audit.json"), (folder / "pairs.csv").read_text()

    facts, pairs = made("plain")
    assert facts["rate"] == 0.3
    assert shown == [3, len(facts["listen"]["pairs"])] == [3, 11]
    # No part has fewer mispairs than a thousand.
    assert made("as few", mispairs=100)[1] == pairs
    for name, changed in (("seed", {"seed": 5}), ("mispairs", {"mispairs": 50_000}), ("folds", {"folds": 4})):
        assert made(name, **changed)[1] != pairs
