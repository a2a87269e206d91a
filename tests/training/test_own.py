"""`ray_atr.train`: modules, objective and data set of one's own, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ray_atr
from ray_atr.objectives import Embeddings, Objective, preset
from ray_atr.objectives.pairs import Contrastive, PartialLearningToMatch
from ray_atr.objectives.schemes import Kcl, MlClap
from ray_atr.training.step import NonFiniteError
from tests.support.fork_server import run_program

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")


class Numbers:
    """Clip n is a noisy one-hot vector of its number; its captions are the number in two languages."""

    languages: tuple[str, ...] = ("eng", "fra")

    def __init__(self, clips: int = 8, seed: int = 0, missing: tuple[int, ...] = ()) -> None:
        noise = 0.1 * np.random.default_rng(seed).standard_normal((clips, 8))
        self.clips = torch.tensor(np.eye(8)[np.arange(clips) % 8] + noise, dtype=torch.float32)
        self.missing = missing

    def __len__(self) -> int:
        return len(self.clips)

    def batch(self, rows: np.ndarray) -> tuple[torch.Tensor, list[list[str | None]]]:
        word = [WORDS[row % 8] for row in rows]
        return self.clips[rows], [
            [one, None if row in self.missing else f"le {one}"] for one, row in zip(word, rows, strict=True)
        ]


class Words(nn.Module):
    """The vector of a caption's last word."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.vectors = nn.Embedding(8, width)

    def forward(self, captions: list[str]) -> torch.Tensor:
        return self.vectors(torch.tensor([WORDS.index(caption.split()[-1]) for caption in captions]))


def modules(seed: int = 0) -> tuple[nn.Module, nn.Module]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(8, 6), Words()


def test_it_is_the_plain_loop() -> None:
    objective = Objective(scheme=Kcl(), pair=Contrastive(temperature=0.2))
    audio, text = modules()
    trained = ray_atr.train(
        *(audio, text, objective, Numbers()), epochs=4, batch_size=8, learning_rate=0.01, clip_norm=0.0
    )
    mine, words = modules()
    optimizer = torch.optim.AdamW([*mine.parameters(), *words.parameters()], 0.01)
    losses = []
    for _ in range(4):
        clips, captions = Numbers().batch(np.arange(8))
        texts = torch.stack([words([of_clip[k] for of_clip in captions]) for k in range(2)], dim=1)
        loss = objective(Embeddings(audio=mine(clips), text=texts)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert [row["train/loss"] for row in trained.history] == pytest.approx(losses, abs=1e-6)
    assert torch.allclose(audio.weight, mine.weight, atol=1e-6)
    assert torch.allclose(text.vectors.weight, words.vectors.weight, atol=1e-6)


def test_equal_captions_are_no_negatives_and_absent_ones_take_no_part() -> None:
    objective = Objective(scheme=Kcl(), pair=Contrastive(temperature=0.2))
    both = Numbers(16, missing=(0, 9))
    found = ray_atr.train(*modules(), objective, both, epochs=1, batch_size=16, learning_rate=0.0).history
    audio, text = modules()
    clips, captions = both.batch(np.arange(16))
    there = torch.tensor([[caption is not None for caption in of_clip] for of_clip in captions])
    texts = torch.stack([text([of_clip[0] for of_clip in captions])] * 2, dim=1)
    same = torch.arange(16) % 8 == (torch.arange(16) % 8)[:, None]
    expected = objective(Embeddings(audio=audio(clips), text=texts, mask=there, positives=same)).loss
    assert found[0]["train/loss"] == pytest.approx(float(expected.detach()), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "times"), [(Kcl(), 2), (MlClap(), 1)])
def test_it_learns_and_is_the_same_again(scheme: Any, times: int) -> None:
    objective = Objective(scheme=scheme, pair=Contrastive(temperature=0.1))
    before = torch.random.get_rng_state()
    runs = [
        ray_atr.train(
            *modules(),
            objective,
            Numbers(64),
            validation=Numbers(8, seed=1),
            epochs=20,
            batch_size=16,
            learning_rate=0.03,
            select_by="audio_to_text/fra/recall_at_1",
        )
        for _ in range(times)
    ]
    assert all(run.history == runs[0].history for run in runs)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert runs[0].history[runs[0].best_epoch - 1]["audio_to_text/fra/recall_at_1"] == 1.0


def test_what_the_objective_learns_is_learnt() -> None:
    objective = Objective(scheme=Kcl(), pair=PartialLearningToMatch(metric="diagonal", epsilon=0.1))
    learned = ray_atr.train(*modules(), objective, Numbers(), epochs=3, batch_size=8, learning_rate=0.1).learned
    assert learned.metric is not None
    assert not torch.allclose(learned.metric, torch.ones(6))
    assert int(learned.num_steps) == 3


def test_a_metric_begins_as_its_seed_says() -> None:
    objective = Objective(pair=PartialLearningToMatch(metric="mahalanobis", epsilon=0.1))
    metrics = []
    for of_caller in (1, 2):
        with torch.random.fork_rng():
            before = torch.manual_seed(of_caller).get_state()
            metrics.append(ray_atr.train(*modules(), objective, Numbers(), epochs=1, batch_size=8).learned.metric)
            assert torch.equal(torch.random.get_rng_state(), before)
    first, second = metrics
    assert first is not None
    assert second is not None
    assert torch.equal(first, second)


def test_it_stops_early_and_leaves_the_best_weights() -> None:
    audio, text = modules()
    states: list[torch.Tensor] = []
    trained = ray_atr.train(
        *(audio, text, preset("kcl"), Numbers(64)),
        validation=Numbers(8, seed=1),
        epochs=50,
        batch_size=16,
        learning_rate=0.03,
        patience=3,
        report=lambda row: states.append(audio.weight.detach().clone()),
    )
    values = [row["text_to_audio/mean/recall_at_1"] for row in trained.history]
    assert trained.best_epoch == 1 + values.index(max(values))
    assert len(trained.history) == trained.best_epoch + 3 < 50
    assert torch.equal(audio.weight, states[trained.best_epoch - 1])
    assert not torch.equal(audio.weight, states[-1])


class NoNumbers(Numbers):
    def __len__(self) -> int:
        return 0


class OfTwo(nn.Linear):
    """A module that gives more than a tensor, as those of transformers do."""

    def forward(self, clips: torch.Tensor) -> Any:
        return (super().forward(clips),)


class Given(Numbers):
    """What stands for a clip's captions is made of its number's word; all clips have one number."""

    def __init__(self, captions: Callable[[str], Any]) -> None:
        super().__init__()
        self.captions = captions

    def batch(self, rows: np.ndarray) -> tuple[torch.Tensor, Any]:
        return self.clips[rows], [self.captions("one") for _ in rows]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"objective": preset("ask")}, "objective.knowledge: got 'ask'; allowed none without a prepared data set"),
        ({"objective": "kcl"}, "objective: got 'kcl'; allowed an Objective, such as ray_atr"),
        ({"data": WORDS}, "data: got .*; allowed an object with `languages`, .*; it lacks languages, batch"),
        ({"validation": WORDS}, "validation: got .*; it lacks languages, batch"),
        ({"audio": lambda clips: clips}, "audio: got .*; allowed a module of torch"),
        ({"patience": 2}, "patience: got 2; allowed 0 without a validation set"),
        ({"batch_size": 9}, "train.batch_size: got 9; allowed at most 8"),
        ({"batch_size": 1}, "train.batch_size: got 1; allowed"),
        ({"epochs": 0}, "train.epochs: got 0; allowed"),
        ({"epochs": 1.5}, "train.epochs: got 1.5; allowed"),
        ({"validation": NoNumbers()}, "validation: got 'no clips'; allowed one clip or more"),
        ({"clip_norm": -1.0}, "clip_norm: got -1.0; allowed"),
        ({"seed": 1.5}, "seed: got 1.5; allowed"),
        (
            {"validation": Numbers(), "select_by": "text_to_audio/mean/recal_at_1"},
            "did you mean text_to_audio/mean/rec",
        ),
        (
            {"audio": nn.Flatten(0)},
            r"audio: got 'a module that gives \[16\]'; allowed one that gives a tensor \[B, D\]",
        ),
        ({"audio": OfTwo(8, 6)}, r"audio: got 'a module that gives a tuple'; allowed one that gives a tensor \[B, D\]"),
        ({"data": Given(lambda word: word)}, "data.batch, clip .: got 'one'; allowed a list of its captions"),
        ({"data": Given(lambda word: [word, np.nan])}, "data.batch, clip .: got nan; allowed a list of its captions"),
    ],
)
def test_what_does_not_fit_is_said_before_a_step(changes: dict[str, Any], says: str) -> None:
    audio, text = modules()
    given = {"audio": audio, "text": text, "objective": preset("kcl"), "data": Numbers(), "batch_size": 8, **changes}
    was = text.vectors.weight.clone()
    with pytest.raises(ValueError, match=says):
        ray_atr.train(**given)
    assert torch.equal(text.vectors.weight, was)


def test_a_batch_of_another_shape_and_a_loss_that_is_not_finite_are_refused() -> None:
    class Other(Numbers):
        languages: tuple[str, ...] = ("eng", "fra", "deu")

    with pytest.raises(
        ValueError, match=r"data.batch: got 'captions of 8 clips in 2 languages'; allowed of 8 clips in 3"
    ):
        ray_atr.train(*modules(), preset("kcl"), Other(), batch_size=8)
    audio, text = modules()
    audio.weight.register_hook(lambda gradient: gradient * torch.nan)
    with pytest.raises(NonFiniteError, match=r"^gradient norm is not finite"):
        ray_atr.train(audio, text, preset("kcl"), Numbers(), batch_size=8)
    too_cold = Objective(scheme=Kcl(), pair=Contrastive(temperature=1e-39))
    with pytest.raises(NonFiniteError, match=r"^loss is not finite"):
        ray_atr.train(*modules(), too_cold, Numbers(), batch_size=8)


def test_a_batch_without_a_text_that_is_compared_is_gone_past() -> None:
    class MostlyFrench(Numbers):
        languages = ("fra", "eng")

        def batch(self, rows: np.ndarray) -> tuple[torch.Tensor, list[list[str | None]]]:
            clips, captions = super().batch(rows)
            return clips, [[french, english] for english, french in captions]

    data = MostlyFrench(missing=(0, 1, 2, 3, 4))
    trained = ray_atr.train(*modules(), Objective(), data, epochs=2, batch_size=2, learning_rate=0.01)
    assert len(trained.history) == 2
    assert all(np.isfinite(row["train/loss"]) for row in trained.history)


def test_a_blank_caption_is_none() -> None:
    """Equal captions are no negatives: if blank ones were captions, the clips that lack one would be no negatives."""

    class Blank(Numbers):
        def batch(self, rows: np.ndarray) -> tuple[torch.Tensor, list[list[str | None]]]:
            clips, captions = super().batch(rows)
            return clips, [[english, french or ""] for english, french in captions]

    histories = [
        ray_atr.train(*modules(), preset("kcl"), kind(missing=(1, 2, 5)), epochs=2, batch_size=8).history
        for kind in (Numbers, Blank)
    ]
    assert histories[0] == histories[1]


def test_validation_clips_without_captions_are_gone_past() -> None:
    """A batch in which no clip has a caption: a text module is not asked for the embeddings of no text."""

    class HalfCaptioned(Numbers):
        def batch(self, rows: np.ndarray) -> tuple[torch.Tensor, list[list[str | None]]]:
            clips, captions = super().batch(rows)
            return clips, [texts if row < 4 else [None, None] for row, texts in zip(rows, captions, strict=True)]

    given: dict[str, Any] = {"validation": HalfCaptioned(), "epochs": 1}
    trained = [ray_atr.train(*modules(), preset("kcl"), Numbers(), batch_size=size, **given) for size in (4, 8)]
    assert [one.history[0]["text_to_audio/mean/queries"] for one in trained] == [4, 4]


def test_a_language_without_validation_captions_is_left_out() -> None:
    data = Numbers(missing=tuple(range(8)))
    given: dict[str, Any] = {"validation": data, "epochs": 2, "batch_size": 8}
    first = ray_atr.train(*modules(), preset("kcl"), Numbers(), **given).history[0]
    assert "text_to_audio/eng/recall_at_1" in first
    assert "text_to_audio/fra/recall_at_1" not in first
    for validation, language in ((data, "fra"), (Given(lambda word: [None, " "]), "mean")):
        given |= {"validation": validation, "select_by": f"text_to_audio/{language}/recall_at_1"}
        with pytest.raises(ValueError, match=f"select_by: got '.*{language}/recall_at_1'; allowed a metric of a lang"):
            ray_atr.train(*modules(), preset("kcl"), Numbers(), **given)


def test_an_epoch_that_compared_nothing_is_the_last() -> None:
    with pytest.raises(
        ValueError, match=r"data: got 'no caption that kcl compares'; allowed captions in \('eng', 'fra'\)"
    ):
        ray_atr.train(*modules(), preset("kcl"), Given(lambda word: [None, " "]), batch_size=8)


def test_neither_ray_nor_transformers_is_loaded_and_faiss_by_what_searches_alone() -> None:
    program = """
import sys
import ray_atr.training.loop
ray_atr.train
assert not {"ray", "transformers"} & set(sys.modules)
import ray_atr.cli.commands, ray_atr.training.train_modules, ray_atr.sweep.run_trials
import ray_atr.evaluation.run, ray_atr.workshop.audit.run
assert "faiss" not in sys.modules
sys.modules["faiss"] = None
from ray_atr.training.knowledge_base.searcher import fused_top_k
import torch
try:
    fused_top_k(torch.ones(2, 4), torch.ones(5, 4), 3)
except ValueError as error:
    print(error)
"""
    import_one_of_them = ("accelerate", "mlflow", "peft", "ray_atr")
    done = run_program(program, forgets=("ray", "transformers", "faiss", *import_one_of_them))
    assert done.returncode == 0, done.stderr
    expected = "faiss: got 'no such module'; allowed faiss-cpu or one of its CUDA builds: pip install faiss-cpu\n"
    assert done.stdout == expected
