"""One evaluation, from checkpoints to a folder of results: encode, score, compare, write and track."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from ray_atr.common.progress import Echo, NamedProgress, silent
from ray_atr.common.runtime import code_name, code_version, home
from ray_atr.common.settings import refuse, wing
from ray_atr.common.storage import (
    Location,
    atomic_folder,
    entries_in,
    file_exists,
    locate,
    read_json,
    require_replaceable,
)
from ray_atr.data.caption_sample import clips_in_words
from ray_atr.data.shards import Manifest, read_manifest
from ray_atr.data.soundscapes import SoundscapesSettings, ensure_soundscapes
from ray_atr.evaluation.checkpoints import Checkpoint, check_seeds, find_checkpoint
from ray_atr.evaluation.encoding import EncodingSource, encode, token_similarities
from ray_atr.evaluation.eval_split import EvalSplit, listen, read_eval_split
from ray_atr.evaluation.options import Encoding, EvaluationOptions
from ray_atr.evaluation.report.evaluation_content import Embedded, ScoredModel, ZeroShot, compose_page, score_model
from ray_atr.evaluation.report.evaluation_page import Page, write_page
from ray_atr.evaluation.report.tables import read_scores
from ray_atr.evaluation.training_traces import case_tables, drift_pictures
from ray_atr.evaluation.trec import write_trec
from ray_atr.metrics.samples import Samples, languages_of, to_arrays
from ray_atr.models.retriever import Retriever
from ray_atr.sweep.tracking import store_of
from ray_atr.sweep.tracking.store import brief
from ray_atr.sweep.tracking.tracker import log_batches
from ray_atr.training.experiment import Experiment, TrackingSettings

SCORES_FILE = "scores-{}.npz"
FACTS_FILE = "evaluation.json"
HASH_FACT, HASH_DIGITS = "data hash", 16
TRAINED_FACT = "languages in training"
EVALUATION_TAG = "ray_atr.metrics"
"""Tag of an evaluation's MLflow run with the name of its folder."""
FOLDER_TAG = "ray_atr.evaluation_folder"
"""Tag with a digest of that folder's full path."""
OWN_FILES = re.compile(r"evaluation\.(html|json|md)|scores-\d+\.npz|(run|qrels)-\w+\.trec")


@dataclass(frozen=True)
class Evaluated:
    """The folder of the results, their page, and the MLflow run (None: switched off, or not reached)."""

    folder: Location
    page: Page
    mlflow_run: str | None
    checkpoint: Checkpoint
    """The first of the evaluated checkpoints."""
    eval_split: EvalSplit
    embedded: Embedded
    """The embeddings of the first checkpoint."""


def evaluate(
    checkpoints: Sequence[str | Location],
    options: EvaluationOptions,
    *,
    baseline: Sequence[str | Location] = (),
    encoding: Encoding | None = None,
    out: str | Location | None = None,
    progress: NamedProgress = silent,
    echo: Echo = print,
) -> Evaluated:
    """Evaluate a checkpoint, or the mean of several that differ in their seed, and compare it with a baseline.

    checkpoints   folders or URLs of saved retrievers, trials, or runs of one trial.
    options       the data set, the split, its languages, and how candidates are ranked.
    baseline      checkpoints too, or one folder of an earlier evaluation of the same split; empty: no comparison.
    encoding      where the clips are encoded and in which batches; None: by Ray's workers. `Encoding(ray="never")` stays in
                  this process.
    out           a new folder or URL for the page and the scores; None: `runs/evaluate-<time>`.
    progress, echo  called with what progresses, and with lines of text.

    Returns the folder and the page; the metrics are in `.page.metrics`. Raises ValueError for bad input before anything is
    encoded or written.

    When: a saved retriever is to be evaluated, or compared, on a prepared data set.
    Related: `ray_atr.retrieval_metrics` for embeddings of your own.

        ray_atr.evaluate(["runs/.../best"], ray_atr.EvaluationOptions(data="data/esc50")).page.metrics
    """
    for name, given in (("checkpoints", checkpoints), ("baseline", baseline)):
        if isinstance(given, str | Path):
            raise refuse(name, given, "a list of folders or URLs")
    if not checkpoints:
        raise refuse("checkpoint", "none", "one folder of a saved retriever or trial, or more")
    encoding = encoding or Encoding()
    opened = [find_checkpoint(path) for path in checkpoints]
    check_seeds(opened, "checkpoint")
    earlier = _is_evaluation(baseline)
    others = [] if earlier else [find_checkpoint(path, "baseline") for path in baseline]
    check_seeds(others, "baseline")
    folder = _new_folder(out)
    manifest = read_manifest(data_folder(options.data, opened[0], echo))
    options = dataclasses.replace(options, split=options.split or own_split(manifest, opened[0]))
    eval_split = read_eval_split(
        manifest, options.split, options.languages, relevance=options.relevance, max_captions=options.max_captions
    )
    named = eval_split.captions_of(options.clips)
    sources = {
        checkpoint.folder: EncodingSource.from_retriever(checkpoint.folder, manifest, options.split, encoding)
        for checkpoint in (*opened, *others)
    }
    stored, trained_before = _stored_scores(locate(baseline[0]), eval_split) if earlier else ([], None)
    if others:
        trained_before = others[0].trained_languages

    def model(checkpoint: Checkpoint) -> tuple[Embedded, ScoredModel]:
        embedded = _embed(checkpoint, sources[checkpoint.folder], eval_split, options, encoding, progress)
        return embedded, score_model(
            embedded,
            eval_split.captions,
            parts=eval_split.clips_of_parts,
            device="cuda" if torch.cuda.is_available() else None,
        )

    embedded, first = model(opened[0])
    runs = [first, *(model(checkpoint)[1] for checkpoint in opened[1:])]
    compared_with: list[Samples] = stored or [model(checkpoint)[1].samples for checkpoint in others]
    echo("intervals and pictures")
    names = _joint([checkpoint.name for checkpoint in opened])
    page = compose_page(
        _title(names, opened[0], eval_split),
        _facts(opened, [str(path) for path in baseline], eval_split, options),
        embedded,
        eval_split.captions,
        runs,
        baseline=compared_with,
        compared=(_joint([other.name for other in others] or [locate(path).name for path in baseline]), names),
        trained_before=trained_before,
        clip_ids=eval_split.clip_ids,
        listen=partial(listen, manifest, eval_split.split),
        draws=options.draws,
        level=options.level,
        seed=options.seed,
        figures=options.figures,
        named=named,
        notes=eval_split.notes,
        warnings=_warnings(opened, eval_split),
    )
    printed_beside = wing("papers.printed_tables").printed_beside
    beside = printed_beside(page.metrics, eval_split.manifest.name, options.split, opened[0].data_name)
    cases = case_tables(opened[0], embedded, eval_split, options.seed, named, lambda: data_folder("", opened[0], echo))
    # In this process, even if Ray's actors encoded.
    source = EncodingSource.from_retriever(
        opened[0].folder, manifest, options.split, dataclasses.replace(encoding, ray="never")
    )
    drift = drift_pictures(opened[0], source) if options.figures else {}
    page = dataclasses.replace(page, printed=[*beside, *cases], pictures={**page.pictures, **drift})
    with ExitStack() as tracked:
        run_id = None
        # The folder appears after MLflow has everything: if killed before, the same command starts again.
        with atomic_folder(folder, last=FACTS_FILE) as aside:
            write_page(page, aside)
            for number, run in enumerate(runs):
                np.savez(aside / SCORES_FILE.format(number), **to_arrays(run.samples))  # type: ignore[arg-type]
            if options.mlflow:
                run_id = tracked.enter_context(tracked_evaluation(folder, aside, page, opened[0].experiment, echo))
            if options.trec:
                # Only now, so that MLflow does not get them: they are many times larger than the other files.
                write_trec(embedded, eval_split, aside)
    return Evaluated(folder, page, run_id, opened[0], eval_split, embedded)


def own_split(manifest: Manifest, checkpoint: Checkpoint) -> str:
    """The test split, by its name in the checkpoint's settings; the validation split if there is no test split."""
    data = (checkpoint.experiment or Experiment()).data
    has_validation_alone = data.test_split not in manifest.splits and data.validation_split in manifest.splits
    return data.validation_split if has_validation_alone else data.test_split


def data_folder(data: str, checkpoint: Checkpoint, echo: Echo) -> str:
    """The given data set, else that of the training; soundscapes are made if missing. ValueError if neither is known."""
    trained = checkpoint.experiment.data if checkpoint.experiment is not None else None
    if not data and trained is None:
        allowed = f"a data set's folder: {checkpoint.folder} is not in a run folder that would name one"
        raise refuse("data", data, allowed)
    source = data or trained.source  # type: ignore[union-attr]
    if source != "soundscapes":
        return source
    settings = trained.soundscapes if trained is not None and trained.source == "soundscapes" else SoundscapesSettings()
    return str(ensure_soundscapes(settings, home() / "data", echo=echo))


def _new_folder(out: str | Location | None) -> Location:
    folder = locate(out) if out else home() / "runs" / f"evaluate-{time.strftime('%Y%m%d-%H%M%S')}"
    names = {entry.name for entry in entries_in(folder)}
    # Without the file that is written last, the files are those of a killed evaluation, which starts again.
    is_half = FACTS_FILE not in names and all(OWN_FILES.fullmatch(name) for name in names)
    if names and not is_half:
        held = "; this one holds a finished evaluation" if FACTS_FILE in names else ""
        raise refuse("out", str(folder), f"a new or empty folder{held}")
    require_replaceable(folder)
    return folder


def _embed(
    checkpoint: Checkpoint,
    source: EncodingSource,
    eval_split: EvalSplit,
    options: EvaluationOptions,
    encoding: Encoding,
    progress: NamedProgress,
) -> Embedded:
    captions = eval_split.captions
    retriever = Retriever.from_pretrained(str(checkpoint.folder))
    metric, ranking = retriever.learned_metric, options.ranking_of(retriever)
    knows, asked_of = retriever.text_tower.knows, eval_split.class_sentences.items()
    prompts = {language: texts for language, texts in asked_of if knows(texts, language)}
    is_late = retriever.settings.is_late and options.ranking == "own"
    for name in ("plan_epsilon", "plan_sweeps"):
        # By other rankings than late interaction, the plan is reported too.
        if is_late and (value := getattr(options, name)) is not None:
            raise refuse(name, value, "none with late interaction, which reports no ranking by plan; or ranking plan")
    # Freed: the encoders have their own copies.
    del retriever, knows
    rows_of = {language: np.flatnonzero(captions.present[language]) for language in eval_split.languages}
    sentences = [(language, captions.sentences[language][m]) for language, rows in rows_of.items() for m in rows]
    sentences += [(language, text) for language, texts in prompts.items() for text in texts]
    similarity = None
    if is_late:
        compared = partial(progress, f"{checkpoint.name}, token by token")
        num_captions = sum(map(len, rows_of.values()))
        by_tokens = token_similarities(source, sentences[:num_captions], compared)
        ends = np.cumsum([len(rows) for rows in rows_of.values()])[:-1]
        similarity = dict(zip(rows_of, np.split(by_tokens, ends), strict=True))
    audio, texts = encode(source, sentences, encoding, partial(progress, checkpoint.name))
    text: dict[str, np.ndarray] = {}
    start = 0
    for language, rows in rows_of.items():
        vectors = texts[start : start + len(rows)]
        # No copy if the language has every caption: these are the largest arrays.
        if len(rows) < len(captions):
            vectors = np.zeros((len(captions), texts.shape[1]), texts.dtype)
            vectors[rows] = texts[start : start + len(rows)]
        text[language] = vectors
        start += len(rows)
    zero_shot = None
    if prompts:
        classes = dict(zip(prompts, np.split(texts[start:], len(prompts)), strict=True))
        trained_classes = checkpoint.trained_classes(eval_split.manifest, eval_split.classes, prompts)
        zero_shot = ZeroShot(classes, eval_split.classes, eval_split.labels, trained_classes)
    unknown = ", ".join(language for language in eval_split.class_sentences if language not in prompts)
    why = "the text tower knows only its data set's captions, which the prompts are not"
    notes = [f"No classification by text prompts in {unknown}: {why}."] if unknown else []
    return Embedded(audio, text, metric, ranking, checkpoint.trained_languages, zero_shot, notes, similarity)


def _is_evaluation(paths: Sequence[str | Location]) -> bool:
    if len(paths) != 1 or not file_exists(locate(paths[0]) / FACTS_FILE):
        return False
    if not file_exists(locate(paths[0]) / SCORES_FILE.format(0)):
        raise refuse("baseline", str(paths[0]), f"an evaluation with its scores; {SCORES_FILE.format(0)} is missing")
    return True


def _stored_scores(folder: Location, eval_split: EvalSplit) -> tuple[list[Samples], list[str] | None]:
    """(scores of an earlier evaluation, languages that its model was trained on; None: unknown).

    ValueError for other data or languages; other captions are found later.
    """
    manifest, split = eval_split.manifest, eval_split.split
    facts = read_json(folder / FACTS_FILE).get("facts", {})
    if (facts.get(HASH_FACT), facts.get("split")) != (manifest.hash[:HASH_DIGITS], split):
        raise refuse("baseline", str(folder), f"an evaluation of split {split} of {manifest.name}, as it is now")
    scores: list[Samples] = []
    while of_model := read_scores(folder / SCORES_FILE.format(len(scores))):
        scores.append(of_model)
    languages = languages_of(scores[0])
    if set(languages) != set(eval_split.languages):
        raise refuse("baseline", f"an evaluation in {' '.join(languages)}", f"one in {' '.join(eval_split.languages)}")
    return scores, facts.get(TRAINED_FACT, "").split() or None


def _title(names: str, checkpoint: Checkpoint, eval_split: EvalSplit) -> str:
    trained = checkpoint.experiment
    where = f"{eval_split.manifest.title}, {eval_split.split}"
    if trained is None or checkpoint.is_trained_on(eval_split.manifest):
        return f"{names} on {where}"
    return f"{names}, trained on {Path(trained.data.source).name}, evaluated on {where}"


def _joint(names: Sequence[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "") if names else ""


def _facts(
    checkpoints: Sequence[Checkpoint], baseline: Sequence[str], eval_split: EvalSplit, options: EvaluationOptions
) -> dict[str, Any]:
    manifest, captions = eval_split.manifest, eval_split.captions
    facts: dict[str, Any] = {"checkpoint": ", ".join(str(checkpoint.folder) for checkpoint in checkpoints)}
    if baseline:
        facts["baseline"] = ", ".join(baseline)
    if checkpoints[0].objective:
        facts["objective"] = checkpoints[0].objective
    facts["trained on"] = checkpoints[0].trained_on(manifest)
    if checkpoints[0].trained_languages:
        facts[TRAINED_FACT] = " ".join(checkpoints[0].trained_languages)
    facts["evaluated on"] = f"{manifest.title} at {manifest.folder}"
    facts["split"] = eval_split.split
    facts["clips"] = f"{len(eval_split.clip_ids):,}"
    kind = ("class captions", "class") if captions.is_by_label else ("captions", "clip")
    facts["queries"] = f"{len(captions):,} {kind[0]}, each relevant to its {kind[1]}"
    facts["languages"] = " ".join(eval_split.languages)
    facts["intervals"] = f"{options.draws:,} draws of the clips, seed {options.seed}"
    facts["made"] = f"{time.strftime('%Y-%m-%d %H:%M')} by {code_name(code_version())}"
    facts[HASH_FACT] = manifest.hash[:HASH_DIGITS]
    return facts


def _warnings(checkpoints: Sequence[Checkpoint], eval_split: EvalSplit) -> list[str]:
    """Warnings about earlier uses of the split by any of the seeds, for training or selection."""
    checkpoint = checkpoints[0]
    trained = checkpoint.trained_languages
    unheard = [language for language in eval_split.languages if trained and language not in trained]
    notes = [f"Not trained on: {', '.join(unheard)}."] if unheard else []
    if which := clips_in_words(
        max(seed.share_trained_on(eval_split.manifest, eval_split.rows) for seed in checkpoints)
    ):
        notes.append(f"{which.capitalize()} were trained on.")
    if checkpoint.experiment is None:
        return notes
    if not checkpoint.is_trained_on(eval_split.manifest):
        return ["Another data set than the training's: recordings of both under other ids were not looked for.", *notes]
    if eval_split.split == checkpoint.experiment.data.validation_split:
        notes.append("The best epoch was chosen on this split: its numbers are too good.")
    return notes


@contextmanager
def tracked_evaluation(
    folder: Location, files: Path, page: Page, experiment: Experiment | None, echo: Echo
) -> Iterator[str | None]:
    """Log facts, metrics, differences and files to the folder's store; yields the run id, or None if MLflow has not got them all.

    The run is finished on leaving, and failed by an error. One of the same folder that was killed or failed before is replaced.
    """
    from mlflow.exceptions import MlflowException

    store = store_of(folder)
    tracking = experiment.tracking if experiment is not None else TrackingSettings()
    key = xxhash.xxh3_64_hexdigest(str(folder).encode())
    run_id, status = None, "FAILED"
    try:
        client = store.connect()
        experiment_id = store.experiment_id(client, tracking.experiment_name)
        for earlier in client.search_runs([experiment_id], f"tags.`{FOLDER_TAG}` = '{key}'"):
            if earlier.info.status != "FINISHED":
                client.delete_run(earlier.info.run_id)
        tags = {EVALUATION_TAG: folder.name, FOLDER_TAG: key}
        run = client.create_run(experiment_id, run_name=folder.name, tags=tags)
        run_id = str(run.info.run_id)
        params = {name.replace(" ", "_"): str(value) for name, value in page.facts.items()}
        differences = {f"difference/{name}": difference.value for name, difference in page.comparison.items()}
        tags = {"mlflow.note.content": page.title}
        log_batches(client, run_id, {**page.metrics, **differences}, params=params, tags=tags)
        client.log_artifacts(run_id, str(files), "evaluation")
        status = "FINISHED"
    except (MlflowException, OSError) as error:
        echo(f"MLflow at {store}: {brief(error)}; results are in {folder}")
    try:
        yield run_id if status == "FINISHED" else None
    except BaseException:
        status = "FAILED"
        raise
    finally:
        if run_id is not None:
            with suppress(MlflowException, OSError):
                client.set_terminated(run_id, status)
