"""Late interaction in a real run: what is trained, what is ranked, over one worker and two, and with ASK."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ray_atr.common.override import flatten, override
from ray_atr.data.captions import CaptionBatch, TrainingCaptions
from ray_atr.data.features import open_features
from ray_atr.data.shards import write_clips
from ray_atr.data.stream import stream, training_plan
from ray_atr.evaluation.options import Encoding, EvaluationOptions
from ray_atr.evaluation.run import evaluate
from ray_atr.metrics import align_captions
from ray_atr.models.late_interaction import late_interaction
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.training.batch import Batch
from ray_atr.training.checks import check_interaction
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import Prepared
from ray_atr.training.loop import train_trial
from ray_atr.training.run_folder import RunFolder
from ray_atr.training.share import LateShare
from ray_atr.training.step import training_step
from ray_atr.training.validation import retrieve_by_tokens
from tests.support.processes import run_processes
from tests.support.tiny import prepared_for, tiny, tone_clip

LATE = {"model.interaction": "late"}
ASK = {"objective.knowledge": "ask", "objective.knowledge.prototypes": 4, "objective.knowledge.neighbours": 2}


def retriever_of(experiment: Experiment, prepared: Prepared) -> Retriever:
    return build_retriever(experiment.model, tokenizer=prepared.load_tokenizer(), seed=0)


def first_step(experiment: Experiment, prepared: Prepared, group: WorkerGroup) -> tuple[float, torch.Tensor, list[str]]:
    """Loss, all gradients as one vector, and the names of the parameters that have one, of the first step."""
    features = open_features(prepared.features, "train")
    retriever = retriever_of(experiment, prepared)
    plan = training_plan(features.clip_ids, seed=0, epoch=0, batch_size=8, rank=group.rank, num_workers=group.size)
    batch = next(stream(features, [plan], use_ray=False))
    assigned = TrainingCaptions(features, experiment.data.languages, experiment.data.noise, 0).batch(batch.rows, 0)
    clip_ids = [features.clip_ids[row] for row in batch.rows]
    share = Batch.gathered(clip_ids, batch.features, batch.frames, assigned, None, experiment.data.languages, group)
    result = training_step(retriever, TextBatcher(retriever), experiment.objective, share, group)
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in retriever.parameters()]
    used = [name for name, parameter in retriever.named_parameters() if parameter.grad is not None]
    return result.scalars["loss"], torch.cat([gradient.flatten() for gradient in gradients]), used


def test_the_similarity_is_that_of_each_clip_and_text_by_themselves(home: Path) -> None:
    experiment = tiny(home / "tones", **LATE)
    prepared = prepared_for(experiment, home)
    features, retriever = open_features(prepared.features, "train"), retriever_of(experiment, prepared).eval()
    texts = TextBatcher(retriever)
    captions = [[features.captions_in(code)[row][0] for code in ("eng", "fra")] for row in range(5)]
    needed = np.ones((5, 2), bool)
    needed[1, 1] = False
    array, frames = features.features(np.arange(5))
    clips = (torch.from_numpy(array).float(), torch.from_numpy(frames))
    with torch.no_grad():
        assigned = CaptionBatch(texts=captions, mask=needed, groups=np.arange(5), slots=np.zeros(5, np.int64))
        batch = Batch.gathered(features.clip_ids[:5], *clips, assigned, None, ("eng", "fra"), WorkerGroup())
        share = LateShare(retriever, texts, batch, torch.from_numpy(needed), chunk=0, autocast=False)
        found = share.similarity(WorkerGroup())
        assert found.shape == (2, 5, 5)
        assert (found[1, :, 1] == 0).all()
        for row, column, k in ((0, 0, 0), (3, 2, 1), (4, 1, 0)):
            audio = retriever.audio_tokens(clips[0][row : row + 1], clips[1][row : row + 1])
            text = texts.embed_tokens([(captions[column][k], ("eng", "fra")[k])])
            alone = late_interaction(audio.tokens, audio.token_mask, text.tokens, text.token_mask)
            assert float(found[k, row, column]) == pytest.approx(float(alone), abs=1e-5)
        mean = torch.nn.functional.normalize(audio.tokens[0][audio.token_mask[0]].mean(dim=0), dim=0)
        assert torch.allclose(retriever.embed_audio(*clips)[4], mean, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "knowledge"), [("kcl", {}), ("cacl", ASK), ("triplet", {}), ("triplet", ASK)])
def test_it_trains_over_schemes_and_pair_losses_with_and_without_ask(
    home: Path, tmp_path: Path, objective: str, knowledge: dict[str, Any]
) -> None:
    experiment = tiny(home / "tones", objective=objective, train__epochs=2, **LATE, **knowledge)
    reports: list[dict[str, Any]] = []
    train_trial(experiment, prepared_for(experiment, home), tmp_path, reports.append, use_ray_data=False)
    assert np.isfinite(reports[1]["train/loss"])
    assert 0 <= reports[1]["text_to_audio/fra/recall_at_1"] <= 1
    assert ("knowledge/out_of_batch_influence" in reports[0]) == bool(knowledge)
    if knowledge:
        assert reports[0]["knowledge/out_of_batch_influence"] > 0
    assert Retriever.from_pretrained(tmp_path / "best").settings.interaction == "late"


def test_a_split_is_ranked_by_late_interaction(home: Path) -> None:
    experiment = tiny(home / "tones", **LATE)
    prepared = prepared_for(experiment, home)
    features, retriever = open_features(prepared.features, "val"), retriever_of(experiment, prepared).eval()
    texts = TextBatcher(retriever)
    sentences = {"fra": features.captions_in("fra")}
    captions = align_captions(sentences, 0, labels=features.labels, relevance="clip")
    found = retrieve_by_tokens(retriever, texts, features, captions, 3, WorkerGroup())["fra"].text_to_audio
    array, frames = features.features(np.arange(len(features)))
    with torch.no_grad():
        audio = retriever.audio_tokens(torch.from_numpy(array).float(), torch.from_numpy(frames))
        for row, own in enumerate(sentences["fra"]):
            text = texts.embed_tokens([(own[0], "fra")])
            scores = late_interaction(audio.tokens, audio.token_mask, text.tokens, text.token_mask)[:, 0]
            assert found.first_rank[row] == pytest.approx(int((scores > scores[row]).sum()), abs=0.51)


def test_a_worker_without_a_clip_of_a_small_split_compares_none(home: Path) -> None:
    experiment = tiny(home / "tones", **LATE)
    prepared = prepared_for(experiment, home)
    features, retriever = open_features(prepared.features, "val"), retriever_of(experiment, prepared).eval()
    few = replace(features, captions=features.captions.slice(0, 2))
    captions = align_captions({"fra": few.captions_in("fra")}, 0, labels=few.labels, relevance="clip")
    shares: list[torch.Tensor] = []

    class OneOfSome(WorkerGroup):
        def gather_rows(self, tensor: torch.Tensor) -> torch.Tensor:
            shares.append(tensor)
            return shares[0]

    for rank, size in ((0, 1), (0, 3), (1, 3), (2, 3)):
        group = OneOfSome(rank=rank, size=size)
        retrieve_by_tokens(retriever, TextBatcher(retriever), few, captions, 3, group)
    assert [len(own) for own in shares] == [2, 1, 1, 0]
    torch.testing.assert_close(torch.cat(shares[1:]), shares[0])


def worker(rank: int, size: int, folder: Path, flats: list[dict[str, Any]], prepared: Prepared) -> list[Any]:
    group = WorkerGroup(rank=rank, size=size)
    return [first_step(override(Experiment(), flat), prepared, group) for flat in flats]


def test_two_workers_give_the_loss_and_gradients_of_one(home: Path, tmp_path: Path) -> None:
    experiments = [tiny(home / "tones", objective=name, **LATE) for name in ("contrastive", "kcl")]
    prepared = prepared_for(experiments[0], home)
    for steps in run_processes(worker, 2, tmp_path, [flatten(one) for one in experiments], prepared):
        for experiment, (loss, gradient, used) in zip(experiments, steps, strict=True):
            expected, exact, used_by_one = first_step(experiment, prepared, WorkerGroup())
            assert used == used_by_one, "weights that late interaction does not use would decay"
            assert loss == pytest.approx(expected, rel=1e-5)
            assert float((gradient - exact).norm() / exact.norm()) < 1e-5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"objective": "nnclr"}, "objective.knowledge: got 'nnclr'"),
        ({"objective": "m_ltm"}, "objective.pair.metric: got 'mahalanobis'"),
        ({"objective.pair": "m2m"}, "objective.pair: got 'm2m'; allowed a loss of the similarities alone"),
        ({"objective": "kcl", "train.language_chunk": 1}, "train.language_chunk: got 1"),
    ],
)
def test_what_needs_one_embedding_a_clip_is_refused(home: Path, change: dict[str, Any], words: str) -> None:
    experiment = override(tiny(home / "tones", **LATE), change)
    with pytest.raises(ValueError, match=words):
        check_interaction(experiment)
    check_interaction(replace(experiment, model=replace(experiment.model, interaction="global")))


@pytest.mark.usefixtures("at_home")
def test_an_evaluation_ranks_as_training_does(tmp_path: Path) -> None:
    """It ranked pooled embeddings instead: another model's numbers. Every third clip has two English captions and no French."""
    clips = [
        tone_clip(
            split, n, {"eng": [f"tone {n}", f"sound {n}"]} if n % 3 == 0 else {"eng": [f"a {n}"], "fra": [f"son {n}"]}
        )
        for split in ("train", "val", "test")
        for n in range(8)
    ]
    write_clips(tmp_path / "tones", clips, name="tones", licence="none")
    experiment = tiny(tmp_path / "tones", train__epochs=1, data__test_split="test", **LATE)
    run_folder = RunFolder.create(tmp_path / "run", experiment, {"name": "run"})
    trial = Path(str(run_folder.add_trial({"seed": 0}).folder))
    reports: list[dict[str, Any]] = []
    train_trial(experiment, prepared_for(experiment, tmp_path), trial, reports.append, use_ray_data=False)
    encoding, asked = Encoding(ray="never", batch_size=3), EvaluationOptions(draws=5, mlflow=False, figures=False)
    quiet: dict[str, Any] = {"encoding": encoding, "echo": lambda message: None}
    found = evaluate([trial], asked, out=tmp_path / "own", **quiet).page
    names = [name for name in found.metrics if name.task in ("text_to_audio", "audio_to_text", "embedding")]
    assert len(names) > 50
    for name in names:
        assert found.metrics[name] == pytest.approx(reports[-1][f"test/{name}"], abs=1e-6), name
    pooled = evaluate([trial], replace(asked, ranking="cosine"), out=tmp_path / "pooled", **quiet).page
    several = [name for name in names if name.task == "text_to_audio"]
    beside = {name: found.metrics[f"text_to_audio_by_cosine/{name.language}/{name.name}"] for name in several}
    assert beside == {name: pooled.metrics[name] for name in several}
    assert beside != {name: found.metrics[name] for name in several}
    assert found.queries[0].score == "similarity"
    best = found.queries[0].found[0]
    assert best.is_relevant == (found.queries[0].rank == 1)
    assert any("Ranks are by late interaction" in note for note in found.notes)
    for unread in (replace(asked, plan_epsilon=0.2), replace(asked, plan_sweeps=3)):
        with pytest.raises(ValueError, match=r"plan_\w+: got .*; allowed none with late interaction"):
            evaluate([trial], unread, out=tmp_path / "plan", **quiet)
