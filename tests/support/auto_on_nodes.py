"""The same training on the Ray of RAY_ADDRESS, as `auto` has it there and in one process.

Run as a program: the tests' own process has the session's Ray.

python auto_on_nodes.py FOLDER CPUS_OF_A_WORKER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ray._private import state

from ray_atr.cli import main as command
from tests.support.tiny import make_data, typed_settings


def main(folder: Path, cpus: str) -> None:
    data = make_data(folder / "auto-tones", num_test=0)
    typed = typed_settings(data, cpus)
    command("train", arguments=[f"--out={folder}/runs/auto", "--no-figures", *typed])
    in_one_process = ["--scaling.workers=0", "--scaling.ray_data=false"]
    command("train", arguments=[f"--out={folder}/runs/alone", "--no-figures", *in_one_process, *typed])
    actors = [(one["ActorClassName"], one["Address"]["NodeID"]) for one in state.actors().values()]
    print(json.dumps(actors))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
