"""What an epoch's end says of a run beside its losses: where its scheme pulls, its metric, and how far its weights are from
another run's. Each costs less than a training step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ray_atr.models.retriever import Retriever
from ray_atr.objectives import Embeddings, Scheme, metric_scalars
from ray_atr.objectives.diagnostics import alignment_direction_error, weight_distance
from ray_atr.run_folder import LAST
from ray_atr.settings import refuse
from ray_atr.storage import is_there, locate
from ray_atr.training.checkpoint import STATE_FILE, load_checkpoint
from ray_atr.training.group import WorkerGroup
from ray_atr.training.mirror import CHECKPOINT_FILE, on_this_node
from ray_atr.training.step import StepInput
from ray_atr.training.texts import TextBatcher


@torch.no_grad()
def direction_error(
    retriever: Retriever,
    texts: TextBatcher,
    scheme: Scheme,
    batch: StepInput,
    languages: tuple[str, ...],
    group: WorkerGroup,
) -> float:
    """Alignment-direction error (degrees) of the global batch: all of its texts are embedded, also those that the scheme
    does not need. All workers take part and get the same.
    """
    was_training = retriever.training
    retriever.eval()
    text = group.gather(texts.embed_grid(batch.captions.texts, batch.captions.mask, languages).float())
    retriever.train(was_training)
    draw = None if batch.draw is None else group.gather(batch.draw.to(group.device))
    # The audio plays no part in it.
    embeddings = Embeddings(audio=text[:, 0], text=text, mask=group.gather(batch.mask.to(group.device)))
    return float(alignment_direction_error(embeddings, scheme, draw))


def metric_state(retriever: Retriever) -> dict[str, float]:
    """The learned transport metric's smallest eigenvalue and rank; nothing where none is learnt."""
    if retriever.metric is None:
        return {}
    scalars = metric_scalars(retriever.metric.detach(), retriever.metric_settings.kind)
    return {name: float(value) for name, value in scalars.items()}


def check_other_run(folder: str) -> None:
    """ValueError where the folder, or the URL, holds no run's last checkpoint."""
    place = locate(folder)
    if not is_there(place / LAST / STATE_FILE) and not is_there(place / CHECKPOINT_FILE):
        raise refuse("train.distance_to", folder, f"the folder of a trial that has a {LAST}/{STATE_FILE}")


class OtherRun:
    """The last weights of another run, to measure a run's distance from them (ATRI Eq. 6, left side)."""

    def __init__(self, folder: str, retriever: Retriever) -> None:
        """Raises ValueError where the folder holds no checkpoint, or that of a model with other weights."""
        check_other_run(folder)
        with on_this_node(locate(folder)) as (local, mirror):
            if mirror is not None:
                mirror.fetch(f"{LAST}/")
            self.weights: dict[str, Tensor] = load_checkpoint(local / LAST)["model"]
        mine, shapes = retriever.state_dict(), {name: value.shape for name, value in self.weights.items()}
        different = sorted(
            name for name in mine.keys() | shapes if name not in mine or shapes.get(name) != mine[name].shape
        )
        if different:
            raise refuse(
                "train.distance_to", folder, f"a run of the same model; it differs in {', '.join(different[:3])}"
            )

    def distance(self, retriever: Retriever) -> float:
        """Euclidean distance of the retriever's weights from the other run's."""
        mine = {name: value.detach().cpu() for name, value in retriever.state_dict().items()}
        return weight_distance(mine, self.weights)
