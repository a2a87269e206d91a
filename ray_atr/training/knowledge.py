"""A knowledge base beside a training run: what encodes its source, and where it is hosted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.json
import pyarrow.parquet as pq
import torch

from ray_atr.data.cache import ensure_features
from ray_atr.data.captions import TrainingCaptions
from ray_atr.data.features import FeatureSet, open_features
from ray_atr.experiment import Experiment
from ray_atr.knowledge.base import Entries
from ray_atr.knowledge.refreshing import Encode, Host
from ray_atr.models.retriever import Retriever, build_retriever, metric_arguments
from ray_atr.objectives.knowledge.based import Based
from ray_atr.override import flatten, override
from ray_atr.training.group import WorkerGroup
from ray_atr.training.prepare import Prepared
from ray_atr.training.texts import TextBatcher
from ray_atr.training.validation import embed_clips

MakeHost = Callable[[Based, Encode, Path, WorkerGroup], Host]
"""Starts a run's base, or finds the one that its first worker started."""


class SourceEncoder:
    """Encodes a base's source with published weights, in evaluation mode.

    Picklable; opens its data at the first call. Training clips are encoded with the captions they wear, noise included: the
    base knows no more than the run does.
    """

    def __init__(self, experiment: Experiment, prepared: Prepared) -> None:
        self.flat, self.prepared = flatten(experiment), prepared
        self._opened: tuple[Retriever, FeatureSet, list[list[str]], list[str]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def __call__(self, weights: Mapping[str, torch.Tensor]) -> Entries:
        if self._opened is None:
            self._opened = self._open()
        retriever, features, captions, languages = self._opened
        retriever.load_state_dict(dict(weights))
        retriever.eval()
        texts = TextBatcher(retriever)
        with torch.no_grad():
            audio = embed_clips(retriever, features, 64, WorkerGroup())
            of_languages = [
                texts.embed([(caption, language) for caption in of_clips])
                for language, of_clips in zip(languages, captions, strict=True)
            ]
        text = torch.stack(of_languages)
        if len(languages) == 1:
            return Entries(audio.numpy(), text[0].numpy(), features.clip_ids)
        there = np.array([[bool(caption) for caption in of_clips] for of_clips in captions])
        return Entries(audio.numpy(), text.numpy(), features.clip_ids, there)

    def _open(self) -> tuple[Retriever, FeatureSet, list[list[str]], list[str]]:
        experiment = override(Experiment(), self.flat)
        knowledge = experiment.objective.knowledge
        assert isinstance(knowledge, Based), "only a knowledge with a base has a source"
        retriever = build_retriever(
            experiment.model,
            tokenizer=self.prepared.load_tokenizer(),
            seed=experiment.seed,
            **metric_arguments(experiment.objective.pair),
        )
        languages = list(experiment.data.languages) if knowledge.text_entries == "each" else ["eng"]
        if knowledge.source == "train":
            features = open_features(self.prepared.features, experiment.data.train_split)
            captions = _worn(experiment, features, languages)
        else:
            root = self.prepared.features.parent
            folder = ensure_features(knowledge.source, experiment.model.audio.front_end, root, use_ray=False)
            features = open_features(folder, experiment.data.train_split)
            captions = [[(own or [""])[0] for own in features.captions_in(language)] for language in languages]
        if knowledge.captions is not None:
            captions[0] = _replaced(captions[0], features.clip_ids, Path(knowledge.captions))
        return retriever, features, captions, languages


def _worn(experiment: Experiment, features: FeatureSet, languages: list[str]) -> list[list[str]]:
    data = experiment.data
    captions = TrainingCaptions(features, data.languages, data.noise, experiment.seed, data.positives)
    batch = captions.batch(np.arange(len(features)), epoch=0)
    columns = [data.languages.index(language) for language in languages]
    return [[texts[column] for texts in batch.texts] for column in columns]


def _replaced(captions: list[str], clip_ids: list[str], path: Path) -> list[str]:
    """The captions with those of a Parquet or JSON-lines file (clip_id, caption) in their place where it has one."""
    if not path.is_file():
        raise ValueError(f"objective.knowledge.captions: {path}: no such file")
    table = pq.read_table(path) if path.suffix == ".parquet" else pyarrow.json.read_json(path)
    missing = {"clip_id", "caption"} - set(table.column_names)
    if missing:
        raise ValueError(f"objective.knowledge.captions: {path}: column {', '.join(sorted(missing))} is missing")
    new = dict(zip(table.column("clip_id").to_pylist(), table.column("caption").to_pylist(), strict=True))
    return [new.get(clip_id, caption) for clip_id, caption in zip(clip_ids, captions, strict=True)]
