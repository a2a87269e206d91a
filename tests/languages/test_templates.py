from __future__ import annotations

import csv
import re

import pytest

from ray_atr.common.language_codes import LANGUAGES, normalise
from ray_atr.workshop.languages.grammar import WITH_WORDS, grammar_of
from ray_atr.workshop.languages.templates import ESC50_CLASSES, caption, class_sentences
from ray_atr.workshop.soundscapes.kinds import KINDS
from tests.support.shared_folder import SHARED


def test_fifty_classes_each_with_its_own_sentence_in_every_language() -> None:
    assert len(set(ESC50_CLASSES)) == 50
    for code in LANGUAGES:
        sentences = [caption(name, code) for name in ESC50_CLASSES]
        assert len(set(sentences)) == 50
        assert sentences == [normalise(sentence) for sentence in sentences]


def test_names_are_those_of_the_real_table() -> None:
    table = SHARED / "data" / "esc50" / "meta" / "esc50.csv"
    if not table.is_file():
        pytest.skip(f"ESC-50 is not at {table.parent.parent}")
    with table.open(encoding="utf-8") as file:
        assert {row["category"] for row in csv.DictReader(file)} == set(ESC50_CLASSES)


@pytest.mark.parametrize(
    ("name", "language", "sentence"),
    [
        ("airplane", "eng", "This is a sound of an airplane."),
        ("airplane", "fra", "C'est le bruit d'un avion."),
        ("rain", "fra", "C'est le bruit de la pluie."),
        ("wind", "fra", "C'est le bruit du vent."),
        ("sea_waves", "fra", "C'est le bruit des vagues de la mer."),
        ("footsteps", "fra", "C'est le bruit de pas."),
        ("chirping_birds", "fra", "C'est le bruit d'oiseaux qui gazouillent."),
        ("dog", "deu", "Das ist das Geräusch eines Hundes."),
        ("cat", "deu", "Das ist das Geräusch einer Katze."),
        ("crackling_fire", "deu", "Das ist das Geräusch eines knisternden Feuers."),
        ("wind", "spa", "Este es el sonido del viento."),
        ("cow", "spa", "Este es el sonido de una vaca."),
        ("wind", "cat", "Aquest és el so del vent."),
        ("sheep", "cat", "Aquest és el so d'una ovella."),
        ("insects", "cat", "Aquest és el so d'insectes."),
        ("crackling_fire", "nld", "Dit is het geluid van een knetterend vuur."),
        ("dog", "jpn", "これは犬の鳴き声です。"),
        ("dog", "zho", "这是狗叫声。"),
    ],
)
def test_articles_cases_and_contractions(name: str, language: str, sentence: str) -> None:
    assert caption(name, language) == sentence


@pytest.mark.parametrize(
    ("language", "wrong"),
    [
        ("fra", r"\bde le\b|\bde les\b|\bde des\b|\bde [aeiouéèêh]\w*[^'\w]un|\bde un"),
        ("spa", r"\bde el\b|\ba el\b"),
        ("cat", r"\bde el\b|\bde els\b|\bde [aeiouàèéíòóú]"),
        ("deu", r"\bGeräusch (ein|eine|der|die|das|dem) "),
        ("eng", r"\ba [aeiou]|\ban [^aeiouh]"),
    ],
)
def test_no_sentence_breaks_a_rule_of_contraction(language: str, wrong: str) -> None:
    for name in ESC50_CLASSES:
        assert not re.search(wrong, caption(name, language)), caption(name, language)


def test_prepositions_contract() -> None:
    def of(language: str, *nouns: str) -> list[str]:
        return [grammar_of(language).rewritten(f"de {noun}") for noun in nouns]

    french = of("fra", "le vent", "les vagues", "des pas", "un avion", "l'eau", "une vache", "quelqu'un")
    assert french == ["du vent", "des vagues", "de pas", "d'un avion", "de l'eau", "d'une vache", "de quelqu'un"]
    assert of("spa", "el agua", "un gato", "la lluvia") == ["del agua", "de un gato", "de la lluvia"]
    catalan = of("cat", "el vent", "els ocells", "un gos", "l'aigua", "algú", "la pluja")
    assert catalan == ["del vent", "dels ocells", "d'un gos", "de l'aigua", "d'algú", "de la pluja"]


def test_unknown_class_and_language_are_refused() -> None:
    with pytest.raises(ValueError, match=r"class_name: got 'doog'; .*did you mean dog\?"):
        caption("doog", "eng")
    with pytest.raises(ValueError, match="language: got 'xyz'"):
        caption("dog", "xyz")


@pytest.mark.parametrize("classes", [ESC50_CLASSES, tuple(KINDS)])
def test_known_classes_have_their_own_sentence_in_eight_languages(classes: tuple[str, ...]) -> None:
    got = class_sentences(classes, list(WITH_WORDS))
    assert list(got) == list(WITH_WORDS)
    for sentences in got.values():
        assert len(set(sentences)) == len(classes)


def test_other_labels_are_english_words() -> None:
    assert class_sentences(["dog_bark", "street  music"], ["fra", "eng"]) == {
        "eng": ["This is a sound of dog bark.", "This is a sound of street music."]
    }
    assert class_sentences(["dog_bark"], ["fra"]) == {}
