"""Settings that a run takes from its data set by default: languages, and the location and width of vectors."""

from __future__ import annotations

from dataclasses import replace

from ray_atr.common.language_codes import ENGLISH, LANGUAGES
from ray_atr.common.settings import refuse
from ray_atr.data.caption_vectors import clip_width, require_vectors
from ray_atr.data.shards import Manifest, read_manifest
from ray_atr.metrics.metric import Metric, languages_of_means
from ray_atr.models.vectors import AudioVectors, TextVectors
from ray_atr.objectives.schemes import RandomMixture
from ray_atr.training.experiment import Experiment


def with_languages(experiment: Experiment) -> Experiment:
    """The experiment with all languages of its data set if none are set.

    If the model takes vectors, their width and folder are filled in too, if unset. ValueError if the data set has none.
    """
    audio, text, data = experiment.model.audio, experiment.model.text, experiment.data
    if isinstance(audio, AudioVectors) and audio.width == 0:
        audio = replace(audio, width=clip_width(data.source))
    if isinstance(text, TextVectors) and text.data is None:
        require_vectors(data.source, "model.text")
        text = replace(text, data=data.source)
    if not data.languages:
        source = data.soundscapes if data.source == "soundscapes" else read_manifest(data.source)
        data = replace(data, languages=source.languages)
    return replace(experiment, model=replace(experiment.model, audio=audio, text=text), data=data)


def check_languages(experiment: Experiment, manifest: Manifest | None) -> None:
    """ValueError if the data set lacks a set language, the training split one that is trained, or the scheme its anchor.

    `manifest` is that of the data set; None: soundscapes. A scheme's anchor is English; if there is only one language, that
    one is the anchor.
    """
    data, scheme = experiment.data, experiment.objective.scheme
    where = data.source
    has = data.soundscapes.languages if manifest is None else manifest.languages
    if not has:
        raise ValueError(f"data.source: {where} has no captions")
    missing = [language for language in data.languages if language not in has]
    if missing:
        can_be_made = manifest is None and all(language in LANGUAGES for language in missing)
        wish = f"soundscapes.languages {','.join((*has, *missing))}" if can_be_made else f"languages {','.join(has)}"
        raise ValueError(
            f"data.languages: {', '.join(missing)} not in {where}; it has {', '.join(has)} (choose with --data.{wish})"
        )
    if manifest is not None:
        shards = [shard for shard in manifest.shards if shard.split == data.train_split]
        rest = [code for code in data.languages if any(shard.captions.get(code) for shard in shards)]
        untrained = [code for code in experiment.trained_languages if code not in rest]
        # Without a shard, the split itself is missing, which has a message of its own.
        if shards and untrained:
            # A scheme with an anchor trains without English if there is one other language.
            is_one = scheme.has_anchor and ENGLISH not in rest and len(rest) > 1
            names = f"with one of {', '.join(rest)}" if is_one else ",".join(rest)
            remedy = f"; --data.languages {names} leaves out what cannot be trained" if rest else ""
            raise ValueError(
                f"data.languages: objective.scheme={scheme.name} trains on {', '.join(untrained)}, in which split "
                f"{data.train_split} of {where} has no captions{remedy}"
            )
    if isinstance(scheme, RandomMixture):
        scheme.require_bits(len(data.languages))
    if scheme.has_anchor and ENGLISH not in data.languages and len(data.languages) > 1:
        free = "ml_clap or kcl, which need no English, or --data.languages with one language"
        raise refuse("objective.scheme", f"{scheme.name} without English ({', '.join(data.languages)})", free)


def check_validated(experiment: Experiment, manifest: Manifest) -> None:
    """ValueError if the validation split has no captions in any language of the metric that chooses the epoch."""
    data = experiment.data
    chosen_by = Metric.parse(experiment.evaluation.select_by, "evaluation.select_by")
    shards = [shard for shard in manifest.shards if shard.split == data.validation_split]
    members = languages_of_means(data.languages, experiment.trained_languages)
    wanted = members.get(chosen_by.language, [chosen_by.language])
    if shards and wanted and not any(shard.captions.get(language) for shard in shards for language in wanted):
        raise refuse(
            "evaluation.select_by",
            f"{chosen_by} ({', '.join(wanted)})",
            f"a language in which split {data.validation_split} of {manifest.folder} has captions",
        )
