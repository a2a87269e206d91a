"""Random retrievers, sounds and questions together: every way to an answer ends with the same one.

With RAY_ATR_WHOLE_PRODUCT=1 a hundred archives are tried here, else two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray

from ray_atr.data.audio import one_thread
from ray_atr.deploy.index.build import build_index, update_index
from ray_atr.deploy.index.opened import Index
from ray_atr.deploy.index.options import IndexEncoding
from ray_atr.deploy.index.search import Match
from ray_atr.deploy.index.shards import open_shards
from ray_atr.models.mlflow_model import RetrieverModel
from tests.support.random_archives import change_random_sounds, random_retriever, write_random_sounds
from tests.support.whole_product import IS_WHOLE

SEEDS = range(100) if IS_WHOLE else (2, 9)
TEXTS = (
    "a low tone",
    "Ein Hund bellt zweimal.",
    "犬が二回吠える。",
    "e\u0301 é",
    "🐶",
    "x " * 300,
    "  two\nlines ",
    "a low tone",
)
IN_16_BITS = 2e-3
"""Error of a number in 16 bits, as a share of the largest."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def rows_of(folder: Path) -> list[dict[str, Any]]:
    (file,) = folder.glob("*/vectors.parquet")
    return pq.read_table(file).to_pylist()


def require_ranked(
    found: Sequence[Match], rows: Sequence[dict[str, Any]], query: NDArray[np.float32], distance: str, top: int
) -> None:
    """AssertionError unless these are the best `top` rows for a query [r], by scores that are computed here."""
    vectors = np.array([row["vector"] for row in rows], np.float64)
    scores = vectors @ query if distance == "cosine" else -np.linalg.norm(vectors - query, axis=1)
    scores = np.clip(scores, -1, 1) if distance == "cosine" else scores
    own = {(row["path"], row["start"]): score for row, score in zip(rows, scores, strict=True)}
    close = {"rel": 1e-5, "abs": 2e-5}
    assert [one.score for one in found] == pytest.approx(sorted(scores, reverse=True)[:top], **close)
    assert [one.score for one in found] == pytest.approx([own[one.path, one.start] for one in found], **close)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert len({(one.path, one.start) for one in found}) == len(found) == min(top, len(rows))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no captions in")
@pytest.mark.parametrize("seed", SEEDS)
def test_every_way_to_an_answer_ends_with_the_same_one(tmp_path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    retriever = random_retriever(tmp_path, generator)
    model, audio, index = str(tmp_path / "model"), tmp_path / "audio", tmp_path / "index"
    audio.mkdir()
    write_random_sounds(audio, 12, generator)
    encoding = IndexEncoding(batch_size=int(generator.integers(1, 20)), ray="never")
    changes = build_index(model, str(audio), str(index), encoding=encoding)
    rows, opened, distance = rows_of(index), Index.open(index), retriever.distance
    names = sorted({row["path"] for row in rows})
    vectors_of: dict[str, NDArray[np.float32]] = {}
    for name in names:
        own = [row for row in rows if row["path"] == name]
        starts, vectors = retriever.encode_windows(audio / name)
        assert [row["start"] for row in own] == pytest.approx(starts, abs=1e-6)
        assert_near(np.array([row["vector"] for row in own]), vectors)
        vectors_of[name] = retriever.encode_audio(audio / name).numpy()[0]
    for name in changes.broken:
        with pytest.raises(ValueError, match="got"):
            retriever.encode_windows(audio / name)
    language = "eng"
    queries = retriever.encode_text(TEXTS, language).numpy()
    for top in (1, 5, 1_000):
        for text, query, together in zip(TEXTS, queries, opened.search_many(TEXTS, language, top=top), strict=True):
            require_ranked(together, rows, query, distance, top)
            require_ranked(opened.search(text, language, top=top), rows, query, distance, top)
    for name in names[:3]:
        require_ranked(opened.like(audio / name, top=5), rows, vectors_of[name], distance, 5)
        tags = {tag["label"]: tag["score"] for tag in opened.tag(audio / name, None, TEXTS, language)}
        given = torch.from_numpy(queries), torch.from_numpy(vectors_of[name])[None]
        expected = retriever.similarity(*given)[:, 0].tolist()
        assert [tags[text] for text in TEXTS] == pytest.approx(expected, abs=1e-5)
    # MLflow's model.
    packed = RetrieverModel()
    packed.load_context(SimpleNamespace(artifacts={"retriever": model}))
    assert_near(packed.predict(None, pd.DataFrame({"text": TEXTS, "language": language})), queries, 1e-5)
    heard = packed.predict(None, pd.DataFrame({"audio": [(audio / name).read_bytes() for name in names]}))
    assert_near(heard, np.stack([vectors_of[name] for name in names]), 1e-5)
    # Two halves as one.
    halves = []
    for part in ("1/2", "2/2"):
        halves.append(str(tmp_path / f"part {part[0]}"))
        build_index(model, str(audio), halves[-1], part=part, encoding=encoding)
    both = [row for half in halves for row in rows_of(Path(half))]
    assert {(row["path"], row["start"]) for row in both} == {(row["path"], row["start"]) for row in rows}
    require_ranked(open_shards(halves).search(TEXTS[0], language, top=7), both, queries[0], distance, 7)
    # An update is the build of what is there.
    change_random_sounds(audio, generator)
    update_index(str(index), encoding=encoding)
    build_index(model, str(audio), str(tmp_path / "new"), encoding=encoding)
    updated, built = rows_of(index), rows_of(tmp_path / "new")
    assert [(row["path"], row["start"], row["end"], row["clip_id"]) for row in updated] == [
        (row["path"], row["start"], row["end"], row["clip_id"]) for row in built
    ]
    assert_near(np.array([row["vector"] for row in updated]), np.array([row["vector"] for row in built]))


def assert_near(found: Any, expected: Any, error: float = IN_16_BITS) -> None:
    largest = max(1.0, float(np.abs(np.asarray(expected)).max(initial=0)))
    np.testing.assert_allclose(np.asarray(found, np.float32), np.asarray(expected, np.float32), atol=error * largest)
