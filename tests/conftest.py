"""One Ray for the whole test session, and where the optional shared data lies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_atr.runtime import start_ray

if "PYTEST_XDIST_WORKER" in os.environ:
    # Read when torch is imported. Test processes that each compute on every core wait for each other: half as slow again.
    os.environ["OMP_NUM_THREADS"] = "1"

SHARED = Path(os.environ.get("RAY_ATR_SHARED", Path(__file__).resolve().parents[2] / "shared"))


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A local Ray with two CPUs, started once; tests that use it carry the `ray` mark."""
    import ray

    start_ray(num_cpus=2)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what runs make, with the data set of tones in `tones`."""
    from tiny import make_data

    folder = tmp_path_factory.mktemp("home")
    make_data(folder / "tones")
    return folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the repository; skips where there is none."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the real data at {folder} (set RAY_ATR_SHARED)")
    return folder


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Fast tests first, so that a broken formula shows before Ray has even started.
    items.sort(key=lambda item: ("ray" in item.keywords, "slow" in item.keywords))
    for item in items:
        if "ray" in item.keywords:
            # Of the test processes one alone has a Ray.
            item.add_marker(pytest.mark.xdist_group("ray"))
