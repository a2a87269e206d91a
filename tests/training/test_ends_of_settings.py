"""Settings at their ends: nothing is made ahead for a number of epochs, and what is beyond reason is named, not the clips."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ray_atr.common.override import override
from ray_atr.data.shards import read_manifest, write_clips
from ray_atr.models.audio import SmallCnnTower
from ray_atr.training.inputs import _smaller_base, prepare
from ray_atr.training.loop import train_trial
from ray_atr.training.step import NonFiniteError
from ray_atr.training.unusual import naming_settings, unusual_settings
from tests.support.modules import before_each
from tests.support.tiny import prepared_for, tiny, tone_clip


class EnoughError(Exception):
    """Ends a run from its report."""


@pytest.mark.slow
@pytest.mark.parametrize("captions", ["one", "each"])
def test_a_run_without_an_end_begins_at_once(home: Path, tmp_path: Path, captions: str) -> None:
    """Everything about 10^12 epochs was made before the first of them."""
    experiment = tiny(
        home / "tones",
        train__epochs=10**12,
        train__schedule="constant",
        train__warmup_fraction=0,
        data__captions_per_epoch=captions,
    )
    seen: list[dict[str, Any]] = []

    def report(row: dict[str, Any]) -> None:
        seen.append(row)
        if len(seen) == 2:
            raise EnoughError

    prepared = prepared_for(experiment, home)
    # Of computing: beside others it may wait.
    started = time.process_time()
    with pytest.raises(EnoughError):
        train_trial(experiment, prepared, tmp_path / "endless", report, use_ray_data=False)
    assert time.process_time() - started < 60
    short: list[dict[str, Any]] = []
    ends = override(experiment, {"train.epochs": 2})
    train_trial(ends, prepared, tmp_path / "short", short.append, use_ray_data=False)
    assert [row["train/loss"] for row in seen] == [row["train/loss"] for row in short[:2]]


@pytest.mark.parametrize(
    "change",
    [
        {"objective.pair.temperature": 1e-39},
        {"objective": "m_ltm", "objective.pair.epsilon": 1e-300},
        {"objective": "m_ltm_pot", "objective.pair.transport_mass": 1e-9},
        {"train.learning_rate": 1e10},  # seen by the first validation
        {"train.weight_decay": 1e10},
        {"model.text.adapt.learning_rate_scale": 1e10},
    ],
)
def test_a_loss_that_is_not_finite_names_the_setting_beyond_reason(
    home: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    experiment = override(tiny(home / "tones"), change)
    path, value = list(change.items())[-1]
    named = re.escape(f"far from what is usual: {path}={value:g}")
    with pytest.raises((NonFiniteError, ValueError), match=f"(not finite|NaN|lost in rounding).*{named}"):
        train_trial(experiment, prepared_for(experiment, home), tmp_path, lambda row: None, use_ray_data=False)


def test_a_gradient_that_is_not_finite_ends_the_run_before_the_weights_have_it(home: Path, tmp_path: Path) -> None:
    """Of a loss that is finite. Else the next step would say that its loss is not."""

    def break_gradient(tower: SmallCnnTower, inputs: tuple[Any, ...]) -> None:
        next(tower.parameters()).register_hook(lambda gradient: gradient * torch.nan)

    experiment = tiny(home / "tones")
    told = r"^gradient norm at epoch 0, step 0 is not finite \(nan\).* clips: train-"
    with before_each(SmallCnnTower, break_gradient), pytest.raises(NonFiniteError, match=told):
        train_trial(experiment, prepared_for(experiment, home), tmp_path, lambda row: None, use_ray_data=False)


def test_a_matrix_beyond_the_memory_names_the_setting(home: Path) -> None:
    experiment = override(tiny(home / "tones"), {"train.weight_decay": 1e6})
    said = r"Unable to allocate 7 TiB; far from what is usual: train\.weight_decay=1e\+06"
    with pytest.raises(MemoryError, match=said), naming_settings(experiment):
        raise MemoryError("Unable to allocate 7 TiB")
    with pytest.raises(ValueError, match=r"^train\.weight_decay: too large$"), naming_settings(experiment):
        raise ValueError("train.weight_decay: too large")


def test_what_is_usual_is_not_blamed(home: Path) -> None:
    assert unusual_settings(tiny(home / "tones")) == []
    assert unusual_settings(override(tiny(home / "tones"), {"train.weight_decay": 200})) == [
        ("train.weight_decay", 200)
    ]


def test_a_base_smaller_than_what_is_asked_of_it_says_so(home: Path, tmp_path: Path) -> None:
    asked = {"objective.knowledge.prototypes": 1_000_000, "objective.knowledge.neighbours": 500}
    experiment = override(tiny(home / "tones"), {"objective.knowledge": "ask", **asked})
    said: list[str] = []
    prepare(experiment, home, use_ray=False, echo=said.append)
    assert [line for line in said if "knowledge" in line] == [
        "objective.knowledge.prototypes: 1,000,000 asked for, 24 taken: the base has 24 clips",
        "objective.knowledge.neighbours: 500 asked for, 23 taken: the base has 24 clips",
    ]
    fits = override(experiment, {"objective.knowledge.prototypes": 24, "objective.knowledge.neighbours": 23})
    said.clear()
    prepare(fits, home, use_ray=False, echo=said.append)
    assert not [line for line in said if "knowledge" in line]
    others = [tone_clip("train", 100 + n, {"eng": [f"tone {n}"]}) for n in range(5)]
    write_clips(tmp_path / "others", others, name="others", licence="none")
    from_others = {"objective.knowledge.source": str(tmp_path / "others"), "objective.knowledge.neighbours": 5}
    of_others = override(fits, from_others)
    assert list(_smaller_base(of_others, read_manifest(str(home / "tones")))) == [
        "objective.knowledge.prototypes: 24 asked for, 5 taken: the base has 5 clips",
    ]
