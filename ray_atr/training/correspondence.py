"""The inputs of a run's correspondence: training pairs, the injected noise, teachers' embeddings, towers' outputs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ray_atr.common import sampling
from ray_atr.common.caches import cache_folder
from ray_atr.common.positives import folded, numbered
from ray_atr.common.settings import counted, refuse
from ray_atr.common.storage import Location, file_exists, locate, read_json
from ray_atr.data.caption_sample import clips_in_words
from ray_atr.data.captions import TrainingCaptions
from ray_atr.data.feature_cache import ensure_features, has_long_clips
from ray_atr.data.features import FRAMES, open_features
from ray_atr.data.shards import read_manifest
from ray_atr.models.retriever import Retriever
from ray_atr.models.words import WORD_DIRECTIONS, word_vectors
from ray_atr.objectives.correspondence import Estimator, Oracle, Teacher, TeacherEmbeddings, TrainingPairs
from ray_atr.objectives.correspondence.clean_share import SAMPLE, CleanShares, PairVectors
from ray_atr.objectives.correspondence.cross_fit import LEAST_RANDOM
from ray_atr.objectives.correspondence.leave_one_out import LeaveOneOut, LeaveOneOutEstimator
from ray_atr.objectives.correspondence.teacher import TEACHERS
from ray_atr.training.encoding.encode import clip_batches, embed_batches, rows_in_parts
from ray_atr.training.encoding.texts import TextBatcher, distinct
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.run_folder import captions_of_towers, captions_trained_on, saved_retriever

logger = logging.getLogger(__name__)
CLIPS = 64
"""Clips that are encoded at a time."""
LEAST_DEVIATION = 1e-6
"""The least deviation that a statistic is divided by: one that is equal in all clips becomes 0."""
CAPTIONS = 4096
"""Captions of the training set that are embedded at a time."""


def check_correspondence(experiment: Experiment) -> None:
    """ValueError, naming the setting, if the experiment lacks what the correspondence needs."""
    chosen, data = experiment.objective.correspondence, experiment.data
    if isinstance(chosen, Oracle):
        chosen.require_truth(data.noise.is_injected)
    if isinstance(chosen, LeaveOneOut) and chosen.reads == "recordings":
        audio = experiment.model.audio
        if experiment.model.encodes_once("audio") or audio.front_end.kind not in FRAMES:
            allowed = "auto or towers: no log-mel frames of the clips are read, but vectors or samples"
            raise refuse("objective.correspondence.reads", chosen.reads, allowed)
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
        teacher_embeddings=embed_with_teachers(chosen.teachers, captions, data, home, device, store)
        if isinstance(chosen, Teacher)
        else None,
        snapshot=snapshot,
        needs_clean_share=experiment.objective.needs_clean_share,
        wrong_shares=wrong_shares(experiment.data.wrong_share, captions.languages, experiment.trained_languages),
    )
    return chosen.estimator(pairs)


def estimated_first(experiment: Experiment, num_clips: Callable[[], int]) -> str:
    """A line that says what `read_first` estimates of the training split; empty if nothing. `num_clips` gives the split's size,
    and is called only for an estimate: it reads the manifest.
    """
    objective = experiment.objective
    where, name = "in " + counted(len(experiment.trained_languages), "language"), objective.correspondence.name
    if isinstance(objective.correspondence, LeaveOneOut):
        clips = counted(num_clips(), "clip")
        return f"before the first epoch, {name} estimates which captions of {clips} {where} are right"
    if objective.needs_clean_share and experiment.data.wrong_share == "auto":
        clips = counted(min(num_clips(), SAMPLE), "clip")
        return f"before the first epoch, the share of right captions {where} is estimated by {clips}"
    return ""


class AuditedShare(NamedTuple):
    """A file with the share of wrong captions, written by an audit or by its `--estimate`, and its content."""

    file: Location
    facts: Mapping[str, Any]

    def shares(self, languages: Sequence[str], trained: Sequence[str]) -> list[float]:
        """The share of each language, NaN where it was not audited. ValueError, naming the file, if a trained one was not."""
        path, allowed = f"data.wrong_share: {self.file}", "the share that an audit wrote, from 0 to 1"
        audited = self.facts.get("wrong_share_by_language")
        if "interval_95" in self.facts:
            # `--estimate` has one share for all audited languages.
            audited = {code: {"share": self.facts.get("wrong_share")} for code in self.facts.get("caption_digests", ())}
        if not isinstance(audited, dict):
            raise refuse(path, audited, allowed)
        if missing := [language for language in trained if audited.get(language) is None]:
            raise refuse(path, f"no share of {', '.join(missing)}", "an audit of the trained languages")
        shares = dict.fromkeys(languages, math.nan)
        for language, entry in audited.items():
            if entry is not None:
                share = entry.get("share") if isinstance(entry, dict) else entry
                if not isinstance(share, float | int) or not 0 <= share <= 1:
                    raise refuse(path, share, allowed)
                shares[language] = float(share)
        return [shares[language] for language in languages]


def audit_of_wrong_share(setting: float | str) -> AuditedShare | None:
    """The audit that the setting `data.wrong_share` names; None for a number or `auto`. ValueError if it names no audit."""
    if not isinstance(setting, str) or setting == "auto":
        return None
    file = locate(setting) if setting.endswith(".json") else locate(setting) / "audit.json"
    facts = read_json(file) if file_exists(file) else {}
    if not isinstance(facts, dict) or not {"interval_95", "wrong_share_by_language"} & facts.keys():
        raise refuse(
            "data.wrong_share", setting, "auto, a share below 1, the folder of an audit, or the file of its --estimate"
        )
    return AuditedShare(file, facts)


def wrong_shares(setting: float | str, languages: Sequence[str], trained: Sequence[str]) -> list[float] | None:
    """The share of wrong captions of each language, from the setting `data.wrong_share`; None if it is to be estimated.

    NaN for languages that are neither trained nor audited. ValueError, naming the file, if a trained one was not audited.
    """
    if setting == "auto":
        return None
    audit = audit_of_wrong_share(setting)
    return [float(setting)] * len(languages) if audit is None else audit.shares(languages, trained)


def read_first(
    estimator: Estimator,
    retriever: Retriever,
    captions: TrainingCaptions,
    experiment: Experiment,
    group: WorkerGroup,
    clip_weights: NDArray[np.float64] | None = None,
) -> None:
    """Before the first epoch, estimate the share of true pairs and give the estimator all pairs as vectors, as far as it needs
    them. Neither is done later: towers that have trained on the pairs fit the wrong ones too.

    clip_weights  [N], how often an epoch has each clip; None: all alike. So the share is of the pairs that are trained.
    """
    shares = estimator.clean_shares
    is_share_read = shares is not None and not shares.is_known
    if not is_share_read and not isinstance(estimator, LeaveOneOutEstimator):
        return
    is_asked = None if clip_weights is None else asked_clips(captions, clip_weights)
    # The first worker reads for all.
    reads = what_is_read(experiment, captions) if group.is_first else ""
    if shares is not None and is_share_read:
        with retriever.evaluating(), retriever.equal_calls():
            if group.is_first:
                estimate_clean_shares(shares, retriever, captions, experiment, reads, is_asked)
        # The first one's, so that no worker rounds to another share.
        shares.load_state_dict(group.of_first(shares.state_dict()))
    if isinstance(estimator, LeaveOneOutEstimator):
        read_pairs(estimator, retriever, captions, experiment.trained_languages, group, reads, is_asked)


def what_is_read(experiment: Experiment, captions: TrainingCaptions) -> str:
    """The vectors that pairs are scored by, as in the setting `reads`. `auto` becomes `recordings` if the first weights of the
    towers have trained on more than a few of these clips with their captions, as such towers take wrong pairs for right. A
    warning says so.
    """
    chosen, start = experiment.objective.correspondence, experiment.train.start_from
    reads = chosen.reads if isinstance(chosen, LeaveOneOut) else "auto"
    if start is None or reads == "recordings":
        return reads
    saved = saved_retriever(start, "train.start_from")
    is_frozen = all(experiment.model.encodes_once(kind) for kind in ("audio", "text"))
    # Frozen towers are those of the saved retriever, whose own training may have changed them.
    trained = captions_of_towers(saved) if is_frozen else captions_trained_on(saved)
    which = clips_in_words(captions.features.caption_sample.share_in(trained))
    if not which:
        return reads
    if reads == "auto" and captions.features.holds_frames:
        reads, so = "recordings", "so wrong ones are recognised by the recordings and the captions' words alone"
    else:
        so = "so few of the wrong ones among them will be found; start from weights that were trained on other data"
    logger.warning("train.start_from: %s was trained on %s and takes their captions for right, %s", start, which, so)
    return reads


def asked_clips(captions: TrainingCaptions, clip_weights: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The clips by which the share of true pairs may be estimated, bool [N]: each with a chance in proportion to its weight."""
    drawn = sampling.uniform(captions.features.clip_ids, captions.seed, "clean share weights")
    return np.asarray(drawn < clip_weights / clip_weights.max())


@torch.no_grad()
def estimate_clean_shares(
    shares: CleanShares,
    retriever: Retriever,
    captions: TrainingCaptions,
    experiment: Experiment,
    reads: str,
    is_asked: NDArray[np.bool_] | None = None,
    *,
    most_clips: int = SAMPLE,
) -> None:
    """Estimate the share of true pairs in the trained languages from a sample: for each language at most `most_clips` that have a
    caption in it. `is_asked` [N]: the clips to choose from; None: all. `reads` is the result of `what_is_read`.
    """
    order = sampling.permutation(captions.features.clip_ids, experiment.seed, "clean share")
    order = order if is_asked is None else order[is_asked[order]]
    trained = experiment.trained_languages
    columns = np.flatnonzero(np.isin(captions.languages, trained))
    of_columns = [order[captions.has_caption[order, :, k].any(axis=1)][:most_clips] for k in columns]
    rows = np.unique(np.concatenate(of_columns))
    if len(rows):
        shares.estimate(_readings(reads, retriever, captions, trained, rows), experiment.seed)


@torch.no_grad()
def read_pairs(
    estimator: LeaveOneOutEstimator,
    retriever: Retriever,
    captions: TrainingCaptions,
    trained: Sequence[str],
    group: WorkerGroup,
    reads: str,
    is_asked: NDArray[np.bool_] | None = None,
) -> None:
    """Give the estimator all clips and captions as vectors: the towers' outputs, statistics of recordings and words, or both.
    The first worker does it, so that no worker rounds to another probability.
    """
    with retriever.evaluating(), retriever.equal_calls():
        readings = _readings(reads, retriever, captions, trained) if group.is_first else []
        estimated = estimator.estimate_from(*readings, is_asked=is_asked) if readings else {}
    estimator.take(group.of_first(estimated))
    is_kept = estimated["random_share"] < LEAST_RANDOM if estimated else torch.zeros(0)
    if confused := [captions.languages[k] for k in is_kept.nonzero().flatten().tolist()]:
        logger.warning(
            "leave_one_out: captions in %s that look wrong are not random ones, as where a class is often called by the same "
            "wrong name; which is right cannot be told, so every pair is kept",
            ", ".join(confused),
        )


@torch.no_grad()
def _readings(
    reads: str,
    retriever: Retriever,
    captions: TrainingCaptions,
    trained: Sequence[str],
    rows: NDArray[np.int64] | None = None,
) -> list[PairVectors]:
    """The clips of a training split and their captions in the trained languages, as each kind of vector that `reads` names.

    `rows` [n]: these clips, each with its caption of the first epoch; None: all clips with all of their captions.
    """
    if rows is None:
        N, J, _ = captions.assigned.owner.shape
        rows = np.arange(N)
        batches = [captions.batch(rows, 0, np.full(N, slot)) for slot in range(J)]
    else:
        batches = [captions.batch(rows, 0)]
    masks = [batch.mask & np.isin(captions.languages, list(trained)) for batch in batches]
    indices, texts = [], []
    for batch, mask in zip(batches, masks, strict=True):
        clip, language = np.nonzero(mask)
        indices.append((clip, batch.slots[clip], language))
        texts += [batch.texts[i][k] for i, k in zip(clip, language, strict=True)]
    clips, slots, languages = (np.concatenate(part) for part in zip(*indices, strict=True))
    index = (clips, slots, languages)
    key = numbered([folded(text) for text in texts])
    readings = []
    if reads != "recordings":
        text = _tower_texts(retriever, [batch.texts for batch in batches], masks, captions.languages)
        readings.append(PairVectors(_tower_clips(retriever, captions, rows), text, index, key))
    # Vectors are no recordings: there are the towers alone.
    if reads != "towers" and captions.features.holds_frames:
        statistics = captions.features.statistics_of(rows)
        centred = statistics - statistics.mean(axis=0)
        audio = centred / np.maximum(centred.std(axis=0), LEAST_DEVIATION)
        readings.append(PairVectors(audio, _words(texts, languages), index, key))
    return readings


def _words(texts: Sequence[str], language: NDArray[np.int64]) -> NDArray[np.float32]:
    """The words of the captions, each language with a vocabulary of its own, [M, WORD_DIRECTIONS]."""
    table = np.zeros((len(texts), WORD_DIRECTIONS), np.float32)
    for k in np.unique(language):
        in_language = np.flatnonzero(language == k)
        vectors = word_vectors([texts[row] for row in in_language.tolist()])
        table[in_language, : vectors.shape[1]] = vectors
    return table


def _tower_clips(retriever: Retriever, captions: TrainingCaptions, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """The audio tower's outputs of the clips at `rows`, of unit norm, [n, D]."""
    with retriever.evaluating():
        clips = clip_batches(captions.features, (rows[part] for part in rows_in_parts(0, len(rows), CLIPS)))
        return np.asarray(embed_batches(retriever.of_tower("audio"), clips).float().cpu().numpy())


def _tower_texts(
    retriever: Retriever,
    texts: Sequence[list[list[str]]],
    masks: Sequence[NDArray[np.bool_]],
    languages: Sequence[str],
) -> NDArray[np.float32]:
    """The text tower's outputs of the texts where each mask [n, K] is True, in order, of unit norm, [M, E]."""
    chosen = [
        (of_clips[i][k], languages[k])
        for of_clips, mask in zip(texts, masks, strict=True)
        for i, k in np.argwhere(mask).tolist()
    ]
    once, text_of = distinct(chosen)
    with retriever.evaluating():
        batcher = TextBatcher(retriever.of_tower("text"))
        parts = [batcher.embed(once[start : start + CAPTIONS]) for start in range(0, len(once), CAPTIONS)]
    return np.asarray(torch.cat(parts).float().cpu().numpy()[text_of])


@torch.no_grad()
def embed_with_teachers(
    folders: tuple[str, ...], captions: TrainingCaptions, data: str, home: Path, device: torch.device, store: str = ""
) -> list[TeacherEmbeddings]:
    """Each teacher's embeddings of the training clips [N, D] and of the captions that they have [N, J, K, D].

    `data` is the prepared data set; a teacher takes the features of its own front end, cached under `home` or in the `store`.
    """
    embeddings = []
    for folder in folders:
        retriever = Retriever.from_pretrained(str(saved_retriever(folder, TEACHERS)))
        front_end, in_windows = retriever.audio_tower.front_end, retriever.settings.pools_windows
        root, streamed = cache_folder(home, "features"), captions.features.split if captions.features.source else ""
        if streamed and in_windows and has_long_clips(read_manifest(data), front_end.clip_seconds):
            # Of a clip that is read from its shard there is one window.
            allowed = f"exact with the teacher {folder}, which encodes all windows of clips longer than a window"
            raise refuse("data.order", sampling.IN_SHARDS, allowed)
        frames = ensure_features(
            data, front_end, root, in_windows=in_windows, use_ray=False, store=store, streamed=streamed
        )
        features = open_features(frames, captions.features.split)
        row_of = {clip_id: row for row, clip_id in enumerate(features.clip_ids)}
        order = np.array([row_of[clip_id] for clip_id in captions.features.clip_ids])
        retriever = retriever.to(device)
        batches = clip_batches(features, (order[part] for part in rows_in_parts(0, len(order), CLIPS)))
        embeddings.append(
            TeacherEmbeddings(embed_batches(retriever, batches), _assigned_texts(TextBatcher(retriever), captions))
        )
    return embeddings


def _assigned_texts(texts: TextBatcher, captions: TrainingCaptions) -> Tensor:
    """Embeddings [N, J, K, D] of the captions that the clips have, zeros if there is none."""
    N, J, K = captions.assigned.owner.shape
    table = torch.zeros(N, J, K, texts.retriever.settings.embedding_width, device=texts.retriever.device)
    for rows in rows_in_parts(0, N, max(1, CAPTIONS // (J * K))):
        for slot in range(J):
            batch = captions.batch(rows, 0, np.full(len(rows), slot))
            table[torch.from_numpy(rows), slot] = texts.embed_grid(batch.texts, batch.mask, captions.languages)
    return table
