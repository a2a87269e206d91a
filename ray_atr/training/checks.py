"""Checks before a run starts: settings that exclude each other, or that name something that does not exist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from ray_atr.common.sampling import IN_SHARDS, num_weighted
from ray_atr.common.settings import nearest, refuse
from ray_atr.data.caption_digests import caption_digests
from ray_atr.data.caption_vectors import check_kind, clip_width, has_vectors
from ray_atr.data.captions import read_caption_file
from ray_atr.data.feature_cache import has_long_clips
from ray_atr.data.noise import BLOCKS, Noise, read_index
from ray_atr.data.row_groups import row_group_sizes
from ray_atr.data.shards import Manifest, read_captions, read_manifest
from ray_atr.data.soundscapes import SPLITS, SoundscapesSettings, described
from ray_atr.data.stream import check_batch_size, check_parts, steps_in_shards
from ray_atr.metrics import evaluate_languages
from ray_atr.metrics.measures import measure
from ray_atr.metrics.metric import TRAINED, Metric
from ray_atr.models.augment import CLIP_MEAN, ZERO_AFTER_NORM
from ray_atr.models.outline import check_start, check_towers, check_weights
from ray_atr.models.tower import checkpoint_of
from ray_atr.models.vectors import AudioVectors, TextVectors
from ray_atr.models.weights import reads_vectors, require_checkpoint
from ray_atr.objectives import Objective
from ray_atr.objectives.correspondence import Teacher
from ray_atr.objectives.correspondence.consensus import Consensus
from ray_atr.objectives.correspondence.teacher import TEACHERS
from ray_atr.objectives.knowledge import KNOWLEDGE, Knowledge
from ray_atr.objectives.knowledge.knowledge import KnowledgeBaseObjective
from ray_atr.objectives.knowledge.moco import Moco
from ray_atr.objectives.pairs import M2M, LearningToMatch
from ray_atr.training.correspondence import audit_of_wrong_share, check_correspondence
from ray_atr.training.experiment import AUTO, Experiment, parse_weights
from ray_atr.training.knowledge_base.parts import SEARCHED_IN_PARTS
from ray_atr.training.languages import check_languages, check_validated, with_languages
from ray_atr.training.run_folder import saved_retriever
from ray_atr.training.trajectory import check_other_run


def check_experiment(experiment: Experiment) -> None:
    """ValueError, naming the setting, if what it names is missing, a batch cannot be filled, or settings exclude each other.

    It reads manifests, and of other files what the settings need: captions (for a noise index, an audit, `consensus` or labels),
    heads of shards, configurations and heads of checkpoints. Nothing is written or started.
    """
    experiment = with_languages(experiment)
    data, splits = experiment.data, split_sizes(experiment)
    manifest = None if data.source == "soundscapes" else read_manifest(data.source)
    where = data.source if manifest is None else manifest.folder
    check_languages(experiment, manifest)
    check_selection(
        experiment.evaluation.select_by, "evaluation.select_by", data.languages, experiment.trained_languages
    )
    if manifest is not None:
        check_inputs(experiment, manifest)
        check_validated(experiment, manifest)
    for setting, split in (("train_split", data.train_split), ("validation_split", data.validation_split)):
        if not splits.get(split):
            alone = " alone; a column split of a table (train, val, test) says where each clip belongs"
            has = ", ".join(splits) + (alone if len(splits) <= 1 else "")
            raise ValueError(f"data.{setting}: got {split!r}; {where} has {has}{nearest(split, splits)}")
    if experiment.evaluation.relevance == "label" and manifest is not None:
        check_labels(experiment, manifest)
    check_index(experiment)
    check_chunks(experiment.objective, experiment.train.language_chunk)
    if experiment.train.distance_to is not None:
        check_other_run(experiment.train.distance_to)
    if (start := experiment.train.start_from) is not None:
        check_start(experiment.model, saved_retriever(start, "train.start_from"), "train.start_from", start)
    check_base(
        experiment.objective.knowledge,
        data.train_split,
        of_vectors=manifest is not None and has_vectors(manifest.folder),
    )
    check_base_shards(experiment)
    experiment.objective.knowledge.check_pair(experiment.objective.pair)
    check_interaction(experiment)
    if experiment.train.embedding_chunk and getattr(experiment.model.audio, "trains_batch_norms", False):
        allowed = "0 with model.audio.trains_batch_norms: clips in chunks would have the statistics of their chunk"
        raise refuse("train.embedding_chunk", experiment.train.embedding_chunk, allowed)
    augment, audio = experiment.model.augment, experiment.model.audio
    if augment.fill == ZERO_AFTER_NORM and not audio.blanks_after_norm:
        raise refuse("model.augment.fill", augment.fill, f"{CLIP_MEAN} with model.audio={audio.name}")
    check_correspondence(experiment)
    check_wrong_share(experiment)
    if isinstance(experiment.objective.correspondence, Consensus):
        is_trained = np.isin(data.languages, experiment.trained_languages)
        of_clips = _training_counts(experiment)[:, is_trained].sum(axis=1)
        experiment.objective.correspondence.require_several(int(of_clips.max(initial=0)))
    scaling, batch_size = experiment.scaling, experiment.train.batch_size
    if scaling.validate_beside and scaling.workers == 0:
        raise refuse("scaling.validate_beside", "true", "false with scaling.workers=0, which uses one process only")
    check_batch_size(splits[data.train_split], batch_size, scaling.most_workers, evenly=not scaling.is_elastic)
    check_order(experiment, manifest)
    check_sharding(experiment)
    check_parts_named(experiment, manifest)
    if data.order == IN_SHARDS and manifest is not None:
        check_row_groups(experiment, manifest)
    for kind, tower in (("audio", experiment.model.audio), ("text", experiment.model.text)):
        checkpoint = checkpoint_of(tower)
        if checkpoint is not None:
            require_checkpoint(checkpoint, f"model.{kind}.checkpoint", tower.checkpoint_files)
            check_weights(tower)
    check_towers(experiment.model)


def check_inputs(experiment: Experiment, manifest: Manifest) -> None:
    """ValueError if the audio tower, or a teacher, is of vectors and the data set of audio, or the other way round."""
    audio, correspondence = experiment.model.audio, experiment.objective.correspondence
    # A front end may be in a file of the checkpoint, and is read for a data set of vectors alone.
    of_vectors = isinstance(audio, AudioVectors) or (has_vectors(manifest.folder) and audio.front_end.kind == "vector")
    check_kind(manifest.folder, "model.audio", audio.name, reads_vectors=of_vectors)
    if isinstance(audio, AudioVectors) and has_vectors(manifest.folder):
        width = clip_width(manifest.folder)
        if audio.width != width:
            raise refuse(
                "model.audio.width", audio.width, f"{width}, the numbers of a clip's vector in {manifest.folder}"
            )
    if isinstance(correspondence, Teacher):
        for folder in correspondence.teachers:
            teacher = saved_retriever(folder, TEACHERS)
            check_kind(manifest.folder, TEACHERS, folder, reads_vectors=reads_vectors(teacher))


def check_labels(experiment: Experiment, manifest: Manifest) -> None:
    """ValueError if a split that is measured by label has no labels."""
    for split in (experiment.data.validation_split, experiment.data.test_split):
        if manifest.num_rows_of(split) and not _has_labels(manifest.folder, manifest.hash, split):
            allowed = f"clip: no clip of split {split} of {manifest.folder} has labels"
            raise refuse("evaluation.relevance", "label", allowed)


def check_order(experiment: Experiment, manifest: Manifest | None) -> None:
    """ValueError for `data.order=shards` with settings that need cached features, or parts that do not divide the batch."""
    data, scaling = experiment.data, experiment.scaling
    if data.order != IN_SHARDS:
        return
    if experiment.model.audio.front_end.kind == "vector" or experiment.model.encodes_once("audio"):
        raise refuse("data.order", data.order, "exact where a clip is a vector: vectors are small, and kept")
    if scaling.feature_store:
        raise refuse("data.order", data.order, "exact with scaling.feature_store, which keeps the features")
    seconds = experiment.model.audio.front_end.clip_seconds
    if experiment.model.pools_windows and manifest is not None and has_long_clips(manifest, seconds):
        raise refuse("data.order", data.order, "exact, or model.windows=cut, with clips longer than a window")
    if scaling.is_elastic:
        raise refuse("data.order", data.order, "exact with a range of scaling.workers")
    check_parts(experiment.train.batch_size, data.order_parts, scaling.most_workers)


def check_row_groups(experiment: Experiment, manifest: Manifest) -> None:
    """ValueError for a data set with too few row groups for `data.order=shards`. Files are opened only if shards, which are no
    smaller than their row groups, are too few as well.
    """
    data, shards = experiment.data, manifest.shards_of(experiment.data.train_split)

    def require_steps(sizes: Sequence[int]) -> None:
        steps_in_shards(np.repeat(np.arange(len(sizes)), sizes), experiment.train.batch_size, data.order_parts)

    try:
        require_steps([shard.num_rows for shard in shards])
    except ValueError:
        require_steps(_row_groups_of(manifest.folder, manifest.hash, data.train_split))


def check_parts_named(experiment: Experiment, manifest: Manifest | None) -> None:
    """ValueError if weights or noise name no part of the data set, or do not go with the order or kind of noise."""
    data, named = experiment.data, {"data.weights": list(parse_weights(experiment.data.weights))}
    named["data.noise.parts"] = list(data.noise.parts)
    if not any(named.values()):
        return
    parts = Counter[str]()
    for shard in () if manifest is None else manifest.shards_of(data.train_split):
        if shard.part:
            parts[shard.part] += shard.num_rows
    for path, names in named.items():
        for name in names:
            if name not in parts:
                # A part whose clips are all left out, or in other splits, has none to weigh or to make wrong.
                has = f"one of its parts with clips in {data.train_split}: {', '.join(parts)}"
                allowed = has if parts else "unset: the data set was not joined of several"
                raise refuse(path, name, allowed, nearest(name, parts))
    if named["data.weights"] and data.order == IN_SHARDS:
        raise refuse(
            "data.weights", data.weights, f"unset with data.order={data.order}, which goes through whole shards"
        )
    if named["data.weights"] and data.captions_per_epoch == "one":
        weights = parse_weights(data.weights)
        of_parts = np.array([weights.get(part, 1.0) for part in parts])
        drawn = num_weighted(np.repeat(np.arange(len(parts)), list(parts.values())), of_parts)
        if drawn < experiment.train.batch_size:
            allowed = (
                f"weights that give an epoch a batch of train.batch_size = {experiment.train.batch_size} clips or more"
            )
            raise refuse("data.weights", data.weights, f"{allowed}; these give it {drawn}")
    if data.noise.parts and data.noise.kind in BLOCKS:
        allowed = f"unset with data.noise.kind={data.noise.kind}, which takes consecutive clips"
        raise refuse("data.noise.parts", data.noise.parts, allowed)


def split_sizes(experiment: Experiment) -> dict[str, int]:
    """The number of clips of each split of the data set, from its manifest or, for the synthetic one, from its settings."""
    data = experiment.data
    if data.source == "soundscapes":
        return {split: data.soundscapes.num_clips(split) for split in SPLITS}
    manifest = read_manifest(data.source)
    return {split: manifest.num_rows_of(split) for split in manifest.splits}


def check_index(experiment: Experiment) -> None:
    """ValueError if `data.noise.index` is set together with settings that it replaces, or if its file is missing or does not fit
    the captions of the training split.
    """
    noise = experiment.data.noise
    if noise.index is None:
        return
    for name in ("ratio", "kind", "unit", "parts"):
        value, default = getattr(noise, name), getattr(Noise(), name)
        if value != default:
            allowed = f"{default} with data.noise.index, whose file alone says which captions are wrong"
            raise refuse(f"data.noise.{name}", value, allowed)
    counts = _training_counts(experiment)
    read_index(noise.index, counts, max(1, int(counts.max(initial=0))))


def _training_counts(experiment: Experiment) -> NDArray[np.int64]:
    """Captions of each training clip in each language, [N, K]."""
    return _counts_of(*_training_split(experiment), experiment.data.languages)


def _training_split(experiment: Experiment) -> tuple[str | SoundscapesSettings, str, str]:
    """(its source, the source's hash, its name); the hash is empty for the synthetic data set."""
    data = experiment.data
    source = data.soundscapes if data.source == "soundscapes" else data.source
    return source, read_manifest(source).hash if isinstance(source, str) else "", data.train_split


# Cached, as a sweep checks each of its points, which share a few data sets.
@lru_cache(maxsize=8)
def _counts_of(
    source: str | SoundscapesSettings, digest: str, split: str, languages: tuple[str, ...]
) -> NDArray[np.int64]:
    """Captions of each clip in each language, [N, K], in a data set with this hash."""
    clips = _captions_of(source, split)
    return np.array([[len(captions.get(code) or ()) for code in languages] for _, captions in clips], np.int64)


@lru_cache(maxsize=8)
def _has_labels(source: str, digest: str, split: str) -> bool:
    """Whether a clip of a split has a label, in a data set with this hash."""
    return any(clip.labels for clip in read_captions(read_manifest(source), split))


@lru_cache(maxsize=8)
def _row_groups_of(source: str, digest: str, split: str) -> list[int]:
    """The sizes of a split's row groups, in a data set with this hash."""
    manifest = read_manifest(source)
    return [size for shard in manifest.shards_of(split) for size in row_group_sizes(manifest, shard)]


@lru_cache(maxsize=8)
def _digests_of(source: str | SoundscapesSettings, digest: str, split: str) -> Mapping[str, str]:
    """The digests of the captions of a split by language, in a data set with this hash."""
    clips = _captions_of(source, split)
    return caption_digests(
        (clip_id, language, text)
        for clip_id, captions in clips
        for language, texts in captions.items()
        for text in texts
        if text
    )


def _captions_of(source: str | SoundscapesSettings, split: str) -> Iterator[tuple[str, Mapping[str, Sequence[str]]]]:
    """Each clip's id and captions by language. The synthetic data set is described without rendering it."""
    if isinstance(source, str):
        yield from ((clip.clip_id, clip.captions) for clip in read_captions(read_manifest(source), split))
    else:
        for place in range(source.num_clips(split)):
            yield source.clip_id(split, place), described(place, split, source)[0]


def check_wrong_share(experiment: Experiment) -> None:
    """ValueError if `data.wrong_share` is an audit of other captions than the training captions.

    The audit must be of the same data set and split, or of one with the same captions of each clip in the trained languages.
    A number is not checked.
    """
    data, trained = experiment.data, experiment.trained_languages
    audit = audit_of_wrong_share(data.wrong_share)
    if audit is None:
        return
    audit.shares(data.languages, trained)
    path, number = f"data.wrong_share: {audit.file}", "; or the share as a number"
    if data.noise.is_injected:
        allowed = f"no data.noise, whose wrong captions are in no audit{number}"
        raise refuse(path, "an audit", allowed)
    if any(weight != 1 for weight in parse_weights(data.weights).values()):
        allowed = f"no data.weights, by which another share of the trained captions is wrong than of all{number}"
        raise refuse(path, "an audit", allowed)
    source, digest, split = _training_split(experiment)
    if digest and audit.facts.get("data_hash") == digest and audit.facts.get("split", split) == split:
        return
    audited, digests = audit.facts.get("caption_digests", {}), _digests_of(source, digest, split)
    others = [language for language in trained if audited.get(language) != digests.get(language)]
    if others:
        got = f"an audit of other captions ({', '.join(others)}) than those of {data.source}, split {split}"
        raise refuse(path, got, f"an audit of the captions that are trained{number}")


def check_sharding(experiment: Experiment) -> None:
    """ValueError for `scaling.shard_towers` with something that needs complete towers in one process."""
    scaling, train = experiment.scaling, experiment.train
    if not scaling.shard_towers:
        return
    set_ = "with scaling.shard_towers"
    model = experiment.model
    are_vectors = isinstance(model.audio, AudioVectors), isinstance(model.text, TextVectors)
    if all(model.encodes_once(kind) or are for kind, are in zip(("audio", "text"), are_vectors, strict=True)):
        allowed = (
            "false where both towers are read as vectors (frozen, or a data set of vectors): nothing is left to shard"
        )
        raise refuse("scaling.shard_towers", "true", allowed)
    if isinstance(experiment.objective.knowledge, Moco):
        names = ", ".join(name for name in KNOWLEDGE if name != "moco")
        raise refuse(
            "objective.knowledge", "moco", f"{names} {set_}: MoCo's momentum encoders are a copy of the towers"
        )
    if train.distance_to is not None:
        raise refuse("train.distance_to", train.distance_to, f"none {set_}: another run's towers would not be sharded")
    if scaling.validate_beside:
        raise refuse("scaling.validate_beside", "true", f"false {set_}: the other process would hold complete towers")
    if 0 < scaling.gpus_per_worker <= 0.5:
        allowed = f"0, or more than 0.5, {set_}: workers on one GPU have nothing to spread"
        raise refuse("scaling.gpus_per_worker", scaling.gpus_per_worker, allowed)
    for kind, tower in (("audio", experiment.model.audio), ("text", experiment.model.text)):
        if tower.name == "sentence_transformers" and not experiment.model.encodes_once(kind):
            raise refuse(f"model.{kind}", tower.name, f"another, or this without late interaction and augment, {set_}")
        if tower.adapt.compile:
            raise refuse(f"model.{kind}.adapt.compile", "true", f"false {set_}")


def check_chunks(objective: Objective, language_chunk: int) -> None:
    """ValueError for a `train.language_chunk` with an objective whose loss is no sum over languages."""
    if language_chunk == 0:
        return
    why = ""
    if not objective.scheme.splits_by_language:
        why = f"objective.scheme={objective.scheme.name}, whose loss is no sum over languages"
    elif objective.knowledge.needs_retrieval:
        why = f"objective.knowledge={objective.knowledge.name}, which retrieves for all texts at once"
    if why:
        allowed = f"0 with {why}; train.embedding_chunk bounds the memory of every objective"
        raise refuse("train.language_chunk", language_chunk, allowed)


def check_interaction(experiment: Experiment) -> None:
    """ValueError for late interaction with settings that need one embedding for each clip."""
    if not experiment.model.is_late:
        return
    knowledge, train = experiment.objective.knowledge, experiment.train
    if knowledge.name not in ("none", "ask"):
        raise refuse("objective.knowledge", knowledge.name, "none, ask with model.interaction=late")
    pair = experiment.objective.pair
    if isinstance(pair, M2M):
        raise refuse("objective.pair", pair.name, "a loss of the similarities alone with model.interaction=late")
    if isinstance(pair, LearningToMatch) and pair.metric != "euclidean":
        raise refuse("objective.pair.metric", pair.metric, "euclidean with model.interaction=late")
    if experiment.evaluation.ranking == "plan":
        raise refuse("evaluation.ranking", "plan", "learned, cosine with model.interaction=late")
    for name in ("language_chunk", "embedding_chunk"):
        if getattr(train, name):
            raise refuse(f"train.{name}", getattr(train, name), "0 with model.interaction=late")


def check_base(knowledge: Knowledge, split: str, *, of_vectors: bool) -> None:
    """ValueError if the source of a base is no data set, or of another kind than the trained one, has no clips in the split, or
    its caption file cannot be read.
    """
    if not isinstance(knowledge, KnowledgeBaseObjective):
        return
    if knowledge.source != "train":
        manifest = read_manifest(knowledge.source)
        check_kind(manifest.folder, "objective.knowledge.source", knowledge.source, reads_vectors=of_vectors)
        if not manifest.num_rows_of(split):
            raise ValueError(f"objective.knowledge.source: {manifest.folder} has no split {split!r}")
    if knowledge.captions is not None:
        read_caption_file(knowledge.captions)


def check_base_shards(experiment: Experiment) -> None:
    """ValueError for a `scaling.base_shards` that would find other neighbours, or that no worker would search."""
    scaling, knowledge = experiment.scaling, experiment.objective.knowledge
    if scaling.least_shards == 1:
        return
    if why := undividable(experiment):
        raise refuse("scaling.base_shards", scaling.base_shards, f"auto or 1 with {why}")
    if scaling.workers != AUTO and scaling.least_shards > scaling.most_workers:
        allowed = f"at most scaling.workers ({scaling.workers}), each of which searches one part"
        raise refuse("scaling.base_shards", scaling.base_shards, allowed)
    if isinstance(knowledge, KnowledgeBaseObjective) and knowledge.index == "auto":
        split, source = experiment.data.train_split, knowledge.source
        sizes = split_sizes(experiment)
        entries = sizes[split] if source == "train" else read_manifest(source).num_rows_of(split)
        if not is_searched_in_parts(knowledge, entries):
            allowed = f"auto or 1 with {entries:,} entries, which index=auto searches by ivf: set objective.knowledge.index exact"
            raise refuse("scaling.base_shards", scaling.base_shards, allowed)


def undividable(experiment: Experiment) -> str:
    """Why the experiment's base cannot be divided into parts; empty if it can."""
    knowledge, scaling = experiment.objective.knowledge, experiment.scaling
    if not isinstance(knowledge, KnowledgeBaseObjective):
        queue = "every worker has the whole queue, which it fills from each batch"
        return f"objective.knowledge={knowledge.name}: {queue}" if knowledge.needs_retrieval else ""
    if knowledge.index not in ("auto", *SEARCHED_IN_PARTS):
        return f"objective.knowledge.index={knowledge.index}, whose lists or graph would find other neighbours in parts"
    if scaling.encoders:
        return f"scaling.encoders={scaling.encoders}: each part is encoded by the process that holds it"
    return ""


def is_searched_in_parts(knowledge: Knowledge, entries: int) -> bool:
    """Whether parts of a base with so many entries find the same neighbours as the base in one part."""
    assert isinstance(knowledge, KnowledgeBaseObjective), "a base"
    return knowledge.index in SEARCHED_IN_PARTS or (knowledge.index == "auto" and entries <= knowledge.exact_up_to)


# Cached, as each trial of a sweep is checked; eight languages take a hundredth of a second.
@lru_cache
def measured_names(languages: tuple[str, ...], trained: frozenset[str] | None = None) -> tuple[Metric, ...]:
    """The metrics of a validation in these languages, as `evaluate_languages` returns them."""
    vectors = torch.eye(4)
    metrics = evaluate_languages(vectors, dict.fromkeys(languages, vectors), torch.arange(4), trained=trained)
    return tuple(sorted(metrics))


def check_metric(metric: str, path: str, languages: Sequence[str], trained: Collection[str] | None = None) -> None:
    """ValueError for a metric that a validation in these languages lacks, with the nearest one and the parts of all names."""
    names = measured_names(tuple(languages), None if trained is None else frozenset(trained))
    if metric not in names:
        # The parts of the names: all names are too many for an error.
        by_language = [name for name in names if name.language == TRAINED]
        tasks = ", ".join(dict.fromkeys(name.task for name in by_language))
        measures = ", ".join(dict.fromkeys(name.name for name in by_language))
        groups = ", ".join(("trained, or unseen", "mean", *languages))
        allowed = f"text_to_audio/trained/recall_at_1 and the like: {tasks}; {groups}; {measures}"
        raise refuse(path, metric, allowed, nearest(metric, names))


def check_selection(metric: str, path: str, languages: Sequence[str], trained: Collection[str] | None = None) -> None:
    """ValueError for a metric that cannot choose the best epoch: one that a validation lacks, or one whose larger value is not
    better.
    """
    check_metric(metric, path, languages, trained)
    if not measure(Metric.parse(metric).name).is_higher_better:
        raise refuse(path, metric, "a metric whose larger value is better, such as recall_at_1")
