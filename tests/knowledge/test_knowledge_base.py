"""Building, saving and searching a base against plain loops."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from ray_atr.knowledge.base import BaseSettings, build, load, save
from ray_atr.knowledge.search import Searcher, as_tensor, exact_top_k, fused_top_k, retrieve


@dataclass(frozen=True)
class Asked:
    neighbours: int = 5
    fine: bool = True
    coarse: bool = True
    exclude_own: bool = True
    index: str = "auto"
    probes: int = 1000


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def make(N=300, D=16, L=1, seed=0, **settings):
    random = np.random.default_rng(seed)
    audio, text = random.normal(size=(N, D)), random.normal(size=(L, N, D))
    ids = [f"clip{i}" for i in range(N)]
    return build(audio, text, ids, BaseSettings(**{"prototypes": 20, **settings}), version=3, step=70)


def queries(snapshot, count=7, K=1, seed=1):
    random = np.random.default_rng(seed)
    D = snapshot.audio.shape[1]
    audio, text = unit(random.normal(size=(count, D))), unit(random.normal(size=(count, K, D)))
    return torch.from_numpy(audio).float(), torch.from_numpy(text).float()


def nearest_by_loop(query, rows, k, excluded=()):
    scores = [(-float(np.dot(query, row)), i) for i, row in enumerate(rows) if i not in excluded]
    return [i for _, i in sorted(scores)[:k]]


@pytest.mark.parametrize("index", ["exact", "flat", "ivf", "hnsw"])
def test_neighbours_are_the_nearest_by_a_loop_over_all_entries(index):
    snapshot = make(index=index)
    audio, text = queries(snapshot, K=3)
    own = [f"clip{i}" for i in range(7)]
    found = Searcher(snapshot, Asked(index=index)).search(audio, text, None, own)
    for i in range(7):
        assert found.fine_audio[i, 0].tolist() == nearest_by_loop(audio[i].numpy(), snapshot.audio, 5, {i})
        assert found.coarse_audio[i, 0].tolist() == nearest_by_loop(audio[i].numpy(), snapshot.coarse_audio, 5)
        for k in range(3):
            assert found.fine_text[i, k].tolist() == nearest_by_loop(text[i, k].numpy(), snapshot.text[0], 5, {i})


def test_search_by_blocks_is_the_search_of_the_whole():
    random = torch.Generator().manual_seed(0)
    rows, asked = torch.randn(1000, 8, generator=random), torch.randn(9, 8, generator=random)
    whole = (asked @ rows.T).topk(6, dim=1)
    scores, positions = exact_top_k(asked, rows, 6, block=64)
    assert torch.equal(positions, whole.indices)
    assert torch.allclose(scores, whole.values)


def test_the_fused_search_is_the_exact_one_over_read_only_rows_too():
    random = torch.Generator().manual_seed(0)
    rows, asked = torch.randn(3000, 16, generator=random), torch.randn(40, 16, generator=random)
    frozen = rows.numpy().copy()
    frozen.flags.writeable = False
    scores, positions = fused_top_k(asked, as_tensor(frozen), 6)
    expected, where = exact_top_k(asked, rows, 6)
    assert torch.equal(positions, where)
    assert torch.allclose(scores, expected, atol=1e-5)
    assert fused_top_k(asked, rows[:2], 6)[1].shape == (40, 2)


def test_a_clip_never_finds_its_own_entries_and_does_where_they_are_allowed():
    snapshot = make(N=40)
    twice = build(
        np.concatenate([snapshot.audio, snapshot.audio[:4]]),
        np.concatenate([snapshot.text[0], snapshot.text[0, :4]]),
        [*snapshot.ids, *snapshot.ids[:4]],
        BaseSettings(prototypes=0),
    )
    audio, text = torch.from_numpy(snapshot.audio[:6].copy()), torch.from_numpy(snapshot.text[0, :6].copy())[:, None]
    own = snapshot.ids[:6].tolist()
    found = Searcher(twice, Asked()).search(audio, text, None, own)
    for i in range(6):
        mine = {i, 40 + i} if i < 4 else {i}
        assert not mine & set(found.fine_audio[i, 0].tolist())
        # Equal entries tie, so what is compared is which clips were found.
        expected = nearest_by_loop(audio[i].numpy(), twice.audio, 5, mine)
        assert twice.ids[found.fine_audio[i, 0]].tolist() == twice.ids[expected].tolist()
    with_own = Searcher(twice, Asked(exclude_own=False)).search(audio, text, None, own)
    assert all(i in with_own.fine_audio[i, 0].tolist() for i in range(6))


def test_a_base_smaller_than_the_neighbours_asked_for_marks_what_is_missing():
    snapshot = make(N=3, prototypes=2)
    audio, text = queries(snapshot, count=2)
    retrieved = retrieve(snapshot, audio, text, None, Asked(), ["clip0", "elsewhere"])
    assert retrieved.fine.by_audio.valid[:, 0].sum(dim=1).tolist() == [2, 3]
    assert retrieved.coarse.by_audio.valid.shape[-1] == 2


def test_absent_texts_are_not_searched_for_and_not_found():
    random = np.random.default_rng(0)
    audio, text = random.normal(size=(30, 8)), random.normal(size=(2, 30, 8))
    there = np.ones((2, 30), dtype=bool)
    there[1, 10:] = False
    text[1, 10:] = np.nan
    snapshot = build(audio, text, [str(i) for i in range(30)], BaseSettings(prototypes=4), text_mask=there)
    asked_audio, asked_text = queries(snapshot, count=5, K=2)
    mask = torch.tensor([[True, True]] * 4 + [[True, False]])
    found = Searcher(snapshot, Asked()).search(asked_audio, asked_text, mask, None)
    assert (found.fine_text[4, 1] == -1).all()
    assert (found.fine_text[:4, 1] < 10).all()
    assert (found.fine_text[:4, 1] >= 0).all()
    looked = Searcher(snapshot, Asked()).look_up(found)
    assert torch.isfinite(looked.fine.by_text.text).all()
    assert looked.fine.by_audio.text.shape == (5, 2, 5, 8)


def test_looked_up_entries_are_the_pairs_at_the_positions():
    snapshot = make(L=2)
    audio, text = queries(snapshot, K=2)
    searcher = Searcher(snapshot, Asked())
    found = searcher.search(audio, text)
    looked = searcher.look_up(found)
    for i in range(7):
        for n, position in enumerate(found.fine_text[i, 1].tolist()):
            assert np.array_equal(looked.fine.by_text.audio[i, 1, n], snapshot.audio[position])
            assert np.array_equal(looked.fine.by_text.text[i, 1, n], snapshot.text[1, position])
        for n, position in enumerate(found.coarse_audio[i, 0].tolist()):
            assert np.array_equal(looked.coarse.by_audio.text[i, 0, n], snapshot.coarse_text[0, position])


@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_prototypes_pool_the_same_members_in_both_modalities(pooling):
    snapshot = make(pooling=pooling)
    pool = np.max if pooling == "max" else np.mean
    assert set(snapshot.cluster.tolist()) == set(range(snapshot.num_prototypes))
    for p in range(snapshot.num_prototypes):
        members = np.flatnonzero(snapshot.cluster == p)
        expected = unit(pool(np.stack([snapshot.audio[i] for i in members]), axis=0))
        assert np.allclose(snapshot.coarse_audio[p], expected, atol=1e-6)
        expected = unit(pool(np.stack([snapshot.text[0][i] for i in members]), axis=0))
        assert np.allclose(snapshot.coarse_text[0, p], expected, atol=1e-6)


def test_clusters_are_those_of_the_audio_whatever_the_texts():
    snapshot = make()
    for i in range(len(snapshot)):
        distances = [float(np.sum((snapshot.audio[i] - centroid) ** 2)) for centroid in snapshot.centroids]
        assert snapshot.cluster[i] == int(np.argmin(distances))
    others = build(snapshot.audio, snapshot.audio[::-1], snapshot.ids, BaseSettings(prototypes=20))
    assert np.array_equal(others.cluster, snapshot.cluster)


def test_equal_entries_leave_no_prototype_that_is_empty():
    audio = np.ones((12, 4))
    snapshot = build(audio, audio, [str(i) for i in range(12)], BaseSettings(prototypes=5))
    assert 1 <= snapshot.num_prototypes <= 5
    assert np.isfinite(snapshot.coarse_audio).all()
    assert np.allclose(np.linalg.norm(snapshot.coarse_audio, axis=1), 1, atol=1e-6)


def test_the_next_version_starts_from_the_centroids_of_the_last_and_builds_are_repeatable():
    first, again = make(), make()
    assert np.array_equal(first.cluster, again.cluster)
    settings = BaseSettings(prototypes=20, warm_iterations=1)
    warm = build(first.audio, first.text, first.ids, settings, previous=first)
    assert (warm.cluster == first.cluster).mean() > 0.9


@pytest.mark.parametrize("storage", ["float32", "float16"])
@pytest.mark.parametrize("index", ["exact", "ivf"])
def test_a_saved_snapshot_is_read_back_as_it_was(tmp_path, storage, index):
    snapshot = make(storage=storage, index=index, L=2)
    read = load(save(snapshot, tmp_path / "v3"))
    assert (read.version, read.step) == (3, 70)
    for name in ("ids", "audio", "text", "text_mask", "coarse_audio", "coarse_text", "cluster", "centroids"):
        assert np.array_equal(getattr(read, name), getattr(snapshot, name))
        assert getattr(read, name).dtype == getattr(snapshot, name).dtype
    audio, text = queries(snapshot, K=2)
    assert torch.equal(
        Searcher(read, Asked(index=index)).search(audio, text).fine_audio,
        Searcher(snapshot, Asked(index=index)).search(audio, text).fine_audio,
    )
    assert [path.name for path in tmp_path.iterdir()] == ["v3"]


def test_a_folder_without_a_manifest_is_no_snapshot(tmp_path):
    folder = save(make(), tmp_path / "v3")
    (folder / "manifest.json").unlink()
    with pytest.raises(ValueError, match="no snapshot"):
        load(folder)


def test_half_precision_finds_nearly_what_full_precision_finds():
    full, half = make(N=2000, D=64), make(N=2000, D=64, storage="float16")
    audio, text = queries(full, count=50)
    a = Searcher(full, Asked()).search(audio, text).fine_audio[:, 0]
    b = Searcher(half, Asked()).search(audio, text).fine_audio[:, 0]
    shared = [len(set(x.tolist()) & set(y.tolist())) for x, y in zip(a, b, strict=True)]
    assert np.mean(shared) > 4.8


def test_values_that_are_not_finite_are_refused_by_clip():
    audio = np.ones((3, 4))
    audio[1, 2] = np.nan
    with pytest.raises(ValueError, match="siren"):
        build(audio, np.ones((3, 4)), ["rain", "siren", "bell"], BaseSettings())
    with pytest.raises(ValueError, match="at least one clip"):
        build(np.ones((0, 4)), np.ones((0, 4)), [], BaseSettings())


def test_neighbours_of_some_rows_and_languages_are_picked():
    snapshot = make(L=2)
    audio, text = queries(snapshot, K=2)
    looked = retrieve(snapshot, audio, text, None, replace(Asked(), coarse=False))
    assert looked.coarse is None
    rows, language = torch.tensor([2, 5]), torch.tensor([1, 0])
    picked = looked.fine.by_text.of(rows, language, None)
    assert torch.equal(picked.text[0], looked.fine.by_text.text[2, 1])
    assert torch.equal(picked.audio[1], looked.fine.by_text.audio[5, 0])
    of_audio = looked.fine.by_audio.of(rows, None, language)
    assert torch.equal(of_audio.text[0], looked.fine.by_audio.text[2, 1])
    assert torch.equal(of_audio.audio[0], looked.fine.by_audio.audio[2, 0])
