"""Several encoders of one knowledge base's source at once, through Ray Data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from ray_atr.knowledge.base import Entries
from ray_atr.runtime import quiet_ray_data
from ray_atr.training.knowledge import SourceEncoder

Weights = Mapping[str, torch.Tensor]


class ParallelEncoder:
    """`SourceEncoder`'s entries from several processes that each encode some of the blocks, on as many threads as CPUs.

    cpus, gpus  of one of them. The weights go through the object store once. Bit for bit the entries of one process with as
                many threads: another number of them adds in another order.
    """

    def __init__(self, encoder: SourceEncoder, encoders: int, cpus: float, gpus: float) -> None:
        self.encoder, self.encoders, self.cpus, self.gpus = encoder, encoders, cpus, gpus

    def __call__(self, weights: Weights) -> Entries:
        """The whole source. Raises what an encoder raises."""
        quiet_ray_data()
        num_blocks = self.encoder.num_blocks
        reference = ray.put(dict(weights))
        blocks = ray.data.from_items([{"block": block} for block in range(num_blocks)], override_num_blocks=num_blocks)
        encoded = blocks.map_batches(
            _BlockEncoder,  # type: ignore[arg-type]
            # In a list: a bare reference would be resolved into every task's own arguments.
            fn_constructor_args=(self.encoder, [reference], max(1, int(self.cpus))),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=min(self.encoders, num_blocks)),
            num_cpus=self.cpus,
            num_gpus=self.gpus or None,
        )
        parts = list(encoded.iter_batches(batch_size=None, batch_format="numpy"))
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        # Blocks come as they are done.
        order = np.argsort(columns["block"], kind="stable")
        audio, text, ids, there = (columns[name][order] for name in ("audio", "text", "ids", "text_mask"))
        return Entries(audio, text.swapaxes(0, 1), ids.astype(np.str_), there.T)


class _BlockEncoder:
    """One of the processes: opens the source once, then encodes the blocks that it is given."""

    def __init__(self, encoder: SourceEncoder, boxed: list[Any], threads: int) -> None:
        torch.set_num_threads(threads)
        self.encoder, self.weights = encoder, ray.get(boxed[0])

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        block = int(batch["block"][0])
        entries = self.encoder.encode_block(self.weights, block)
        assert entries.text_mask is not None, "a source says which texts are there"
        return {
            "block": np.full(len(entries.audio), block),
            "ids": np.asarray(entries.ids),
            "audio": entries.audio,
            # Rows first, as Ray Data's columns are.
            "text": entries.text.swapaxes(0, 1),
            "text_mask": entries.text_mask.T,
        }
