"""A share of wrong captions, wherever a run has it from, is what every loss and mixture that reads one gets, by language."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from ray_atr.common import sampling
from ray_atr.data.caption_digests import caption_digests
from ray_atr.data.captions import TrainingCaptions
from ray_atr.data.features import open_features
from ray_atr.data.shards import read_manifest, write_clips
from ray_atr.data.soundscapes import SoundscapesSettings
from ray_atr.objectives import PAIRS
from ray_atr.objectives.correspondence import (
    CORRESPONDENCES,
    TrainingPairs,
    clean_share,
    leave_one_out,
    scored,
    transport,
)
from ray_atr.objectives.correspondence.clean_share import CleanShares
from ray_atr.objectives.correspondence.correspondence import Correspondence
from ray_atr.objectives.pairs import PartialLearningToMatch
from ray_atr.objectives.pairs.pair_loss import PairLoss
from ray_atr.training import checks, correspondence
from ray_atr.training.batch import TrainingData
from ray_atr.training.clock import Clock
from ray_atr.training.correspondence import wrong_shares
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.experiment import DataSettings
from ray_atr.training.group import WorkerGroup
from ray_atr.training.loop import begin_epoch, step
from ray_atr.training.setup import first_state
from ray_atr.workshop.importing.import_options import Join
from ray_atr.workshop.importing.join import join_data_sets
from ray_atr.workshop.soundscapes.clips import generate
from tests.support.spies import spied
from tests.support.tiny import make_data, prepared_for, tiny, tone_clip

TRUE = {"number": (0.7, 0.7), "audit": (0.8, 0.4), "heard": (0.75, 0.75), "estimated": (0.9, 0.5)}
"""The shares of true pairs in English and in French, by where they are from."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    make_data(folder / "tones", num_train=24)
    about = {"data_hash": read_manifest(str(folder / "tones")).hash, "split": "train"}
    audited = {name: {"share": 1 - true} for name, true in zip(("eng", "fra"), TRUE["audit"], strict=True)}
    (folder / "audit").mkdir()
    (folder / "audit" / "audit.json").write_text(json.dumps({**about, "wrong_share_by_language": audited}))
    heard = {**about, "wrong_share": 1 - TRUE["heard"][0], "interval_95": [0.1, 0.4], "caption_digests": {}}
    digests = {"caption_digests": {"eng": "1", "fra": "2"}}
    (folder / "estimate.json").write_text(json.dumps(heard | digests))
    return folder


def given(source: str, home: Path) -> Any:
    places = {"number": 0.3, "audit": str(home / "audit"), "heard": str(home / "estimate.json"), "estimated": "auto"}
    return places[source]


def p_values_of(true: float) -> NDArray[np.float64]:
    """Of a thousand pairs of which this share is true: the others' are evenly spread."""
    count = round(1000 * (1 - true))
    return np.concatenate([(np.arange(count) + 0.5) / count, np.full(1000 - count, 0.001)])


Reader = tuple[dict[str, Any], Callable[[pytest.MonkeyPatch, list[Any]], None]]


def spy_mass(patch: pytest.MonkeyPatch, seen: list[Any]) -> None:
    def note(mass: Any, loss: Any, cost: Any, comparison: Any) -> None:
        seen.append((int(comparison.v_language[0]), mass[0]))

    spied(patch, PartialLearningToMatch, "mass", note)


def spy_plan(patch: pytest.MonkeyPatch, seen: list[Any]) -> None:
    masses: list[float] = []
    spied(patch, transport, "solve", lambda plan, *of, mass: masses.append(mass))
    pairs = TrainingPairs(clip_ids=["a", "b"], languages=2)
    estimator = type(CORRESPONDENCES["transport"]().estimator(pairs))
    spied(patch, estimator, "estimate", lambda _, own, of, index: seen.append((int(index.languages[0]), masses.pop())))


def spy_mixture(patch: pytest.MonkeyPatch, seen: list[Any]) -> None:
    spied(patch, scored, "low_component", lambda _, values, kind, share: seen.append((len(seen) % 2, share)))


def spy_regression(patch: pytest.MonkeyPatch, seen: list[Any]) -> None:
    spied(
        patch,
        leave_one_out,
        "leave_out",
        lambda _, *of, share, seed: seen.append((len(seen), share)),
    )


PRIOR = {"objective__correspondence__prior": "estimate", "objective__correspondence__warmup_epochs": 1}
READERS: dict[str, Reader] = {
    "partial_learning_to_match": (
        {"objective__pair": "partial_learning_to_match", "objective__pair__transport_mass": "auto"},
        spy_mass,
    ),
    "transport": ({"objective__correspondence": "transport"}, spy_plan),
    "small_loss": ({"objective__correspondence": "small_loss", **PRIOR}, spy_mixture),
    "rematch": ({"objective__correspondence": "rematch", **PRIOR}, spy_mixture),
    # Without a regression that finds enough it is small loss, the prior of which goes the same way.
    "leave_one_out": ({"objective__correspondence": "leave_one_out"}, spy_regression),
}


def test_every_reader_is_tried() -> None:
    read = [name for name, loss in PAIRS.items() if loss.needs_clean_share is not PairLoss.needs_clean_share]
    read += [
        name for name, one in CORRESPONDENCES.items() if one.needs_clean_share is not Correspondence.needs_clean_share
    ]
    assert sorted(read) == sorted(READERS)


@pytest.mark.slow
@pytest.mark.parametrize("source", TRUE)
@pytest.mark.parametrize("name", READERS)
def test_the_share_arrives_as_it_is_stated(
    name: str, source: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A begun epoch and a step of it, and the beginning of the next, which fits a mixture to the step's losses."""
    settings, spy = READERS[name]
    experiment = tiny(home / "tones", objective__scheme="kcl", data__wrong_share=given(source, home), **settings)
    spread = [p_values_of(true) for true in TRUE["estimated"]]
    monkeypatch.setattr(clean_share, "cross_fitted_p_values", lambda pairs, *of: spread[int(pairs.language[0])])
    monkeypatch.setattr(clean_share, "is_something_found", lambda *of: True)
    data = TrainingData(experiment, prepared_for(experiment, home), WorkerGroup())
    state = first_state(data, tmp_path)
    seen: list[tuple[int, float]] = []
    spy(monkeypatch, seen)
    batch = next(iter(next(iter(data.epochs(0, 0, use_ray=False)))[1]))
    begin_epoch(state, data, 0)
    step(state, data, TextBatcher(state.retriever), batch, Clock())
    begin_epoch(state, data, 1)
    assert {k for k, _ in seen} == {0, 1}
    # A share is estimated to a thousandth, of pairs whose p-values are not those that the likelihood takes them for.
    near = 0.003 if source == "estimated" else 1e-6
    assert [share for _, share in seen] == pytest.approx([TRUE[source][k] for k, _ in seen], abs=near)


def test_the_share_of_each_trained_language_is_asked_for(home: Path, tmp_path: Path) -> None:
    trained = ("eng", "fra")
    assert wrong_shares("auto", trained, trained) is None
    assert DataSettings(wrong_share="0.3").wrong_share == 0.3
    assert wrong_shares(0.3, trained, trained) == [0.3, 0.3]
    assert wrong_shares(str(home / "audit"), ["fra", "eng"], trained) == pytest.approx([0.6, 0.2])
    with pytest.raises(ValueError, match=r"audit.json: got 'no share of deu'"):
        wrong_shares(str(home / "audit"), ["deu"], ["deu"])
    with pytest.raises(ValueError, match=r"estimate.json: got 'no share of deu'"):
        wrong_shares(str(home / "estimate.json"), ["eng", "deu"], ["deu"])
    # Languages that are only evaluated need none.
    shares = wrong_shares(str(home / "audit"), ["eng", "deu"], ["eng"])
    assert shares == pytest.approx([0.2, math.nan], nan_ok=True)
    (tmp_path / "other.json").write_text(json.dumps({"wrong_share": 0.1}))
    for given in (str(tmp_path), str(tmp_path / "other.json")):
        with pytest.raises(ValueError, match=r"data.wrong_share: got .*; allowed auto, a share below 1, the folder"):
            wrong_shares(given, trained, trained)
    with pytest.raises(ValueError, match=r"wrong_share: got 1\.5"):
        DataSettings(wrong_share=1.5)


@pytest.mark.parametrize("share", [1.5, -0.1, math.nan, "x", None])
def test_a_share_that_no_audit_writes_is_refused(tmp_path: Path, share: Any) -> None:
    for name, content in (
        ("audit.json", {"wrong_share_by_language": {"eng": {"share": share}}}),
        ("estimate.json", {"wrong_share": share, "interval_95": [0, 1], "caption_digests": {"eng": ""}}),
        ("list.json", {"wrong_share_by_language": [share]}),
    ):
        (tmp_path / name).write_text(json.dumps(content))
        with pytest.raises(
            ValueError, match=rf"data.wrong_share: .*{name}: got .*; allowed the share that an audit wrote"
        ):
            wrong_shares(str(tmp_path / name), ["eng"], ["eng"])


def test_an_estimate_reads_clips_drawn_from_all_and_the_trained_languages_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny(home / "tones")
    of_both = tiny(home / "tones", objective__scheme="kcl")
    prepared = prepared_for(experiment, home)
    features, data = open_features(prepared.features, "train"), experiment.data
    captions = TrainingCaptions(features, data.languages, data.noise, experiment.seed)
    retriever, read, rows = prepared.first_retriever(experiment), list[Any](), list[list[int]]()
    spied(monkeypatch, correspondence, "_readings", lambda found, *given: rows.append(given[4].tolist()))
    shares = SimpleNamespace(estimate=lambda readings, seed: read.extend(readings))
    given = cast(CleanShares, shares), retriever, captions, experiment, "auto"
    correspondence.estimate_clean_shares(*given, most_clips=6)
    assert experiment.trained_languages == ["eng"]
    assert len(read) == 2
    assert all(len(one.audio) == 6 and set(one.pair_index[2].tolist()) == {0} for one in read)
    drawn = sampling.permutation(features.clip_ids, experiment.seed, "clean share")[:6]
    assert rows == [sorted(drawn.tolist())]
    assert max(rows[0]) > 6
    # Of a language that few clips have, as many clips as of another.
    few = [*drawn[3:].tolist(), max(set(range(24)) - set(drawn.tolist()))]
    captions.has_caption[np.setdiff1d(np.arange(24), few), :, 0] = False
    correspondence.estimate_clean_shares(*given, most_clips=3)
    correspondence.estimate_clean_shares(*given[:3], of_both, "auto", most_clips=3)
    assert rows[1:] == [sorted(drawn[3:].tolist()), sorted(drawn.tolist())]
    captions.has_caption[..., 0] = False
    correspondence.estimate_clean_shares(*given, most_clips=3)
    assert len(rows) == 3


@pytest.fixture(scope="module")
def joined(home: Path) -> Path:
    """The tones, and sixteen others."""
    others = [tone_clip("train", 100 + n, {"eng": [f"other {n}"], "fra": [f"autre {n}"]}) for n in range(16)]
    write_clips(home / "others", others, name="others", licence="none")
    sets = (str(home / "tones"), str(home / "others"))
    join_data_sets(Join(sets=sets, ray="never", recordings="bytes", leaks="keep"), home / "joined")
    return home / "joined"


def test_of_parts_that_an_epoch_has_more_often_more_clips_are_asked(
    home: Path, joined: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    spied(monkeypatch, correspondence, "_readings", lambda found, *given: read.append(given[4]))
    for weights in ((), ("tones=0",), ("tones=.25", "others=.5")):
        prior = {"objective__correspondence": "small_loss", **PRIOR}
        experiment = tiny(joined, data__weights=weights, train__batch_size=4, **prior)
        data = TrainingData(experiment, prepared_for(experiment, home), WorkerGroup())
        begin_epoch(first_state(data, tmp_path), data, 0)
    every, none, half = read
    assert every.tolist() == list(range(40))
    assert none.tolist() == list(range(24, 40))
    assert half[-16:].tolist() == list(range(24, 40))
    assert 6 <= len(half) - 16 <= 18


def test_leave_one_out_asks_the_clips_that_are_trained_for_their_share(
    home: Path, joined: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []
    spied(monkeypatch, leave_one_out, "true_share", lambda found, read, *given: asked.append([len(read[0].audio)]))
    for weights in ((), ("tones=0",), ("others=0",)):
        changes = {"objective__correspondence": "leave_one_out", "data__languages": "eng", "train__batch_size": 4}
        experiment = tiny(joined, data__weights=weights, **changes)
        data = TrainingData(experiment, prepared_for(experiment, home), WorkerGroup())
        begin_epoch(first_state(data, tmp_path), data, 0)
    assert asked == [[40], [16], [24]]


@pytest.mark.parametrize("per_epoch", ["one", "each"])
def test_the_share_of_true_pairs_is_that_of_the_clips_that_an_epoch_has(
    home: Path, joined: Path, per_epoch: str
) -> None:
    noise = {"data__noise__ratio": 0.5, "data__noise__parts": ("others",), "data__captions_per_epoch": per_epoch}
    for weights, expected in (((), 0.825), (("tones=0",), 0.5625), (("others=0",), 1.0), (("others=2",), 0.75)):
        experiment = tiny(joined, data__weights=weights, data__languages="eng", train__batch_size=4, **noise)
        data = TrainingData(experiment, prepared_for(experiment, home), WorkerGroup())
        # Seven of the sixteen others have another's caption.
        assert data.clean_share == pytest.approx(expected)


def test_an_audit_tells_no_share_of_parts_that_are_weighed(joined: Path, tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    audited = {"data_hash": read_manifest(str(joined)).hash, "split": "train"}
    file.write_text(json.dumps({**audited, "wrong_share_by_language": {"eng": {"share": 0.2}, "fra": {"share": 0.2}}}))
    for weights in ((), ("tones=1",)):
        checks.check_wrong_share(tiny(joined, data__wrong_share=str(file), data__weights=weights))
    with pytest.raises(ValueError, match=r"audit\.json: got 'an audit'; allowed no data\.weights.* as a number"):
        checks.check_wrong_share(tiny(joined, data__wrong_share=str(file), data__weights=("tones=.5",)))
    checks.check_wrong_share(tiny(joined, data__wrong_share=0.2, data__weights=("tones=.5",)))


def test_an_audit_is_read_once_before_the_start(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    spied(monkeypatch, correspondence, "read_json", lambda _, file: read.append(file))
    settings = {"objective__scheme": "kcl", "data__wrong_share": given("audit", home)}
    checks.check_wrong_share(tiny(home / "tones", **settings))
    assert len(read) == 1
    with pytest.raises(ValueError, match=r"audit\.json: got 'no share of deu'"):
        checks.check_wrong_share(tiny(home / "tones", **settings, data__languages=("eng", "deu")))


def test_soundscapes_that_are_not_made_yet_have_the_captions_that_they_will_have() -> None:
    settings = SoundscapesSettings(num_train=3, num_val=1, num_test=1, seconds=2.0)
    made = [
        (clip.clip_id, language, text)
        for clip in generate(settings)
        if clip.split == "train"
        for language, texts in clip.captions.items()
        for text in texts
    ]
    assert checks._digests_of(settings, "", "train") == caption_digests(made[::-1])
