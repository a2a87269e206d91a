"""Noisy correspondence: the captions of training clips during a run (Luong et al. 2024, section 5.2; or from a file).

For each training clip (or each of its captions) independently z ~ Bernoulli(xi); where z = 1 the captions are replaced by
another clip's of the training split. Every draw is a hash of (seed, clip_id), so that it is the same for any number of workers
and any order of the clips. Evaluation splits have no noise. Noise may be given as a NumPy file instead:

    [M] integers          the papers' files (NCR, DECL): entry m is the clip that caption m is paired with; M captions, those of
                          clip 0 first, then clip 1's. A file for clips with one caption each is the same thing.
    [N, J] or [N, J, K]   a run's own noise_index.npy: the number m of the caption that slot j of clip i has (in language k),
                          -1 for none; m counts J captions for every clip: owner * J + slot.

Shapes: N clips in the data set's order, J captions of a clip at most, K languages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_atr.common import sampling
from ray_atr.common.positives import folded, numbered
from ray_atr.common.sampling import Integers
from ray_atr.common.settings import Settings, refuse, setting
from ray_atr.common.storage import locate, opened, write_bytes
from ray_atr.data.schema import part_of
from ray_atr.data.vector_clip import array_bytes, read_array

NOISE_KINDS = ("pair", "language", "prefix_shuffle", "shift", "near")
BLOCKS = ("prefix_shuffle", "shift")
NEAREST = 5
"""Number of most similar clips from which `near` draws the wrong caption's owner."""
SCORES_AT_A_TIME = 2**23
INDEX_FILE = "noise_index.npy"

Texts = Callable[[], Sequence[str]] | None
"""Returns each clip's first caption, which `near` compares."""


@dataclass(frozen=True, kw_only=True)
class Noise(Settings):
    """The share of wrong training captions, and their kind."""

    ratio: float = setting(0.0, "share of training clips (or captions) that are wrong (xi)", at_least=0.0, below=1.0)
    kind: str = setting(
        "pair",
        "pair: a clip gets another clip's captions; language: only in one random language (a mistranslation); near: those of "
        "one of the 5 clips whose captions are most similar; shift: those of the next clip, in one block of consecutive clips "
        "by clip_id (as happens to released tables); prefix_shuffle: the captions of the first clips by clip_id are shuffled "
        "among these (as the public code of learning to match does; some then keep their own)",
        choices=NOISE_KINDS,
    )
    unit: str = setting(
        "clip",
        "what is replaced: clip, all captions of a clip together, or caption, each one independently (the papers' z_i)",
        choices=("clip", "caption"),
    )
    parts: tuple[str, ...] = setting(
        (), "of a joined data set: the parts whose clips may get wrong captions; unset: all"
    )
    index: str | None = setting(
        None,
        "NumPy file, or its URL, that says which caption each clip has, instead of ratio, kind, unit and parts: the index files "
        "that papers exchange, or a run's own noise_index.npy",
        path="always",
    )

    @property
    def is_injected(self) -> bool:
        """Whether noise is injected."""
        return self.ratio > 0 or self.index is not None


class CaptionAssignment(NamedTuple):
    """The captions of the clips: caption j of clip i in language k is caption `slot` of clip `owner`; both [N, J, K]."""

    owner: Integers
    slot: Integers

    @property
    def is_own(self) -> NDArray[np.bool_]:
        """Whether each caption is the clip's own, [N, J, K]."""
        return self.owner == np.arange(len(self.owner))[:, None, None]


def assign_captions(
    clip_ids: Sequence[str],
    num_captions: Integers,
    languages: Sequence[str],
    noise: Noise,
    seed: int,
    texts: Texts = None,
) -> CaptionAssignment:
    """The captions of N clips with noise; `num_captions` [N, K] are the numbers of their own captions in K languages.

    A clip never gets its own captions as a replacement. ValueError for repeated ids, and if there is no other clip.
    """
    count = len(clip_ids)
    if len(set(clip_ids)) != count:
        raise refuse("clip_ids", f"{count - len(set(clip_ids))} repeated", "each clip once")
    J = max(1, int(num_captions.max(initial=0)))
    assigned = _unchanged(count, J, len(languages))
    if noise.index is not None:
        return read_index(noise.index, num_captions, J)
    if noise.ratio == 0.0 or count == 0:
        return assigned
    if count < 2:
        raise refuse("noise.ratio", noise.ratio, "0 for a training split of one clip")
    if noise.unit == "caption":
        noisy = _by_caption(clip_ids, num_captions, languages, noise, seed, texts)
    else:
        owners = caption_owners(clip_ids, languages, noise, seed, num_captions > 0, texts)
        noisy = CaptionAssignment(np.broadcast_to(owners[:, None, :], assigned.owner.shape), assigned.slot)
    if not noise.parts:
        return noisy
    if noise.kind in BLOCKS:
        raise refuse("noise.parts", noise.parts, f"unset with noise.kind={noise.kind}, which takes consecutive clips")
    is_named = np.isin([part_of(clip_id) for clip_id in clip_ids], noise.parts)[:, None, None]
    return CaptionAssignment(*(np.where(is_named, *both) for both in zip(noisy, assigned, strict=True)))


def _unchanged(N: int, J: int, K: int) -> CaptionAssignment:
    """Every clip's own captions. As broadcast views, since one clip with very many captions makes J large."""
    owner, slot = np.arange(N)[:, None, None], np.arange(J)[None, :, None]
    return CaptionAssignment(np.broadcast_to(owner, (N, J, K)), np.broadcast_to(slot, (N, J, K)))


def _by_caption(
    clip_ids: Sequence[str], num_captions: Integers, languages: Sequence[str], noise: Noise, seed: int, texts: Texts
) -> CaptionAssignment:
    """Noise on each caption independently; a wrong one is replaced by another clip's caption."""
    N, K = num_captions.shape
    most = num_captions.max(axis=1)
    J = max(1, int(most.max(initial=0)))
    assigned = CaptionAssignment(*(part.copy() for part in _unchanged(N, J, K)))
    clip, slot = np.nonzero(np.arange(J) < most[:, None])
    names = [f"{clip_ids[i]} {j:04d}" for i, j in zip(clip.tolist(), slot.tolist(), strict=True)]
    # `texts` reads all of the clips' captions each time.
    by_caption = None if texts is None else (lambda: np.array(texts(), object)[clip].tolist())
    of_caption = caption_owners(names, languages, noise, seed, num_captions[clip] > slot[:, None], by_caption)
    owner = clip[of_caption]
    if noise.kind not in BLOCKS:
        # Another caption of the same clip is not wrong: it is replaced by one of the next clip, in the order of ids.
        following = np.empty(N, np.int64)
        by_id = _in_order(clip_ids)
        following[by_id] = np.roll(by_id, -1)
        is_moved = of_caption != np.arange(len(names))[:, None]
        owner = np.where(is_moved & (owner == clip[:, None]), following[clip][:, None], owner)
    assigned.owner[clip, slot] = owner
    assigned.slot[clip, slot] = np.minimum(slot[of_caption], np.maximum(most[owner] - 1, 0))
    return assigned


def _in_order(clip_ids: Sequence[str]) -> Integers:
    """The clips' numbers in the order of their ids, [N]."""
    return np.argsort(np.asarray(clip_ids, dtype=np.str_), kind="stable")


def caption_owners(
    clip_ids: Sequence[str],
    languages: Sequence[str],
    noise: Noise,
    seed: int,
    has: NDArray[np.bool_] | None = None,
    texts: Texts = None,
) -> Integers:
    """For each clip and language the index of the clip whose captions it has, [N, K]; all captions of a clip together.

    `has` [N, K]: which clip has which language (None: all). With `kind="language"` one of the clip's languages is drawn, and a
    new owner among the other clips that have it; the order of the columns does not matter. ValueError if there is no other clip.
    """
    owners = np.repeat(np.arange(len(clip_ids))[:, None], len(languages), axis=1)
    by_id = _in_order(clip_ids)
    size = round(noise.ratio * len(clip_ids))
    if noise.kind == "prefix_shuffle":
        prefix = by_id[:size]
        shuffle = sampling.permutation([clip_ids[int(i)] for i in prefix], seed, "noise.shuffle")
        owners[prefix] = prefix[shuffle][:, None]
        return owners
    if noise.kind == "shift":
        first = int(sampling.integers(["block"], 0, len(by_id) - size + 1, seed, "noise.block")[0])
        block = by_id[first : first + size]
        owners[block] = np.roll(block, -1)[:, None]
        return owners
    is_replaced = sampling.uniform(clip_ids, seed, "noise.replace") < noise.ratio
    if noise.kind == "pair":
        return np.where(is_replaced[:, None], _another(clip_ids, by_id, seed)[:, None], owners)
    if noise.kind == "near":
        return np.where(is_replaced[:, None], _similar(clip_ids, by_id, texts, seed)[:, None], owners)
    available = np.ones(owners.shape, dtype=bool) if has is None else np.asarray(has, dtype=bool)
    scores = np.stack([sampling.uniform(clip_ids, seed, "noise.language", language) for language in languages], axis=1)
    # One language of those that the clip has.
    chosen = np.where(available, scores, -1.0).argmax(axis=1)
    for column in range(len(languages)):
        rows = np.flatnonzero(is_replaced & (chosen == column) & available[:, column])
        if not len(rows):
            # A language that one clip alone has, or none, needs no other clip then.
            continue
        candidates = by_id[available[by_id, column]]
        if len(candidates) < 2:
            raise refuse("noise.ratio", noise.ratio, f"0 if only one clip has captions in {languages[column]}")
        owners[rows, column] = _another([clip_ids[int(i)] for i in rows], candidates, seed, rows)
    return owners


def _similar(clip_ids: Sequence[str], by_id: Integers, texts: Texts, seed: int) -> Integers:
    """For each clip one of those whose first caption is most similar to its own, but not equal, [N].

    Captions are compared in the order of clip ids, so that the clips' order does not decide between equally similar ones.
    """
    if texts is None:
        raise refuse("noise.kind", "near", "on clips whose captions are at hand")
    written = texts()
    nearest = nearest_texts([written[int(row)] for row in by_id], NEAREST)
    counts = (nearest >= 0).sum(axis=1)
    if not counts.all():
        raise refuse("noise.kind", "near", "on clips that do not all have the same caption")
    drawn = sampling.uniform([clip_ids[int(row)] for row in by_id], seed, "noise.near")
    owners = np.empty(len(by_id), np.int64)
    owners[by_id] = by_id[nearest[np.arange(len(nearest)), (drawn * counts).astype(np.int64)]]
    return owners


def nearest_texts(texts: Sequence[str], count: int) -> Integers:
    """For each text the `count` most similar ones that are not equal to it, best first, [N, count]; -1 if there are
    fewer. Cosine of TF-IDF vectors over words and pairs of words (scikit-learn); of equally similar ones the earlier
    comes first.
    """
    # Imported here because it takes a second, and only this kind of noise needs it.
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectors = TfidfVectorizer(token_pattern=r"(?u)\b\w+\b|[^\x00-\x7f]", ngram_range=(1, 2)).fit_transform(texts)
    group = numbered([folded(text) for text in texts])
    nearest = np.full((len(texts), count), -1, np.int64)
    rows_at_a_time = max(1, SCORES_AT_A_TIME // len(texts))
    place = max(0, len(texts) - count)
    for start in range(0, len(texts), rows_at_a_time):
        rows = slice(start, start + rows_at_a_time)
        scores = (vectors[rows] @ vectors.T).toarray()
        scores[group[rows][:, None] == group] = -1.0
        # The least score among the best. Sorting all of them takes ten times as long.
        least = np.partition(scores, place, axis=1)[:, place]
        for row, (of_row, enough) in enumerate(zip(scores, np.maximum(least, 0.0), strict=True), start):
            candidates = np.flatnonzero(of_row >= enough)
            best = candidates[np.argsort(-of_row[candidates], kind="stable")[:count]]
            nearest[row, : len(best)] = best
    return nearest


def _another(clip_ids: Sequence[str], candidates: Integers, seed: int, rows: Integers | None = None) -> Integers:
    """For each clip one of the candidates, uniform over those that are not the clip itself, [N]. `candidates` are
    indices sorted by clip id (so that the draw does not depend on the clips' order); `rows` are the clips' own indices,
    all of them among the candidates.
    """
    rows = np.arange(len(clip_ids)) if rows is None else rows
    place = np.full(int(candidates.max()) + 1, -1, dtype=np.int64)
    place[candidates] = np.arange(len(candidates))
    drawn = sampling.integers(clip_ids, 0, len(candidates) - 1, seed, "noise.owner")
    return candidates[drawn + (drawn >= place[rows])]


def write_index(folder: Path, assigned: CaptionAssignment) -> None:
    """Write a run's noise to `folder`; one table for all languages if they agree."""
    J = assigned.owner.shape[1]
    # A file of a paper leaves slots empty, which `read_index` sets to J.
    numbers = np.where(assigned.slot < J, assigned.owner * J + assigned.slot, -1)
    folder.mkdir(parents=True, exist_ok=True)
    is_shared = (numbers == numbers[:, :, :1]).all()
    write_bytes(folder / INDEX_FILE, array_bytes(numbers[:, :, 0] if is_shared else numbers))


def read_index(path: str, num_captions: Integers, J: int) -> CaptionAssignment:
    """The captions of N clips from a file; `num_captions` [N, K] are the numbers of their own captions, at most J.
    ValueError names the file, and the row, if it does not fit the data set.
    """
    content = _load(path)
    N, K = num_captions.shape
    if content.ndim == 1:
        numbers = _captions_of_clips(path, content, num_captions.max(axis=1), J)[:, :, None]
    elif content.ndim in (2, 3) and content.shape[:2] == (N, J) and content.shape[2:] in ((), (K,)):
        numbers = content.reshape(N, J, -1)
    else:
        allowed = f"[{int(num_captions.max(axis=1).sum())}], [{N}, {J}] or [{N}, {J}, {K}] for this training split"
        raise refuse("data.noise.index", f"{path} of shape {list(content.shape)}", allowed)
    bad = np.argwhere((numbers < -1) | (numbers >= N * J))
    if len(bad):
        row, value = int(bad[0, 0]), int(numbers[tuple(bad[0])])
        raise refuse(f"data.noise.index: {path}, row {row}", value, f"a caption's number below {N * J}")
    grid = np.broadcast_to(numbers, (N, J, K))
    # A slot without a caption points after the clip's last caption.
    return CaptionAssignment(
        np.where(grid < 0, np.arange(N)[:, None, None], grid // J), np.where(grid < 0, J, grid % J)
    )


def _captions_of_clips(path: str, clips: Integers, counts: Integers, J: int) -> Integers:
    """The papers' file [M] as numbers [N, J]: own captions stay in their slots, the others fill the remaining ones."""
    N, M = len(counts), int(counts.sum())
    if len(clips) != M:
        raise refuse("data.noise.index", f"{path} of {len(clips)} entries", f"{M}, the captions of this training split")
    bad = np.flatnonzero((clips < 0) | (clips >= N))
    if len(bad):
        raise refuse(f"data.noise.index: {path}, row {bad[0]}", int(clips[bad[0]]), f"a clip's number below {N}")
    num_captions = np.bincount(clips, minlength=N)
    wrong = np.flatnonzero(num_captions != counts)
    if len(wrong):
        row = int(wrong[0])
        where = f"data.noise.index: {path}, clip {row}"
        raise refuse(where, f"{num_captions[row]} captions", f"{counts[row]}, as the clip has")
    owners = np.repeat(np.arange(N), counts)
    slots = np.arange(M) - np.repeat(np.cumsum(counts) - counts, counts)
    numbers = np.full((N, J), -1, np.int64)
    is_own = clips == owners
    numbers[owners[is_own], slots[is_own]] = owners[is_own] * J + slots[is_own]
    for m in np.flatnonzero(~is_own):
        row = clips[m]
        numbers[row, int((numbers[row, : counts[row]] < 0).argmax())] = owners[m] * J + slots[m]
    return numbers


def _load(path: str) -> Integers:
    """The integers of a NumPy file; nothing in it is unpickled."""
    try:
        with opened(locate(path, keeps_links=True)) as file:
            content = read_array(file)
    except (ValueError, OSError) as error:
        # A store's own error is its cause.
        is_absent = isinstance(error.__cause__ or error, FileNotFoundError)
        reason = "; this one is not there" if is_absent else f" ({error})"
        raise refuse("data.noise.index", path, f"a NumPy file (.npy) of integers{reason}") from None
    if not np.issubdtype(content.dtype, np.integer):
        raise refuse("data.noise.index", f"{path} of {content.dtype}", "integers")
    return content.astype(np.int64)
