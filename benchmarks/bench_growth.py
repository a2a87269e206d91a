"""How cost grows with the batch, the clips, the languages, the workers and the trials: a figure each.

    uv run python benchmarks/bench_growth.py                       # all, about five minutes on a quiet machine
    uv run python benchmarks/bench_growth.py batch --out figures   # one of them
    uv run python benchmarks/bench_growth.py --small               # seconds: shows that it runs

CPU milliseconds, medians of interleaved rounds. The exponent is the slope of the last two points on logarithmic axes: 1 is
linear, and what is above 1.15 is named. Figures are written to `--out` as growth_<axis>.png.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_step_memory import MadeStep
from side_by_side import compared, cpu_milliseconds, cpu_seconds, one_of_a_group
from torch import multiprocessing

from ray_atr.common.storage import Location
from ray_atr.data.captions import TrainingCaptions
from ray_atr.data.features import FeatureSet
from ray_atr.data.noise import Noise
from ray_atr.data.stream import training_plan
from ray_atr.evaluation.report import read_runs
from ray_atr.evaluation.report.write import main_tables
from ray_atr.metrics import retrieval_metrics
from ray_atr.objectives import Embeddings, preset
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.run_folder import RunFolder

WORSE_THAN_LINEAR = 1.15
Costs = dict[str, dict[int, float]]
"""What is measured -> size -> CPU milliseconds."""


def of_sizes(
    sizes: Sequence[int],
    make: Callable[[int], Mapping[str, Callable[[], object]]],
    rounds: int,
    *,
    is_cold: bool = False,
) -> Costs:
    """The cost of what `make` returns for each size, by name."""
    costs: Costs = {}
    for size in sizes:
        for name, milliseconds in cpu_milliseconds(make(size), rounds, is_cold=is_cold).items():
            costs.setdefault(name, {})[size] = milliseconds
    return costs


def batch(small: bool) -> Costs:
    """Losses forward and backward, from embeddings of width 256."""

    def make(B: int) -> dict[str, Callable[[], object]]:
        generator = torch.Generator().manual_seed(0)
        audio, text = (torch.randn(B, 256, generator=generator) for _ in range(2))
        rows = [torch.nn.functional.normalize(x, dim=1).requires_grad_() for x in (audio, text + 2 * audio)]

        def run(name: str) -> None:
            preset(name)(Embeddings(audio=rows[0], text=rows[1][:, None])).loss.backward()

        return {name: partial(run, name) for name in ("contrastive", "triplet", "m_ltm_euclidean")}

    return of_sizes((16, 32) if small else (64, 256, 1024, 4096), make, 1 if small else 3)


def clips(small: bool) -> Costs:
    """What a run does with its whole training split: captions assigned under noise, an epoch's order, and ranking."""

    def make(N: int) -> dict[str, Callable[[], object]]:
        features = made_features(N)
        generator = torch.Generator().manual_seed(0)
        audio = torch.nn.functional.normalize(torch.randn(N // 10, 64, generator=generator), dim=1)
        captions = torch.nn.functional.normalize(torch.randn(N // 10, 64, generator=generator), dim=1)
        return {
            "captions of a run, 40% noise": lambda: TrainingCaptions(features, ("eng",), Noise(ratio=0.4), 0),
            "order of an epoch": lambda: training_plan(features.clip_ids, seed=0, epoch=0, batch_size=32),
            "ranking of a tenth of them": lambda: retrieval_metrics(audio, captions, torch.arange(N // 10)),
        }

    return of_sizes((100, 1000) if small else (1000, 10_000, 100_000), make, 1 if small else 3)


def made_features(N: int) -> FeatureSet:
    """A training split of N clips of which the captions alone are read."""
    import pyarrow as pa

    ids = [f"clip{number:07d}" for number in range(N)]
    columns = {"clip_id": ids, "labels": [[]] * N, "eng": [[f"caption {number}"] for number in range(N)]}
    types = {"clip_id": pa.string()}
    table = pa.table({name: pa.array(v, types.get(name, pa.list_(pa.string()))) for name, v in columns.items()})
    return FeatureSet(Path(), "train", 64, np.dtype(np.float16), (), np.zeros(1, np.int64), table)


def languages(small: bool) -> Costs:
    """A training step of kcl, small towers, batch 16."""

    def make(K: int) -> dict[str, Callable[[], object]]:
        step = MadeStep(batch=4 if small else 16, frames=100, num_languages=K)
        return {"all at once": partial(step, "kcl", 0, 0), "by language": partial(step, "kcl", 1, 0)}

    return of_sizes((1, 2) if small else (1, 2, 4, 8), make, 1 if small else 3, is_cold=True)


def workers(small: bool) -> Costs:
    """A step of one global batch on 1, 2 and 4 processes: CPU time of all of them together; level is ideal."""
    costs: Costs = {"all workers together": {}, "each worker": {}}
    for W in (1, 2) if small else (1, 2, 4):
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.spawn(one_worker, args=(W, folder, 8 if small else 64), nprocs=W)
            each = [json.loads(file.read_text()) for file in Path(folder).glob("*.json")]
        costs["all workers together"][W], costs["each worker"][W] = sum(each), sum(each) / W
    return costs


def one_worker(rank: int, size: int, folder: str, global_batch: int) -> None:
    """Leaves the median CPU milliseconds of this worker's share of a contrastive step."""
    with one_of_a_group(rank, size, Path(folder)):
        step = MadeStep(batch=global_batch // size, frames=100, num_languages=1, group=WorkerGroup(rank, size))
        took = [1e3 * cpu_seconds(partial(step, "contrastive", 0, 0)) for _ in range(4)]
        (Path(folder) / f"{rank}.json").write_text(json.dumps(sorted(took[1:])[1]))


def trials(small: bool) -> Costs:
    """Making a run folder's trials, and its summary, with three epochs a trial."""
    costs: Costs = {"making the trials": {}, "summary of the run": {}}
    for number in (2, 4) if small else (10, 100, 1000):
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            run = RunFolder.create(Path(folder) / "run", Experiment(), {"name": "growth", "varied": ["seed"]})
            for seed in range(number):
                trial = run.add_trial({"seed": seed})
                for epoch in (1, 2, 3):
                    trial.add_epoch({"epoch": epoch, "step": epoch, **made_metrics(seed, epoch)})
                trial.finish({**made_metrics(seed, 3), "best_epoch": 3, "epoch": 3, "is_final": True})
            costs["making the trials"][number] = 1e3 * (time.process_time() - began)
            costs["summary of the run"][number] = 1e3 * cpu_seconds(partial(summarise, run.path))
    return costs


def summarise(folder: Location) -> None:
    """Read a run and make the tables of its summary."""
    main_tables(read_runs([folder]))


def made_metrics(seed: int, epoch: int) -> dict[str, float]:
    """Numbers of a validation in eight languages."""
    rng = np.random.default_rng((seed, epoch))
    codes = ("eng", "fra", "deu", "spa", "nld", "cat", "jpn", "zho", "mean")
    names = [
        f"{direction}/{code}/{name}"
        for direction in ("text_to_audio", "audio_to_text")
        for code in codes
        for name in ("recall_at_1", "recall_at_5", "recall_at_10", "map_at_10")
    ]
    return dict(zip(names, rng.random(len(names)).tolist(), strict=True))


AXES: dict[str, tuple[Callable[[bool], Costs], str]] = {
    "batch": (batch, "batch B"),
    "clips": (clips, "clips"),
    "languages": (languages, "languages K"),
    "workers": (workers, "workers"),
    "trials": (trials, "trials"),
}


def exponent(cost: Mapping[int, float]) -> float:
    """Slope of the last two points on logarithmic axes."""
    (n, a), (m, b) = sorted(cost.items())[-2:]
    return math.log(b / a) / math.log(m / n)


def draw(axis: str, label: str, costs: Costs, folder: Path) -> None:
    """The figure of an axis: cost against size, both logarithmic, with the line of linear growth from the first points."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from ray_atr.evaluation.report.style import QUIET, RC, looks

    with pyplot.rc_context(RC):
        figure, axes = pyplot.subplots(figsize=(4.6, 3.2), layout="constrained")
        for name, look in looks(list(costs)).items():
            sizes = sorted(costs[name])
            axes.plot(sizes, [costs[name][n] for n in sizes], label=f"{name} ({exponent(costs[name]):.2f})", **look)
            line = [costs[name][sizes[0]] * n / sizes[0] for n in sizes]
            axes.plot(sizes, line, linestyle=":", linewidth=0.8, color=QUIET)
        axes.set(xscale="log", yscale="log", xlabel=label, ylabel="CPU ms")
        axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
        axes.minorticks_off()
        axes.legend(fontsize=8, title="exponent at the end; dotted: linear", title_fontsize=7, frameon=False)
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / f"growth_{axis}.png")
        pyplot.close(figure)


def show(axis: str, costs: Costs) -> None:
    """The figures in words; what grows faster than its axis is named."""
    for name, cost in costs.items():
        slope = exponent(cost)
        sizes = ", ".join(f"{size:,}: {milliseconds:,.1f}" for size, milliseconds in sorted(cost.items()))
        word = "  worse than linear" if slope > WORSE_THAN_LINEAR else ""
        print(f"{axis:10} {name:32} {slope:5.2f}  ms at {sizes}{word}", flush=True)
        compared(f"growth with {axis}: {name}", slope, 1.0, "linear growth", unit="exponent")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axes", nargs="*", metavar="AXIS", help=f"of {', '.join(AXES)} (default: all)")
    parser.add_argument("--out", type=Path, default=Path("benchmark_results"), help="folder of the figures")
    parser.add_argument("--small", action="store_true")
    options: Any = parser.parse_args(arguments)
    if unknown := [name for name in options.axes if name not in AXES]:
        parser.error(f"got {unknown[0]!r}; allowed {', '.join(AXES)}")
    torch.set_num_threads(1)
    for axis, (measure, label) in AXES.items():
        if not options.axes or axis in options.axes:
            costs = measure(options.small)
            show(axis, costs)
            draw(axis, label, costs, options.out)


if __name__ == "__main__":
    main()
