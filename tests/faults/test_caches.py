"""What is cached is listed with its size and last use; what killed runs left goes, what a live one writes stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout

from ray_atr.cli import main
from ray_atr.common import caches
from ray_atr.common.atomic import remove_leftovers_below
from ray_atr.common.caches import DAY, list_caches, lock_of, prune
from ray_atr.common.storage import atomic_file


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAY_ATR_HOME", str(tmp_path))
    for name, days in (("features/old", 40), ("features/new", 1), ("vectors/busy", 50)):
        folder = tmp_path / "data" / "cache" / name
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
        (folder / "part").write_bytes(bytes(1000))
        os.utime(folder / "manifest.json", (time.time() - days * DAY,) * 2)
    return tmp_path


def test_caches_are_listed_and_pruned(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {cache.path.name: cache for cache in list_caches(home)}
    assert list(found) == ["busy", "old", "new"]
    assert found["old"].num_bytes == 1002
    assert found["old"].days_unused == pytest.approx(40, abs=0.1)
    (home / "data" / "cache" / "features" / ".new.0123456789ab").write_bytes(b"of a killed run")
    main("cache", arguments=[])
    assert "features  1.0 kB  40.0 days" in capsys.readouterr().out
    with FileLock(home / "data" / "cache" / "vectors" / "busy.lock"):
        main("cache", arguments=["--prune", "--unused-days", "30"])
    assert "1 removed" in capsys.readouterr().out
    assert [cache.path.name for cache in list_caches(home)] == ["busy", "new"]
    assert not (home / "data" / "cache" / "features" / ".new.0123456789ab").exists()
    assert [cache.path.name for cache in prune(home, 30)] == ["busy"]


def test_who_waits_for_a_removed_cache_holds_its_lock_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The waiting process takes the lock as soon as it is free, and makes the cache: another one must find it taken."""
    folder = home / "data" / "cache" / "vectors" / "busy"
    waiting = lock_of(folder)

    class Watched(FileLock):
        def release(self, force: bool = False) -> None:
            super().release(force)
            waiting.acquire(timeout=0)

    monkeypatch.setattr(caches, "lock_of", lambda cache: Watched(f"{cache}.lock"))
    assert [cache.path for cache in prune(home, 45)] == [folder]
    with waiting, pytest.raises(Timeout):
        FileLock(f"{folder}.lock").acquire(timeout=0)
    waiting.release(force=True)


@pytest.mark.parametrize("name", ["vectors", "features"])
def test_a_data_set_of_a_users_own_is_no_cache(home: Path, name: str) -> None:
    """The documentation's own example is called data/vectors."""
    files = [home / "data" / name / file for file in ("manifest.json", "train/part.parquet")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
        os.utime(file, (time.time() - 400 * DAY,) * 2)
    assert [cache.path.name for cache in prune(home, 30)] == ["busy", "old"]
    assert all(file.is_file() for file in files)


@pytest.mark.parametrize("days", ["nan", "inf", "-1"])
def test_a_number_of_days_that_is_none_removes_nothing(
    home: Path, days: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main("cache", arguments=["--prune", f"--unused-days={days}"])
    assert "--unused-days: got" in capsys.readouterr().err
    assert len(list_caches(home)) == 3


def test_a_live_writers_file_stays_and_a_dead_ones_goes(tmp_path: Path) -> None:
    file = tmp_path / "file"
    code = (
        "import sys, time; from pathlib import Path; from ray_atr.common.storage import atomic_file\n"
        "with atomic_file(Path(sys.argv[1])) as output: output.write(b'half'); print('on', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(file)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "on\n"
    with atomic_file(file) as output:
        output.write(b"whole")
    assert len(list(tmp_path.glob(".file.*"))) == 1, "a live writer's file is not a leftover"
    other.kill()
    other.wait()
    with atomic_file(file) as output:
        output.write(b"again")
    assert not list(tmp_path.glob(".file.*"))
    assert file.read_bytes() == b"again"


@pytest.mark.slow
def test_ray_may_be_imported_first() -> None:
    """Its switches are read when it is imported: they are set all the same."""
    code = (
        "import ray; import ray._private.ray_constants as c\n"
        "from ray_atr.common.runtime import prepare_environment\n"
        "prepare_environment(); print(c.ENABLE_RAY_CLUSTER, c.RAY_ENABLE_UV_RUN_RUNTIME_ENV)"
    )
    names = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_ENABLE_UV_RUN_RUNTIME_ENV", "RAY_ADDRESS", "RAY_JOB_ID")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("removed", ["features/old", "features/old/parts"])
def test_a_folder_that_another_process_removes_meanwhile_ends_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, removed: str
) -> None:
    folder, scandir = home / "data" / "cache" / removed, os.scandir
    (home / "data" / "cache" / "features" / "old" / "parts").mkdir()

    def too_late(path: Any = ".") -> Any:
        if isinstance(path, str | Path) and Path(path) == folder:
            shutil.rmtree(folder)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", too_late)
    assert {"busy", "new"} <= {cache.path.name for cache in list_caches(home)}
    folder.mkdir(parents=True)
    remove_leftovers_below(home)
