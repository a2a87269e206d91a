"""The settings that every knowledge variant with a base shares: what it holds, how it is searched, when it is refreshed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ray_atr.objectives.knowledge.knowledge import Knowledge
from ray_atr.settings import Settings, refuse, setting

INDEXES = ("auto", "exact", "flat", "ivf", "hnsw")


@dataclass(frozen=True, kw_only=True)
class SnapshotSettings(Settings):
    """How embeddings become a snapshot: what `KnowledgeBaseObjective.snapshot_settings` reads off an objective."""

    prototypes: int = setting(256, "clusters of the coarse base; 0: no coarse base", at_least=0)
    pooling: str = setting(
        "max", "prototype of a cluster: elementwise max or mean of its members", choices=("max", "mean")
    )
    separate_text_clusters: bool = setting(False, "cluster the texts separately from their audio")
    iterations: int = setting(10, "k-means iterations of the first snapshot", at_least=1)
    warm_iterations: int = setting(3, "k-means iterations from the previous snapshot's centroids", at_least=1)
    storage: str = setting("float32", "number type of the stored embeddings", choices=("float32", "float16"))
    index: str = setting("auto", "search structure", choices=INDEXES)
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
        "Parquet or JSON-lines file (clip_id, caption) whose captions replace the source's; none: its own",
        path="always",
    )
    text_entries: str = setting(
        "english",
        "texts of each clip in the base: the English one, which queries in every language search, or one per "
        "language, which queries in that language search",
        choices=("english", "each"),
    )
    exclude_own: bool = setting(True, "a clip's own entry is not among its neighbours")
    storage: str = setting("float32", "number type of the base's embeddings", choices=("float32", "float16"))
    index: str = setting(
        "auto",
        "search: exact (matrix product), flat (FAISS, exact), ivf or hnsw (FAISS, approximate); auto: exact up to "
        "`exact_up_to` entries, then ivf",
        choices=INDEXES,
    )
    exact_up_to: int = setting(1_000_000, "entries up to which `auto` searches exactly", at_least=0)
    probes: int = setting(16, "lists that ivf searches per query, and breadth / 4 of hnsw's search", at_least=1)
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

    def lag_steps(self, steps_per_epoch: int) -> int:
        """Steps from publishing to searching, the same on every worker."""
        if self.refresh_lag is not None:
            return self.refresh_lag
        return self.refresh_every_epochs * steps_per_epoch // 2

    def snapshot_settings(self, seed: int) -> SnapshotSettings:
        """How its snapshots are made: here without prototypes."""
        return SnapshotSettings(
            prototypes=0, storage=self.storage, index=self.index, exact_up_to=self.exact_up_to, seed=seed
        )
