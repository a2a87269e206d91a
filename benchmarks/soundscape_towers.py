"""The small towers that come with the package: trained to name the sounds of other soundscapes.

    uv run python benchmarks/soundscape_towers.py --out ray_atr/models/shipped

The audio tower hears clips of a seed of its own and learns which kinds of sound they hold. The text tower reads captions of that
seed, in eight languages, and learns which kinds they name. Neither is given a pair of clip and caption, a clip of the default
data set, or a caption whose text the default data set has in its validation or test split.

On one machine two runs write the same bytes; another processor or version of torch rounds differently. `card.json` says with
what the towers were made, and how well each names the kinds of the default data set's validation split. It takes
some ten minutes on one core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ray_atr.common.digests import seal_folder
from ray_atr.common.storage import atomic_folder
from ray_atr.data.audio import clip_windows
from ray_atr.models.audio import SmallCnn, SmallCnnTower
from ray_atr.models.text import TOKENIZER_FILE, SmallTransformer, SmallTransformerTower, save_tokenizer, train_tokenizer
from ray_atr.models.tower import pad_tokens
from ray_atr.models.weights import write_weights
from ray_atr.workshop.soundscapes import KINDS, SoundscapesSettings, clip, described

SEED = 7919
"""Of the soundscapes that the towers learn from; the default data set's is 0."""
BATCH = 64
BUCKET = 20
"""Batches of captions that are sorted by length together."""
RATE = 2e-3
WEIGHTS, CARD = "model.safetensors", "card.json"

Batch = tuple[Tensor, Tensor, Tensor]
"""What a tower takes [n, ...], what of it counts, and the kinds that are there, [n, kinds] of 0 and 1."""
Card = dict[str, object]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder in which each tower gets a folder of its name")
    parser.add_argument("--clips", type=int, default=4000, help="clips that the audio tower hears")
    parser.add_argument("--audio-epochs", type=int, default=10)
    parser.add_argument("--scenes", type=int, default=3000, help="scenes whose captions the text tower reads")
    parser.add_argument("--text-epochs", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--held-out", type=int, default=200, help="clips of the default set that are named at the end")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    own = SoundscapesSettings(seed=SEED, num_train=options.clips)
    default = SoundscapesSettings(num_val=options.held_out)
    write_tower(options.out, *audio_tower(own, default, options.audio_epochs))
    write_tower(options.out, *text_tower(own, default, options.scenes, options.text_epochs, options.vocabulary))


def audio_tower(own: SoundscapesSettings, default: SoundscapesSettings, epochs: int) -> tuple[SmallCnnTower, Card]:
    """The tower that has learned from the training clips of `own`, and its card."""
    torch.manual_seed(SEED)
    tower = SmallCnn().build()
    heard, kinds = heard_clips(own, "train", own.num_train)
    lengths = np.array([len(clip) for clip in heard])

    def batch(rows: NDArray[np.int64]) -> Batch:
        clips = nn.utils.rnn.pad_sequence([torch.from_numpy(heard[row]).float() for row in rows], batch_first=True)
        return clips, torch.from_numpy(lengths[rows]), kinds[rows]

    head = learn(tower, len(heard), lambda epoch: map(batch, in_batches(len(heard), epoch)), epochs)
    test, test_kinds = heard_clips(default, "val", default.num_val)
    frames = torch.tensor([len(clip) for clip in test])
    padded = nn.utils.rnn.pad_sequence([torch.from_numpy(clip).float() for clip in test], batch_first=True)
    named = share_named(tower, head, [(padded, frames, test_kinds)])
    return tower, {"clips": len(heard), "epochs": epochs, "validation clips named right": named}


def heard_clips(settings: SoundscapesSettings, split: str, count: int) -> tuple[list[NDArray[np.float16]], Tensor]:
    """Log-mel frames [T, F] of a split's clips, and their kinds [N, kinds]."""
    front_end = SmallCnn().front_end
    clips = [clip(index, split, settings) for index in range(count)]
    frames = [next(iter(clip_windows(one.audio, front_end, one.clip_id))).astype(np.float16) for one in clips]
    return frames, as_kinds([list(one.labels) for one in clips])


def text_tower(
    own: SoundscapesSettings, default: SoundscapesSettings, scenes: int, epochs: int, vocabulary: int
) -> tuple[SmallTransformerTower, Card]:
    """The tower that has learned from two captions of each scene of `own`, in all languages, and its card."""
    kept_out = {
        caption for split in ("val", "test") for caption in captions_of(default, split, default.num_clips(split))
    }
    read = captions_of(replace(own, num_train_captions=2), "train", scenes)
    captions = [caption for caption in read if caption not in kept_out]
    kinds = as_kinds([read[caption] for caption in captions])
    torch.manual_seed(SEED)
    tower = SmallTransformer(num_layers=1).build(train_tokenizer([text for text, _ in captions], vocabulary))
    tokens = tower.tokenise([text for text, _ in captions], [language for _, language in captions])
    lengths = np.array([len(ids) for ids in tokens])

    def batch(rows: NDArray[np.int64]) -> Batch:
        return *pad_tokens([tokens[row] for row in rows], tower.pad_token_id), kinds[rows]

    head = learn(tower, len(captions), lambda epoch: map(batch, in_batches(len(captions), epoch, lengths)), epochs)
    test = captions_of(default, "val", default.num_val)
    asked = list(test)
    ids = tower.tokenise([text for text, _ in asked], [language for _, language in asked])
    parts = [np.arange(start, min(start + 512, len(asked))) for start in range(0, len(asked), 512)]
    named = share_named(
        tower,
        head,
        [(*pad_tokens([ids[row] for row in rows], 0), as_kinds([test[asked[row]] for row in rows])) for rows in parts],
    )
    return tower, {
        "captions": len(captions),
        "left out, as the default set has them": len(read) - len(captions),
        "languages": list(own.languages),
        "epochs": epochs,
        "validation captions named right": named,
    }


def captions_of(settings: SoundscapesSettings, split: str, count: int) -> dict[tuple[str, str], list[str]]:
    """(caption, language) -> the kinds of sound that it names."""
    found = {}
    for index in range(count):
        captions, labels = described(index, split, settings)
        found.update({(text, language): labels for language, texts in captions.items() for text in texts})
    return found


def as_kinds(labels: list[list[str]]) -> Tensor:
    """[N, kinds], 1 for each kind that is there."""
    place = {name: number for number, name in enumerate(KINDS)}
    kinds = torch.zeros(len(labels), len(place))
    for row, names in enumerate(labels):
        kinds[row, [place[name] for name in names]] = 1.0
    return kinds


def in_batches(size: int, epoch: int, lengths: NDArray[np.int64] | None = None) -> Iterator[NDArray[np.int64]]:
    """The rows of an epoch's full batches, drawn again in each; with lengths, those of a batch are about equally long."""
    generator = np.random.default_rng([SEED, epoch])
    order = generator.permutation(size)
    batches = []
    for start in range(0, size, BATCH * BUCKET):
        some = order[start : start + BATCH * BUCKET]
        if lengths is not None:
            some = some[np.argsort(lengths[some], kind="stable")]
        batches += [some[first : first + BATCH] for first in range(0, len(some) - BATCH + 1, BATCH)]
    return (batches[number] for number in generator.permutation(len(batches)))


def learn(tower: nn.Module, size: int, batches: Callable[[int], Iterator[Batch]], epochs: int) -> nn.Linear:
    """Train the tower, and the layer that is returned, to name what kinds are there: binary cross-entropy, AdamW, one cycle."""
    head = nn.Linear(tower.width, len(KINDS))  # type: ignore[arg-type]
    parameters = [*tower.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.01)
    steps = sum(1 for _ in in_batches(size, 0)) * epochs
    if not steps:
        raise ValueError(f"size: got {size}; allowed at least {BATCH}, a batch")
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps + 1, pct_start=0.1)
    for epoch in range(epochs):
        losses = []
        for inputs, counts, kinds in batches(epoch):
            logits = head(tower(inputs, counts).pooled)
            loss = len(KINDS) * nn.functional.binary_cross_entropy_with_logits(logits, kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(f"{type(tower).__name__}: epoch {epoch + 1} of {epochs}, loss {np.mean(losses):.3f}", flush=True)
    return head


@torch.no_grad()
def share_named(tower: nn.Module, head: nn.Linear, batches: list[Batch]) -> float:
    """The share of rows whose k likeliest kinds are the k that are there."""
    tower.eval()
    right = []
    for inputs, counts, kinds in batches:
        order = head(tower(inputs, counts).pooled).argsort(dim=1, descending=True)
        found = torch.zeros_like(kinds).scatter(
            1, order, (torch.arange(kinds.shape[1]) < kinds.sum(1, keepdim=True)).float()
        )
        right += (found == kinds).all(dim=1).tolist()
    return round(float(np.mean(right)), 3)


def write_tower(out: Path, tower: SmallCnnTower | SmallTransformerTower, card: Card) -> None:
    """Write a folder with the weights in half precision, the tokeniser if there is one, the card and the digests."""
    name = "small_cnn" if isinstance(tower, SmallCnnTower) else "small_transformer"
    with atomic_folder(out / name) as folder:
        write_weights(folder / WEIGHTS, {name: value.half() for name, value in tower.state_dict().items()})
        if isinstance(tower, SmallTransformerTower):
            save_tokenizer(tower.tokenizer, folder / TOKENIZER_FILE)
        about = {"seed": SEED, **card, "batch": BATCH, "learning rate": RATE, "torch": str(torch.__version__)}
        (folder / CARD).write_text(json.dumps(about, indent=1) + "\n")
        seal_folder(folder)
    print(f"{out / name}: {about}")


if __name__ == "__main__":
    main()
