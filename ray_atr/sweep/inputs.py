"""What a sweep was run on and by: recorded in its run folder, and compared when it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ray_atr.run_folder import RunFolder, write_json
from ray_atr.training.prepare import Prepared


def record_data(run: RunFolder, prepared: Sequence[Prepared]) -> None:
    """Note names and manifest hashes of the data sets in sweep.json; ValueError where one is not what it was before."""
    info = run.info
    kept = hashes_of(info)
    found = {one.data.rstrip("/").rsplit("/", 1)[-1]: one.data_hash for one in prepared}
    for name, digest in found.items():
        if kept.get(name, digest) != digest:
            raise ValueError(
                f"{run.path}: run on other data: {name} has the hash {kept[name]} there and {digest} now; "
                "start a new sweep, or bring the data back"
            )
    if found.items() <= kept.items():
        return
    data = {**kept, **found}
    write_json(run.path / "sweep.json", {**info, "data": {"name": ", ".join(data), "hash": ", ".join(data.values())}})


def hashes_of(info: Mapping[str, Any]) -> dict[str, str]:
    """Data set -> manifest hash, of a sweep.json."""
    data = info.get("data") or {"name": "", "hash": ""}
    names, hashes = data["name"].split(", "), data["hash"].split(", ")
    return {name: digest for name, digest in zip(names, hashes, strict=True) if name}


def differences_of_code(info: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """In words, where the code that goes on with a sweep is not the code that started it."""
    kept = info.get("code") or {}
    return [f"{name} was {kept[name]}, is {now[name]}" for name in now if name in kept and kept[name] != now[name]]
