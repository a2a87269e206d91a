"""Files of weights, published or saved: read without running code, and matched by name and shape."""

from __future__ import annotations

import fnmatch
import json
import logging
import os
import pickle
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from zipfile import ZIP_STORED, BadZipFile, ZipFile, is_zipfile

import numpy as np
import torch
from huggingface_hub import hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from huggingface_hub.utils import validate_repo_id
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ray_atr.common.atomic import readable_as_its_folder
from ray_atr.common.digests import check_folder, digests_of
from ray_atr.common.formats import FORMATS, require_format
from ray_atr.common.settings import nearest, refuse
from ray_atr.common.storage import Location, disk_errors, file_exists, read_json, read_ranges
from ray_atr.data.caption_sample import CaptionSample

SETTINGS_FILE = "retriever.json"
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
FROZEN_FILE = "frozen.safetensors"
"""The file of a frozen tower's weights in its own folder, which saved models link to."""
WEIGHT_FILES = (WEIGHTS_FILE, "pytorch_model.bin")
"""Names under which a folder or a hub repository holds its weights, the preferred one first."""
FILE_ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
AUDIO_CHECKPOINT, TEXT_CHECKPOINT = "model.audio.checkpoint", "model.text.checkpoint"
SHIPPED = Path(__file__).parent / "shipped"
"""Towers that come with the package, trained by benchmarks/soundscape_towers.py; a folder each, by the tower's name."""
UNREADABLE = (OSError, ValueError, RuntimeError, LookupError, AttributeError, EOFError, SafetensorError, BadZipFile)
Model = TypeVar("Model", bound=nn.Module)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadReport:
    """The entries of a checkpoint, compared with those that the model needs."""

    source: str
    loaded: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mis_shaped: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    """name -> (shape in the checkpoint, shape in the model)"""
    skipped: tuple[str, ...] = ()
    """entries that this model is declared not to need (classifier, front end)"""

    def mismatches(self, allowed: Iterable[str] | None = None) -> list[str]:
        """One line for each name that is missing, unexpected or mis-shaped and matches none of the allowed patterns."""
        lines = {name: f"{kind} {name}" for kind in ("missing", "unexpected") for name in getattr(self, kind)}
        for name, (stored, wanted) in self.mis_shaped.items():
            lines[name] = f"shape of {name} is {list(stored)}, not {list(wanted)}"
        patterns = tuple(allowed or ())
        return [line for name, line in lines.items() if not any(fnmatch.fnmatchcase(name, each) for each in patterns)]


@contextmanager
def refusing(path: str, got: object, allowed: str, *others: type[Exception]) -> Iterator[None]:
    """Raises a ValueError for the libraries' errors about a missing, broken or unsafe file, and for `others`."""
    unreadable: tuple[type[Exception], ...] = (*UNREADABLE, *others)
    try:
        yield
    except unreadable as error:
        raise refuse(path, str(got), f"{allowed} ({_first_line(error)})") from None


def require_match(report: LoadReport, allowed: Iterable[str] | None = None, path: str = AUDIO_CHECKPOINT) -> None:
    """ValueError with the mismatches that no pattern allows (None: there is no such setting). Logs the report and the allowed
    mismatches.
    """
    lines = report.mismatches(allowed)
    if lines:
        shown = "; ".join(lines[:6]) + (f"; and {len(lines) - 6} more" if len(lines) > 6 else "")
        reason = "that do not fit" if report.loaded else "of another architecture"
        holds = f"a checkpoint of this tower. It holds weights {reason} ({len(report.loaded)} names fit): {shown}"
        advice = "" if allowed is None else ". Name those that may differ in allow_mismatch"
        raise refuse(path, report.source, holds + advice)
    counts = f"{len(report.loaded)} tensors loaded, {len(report.missing)} missing, {len(report.unexpected)} unexpected"
    others = f"{len(report.mis_shaped)} of another shape, {len(report.skipped)} not needed"
    logger.info("%s: %s, %s", report.source, counts, others)
    for line in report.mismatches():
        logger.warning("%s: %s, as allow_mismatch permits", report.source, line)


def local_of(checkpoint: str) -> Path:
    """The path that a checkpoint names: a tower that comes with the package (`shipped:small_cnn`), or a file or folder."""
    kind, _, name = checkpoint.partition(":")
    return SHIPPED / name if kind == "shipped" else Path(checkpoint).expanduser()


def find_weights(checkpoint: str, path: str = AUDIO_CHECKPOINT) -> Path:
    """The weight file of a shipped tower, path, folder or hub id (HF_HUB_OFFLINE=1: in its cache). ValueError if none."""
    local = local_of(checkpoint)
    if local.is_file():
        return local
    if local.is_dir():
        check_folder(local)
        for name in WEIGHT_FILES:
            if (local / name).is_file():
                return local / name
        raise refuse(path, checkpoint, "a folder that holds " + " or ".join(WEIGHT_FILES))
    require_checkpoint(checkpoint, path)
    for name in WEIGHT_FILES:
        try:
            return Path(hf_hub_download(checkpoint, name))
        except LocalEntryNotFoundError as error:
            raise refuse(path, checkpoint, f"a hub id in the cache or within reach ({_first_line(error)})") from None
        except EntryNotFoundError:
            continue
        except (HfHubHTTPError, HFValidationError, OSError) as error:
            exists = f"a file, a folder, or a hub id that exists ({_first_line(error)})"
            raise refuse(path, checkpoint, exists) from None
    raise refuse(path, checkpoint, "a hub repository that holds " + " or ".join(WEIGHT_FILES))


def require_checkpoint(checkpoint: str, path: str, holds: Sequence[str] = ()) -> None:
    """ValueError for a checkpoint that is neither an existing file or folder nor has the form of a hub id, and for a local folder
    without any of the files that `holds` names.
    """
    local = local_of(checkpoint)
    if not checkpoint:
        raise refuse(path, checkpoint, "a folder, or a hub id owner/name")
    if holds and local.is_dir() and not any(next(local.glob(name), None) for name in holds):
        raise refuse(path, checkpoint, "a folder that holds " + " or ".join(holds))
    if checkpoint.startswith("shipped:") and not local.is_dir():
        shipped = sorted(f"shipped:{folder.name}" for folder in SHIPPED.iterdir() if folder.is_dir())
        raise refuse(path, checkpoint, " or ".join(shipped), nearest(checkpoint, shipped))
    is_path = checkpoint.startswith((".", "/", "~")) or local.suffix in FILE_ENDINGS
    if (is_path or not is_hub_id(checkpoint)) and not local.exists():
        raise refuse(path, checkpoint, "a file or folder that exists, or a hub id owner/name")


def is_hub_id(checkpoint: str) -> bool:
    """Whether a checkpoint has the form of a hub id, owner/name."""
    try:
        validate_repo_id(checkpoint)
    except HFValidationError:
        return False
    return "/" in checkpoint


def identity_of_checkpoint(checkpoint: str) -> list[tuple[str, int, int]] | None:
    """Path, size and time of a checkpoint's files on this machine, without reading them; None if there are none."""
    local = local_of(checkpoint)
    if not local.exists():
        cached = [try_to_load_from_cache(checkpoint, name) for name in WEIGHT_FILES if is_hub_id(checkpoint)]
        local = next((Path(file).parent for file in cached if isinstance(file, str)), local)
    # A model of sentence-transformers has a folder for each of its modules.
    files = sorted([*local.iterdir(), *local.glob("[!.]*/*")]) if local.is_dir() else [local] if local.is_file() else []
    # A file of the hub's cache is a link to its content.
    contents = [file.resolve() for file in files if file.is_file()]
    return [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in contents] or None


def read_checkpoint(file: Path, path: str = AUDIO_CHECKPOINT, *, is_mapped: bool = False) -> dict[str, Tensor]:
    """The tensors of a safetensors file or a PyTorch checkpoint, by name, on the CPU. Never runs code from the file.

    Unwraps `{"model": ...}` and `{"state_dict": ...}` and the prefix `module.`. With `is_mapped`, or within
    `torch.device("meta")`, a PyTorch checkpoint's values stay on disk, unchecked, for callers that need only shapes.
    ValueError for a file that is cut off, is no checkpoint, or would run code.
    """
    content = _read(file, path, is_mapped=is_mapped or torch.get_default_device().type == "meta")
    for key in ("model", "state_dict"):
        if isinstance(content.get(key), Mapping):
            content = content[key]
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise refuse(path, str(file), "a checkpoint that holds named tensors")
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): value for name, value in tensors.items()}
    return tensors


def load_weights(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    *,
    source: str,
    skip: tuple[str, ...] = (),
    allowed: Iterable[str] | None = None,
    path: str = AUDIO_CHECKPOINT,
) -> LoadReport:
    """Copy the tensors into the module by name; names that start with one of `skip` are ignored. A module on the meta device is
    only compared.

    Raises ValueError, before anything is copied, for mismatches that no pattern in `allowed` covers.
    """
    wanted = module.state_dict()
    offered = {name: value for name, value in tensors.items() if not name.startswith(skip)}
    mis_shaped = {
        name: (tuple(value.shape), tuple(wanted[name].shape))
        for name, value in offered.items()
        if name in wanted and value.shape != wanted[name].shape
    }
    fitting = {name: value for name, value in offered.items() if name in wanted and name not in mis_shaped}
    report = LoadReport(
        source=source,
        loaded=tuple(fitting),
        # A counter of training batches, which older files lack and evaluation never reads.
        missing=tuple(name for name in wanted if name not in offered and not name.endswith("num_batches_tracked")),
        unexpected=tuple(name for name in offered if name not in wanted),
        mis_shaped=mis_shaped,
        skipped=tuple(name for name in tensors if name not in offered),
    )
    require_match(report, allowed, path)
    if not any(value.is_meta for value in wanted.values()):
        module.load_state_dict(fitting, strict=False)
    return report


def with_published(
    tower: Model, checkpoint: str | None, fit: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict, **how: Any
) -> Model:
    """The tower with a checkpoint's weights (None: unchanged), by `load_weights(**how)`; `fit` renames and reshapes them."""
    if checkpoint is not None:
        load_weights(tower, fit(read_checkpoint(find_weights(checkpoint))), source=checkpoint, **how)
    return tower


def require_plain_archive(file: Path) -> None:
    """ValueError for a ZIP archive with compressed entries, or whose entries claim more bytes than it has.

    torch writes no such files, and a small one could fill the memory when it is opened. Other kinds of file are accepted.
    """
    if not is_zipfile(file):
        return
    with ZipFile(file) as archive:
        entries = archive.infolist()
    if any(entry.compress_type != ZIP_STORED for entry in entries):
        raise ValueError("its entries are packed; torch.save packs none")
    if sum(entry.file_size for entry in entries) > file.stat().st_size:
        raise ValueError("its entries claim more bytes than it holds")


def _read(file: Path, path: str, *, is_mapped: bool) -> dict[str, Any]:
    if file.suffix == ".safetensors":
        with refusing(path, file, "a complete safetensors file"):
            return dict(load_file(file))
    try:
        with refusing(path, file, "a complete PyTorch checkpoint"), torch.serialization.safe_globals(_numpy_globals()):
            require_plain_archive(file)
            # Only the archives that torch writes since 1.6 can be mapped.
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=is_mapped and is_zipfile(file))
    except pickle.UnpicklingError as error:
        # torch's own message recommends switching the check off.
        name = str(error).partition("GLOBAL ")[2].split(" ", 1)[0]
        reason = f"would run code ({name})" if name else "is cut off or would run code"
        raise refuse(path, str(file), f"a complete file of tensors; this one {reason}, and was not run") from None
    if not isinstance(content, Mapping):
        raise refuse(path, str(file), f"a checkpoint that holds named tensors, not one {type(content).__name__}")
    return dict(content)


def _numpy_globals() -> list[Any]:
    """The globals in pickles of plain NumPy arrays: PANNs checkpoints hold their sampler's index arrays besides the weights."""
    reconstruct, scalar = np._core.multiarray._reconstruct, np._core.multiarray.scalar  # type: ignore[attr-defined]
    names = [
        (function, f"{module}.{function.__name__}")
        for function in (reconstruct, scalar)
        for module in ("numpy.core.multiarray", "numpy._core.multiarray")
    ]
    return [np.ndarray, np.dtype, *names, *{type(np.dtype(code)) for code in np.typecodes["AllInteger"] + "fd?"}]


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:240] or type(error).__name__


def write_weights(file: Path, state: Mapping[str, Tensor], *, prefix: str = "") -> None:
    """Write the tensors by name, after a prefix, as safetensors."""
    # Copies, because safetensors rejects tensors that share memory.
    copies = {prefix + name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    with disk_errors(file):
        save_file(copies, file)
        readable_as_its_folder(file)


def link_weights(source: Path, file: Path) -> None:
    """Link a file of weights under a second name; it is copied if the file system has no links."""
    try:
        os.link(source, file)
    except OSError:
        with disk_errors(file):
            shutil.copyfile(source, file)


def write_state(folder: Path, state: Mapping[str, Tensor], frozen: Mapping[str, Path]) -> dict[str, str]:
    """Write a model's tensors; those of a tower in `frozen` (`{"audio": file}`) are linked from that file instead.

    Returns the linked files' digests, as far as they are recorded, by their names in the folder.
    """
    linked = tuple(f"{kind}_tower." for kind in frozen)
    write_weights(folder / WEIGHTS_FILE, {name: value for name, value in state.items() if not name.startswith(linked)})
    for kind, file in frozen.items():
        link_weights(file, folder / kind / FROZEN_FILE)
    return {f"{kind}/{FROZEN_FILE}": digests_of(file.parent).get(file.name, "") for kind, file in frozen.items()}


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of a saved model, including frozen towers. ValueError for a missing or broken file."""
    file = folder / WEIGHTS_FILE
    if not file.is_file():
        raise refuse("model folder", str(folder), f"a folder that save_pretrained wrote; it lacks {WEIGHTS_FILE}")
    weights = read_checkpoint(file, "model folder")
    for name in _frozen_files(folder):
        weights.update(read_checkpoint(folder / name, "model folder"))
    return weights


def _frozen_files(folder: Location) -> list[str]:
    """The files of weights of a saved model's frozen towers, by their names in its folder."""
    # One that is not listed was left by an earlier model, as in a repository of the hub to which both were uploaded.
    listed = digests_of(folder) if isinstance(folder, Path) else {}
    names = [f"{kind}/{FROZEN_FILE}" for kind in ("audio", "text")]
    return [name for name in names if (not listed or name in listed) and file_exists(folder / name)]


def shapes_of_weights(folder: Location) -> dict[str, tuple[int, ...]]:
    """The shapes of a saved model's tensors by name, from the heads of its files, also in a store. ValueError for a missing or
    broken file.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for file in (folder / name for name in (WEIGHTS_FILE, *_frozen_files(folder))):
        with refusing("model folder", file, "a complete safetensors file"):
            if isinstance(file, Path):
                with safe_open(file, "pt") as opened:
                    shapes |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118 (no mapping)
            else:
                # The first eight bytes are the length of the JSON that follows.
                (length,) = read_ranges([file], [0], [8])
                (head,) = read_ranges([file], [8], [8 + int.from_bytes(length, "little")])
                shapes |= {name: tuple(about["shape"]) for name, about in json.loads(head).items() if "shape" in about}
    return shapes


def write_settings(folder: Path, content: Mapping[str, Any]) -> None:
    """Write the settings as JSON, with the layout's number."""
    text = json.dumps({"format": FORMATS["retriever"], **content}, indent=1, ensure_ascii=False)
    (folder / SETTINGS_FILE).write_text(text + "\n", encoding="utf-8")


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings that `write_settings` wrote. ValueError for a missing or broken file, or another layout."""
    file = folder / SETTINGS_FILE
    if not file.is_file():
        # Commands take a run or a trial and find its best epoch.
        of_trials = sorted(
            settings_file.parent
            for place in ("", "trials/*/")
            for settings_file in folder.glob(f"{place}best/{SETTINGS_FILE}")
        )
        meant = f" (did you mean {of_trials[0]}?)" if of_trials else ""
        raise refuse(
            "model folder", str(folder), f"a folder that save_pretrained wrote; it lacks {SETTINGS_FILE}", meant
        )
    content = read_json(file)
    if not isinstance(content, dict):
        raise refuse("model folder", str(file), "a retriever's settings, as save_pretrained writes them")
    return require_format("retriever", content, file)


def reads_vectors(folder: Location) -> bool:
    """Whether a saved retriever's clips are vectors, by its settings; a published one's are audio."""
    file = folder / SETTINGS_FILE
    content = read_json(file) if file_exists(file) else {}
    front_end = content.get("front_end") if isinstance(content, dict) else None
    return isinstance(front_end, dict) and front_end.get("kind") == "vector"


def trained_captions_of(settings: Mapping[str, Any], folder: object) -> CaptionSample:
    """The sample of what a saved retriever was trained on, from its settings; an empty one if they lack it."""
    text = settings.get("trained_captions")
    return (
        CaptionSample()
        if text is None
        else CaptionSample.from_text(text, f"{folder}/{SETTINGS_FILE}: trained_captions")
    )


def is_clap(folder: Path) -> bool:
    """Whether a local folder holds a `ClapModel` of transformers."""
    file = folder / CONFIG_FILE
    if not file.is_file():
        return False
    content = read_json(file)
    return isinstance(content, dict) and content.get("model_type") == "clap"


ML_CLAP_PARTS = ("audio_encoder.model.", "text_encoder.model.", "audio_proj.", "text_proj.")
"""Prefixes of the names in ML-CLAP's checkpoints."""


def lone_file(folder: str | os.PathLike[str]) -> Path | None:
    """The only `.pt` of a local folder that holds neither a saved retriever nor a model in the layout of transformers."""
    place = Path(folder).expanduser()
    if not place.is_dir() or (place / SETTINGS_FILE).is_file() or is_clap(place):
        return None
    if any(place.glob("*.safetensors*")) or any(place.glob("pytorch_model*")):
        return None
    files = list(place.glob("*.pt"))
    return files[0] if len(files) == 1 else None


def is_of_ml_clap(file: Path) -> bool:
    """Whether a `.pt` has the names of ML-CLAP's checkpoints; a file that cannot be read has none."""
    try:
        names = mapped_checkpoint(file, "model folder")
    except ValueError:
        # The error is raised when the file is read.
        return False
    return all(any(name.startswith(part) for name in names) for part in ML_CLAP_PARTS)


def mapped_checkpoint(file: Path, path: str) -> Mapping[str, Tensor]:
    """The tensors of a PyTorch checkpoint, which stay on disk until they are copied. Cached until the file changes."""
    status = file.stat()
    return _mapped(file, path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4)
def _mapped(file: Path, path: str, _changed: int, _size: int) -> dict[str, Tensor]:
    return read_checkpoint(file, path, is_mapped=True)


def count_parts(names: Iterable[str], prefix: str) -> int:
    """Number of a model's numbered parts after a prefix of its tensors' names."""
    return len({name.removeprefix(prefix).split(".")[0] for name in names if name.startswith(prefix)})


def renamed(name: str, table: Mapping[str, str]) -> str:
    """A tensor's name with the patterns of a table replaced, one after the other."""
    for theirs, ours in table.items():
        name = re.sub(theirs, ours, name)
    return name
