"""The page's cases of ASK: from a trial's own knowledge base, and from no other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ray_atr.common.override import override
from ray_atr.data.shards import read_manifest
from ray_atr.evaluation.eval_split import read_eval_split
from ray_atr.evaluation.report.evaluation_content import Embedded
from ray_atr.evaluation.training_traces import NEIGHBOURS, QUERIES, case_tables
from ray_atr.objectives.knowledge.knowledge import SnapshotSettings
from ray_atr.training.knowledge_base.building import build
from ray_atr.training.knowledge_base.snapshot import Entries, save
from tests.support.tiny import make_data, tiny

D = 8


def unit(*shape: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.mark.parametrize("objective", ["ask", "contrastive"])
def test_a_trial_with_a_base_has_a_table_of_cases(tmp_path: Path, objective: str) -> None:
    data = make_data(tmp_path / "tones", num_train=20)
    ids = [f"train-{index:03d}" for index in range(20)]
    snapshot = build(Entries(unit(20, D, seed=0), unit(20, D, seed=1), ids), SnapshotSettings(prototypes=4))
    save(snapshot, tmp_path / "trial" / "knowledge" / "v000001")
    checkpoint = SimpleNamespace(
        experiment=tiny(data, objective=objective), trial=SimpleNamespace(folder=tmp_path / "trial")
    )
    eval_split = read_eval_split(read_manifest(data), "test", (), relevance="clip", max_captions=0)
    texts = {language: unit(len(eval_split.captions), D, seed=3) for language in eval_split.captions.sentences}
    embedded = Embedded(unit(len(eval_split.clip_ids), D, seed=2), texts)
    tables = case_tables(checkpoint, embedded, eval_split, 0, (5,), lambda: str(data))
    if objective != "ask":
        assert tables == []
        return
    (table,) = tables
    assert len(table.rows) == min(QUERIES, len(eval_split.captions))
    asked, *cells = [cell.text for cell in table.rows[0]]
    # The named caption comes first, and once.
    assert asked == eval_split.captions.sentences["eng"][5]
    assert len({row[0].text for row in table.rows}) == len(table.rows)
    assert len(cells) == len(table.columns) - 1 == 6
    assert cells[0].count("tone, number") == NEIGHBOURS
    phi, R, multiplier = float(cells[1]), float(cells[2]), float(cells[5])
    assert pytest.approx(-np.log(phi), abs=0.02) == R
    assert multiplier == pytest.approx(1 + 0.2 * R + 0.2 * float(cells[4]), abs=0.02)
    # The training data may be gone by the time of an evaluation on other data.
    (table,) = case_tables(checkpoint, embedded, eval_split, 0, (5,), lambda: str(tmp_path / "moved"))
    assert table.rows[0][1].text.count("train-") == NEIGHBOURS


@pytest.mark.parametrize(("languages", "asked"), [(("eng", "fra"), "fra"), (("deu", "eng"), None)])
def test_a_base_with_texts_in_several_languages_is_asked_in_one_of_them(
    tmp_path: Path, languages: tuple[str, ...], asked: str | None
) -> None:
    """Here in French, which is the first language of the evaluation and the second of the base."""
    data = make_data(tmp_path / "tones", num_train=20)
    ids = [f"train-{index:03d}" for index in range(20)]
    snapshot = build(Entries(unit(20, D, seed=0), unit(2, 20, D, seed=1), ids), SnapshotSettings(prototypes=4))
    save(snapshot, tmp_path / "trial" / "knowledge" / "v000001")
    experiment = override(tiny(data, objective="ask"), {"data.languages": languages})
    checkpoint: Any = SimpleNamespace(experiment=experiment, trial=SimpleNamespace(folder=tmp_path / "trial"))
    eval_split = read_eval_split(read_manifest(data), "test", ("fra",), relevance="clip", max_captions=0)
    # Each query is the French text of an entry, so that this one is the nearest.
    texts = {"fra": snapshot.text[1][: len(eval_split.captions)]}
    embedded = Embedded(unit(len(eval_split.clip_ids), D, seed=2), texts)
    tables = case_tables(checkpoint, embedded, eval_split, 0, (5,), lambda: str(data))
    if asked is None:
        assert tables == []
        return
    (table,) = tables
    assert table.rows[0][0].text == eval_split.captions.sentences["fra"][5]
    assert table.rows[0][1].text.startswith("a middle tone, number 5 (")


def test_named_clips_are_found_by_their_ids(tmp_path: Path) -> None:
    eval_split = read_eval_split(read_manifest(make_data(tmp_path / "tones")), "test", (), relevance="clip")
    assert eval_split.captions_of(["test-006", "test-002"]) == [6, 2]
    with pytest.raises(
        ValueError, match=r"clips: got 'test-06'; allowed ids of clips of split test \(did you mean test-006"
    ):
        eval_split.captions_of(["test-06"])
    eval_split.captions.present["fra"][2] = False
    with pytest.raises(ValueError, match=r"clips: got 'test-002'; allowed clips with a caption in every language"):
        eval_split.captions_of(["test-002"])
