"""What is said before a start about refreshes that take longer than the training between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ray_atr.common.override import override
from ray_atr.objectives.knowledge import Ask
from ray_atr.training.experiment import Experiment
from ray_atr.training.recipes import RECIPES
from ray_atr.training.refresh_cost import epochs_per_refresh, refresh_warning

ASK = {"objective": "ask"}


def test_a_refresh_is_a_forward_pass_over_the_source_on_what_encodes_it() -> None:
    base = override(Experiment(), {**ASK, "scaling.workers": 1})
    assert epochs_per_refresh(base, 1000, 1000) == pytest.approx(1 / 3)
    assert epochs_per_refresh(base, 1000, 6000) == pytest.approx(2)
    assert epochs_per_refresh(override(base, {"scaling.workers": 6}), 1000, 1000) == pytest.approx(2)
    assert epochs_per_refresh(override(base, {"scaling.encoders": 2}), 1000, 6000) == pytest.approx(1)
    on_gpu = {"scaling.gpus_per_worker": 0.6, "scaling.gpus_per_encoder": 0.4}
    assert epochs_per_refresh(override(base, on_gpu), 1000, 1000) == pytest.approx(0.5)
    assert epochs_per_refresh(override(base, {"objective.knowledge.refresh": "write_through"}), 10, 10) == 0
    assert epochs_per_refresh(override(base, {"objective": "kcl"}), 10, 10) == 0


def test_it_is_said_where_the_gpu_would_wait_for_a_cpu_and_names_the_settings() -> None:
    small = override(Experiment(), {**ASK, "data.soundscapes.num_train": 600})
    assert refresh_warning(small) == ""
    on_cpu = override(small, {"scaling.gpus_per_worker": 1.0})
    said = refresh_warning(on_cpu)
    assert said.startswith(
        "the knowledge base encodes 600 clips on a CPU every epoch: an estimated 16.7 times an epoch's"
    )
    assert "scaling.gpus_per_encoder 0.4 with scaling.gpus_per_worker 0.6" in said
    never = override(on_cpu, {"objective.knowledge.refresh_every_epochs": 0})
    assert "on a CPU once" in refresh_warning(never)
    assert refresh_warning(override(small, {"objective": "kcl"})) == ""


@pytest.mark.parametrize("name", [name for name in RECIPES if name.endswith("_ask")])
def test_the_papers_recipes_encode_on_the_workers_gpu(name: str, tmp_path: Path) -> None:
    experiment = RECIPES[name]()
    assert epochs_per_refresh(experiment, 49_274, 49_274) < 1
    scaling, knowledge = experiment.scaling, experiment.objective.knowledge
    assert isinstance(knowledge, Ask)
    assert scaling.gpus_per_worker + scaling.gpus_per_encoder == 1
    assert scaling.gpus_per_worker > 0.5, "else two workers may share a GPU, which NCCL refuses"
    followed = {"separate_text_clusters": True, "renormalise": False, "detach_reliability": False}
    assert {path: getattr(knowledge, path) for path in followed} == followed
    assert knowledge.refresh_every_epochs > 1
