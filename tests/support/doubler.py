"""What does a job in the tests of jobs: in a module of its own, so that Ray's processes can import it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ray_atr.common.digests import DamagedFileError


class Doubler:
    """Doubles numbers and leaves a file for every time that it is made."""

    def __init__(self, folder: Path, seconds: float = 0.0, *, dies: bool = False) -> None:
        (folder / f"made-{os.getpid()}-{time.monotonic_ns()}").touch()
        self.seconds, self.dies = seconds, dies

    def __call__(self, job: int) -> dict[str, int]:
        time.sleep(self.seconds)
        if job < 0:
            raise DamagedFileError(f"job {job}", "give a number")
        if self.dies:
            os._exit(9)  # as the system does with what takes too much memory
        return {"twice": 2 * job, "process": os.getpid()}
