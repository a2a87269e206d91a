"""The captions that training clips have for a whole run: noise by the clip, by the caption, or from a file.

Shapes: N clips, J captions of a clip at most, K languages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ray_atr.data.noise import Integers, Noise, Worn, caption_owners
from ray_atr.data.noise_index import read_index
from ray_atr.settings import refuse


def wear(
    clip_ids: Sequence[str],
    num_captions: Integers,
    languages: Sequence[str],
    noise: Noise,
    seed: int,
    texts: Callable[[], Sequence[str]] | None = None,
) -> Worn:
    """The captions that N clips have, which have `num_captions` [N, K] of their own in K languages.

    `texts` gives each clip's first caption, which `near` compares. A clip is never its own replacement. Raises ValueError
    for repeated ids, and if there is nobody to swap with.
    """
    count = len(clip_ids)
    if len(set(clip_ids)) != count:
        raise refuse("clip_ids", f"{count - len(set(clip_ids))} repeated", "each clip once")
    J = max(1, int(num_captions.max(initial=0)))
    worn = _unchanged(count, J, len(languages))
    if noise.index is not None:
        return read_index(noise.index, num_captions, J)
    if noise.ratio == 0.0 or count == 0:
        return worn
    if count < 2:
        raise refuse("noise.ratio", noise.ratio, "0 for a training split of one clip")
    if noise.unit == "caption":
        return _by_caption(clip_ids, num_captions, languages, noise, seed, texts)
    owners = caption_owners(clip_ids, languages, noise, seed, num_captions > 0, texts)
    return Worn(np.broadcast_to(owners[:, None, :], worn.owner.shape), worn.slot)


def _unchanged(N: int, J: int, K: int) -> Worn:
    """Every clip's own captions, as views: one clip of very many would fill the memory with the same numbers."""
    owner, slot = np.arange(N, dtype=np.int64)[:, None, None], np.arange(J, dtype=np.int64)[None, :, None]
    return Worn(np.broadcast_to(owner, (N, J, K)), np.broadcast_to(slot, (N, J, K)))


def _by_caption(
    clip_ids: Sequence[str],
    num_captions: Integers,
    languages: Sequence[str],
    noise: Noise,
    seed: int,
    texts: Callable[[], Sequence[str]] | None,
) -> Worn:
    """Each caption is a clip of its own to the noise, and what takes its place is another clip's caption."""
    N, K = num_captions.shape
    most = num_captions.max(axis=1)
    J = max(1, int(most.max(initial=0)))
    worn = Worn(*(part.copy() for part in _unchanged(N, J, K)))
    clip, slot = (part.astype(np.int64) for part in np.nonzero(np.arange(J) < most[:, None]))
    names = [f"{clip_ids[i]} {j:04d}" for i, j in zip(clip.tolist(), slot.tolist(), strict=True)]
    by_caption = None if texts is None else (lambda: [texts()[i] for i in clip.tolist()])
    of_caption = caption_owners(names, languages, noise, seed, num_captions[clip] > slot[:, None], by_caption)
    # Another caption of the same clip is no wrong one: the next clip's, in the order of ids, takes its place.
    following = np.empty(N, np.int64)
    by_id = np.argsort(np.asarray(clip_ids, dtype=np.str_), kind="stable")
    following[by_id] = np.roll(by_id, -1)
    is_moved = of_caption != np.arange(len(names))[:, None]
    owner = np.where(is_moved & (clip[of_caption] == clip[:, None]), following[clip][:, None], clip[of_caption])
    is_shuffle = noise.kind in ("prefix_shuffle", "shift")
    owner = clip[of_caption] if is_shuffle else owner
    worn.owner[clip, slot] = owner
    worn.slot[clip, slot] = np.minimum(slot[of_caption], np.maximum(most[owner] - 1, 0))
    return worn
