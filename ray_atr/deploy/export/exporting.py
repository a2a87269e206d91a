"""One export: written to a temporary folder, loaded in a new process without this package, compared, and only then moved."""

from __future__ import annotations

import copy
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ray_atr.common.atomic import disk_errors, readable_as_its_folder
from ray_atr.common.digests import seal_folder
from ray_atr.common.progress import Echo
from ray_atr.common.runtime import home
from ray_atr.common.settings import counted, refuse, require_known
from ray_atr.common.storage import Location, atomic_folder, require_new
from ray_atr.data.caption_vectors import check_kind
from ray_atr.data.decoding import IMPORTED, Waveform, first_samples, open_sound, resampled_blocks
from ray_atr.data.shards import Manifest, read_manifest, read_shard
from ray_atr.deploy.export import clap, mlflow, onnx, sentence_transformers
from ray_atr.deploy.export.options import ExportOptions
from ray_atr.evaluation.checkpoints import Checkpoint, find_checkpoint
from ray_atr.evaluation.eval_split import read_eval_split
from ray_atr.evaluation.run import data_folder, own_split
from ray_atr.models.adaptation import merge_updates
from ray_atr.models.late_interaction import ONLY_VECTORS
from ray_atr.models.retriever import Retriever

Vectors = NDArray[np.float32]
LOADER, FACTS = "load.py", "export.json"
CHECK = Path(__file__).parent / "check.py"
LOADERS = Path(__file__).parent / "loaders"
CHECK_SECONDS = 3600


TARGETS: dict[str, Any] = {
    "clap": clap,
    "sentence-transformers": sentence_transformers,
    "onnx": onnx,
    "mlflow": mlflow,
}
"""Format -> the module that refuses unsuitable retrievers (`require`) and writes the others (`write`)."""


@dataclass(frozen=True)
class Exported:
    """An export's folder, and its comparison with the retriever."""

    folder: Path
    target: str
    difference: float
    """Largest difference of a vector's components, over clips and texts."""
    same_top_10: float
    """Share of texts whose ten nearest clips are the same in the same order."""
    clips: int
    texts: int
    megabytes: float
    int8_recall_loss: float | None = None
    """Loss of R@10, in percentage points, by the 8-bit text graph."""


@dataclass(frozen=True)
class ExportInputs:
    """Inputs that both embed: waveforms [S] at the model's rate, no longer than a window, and texts with their languages."""

    waveforms: list[Waveform]
    texts: list[str]
    languages: list[str]
    clip_of_text: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


def export(
    checkpoint: str | Location,
    target: str,
    out: str | Path | None = None,
    options: ExportOptions | None = None,
    *,
    asked: ExportInputs | None = None,
    echo: Echo = print,
) -> Exported:
    """Export a saved retriever to a format, compare it with the retriever, and write it only if they agree.

    `checkpoint` is a trial, a run of one trial, or a folder of `save_pretrained`; `out` a new folder (default:
    `exports/<retriever>-<target>` in the home folder). `asked` replaces the test split. ValueError for a retriever that the
    format cannot hold, naming what can, and for an export that differs by more than the tolerance; then nothing is written.
    """
    require_known("--to", target, TARGETS)
    options = options or ExportOptions()
    if options.int8_text and target != "onnx":
        raise refuse("--int8-text", f"--to {target}", "--to onnx")
    opened = find_checkpoint(checkpoint)
    folder = require_new(out or home() / "exports" / f"{_name(opened)}-{target}", "out")
    retriever = plain(Retriever.from_pretrained(str(opened.folder)))
    TARGETS[target].require(retriever)
    if retriever.settings.is_late:
        if target != "mlflow":
            allowed = "model.interaction global; mlflow takes late, and exports its pooled vectors"
            raise refuse(f"--to {target}", "model.interaction late", allowed)
        echo(ONLY_VECTORS)
    if asked is None:
        echo("clips and captions of the comparison")
        asked = _asked(opened, retriever, options, echo)
    with disk_errors(folder), atomic_folder(folder, is_synced=True) as aside:
        echo(f"writing {target}")
        extra: dict[str, Any] = {"int8_text": options.int8_text} if target == "onnx" else {}
        if target == "mlflow":
            # The saved retriever is packed, with its low-rank updates.
            extra = {"checkpoint": opened.folder}
        facts = TARGETS[target].write(retriever, aside, **extra)
        shutil.copyfile(LOADERS / f"load_{target.replace('-', '_')}.py", aside / LOADER)
        (aside / FACTS).write_text(
            json.dumps({**_facts(retriever, target), **facts}, indent=1) + "\n", encoding="utf-8"
        )
        echo("loading it in a process without ray_atr")
        ours = (
            retriever.encode_audio(asked.waveforms).numpy(),
            # As `encode_text`, which warns of languages without captions in training: here no meaning is looked for.
            retriever.vectors(retriever.embed_sentences(asked.texts, asked.languages)).numpy(),
        )
        theirs = loaded_vectors(aside, asked)
        difference = max(float(np.abs(mine - other).max()) for mine, other in zip(ours, theirs, strict=True))
        same = same_lists(_similarity(retriever, *ours), _similarity(retriever, *theirs))
        if not difference <= options.tolerance:
            allowed = f"at most {options.tolerance:g} (--tolerance); {same:.1%} of the top-10 lists are equal. Nothing is kept"
            raise refuse("difference from encode_*", f"{difference:.2g}", allowed)
        loss = None
        if options.int8_text:
            small = loaded_vectors(aside, asked, f"TEXT={onnx.SMALL_TEXT_FILE}")
            loss = 100 * (_recall(retriever, *ours, asked) - _recall(retriever, ours[0], small[1], asked))
        seal_folder(aside)
        files = [file for file in aside.rglob("*") if file.is_file()]
        for file in files:
            readable_as_its_folder(file)
        size = sum(file.stat().st_size for file in files) / 2**20
    return Exported(folder, target, difference, same, len(ours[0]), len(ours[1]), size, loss)


def plain(retriever: Retriever) -> Retriever:
    """A copy in evaluation mode with the low-rank updates merged into the weights, for formats without them."""
    retriever = copy.deepcopy(retriever).eval()
    merge_updates(retriever.audio_tower, retriever.settings.audio.adapt)
    merge_updates(retriever.text_tower, retriever.settings.text.adapt)
    return retriever.requires_grad_(False)


def loaded_vectors(folder: Path, asked: ExportInputs, *assigned: str) -> tuple[Vectors, Vectors]:
    """Vectors of the clips and texts by the folder's load.py, in a separate process. ValueError if it fails.

    `assigned` gives variables of the script other values, `NAME=VALUE`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        inputs, outputs = Path(scratch) / "inputs.npz", Path(scratch) / "outputs.npz"
        np.savez(
            inputs,
            samples=np.concatenate(asked.waveforms).astype(np.float32),
            lengths=np.array([len(waveform) for waveform in asked.waveforms]),
            texts=np.array(asked.texts, dtype=np.str_),
            languages=np.array(asked.languages, dtype=np.str_),
        )
        # Isolated, so that neither the current folder nor PYTHONPATH gives access to the package.
        command = [sys.executable, "-I", str(CHECK), str(folder / LOADER), str(inputs), str(outputs), *assigned]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=CHECK_SECONDS, check=False)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise refuse("export", f"a failure of {LOADER}", f"an export that loads ({last[0]})")
        with np.load(outputs) as vectors:
            return vectors["audio"], vectors["text"]


def same_lists(ours: NDArray[Any], theirs: NDArray[Any], length: int = 10) -> float:
    """Share of the rows of two similarities [M, N] whose `length` highest columns are the same in the same order."""
    lists = [np.argsort(-similarity, axis=1, kind="stable")[:, :length] for similarity in (ours, theirs)]
    return float((lists[0] == lists[1]).all(axis=1).mean())


def _similarity(retriever: Retriever, audio: Vectors, text: Vectors) -> NDArray[Any]:
    return retriever.similarity(torch.from_numpy(text), torch.from_numpy(audio)).numpy()


def _recall(retriever: Retriever, audio: Vectors, text: Vectors, asked: ExportInputs) -> float:
    """Share of texts whose clip is among the ten nearest."""
    nearest = np.argsort(-_similarity(retriever, audio, text), axis=1, kind="stable")[:, :10]
    return float((nearest == asked.clip_of_text[:, None]).any(axis=1).mean())


def _facts(retriever: Retriever, target: str) -> dict[str, Any]:
    front_end = retriever.audio_tower.front_end
    return {
        "format": 1,
        "target": target,
        "sample_rate": front_end.sample_rate,
        "clip_seconds": front_end.clip_seconds,
        "windows": retriever.settings.windows if retriever.settings.pools_windows else "cut",
        "distance": retriever.distance,
        "vector_width": retriever.vector_width,
    }


def _name(checkpoint: Checkpoint) -> str:
    """A folder name for a retriever: that of its run and trial, or of its own folder."""
    if checkpoint.trial is None:
        return checkpoint.folder.name
    return f"{checkpoint.run_folder.name}-{checkpoint.trial.trial_id}"


def _asked(checkpoint: Checkpoint, retriever: Retriever, options: ExportOptions, echo: Echo) -> ExportInputs:
    """The first clips of a split, cut to a window, and their captions in every language."""
    manifest = read_manifest(data_folder(options.data, checkpoint, echo))
    of_vectors = retriever.audio_tower.front_end.kind == "vector"
    check_kind(manifest.folder, "checkpoint", str(checkpoint.folder), reads_vectors=of_vectors)
    split = options.split or own_split(manifest, checkpoint)
    asked = read_eval_split(manifest, split, options.languages)
    waveforms = list(itertools.islice(_waveforms(manifest, split, retriever), options.most_clips))
    clip_of_text = asked.captions.relevance.first_clip.numpy()
    rows = [
        (text, language, int(clip_of_text[row]))
        for language, texts in asked.captions.sentences.items()
        for row, text in enumerate(texts)
        if asked.captions.present[language][row] and clip_of_text[row] < len(waveforms)
    ]
    if not rows:
        allowed = (
            f"enough of split {split} that one has a caption: of its first {counted(len(waveforms), 'clip')} none has"
        )
        raise refuse("--most-clips", options.most_clips, allowed)
    # Every n-th row, so that all languages have about equally many.
    rows = rows[:: -(-len(rows) // options.most_texts)]
    texts, languages, clips = (list(column) for column in zip(*rows, strict=True))
    return ExportInputs(waveforms, texts, languages, np.array(clips))


def _waveforms(manifest: Manifest, split: str, retriever: Retriever) -> Iterator[Waveform]:
    front_end = retriever.audio_tower.front_end
    for shard in manifest.shards_of(split):
        for batch in read_shard(manifest, shard, ["clip_id", "audio"], 16):
            for clip_id, encoded in zip(batch["clip_id"].to_pylist(), batch["audio"], strict=True):
                sound = open_sound(encoded.as_buffer(), clip_id, IMPORTED)
                blocks = resampled_blocks(sound.blocks(), sound.sample_rate, front_end.sample_rate)
                yield first_samples(blocks, front_end.clip_samples).astype(np.float32)
