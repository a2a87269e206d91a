"""What a run needs before its first step, made once by the driver: data set, cached features, tokeniser."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from ray_atr.data.caption_vectors import open_caption_vectors
from ray_atr.data.plan import check_batch_size
from ray_atr.data.shards import Manifest, open_folder, read_captions, read_manifest
from ray_atr.data.soundscapes import SPLITS, ensure_soundscapes
from ray_atr.experiment import Experiment
from ray_atr.models.encoded import EncodedAudio, EncodedText
from ray_atr.models.loading import require_checkpoint
from ray_atr.models.retriever import Retriever
from ray_atr.models.text.tokenizer import train_tokenizer
from ray_atr.override import flatten
from ray_atr.storage import write_bytes
from ray_atr.training.base_source import check_base
from ray_atr.training.chunks import check_chunks
from ray_atr.training.diagnostics import check_other_run
from ray_atr.training.encode_once import (
    TOWER_FILE,
    FrozenTower,
    encodes_once,
    ensure_audio_vectors,
    ensure_log_mel,
    ensure_text_vectors,
    why_encoded_anew,
)
from ray_atr.training.local import check_interaction

Say = Callable[[str], None]


def _silent(message: str) -> None:
    """Says nothing."""


@dataclass(frozen=True)
class Prepared:
    """Where the inputs of a run lie; plain paths, and the data set's URL where it has one, to be sent to workers."""

    data: str
    data_hash: str
    features: Path
    """log-mel frames, or the vectors of a frozen audio tower"""
    tokenizer: Path | None
    home: Path
    is_audio_encoded: bool = False
    captions: Path | None = None
    """vectors of the captions from a frozen text tower"""

    def features_of(self, experiment: Experiment, data: str) -> Path:
        """The features of another data set, of the kind that these are."""
        inputs = Inputs(experiment, self.tokenizer, self.home, use_ray=False, say=_silent)
        return inputs.features(data, is_encoded=self.is_audio_encoded)

    @property
    def frozen_weights(self) -> dict[str, Path]:
        """Files that hold the weights of the towers whose vectors are read."""
        folders = {"audio": self.features if self.is_audio_encoded else None, "text": self.captions}
        return {kind: folder / TOWER_FILE for kind, folder in folders.items() if folder is not None}

    def reading(self, retriever: Retriever) -> Retriever:
        """The retriever as it takes these inputs: frozen towers whose vectors are here are stood in for, all else is shared."""
        audio, text = retriever.audio_tower, retriever.text_tower
        return retriever.with_towers(
            EncodedAudio(audio) if self.is_audio_encoded else audio,
            text if self.captions is None else EncodedText(text, open_caption_vectors(self.captions)),
        )

    def load_tokenizer(self) -> Tokenizer | None:
        """The tokeniser trained on the training captions; None for text towers that bring their own."""
        return None if self.tokenizer is None else Tokenizer.from_file(str(self.tokenizer))


def prepare(experiment: Experiment, home: Path, *, use_ray: bool = True, say: Say = print) -> Prepared:
    """Make or find the data set, its cached features and the tokeniser of an experiment; `say` tells what is being done.

    Raises ValueError naming the setting where the data set is missing or lacks a language or split that is asked for.
    """
    check_inputs(experiment)
    folder = data_folder(experiment, home, say=say)
    manifest = read_manifest(folder)
    tokenizer = _tokenizer(experiment, manifest, home)
    for kind, reason in why_encoded_anew(experiment).items():
        say(f"the frozen {kind} tower encodes every batch anew: {reason}")
    inputs = Inputs(experiment, tokenizer, home, use_ray, say)
    is_audio_encoded = encodes_once(experiment, "audio")
    return Prepared(
        data=folder,
        data_hash=manifest.hash,
        features=inputs.features(folder, is_encoded=is_audio_encoded),
        tokenizer=tokenizer,
        home=home,
        is_audio_encoded=is_audio_encoded,
        captions=ensure_text_vectors(inputs.frozen("text"), folder) if encodes_once(experiment, "text") else None,
    )


@dataclass(frozen=True)
class Inputs:
    """How the features of a data set are made for an experiment."""

    experiment: Experiment
    tokenizer: Path | None
    home: Path
    use_ray: bool
    say: Say

    def features(self, data: str, *, is_encoded: bool) -> Path:
        """The data set's features, made now where they are absent: log-mel frames, or the frozen audio tower's vectors."""
        if is_encoded:
            return ensure_audio_vectors(self.frozen("audio"), data)
        front_end = self.experiment.model.audio.front_end
        return ensure_log_mel(data, front_end, self.home, use_ray=self.use_ray, say=self.say)

    def frozen(self, kind: str) -> FrozenTower:
        """The audio or text tower, to encode with."""
        return FrozenTower(kind, flatten(self.experiment), self.tokenizer, self.home, self.use_ray, self.say)


def check_inputs(experiment: Experiment) -> None:
    """ValueError, naming the setting, where data set, checkpoint, language or split is missing, or a batch cannot be filled.

    Reads the manifest only, so that a mistake is found before anything is written or started.
    """
    data = experiment.data
    if data.source == "soundscapes":
        where, languages = "soundscapes", data.soundscapes.languages
        splits = {split: data.soundscapes.num_clips(split) for split in SPLITS}
        wish = "--data.soundscapes.languages"
    else:
        manifest = read_manifest(data.source)
        where, languages, wish = manifest.folder, manifest.languages, "--data.languages"
        splits = {split: manifest.num_rows_of(split) for split in manifest.splits}
    missing = [language for language in data.languages if language not in languages]
    if missing:
        raise ValueError(
            f"data.languages: {', '.join(missing)} not in {where}; it has {', '.join(languages)} "
            f"(choose with {wish} {','.join(languages)})"
        )
    for setting, split in (("train_split", data.train_split), ("validation_split", data.validation_split)):
        if not splits.get(split):
            raise ValueError(f"data.{setting}: got {split!r}; {where} has {', '.join(splits)}")
    check_chunks(experiment.objective, experiment.train.language_chunk)
    if experiment.train.distance_to is not None:
        check_other_run(experiment.train.distance_to)
    check_base(experiment.objective.knowledge, data.train_split)
    check_interaction(experiment)
    check_batch_size(splits[data.train_split], experiment.train.batch_size, experiment.scaling.workers)
    for kind, tower in (("audio", experiment.model.audio), ("text", experiment.model.text)):
        checkpoint = getattr(tower, "checkpoint", None)
        if checkpoint is not None:
            require_checkpoint(checkpoint, f"model.{kind}.checkpoint")


def data_folder(experiment: Experiment, home: Path, *, say: Say = print) -> str:
    """The folder or URL of the experiment's data set; the synthetic one is made where it does not exist yet."""
    if experiment.data.source != "soundscapes":
        return open_folder(experiment.data.source).name
    return str(ensure_soundscapes(experiment.data.soundscapes, home / "data", say=say))


def _tokenizer(experiment: Experiment, manifest: Manifest, home: Path) -> Path | None:
    """Towers that bring no tokeniser of their own get one trained on the training captions, cached by content."""
    data, text = experiment.data, experiment.model.text
    if not text.trains_tokenizer:
        return None
    vocab_size = getattr(text, "vocab_size", 4096)
    content = json.dumps([manifest.hash, data.languages, data.train_split, vocab_size])
    path = home / "data" / "tokenizers" / f"{hashlib.sha256(content.encode()).hexdigest()[:16]}.json"
    if not path.is_file():
        clips = read_captions(manifest, data.train_split)
        captions = (text for clip in clips for code in data.languages for text in clip.captions.get(code) or ())
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, train_tokenizer(captions, vocab_size).to_str(pretty=True).encode())
    return path
