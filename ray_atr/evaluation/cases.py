"""A page's cases of ASK: what its knowledge base answers to some test captions, and how far that is relied on.

As the paper's Table 6 has them, with the neighbours that its Table 3 speaks of (Fu et al. 2025, Appendix G).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ray_atr.data.sampling import permutation
from ray_atr.data.shards import read_captions, read_manifest
from ray_atr.evaluation.checkpoints import Checkpoint
from ray_atr.evaluation.eval_split import Questions
from ray_atr.experiment import Experiment
from ray_atr.knowledge.drift import Case, explain
from ray_atr.knowledge.snapshot import Snapshot, load
from ray_atr.objectives.knowledge import Ask
from ray_atr.report.evaluation_content import Embedded
from ray_atr.storage import is_local
from ray_atr.table import Cell, Table

QUERIES = 8
NEIGHBOURS = 3
NOTE = (
    "Each test caption's nearest entries in the last snapshot that the trial kept, phi and R of single clips and of "
    "prototypes, and what a training sample's loss would be multiplied with; below 1 the neighbours agree with the query."
)


def case_tables(
    checkpoint: Checkpoint,
    embedded: Embedded,
    questions: Questions,
    seed: int,
    named: Sequence[int],
    training_data: Callable[[], str],
) -> list[Table]:
    """One table for a retriever that was trained with ASK and still has its knowledge base; none for others.

    `named` are captions to ask for before those that the seed draws.
    """
    experiment, snapshot = checkpoint.experiment, _last_snapshot(checkpoint)
    if experiment is None or snapshot is None or not isinstance(experiment.objective.knowledge, Ask):
        return []
    language = next(iter(questions.captions.sentences))
    sentences, clips = questions.captions.sentences[language], questions.captions.clip_of_caption
    drawn = [row for row in permutation(sentences, seed, "cases") if questions.captions.present[language][row]]
    rows = list(dict.fromkeys([*named, *drawn]))[: max(QUERIES, len(named))]
    ids = [questions.clip_ids[clips[row]] for row in rows]
    cases = explain(
        snapshot,
        experiment.objective.knowledge,
        [sentences[row] for row in rows],
        torch.as_tensor(np.asarray(embedded.audio)[clips[rows]]).float(),
        torch.as_tensor(np.asarray(embedded.text[language])[rows]).float(),
        ids,
    )
    return [_table(cases, _captions_of(experiment, training_data()))]


def _last_snapshot(checkpoint: Checkpoint) -> Snapshot | None:
    """The newest snapshot in a trial's folder on this machine; None if there is none."""
    if checkpoint.trial is None or not is_local(checkpoint.trial.folder):
        return None
    kept = sorted((checkpoint.trial.folder / "knowledge").glob("v*/manifest.json"))
    return load(kept[-1].parent) if kept else None


def _captions_of(experiment: Experiment, data: str) -> dict[str, str]:
    """Clip id -> its first caption, of what the base holds."""
    knowledge = experiment.objective.knowledge
    assert isinstance(knowledge, Ask)
    manifest = read_manifest(data if knowledge.source == "train" else knowledge.source)
    language = experiment.data.languages[0]
    split = experiment.data.train_split
    return {clip.clip_id: next(iter(clip.captions.get(language) or [""])) for clip in read_captions(manifest, split)}


def _table(cases: list[Case], captions: dict[str, str]) -> Table:
    grains = list(cases[0].potential) if cases else []
    columns = ["", "nearest entries (similarity of their audio)"]
    columns += [f"{name}, {grain}" for grain in grains for name in ("phi", "R")] + ["multiplier"]
    rows = []
    for case in cases:
        nearest = "; ".join(
            f"{captions.get(one.clip_id) or one.clip_id} ({one.similarity:.2f})" for one in case.neighbours[:NEIGHBOURS]
        )
        numbers = [f"{value:.2f}" for grain in grains for value in (case.potential[grain], case.reliability[grain])]
        words = (Cell(text, is_number=False) for text in (case.query, nearest))
        rows.append([*words, *map(Cell, numbers), Cell(f"{case.multiplier:.2f}")])
    return Table("What the knowledge base answers", NOTE, columns, [rows])
