"""A knowledge base beside a training run: what encodes its source, and where it is hosted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ray_atr.data.captions import TrainingCaptions
from ray_atr.data.features import FeatureSet, open_features
from ray_atr.experiment import Experiment
from ray_atr.knowledge.base import Entries
from ray_atr.knowledge.refreshing import Host
from ray_atr.models.retriever import Retriever, build_retriever, metric_arguments
from ray_atr.objectives.knowledge.based import Based
from ray_atr.override import flatten, override
from ray_atr.training.base_source import read_caption_file
from ray_atr.training.group import WorkerGroup
from ray_atr.training.prepare import Prepared
from ray_atr.training.texts import TextBatcher
from ray_atr.training.validation import embed_clips

MakeHost = Callable[[Based, "SourceEncoder", Path, WorkerGroup], Host]
"""Starts a run's base, or finds the one that its first worker started."""

BLOCK = 256
"""Clips that are encoded together: the same whoever encodes them, so that a base does not depend on how many do."""


@dataclass(frozen=True)
class Source:
    """What a base holds: the clips, and the caption that each has in each of the base's languages (`captions[k][n]`)."""

    features: FeatureSet
    languages: list[str]
    captions: list[list[str]]

    def __len__(self) -> int:
        return len(self.features)

    @torch.no_grad()
    def encode(self, retriever: Retriever, rows: NDArray[np.int64]) -> Entries:
        """The entries of some rows, as the retriever embeds them in evaluation mode; its mode is left as it was."""
        was_training = retriever.training
        retriever.eval()
        texts = TextBatcher(retriever)
        audio = embed_clips(retriever, self.features, 64, WorkerGroup(device=retriever.device), rows)
        of_languages = [
            texts.embed([(captions[row], language) for row in rows])
            for language, captions in zip(self.languages, self.captions, strict=True)
        ]
        retriever.train(was_training)
        there = np.array([[bool(captions[row]) for row in rows] for captions in self.captions])
        ids = np.asarray([self.features.clip_ids[row] for row in rows], dtype=np.str_)
        return Entries(audio.cpu().numpy(), torch.stack(of_languages).cpu().numpy(), ids, there)


class SourceEncoder:
    """Encodes a base's source with published weights, block by block, on the CPU or on a GPU.

    Picklable; opens its data at the first call. Training clips are encoded with the captions they wear, noise included: the
    base knows no more than the run does.
    """

    def __init__(self, experiment: Experiment, prepared: Prepared, *, block: int = BLOCK) -> None:
        self.flat, self.prepared, self.block = flatten(experiment), prepared, block
        self._source: Source | None = None
        self._retriever: Retriever | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None, "_retriever": None}

    def __call__(self, weights: Mapping[str, torch.Tensor]) -> Entries:
        """The whole source."""
        return joined([self.encode_block(weights, block) for block in range(self.num_blocks)])

    @property
    def experiment(self) -> Experiment:
        """The experiment whose base this is."""
        return override(Experiment(), self.flat)

    @property
    def source(self) -> Source:
        """The source, opened at the first use."""
        if self._source is None:
            self._source = _open_source(self.experiment, self.prepared)
        return self._source

    @property
    def num_blocks(self) -> int:
        """In how many blocks the source is encoded."""
        return -(-len(self.source) // self.block)

    def encode_block(self, weights: Mapping[str, torch.Tensor], block: int) -> Entries:
        """One block of the source."""
        retriever = self._retriever or self._build()
        self._retriever = retriever
        retriever.load_state_dict(dict(weights))
        rows = np.arange(len(self.source))[block * self.block : (block + 1) * self.block]
        return self.source.encode(retriever, rows)

    def _build(self) -> Retriever:
        experiment = self.experiment
        retriever = build_retriever(
            experiment.model,
            tokenizer=self.prepared.load_tokenizer(),
            seed=experiment.seed,
            **metric_arguments(experiment.objective.pair),
        )
        return self.prepared.reading(retriever).to("cuda" if experiment.scaling.gpus_per_encoder else "cpu")


def joined(parts: Sequence[Entries]) -> Entries:
    """Blocks of a source, in their order, as one."""
    return Entries(
        np.concatenate([part.audio for part in parts]),
        np.concatenate([part.text for part in parts], axis=1),
        np.concatenate([np.asarray(part.ids) for part in parts]),
        np.concatenate([part.text_mask for part in parts if part.text_mask is not None], axis=1),
    )


def _open_source(experiment: Experiment, prepared: Prepared) -> Source:
    knowledge = experiment.objective.knowledge
    assert isinstance(knowledge, Based), "only a knowledge with a base has a source"
    languages = list(experiment.data.languages) if knowledge.text_entries == "each" else ["eng"]
    if knowledge.source == "train":
        features = open_features(prepared.features, experiment.data.train_split)
        captions = _worn(experiment, features, languages)
    else:
        folder = prepared.features_of(experiment, knowledge.source)
        features = open_features(folder, experiment.data.train_split)
        captions = [[(own or [""])[0] for own in features.captions_in(language)] for language in languages]
    if knowledge.captions is not None:
        new = read_caption_file(Path(knowledge.captions))
        captions[0] = [new.get(clip_id, own) for clip_id, own in zip(features.clip_ids, captions[0], strict=True)]
    return Source(features, languages, captions)


def _worn(experiment: Experiment, features: FeatureSet, languages: list[str]) -> list[list[str]]:
    data = experiment.data
    captions = TrainingCaptions(features, data.languages, data.noise, experiment.seed, data.positives)
    batch = captions.batch(np.arange(len(features)), epoch=0)
    columns = [data.languages.index(language) for language in languages]
    return [[texts[column] for texts in batch.texts] for column in columns]
