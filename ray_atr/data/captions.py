"""The captions of a batch's clips in an epoch: with noise, one paraphrase drawn, and missing languages masked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ray_atr.common import sampling
from ray_atr.common.positives import folded, positive_groups
from ray_atr.common.settings import refuse, shortened
from ray_atr.common.storage import Location, file_exists, is_local, locate, opened
from ray_atr.data.features import FeatureSet
from ray_atr.data.noise import Noise, assign_captions

TEXTS = pa.schema([("clip_id", pa.string()), ("caption", pa.string())])
"""The columns of a file of captions."""


@dataclass(frozen=True)
class CaptionBatch:
    """Captions of b clips in K languages: `texts[i][k]` if `mask[i, k]`, and the positive group of each clip `[b]`.
    `slots` [b] says which of its captions each clip has here.
    """

    texts: list[list[str]]
    mask: NDArray[np.bool_]
    groups: NDArray[np.int64]
    slots: NDArray[np.int64]


class TrainingCaptions:
    """The captions of a training split's clips during a run.

    `positives` decides which clips of a batch are not negatives of each other: those with the same English text (`captions`),
    those whose captions have the same labels (`labels`), or only a clip and itself (`identity`).
    """

    def __init__(
        self, features: FeatureSet, languages: Sequence[str], noise: Noise, seed: int, positives: str = "captions"
    ) -> None:
        self.features, self.languages, self.seed, self.positives = features, tuple(languages), seed, positives
        counts = [[len(texts) for texts in features.captions_in(language)] for language in self.languages]
        self.num_captions = np.array(counts, np.int64).T

        def first_captions() -> list[str]:
            return [captions[0] if captions else "" for captions in features.captions_in(self.languages[0])]

        self.assigned = assign_captions(
            features.clip_ids, self.num_captions, self.languages, noise, seed, first_captions
        )
        self.has_caption = self.assigned.slot < self.num_captions[self.assigned.owner, np.arange(len(self.languages))]
        """Which captions exist, [N, J, K]."""

    def clean_share(
        self, trained: Sequence[str], per_epoch: str = "one", clip_weights: NDArray[np.float64] | None = None
    ) -> float:
        """Share of true pairs among the training pairs in the trained languages.

        With `per_epoch` `one` (one caption of a clip in an epoch) every clip counts once, with `each` every pair; times its
        weight [N] where an epoch has clips more often than others.
        """
        is_used = self.has_caption & np.isin(self.languages, list(trained))
        true, used = ((flags & is_used).sum(axis=(1, 2)) for flags in (self.truth, is_used))
        weights = (used > 0) * (np.ones(len(used)) if clip_weights is None else clip_weights)
        if not weights.any():
            return 0.0
        if per_epoch == "each":
            return float(true @ weights / (used @ weights))
        return float(np.average(true / np.maximum(used, 1), weights=weights))

    @cached_property
    def truth(self) -> NDArray[np.bool_]:
        """Whether each assigned caption is one of the clip's own, or equal to one, [N, J, K]."""
        is_true = self.assigned.is_own.copy()
        for column, language in enumerate(self.languages):
            rows, slots = np.nonzero(~is_true[:, :, column] & self.has_caption[:, :, column])
            owners, theirs = (part[rows, slots, column] for part in self.assigned)
            owners_captions = self.features.captions_in(language, owners)
            texts = self.features.captions_in(language, rows)
            for row, slot, other, captions, wanted in zip(rows, slots, owners_captions, texts, theirs, strict=True):
                is_true[row, slot, column] = folded(other[wanted]) in map(folded, captions)
        return is_true

    def batch(
        self,
        rows: NDArray[np.int64],
        epoch: int,
        slots: NDArray[np.int64] | None = None,
        names: Sequence[str] | None = None,
    ) -> CaptionBatch:
        """The captions of the clips at `rows` [b] in an epoch: those at `slots` [b]; None: drawn from (seed, epoch, name), of
        which the names are the clips' ids if there are no others.

        The slot is the same in every language, since caption j is the same sentence in every language; a language without a
        caption j is masked.
        """
        ids = [self.features.clip_ids[row] for row in rows]
        if slots is None:
            has = self.has_caption[rows].any(axis=2)
            choice = sampling.integers(names or ids, 0, np.maximum(has.sum(axis=1), 1), self.seed, "caption", epoch)
            # A noise index may leave out any of a clip's captions: the draw is among the others.
            slots = (has.cumsum(axis=1) > choice[:, None]).argmax(axis=1)
        owners, theirs = (part[rows, slots] for part in self.assigned)
        mask = self.has_caption[rows, slots]
        texts = [[""] * len(self.languages) for _ in rows]
        for column, language in enumerate(self.languages):
            for index, captions in enumerate(self.features.captions_in(language, owners[:, column])):
                if mask[index, column]:
                    texts[index][column] = captions[theirs[index, column]]
        mask &= np.array([[bool(text) for text in row] for row in texts], bool).reshape(mask.shape)
        labels = [self.features.labels[owner] for owner in owners[:, 0]]
        groups = positive_groups(self.positives, ids, [row[0] for row in texts], labels)
        return CaptionBatch(texts=texts, mask=mask, groups=groups, slots=slots)


def read_caption_file(place: str | Location) -> dict[str, str]:
    """Caption by clip id, from a Parquet or JSON-lines file with the columns clip_id and caption, here or in a store. ValueError
    for other files.
    """
    path = locate(place, keeps_links=True)
    if not file_exists(path):
        raise ValueError(f"objective.knowledge.captions: {path}: no such file")
    # Without the types, Arrow reads texts that look like times as times.
    options = pyarrow.json.ParseOptions(explicit_schema=TEXTS, unexpected_field_behavior="ignore")
    try:
        # Of a local file, Arrow sees by its name that it is compressed.
        with nullcontext(path) if is_local(path) else opened(path) as file:
            is_parquet = path.suffix == ".parquet"
            table = pq.read_table(file) if is_parquet else pyarrow.json.read_json(file, parse_options=options)
    except pa.ArrowInvalid as error:
        allowed = f"a Parquet file (.parquet) or JSON lines with clip_id and caption ({shortened(str(error))})"
        raise refuse("objective.knowledge.captions", str(path), allowed) from None
    missing = {"clip_id", "caption"} - set(table.column_names)
    if missing:
        raise ValueError(f"objective.knowledge.captions: {path}: column {', '.join(sorted(missing))} is missing")
    rows = list(zip(table.column("clip_id").to_pylist(), table.column("caption").to_pylist(), strict=True))
    captions: dict[str, str] = {}
    for number, row in enumerate(rows, start=1):
        at = f"objective.knowledge.captions: {path}, row {number}"
        if not all(isinstance(value, str) for value in row):
            raise refuse(at, row, "a text as clip_id and as caption")
        if row[0] in captions:
            raise refuse(f"{at}, clip_id", row[0], "each clip once")
        captions[row[0]] = row[1]
    return captions
