"""A run's checkpoint: everything that changes while it trains, so that a resumed run ends with the same weights.

Written under another name and renamed, so that a folder with a `state.pt` is complete. The file is torch's ZIP archive; its
digest is the archive's comment, so that both appear at once. Loaded with `weights_only=True`: tensors and plain values only,
nothing is unpickled.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import pickle
import random
import uuid
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ray_atr.common.digests import digest_of, digest_of_file, mapped
from ray_atr.common.formats import FORMATS, require_format
from ray_atr.common.override import flatten
from ray_atr.common.settings import refuse, shortened
from ray_atr.common.storage import DamagedFileError, atomic_file, disk_errors
from ray_atr.common.transfer import CheckpointSync
from ray_atr.metrics.epoch_report import EpochReport
from ray_atr.models.retriever import Retriever
from ray_atr.models.sharding import gathered
from ray_atr.models.weights import require_plain_archive
from ray_atr.objectives.correspondence import Estimator
from ray_atr.training.batch import TrainingData
from ray_atr.training.clock import Clock
from ray_atr.training.experiment import NOT_DECIDING, Experiment, resolved, stored_experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.knowledge_base.memory import Memory
from ray_atr.training.run_folder import LAST

if TYPE_CHECKING:
    # Its imports from torch take a second.
    from ray_atr.training.shards import ShardWriter

logger = logging.getLogger(__name__)
STATE_FILE = "state.pt"
SHARDS = "shards"
"""The key, in a state, of the folder that holds its towers' tensors."""
NOT_SHARED = "not on every worker's node: the run folder must be a URL, or a folder that all nodes mount"
_END = b"PK\x05\x06"
_END_BYTES, _LENGTH_BYTES, _COMMENT_BYTES = 22, 2, len(digest_of(b""))


@dataclass
class Progress:
    """How far a run is."""

    epoch: int = 0  # complete epochs
    step_in_epoch: int = 0
    best_epoch: int = 0
    best_value: float = -math.inf
    history: list[dict[str, Any]] = field(default_factory=list)  # the report of each complete epoch
    sums: dict[str, float] = field(default_factory=dict)  # sums of the scalars of this epoch's steps
    counts: dict[str, int] = field(default_factory=dict)  # steps that had each: a batch may lack a language's pairs
    seconds: float = 0.0  # of training, without validation and checkpoints
    unvalidated: dict[str, Any] | None = None  # the row of the last epoch while another process validates it

    def add(self, scalars: dict[str, float], seconds: float) -> None:
        """Add a step's scalars and seconds."""
        self.step_in_epoch += 1
        self.seconds += seconds
        for name, value in scalars.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1

    def end_epoch(self) -> dict[str, float]:
        """End the epoch; returns each scalar's mean over the steps that had it."""
        means = {name: value / self.counts[name] for name, value in self.sums.items()}
        self.epoch, self.step_in_epoch, self.sums, self.counts = self.epoch + 1, 0, {}, {}
        return means

    def is_best(self, value: float, epoch: int) -> bool:
        """Whether an epoch's validation is the best so far. If so, it is recorded as the best one."""
        if value > self.best_value:
            self.best_value, self.best_epoch = value, epoch
        return self.best_epoch == epoch

    def is_stuck(self, patience: int) -> bool:
        """Whether the last validation was `patience` epochs or more after the best one; never if `patience` is 0."""
        numbers = range(len(self.history), 0, -1)
        validated = next((number for number in numbers if EpochReport(self.history[number - 1]).validation), 0)
        return patience > 0 and validated - self.best_epoch >= patience


@dataclass
class TrainState:
    """One worker's training state."""

    retriever: Retriever  # trained; with stand-ins for frozen towers whose vectors are read from the cache
    complete: Retriever  # the same with all of its towers, to be saved
    optimizer: Optimizer
    scheduler: LRScheduler
    memory: Memory  # what it remembers beyond the batch
    estimator: Estimator  # of the pairs' clean probabilities
    progress: Progress = field(default_factory=Progress)
    # The weights of the epoch `progress.unvalidated`, on the first worker, which saves them if they are the best.
    unvalidated_weights: dict[str, Tensor] = field(default_factory=dict)
    is_first: bool = True  # among the workers

    def published_weights(self) -> dict[str, Tensor]:
        """A copy of the trained weights on the first worker, for a knowledge base; empty on others. All must call it."""
        trained = self.retriever.trained_state()
        if self.retriever.calls is not None:
            return gathered(trained)
        return copied(trained) if self.is_first else {}

    def state_dict(self, group: WorkerGroup) -> dict[str, Any]:
        """Tensors and plain values. Every worker must call it: each has its own random generators and waits for its own base."""
        return {
            "model": self.retriever.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "progress": vars(self.progress),
            "random": group.gather_objects(random_state()),
            "memory": self.memory.state_dict(),
            "correspondence": self.estimator.state_dict(),
            "unvalidated_weights": self.unvalidated_weights,
        }

    def load_state_dict(self, state: dict[str, Any], group: WorkerGroup) -> None:
        """Continue from a `state_dict`; bit for bit with the same number of workers."""
        self.retriever.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.progress = Progress(**state["progress"])
        if group.rank < len(state["random"]):
            restore_random_state(state["random"][group.rank])
        self.memory.load_state_dict(state["memory"])
        self.estimator.load_state_dict(state["correspondence"])
        # The process that validates them may have no GPU.
        self.unvalidated_weights = copied(state["unvalidated_weights"])


PLACES_OF_DATA = ("data.source", "model.text.data")
"""Settings that say where a data set is. It may be moved: the run folder has the hash of what it holds."""


def copied(value: Any) -> Any:
    """Tensors and plain values as they are now, on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: copied(part) for key, part in value.items()}
    return type(value)(map(copied, value)) if type(value) in (list, tuple) else value


def deciding_settings(experiment: Experiment) -> str:
    """The settings that decide a run's weights, as text: a checkpoint with other ones must not be resumed."""
    flat = flatten(resolved(experiment))
    left_out = (*NOT_DECIDING, *PLACES_OF_DATA)
    return json.dumps({k: v for k, v in flat.items() if not k.startswith(left_out)}, sort_keys=True)


def require_shared(folder: Path, group: WorkerGroup) -> None:
    """FileNotFoundError, on every worker, if what the first one writes to the trial's folder is not there for all of them: at
    the end of the training they would have no retriever to test.
    """
    if group.size == 1:
        return
    # A new name: a file system in a network may remember that another one was not there.
    written = folder / group.of_first(f".shared.{uuid.uuid4().hex[:12]}")
    if group.is_first:
        folder.mkdir(parents=True, exist_ok=True)
        written.touch()
    group.barrier()
    is_everywhere = all(group.gather_objects(written.is_file()))
    if group.is_first:
        written.unlink()
    if not is_everywhere:
        raise FileNotFoundError(errno.ENOENT, NOT_SHARED, str(folder))


def resume(state: TrainState, data: TrainingData, folder: Path, shards: ShardWriter | None = None) -> None:
    """Continue from the last checkpoint, if there is one.

    ValueError if it is of another experiment, or of other files at the places that this one names, or if only one of the two, it
    and this run, has `shards`. FileNotFoundError, on every worker, if some have none.
    """
    experiment, group, inputs = data.experiment, data.group, data.input_digests
    has_one = (folder / LAST / STATE_FILE).is_file()
    if len(set(group.gather_objects(has_one))) > 1:
        # They would train different epochs together.
        raise FileNotFoundError(errno.ENOENT, NOT_SHARED, str(folder / LAST / STATE_FILE))
    if not has_one:
        return
    saved = require_format("checkpoint", load_checkpoint(folder / LAST, group.device), folder / LAST / STATE_FILE)
    # Settings that are newer than the checkpoint have their defaults.
    if deciding_settings(stored_experiment(json.loads(saved["experiment"]))) != deciding_settings(experiment):
        raise ValueError(f"{folder / LAST}: the checkpoint of another experiment")
    if others := [path for path, digest in saved.get("inputs", inputs).items() if inputs.get(path) != digest]:
        got = f"{flatten(experiment)[others[0]]}, which was replaced since"
        raise refuse(others[0], got, f"what {folder / LAST} was trained with; put that back, or train from the start")
    if (shards is not None) != (SHARDS in saved):
        now, then = ("false", "true") if SHARDS in saved else ("true", "false")
        allowed = f"{then} with a checkpoint in {folder / LAST}, written with {then}"
        raise refuse("scaling.shard_towers", now, allowed)
    precision = experiment.train.precision_on(group.device.type)
    if group.is_first and (was := saved.get("precision", precision)) != precision:
        logger.warning(
            "%s: trained in %s; train.precision=auto is %s on this device, and so are the epochs from here on",
            folder / LAST,
            was,
            precision,
        )
    if shards is not None:
        _put_tensors(saved, state, shards)
    state.load_state_dict(saved, group)


def save_state(
    state: TrainState,
    data: TrainingData,
    folder: Path,
    clock: Clock,
    sync: CheckpointSync | None,
    shards: ShardWriter | None = None,
) -> None:
    """Write a checkpoint, and copy it to the store if there is one; all workers take part, the first one writes.

    With `shards` each worker writes its part of the towers: this returns when it is copied, and a thread writes it.
    """
    with clock("checkpoint"):
        content = {"format": FORMATS["checkpoint"], "experiment": deciding_settings(data.experiment)}
        content["precision"] = data.experiment.train.precision_on(data.group.device.type)
        content |= {"inputs": data.input_digests, **state.state_dict(data.group)}
        if shards is not None:
            tensors, rest = _take_tensors(content, state)
            rest = copied(rest)
            shards.save(tensors, lambda slot: save_checkpoint(folder / LAST, {**rest, SHARDS: slot}))
            return
        if data.group.is_first:
            save_checkpoint(folder / LAST, content)
            if sync is not None:
                sync.put()
        data.group.barrier()


def _take_tensors(content: dict[str, Any], state: TrainState) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(the towers' tensors in a state by name, for the shards; the state without them)."""
    divisible = state.retriever.divisible_parameters()
    model, optimizer = content["model"], content["optimizer"]
    tensors = {f"model/{name}": model[name] for name in divisible}
    of_towers = {id(parameter) for parameter in divisible.values()}
    moments: dict[int, dict[str, Any]] = {}
    for number, parameter in enumerate(_in_order(state.optimizer)):
        moments[number] = dict(optimizer["state"].get(number, {}))
        if id(parameter) in of_towers:
            arrays = [key for key, value in moments[number].items() if isinstance(value, Tensor) and value.ndim > 0]
            tensors |= {f"optimizer/{number}/{key}": moments[number].pop(key) for key in arrays}
    rest = {name: value for name, value in model.items() if name not in divisible}
    return tensors, {**content, "model": rest, "optimizer": {**optimizer, "state": moments}}


def _put_tensors(content: dict[str, Any], state: TrainState, shards: ShardWriter) -> None:
    """Put the towers' tensors back into a state that was saved without them, by any number of workers."""
    divisible, parameters = state.retriever.divisible_parameters(), _in_order(state.optimizer)
    slot, targets = content[SHARDS], dict[str, tuple[dict[str, Any], str]]()
    tensors: dict[str, Tensor] = {}
    for name, (shape, dtype) in shards.listed(slot).items():
        kind, _, key = name.partition("/")
        number, _, value = key.partition("/")
        like = divisible.get(key) if kind == "model" else parameters[int(number)]
        if like is None or like.shape != shape:
            raise ValueError(f"{shards.folder / slot}: not this model's ({name} of shape {list(shape)})")
        tensors[name] = torch.empty_like(like, dtype=dtype, requires_grad=False)
        target = content["model"] if kind == "model" else content["optimizer"]["state"][int(number)]
        targets[name] = target, key if kind == "model" else value
    shards.load(slot, tensors)
    for name, (target, key) in targets.items():
        target[key] = tensors[name]


def _in_order(optimizer: Optimizer) -> list[nn.Parameter]:
    """The parameters in the order in which an optimiser's state numbers them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def save_checkpoint(folder: Path, state: dict[str, Any]) -> Path:
    """Write `state` (tensors and plain values) to `folder/state.pt`; an older file is replaced when it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / STATE_FILE
    with atomic_file(path, is_synced=True) as file:
        with disk_errors(path):
            torch.save(state, file)
        _seal(file)
    return folder


def load_checkpoint(folder: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The state saved in a checkpoint folder. ValueError, naming the file, if it is absent, damaged or no checkpoint."""
    path = Path(folder) / STATE_FILE
    if not path.is_file():
        raise ValueError(f"{folder}: no checkpoint here ({STATE_FILE} is missing)")
    _check(path)
    try:
        require_plain_archive(path)
        # Mapped, since the digest has just read every byte into the page cache. A checkpoint is replaced, never changed in place.
        state = torch.load(path, map_location=device, weights_only=True, mmap=True)
    except (RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: not a complete checkpoint ({shortened(str(error))})") from None
    if not isinstance(state, dict):
        raise ValueError(f"{path}: not a checkpoint of ray_atr")
    return state


def _seal(file: IO[bytes]) -> None:
    """Make the digest of a ZIP archive its comment. The length of the comment is the last field of an archive."""
    file.flush()
    file.seek(-_LENGTH_BYTES, os.SEEK_END)
    file.truncate()
    file.write(_comment(digest_of_file(Path(file.name))))


def _check(path: Path) -> None:
    """DamagedFileError if the archive's digest is not that of its bytes, ValueError if it has none."""
    with mapped(path) as content:
        end = len(content) - _COMMENT_BYTES - _LENGTH_BYTES
        is_sealed = end > 0 and content[end - (_END_BYTES - _LENGTH_BYTES) :][:4] == _END
        is_intact = is_sealed and content[end:] == _comment(digest_of(content[:end]))
    if is_sealed and not is_intact:
        raise DamagedFileError(path, "delete it to train from the start, or restore it from a copy")
    if not is_sealed:
        raise ValueError(f"{path}: not a complete checkpoint (its end is missing)")


def _comment(digest: str) -> bytes:
    """The length of an archive's comment and the comment itself."""
    return len(digest).to_bytes(_LENGTH_BYTES, "little") + digest.encode()


def random_state() -> dict[str, Any]:
    """The state of every global random generator of this process, as tensors and plain values."""
    version, words, gauss = random.getstate()
    numpy_state: Any = np.random.get_state()
    name, keys, position, has_gauss, cached = numpy_state
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, torch.from_numpy(keys.astype(np.int64)), int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        # Of this process's GPU alone: where it goes on there may be fewer.
        "cuda": [torch.cuda.get_rng_state()] if torch.cuda.is_available() else [],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Put every global random generator back to a `random_state`."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"][0].cpu())
