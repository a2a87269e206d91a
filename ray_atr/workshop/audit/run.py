"""One audit of a data set's split: encode, cross-fit, compute posteriors, and write a folder with the pages and the table."""

from __future__ import annotations

import csv
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_atr.common.atomic import disk_errors
from ray_atr.common.language_codes import normalise
from ray_atr.common.positives import numbered
from ray_atr.common.progress import Echo, NamedProgress, silent
from ray_atr.common.settings import counted, refuse
from ray_atr.common.storage import atomic_folder, require_new, write_json
from ray_atr.data.caption_digests import caption_digests
from ray_atr.data.caption_sample import clips_in_words
from ray_atr.data.caption_vectors import has_vectors, read_given
from ray_atr.data.shards import ClipCaptions, Manifest, hash_of_file, read_captions, read_manifest
from ray_atr.evaluation.checkpoints import find_checkpoint
from ray_atr.evaluation.encoding import EncodingSource, encode
from ray_atr.evaluation.eval_split import languages_among, listen, require_split
from ray_atr.evaluation.options import Encoding
from ray_atr.evaluation.report.html import data_url, render_template
from ray_atr.objectives.correspondence.cross_fit import Pairs, require_clips
from ray_atr.objectives.correspondence.noise_rate import wrong_share
from ray_atr.workshop.audit.answers import FACTS_FILE, LIST_FILE, write_list
from ray_atr.workshop.audit.estimate import STRATA, draw, strata_of
from ray_atr.workshop.audit.options import NOTHING_FOUND, RATE_CAVEAT, TELLING, AuditOptions, CrossFit
from ray_atr.workshop.audit.score import Audit, audit_pairs

TABLE_FILE = "pairs.csv"
TABLE_HASH = "pairs_hash"
"""Where an audit's facts have the hash of the table, whose p-values `--keep` reads."""

LEAST_CLIPS = 200
"""Clips of a language. With 20 to 80, half of the pairs that are called wrong are right, with 120 a third (docs/results.md)."""


class Caption(NamedTuple):
    """One caption of a split: its clip's row and id, its language, its place among the clip's captions, its text."""

    row: int
    clip_id: str
    language: str
    slot: int
    text: str


def audit_data_set(
    data: str,
    checkpoint: str | None,
    out: str | Path,
    options: AuditOptions | None = None,
    *,
    cross_fit: CrossFit | None = None,
    encoding: Encoding | None = None,
    progress: NamedProgress = silent,
    echo: Echo = print,
) -> Path:
    """Judge every (clip, caption, language) of a split by vectors of a saved retriever, and write the audit to `out`.

    The retriever must not have been trained on these very pairs: it would have memorised them. A data set of vectors
    needs none. Raises ValueError for bad input, PermissionError for a folder that cannot be written, before anything is
    encoded or written.
    """
    options, cross_fit, encoding = options or AuditOptions(), cross_fit or CrossFit(), encoding or Encoding()
    folder = require_new(out, "out")
    opened = None if checkpoint is None else find_checkpoint(checkpoint)
    manifest = read_manifest(data)
    if opened is None and not has_vectors(manifest.folder):
        raise refuse("--checkpoint", None, "a saved retriever that was not trained on these pairs")
    rows, captions = captions_of_split(manifest, options.split, options.languages)
    captions = in_common_languages(captions, cross_fit.folds, echo)
    clip_ids = [row.clip_id for row in rows]
    if opened is None:
        audio, text = read_given(manifest, options.split, [(caption.text, caption.language) for caption in captions])
    else:
        if which := clips_in_words(opened.share_trained_on(manifest, rows)):
            echo(
                f"warning: {opened.folder} was trained on {which} and takes their captions for right, so fewer wrong ones are "
                "found"
            )
        source = EncodingSource.from_retriever(opened.folder, manifest, options.split, encoding)
        asked = [(caption.language, caption.text) for caption in captions]
        audio, text = encode(source, asked, encoding, partial(progress, "encoding"))
    pairs = Pairs(
        audio=audio,
        text=text,
        clip=np.array([caption.row for caption in captions]),
        language=np.array([caption.language for caption in captions]),
        key=numbered([normalise(caption.text).casefold() for caption in captions]),
    )
    result = audit_pairs(pairs, cross_fit, partial(progress, "scoring"))
    flagged = result.flagged(options.rate)
    strata = strata_of(result.posteriors.p_value, result.posteriors.wrong_share)
    heard = draw(strata, min(options.listen, len(captions)), cross_fit.seed)
    facts = {
        "data": manifest.folder,
        "data_hash": manifest.hash,
        "name": manifest.title,
        "split": options.split,
        "caption_digests": caption_digests((caption.clip_id, caption.language, caption.text) for caption in captions),
        "checkpoint": "the vectors of the data set" if opened is None else str(opened.folder),
        "clips": len(clip_ids),
        "captions": len(captions),
        **_findings(pairs, clip_ids, result, flagged, options.rate),
        "listen": {
            "sizes": np.bincount(strata, minlength=STRATA).tolist(),
            "pairs": [[*captions[m][1:4], int(strata[m])] for m in heard],
        },
        "cross_fit": asdict(cross_fit),
        "made": time.strftime("%Y-%m-%d %H:%M"),
    }
    player = partial(listen, manifest, options.split)
    with disk_errors(folder), atomic_folder(folder) as place:
        _write_table(place / TABLE_FILE, captions, result, flagged)
        _write_page(place / "audit.html", facts, _suspects(captions, result, flagged, options.worst), player)
        listed = [captions[m] for m in heard]
        write_list(place / LIST_FILE, [row[1:] for row in listed])
        _write_page(place / "listen.html", facts, [row._asdict() for row in listed], player)
        write_json(place / FACTS_FILE, {**facts, TABLE_HASH: hash_of_file(place / TABLE_FILE)})
    return folder


def captions_of_split(
    manifest: Manifest, split: str, languages: tuple[str, ...]
) -> tuple[list[ClipCaptions], list[Caption]]:
    """The clips of a split and their captions in these languages, in order. ValueError if the split or a language is missing."""
    require_split(manifest, split)
    wanted = languages_among(manifest.languages, languages, manifest.name)
    clips = list(read_captions(manifest, split))
    captions = [
        Caption(row, clip.clip_id, language, slot, text)
        for row, clip in enumerate(clips)
        for language in wanted
        for slot, text in enumerate(clip.captions.get(language) or [])
        if text
    ]
    if not captions:
        raise refuse("languages", ", ".join(wanted), f"languages in which {manifest.name}, split {split} has captions")
    return clips, captions


def in_common_languages(captions: Sequence[Caption], folds: int, echo: Echo) -> list[Caption]:
    """The captions in languages with LEAST_CLIPS clips or more. If no language has so many, a warning says so, and languages with
    two clips per fold or more are taken. The other languages are named.

    Regressions that learned from few clips find few of the right pairs. The others then seem wrong, and are most of the pairs
    called wrong. ValueError if there are several languages, each with fewer than two clips per fold.
    """
    clips = Counter(language for language, _ in {(caption.language, caption.row) for caption in captions})
    language, most = clips.most_common(1)[0]
    if len(clips) > 1:
        require_clips(most, folds, f"captions in {language}")
    if most < LEAST_CLIPS:
        echo(
            f"warning: {counted(most, 'clip')} at most in a language; below {LEAST_CLIPS} the stated rate may not hold"
        )
    least = min(most, max(2 * folds, LEAST_CLIPS if most >= LEAST_CLIPS else 0))
    few = sorted(language for language, number in clips.items() if number < least)
    if few:
        counts = ", ".join(f"{language} ({counted(clips[language], 'clip')})" for language in few)
        echo(f"not audited: captions in {counts}; {least} clips or more are needed")
    return [caption for caption in captions if caption.language not in few]


def _findings(
    pairs: Pairs, clip_ids: Sequence[str], result: Audit, flagged: NDArray[np.bool_], rate: float
) -> dict[str, Any]:
    """What was found, as audit.json has it."""
    languages = [str(language) for language in np.unique(pairs.language)]
    return {
        "languages": languages,
        "wrong_share": round(result.posteriors.share.share, 4),
        "wrong_share_at_most": round(result.posteriors.share.most, 4),
        "wrong_share_by_language": {code: _shares(result, pairs, pairs.language == code) for code in languages},
        "found_share": round(result.found_share, 4),
        "is_something_found": result.is_something_found,
        "rate": rate,
        "called_wrong": int(flagged.sum()),
        "wrong_but_not_called": max(
            0, round(result.posteriors.wrong_share * len(flagged) - (1 - rate) * int(flagged.sum()))
        ),
        "called_wrong_by_language": {code: int(flagged[pairs.language == code].sum()) for code in languages},
        "shifted_blocks": [
            {"first": clip_ids[first], "last": clip_ids[last], "rows": last - first + 1, "offset": offset}
            for first, last, offset, _ in result.shifts
        ],
    }


def _shares(result: Audit, pairs: Pairs, chosen: NDArray[np.bool_]) -> dict[str, float]:
    """The estimated share of wrong ones among some pairs, and the end of its one-sided interval."""
    estimate = wrong_share(result.posteriors.p_value[chosen], pairs.clip[chosen])
    return {"share": round(estimate.share, 4), "at_most": round(estimate.most, 4)}


def _write_table(path: Path, captions: Sequence[Caption], result: Audit, flagged: NDArray[np.bool_]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["clip_id", "language", "caption_number", "caption", "wrong", "p_value", "called_wrong", "preferred"]
        )
        for m in result.posteriors.worst_first:
            posteriors = [f"{result.posteriors.wrong[m]:.4f}", f"{result.posteriors.p_value[m]:.9f}", int(flagged[m])]
            writer.writerow([*captions[m][1:], *posteriors, captions[result.preferred[m]].text])


def _suspects(
    captions: Sequence[Caption], result: Audit, flagged: NDArray[np.bool_], count: int
) -> list[dict[str, Any]]:
    """The pairs to decide on, as the page shows them; `key` names a pair in the file of decisions."""
    counts = Counter(caption.text for caption in captions)
    return [
        {
            **captions[m]._asdict(),
            "key": f"{captions[m].clip_id}\t{captions[m].language}\t{captions[m].slot}",
            "preferred": captions[result.preferred[m]].text,
            "wrong": float(result.posteriors.wrong[m]),
            "is_flagged": bool(flagged[m]),
            "repeats": counts[captions[m].text],
        }
        for m in result.posteriors.worst_first[:count]
    ]


def _write_page(
    path: Path, facts: Mapping[str, Any], shown: Sequence[Mapping[str, Any]], listen: Callable[[int], bytes | None]
) -> None:
    """Write a page to listen, read and decide by keyboard; decisions are kept in the browser and saved as a file.

    Its template has its name. It is self-contained and makes no request. The audio of a clip is embedded once, from `listen`,
    which has None for a clip that is a vector.
    """
    rows = sorted({pair["row"] for pair in shown})
    audio = {row: data_url(sound) for row in rows if (sound := listen(row)) is not None}
    page = render_template(
        f"{path.name}.j2",
        package="ray_atr.workshop.audit",
        facts=facts,
        caveat=RATE_CAVEAT,
        telling=TELLING,
        nothing_found=NOTHING_FOUND,
        pairs=shown,
        audio=audio,
        counted=counted,
    )
    path.write_text(page, encoding="utf-8")
