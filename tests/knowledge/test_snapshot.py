"""Building, saving and searching a base against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ray_atr.objectives.knowledge.knowledge import SearchSpec, SnapshotSettings
from ray_atr.training.knowledge_base.building import build
from ray_atr.training.knowledge_base.searcher import Searcher, as_tensor, exact_top_k, fused_top_k
from ray_atr.training.knowledge_base.snapshot import _ARRAYS, Entries, load, save
from tests.support.unit_rows import unit


def asked(**changes):
    return SearchSpec(**{"neighbours": 5, "index": "auto", "probes": 1000, **changes})


def retrieve(snapshot, audio, text, spec, own_ids=None):
    searcher = Searcher(snapshot, spec)
    return searcher.look_up(searcher.search(audio, text, None, own_ids))


def make(N=300, D=16, L=1, seed=0, **settings):
    random = np.random.default_rng(seed)
    audio, text = random.normal(size=(N, D)), random.normal(size=(L, N, D))
    ids = [f"clip{i}" for i in range(N)]
    return build(Entries(audio, text, ids), SnapshotSettings(**{"prototypes": 20, **settings}), version=3, step=70)


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
    found = Searcher(snapshot, asked(index=index)).search(audio, text, None, own)
    for i in range(7):
        assert found.fine_audio[i, 0].tolist() == nearest_by_loop(audio[i].numpy(), snapshot.audio, 5, {i})
        assert found.coarse_audio[i, 0].tolist() == nearest_by_loop(audio[i].numpy(), snapshot.coarse_audio, 5)
        for k in range(3):
            assert found.fine_text[i, k].tolist() == nearest_by_loop(text[i, k].numpy(), snapshot.text[0], 5, {i})


def test_an_automatic_index_is_exact_up_to_the_entries_that_are_set():
    assert not len(make(exact_up_to=300).audio_index)
    assert len(make(exact_up_to=299).audio_index)


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
    doubled = Entries(
        np.concatenate([snapshot.audio, snapshot.audio[:4]]),
        np.concatenate([snapshot.text[0], snapshot.text[0, :4]]),
        [*snapshot.names, *snapshot.names[:4]],
    )
    twice = build(doubled, SnapshotSettings(prototypes=0))
    audio, text = torch.from_numpy(snapshot.audio[:6].copy()), torch.from_numpy(snapshot.text[0, :6].copy())[:, None]
    own = snapshot.names[:6]
    found = Searcher(twice, asked()).search(audio, text, None, own)
    for i in range(6):
        mine = {i, 40 + i} if i < 4 else {i}
        assert not mine & set(found.fine_audio[i, 0].tolist())
        # Equal entries tie, so what is compared is which clips were found.
        expected = nearest_by_loop(audio[i].numpy(), twice.audio, 5, mine)
        assert twice.ids[found.fine_audio[i, 0]].tolist() == twice.ids[expected].tolist()
    with_own = Searcher(twice, asked(excluded="nothing")).search(audio, text, None, own)
    assert all(i in with_own.fine_audio[i, 0].tolist() for i in range(6))


def test_a_base_smaller_than_the_neighbours_asked_for_marks_what_is_missing():
    snapshot = make(N=3, prototypes=2)
    audio, text = queries(snapshot, count=2)
    retrieved = retrieve(snapshot, audio, text, asked(), ["clip0", "elsewhere"])
    assert retrieved.fine.by_audio.valid[:, 0].sum(dim=1).tolist() == [2, 3]
    assert retrieved.coarse.by_audio.valid.shape[-1] == 2


@pytest.mark.parametrize("index", ["exact", "flat", "ivf", "hnsw"])
def test_an_absent_text_takes_no_place_from_one_that_is_unlike_the_query(index):
    """A row of zeros is nearer to a query than every text that points away from it."""
    random = np.random.default_rng(0)
    text, there = -np.abs(random.normal(size=(2, 40, 8))), np.arange(40) % 2 == 0
    mask = np.stack([there, np.zeros(40, dtype=bool)])
    text[0, :10:2] = text[0, 0]
    snapshot = build(
        Entries(text[0], text, [str(n) for n in range(40)], mask), SnapshotSettings(prototypes=0, index=index)
    )
    query = torch.from_numpy(np.abs(random.normal(size=(3, 2, 8)))).float()
    for wanted in (5, 30):
        spec = SearchSpec(wanted, index, 1000, coarse=False, excluded="nothing")
        found = Searcher(snapshot, spec).search(query[:, 0], query).fine_text
        for own, places in zip(query[:, 0].numpy(), found[:, 0].tolist(), strict=True):
            nearest = nearest_by_loop(own, snapshot.text[0], wanted, np.flatnonzero(~there))
            assert places == nearest + [-1] * (wanted - len(nearest))
        assert bool((found[:, 1] == -1).all())


def test_absent_texts_are_not_searched_for_and_not_found():
    random = np.random.default_rng(0)
    audio, text = random.normal(size=(30, 8)), random.normal(size=(2, 30, 8))
    there = np.ones((2, 30), dtype=bool)
    there[1, 10:] = False
    text[1, 10:] = np.nan
    snapshot = build(Entries(audio, text, [str(i) for i in range(30)], there), SnapshotSettings(prototypes=4))
    asked_audio, asked_text = queries(snapshot, count=5, K=2)
    mask = torch.tensor([[True, True]] * 4 + [[True, False]])
    found = Searcher(snapshot, asked()).search(asked_audio, asked_text, mask, None)
    assert (found.fine_text[4, 1] == -1).all()
    assert (found.fine_text[:4, 1] < 10).all()
    assert (found.fine_text[:4, 1] >= 0).all()
    looked = Searcher(snapshot, asked()).look_up(found)
    assert torch.isfinite(looked.fine.by_text.text).all()
    assert looked.fine.by_audio.text.shape == (5, 2, 5, 8)


def test_looked_up_entries_are_the_pairs_at_the_positions():
    snapshot = make(L=2)
    audio, text = queries(snapshot, K=2)
    searcher = Searcher(snapshot, asked())
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
    others = build(Entries(snapshot.audio, snapshot.audio[::-1], snapshot.names), SnapshotSettings(prototypes=20))
    assert np.array_equal(others.cluster, snapshot.cluster)


def test_equal_entries_leave_no_prototype_that_is_empty():
    audio = np.ones((12, 4))
    snapshot = build(Entries(audio, audio, [str(i) for i in range(12)]), SnapshotSettings(prototypes=5))
    assert 1 <= snapshot.num_prototypes <= 5
    assert np.isfinite(snapshot.coarse_audio).all()
    assert np.allclose(np.linalg.norm(snapshot.coarse_audio, axis=1), 1, atol=1e-6)


def test_the_next_version_starts_from_the_centroids_of_the_last_and_builds_are_repeatable():
    first, again = make(), make()
    assert np.array_equal(first.cluster, again.cluster)
    # Another seed: what begins anew has other clusters, or at least other numbers for them.
    settings = SnapshotSettings(prototypes=20, warm_iterations=1, seed=99)
    cold = build(Entries(first.audio, first.text, first.names), settings)
    assert (cold.cluster == first.cluster).mean() < 0.5
    warm = build(Entries(first.audio, first.text, first.names), settings, previous=first)
    assert (warm.cluster == first.cluster).mean() > 0.9


@pytest.mark.parametrize("storage", ["float32", "float16"])
@pytest.mark.parametrize("index", ["exact", "ivf"])
def test_a_saved_snapshot_is_read_back_as_it_was(tmp_path, storage, index):
    snapshot = make(storage=storage, index=index, L=2)
    assert snapshot.audio.dtype == snapshot.text.dtype == snapshot.coarse_audio.dtype == storage
    read = load(save(snapshot, tmp_path / "v3"))
    assert (read.version, read.step) == (3, 70)
    for name in _ARRAYS:
        assert np.array_equal(getattr(read, name), getattr(snapshot, name))
        assert getattr(read, name).dtype == getattr(snapshot, name).dtype
    audio, text = queries(snapshot, K=2)
    assert torch.equal(
        Searcher(read, asked(index=index)).search(audio, text).fine_audio,
        Searcher(snapshot, asked(index=index)).search(audio, text).fine_audio,
    )
    assert [path.name for path in tmp_path.iterdir()] == ["v3"]


def test_positives_are_left_out_where_asked_by_a_loop():
    random = np.random.default_rng(0)
    audio, text = random.normal(size=(30, 8)), random.normal(size=(30, 8))
    groups = np.array([i % 10 for i in range(30)])
    ids = [f"clip{i}" for i in range(30)]
    snapshot = build(Entries(audio, text, ids, groups=groups), SnapshotSettings(prototypes=0))
    wanted_audio, wanted_text = queries(snapshot, count=4)
    # Two of the queries have the group of what is nearest to them.
    nearest = [nearest_by_loop(query.numpy(), snapshot.audio, 1)[0] for query in wanted_audio]
    own, mine = ["clip3", "elsewhere", "clip7", "clip7"], torch.tensor([*groups[nearest[:2]].tolist(), 1, -7])
    found = Searcher(snapshot, asked(excluded="positives")).search(wanted_audio, wanted_text, None, own, mine)
    for i in range(4):
        out = {n for n in range(30) if ids[n] == own[i] or groups[n] == int(mine[i])}
        assert found.fine_audio[i, 0].tolist() == nearest_by_loop(wanted_audio[i].numpy(), snapshot.audio, 5, out)
        assert found.fine_text[i, 0].tolist() == nearest_by_loop(wanted_text[i, 0].numpy(), snapshot.text[0], 5, out)
    own_alone = Searcher(snapshot, asked()).search(wanted_audio, wanted_text, None, own, mine)
    assert not torch.equal(own_alone.fine_audio, found.fine_audio)


def test_texts_clustered_by_themselves_pool_the_members_of_their_own_clusters():
    random = np.random.default_rng(0)
    entries = Entries(random.normal(size=(60, 8)), random.normal(size=(60, 8)), [str(i) for i in range(60)])
    settings = SnapshotSettings(prototypes=6, separate_text_clusters=True)
    snapshot = build(entries, settings)
    nearest = [int(np.argmin(((row - snapshot.text_centroids[0]) ** 2).sum(axis=1))) for row in snapshot.text[0]]
    pools = [unit(np.max(snapshot.text[0][np.array(nearest) == p], axis=0)) for p in range(6) if p in nearest]
    for pooled in pools:
        assert np.abs(snapshot.coarse_text[0] - pooled).max(axis=1).min() < 1e-5
    together = build(entries, SnapshotSettings(prototypes=6))
    assert np.array_equal(together.coarse_audio, snapshot.coarse_audio)
    assert not np.allclose(together.coarse_text, snapshot.coarse_text)
    # The next version starts from these centroids.
    warm = build(entries, settings, previous=snapshot)
    assert np.allclose(np.sort(warm.coarse_text[0], axis=0), np.sort(snapshot.coarse_text[0], axis=0), atol=0.3)


def test_a_folder_without_a_manifest_is_no_snapshot(tmp_path):
    folder = save(make(), tmp_path / "v3")
    (folder / "manifest.json").unlink()
    with pytest.raises(ValueError, match="no snapshot"):
        load(folder)


def test_half_precision_finds_nearly_what_full_precision_finds():
    full, half = make(N=2000, D=64), make(N=2000, D=64, storage="float16")
    audio, text = queries(full, count=50)
    a = Searcher(full, asked()).search(audio, text).fine_audio[:, 0]
    b = Searcher(half, asked()).search(audio, text).fine_audio[:, 0]
    shared = [len(set(x.tolist()) & set(y.tolist())) for x, y in zip(a, b, strict=True)]
    assert np.mean(shared) > 4.8


def test_values_that_are_not_finite_are_refused_by_clip():
    audio = np.ones((3, 4))
    audio[1, 2] = np.nan
    with pytest.raises(ValueError, match="siren"):
        build(Entries(audio, np.ones((3, 4)), ["rain", "siren", "bell"]), SnapshotSettings())
    with pytest.raises(ValueError, match="at least one clip"):
        build(Entries(np.ones((0, 4)), np.ones((0, 4)), []), SnapshotSettings())


def test_neighbours_of_some_rows_and_languages_are_picked():
    snapshot = make(L=2)
    audio, text = queries(snapshot, K=2)
    looked = retrieve(snapshot, audio, text, asked(coarse=False))
    assert looked.coarse is None
    rows, language = torch.tensor([2, 5]), torch.tensor([1, 0])
    picked = looked.fine.vectors_of(rows, language, None)
    assert torch.equal(picked.own[0], looked.fine.by_text.text[2, 1])
    assert torch.equal(picked.partner[1], looked.fine.by_text.audio[5, 0])
    of_audio = looked.fine.vectors_of(rows, None, language)
    assert torch.equal(of_audio.partner[0], looked.fine.by_audio.text[2, 1])
    assert torch.equal(of_audio.own[0], looked.fine.by_audio.audio[2, 0])


def test_narrow_rows_in_long_blocks_are_ranked_as_in_one_matrix() -> None:
    # Several pieces that are widened, groups of scores, and a rest that fills no group.
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(2 * 1024 + 45, 8, generator=random)
    rows[-1] = 9.0
    queries = torch.randn(5, 8, generator=random)
    queries[0] = 1.0
    for entries in (rows, rows.half()):
        expected, positions = (queries @ entries.float().T).sort(dim=1, descending=True)
        scores, found = exact_top_k(queries, entries, 12)
        assert torch.equal(found, positions[:, :12])
        assert torch.allclose(scores, expected[:, :12])
        assert found[0, 0] == len(rows) - 1
