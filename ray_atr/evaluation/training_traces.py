"""Additions to a page from a trial's folder: cases of ASK's knowledge base, and the drift of clips during training.

The cases are what the base answers to some test captions, and how far that is relied on, as the paper's Table 6 has them,
with the neighbours that its Table 3 speaks of (Fu et al. 2025, Appendix G). Drift is the paper's Figure 6: the same clips
embedded by the weights of a run's epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ray_atr.common.sampling import permutation
from ray_atr.common.storage import is_local
from ray_atr.common.table import Cell, Table
from ray_atr.data.shards import read_captions, read_manifest
from ray_atr.evaluation.checkpoints import Checkpoint
from ray_atr.evaluation.encoding import Encoder, EncodingSource
from ray_atr.evaluation.eval_split import EvalSplit
from ray_atr.evaluation.report.evaluation_content import Embedded
from ray_atr.evaluation.report.evaluation_pictures import drift_map
from ray_atr.training.drift import Case, explain, last_base
from ray_atr.training.encoding.encode import ClipBatch, embed_batches
from ray_atr.training.trajectory import saved_steps, weights_of

QUERIES, NEIGHBOURS = 8, 3
NOTE = (
    "For each test caption: its nearest entries in the last snapshot that the trial kept, phi and R of single clips and of "
    "prototypes, and the factor of a training sample's loss. A factor below 1 means that the neighbours agree with the query."
)
CLIPS, EPOCHS = 50, 5
"""Numbers of clips in the drift map, and of points for each clip, evenly spread over training."""


def case_tables(
    checkpoint: Checkpoint,
    embedded: Embedded,
    eval_split: EvalSplit,
    seed: int,
    named: Sequence[int],
    training_data: Callable[[], str],
) -> list[Table]:
    """One table, `named` captions before drawn ones, for a retriever of ASK with its knowledge base; else none."""
    experiment, trial = checkpoint.experiment, None if checkpoint.trial is None else checkpoint.trial.folder
    if experiment is None or not is_local(trial):
        return []
    if (base := last_base(trial, experiment.objective.knowledge)) is None:
        return []
    snapshot, knowledge = base
    # A base with texts in one language is asked in any; otherwise each language is asked among its own texts.
    known = experiment.data.languages if len(snapshot.text) > 1 else ()
    language = next((code for code in eval_split.captions.sentences if not known or code in known), None)
    if language is None:
        return []
    sentences, clips = eval_split.captions.sentences[language], eval_split.captions.clip_of_caption
    drawn = [row for row in permutation(sentences, seed, "cases") if eval_split.captions.present[language][row]]
    rows = list(dict.fromkeys([*named, *drawn]))[: max(QUERIES, len(named))]
    ids = [eval_split.clip_ids[clips[row]] for row in rows]
    cases = explain(
        snapshot,
        knowledge,
        [sentences[row] for row in rows],
        torch.as_tensor(np.asarray(embedded.audio)[clips[rows]]).float(),
        torch.as_tensor(np.asarray(embedded.text[language])[rows]).float(),
        ids,
        known.index(language) if known else 0,
    )
    first_language, captions = experiment.data.languages[0], dict[str, str]()
    # Without the data set, which may have been moved, the table has the clips' ids.
    with suppress(ValueError, OSError):
        manifest = read_manifest(training_data() if knowledge.source == "train" else knowledge.source)
        for clip in read_captions(manifest, experiment.data.train_split):
            captions[clip.clip_id] = next(iter(clip.captions.get(first_language) or [""]))
    return [_table(cases, captions)]


def _table(cases: list[Case], captions: dict[str, str]) -> Table:
    grains = list(cases[0].potential) if cases else []
    columns = ["", "nearest entries (similarity of their audio)"]
    columns += [f"{name}, {grain}" for grain in grains for name in ("phi", "R")] + ["multiplier"]
    rows = []
    for case in cases:
        nearest = "; ".join(
            f"{captions.get(neighbour.clip_id) or neighbour.clip_id} ({neighbour.similarity:.2f})"
            for neighbour in case.neighbours[:NEIGHBOURS]
        )
        numbers = [f"{value:.2f}" for grain in grains for value in (case.potential[grain], case.reliability[grain])]
        words = (Cell(text, is_number=False) for text in (case.query, nearest))
        rows.append([*words, *map(Cell, numbers), Cell(f"{case.multiplier:.2f}")])
    return Table("What the knowledge base answers", NOTE, columns, [rows])


def drift_pictures(checkpoint: Checkpoint, source: EncodingSource) -> dict[str, Figure]:
    """One picture if the trial has its trajectory (`train.keep_trajectory`) on this machine, else none; none of a single clip."""
    trial = None if checkpoint.trial is None else checkpoint.trial.folder
    if not is_local(trial) or len(steps := saved_steps(trial)) < 2:
        return {}
    chosen = sorted({steps[round(place)] for place in np.linspace(0, len(steps) - 1, EPOCHS)})
    ways = embedded_along(trial, chosen, source)
    return {"Drift over training": drift_map(ways, [f"step {step}" for step in chosen])} if ways.shape[1] > 1 else {}


def embedded_along(trial: Path, steps: list[int], source: EncodingSource) -> NDArray[np.float32]:
    """The first clips of the split's first shard by the weights after each of the steps, unit norm [steps, n, D]."""
    encoder, tables = Encoder(source), []
    for step in steps:
        # The trajectory lacks frozen towers whose vectors were cached: they are the retriever's own at every step.
        encoder.retriever.load_state_dict(weights_of(trial, step), strict=False)
        with encoder.retriever.evaluating():
            embedded = embed_batches(encoder.retriever, _first(encoder.batches(0)))
        tables.append(embedded[:CLIPS].cpu().numpy())
    return np.stack(tables)


def _first(batches: Iterator[ClipBatch]) -> Iterator[ClipBatch]:
    """The batches that hold the first `CLIPS` clips, all of their windows."""
    for batch in batches:
        yield batch
        if int(batch.clips[-1]) >= CLIPS:
            return
