"""The pairs to listen to, the answers of a listener, and the share of wrong pairs with its interval from these answers."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ray_atr.common.settings import refuse, shortened
from ray_atr.common.storage import read_json, write_json
from ray_atr.workshop.audit.estimate import NoiseInterval, interval
from ray_atr.workshop.importing.sources.read_table import read_table
from ray_atr.workshop.importing.sources.source import cell_of

Key = tuple[str, str, int]
"""Clip id, language, caption number."""

FACTS_FILE = "audit.json"
LIST_FILE = "listen.csv"
ANSWERS = {"0": False, "right": False, "false": False, "1": True, "wrong": True, "true": True}
COLUMNS = ("clip_id", "language", "caption_number", "caption", "wrong")
ASKED = (*COLUMNS[:3], "wrong")


def read_facts(audit: Path) -> Mapping[str, Any]:
    """The facts of an audit. ValueError for another folder."""
    if not (audit / FACTS_FILE).is_file():
        raise refuse("data", str(audit), f"the folder of an audit, which has {FACTS_FILE}")
    facts: Mapping[str, Any] = read_json(audit / FACTS_FILE)
    return facts


def estimate(audit: Path, answers: Path, out: Path) -> NoiseInterval:
    """The share of wrong pairs in an audit's split, by the answers; also written to a new JSON file.

    Raises ValueError if the answers are not to the audit's list, or if `out` exists.
    """
    if out.exists() or not out.parent.is_dir():
        raise refuse("out", str(out), "a new file in a folder that exists")
    facts = read_facts(audit)
    listed = {(clip, language, int(slot)): int(stratum) for clip, language, slot, stratum in facts["listen"]["pairs"]}
    given = read_answers(answers, listed)
    sizes = np.array(facts["listen"]["sizes"], np.int64)
    num_heard = np.bincount([listed[key] for key in given], minlength=len(sizes))
    num_wrong = np.bincount([listed[key] for key, is_wrong in given.items() if is_wrong], minlength=len(sizes))
    noise = interval(sizes, num_heard, num_wrong)
    about: dict[str, Any] = {
        "audit": str(audit),
        **{name: facts[name] for name in ("data_hash", "split", "caption_digests")},
        "heard": int(num_heard.sum()),
        "unanswered": len(listed) - len(given),
        "wrong_of_these": int(num_wrong.sum()),
        "wrong_share": round(noise.share, 4),
        "interval_95": [round(noise.low, 4), round(noise.high, 4)],
    }
    write_json(out, about)
    return noise


def read_answers(path: Path, listed: dict[Key, int]) -> dict[Key, bool]:
    """Whether each answered pair is wrong. Pairs of the list without an answer are left out.

    ValueError names the file and the row that is not understood, or whose pair is not in the list.
    """
    answers: dict[Key, bool] = {}
    for at, row in read_table(str(path), ASKED):
        clip, language = str(row["clip_id"]), cell_of(row, "language")
        # pandas writes whole numbers as 0.0 and 1.0 where a cell of their column is empty.
        slot, answer = (re.sub(r"\.0+$", "", cell_of(row, name)) for name in ("caption_number", "wrong"))
        key = clip, language, int(slot) if slot.isdecimal() else -1
        if key not in listed:
            raise refuse(at, f"{clip} {language} {slot}", "a pair that this audit asks for (" + LIST_FILE + ")")
        if key in answers:
            raise refuse(at, f"{clip} {language} {slot}", "each pair once")
        if text := answer.lower():
            if text not in ANSWERS:
                raise refuse(f"{at}, wrong", shortened(text, 40), "0 (right), 1 (wrong) or empty (cannot be told)")
            answers[key] = ANSWERS[text]
    if not answers:
        raise refuse(f"{path}: answers", 0, "at least one pair that was heard")
    return answers


def write_list(path: Path, pairs: Sequence[tuple[str, str, int, str]]) -> None:
    """The list to fill in by hand: a row each of clip id, language, caption number, caption, with an empty answer."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows([*pair, ""] for pair in pairs)
