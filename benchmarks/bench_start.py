"""From typing a command to its help, and to its first epoch.

    uv run python benchmarks/bench_start.py help      # --help of ray-atr and of each of its commands
    uv run python benchmarks/bench_start.py first     # one trial of the quickstart in an empty home, on Ray: the parts it names

Goal: help in under 2 s. CPU seconds of the process and all its threads; the first epoch in wall seconds, as the command says it.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile

from side_by_side import compared

from ray_atr.cli.commands import COMMANDS

HELP_SECONDS = 2.0


def run(*words: str, **environment: str) -> tuple[float, str]:
    """CPU seconds of `ray-atr WORDS`, its children included, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "ray_atr", *words]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def measure_help(rounds: int) -> None:
    """CPU seconds of each help, after one that compiles what it imports."""
    for words in ([], *([name] for name in COMMANDS)):
        run(*words, "--help")
        seconds = statistics.median(run(*words, "--help")[0] for _ in range(rounds))
        name = " ".join(["ray-atr", *words, "--help"])
        compared(name, seconds, HELP_SECONDS, "two seconds", unit="s", at_most=1.0)
        print(f"{name:32} {seconds:6.2f} s", flush=True)


def measure_first() -> None:
    """The parts of the time until the first epoch of one trial, data and features made on the way."""
    with tempfile.TemporaryDirectory() as home:
        _, shown = run("train", "--train.epochs", "1", "--tracking.mlflow", "false", RAY_ATR_HOME=home)
    line = next(line for line in shown.splitlines() if line.startswith("first epoch"))
    print(line)
    parts = {
        name: float(seconds) for name, seconds in re.findall(r"([A-Za-z ]+) ([\d.]+)(?:,|$)", line.split(": ", 1)[1])
    }
    total = sum(parts.values())
    for name, seconds in parts.items():
        compared(f"until the first epoch: {name.strip()}", seconds, total, "all of it", unit="s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("help", "first"))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.what == "help":
        measure_help(options.rounds)
    else:
        measure_first()


if __name__ == "__main__":
    main()
