"""One audit of a data set's split: encode, cross-fit, judge, and write a folder with the page, the table and the index."""

from __future__ import annotations

import csv
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_atr.audit.folds import Pairs
from ray_atr.audit.options import AuditOptions, CrossFit
from ray_atr.audit.score import Audit, audit_pairs
from ray_atr.data.caption_vectors import has_vectors, read_given
from ray_atr.data.shards import Manifest, read_captions, read_manifest, require_writable
from ray_atr.evaluation.checkpoints import Checkpoint, find_checkpoint
from ray_atr.evaluation.encoding import EncodingSource, encode
from ray_atr.evaluation.eval_split import languages_among, pose_questions, require_split
from ray_atr.evaluation.options import Encoding
from ray_atr.languages.codes import normalise
from ray_atr.report.html import data_url, render_template
from ray_atr.settings import refuse
from ray_atr.storage import entries_in, is_local, locate, whole_folder

FACTS_FILE = "audit.json"
TABLE_FILE = "pairs.csv"
INDEX_FILE = "noise_index.npy"
Progress = Callable[[str, int, int], None]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Captions:
    """M captions of a split in its order: clip row, language, place among the clip's captions, text."""

    clip_ids: list[str]
    clip: list[int]
    language: list[str]
    slot: list[int]
    text: list[str]


@dataclass(frozen=True)
class Suspect:
    """One pair to decide on. `wrong` is the posterior that it is wrong, `repeats` how many captions have this very text."""

    row: int
    clip_id: str
    language: str
    slot: int
    caption: str
    preferred: str
    wrong: float
    is_flagged: bool
    repeats: int

    @property
    def key(self) -> str:
        """What the decisions' file calls the pair."""
        return f"{self.clip_id}\t{self.language}\t{self.slot}"


def audit_data_set(
    data: str,
    checkpoint: str | None,
    out: str | Path,
    options: AuditOptions | None = None,
    *,
    cross_fit: CrossFit | None = None,
    encoding: Encoding | None = None,
    progress: Progress | None = None,
    say: Say = print,
) -> Path:
    """Judge every (clip, caption, language) of a split by vectors of a saved retriever, and write the audit to `out`.

    The retriever must not have been trained on these very pairs: it would believe them. A data set of vectors needs none. Raises
    ValueError for bad input, PermissionError for a folder that cannot be written, before anything is encoded or written.
    """
    options, cross_fit, encoding = options or AuditOptions(), cross_fit or CrossFit(), encoding or Encoding()
    folder = locate(out)
    if not is_local(folder) or entries_in(folder) or (folder.is_dir() and any(folder.iterdir())):
        raise refuse("out", str(out), "a new or empty local folder")
    require_writable(folder)
    found = None if checkpoint is None else find_checkpoint(checkpoint)
    manifest = read_manifest(data)
    are_vectors = has_vectors(manifest.folder)
    if found is None and not are_vectors:
        raise refuse("--checkpoint", None, "a saved retriever that was not trained on these pairs")
    captions = captions_of_split(manifest, options.split, options.languages)
    if found is None:
        known = list(zip(captions.text, captions.language, strict=True))
        audio, text = read_given(manifest, options.split, known)
    else:
        audio, text = _encoded(found, manifest, captions, options, encoding, progress, say)
    pairs = Pairs(
        audio=audio,
        text=text,
        clip=np.array(captions.clip),
        language=np.array(captions.language),
        key=np.array([normalise(text).casefold() for text in captions.text]),
    )
    result = audit_pairs(pairs, cross_fit, _told(progress, "training the judges"))
    flagged = result.judged.flagged(options.rate)
    encoder = "the vectors of the data set" if found is None else str(found.folder)
    facts = _facts(manifest, encoder, options, cross_fit, captions, result, flagged)
    listen = None if are_vectors else pose_questions(manifest, options.split).listen
    with whole_folder(folder, last=FACTS_FILE) as aside:
        place = Path(str(aside))
        _write_table(place / TABLE_FILE, captions, result, flagged)
        np.save(place / INDEX_FILE, noise_index(captions, result, flagged))
        _write_page(place / "audit.html", facts, _suspects(captions, result, flagged, options.worst), listen)
        (place / FACTS_FILE).write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return folder


def _encoded(
    found: Checkpoint,
    manifest: Manifest,
    captions: Captions,
    options: AuditOptions,
    encoding: Encoding,
    progress: Progress | None,
    say: Say,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Embeddings of the split's clips and of the captions by a saved retriever."""
    if (
        found.experiment is not None
        and found.is_trained_on(manifest)
        and options.split == found.experiment.data.train_split
    ):
        say(
            f"warning: {found.folder} was trained on these pairs and takes them for right, so fewer wrong ones are found"
        )
    source = EncodingSource.of(found.folder, manifest, options.split, encoding)
    asked = list(zip(captions.language, captions.text, strict=True))
    return encode(source, asked, encoding, _told(progress, "encoding"))


def captions_of_split(manifest: Manifest, split: str, languages: tuple[str, ...]) -> Captions:
    """The captions of a split. ValueError if the split or a language is not there."""
    require_split(manifest, split)
    wanted = languages_among(manifest.languages, languages, manifest.name)
    result = Captions([], [], [], [], [])
    for row, clip in enumerate(read_captions(manifest, split)):
        result.clip_ids.append(clip.clip_id)
        for language in wanted:
            for slot, text in enumerate(clip.captions.get(language) or []):
                if text:
                    result.clip.append(row)
                    result.language.append(language)
                    result.slot.append(slot)
                    result.text.append(text)
    if not result.text:
        raise refuse("languages", ", ".join(wanted), f"languages in which {manifest.name}, split {split} has captions")
    return result


def noise_index(captions: Captions, result: Audit, flagged: NDArray[np.bool_]) -> NDArray[np.int64]:
    """int64 [N]: for each clip the row of the clip whose captions fit it; its own unless most of its captions are flagged.

    For a clip called wrong it is the owner of the caption that is preferred most.
    """
    clip = np.array(captions.clip)
    index = np.arange(len(captions.clip_ids))
    for row in np.unique(clip[flagged]):
        own = clip == row
        if flagged[own].mean() > 0.5:
            owners, votes = np.unique(clip[result.preferred[own & flagged]], return_counts=True)
            index[row] = owners[votes.argmax()]
    return index


def _told(progress: Progress | None, what: str) -> Callable[[int, int], None] | None:
    return None if progress is None else partial(progress, what)


def _write_table(path: Path, captions: Captions, result: Audit, flagged: NDArray[np.bool_]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["clip_id", "language", "caption_number", "caption", "wrong", "p_value", "called_wrong", "preferred"]
        )
        for m in np.argsort(-result.judged.wrong, kind="stable"):
            writer.writerow(
                [
                    captions.clip_ids[captions.clip[m]],
                    captions.language[m],
                    captions.slot[m],
                    captions.text[m],
                    f"{result.judged.wrong[m]:.4f}",
                    f"{result.judged.p_value[m]:.6f}",
                    int(flagged[m]),
                    captions.text[result.preferred[m]],
                ]
            )


def _facts(
    manifest: Manifest,
    checkpoint: str,
    options: AuditOptions,
    cross_fit: CrossFit,
    captions: Captions,
    result: Audit,
    flagged: NDArray[np.bool_],
) -> dict[str, Any]:
    languages = sorted(set(captions.language))
    return {
        "data": manifest.folder,
        "data_hash": manifest.hash,
        "name": manifest.name,
        "split": options.split,
        "checkpoint": checkpoint,
        "clips": len(captions.clip_ids),
        "captions": len(captions.text),
        "languages": languages,
        "wrong_share": round(result.judged.wrong_share, 4),
        "found_share": round(result.found_share, 4),
        "rate": options.rate,
        "called_wrong": int(flagged.sum()),
        "called_wrong_by_language": {
            language: int(flagged[np.array(captions.language) == language].sum()) for language in languages
        },
        "shifted_blocks": [
            {
                "first": captions.clip_ids[shift.first],
                "last": captions.clip_ids[shift.last],
                "rows": shift.last - shift.first + 1,
                "offset": shift.offset,
            }
            for shift in result.shifts
        ],
        "cross_fit": asdict(cross_fit),
        "made": time.strftime("%Y-%m-%d %H:%M"),
    }


def _suspects(captions: Captions, result: Audit, flagged: NDArray[np.bool_], count: int) -> list[Suspect]:
    counts = Counter(captions.text)
    worst = np.lexsort((result.score, -result.judged.wrong))[:count]
    return [
        Suspect(
            row=captions.clip[m],
            clip_id=captions.clip_ids[captions.clip[m]],
            language=captions.language[m],
            slot=captions.slot[m],
            caption=captions.text[m],
            preferred=captions.text[result.preferred[m]],
            wrong=float(result.judged.wrong[m]),
            is_flagged=bool(flagged[m]),
            repeats=counts[captions.text[m]],
        )
        for m in worst
    ]


def _write_page(
    path: Path, facts: Mapping[str, Any], suspects: Sequence[Suspect], listen: Callable[[int], bytes | None] | None
) -> None:
    """Write the page to listen, read and decide by keyboard; decisions are kept in the browser and saved as a file.

    It is self-contained, works from a file and makes no request. Audio of a clip is embedded once. `listen` None: the clips are
    vectors, of which there is nothing to hear.
    """
    rows = sorted({suspect.row for suspect in suspects})
    heard = {} if listen is None else {row: listen(row) for row in rows}
    audio = {row: data_url(sound) for row, sound in heard.items() if sound is not None}
    page = render_template("audit.html.j2", package="ray_atr.audit", facts=facts, suspects=suspects, audio=audio)
    path.write_text(page, encoding="utf-8")
