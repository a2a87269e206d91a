"""A retriever's card after an evaluation: data and digest, noise, objective, scores with intervals."""

from __future__ import annotations

from ray_atr.common.digests import write_text
from ray_atr.common.storage import Location
from ray_atr.evaluation.report.evaluation_content import ranked_how
from ray_atr.evaluation.report.evaluation_tables import metric_tables
from ray_atr.evaluation.run import Evaluated
from ray_atr.metrics.metric import DIRECTIONS
from ray_atr.models.card import CARD_FILE
from ray_atr.models.retriever import Retriever

MEASURES = ("recall_at_1", "recall_at_5", "recall_at_10", "map_at_10")


def write_card(evaluated: Evaluated) -> Location:
    """Write README.md beside the first retriever of an evaluation, replacing the saved one; returns the file."""
    folder = evaluated.checkpoint.folder
    file = folder / CARD_FILE
    write_text(file, evaluated_card(evaluated, Retriever.from_pretrained(str(folder))))
    return file


def evaluated_card(evaluated: Evaluated, retriever: Retriever) -> str:
    """The card's text."""
    experiment, manifest = evaluated.checkpoint.experiment, evaluated.eval_split.manifest
    training = evaluated.checkpoint.training_data(manifest)
    facts: dict[str, object] = {}
    if experiment is not None:
        data, noise = experiment.data, experiment.data.noise
        name = training.name if training is not None else "a data set that is not here any more"
        facts["trained on"] = f"{name}, split {data.train_split}"
        if training is not None:
            facts["training data, SHA-256"] = training.hash
        kinds = f"{noise.ratio:g} of its captions made wrong on purpose ({noise.kind})" if noise.ratio else "none added"
        facts["caption noise"] = kinds
        trained = retriever.languages or experiment.trained_languages
        facts["languages of training"] = ", ".join(trained) or "all of the data set"
        facts["objective"] = evaluated.checkpoint.objective
        facts["epochs, batch"] = f"{experiment.train.epochs}, {experiment.train.batch_size}"
    facts["evaluated on"] = f"{manifest.name}, split {evaluated.eval_split.split}"
    facts["evaluation data, SHA-256"] = manifest.hash
    facts["intervals"] = evaluated.page.facts.get("intervals", "")
    facts |= {f"note {number}": note for number, note in enumerate(evaluated.page.warnings, start=1)}
    return retriever.card(
        # Those that it learned, whichever were evaluated.
        languages=retriever.languages or evaluated.eval_split.languages,
        licence=training.licence if training is not None else "",
        facts=facts,
        scores=score_table(evaluated),
    )


def score_table(evaluated: Evaluated) -> str:
    """R@1, R@5, R@10 and mAP10 of both directions by language in percent, with their intervals, as Markdown."""
    page = evaluated.page
    shown = {name: value for name, value in page.metrics.items() if name.task in DIRECTIONS and name.name in MEASURES}
    tables = [table.to_markdown() for table in metric_tables(shown, page.intervals, page.spreads, trained=page.trained)]
    note = f"Percent, ranked {ranked_how(evaluated.embedded)}"
    note += f"; in brackets {page.brackets}." if page.brackets else "."
    if page.spreads:
        runs = next(iter(page.spreads.values())).runs
        note += f" Mean ± standard deviation over {runs} runs that differ in their seed; this is the first of them."
    return "\n".join([*tables, note])
