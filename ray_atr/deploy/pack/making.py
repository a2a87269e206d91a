"""Makes a pack: a data set of vectors, training with this package, the text tower added again, and retrieval before and after.

A pack is a saved retriever. Its audio side returns vectors of the space unchanged, so that it can index and search them like any
other retriever; its text side is the frozen encoder with the trained projection.

Shapes: N clips, M captions, W width of the text encoder, D width of the space.
"""

from __future__ import annotations

import copy
import csv
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ray_atr.common.digests import digest_of, seal_folder
from ray_atr.common.language_codes import ENGLISH
from ray_atr.common.override import override
from ray_atr.common.progress import Echo, silent, spaced
from ray_atr.common.settings import refuse
from ray_atr.common.storage import atomic_folder, require_new, write_json
from ray_atr.data.caption_vectors import clip_width
from ray_atr.data.shards import Manifest, read_manifest
from ray_atr.deploy.pack.fitting import fit_projection, most_words, target_vectors
from ray_atr.deploy.pack.pack_options import METHODS, PackOptions
from ray_atr.deploy.pack.space import ForeignSpace, PairedCaption, read_space
from ray_atr.deploy.pack.text_side import TextSide, encode_table
from ray_atr.evaluation.eval_split import read_eval_split
from ray_atr.metrics.alignment import AlignedCaptions
from ray_atr.metrics.languages import embedding_metrics, language_metrics, retrieve_languages
from ray_atr.metrics.metric import Metric
from ray_atr.metrics.samples import Samples, retrieval_samples
from ray_atr.models.card import CARD_FILE
from ray_atr.models.fingerprint import PACK_FILE
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.onnx_graph import require_onnx, write_graph
from ray_atr.models.retriever import Retriever
from ray_atr.models.tower import TextSettings, TextTower
from ray_atr.models.vectors import AudioVectors, AudioVectorsTower
from ray_atr.models.words import WithWords, frequent_words, vector_and_words
from ray_atr.training.checks import split_sizes
from ray_atr.training.correspondence import estimated_first
from ray_atr.training.experiment import Experiment
from ray_atr.training.inputs import prepare
from ray_atr.training.languages import with_languages
from ray_atr.training.loop import train_trial
from ray_atr.training.run_folder import BEST
from ray_atr.workshop.importing.import_options import VectorImport
from ray_atr.workshop.importing.vector_import import import_vectors

Vectors = NDArray[np.float32]
PROJECTION_FILE = "projection.onnx"
LARGEST_DIFFERENCE = 1e-5
TABLE_COLUMNS = ("audio_row", "text_row", "caption", "language", "split", "clip_id", "label")


@dataclass(frozen=True)
class PackScores:
    """Retrieval by one text side on the held-out clips: every metric, and the scores of the queries."""

    metrics: dict[Metric, float]
    samples: Samples = field(default_factory=dict)


@dataclass(frozen=True)
class Pack:
    """A finished pack: its folder, and the scores of the space's own text tower (None without its vectors) and of the pack."""

    folder: Path
    before: PackScores | None
    after: PackScores
    seconds: float
    """Time from the encoded captions to the trained projection."""
    projection_bytes: int


def make_pack(
    space: str,
    captions: str,
    text: str,
    out: str | Path,
    *,
    space_text: str | None = None,
    options: PackOptions | None = None,
    settings: Mapping[str, str] | None = None,
    split: str = "test",
    echo: Echo = print,
) -> Pack:
    """Train a pack and write it atomically to a new folder.

    space       audio vectors [N, D], a file (.npy, .safetensors, .parquet::COLUMN) or an index folder.
    captions    table: audio_row, caption[, language, split, clip_id, label, text_row].
    text        the frozen multilingual encoder, as `encode_table` takes it.
    space_text  the space's own vectors of the captions, or of those in English.
    settings    further settings of the experiment by their paths (`train.epochs`), and of the encoder (`model.text.*`).
    split       split of the clips on which retrieval is measured.

    ValueError for inputs that do not fit; then nothing is written.
    """
    options = options or PackOptions()
    of_text, of_training = _split_settings(settings or {}, options.method)
    folder = require_new(out, "--out")
    if options.onnx:
        try:
            require_onnx("--onnx")
        except ValueError as error:
            raise ValueError(f"{error}; --no-onnx makes the pack without projection.onnx") from None
    foreign = read_space(space, captions, space_text, language=options.language, seed=options.seed)
    _check(foreign, options.method, split)
    _check_settings(foreign, options, of_training, captions)
    echo("encoding the captions")
    side = encode_table(text, foreign.pairs, of_text, echo=echo)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ray_atr-pack-") as scratch:
        home = Path(scratch)
        manifest = _write_data(home / "data", *training_rows(foreign, side.vectors, options.method))
        experiment = _experiment(manifest, options, of_training)
        fit = _fit if options.method == "both" else _train
        retriever = fit(experiment, home, echo, foreign, side)
        seconds = time.monotonic() - started
        if options.method == "m2m":
            # It learns no language itself: its text tower may have learned any.
            retriever.languages = ()
        asked = read_eval_split(manifest, split, relevance=experiment.evaluation.relevance)
        row_of = {pair.clip_id: pair.audio_row for pair in foreign.pairs}
        audio = torch.from_numpy(foreign.audio[[row_of[clip_id] for clip_id in asked.clip_ids]])
        after = _scores(audio, asked.captions, _placed(retriever, foreign.pairs, side.vectors, split))
        before = _scores(audio, asked.captions, foreign.text_of())
        assert after is not None, "every caption has a vector"
    with atomic_folder(folder, is_synced=True) as aside:
        retriever.save_pretrained(aside)
        size = _write_projection(retriever, aside) if options.onnx else 0
        about = {
            "format": 2,
            "method": options.method,
            "model": foreign.model,
            "space": digest_of(foreign.audio.tobytes()),
            "width": int(foreign.audio.shape[1]),
            "clips": len(foreign.audio),
            "languages": foreign.languages,
            "seed": experiment.seed,
            "split": split,
            "before": None if before is None else before.metrics,
            "after": after.metrics,
        }
        write_json(aside / PACK_FILE, about)
        # An evaluation replaces the card.
        seal_folder(aside, left_out=[CARD_FILE])
    return Pack(folder, before, after, seconds, size)


def _split_settings(settings: Mapping[str, str], method: str) -> tuple[dict[str, str], dict[str, str]]:
    """The settings of the text encoder, and those of the training and the evaluation."""
    of_text = {path: value for path, value in settings.items() if path.startswith("model.text.")}
    # The encoder's vectors are pooled: late interaction would train on these, and then embed texts by their tokens.
    of_model = ("audio", "text", "audio_projection", "embedding_width", "interaction")
    fixed = ("data.source", *(f"model.{name}" for name in of_model), "seed")
    for path in settings:
        if path in fixed:
            raise refuse(f"--{path}", settings[path], "nothing: a pack sets it itself")
        if method == "both" and not path.startswith(("model.text.", "evaluation.")):
            raise refuse(f"--{path}", settings[path], "nothing: method both is solved, not trained")
    return of_text, {path: value for path, value in settings.items() if path not in of_text}


def _check(space: ForeignSpace, method: str, split: str) -> None:
    """ValueError if the pairs lack a split or the vectors that the method needs, or it trains on no clips of the split."""
    splits = {pair.split or "train" for pair in space.pairs}
    for name in ("train", "val", split):
        if name not in splits:
            allowed = f"clips in train, val and {split}, by a column split or drawn from more clips"
            raise refuse("--captions", f"splits {', '.join(sorted(splits))}", allowed)
    if method == "m2m" and split == "train":
        raise refuse("--split", split, "val, test or another split: m2m trains on texts in the place of the clips")
    if method != "audio" and not any(_is_own_text(pair) for pair in space.pairs):
        allowed = "with --space-text: the space's own vectors of English captions of split train; or --method audio"
        raise refuse("--method", method, allowed)


def _check_settings(space: ForeignSpace, options: PackOptions, settings: Mapping[str, str], captions: str) -> None:
    """ValueError for a wrong value of a setting, or a language without captions, before the captions are encoded."""
    asked = override(override(Experiment(), METHODS[options.method]), settings)
    if (metric := asked.objective.pair.learns().metric) != "euclidean":
        raise refuse(
            "--objective.pair.metric", metric, "euclidean: a foreign space is searched without a learned metric"
        )
    if unknown := [language for language in asked.data.languages if language not in space.languages]:
        allowed = f"languages of {captions}: {', '.join(space.languages)}"
        raise refuse("data.languages", ", ".join(unknown), allowed)


def _is_own_text(pair: PairedCaption) -> bool:
    return pair.language == ENGLISH and pair.text_row is not None and pair.split in ("", "train")


def training_rows(space: ForeignSpace, text: Vectors, method: str) -> tuple[Vectors, Vectors, list[PairedCaption]]:
    """Training data of a method: clips' vectors [N, D], captions' [M, W], and pairs, whose `text_row` is an index of the latter.

    For `m2m` the space's vector of an English caption replaces the clip's, with that caption.
    """
    pairs = [replace(pair, text_row=row, split=pair.split or "train") for row, pair in enumerate(space.pairs)]
    if method != "m2m":
        return space.audio, text, pairs
    assert space.text is not None
    rows, seen, of_space = list[int](), set[str](), list[PairedCaption]()
    for given, pair in zip(space.pairs, pairs, strict=True):
        if not _is_own_text(given) or pair.caption in seen:
            continue
        seen.add(pair.caption)
        place, name = len(space.audio) + len(rows), f"text-{len(rows):08d}"
        assert given.text_row is not None
        rows.append(given.text_row)
        of_space.append(replace(pair, audio_row=place, clip_id=name))
    others = [pair for pair in pairs if pair.split != "train"]
    return np.concatenate([space.audio, space.text[rows]]), text, [*others, *of_space]


def _write_data(folder: Path, audio: Vectors, text: Vectors, pairs: Sequence[PairedCaption]) -> Manifest:
    """The data set of vectors that training reads."""
    beside = folder.with_name("given")
    beside.mkdir()
    files = {"audio": beside / "audio.npy", "text": beside / "text.npy", "table": beside / "pairs.csv"}
    np.save(files["audio"], audio)
    np.save(files["text"], text)
    with files["table"].open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(TABLE_COLUMNS)
        writer.writerows([[getattr(pair, column) for column in TABLE_COLUMNS] for pair in pairs])
    import_vectors(VectorImport(**{name: str(file) for name, file in files.items()}), folder)
    return read_manifest(str(folder))


def _experiment(manifest: Manifest, options: PackOptions, settings: Mapping[str, str]) -> Experiment:
    changes: dict[str, Any] = {
        **METHODS[options.method],
        "data.source": manifest.folder,
        "model.embedding_width": clip_width(manifest.folder),
        "seed": options.seed,
    }
    experiment = override(Experiment(), changes)
    smaller = min(experiment.train.batch_size, manifest.num_rows_of("train"))
    return override(experiment, {"train.batch_size": smaller, **settings})


def _fit(experiment: Experiment, home: Path, echo: Echo, space: ForeignSpace, side: TextSide) -> Retriever:
    """The retriever whose texts are fitted to their target vectors, from the encoder's vectors and the words."""
    rows, wanted = target_vectors(space)
    captions = [space.pairs[row].caption for row in rows]
    words = frequent_words(captions, most_words(side.vectors.shape[1], space.audio.shape[1]))
    echo(f"fitting {len(rows):,} captions and {len(words):,} words")
    tower = WithWords(side.tower, words)
    projection = fit_projection(tower, side.vectors[rows], captions, wanted)
    learned = {space.pairs[row].language for row in rows}
    languages = [language for language in space.languages if language in learned]
    return _packed(experiment.model, tower, side.settings, projection, languages)


def _train(experiment: Experiment, home: Path, echo: Echo, space: ForeignSpace, side: TextSide) -> Retriever:
    """The retriever of the best validation epoch, by the usual training."""
    chosen_by, epochs, say = experiment.evaluation.select_by, experiment.train.epochs, spaced(echo)

    def report(row: Mapping[str, Any]) -> None:
        if "epoch" in row and "train/loss" in row:
            score = f": {chosen_by} {100 * row[chosen_by]:.1f}" if chosen_by in row else ""
            say(f"epoch {row['epoch']} of {epochs}{score}", row["epoch"], epochs)

    experiment = with_languages(experiment)
    # With 75,000 captions in five languages the estimate takes three times as long as two epochs.
    echo(estimated_first(experiment, lambda: split_sizes(experiment)[experiment.data.train_split]) or "training")
    prepared = prepare(experiment, home / "home", use_ray=False, echo=silent)
    train_trial(experiment, prepared, home / "trial", report, use_ray_data=False)
    trained = Retriever.from_pretrained(home / "trial" / BEST)
    return _packed(trained.settings, side.tower, side.settings, trained.text_projection, trained.languages)


def _packed(
    model: ModelSettings, tower: TextTower, text: TextSettings, projection: nn.Module, languages: Sequence[str]
) -> Retriever:
    """A retriever of the text tower followed by the projection, which was trained on captions in these languages."""
    D = model.embedding_width
    audio = AudioVectors(width=D)
    settings = replace(model, audio=audio, text=text)
    with torch.random.fork_rng():
        retriever = Retriever(AudioVectorsTower(audio.front_end, D), tower, settings).eval()
    retriever.text_projection.load_state_dict(projection.state_dict())
    retriever.languages = tuple(languages)
    return retriever


def _placed(
    retriever: Retriever, pairs: Sequence[PairedCaption], vectors: Vectors, split: str
) -> dict[tuple[str, str], Vectors]:
    """The pack's vector of each caption and language of a split, from the encoder's vectors [M, W] of all pairs."""
    asked = {(pair.caption, pair.language): row for row, pair in enumerate(pairs) if (pair.split or "train") == split}
    texts = [caption for caption, _ in asked]
    given: Any = torch.from_numpy(vectors[list(asked.values())])
    if isinstance(retriever.text_tower, WithWords):
        given = vector_and_words(given, retriever.text_tower.bag(texts))
    return dict(zip(asked, retriever.embed_sentences(given).numpy(), strict=True))


def _scores(audio: Tensor, captions: AlignedCaptions, vectors: Mapping[tuple[str, str], Vectors]) -> PackScores | None:
    """Retrieval by the captions' vectors, in the languages that have all of them; None if there is no such language."""
    text, present = {}, captions.present
    for language, sentences in captions.sentences.items():
        rows = np.flatnonzero(present[language])
        if all((sentences[row], language) in vectors for row in rows):
            text[language] = np.zeros((len(captions), audio.shape[1]), np.float32)
            text[language][rows] = [vectors[sentences[row], language] for row in rows]
    if not text:
        return None
    retrievals = retrieve_languages(audio, text, captions.relevance, present=present)
    metrics = language_metrics(retrievals) | embedding_metrics(audio, text, captions.relevance, present=present)
    return PackScores(metrics, retrieval_samples(retrievals))


class ProjectionGraph(nn.Module):
    """Vectors of the text encoder [M, W] to unit vectors of the space [M, D]."""

    def __init__(self, projection: nn.Module) -> None:
        super().__init__()
        self.projection = projection

    def forward(self, text: Tensor) -> Tensor:
        return nn.functional.normalize(self.projection(text), dim=-1)


class WordsGraph(nn.Module):
    """The same from vectors [M, W] and words [M, V + 1] as returned by `WithWords.bag`; its weights have 16 bits."""

    def __init__(self, projection: nn.Linear) -> None:
        super().__init__()
        self.projection = copy.deepcopy(projection).half()

    def forward(self, text: Tensor, words: Tensor) -> Tensor:
        weight, bias = self.projection.weight.float(), self.projection.bias.float()
        return nn.functional.normalize(nn.functional.linear(vector_and_words(text, words), weight, bias), dim=-1)


def _write_projection(retriever: Retriever, folder: Path) -> int:
    """Write the projection as one graph, run it, and return its bytes. ValueError if it differs."""
    import onnxruntime

    tower, file, random = retriever.text_tower, folder / PROJECTION_FILE, torch.Generator().manual_seed(0)
    graph: nn.Module
    vectors: Any
    if isinstance(tower, WithWords):
        assert isinstance(retriever.text_projection, nn.Linear)
        graph = WordsGraph(retriever.text_projection)
        example = {
            "text": torch.randn(3, tower.encoder.width, generator=random),
            "words": torch.rand(3, len(tower.words) + 1, generator=random),
        }
        vectors = vector_and_words(**example)
    else:
        graph = ProjectionGraph(retriever.text_projection)
        example = {"text": torch.randn(3, tower.width, generator=random)}
        vectors = example["text"]
    wanted = retriever.embed_sentences(vectors)
    write_graph(graph, tuple(example.values()), file, {name: {0: "texts"} for name in example})
    twice = {name: torch.cat([rows, rows]).numpy() for name, rows in example.items()}
    (mapped,) = onnxruntime.InferenceSession(file).run(None, twice)
    difference = float(np.abs(mapped - torch.cat([wanted, wanted]).numpy()).max())
    if not difference <= LARGEST_DIFFERENCE:
        raise refuse(PROJECTION_FILE, f"a difference of {difference:.2g}", f"at most {LARGEST_DIFFERENCE:g}")
    return file.stat().st_size
