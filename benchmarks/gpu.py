"""Everything that a GPU is needed to measure, unattended, in at most ten minutes on an H100 or H200.

    uv run python benchmarks/gpu.py                # from a bare clone; writes gpu_results/gpu.md and gpu.json
    uv run python benchmarks/gpu.py --dry-run      # on any machine, tiny: shows that every part runs

Parts: `losses` (kernels forward and backward, B 256 to 16,384), `towers` (ml_clap, cacl and kcl with towers of the published
sizes beside ATRI's Table 4, and the share of the peak bfloat16 rate), `log_mel`, `search` (1,000,000 entries), `refresh` (a
training step while another process encodes on the same GPU). Weights and data are random. The report begins with what was
not run: a part whose time had come to an end, that failed, or that needs what this machine lacks.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_towers_gpu import FORMS, PAPER, Form, build, check_gradients, make_batch, measure, step
from torch import Tensor

from ray_atr.data.audio import FrontEnd, log_mel, mel_filters
from ray_atr.models.audio import SmallCnn
from ray_atr.objectives import Embeddings, preset
from ray_atr.objectives.knowledge import Ask
from ray_atr.objectives.knowledge.knowledge import SnapshotSettings
from ray_atr.objectives.pairs.learned import LearnedParameters
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.knowledge_base import faiss_library
from ray_atr.training.knowledge_base.building import build as build_snapshot
from ray_atr.training.knowledge_base.searcher import SearchableRows
from ray_atr.training.knowledge_base.snapshot import Entries

PEAK_TFLOPS = {"H100 PCIe": 756.0, "H100": 989.0, "H200": 989.0, "A100": 312.0}
"""Dense bfloat16, by the manufacturer's data sheets; the first name that the device's contains counts."""
LOSSES = ("contrastive", "triplet", "m_ltm_euclidean", "m_ltm", "m_ltm_pot_euclidean")


@dataclass(frozen=True)
class Size:
    """How large everything is."""

    towers: str
    batches: tuple[int, ...]
    width: int
    losses: tuple[int, ...]
    entries: int
    clips: int
    repeats: int
    refresh_steps: int


FULL = Size("base", (24, 256), 1024, (256, 1024, 4096, 16_384), 1_000_000, 64, 5, 20)
TINY = Size("tiny", (2,), 16, (8, 16), 200, 2, 1, 1)


@dataclass
class Report:
    """Tables in Markdown, the numbers in them, and what is missing."""

    not_run: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Adds a table, and shows it on the way."""
        lines = ["", f"## {title}", "", "| " + " | ".join(header) + " |", "| --- " * len(header) + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        self.lines += lines
        print("\n".join(lines), file=sys.stderr, flush=True)

    def text(self, head: Sequence[str], to_come: Sequence[str] = ()) -> str:
        """The report, whole or before the parts `to_come`; the first lines say what was not run."""
        missing = [f"- not run: {what}" for what in self.not_run] + [f"- not run yet: {part}" for part in to_come]
        missing = missing or ["- everything was run"]
        return "\n".join([*missing, *head, *self.lines]) + "\n"


@dataclass(frozen=True)
class Machine:
    """Where it runs: times and memory by the device's own clock and allocator, or this process's on a CPU."""

    device: torch.device

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name() if self.is_cuda else "CPU"

    @property
    def peak_flops(self) -> float | None:
        return next(
            (1e12 * peak for name, peak in PEAK_TFLOPS.items() if all(w in self.name for w in name.split())), None
        )

    def wait(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()

    def milliseconds(self, run: Callable[[], object], repeats: int) -> float:
        """Median wall time of a run after two that are not counted."""
        took = []
        for number in range(repeats + 2):
            self.wait()
            began = time.perf_counter()
            run()
            self.wait()
            took += [1e3 * (time.perf_counter() - began)] if number > 1 else []
        return statistics.median(took)

    def peak_bytes(self, run: Callable[[], object]) -> float:
        """The most memory that a run holds beyond what was held before it; 0 on a CPU."""
        if not self.is_cuda:
            return 0.0
        self.wait()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        self.wait()
        return float(torch.cuda.max_memory_allocated() - held)


def losses(machine: Machine, size: Size, report: Report) -> None:
    """Forward and backward of each pair loss from embeddings [B, D], and memory in squares of B float32 numbers."""
    rows = []
    for B in size.losses:
        audio, text = (unit(B, size.width, seed, machine).requires_grad_() for seed in (0, 1))
        for name in LOSSES:
            objective = preset(name)
            learned = LearnedParameters(objective.pair.learns(), size.width).to(machine.device)

            def run(
                objective: Any = objective, learned: Any = learned, audio: Tensor = audio, text: Tensor = text
            ) -> None:
                audio.grad = text.grad = None
                mixed = torch.nn.functional.normalize(text + 2 * audio.detach(), dim=1)
                embeddings = Embeddings(audio=audio, text=mixed[:, None])
                objective(embeddings, learned=learned.values()).loss.backward()

            try:
                took, peak = machine.milliseconds(run, size.repeats), machine.peak_bytes(run)
            except torch.OutOfMemoryError:
                report.not_run.append(f"{name} at B {B}: it does not fit into the device's memory")
                continue
            report.numbers[f"losses/{name}/{B}"] = {"ms": took, "bytes": peak}
            rows.append([str(B), name, f"{took:.2f}", f"{peak / 2**20:.0f}", f"{peak / (4 * B * B):.1f}"])
    report.table("Loss kernels, forward and backward", ["B", "loss", "ms", "peak MiB", "peak / 4 B^2"], rows)


def unit(N: int, D: int, seed: int, machine: Machine) -> Tensor:
    """Random unit rows [N, D] on the device."""
    generator = torch.Generator(machine.device).manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(N, D, generator=generator, device=machine.device), dim=1)


def towers(machine: Machine, size: Size, report: Report) -> None:
    """A step of every form at every batch size, beside ATRI's Table 4, with its share of the peak bfloat16 rate."""
    difference = check_gradients(machine.device)
    assert difference < 1e-4, f"the forms of kcl disagree: {difference:.2e}"
    retriever = build(size.towers, machine.device)
    for B in size.batches:
        batch = make_batch(B, 8, retriever.text_tower.model.config.vocab_size)  # type: ignore[union-attr, arg-type]
        costs = measure(retriever, batch, size.repeats)
        base, rows = costs.get("ml_clap"), []
        for name, form in FORMS.items():
            cost = costs.get(name)
            if cost is None or base is None:
                report.not_run.append(f"{name} at batch {B}: it does not fit into the device's memory")
                continue
            share = share_of_peak(machine, retriever, batch, form, cost.seconds)
            paper = "{:.2f}, {:.2f}".format(*PAPER[name]) if name in PAPER else ""
            memory = f"{cost.allocated / base.allocated:.2f}" if base.allocated else ""
            report.numbers[f"towers/{name}/{B}"] = {**vars(cost), "share_of_peak": share}
            rows.append(
                [
                    name,
                    f"{1e3 * cost.seconds:.0f}",
                    f"{cost.seconds / base.seconds:.2f}",
                    f"{cost.allocated / 1e9:.2f}",
                    memory,
                    "" if share is None else f"{share:.0%}",
                    paper,
                ]
            )
        header = ["form", "ms", "time / ml_clap", "GB", "memory / ml_clap", "of bf16 peak", "ATRI: memory, time"]
        report.table(f"Steps with {size.towers} towers, batch {B}, 8 languages", header, rows)


def share_of_peak(machine: Machine, retriever: Any, batch: Any, form: Form, seconds: float) -> float | None:
    """Matrix products of a step, counted by torch, a second, over the device's peak; None if that is not known."""
    if machine.peak_flops is None:
        return None
    from torch.utils.flop_counter import FlopCounterMode

    retriever.zero_grad(set_to_none=True)
    with FlopCounterMode(display=False) as counter:
        step(retriever, TextBatcher(retriever, bucket=10_000), batch, form, autocast=True)
    return counter.get_total_flops() / seconds / machine.peak_flops


def log_mels(machine: Machine, size: Size, report: Report) -> None:
    """Log-mel frames of a batch of clips on the device, against the front end's of one clip at a time on one core."""
    front_end = SmallCnn().front_end
    waveforms = 0.1 * np.random.default_rng(0).standard_normal((size.clips, front_end.clip_samples)).astype(np.float32)
    torch.set_num_threads(1)
    began = time.perf_counter()
    exact = np.stack([log_mel(waveform, front_end) for waveform in waveforms])
    on_a_core = size.clips / (time.perf_counter() - began)
    on_device = torch.from_numpy(waveforms).to(machine.device)
    filters = torch.from_numpy(mel_filters(front_end)).to(machine.device)
    error = float(np.abs(batched_log_mel(on_device, front_end, filters).cpu().numpy() - exact).max()) * front_end.std
    assert error < 0.05, f"the batched frames differ by {error:.3g} dB"
    took = machine.milliseconds(lambda: batched_log_mel(on_device, front_end, filters), size.repeats)
    rate = 1e3 * size.clips / took
    report.numbers["log_mel"] = {"clips_per_second": rate, "core": on_a_core, "decibels_apart": error}
    row = [f"{rate:,.0f}", f"{on_a_core:,.0f}", f"{rate / on_a_core:.0f}", f"{error:.4f}"]
    report.table("Log-mel, clips of 10 s a second", ["device", "one core", "ratio", "dB apart"], [row])


def batched_log_mel(waveforms: Tensor, front_end: FrontEnd, filters: Tensor) -> Tensor:
    """The front end's decibels [N, T, F] of waveforms [N, S] on their device."""
    size = front_end.window_size
    window = torch.hann_window(size, device=waveforms.device)
    spectrum = torch.stft(waveforms, size, front_end.hop_size, window=window, pad_mode="reflect", return_complex=True)
    power = (spectrum.real.square() + spectrum.imag.square()).transpose(1, 2)
    decibels = 10.0 * torch.log10(torch.clamp(power @ filters, min=front_end.floor))
    return (decibels - front_end.mean) / front_end.std


def by_matrix(queries: Tensor, entries: Tensor) -> Any:
    """The five nearest by one product of everything."""
    return (queries @ entries.T).topk(5, dim=1)


def search(machine: Machine, size: Size, report: Report) -> None:
    """The exact five nearest of a batch in a base on the device, against one product of everything and its top five."""
    entries = unit(size.entries, size.width, 0, machine)
    table = SearchableRows(entries.cpu().numpy(), None, machine.device, Ask().search_spec)
    rows = []
    for B in (32, 256):
        queries = torch.nn.functional.normalize(entries[: len(entries) // 2][:B] + 0.02, dim=1)
        found, whole = table.top_k(queries, 5)[0], by_matrix(queries, entries).values
        assert torch.allclose(found, whole, atol=1e-4), "the search is not exact"
        ours = machine.milliseconds(partial(table.top_k, queries, 5), size.repeats)
        peer = machine.milliseconds(partial(by_matrix, queries, entries), size.repeats)
        memory = machine.peak_bytes(partial(table.top_k, queries, 5))
        report.numbers[f"search/{B}"] = {"ms": ours, "peer_ms": peer, "bytes": memory}
        rows.append([str(B), f"{ours:.2f}", f"{peer:.2f}", f"{ours / peer:.2f}", f"{memory / 2**20:.0f}"])
    header = ["batch", "ours, ms", "matmul and topk, ms", "ratio", "peak MiB"]
    report.table(f"Exact search of {size.entries:,} x {size.width}", header, rows)
    faiss_on_gpu(entries, machine, size, report)


def faiss_on_gpu(entries: Tensor, machine: Machine, size: Size, report: Report) -> None:
    """FAISS's flat and ivf index and k-means on the device, beside torch's exact search and FAISS's k-means on the CPU."""
    rows, spec = entries.cpu().numpy(), Ask().search_spec
    if machine.is_cuda and faiss_library.gpu_number(machine.device) is None:
        report.not_run.append("FAISS on the GPU: faiss-gpu is not installed, or has no code for this GPU")
        return
    where = "GPU" if faiss_library.gpu_number(machine.device) is not None else "CPU"
    clustered = rows[: min(len(rows), 50_000)]
    snapshot = build_snapshot(
        Entries(clustered, clustered, [str(number) for number in range(len(clustered))]),
        SnapshotSettings(prototypes=0, index="ivf"),
    )
    tables = {
        "torch, exact": SearchableRows(rows, None, machine.device, spec),
        "FAISS, flat": SearchableRows(rows, None, machine.device, replace(spec, index="flat"), np.zeros(0, np.uint8)),
        f"FAISS, ivf of {len(clustered):,}": SearchableRows(
            clustered, None, machine.device, replace(spec, index="ivf"), snapshot.audio_index
        ),
    }
    lines = []
    queries = torch.nn.functional.normalize(entries[:256] + 0.02, dim=1)
    for name, table in tables.items():
        milliseconds = machine.milliseconds(partial(table.top_k, queries, 5), size.repeats)
        report.numbers[f"search/{name}"] = {"ms": milliseconds}
        lines.append([name, f"{milliseconds:.2f}"])
    started = time.perf_counter()
    faiss_library.kmeans(clustered, min(256, len(clustered) // 39), None, niter=10, seed=1)
    lines.append([f"k-means of {len(clustered):,}, 256 clusters", f"{1000 * (time.perf_counter() - started):.0f}"])
    report.table(f"FAISS on the {where}, 256 queries", ["what", "ms"], lines)


def refresh(machine: Machine, size: Size, report: Report) -> None:
    """The step of ml_clap, alone and while another process encodes captions and clips on the same device."""
    retriever = build(size.towers, machine.device)
    batch = make_batch(size.batches[0], 8, retriever.text_tower.model.config.vocab_size)  # type: ignore[union-attr, arg-type]
    texts = TextBatcher(retriever)

    def one() -> None:
        retriever.zero_grad(set_to_none=True)
        step(retriever, texts, batch, FORMS["ml_clap"], autocast=machine.is_cuda)

    alone = machine.milliseconds(one, size.refresh_steps)
    with encoding_beside(machine, size) as encoded:
        beside = machine.milliseconds(one, size.refresh_steps)
        clips = encoded()
    report.numbers["refresh"] = {"alone_ms": alone, "beside_ms": beside, "clips_per_second": clips}
    row = [f"{alone:.1f}", f"{beside:.1f}", f"{beside / alone:.2f}", f"{clips:,.1f}"]
    report.table(
        "A refresh beside training, one device", ["step alone, ms", "beside, ms", "ratio", "clips/s encoded"], [row]
    )


@contextmanager
def encoding_beside(machine: Machine, size: Size) -> Iterator[Callable[[], float]]:
    """A process that encodes until the block ends; gives what tells the clips a second that it has encoded."""
    # CUDA does not survive a fork; without it, the imports need not be made again.
    context: Any = multiprocessing.get_context("spawn" if machine.is_cuda else "fork")
    ready, stop, count = context.Event(), context.Event(), context.Value("q", 0)
    process = context.Process(target=encode_until, args=(machine.device.type, size, ready, stop, count), daemon=True)
    process.start()
    try:
        if not ready.wait(180):
            raise TimeoutError("the encoding process did not start in 180 s")
        began, before = time.perf_counter(), count.value
        yield lambda: (count.value - before) / (time.perf_counter() - began)
    finally:
        stop.set()
        process.join(60)


def encode_until(device: str, size: Size, ready: Any, stop: Any, count: Any) -> None:
    """Encodes a batch's clips and captions again and again, as a knowledge base's refresh does."""
    torch.set_num_threads(1)
    retriever = build(size.towers, torch.device(device)).eval()
    batch = make_batch(size.batches[0], 8, retriever.text_tower.model.config.vocab_size)  # type: ignore[union-attr, arg-type]
    texts, needed = TextBatcher(retriever), np.ones((size.batches[0], 8), bool)
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        while not stop.is_set():
            retriever.embed_audio(batch.features.to(device), batch.frames.to(device))
            texts.embed_grid(batch.captions.texts, needed, batch.languages).cpu()
            count.value += size.batches[0]
            ready.set()


PARTS: dict[str, Callable[[Machine, Size, Report], None]] = {
    "losses": losses,
    "search": search,
    "log_mel": log_mels,
    "towers": towers,
    "refresh": refresh,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--dry-run", action="store_true", help="everything tiny, on any machine")
    parser.add_argument("--minutes", type=float, default=10.0, help="no part is begun after nine tenths of this time")
    parser.add_argument("--out", type=Path, default=Path("gpu_results"), help="folder of gpu.md and gpu.json")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.parts if name not in PARTS]:
        parser.error(f"got {unknown[0]!r}; allowed {', '.join(PARTS)}")
    if not torch.cuda.is_available() and not options.dry_run:
        parser.error("no CUDA device is there; --dry-run runs everything tiny on a CPU")
    machine = Machine(torch.device("cuda" if torch.cuda.is_available() and not options.dry_run else "cpu"))
    # TF32 would make the forms' gradients differ by more than their order of summation does.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    report, began = Report(), time.perf_counter()
    if options.dry_run:
        report.not_run.append("any measurement of a GPU: this is a dry run on a CPU, whose figures mean nothing")
    elif machine.peak_flops is None:
        report.not_run.append(f"the share of the peak bfloat16 rate: that of {machine.name} is not known")
    options.out.mkdir(parents=True, exist_ok=True)

    def write(to_come: Sequence[str] = ()) -> str:
        seconds = time.perf_counter() - began
        versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}"
        text = report.text([f"- {machine.name}, {versions}, {os.cpu_count()} cores, {seconds:.0f} s"], to_come)
        (options.out / "gpu.md").write_text(text)
        content = {"device": machine.name, "not_run": report.not_run, "numbers": report.numbers}
        (options.out / "gpu.json").write_text(json.dumps(content, indent=1) + "\n")
        return text

    size = TINY if options.dry_run else FULL
    failed = run_parts(options.parts or list(PARTS), machine, size, report, options.minutes, write)
    print(write())
    return 2 if failed else 0


def run_parts(
    names: Sequence[str],
    machine: Machine,
    size: Size,
    report: Report,
    minutes: float,
    write: Callable[[Sequence[str]], object],
) -> list[str]:
    """Runs the parts one after the other; returns those that failed. A failure does not stop the others.

    Writes after each of them what there is: a library may end the process.
    """
    began, failed = time.perf_counter(), []
    for number, name in enumerate(PARTS):
        if name not in names:
            report.not_run.append(f"{name}: not asked for")
            continue
        if time.perf_counter() - began > 0.9 * 60 * minutes:
            report.not_run.append(f"{name}: the {minutes:g} minutes were over")
            continue
        try:
            PARTS[name](machine, size, report)
        except Exception as error:  # noqa: BLE001  An unattended run must bring home what the other parts measure.
            traceback.print_exc()
            report.not_run.append(f"{name}: it failed with {type(error).__name__}: {str(error)[:200]}")
            failed.append(name)
        write(list(PARTS)[number + 1 :])
        if machine.is_cuda:
            torch.cuda.empty_cache()
    return failed


if __name__ == "__main__":
    sys.exit(main())
