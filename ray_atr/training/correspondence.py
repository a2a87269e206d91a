"""What a run's correspondence is started with: its training pairs, their truth if noise was injected, and its teachers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ray_atr.data.captions import TrainingCaptions
from ray_atr.data.features import open_features
from ray_atr.models.retriever import Retriever
from ray_atr.objectives.correspondence import Estimator, Teacher, Teaching, TrainingPairs
from ray_atr.objectives.correspondence.teacher import TEACHERS
from ray_atr.training.encoding.encode import clip_batches, embed_batches, rows_in_parts
from ray_atr.training.encoding.frozen import ensure_frames
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.experiment import Experiment
from ray_atr.training.run_folder import saved_retriever

CAPTIONS = 4096
"""Captions of the training set that a teacher embeds at a time."""


def check_correspondence(experiment: Experiment) -> None:
    """ValueError, naming the setting, if the correspondence needs what the experiment has not."""
    chosen, data = experiment.objective.correspondence, experiment.data
    chosen.require_truth(data.noise.is_injected)
    if isinstance(chosen, Teacher):
        chosen.require_teachers(chosen.teachers)
        for folder in chosen.teachers:
            saved_retriever(folder, TEACHERS)


def make_estimator(
    experiment: Experiment,
    captions: TrainingCaptions,
    data: str,
    home: Path,
    device: torch.device,
    snapshot: Callable[[], Any],
) -> Estimator:
    """The estimator of a run; the same on every worker. The truth is looked up only if noise was injected."""
    chosen, store = experiment.objective.correspondence, experiment.scaling.feature_store
    _, J, K = captions.assigned.owner.shape
    pairs = TrainingPairs(
        clip_ids=captions.features.clip_ids,
        slots=J,
        languages=K,
        truth=torch.from_numpy(captions.truth) if experiment.data.noise.is_injected else None,
        seed=experiment.seed,
        device=device,
        teaching=teach(chosen.teachers, captions, data, home, device, store) if isinstance(chosen, Teacher) else None,
        snapshot=snapshot,
    )
    return chosen.estimator(pairs)


@torch.no_grad()
def teach(
    folders: tuple[str, ...], captions: TrainingCaptions, data: str, home: Path, device: torch.device, store: str = ""
) -> list[Teaching]:
    """Each teacher's embeddings of the training clips [N, D] and of the captions that they have [N, J, K, D].

    `data` is the prepared data set; a teacher takes the features of its own front end, cached under `home` or in the `store`.
    """
    found = []
    for folder in folders:
        retriever = Retriever.from_pretrained(str(saved_retriever(folder, TEACHERS)))
        front_end, in_windows = retriever.audio_tower.front_end, retriever.settings.hears_windows
        frames = ensure_frames(
            data, front_end, home, in_windows=in_windows, use_ray=False, say=lambda message: None, store=store
        )
        features = open_features(frames, captions.features.split)
        row_of = {clip_id: row for row, clip_id in enumerate(features.clip_ids)}
        order = np.array([row_of[clip_id] for clip_id in captions.features.clip_ids])
        retriever = retriever.to(device)
        batches = clip_batches(features, (order[part] for part in rows_in_parts(0, len(order), 64)))
        found.append(Teaching(embed_batches(retriever, batches), _assigned_texts(TextBatcher(retriever), captions)))
    return found


def _assigned_texts(texts: TextBatcher, captions: TrainingCaptions) -> Tensor:
    """Embeddings [N, J, K, D] of the captions that the clips have, zeros if there is none."""
    N, J, K = captions.assigned.owner.shape
    table = torch.zeros(N, J, K, texts.retriever.settings.embedding_width, device=texts.retriever.device)
    for rows in rows_in_parts(0, N, max(1, CAPTIONS // (J * K))):
        for slot in range(J):
            batch = captions.batch(rows, 0, np.full(len(rows), slot))
            table[torch.from_numpy(rows), slot] = texts.embed_grid(batch.texts, batch.mask, captions.languages)
    return table
