"""Commands on the Ray of RAY_ADDRESS: a trial of two workers, a base in parts and a validator, a sweep of two trials, and one
training twice, as `auto` has it there and in one process.

Run as a program: the tests' own process has the session's Ray.

python both_nodes.py FOLDER CPUS_OF_A_WORKER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ray._private import state

from ray_atr.cli import main as command
from tests.support.tiny import make_data, typed_settings


def main(folder: Path, cpus: str) -> None:
    # Of two splits: the features of each take a process that imports torch.
    data = make_data(folder / "tones", num_test=0)
    typed = typed_settings(data, cpus)
    ask = ["--objective=ask", "--objective.knowledge.prototypes=4", "--objective.knowledge.refresh_lag=2"]
    ask += ["--scaling.base_shards=2"]
    beside = ["--scaling.validate_beside=true", "--scaling.cpus_per_validation=0"]
    command(
        "train", arguments=[f"--out={folder}/runs/one", "--no-figures", "--scaling.workers=2", *ask, *beside, *typed]
    )
    points = ["--objectives", "contrastive", "--noise", "0.2", "0.4", "--seeds", "0"]
    in_one_process = ["--scaling.workers=0", "--scaling.ray_data=false"]
    command("sweep", "noise", arguments=[f"--out={folder}/runs/many", "--no-figures", *points, *in_one_process, *typed])
    command("train", arguments=[f"--out={folder}/runs/auto", "--no-figures", *typed])
    command("train", arguments=[f"--out={folder}/runs/alone", "--no-figures", *in_one_process, *typed])
    # `ray list actors` would ask a dashboard, which this Ray has none of.
    actors = [(one["ActorClassName"], one["State"], one["Address"]["NodeID"]) for one in state.actors().values()]
    print(json.dumps(actors))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
