"""Writes a prepared data set in the layout that MTEB reads from the hub: one folder a direction, ready to be uploaded.

    python contrib/mteb/hub_folder.py DATA OUT [--split test] [--language jpn] [--name audiocaps_ja] [--licence apache-2.0]

makes OUT/<name>_t2a and OUT/<name>_a2t with the configurations `corpus`, `queries` and `default` (which answers which). Each
folder must be new or empty, and appears complete.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml
from datasets import Audio, Dataset

from ray_atr.common.language_codes import require_language
from ray_atr.common.storage import atomic_folder, require_new
from ray_atr.data.shards import read_manifest
from ray_atr.evaluation.eval_split import read_eval_split
from ray_atr.evaluation.mteb_tasks import DIRECTIONS, local_tasks


def main() -> None:
    """Both folders of a split in one language."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="folder of the prepared data set")
    parser.add_argument("out", type=Path, help="folder for the two")
    parser.add_argument("--split", default="test")
    parser.add_argument("--language", default="jpn")
    parser.add_argument("--name", default="audiocaps_ja")
    parser.add_argument("--licence", default="apache-2.0")
    given = parser.parse_args()
    folders: dict[str | None, Path] = {
        direction: require_new(given.out / f"{given.name}_{direction}", "out") for direction in DIRECTIONS
    }
    language = require_language(given.language).code
    asked = read_eval_split(read_manifest(given.data), given.split, [language])
    for task in local_tasks(asked):
        task.load_data()
        content = task.dataset[language][given.split]
        pairs = [
            {"query-id": query, "corpus-id": answer, "score": score}
            for query, answers in content["relevant_docs"].items()
            for answer, score in answers.items()
        ]
        parts = {"corpus": content["corpus"], "queries": content["queries"], "default": Dataset.from_list(pairs)}
        with atomic_folder(folders[task.metadata.category], is_synced=True) as aside:
            write(aside, parts, given.split, given.licence)


def write(folder: Path, parts: dict[str, Dataset], split: str, licence: str) -> None:
    """One folder: a Parquet file for each configuration, and the card that names them."""
    configurations = []
    for name, rows in parts.items():
        file = folder / name / f"{split}.parquet"
        file.parent.mkdir(parents=True)
        # So that the hub's viewer and `datasets` know which column is audio.
        (rows.cast_column("audio", Audio()) if "audio" in rows.column_names else rows).to_parquet(file)
        files = [{"split": split, "path": file.relative_to(folder).as_posix()}]
        configurations.append({"config_name": name, "data_files": files})
    card = yaml.safe_dump({"license": licence, "configs": configurations}, sort_keys=False)
    (folder / "README.md").write_text(f"---\n{card}---\n", encoding="utf-8")


if __name__ == "__main__":
    main()
