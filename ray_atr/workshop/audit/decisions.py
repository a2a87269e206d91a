"""The decisions of an audit's page, and the data set that they make."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ray_atr.common.language_codes import normalise
from ray_atr.common.locations import MAX_NAME_BYTES
from ray_atr.common.settings import refuse, shortened
from ray_atr.common.storage import DamagedFileError
from ray_atr.data.caption_vectors import GIVEN, has_vectors, open_caption_vectors
from ray_atr.data.schema import Clip, aligned_captions, to_clips
from ray_atr.data.shards import Manifest, hash_of_file, read_manifest, read_shard, write_clips
from ray_atr.objectives.correspondence.noise_rate import wrong_share
from ray_atr.workshop.audit.answers import Key, read_facts
from ray_atr.workshop.audit.certify import certified
from ray_atr.workshop.audit.run import TABLE_FILE, TABLE_HASH

DECISIONS = ("keep", "drop", "fix")


@dataclasses.dataclass(frozen=True)
class Decision:
    """What is to become of one caption; `text` is the new one of a `fix`."""

    decision: str
    text: str = ""


@dataclasses.dataclass(frozen=True)
class Applied:
    """The cleaned data set, the numbers of captions that were dropped and fixed, and of clips that lost all captions.

    `unaligned`: number of further captions that are left out, so that caption j is one sentence in every language.
    `unaudited`: languages of the split that were not audited; their captions stay as they are.
    """

    manifest: Manifest
    dropped: int
    fixed: int
    clips_without_captions: int
    unaligned: int
    unaudited: tuple[str, ...]


def read_decisions(path: Path, data_hash: str) -> dict[Key, Decision]:
    """The decisions in a file that the page saved. ValueError names the file and the entry that is not understood, and refuses a
    file for another data set (`data_hash` is the manifest's).

    A file that the page saved has a check of its content. A file that somebody wrote need not have one.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
        stored_hash, entries = content["data_hash"], dict(content["decisions"])
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; the audit's page saves it") from None
    except (IsADirectoryError, KeyError, TypeError, ValueError, RecursionError):
        raise ValueError(f"{path}: not a file of decisions that an audit's page saved") from None
    if "check" in content and content["check"] != check_of(stored_hash, entries):
        raise DamagedFileError(
            path, "save it again from the audit's page; remove its `check` if you changed it yourself"
        )
    if stored_hash != data_hash:
        raise refuse(f"{path}: data_hash", str(stored_hash)[:16], f"{data_hash[:16]}, the data set's as it is now")
    decisions = {}
    for name, entry in entries.items():
        key = re.fullmatch(r"([^\t]*)\t([^\t]*)\t([0-9]{1,6})", name)
        if key is None:
            raise refuse(f"{path}: decisions", name, "clip id, language and caption number with tabs between")
        at = f"{path}: {shortened(name, 80)!r}"
        if not isinstance(entry, Mapping) or entry.get("decision") not in DECISIONS:
            raise refuse(at, entry, "decision " + ", ".join(DECISIONS))
        text = entry.get("text", "")
        if not isinstance(text, str) or (entry["decision"] == "fix" and not text.strip()):
            raise refuse(f"{at}, text", text, "the new caption of a fix")
        decisions[key[1], key[2], int(key[3])] = Decision(entry["decision"], text)
    return decisions


def check_of(data_hash: Any, decisions: Mapping[str, Any]) -> int:
    """FNV-1a, 32 bits, of the content as the page's JavaScript writes it without spaces."""
    text = json.dumps({"data_hash": data_hash, "decisions": decisions}, ensure_ascii=False, separators=(",", ":"))
    check = 2166136261
    for byte in text.encode("utf-8", "surrogatepass"):
        check = (check ^ byte) * 16777619 % 2**32
    return check


def apply_decisions(audit: Path, decisions: Path, out: str | Path) -> Applied:
    """Write the audited data set again, without the dropped captions and with the fixed ones, every split included.

    A clip of the audited split that loses its last caption is left out: it has nothing left to train on. Raises ValueError if
    the data set changed since the audit, or a decision names a caption that is not there; nothing is written then.
    """
    facts, manifest = audited(audit)
    return _apply(manifest, facts, read_decisions(decisions, manifest.hash), decisions, out)


def keep_certified(audit: Path, rate: float, out: str | Path) -> Applied:
    """Write the audited data set again. Its audited split keeps only captions of which at most `rate` are wrong (`certified`),
    and those in languages that were not audited.

    Raises ValueError if the data set or the audit's table has changed since the audit, for a rate that is not between 0 and 1,
    and if no caption can be kept.
    """
    facts, manifest = audited(audit)
    if facts.get(TABLE_HASH) != hash_of_file(audit / TABLE_FILE):
        raise DamagedFileError(
            audit / TABLE_FILE, "--keep holds only for the p-values that the audit wrote; make the audit again"
        )
    with (audit / TABLE_FILE).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    p_value = np.array([float(row["p_value"]) for row in rows])
    _, clip = np.unique([row["clip_id"] for row in rows], return_inverse=True)
    estimate = wrong_share(p_value, clip)
    is_certified = certified(p_value, rate, estimate)
    if not is_certified.any():
        raise refuse("--keep", rate, "a larger share: no set of pairs is that clean for certain")
    dropped = [row for row, is_kept in zip(rows, is_certified, strict=True) if not is_kept]
    wanted = {(row["clip_id"], row["language"], int(row["caption_number"])): Decision("drop") for row in dropped}
    return _apply(manifest, facts, wanted, audit / TABLE_FILE, out, "kept")


def audited(audit: Path) -> tuple[Mapping[str, Any], Manifest]:
    """The facts of an audit, and its data set. ValueError if the data set has changed since."""
    facts = read_facts(audit)
    manifest = read_manifest(facts["data"])
    if manifest.hash != facts["data_hash"]:
        raise refuse(f"{audit}: data", facts["data"], "the data set as it was when it was audited")
    return facts, manifest


def _apply(
    manifest: Manifest,
    facts: Mapping[str, Any],
    wanted: Mapping[Key, Decision],
    decisions: Path,
    out: str | Path,
    suffix: str = "audited",
) -> Applied:
    """Write the data set with the decisions of a file, which are on captions of the audited split."""
    audited_split, languages = facts["split"], facts["languages"]
    unused, num_empty, num_lost, in_split = set(wanted), 0, 0, Counter[str]()

    def clips() -> Iterator[Clip]:
        nonlocal num_empty, num_lost
        for split in manifest.splits:
            for shard in manifest.shards_of(split):
                for clip in itertools.chain.from_iterable(map(to_clips, read_shard(manifest, shard))):
                    if split != audited_split:
                        yield clip
                        continue
                    in_split.update(clip.captions.keys())
                    cleaned = _cleaned(clip, wanted, unused)
                    num_lost += _count(clip) - _count(cleaned)
                    # A clip that had no captions stays as a candidate; one that lost its last is of no use for training.
                    if clip.captions and not cleaned.captions:
                        num_empty += 1
                    else:
                        yield cleaned
        if unused:
            raise refuse(f"{decisions}: decisions", " ".join(map(str, min(unused))), "captions of the audited split")

    given = [Path(manifest.folder) / GIVEN] if has_vectors(manifest.folder) else []
    if given:
        _require_known(decisions, wanted, given[0])
    # A longer name could be written, but not read.
    begin = manifest.name.encode()[: MAX_NAME_BYTES - 1 - len(suffix)].decode(errors="ignore")
    name = f"{begin}_{suffix}"
    about: dict[str, Any] = {field: getattr(manifest, field) for field in ("licence", "skipped", "notes")}
    written = write_clips(out, clips(), name=name, **about, beside=given, are_joined=manifest.is_joined)
    # Every decision was of one caption.
    counts = Counter(row.decision for row in wanted.values())
    unaudited = tuple(sorted(in_split.keys() - set(languages)))
    return Applied(written, counts["drop"], counts["fix"], num_empty, num_lost - counts["drop"], unaudited)


def _count(clip: Clip) -> int:
    return sum(map(len, clip.captions.values()))


def _require_known(path: Path, wanted: Mapping[Key, Decision], vectors: Path) -> None:
    """ValueError for a new caption that has no vector."""
    fixed = {key: (normalise(row.text), key[1]) for key, row in wanted.items() if row.decision == "fix"}
    rows = open_caption_vectors(vectors, is_cache=False).rows(list(fixed.values()))
    for (key, (text, _)), row in zip(fixed.items(), rows.tolist(), strict=True):
        if row < 0:
            raise refuse(f"{path}: {key}, text", text, "a caption of the data set, since others have no vector")


def _cleaned(clip: Clip, wanted: Mapping[Key, Decision], unused: set[Key]) -> Clip:
    """The clip with the decisions on it, which are removed from `unused`."""
    captions: dict[str, dict[int, str]] = {language: {} for language in clip.captions}
    for language, texts in clip.captions.items():
        for slot, text in enumerate(texts):
            key = (clip.clip_id, language, slot)
            unused.discard(key)
            decision = wanted.get(key, Decision("keep"))
            if decision.decision != "drop":
                captions[language][slot] = decision.text if decision.decision == "fix" else text
    aligned = aligned_captions(captions)
    return dataclasses.replace(
        clip, captions=aligned, translated=[language for language in clip.translated if language in aligned]
    )
