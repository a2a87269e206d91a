"""Where a run's weights start from if not from their towers' own checkpoints: another run's saved retriever."""

from __future__ import annotations

from pathlib import Path

import torch

from ray_atr.models.retriever import Retriever
from ray_atr.settings import refuse
from ray_atr.storage import fetched, locate
from ray_atr.training.checks import check_start

PATH = "train.start_from"


def start_from(folder: str, retriever: Retriever, encoded: tuple[str, ...] = ()) -> None:
    """Give the retriever the weights of a saved one.

    What the objective learns keeps its first values where the saved one did not learn it. ValueError if the towers or
    projections differ, or if a tower whose vectors were encoded before (`encoded`: audio, text) has other weights there.
    """
    check_start(folder)
    mine, theirs = retriever.state_dict(), Retriever.from_pretrained(folder).state_dict()
    both = {name for name in mine.keys() & theirs.keys() if mine[name].shape == theirs[name].shape}
    different = sorted(name for name in mine.keys() ^ theirs.keys() | (mine.keys() - both) if name not in both)
    different = [name for name in different if not name.startswith(("learned.", "window_query"))]
    if different:
        raise refuse(PATH, folder, f"a retriever with the same towers; it differs in {', '.join(different[:3])}")
    for kind in encoded:
        for name in both:
            if name.startswith(f"{kind}_tower.") and not torch.equal(mine[name].cpu(), theirs[name]):
                allowed = f"a retriever whose frozen {kind} tower is the one that was encoded; it differs in {name}"
                raise refuse(PATH, folder, allowed)
    retriever.load_state_dict({**mine, **{name: theirs[name] for name in both if name != "learned.num_steps"}})


def tokeniser_of(folder: str) -> bytes:
    """The file of the tokeniser that a saved retriever's text tower was trained with."""
    check_start(folder)
    with fetched(locate(folder)) as copy:
        return (Path(copy) / "text" / "tokenizer.json").read_bytes()
