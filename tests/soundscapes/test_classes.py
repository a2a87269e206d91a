"""Class names as sentences: in every language where there are words for all of them."""

from __future__ import annotations

import pytest

from ray_atr.languages.templates import ESC50_CLASSES
from ray_atr.soundscapes.classes import class_sentences
from ray_atr.soundscapes.kinds import KINDS
from ray_atr.soundscapes.scene_captions import GRAMMAR_LANGUAGES


@pytest.mark.parametrize("classes", [ESC50_CLASSES, tuple(KINDS)])
def test_known_classes_have_their_own_sentence_in_eight_languages(classes: tuple[str, ...]) -> None:
    got = class_sentences(classes, list(GRAMMAR_LANGUAGES))
    assert list(got) == list(GRAMMAR_LANGUAGES)
    for sentences in got.values():
        assert len(set(sentences)) == len(classes)


def test_other_labels_are_english_words() -> None:
    assert class_sentences(["dog_bark", "street  music"], ["fra", "eng"]) == {
        "eng": ["This is a sound of dog bark.", "This is a sound of street music."]
    }
    assert class_sentences(["dog_bark"], ["fra"]) == {}
