"""How far the weights of 1, 2 and 4 workers are apart after 51 steps, for every scheme, pair loss, knowledge and correspondence.

    uv run python tests/faults/agreement_table.py                                # all, some ten minutes
    uv run python tests/faults/agreement_table.py --of objective.pair --dtype float32

In float64, as float32 says little after so many steps: where the true gradient is 0, Adam makes a full step of its rounding.
Prints a line a part as Markdown; the exit code is 1 if one worker does not end twice with the same bits, or several end further
than 1e-5 from it. Workers are processes of this machine that talk by gloo, without Ray.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from agreement import AXES, STEPS_PER_EPOCH, differences

SIZES = (1, 2, 4)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--of", nargs="+", default=[*AXES], choices=[*AXES])
    options.add_argument("--names", nargs="+", help="only the choices of these names")
    options.add_argument("--dtype", default="float64", choices=("float32", "float64"))
    options.add_argument("--steps", type=int, default=51)
    chosen = options.parse_args()
    print("| part | choice | 1 worker again | 2 workers | 4 workers |\n| --- | --- | ---: | ---: | ---: |")
    differs = False
    for axis in chosen.of:
        parts = [(axis, name) for name in AXES[axis] if not chosen.names or name in chosen.names]
        with tempfile.TemporaryDirectory(prefix="agreement-") as folder:
            epochs = chosen.steps // STEPS_PER_EPOCH
            found = differences(parts, Path(folder), sizes=SIZES, epochs=epochs, dtype=chosen.dtype)
        for (_, name), apart in found.items():
            differs |= apart[0] != 0 or max(apart) >= 1e-5
            print(f"| {axis} | `{name}` | " + " | ".join(f"{value:.1e}" for value in apart) + " |", flush=True)
    return int(differs)


if __name__ == "__main__":
    raise SystemExit(main())
