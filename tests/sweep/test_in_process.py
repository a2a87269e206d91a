"""A sweep in this process, without Ray."""

from __future__ import annotations

from pathlib import Path

from tiny import tiny

from ray_atr.run_folder import RunFolder
from ray_atr.space import Space
from ray_atr.sweep import SweepPlan, sweep
from ray_atr.sweep.search import RandomSearch


def test_a_setting_of_the_data_may_be_searched_in_a_range(home: Path) -> None:
    experiment = tiny(home / "tones", train__epochs=1, scaling__workers=0, scaling__ray_data=False)
    space = Space.parse(["data.noise.ratio=uniform(0.1,0.5)", "data.noise.kind=choice(pair,shift)"], experiment)
    run = RunFolder.create(home / "run", experiment, {"name": "test", "varied": list(space.dimensions), "seeds": [0]})
    result = sweep(run, SweepPlan(RandomSearch(space), (0,), 2), home, use_ray=False, say=lambda message: None)
    assert (len(result.finished), result.failed) == (2, [])
    ratios = [trial.describe()["overrides"]["data.noise.ratio"] for trial in run.trials()]
    assert all(0.1 <= ratio <= 0.5 for ratio in ratios)
