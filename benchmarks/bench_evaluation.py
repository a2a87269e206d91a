"""Retrieval metrics against torchmetrics, ranx and scikit-learn: time side by side, and values, in one run.

    uv sync --group bench
    python benchmarks/bench_evaluation.py                                    # 4,000 captions x 800 clips, 7 rounds
    python benchmarks/bench_evaluation.py --captions 50000 --clips 10000 --rounds 3 --peer-captions 1000
    python benchmarks/bench_evaluation.py --memory                           # peak memory beyond the embeddings
    python benchmarks/bench_evaluation.py --full-size                        # the same at 1,000,000 x 200,000

Every contender starts from the same embeddings and pays for its own scores. Ours gives both directions and the tie count;
torchmetrics gives R@1, R@5, R@10 and mAP at 10 of text to audio, the direction that has one relevant clip, where every
library's definitions agree. The peers get their scores in groups of queries, as the whole would not fit in memory.
Audio-to-text mAP (several relevant captions) is compared with ranx, recall and text-to-audio mAP with scikit-learn.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from side_by_side import compared, forget_peak, peak_resident_bytes

from ray_atr.metrics import retrieval_metrics

GROUP = 500
TOLERANCE = 2e-5  # one query of 50,000: a library that ranks float32 scores orders some near-ties by rounding


def make(captions: int, clips: int, width: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Unit embeddings with a median rank of a few, as a trained model has, and the clip of each caption."""
    generator = torch.Generator().manual_seed(seed)
    audio = torch.nn.functional.normalize(torch.randn(clips, width, generator=generator), dim=1)
    clip = torch.arange(captions) % clips
    noise = torch.nn.functional.normalize(torch.randn(captions, width, generator=generator), dim=1)
    return audio, torch.nn.functional.normalize(audio[clip] + 6.0 * noise, dim=1), clip


def groups(audio: torch.Tensor, text: torch.Tensor, clip: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for start in range(0, len(text), GROUP):
        part = slice(start, start + GROUP)
        yield text[part] @ audio.T, clip[part]


def ours(audio: torch.Tensor, text: torch.Tensor, clip: torch.Tensor) -> dict[str, float]:
    return retrieval_metrics(audio, text, clip)


def by_torchmetrics(audio: torch.Tensor, text: torch.Tensor, clip: torch.Tensor) -> dict[str, float]:
    """Its functions, query by query: its classes take longer, as they also sort all pairs by query."""
    from torchmetrics.functional.retrieval import retrieval_average_precision, retrieval_hit_rate

    metrics = {f"recall_at_{k}": partial(retrieval_hit_rate, top_k=k) for k in (1, 5, 10)}
    metrics["map_at_10"] = partial(retrieval_average_precision, top_k=10)
    sums = dict.fromkeys(metrics, 0.0)
    for scores, own in groups(audio, text, clip):
        targets = torch.nn.functional.one_hot(own, len(audio)).bool()
        for row, target in zip(scores, targets, strict=True):
            for name, metric in metrics.items():
                sums[name] += float(metric(row, target))
    return {f"text_to_audio/{name}": total / len(text) for name, total in sums.items()}


def by_scikit_learn(audio: torch.Tensor, text: torch.Tensor, clip: torch.Tensor) -> dict[str, float]:
    """R@k, and mAP at 10 from R@1..R@10 (for one relevant clip it is sum over r of (R@r - R@(r-1)) / r); float64."""
    from sklearn.metrics import top_k_accuracy_score

    recall = np.zeros(11)
    labels = np.arange(len(audio))
    for scores, own in groups(audio.double(), text.double(), clip):
        for k in range(1, 11):
            recall[k] += top_k_accuracy_score(own.numpy(), scores.numpy(), k=k, labels=labels, normalize=False)
    recall /= len(text)
    result = {f"text_to_audio/recall_at_{k}": float(recall[k]) for k in (1, 5, 10)}
    result["text_to_audio/map_at_10"] = float(sum((recall[r] - recall[r - 1]) / r for r in range(1, 11)))
    return result


def by_ranx(audio: torch.Tensor, text: torch.Tensor, clip: torch.Tensor) -> dict[str, float]:
    """Audio to text on the ten best captions of each clip, the relevant ones being all of the clip's."""
    from ranx import Qrels, Run, evaluate

    qrels: dict[str, dict[str, int]] = {}
    for caption, own in enumerate(clip.tolist()):
        qrels.setdefault(str(own), {})[str(caption)] = 1
    run: dict[str, dict[str, float]] = {}
    for start in range(0, len(audio), GROUP):
        best = (audio[start : start + GROUP].double() @ text.double().T).topk(10, dim=1)
        for row, (values, captions) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True), start):
            run[str(row)] = {str(c): v for c, v in zip(captions, values, strict=True)}
    names = ["map@10", "hit_rate@1", "hit_rate@5", "hit_rate@10"]
    values = evaluate(Qrels(qrels), Run(run), names)
    ours = ["map_at_10", "recall_at_1", "recall_at_5", "recall_at_10"]
    return {f"audio_to_text/{mine}": float(values[theirs]) for mine, theirs in zip(ours, names, strict=True)}


def timed(call: Callable[..., dict[str, float]], data: tuple[torch.Tensor, ...]) -> tuple[float, dict[str, float]]:
    """CPU seconds of all threads, which a busy machine does not stretch, and the values."""
    start = time.process_time()
    values = call(*data)
    return time.process_time() - start, values


def compare(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    data = make(options.captions, options.clips, options.width, options.seed)
    few = (data[0], data[1][: options.peer_captions], data[2][: options.peer_captions])
    share = len(few[1]) / options.captions
    small = make(20, 10, 8, options.seed)
    ours(*small), by_torchmetrics(*small)  # imports and first-call costs are nobody's
    times: dict[str, list[float]] = {"ours": [], "torchmetrics": []}
    for _ in range(options.rounds):  # interleaved, so that a busy machine slows both alike
        seconds, mine = timed(ours, data)
        times["ours"].append(seconds)
        seconds, theirs = timed(by_torchmetrics, few)
        times["torchmetrics"].append(seconds / share)
    here, there = (statistics.median(times[name]) for name in ("ours", "torchmetrics"))
    what, peer = "retrieval metrics, both directions", "torchmetrics, one direction"
    ratio = compared(what, here, there, peer, unit="s", at_most=1 / 3)
    scaled = "" if share == 1 else f", from {len(few[1])} captions: its time is proportional to them"
    print(
        f"{options.captions} captions x {options.clips} clips, width {options.width}, one thread, median of {options.rounds}"
    )
    print(f"ours, both directions         {here:10.2f} CPU s")
    print(f"torchmetrics, text to audio   {there:10.2f} CPU s{scaled}")
    print(f"ratio                         {1 / ratio:10.1f} (goal 3)", flush=True)
    ours_of_few = mine if share == 1 else ours(*few)
    check("torchmetrics", theirs, ours_of_few)
    check("scikit-learn", by_scikit_learn(*few), ours_of_few)
    check("ranx", by_ranx(*data), mine)


def check(peer: str, values: dict[str, float], mine: dict[str, float]) -> None:
    for name, value in values.items():
        difference = abs(mine[name] - value)
        print(f"{peer:13} {name:28} {value:.6f}  ours {mine[name]:.6f}  difference {difference:.1e}", flush=True)
        assert difference <= TOLERANCE, (peer, name)


def memory(options: argparse.Namespace) -> None:
    """Peak resident memory beyond the embeddings, at growing sizes: it must not grow with captions x clips."""
    gibibyte = 2**30
    retrieval_metrics(torch.eye(2), torch.eye(2), [0, 1])
    for scale in (1, 2, 4):
        captions, clips = options.captions * scale, options.clips * scale
        generator = torch.Generator().manual_seed(options.seed)
        audio = torch.randn(clips, options.width, generator=generator)
        text = torch.randn(captions, options.width, generator=generator)
        clip = torch.randint(0, clips, (captions,), generator=generator)
        forget_peak()
        before = peak_resident_bytes()
        seconds, _ = timed(ours, (audio, text, clip))
        beyond = peak_resident_bytes() - before
        whole = captions * clips * 4 / gibibyte
        held = (audio.nbytes + text.nbytes) / gibibyte
        print(f"{captions:8} x {clips:7}: embeddings {held:6.3f} GiB, whole matrix {whole:7.3f} GiB, ", end="")
        print(f"peak beyond the embeddings {beyond / gibibyte:6.3f} GiB, {seconds:6.1f} s", flush=True)


def full_size(options: argparse.Namespace) -> None:
    """Peak memory beyond the embeddings at 1,000,000 captions x 200,000 clips, width 1024, for the first CPU minutes.

    All arrays that grow with captions or clips are made before the first block of scores, and every block is like the
    first, so the peak is reached within a few blocks; the whole pass would take hours on one core.
    """
    captions, clips, width = 1_000_000, 200_000, 1024
    generator = torch.Generator().manual_seed(options.seed)
    audio, text = torch.empty(clips, width), torch.empty(captions, width)
    audio.normal_(generator=generator)
    text.normal_(generator=generator)
    clip = torch.arange(captions) % clips
    retrieval_metrics(torch.eye(2), torch.eye(2), [0, 1])
    forget_peak()
    before = peak_resident_bytes()

    def stop(signum: int, frame: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, options.seconds)
    try:
        retrieval_metrics(audio, text, clip)
        reached = captions * clips
    except TimeoutError as stopped:
        frames = {frame.f_code.co_name: frame.f_locals for frame, _ in traceback.walk_tb(stopped.__traceback__)}
        at = frames["count_ranks"]
        reached = at.get("first_text", 0) * clips + 1024 * at.get("first_clip", 0)
    signal.setitimer(signal.ITIMER_PROF, 0)
    assert reached > 10_000_000, "stopped before the first blocks of scores: give it more --seconds"
    beyond = peak_resident_bytes() - before
    held = (audio.nbytes + text.nbytes) / 2**30
    print(f"{captions} x {clips}, width {width}, first {options.seconds} CPU s: embeddings {held:.2f} GiB, ", end="")
    print(f"{reached / 1e6:.0f} million scores, peak beyond them {beyond / 2**30:.2f} GiB (at most 4)")
    compared(
        "memory beyond the embeddings, 1,000,000 x 200,000", beyond / 2**30, 4.0, "the goal", unit="GiB", at_most=1.0
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captions", type=int, default=4000)
    parser.add_argument("--clips", type=int, default=800)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--peer-captions", type=int, default=4000, help="captions given to torchmetrics and scikit-learn"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory", action="store_true", help="measure memory instead")
    parser.add_argument("--full-size", action="store_true", help="memory at 1,000,000 x 200,000, width 1024 (5 GiB)")
    parser.add_argument("--seconds", type=int, default=120, help="CPU seconds that --full-size runs")
    options = parser.parse_args()
    action = full_size if options.full_size else memory if options.memory else compare
    action(options)


if __name__ == "__main__":
    main()
