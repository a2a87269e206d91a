"""A multilingual retriever that the ClapModel of transformers holds exactly: `ray-atr export TRIAL --to clap`."""

from __future__ import annotations

from ray_atr.papers.recipes.atri import KCL
from ray_atr.training.recipes.recipe import Recipe

clap = Recipe(
    "AudioCaps in eight languages with HTS-AT and XLM-R through its pooler: the best trial exports to transformers' ClapModel.",
    {
        "model.audio": "htsat",
        "model.text": "xlm_roberta",
        "model.text.pooling": "pooler",
        # XLM-R was published without a trained pooler: its two tensors begin at random.
        "model.text.allow_mismatch": "pooler.*",
        "model.text.max_tokens": 77,
        "model.embedding_width": 512,
        # What follows is no paper's: AdamW with warm-up, and rates that keep pretrained towers near where they were.
        "train.optimizer": "adamw",
        "train.learning_rate": 5e-5,
        "train.schedule": "cosine",
        "train.warmup_fraction": 0.1,
        "train.batch_size": 64,
    },
    KCL,
)
