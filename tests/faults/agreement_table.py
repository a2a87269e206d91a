"""How far 1, 2 and 4 workers are apart after 51 steps, for every scheme, pair loss, knowledge, correspondence and interaction.

    uv run python tests/faults/agreement_table.py                                # all, some ten minutes
    uv run python tests/faults/agreement_table.py --of objective.pair --dtype float32

In float64, since training enlarges the rounding of float32: Adam takes a full step along a gradient that is only rounding. The
last column shows how much: one worker whose first weights are off by one unit in the last place. Each cell has the relative
difference of the weights, then of the epochs' losses.

Prints a line a part as Markdown; the exit code is 1 if one worker does not end twice with the same bits, or, in float64, several
end further than 1e-5 from it. Workers are processes of this machine that talk by gloo.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support import processes
from tests.support.agreement import AXES, NUDGED, STEPS_PER_EPOCH, differences

SIZES = (1, 2, 4, NUDGED)
SECONDS = 3600
"""How long the choices of an axis may take, more than those of a test: four workers on two busy cores are slow."""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--of", nargs="+", default=[*AXES], choices=[*AXES])
    options.add_argument("--names", nargs="+", help="only the choices of these names")
    options.add_argument("--dtype", default="float64", choices=("float32", "float64"))
    options.add_argument("--steps", type=int, default=51)
    chosen = options.parse_args()
    processes.SECONDS = SECONDS
    print(
        "| part | choice | 1 worker again | 2 workers | 4 workers | 1 worker, nudged |\n| --- | --- | ---: | ---: | ---: | ---: |"
    )
    differs = False
    for axis in chosen.of:
        parts = [((axis, name),) for name in AXES[axis] if not chosen.names or name in chosen.names]
        with tempfile.TemporaryDirectory(prefix="agreement-") as folder:
            epochs = chosen.steps // STEPS_PER_EPOCH
            found = differences(parts, Path(folder), sizes=SIZES, epochs=epochs, dtype=chosen.dtype)
        for ((_, name),), apart in found.items():
            again, *several, _ = apart
            differs |= again != (0, 0)
            differs |= chosen.dtype == "float64" and any(max(one) >= 1e-5 for one in several)
            cells = [f"{one.weights:.1e}, {one.losses:.1e}" for one in apart]
            print(f"| {axis} | `{name}` | " + " | ".join(cells) + " |", flush=True)
    return int(differs)


if __name__ == "__main__":
    raise SystemExit(main())
