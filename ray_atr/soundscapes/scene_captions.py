"""The captions of a scene: what each sentence mentions is drawn once, then said in every language."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ray_atr.languages.codes import LANGUAGES, normalise, require_language
from ray_atr.languages.language import Grammar
from ray_atr.languages.said import TEMPLATES, Said
from ray_atr.settings import refuse
from ray_atr.soundscapes.scene import Event, Scene

NUM_PARAPHRASES = 5
GRAMMAR_LANGUAGES: tuple[str, ...] = tuple(code for code, language in LANGUAGES.items() if language.grammar)
"""The languages that can say what is heard in a scene."""


def grammar_of(language: str) -> Grammar:
    """The grammar of a language. ValueError if it has none."""
    grammar = require_language(language).grammar
    if grammar is None:
        raise refuse("languages", language, ", ".join(GRAMMAR_LANGUAGES) + ", which have a grammar for soundscapes")
    return grammar


def captions(
    scene: Scene, rng: np.random.Generator, num_captions: int, languages: Sequence[str]
) -> dict[str, list[str]]:
    """Language -> `num_captions` (at most five) different sentences; caption j says the same in every language."""
    templates = TEMPLATES[scene.arrangement]
    texts: dict[str, list[str]] = {language: [] for language in languages}
    for number in rng.permutation(len(templates))[:num_captions]:
        said = [_mentioned(event, rng) for event in scene.events]
        background = scene.background if scene.background != "quiet" and rng.random() < 0.4 else None
        for language in languages:
            text = grammar_of(language).sentence(scene.arrangement, templates[number], said, background)
            texts[language].append(normalise(text))
    return texts


def _mentioned(event: Event, rng: np.random.Generator) -> Said:
    """What a caption says of an event: its loudness or else its pace, and how often, each left out at times."""
    says_manner, says_count = rng.random(2) < (0.6, 0.75)
    has_intensity = event.intensity is not None
    return Said(
        event.kind,
        event.intensity if says_manner else None,
        event.tempo if says_manner and not has_intensity else None,
        event.count if says_count else None,
    )
