"""A base in parts over W processes against one base in one process: results, memory of each process, bytes sent.

    python benchmarks/bench_shards.py [--entries 1000000 --width 128 --workers 4 --batch 32]

Each process makes the random entries of its part, builds it, and searches with queries of its own, one thread each. One process
builds the whole base too, and searches it for every worker's queries: positions, looked-up rows, the losses of ASK and ANCE and
their gradients must be equal bit for bit, or the run fails. Private memory (USS) is what the opened base adds to a process.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import pickle
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import psutil
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from side_by_side import compared, one_of_a_group
from torch import Tensor, multiprocessing
from torch.nn.functional import normalize

from ray_atr.objectives import Embeddings, Objective
from ray_atr.objectives.knowledge import Ance, Ask
from ray_atr.objectives.knowledge.knowledge import SnapshotSettings
from ray_atr.training.knowledge_base.building import PartBuilder, build_parts
from ray_atr.training.knowledge_base.parts import UNIT, WHOLE, BasePart, part_of_worker
from ray_atr.training.knowledge_base.searcher import Positions, Searcher
from ray_atr.training.knowledge_base.snapshot import Names, PartEntries, Snapshot, in_utf8

MIB = 2**20
KNOWLEDGE: dict[str, Any] = {"ask": Ask(neighbours=5), "ance": Ance(negatives=50, pool=50)}


def rows(entries: int, width: int, part: BasePart, modality: int) -> NDArray[np.float32]:
    """Random rows of a part, made in blocks that do not depend on the parts. One entry in fifty is there twice, far apart."""
    half = max(1, entries // UNIT // 2)
    chosen = range(entries)[part.rows(entries)]
    found = np.empty((len(chosen), width), dtype=np.float32)
    for start in range(0, len(chosen), UNIT):
        block = (chosen.start + start) // UNIT
        few = found[start : start + UNIT]
        generator = np.random.default_rng((modality, block))
        few[:] = generator.standard_normal((UNIT, width), dtype=np.float32)[: len(few)]
        twins = np.random.default_rng((modality, entries + block % half))
        few[::50] = twins.standard_normal((len(few[::50]), width), dtype=np.float32)
    return found


class Parts:
    """What the processes tell each other while they build, and how many bytes each sends."""

    def __init__(self, builder: PartBuilder, is_alone: bool) -> None:
        self.builder, self.is_alone, self.sent = builder, is_alone, 0

    def each(self, name: str, *arguments: Any) -> list[Any]:
        found = getattr(self.builder, name)(*arguments)
        if self.is_alone or name == "finish":
            # Each process keeps its part.
            return [found]
        self.sent += len(pickle.dumps(found))
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, found)
        # Workers of one part have built the same.
        teams = [self.builder.part._replace(number=number) for number in range(self.builder.part.of)]
        return [every[team.workers(len(every)).start] for team in teams]


def built(options: argparse.Namespace, part: BasePart) -> tuple[Snapshot, int]:
    """A part of the base, and the bytes that were sent to build it."""
    N, settings = options.entries, SnapshotSettings(prototypes=options.prototypes)
    names = Names(in_utf8([f"clip{n:08d}" for n in range(N)]), np.arange(N) // 2, np.ones((1, N), dtype=bool))
    audio, text = (rows(N, options.width, part, modality) for modality in range(2))
    parts = Parts(PartBuilder(PartEntries(audio, text[None], names), settings, part), part.is_whole)
    del audio, text
    return build_parts(parts.each, settings, version=1, step=0, start=None)[0], parts.sent


def queries(options: argparse.Namespace, rank: int) -> tuple[Tensor, Tensor, list[str], Tensor]:
    """Embeddings near entries of the base, their clips' ids and groups."""
    generator = np.random.default_rng(rank)
    # An entry that is there twice or more among them.
    places = generator.integers(0, options.entries, options.batch) // 50 * 50
    generator = np.random.default_rng(1000 + rank)
    sides = []
    for modality in range(2):
        near = [
            rows(options.entries, options.width, BasePart(int(place) // UNIT, -(-options.entries // UNIT)), modality)
            for place in places
        ]
        own = np.stack([block[int(place) % UNIT] for block, place in zip(near, places, strict=True)])
        noise = generator.standard_normal(own.shape, dtype=np.float32)
        sides.append(normalize(torch.from_numpy(own + 0.5 * noise), dim=1))
    return sides[0], sides[1][:, None], [f"clip{n:08d}" for n in places], torch.from_numpy(places // 2)


def outcome(searcher: Searcher, found: Positions, options: argparse.Namespace, knowledge: Any) -> dict[str, Tensor]:
    """The loss of the global batch with what it found, and its gradients; by every worker alike."""
    sides = zip(*(queries(options, rank)[:2] for rank in range(options.workers)), strict=True)
    audio, text = (torch.cat(side).requires_grad_() for side in sides)
    mask = torch.ones(text.shape[:2], dtype=torch.bool)
    retrieved = searcher.look_up(found)
    loss = Objective(knowledge=knowledge)(Embeddings(audio, text, mask), retrieved=retrieved).loss
    return {
        "loss": loss.detach(),
        **dict(zip(("audio", "text"), torch.autograd.grad(loss, (audio, text)), strict=True)),
    }


def measured(rank: int, folder: Path, options: argparse.Namespace) -> None:
    """One of the processes: what it finds and holds for each number of parts."""
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    own, found = queries(options, rank), {}
    with one_of_a_group(rank, options.workers, folder):
        for parts in options.parts:
            if parts == 1 and rank:
                # One is enough to compare with.
                dist.barrier()
                continue
            before = private_bytes()
            part = WHOLE if parts == 1 else part_of_worker(rank, options.workers, parts)
            snapshot, sent = built(options, part)
            gc.collect()
            result: dict[str, Any] = {"build": sent, "entries": len(snapshot.audio)}
            for name, knowledge in KNOWLEDGE.items():
                searcher = Searcher(snapshot, knowledge.search_spec)
                with counted() as bytes_of:
                    if parts == 1:
                        mine = [searcher.search(*with_mask(queries(options, one))) for one in range(options.workers)]
                        together = Positions(*(torch.cat(each) for each in zip(*mine, strict=True)))
                    else:
                        position = searcher.search(*with_mask(own))
                        together = Positions(*map(gathered, position))
                    result[f"search {name}"] = dict(bytes_of)
                    result[name] = {**together._asdict(), **outcome(searcher, together, options, knowledge)}
                    result[f"step {name}"] = dict(bytes_of)
            result["held"] = private_bytes() - before
            found[parts] = result
            del snapshot, searcher
            dist.barrier()
    torch.save(found, folder / f"{rank}.pt")


def private_bytes() -> int:
    """This process's private memory (USS), without what the allocator keeps of what was freed."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_full_info().uss)


def with_mask(asked: tuple[Tensor, Tensor, list[str], Tensor]) -> tuple[Any, ...]:
    audio, text, ids, groups = asked
    return audio, text, None, ids, groups


def gathered(own: Tensor) -> Tensor:
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    return torch.cat(every)


class counted:  # noqa: N801
    """Counts the bytes that this process hands to torch's exchanges, for other processes than itself."""

    def __enter__(self) -> Counter[str]:
        self.bytes: Counter[str] = Counter()
        self.swap, self.gather = dist.all_to_all_single, dist.all_gather

        def swap(received: Tensor, sent: Tensor, by: list[int], to: list[int]) -> None:
            kept = to[dist.get_rank()] * sent[:1].numel() * sent.element_size()
            self.bytes["exchanged"] += sent.nbytes - kept
            self.swap(received, sent, by, to)

        def gather(every: list[Tensor], own: Tensor) -> None:
            self.bytes["gathered"] += own.nbytes * (len(every) - 1)
            self.gather(every, own)

        vars(dist).update(all_to_all_single=swap, all_gather=gather)
        return self.bytes

    def __exit__(self, *error: object) -> None:
        vars(dist).update(all_to_all_single=self.swap, all_gather=self.gather)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32, help="clips of each worker")
    parser.add_argument("--prototypes", type=int, default=16)
    parser.add_argument("--parts", type=int, nargs="+", default=[2, 3, 4], help="each is compared with one base")
    options = parser.parse_args()
    options.parts = sorted({1, *options.parts})
    if (most := options.parts[-1]) > options.workers:
        parser.error(f"--parts: got {most}; allowed at most one for each of the {options.workers} --workers")
    with tempfile.TemporaryDirectory() as folder:
        # Forks: each would need some seconds to import torch again.
        multiprocessing.start_processes(measured, (Path(folder), options), nprocs=options.workers, start_method="fork")
        found = [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(options.workers)]
    whole = found[0][1]
    size = options.entries * options.width * 2 * 4
    print(f"{options.entries:,} entries of width {options.width}, audio and text: {size / MIB:,.0f} MiB")
    print(f"{options.workers} processes with {options.batch} clips each; one base: {whole['held'] / MIB:,.0f} MiB")
    for parts in options.parts[1:]:
        of_workers = [ranks[parts] for ranks in found]
        for name in KNOWLEDGE:
            for one in of_workers:
                for what, value in whole[name].items():
                    assert torch.equal(one[name][what], value), f"{name}, {parts} parts: other {what}"
        held = max(one["held"] for one in of_workers)
        print(f"{parts} parts: positions, losses and gradients of {', '.join(KNOWLEDGE)} equal those of one base")
        print(f"  held by a process at most {held / MIB:,.0f} MiB = {held / whole['held']:.3f} of one base")
        print(f"  sent by a process to build it at most {max(one['build'] for one in of_workers) / MIB:,.2f} MiB")
        for name in KNOWLEDGE:
            sent = (max(sum(one[f"{when} {name}"].values()) for one in of_workers) for when in ("search", "step"))
            search, step = (value / MIB for value in sent)
            print(
                f"  sent by a process in a step of {name}: {search:,.2f} MiB to search, {step - search:,.2f} to look up"
            )
    if most > 1:
        held = max(ranks[most]["held"] for ranks in found)
        what = f"memory of a process, base in {most} parts"
        compared(what, held / MIB, whole["held"] / MIB, "one base", unit="MiB", at_most=1.25 / most)


if __name__ == "__main__":
    main()
