"""Queues and momentum encoders."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from ray_atr.objectives import Embeddings
from ray_atr.training.knowledge_base.memory import MomentumMemory, SupportMemory
from ray_atr.training.knowledge_base.queue import Identity, Queue


def batch(first, count, D=4, K=2):
    """Clips numbered from `first`, whose embeddings say their number."""
    numbers = torch.arange(first, first + count).float()
    return (
        whose(range(first, first + count)),
        numbers[:, None].expand(count, D),
        numbers[:, None, None].expand(count, K, D),
    )


def whose(clips, groups=None):
    clips = list(clips)
    return Identity(torch.tensor(clips), torch.tensor([1000 + clip for clip in clips] if groups is None else groups))


def held(queue):
    return sorted(int(row[0]) for row in queue.audio[: queue.filled])


def test_a_queue_holds_the_last_clips_even_where_a_batch_crosses_its_end():
    queue = Queue(7, 4, 2)
    first = 0
    for count in (3, 3, 3, 5, 1):
        queue.push(*batch(first, count))
        first += count
        assert held(queue) == list(range(max(0, first - 7), first))
    assert torch.equal(queue.audio[:, 0], queue.text[:, 1, 0])
    queue.push(*batch(100, 20))
    assert held(queue) == list(range(113, 120))


def test_a_queue_goes_on_from_its_state():
    queue, other = Queue(5, 4, 2), Queue(5, 4, 2)
    queue.push(*batch(0, 3))
    other.load_state_dict(queue.state_dict())
    for one in (queue, other):
        one.push(*batch(3, 4))
    assert torch.equal(queue.audio, other.audio)
    with pytest.raises(ValueError, match="queue"):
        Queue(6, 4, 2).load_state_dict(queue.state_dict())


def test_the_nearest_of_the_support_set_by_a_loop_within_a_language():
    generator = torch.Generator().manual_seed(0)
    queue = Queue(20, 6, 3)
    audio, text = (normalize(torch.randn(*shape, generator=generator), dim=-1) for shape in ((15, 6), (15, 3, 6)))
    mask = torch.rand(15, 3, generator=generator) > 0.4
    mask[:, 2] = False
    queue.push(whose(range(15)), audio, text, mask)
    asked, words = (normalize(torch.randn(*shape, generator=generator), dim=-1) for shape in ((4, 6), (4, 3, 6)))
    found = queue.nearest(whose(range(100, 104)), asked, words).fine
    for i in range(4):
        best = max(range(15), key=lambda n: float(asked[i] @ audio[n]))
        assert torch.equal(found.by_audio.audio[i, 0, 0], audio[best])
        for k in range(2):
            there = [n for n in range(15) if mask[n, k]]
            best = max(there, key=lambda n: float(words[i, k] @ text[n, k]))
            assert torch.equal(found.by_text.text[i, k, 0], text[best, k])
            assert torch.equal(found.by_text.audio[i, k, 0], audio[best])
            assert bool(found.by_text.valid[i, k, 0])
    assert not found.by_text.valid[:, 2].any()
    assert Queue(20, 6, 3).nearest(whose(range(4)), asked, words).fine is None


def test_of_equal_texts_the_first_is_the_neighbour_however_they_are_rounded():
    """Two clips with one caption: which of the two is near decides which clips of the batch are positives."""
    text = normalize(torch.randn(1, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    for sign in (-1, 1):
        queue = Queue(6, 8, 1)
        stored = text[:1].expand(3, 8) * (1 + sign * 1e-7 * torch.arange(3)[:, None])
        queue.push(whose([1, 2, 3]), stored, stored[:, None])
        found = queue.nearest(whose([2]), text[:1], text[:1, None]).fine
        for side in (found.by_audio, found.by_text):
            assert side.entry.flatten().tolist() == [0]
            assert not side.like.any()


def test_a_neighbour_has_no_part_in_its_group_by_a_caption_that_is_not_its_own():
    queue, rows = Queue(4, 4, 1), torch.eye(4)
    queue.push(whose([10, 11, 12], [5, 5, 6]), rows[:3], rows[:3, None], None, torch.tensor([True, False, False]))
    other = Queue(4, 4, 1)
    other.load_state_dict(queue.state_dict())
    # Clips 20 and 12, which ask with the audio of 10 and 11, and with their texts; 20 has the caption of group 5.
    for one in (queue, other):
        found = one.nearest(whose([20, 12], [5, 9]), rows[:2], rows[1:3, None]).fine
        assert found.by_audio.like[:, 0, 0].tolist() == [[True, False], [False, False]]
        # A text says what it says, and a clip is itself, whatever its caption.
        assert found.by_text.like[:, 0, 0].tolist() == [[True, False], [False, True]]


def test_a_text_that_is_not_there_is_no_neighbour_however_far_the_others_are():
    """Its place holds zeros, which are nearer than a text that points the other way."""
    queue, rows = Queue(3, 2, 2), torch.eye(2)
    mask = torch.tensor([[True, False], [True, True]])
    queue.push(whose([1, 2]), rows, rows[:, None].expand(2, 2, 2), mask)
    found = queue.nearest(whose([7]), rows[:1], -torch.ones(1, 2, 2)).fine.by_text
    assert found.valid[0, 1].all()
    assert torch.equal(found.text[0, 1, 0], rows[1])


def test_memories_keep_which_texts_were_there_and_which_pairs_are_clean():
    mask, is_clean = torch.tensor([[True, False], [True, True]]), torch.tensor([True, False])
    embeddings = Embeddings(audio=torch.eye(2), text=torch.ones(2, 2, 2), mask=mask)
    support = SupportMemory(Queue(4, 2, 2))
    momentum = MomentumMemory(torch.nn.Linear(2, 2), Queue(4, 2, 2), 0.9)
    support._identity, momentum._keys = whose([1, 2]), (whose([1, 2]), embeddings.audio, embeddings.text)
    for memory in (support, momentum):
        memory.after_batch(embeddings, ["1", "2"], lambda: is_clean)
        assert torch.equal(memory.queue.mask[:2], mask)
    assert torch.equal(support.queue.is_clean[:2], is_clean)


def test_keys_of_a_clips_own_and_of_its_positives_are_no_negatives():
    queue = Queue(4, 4, 2)
    _, audio, text = batch(0, 4)
    queue.push(whose([10, 11, 12, 13], [5, 6, 7, 5]), audio, text)
    negative = queue.keys(whose([11, 20], [8, 5]), audio[:2], text[:2]).negative
    assert negative.tolist() == [[True, False, True, True], [False, True, True, False]]
