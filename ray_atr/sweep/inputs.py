"""What a sweep was run on and by: recorded in its run folder, and compared when it resumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ray_atr.run_folder import RunFolder
from ray_atr.training.inputs import Prepared


def record_data(run: RunFolder, prepared: Sequence[Prepared]) -> None:
    """Note names and manifest hashes of the data sets in sweep.json; ValueError if one is not what it was before."""
    info = run.info
    kept = hashes_of(info)
    # Commas separate the names where they are kept.
    found = {one.data.rstrip("/").rsplit("/", 1)[-1].replace(",", " "): one.data_hash for one in prepared}
    for name, digest in found.items():
        if kept.get(name, digest) != digest:
            raise ValueError(
                f"{run.path}: run on other data: {name} has the hash {kept[name]} there and {digest} now; "
                "start a new sweep, or restore the data"
            )
    if found.items() <= kept.items():
        return
    data = {**kept, **found}
    sets = sorted({one.data_name for one in prepared if one.data_name} | set(sets_of(info)))
    noted = {"name": ", ".join(data), "hash": ", ".join(data.values()), "set": ", ".join(sets)}
    run.update_info(data=noted)


def hashes_of(info: Mapping[str, Any]) -> dict[str, str]:
    """Data set -> manifest hash, of a sweep.json."""
    data = info.get("data") or {"name": "", "hash": ""}
    hashes = data["hash"].split(", ")
    # Of one data set an earlier version kept the comma too.
    names = data["name"].split(", ") if len(hashes) > 1 else [data["name"].replace(",", " ")]
    return {name: digest for name, digest in zip(names, hashes, strict=True) if name}


def sets_of(info: Mapping[str, Any]) -> list[str]:
    """What the data sets of a sweep.json call themselves in their manifests; none for a run of before that was noted."""
    return [name for name in (info.get("data") or {}).get("set", "").split(", ") if name]


def differences_of_code(info: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """In words, how the code that resumes a sweep differs from the code that started it."""
    kept = info.get("code") or {}
    return [f"{name} was {kept[name]}, is {now[name]}" for name in now if name in kept and kept[name] != now[name]]
