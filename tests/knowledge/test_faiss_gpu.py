"""FAISS on a GPU: equal to the CPU's results where there is one, and asked for wherever there would be one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from ray_atr.common.runtime import code_version
from ray_atr.objectives.knowledge.knowledge import SearchSpec, SnapshotSettings
from ray_atr.training.knowledge_base import faiss_library
from ray_atr.training.knowledge_base.building import build
from ray_atr.training.knowledge_base.faiss_library import LARGEST_K
from ray_atr.training.knowledge_base.searcher import SearchableRows
from ray_atr.training.knowledge_base.snapshot import Entries, Snapshot

N, D = LARGEST_K + 1, 8
IVF = SnapshotSettings(prototypes=6, index="ivf")


def entries() -> Entries:
    random = np.random.default_rng(0)
    return Entries(random.normal(size=(N, D)), random.normal(size=(N, D)), [str(number) for number in range(N)])


def queries() -> torch.Tensor:
    return normalize(torch.randn(5, D, generator=torch.Generator().manual_seed(1)), dim=1)


def rows_of(snapshot: Snapshot, device: torch.device) -> SearchableRows:
    return SearchableRows(snapshot.audio, None, device, SearchSpec(3, "ivf", 4), snapshot.audio_index)


class OnGpu:
    """What `index_cpu_to_gpu` returns: an index that FAISS says is elsewhere, and that notes what is asked of it."""

    def __init__(self, index: Any, calls: list[str]) -> None:
        self.index, self.calls = index, calls

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self.index, name)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A FAISS with the interface of faiss-gpu and one GPU, whose indices compute on the CPU; the calls that were made."""
    made: list[str] = []
    kmeans = faiss.Kmeans

    class Kmeans:
        def __new__(cls, d: int, k: int, gpu: int = 0, **settings: Any) -> Any:
            made.append(f"Kmeans(gpu={gpu})")
            return kmeans(d, k, **settings)

    def index_cpu_to_gpu(resources: object, number: int, index: Any) -> Any:
        assert isinstance(resources, Resources)
        made.append(f"index_cpu_to_gpu({number}, {type(index).__name__}, {index.ntotal})")
        # The one that computes k-means' distances is handed to FAISS itself, which takes no index of ours.
        return index if isinstance(index, faiss.IndexFlat) and index.ntotal == 0 else OnGpu(index, made)

    class Resources: ...

    of_gpus = {
        "StandardGpuResources": Resources,
        "get_num_gpus": lambda: 1,
        "Kmeans": Kmeans,
        "index_cpu_to_gpu": index_cpu_to_gpu,
        "index_gpu_to_cpu": lambda index: index.index,
    }
    for name, fake in of_gpus.items():
        monkeypatch.setattr(faiss, name, fake, raising=False)
    monkeypatch.setattr(faiss_library, "TRIAL", "")
    for cached in (faiss_library.resources, faiss_library._runs_on_gpu):
        cached.cache_clear()
    yield made
    for cached in (faiss_library.resources, faiss_library._runs_on_gpu):
        cached.cache_clear()


def test_a_refresh_and_a_search_ask_for_the_gpu_and_give_the_same(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    plain = build(entries(), IVF)
    found = rows_of(plain, torch.device("cpu")).top_k(queries(), 3)
    calls = request.getfixturevalue("calls")
    snapshot = build(entries(), IVF)
    lists = "index_cpu_to_gpu(0, IndexFlatIP, 0)", "index_cpu_to_gpu(0, IndexIVFFlat, 0)"
    # The prototypes' k-means, then the index of the audio and that of the texts.
    nearest = "index_cpu_to_gpu(0, IndexFlatL2, 0)"
    assert calls == ["Kmeans(gpu=1)", nearest, *(*lists, "add") * 2]
    np.testing.assert_array_equal(snapshot.audio_index, plain.audio_index)
    np.testing.assert_array_equal(snapshot.cluster, plain.cluster)
    calls.clear()
    # Torch knows no GPU here: the rows stay on the CPU, and FAISS is told that its index is searched on GPU 0.
    monkeypatch.setattr(faiss_library, "gpu_number", lambda device: 0)
    rows = rows_of(snapshot, torch.device("cpu"))
    values, positions = rows.top_k(queries(), 3)
    assert calls == [f"index_cpu_to_gpu(0, IndexIVFFlat, {N})", "search"]
    assert rows.on_gpu.index.nprobe == 4
    torch.testing.assert_close((values, positions), found)
    # More than FAISS finds on a GPU.
    calls.clear()
    rows.top_k(queries(), N)
    assert calls == []


def test_a_device_of_torch_is_one_of_faiss_only_with_its_gpu_package(
    request: pytest.FixtureRequest,
) -> None:
    if not hasattr(faiss, "StandardGpuResources"):
        assert faiss_library.num_gpus() == 0
        assert faiss_library.gpu_number(torch.device("cuda:0")) is None
    request.getfixturevalue("calls")
    assert faiss_library.gpu_number(torch.device("cpu")) is None
    assert faiss_library.gpu_number(torch.device("cuda:3")) == 3
    assert faiss_library.searched_on(faiss.IndexHNSWFlat(D, 4), torch.device("cuda:0")) is None
    assert faiss_library.searched_on(faiss.IndexFlatIP(D), torch.device("cpu")) is None


def test_a_build_without_code_for_the_gpu_is_not_used_on_it(
    monkeypatch: pytest.MonkeyPatch, calls: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    # What faiss-gpu-cu12 1.14.1 does on an H100: it has code for compute capabilities 7.0 and 8.0 alone.
    message = "Faiss assertion 'err__ == cudaSuccess' failed; details: CUDA error 209 no kernel image is available"
    monkeypatch.setattr(faiss_library, "TRIAL", f"import os, sys; sys.stderr.write({message!r} + chr(10)); os.abort()")
    assert faiss_library.num_gpus() == 0
    build(entries(), IVF)
    assert calls == ["Kmeans(gpu=0)"]
    (record,) = caplog.records
    assert record.getMessage().endswith("(docs/install.md): CUDA error 209 no kernel image is available")


def test_a_run_records_the_version_of_either_package() -> None:
    found = code_version()
    assert {"faiss-cpu", "faiss-gpu"} <= found.keys()
    assert found["faiss-cpu"] != "absent" or found["faiss-gpu"] != "absent"


@pytest.mark.skipif(faiss_library.num_gpus() == 0, reason="needs faiss-gpu (extra `gpu`) and a GPU")
def test_on_a_gpu_k_means_and_ivf_are_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu = build(entries(), IVF)
    with monkeypatch.context() as without:
        without.setattr(faiss_library, "num_gpus", lambda: 0)
        on_cpu = build(entries(), IVF)
    # Sums in another order may move an entry that is equally near to two centroids.
    assert (on_gpu.cluster == on_cpu.cluster).mean() > 0.98
    np.testing.assert_allclose(on_gpu.centroids, on_cpu.centroids, atol=1e-3)
    rows = rows_of(on_cpu, torch.device("cuda:0"))
    assert rows.on_gpu is not None
    values, positions = rows.top_k(queries().cuda(), 3)
    expected, places = rows_of(on_cpu, torch.device("cpu")).top_k(queries(), 3)
    torch.testing.assert_close(values.cpu(), expected, rtol=1e-4, atol=1e-4)
    assert (positions.cpu() == places).float().mean() > 0.9
