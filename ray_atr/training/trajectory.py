"""The weights of a run after each epoch, to be compared with another run's at the same steps (Yin et al. 2025, Eq. 6)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from ray_atr.common.settings import refuse
from ray_atr.common.storage import Location, file_exists, is_local, locate
from ray_atr.common.transfer import CHECKPOINT_FILE, on_this_node
from ray_atr.models.retriever import Retriever
from ray_atr.models.weights import write_weights
from ray_atr.training.run_folder import trial_place

TRAJECTORY = "trajectory"
"""The folder of a trial that holds them, with `train.keep_trajectory`."""

ALLOWED = "the folder of a trial (or of a run with one) that was trained with --train.keep_trajectory true"


def keep_weights(folder: Path, step: int, weights: Mapping[str, Tensor]) -> None:
    """Write a retriever's weights after `step` steps to a trial's folder. The file appears complete."""
    place = folder / TRAJECTORY
    place.mkdir(parents=True, exist_ok=True)
    aside = place / f".{_name(step)}"
    write_weights(aside, weights)
    aside.replace(place / _name(step))


def saved_steps(folder: Path) -> list[int]:
    """The steps after which a trial's folder has weights."""
    matches = [re.fullmatch(r"step-(\d+)\.safetensors", path.name) for path in (folder / TRAJECTORY).glob("*")]
    return sorted(int(match[1]) for match in matches if match)


def check_other_run(folder: str) -> None:
    """ValueError if the folder, or the URL, holds no weights to compare with."""
    place = _trial(folder)
    has_any = saved_steps(place) if is_local(place) else file_exists(place / CHECKPOINT_FILE)
    if not has_any:
        raise refuse("train.distance_to", folder, ALLOWED)


class OtherRun:
    """The weights of another run after each of its epochs, read one epoch at a time."""

    def __init__(self, folder: str, retriever: Retriever, steps_per_epoch: int) -> None:
        """Raises ValueError if there are none, or if they are of another model or of epochs of another length."""
        with on_this_node(_trial(folder)) as (local, sync):
            if sync is not None:
                sync.fetch(f"{TRAJECTORY}/")
            self.steps = saved_steps(local)
            if not self.steps:
                raise refuse("train.distance_to", folder, ALLOWED)
            # A store's files are on this node only within this block, so all of them are read now.
            self._held = {} if sync is None else {step: weights_of(local, step) for step in self.steps}
            self._local = local
        mine, theirs = (
            {(name, value.shape) for name, value in weights.items()}
            for weights in (retriever.state_dict(), self.weights_after(self.steps[0]) or {})
        )
        if different := sorted({name for name, _ in mine ^ theirs}):
            allowed = f"a run of the same model; it differs in {', '.join(different[:3])}"
            raise refuse("train.distance_to", folder, allowed)
        if steps_per_epoch not in self.steps:
            allowed = f"a run with {steps_per_epoch} steps in an epoch; it kept {self.steps[:3]}"
            raise refuse("train.distance_to", folder, allowed)

    def weights_after(self, step: int) -> dict[str, Tensor] | None:
        """The other run's weights after this number of steps; None if it has none."""
        if step not in self.steps:
            return None
        return self._held[step] if step in self._held else weights_of(self._local, step)


def weights_of(folder: Path, step: int) -> dict[str, Tensor]:
    """The weights of a step in a trial's folder."""
    return load_file(folder / TRAJECTORY / _name(step))


def _trial(folder: str) -> Location:
    return trial_place(locate(folder), "train.distance_to")


def _name(step: int) -> str:
    return f"step-{step:08d}.safetensors"
