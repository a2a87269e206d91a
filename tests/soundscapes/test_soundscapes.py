from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import soundfile
from scipy import signal

from ray_atr.common.language_codes import DEFAULT_LANGUAGES, LANGUAGES
from ray_atr.data.shards import read_manifest
from ray_atr.workshop.languages.grammar import TEMPLATES, WITH_WORDS, Said, grammar_of
from ray_atr.workshop.soundscapes import KINDS, SPLITS, SoundscapesSettings, clip, ensure_soundscapes, generate
from ray_atr.workshop.soundscapes.clips import captions
from ray_atr.workshop.soundscapes.kinds import BACKGROUNDS, may_join
from ray_atr.workshop.soundscapes.render import render
from ray_atr.workshop.soundscapes.scene import Event, Scene, draw_scene

SMALL = SoundscapesSettings(num_train=6, num_val=4, num_test=3)
CODES = WITH_WORDS


def say(language: str, template: str, *sounds: Said, background: str | None = None) -> str:
    """The sentence of sounds one after another for the templates of a sequence, else at once or alone."""
    arrangement = "single" if len(sounds) == 1 else "together"
    if template not in TEMPLATES[arrangement]:
        arrangement = "sequence"
    return grammar_of(language).sentence(arrangement, template, sounds, background)


def rendered(kind: str, *, seed: int = 0, **attributes: object) -> np.ndarray:
    event = Event(kind, 0.2, 3.6, **attributes)
    return render(Scene((event,), "single", "quiet", 4.0), np.random.default_rng(seed), 16000)


class TestClips:
    def test_a_clip_depends_on_seed_split_and_index_alone(self) -> None:
        alone = clip(3, "val", SMALL)
        assert list(generate(SMALL, num_threads=3))[6 + 3] == alone
        assert clip(3, "val", SoundscapesSettings(num_train=50)).audio == alone.audio
        for other in (clip(2, "val", SMALL), clip(3, "test", SMALL), clip(3, "val", SoundscapesSettings(seed=1))):
            assert other.audio != alone.audio
            assert other.clip_id != alone.clip_id

    def test_rows_hold_what_the_schema_says(self) -> None:
        clips = list(generate(SMALL))
        assert [made.split for made in clips] == ["train"] * 6 + ["val"] * 4 + ["test"] * 3
        assert len({made.clip_id for made in clips}) == 13
        for made in clips:
            waveform, sample_rate = soundfile.read(io.BytesIO(made.audio))
            assert sample_rate == made.sample_rate == 16000
            assert len(waveform) == round(made.seconds * sample_rate) == 64000
            assert 0.001 < np.abs(waveform).max() < 1.0
            assert set(made.labels) <= set(KINDS)
            assert tuple(made.captions) == DEFAULT_LANGUAGES
            assert {len(texts) for texts in made.captions.values()} == {1 if made.split == "train" else 5}

    def test_length_rate_and_languages_are_settings(self) -> None:
        settings = SoundscapesSettings(seconds=2.5, sample_rate=22050, languages=("eng", "jpn"), num_train_captions=3)
        made = clip(0, "train", settings)
        waveform, sample_rate = soundfile.read(io.BytesIO(made.audio))
        assert (len(waveform), sample_rate) == (55125, 22050)
        assert {code: len(texts) for code, texts in made.captions.items()} == {"eng": 3, "jpn": 3}

    def test_near_duplicates_exist_and_sound_different(self) -> None:
        clips = [clip(index, "train", SoundscapesSettings(seconds=2.0)) for index in range(60)]
        scenes = Counter(tuple(made.labels) for made in clips if len(made.labels) > 1)
        assert max(scenes.values()) >= 2
        assert len({made.audio for made in clips}) == len(clips)

    def test_bad_settings_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"split: got 'tset'; .*did you mean test\?"):
            clip(0, "tset", SMALL)
        with pytest.raises(ValueError, match=r"did you mean fra\?"):
            SoundscapesSettings(languages=("eng", "French"))
        with pytest.raises(ValueError, match=r"languages: got 'kor'; allowed eng, .*, which have a grammar"):
            SoundscapesSettings(languages=("eng", "kor"))
        assert SoundscapesSettings(languages=("en", "fr")).languages == ("eng", "fra")
        with pytest.raises(ValueError, match="num_train: got 0"):
            SoundscapesSettings(num_train=0)

    def test_the_set_is_made_once_and_found_again(self, tmp_path: Path) -> None:
        said: list[str] = []
        folder = ensure_soundscapes(SMALL, tmp_path, echo=said.append)
        manifest = read_manifest(folder)
        assert {split: manifest.num_rows_of(split) for split in SPLITS} == {"train": 6, "val": 4, "test": 3}
        assert said == ["synthetic clips 13 of 13"]
        assert ensure_soundscapes(SMALL, tmp_path, echo=said.append) == folder
        assert len(said) == 1
        assert (
            ensure_soundscapes(SoundscapesSettings(num_train=7, num_val=4, num_test=3), tmp_path, echo=said.append)
            != folder
        )


class TestScenes:
    def test_every_kind_background_and_arrangement_occurs(self) -> None:
        scenes = [draw_scene(np.random.default_rng([0, i]), 4.0) for i in range(800)]
        assert len(KINDS) >= 40
        assert {event.kind for scene in scenes for event in scene.events} == set(KINDS)
        assert {scene.background for scene in scenes} == set(BACKGROUNDS)
        assert {(scene.arrangement, len(scene.events)) for scene in scenes} == {
            ("single", 1), ("together", 2), ("together", 3), ("sequence", 2), ("sequence", 3),
        }  # fmt: skip

    def test_events_fit_and_follow_one_another(self) -> None:
        for i in range(400):
            scene = draw_scene(np.random.default_rng([1, i]), 4.0)
            kinds = [event.kind for event in scene.events]
            assert all(may_join(kind, tuple(kinds[:place])) for place, kind in enumerate(kinds))
            for event in scene.events:
                assert event.start + event.seconds <= scene.seconds + 1e-9
                assert event.count in (None, event.repeats)
            if scene.arrangement == "sequence":
                ends = [event.start + event.seconds for event in scene.events]
                assert all(later.start > end for later, end in zip(scene.events[1:], ends, strict=False))


class TestSounds:
    @pytest.mark.parametrize("kind", KINDS)
    def test_every_kind_renders_at_other_rates_too(self, kind: str) -> None:
        for sample_rate in (8000, 44100):
            scene = Scene((Event(kind, 0.1, 1.5, repeats=2),), "single", "wind", 2.0)
            waveform = render(scene, np.random.default_rng(0), sample_rate)
            assert waveform.dtype == np.float32
            assert len(waveform) == 2 * sample_rate
            assert np.isfinite(waveform).all()
            assert 0.02 < np.abs(waveform).max() < 1.0

    @pytest.mark.parametrize("kind", ["dog", "knock", "car_horn", "alarm_clock", "hammer"])
    @pytest.mark.parametrize("repeats", [2, 3, 5])
    def test_one_hears_as_many_calls_as_are_counted(self, kind: str, repeats: int) -> None:
        waveform = rendered(kind, repeats=repeats, count=repeats)
        envelope = np.convolve(np.abs(waveform), np.ones(400) / 400, mode="same")
        peaks, _ = signal.find_peaks(envelope, prominence=0.5 * envelope.max())
        assert len(peaks) == repeats

    @pytest.mark.parametrize("kind", ["rain", "engine", "cat", "flute"])
    def test_loud_is_louder_than_soft(self, kind: str) -> None:
        loud, soft = (np.sqrt(np.mean(rendered(kind, intensity=word) ** 2)) for word in ("loud", "soft"))
        assert 10 < 20 * np.log10(loud / soft) < 25

    @pytest.mark.parametrize("kind", ["clock", "footsteps", "drip", "drum"])
    def test_fast_calls_come_closer_together_than_slow_ones(self, kind: str) -> None:
        def spacing(tempo: str) -> float:
            power = rendered(kind, repeats=3, tempo=tempo) ** 2
            power[power < 0.05 * power.max()] = 0.0
            times = np.arange(len(power)) / 16000
            centre = float((power * times).sum() / power.sum())
            return float(np.sqrt((power * (times - centre) ** 2).sum() / power.sum()))

        assert spacing("slow") > 1.5 * spacing("fast")

    def test_events_of_a_sequence_are_heard_in_their_order(self) -> None:
        events = (Event("thunder", 0.0, 1.8), Event("crickets", 2.0, 1.8))
        waveform = render(Scene(events, "sequence", "quiet", 4.0), np.random.default_rng(0), 16000)
        frequency, time, power = signal.spectrogram(waveform, 16000, nperseg=1024)
        high = power[frequency > 3500].sum(0)
        low = power[frequency < 300].sum(0)
        assert high[time > 2.1].sum() > 50 * high[time < 1.9].sum()
        assert low[time < 1.9].sum() > 50 * low[time > 2.1].sum()

    @pytest.mark.slow
    def test_kinds_vary_and_can_be_told_apart(self) -> None:
        """Nearest neighbour over the mean and spread of a coarse spectrogram: far above chance (2%), not perfect."""
        features, names = [], []
        for number, kind in enumerate(KINDS):
            for seed in range(3):
                scene = draw_scene(np.random.default_rng([number, seed]), 4.0)
                event = Event(kind, 0.2, 3.6, repeats=3)
                waveform = render(
                    Scene((event,), "single", scene.background, 4.0), np.random.default_rng([number, seed]), 16000
                )
                _, _, power = signal.spectrogram(waveform, 16000, nperseg=512)
                bands = np.log(np.add.reduceat(power, np.unique(np.geomspace(1, 250, 24).astype(int)), axis=0) + 1e-9)
                features.append(np.concatenate([bands.mean(1), bands.std(1), bands.max(1)]))
                names.append(number)
        matrix = np.array(features)
        matrix = (matrix - matrix.mean(0)) / matrix.std(0)
        distance = ((matrix[:, None] - matrix[None]) ** 2).sum(-1) + np.diag(np.full(len(matrix), np.inf))
        accuracy = np.mean(np.array(names)[distance.argmin(1)] == np.array(names))
        assert 0.3 < accuracy < 0.98


class TestCaptions:
    def test_every_kind_has_words_in_every_language(self) -> None:
        for kind in KINDS:
            for count in (None, 2, 5):
                for intensity, tempo in ((None, None), ("loud", None), ("soft", None), (None, "fast"), (None, "slow")):
                    for code in CODES:
                        assert grammar_of(code).sentence("single", "plain", [Said(kind, intensity, tempo, count)], None)

    def test_paraphrases_differ_and_languages_say_the_same(self) -> None:
        for i in range(150):
            rng = np.random.default_rng([2, i])
            scene = draw_scene(rng, 4.0)
            texts = captions(scene, rng, 5, CODES)
            for code in CODES:
                assert len(set(texts[code])) == 5, texts[code]
            for j in range(5):
                sentences = {code: texts[code][j] for code in CODES}
                assert _counts(sentences["eng"], ENGLISH_COUNTS) == _counts(sentences["deu"], GERMAN_COUNTS)
                assert _counts(sentences["eng"], ENGLISH_COUNTS) == _counts(sentences["cat"], CATALAN_COUNTS)
                assert ("in the background" in sentences["eng"]) == ("im Hintergrund" in sentences["deu"])
                assert ("in the background" in sentences["eng"]) == ("背景" in sentences["zho"])
                assert sentences["eng"].startswith("In this recording") == sentences["nld"].startswith("In deze opname")

    def test_captions_do_not_say_what_is_not_heard(self) -> None:
        event = Event("dog", 0.0, 4.0, 4, "loud", None, None)
        for seed in range(20):
            texts = captions(Scene((event,), "single", "quiet", 4.0), np.random.default_rng(seed), 5, CODES)
            assert not any(re.search("times|softly|background|quickly", text) for text in texts["eng"])

    def test_each_language_keeps_to_its_script(self) -> None:
        for i in range(200):
            rng = np.random.default_rng([3, i])
            for code, texts in captions(draw_scene(rng, 4.0), rng, 5, CODES).items():
                for text in texts:
                    kana = re.search(r"[぀-ヿ]", text)
                    han = re.search(r"[一-鿿]", text)
                    latin = re.search(r"[A-Za-z]", text)
                    assert (bool(kana), bool(han), bool(latin)) in {
                        "jpn": [(True, True, False), (True, False, False)],
                        "zho": [(False, True, False)],
                    }.get(code, [(False, False, True)]), text
                    assert text.endswith("。" if code in ("jpn", "zho") else ".")
                    assert "  " not in text
                    assert text[0] == text[0].upper()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("language", "wrong"),
        [
            ("eng", r"\ba [aeiou]|\ban [^aeiou]"),
            ("fra", r"\bde (le|les|des|un|une|en)\b|\bque (un|une|on|algo|en)\b|\bsuivi (des|du|de|d').*\bune\b$"),
            ("spa", r"\bde el\b|\ba el\b"),
            ("cat", r"\bde (el|els|un|una|uns|algú)\b"),
            (
                "deu",
                r"\b(von|mit) (ein|eine|einen|eines|der) |hört (ein \w+, (der|die)|jemand|jemandem|einem) |Geräusch eine? ",
            ),
            ("nld", r"\b(schaap|hart|vuur|vliegtuig|glas|publiek|water|vuurwerk) die\b|\b(hond|kat|deur|auto) dat\b"),
        ],
    )
    def test_no_caption_breaks_a_rule(self, language: str, wrong: str) -> None:
        for i in range(400):
            rng = np.random.default_rng([4, i])
            for text in captions(draw_scene(rng, 4.0), rng, 5, (language,))[language]:
                assert not re.search(wrong, text), text

    @pytest.mark.parametrize(
        ("language", "template", "sounds", "sentence"),
        [
            ("eng", "plain", [Said("dog", "loud", count=3)], "A dog barks loudly three times."),
            ("eng", "while", [Said("owl"), Said("rain", "loud")], "An owl hoots while rain falls heavily."),
            ("fra", "sound", [Said("airplane")], "Le bruit d'un avion qui passe dans le ciel."),
            ("fra", "sound", [Said("thunder")], "Le bruit du tonnerre qui gronde."),
            ("fra", "sound", [Said("crickets")], "Le bruit de grillons qui chantent."),
            ("fra", "sound", [Said("drip")], "Le bruit de l'eau qui goutte."),
            ("fra", "while", [Said("dog"), Said("owl")], "Un chien aboie pendant qu'une chouette hulule."),
            ("deu", "sound", [Said("dog", count=2)], "Das Geräusch eines Hundes, der zweimal bellt."),
            ("deu", "hear", [Said("dog")], "Man hört einen Hund, der bellt."),
            ("deu", "recording", [Said("heartbeat")], "Eine Aufnahme von einem Herzen, das schlägt."),
            ("deu", "sound", [Said("crickets")], "Das Geräusch mehrerer Grillen, die zirpen."),
            ("deu", "while", [Said("cow"), Said("train")], "Eine Kuh muht, während ein Zug vorbeirattert."),
            ("deu", "then", [Said("cow"), Said("train", "loud")], "Eine Kuh muht, dann rattert ein Zug laut vorbei."),
            ("spa", "sound", [Said("drip")], "El sonido del agua que gotea."),
            ("spa", "hear", [Said("crickets")], "Se oyen unos grillos que cantan."),
            ("spa", "hear", [Said("cough")], "Se oye a un hombre que tose."),
            ("spa", "hear", [Said("applause")], "Se oye al público que aplaude."),
            ("cat", "sound", [Said("dog")], "El so d'un gos que borda."),
            ("cat", "sound", [Said("applause")], "El so del públic que aplaudeix."),
            ("cat", "sound", [Said("drip")], "El so de l'aigua que degota."),
            ("cat", "hear", [Said("crickets")], "Se senten uns grills que canten."),
            (
                "nld",
                "while",
                [Said("cow"), Said("door_slam", "loud")],
                "Een koe loeit terwijl een deur luid dichtslaat.",
            ),
            ("nld", "then", [Said("cow"), Said("door_slam")], "Een koe loeit, dan slaat er een deur dicht."),
            ("nld", "hear", [Said("sheep")], "Je hoort een schaap dat blaat."),
            ("jpn", "plain", [Said("dog", count=3)], "犬が三回吠える。"),
            ("jpn", "while", [Said("dog"), Said("bird")], "鳥がさえずっている中、犬が吠えている。"),
            ("jpn", "then", [Said("knock"), Said("glass")], "誰かがドアをノックし、それからグラスが割れる。"),
            ("zho", "plain", [Said("dog", "loud", count=2)], "一只狗大声地叫了两声。"),
            ("zho", "plain", [Said("knock", count=3)], "有人敲了三下门。"),
            ("zho", "plain", [Said("sneeze", count=3)], "一名女子打了三个喷嚏。"),
            ("zho", "plain", [Said("telephone")], "一部电话在响。"),
        ],
    )
    def test_grammar(self, language: str, template: str, sounds: list[Said], sentence: str) -> None:
        assert say(language, template, *sounds) == sentence

    @pytest.mark.parametrize(
        ("first", "word"), [("dog", "suivi"), ("cow", "suivie"), ("waves", "suivies"), ("crickets", "suivis")]
    )
    def test_french_participle_agrees(self, first: str, word: str) -> None:
        text = grammar_of("fra").sentence("sequence", "hear", [Said(first), Said("owl")], None)
        assert f", {word} d'une chouette" in text

    def test_japanese_verbs_are_conjugated(self) -> None:
        words = {words["verb"]: (words["stem"], words["te"]) for words in grammar_of("jpn").parts.values()}
        wanted = {
            "吠える": "吠え 吠えて", "鳴く": "鳴き 鳴いて", "飛ぶ": "飛び 飛んで", "鳴らす": "鳴らし 鳴らして",
            "打つ": "打ち 打って", "降る": "降り 降って", "きしむ": "きしみ きしんで", "ノックする": "ノックし ノックして",
        }  # fmt: skip
        assert {verb: " ".join(words[verb]) for verb in wanted} == wanted


ENGLISH_COUNTS = {2: r"\btwice\b", 3: r"\bthree times\b", 4: r"\bfour times\b", 5: r"\bfive times\b"}
GERMAN_COUNTS = {2: r"\bzweimal\b", 3: r"\bdreimal\b", 4: r"\bviermal\b", 5: r"\bfünfmal\b"}
CATALAN_COUNTS = {2: r"\bdues vegades\b", 3: r"\btres vegades\b", 4: r"\bquatre vegades\b", 5: r"\bcinc vegades\b"}


def _counts(text: str, patterns: dict[int, str]) -> list[int]:
    return [len(re.findall(pattern, text)) for pattern in patterns.values()]


def test_the_settings_allow_the_languages_that_have_words() -> None:
    """Training knows the languages by name alone: every one of them has a file of words, in the same order."""
    assert list(WITH_WORDS) == list(LANGUAGES)
