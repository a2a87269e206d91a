"""Everything that is refused before a run starts since its settings do not go together, or name what is not there."""

from __future__ import annotations

from pathlib import Path

from ray_atr.data.captions import read_caption_file
from ray_atr.data.epoch_order import check_batch_size
from ray_atr.data.noise import Noise
from ray_atr.data.shards import read_manifest
from ray_atr.experiment import Experiment
from ray_atr.models.loading import require_checkpoint
from ray_atr.models.saved import SETTINGS_FILE
from ray_atr.models.tower import checkpoint_of
from ray_atr.objectives import Objective
from ray_atr.objectives.knowledge import Knowledge
from ray_atr.objectives.knowledge.base import KnowledgeBaseObjective
from ray_atr.settings import refuse
from ray_atr.soundscapes import SPLITS
from ray_atr.storage import is_there, locate
from ray_atr.training.correspondence import check_correspondence
from ray_atr.training.languages import check_languages, with_languages
from ray_atr.training.selection import check_metric
from ray_atr.training.trajectory import check_other_run


def check_experiment(experiment: Experiment) -> None:
    """ValueError, naming the setting, if what it names is missing, a batch cannot be filled, or settings exclude each other.

    Reads the manifest only, so that a mistake is found before anything is written or started.
    """
    experiment = with_languages(experiment)
    data = experiment.data
    if data.source == "soundscapes":
        where, splits = "soundscapes", {split: data.soundscapes.num_clips(split) for split in SPLITS}
    else:
        manifest = read_manifest(data.source)
        where, splits = manifest.folder, {split: manifest.num_rows_of(split) for split in manifest.splits}
    check_languages(experiment)
    check_metric(experiment.evaluation.select_by, "evaluation.select_by", data.languages, experiment.trained_languages)
    for setting, split in (("train_split", data.train_split), ("validation_split", data.validation_split)):
        if not splits.get(split):
            how = (
                ""
                if len(splits) > 1
                else " alone; a column split of a table (train, val, test) says where each clip belongs"
            )
            raise ValueError(f"data.{setting}: got {split!r}; {where} has {', '.join(splits)}{how}")
    check_chunks(experiment.objective, experiment.train.language_chunk)
    if experiment.train.distance_to is not None:
        check_other_run(experiment.train.distance_to)
    if experiment.train.start_from is not None:
        check_start(experiment.train.start_from)
    check_base(experiment.objective.knowledge, data.train_split)
    check_interaction(experiment)
    check_correspondence(experiment)
    scaling, batch_size = experiment.scaling, experiment.train.batch_size
    if scaling.validate_beside and not scaling.workers:
        raise refuse("scaling.validate_beside", "true", "false with scaling.workers=0, which uses one process only")
    check_batch_size(splits[data.train_split], batch_size, scaling.most_workers, evenly=not scaling.is_elastic)
    for kind, tower in (("audio", experiment.model.audio), ("text", experiment.model.text)):
        checkpoint = checkpoint_of(tower)
        if checkpoint is not None:
            require_checkpoint(checkpoint, f"model.{kind}.checkpoint")


def check_noise(noise: Noise) -> None:
    """ValueError if a file says which captions are wrong and other settings, which would do nothing, say it as well.

    For new runs: those of earlier versions were trained on what the file says, and go on with it.
    """
    if noise.index is None:
        return
    for name in ("ratio", "kind", "unit"):
        value, default = getattr(noise, name), getattr(Noise(), name)
        if value != default:
            allowed = f"{default} with data.noise.index, whose file alone says which captions are wrong"
            raise refuse(f"data.noise.{name}", value, allowed)


def check_chunks(objective: Objective, language_chunk: int) -> None:
    """ValueError if languages are to be taken some at a time and the objective's loss is no sum over languages."""
    if language_chunk == 0:
        return
    otherwise = "train.embedding_chunk bounds the memory of every objective"
    if not objective.scheme.splits_by_language:
        why = f"0 with objective.scheme={objective.scheme.name}, whose loss is no sum over languages; {otherwise}"
        raise refuse("train.language_chunk", language_chunk, why)
    if objective.knowledge.needs_retrieval:
        why = (
            f"0 with objective.knowledge={objective.knowledge.name}, which retrieves for all texts at once; {otherwise}"
        )
        raise refuse("train.language_chunk", language_chunk, why)


def check_interaction(experiment: Experiment) -> None:
    """ValueError if late interaction meets what is defined for one embedding a clip alone."""
    if experiment.model.interaction == "global":
        return
    knowledge, train = experiment.objective.knowledge, experiment.train
    if knowledge.name not in ("none", "ask"):
        raise refuse("objective.knowledge", knowledge.name, "none, ask with model.interaction=late")
    metric = getattr(experiment.objective.pair, "metric", "euclidean")
    if metric != "euclidean":
        raise refuse("objective.pair.metric", metric, "euclidean with model.interaction=late")
    if experiment.evaluation.ranking == "plan":
        raise refuse("evaluation.ranking", "plan", "learned, cosine with model.interaction=late")
    for name in ("language_chunk", "embedding_chunk"):
        if getattr(train, name):
            raise refuse(f"train.{name}", getattr(train, name), "0 with model.interaction=late")


def check_base(knowledge: Knowledge, split: str) -> None:
    """ValueError if the source of a base is no data set, has no clips in the split, or its caption file cannot be read."""
    if not isinstance(knowledge, KnowledgeBaseObjective):
        return
    if knowledge.source != "train":
        manifest = read_manifest(knowledge.source)
        if not manifest.num_rows_of(split):
            raise ValueError(f"objective.knowledge.source: {manifest.folder} has no split {split!r}")
    if knowledge.captions is not None:
        read_caption_file(Path(knowledge.captions))


def check_start(folder: str) -> None:
    """ValueError unless the folder, or the URL, holds a saved retriever."""
    if not is_there(locate(folder) / SETTINGS_FILE):
        raise refuse(
            "train.start_from", folder, f"the folder of a saved retriever, with a {SETTINGS_FILE} (a trial's best/)"
        )
