"""How a data set is imported, checked and translated. Imports no heavy library, since the command's help reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ray_atr.common.language_codes import DEFAULT_LANGUAGES, language_codes, require_language
from ray_atr.common.locations import MAX_NAME_BYTES
from ray_atr.common.settings import Settings, inherited, refuse, setting
from ray_atr.data.decoding import AudioBounds
from ray_atr.data.shards import CLIPS_PER_SHARD

JOINED_NAME_PATTERN = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.+-]{{0,{MAX_NAME_BYTES - 1}}}")
NAME_PATTERN = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{MAX_NAME_BYTES - 1}}}")


def require_name(name: str, path: str = "name", got: str = "") -> None:
    """ValueError unless a data set may have this name; `got` is what the user wrote, if it is more."""
    if not NAME_PATTERN.fullmatch(name):
        raise refuse(path, got or name, f"a name of at most {MAX_NAME_BYTES} letters, digits, _, - and .")


def require_joined_name(name: str) -> None:
    """ValueError unless a joined data set may have this name, in which + stands between the names of its sets."""
    if not JOINED_NAME_PATTERN.fullmatch(name):
        raise refuse("name", name, f"at most {MAX_NAME_BYTES} letters, digits, _, -, + and .; --name gives another")


@dataclass(frozen=True, kw_only=True)
class Import(Settings):
    """How a data set is imported."""

    name: str = setting("", "name of the data set; unset: the kind of source, and pages call it by its folder")
    licence: str = setting("", "its licence; unset: the usual one of this kind of source")
    max_unreadable: float = setting(0.01, "share of clips that may be unreadable and left out", at_least=0, at_most=1)
    min_seconds: float = setting(
        0.04, "shorter clips count as unreadable (s); one analysis window of the default front end", at_least=0
    )
    audio: AudioBounds = setting(default_factory=AudioBounds, help="files beyond these bounds count as unreadable")
    clips_per_shard: int = setting(CLIPS_PER_SHARD, "clips in one Parquet file", at_least=1)
    ray: str = setting(
        "auto",
        "decode on Ray's workers: always, never, or auto: in a cluster, or if there are 5000 clips or more",
        choices=("auto", "always", "never"),
    )
    cpus_per_task: float = setting(1.0, "logical CPUs that Ray reserves for each shard that is being decoded", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name:
            require_name(self.name)


@dataclass(frozen=True, kw_only=True)
class Check(Settings):
    """What a check reads, and its thresholds."""

    audio_share: float = setting(1.0, "share of clips whose audio is decoded, drawn by id", at_least=0, at_most=1)
    silent_peak: float = setting(1e-3, "a clip is silent when no sample exceeds this (full scale is 1)", above=0)
    clipped_level: float = setting(0.999, "a sample at or above this is at full scale", above=0, at_most=1)
    clipped_share: float = setting(1e-3, "a clip is clipped when this share of its samples is at full scale", above=0)
    min_seconds: float = setting(0.04, "shorter clips are named (s); one analysis window of the default front end")
    audio: AudioBounds = setting(default_factory=AudioBounds, help="files beyond these bounds are problems")
    clip_seconds: float = setting(10.0, "length of the front end's window (s); longer clips are named", above=0)
    language_share: float = setting(
        1.0, "share of clips whose captions' language is identified, drawn by id", at_least=0, at_most=1
    )
    caption_characters: int = setting(300, "longer captions are named: most text towers read 64 tokens", at_least=1)


@dataclass(frozen=True, kw_only=True)
class Join(Settings):
    """Which data sets are joined, and what is left out of them."""

    sets: tuple[str, ...] = setting(
        (),
        "folders or URLs of data sets, as FOLDER or NAME=FOLDER; they stay where they are. All of audio, or all of vectors",
    )
    leave_out: tuple[str, ...] = setting(
        (), "lists of clip ids to leave out, as NAME=FILE: text, or JSON as WavCaps' authors publish it"
    )
    recordings: str = setting(
        "sound",
        "when two clips count as the same recording: sound, if fingerprints of their sound agree (this decodes every clip), or "
        "if their vectors are nearly equal; bytes, if their files or vectors are equal",
        choices=("sound", "bytes"),
    )
    leaks: str = setting(
        "leave-out",
        "a recording that is in two splits, of one set or of two: leave-out drops the copy in the less important split (test "
        "before val before others); keep keeps both and notes it",
        choices=("leave-out", "keep"),
    )
    name: str = setting("", "name of the joined data set; unset: the names of its sets")
    licence: str = setting("", "its licence; unset: those of its sets")
    ray: str = inherited(Import, "ray")

    def __post_init__(self) -> None:
        super().__post_init__()
        for entry in self.sets:
            name, _ = named_folder(entry)
            if name is not None:
                require_name(name, "sets", entry)
        if self.name:
            require_joined_name(self.name)


def named_folder(place: str) -> tuple[str | None, str]:
    """What `NAME=FOLDER` names and where it is; None and the folder where the = is within a path (`sets/year=2026/mine`).

    >>> named_folder("clotho=data/clotho_v2"), named_folder("sets/year=2026/mine")
    (('clotho', 'data/clotho_v2'), (None, 'sets/year=2026/mine'))
    """
    name, equals, folder = place.partition("=")
    return (name, folder) if equals and "/" not in name else (None, place)


@dataclass(frozen=True, kw_only=True)
class VectorImport(Settings):
    """Vectors of clips and captions, and the table that pairs them."""

    audio: str = setting(help="clips' vectors [N, W]: .npy, .safetensors[::NAME] or .parquet::COLUMN", path="always")
    text: str = setting(help="captions' vectors [M, V]: .npy, .safetensors[::NAME] or .parquet::COLUMN", path="always")
    table: str = setting(
        help="CSV, TSV, JSON lines or Parquet: audio_row, caption[, text_row, language, split, clip_id, label]",
        path="always",
    )
    language: str = setting("eng", "ISO 639 code of captions without a column language")
    split: str = setting("train", "split of clips without a column split")
    name: str = setting("vectors", "name of the data set")
    licence: str = setting("as given by the owner of the vectors", "its licence")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_name(self.name)


@dataclass(frozen=True, kw_only=True)
class Translation(Settings):
    """Which model translates, into what, and how."""

    model: str = setting(help="folder or hub id of an NLLB or M2M100 model", path="if there")
    languages: tuple[str, ...] = setting(
        DEFAULT_LANGUAGES, "ISO 639 codes of the languages in which every clip should have captions"
    )
    source_language: str = setting("eng", "ISO 639 code of the language to translate from")
    batch_size: int = setting(32, "captions translated at once", at_least=1)
    num_beams: int = setting(4, "width of the beam search; 1 is greedy", at_least=1)
    max_new_tokens: int = setting(128, "longest translation (tokens)", at_least=1)
    ray: str = setting("always", "always: translate in Ray actors; never: in this process", choices=("always", "never"))
    actors: int = setting(1, "Ray actors, each with a copy of the model", at_least=1)
    cpus_per_actor: float = setting(1.0, "logical CPUs of an actor", above=0)
    gpus_per_actor: float = setting(0.0, "GPUs of an actor; 0: on the CPU", at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "languages", language_codes(self.languages))
        source = require_language(self.source_language, "source_language").code
        object.__setattr__(self, "source_language", source)
