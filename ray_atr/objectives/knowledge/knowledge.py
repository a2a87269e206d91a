"""The interface of knowledge from outside the batch: what to search, the results, and how a comparison is scored with them.

`KnowledgeBaseObjective` has the settings that variants with a base share: what it holds, how it is searched, when it is
refreshed. `info_nce` is what MoCo and ANCE share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from ray_atr.common.settings import Settings, inherited, refuse, setting
from ray_atr.objectives.pairs.learned import Learned
from ray_atr.objectives.pairs.pair_loss import Comparison, PairLoss, Terms, inner_products

INDEXES = ("auto", "exact", "flat", "ivf", "hnsw")
Excluded = Literal["nothing", "own", "positives"]
"""Which entries are never among a query's: none; those of its own clip; those of its own clip and of its positives."""


@dataclass(frozen=True)
class SearchSpec:
    """What a knowledge variant searches for each clip of a batch.

    neighbours     entries that a query retrieves, among single clips (`fine`) and among prototypes (`coarse`).
    index, probes  the search structure, and how many of its lists are searched (`Snapshot`).
    excluded       the single clips that are never among them.
    across         audio searches texts and texts search audio; else each searches its own modality.
    """

    neighbours: int
    index: str
    probes: int
    fine: bool = True
    coarse: bool = True
    excluded: Excluded = "own"
    across: bool = False


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The Kn entries that each query of a batch of B clips found, best first, with both of their components.

    audio  [B, Q, Kn, D]: Q = 1 for audio queries, the number of languages K for text queries.
    text   [B, T, Kn, D]: for audio queries T is the number of languages that the base holds; for text queries T = Q,
           and the text is in the language that was searched.
    valid  [B, Q, Kn] bool: False if fewer than Kn entries were found, or the query was absent; such an entry has no effect.
    like   [B, Q, Kn, B] bool: the clips of the batch that an entry belongs to or shares a caption with. None: unknown.
    entry  [B, Q, Kn] int64: the entries' numbers in the base or queue, -1 if there is none. None: unknown.
    """

    audio: Tensor
    text: Tensor
    valid: Tensor
    like: Tensor | None = None
    entry: Tensor | None = None


@dataclass(frozen=True, eq=False)
class NeighbourVectors:
    """The neighbours of the N queries of one side of a comparison: `Neighbours` holds those of a batch.

    own      [N, Kn, D]: the entries' component in the modality of the query. valid [N, Kn], like [N, Kn, B] are bool.
    partner  [N, Kn, D]: that in the modality of the comparison's other side.
    """

    own: Tensor
    partner: Tensor
    valid: Tensor
    like: Tensor | None = None

    def like_batch(self, rows: Tensor | None) -> Tensor:
        """[N, N] bool: the clips, of those at `rows` of the batch, that a query's valid neighbours are like."""
        if self.like is None:
            return torch.zeros(len(self.valid), len(self.valid), dtype=torch.bool, device=self.valid.device)
        like = (self.like & self.valid[:, :, None]).any(dim=1)
        return like if rows is None else like[:, rows]


@dataclass(frozen=True, eq=False)
class Granularity:
    """The results of one base (of single clips, or of prototypes) for the batch's audio and text queries."""

    by_audio: Neighbours
    by_text: Neighbours

    def vectors_of(self, rows: Tensor, language: Tensor | None, partner_language: Tensor | None) -> NeighbourVectors:
        """The neighbours of the clips at `rows` [N], for queries in `language` [N] and partners in `partner_language` [N].

        None stands for audio.
        """
        queries = self.by_audio if language is None else self.by_text
        audio = _in_language(queries.audio, rows, language)
        text = _in_language(queries.text, rows, partner_language if language is None else language)
        return NeighbourVectors(
            own=audio if language is None else text,
            partner=audio if partner_language is None else text,
            valid=_in_language(queries.valid, rows, language),
            like=None if queries.like is None else _in_language(queries.like, rows, language),
        )


@dataclass(frozen=True, eq=False)
class Sides:
    """The neighbours of the two sides of a comparison in one base."""

    u: NeighbourVectors
    v: NeighbourVectors

    @classmethod
    def from_comparison(cls, comparison: Comparison, granularity: Granularity) -> Sides:
        """The neighbours of the comparison's rows in its languages, from those of the batch."""
        rows, u, v = comparison.row_numbers, comparison.u_language, comparison.v_language
        return cls(u=granularity.vectors_of(rows, u, v), v=granularity.vectors_of(rows, v, u))


@dataclass(frozen=True, eq=False)
class Retrieved:
    """The results for a batch among single clips (`fine`) and among prototypes (`coarse`); None: not searched."""

    fine: Granularity | None = None
    coarse: Granularity | None = None


@dataclass(frozen=True, eq=False)
class Queued:
    """Momentum encoders' keys of a batch and of earlier ones (MoCo).

    audio        [B, D], text [B, K, D]: keys of the batch's clips; texts outside of the batch's mask have no meaning.
    queue_audio  [Q, D], queue_text [Q, K, D]: earlier keys, unit norm. queue_mask [Q, K] bool: which texts existed.
    negative     [B, Q] bool: False if a key is of the clip itself, or of a clip with its caption.
    """

    audio: Tensor
    text: Tensor
    queue_audio: Tensor
    queue_text: Tensor
    queue_mask: Tensor
    negative: Tensor


def _in_language(tensor: Tensor, rows: Tensor, language: Tensor | None) -> Tensor:
    return tensor[rows, 0 if language is None or tensor.shape[1] == 1 else language]


@dataclass(frozen=True, kw_only=True)
class Knowledge(Settings):
    """How one comparison is scored with what was retrieved for the batch. Stateless: the caller searches.

    A subclass sets `name` (its key in KNOWLEDGE), `needs_retrieval` where `retrieved` may not be None, and implements
    `score`: it makes changed comparisons with `dataclasses.replace` and calls `pair(comparison, ...)` on each.
    """

    name: ClassVar[str]
    needs_retrieval: ClassVar[bool] = False

    @property
    def search_spec(self) -> SearchSpec | None:
        """What to search for each batch; None if nothing is searched in a snapshot."""
        return None

    def check_pair(self, pair: PairLoss) -> None:
        """ValueError for a pair loss that it is not defined for; called before `score`."""

    def score(self, comparison: Comparison, pair: PairLoss, retrieved: Any, learned: Learned) -> Terms:
        """The loss of one comparison."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class NoKnowledge(Knowledge):
    """The batch alone."""

    name: ClassVar[str] = "none"

    def score(self, comparison: Comparison, pair: PairLoss, retrieved: Any, learned: Learned) -> Terms:
        return pair(comparison, learned)


@dataclass(frozen=True, kw_only=True)
class SnapshotSettings(Settings):
    """How embeddings become a snapshot (`KnowledgeBaseObjective.snapshot_settings`)."""

    prototypes: int = setting(256, "clusters of the coarse base (P); 0: no coarse base", at_least=0)
    pooling: str = setting("max", "prototype of a cluster: elementwise max or mean", choices=("max", "mean"))
    separate_text_clusters: bool = setting(
        False,
        "cluster the texts separately, as section 4.1 says; text and audio prototypes are then not paired, as they "
        "are with one clustering for both",
    )
    iterations: int = setting(10, "k-means iterations of the first snapshot", at_least=1)
    warm_iterations: int = setting(3, "k-means iterations from the previous snapshot's centroids", at_least=1)
    storage: str = setting("float32", "number type of the base's embeddings", choices=("float32", "float16"))
    index: str = setting(
        "auto",
        "search: exact (matrix product), flat (FAISS, exact), ivf or hnsw (FAISS, approximate); auto: exact up to "
        "`exact_up_to` entries, then ivf",
        choices=INDEXES,
    )
    exact_up_to: int = setting(1_000_000, "entries up to which `auto` searches exactly", at_least=0)
    seed: int = setting(0, "seed of k-means", at_least=0)


@dataclass(frozen=True, kw_only=True)
class KnowledgeBaseObjective(Knowledge):
    """A base of encoded clips, searched at every step and refreshed while training continues."""

    needs_retrieval: ClassVar[bool] = True
    source: str = setting(
        "train",
        "what the base holds: `train`, the training clips, or the folder of a prepared data set",
        path="always",
        words=("train",),
    )
    captions: str | None = setting(
        None,
        "Parquet or JSON-lines file (clip_id, caption), or its URL, whose captions replace the source's; none: its own",
        path="always",
    )
    text_entries: str = setting(
        "english",
        "texts of each clip in the base: english, the English one, searched by queries in every language; each, one per "
        "language, searched by queries in that language (ask alone)",
        choices=("english", "each"),
    )
    exclude_own: bool = setting(
        True, "a clip's own entry is not among its neighbours; with ance the entries of its positives are not either"
    )
    storage: str = inherited(SnapshotSettings, "storage")
    index: str = inherited(SnapshotSettings, "index")
    exact_up_to: int = inherited(SnapshotSettings, "exact_up_to")
    probes: int = setting(16, "lists that ivf searches per query; a quarter of hnsw's efSearch", at_least=1)
    refresh: str = setting(
        "re_encode",
        "where a new base comes from: re_encode, the published encoders encode the source in the background; "
        "write_through, the embeddings that training steps computed anyway",
        choices=("re_encode", "write_through"),
    )
    refresh_every_epochs: int = setting(1, "epochs between refreshes; 0: never after the first", at_least=0)
    refresh_lag: int | None = setting(
        None,
        "steps from publishing the encoders to searching what they encoded; 0: training waits (the paper's way); "
        "none: half a refresh period, so that the base is encoded while training continues",
        at_least=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.refresh == "write_through" and self.source != "train":
            raise refuse("refresh", self.refresh, f"re_encode, if the source ({self.source}) is not what is trained on")
        if self.refresh == "write_through" and self.text_entries != "english":
            raise refuse("refresh", self.refresh, f"re_encode, if text_entries is {self.text_entries}")
        if self.refresh == "write_through" and self.captions is not None:
            raise refuse("refresh", self.refresh, "re_encode, if captions replace those that are trained on")

    def lag_steps(self, steps_per_epoch: int) -> int:
        """Steps from publishing to searching, the same on every worker."""
        half = self.refresh_every_epochs * steps_per_epoch // 2
        return half if self.refresh_lag is None else self.refresh_lag

    def snapshot_settings(self, seed: int) -> SnapshotSettings:
        """How its snapshots are made: here without prototypes."""
        return SnapshotSettings(
            prototypes=0, storage=self.storage, index=self.index, exact_up_to=self.exact_up_to, seed=seed
        )


def info_nce(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    tau: Tensor | float,
    valid: Tensor,
    targets: Tensor | None = None,
) -> Tensor:
    """-log(exp(<a_i, p_i>/tau) / (exp(<a_i, p_i>/tau) + sum over negatives n of exp(<a_i, n>/tau))), [N].

    anchors, positives [N, D]; negatives [Q, D] that all anchors share, or [N, Q, D]; only those in `valid` [N, Q] count, and
    without any the loss is 0. With soft targets [N, N], their mean of the loss with each p_j as the positive.
    """
    of_positives = (anchors * positives).sum(dim=1, keepdim=True)
    logits = torch.cat([of_positives, inner_products(anchors, negatives)], dim=1) / tau
    others = logits[:, 1:].masked_fill(~valid, -torch.inf)
    if targets is not None:
        losses = functional.softplus(others.logsumexp(dim=1, keepdim=True) - anchors @ positives.T / tau)
        return (targets * losses).sum(dim=1)
    logits = torch.cat([logits[:, :1], others], dim=1)
    first = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    return functional.cross_entropy(logits, first, reduction="none")


def require_contrastive(pair: PairLoss, knowledge: str) -> None:
    """ValueError for any pair loss but `contrastive`."""
    if pair.name != "contrastive":
        raise refuse("objective.pair", pair.name, f"contrastive, the only pair loss that {knowledge} is defined for")
