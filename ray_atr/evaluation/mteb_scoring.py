"""`evaluate --mteb`: tasks are found before anything is encoded, and then scored by MTEB itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ray_atr.common.progress import Echo
from ray_atr.common.settings import refuse, require_extra, shortened
from ray_atr.common.storage import Location, file_exists, locate, make_folder, read_json, write_text
from ray_atr.data.caption_vectors import has_vectors
from ray_atr.data.shards import MANIFEST_FILE, read_manifest
from ray_atr.evaluation.checkpoints import Checkpoint
from ray_atr.evaluation.eval_split import read_eval_split
from ray_atr.evaluation.options import EvaluationOptions
from ray_atr.evaluation.run import Evaluated, own_split
from ray_atr.metrics.measures import RECALL_AT
from ray_atr.models.retriever import Retriever
from ray_atr.models.weights import SETTINGS_FILE

if TYPE_CHECKING:
    from mteb.abstasks.abstask import AbsTask

EXTRA = "mteb"
FOLDER = "mteb"


@dataclass(frozen=True)
class TaskScore:
    """MTEB's scores of a task in one of its subsets (a language, or `default`), as shares of the queries."""

    task: str
    subset: str
    main_score: str
    main: float
    recall: dict[int, float]
    """R@k, MTEB's hit rate at k: exact for prepared data sets, rounded to five digits for MTEB's own tasks; empty for other kinds
    of tasks."""


def find_tasks(names: Sequence[str], options: EvaluationOptions, checkpoint: Checkpoint) -> list[AbsTask]:
    """MTEB's tasks by name, and folders of prepared data sets as two tasks each, on the options' split and languages.

    ValueError without the extra, for a name that is neither, for a data set of vectors, which nothing can encode, and for a
    retriever of late interaction, which has no vector to give.
    """
    require_extra("mteb", EXTRA, "--mteb")
    from mteb import get_task

    from ray_atr.evaluation.mteb_tasks import local_tasks

    require_vectors(checkpoint.folder)
    tasks: list[AbsTask] = []
    for name in names:
        place = locate(name)
        if file_exists(place / MANIFEST_FILE):
            manifest = read_manifest(name)
            if has_vectors(manifest.folder):
                raise refuse("--mteb", name, "a data set with audio; this one holds vectors")
            limits: Any = {"relevance": options.relevance, "max_captions": options.max_captions}
            split = options.split or own_split(manifest, checkpoint)
            tasks += local_tasks(read_eval_split(manifest, split, options.languages, **limits))
            continue
        try:
            tasks.append(get_task(name))
        except KeyError as error:
            meant = str(error.args[0]).partition("Did you mean: ")[2]
            allowed = "tasks of MTEB by name (ClothoT2ARetrieval), or folders of prepared data sets"
            raise refuse("--mteb", name, allowed, f" (did you mean {meant.rstrip('?')}?)" if meant else "") from None
    full_names = [task.metadata.name for task in tasks]
    if len(set(full_names)) < len(full_names):
        # Their results would be one file.
        raise refuse("--mteb", ", ".join(full_names), "tasks of different names; evaluate sets of one name one by one")
    return tasks


def score_tasks(evaluated: Evaluated, tasks: Sequence[AbsTask], *, echo: Echo = print) -> list[TaskScore]:
    """Let MTEB score the evaluation's first retriever; its results are `mteb/<task>.json` in the evaluation's folder.

    ValueError for a data set that cannot be fetched.
    """
    from datasets import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from mteb import evaluate

    from ray_atr.evaluation.mteb_encoder import RetrieverEncoder

    folder = evaluated.checkpoint.folder
    retriever = Retriever.from_pretrained(str(folder))
    retriever.to("cuda" if torch.cuda.is_available() else "cpu")
    score: Any = evaluate
    encoder = RetrieverEncoder(retriever, evaluated.checkpoint.name.replace("/", "-"))
    place = evaluated.folder / FOLDER
    make_folder(place)
    scores = []
    for task in tasks:
        name = task.metadata.name
        echo(f"MTEB: {name}")
        has_bars = not are_progress_bars_disabled()
        disable_progress_bars()
        try:
            # Without a cache: MTEB's cache is keyed by the model's name.
            scored = score(encoder, task, cache=None, show_progress_bar=False, co2_tracker=False)
        except OSError as error:
            in_reach = "a task whose data set is within reach or in the hub's cache"
            raise refuse("--mteb", name, f"{in_reach} ({shortened(str(error))})") from None
        except ImportError as error:
            # MTEB's loader decodes a clip for its log, for which a library may be missing.
            raise refuse("--mteb", name, f"a task whose libraries are installed ({shortened(str(error))})") from None
        finally:
            if has_bars:
                enable_progress_bars()
        (result,) = scored.task_results
        write_text(place / f"{name}.json", result.model_dump_json(indent=1) + "\n")
        for rows in result.scores.values():
            scores += [_score(name, str(row["hf_subset"]), task.metadata.main_score, row) for row in rows]
    return scores


def require_vectors(folder: Location) -> None:
    """ValueError for a saved retriever that has no vectors of clips and of any text, by its settings."""
    # A published model of others has none, and encodes both.
    file = folder / SETTINGS_FILE
    model = read_json(file).get("model", {}) if file_exists(file) else {}
    if model.get("interaction") == "late":
        raise refuse("--mteb", str(folder), "a retriever of model.interaction global, which has one vector a clip")
    if "vectors" in (model.get("audio"), model.get("text")):
        raise refuse("--mteb", str(folder), "a retriever with encoders of its own, not of vectors made elsewhere")


def _score(task: str, subset: str, main_score: str, row: Any) -> TaskScore:
    exact = {k: row.get(f"r_at_{k}", row.get(f"hit_rate_at_{k}")) for k in RECALL_AT}
    recall = {k: float(value) for k, value in exact.items() if value is not None}
    return TaskScore(task, subset, main_score, float(row["main_score"]), recall)
