from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn.feature_extraction.text import TfidfVectorizer

from ray_atr.common.language_codes import DEFAULT_LANGUAGES
from ray_atr.common.storage import locate, write_bytes
from ray_atr.data.noise import (
    INDEX_FILE,
    NOISE_KINDS,
    Noise,
    assign_captions,
    caption_owners,
    nearest_texts,
    write_index,
)
from ray_atr.data.vector_clip import array_bytes

IDS = [f"clip-{i:05d}" for i in range(5000)]
OWN = np.arange(len(IDS))
CODES = DEFAULT_LANGUAGES


def caption_owner(clip_ids: list[str], noise: Noise, seed: int) -> np.ndarray:
    """One language's answer."""
    return assign_captions(clip_ids, np.ones((len(clip_ids), 1), int), ("all",), noise, seed).owner[:, 0, 0]


def words_of(ids: list[str]) -> list[str]:
    """A caption for each clip, which shares words with those of neighbouring numbers."""
    return [f"sound {int(name[-5:]) // 40} of place {int(name[-5:]) // 7} number {name}" for name in ids]


@pytest.mark.parametrize("ratio", [0.2, 0.4, 0.6])
def test_the_replaced_share_is_binomial(ratio: float) -> None:
    replaced = int((caption_owner(IDS, Noise(ratio=ratio), 3) != OWN).sum())
    # A clip that is replaced never keeps its own, so the count is Binomial(N, ratio) itself.
    assert stats.binomtest(replaced, len(IDS), ratio).pvalue > 1e-3


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_no_noise_changes_nothing(kind: str) -> None:
    assigned = assign_captions(IDS, np.ones((len(IDS), 8), int), CODES, Noise(ratio=0.0, kind=kind), 3)
    np.testing.assert_array_equal(assigned.owner[:, 0], np.repeat(OWN[:, None], 8, axis=1))


def test_new_owners_are_spread_over_all_other_clips() -> None:
    owner = caption_owner(IDS, Noise(ratio=0.99), 0)
    replaced = owner != OWN
    distance = (owner[replaced] - OWN[replaced]) % len(IDS)
    assert distance.min() >= 1
    assert stats.kstest(distance / len(IDS), "uniform").pvalue > 1e-3


def test_two_clips_swap_and_never_keep_their_own() -> None:
    owners = np.array([caption_owner(["a", "b"], Noise(ratio=0.9), seed) for seed in range(300)])
    assert np.all((owners >= 0) & (owners <= 1))
    assert (owners[:, 0] == 1).mean() == pytest.approx(0.9, abs=0.06)


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_order_of_clips_and_languages_does_not_matter(kind: str) -> None:
    ids, noise = IDS[:400], Noise(ratio=0.5, kind=kind)
    owners = caption_owners(ids, CODES, noise, 11, texts=lambda: words_of(ids))
    named = {
        (name, code): ids[owner]
        for name, row in zip(ids, owners, strict=True)
        for code, owner in zip(CODES, row, strict=True)
    }
    shuffle = np.random.default_rng(0).permutation(len(ids))
    mixed, codes = [ids[i] for i in shuffle], CODES[::-1]
    again = caption_owners(mixed, codes, noise, 11, texts=lambda: words_of(mixed))
    for name, row in zip(mixed, again, strict=True):
        for code, owner in zip(codes, row, strict=True):
            assert mixed[owner] == named[name, code]


def test_another_seed_is_another_noise_and_more_noise_keeps_the_less() -> None:
    low, high = (caption_owner(IDS, Noise(ratio=ratio), 5) for ratio in (0.2, 0.6))
    assert np.all(high[low != OWN] == low[low != OWN])
    other = caption_owner(IDS, Noise(ratio=0.2), 6)
    assert np.any((other != OWN) != (low != OWN))


def test_language_noise_replaces_exactly_one_language() -> None:
    owners = caption_owners(IDS, CODES, Noise(ratio=0.4, kind="language"), 3)
    replaced = owners != OWN[:, None]
    assert set(replaced.sum(axis=1)) == {0, 1}
    assert stats.binomtest(int(replaced.any(axis=1).sum()), len(IDS), 0.4).pvalue > 1e-3
    assert stats.chisquare(replaced.sum(axis=0)).pvalue > 1e-3


def test_language_noise_takes_only_what_is_there() -> None:
    has = np.random.default_rng(0).random((len(IDS), 8)) < 0.5
    has[:, 0] = True
    # Clips without captions in any of the languages, among them the last one.
    has[::7] = has[-1] = False
    owners = caption_owners(IDS, CODES, Noise(ratio=0.9, kind="language"), 3, has)
    rows, columns = np.nonzero(owners != OWN[:, None])
    assert len(rows) > 3500
    assert np.all(has[rows, columns])
    assert np.all(has[owners[rows, columns], columns])


def test_prefix_shuffle_permutes_the_first_share() -> None:
    owner = caption_owner(IDS, Noise(ratio=0.4, kind="prefix_shuffle"), 3)
    np.testing.assert_array_equal(np.sort(owner[:2000]), OWN[:2000])
    np.testing.assert_array_equal(owner[2000:], OWN[2000:])
    assert (owner[:2000] != OWN[:2000]).mean() > 0.99


def test_bad_noise_is_refused() -> None:
    for ratio in (1.0, 1.2, -0.1, float("nan")):
        with pytest.raises(ValueError, match=r"ratio: got .*; allowed \[0, 1\)"):
            Noise(ratio=ratio)
    with pytest.raises(ValueError, match=r"kind: got 'pairs'; .*did you mean pair\?"):
        Noise(kind="pairs")
    with pytest.raises(ValueError, match="each clip once"):
        caption_owner(["a", "a"], Noise(ratio=0.2), 0)
    with pytest.raises(ValueError, match="training split of one clip"):
        caption_owner(["a"], Noise(ratio=0.2), 0)


def test_noise_that_no_other_clip_can_give_is_refused() -> None:
    ids, counts = ["a", "b", "c"], np.array([[1, 1], [1, 0], [1, 0]])
    with pytest.raises(ValueError, match=r"noise.kind: got 'near'; allowed on clips that do not all have the same"):
        assign_captions(ids, counts, ["eng", "fra"], Noise(ratio=0.9, kind="near"), 0, lambda: ["x", "x", "x"])
    of_language = Noise(ratio=0.9, kind="language")
    # French is drawn for the only clip that has it.
    with pytest.raises(ValueError, match=r"noise.ratio: .*0 if only one clip has captions in fra"):
        assign_captions(ids, counts, ["eng", "fra"], of_language, seed=1)
    # It is not, or no clip has it.
    for few in (counts, counts * [1, 0]):
        assert assign_captions(ids, few, ["eng", "fra"], of_language, seed=0).is_own[:, 0, 1].all()


def test_a_shifted_block_has_the_next_ones_captions_and_nothing_else_moves() -> None:
    owner = caption_owner(IDS, Noise(ratio=0.3, kind="shift"), 4)
    moved = np.flatnonzero(owner != OWN)
    assert len(moved) == 1500
    assert moved[-1] - moved[0] == 1499
    np.testing.assert_array_equal(owner[moved[:-1]], moved[:-1] + 1)
    assert owner[moved[-1]] == moved[0]
    assert moved[0] != np.flatnonzero(caption_owner(IDS, Noise(ratio=0.3, kind="shift"), 5) != OWN)[0]
    # Two of three clips: the block may begin with the first one, and end with the last.
    small = [caption_owner(["a", "b", "c"], Noise(ratio=0.6, kind="shift"), seed).tolist() for seed in range(20)]
    assert sorted(map(list, {*map(tuple, small)})) == [[0, 2, 1], [1, 0, 2]]


def test_a_near_caption_is_one_of_the_most_alike_and_never_the_same_words() -> None:
    ids = IDS[:600]
    texts = words_of(ids)
    texts[10] = texts[11].upper()
    owner = caption_owners(ids, ("all",), Noise(ratio=0.5, kind="near"), 1, texts=lambda: texts)[:, 0]
    moved = np.flatnonzero(owner != np.arange(600))
    assert stats.binomtest(len(moved), 600, 0.5).pvalue > 1e-3
    assert np.mean(moved // 40 == owner[moved] // 40) > 0.9
    assert all(texts[row].casefold() != texts[owner[row]].casefold() for row in moved)
    with pytest.raises(ValueError, match=r"noise.kind: got 'near'; allowed on clips whose captions"):
        caption_owners(ids, ("all",), Noise(ratio=0.5, kind="near"), 1)


def test_near_captions_read_the_clips_captions_once() -> None:
    read: list[int] = []

    def texts() -> list[str]:
        read.append(1)
        return words_of(IDS[:50])

    assign_captions(IDS[:50], np.full((50, 1), 3), ("all",), Noise(ratio=0.5, kind="near", unit="caption"), 1, texts)
    assert len(read) == 1


def test_the_nearest_texts_are_those_of_a_sort_and_a_long_one_takes_no_memory_for_the_others() -> None:
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(["rain", "wind", "dog", "car", "bell"], 3)) for _ in range(300)]
    # Some share no word with any other: their nearest are the first.
    texts += ["silence", "silence", "x" * 100_000]
    vectors = TfidfVectorizer(ngram_range=(1, 2)).fit_transform(texts).toarray()
    nearest_texts(texts, 5)
    tracemalloc.start()
    found = nearest_texts(texts, 5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30 * 2**20
    assert found[-1].tolist() == [0, 1, 2, 3, 4]
    for row, best in enumerate(found):
        scores = np.where([text == texts[row] for text in texts], -1, vectors[row] @ vectors.T)
        np.testing.assert_allclose(scores[best], np.sort(scores)[::-1][:5], atol=1e-12)


def test_the_nearest_text_is_never_one_of_the_same_words() -> None:
    texts = ["a dog barks", "A dog barks", "a dog howls", "rain falls"]
    assert nearest_texts(texts, 1)[:, 0].tolist() == [2, 2, 0, 0]
    # Fewer than five clips have other words: one of them is drawn.
    texts, noise = ["wind", "bells", *["rain"] * 4], Noise(ratio=0.9, kind="near")
    for seed in range(10):
        owner = caption_owners(IDS[:6], ("all",), noise, seed, texts=lambda: texts)[:, 0]
        assert all(texts[new] != texts[row] or new == row for row, new in enumerate(owner))


COUNTS = np.array([[3, 3], [1, 1], [2, 1], [3, 0], [2, 2], [1, 1]] * 100)


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_noise_by_the_caption_replaces_captions_one_by_one_and_only_by_those_that_are_there(kind: str) -> None:
    ids = IDS[:600]
    noise = Noise(ratio=0.4, kind=kind, unit="caption")
    assigned = assign_captions(ids, COUNTS, ("eng", "fra"), noise, 7, lambda: words_of(ids))
    exists = np.arange(3)[None, :, None] < COUNTS[:, None, :]
    own = assigned.is_own & (assigned.slot == np.arange(3)[None, :, None])
    share = 1 - own[:, :, 0][exists[:, :, 0]].mean()
    # Of the captions in two languages, `language` replaces one or the other.
    assert share == pytest.approx(0.3 if kind == "language" else 0.4, abs=0.06)
    if kind not in ("shift", "prefix_shuffle"):
        # Some clips keep one caption and lose another.
        some = own[:, :, 0] & exists[:, :, 0]
        assert ((some.sum(axis=1) > 0) & (some.sum(axis=1) < COUNTS[:, 0])).any()
    languages = np.arange(2)
    assert (assigned.slot < np.maximum(COUNTS.max(axis=1)[assigned.owner[:, :, languages]], 1))[exists].all()
    if kind in ("pair", "near"):
        moved = ~own & exists
        assert (assigned.owner != np.arange(600)[:, None, None])[moved].all()


def test_noise_by_the_caption_does_not_depend_on_the_order_of_clips() -> None:
    """Most clips have several captions, so that many a drawn one is the clip's own and gives way to the next clip's."""
    counts, noise = np.full((4, 1), 6), Noise(ratio=0.9, unit="caption")
    owner, mirrored = (
        assign_captions(ids, counts, ("eng",), noise, 7).owner for ids in (["a", "b", "c", "d"], ["d", "c", "b", "a"])
    )
    np.testing.assert_array_equal(3 - mirrored[::-1], owner)


@pytest.mark.parametrize("unit", ["clip", "caption"])
def test_a_runs_own_index_gives_the_same_noise_again(unit: str, tmp_path: Path) -> None:
    ids = IDS[:600]
    assigned = assign_captions(ids, COUNTS, ("eng", "fra"), Noise(ratio=0.5, unit=unit, kind="language"), 3)
    write_index(tmp_path, assigned)
    # A table for each language, as they differ.
    assert np.load(tmp_path / INDEX_FILE).shape == (600, 3, 2)
    again = assign_captions(ids, COUNTS, ("eng", "fra"), Noise(index=str(tmp_path / INDEX_FILE)), 99)
    np.testing.assert_array_equal(again.owner, assigned.owner)
    np.testing.assert_array_equal(again.slot, assigned.slot)
    write_index(tmp_path, assign_captions(ids, COUNTS, ("eng", "fra"), Noise(ratio=0.5, unit=unit), 3))
    assert np.load(tmp_path / INDEX_FILE).shape == (600, 3)


def test_a_papers_index_gives_a_runs_own_where_clips_have_fewer_captions_than_others(tmp_path: Path) -> None:
    """Written as a number, a slot without a caption would be the next clip's first one."""
    ids, counts, file = ["a", "b", "c"], np.array([[2], [2], [1]]), tmp_path / "paper.npy"
    np.save(file, [1, 0, 0, 1, 2])
    assigned = assign_captions(ids, counts, ("eng",), Noise(index=str(file)), 0)
    write_index(tmp_path, assigned)
    assert np.load(tmp_path / INDEX_FILE).tolist() == [[2, 1], [0, 3], [4, -1]]
    again = assign_captions(ids, counts, ("eng",), Noise(index=str(tmp_path / INDEX_FILE)), 0)
    np.testing.assert_array_equal(again, assigned)


def test_the_papers_index_is_read_as_ncr_writes_it(tmp_path: Path) -> None:
    """As NCR's data.py makes it: text to image, a share of the entries shuffled among themselves; here 50 clips with 5 each."""
    generator = np.random.default_rng(0)
    index = np.arange(250) // 5
    chosen = generator.permutation(250)[:100]
    index[chosen] = index[generator.permutation(chosen)]
    np.save(tmp_path / "0.4_noise_index.npy", index)
    assigned = assign_captions(
        IDS[:50], np.full((50, 1), 5), ("eng",), Noise(index=str(tmp_path / "0.4_noise_index.npy")), 0
    )
    pairs = {
        (clip, int(o) * 5 + int(s))
        for clip in range(50)
        for o, s in zip(assigned.owner[clip, :, 0], assigned.slot[clip, :, 0], strict=True)
    }
    assert pairs == {(int(clip), caption) for caption, clip in enumerate(index)}
    kept = index[np.arange(250)] == np.arange(250) // 5
    assert assigned.is_own.sum() == kept.sum() < 250


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (np.zeros(7, int), r"data.noise.index: got '.*7 entries'; allowed 6"),
        (np.array([0, 0, 0, 1, 1, 9]), r"index.npy, row 5: got 9; allowed a clip's number below 2"),
        (np.array([0, 0, 1, 1, 1, 1]), r"index.npy, clip 0: got '2 captions'; allowed '?3"),
        (np.full((2, 3), 6), r"index.npy, row 0: got 6; allowed a caption's number below 6"),
        (np.zeros((4, 4), int), r"of shape \[4, 4\]'; allowed \[6\], \[2, 3\] or \[2, 3, 1\]"),
        (np.zeros(6), r"of float64'; allowed integers"),
    ],
)
def test_an_index_that_does_not_fit_is_refused_with_its_row(content: np.ndarray, named: str, tmp_path: Path) -> None:
    np.save(tmp_path / "index.npy", content)
    with pytest.raises(ValueError, match=named):
        assign_captions(["a", "b"], np.full((2, 1), 3), ("eng",), Noise(index=str(tmp_path / "index.npy")), 0)


def test_an_index_that_is_no_array_or_not_there_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "index.npy"
    with pytest.raises(ValueError, match=r"data.noise.index: got '.*'; allowed a NumPy file .* not there"):
        assign_captions(["a", "b"], np.ones((2, 1), int), ("eng",), Noise(index=str(path)), 0)
    with pytest.raises(ValueError, match=r"got 'memory://noise/none.npy'; allowed a NumPy file .* not there"):
        assign_captions(["a", "b"], np.ones((2, 1), int), ("eng",), Noise(index="memory://noise/none.npy"), 0)
    np.save(path, np.array([{"code": "would run"}], object), allow_pickle=True)
    with pytest.raises(ValueError, match="a NumPy file"):
        assign_captions(["a", "b"], np.ones((2, 1), int), ("eng",), Noise(index=str(path)), 0)


def test_an_index_is_read_from_a_store() -> None:
    """Where a run's folder may be, with the index that it wrote."""
    write_bytes(locate("memory://noise/index.npy"), array_bytes(np.array([1, 0])))
    assigned = assign_captions(["a", "b"], np.ones((2, 1), int), ("eng",), Noise(index="memory://noise/index.npy"), 0)
    assert assigned.owner[:, 0, 0].tolist() == [1, 0]


def test_one_clip_of_very_many_captions_takes_no_memory_for_the_others() -> None:
    num_captions = np.full((1_000, 8), 5)
    num_captions[0] = 10_000
    ids = [str(number) for number in range(len(num_captions))]
    tracemalloc.start()
    assigned = assign_captions(ids, num_captions, DEFAULT_LANGUAGES, Noise(), 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert assigned.owner.shape == (1_000, 10_000, 8)
    assert peak < 2**20, "640 MB if each caption had a number of its own"
