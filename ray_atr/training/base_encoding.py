"""The source of a training run's knowledge base, and how it is encoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ray_atr.common.jobs import Resources, run_jobs
from ray_atr.common.positives import positive_groups
from ray_atr.data.captions import TrainingCaptions, read_caption_file
from ray_atr.data.features import FeatureSet, open_features
from ray_atr.models.retriever import Retriever
from ray_atr.objectives.knowledge.knowledge import KnowledgeBaseObjective
from ray_atr.training.encoding.encode import clip_batches, embed_batches, rows_in_parts
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import Prepared
from ray_atr.training.knowledge_base.parts import WHOLE, BasePart
from ray_atr.training.knowledge_base.refresher import Refresher
from ray_atr.training.knowledge_base.snapshot import Entries, Names, PartEntries, in_utf8

MakeRefresher = Callable[[KnowledgeBaseObjective, "SourceEncoder", Path, WorkerGroup], Refresher]
"""Starts a run's base, or connects to the one that its first worker started."""

CLIPS = 64
"""Clips that are in memory together."""

BLOCK = 256
"""Clips that are encoded together, by any number of processes, so that a base does not depend on that number."""


@dataclass(frozen=True)
class BaseSource:
    """The clips of a base, and their captions in each of its languages (`captions[k][n]`)."""

    features: FeatureSet
    languages: list[str]
    captions: list[list[str]]
    groups: NDArray[np.int64]
    """Equal for clips that are positives of each other."""

    @cached_property
    def has_text(self) -> NDArray[np.bool_]:
        """Which texts exist, [L, N]."""
        return np.array([[bool(caption) for caption in captions] for captions in self.captions])

    @cached_property
    def first(self) -> NDArray[np.int64]:
        """The index of the first entry with the same caption, [L, N]."""
        first_rows = []
        for captions in self.captions:
            first: dict[str, int] = {}
            first_rows.append([first.setdefault(caption, row) for row, caption in enumerate(captions)])
        return np.array(first_rows, np.int64)

    @torch.no_grad()
    def encode(self, retriever: Retriever, rows: NDArray[np.int64]) -> Entries:
        """The entries of some rows, embedded in evaluation mode; the retriever's mode is restored."""
        texts = TextBatcher(retriever)
        parts = [rows[part] for part in rows_in_parts(0, len(rows), CLIPS)]
        with retriever.evaluating():
            audio = embed_batches(retriever, clip_batches(self.features, parts))
            of_languages = [
                texts.embed([(captions[row], language) for row in rows])
                for language, captions in zip(self.languages, self.captions, strict=True)
            ]
        ids = np.asarray([self.features.clip_ids[row] for row in rows], dtype=np.str_)
        return Entries(
            audio.cpu().numpy(), torch.stack(of_languages).cpu().numpy(), ids, self.has_text[:, rows], self.groups[rows]
        )


class SourceEncoder:
    """Encodes a base's source with a run's weights, block by block, on the CPU or a GPU, in this process or in several.

    Picklable; opens its data at the first call. Training clips are encoded with the captions that they have in training,
    including noise. With `processes`, several encode at once; the entries are bit for bit those of one process with the same
    number of threads (another number sums in another order).
    """

    def __init__(
        self, experiment: Experiment, prepared: Prepared, *, block: int = BLOCK, processes: Resources | None = None
    ) -> None:
        self.experiment, self.prepared, self.block, self.processes = experiment, prepared, block, processes

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in vars(self).items() if name not in ("local_inputs", "source", "retriever")
        }

    def encode_part(self, weights: Mapping[str, torch.Tensor], part: BasePart = WHOLE) -> PartEntries:
        """The encoded entries of a part of the source, and the names of all entries. Parts begin at blocks."""
        source, rows = self.source, part.rows(len(self.source.features))
        blocks = range(rows.start // self.block, -(-rows.stop // self.block))
        names = Names(in_utf8(source.features.clip_ids), source.groups, source.has_text)
        if not blocks:
            empty = np.zeros((0, self.experiment.model.embedding_width), dtype=np.float32)
            return PartEntries(empty, np.stack([empty] * len(source.languages)), names)
        if self.processes is None:
            encoded = concatenated([self.encode_block(weights, block) for block in blocks])
        else:
            import ray

            # In a list: Ray would resolve a bare reference and copy the weights into each task's arguments.
            make_worker = partial(_block_encoder, self, [ray.put(dict(weights))])
            done = dict(run_jobs(blocks, make_worker, ray=self.processes))
            encoded = concatenated([done[number] for number in range(len(blocks))])
        return PartEntries(encoded.audio, encoded.text, names, source.first[:, rows])

    @cached_property
    def local_inputs(self) -> Prepared:
        """The inputs on this node, which may be another one than that of the training."""
        return self.prepared.on_this_node(self.experiment)

    @cached_property
    def source(self) -> BaseSource:
        """The source, opened at the first use."""
        return _open_source(self.experiment, self.local_inputs)

    @cached_property
    def retriever(self) -> Retriever:
        """The retriever, built at the first use. Its first weights use torch's global generator, which is restored."""
        device = "cuda" if self.experiment.scaling.gpus_per_encoder else "cpu"
        return self.local_inputs.reading(self.local_inputs.first_retriever(self.experiment)).to(device)

    @property
    def size(self) -> tuple[int, int]:
        """(number of entries of the source, number of languages of their texts)."""
        return len(self.source.features), len(self.source.languages)

    def encode_block(self, weights: Mapping[str, torch.Tensor], block: int) -> Entries:
        """One block of the source."""
        self.retriever.load_trained_state(weights)
        rows = np.arange(len(self.source.features))[block * self.block : (block + 1) * self.block]
        return self.source.encode(self.retriever, rows)


def _block_encoder(encoder: SourceEncoder, boxed: list[Any]) -> Callable[[int], Entries]:
    """A function that encodes a block; it fetches the weights once."""
    import ray

    return partial(encoder.encode_block, ray.get(boxed[0]))


def concatenated(parts: Sequence[Entries]) -> Entries:
    """The entries of consecutive blocks as one."""
    columns = zip(*parts, strict=True)
    return Entries(*(np.concatenate(column, axis=axis) for column, axis in zip(columns, (0, 1, 0, 1, 0), strict=True)))


def _open_source(experiment: Experiment, prepared: Prepared) -> BaseSource:
    knowledge, data = experiment.objective.knowledge, experiment.data
    assert isinstance(knowledge, KnowledgeBaseObjective), "only a knowledge with a base has a source"
    languages = list(data.languages) if knowledge.text_entries == "each" else list(data.languages[:1])
    if knowledge.source == "train":
        # The captions that the clips have in training, noise included.
        features = open_features(prepared.features, data.train_split)
        trained = TrainingCaptions(features, data.languages, data.noise, experiment.seed, data.positives)
        batch = trained.batch(np.arange(len(features)), epoch=0)
        # The base's languages are the first ones of the run's.
        captions, groups = [[texts[k] for texts in batch.texts] for k in range(len(languages))], batch.groups
    else:
        features = open_features(prepared.features_of(experiment, knowledge.source), data.train_split)
        captions = [[(texts or [""])[0] for texts in features.captions_in(language)] for language in languages]
        groups = positive_groups(data.positives, features.clip_ids, captions[0], features.labels)
    if knowledge.captions is not None:
        new = read_caption_file(knowledge.captions)
        captions[0] = [
            new.get(clip_id, caption) for clip_id, caption in zip(features.clip_ids, captions[0], strict=True)
        ]
    return BaseSource(features, languages, captions, groups)
