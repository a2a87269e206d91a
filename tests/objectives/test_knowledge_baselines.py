"""MoCo, NNCLR and ANCE against loops over their papers' losses."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from ray_atr.objectives import Embeddings, Objective
from ray_atr.objectives.knowledge import Ance, Moco, Nnclr
from ray_atr.objectives.knowledge.knowledge import Retrieved, SnapshotSettings
from ray_atr.objectives.pairs import Comparison, Triplet
from ray_atr.objectives.schemes import Cacl, English, Kcl, MlClap
from ray_atr.training.knowledge_base.building import build
from ray_atr.training.knowledge_base.queue import Identity, Queue
from ray_atr.training.knowledge_base.searcher import Searcher, draw_from_pool
from ray_atr.training.knowledge_base.snapshot import Entries

B, K, D, Q = 5, 3, 8, 11
TAU = 0.07


def unit(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


def filled_queue(dtype=torch.float64):
    queue = Queue(Q, D, K)
    queue.audio, queue.text = queue.audio.to(dtype), queue.text.to(dtype)
    mask = torch.ones(Q, K, dtype=torch.bool)
    mask[3, 0] = mask[4, 1] = False
    queue.push(OTHERS, unit(Q, D, seed=20), unit(Q, K, D, seed=21), mask)
    return queue


OTHERS = Identity(torch.arange(100, 100 + Q), torch.arange(200, 200 + Q))
BATCH = Identity(torch.arange(B), torch.arange(50, 50 + B))


def nce(anchor, positive, negatives):
    own = math.exp(float(anchor @ positive) / TAU)
    return -math.log(own / (own + sum(math.exp(float(anchor @ n) / TAU) for n in negatives)))


def test_moco_is_its_papers_loss():
    audio, text, queue = unit(B, D, seed=1), unit(B, K, D, seed=2), filled_queue()
    audio_keys, text_keys = unit(B, D, seed=3), unit(B, K, D, seed=4)
    found = queue.keys(BATCH, audio_keys, text_keys)
    english = [n for n in range(Q) if n != 3]
    expected = 0.0
    for i in range(B):
        expected += 0.5 * nce(audio[i], text_keys[i, 0], [queue.text[n, 0] for n in english]) / B
        expected += 0.5 * nce(text[i, 0], audio_keys[i], list(queue.audio)) / B
    terms = Objective(knowledge=Moco())(Embeddings(audio=audio, text=text), retrieved=found)
    assert float(terms.loss) == pytest.approx(expected, rel=1e-9)


def soft_targets(comparison):
    """The comparison with targets [B, B], and sample weights as a correspondence that rematches pairs gives them."""
    targets = torch.softmax(3 * unit(B, B, seed=9), dim=1)
    return dataclasses.replace(comparison, targets=targets, sample_weight=torch.linspace(0.2, 1, B).double())


def with_soft_targets(loss_of):
    """The loss of `soft_targets`, by loops, where `loss_of(i, j)` are those of row i and of column i with partner j."""
    comparison, expected = soft_targets(Comparison(unit(B, D), unit(B, D))), 0.0
    for i in range(B):
        weight = float(comparison.sample_weight[i])
        of_column = comparison.targets[:, i] * comparison.sample_weight
        column_weight = float(of_column.sum())
        for j in range(B):
            row, column = loss_of(i, j)
            expected += 0.5 * weight * float(comparison.targets[i, j]) * row / B
            expected += 0.5 * column_weight * float(of_column[j] / of_column.sum()) * column / B
    return expected


def test_soft_targets_are_the_partners_of_moco_and_ance():
    audio, text, queue = unit(B, D, seed=1), unit(B, 1, D, seed=2), filled_queue()
    audio_keys, text_keys = unit(B, D, seed=3), unit(B, K, D, seed=4)
    english = [queue.text[n, 0] for n in range(Q) if n != 3]
    expected = with_soft_targets(
        lambda i, j: (nce(audio[i], text_keys[j, 0], english), nce(text[i, 0], audio_keys[j], list(queue.audio)))
    )
    embeddings, found = Embeddings(audio=audio, text=text), queue.keys(BATCH, audio_keys, text_keys)
    terms = Objective(knowledge=Moco())(embeddings, retrieved=found, weigh_pairs=soft_targets)
    assert float(terms.loss) == pytest.approx(expected, rel=1e-9)

    knowledge, snapshot = Ance(pool=4, negatives=4), snapshot_of()
    searcher = Searcher(snapshot, knowledge.search_spec)
    positions = searcher.search(audio, text, None, [f"c{i}" for i in range(B)])
    near = Retrieved(fine=_double(searcher.look_up(positions).fine))
    texts, clips = near.fine.by_audio.text[:, 0], near.fine.by_text.audio[:, 0]
    expected = with_soft_targets(
        lambda i, j: (nce(audio[i], text[j, 0], list(texts[i])), nce(text[i, 0], audio[j], list(clips[i])))
    )
    terms = Objective(knowledge=knowledge)(embeddings, retrieved=near, weigh_pairs=soft_targets)
    assert float(terms.loss) == pytest.approx(expected, rel=1e-6)


def test_nnclr_is_its_papers_loss():
    audio, text, queue = unit(B, D, seed=1), unit(B, K, D, seed=2), filled_queue()
    expected = 0.0
    near_audio = [max(queue.audio, key=lambda q: float(audio[i] @ q)) for i in range(B)]
    english = [queue.text[n, 0] for n in range(Q) if n != 3]
    near_text = [max(english, key=lambda q: float(text[i, 0] @ q)) for i in range(B)]
    for i in range(B):
        expected += 0.5 * nce(near_audio[i], text[i, 0], [text[j, 0] for j in range(B) if j != i]) / B
        expected += 0.5 * nce(near_text[i], audio[i], [audio[j] for j in range(B) if j != i]) / B
    terms = Objective(knowledge=Nnclr())(
        Embeddings(audio=audio, text=text), retrieved=queue.nearest(BATCH, audio, text)
    )
    assert float(terms.loss) == pytest.approx(expected, rel=1e-9)


def test_moco_leaves_out_the_keys_of_the_clip_itself_and_of_its_positives():
    audio, text, queue = unit(B, D, seed=1), unit(B, K, D, seed=2), filled_queue()
    audio_keys, text_keys = unit(B, D, seed=3), unit(B, K, D, seed=4)
    # Clip 0 has two earlier keys, 5 and 7; clip 2 has the caption of the queued 3, 6 and 9.
    clips, groups = BATCH.clip.clone(), BATCH.group.clone()
    queue.identity.clip[[5, 7]] = clips[0]
    queue.identity.group[[3, 6, 9]] = groups[2]
    found = queue.keys(Identity(clips, groups), audio_keys, text_keys)
    left_out = {0: {5, 7}, 2: {3, 6, 9}}
    expected = 0.0
    for i in range(B):
        among = [n for n in range(Q) if n not in left_out.get(i, ())]
        expected += 0.5 * nce(audio[i], text_keys[i, 0], [queue.text[n, 0] for n in among if n != 3]) / B
        expected += 0.5 * nce(text[i, 0], audio_keys[i], [queue.audio[n] for n in among]) / B
    terms = Objective(knowledge=Moco())(Embeddings(audio=audio, text=text), retrieved=found)
    assert float(terms.loss) == pytest.approx(expected, rel=1e-9)


def test_what_belongs_to_nnclrs_neighbour_is_no_negative():
    audio, text, queue = unit(B, D, seed=1), unit(B, K, D, seed=2), filled_queue()
    near = [max(range(Q), key=lambda n: float(audio[i] @ queue.audio[n])) for i in range(B)]
    english = [n for n in range(Q) if n != 3]
    near_text = [max(english, key=lambda n: float(text[i, 0] @ queue.text[n, 0])) for i in range(B)]
    # What clip 0's audio finds is an earlier embedding of clip 1; what clip 2's text finds has the caption of clip 4.
    queue.identity.clip[near[0]] = BATCH.clip[1]
    queue.identity.group[near_text[2]] = BATCH.group[4]

    def is_like(n, j):
        return int(queue.identity.clip[n]) == int(BATCH.clip[j]) or int(queue.identity.group[n]) == int(BATCH.group[j])

    assert is_like(near[0], 1)
    assert is_like(near_text[2], 4)
    expected = 0.0
    for i in range(B):
        like = [j for j in range(B) if j == i or is_like(near[i], j)]
        like_text = [j for j in range(B) if j == i or is_like(near_text[i], j)]
        texts = [text[j, 0] for j in range(B) if j not in like]
        clips = [audio[j] for j in range(B) if j not in like_text]
        of_rows = [nce(queue.audio[near[i]], text[j, 0], texts) for j in like]
        of_columns = [nce(queue.text[near_text[i], 0], audio[j], clips) for j in like_text]
        expected += 0.5 * (np.mean(of_rows) + np.mean(of_columns)) / B
    found = queue.nearest(BATCH, audio, text)
    terms = Objective(knowledge=Nnclr())(Embeddings(audio=audio, text=text), retrieved=found)
    assert float(terms.loss) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("changed", [{"pool": 9}, {"index": "hnsw"}, {"probes": 3}, {"exclude_own": False}])
def test_what_ance_searches_is_what_is_set(changed):
    (setting,) = changed
    field = {"pool": "neighbours", "exclude_own": "excluded"}.get(setting, setting)
    plain = Ance().search_spec
    assert Ance(**changed).search_spec == dataclasses.replace(
        plain, **{field: "nothing" if setting == "exclude_own" else changed[setting]}
    )
    assert plain.excluded == "positives"


def test_ance_draws_no_positives():
    audio, text = unit(B, D, seed=1), unit(B, 1, D, seed=2)
    plain = Ance(pool=4, negatives=4).search_spec
    nearest = Searcher(snapshot_of(), plain).search(audio, text, None, ["x"] * B, torch.full((B,), -5))
    worst = int(nearest.fine_audio[0, 0, 0])
    snapshot = dataclasses.replace(snapshot_of(), groups=np.where(np.arange(60) == worst, 77, -1 - np.arange(60)))
    groups = torch.tensor([77, -5, -5, -5, -5])
    found = Searcher(snapshot, plain).search(audio, text, None, ["x"] * B, groups)
    assert worst not in found.fine_audio[0, 0].tolist()
    assert found.fine_audio[0, 0, :3].tolist() == nearest.fine_audio[0, 0, 1:].tolist()
    assert torch.equal(found.fine_audio[1:], nearest.fine_audio[1:])


def snapshot_of(N=60):
    entries = Entries(unit(N, D, seed=30).numpy(), unit(N, D, seed=31).numpy(), [f"c{i}" for i in range(N)])
    return build(entries, SnapshotSettings())


@pytest.mark.parametrize("in_batch", [False, True])
def test_ance_is_its_papers_loss(in_batch):
    audio, text, snapshot = unit(B, D, seed=1), unit(B, 1, D, seed=2), snapshot_of()
    knowledge = Ance(pool=4, negatives=4, in_batch=in_batch)
    searcher, ids = Searcher(snapshot, knowledge.search_spec), [f"c{i}" for i in range(B)]
    positions = searcher.search(audio, text, None, ids)
    expected = 0.0
    for i in range(B):
        others = [n for n in range(60) if n != i]
        hard_texts = sorted(others, key=lambda n: -float(np.dot(audio[i], snapshot.text[0, n])))[:4]
        hard_clips = sorted(others, key=lambda n: -float(np.dot(text[i, 0], snapshot.audio[n])))[:4]
        in_text = [text[j, 0] for j in range(B) if j != i and in_batch]
        in_audio = [audio[j] for j in range(B) if j != i and in_batch]
        texts = [torch.from_numpy(snapshot.text[0, n]).double() for n in hard_texts]
        clips = [torch.from_numpy(snapshot.audio[n]).double() for n in hard_clips]
        expected += 0.5 * nce(audio[i], text[i, 0], texts + in_text) / B
        expected += 0.5 * nce(text[i, 0], audio[i], clips + in_audio) / B
    found = searcher.look_up(positions)
    found = type(found)(fine=_double(found.fine))
    terms = Objective(knowledge=knowledge)(Embeddings(audio=audio, text=text), retrieved=found)
    assert float(terms.loss) == pytest.approx(expected, rel=1e-6)


def _double(granularity):
    def widened(near):
        return type(near)(near.audio.double(), near.text.double(), near.valid)

    return type(granularity)(widened(granularity.by_audio), widened(granularity.by_text))


def test_drawn_negatives_come_from_the_pool_depend_on_the_step_and_not_on_the_share():
    audio, text, snapshot = unit(B, D, seed=1).float(), unit(B, K, D, seed=2).float(), snapshot_of()
    ids = [f"c{i}" for i in range(B)]
    pool = Searcher(snapshot, Ance(pool=20, negatives=6).search_spec).search(audio, text, None, ids)
    drawn = draw_from_pool(pool, ids, 6, seed=0, step=9)
    for i in range(B):
        picked = drawn.fine_text[i, 1].tolist()
        assert len(set(picked)) == 6
        assert set(picked) <= set(pool.fine_text[i, 1].tolist())
    assert not torch.equal(drawn.fine_audio, draw_from_pool(pool, ids, 6, seed=0, step=10).fine_audio)
    half = type(pool)(*(part[3:] for part in pool))
    assert torch.equal(drawn.fine_text[3:], draw_from_pool(half, ids[3:], 6, seed=0, step=9).fine_text)


def test_a_pool_larger_than_the_base_still_has_a_finite_loss():
    audio, text = unit(B, D, seed=1).requires_grad_(), unit(B, 1, D, seed=2)
    for in_batch in (False, True):
        knowledge = Ance(pool=50, negatives=50, in_batch=in_batch)
        searcher = Searcher(snapshot_of(4), knowledge.search_spec)
        found = searcher.look_up(searcher.search(audio, text, None, [f"c{i}" for i in range(B)]))
        terms = Objective(knowledge=knowledge)(
            Embeddings(audio=audio, text=text), retrieved=type(found)(fine=_double(found.fine))
        )
        terms.loss.backward()
        assert torch.isfinite(terms.loss)
        assert torch.isfinite(audio.grad).all()


@pytest.mark.parametrize("scheme", [English(), MlClap(), Cacl(), Kcl()])
def test_every_scheme_takes_them(scheme):
    mask = torch.ones(B, K, dtype=torch.bool)
    mask[2, 1] = False
    draw = torch.tensor([1, 2, 2, 1, 2])
    queue, snapshot = filled_queue(), snapshot_of()
    for knowledge in (Moco(), Nnclr(), Ance(pool=9, negatives=9)):
        audio, text = unit(B, D, seed=1).requires_grad_(), unit(B, K, D, seed=2).requires_grad_()
        batch = Embeddings(audio=audio, text=text, mask=mask)
        if knowledge.name == "moco":
            found = queue.keys(BATCH, unit(B, D, seed=3), unit(B, K, D, seed=4))
        elif knowledge.name == "nnclr":
            found = queue.nearest(BATCH, batch.audio.detach(), batch.text.detach())
        else:
            searcher = Searcher(snapshot, knowledge.search_spec)
            found = searcher.look_up(searcher.search(batch.audio, batch.text, mask))
            found = type(found)(fine=_double(found.fine))
        terms = Objective(scheme=scheme, knowledge=knowledge)(batch, draw=draw, retrieved=found)
        terms.loss.backward()
        assert torch.isfinite(audio.grad).all()
        assert float(audio.grad.abs().sum()) > 0
        assert (text.grad[2, 1] == 0).all()


def test_what_they_are_not_defined_for_is_refused():
    queue = filled_queue()
    batch = Embeddings(audio=unit(B, D), text=unit(B, K, D))
    with pytest.raises(ValueError, match="contrastive"):
        Objective(pair=Triplet(), knowledge=Moco())(batch, retrieved=queue.keys(BATCH, unit(B, D), unit(B, K, D)))
    with pytest.raises(ValueError, match="contrastive"):
        Objective(pair=Triplet(), knowledge=Ance(in_batch=True))(batch, retrieved=Retrieved())
    with pytest.raises(ValueError, match="pool"):
        Ance(pool=3, negatives=4)
