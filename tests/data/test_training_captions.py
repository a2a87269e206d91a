"""The captions that clips have in an epoch: one sentence in every language, noise included, positives by their words."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ray_atr.data.audio import FrontEnd
from ray_atr.data.captions import TrainingCaptions
from ray_atr.data.feature_cache import ensure_features
from ray_atr.data.features import FeatureSet, open_features
from ray_atr.data.noise import Noise
from ray_atr.data.schema import Clip
from ray_atr.data.shards import write_clips
from tests.support.tiny import tone

ROWS = np.arange(8)
LANGUAGES = ("eng", "fra")


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> FeatureSet:
    """Eight clips with three sentences each, of which French lacks the last; clips 0 and 1 say the same; clip 7 has no French."""
    folder = tmp_path_factory.mktemp("home")
    clips = []
    for number in range(8):
        name = max(number, 1)
        english = tuple(f"Sentence {j} of {name}" for j in range(3))
        french = tuple(f"Phrase {j} de {name}" for j in range(2))
        clips.append(
            Clip(
                clip_id=f"clip-{number}",
                audio=tone(0, number, seconds=0.1),
                sample_rate=16_000,
                seconds=0.1,
                captions={"eng": english, **({"fra": french} if number < 7 else {})},
                labels=("high" if number % 2 else "low",),
                split="train",
                source="sentences",
            )
        )
    write_clips(folder / "sentences", clips, name="sentences", licence="none")
    return open_features(ensure_features(folder / "sentences", FrontEnd(num_mels=16), folder, use_ray=False), "train")


def test_a_sentence_is_the_same_one_in_every_language_and_masked_where_one_lacks_it(features: FeatureSet) -> None:
    captions = TrainingCaptions(features, LANGUAGES, Noise(), seed=0)
    drawn = set()
    for epoch in range(12):
        batch = captions.batch(ROWS, epoch)
        for number, (texts, mask) in enumerate(zip(batch.texts, batch.mask, strict=True)):
            sentence = int(texts[0].split()[1])
            drawn.add(sentence)
            has_french = sentence < 2 and number < 7
            assert mask.tolist() == [True, has_french]
            assert texts[1] == (f"Phrase {sentence} de {max(number, 1)}" if has_french else "")
    assert drawn == {0, 1, 2}


def test_what_a_clip_wears_depends_on_seed_epoch_and_clip_alone(features: FeatureSet) -> None:
    noise = Noise(ratio=0.5)
    first = TrainingCaptions(features, LANGUAGES, noise, seed=1)
    whole = first.batch(ROWS, 3).texts
    order = np.array([5, 2, 7])
    assert TrainingCaptions(features, LANGUAGES, noise, seed=1).batch(order, 3).texts == [whole[row] for row in order]
    assert TrainingCaptions(features, LANGUAGES, noise, seed=2).batch(ROWS, 3).texts != whole


def test_an_index_may_leave_out_any_of_a_clips_captions(features: FeatureSet, tmp_path: Path) -> None:
    """-1 is none: what is drawn is one of those that are left, wherever they stand."""
    index = np.arange(24).reshape(8, 3)
    index[2], index[3] = [-1, 7, -1], [-1, 10, 11]
    np.save(tmp_path / "index.npy", index)
    captions = TrainingCaptions(features, LANGUAGES, Noise(index=str(tmp_path / "index.npy")), seed=0)
    batches = [captions.batch(ROWS, epoch) for epoch in range(12)]
    assert {batch.texts[2][0] for batch in batches} == {"Sentence 1 of 2"}
    assert {batch.texts[3][0] for batch in batches} == {"Sentence 1 of 3", "Sentence 2 of 3"}
    assert all(batch.mask[:, 0].all() for batch in batches)


def test_noise_exchanges_captions_of_all_languages_together(features: FeatureSet) -> None:
    captions = TrainingCaptions(features, LANGUAGES, Noise(ratio=0.5), seed=1)
    assigned = captions.batch(ROWS, 0)
    owners = [int(texts[0].split()[-1]) for texts in assigned.texts]
    assert owners != [max(number, 1) for number in range(8)]
    for texts, owner, mask in zip(assigned.texts, owners, assigned.mask, strict=True):
        assert not mask[1] or texts[1].endswith(f" de {owner}")
    clean = sum(own == number for number, own in enumerate(captions.assigned.owner[:, 0, 0])) / 8
    assert captions.clean_share(LANGUAGES) == clean < 1


def test_the_clean_share_is_of_the_pairs_that_are_trained_on(features: FeatureSet) -> None:
    captions = TrainingCaptions(features, LANGUAGES, Noise(ratio=0.9, kind="language"), seed=1)
    pairs: dict[str, list[tuple[int, bool]]] = {"eng": [], "fra": []}
    for slot in range(3):
        assigned = captions.batch(ROWS, 0, np.full(8, slot))
        for row, (texts, mask) in enumerate(zip(assigned.texts, assigned.mask, strict=True)):
            for code, text, is_there in zip(LANGUAGES, texts, mask, strict=True):
                own = [own.casefold() for own in features.captions_in(code)[row]]
                pairs[code] += [(row, text.casefold() in own)] if is_there else []
    for trained in (("eng",), ("fra",), LANGUAGES):
        found = [pair for code in trained for pair in pairs[code]]
        of_clips = [np.mean([true for row, true in found if row == clip]) for clip in {row for row, _ in found}]
        assert captions.clean_share(trained) == pytest.approx(np.mean(of_clips))
        assert captions.clean_share(trained, "each") == pytest.approx(np.mean([true for _, true in found]))
    assert captions.clean_share(("eng",)) != captions.clean_share(("fra",))


def test_a_caption_of_the_same_words_is_a_true_one(features: FeatureSet) -> None:
    # Clips 0 and 1 say the same.
    captions = TrainingCaptions(features, ("eng",), Noise(ratio=0.25, kind="prefix_shuffle"), seed=0)
    swapped = captions.assigned._replace(owner=captions.assigned.owner.copy())
    swapped.owner[0], swapped.owner[1] = 1, 0
    captions.assigned = swapped
    assert captions.clean_share(("eng",)) == 1


def test_labels_go_with_the_sentence(features: FeatureSet) -> None:
    """Clip 0, which is low, has a sentence of clip 3, which is high."""
    captions = TrainingCaptions(features, ("eng",), Noise(), 0, "labels")
    owner = captions.assigned.owner.copy()
    owner[0] = 3
    captions.assigned = captions.assigned._replace(owner=owner)
    groups = captions.batch(ROWS, 0).groups
    assert groups[0] == groups[3] == groups[5] != groups[2]


def test_a_sentence_is_true_by_its_own_words(features: FeatureSet) -> None:
    """Clips 0 and 2 have the second sentence of clip 1, which is one of clip 0's but for case and blanks."""
    said = {0: ["A ", "b"], 1: ["c", "a"], 2: ["c", "e"]}
    captions = TrainingCaptions(features, ("eng",), Noise(), 0)
    owner, slot = (part.copy() for part in captions.assigned)
    owner[[0, 2], 0], slot[[0, 2], 0] = 1, 1
    captions.assigned = captions.assigned._replace(owner=owner, slot=slot)
    captions.features = SimpleNamespace(captions_in=lambda code, rows: [said[row] for row in rows])  # type: ignore[assignment]
    assert captions.truth[[0, 2], 0, 0].tolist() == [True, False]


def test_positives_are_clips_of_the_same_words_labels_or_the_clip_alone(features: FeatureSet) -> None:
    def groups(positives: str) -> list[int]:
        return TrainingCaptions(features, LANGUAGES, Noise(), 0, positives).batch(ROWS, 0).groups.tolist()

    assert len(set(groups("identity"))) == 8
    by_label = groups("labels")
    assert [label == by_label[0] for label in by_label] == [True, False] * 4
    captions = TrainingCaptions(features, ("eng",), Noise(), 0, "captions")
    for epoch in range(6):
        batch = captions.batch(ROWS, epoch)
        said = [texts[0].casefold() for texts in batch.texts]
        for i in range(8):
            for j in range(8):
                assert (batch.groups[i] == batch.groups[j]) == (said[i] == said[j])
