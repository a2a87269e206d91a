"""A prepared data set as two MTEB tasks, text to audio and audio to text, each with its languages as subsets.

They need the extra `mteb`.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from datasets import Audio, Dataset, Features, Value
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from mteb.abstasks.task_metadata import TaskMetadata

from ray_atr.data.shards import read_shard
from ray_atr.evaluation.eval_split import EvalSplit
from ray_atr.evaluation.mteb_encoder import NO_LANGUAGE, language_and_script
from ray_atr.metrics.measures import RECALL_AT

DIRECTIONS = {"t2a": "texts ask for clips", "a2t": "clips ask for texts"}
CLIPS = Features({"id": Value("string"), "audio": Audio(decode=False)})
TEXTS = Features({"id": Value("string"), "text": Value("string")})


class LocalRetrievalTask(AbsTaskRetrieval):
    """A split of a prepared data set, read from its folder. `local_tasks` makes a subclass with MTEB's metadata."""

    eval_split: ClassVar[EvalSplit]
    clips: ClassVar[list[Dataset]]
    """The split's clips, read once for all tasks; empty before."""
    data_loaded: bool = False

    def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
        """Fills `dataset[language][split]`; the clips stay encoded files."""
        if self.data_loaded:
            return
        split, is_text_asking = self.eval_split, self.metadata.category == "t2a"
        if not self.clips:
            self.clips.append(read_clips(split))
        relevance = split.captions.relevance
        self.dataset = {}
        for language, sentences in split.captions.sentences.items():
            rows = np.flatnonzero(split.captions.present[language]).tolist()
            table = pa.table({"id": [f"{language}-{row}" for row in rows], "text": [sentences[row] for row in rows]})
            texts, is_own = Dataset(table.cast(TEXTS.arrow_schema)), set(rows)
            relevant: dict[str, dict[str, int]] = {}
            for row, clip in zip(relevance.text.tolist(), relevance.clip.tolist(), strict=True):
                if row in is_own:
                    pair = f"{language}-{row}", split.clip_ids[clip]
                    query, answer = pair if is_text_asking else pair[::-1]
                    relevant.setdefault(query, {})[answer] = 1
            queries, corpus = (texts, self.clips[0]) if is_text_asking else (self.clips[0], texts)
            content = RetrievalSplitData(queries=queries, corpus=corpus, relevant_docs=relevant, top_ranked=None)
            self.dataset[language] = {split.split: content}
        self.data_loaded = True

    def task_specific_scores(
        self, scores: dict[str, dict[str, float]], qrels: Any, results: Any, hf_split: str, hf_subset: str
    ) -> dict[str, float]:
        """R@k over the queries, which MTEB's own `hit_rate_at_k` rounds to five digits."""
        return {f"r_at_{k}": float(np.mean([query[f"success_{k}"] for query in scores.values()])) for k in RECALL_AT}


def local_tasks(eval_split: EvalSplit) -> list[LocalRetrievalTask]:
    """The two tasks of a split, in its languages."""
    name = re.sub(r"\W+", "", eval_split.manifest.name.title()) or "Local"
    clips: list[Dataset] = []
    tasks = []
    direction: Any
    for direction, words in DIRECTIONS.items():
        full_name = f"{name}{direction.upper()}Retrieval"
        metadata = TaskMetadata(
            name=full_name,
            description=f"{eval_split.manifest.name}, split {eval_split.split}: {words}.",
            dataset={"path": str(eval_split.manifest.folder), "revision": eval_split.manifest.hash},
            type="Any2AnyMultilingualRetrieval",
            category=direction,
            modalities=["text", "audio"],
            eval_splits=[eval_split.split],
            eval_langs={code: [language_and_script(code), f"{NO_LANGUAGE}-Zxxx"] for code in eval_split.languages},
            main_score="hit_rate_at_10",
        )
        members = {"metadata": metadata, "eval_split": eval_split, "clips": clips}
        tasks.append(type(full_name, (LocalRetrievalTask,), members)())
    return tasks


def read_clips(eval_split: EvalSplit) -> Dataset:
    """Ids and encoded files of a split's clips, in its order."""
    batches = [
        pa.record_batch(
            {
                "id": batch["clip_id"].cast(pa.string()),
                "audio": pa.StructArray.from_arrays(
                    [batch["audio"].cast(pa.binary()), pa.nulls(batch.num_rows, pa.string())], ["bytes", "path"]
                ),
            }
        )
        for shard in eval_split.manifest.shards_of(eval_split.split)
        for batch in read_shard(eval_split.manifest, shard, ["clip_id", "audio"])
    ]
    return Dataset(pa.Table.from_batches(batches).cast(CLIPS.arrow_schema))
