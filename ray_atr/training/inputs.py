"""The inputs of a run, prepared once by the driver: data set, cached features, tokeniser, first weights."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import Tokenizer

from ray_atr.common.caches import cache_folder, cache_key, mark_used
from ray_atr.common.digests import DIGESTS_FILE, digest_of
from ray_atr.common.jobs import Resources
from ray_atr.common.progress import Echo, silent
from ray_atr.common.runtime import WORKER_CPU_SHARE, require_on_all_nodes
from ray_atr.common.sampling import IN_SHARDS
from ray_atr.common.settings import counted, refuse
from ray_atr.common.storage import Location, fetched, file_exists, is_local, locate, read_bytes
from ray_atr.data.caption_vectors import open_caption_vectors
from ray_atr.data.feature_cache import ensure_features, has_long_clips, is_complete, long_audio
from ray_atr.data.features import FeatureSet, open_features
from ray_atr.data.noise import Noise
from ray_atr.data.shards import MANIFEST_FILE, Manifest, read_captions, read_manifest, require_complete
from ray_atr.data.soundscapes import ensure_soundscapes
from ray_atr.data.stream import steps_in_shards
from ray_atr.models.adaptation import merge_updates, without_updates
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.retriever import Retriever, build_retriever, require_same_names
from ray_atr.models.text import TOKENIZER_FILE, read_tokenizer, save_tokenizer, train_tokenizer
from ray_atr.models.vectors import AudioVectorsTower, EncodedText
from ray_atr.objectives.correspondence import Teacher
from ray_atr.objectives.correspondence.teacher import TEACHERS
from ray_atr.objectives.knowledge.knowledge import KnowledgeBaseObjective
from ray_atr.training.checks import check_experiment
from ray_atr.training.encoding.frozen import (
    TOWER_FILE,
    FrozenTower,
    complete_checkpoint,
    ensure_audio_vectors,
    ensure_text_vectors,
)
from ray_atr.training.experiment import DataSettings, Experiment, automatic_rate
from ray_atr.training.languages import with_languages
from ray_atr.training.run_folder import saved_retriever

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """Where the inputs of a run are: paths, and the data set's URL if it has one. Picklable, for workers."""

    data: str
    data_hash: str
    features: Path  # log-mel frames, or the vectors of a frozen audio tower
    tokenizer: Path | None
    home: Path
    is_audio_encoded: bool = False
    captions: Path | None = None  # vectors of the captions from a frozen text tower
    data_name: str = ""  # the data set's name in its manifest

    def features_of(self, experiment: Experiment, data: str) -> Path:
        """The features of another data set, of the same kind as these."""
        tower = _frozen_tower("audio", experiment, self.tokenizer, self.home, use_ray=False, echo=silent)
        return _features(experiment, tower, data, is_encoded=self.is_audio_encoded)

    def on_this_node(self, experiment: Experiment) -> Prepared:
        """These inputs on this node; prepared again if its disk lacks them."""
        folders = [self.features, *([] if self.captions is None else [self.captions])]
        if all(map(is_complete, folders)) and (self.tokenizer is None or _is_complete_tokenizer(self.tokenizer)):
            return self
        return prepare(experiment, self.home, use_ray=False, echo=silent)

    @property
    def frozen_weights(self) -> dict[str, Path]:
        """Files with the weights of the towers whose vectors are read, by `audio` and `text`."""
        folders = {"audio": self.features if self.is_audio_encoded else None, "text": self.captions}
        return {kind: folder / TOWER_FILE for kind, folder in folders.items() if folder is not None}

    def first_retriever(self, experiment: Experiment) -> Retriever:
        """The retriever with the weights that a run starts from, the same in every process."""
        retriever = build_retriever(
            experiment.model,
            tokenizer=self.load_tokenizer(),
            seed=experiment.seed,
            learned=experiment.learned,
            ranking=experiment.ranking,
        )
        retriever.languages = tuple(experiment.trained_languages)
        if experiment.train.start_from is not None:
            _start_from(experiment.train.start_from, retriever)
        return retriever

    def reading(self, retriever: Retriever) -> Retriever:
        """A retriever for these inputs: frozen towers whose vectors are cached are replaced by stand-ins; the rest is shared."""
        audio, text = retriever.audio_tower, retriever.text_tower
        return retriever.with_towers(
            AudioVectorsTower(audio.front_end, audio.width) if self.is_audio_encoded else audio,
            text if self.captions is None else EncodedText(text, open_caption_vectors(self.captions)),
        )

    def digests(self, experiment: Experiment) -> dict[str, str]:
        """A digest of what settings name besides the data set and training reads to its end, by the setting. What another tool
        saved, without a list of digests, counts as unchanged.
        """
        knowledge, correspondence = experiment.objective.knowledge, experiment.objective.correspondence
        index, start = experiment.data.noise.index, experiment.train.start_from
        files: dict[str, list[Location]] = {"data.noise.index": [] if index is None else [locate(index)]}
        found = {}
        if isinstance(knowledge, KnowledgeBaseObjective):
            files["objective.knowledge.captions"] = [] if knowledge.captions is None else [locate(knowledge.captions)]
            if knowledge.source != "train":
                found["objective.knowledge.source"] = read_manifest(knowledge.source).hash
        if isinstance(correspondence, Teacher):
            files[TEACHERS] = [saved_retriever(folder, TEACHERS) / DIGESTS_FILE for folder in correspondence.teachers]
        if start is not None:
            saved = saved_retriever(start, "train.start_from")
            # All weights but those of frozen towers are in a checkpoint.
            files["train.start_from"] = [saved / DIGESTS_FILE] if self.frozen_weights else []
            files["train.start_from"] += [] if self.tokenizer is None else [saved / "text" / TOKENIZER_FILE]
        for path, of_path in files.items():
            if present := list(filter(file_exists, of_path)):
                found[path] = digest_of(b"".join(map(read_bytes, present)))
        return found

    def load_tokenizer(self) -> Tokenizer | None:
        """The tokeniser trained on the training captions; None for text towers that bring their own."""
        return None if self.tokenizer is None else read_tokenizer(self.tokenizer)


def _start_from(folder: str, retriever: Retriever) -> None:
    """Give the retriever the weights of a saved one.

    Learned values of the objective that the saved one lacks keep their first values. Low-rank updates go on if both have the
    same kind; else the saved ones become part of the weights, and new ones begin at zero. ValueError if the towers or projections
    differ.
    """
    saved = Retriever.from_pretrained(str(saved_retriever(folder, "train.start_from")))
    for tower, of_saved, own in (
        (saved.audio_tower, saved.settings.audio, retriever.settings.audio),
        (saved.text_tower, saved.settings.text, retriever.settings.text),
    ):
        if of_saved.adapt.updates != own.adapt.updates:
            merge_updates(tower, of_saved.adapt)
    mine = retriever.state_dict()
    names = without_updates({name: name for name in mine})
    new = {name: mine[name] for name in mine.keys() - names.values()}
    theirs = {**new, **{names.get(name, name): value for name, value in saved.state_dict().items()}}
    both = {name for name in mine.keys() & theirs.keys() if mine[name].shape == theirs[name].shape}
    shapes = [{name: tuple(value.shape) for name, value in state.items()} for state in (mine, theirs)]
    require_same_names("train.start_from", folder, *shapes)
    retriever.languages = tuple(dict.fromkeys([*retriever.languages, *saved.languages])) if saved.languages else ()
    retriever.trained_captions = saved.trained_captions
    retriever.load_state_dict({**mine, **{name: theirs[name] for name in both if name != "learned.num_steps"}})


def preparation_key(experiment: Experiment) -> tuple[DataSettings, ModelSettings, str | None, int | None]:
    """The settings that `prepare` depends on: the data without its noise, the model, what training starts from, and the seed if
    it draws weights of a frozen tower.
    """
    model, start = experiment.model, experiment.train.start_from
    towers = ("audio", model.audio), ("text", model.text)
    is_drawn = any(model.encodes_once(kind) and complete_checkpoint(tower) is None for kind, tower in towers)
    seed = experiment.seed if start is None and is_drawn else None
    return replace(experiment.data, noise=Noise()), model, start, seed


def prepare(experiment: Experiment, home: Path, *, use_ray: bool = True, echo: Echo = print) -> Prepared:
    """The data set, its cached features and the tokeniser of an experiment, made if missing; `echo` gets lines about it.

    Raises ValueError, naming the setting, if the data set is missing or lacks a language or split.
    """
    experiment = with_languages(experiment)
    check_experiment(experiment)
    if experiment.data.source == "soundscapes":
        folder = str(ensure_soundscapes(experiment.data.soundscapes, home / "data", echo=echo))
    else:
        folder = str(locate(experiment.data.source, keeps_links=True))
    if use_ray and is_local(locate(folder)):
        name = "RAY_ATR_HOME" if experiment.data.source == "soundscapes" else "data.source"
        require_on_all_nodes(name, Path(folder), Path(folder) / MANIFEST_FILE)
    manifest = read_manifest(folder)
    tokenizer = _tokenizer(experiment, manifest, home)
    if experiment.train.learning_rate == "auto":
        rate, reason = automatic_rate(experiment.model)
        echo(f"train.learning_rate: {rate:g}, chosen by auto because {reason}")
    for kind, reason in experiment.model.encoded_each_batch.items():
        echo(f"the frozen {kind} tower encodes every batch again: {reason}")
    if cut := _audio_cut(experiment, manifest):
        echo(cut)
    for line in _smaller_base(experiment, manifest):
        echo(line)
    is_audio_encoded = experiment.model.encodes_once("audio")
    audio, text = (_frozen_tower(kind, experiment, tokenizer, home, use_ray, echo) for kind in ("audio", "text"))
    features = _features(experiment, audio, folder, is_encoded=is_audio_encoded)
    captions = None
    if experiment.model.encodes_once("text"):
        captions = ensure_text_vectors(text, folder, experiment.data.languages)
    if experiment.data.order == IN_SHARDS:
        echo(_epoch_in_shards(experiment, open_features(features, experiment.data.train_split)))
    return Prepared(
        data=folder,
        data_hash=manifest.hash,
        features=features,
        tokenizer=tokenizer,
        home=home,
        is_audio_encoded=is_audio_encoded,
        captions=captions,
        data_name=manifest.name,
    )


def _smaller_base(experiment: Experiment, manifest: Manifest) -> Iterator[str]:
    """A line for each setting of a knowledge base that is larger than its number of entries."""
    knowledge = experiment.objective.knowledge
    if not isinstance(knowledge, KnowledgeBaseObjective):
        return
    # Another data set's entries are not the training clips' own, so none of them is excluded.
    is_own = knowledge.source == "train"
    source = manifest if is_own else read_manifest(knowledge.source)
    entries = source.num_rows_of(experiment.data.train_split)
    for name, most in (("prototypes", entries), ("neighbours", entries - (is_own and knowledge.exclude_own))):
        if (asked := getattr(knowledge, name, 0)) > most:
            yield f"objective.knowledge.{name}: {asked:,} asked for, {most:,} taken: the base has {entries:,} clips"


def _epoch_in_shards(experiment: Experiment, features: FeatureSet) -> str:
    """A line about the size of an epoch in the order of the shards. ValueError if it has no clips."""
    data, batch_size = experiment.data, experiment.train.batch_size
    steps = steps_in_shards(features.groups, batch_size, data.order_parts)
    return (
        f"data.order=shards: an epoch is {counted(steps, 'step')}, {steps * batch_size:,} of {len(features):,} clips; "
        f"their audio is read from {features.source}, and no features are kept"
    )


def _audio_cut(experiment: Experiment, manifest: Manifest) -> str:
    """A line about clips that the model cuts; empty if it uses all of the audio."""
    seconds = experiment.model.audio.front_end.clip_seconds
    if experiment.model.pools_windows or not has_long_clips(manifest, seconds):
        return ""
    clips, seconds_beyond = long_audio(manifest, seconds)
    share = f"{seconds_beyond / manifest.seconds:.1%} of the audio is not heard"
    return f"{counted(clips, 'clip is', 'clips are')} longer than {seconds:g} s and cut: {share} (model.windows=cut)"


def _frozen_tower(
    kind: str, experiment: Experiment, tokenizer: Path | None, home: Path, use_ray: bool, echo: Echo
) -> FrozenTower:
    scaling = experiment.scaling
    encoder = Resources(
        scaling.cpus_per_worker * WORKER_CPU_SHARE,
        # Trials may share a GPU; encoders, each with its own tower, do not.
        float(math.ceil(scaling.gpus_per_worker)),
        setting="scaling.cpus_per_worker, scaling.gpus_per_worker",
    )
    store, model, seed = scaling.feature_store, experiment.model, experiment.seed
    start = experiment.train.start_from
    saved = None if start is None else saved_retriever(start, "train.start_from")
    return FrozenTower(kind, model, seed, tokenizer, home, store, encoder, use_ray, echo, saved)


def _features(experiment: Experiment, tower: FrozenTower, data: str, *, is_encoded: bool) -> Path:
    """A data set's features, made now if they are absent: log-mel frames, or the vectors of the frozen audio tower."""
    if is_encoded:
        return ensure_audio_vectors(tower, data)
    model, settings = experiment.model, experiment.data
    return ensure_features(
        data,
        model.audio.front_end,
        cache_folder(tower.home, "features"),
        in_windows=model.pools_windows,
        use_ray=tower.use_ray,
        echo=tower.echo,
        store=tower.store,
        streamed=settings.train_split if settings.order == IN_SHARDS else "",
    )


def _tokenizer(experiment: Experiment, manifest: Manifest, home: Path) -> Path | None:
    """The tokeniser, trained on the training captions and cached by content; None for towers that have their own."""
    data, text = experiment.data, experiment.model.text
    if not text.trained_vocabulary:
        return None
    if experiment.train.start_from is not None:
        # The saved embeddings are of the saved tokeniser's tokens.
        with fetched(saved_retriever(experiment.train.start_from, "train.start_from")) as copy:
            file = Path(copy) / "text" / TOKENIZER_FILE
            if not file.is_file():
                allowed = f"a retriever with the same towers; it has no tokeniser of {text.name}"
                raise refuse("train.start_from", experiment.train.start_from, allowed)
            saved = file.read_bytes()
        return _cached_tokenizer(home, saved, lambda: saved)
    content = json.dumps([manifest.hash, data.languages, data.train_split, text.trained_vocabulary])

    def trained() -> bytes:
        for shard in manifest.shards_of(data.train_split):
            require_complete(manifest, shard)
        clips = read_captions(manifest, data.train_split)
        captions = (caption for clip in clips for code in data.languages for caption in clip.captions.get(code) or ())
        return train_tokenizer(captions, text.trained_vocabulary).to_str().encode()

    return _cached_tokenizer(home, content.encode(), trained)


def _cached_tokenizer(home: Path, key: bytes, make: Callable[[], bytes]) -> Path:
    """The file of a tokeniser, named by the hash of its key; made if it is missing or damaged."""
    path = cache_folder(home, "tokenizers") / f"{cache_key(None, key)}.json"
    if not _is_complete_tokenizer(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_tokenizer(Tokenizer.from_buffer(make()), path)
    return path


def _is_complete_tokenizer(path: Path) -> bool:
    """Whether a tokeniser can be read."""
    try:
        if not path.is_file():
            return False
        read_tokenizer(path)
        mark_used(path)
        return True
    except ValueError as error:
        logger.warning("%s; it is made again", error)
        return False
