"""The study that a search keeps proposes what one made anew for each proposal would, and is told of each point once."""

from __future__ import annotations

import random
import zlib
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from ray_atr.sweep import Goal, OptunaSearch
from ray_atr.sweep.optuna_search import Study
from ray_atr.sweep.search import History, Observation
from ray_atr.sweep.space import Point, Space
from ray_atr.training.experiment import Experiment
from ray_atr.training.run_folder import FAILED, FINISHED, RUNNING, STOPPED

RATE, EPSILON, DECAY, WIDTH = "train.learning_rate", "objective.pair.epsilon", "train.weight_decay", "train.batch_size"
SPACE = Space.parse(
    [
        f"{RATE}=loguniform(1e-5,1e-2)",
        "objective=choice(contrastive,m_ltm)",
        f"{EPSILON}=uniform(0.01,0.2)",
        f"{DECAY}=quniform(0,0.1,0.01)",
        f"{WIDTH}=randint(16,64)",
    ],
    Experiment(),
)
DISTRIBUTIONS = {
    RATE: FloatDistribution(1e-5, 1e-2, log=True),
    "objective": CategoricalDistribution((0, 1)),
    EPSILON: FloatDistribution(0.01, 0.2),
    DECAY: IntDistribution(0, 10),
    WIDTH: IntDistribution(16, 64),
}
GOALS = (Goal("text_to_audio/eng/recall_at_1"), Goal("seconds/train", is_maximised=False))


def in_optuna(path: str, value: Any) -> Any:
    if path == "objective":
        return ("contrastive", "m_ltm").index(value)
    return round(value / 0.01) if path == DECAY else value


def proposed_anew(known: list[Observation], goals: tuple[Goal, ...], seed: str) -> Point:
    """Optuna's own `ask` on a study that is made for it."""
    study = optuna.create_study(
        directions=["maximize" if goal.is_maximised else "minimize" for goal in goals],
        sampler=optuna.samplers.TPESampler(seed=zlib.crc32(seed.encode()), n_startup_trials=5, constant_liar=True),
    )
    states = {FINISHED: TrialState.COMPLETE, STOPPED: TrialState.PRUNED, FAILED: TrialState.FAIL}
    for one in known:
        state = states.get(one.status, TrialState.RUNNING)
        trial = create_trial(
            state=state,
            params={path: in_optuna(path, value) for path, value in one.point.items()},
            distributions={path: DISTRIBUTIONS[path] for path in one.point},
            values=list(one.scores) if state is TrialState.COMPLETE else None,
            intermediate_values={one.epochs: one.scores[0]} if state is TrialState.PRUNED and len(goals) == 1 else None,
        )
        study.add_trial(trial)
    asked = study.ask()
    point: Point = {"objective": ("contrastive", "m_ltm")[asked.suggest_categorical("objective", (0, 1))]}
    # In the order in which the space asks: what chooses a variant first.
    for path in (RATE, EPSILON, DECAY, WIDTH):
        if path == EPSILON and point["objective"] != "m_ltm":
            continue
        distribution = DISTRIBUTIONS[path]
        if isinstance(distribution, FloatDistribution):
            number = asked.suggest_float(path, distribution.low, distribution.high, log=distribution.log)
            point[path] = SPACE.dimensions[path].fit(number)
        else:
            assert isinstance(distribution, IntDistribution)
            point[path] = asked.suggest_int(path, distribution.low, distribution.high)
    point[DECAY] = point[DECAY] * 0.01
    return point


def became(one: Observation, goals: tuple[Goal, ...], drawn: random.Random) -> Observation:
    status = drawn.choice((FINISHED, FINISHED, FINISHED, STOPPED, FAILED))
    scores = tuple(drawn.random() for _ in goals)
    if status == FAILED:
        return Observation(one.point, FAILED)
    return Observation(one.point, status, scores, drawn.randint(1, 9) if status == STOPPED else 0)


@pytest.mark.slow
@pytest.mark.parametrize("num_goals", [1, 2])
def test_the_kept_study_proposes_what_one_made_anew_would(num_goals: int) -> None:
    goals, drawn, history = GOALS[:num_goals], random.Random(0), History()
    proposals = OptunaSearch(SPACE, goals, seed=3).proposals(history)
    for number in range(40):
        point = next(proposals)
        expected = proposed_anew(history.observations, goals, f"3/{number}/0")
        assert point == {path: pytest.approx(value, rel=1e-9) for path, value in expected.items()}, number
        history.add(Observation(point, RUNNING))
        # Points end in any order, four or so of them at work together.
        while sum(one.status == RUNNING for one in history.observations) > 3:
            place = drawn.choice([place for place, one in enumerate(history.observations) if one.status == RUNNING])
            history.observations[place] = became(history.observations[place], goals, drawn)
    assert {one.status for one in history.observations} == {RUNNING, FINISHED, STOPPED, FAILED}
    # A search that starts now, from what a run folder holds, continues with the same point.
    assert next(OptunaSearch(SPACE, goals, seed=3).proposals(History(history.observations))) == next(proposals)


def rates_in(study: Study) -> list[float]:
    """The learning rates of the points that a study was told of. One that is asked holds the questions too."""
    return [trial.params[RATE] for trial in study.storage.get_all_trials(study.study_id)]


def test_a_study_is_told_of_each_point_once() -> None:
    history, search = History(), OptunaSearch(SPACE, GOALS[:1])
    (cell,) = SPACE.grid_points()
    proposals, kept = search.proposals(history), Study(search, cell, history)
    for number in range(30):
        history.add(Observation(next(proposals), FINISHED, (float(number),)))
        kept.keep_up()
    assert rates_in(kept) == [one.point[RATE] for one in history.observations]


def test_a_dimension_of_one_value_is_proposed() -> None:
    space = Space.parse(["train.batch_size=randint(16,64)", "objective=choice(m_ltm)"], Experiment())
    assert next(OptunaSearch(space, GOALS[:1]).proposals(History()))["objective"] == "m_ltm"
