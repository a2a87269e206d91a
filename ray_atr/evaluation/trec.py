"""An evaluation's answers as TREC run and qrels files, which trec_eval, pytrec_eval, ir_measures and ranx read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np

from ray_atr.evaluation.eval_split import EvalSplit
from ray_atr.evaluation.report.evaluation_content import CaptionScores, Embedded

RUN, QRELS = "run-{}.trec", "qrels-{}.trec"
DEPTH = 100
"""Number of results written for each query."""
TEXTS_TOGETHER = 256


def write_trec(embedded: Embedded, split: EvalSplit, folder: Path) -> None:
    """Write `run-<language>.trec` and `qrels-<language>.trec` of a checkpoint's embeddings of a split.

    A query is `<language>-<caption>`, a document a clip id, percent-encoded. Scores are those of the evaluation's ranking.
    """
    scores = CaptionScores(embedded, split.captions)
    clips = [quote(clip, safe="") for clip in split.clip_ids]
    relevance = split.captions.relevance
    for language in embedded.text:
        rows = np.flatnonzero(split.captions.present[language])
        chosen = np.isin(relevance.text.numpy(), rows)
        pairs = zip(relevance.text.numpy()[chosen].tolist(), relevance.clip.numpy()[chosen].tolist(), strict=True)
        qrels = (f"{language}-{row} 0 {clips[clip]} 1\n" for row, clip in pairs)
        for name, lines in ((RUN, _run(scores, language, rows, clips)), (QRELS, qrels)):
            with (folder / name.format(language)).open("w", encoding="utf-8") as output:
                output.writelines(lines)


def _run(scores: CaptionScores, language: str, rows: np.ndarray, clips: list[str]) -> Iterator[str]:
    for start in range(0, len(rows), TEXTS_TOGETHER):
        some = rows[start : start + TEXTS_TOGETHER]
        best = scores.of(language, some).topk(min(DEPTH, len(clips)), dim=1)
        for row, values, ranks in zip(some, best.values.tolist(), best.indices.tolist(), strict=True):
            for rank, (value, clip) in enumerate(zip(values, ranks, strict=True), start=1):
                yield f"{language}-{row} Q0 {clips[clip]} {rank} {value:.8f} ray_atr\n"
