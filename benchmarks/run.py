"""Every benchmark, or those named: one table of ratios, ours against a named peer measured in the same run.

    uv run --group bench python benchmarks/run.py                      # all; --list names them
    uv run --group bench python benchmarks/run.py search transport --out results
    uv run --group bench python benchmarks/run.py --quick              # each at a small size: shows that it runs, judges nothing

Each runs in a process of its own, one after the other. Prints a Markdown table and writes it as `benchmarks.md` and
`benchmarks.json` to `--out`. The exit code is 1 if a goal was missed, 2 if a benchmark failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rows import ROWS

HERE = Path(__file__).parent
COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "input": (["", "--memory"], ["--clips 32 --rounds 1"]),
    "step": (["loop", "shares"], ["loop --steps 1 --batch 8 --rounds 1", "shares --steps 1 --batch 8"]),
    "start": (["help", "first"], ["help --rounds 1"]),
    "contrastive": ([""], ["--batch 64 --width 32"]),
    "transport": ([""], ["--part memory"]),
    "plan_rows": ([""], ["--size 64"]),
    "metric_cost": ([""], ["--batch 32 --width 64"]),
    "step_memory": ([""], ["--batch 4 --frames 50 --layers 1"]),
    "search": ([""], ["--entries 1000 --width 32 --rounds 1"]),
    "refresh": ([""], ["--clips 128 --width 32 --seconds 1 --prototypes 4 --rounds 1"]),
    "index": (["--rows 100000 --width 512", "--rows 1000000", "--clips 1000"], ["--rows 500 --width 16", "--clips 4"]),
    "serve": ([""], ["--clients 4 --seconds 2 --alone 2 --clips 64"]),
    "snapshot": ([""], ["--entries 1000 --width 32 --workers 2"]),
    "shards": ([""], ["--entries 5000 --width 16 --workers 2 --batch 4 --prototypes 3 --parts 2"]),
    "ask_step": ([""], ["--epochs 3 --rounds 1 --clips 64"]),
    "correspondence": ([""], ["--clips 64 --batch 16 --rounds 1"]),
    "frozen": ([""], ["--clips 24 --epochs 1 --rounds 1"]),
    "evaluation": ([""], ["--captions 200 --clips 40 --width 16 --rounds 1 --peer-captions 200"]),
    "validation": (["ranking", "beside"], ["ranking --rounds 1", "beside --epochs 2 --clips 64"]),
    "import": ([""], ["--clips 8 --rounds 1"]),
    "sweep": (["loop", "efficiency"], ["loop --epochs 2 --rounds 1", "efficiency --epochs 2 --trials 2"]),
    "growth": ([""], ["--small"]),
    "race": ([""], ["--races 4"]),
    "controller": (["--trials 200"], ["--trials 20"]),
    "estimate": ([""], ["--cases contrastive"]),
    "cluster": (["--nodes 16 --trials 200 --at-once 8"], ["--nodes 2 --trials 5 --at-once 2 --epochs 2"]),
    # Shows that its gradients agree; gpu.py measures the published sizes.
    "towers_gpu": (["--size tiny"], ["--size tiny"]),
}
"""The command lines of each benchmark, in the order in which they run; then those at a size of seconds."""


def rows_of(name: str, arguments: str, place: Path = HERE) -> tuple[list[dict[str, Any]], int]:
    """What one benchmark recorded, and its exit code; its own output goes to the terminal."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        command = [sys.executable, str(place / f"bench_{name}.py"), *arguments.split()]
        code = subprocess.run(command, env={**os.environ, ROWS: str(file)}, check=False).returncode
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [{"benchmark": name, **row} for row in rows], code


def verdict(row: dict[str, Any]) -> str:
    """`met`, `missed`, or nothing for a row without a goal."""
    return "" if row["goal"] is None else "met" if row["ratio"] <= row["goal"] else "missed"


def markdown(rows: list[dict[str, Any]]) -> str:
    """The rows as one Markdown table."""
    lines = ["| benchmark | what | ours | peer | ratio | goal | |", "| --- | --- | ---: | --- | ---: | ---: | --- |"]
    for row in rows:
        goal = "" if row["goal"] is None else f"at most {row['goal']:.2f}"
        lines.append(
            f"| {row['benchmark']} | {row['what']} | {row['ours']:.4g} {row['unit']} | {row['peer_name']}: "
            f"{row['peer']:.4g} {row['unit']} | {row['ratio']:.3f} | {goal} | {verdict(row)} |"
        )
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """What the figures depend on: processor, cores, load at the start, versions."""
    import torch

    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def write(folder: Path, facts: dict[str, Any], rows: list[dict[str, Any]], failed: list[str]) -> None:
    """The table and the JSON of what has been measured so far."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "benchmarks.md").write_text(markdown(rows) + "\n")
    content = {"machine": facts, "rows": rows, "failed": failed}
    (folder / "benchmarks.json").write_text(json.dumps(content, indent=1) + "\n")


def main(
    given: Sequence[str] | None = None,
    commands: Mapping[str, tuple[list[str], list[str]]] = COMMANDS,
    place: Path = HERE,
) -> int:
    """Run the benchmarks of a folder by their commands; 2 if one failed, 1 if a goal was missed. Without `given` it takes the
    command line's arguments.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run (default: all)")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that each runs, judges no goal")
    parser.add_argument("--out", type=Path, default=Path("benchmark_results"), help="folder of the table and the JSON")
    options = parser.parse_args(given)
    if options.list:
        print("\n".join(commands))
        return 0
    unknown = [name for name in options.names if name not in commands]
    if unknown:
        parser.error(f"got {unknown[0]!r}; allowed {', '.join(commands)}")
    facts, rows, failed = machine(), [], []
    if facts["load"] > 0.5:
        print(f"warning: the machine's load is {facts['load']:.1f}; times will be noisy", file=sys.stderr)
    for name in options.names or commands:
        for arguments in commands[name][options.quick]:
            print(f"\n== {name} {arguments}", flush=True)
            recorded, code = rows_of(name, arguments, place)
            rows += [{**row, "goal": None} for row in recorded] if options.quick else recorded
            failed += [name] if code else []
            # After each: what was measured is not lost if a later one is interrupted.
            write(options.out, facts, rows, failed)
    table = markdown(rows)
    missed = [row["what"] for row in rows if verdict(row) == "missed"]
    print(f"\n{table}\n\n{', '.join(f'{key} {value}' for key, value in facts.items() if value is not None)}")
    print(f"{len(rows)} rows, {len(missed)} goals missed, {len(failed)} benchmarks failed; written to {options.out}")
    return 2 if failed else 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
