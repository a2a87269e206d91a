"""A training whose node is killed after its first epoch, with the process of the trial on it; then there is another node.

Run as a program: a cluster is no session's Ray.

python -m tests.support.lost_trial FOLDER
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from tests.support.killed_node import HEAD, STORE
from tests.support.own_ray import wait_until
from tests.support.tiny import make_data, typed_settings

NODE: dict[str, Any] = {"num_cpus": 2, **STORE}


def main(folder: Path) -> int:
    data, run = make_data(folder / "tones", num_test=0), folder / "run"
    # Without CPUs the head takes no process of a trial.
    cluster = Cluster(initialize_head=True, head_node_args={**HEAD, **STORE, "num_cpus": 0})
    doomed = cluster.add_node(**NODE)
    typed = [word for word in typed_settings(data, "1") if not word.startswith("--train.epochs")]
    more = ["--scaling.workers=1", "--scaling.ray_data=false", "--train.epochs=60", "--no-figures"]
    with subprocess.Popen(
        [sys.executable, "-m", "ray_atr", "train", f"--out={run}", *typed, *more],
        env={**os.environ, "RAY_ADDRESS": cluster.address},
    ) as training:
        wait_until(lambda: list(run.glob("trials/*/last/*")), 200, "a checkpoint")
        cluster.remove_node(doomed, allow_graceful=False)
        cluster.add_node(**NODE)
        ended = training.wait(200)
    cluster.shutdown()
    return ended


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
